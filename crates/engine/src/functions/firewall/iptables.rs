//! Rules as `iptables-save` prints them.
