// SPDX-License-Identifier: GPL-2.0

//! `/sys/kernel/config/hcablk_target`: `volumes/NAME`, with the hosts that may
//! use it in `volumes/NAME/hosts/UUID`, and `ports/NAME`.

use crate::{
    drive::{
        backing::{
            Mode,
            WriteCache, //
        },
        p2p::Source,
        reservations::Keep, //
    },
    export::{
        connect,
        port::{
            Port,
            Settings, //
        },
        registry::Registry,
        volume::Volume, //
    },
    session::attachment::Attachment, //
};
use hcablk_core::{
    configfs::{
        boolean,
        number,
        Attribute,
        DefaultGroups,
        Directory,
        NoChild,
        Node,
        Output, //
    },
    proto::{
        name::{
            HostId,
            VolumeId,
            VolumeName, //
        },
        DEPTH_MAX, //
    },
    rdma::address::parse_ip, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The top directory.
pub(crate) struct Root(Arc<Registry>);

impl Root {
    pub(crate) fn new(registry: Arc<Registry>) -> Self {
        Self(registry)
    }
}

impl Node for Root {
    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        Attribute::secret(c"key", |root, _, text| root.0.set_key(0, text)),
        Attribute::secret(c"key2", |root, _, text| root.0.set_key(1, text)),
        Attribute::read_only(c"keys", |root, out| writeln!(out, "{}", root.0.key_count())),
        Attribute::read_write(
            c"reservations",
            |root, out| {
                root.0.drives().with_directory(|path| {
                    out.write_bytes(path.map_or(&[], CStr::to_bytes));
                    writeln!(out)
                })
            },
            |root, _, text| root.0.drives().set_directory(text),
        ),
    ];

    type Child = NoChild;

    fn default_groups(this: &Arc<Self>, groups: &mut DefaultGroups) -> Result {
        groups.add(c"volumes", Arc::new(Volumes(this.0.clone()), GFP_KERNEL)?)?;
        groups.add(c"ports", Arc::new(Ports(this.0.clone()), GFP_KERNEL)?)
    }
}

/// `volumes`.
struct Volumes(Arc<Registry>);

impl Node for Volumes {
    const ATTRIBUTES: &'static [Attribute<Self>] = &[];
    type Child = Volume;

    fn make_child(this: &Arc<Self>, name: &str) -> Result<Arc<Volume>> {
        let name = VolumeName::parse(name).map_err(|_| EINVAL)?;
        let volume = Volume::new(name, this.0.clone())?;
        this.0.add_volume(&volume)?;
        Ok(volume)
    }
}

/// Parses a chunk's length: 0, or a power of two from 64 to 512.
fn chunk_kib(text: &str) -> Result<u32> {
    let kib = number(text, 0, 512)?;
    if kib == 0 || kib >= 64 && kib.is_power_of_two() {
        Ok(kib)
    } else {
        Err(EINVAL)
    }
}

/// The largest cache of a volume, in MiB: 1 TiB.
const CACHE_MIB_MAX: u32 = 1 << 20;

/// The most memory of a port's sessions, in MiB: 1 TiB.
const MEMORY_MIB_MAX: u32 = 1 << 20;

/// Prints `volumes/NAME/error`.
fn show_error(out: &mut Output<'_>, error: Option<(&str, Error)>) -> Result {
    match error {
        Some((what, e)) => writeln!(out, "{what} (error {})", e.to_errno()),
        None => writeln!(out),
    }
}

/// Prints a line of `volumes/NAME/peers` for each queue pair that has peer memory.
fn show_peers(out: &mut Output<'_>, attachment: &Attachment) -> Result {
    let session = attachment.session();
    let mut result = Ok(());
    session.for_each_queue(|queue| {
        if result.is_err() {
            return;
        }
        let shown = queue.with_lease(|provider, memory| {
            writeln!(
                out,
                "{} {:016x} {} {provider} {} {}",
                session.host(),
                session.id().0,
                queue.index(),
                memory.len(),
                if memory.is_mapped() {
                    "direct"
                } else {
                    "bounce"
                },
            )
        });
        result = shown.unwrap_or(Ok(()));
    });
    result
}

