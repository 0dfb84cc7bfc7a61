// SPDX-License-Identifier: GPL-2.0

//! The sizes of queues on devices of every kind, which no guest has: soft-RoCE and soft-iWARP
//! have more of everything than requested.

use crate::{
    cost,
    split::{self, Split},
    rdma::device::Attributes,
};

/// Stand-ins for the modules next to `hcablk_target/io/limits.rs`.
mod chunks {
    pub(super) struct Chunk([u8; 400]);

    pub(super) const fn chunk_buffers(chunk: usize) -> usize {
        chunk / crate::layout::BUFFER_BYTES + 2
    }
}
mod queue {
    pub(super) struct Queue([u8; 4000]);
}
mod request {
    pub(super) struct TargetRequest([u8; 1100]);
}

#[path = "../../../initiator/shape.rs"]
mod initiator;
#[path = "../../../hcablk_target/io/limits.rs"]
mod target;

const MIB: usize = 1 << 20;

/// The attributes of soft-RoCE.
const LARGE: Attributes = Attributes {
    max_qp_wr: 1 << 20,
    max_send_sge: 32,
    max_recv_sge: 32,
    max_sge_rd: 32,
    max_cqe: 1 << 20,
    max_fast_reg_pages: 512,
    fast_registration: true,
    bounce_bytes: None,
    translated: false,
};

const OPTIONS: target::QueueOptions = target::QueueOptions {
    sinks: false,
    writes: true,
    grants: true,
    no_read: false,
    shares: false,
};

const SINKS: target::QueueOptions = target::QueueOptions {
    sinks: true,
    grants: false,
    ..OPTIONS
};

fn made(attributes: Attributes, credits: u16, options: target::QueueOptions) -> Result<target::QueueShape, &'static str> {
    let split = Split::new(64 << 10, 0, 0);
    target::QueueShape::new(attributes, credits, 16 * MIB, MIB as u32, options, split)
}

/// Halves `all` repeatedly, and returns the number whose half is `half`.
fn before_halving(all: u16, half: u16) -> u16 {
    (0..16).map(|n| all >> n).find(|n| n / 2 == half).unwrap()
}

fn lacks(attributes: Attributes, options: target::QueueOptions) -> &'static str {
    made(attributes, 128, options).expect_err("it lacks something")
}

#[test]
fn a_large_device_gives_the_target_all_that_is_asked_for() {
    for options in [OPTIONS, SINKS] {
        let shape = made(LARGE, 128, options).unwrap();
        assert_eq!((shape.credits, shape.requests, shape.inline), (128, 256, 4096));
        assert_eq!(shape.capacity().receive_entries, 2);
        assert!(shape.chunks >= 2 * 17);
    }
}

/// Checks that a receive with one entry holds only the request, and no inline data.
#[test]
fn a_device_whose_receives_take_one_entry_gets_no_data_with_requests() {
    for (max_recv_sge, inline, entries) in [(1, 0, 1), (2, 4096, 2), (3, 4096, 2)] {
        let attributes = Attributes {
            max_recv_sge,
            ..LARGE
        };
        let shape = made(attributes, 16, OPTIONS).unwrap();
        assert_eq!(shape.inline, inline, "{max_recv_sge}");
        assert_eq!(shape.capacity().receive_entries, entries, "{max_recv_sge}");
        assert!(shape.capacity().receive_entries <= max_recv_sge);
        assert!(shape.overhead() >= u64::from(inline) * 16);
    }
}

