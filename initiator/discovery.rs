// SPDX-License-Identifier: GPL-2.0

//! `/sys/kernel/config/hcablk_discovery`: `mkdir` makes a directory for asking a target which
//! volumes and addresses it has for this host, entry by entry. Neither a connection nor a session
//! at the target remains.
//!
//! Writing `volumes N` or `portals N` to `ask` sends the request, and returns when there is a
//! response, after `connect_timeout` at the latest. While another request is running, it fails at
//! once with `EBUSY`. `answer` shows the last reply, and `error` the reason why the last request
//! failed.

use crate::{
    connect,
    failure::Failure,
    keys::{
        self,
        Keys,
        Side, //
    },
};
use core::net::{
    IpAddr,
    SocketAddr, //
};
use hcablk_core::{
    configfs::{
        boolean,
        number,
        Attribute,
        Directory,
        NoChild,
        Node,
        Output, //
    },
    proto::{
        discovery::{
            DiscoveryReply,
            Entry,
            List,
            Question,
            VolumeEntry,
            VolumeMode, //
        },
        name::HostId,
        VERSION_MAX,
        VERSION_MIN, //
    },
    rdma::address::parse_ip,
    system::Deadline, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

/// The top directory.
pub(crate) struct Root;

/// The user's settings.
#[derive(Clone, Copy)]
struct Settings {
    address: Option<IpAddr>,
    port: u16,
    host: Option<HostId>,
    /// A host that has a key also asks a target whose key is not set: without a proof.
    insecure: bool,
    connect_timeout_s: u32,
}

/// The result of the last request.
enum LastResult {
    Nothing,
    Reply(DiscoveryReply),
    Failed(Failure),
}

/// A directory for asking one target.
#[pin_data]
pub(crate) struct Asker {
    #[pin]
    settings: Mutex<Settings>,
    #[pin]
    keys: Mutex<Keys>,
    /// Held during a request: a second one in the meantime is refused.
    #[pin]
    asking: Mutex<()>,
    #[pin]
    result: Mutex<LastResult>,
}

impl Node for Root {
    const ATTRIBUTES: &'static [Attribute<Self>] = &[];
    type Child = Asker;

    fn make_child(_: &Arc<Self>, _: &str) -> Result<Arc<Asker>> {
        Arc::pin_init(
            pin_init!(Asker {
                settings <- new_mutex!(Settings {
                    address: None,
                    port: 7744,
                    host: None,
                    insecure: false,
                    connect_timeout_s: 10,
                }),
                keys <- new_mutex!(Keys::default()),
                asking <- new_mutex!(()),
                result <- new_mutex!(LastResult::Nothing),
            }),
            GFP_KERNEL,
        )
    }
}

/// Reads `volumes N` or `portals N`.
fn parse_question(text: &str) -> Result<(List, u32)> {
    let (list, index) = text.split_once(' ').ok_or(EINVAL)?;
    let list = match list {
        "volumes" => List::Volumes,
        "portals" => List::Portals,
        _ => return Err(EINVAL),
    };
    Ok((list, number(index, 0, u32::MAX)?))
}

impl Asker {
    fn set_key(&self, side: Side, text: &str) -> Result {
        let key = keys::parse(text)?;
        let former = self.keys.lock().set(side, key);
        drop(former);
        Ok(())
    }

    fn ask(&self, text: &str) -> Result {
        let (list, index) = parse_question(text)?;
        // Waiting for the other request could last until its target responds.
        let _alone = self.asking.try_lock().ok_or(EBUSY)?;
        let reply = self.ask_for(list, index);
        let failure = reply.as_ref().err().copied();
        *self.result.lock() = match reply {
            Ok(reply) => LastResult::Reply(reply),
            Err(failure) => LastResult::Failed(failure),
        };
        failure.map_or(Ok(()), |failure| Err(failure.errno()))
    }

    fn ask_for(&self, list: List, index: u32) -> Result<DiscoveryReply, Failure> {
        let settings = *self.settings.lock();
        let ip = settings.address.ok_or(Failure::Unset("address"))?;
        let question = Question {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            host: settings.host.ok_or(Failure::Unset("host_id"))?,
            list,
            index,
        };
        let pair = self.keys.lock().pair(settings.insecure)?;
        let address = SocketAddr::new(ip, settings.port);
        let deadline = Deadline::new(settings.connect_timeout_s.saturating_mul(1000));
        connect::ask(&address, &question, pair, deadline)
    }

    fn show_reply(&self, out: &mut Output<'_>) -> Result {
        let LastResult::Reply(reply) = &*self.result.lock() else {
            return Ok(());
        };
        writeln!(out, "count {}", reply.count)?;
        writeln!(out, "revision {:08x}", reply.revision)?;
        match &reply.entry {
            None => Ok(()),
            Some(Entry::Volume(volume)) => show_volume(volume, out),
            Some(Entry::Portal(portal)) => {
                writeln!(out, "address {}", portal.ip)?;
                writeln!(out, "port {}", portal.port)
            }
        }
    }
}

fn show_volume(volume: &VolumeEntry, out: &mut Output<'_>) -> Result {
    writeln!(out, "name {}", volume.name)?;
    if let Some(id) = volume.id {
        writeln!(out, "wwid {id}")?;
    }
    writeln!(out, "size_bytes {}", volume.capacity)?;
    writeln!(out, "block_size {}", 1u32 << volume.block_shift)?;
    writeln!(out, "read_only {}", u8::from(volume.read_only))?;
    writeln!(out, "evicted {}", u8::from(volume.evicted))?;
    writeln!(out, "insecure {}", u8::from(volume.insecure))?;
    let mode = match volume.mode {
        VolumeMode::Direct => "direct",
        VolumeMode::Cached => "cached",
        VolumeMode::Mixed => "mixed",
        VolumeMode::P2p => "p2p",
    };
    writeln!(out, "mode {mode}")
}

/// Shows a setting, or an empty line if it is unset.
fn optional(out: &mut Output<'_>, value: Option<impl core::fmt::Display>) -> Result {
    match value {
        Some(value) => writeln!(out, "{value}"),
        None => writeln!(out),
    }
}

/// An attribute for a setting: formats its value, and parses text into one.
macro_rules! setting {
    ($name:literal, $field:ident, $show:expr, $parse:expr) => {
        Attribute::read_write(
            $name,
            |asker: &Asker, out: &mut Output<'_>| $show(out, asker.settings.lock().$field),
            |asker: &Arc<Asker>, _: &Directory<'_>, text: &str| {
                let value = $parse(text)?;
                asker.settings.lock().$field = value;
                Ok(())
            },
        )
    };
}

