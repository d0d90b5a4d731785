//! Generated traffic with a known locality.
//!
//! [`SynthConfig`] says what to make, [`Synth`] makes it, one whole Ethernet frame after the other. Two
//! kinds: *plain*, runs of a known length of a known number of flows (Reframer paper §2.1), and *campus*,
//! calibrated to what that paper publishes of its own trace (§3, §5). The same settings and seed give the
//! same bytes on every machine.
//!
//! ```
//! use slipstream_io::synth::{Order, Synth, SynthConfig};
//!
//! let config = SynthConfig { flows: 3, packets: 6, slf: 2.0, order: Order::RoundRobin, ..SynthConfig::default() };
//! let mut synth = Synth::new(config)?;
//! let mut frame = Vec::new();
//! let mut times = Vec::new();
//! while let Some(time) = synth.next_packet(&mut frame) {
//!     assert!((64..=1500).contains(&frame.len()));
//!     times.push(time.0);
//! }
//! assert_eq!(times, [0, 1000, 2000, 3000, 4000, 5000]);
//! # Ok::<(), slipstream_io::synth::SynthError>(())
//! ```

mod campus;
mod config;
mod error;
mod pace;
mod packet;
mod plain;
mod random;
mod settings;
mod text;
mod write;

pub use config::{
    Arrivals, Lifetime, MAX_COPIES, MAX_FLOWS, MAX_FRAME, MIN_FRAME, Order, Profile, Protocol, SynthConfig,
    TrainModel,
};
pub use error::SynthError;
pub use settings::SettingsError;
pub use text::{Rate, Size};
pub use write::{Made, Report};

use campus::Campus;
use pace::Pace;
use packet::Writer;
use plain::Plain;
use random::Rng;

use crate::capture::Record;
use slipstream_core::registry::need;
use slipstream_core::time::Nanos;
use slipstream_wire::LinkType;

/// Stream of random numbers that the payload comes from.
const PAYLOAD: u64 = 0;
/// Stream of random numbers that spaces packets.
const SPACING: u64 = 2;

/// Makes packets.
#[derive(Clone, Debug)]
pub struct Synth {
    config: SynthConfig,
    left: u64,
    writer: Writer,
    traffic: Traffic,
}

#[derive(Clone, Debug)]
enum Traffic {
    Plain(Box<(Plain, Pace, Rng)>),
    Campus(Box<Campus>),
}

impl Synth {
    /// A generator at its first packet.
    ///
    /// # Errors
    /// See [`SynthConfig::validate`]; and [`SynthError::Memory`] where so many flows take more memory than
    /// can be had.
    pub fn new(config: SynthConfig) -> Result<Self, SynthError> {
        config.validate()?;
        let traffic = match config.profile {
            Profile::Plain => {
                let (flows, bytes) = (config.flows, Plain::memory(&config));
                need("flows", [bytes]).map_err(|_| SynthError::Memory { flows, bytes })?;
                let spacing = Rng::new(config.seed, SPACING);
                Traffic::Plain(Box::new((Plain::new(&config), Pace::new(&config), spacing)))
            }
            Profile::Campus => {
                Traffic::Campus(Box::new(Campus::new(config.seed, config.copies, config.start)))
            }
        };
        let writer = Writer::new(&mut Rng::new(config.seed, PAYLOAD));
        Ok(Self { left: config.packets, writer, traffic, config })
    }

    /// The settings.
    #[must_use]
    pub const fn config(&self) -> &SynthConfig {
        &self.config
    }

    /// Packets still to come.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.left
    }

    /// The next packet as a capture has it, with as much of it as the snap length lets in. `buf` is where the
    /// frame lies, all of it; see [`next_packet`](Self::next_packet).
    pub fn next_record<'a>(&mut self, buf: &'a mut Vec<u8>) -> Option<Record<'a>> {
        let time = self.next_packet(buf)?;
        let data = buf.get(..self.config.captured_len(buf.len())).unwrap_or(buf);
        Some(Record { time, interface: 0, link: LinkType::Ethernet, original_len: buf.len() as u32, data })
    }

    /// Replaces `buf` by the next frame, whole (the snap length is the writer's business) and without frame
    /// check sequence, and gives its time, which is never before the last one's. `None` after the last
    /// packet; `buf` is then left alone.
    pub fn next_packet(&mut self, buf: &mut Vec<u8>) -> Option<Nanos> {
        self.left = self.left.checked_sub(1)?;
        let (packet, time) = match &mut self.traffic {
            Traffic::Plain(parts) => {
                let (plain, pace, spacing) = parts.as_mut();
                let packet = plain.next((pace.now() / 1_000_000) as u32);
                let time = pace.stamp(packet.frame_len(), spacing);
                (packet, time)
            }
            Traffic::Campus(campus) => campus.next(),
        };
        self.writer.write(&packet, buf);
        Some(Nanos(time))
    }
}
