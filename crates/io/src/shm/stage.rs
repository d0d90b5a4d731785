//! Shared memory as a port, to a process beside this one.

use std::path::Path;

use crate::shm::{Mark, Options, Outgoing, Sender, ShmError, WhenFull};
use slipstream_core::batch::Batch;
use slipstream_core::interface::Interface;
use slipstream_core::port::{Port, PortError, Transmit};
use slipstream_core::registry::{
    BuildError, Group, IN, Made, Meets, OUT, OneThread, Properties, Role, Site, StageType,
};
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::stage::{Context, DropReason, Drops, Placeholder};
use slipstream_core::time::Nanos;

/// The stage type.
pub const SHM: StageType = StageType {
    name: "shm",
    group: Group::Port,
    summary: "A process beside this one, by rings in shared memory: where packets come from, where they go to, or both",
    example: "there :: shm(path=/dev/shm/nat); in -> reframe -> there; there -> out",
    inputs: IN,
    outputs: OUT,
    settings: &[
        Setting {
            name: "path",
            kind: Kind::File,
            default: None,
            required: true,
            help: "The file that both processes name, best in memory; the first makes it, the last takes it away",
        },
        Setting {
            name: "ring",
            kind: Kind::Bytes(1 << 16, 1 << 30),
            default: Some("4MiB"),
            required: false,
            help: "Bytes of each of the two rings, a power of two; the process that comes first decides",
        },
        Setting {
            name: "when_full",
            kind: Kind::Choice(&["wait", "drop"]),
            default: Some("wait"),
            required: false,
            help: "A full ring: take no more from the sources that lead here, or drop packets and count them",
        },
        Setting {
            name: "wait",
            kind: Kind::Time(1, u64::MAX / 2),
            default: None,
            required: false,
            help: "How long to wait for the other process where packets come from it; left out: without end",
        },
    ],
    properties: Properties {
        live: true,
        faces_a_process: true,
        one_thread: |settings, role| {
            let waits = role != Role::Source && when_full(settings) == WhenFull::Wait;
            waits.then_some(OneThread::Room)
        },
        drops: &[DropReason::NotSent],
        ..Properties::new(
            // Each way is one ring with one writer and one reader.
            |_| Meets::Everything,
        )
    },
    build,
};

fn when_full(settings: &Settings) -> WhenFull {
    if settings.text("when_full") == "drop" { WhenFull::Drop } else { WhenFull::Wait }
}

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let ring = settings.number("ring");
    if !ring.is_power_of_two() {
        let error = BuildError::setting("ring", ShmError::Size(ring).to_string());
        return Err(error.hint(format!("as in {}KiB", ring.next_power_of_two() >> 10)));
    }
    if site.dry {
        return Ok(match site.role {
            Role::Source => Made::Checked,
            _ => Made::Stage(Box::new(Placeholder)),
        });
    }
    let options = Options {
        ring,
        wait_ns: settings.optional_number("wait"),
        when_full: when_full(settings),
        ..Options::new(settings.file("path").unwrap_or(Path::new("")))
    };
    let wrong = |e: ShmError| BuildError::setting("path", e.to_string());
    let port = match site.role {
        Role::Source => Port::receiving(options.open_receiver().map_err(wrong)?),
        Role::TwoWay => {
            let (receiver, sender) = options.open().map_err(wrong)?;
            Port::both(receiver, Handing::new(sender))
        }
        Role::Sink | Role::Inner => {
            Port::transmitting(Handing::new(options.open_sender().map_err(wrong)?.one_way()))
        }
    };
    Ok(port.into())
}

/// Hands packets to the other process, as copies in the ring: buffers are free at once.
#[derive(Debug)]
struct Handing {
    sender: Sender,
    /// Link types of the interfaces that packets come from, as in capture files.
    links: Vec<u32>,
}

impl Handing {
    fn new(sender: Sender) -> Self {
        Self { sender, links: Vec::new() }
    }
}

impl Transmit for Handing {
    fn tx(&mut self, cx: &mut Context<'_>, batch: &mut Batch) {
        for (train, frames) in batch.iter() {
            for frame in frames {
                let meta = cx.pool.meta(frame.buf);
                let sent = self.sender.send(&Outgoing {
                    data: cx.data(frame),
                    original_len: meta.original_len,
                    interface: meta.interface,
                    link: self.links.get(meta.interface as usize).copied().unwrap_or(u32::MAX),
                    arrival: train.release.max(frame.arrival),
                    time: meta.time,
                    sliced: cx.pool.sliced_of(frame.buf).map(|(owner, token)| Mark { owner, token }),
                });
                if sent {
                    // Not dropped: should its payload wait here, it goes on waiting.
                    cx.pool.free_spliced(frame.buf);
                } else {
                    cx.pool.free(frame.buf);
                }
            }
        }
        self.sender.flush();
        batch.clear();
    }

    fn interfaces(&mut self, new: &[Interface]) -> Result<(), PortError> {
        self.links.extend(new.iter().map(|i| i.link_number));
        Ok(())
    }

    fn next_look(&self) -> Nanos {
        self.sender.next_look().unwrap_or(Nanos::MAX)
    }

    fn look(&mut self, _: &mut Context<'_>) {
        self.sender.look_around();
    }

    fn unfinished(&self) -> bool {
        self.sender.waiting() > 0
    }

    fn room(&mut self) -> usize {
        self.sender.room()
    }

    fn no_more(&mut self) {
        self.sender.close();
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let counts = self.sender.counts();
        visit("packets_sent", counts.packets);
        visit("bytes_sent", counts.bytes);
        visit("ring_bytes_sent", counts.ring_bytes);
        visit("ring_full", counts.full);
        visit("too_long", counts.too_long);
        visit("abandoned", counts.abandoned);
        visit("never_taken", counts.never_taken);
        visit("waits_for_room", counts.waits);
        visit("drops_told", counts.drops_told);
    }

    fn drops(&self) -> Drops {
        let mut drops = Drops::default();
        drops.add(DropReason::NotSent, self.sender.counts().not_sent());
        drops
    }

    fn failed(&self) -> bool {
        self.sender.has_failed()
    }

    fn finish(&mut self) -> Result<(), PortError> {
        self.sender.leave();
        Ok(self.sender.check()?)
    }
}