impl Node for Asker {
    type Child = NoChild;

    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        setting!(c"address", address, optional, |text| parse_ip(text)
            .map(Some)),
        setting!(
            c"port",
            port,
            |out: &mut Output<'_>, port| writeln!(out, "{port}"),
            |text| number(text, 1, 65535).map(|port| port as u16)
        ),
        setting!(c"host_id", host, optional, |text| HostId::parse(text)
            .map(Some)
            .map_err(|_| EINVAL)),
        Attribute::secret(c"host_key", |asker, _, text| {
            asker.set_key(Side::Host, text)
        }),
        Attribute::secret(c"target_key", |asker, _, text| {
            asker.set_key(Side::Target, text)
        }),
        setting!(
            c"insecure",
            insecure,
            |out: &mut Output<'_>, on| writeln!(out, "{}", u8::from(on)),
            boolean
        ),
        setting!(
            c"connect_timeout",
            connect_timeout_s,
            |out: &mut Output<'_>, s| writeln!(out, "{s}"),
            |text| number(text, 1, 600)
        ),
        Attribute::read_write(
            c"ask",
            |_, out| writeln!(out),
            |asker, _, text| asker.ask(text),
        ),
        Attribute::read_only(c"answer", |asker, out| asker.show_reply(out)),
        Attribute::read_only(c"error", |asker, out| match &*asker.result.lock() {
            LastResult::Failed(failure) => writeln!(out, "{failure}"),
            _ => writeln!(out),
        }),
    ];
}
