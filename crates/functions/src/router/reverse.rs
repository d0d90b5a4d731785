//! Validation of sources by the forwarding table (RFC 1812 §5.3.8, RFC 3704): a packet whose source no route
//! leads back to has a forged one.

use std::net::IpAddr;

use super::Router;
use super::fib::Hop;
use super::interface::is_link_local;

/// The routes that a packet's source needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ReversePath {
    /// None.
    #[default]
    Off,
    /// A route by any port (RFC 3704 §2.4).
    Loose,
    /// One by the port that the packet came by (RFC 3704 §2.2).
    Strict,
}

impl ReversePath {
    /// The values of the setting.
    pub(super) const NAMES: &[&str] = &["off", "loose", "strict"];

    /// By the name of a value.
    pub(super) fn named(name: &str) -> Self {
        match name {
            "strict" => Self::Strict,
            "loose" => Self::Loose,
            _ => Self::Off,
        }
    }
}

impl Router {
    /// Returns true if packets from this source may come by this port. Link-local addresses are on every
    /// link; those of the router's own are judged elsewhere, as are those that are translated behind this
    /// port: what translates them may send from them, and nobody behind another port.
    #[inline]
    pub(super) fn may_come_by(&self, port: u8, src: IpAddr) -> bool {
        self.reverse_path == ReversePath::Off || self.has_way_back(port, src)
    }

    #[inline(never)]
    fn has_way_back(&self, port: u8, src: IpAddr) -> bool {
        match self.fib.look_up(src) {
            Some(Hop::Link(back) | Hop::Gateway(back, _) | Hop::Translated(back)) => {
                back == port || self.reverse_path == ReversePath::Loose || is_link_local(src)
            }
            Some(Hop::Own) => true,
            _ => is_link_local(src),
        }
    }
}
