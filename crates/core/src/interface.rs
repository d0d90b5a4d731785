//! The interfaces that packets come from.

use alloc::string::String;

use slipstream_wire::LinkType;

/// The longest interface name, in bytes of UTF-8; longer ones are cut.
pub const MAX_INTERFACE_NAME: usize = 256;

/// An interface that packets were captured on: a pcap file has one, pcapng any number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Link type number as in the file (pcap: the whole 32-bit field, FCS bits included).
    pub link_number: u32,
    /// Snap length in bytes; 0 = unlimited.
    pub snap_len: u32,
    /// Name, where the file gives one; at most [`MAX_INTERFACE_NAME`] bytes of it.
    pub name: Option<String>,
}

impl Interface {
    /// The link type that the low 16 bits of [`Interface::link_number`] name.
    #[must_use]
    pub const fn link(&self) -> LinkType {
        LinkType::from_number(self.link_number as u16)
    }

    /// The same interface, whose packets are not said to end with a frame check sequence.
    #[must_use]
    pub fn without_check_sequence(&self) -> Self {
        // Its length, and the bit that says that there is one.
        Self { link_number: self.link_number & 0x03ff_ffff, ..self.clone() }
    }
}