/// Checks with all limits of work requests and completions that the target's queue stays within
/// them, and is not reduced more than necessary: chunks first.
#[test]
fn short_queues_are_not_passed_nor_halved_too_often() {
    let usual = crate::split::CHUNKS_USUAL as u16;
    for options in [OPTIONS, SINKS] {
        for credits in [1u16, 7, 128, 1024] {
            for limit in (1..400).chain((400..20_000).step_by(97)) {
                for attributes in [
                    Attributes { max_qp_wr: limit, ..LARGE },
                    Attributes { max_cqe: limit, ..LARGE },
                ] {
                    let Ok(shape) = made(attributes, credits, options) else {
                        assert!(limit < 64, "a limit of {limit} is enough");
                        continue;
                    };
                    let capacity = shape.capacity();
                    assert!(capacity.sends < attributes.max_qp_wr);
                    assert!(shape.completions() <= attributes.max_cqe);
                    assert!(capacity.receives >= 1 && shape.requests == 2 * u32::from(shape.credits));
                    if shape.credits == credits {
                        continue;
                    }
                    assert!(shape.chunks <= usual, "chunks are reduced before credits");
                    let mut more = shape;
                    more.credits = before_halving(credits, shape.credits);
                    more.requests = 2 * u32::from(more.credits);
                    assert!(
                        more.capacity().sends >= attributes.max_qp_wr
                            || more.completions() > attributes.max_cqe,
                        "{limit}: {} credits would fit, too",
                        more.credits
                    );
                }
            }
        }
    }
}

#[test]
fn missing_abilities_of_a_device_are_reported_for_the_target() {
    assert_eq!(
        lacks(Attributes { max_qp_wr: 8, ..LARGE }, OPTIONS),
        "the RDMA device supports too few work requests"
    );
    for few in [
        Attributes { max_send_sge: 3, ..LARGE },
        Attributes { max_sge_rd: 3, ..LARGE },
    ] {
        assert_eq!(lacks(few, OPTIONS), "the RDMA device supports too few scatter-gather entries");
    }
    // A sink needs one entry.
    assert!(made(Attributes { max_sge_rd: 1, ..LARGE }, 128, SINKS).is_ok());
    let no_regions = Attributes { fast_registration: false, ..LARGE };
    assert_eq!(lacks(no_regions, SINKS), "the RDMA device cannot register memory by work requests");
    assert_eq!(made(no_regions, 128, OPTIONS).unwrap().eager_ring, 0);
    let small_regions = Attributes { max_fast_reg_pages: 255, ..LARGE };
    assert_eq!(lacks(small_regions, SINKS), "the RDMA device's memory regions are too small");
    assert!(made(small_regions, 128, OPTIONS).is_ok());
}

/// Checks the limits of a device with few entries: four of 32 KiB in eight work requests are 1 MiB.
#[test]
fn few_entries_make_more_work_requests_and_smaller_chunks() {
    let four = Attributes { max_send_sge: 4, max_sge_rd: 4, ..LARGE };
    let shape = made(four, 128, OPTIONS).unwrap();
    assert_eq!((shape.write_sges, shape.read_sges), (4, 4));
    assert_eq!(shape.capacity().send_entries, 4);
    // Each request needs eight work requests for its data, and one for the response.
    assert_eq!(shape.sends(), 256 * 9 + u32::from(shape.chunks) + 2);
    assert_eq!(shape.split.chunk(), 64 << 10, "a chunk begins anywhere in a buffer: three of four entries hold it");
    // One WRITE carries at most one entry of the chunk.
    let eight = Attributes { max_send_sge: 4, max_sge_rd: 4, ..LARGE };
    let split = Split::new(256 << 10, 0, 0);
    let shape = target::QueueShape::new(eight, 16, 16 * MIB, MIB as u32, OPTIONS, split).unwrap();
    assert_eq!(shape.split.chunk(), 64 << 10);
}

