//! A balancer as its operator sees it: other backends while it runs, one of them drained, and the backends of
//! connections listed, saved and restored.
//!
//! A record of a connection is 96 bytes, integers in little-endian order: the seven words of its key (8 bytes
//! each; a key of two words has [`NARROW`] in the last one), the backend's address (16, IPv4 as
//! `::ffff:a.b.c.d`), the time that is left (8, in ns), and 16 zeros.

use std::net::IpAddr;

use serde_json::json;
use slipstream_core::operate::{
    EntryEnds, Fields, Operate, Preparation, Reloading, StateTable, Update, put_address,
};
use slipstream_core::registry::BuildError;
use slipstream_core::time::Nanos;
use slipstream_wire::{FlowKey, NarrowKey, WideKey};

use super::settings::{backends, mode, service};
use super::{BalancerStage, Mode, weights};
use crate::balancer::{Backend, Backends};
use crate::maglev;

/// The connections of a balancer, as its operator sees them.
pub(super) const AFFINITY: StateTable =
    StateTable { name: "affinity", version: 1, record: RECORD, describe, names: &[], ends };

const RECORD: usize = 96;
/// The last word of a key that has two.
const NARROW: u64 = u64::MAX;

/// The settings that can change while a balancer runs.
pub(super) const RELOAD: Reloading = Reloading {
    settings: &["backends", "idle", "mtu"],
    ports: Reloading::NO_PORTS,
    reads_files: |_| false,
    make: |settings, _| {
        let backends = backends(settings)?;
        let mode = mode(settings, service(settings)?, 0, &backends)?;
        let places = if settings.text("places") == "large" { maglev::LARGE } else { maglev::SMALL };
        let backends = Backends::new(backends, places, settings.number("idle"));
        let backends = backends.map_err(|e| BuildError::setting("backends", e.to_string()))?;
        Ok(Box::new(BalancerUpdate { backends, mode: Some(mode) }))
    },
};

/// Other settings for a balancer that runs.
struct BalancerUpdate {
    backends: Backends,
    /// None where backends stay the same but for their weights.
    mode: Option<Mode>,
}

/// A record's key, backend and time left.
fn read(record: &[u8]) -> Option<(FlowKey, IpAddr, u64)> {
    let mut fields = Fields(record);
    let words: [u64; 7] = std::array::from_fn(|_| fields.u64());
    let [a, b, .., last] = words;
    let key = if last == NARROW { FlowKey::Narrow(NarrowKey([a, b])) } else { FlowKey::Wide(WideKey(words)) };
    (record.len() == RECORD).then_some((key, fields.address(), fields.u64()))
}

fn put(out: &mut Vec<u8>, key: &FlowKey, backend: IpAddr, left: u64) {
    let words = match *key {
        FlowKey::Narrow(NarrowKey([a, b])) => [a, b, 0, 0, 0, 0, NARROW],
        FlowKey::Wide(WideKey(words)) => words,
    };
    words.iter().for_each(|word| out.extend(word.to_le_bytes()));
    put_address(out, backend);
    out.extend(left.to_le_bytes());
    out.extend([0; 16]);
}

fn ends(record: &[u8]) -> Option<EntryEnds> {
    let (key, ..) = read(record)?;
    let (source, destination) = ((key.src(), key.src_port()), (key.dst(), key.dst_port()));
    Some(EntryEnds { protocol: key.protocol(), source, destination, external: None })
}

fn describe(record: &[u8]) -> Option<serde_json::Value> {
    let (key, backend, left) = read(record)?;
    Some(json!({
        "client": key.src(),
        "client_port": key.src_port(),
        "service": key.dst(),
        "service_port": key.dst_port(),
        "protocol": key.protocol(),
        "backend": backend,
        "expires_in_s": left as f64 / 1e9,
    }))
}

impl BalancerStage {
    /// Goes by other backends, in the places that the balancer has for them.
    fn renew(&mut self, update: &mut BalancerUpdate, now: Nanos) {
        let BalancerUpdate { backends, mode } = update;
        self.balancer.update(backends, now);
        if mode.is_some() {
            self.weights = weights(&self.balancer);
        }
        if let (Mode::Dsr(old), Some(Mode::Dsr(new))) = (&mut self.mode, mode) {
            let Some(any) = new.first().copied() else { return };
            // Nobody is sent by the tunnels of those that are gone.
            old.resize(self.balancer.backends().len(), any);
            for (tunnel, place) in new.iter().zip(self.balancer.chosen()) {
                if let Some(old) = old.get_mut(*place as usize) {
                    *old = *tunnel;
                }
            }
        }
    }

