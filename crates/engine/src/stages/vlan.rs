//! VLAN tags put on and taken off (IEEE 802.1Q).

use slipstream_core::batch::Batch;
use slipstream_core::frame::{Frame, Info};
use slipstream_core::packet::is_ethernet;
use slipstream_core::registry::{BuildError, Group, IN, Made, Meets, OUT, Properties, Site, StageType};
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::stage::Output;
use slipstream_core::stage::{Context, Observe, Stage};
use slipstream_wire::classify;

pub(super) const VLAN_PUSH: StageType = StageType {
    name: "vlan_push",
    group: Group::Plumbing,
    summary: "Puts a VLAN tag on every Ethernet frame, outside those that it has",
    example: "in -> vlan_push(id=7) -> out",
    inputs: IN,
    outputs: OUT,
    settings: &[
        Setting { name: "id", kind: Kind::Count(0, 4094), default: None, required: true, help: "VLAN id" },
        Setting {
            name: "priority",
            kind: Kind::Count(0, 7),
            default: Some("0"),
            required: false,
            help: "Priority code point",
        },
        Setting {
            name: "ethertype",
            kind: Kind::Choice(&["802.1q", "802.1ad"]),
            default: Some("802.1q"),
            required: false,
            help: "Which kind of tag",
        },
    ],
    properties: Properties {
        changes_frames: |_| true,
        ..Properties::new(
            // The tag is the same for all packets.
            |_| Meets::Nothing,
        )
    },
    build: push,
};

pub(super) const VLAN_POP: StageType = StageType {
    name: "vlan_pop",
    group: Group::Plumbing,
    summary: "Takes the outermost VLAN tag off every frame that has one",
    example: "in -> vlan_pop -> out",
    inputs: IN,
    outputs: OUT,
    settings: &[],
    properties: Properties {
        changes_frames: |_| true,
        ..Properties::new(
            // A frame's own bytes say which tag goes.
            |_| Meets::Nothing,
        )
    },
    build: |_, _| Ok(Made::Stage(Box::new(Vlan { tag: None, changed: 0, unchanged: 0 }))),
};

const TAG: usize = 4;
const MACS: usize = 12;

fn push(settings: &Settings, _: &Site<'_>) -> Result<Made, BuildError> {
    let ethertype: u32 = if settings.text("ethertype") == "802.1ad" { 0x88a8 } else { 0x8100 };
    let tci = (settings.number("priority") << 13 | settings.number("id")) as u32;
    let tag = Some((ethertype << 16 | tci).to_be_bytes());
    Ok(Made::Stage(Box::new(Vlan { tag, changed: 0, unchanged: 0 })))
}

#[derive(Debug)]
struct Vlan {
    /// The tag that is put on; none: a tag is taken off.
    tag: Option<[u8; TAG]>,
    changed: u64,
    unchanged: u64,
}

impl Vlan {
    fn change(&mut self, cx: &mut Context<'_>, frame: &mut Frame) -> bool {
        if !is_ethernet(cx, frame) {
            return false;
        }
        let data = cx.data(frame);
        let Some(macs) = data.first_chunk::<MACS>().copied() else { return false };
        let mut front = [0u8; MACS + TAG];
        let (front, cut): (&[u8], usize) = match self.tag {
            Some(tag) => {
                let (to_macs, to_tag) = front.split_at_mut(MACS);
                to_macs.copy_from_slice(&macs);
                to_tag.copy_from_slice(&tag);
                (&front, MACS)
            }
            None => {
                let tagged =
                    matches!(data.get(MACS..MACS + 2), Some([0x81, 0x00] | [0x88, 0xa8] | [0x91, 0x00]));
                if !tagged || data.len() < MACS + TAG + 2 {
                    return false;
                }
                (&macs, MACS + TAG)
            }
        };
        (frame.buf, frame.len) = cx.pool.replace_front(frame.buf, frame.len, cut as u32, front);
        let found = classify(cx.link(frame), cx.data(frame));
        let info = found.map_or(Info::default(), |h| Info::new(&h));
        // Tags are put on or taken off all packets of a super-frame alike.
        frame.info = if frame.info.joins() && info.classified() { info.joined() } else { info };
        true
    }
}

impl Stage for Vlan {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        for frame in &mut batch.frames {
            if self.change(cx, frame) {
                self.changed += 1;
            } else {
                self.unchanged += 1;
            }
        }
        batch.ports.clear();
        out.emit(cx.pool, batch);
    }
}

impl Observe for Vlan {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit(if self.tag.is_some() { "tags_pushed" } else { "tags_popped" }, self.changed);
        visit("unchanged", self.unchanged);
    }
}

#[cfg(test)]
mod tests {
    use slipstream_core::pool::{PacketMeta, Pool};
    use slipstream_core::time::Nanos;
    use slipstream_wire::LinkType;

    use super::*;

    struct Nowhere;

    impl Output for Nowhere {
        fn emit(&mut self, _: &mut Pool, _: &mut Batch) {}
    }

    /// Packets that were marked as one super-frame's leave in one behind a tag, and without it, too.
    #[test]
    fn marks_of_super_frames_stay() {
        let udp =
            [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 0, 53, 0, 8, 0, 0];
        let bytes = [&[2; 12][..], &[8, 0], &udp].concat();
        let (mut pool, mut batch) = (Pool::new(), Batch::new());
        for n in 0..3 {
            let buf = pool.insert(PacketMeta::default(), &bytes);
            let info = Info::new(&classify(LinkType::Ethernet, &bytes).unwrap());
            let info = if n == 0 { info } else { info.joined() };
            batch.frames.push(Frame { info, ..Frame::unclassified(Nanos(1), buf, bytes.len() as u32) });
        }
        for (tag, l3) in [(Some([0x81, 0, 0, 7]), 18), (None, 14)] {
            let mut cx = Context { now: Nanos(1), pool: &mut pool, input: 0, links: &[LinkType::Ethernet] };
            Vlan { tag, changed: 0, unchanged: 0 }.process(&mut cx, &mut batch, &mut Nowhere);
            let joins: Vec<_> = batch.frames.iter().map(|f| (f.info.l3(), f.info.joins())).collect();
            assert_eq!(joins, [(l3, false), (l3, true), (l3, true)]);
        }
    }
}