#[test]
fn the_largest_request_fits_the_device() {
    let largest = |attributes, options, asked| {
        target::QueueShape::largest(attributes, 64 * MIB, options, asked) as usize
    };
    let four = 4 * MIB as u32;
    assert_eq!(largest(LARGE, OPTIONS, four), 4 * MIB);
    assert_eq!(largest(LARGE, OPTIONS, 1), MIB, "never less than the default");
    assert_eq!(largest(Attributes { max_send_sge: 8, ..LARGE }, OPTIONS, four), 2 * MIB);
    assert_eq!(largest(Attributes { max_sge_rd: 8, ..LARGE }, OPTIONS, four), 2 * MIB);
    assert_eq!(largest(Attributes { max_sge_rd: 1, ..LARGE }, SINKS, four), 2 * MIB, "limited by the regions");
    assert_eq!(largest(LARGE, target::QueueOptions { no_read: true, ..OPTIONS }, four), MIB);
    assert_eq!(
        target::QueueShape::largest(LARGE, 5 * MIB, OPTIONS, four) as usize,
        5 * MIB - 5 * MIB / 4,
        "granted memory does not count for requests"
    );
}

/// Checks that a device with few or many entries and pages is accepted, and moves as much as these allow.
#[test]
fn few_entries_or_pages_make_smaller_requests() {
    let no_read = target::QueueOptions { no_read: true, ..OPTIONS };
    for asked in [MIB as u32, 4 * MIB as u32] {
        for sges in 1..40 {
            for (attributes, options) in [
                (Attributes { max_send_sge: sges, max_sge_rd: sges, ..LARGE }, OPTIONS),
                (Attributes { max_sge_rd: sges, ..LARGE }, OPTIONS),
                (Attributes { max_send_sge: sges, ..LARGE }, OPTIONS),
                (Attributes { max_send_sge: sges, max_sge_rd: 1, ..LARGE }, SINKS),
                (Attributes { max_send_sge: sges, max_sge_rd: 1, ..LARGE }, no_read),
            ] {
                let largest = target::QueueShape::largest(attributes, 64 * MIB, options, asked);
                let regions = if options.sinks { 2 * MIB } else { usize::MAX };
                let asked = if options.no_read { MIB } else { asked as usize };
                let most = sges as usize * 8 * (32 << 10);
                assert_eq!(largest as usize, asked.min(most).min(regions), "{sges} {options:?}");
                let split = Split::new(64 << 10, 0, 0);
                let shape = target::QueueShape::new(attributes, 128, 16 * MIB, largest, options, split).unwrap();
                let capacity = shape.capacity();
                assert!(capacity.send_entries <= attributes.max_send_sge && shape.read_sges <= sges.max(1) as usize);
                assert!(shape.split.chunk() <= (sges as usize - 1) * (32 << 10));
            }
        }
        for pages in (1..600).step_by(7) {
            let attributes = Attributes { max_fast_reg_pages: pages, ..LARGE };
            let largest = target::QueueShape::largest(attributes, 64 * MIB, SINKS, asked);
            assert_eq!(largest, asked.min(pages * 4096));
            assert!(target::QueueShape::new(attributes, 128, 16 * MIB, largest, SINKS, Split::NONE).is_ok());
        }
    }
    let none = Attributes { max_fast_reg_pages: 0, ..LARGE };
    let largest = target::QueueShape::largest(none, 64 * MIB, SINKS, MIB as u32);
    assert!(target::QueueShape::new(none, 128, 16 * MIB, largest, SINKS, Split::NONE).is_err());
}

#[test]
fn without_reads_a_device_must_hold_the_largest_write_in_one_region() {
    let options = target::QueueOptions { no_read: true, ..OPTIONS };
    let shape = made(LARGE, 128, options).unwrap();
    assert_eq!((shape.eager_ring, shape.no_read, shape.sinks), (2 * MIB, true, false));
    assert_eq!(
        lacks(Attributes { max_fast_reg_pages: 255, ..LARGE }, options),
        "the RDMA device's memory regions are too small to do without RDMA READ"
    );
    assert_eq!(
        lacks(Attributes { fast_registration: false, ..LARGE }, options),
        "the RDMA device cannot register memory by work requests"
    );
    assert!(lacks(LARGE, target::QueueOptions { grants: false, ..options }).contains("accept data that changes"));
}