    /// Makes the list in which a backend is changed.
    fn changed(&self, on: &str, mut change: impl FnMut(&mut Backend)) -> Result<Vec<Backend>, String> {
        let wanted: IpAddr = on.parse().map_err(|_| format!("{on:?} is no address"))?;
        let mut list: Vec<Backend> = self.balancer.listed().map(|(backend, _)| *backend).collect();
        let backend = list.iter_mut().find(|b| b.address == wanted);
        change(backend.ok_or_else(|| format!("no backend has the address {wanted}"))?);
        Ok(list)
    }
}

impl Operate for BalancerStage {
    fn update(&mut self, new: Update, now: Nanos) -> Update {
        match new.downcast::<BalancerUpdate>() {
            Ok(mut update) => {
                self.renew(&mut update, now);
                update
            }
            Err(other) => other,
        }
    }

    fn save(&self, table: usize, from: u32, places: u32, now: Nanos, out: &mut Vec<u8>) -> Option<u32> {
        if table > 0 {
            return None;
        }
        self.balancer.save(from, places, now, |key, backend, left| put(out, key, backend, left))
    }

    fn restore(&mut self, _table: usize, record: &[u8], away: u64, now: Nanos) -> bool {
        let Some((key, backend, left)) = read(record) else { return false };
        if !self.is_for_service(&key) {
            return false;
        }
        let left = left.checked_sub(away).filter(|left| *left > 0);
        left.is_some_and(|left| self.balancer.restore(key, backend, now.after(left), now))
    }

    fn remove(&mut self, _table: usize, record: &[u8], _now: Nanos) -> bool {
        read(record).is_some_and(|(key, ..)| self.balancer.forget(&key))
    }

