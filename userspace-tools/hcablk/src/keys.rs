// SPDX-License-Identifier: GPL-2.0

//! Keys with which hosts and targets prove to each other who they are: their files, and how they reach the kernel
//! modules.
//!
//! | file below `/etc/hcablk/keys` | owner of the keys |
//! |---|---|
//! | `host` | this machine, as a host |
//! | `host.pending` | this machine, as a host: its next key, which its targets do not have yet |
//! | `target` | this machine, as a target |
//! | `hosts/UUID` | a host that this machine's volumes allow |
//! | `targets/ADDRESS` | the target at that address |
//! | `targets/default` | the targets at all other addresses |
//!
//! The module `missing` finds needed keys that are missing, and `moving` keeps keys with a volume that moves.
//!
//! Only root can read these files. Each line is a key; the first is the newest, and a second one is still valid.

pub(crate) mod missing;
pub(crate) mod moving;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;
use uuid::Uuid;
use zeroize::{Zeroize as _, Zeroizing};

use crate::config;
use crate::configfs::{Group, INITIATOR, TARGET};
use crate::error::{Error, Kind, Result};
use crate::initiator::try_pending_key;
use crate::output::{Done, Outcome, Report};
use crate::system::System;
use crate::target::{allowed_hosts as hosts, volumes};
use crate::user;

pub(crate) use missing::Missing;

const FOLDER: &str = "/etc/hcablk/keys";
/// The prefix of a printed key: the version of its format.
pub(crate) const PREFIX: &str = "hcablk-key-1:";
/// Bytes of a key.
pub(crate) const LENGTH: usize = 32;
/// The largest number of keys of one side that are valid at the same time.
const VALID_MAX: usize = 2;

/// A key.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; LENGTH]);

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Shows the type only, never the key.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// Makes a random key.
    fn generate() -> Result<Self> {
        let mut bytes = [0; LENGTH];
        getrandom::fill(&mut bytes).map_err(|error| {
            Error::new(
                Kind::Failed,
                format!("cannot read random numbers from the kernel: {error}"),
            )
        })?;
        Ok(Self(bytes))
    }

    /// Returns the key in its printed format, with a checksum.
    pub fn printed(&self) -> Zeroizing<String> {
        let checksum = crc32fast::hash(&self.0);
        // Allocated for the whole text at once: growing would leave a copy of the key in the former buffer.
        let mut text = Zeroizing::new(String::with_capacity(PREFIX.len() + 2 * LENGTH + 9));
        text.push_str(PREFIX);
        text.push_str(&self.for_kernel());
        text.push_str(&format!("-{checksum:08x}"));
        text
    }

    /// Returns the key in the format that the kernel modules accept.
    fn for_kernel(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(2 * LENGTH));
        for byte in self.0 {
            for digit in [byte >> 4, byte & 15] {
                text.extend(char::from_digit(digit.into(), 16));
            }
        }
        text
    }
}

impl FromStr for Key {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let rest = text
            .trim()
            .strip_prefix(PREFIX)
            .ok_or("it does not begin with hcablk-key-1:")?;
        let (digits, checksum) = rest.split_once('-').ok_or("its checksum is missing")?;
        if !digits.is_ascii() || digits.len() != 2 * LENGTH {
            return Err("it does not have 64 hexadecimal digits");
        }
        let mut bytes = [0; LENGTH];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16)
                .map_err(|_| "it does not have 64 hexadecimal digits")?;
        }
        if u32::from_str_radix(checksum, 16) != Ok(crc32fast::hash(&bytes)) {
            return Err("its checksum is wrong: a digit was mistyped or lost");
        }
        if bytes == [0; LENGTH] {
            return Err("it is all zeroes");
        }
        Ok(Self(bytes))
    }
}

/// The owner of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyOwner {
    /// This machine, as a host.
    Host,
    /// This machine's next key as a host, with which it does not prove itself yet.
    PendingHost,
    /// This machine, as a target.
    Target,
    /// A host that this machine's volumes allow.
    OfHost(Uuid),
    /// The target at that address; `default` stands for all other targets.
    OfTarget(String),
}

impl KeyOwner {
    fn file(&self) -> PathBuf {
        let folder = Path::new(FOLDER);
        match self {
            Self::Host => folder.join("host"),
            Self::PendingHost => folder.join("host.pending"),
            Self::Target => folder.join("target"),
            Self::OfHost(id) => folder.join("hosts").join(id.to_string()),
            Self::OfTarget(address) => folder.join("targets").join(address),
        }
    }
}

/// Reads the keys in a file, the newest first; an empty list without the file.
fn read(system: &dyn System, owner: &KeyOwner) -> Result<Vec<Key>> {
    read_file(system, &owner.file())
}