fn fitted(attributes: Attributes, depth: u16) -> Result<initiator::QueueShape, &'static str> {
    initiator::QueueShape::fit(attributes, depth, MIB as u32).map_err(|e| match e {
        crate::failure::Failure::Device(what) => what,
    })
}

#[test]
fn the_initiators_shape_fits_the_device() {
    let shape = fitted(LARGE, 128).unwrap();
    assert_eq!((shape.depth, shape.bytes as usize, shape.inline_segments), (128, MIB, 8));
    for (max_send_sge, inline) in [(1, 0), (2, 1), (9, 8), (0, 0)] {
        let shape = fitted(Attributes { max_send_sge, ..LARGE }, 16).unwrap();
        assert_eq!(shape.inline_segments, inline, "{max_send_sge}");
        assert!(shape.capacity().send_entries <= max_send_sge.max(1));
    }
    for (max_fast_reg_pages, pages) in [(2, 1), (17, 16), (257, 256), (512, 256)] {
        let shape = fitted(Attributes { max_fast_reg_pages, ..LARGE }, 16).unwrap();
        assert_eq!((shape.segments, shape.bytes), (pages, u32::from(pages) * 4096));
        let mut shape = shape;
        shape.fit_read_bounce(LARGE, 0);
        assert_eq!(shape.read_bounce_slots, 0);
        shape.fit_read_bounce(LARGE, 8192);
        assert_eq!((shape.read_bounce_slots, shape.small_read), (16, 8192));
    }
}

#[test]
fn the_initiators_queues_fit_short_ones_and_no_less_than_they_could() {
    for depth in [1u16, 3, 128, 1024] {
        for limit in (1..500).chain((500..6000).step_by(17)) {
            for attributes in [
                Attributes { max_qp_wr: limit, ..LARGE },
                Attributes { max_cqe: limit, ..LARGE },
            ] {
                let Ok(shape) = fitted(attributes, depth) else {
                    assert!(limit < 64, "a limit of {limit} is enough");
                    continue;
                };
                let (sends, completions) = (shape.send_slots(), |sends: u32, depth: u16| sends + u32::from(depth) + 2);
                assert!(shape.depth >= 1 && sends < attributes.max_qp_wr);
                assert!(completions(sends, shape.depth) <= attributes.max_cqe);
                if shape.depth < depth {
                    let before = before_halving(depth, shape.depth);
                    let more = initiator::QueueShape { depth: before, ..shape };
                    let sends = more.send_slots();
                    assert!(sends >= attributes.max_qp_wr || completions(sends, more.depth) > attributes.max_cqe);
                }
            }
        }
    }
    // A request is one mapping, and a region covers one bounce buffer.
    for (bounce_bytes, bytes) in [(256 << 10, 256 << 10), (4096, 4096), (u32::MAX, MIB)] {
        let shape = fitted(Attributes { bounce_bytes: Some(bounce_bytes), ..LARGE }, 16).unwrap();
        assert_eq!((shape.segments, shape.bytes as usize), (1, bytes));
    }
    // Write bounce slots need an IOMMU, and writes that use them.
    for (translated, largest, wanted) in [(false, 32768, false), (true, 0, false), (true, 512, true)] {
        let attributes = Attributes { translated, ..LARGE };
        let mut shape = fitted(attributes, 16).unwrap();
        assert!(!shape.write_bounce);
        shape.fit_write_bounce(attributes, largest);
        assert_eq!(shape.write_bounce, wanted, "{translated}, {largest}");
    }
    for (lacking, what) in [
        (Attributes { bounce_bytes: Some(4095), ..LARGE }, "its memory regions are too small"),
        (Attributes { max_qp_wr: 8, ..LARGE }, "its queues are too short"),
        (Attributes { max_fast_reg_pages: 1, ..LARGE }, "its memory regions are too small"),
        (Attributes { fast_registration: false, ..LARGE }, "it cannot register memory by work requests"),
    ] {
        assert_eq!(fitted(lacking, 128).unwrap_err(), what);
    }
}
