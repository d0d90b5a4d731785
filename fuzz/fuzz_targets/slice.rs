//! Any packet is sliced, changed in any way, and spliced: nothing panics, a payload comes back behind its own
//! headers or not at all, and what the function left alone comes back whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::slice::{
    Amount, Marked, PayloadTable, SliceConfig, Sliced, Slicer, Spliced, Splicer, Storage, TokenKey, TokenMode,
};
use slipstream::time::Nanos;
use slipstream_wire::LinkType;

/// Starts of frames: any, IPv4 with UDP and TCP, IPv6 with UDP, an ICMP error.
const STARTS: [&[u8]; 5] = [
    &[],
    &[
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 120, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10,
        0, 0, 2, 0, 1, 0, 2, 0, 100, 0, 1,
    ],
    &[
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0xfc, 0, 120, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1,
        10, 0, 0, 2, 0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0x50,
    ],
    &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 90, 17, 64],
    &[
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 120, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10,
        0, 0, 2, 11, 0, 0, 0, 0, 0, 0, 0, 0x45,
    ],
];

/// A function that pushes tags, takes all off, or quotes the packet in an ICMP error: nothing leaves with the
/// token as long as the payload waits, and what the network sends is given none by it.
fn push_pop_quote(
    splicer: &Splicer,
    table: &mut PayloadTable,
    frame: &[u8],
    sliced: &[u8],
    link: LinkType,
    done: &Sliced,
    settings: u8,
) {
    let Sliced::Sliced { token, .. } = done else { return };
    // A sender that guesses a token, as a fuzzer learns to, says it in bytes of its own, such as padding.
    let [.., a, b, c, d] = token.to_bytes();
    let guessed = frame.windows(4).any(|w| w == [a, b, c, d]);
    if link != LinkType::Ethernet || sliced.len() < 34 || guessed {
        return;
    }
    let (how, amount) = (settings >> 4 & 3, usize::from(settings >> 6));
    let made = match how {
        0 => {
            // More tags than a key holds, and no IP behind them.
            let tags = [0x81, 0, 0, 1].repeat(8 + amount * 4);
            [&sliced[..12], &tags, &[0x88, 0x47, 0, 1, 0x01, 64], &sliced[14..]].concat()
        }
        1 => {
            let mut popped = sliced.to_vec();
            while popped.len() > 18 && popped[12..14] == [0x81, 0] {
                popped.drain(12..16);
            }
            popped.splice(12..14, [0x88, 0x47, 0, 1, 0x01, 64]);
            popped
        }
        _ => {
            let quote = &sliced[14..sliced.len().min(14 + 28 + amount * 12)];
            let padding = vec![0; if how == 2 { 0 } else { 128usize.saturating_sub(quote.len()) }];
            let total = (28 + quote.len() + padding.len()) as u16;
            let mut error = sliced[..14].to_vec();
            error[12..14].copy_from_slice(&[8, 0]);
            error.extend([0x45, 0]);
            error.extend(total.to_be_bytes());
            error.extend([0, 0, 0, 0, 64, 1, 0, 0, 10, 9, 9, 9, 10, 0, 0, 1, 11, 0, 0, 0, 0, 32, 0, 0]);
            [&error[..], quote, &padding].concat()
        }
    };
    let mut room = made.clone();
    room.resize(made.len() + 4000, 0);
    // Its counters are held against those of the general way.
    if let Ok(outcome) = splicer.clone().splice(table, link, &mut room, made.len(), Nanos(1)) {
        let len = match outcome {
            Spliced::Untouched => made.len(),
            Spliced::Whole { len } | Spliced::Quote { len } => len,
        };
        let leaves = room[..len].windows(8).any(|w| w == token.to_bytes());
        assert!(!(leaves && table.is_waiting(*token)), "a token leaves");
    }
    assert!(table.is_waiting(*token), "what was no packet of it took the payload");
}

