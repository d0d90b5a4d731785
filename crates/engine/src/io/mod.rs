//! Where packets come from and where they go: capture files, generated traffic, network interfaces.

pub mod af_packet;
pub mod capture;
pub mod new_file;
pub mod paced;
pub mod shm;
pub mod synth;
