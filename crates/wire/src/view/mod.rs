//! Views: a header's fields by name, read from and written to the bytes of a packet in place.
//!
//! Each view wraps `&[u8]` or `&mut [u8]` that begins with its header. `new_checked` makes sure that the
//! whole header is there; after it every accessor gives what is on the wire. `new_unchecked` leaves that out:
//! fields beyond the end then read as 0 and can't be written. Nothing panics either way.
//!
//! ```
//! use slipstream_wire::view::{HeaderError, Ipv4, Udp};
//!
//! let mut packet = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 53, 4, 210, 0, 8, 0, 0];
//! let mut ip = Ipv4::new_checked(&mut packet[..])?;
//! ip.set_ttl(ip.ttl() - 1);
//! let udp = Udp::new_checked(ip.payload())?;
//! assert_eq!((udp.src_port(), udp.dst_port()), (53, 1234));
//! # Ok::<(), HeaderError>(())
//! ```

mod arp;
mod cooked;
mod ethernet;
mod icmp;
mod ipv4;
mod ipv6;
mod sctp;
mod tcp;
mod tcp_option;
mod tunnel;
mod udp;

use core::fmt;

pub use arp::Arp;
pub use cooked::{Sll, Sll2};
pub use ethernet::{Ethernet, Vlan};
pub use icmp::{Icmpv4, Icmpv6};
pub use ipv4::{Ipv4, Ipv4Option, Ipv4Options};
pub use ipv6::{Extension, Extensions, Ipv6};
pub use sctp::Sctp;
pub use tcp::Tcp;
pub use tcp_option::{SackBlocks, TcpOption, TcpOptions};
pub use tunnel::{Geneve, Gre, Vxlan};
pub use udp::Udp;

/// The reason why bytes are no such header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Fewer bytes than the header has.
    Truncated {
        /// Bytes that the header has.
        needed: usize,
        /// Bytes that are there.
        have: usize,
    },
    /// Another version of the protocol.
    Version(u8),
    /// A length field (in bytes) below what the protocol allows.
    Length(usize),
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { needed, have } => {
                write!(f, "the header has {needed} bytes, {have} are there")
            }
            Self::Version(version) => write!(f, "version {version} of the protocol is not understood"),
            Self::Length(bytes) => write!(f, "a length of {bytes} bytes is too small"),
        }
    }
}

impl core::error::Error for HeaderError {}

/// That `bytes` hold at least `needed`.
fn holds(bytes: &[u8], needed: usize) -> Result<(), HeaderError> {
    let have = bytes.len();
    if have < needed { Err(HeaderError::Truncated { needed, have }) } else { Ok(()) }
}

/// A view type: the wrapper, its constructors (`check` says what `new_checked` demands), and fields as
/// `getter [, setter]: type @ offset`.
macro_rules! view {
    (
        $(#[$doc:meta])* $name:ident, check $check:expr;
        $($(#[$field_doc:meta])* $get:ident $(, $set:ident)?: $type:ty = $at:expr;)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<T>(T);

        impl<T: AsRef<[u8]>> $name<T> {
            /// A view of `bytes`, which begin with the header.
            ///
            /// # Errors
            /// [`HeaderError`](crate::view::HeaderError) if the whole header is not there or is not one.
            #[inline]
            pub fn new_checked(bytes: T) -> Result<Self, crate::view::HeaderError> {
                let check: fn(&[u8]) -> Result<(), crate::view::HeaderError> = $check;
                check(bytes.as_ref())?;
                Ok(Self(bytes))
            }

            /// A view of `bytes`, unchecked: what is not there reads as 0.
            #[inline]
            pub const fn new_unchecked(bytes: T) -> Self {
                Self(bytes)
            }

            /// The bytes, from the header's first to the packet's last.
            #[inline]
            pub fn bytes(&self) -> &[u8] {
                self.0.as_ref()
            }

            $(
                $(#[$field_doc])*
                #[inline]
                pub fn $get(&self) -> $type {
                    <$type as crate::bytes::Field>::read(self.bytes(), $at)
                }
            )*
        }

        impl<T: AsRef<[u8]> + AsMut<[u8]>> $name<T> {
            /// The bytes, from the header's first to the packet's last.
            #[inline]
            pub fn bytes_mut(&mut self) -> &mut [u8] {
                self.0.as_mut()
            }

            $($(
                #[doc = concat!("Sets what [`", stringify!($get), "`](Self::", stringify!($get), ") reads.")]
                #[inline]
                pub fn $set(&mut self, value: $type) {
                    crate::bytes::Field::write(value, self.bytes_mut(), $at);
                }
            )?)*
        }
    };
}
use view;