    fn act(&self, action: &str, on: &str) -> Result<Preparation, String> {
        let mut is_down = false;
        let list = match action {
            "drain" => self.changed(on, |b| (b.weight, is_down) = (0, !b.healthy))?,
            "down" => self.changed(on, |b| b.healthy = false)?,
            "up" => self.changed(on, |b| {
                // One that was drained has the weight of before again.
                let known = self.weights.iter().find(|(address, _)| *address == b.address);
                let weight = if b.weight > 0 { b.weight } else { known.map_or(1, |(_, weight)| *weight) };
                (b.weight, b.healthy) = (weight.max(1), true);
            })?,
            _ => {
                return Err(format!("`{action}` is nothing that a balancer does; there are drain, down, up"));
            }
        };
        let done = match action {
            "drain" if is_down => format!("{on} gets no new connections; it is down, and has none"),
            "drain" => format!("{on} gets no new connections, and keeps those that it has"),
            "down" => format!("{on} gets no packets any more"),
            _ => format!("{on} gets its share of new connections"),
        };
        let (size, idle) = (self.balancer.size(), self.balancer.idle());
        Ok(Box::new(move || {
            let backends = Backends::new(list, size, idle).map_err(|e| e.to_string())?;
            let update: Update = Box::new(BalancerUpdate { backends, mode: None });
            Ok((update, done))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balancer::{Balancer, BalancerConfig};
    use proptest::prelude::*;
    use slipstream_core::table::NONE;

    fn balancer(backends: &[u8]) -> BalancerStage {
        let config = BalancerConfig { places: maglev::SMALL, connections: 512, idle: 1_000_000_000, seed: 1 };
        let balancer = Balancer::new(&config, list(backends)).unwrap();
        let service = "192.0.2.80:80".parse().unwrap();
        let nat = crate::balancer::NatMode { protocol: 6, service: ([192, 0, 2, 80].into(), 80), port: 80 };
        BalancerStage::new(balancer, service, 6, Mode::Nat(nat))
    }

    fn list(backends: &[u8]) -> Vec<Backend> {
        let one = |n: &u8| Backend { address: IpAddr::from([10, 1, 0, *n]), weight: 1, healthy: true };
        backends.iter().map(one).collect()
    }

    /// A backend that was drained comes back with the weight that the settings give it, those of the last
    /// reload.
    #[test]
    fn a_drained_backend_comes_back_with_its_weight() {
        let weighted = |weight| list(&[1, 2]).into_iter().map(move |b| Backend { weight, ..b }).collect();
        let (config, any) = (
            BalancerConfig { places: maglev::SMALL, connections: 512, idle: 1_000_000_000, seed: 1 },
            Nanos(0),
        );
        let mode = || {
            let (service, protocol) = (([192, 0, 2, 80].into(), 80), 6);
            Mode::Nat(crate::balancer::NatMode { protocol, service, port: 80 })
        };
        let balancer = Balancer::new(&config, weighted(3)).unwrap();
        let mut stage = BalancerStage::new(balancer, "192.0.2.80:80".parse().unwrap(), 6, mode());
        let act = |stage: &mut BalancerStage, action: &str| {
            let (update, done) = stage.act(action, "10.1.0.2").unwrap()().unwrap();
            stage.update(update, any);
            let of = |b: &&Backend| b.address == IpAddr::from([10, 1, 0, 2]);
            let backend = *stage.balancer.backends().iter().find(of).unwrap();
            (backend.weight, backend.healthy, done)
        };
        assert_eq!(act(&mut stage, "drain").0, 0);
        assert_eq!(act(&mut stage, "drain").0, 0);
        assert_eq!(act(&mut stage, "up").0, 3);
        let backends = Backends::new(weighted(5), maglev::SMALL, 1_000_000_000).unwrap();
        stage.update(Box::new(BalancerUpdate { backends, mode: Some(mode()) }), any);
        assert!(!act(&mut stage, "down").1);
        let (weight, _, done) = act(&mut stage, "drain");
        assert!(weight == 0 && done.contains("it is down"), "{done}");
        let (weight, healthy, _) = act(&mut stage, "up");
        assert_eq!((weight, healthy), (5, true));
    }

    fn key(n: u16) -> FlowKey {
        FlowKey::new(&[], [10, 0, 0, 1].into(), [192, 0, 2, 80].into(), 6, n, 80).unwrap()
    }

    fn drain(stage: &mut BalancerStage) {
        let (update, _) = stage.act("drain", "10.1.0.2").unwrap()().unwrap();
        drop(stage.update(update, Nanos(5)));
    }

    fn chosen(stage: &mut BalancerStage, n: u16, now: u64) -> Option<IpAddr> {
        let key = key(n);
        let place = stage.balancer.choose(&key, NONE, Nanos(now))?.backend;
        stage.balancer.backends().get(place as usize).map(|b| b.address)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        /// Connections stay with their backend while it is on the list; others go where a new balancer of
        /// the list sends them.
        #[test]
        fn connections_stay_while_their_backend_does(
            lists in proptest::collection::vec(proptest::collection::btree_set(1..6u8, 1..5), 1..5),
        ) {
            let mut stage = balancer(&[1, 2, 3]);
            let mut had: Vec<Option<IpAddr>> = vec![None; 100];
            for (round, now) in lists.iter().enumerate() {
                for n in 0..100u16 {
                    had[usize::from(n)] = chosen(&mut stage, n, 5);
                }
                let list_now: Vec<u8> = now.iter().copied().collect();
                let backends = Backends::new(list(&list_now), maglev::SMALL, 1_000_000_000).unwrap();
                let nat = crate::balancer::NatMode { protocol: 6, service: ([192, 0, 2, 80].into(), 80), port: 80 };
                drop(stage.update(Box::new(BalancerUpdate { backends, mode: Some(Mode::Nat(nat)) }), Nanos(5)));
                let mut fresh = balancer(&list_now);
                for n in 0..100u16 {
                    let before = had[usize::from(n)];
                    let stays = before.filter(|b| list(&list_now).iter().any(|l| l.address == *b));
                    let expected = stays.or_else(|| chosen(&mut fresh, n, 5));
                    prop_assert_eq!(chosen(&mut stage, n, 5), expected);
                    // One that begins now.
                    let new = n + 1000 * (round as u16 + 1);
                    prop_assert_eq!(chosen(&mut stage, new, 5), chosen(&mut fresh, new, 5));
                }
            }
        }

        /// Against a list of connections with their backends' addresses: places are given to new backends
        /// only when no connection leads there, whatever time passes between reloads.
        #[test]
        fn places_of_the_gone_are_given_anew(
            rounds in proptest::collection::vec(
                (proptest::collection::btree_set(1..40u8, 1..4), 0..3_000_000_000u64, 1..4u64),
                1..12,
            ),
        ) {
            let mut numbers = vec![1, 2, 3];
            let (mut stage, mut now, mut listed) = (balancer(&numbers), 5, list(&numbers));
            let mut idle = 1_000_000_000;
            let mut had: Vec<(Option<IpAddr>, u64)> = vec![(None, 0); 60];
            let mut serials = std::collections::HashMap::new();
            let (mut gone, mut most): (Vec<u64>, usize) = (Vec::new(), 3);
            for (round, (addresses, gap, seconds)) in rounds.iter().enumerate() {
                // Each connection is asked of it once, so that none knows of another.
                let mut fresh = balancer(&numbers);
                for (n, (backend, until)) in (0..).zip(&mut had) {
                    // Some of them are silent.
                    if (n + round) % 3 > 0 {
                        let stays = backend.filter(|b| *until > now && listed.iter().any(|l| l.address == *b));
                        let expected = stays.or_else(|| chosen(&mut fresh, n as u16, now));
                        prop_assert_eq!(chosen(&mut stage, n as u16, now), expected);
                        // A shorter time does not end what has a longer one.
                        (*backend, *until) = (expected, (now + idle).max(if *until > now { *until } else { 0 }));
                    }
                }
                now += gap;
                numbers = addresses.iter().copied().collect();
                let new = list(&numbers);
                gone.extend(listed.iter().filter(|old| !new.contains(old)).map(|_| now));
                listed = new;
                let made = Backends::new(listed.clone(), maglev::SMALL, seconds * 1_000_000_000).unwrap();
                let longest = idle.max(seconds * 1_000_000_000).max(3_000_000_000);
                idle = seconds * 1_000_000_000;
                drop(stage.update(Box::new(BalancerUpdate { backends: made, mode: None }), Nanos(now)));
                let places = stage.balancer.backends().len();
                most = most.max(listed.len() + gone.iter().filter(|time| *time + longest > now).count());
                prop_assert!(places <= most, "{} places for {} backends", places, most);
                for (place, backend) in (0..).zip(stage.balancer.backends()) {
                    let serial = stage.balancer.serial(place);
                    prop_assert_eq!(*serials.entry(serial).or_insert(backend.address), backend.address);
                    prop_assert!(matches!(backend.address, IpAddr::V4(a) if stage.balancer.knows(a.to_bits())));
                }
            }
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let mut stage = balancer(&[1]);
            let restored = stage.restore(0, &bytes, 0, Nanos(5));
            prop_assert!(!restored || bytes.len() == RECORD);
            let _ = (describe(&bytes), stage.remove(0, &bytes, Nanos(5)));
        }
    }

    #[test]
    fn a_restart_keeps_every_connection_with_its_backend() {
        let mut before = balancer(&[1, 2, 3]);
        // One of them drains: its connections are not where the table would put them.
        let had: Vec<_> = (0..100).map(|n| chosen(&mut before, n, 5)).collect();
        drain(&mut before);
        assert!((100..200).all(|n| chosen(&mut before, n, 5) != Some([10, 1, 0, 2].into())));
        let (mut out, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            from = before.save(0, at, 7, Nanos(6), &mut out);
        }
        let mut after = balancer(&[1, 2, 3]);
        drain(&mut after);
        assert!(out.chunks(RECORD).all(|record| after.restore(0, record, 100, Nanos(200))));
        let has: Vec<_> = (0..100).map(|n| chosen(&mut after, n, 300)).collect();
        assert_eq!(has, had);
        // None of them is of another service.
        let config = BalancerConfig { places: maglev::SMALL, connections: 512, idle: 1_000_000_000, seed: 1 };
        let nat = crate::balancer::NatMode { protocol: 6, service: ([192, 0, 2, 80].into(), 443), port: 80 };
        let balancer = Balancer::new(&config, list(&[1, 2, 3])).unwrap();
        let mut other = BalancerStage::new(balancer, "192.0.2.80:443".parse().unwrap(), 6, Mode::Nat(nat));
        assert!(!out.chunks(RECORD).any(|record| other.restore(0, record, 100, Nanos(200))));
        assert!(before.act("drain", "10.1.0.9").is_err() && before.act("sing", "").is_err());
    }
}
