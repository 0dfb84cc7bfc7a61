// SPDX-License-Identifier: GPL-2.0

//! Error codes that `kernel::error::code` does not name on every supported kernel.
//! Functions, since `kernel::error::Error` has no public constructor that is `const`.

use crate::bindings;
use kernel::error::Error;

macro_rules! errno {
    ($($(#[$doc:meta])* $function:ident = $name:ident)*) => {
        $(
            $(#[$doc])*
            #[inline]
            pub fn $function() -> Error {
                Error::from_errno(-(bindings::$name as i32))
            }
        )*
    };
}

errno! {
    /// Nobody listens, or the peer refused.
    econnrefused = ECONNREFUSED
    /// The peer lacks memory, or another resource, for us.
    enobufs = ENOBUFS
    /// The connection was lost.
    econnreset = ECONNRESET
    /// The network port is down.
    enetdown = ENETDOWN
    /// There is no route to the peer.
    ehostunreach = EHOSTUNREACH
    /// The operation was cancelled.
    ecanceled = ECANCELED
    /// A quota is used up.
    edquot = EDQUOT
    /// The connection is being taken down.
    enotconn = ENOTCONN
    /// The operation has already been done.
    ealready = EALREADY
    /// The session or its epoch is over.
    estale = ESTALE
    /// The peer shares no protocol version with us.
    eprotonosupport = EPROTONOSUPPORT
    /// The peer does not speak the protocol.
    eproto = EPROTO
    /// A message does not fit.
    emsgsize = EMSGSIZE
    /// The other side does not have the keys.
    ekeyrejected = EKEYREJECTED
    /// There is no such operation here.
    eopnotsupp = EOPNOTSUPP
}
