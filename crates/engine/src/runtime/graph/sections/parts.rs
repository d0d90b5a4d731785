//! Sections dealt out to threads: runs of neighbours, the longest as short as possible.

/// The first section of each thread, and their number, for threads that share these costs better than those
/// of `firsts` do; none if the busiest thread would not save a tenth. The first thread has the cost of the
/// source, too.
pub(super) fn better(source: u64, costs: &[u64], firsts: &[usize]) -> Option<Vec<usize>> {
    let threads = firsts.len().checked_sub(1).filter(|n| *n > 0)?;
    let now = busiest(source, costs, firsts);
    let (mut low, mut high) = (source, source + costs.iter().sum::<u64>());
    while low < high {
        let middle = low + (high - low) / 2;
        match deal(source, costs, threads, middle) {
            Some(_) => high = middle,
            None => low = middle + 1,
        }
    }
    let found = deal(source, costs, threads, high)?;
    (busiest(source, costs, &found) < now - now / 10).then_some(found)
}

/// The cost of the busiest thread.
fn busiest(source: u64, costs: &[u64], firsts: &[usize]) -> u64 {
    let of = |(thread, part): (usize, &[usize])| {
        let [from, to] = *part else { return 0 };
        let own: u64 = costs.get(from..to).unwrap_or_default().iter().sum();
        own + if thread == 0 { source } else { 0 }
    };
    firsts.windows(2).enumerate().map(of).max().unwrap_or_default()
}

/// Deals sections out so that no thread has more than `most`, each thread as many as it can take; none if
/// there are too few threads for that.
fn deal(source: u64, costs: &[u64], threads: usize, most: u64) -> Option<Vec<usize>> {
    let (mut firsts, mut load) = (vec![0], source);
    for (at, cost) in costs.iter().enumerate() {
        while load + cost > most {
            if firsts.len() == threads || load == 0 {
                return None;
            }
            firsts.push(at);
            load = 0;
        }
        load += cost;
    }
    firsts.resize(threads + 1, costs.len());
    Some(firsts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every way to deal out so many sections to so many threads.
    fn all(sections: usize, threads: usize) -> Vec<Vec<usize>> {
        let mut ways = vec![vec![0]];
        for _ in 1..threads {
            let more =
                |way: Vec<usize>| (way[way.len() - 1]..=sections).map(move |at| [&way[..], &[at]].concat());
            ways = ways.into_iter().flat_map(more).collect();
        }
        ways.iter_mut().for_each(|way| way.push(sections));
        ways
    }

    proptest! {
        /// Against all ways there are.
        #[test]
        fn no_way_is_better(source in 0u64..100, costs in prop::collection::vec(0u64..100, 1..6), threads in 1usize..5) {
            let ways = all(costs.len(), threads);
            let least = ways.iter().map(|way| busiest(source, &costs, way)).min().unwrap();
            for way in &ways {
                let now = busiest(source, &costs, way);
                match better(source, &costs, way) {
                    Some(found) => {
                        prop_assert_eq!(busiest(source, &costs, &found), least);
                        prop_assert!(found.is_sorted() && found.len() == threads + 1);
                        prop_assert!(least < now - now / 10);
                    }
                    None => prop_assert!(least >= now - now / 10, "{:?} {} {}", way, least, now),
                }
            }
        }
    }
}
