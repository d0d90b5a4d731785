//! The best that could be done if the future were known: for each flow, where to cut it into trains.

/// Trains and delay, in all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cut {
    pub(super) trains: u64,
    pub(super) delay_ns: u64,
}

/// Cuts the packets of one flow, by their times in ns, into trains of at most `burst` packets, none of which
/// waits longer than `hold_ns`, so that (delay) + `price_ns` × (trains) is least. A train leaves with its
/// last packet.
pub(super) fn cut(times: &[u64], burst: usize, hold_ns: u64, price_ns: u64) -> Cut {
    // The best cut of the first packets, and its cost, by how many they are.
    let mut best = Vec::with_capacity(times.len() + 1);
    best.push((0u128, Cut::default()));
    for n in 1..=times.len() {
        let head = times.get(..n).unwrap_or_default();
        let Some(last) = head.last() else { break };
        let (mut least, mut delay) = (None, 0);
        // The last train, from its last packet on.
        for (first, time) in head.iter().enumerate().rev().take(burst) {
            if last - time > hold_ns {
                break;
            }
            delay += last - time;
            let Some(&(cost, before)) = best.get(first) else { break };
            let cost = cost + u128::from(price_ns) + u128::from(delay);
            if least.is_none_or(|(c, _)| cost < c) {
                let cut = Cut { trains: before.trains + 1, delay_ns: before.delay_ns + delay };
                least = Some((cost, cut));
            }
        }
        best.extend(least);
    }
    best.last().map(|b| b.1).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All ways to cut.
    fn brute(times: &[u64], burst: usize, hold: u64, price: u64) -> u64 {
        let gaps = times.len().saturating_sub(1);
        let cost = |cuts: u32| {
            let mut trains: Vec<Vec<u64>> = vec![Vec::new()];
            for (i, time) in times.iter().enumerate() {
                if i > 0 && cuts >> (i - 1) & 1 == 1 {
                    trains.push(Vec::new());
                }
                trains.last_mut().unwrap().push(*time);
            }
            let fits = |t: &Vec<u64>| t.len() <= burst && t[t.len() - 1] - t[0] <= hold;
            let delay: u64 = trains.iter().flat_map(|t| t.iter().map(|x| t[t.len() - 1] - x)).sum();
            trains.iter().all(fits).then(|| delay + price * trains.len() as u64)
        };
        (0..1u32 << gaps).filter_map(cost).min().unwrap()
    }

    #[test]
    fn no_cut_is_better() {
        let mut x = 1u64;
        let mut random = |n: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) % n
        };
        for _ in 0..300 {
            let mut time = 0;
            let times: Vec<u64> = (0..1 + random(10))
                .map(|_| {
                    time += random(30);
                    time
                })
                .collect();
            let (burst, hold, price) = (1 + random(5) as usize, random(80), random(60));
            let cut = cut(&times, burst, hold, price);
            let cost = cut.delay_ns + price * cut.trains;
            assert_eq!(cost, brute(&times, burst, hold, price), "{times:?} {burst} {hold} {price}");
        }
        assert_eq!(cut(&[], 32, 10, 10), Cut::default());
    }
}