impl Node for Volume {
    type Child = NoChild;

    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        Attribute::read_write(
            c"path",
            |volume, out| {
                volume.with_path(|path| {
                    out.write_bytes(path.map_or(&[], CStr::to_bytes));
                    writeln!(out)
                })
            },
            |volume, _, text| volume.set_path(text),
        ),
        Attribute::read_write(
            c"read_only",
            |volume, out| writeln!(out, "{}", u8::from(volume.read_only())),
            |volume, _, text| volume.set_read_only(boolean(text)?),
        ),
        Attribute::read_write(
            c"insecure",
            |volume, out| writeln!(out, "{}", u8::from(volume.insecure())),
            |volume, _, text| volume.set_insecure(boolean(text)?),
        ),
        Attribute::read_write(
            c"mode",
            |volume, out| writeln!(out, "{}", volume.mode().name()),
            |volume, _, text| volume.set_mode(Mode::parse(text)?),
        ),
        Attribute::read_write(
            c"write_cache",
            |volume, out| writeln!(out, "{}", volume.write_cache().name()),
            |volume, _, text| volume.set_write_cache(WriteCache::parse(text)?),
        ),
        Attribute::read_write(
            c"cache_mib",
            |volume, out| writeln!(out, "{}", volume.cache_mib()),
            |volume, _, text| volume.set_cache_mib(number(text, 0, CACHE_MIB_MAX)?),
        ),
        Attribute::read_write(
            c"chunk_kib",
            |volume, out| writeln!(out, "{}", volume.chunk_kib()),
            |volume, _, text| volume.set_chunk_kib(chunk_kib(text)?),
        ),
        Attribute::read_write(
            c"provider",
            |volume, out| writeln!(out, "{}", volume.source()),
            |volume, _, text| volume.set_source(Source::parse(text)?),
        ),
        Attribute::read_write(
            c"wwid",
            |volume, out| match volume.wwid() {
                Some(wwid) => writeln!(out, "{wwid}"),
                None => writeln!(out),
            },
            |volume, _, text| {
                volume.set_wwid(match text {
                    "" => None,
                    text => Some(VolumeId::parse(text).map_err(|_| EINVAL)?),
                })
            },
        ),
        Attribute::read_write(
            c"keep_reservations",
            |volume, out| {
                let kept = volume.keep_reservations() == Keep::Always;
                writeln!(out, "{}", u8::from(kept))
            },
            |volume, _, text| {
                volume.set_keep_reservations(match boolean(text)? {
                    true => Keep::Always,
                    false => Keep::IfPossible,
                })
            },
        ),
        Attribute::read_write(
            c"state",
            |volume, out| {
                volume.with_state_directory(|path| {
                    out.write_bytes(path.map_or(&[], CStr::to_bytes));
                    writeln!(out)
                })
            },
            |volume, _, text| volume.set_state_directory(text),
        ),
        Attribute::read_write(
            c"enable",
            |volume, out| writeln!(out, "{}", u8::from(volume.is_exported())),
            |volume, directory, text| {
                if boolean(text)? {
                    volume.enable(directory)
                } else {
                    volume.disable()
                }
            },
        ),
        Attribute::read_write(
            c"evicted",
            |volume, out| {
                for (host, drains) in volume.evicted()?.iter() {
                    writeln!(out, "{host}{}", if *drains { " draining" } else { "" })?;
                }
                Ok(())
            },
            |volume, _, text| volume.evict(HostId::parse(text).map_err(|_| EINVAL)?),
        ),
        Attribute::read_write(
            c"admit",
            |_, _| Ok(()),
            |volume, _, text| volume.admit(HostId::parse(text).map_err(|_| EINVAL)?),
        ),
        Attribute::read_only(c"size", |volume, out| writeln!(out, "{}", volume.size())),
        Attribute::private(c"clients", |volume, out| {
            let of_volume = |a: &Attachment| a.is_of(volume);
            for attachment in volume.registry().attachments(of_volume)?.iter() {
                let session = attachment.session();
                writeln!(
                    out,
                    "{} {:016x} {} {}",
                    session.host(),
                    session.id().0,
                    session.epoch().0,
                    session.connected()
                )?;
            }
            Ok(())
        }),
        Attribute::private(c"peers", |volume, out| {
            let of_volume = |a: &Attachment| a.is_of(volume);
            for attachment in volume.registry().attachments(of_volume)?.iter() {
                show_peers(out, attachment)?;
            }
            Ok(())
        }),
        Attribute::read_write(
            c"timing",
            |volume, out| writeln!(out, "{}", u8::from(volume.timing())),
            |volume, _, text| volume.set_timing(boolean(text)?),
        ),
        Attribute::read_only(c"times", |volume, out| {
            volume
                .times()?
                .for_each(|name, times| writeln!(out, "{name} {times}"))
        }),
        Attribute::read_only(c"stats", |volume, out| {
            volume
                .counters()?
                .for_each(|name, value| writeln!(out, "{name} {value}"))
        }),
        Attribute::read_only(c"error", |volume, out| show_error(out, volume.error())),
    ];

    fn default_groups(this: &Arc<Self>, groups: &mut DefaultGroups) -> Result {
        groups.add(c"hosts", Arc::new(Hosts(this.clone()), GFP_KERNEL)?)
    }

    fn removed(&self) {
        self.registry().remove_volume(self);
    }
}