fn read_file(system: &dyn System, file: &Path) -> Result<Vec<Key>> {
    let text = match system.read(file) {
        Ok(text) => Zeroizing::new(text),
        Err(error) if error.is_gone() => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let broken = |why: &str| {
        let message = format!("{} is broken: {why}", file.display());
        Error::new(Kind::Setup, message).advise(
            "Each line must be a key as `hcablk key show` prints it on the machine whose key it is.",
        )
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let keys = lines
        .map(|line| line.parse().map_err(broken))
        .collect::<Result<Vec<Key>>>()?;
    if keys.len() > VALID_MAX {
        return Err(broken(
            "at most two keys are valid at a time, and the file has more",
        ));
    }
    Ok(keys)
}

/// Returns whether a new key of this host is pending; `None` if this user cannot read the keys.
pub(crate) fn is_pending(system: &dyn System) -> Option<bool> {
    missing::exists(system, &KeyOwner::PendingHost)
}

/// Checks that this user can read the keys of this machine: only root can.
pub(crate) fn check(system: &dyn System) -> Result<()> {
    [KeyOwner::Host, KeyOwner::PendingHost, KeyOwner::Target]
        .iter()
        .try_for_each(|owner| read(system, owner).map(drop))
}

fn store(system: &dyn System, owner: &KeyOwner, keys: &[Key]) -> Result<()> {
    store_file(system, &owner.file(), keys)
}

fn store_file(system: &dyn System, file: &Path, keys: &[Key]) -> Result<()> {
    let mut lines = Zeroizing::new(String::with_capacity(256 * keys.len()));
    for key in keys {
        lines.push_str(&key.printed());
        lines.push('\n');
    }
    Ok(system.replace_secret(file, &lines)?)
}

/// The result of a command for a key; never the key itself.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Stored {
    /// The file that holds the key.
    pub file: PathBuf,
    /// Keys in that file.
    pub keys: usize,
    /// Whether the command changed anything.
    pub changed: bool,
}

fn stored(owner: &KeyOwner, keys: usize, changed: bool) -> Outcome {
    Outcome::new(Done::Key(Stored {
        file: owner.file(),
        keys,
        changed,
    }))
}

/// Runs `hcablk key generate`.
pub fn generate(system: &dyn System, owner: &KeyOwner, rotate: bool) -> Result<Outcome> {
    let mut keys = read(system, owner)?;
    if !keys.is_empty() && !rotate {
        let message = format!("{} holds a key already", owner.file().display());
        return Err(Error::new(Kind::Exists, message).advise(
            "Other machines identify this one with it. To make a new key, and keep this one valid until \
             `hcablk key retire`: --rotate",
        ));
    }
    // A third key of a target would end the validity of the oldest one, which may be the only one that a host knows. A
    // host proves itself with its newest key only.
    if matches!(owner, KeyOwner::Target) && keys.len() >= VALID_MAX {
        let message = format!("{} holds two valid keys already", owner.file().display());
        return Err(Error::new(Kind::Exists, message).advise(
            "Hosts may know this target by the older one only. When all know the newer one: hcablk key retire target",
        ));
    }
    // The new key of a host must be stored at its targets first: until then this host uses the former one.
    if matches!(owner, KeyOwner::Host) && !keys.is_empty() {
        return generate_pending(system);
    }
    keys.insert(0, Key::generate()?);
    keys.truncate(VALID_MAX);
    store(system, owner, &keys)?;
    let pending = KeyOwner::PendingHost.file();
    // The former key is gone, so the pending one replaces nothing: `key show` must print the new key.
    if matches!(owner, KeyOwner::Host) && system.exists(&pending) {
        system.remove_durable_file(&pending)?;
    }
    let mut outcome = stored(owner, keys.len(), true);
    outcome.note("`hcablk key show` prints it, for `hcablk key add` on the other side");
    if rotate {
        outcome.note("`hcablk key apply` passes it to the kernel modules");
    }
    Ok(outcome)
}

/// Makes a key of this host that becomes the current one when its targets have it.
fn generate_pending(system: &dyn System) -> Result<Outcome> {
    let owner = KeyOwner::PendingHost;
    let is_there = !read(system, &owner)?.is_empty();
    if !is_there {
        store(system, &owner, &[Key::generate()?])?;
    }
    let mut outcome = stored(&owner, 1, !is_there);
    if is_there {
        outcome.note("a key is pending already");
    }
    outcome.note(
        "`hcablk key show host` prints it, for `hcablk key add host` and `hcablk key apply` at each target; then \
         `hcablk key apply` here uses it",
    );
    Ok(outcome)
}

/// Runs `hcablk key show`: prints the key for the other side.
pub fn show(system: &dyn System, owner: &KeyOwner) -> Result<Outcome> {
    if let (KeyOwner::Host, Some(key)) = (owner, read(system, &KeyOwner::PendingHost)?.first()) {
        return Ok(Outcome::new(Report::Key {
            key: key.printed().to_string(),
        }));
    }
    match read(system, owner)?.first() {
        Some(key) => Ok(Outcome::new(Report::Key {
            key: key.printed().to_string(),
        })),
        None => Err(missing(owner)),
    }
}

fn missing(owner: &KeyOwner) -> Error {
    let message = format!("there is no key in {}", owner.file().display());
    let error = Error::new(Kind::NotFound, message);
    match owner {
        KeyOwner::Host => error.advise("Make one: hcablk key generate host"),
        KeyOwner::Target => error.advise("Make one: hcablk key generate target"),
        _ => error,
    }
}

/// Returns an owner's newest key, if there is one.
pub(crate) fn newest(system: &dyn System, owner: &KeyOwner) -> Result<Option<Key>> {
    Ok(read(system, owner)?.into_iter().next())
}

/// Stores a key: it becomes the first, and the former first one stays valid. Returns the number of stored keys.
pub(crate) fn insert(system: &dyn System, owner: &KeyOwner, key: Key) -> Result<usize> {
    let mut keys = read(system, owner)?;
    keys.retain(|known| *known != key);
    keys.insert(0, key);
    keys.truncate(VALID_MAX);
    store(system, owner, &keys)?;
    Ok(keys.len())
}

/// The options of `hcablk key add`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Add {
    /// Fail if there is a different key.
    pub no_replace: bool,
    /// Change nothing.
    pub dry_run: bool,
}

