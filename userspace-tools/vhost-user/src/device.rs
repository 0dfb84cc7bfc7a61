// SPDX-License-Identifier: GPL-2.0

//! Handles the messages of a frontend: its features, the guest's memory, and the rings.
//!
//! A ring runs once it has a kick descriptor, while it is enabled and the guest's memory is known.
//! A change of a ring or the memory first stops the affected rings: no request is in flight during
//! the change.

use crate::{
    block::{self, VirtioConfig},
    memory::{Memory, MOST_REGIONS},
    ring::{Broken, Setup, MOST_ENTRIES},
    worker::Worker,
    Error,
};
use libhcablk::Volume;
use std::{fs::File, io, sync::Arc};
use vhost::vhost_user::{
    message::{
        VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags,
        VhostUserInflight, VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures,
        VhostUserShMemConfig, VhostUserSharedMsg, VhostUserSingleMemoryRegion,
        VhostUserVirtioFeatures, VhostUserVringAddrFlags, VhostUserVringState,
    },
    Error as Answer, GpuBackend, Result, VhostUserBackendReqHandlerMut,
};
use vhost::VhostUserMemoryRegionBase;

/// The features of the protocol that a frontend may use.
const PROTOCOL: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::BACKEND_REQ)
    .union(VhostUserProtocolFeatures::CONFIG)
    .union(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS);

/// The state that all frontends share, one after the other.
pub(crate) struct Served {
    pub(crate) volume: Arc<Volume>,
    pub(crate) workers: Vec<Worker>,
}

impl Served {
    /// Returns the content of the configuration.
    pub(crate) fn shape(&self) -> VirtioConfig {
        VirtioConfig::new(
            &self.volume,
            u16::try_from(self.workers.len()).unwrap_or(u16::MAX),
        )
    }
}

/// A ring as the frontend has set it up.
#[derive(Default)]
struct Ring {
    entries: u16,
    /// In the frontend's addresses: descriptors, available and used ring.
    addresses: Option<[u64; 3]>,
    next: u16,
    kick: Option<Arc<File>>,
    call: Option<Arc<File>>,
    error: Option<Arc<File>>,
    is_enabled: bool,
    /// The guest has broken the ring, and the frontend has not set it up again.
    is_broken: bool,
    /// A thread serves it.
    runs: bool,
}

/// The device that a frontend sees. See the module.
pub(crate) struct Device {
    served: Arc<Served>,
    rings: Vec<Ring>,
    memory: Arc<Memory>,
    /// The features that were offered last, and those that are used.
    offered: u64,
    features: u64,
}

/// Returns the error that ends the connection because of a mistake of the frontend.
fn end(why: impl Into<Error>) -> Answer {
    Answer::ReqHandlerError(io::Error::other(why.into().to_string()))
}

impl Device {
    pub(crate) fn new(served: Arc<Served>) -> Self {
        Self {
            rings: served.workers.iter().map(|_| Ring::default()).collect(),
            served,
            memory: Arc::new(Memory::none()),
            offered: 0,
            features: 0,
        }
    }

    fn ring(&mut self, index: u32) -> Result<&mut Ring> {
        let ring = self.rings.get_mut(index as usize);
        ring.ok_or_else(|| end(format!("there is no ring {index}")))
    }

    /// Stops a ring, and waits for its requests.
    fn stop(&mut self, index: usize) {
        let (Some(ring), Some(worker)) =
            (self.rings.get_mut(index), self.served.workers.get(index))
        else {
            return;
        };
        if std::mem::take(&mut ring.runs) {
            if let Some(stopped) = worker.stop() {
                ring.next = stopped.next;
                ring.is_broken = stopped.is_broken;
            }
        }
    }

    /// Stops all rings, and waits for their requests.
    pub(crate) fn stop_all(&mut self) {
        for index in 0..self.rings.len() {
            self.stop(index);
        }
    }

    /// Makes a thread serve a ring that is ready.
    fn start(&mut self, index: usize) -> Result<()> {
        let broken = |broken: &Broken| end(format!("ring {index}: {broken}"));
        let (Some(ring), Some(worker)) =
            (self.rings.get_mut(index), self.served.workers.get(index))
        else {
            return Ok(());
        };
        let is_ready = ring.is_enabled && !ring.is_broken && !ring.runs && ring.entries != 0;
        let (Some(addresses), Some(kick)) = (ring.addresses, &ring.kick) else {
            return Ok(());
        };
        if !is_ready || self.memory.is_empty() {
            return Ok(());
        }
        let [descriptors, available, used] = addresses.map(|user| self.memory.address_of(user));
        let (Some(descriptors), Some(available), Some(used)) = (descriptors, available, used)
        else {
            return Err(broken(&Broken::Setup("it is not in the guest's memory")));
        };
        let setup = Setup {
            entries: ring.entries,
            descriptors,
            available,
            used,
            next: ring.next,
            features: self.features,
            memory: self.memory.clone(),
            kick: kick.clone(),
            call: ring.call.clone(),
            error: ring.error.clone(),
        };
        worker.start(setup).map_err(|why| broken(&why))?;
        ring.runs = true;
        Ok(())
    }

