//! The fast classifier against the linear one, both against the rules' own evaluator, and the cases that
//! people read.

use proptest::prelude::*;
use slipstream_wire::{Flags, FlowKey, Headers};

use super::cache::DecisionCache;
use super::generate::{Kind, packets, rules};
use super::reference::Linear;
use super::*;
use slipstream_core::rules::Rule;
use slipstream_core::rules::testing::{expr, headers};

fn actions() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["allow", "deny", "reset", "count", "log 1/7"])
}

/// A rule set in text, and the rules that it is made of.
fn text() -> impl Strategy<Value = (String, Vec<Rule>)> {
    prop::collection::vec((actions(), expr()), 0..24).prop_map(|lines| {
        let mut text = String::from("# generated\ndefault deny\n");
        let mut rules = Vec::new();
        for (action, expr) in lines {
            let line = format!("{action} {expr}\n");
            // A rule may expand to too much, and then it is no rule of a firewall.
            if RuleSet::parse(&line).is_ok() {
                text += &line;
                rules.push(Rule::parse(&expr.to_string()).unwrap());
            }
        }
        (text, rules)
    })
}

/// The first rule from `start` on by the evaluator that reframe uses.
fn evaluator(rules: &[Rule], headers: &Headers, length: u32, start: usize) -> Option<u32> {
    (start..rules.len()).find(|&i| rules[i].matches(headers, length)).map(|i| i as u32)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_classifier_finds_the_first_rule_that_matches(
        (text, rules) in text(),
        packets in prop::collection::vec((headers(), 40..1600_u32), 1..24),
    ) {
        let set = RuleSet::parse(&text).unwrap();
        prop_assert_eq!(set.rules().len(), rules.len());
        let (linear, fast) = (Firewall::new(set.clone(), Method::Linear), Firewall::new(set, Method::Fast));
        let fields: Vec<_> = packets.iter().map(|(h, length)| PacketFields::new(h, *length)).collect();
        let expected: Vec<_> = packets.iter().map(|(h, length)| evaluator(&rules, h, *length, 0)).collect();
        prop_assert_eq!(&together(&fast, &fields), &expected, "{}", text);
        prop_assert_eq!(&together(&linear, &fields), &expected, "{}", text);
        for (h, length) in packets {
            let packet = PacketFields::new(&h, length);
            let expected = evaluator(&rules, &h, length, 0);
            prop_assert_eq!(linear.lookup(&packet), expected, "{}\n{}", text, h.key);
            prop_assert_eq!(fast.lookup(&packet), expected, "{}\n{}", text, h.key);
            let (mut a, mut b) = (Vec::new(), Vec::new());
            let one = linear.decide(&packet, |i, action| a.push((i, *action)));
            let other = fast.decide(&packet, |i, action| b.push((i, *action)));
            prop_assert_eq!((one, &a), (other, &b), "{}\n{}", text, h.key);
            // The rules that were passed on the way, by the letter.
            let decided = one.rule.map_or(rules.len(), |r| r as usize);
            let passed: Vec<u32> = (0..decided).filter(|&i| rules[i].matches(&h, length)).map(|i| i as u32).collect();
            prop_assert_eq!(a.iter().map(|&(i, _)| i).collect::<Vec<_>>(), passed);
        }
    }

    #[test]
    fn packets_that_agree_in_what_is_read_get_one_answer(
        (text, _) in text(),
        packets in prop::collection::vec((headers(), 40..1600_u32), 2..24),
    ) {
        let firewall = Firewall::new(RuleSet::parse(&text).unwrap(), Method::Fast);
        let reads = firewall.rules().reads();
        let mut cache = DecisionCache::new(4, reads);
        for (h, length) in &packets {
            // The same flow with other flags, code points, lengths.
            for (other, other_length) in &packets {
                let mixed = Headers { tos: other.tos, tcp_flags: if h.flags.has(Flags::TCP) { other.tcp_flags } else { 0 }, ..*h };
                let (one, two) = (PacketFields::new(h, *length), PacketFields::new(&mixed, *other_length));
                let alike = one.word() & reads.word == two.word() & reads.word && (!reads.length || length == other_length);
                if alike {
                    prop_assert_eq!(firewall.lookup(&one), firewall.lookup(&two), "{}", text);
                }
                let hash = h.key.hash64(0) & 1;
                let known = cache.get(&h.key, hash, &two);
                let expected = firewall.lookup(&two);
                if let Some(known) = known {
                    prop_assert_eq!(known, expected, "{}", text);
                }
                cache.put(&h.key, hash, &two, expected);
                let again = cache.get(&h.key, hash, &two);
                prop_assert_eq!(again, (!reads.length && !reads.state).then_some(expected));
            }
        }
    }
}

/// Packets as they are looked up together, some that are no packets among them.
fn together(firewall: &Firewall, packets: &[PacketFields]) -> Vec<Option<u32>> {
    let found = |packet: &PacketFields, known| {
        let mut found = Found::default();
        (found.known, found.packet) = (known, packet.clone());
        found
    };
    let strange = |n: usize| n % 5 == 3;
    let each = packets.iter().enumerate();
    let mut all: Vec<Found> = each
        .flat_map(|(n, p)| strange(n).then(|| found(p, false)).into_iter().chain([found(p, true)]))
        .collect();
    firewall.lookup_together(&mut all);
    let known = all.iter().filter(|found| found.known);
    let looked_up = known.clone().map(Found::first).collect();
    let mut walked = all.clone();
    firewall.walk_together(&mut walked);
    let one_by_one: Vec<_> =
        walked.iter().filter(|f| f.known).map(|f| firewall.lookup_ahead(&f.packet, &f.leaves)).collect();
    assert_eq!(one_by_one, looked_up);
    looked_up
}