/// Runs `hcablk key add`.
pub fn add(system: &dyn System, owner: &KeyOwner, text: &str, how: Add) -> Result<Outcome> {
    let key: Key = text
        .parse()
        .map_err(|why| Error::new(Kind::Failed, format!("this is not a key: {why}")))?;
    let keys = read(system, owner)?;
    if keys.first() == Some(&key) {
        let mut outcome = stored(owner, keys.len(), false);
        outcome.note("this key is stored already");
        return Ok(outcome);
    }
    if how.no_replace && !keys.is_empty() {
        let message = format!("{} holds a different key", owner.file().display());
        return Err(Error::new(Kind::Exists, message).advise(
            "Is it the same machine as before? To store this key, and keep the other valid until `hcablk key retire`, \
             leave out --no-replace.",
        ));
    }
    if how.dry_run {
        let mut outcome = stored(owner, keys.len(), true);
        outcome.note("this key would be stored");
        return Ok(outcome);
    }
    let count = insert(system, owner, key)?;
    let mut outcome = stored(owner, count, true);
    outcome.note("`hcablk key apply` passes it to existing exports and disks");
    Ok(outcome)
}

/// Runs `hcablk key retire`: the newest key alone stays valid.
pub fn retire(system: &dyn System, owner: &KeyOwner) -> Result<Outcome> {
    let mut keys = read(system, owner)?;
    if keys.is_empty() {
        return Err(missing(owner));
    }
    if keys.len() == 1 {
        let mut outcome = stored(owner, 1, false);
        outcome.note("there is no older key");
        return Ok(outcome);
    }
    keys.truncate(1);
    store(system, owner, &keys)?;
    let mut outcome = stored(owner, 1, true);
    outcome.note("`hcablk key apply` takes the older key from the kernel modules");
    Ok(outcome)
}

/// Returns whether the kernel module holds keys for a group.
fn has_keys(group: &Group<'_>) -> bool {
    group.get("keys").is_ok_and(|known| known != "0")
}

/// Returns whether the kernel module holds keys for a group; `true` if the number of keys cannot be read.
pub(crate) fn is_held(group: &Group<'_>) -> bool {
    group.get("keys").is_err() || has_keys(group)
}

/// Writes `keys` to the attributes of a group, and clears the others. Does nothing if there are no keys, and the module
/// holds none.
fn set(group: &Group<'_>, attributes: [&str; VALID_MAX], keys: &[Option<Key>]) -> Result<()> {
    if keys.iter().all(Option::is_none) && !has_keys(group) {
        return Ok(());
    }
    // The last attribute first: in a rotation the former first key becomes the second, and is valid all the time.
    for (at, attribute) in attributes.iter().enumerate().rev() {
        let key = keys.get(at).and_then(Option::as_ref);
        let text = key.map(Key::for_kernel).unwrap_or_default();
        group.set_secret(attribute, &text)?;
    }
    Ok(())
}

