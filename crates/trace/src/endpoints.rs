//! The addresses with the most TCP flows, and how large these are (paper, Table 1).

use std::net::IpAddr;

use hashbrown::HashMap;

use crate::partial::Partial;
use crate::report::{Endpoint, EndpointSide};

/// The `top` addresses by the number of flows from and to them, the most first, then by address.
pub(crate) fn top_endpoints(partial: &Partial, top: usize) -> Vec<Endpoint> {
    let tcp = || partial.flows().filter(|(_, packets)| packets.tcp > 0);
    let mut flows: HashMap<IpAddr, u64> = HashMap::new();
    for (key, _) in tcp() {
        *flows.entry(key.src()).or_default() += 1;
        *flows.entry(key.dst()).or_default() += 1;
    }
    let mut ranked: Vec<(u64, IpAddr)> = flows.into_iter().map(|(address, n)| (n, address)).collect();
    ranked.sort_unstable_by_key(|(n, address)| (std::cmp::Reverse(*n), *address));
    ranked.truncate(top);

    let mut sizes: HashMap<IpAddr, (Vec<u64>, Vec<u64>)> =
        ranked.iter().map(|(_, address)| (*address, Default::default())).collect();
    for (key, packets) in tcp() {
        if let Some((tx, _)) = sizes.get_mut(&key.src()) {
            tx.push(packets.tcp);
        }
        if let Some((_, rx)) = sizes.get_mut(&key.dst()) {
            rx.push(packets.tcp);
        }
    }
    let endpoint = |address| {
        let (tx, rx) = sizes.remove(&address).unwrap_or_default();
        Endpoint { address, tx: side(tx), rx: side(rx) }
    };
    ranked.into_iter().map(|(_, address)| address).map(endpoint).collect()
}

fn side(mut sizes: Vec<u64>) -> EndpointSide {
    sizes.sort_unstable();
    let n = sizes.len();
    let at = |i: usize| sizes.get(i).copied();
    let (low, high) = (at(n.saturating_sub(1) / 2), at(n / 2));
    EndpointSide {
        flows: n as u64,
        min: at(0),
        mean: (n > 0).then(|| sizes.iter().sum::<u64>() as f64 / n as f64),
        median: low.zip(high).map(|(low, high)| low as f64 / 2.0 + high as f64 / 2.0),
        max: sizes.last().copied(),
    }
}
