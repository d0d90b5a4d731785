use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::time::Nanos;
use slipstream_wire::LinkType;

use super::*;
use crate::{Amount, SliceConfig, TokenKey};

/// A UDP datagram as long as there can be, in a frame with VLAN tags and bytes behind the IP packet.
fn longest(tags: usize, trailer: usize) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x81, 0, 0, 7].repeat(tags));
    frame.extend([8, 0, 0x45, 0, 0xff, 0xff, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x13, 0x88, 1, 0xbb, 0xff, 0xeb, 0, 0]);
    // No two places near each other look alike.
    frame.extend((0..65_507u32 + trailer as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8));
    frame
}

/// With its link layer a frame is longer than an IP packet can be, and its end may be all that is parked.
#[test]
fn the_ends_of_the_longest_frames_come_back() {
    for (tags, trailer) in [(0, 0), (0, 5), (1, 0), (2, 5)] {
        let frame = longest(tags, trailer);
        let mut sliced = Vec::new();
        for parked in 9..30 {
            let config = SliceConfig {
                amount: Amount::Bytes(parked),
                key: TokenKey::from_seed(5),
                ..SliceConfig::default()
            };
            let (mut slicer, mut splicer) = (Slicer::new(&config).unwrap(), Splicer::new(&config).unwrap());
            let (mut table, mut pool) = (PayloadTable::new(&config, 0).unwrap(), Pool::new());
            let meta = PacketMeta { original_len: frame.len() as u32, ..PacketMeta::default() };
            let buf = pool.insert(meta, &frame);
            let mut handle = Frame::unclassified(Nanos(0), buf, frame.len() as u32);
            let link = LinkType::Ethernet;
            let done = slicer.slice_frame(&mut table, &mut pool, link, &mut handle, Nanos(0), 1);
            if !matches!(done, Sliced::Sliced { .. }) {
                assert_eq!(done, Sliced::Whole(Why::Kind));
            }
            sliced.push(matches!(done, Sliced::Sliced { .. }));
            splicer.splice_frame(&mut table, &mut pool, link, &mut handle, Nanos(1)).unwrap();
            let back = pool.data(handle.buf, handle.len);
            assert!(back == frame, "{parked} bytes parked, {tags} tags, {trailer} bytes behind");
        }
        // 14 bytes of Ethernet, and the tags.
        let whole = sliced.iter().take_while(|sliced| !**sliced).count();
        assert_eq!((whole, sliced.iter().filter(|sliced| !**sliced).count()), (5 + 4 * tags, 5 + 4 * tags));
    }
}
