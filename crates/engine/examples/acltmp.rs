#![allow(missing_docs, clippy::all, clippy::disallowed_methods)]
use slipstream::functions::firewall::{forest::Forest, generate::*, *};
use std::time::Instant;
fn main() {
    let want: Vec<String> = std::env::args().skip(1).collect();
    for (name, kind) in Kind::ALL {
        if !want.is_empty() && !want.iter().any(|w| w == name) {
            continue;
        }
        for n in [1000, 10_000, 20_000] {
            let set = rules(kind, n, 7);
            let t = Instant::now();
            let f = Forest::new(&set);
            let build = t.elapsed();
            let pk: Vec<PacketFields> =
                packets(&set, 10_000, 9).iter().map(|h| PacketFields::new(h, 60)).collect();
            let mut best = f64::MAX;
            let mut sum = 0u64;
            for _ in 0..7 {
                let t = Instant::now();
                for p in &pk {
                    sum += u64::from(f.lookup(p).unwrap_or(0));
                }
                best = best.min(t.elapsed().as_nanos() as f64 / pk.len() as f64);
            }
            println!(
                "{name:13} {n:6} build {:5} ms  mem {:6} kB  {best:7.1} ns {:?} {}",
                build.as_millis(),
                f.memory() / 1024,
                f.shape(),
                sum % 10
            );
        }
    }
}