/// `volumes/NAME/hosts`.
struct Hosts(Arc<Volume>);

impl Node for Hosts {
    const ATTRIBUTES: &'static [Attribute<Self>] = &[];
    type Child = Host;

    fn make_child(this: &Arc<Self>, name: &str) -> Result<Arc<Host>> {
        let id = HostId::parse(name).map_err(|_| EINVAL)?;
        let host = Host {
            volume: this.0.clone(),
            id,
        };
        let host = Arc::new(host, GFP_KERNEL)?;
        this.0.allow(id)?;
        Ok(host)
    }
}

/// `volumes/NAME/hosts/UUID`.
struct Host {
    volume: Arc<Volume>,
    id: HostId,
}

impl Node for Host {
    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        Attribute::secret(c"key", |host, _, text| {
            host.volume.set_key(host.id, 0, text)
        }),
        Attribute::secret(c"key2", |host, _, text| {
            host.volume.set_key(host.id, 1, text)
        }),
        Attribute::read_only(c"keys", |host, out| {
            let count = host
                .volume
                .with_keys(host.id, |keys| keys.map_or(0, |keys| keys.count()));
            writeln!(out, "{count}")
        }),
    ];
    type Child = NoChild;

    fn removed(&self) {
        self.volume.forbid(self.id);
    }
}

/// `ports`.
struct Ports(Arc<Registry>);

impl Node for Ports {
    const ATTRIBUTES: &'static [Attribute<Self>] = &[];
    type Child = Port;

    fn make_child(this: &Arc<Self>, _name: &str) -> Result<Arc<Port>> {
        Port::new(&this.0, connect::begin)
    }
}

/// An attribute for a setting: how the value is printed, and how text is parsed.
macro_rules! setting {
    ($name:literal, $($field:ident).+, $parse:expr) => {
        Attribute::read_write(
            $name,
            |port: &Port, out: &mut Output<'_>| writeln!(out, "{}", port.settings().$($field).+),
            |port: &Arc<Port>, _: &Directory<'_>, text: &str| {
                let value = $parse(text)?;
                port.configure(|settings: &mut Settings| settings.$($field).+ = value)
            },
        )
    };
}

impl Node for Port {
    type Child = NoChild;

    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        setting!(c"address", address, parse_ip),
        setting!(c"port", port, |text| number(text, 1, 65535)
            .map(|port| port as u16)),
        setting!(c"buffer_mib", limits.buffer_mib, |text| number(
            text, 0, 1024
        )
        .map(|mib| mib as usize)),
        Attribute::read_write(
            c"memory_mib",
            |port, out| writeln!(out, "{}", port.memory().limit() >> 20),
            |port, _, text| {
                let mib = number(text, 1, MEMORY_MIB_MAX)?;
                port.memory().set_limit(u64::from(mib) << 20)
            },
        ),
        Attribute::read_only(c"memory", |port, out| port.memory().show(out)),
        Attribute::private(c"shares", |port, out| {
            let of_port = |a: &Attachment| a.session().uses(port.memory());
            for attachment in port.registry().attachments(of_port)?.iter() {
                let session = attachment.session();
                if let Some(client) = session.client() {
                    write!(
                        out,
                        "{} {} {:016x} ",
                        attachment.volume_name(),
                        session.host(),
                        session.id().0
                    )?;
                    client.show(out)?;
                }
            }
            Ok(())
        }),
        setting!(c"queue_credits", limits.queue_credits, |text| number(
            text,
            0,
            DEPTH_MAX.into()
        )
        .map(|credits| credits as u16)),
        Attribute::read_write(
            c"enable",
            |port, out| writeln!(out, "{}", u8::from(port.is_enabled())),
            |port, directory, text| {
                if boolean(text)? {
                    port.enable(directory)
                } else {
                    port.disable();
                    Ok(())
                }
            },
        ),
        Attribute::private(c"sessions", |port, out| {
            let of_port = |a: &Attachment| a.session().uses(port.memory());
            for attachment in port.registry().attachments(of_port)?.iter() {
                let session = attachment.session();
                writeln!(
                    out,
                    "{} {} {:016x} {} {}",
                    attachment.volume_name(),
                    session.host(),
                    session.id().0,
                    session.epoch().0,
                    session.connected()
                )?;
            }
            Ok(())
        }),
        Attribute::read_only(c"error", |port, out| {
            show_error(out, port.error().map(|e| ("cannot listen", e)))
        }),
    ];
}
