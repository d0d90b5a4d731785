//! VLAN tags put on and taken off (IEEE 802.1Q).

use slipstream_core::batch::{BATCH, Batch, Train};
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
    build: |_, _| Ok(Made::Stage(Box::new(Vlan::new(None)))),
};

const TAG: usize = 4;
const MACS: usize = 12;

fn push(settings: &Settings, _: &Site<'_>) -> Result<Made, BuildError> {
    let ethertype: u32 = if settings.text("ethertype") == "802.1ad" { 0x88a8 } else { 0x8100 };
    let tci = (settings.number("priority") << 13 | settings.number("id")) as u32;
    let tag = Some((ethertype << 16 | tci).to_be_bytes());
    Ok(Made::Stage(Box::new(Vlan::new(tag))))
}

#[derive(Debug)]
struct Vlan {
    /// The tag that is put on; none: a tag is taken off.
    tag: Option<[u8; TAG]>,
    changed: u64,
    unchanged: u64,
    /// Of each frame of the batch whether it was changed.
    marks: Vec<bool>,
    /// Scratch, which takes no memory while all frames of each train are Ethernet.
    trains: Vec<Train>,
}

impl Vlan {
    fn new(tag: Option<[u8; TAG]>) -> Self {
        Self { tag, changed: 0, unchanged: 0, marks: Vec::with_capacity(BATCH), trains: Vec::new() }
    }

    /// Frames of other link types stay as they are, and may be of one flow with Ethernet frames until their
    /// tags change: a train of both is cut where one follows the other, since flows share no train.
    fn cut(&mut self, trains: &mut Vec<Train>) {
        self.trains.clear();
        for train in trains.drain(..) {
            let of_train = train.start as usize..(train.start + train.len) as usize;
            let (marks, mut start) = (self.marks.get(of_train).unwrap_or_default(), train.start);
            for alike in marks.chunk_by(|a, b| a == b) {
                let continues = train.continues && start == train.start;
                let len = alike.len() as u32;
                self.trains.push(Train { start, len, continues, ..train });
                start += len;
            }
        }
        std::mem::swap(trains, &mut self.trains);
    }

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
        self.marks.clear();
        for frame in &mut batch.frames {
            let changed = self.change(cx, frame);
            self.marks.push(changed);
        }
        let changed = self.marks.iter().filter(|changed| **changed).count() as u64;
        let unchanged = self.marks.len() as u64 - changed;
        self.changed += changed;
        self.unchanged += unchanged;
        if changed > 0 && unchanged > 0 {
            self.cut(&mut batch.trains);
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
            Vlan::new(tag).process(&mut cx, &mut batch, &mut Nowhere);
            let joins: Vec<_> = batch.frames.iter().map(|f| (f.info.l3(), f.info.joins())).collect();
            assert_eq!(joins, [(l3, false), (l3, true), (l3, true)]);
        }
    }

    /// A flow may come in frames of several link types. Those that get a tag are another flow than those that
    /// can't, so that no train has both; without tags to take off they stay one.
    #[test]
    fn frames_that_get_no_tag_share_no_train_with_those_that_do() {
        let udp =
            [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 0, 53, 0, 8, 0, 0];
        let framed = [&[2; 12][..], &[8, 0], &udp].concat();
        let links = [LinkType::Ethernet, LinkType::RawIp];
        for (tag, lengths) in [(Some([0x81, 0, 0, 7]), &[2, 1, 1, 3][..]), (None, &[4, 3])] {
            let (mut pool, mut batch) = (Pool::new(), Batch::new());
            for interface in [0, 0, 1, 0, 1, 1, 1] {
                let bytes = if interface == 0 { &framed[..] } else { &udp };
                let buf = pool.insert(PacketMeta { interface, ..PacketMeta::default() }, bytes);
                let info = Info::new(&classify(links[interface as usize], bytes).unwrap());
                batch.frames.push(Frame { info, ..Frame::unclassified(Nanos(1), buf, bytes.len() as u32) });
            }
            for (start, len) in [(0, 4), (4, 3)] {
                let (release, order, sequence) = (Nanos(1), 0, start.into());
                batch.trains.push(Train {
                    flow: 3,
                    start,
                    len,
                    release,
                    order,
                    sequence,
                    continues: start > 0,
                });
            }
            let mut cx = Context { now: Nanos(1), pool: &mut pool, input: 0, links: &links };
            let mut stage = Vlan::new(tag);
            stage.process(&mut cx, &mut batch, &mut Nowhere);
            let trains: Vec<_> = batch.trains.iter().map(|t| (t.start, t.len)).collect();
            let starts = lengths.iter().scan(0, |at, len| Some(std::mem::replace(at, *at + len)));
            assert_eq!(trains, starts.zip(lengths.iter().copied()).collect::<Vec<_>>());
            for (_, frames) in batch.iter() {
                let keys = frames.iter().map(|f| classify(cx.link(f), cx.data(f)).unwrap().key);
                assert!(keys.collect::<Vec<_>>().windows(2).all(|pair| pair[0] == pair[1]));
            }
            assert_eq!((stage.changed, stage.unchanged), if tag.is_some() { (3, 4) } else { (0, 7) });
        }
    }
}