fuzz_target!(|data: &[u8]| {
    let [start, settings, keep, link, split, rest @ ..] = data else { return };
    let link = if link % 2 == 0 { LinkType::Ethernet } else { LinkType::RawIp };
    let (body, changes) = rest.split_at(rest.len() * usize::from(*split) / 255);
    let mut frame = [STARTS[usize::from(*start) % STARTS.len()], body].concat();
    if link == LinkType::RawIp {
        frame.drain(..14.min(frame.len()));
    }
    let config = SliceConfig {
        entries: 4,
        ttl: 2,
        storage: Storage::Copied { entry_bytes: 2000 },
        mode: if settings & 1 == 0 { TokenMode::Keyed } else { TokenMode::Paper },
        key: TokenKey::from_seed(1),
        threshold: 0,
        keep_bytes: u16::from(*keep) % 40,
        amount: if settings & 2 == 0 { Amount::Share(1.0) } else { Amount::Bytes(50) },
        marked: [Marked::Slice, Marked::Remark(1), Marked::Drop, Marked::Slice]
            [usize::from(settings >> 2) % 4],
        ..SliceConfig::default()
    };
    let mut table = PayloadTable::new(&config, 0).unwrap();
    let (mut slicer, mut splicer) = (Slicer::new(&config).unwrap(), Splicer::new(&config).unwrap());
    let mut slow_table = PayloadTable::new(&config, 0).unwrap();
    let (mut slow_slicer, mut slow_splicer) =
        (slicer.clone().without_shortcuts(), splicer.clone().without_shortcuts());

    let mut buffer = frame.clone();
    buffer.resize(frame.len() + 8, 0);
    let done = slicer.slice(&mut table, link, &mut buffer, frame.len(), Nanos(0));
    // The general way does the same.
    let mut twin = frame.clone();
    twin.resize(frame.len() + 8, 0);
    assert_eq!(done, slow_slicer.slice(&mut slow_table, link, &mut twin, frame.len(), Nanos(0)));
    let kept = match done {
        Sliced::Sliced { len, .. } | Sliced::Empty { len, .. } => len,
        _ => frame.len(),
    };
    assert_eq!(buffer[..kept], twin[..kept]);
    let (len, parked) = match done {
        Sliced::Sliced { len, parked, .. } => (len, parked),
        Sliced::Empty { len, .. } => (len, 0),
        Sliced::Whole(_) => {
            assert_eq!(buffer[..frame.len()], frame);
            (frame.len(), 0)
        }
        Sliced::Remarked => (frame.len(), 0),
        Sliced::Dropped => return,
    };
    let payload_at = len.saturating_sub(8).min(frame.len());

    if config.mode == TokenMode::Keyed {
        push_pop_quote(&splicer, &mut table, &frame, &buffer[..len], link, &done, *settings);
    }

    // A function that changes any bytes, one of four at a time.
    let mut changed = buffer[..len].to_vec();
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_be_bytes([change[0], change[1]])) % changed.len().max(1);
        if let Some(byte) = changed.get_mut(at) {
            *byte = change[2];
        }
    }
    let mut room = changed.clone();
    room.resize(changed.len() + 4000, 0xee);
    let came = changed.len();
    let mut twin = room.clone();
    let slow = slow_splicer.splice(&mut slow_table, link, &mut twin, came, Nanos(1));
    let spliced = splicer.splice(&mut table, link, &mut room, came, Nanos(1));
    assert_eq!(
        (&spliced, table.counters(), splicer.counters()),
        (&slow, slow_table.counters(), slow_splicer.counters())
    );
    if let Ok(Spliced::Whole { len } | Spliced::Quote { len }) = spliced {
        assert_eq!(room[..len], twin[..len]);
    }
    match spliced {
        Ok(Spliced::Untouched) => assert_eq!(room[..came], changed),
        Ok(Spliced::Whole { len }) => {
            // The parked bytes, and nothing else, stand where the token stood.
            assert!(len <= came + parked && len + 80 > came - 8 + parked);
            if parked > 0 {
                let wanted = &frame[payload_at.saturating_sub(64).min(frame.len())..];
                assert!(
                    wanted
                        .windows(parked.min(wanted.len()))
                        .any(|w| room[..len].windows(w.len()).any(|r| r == w))
                );
            }
            if changed == buffer[..changed.len()] {
                assert_eq!(room[..len], frame);
            }
        }
        Ok(Spliced::Quote { len }) => assert!(len < came),
        Err(_) => assert!(done != Sliced::Whole(slipstream::slice::Why::Kind) || changed != frame),
    }
    table.audit().unwrap();
    if changes.len() < 3 && !matches!(done, Sliced::Remarked) {
        assert_eq!(table.waiting(), 0, "a packet that nobody changed left its payload behind");
        assert!(splicer.counters().refused.iter().all(|n| *n == 0));
    }
});
