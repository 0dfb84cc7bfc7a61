// SPDX-License-Identifier: GPL-2.0

//! The C library `libhcablk.so`. `include/hcablk.h` has the contract of each call; the crate `libhcablk` does the work.
//!
//! # Safety
//!
//! Each pointer that a program passes must be as the header demands: the named call returned it, it
//! was not freed, and no other thread uses its queue meanwhile. The library checks what it can:
//! null, names, ranges, whether memory is in use. A panic ends the program, since none may unwind
//! into C.

#![allow(unsafe_code, reason = "what comes from C is pointers")]

mod error;
mod queue;

use crate::error::{fail, failed};
use libhcablk::{Buffer, Failure, Options, Volume};
use nix::errno::Errno;
use std::{
    ffi::{c_char, c_int, c_void, CStr},
    ptr::{copy_nonoverlapping, null_mut, NonNull},
};

/// `struct hcablk_options`.
pub struct COptions(Options);

/// `struct hcablk_volume`.
pub struct CVolume(Volume);

/// `struct hcablk_memory`.
pub struct CMemory {
    buffer: Buffer,
}

/// Returns the text of a C string; `None`: it is null, or not UTF-8.
///
/// # Safety
///
/// It is null, or a string that ends with a null byte, which nobody changes while the result is used.
unsafe fn text<'a>(string: *const c_char) -> Option<&'a str> {
    if string.is_null() {
        return None;
    }
    // SAFETY: By the safety requirement.
    unsafe { CStr::from_ptr(string) }.to_str().ok()
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_options_new(
    address: *const c_char,
    volume: *const c_char,
    host_id: *const c_char,
) -> *mut COptions {
    // SAFETY: By the contract of the header.
    let texts = unsafe { (text(address), text(volume), text(host_id)) };
    let (Some(address), Some(volume), Some(host)) = texts else {
        fail(Errno::EINVAL, "an argument is not valid text");
        return null_mut();
    };
    let Ok(address) = address.parse() else {
        fail(Errno::EINVAL, "not an IPv4 or IPv6 address");
        return null_mut();
    };
    match Options::new(address, volume, host.trim()) {
        Ok(options) => Box::into_raw(Box::new(COptions(options))),
        Err(error) => {
            fail(Errno::EINVAL, error);
            null_mut()
        }
    }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_options_set(
    options: *mut COptions,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    // SAFETY: By the contract of the header.
    let (options, name, value) = unsafe { (options.as_mut(), text(name), text(value)) };
    let (Some(options), Some(name), Some(value)) = (options, name, value) else {
        return fail(Errno::EINVAL, "an argument is not valid text");
    };
    match options.0.clone().set(name, value) {
        Ok(set) => {
            options.0 = set;
            0
        }
        Err(error) => fail(Errno::EINVAL, error),
    }
}

/// Calls `f` with the options and a number of a session that was opened with them.
///
/// # Safety
///
/// `options` is null, or options that were not freed.
unsafe fn of_session(
    options: *const COptions,
    session: c_int,
    f: impl FnOnce(&Options, u16) -> Result<(), Failure>,
) -> c_int {
    // SAFETY: By the safety requirement.
    let Some(options) = (unsafe { options.as_ref() }) else {
        return fail(Errno::EINVAL, "the options are null");
    };
    let Ok(session) = u16::try_from(session) else {
        return fail(Errno::EINVAL, "not a session number");
    };
    match f(&options.0, session) {
        Ok(()) => 0,
        Err(failure) => failed(failure),
    }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_reserve(options: *const COptions, session: c_int) -> c_int {
    // SAFETY: By the contract of the header.
    unsafe { of_session(options, session, Options::reserve_session) }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_release(options: *const COptions, session: c_int) -> c_int {
    // SAFETY: By the contract of the header.
    unsafe { of_session(options, session, Options::release_session) }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_options_free(options: *mut COptions) {
    if !options.is_null() {
        // SAFETY: By the contract of the header it is from `hcablk_options_new()`, and nobody has it.
        drop(unsafe { Box::from_raw(options) });
    }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_open(options: *const COptions, volume: *mut *mut CVolume) -> c_int {
    // SAFETY: By the contract of the header.
    let (options, place) = unsafe { (options.as_ref(), volume.as_mut()) };
    let (Some(options), Some(place)) = (options, place) else {
        return fail(Errno::EINVAL, "an argument is null");
    };
    match Volume::open(&options.0) {
        Ok(volume) => {
            *place = Box::into_raw(Box::new(CVolume(volume)));
            0
        }
        Err(failure) => failed(failure),
    }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_close(volume: *mut CVolume) {
    if !volume.is_null() {
        // SAFETY: By the contract of the header it is from `hcablk_open()`, and nobody uses it any more.
        drop(unsafe { Box::from_raw(volume) });
    }
}

/// Returns the result of `f` for a volume, or `otherwise` if the volume is null.
///
/// # Safety
///
/// It is null, or a volume that is open.
unsafe fn of_volume<T>(volume: *mut CVolume, otherwise: T, f: impl FnOnce(&Volume) -> T) -> T {
    // SAFETY: By the safety requirement.
    let volume = unsafe { volume.as_ref() };
    volume.map_or(otherwise, |volume| f(&volume.0))
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_size(volume: *mut CVolume) -> u64 {
    // SAFETY: By the contract of the header.
    unsafe { of_volume(volume, 0, Volume::size) }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_block_size(volume: *mut CVolume) -> u32 {
    // SAFETY: By the contract of the header.
    unsafe { of_volume(volume, 0, Volume::block_size) }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_is_read_only(volume: *mut CVolume) -> bool {
    // SAFETY: By the contract of the header.
    unsafe { of_volume(volume, true, Volume::is_read_only) }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_has_write_cache(volume: *mut CVolume) -> bool {
    // SAFETY: By the contract of the header.
    unsafe { of_volume(volume, true, Volume::has_write_cache) }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_failure(volume: *mut CVolume) -> c_int {
    // SAFETY: By the contract of the header.
    let failure = unsafe { of_volume(volume, None, Volume::failure) };
    failure.map_or(0, failed)
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_ended(volume: *mut CVolume) -> c_int {
    // SAFETY: By the contract of the header.
    let failure = unsafe { of_volume(volume, None, Volume::ended) };
    failure.map_or(0, failed)
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_has_lost_writes(volume: *mut CVolume) -> bool {
    // SAFETY: By the contract of the header.
    unsafe { of_volume(volume, true, Volume::has_lost_writes) }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_session(volume: *mut CVolume) -> c_int {
    // SAFETY: By the contract of the header.
    let number = unsafe { of_volume(volume, None, |volume| Some(volume.session())) };
    number.map_or_else(|| fail(Errno::EINVAL, "the volume is null"), c_int::from)
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_past(
    volume: *mut CVolume,
    place: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: By the contract of the header.
    let past = unsafe { of_volume(volume, None, |volume| Some(volume.past())) };
    let text = match past {
        None => return fail(Errno::EINVAL, "the volume is null"),
        Some(None) => {
            return fail(
                Errno::EOPNOTSUPP,
                "the volume has no wwid: no program can take it over",
            )
        }
        Some(Some(past)) => past.to_string(),
    };
    if place.is_null() {
        return fail(Errno::EINVAL, "the address for the text is null");
    }
    if text.len() >= size {
        return fail(Errno::ERANGE, "the buffer is too small for the text");
    }
    // SAFETY: By the contract of the header there is room for this many bytes, which nobody else uses.
    unsafe {
        copy_nonoverlapping(text.as_ptr().cast(), place, text.len());
        *place.add(text.len()) = 0;
    }
    c_int::try_from(text.len()).unwrap_or(c_int::MAX)
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_memory_new(
    volume: *mut CVolume,
    memory: *mut c_void,
    length: usize,
) -> *mut CMemory {
    let register = |volume: &Volume| match NonNull::new(memory.cast()) {
        None => volume.memory(length),
        // SAFETY: By the contract of the header.
        Some(memory) => unsafe { volume.register(memory, length) },
    };
    // SAFETY: By the contract of the header.
    let made = unsafe { of_volume(volume, None, |volume| Some(register(volume))) };
    match made {
        Some(Ok(buffer)) => Box::into_raw(Box::new(CMemory { buffer })),
        Some(Err(failure)) => {
            failed(failure);
            null_mut()
        }
        None => {
            fail(Errno::EINVAL, "the volume is null");
            null_mut()
        }
    }
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_memory_data(memory: *mut CMemory) -> *mut c_void {
    // SAFETY: By the contract of the header.
    let memory = unsafe { memory.as_ref() };
    memory.map_or(null_mut(), |memory| memory.buffer.as_ptr().cast())
}

/// See `hcablk.h`.
#[no_mangle]
pub unsafe extern "C" fn hcablk_memory_free(memory: *mut CMemory) -> c_int {
    // SAFETY: By the contract of the header.
    match unsafe { memory.as_ref() } {
        None => 0,
        Some(memory) if memory.buffer.is_shared() => {
            fail(Errno::EBUSY, "a request has a part of the memory")
        }
        Some(_) => {
            // SAFETY: It is from `hcablk_memory_new()`, and nobody has it.
            drop(unsafe { Box::from_raw(memory) });
            0
        }
    }
}