/// Both classifiers on generated rules: at the packets that hit them, at any others.
fn agree(kind: Kind, count: usize, seed: u64) {
    let set = rules(kind, count, seed);
    let (linear, fast) = (Linear::new(&set), Firewall::new(set.clone(), Method::Fast));
    let mut asked = packets(&set, 1500, seed + 1);
    let shuffled: Vec<Headers> = asked
        .iter()
        .zip(asked.iter().rev())
        .filter_map(|(a, b)| {
            let key = FlowKey::new(
                &[],
                a.key.src(),
                b.key.dst(),
                a.key.protocol(),
                b.key.src_port(),
                b.key.dst_port(),
            );
            Some(Headers { key: key.ok()?, ..*a })
        })
        .collect();
    asked.extend(shuffled);
    let mut hits = 0;
    for h in &asked {
        let packet = PacketFields::new(h, 60);
        let expected = linear.lookup(&packet);
        assert_eq!(fast.lookup(&packet), expected, "{kind:?} {count} {seed}: {}", h.key);
        hits += usize::from(expected.is_some());
    }
    for some in asked.chunks(37) {
        let packets: Vec<_> = some.iter().map(|h| PacketFields::new(h, 60)).collect();
        let expected: Vec<_> = packets.iter().map(|p| linear.lookup(p)).collect();
        assert_eq!(together(&fast, &packets), expected, "{kind:?} {count} {seed}");
    }
    assert!(hits * 3 > asked.len(), "{kind:?}: {hits} of {} packets hit a rule", asked.len());
}

#[test]
fn fast_and_linear_agree_on_rules_like_those_of_access_lists_firewalls_and_chains() {
    for (seed, (_, kind)) in (0..).zip(Kind::ALL) {
        for count in [1, 7, 60, 700] {
            agree(kind, count, seed);
        }
    }
}

#[test]
fn a_rule_for_every_packet_hides_those_behind_it_and_none_before_it() {
    let text = "allow (proto icmp,tcp or src port 0) and not flags !fin,!rst,!psh,!ack and (vlan or not flags !fin,!syn)\n\
        allow not none\nallow src 10.0.0.0/10\nallow dst 10.0.0.0/10\n";
    let set = RuleSet::parse(text).unwrap();
    let key = FlowKey::new(&[], [10, 0, 0, 1].into(), [10, 0, 0, 1].into(), 17, 0, 0).unwrap();
    let fragment = Headers { key, l3: 14, l4: 34, flags: Flags(Flags::FRAGMENT), tcp_flags: 0, tos: 0 };
    let key = FlowKey::new(&[], [10, 0, 0, 1].into(), [10, 0, 0, 1].into(), 1, 0, 0).unwrap();
    let icmp = Headers { key, flags: Flags(0), ..fragment };
    for method in [Method::Linear, Method::Fast] {
        let firewall = Firewall::new(set.clone(), method);
        for (headers, rule) in [(fragment, 1), (icmp, 0)] {
            let decision = firewall.decide(&PacketFields::new(&headers, 40), |_, _| {});
            assert_eq!(decision, Decision { verdict: Verdict::Allow, rule: Some(rule) }, "{method:?}");
        }
    }
}

#[test]
fn a_rule_that_no_tree_took_may_come_before_those_that_a_tree_found() {
    use super::bitmap::Bitmap;
    use super::block::Block;
    use super::entry::{Input, V4};
    use super::forest::{NONE, Trees};

    let set = RuleSet::parse("deny udp\nallow src 10.0.0.0/8\ndeny dst 10.0.0.0/8\n").unwrap();
    let key = FlowKey::new(&[], [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 1, 2).unwrap();
    let flags = Flags(Flags::PORTS);
    let packet = PacketFields::new(&Headers { key, l3: 14, l4: 34, flags, tcp_flags: 0, tos: 0 }, 60);
    let whole = Trees::<V4>::new(&set);
    assert_eq!(whole.lookup::<false>(&packet, 0), 0);
    // The trees of the second and the third rule alone, each of its own; the first rule is left.
    let mut parted = Trees::<V4>::new(&set);
    let input = Input::<V4>::new(&set);
    parted.trees.clear();
    for rule in [1, 2] {
        let root = super::forest::Link::leaf(parted.blocks.len(), 1);
        parted.blocks.push(Block::new([&input.entries[rule]; 4]));
        parted.rules.splice(parted.blocks.len() * 4 - 4.., [[rule as u32; 4].as_slice(), &[NONE]].concat());
        parted.trees.push(super::forest::Tree { root, first_rule: rule as u32 });
    }
    parted.left = Bitmap::new(&input, &[0]);
    assert_eq!(parted.lookup::<false>(&packet, 0), 0);
    assert_eq!(parted.lookup::<true>(&packet, 1), 1);
}