fn valid(keys: Vec<Key>) -> Vec<Option<Key>> {
    keys.into_iter().map(Some).collect()
}

/// Returns the newest key of this host, and that of the target at this address.
fn both(system: &dyn System, address: &str) -> Result<(Option<Key>, Option<Key>)> {
    both_of(system, &KeyOwner::Host, address)
}

fn both_of(
    system: &dyn System,
    own: &KeyOwner,
    address: &str,
) -> Result<(Option<Key>, Option<Key>)> {
    let own = read(system, own)?;
    let mut target = read(system, &KeyOwner::OfTarget(address.to_owned()))?;
    if target.is_empty() {
        target = read(system, &KeyOwner::OfTarget("default".to_owned()))?;
    }
    Ok((own.into_iter().next(), target.into_iter().next()))
}

fn no_own_key(address: &str) -> Error {
    Error::new(
        Kind::Setup,
        format!("this host has the key of the target {address}, but no key of its own"),
    )
    .advise("Make one: hcablk key generate host")
}

fn no_key_of_target(address: &str) -> Error {
    Error::new(
        Kind::Setup,
        format!(
            "there is a key of this host, and none of the target {address}: nothing would prove the \
             target's identity"
        ),
    )
    .advise(format!(
        "Store the key of the target: hcablk key show target | hcablk key add target {address}\n\
         Or, for a volume that is exported with --insecure: hcablk connect --insecure"
    ))
}

/// Returns whether both keys exist with which this host and the target at this address prove themselves to each other.
/// Fails if one of the two keys is missing, unless `insecure` allows a target without a key.
pub(crate) fn both_exist(system: &dyn System, address: &str, insecure: bool) -> Result<bool> {
    match both(system, address)? {
        (Some(_), Some(_)) => Ok(true),
        (None, Some(_)) => Err(no_own_key(address)),
        (Some(_), None) if !insecure => Err(no_key_of_target(address)),
        (_, None) => Ok(false),
    }
}

/// Passes to a device the keys of this host and of the target at its address.
pub(crate) fn set_device(device: &Group<'_>) -> Result<()> {
    set_device_for(device, &device.get("address")?)
}

/// Passes to a device the keys of this host and of the target at this address.
pub(crate) fn set_device_for(device: &Group<'_>, address: &str) -> Result<()> {
    let system = device.system();
    let keys = match both(system, address)? {
        (Some(own), Some(target)) => [Some(own), Some(target)],
        (None, Some(_)) => return Err(no_own_key(address)),
        (Some(own), None) if device.flag("insecure")? => [Some(own), None],
        (Some(_), None) => return Err(no_key_of_target(address)),
        (None, None) if has_keys(device) && !device.flag("insecure")? => {
            return Err(Error::new(
                Kind::Setup,
                format!(
                    "{} is connected with keys, and there are none in {FOLDER} any more, neither of this host nor of \
                     the target {address}: nothing would prove the target's identity",
                    device.name()
                ),
            )
            .advise("Restore the files. Or disconnect it, and connect it without keys."))
        }
        // A host without keys can only use volumes that demand no proof.
        (None, None) => [None, None],
    };
    set(device, ["host_key", "target_key"], &keys)
}

/// Passes the keys of this machine as a target to the kernel module.
pub(crate) fn set_target(volume: &Group<'_>) -> Result<()> {
    let system = volume.system();
    let keys = read(system, &KeyOwner::Target)?;
    set(&TARGET.named(system), ["key", "key2"], &valid(keys))
}

/// Passes to a volume the keys of a host that it allows.
pub(crate) fn set_host(host: &Group<'_>) -> Result<()> {
    let Ok(id) = host.name().parse() else {
        return Ok(());
    };
    let keys = read(host.system(), &KeyOwner::OfHost(id))?;
    set(host, ["key", "key2"], &valid(keys))
}

/// Passes the pending key of this host to a group that asks a target. Returns `false` if there is no such key, or no
/// key with which the target would prove itself: its reply then does not depend on the key.
pub(crate) fn set_pending(group: &Group<'_>, address: &str) -> Result<bool> {
    let (Some(own), Some(target)) = both_of(group.system(), &KeyOwner::PendingHost, address)?
    else {
        return Ok(false);
    };
    set(
        group,
        ["host_key", "target_key"],
        &[Some(own), Some(target)],
    )?;
    Ok(true)
}

