//! Any bytes in any tunnel: the inner key is found or the outer one stands, and views take what is there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream_wire::view::{Geneve, Gre, Vxlan};
use slipstream_wire::{Encapsulation, Flags, LinkType, classify, classify_reference, classify_with};

/// Starts of tunnel packets: raw IPv4, IPv4 in IPv4, 6in4, GRE, VXLAN, GENEVE.
const STARTS: [&[u8]; 6] = [
    &[],
    &[0x45, 0, 0, 80, 0, 0, 0, 0, 64, 4, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2],
    &[0x45, 0, 0, 80, 0, 0, 0, 0, 64, 41, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2],
    &[0x45, 0, 0, 80, 0, 0, 0, 0, 64, 47, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2],
    &[0x45, 0, 0, 80, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0x12, 0xb5, 0, 60, 0, 0, 8],
    &[0x45, 0, 0, 80, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0x17, 0xc1, 0, 60, 0, 0],
];

fuzz_target!(|data: &[u8]| {
    let Some((&first, rest)) = data.split_first() else { return };
    let frame = [STARTS[usize::from(first) % STARTS.len()], rest].concat();
    for link in [LinkType::RawIp, LinkType::Ethernet] {
        let outer = classify(link, &frame);
        assert_eq!(outer, classify_reference(link, &frame));
        assert_eq!(outer, classify_with(link, &frame, Encapsulation::Outer));
        let inner = classify_with(link, &frame, Encapsulation::Inner);
        match (outer, inner) {
            (Ok(outer), Ok(inner)) if inner.flags.has(Flags::INNER) => {
                assert!(inner.l3 >= outer.l4 && usize::from(inner.l3) < frame.len());
                assert!(inner.key.vlans().take(outer.key.vlans().len()).eq(outer.key.vlans()));
            }
            (outer, inner) => assert_eq!(outer, inner),
        }
    }
    if let Ok(gre) = Gre::new_checked(rest) {
        assert_eq!(gre.header_len() + gre.payload().len(), rest.len());
        let optional = [gre.checksum().is_some(), gre.key().is_some(), gre.sequence().is_some()];
        assert_eq!(gre.header_len(), 4 + 4 * optional.iter().filter(|&&there| there).count());
    }
    if let Ok(vxlan) = Vxlan::new_checked(rest) {
        assert!(vxlan.vni().is_none_or(|vni| vni < 1 << 24));
        assert_eq!(vxlan.payload().len() + 8, rest.len());
    }
    if let Ok(geneve) = Geneve::new_checked(rest) {
        assert!(geneve.vni() < 1 << 24);
        assert_eq!(8 + geneve.options().len() + geneve.payload().len(), rest.len());
    }
});
