// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The request for changes of the target's portals, and its response.

use super::TAG;
use crate::proto::message::{AdminOp, AdminRequest, AdminResponse, Handle, Status, VolumeState};

#[test]
fn a_request_has_the_known_generation() {
    for known in [0, 1, u32::MAX] {
        let request = AdminRequest {
            tag: TAG,
            volume: Handle::FIRST,
            op: AdminOp::Portals { known },
        };
        let good = request.encode();
        assert_eq!(good[..8], [0x25, 0, 0, 0, 2, 1, 4, 3]);
        assert_eq!(good[8..12], known.to_le_bytes());
        assert_eq!(AdminRequest::decode(&good), Some(request));
        for at in (1..4).chain(12..40) {
            let mut bad = good;
            bad[at] = 1;
            assert_eq!(AdminRequest::decode(&bad), None, "byte {at}");
        }
    }
}

#[test]
fn a_response_has_a_generation_and_nothing_else() {
    let response = |portals| AdminResponse {
        portals,
        ..AdminResponse::bare(TAG, Status::Ok)
    };
    let good = response(Some(0x0403_0201)).encode().to_vec();
    assert_eq!(good[12..16], [1, 2, 3, 4]);
    assert_eq!(
        AdminResponse::decode(&good),
        Some(response(Some(0x0403_0201)))
    );
    // The generation 0 stands for a response without portals.
    assert_eq!(
        AdminResponse::decode(&response(Some(0)).encode()),
        Some(response(None))
    );
    for at in [1, 2, 10, 16, 23] {
        let mut bad = good.clone();
        bad[at] = 1;
        assert_eq!(AdminResponse::decode(&bad), None, "byte {at}");
    }
    let both = AdminResponse {
        volume: Some(VolumeState {
            sectors: 8,
            read_only: false,
            write_cache: None,
        }),
        ..response(Some(1))
    };
    assert_eq!(AdminResponse::decode(&both.encode()), None);
}