/// Lists the addresses and ports of the targets that the disks of this host are connected to, or configured for.
fn targets(system: &dyn System) -> Result<Vec<(String, u16)>> {
    let mut targets = Vec::new();
    if let Some(tree) = INITIATOR.tree(system) {
        for device in tree.children()? {
            targets.push((device.get("address")?, device.value("port")?));
        }
    }
    for disk in config::load(system)?.config.disk.values() {
        let endpoint = disk.endpoint();
        targets.push((endpoint.address, endpoint.port));
    }
    // The configuration has disks in user space, too; this adds those that were connected by hand.
    targets.extend(user::targets(system));
    targets.retain(|(address, _)| !address.is_empty());
    targets.sort();
    targets.dedup();
    Ok(targets)
}

/// Makes the pending key of this host the current one if all its targets have it, or at once with `force`. The former
/// one stays as the second. Returns the reason if the key stays pending.
fn promote(system: &dyn System, force: bool) -> Result<Option<Error>> {
    let pending = read(system, &KeyOwner::PendingHost)?;
    let Some(key) = pending.into_iter().next() else {
        return Ok(None);
    };
    let mut refusals = Vec::new();
    let targets = if force { Vec::new() } else { targets(system)? };
    for (address, port) in targets {
        if let Err(mut error) = try_pending_key(system, &address, port) {
            if error.kind == Kind::Interrupted {
                return Err(error);
            }
            error.message = format!(
                "the target {address} does not have the pending key of this host: {}",
                error.message
            );
            refusals.push(error);
        }
    }
    if let Some(refused) = Error::together(refusals) {
        return Ok(Some(refused));
    }
    let mut keys = read(system, &KeyOwner::Host)?;
    keys.retain(|known| *known != key);
    keys.insert(0, key);
    keys.truncate(VALID_MAX);
    store(system, &KeyOwner::Host, &keys)?;
    system.remove_durable_file(&KeyOwner::PendingHost.file())?;
    Ok(None)
}

/// Passes the keys of this target and of the hosts to all exports. After a failure for one object the others still get
/// their keys.
pub(crate) fn pass_to_exports(system: &dyn System) -> Result<()> {
    let mut failures = Vec::new();
    if let Some(tree) = TARGET.tree(system) {
        for volume in volumes(&tree).children()? {
            failures.extend(moving::keep(&volume).err());
            failures.extend(set_target(&volume).err());
            for (_, host) in hosts(&volume)? {
                failures.extend(set_host(&host).err());
            }
        }
    }
    match Error::together(failures) {
        None => Ok(()),
        Some(error) => Err(error),
    }
}

/// Runs `hcablk key apply`: passes the keys to all exports and disks.
pub fn apply(system: &dyn System, force: bool) -> Result<Outcome> {
    let was_pending = !read(system, &KeyOwner::PendingHost)?.is_empty();
    let stays = promote(system, force)?;
    // After a failure for one object the others still get their keys.
    let mut failures: Vec<_> = pass_to_exports(system).err().into_iter().collect();
    if let Some(tree) = INITIATOR.tree(system) {
        for device in tree.children()? {
            failures.extend(set_device(&device).err());
        }
    }
    if let Some(error) = Error::together(failures) {
        return Err(error);
    }
    let mut outcome = Outcome::new(Done::Keys {});
    outcome.note("live sessions continue; the next ones use these keys");
    match stays {
        Some(why) => {
            outcome.note(why.message);
            outcome.note(
                "it stays pending, and this host uses the former key: run `hcablk key add host` and `hcablk key apply` at \
                 the target, then run this command again. To leave out a target that is gone for good: \
                 hcablk key apply --force",
            );
            outcome.exit = Some(Kind::Exists);
        }
        None if was_pending => {
            outcome.note("the pending key of this host is the current one now");
        }
        None => (),
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_printed() {
        let key = Key::generate().unwrap();
        assert_eq!(key.printed().parse(), Ok(key.clone()));
        assert_ne!(Key::generate().unwrap(), key);
        assert_eq!(format!("{key:?}"), "Key");
        let known = Key([0xa5; LENGTH]).printed();
        assert_eq!(known.len(), PREFIX.len() + 64 + 1 + 8);
    }

    #[test]
    fn every_mistyped_digit_is_noticed() {
        let printed = Key([0xa5; LENGTH]).printed();
        for at in PREFIX.len()..printed.len() {
            let mut text = printed.as_bytes().to_vec();
            text[at] = if text[at] == b'0' { b'1' } else { b'0' };
            let text = String::from_utf8(text).unwrap();
            assert!(text.parse::<Key>().is_err(), "{text}");
        }
        for text in ["", "hcablk-key-1:", "DHHC-1:00:", "hcablk-key-1:é"] {
            assert!(text.parse::<Key>().is_err());
        }
    }
}
