// SPDX-License-Identifier: GPL-2.0

//! `/sys/kernel/config/hcablk`: `mkdir` makes a device, its files configure it.

use crate::{
    device::{
        path::Path,
        Device,
        DISK_PREFIX, //
    },
    identity::Identities,
    keys::Side,
    settings::{
        Policy,
        Settings,
        SMALL_READ_MAX, //
    },
    shape::BATCH_MAX,
    workqueues::AllQueues,
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
        connect::PATHS_MAX,
        message::KEEP_ALIVE_TMO_MAX,
        name::{
            HostId,
            VolumeId,
            VolumeName, //
        },
        DEPTH_MAX,
        DEPTH_MIN,
        INLINE_MAX,
        QUEUES_MAX,
        TRANSFER_MAX,
        TRANSFER_USUAL, //
    },
    rdma::address::parse_ip, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    ThisModule, //
};

/// The top directory.
pub(crate) struct Root {
    queues: Arc<AllQueues>,
    identities: Arc<Identities>,
    module: &'static ThisModule,
}

impl Root {
    pub(crate) fn new(queues: Arc<AllQueues>, module: &'static ThisModule) -> Result<Self> {
        Ok(Self {
            queues,
            identities: Identities::new()?,
            module,
        })
    }
}

/// Largest `ctrl_loss_tmo` and `fast_io_fail_tmo`, seconds: a week.
const CTRL_LOSS_TMO_MAX: u32 = 604_800;

/// Longest name of a device.
const NAME_MAX: usize = 63;

impl Node for Root {
    const ATTRIBUTES: &'static [Attribute<Self>] = &[];
    type Child = Device;

    fn make_child(this: &Arc<Self>, name: &str) -> Result<Arc<Device>> {
        let good = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
        if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(good) {
            return Err(EINVAL);
        }
        Device::new(name, &this.queues, &this.identities, this.module)
    }
}

/// Shows a setting, or an empty line if it is unset.
fn optional(out: &mut Output<'_>, value: Option<impl core::fmt::Display>) -> Result {
    match value {
        Some(value) => writeln!(out, "{value}"),
        None => writeln!(out),
    }
}

/// An attribute for a setting: formats its value, and parses text into one. Changed by
/// [`Device::configure`], or by the method `$change`.
macro_rules! setting {
    ($name:literal, $field:ident, $show:expr, $parse:expr) => {
        setting!($name, $field, $show, $parse, configure)
    };
    ($name:literal, $field:ident, $show:expr, $parse:expr, $change:ident) => {
        Attribute::read_write(
            $name,
            |device: &Device, out: &mut Output<'_>| $show(out, device.settings().$field),
            |device: &Arc<Device>, _: &Directory<'_>, text: &str| {
                let value = $parse(text)?;
                device.$change(|settings: &mut Settings| settings.$field = value)
            },
        )
    };
}

/// The directory `paths` of a device: `mkdir` makes a further path, whose name is its number.
pub(crate) struct Paths(Arc<Device>);

impl Node for Paths {
    const ATTRIBUTES: &'static [Attribute<Self>] = &[];
    type Child = PathDirectory;

    fn make_child(this: &Arc<Self>, name: &str) -> Result<Arc<PathDirectory>> {
        let number = number(name, 1, u32::from(PATHS_MAX) - 1)? as u8;
        let path = this.0.add_path(number)?;
        let directory = PathDirectory {
            device: this.0.clone(),
            path,
        };
        Ok(Arc::new(directory, GFP_KERNEL)?)
    }
}

/// The directory of a path.
pub(crate) struct PathDirectory {
    device: Arc<Device>,
    path: Arc<Path>,
}

impl Node for PathDirectory {
    type Child = NoChild;

    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        Attribute::read_write(
            c"address",
            |this: &Self, out: &mut Output<'_>| optional(out, this.path.info().address),
            |this: &Arc<Self>, _: &Directory<'_>, text: &str| {
                let address = parse_ip(text)?;
                this.path.configure(|info| info.address = Some(address))
            },
        ),
        Attribute::read_write(
            c"port",
            |this: &Self, out: &mut Output<'_>| writeln!(out, "{}", this.path.info().port),
            |this: &Arc<Self>, _: &Directory<'_>, text: &str| {
                let port = number(text, 1, 65535)? as u16;
                this.path.configure(|info| info.port = port)
            },
        ),
        Attribute::read_write(
            c"enable",
            |this: &Self, out: &mut Output<'_>| {
                writeln!(out, "{}", u8::from(this.path.info().enabled))
            },
            |this: &Arc<Self>, directory: &Directory<'_>, text: &str| match boolean(text)? {
                true => this.device.enable_path(&this.path, directory),
                false => this.device.disable_path(&this.path),
            },
        ),
        Attribute::read_only(c"state", |this: &Self, out: &mut Output<'_>| {
            writeln!(out, "{}", this.path.info().state)
        }),
        Attribute::read_only(c"error", |this: &Self, out: &mut Output<'_>| {
            optional(out, this.path.info().failure)
        }),
    ];

    fn removed(&self) {
        self.device.forget_path(&self.path);
    }
}