    /// Changes a ring while it is stopped.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut Ring)) -> Result<()> {
        self.ring(index)?;
        let place = index as usize;
        self.stop(place);
        change(self.ring(index)?);
        self.start(place)
    }

    /// Changes the state of all rings while they are stopped.
    fn change_all(&mut self, change: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.stop_all();
        change(self)?;
        (0..self.rings.len()).try_for_each(|index| self.start(index))
    }
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.stop_all();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        Err(end("a reset was not offered"))
    }

    fn get_features(&mut self) -> Result<u64> {
        let protocol = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        self.offered = block::features(&self.served.volume) | protocol;
        Ok(self.offered)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        // A frontend that reconnects need not ask.
        let offered = match self.offered {
            0 => self.get_features()?,
            offered => offered,
        };
        let unknown = features & !offered;
        if unknown != 0 {
            return Err(end(format!("features that were not offered: {unknown:#x}")));
        }
        self.change_all(|device| {
            device.features = features;
            // With protocol features the frontend enables each ring itself.
            if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
                for ring in &mut device.rings {
                    ring.is_enabled = true;
                }
            }
            Ok(())
        })
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        self.change_all(|device| {
            let memory = device
                .memory
                .replaced(regions, files, &device.served.volume);
            device.memory = Arc::new(memory.map_err(end)?);
            Ok(())
        })?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, entries: u32) -> Result<()> {
        let fits = u16::try_from(entries)
            .ok()
            .filter(|entries| entries.is_power_of_two() && *entries <= MOST_ENTRIES);
        let entries = fits.ok_or_else(|| {
            end(format!(
                "a ring has 1 to {MOST_ENTRIES} entries, a power of two, not {entries}"
            ))
        })?;
        self.change(index, |ring| ring.entries = entries)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        if !flags.is_empty() {
            return Err(end("a log of written memory was not offered"));
        }
        self.change(index, |ring| {
            ring.addresses = Some([descriptor, available, used]);
        })
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base =
            u16::try_from(base).map_err(|_| end(format!("{base} is not an index of a ring")))?;
        self.change(index, |ring| {
            ring.next = base;
            ring.is_broken = false;
        })
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.ring(index)?;
        self.stop(index as usize);
        let ring = self.ring(index)?;
        // The ring starts again when it gets its next kick descriptor.
        ring.kick = None;
        ring.is_broken = false;
        Ok(VhostUserVringState::new(index, ring.next.into()))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let file = file.ok_or_else(|| end("a ring needs a kick descriptor"))?;
        self.change(index.into(), |ring| ring.kick = Some(Arc::new(file)))
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let call = file.map(Arc::new);
        let ring = self.ring(index.into())?;
        ring.call.clone_from(&call);
        if ring.runs {
            if let Some(worker) = self.served.workers.get(usize::from(index)) {
                worker.set_call(call);
            }
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        self.change(index.into(), |ring| ring.error = file.map(Arc::new))
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(PROTOCOL)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        match features & !PROTOCOL.bits() {
            0 => Ok(()),
            unknown => Err(end(format!(
                "features of the protocol that were not offered: {unknown:#x}"
            ))),
        }
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.rings.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.change(index, |ring| ring.is_enabled = enable)
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        Ok(self.served.shape().config(offset as usize, size as usize))
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        // A guest may ask for it: the request is refused, and the connection continues.
        Err(Answer::InvalidOperation(
            "the configuration cannot be changed",
        ))
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(end("it is not a GPU"))
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(end("it has no shared objects"))
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(end("a record of requests under way was not offered"))
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        Err(end("a record of requests under way was not offered"))
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MOST_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        self.change_all(|device| {
            let memory = device.memory.with(region, file, &device.served.volume);
            device.memory = Arc::new(memory.map_err(end)?);
            Ok(())
        })?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.change_all(|device| {
            let memory = device.memory.without(region);
            device.memory = Arc::new(memory.map_err(end)?);
            Ok(())
        })
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(end("a transfer of state was not offered"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(end("a transfer of state was not offered"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(end("memory of the device was not offered"))
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(end("a log of written memory was not offered"))
    }
}
