//! Reading captures against an independent parser, `pcap-parser`, on generated files.
//!
//! In cases that it can't judge (resolutions in powers of two, and offsets in big-endian sections, whose
//! bytes it takes in the wrong order) the obvious reader of the other tests does.

use crate::capture_support::{NgFile, Owned, PcapFile, read_bytes};
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, LegacyPcapReader, PcapBlockOwned, PcapError, PcapNGReader};
use proptest::prelude::*;

/// Calls `each` with every block that the parser finds.
fn blocks(mut reader: impl PcapReaderIterator, mut each: impl FnMut(PcapBlockOwned<'_>)) {
    loop {
        match reader.next() {
            Ok((consumed, block)) => {
                each(block);
                reader.consume(consumed);
            }
            Err(PcapError::Eof) => return,
            Err(PcapError::Incomplete(_)) => reader.refill().unwrap(),
            Err(error) => panic!("{error:?}"),
        }
    }
}

fn oracle_pcap(file: &[u8]) -> Vec<Owned> {
    let (mut records, mut unit, mut link_number) = (Vec::new(), 0, 0);
    blocks(LegacyPcapReader::new(65_536, file).unwrap(), |block| match block {
        PcapBlockOwned::LegacyHeader(header) => {
            unit = if header.is_nanosecond_precision() { 1 } else { 1000 };
            link_number = header.network.0 as u32;
        }
        PcapBlockOwned::Legacy(packet) => records.push(Owned {
            time: u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_usec) * unit,
            interface: 0,
            link_number,
            original_len: packet.origlen,
            data: packet.data[..packet.caplen as usize].to_vec(),
        }),
        PcapBlockOwned::NG(_) => panic!("a pcapng block in a pcap file"),
    });
    records
}

fn oracle_ng(file: &[u8]) -> Vec<Owned> {
    let (mut records, mut interfaces, mut earlier, mut big) = (Vec::new(), Vec::new(), 0, false);
    blocks(PcapNGReader::new(65_536, file).unwrap(), |block| match block {
        PcapBlockOwned::NG(Block::SectionHeader(section)) => {
            big = section.big_endian();
            earlier += interfaces.len() as u32;
            interfaces.clear();
        }
        PcapBlockOwned::NG(Block::InterfaceDescription(i)) => {
            let offset = if big { i.if_tsoffset.swap_bytes() } else { i.if_tsoffset };
            interfaces.push((i.linktype.0 as u32, i.ts_resolution().unwrap(), offset));
        }
        PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
            let (link_number, ticks, offset) = interfaces[packet.if_id as usize];
            let stamp = u128::from(packet.ts_high) << 32 | u128::from(packet.ts_low);
            let time =
                (stamp * 1_000_000_000 / u128::from(ticks)) as i128 + i128::from(offset) * 1_000_000_000;
            records.push(Owned {
                time: time.try_into().unwrap(),
                interface: earlier + packet.if_id,
                link_number,
                original_len: packet.origlen,
                data: packet.packet_data().to_vec(),
            });
        }
        PcapBlockOwned::NG(Block::SimplePacket(packet)) => records.push(Owned {
            time: records.last().map_or(0, |before: &Owned| before.time),
            interface: earlier,
            link_number: interfaces[0].0,
            original_len: packet.origlen,
            data: packet.data[..packet.data.len().min(packet.origlen as usize)].to_vec(),
        }),
        PcapBlockOwned::NG(_) => {}
        _ => panic!("a pcap record in a pcapng file"),
    });
    records
}

type Packet = (u32, u32, u32, Vec<u8>);

fn packets() -> impl Strategy<Value = Vec<Packet>> {
    let data = prop_oneof![
        8 => prop::collection::vec(any::<u8>(), 0..80),
        1 => (1000..3000usize).prop_map(|len| vec![0xa5; len]),
    ];
    prop::collection::vec((any::<u32>(), any::<u32>(), any::<u32>(), data), 0..50)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn pcap(big: bool, magic in prop::sample::select(vec![0xa1b2_c3d4u32, 0xa1b2_3c4d]), packets in packets()) {
        let mut file = PcapFile::new(big, magic, 4, 65_535, 101);
        for (seconds, fraction, original, data) in packets {
            file = file.record(seconds, fraction, original, &data);
        }
        prop_assert_eq!(read_bytes(&file.bytes), Some((oracle_pcap(&file.bytes), None)));
    }

    #[test]
    fn pcapng(
        big: bool,
        resolutions in prop::collection::vec(0..=12u8, 1..4),
        offset in 0..1_000_000_000i64,
        packets in packets(),
    ) {
        let mut file = NgFile::new(big);
        let describe = |mut file: NgFile| {
            for &resolution in &resolutions {
                let offset = file.ends.put64(offset).to_vec();
                file = file.interface(u16::from(resolution), 0, &[(9, vec![resolution]), (14, offset)]);
            }
            file
        };
        file = describe(file);
        for (high, low, original, data) in packets {
            let stamp = u64::from(high % (1 << 20)) << 32 | u64::from(low);
            let id = original as usize % resolutions.len();
            // Stamps within the years that 64 bits of nanoseconds have.
            let ticks = 10u64.pow(resolutions[id].into());
            let stamp = stamp % (10_000_000_000u64.saturating_mul(ticks));
            file = match high % 8 {
                0 => file.simple(data.len() as u32, &data),
                1 if original % 4 == 0 => describe(file.section(low % 2 == 0)),
                2 => file.block(4, &[0; 4]),
                _ => file.enhanced(id as u32, stamp, original, &data),
            };
        }
        prop_assert_eq!(read_bytes(&file.bytes), Some((oracle_ng(&file.bytes), None)));
    }
}