impl Node for Device {
    type Child = NoChild;

    fn default_groups(this: &Arc<Self>, groups: &mut DefaultGroups) -> Result {
        groups.add(c"paths", Arc::new(Paths(this.clone()), GFP_KERNEL)?)
    }

    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        setting!(c"address", address, optional, |text| parse_ip(text)
            .map(Some)),
        setting!(
            c"port",
            port,
            |out: &mut Output<'_>, port| writeln!(out, "{port}"),
            |text| number(text, 1, 65535).map(|port| port as u16)
        ),
        setting!(c"volume", volume, optional, |text| VolumeName::parse(text)
            .map(Some)
            .map_err(|_| EINVAL)),
        setting!(c"host_id", host, optional, |text| HostId::parse(text)
            .map(Some)
            .map_err(|_| EINVAL)),
        Attribute::secret(c"host_key", |device, _, text| {
            device.set_key(Side::Host, text)
        }),
        Attribute::secret(c"target_key", |device, _, text| {
            device.set_key(Side::Target, text)
        }),
        Attribute::read_only(c"keys", |device, out| {
            writeln!(out, "{}", device.key_count())
        }),
        setting!(c"expect_wwid", expect_wwid, optional, |text| match text {
            "" => Ok(None),
            text => VolumeId::parse(text).map(Some).map_err(|_| EINVAL),
        }),
        setting!(
            c"queues",
            queues,
            |out: &mut Output<'_>, queues| writeln!(out, "{queues}"),
            |text| number(text, 0, QUEUES_MAX.into()).map(|queues| queues as u8)
        ),
        setting!(
            c"poll_queues",
            poll_queues,
            |out: &mut Output<'_>, queues| writeln!(out, "{queues}"),
            |text| number(text, 0, (QUEUES_MAX - 1).into()).map(|queues| queues as u8)
        ),
        setting!(
            c"queue_depth",
            depth,
            |out: &mut Output<'_>, depth| writeln!(out, "{depth}"),
            |text| number(text, DEPTH_MIN.into(), DEPTH_MAX.into()).map(|depth| depth as u16)
        ),
        setting!(
            c"io_timeout",
            io_timeout_s,
            |out: &mut Output<'_>, s| writeln!(out, "{s}"),
            |text| number(text, 1, 3600)
        ),
        setting!(
            c"connect_timeout",
            connect_timeout_s,
            |out: &mut Output<'_>, s| writeln!(out, "{s}"),
            |text| number(text, 1, 600)
        ),
        setting!(
            c"reconnect_delay",
            reconnect_delay_s,
            |out: &mut Output<'_>, s| writeln!(out, "{s}"),
            |text| number(text, 1, 60),
            set_limits
        ),
        setting!(
            c"ctrl_loss_tmo",
            ctrl_loss_tmo_s,
            |out: &mut Output<'_>, s| match s {
                Some(s) => writeln!(out, "{s}"),
                None => writeln!(out, "-1"),
            },
            |text| match text {
                "-1" => Ok(None),
                text => number(text, 0, CTRL_LOSS_TMO_MAX).map(Some),
            },
            set_limits
        ),
        setting!(
            c"fast_io_fail_tmo",
            fast_io_fail_tmo_s,
            |out: &mut Output<'_>, s| match s {
                Some(s) => writeln!(out, "{s}"),
                None => writeln!(out, "-1"),
            },
            |text| match text {
                "-1" => Ok(None),
                text => number(text, 0, CTRL_LOSS_TMO_MAX).map(Some),
            },
            set_limits
        ),
        setting!(
            c"keep_alive_tmo",
            keep_alive_tmo_s,
            |out: &mut Output<'_>, s| writeln!(out, "{s}"),
            |text| number(text, 1, KEEP_ALIVE_TMO_MAX.into()).map(|s| s as u16)
        ),
        Attribute::read_write(
            c"policy",
            |device: &Device, out: &mut Output<'_>| writeln!(out, "{}", device.settings().policy),
            |device: &Arc<Device>, _: &Directory<'_>, text: &str| {
                device.set_policy(Policy::parse(text).ok_or(EINVAL)?)
            },
        ),
        Attribute::read_write(
            c"paths_auto",
            |device: &Device, out: &mut Output<'_>| {
                writeln!(out, "{}", u8::from(device.settings().paths_auto))
            },
            |device: &Arc<Device>, _: &Directory<'_>, text: &str| {
                device.set_paths_auto(boolean(text)?);
                Ok(())
            },
        ),
        setting!(
            c"remote_invalidate",
            remote_invalidate,
            |out: &mut Output<'_>, on| writeln!(out, "{}", u8::from(on)),
            boolean
        ),
        setting!(
            c"insecure",
            insecure,
            |out: &mut Output<'_>, on| writeln!(out, "{}", u8::from(on)),
            boolean
        ),
        setting!(
            c"small_read",
            small_read,
            |out: &mut Output<'_>, bytes| writeln!(out, "{bytes}"),
            |text| number(text, 0, SMALL_READ_MAX)
        ),
        setting!(
            c"small_write",
            small_write,
            |out: &mut Output<'_>, bytes| writeln!(out, "{bytes}"),
            |text| number(text, 0, INLINE_MAX)
        ),
        setting!(
            c"eager_write",
            eager_write,
            |out: &mut Output<'_>, bytes| writeln!(out, "{bytes}"),
            |text| number(text, 0, TRANSFER_USUAL)
        ),
        setting!(
            c"max_io_kib",
            max_io_kib,
            |out: &mut Output<'_>, kib| writeln!(out, "{kib}"),
            |text| match number(text, 4, TRANSFER_MAX >> 10)? {
                kib if kib % 4 == 0 => Ok(kib),
                _ => Err(EINVAL),
            }
        ),
        setting!(
            c"message_requests",
            message_requests,
            |out: &mut Output<'_>, requests| writeln!(out, "{requests}"),
            |text| number(text, 1, BATCH_MAX as u32)
        ),
        setting!(
            c"batch_upper",
            batch_upper,
            |out: &mut Output<'_>, requests| writeln!(out, "{requests}"),
            |text| number(text, 0, DEPTH_MAX.into())
        ),
        setting!(
            c"batch_lower",
            batch_lower,
            |out: &mut Output<'_>, requests| writeln!(out, "{requests}"),
            |text| number(text, 0, DEPTH_MAX.into())
        ),
        // The offered versions; values other than the default serve to test refusals.
        setting!(
            c"protocol",
            protocol,
            |out: &mut Output<'_>, (min, max)| writeln!(out, "{min}-{max}"),
            |text: &str| {
                let (min, max) = text.split_once('-').ok_or(EINVAL)?;
                let (min, max) = (number(min, 0, 255)?, number(max, 0, 255)?);
                if min > max {
                    return Err(EINVAL);
                }
                Ok((min as u8, max as u8))
            }
        ),
        Attribute::read_write(
            c"enable",
            |device, out| writeln!(out, "{}", u8::from(device.show(|s| s.disk.is_some()))),
            |device, directory, text| {
                if boolean(text)? {
                    device.enable(directory)
                } else {
                    device.disable()
                }
            },
        ),
        // Writing 1 succeeds even if requests hang or the disk is open.
        Attribute::read_write(
            c"force_disconnect",
            |_, out| writeln!(out, "0"),
            |device, _, text| match boolean(text)? {
                true => device.force_disconnect(),
                false => Ok(()),
            },
        ),
        Attribute::read_only(c"state", |device, out| {
            writeln!(out, "{}", device.show(|s| s.state))
        }),
        Attribute::read_only(c"device", |device, out| match device.show(|s| s.disk) {
            Some(number) => {
                let prefix = DISK_PREFIX.to_str().unwrap_or("");
                writeln!(out, "{prefix}{number}")
            }
            None => writeln!(out),
        }),
        Attribute::read_only(c"wwid", |device, out| {
            optional(out, device.show(|s| s.wwid))
        }),
        Attribute::read_only(c"error", |device, out| {
            optional(out, device.show(|s| s.failure))
        }),
        Attribute::read_write(
            c"lost_writes",
            |device, out| writeln!(out, "{}", u8::from(device.has_lost_writes())),
            |device, _, text| match text {
                "0" => {
                    device.acknowledge_loss();
                    Ok(())
                }
                _ => Err(EINVAL),
            },
        ),
        Attribute::private(c"session", |device, out| match device.show(|s| s.session) {
            Some((id, epoch)) => writeln!(out, "{:016x} {}", id.0, epoch.0),
            None => writeln!(out),
        }),
        Attribute::read_write(
            c"timing",
            |device, out| writeln!(out, "{}", u8::from(device.show(|s| s.timing))),
            |device, _, text| {
                device.set_timing(boolean(text)?);
                Ok(())
            },
        ),
        Attribute::read_only(c"times", |device, out| {
            device
                .times()
                .for_each(|name, times| writeln!(out, "{name} {times}"))
        }),
        Attribute::read_only(c"stats", |device, out| {
            device.counters(|name, value| writeln!(out, "{name} {value}"))
        }),
    ];
}
