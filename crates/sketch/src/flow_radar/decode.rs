//! From cells to the list of flows: peeling, then solving for the sizes.
//!
//! Peeling finds the keys: a cell that counts one flow holds its key, if the key hashes back to that cell;
//! the flow is taken out of its four cells, which may leave others with one. Sizes come from the same cells,
//! but a flow that the Bloom filter hid adds its weight to four cells without being counted there. So sizes
//! are then corrected until the cells' sums agree: each flow moves by the median of what its cells have left
//! over, which is the descent of Σ|left over| one coordinate at a time. A hidden flow disturbs four cells;
//! each flow has three others to go by.
//!
//! If not all flows can be peeled, a size that was found is sure as long as no hidden flow lies in the cells
//! that it follows from. Cells in which no undecoded flow is counted must come out even; a flow that shares
//! such a cell with one that doesn't, directly or through others, is unsure, and where the filter is so full
//! that it hides flows often, all are. An unsure flow may be anything from nothing to what the sure ones
//! leave of its cells, and so may one that isn't decoded.

use super::{FlowRadar, TABLES};
use crate::{Bounds, Flow};

/// Hidden flows a cell, expected, above which no size of a partial decode is sure.
const HIDDEN_A_CELL: f64 = 1e-3;
/// Rounds of correction at most; a hidden flow takes as many as its weight has travelled cells while peeling.
const ROUNDS: usize = 200;

/// The flows of a [`FlowRadar`].
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded<const N: usize> {
    /// Flows with their sizes, by key.
    pub flows: Vec<Flow<N>>,
    /// Flows that were counted but could not be told apart: 0 where decoding succeeded.
    pub undecoded: u64,
    /// Flows that the filter hid, at least: they are in no list, but weight is left over in their cells.
    pub hidden: u64,
    /// Weight that no flow accounts for with certainty, by cell.
    pub(super) left: Vec<u64>,
}

impl<const N: usize> Decoded<N> {
    /// Says that every flow was found: none undecoded, none hidden.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.undecoded == 0 && self.hidden == 0
    }
}

/// A flow while sizes are solved for.
struct Peeled<const N: usize> {
    key: [u8; N],
    size: i128,
    places: [usize; TABLES],
}

impl<const N: usize> FlowRadar<N> {
    /// All flows that can be told, and how many can't.
    #[must_use]
    pub fn decoded(&self) -> Decoded<N> {
        let (mut peeled, counts) = self.peel();
        let undecoded = counts.iter().take(self.width).map(|n| u64::from(*n)).sum();
        if undecoded > 0 {
            return self.partly(peeled, undecoded, &counts);
        }
        let mut left: Vec<i128> = self.cells.iter().map(|c| i128::from(c.weight)).collect();
        for flow in &peeled {
            add(&mut left, flow.places, -flow.size);
        }
        settle(&mut peeled, &mut left);
        peeled.sort_unstable_by_key(|f| f.key);
        let flows = peeled.iter().map(|f| Flow { key: f.key, size: size_of(f, &left) }).collect();
        // A hidden flow leaves its weight in one cell of each sub-table.
        let tables = left.chunks(self.width.max(1));
        let hidden = tables.map(|t| t.iter().filter(|l| **l != 0).count() as u64).max().unwrap_or(0);
        let left = left.into_iter().map(|l| u64::try_from(l.max(0)).unwrap_or(u64::MAX)).collect();
        Decoded { flows, undecoded, hidden, left }
    }

    /// Sizes and bounds where flows are left that couldn't be peeled: `counts` of them, by cell.
    fn partly(&self, mut peeled: Vec<Peeled<N>>, undecoded: u64, counts: &[u32]) -> Decoded<N> {
        let mut left: Vec<i128> = self.cells.iter().map(|c| i128::from(c.weight)).collect();
        peeled.iter().for_each(|flow| add(&mut left, flow.places, -flow.size));
        peeled.sort_unstable_by_key(|f| f.key);
        let usual = self.hidden_usually();
        let unsure = if usual > HIDDEN_A_CELL * self.width as f64 {
            vec![true; peeled.len()]
        } else {
            unsure(&peeled, &left, counts)
        };
        for (flow, _) in peeled.iter().zip(&unsure).filter(|(_, unsure)| **unsure) {
            add(&mut left, flow.places, flow.size);
        }
        let left: Vec<u64> = left.into_iter().map(|l| u64::try_from(l.max(0)).unwrap_or(u64::MAX)).collect();
        let size = |flow: &Peeled<N>, unsure: bool| {
            let estimate = u64::try_from(flow.size.max(0)).unwrap_or(u64::MAX);
            if !unsure {
                return Bounds::exact(estimate);
            }
            let upper = flow.places.iter().filter_map(|p| left.get(*p)).min().copied().unwrap_or(0);
            Bounds { estimate: estimate.min(upper), lower: 0, upper }
        };
        let flows = peeled.iter().zip(unsure).map(|(f, u)| Flow { key: f.key, size: size(f, u) }).collect();
        Decoded { flows, undecoded, hidden: 0, left }
    }

    /// Flows found, and by cell the number of flows still counted where no cell is left with one.
    fn peel(&self) -> (Vec<Peeled<N>>, Vec<u32>) {
        let mut cells = self.cells.clone();
        let mut pure: Vec<usize> =
            cells.iter().enumerate().filter(|(_, c)| c.flows == 1).map(|(i, _)| i).collect();
        let mut found = Vec::new();
        while let Some(index) = pure.pop() {
            let Some(cell) = cells.get(index).copied().filter(|c| c.flows == 1) else { continue };
            let places = self.places(&cell.keys);
            if !places.contains(&index) {
                continue;
            }
            for place in places {
                let Some(c) = cells.get_mut(place) else { continue };
                c.flip(&cell.keys);
                c.weight = c.weight.saturating_sub(cell.weight);
                c.flows = c.flows.saturating_sub(1);
                if c.flows == 1 {
                    pure.push(place);
                }
            }
            found.push(Peeled { key: cell.keys, size: i128::from(cell.weight), places });
        }
        (found, cells.iter().map(|c| c.flows).collect())
    }
}

fn add(left: &mut [i128], places: [usize; TABLES], by: i128) {
    for place in places {
        if let Some(l) = left.get_mut(place) {
            *l += by;
        }
    }
}

/// Which flows share a cell that all its flows were peeled from, but that doesn't come out even; or share
/// such a cell with a flow that does, and so on.
fn unsure<const N: usize>(flows: &[Peeled<N>], left: &[i128], counts: &[u32]) -> Vec<bool> {
    let whole = |place: &&usize| counts.get(**place).is_some_and(|n| *n == 0);
    let mut odd: Vec<bool> = left.iter().zip(counts).map(|(l, n)| *n == 0 && *l != 0).collect();
    let mut unsure = vec![false; flows.len()];
    let mut goes_on = odd.contains(&true);
    while std::mem::take(&mut goes_on) {
        for (flow, unsure) in flows.iter().zip(&mut unsure).filter(|(_, unsure)| !**unsure) {
            if !flow.places.iter().filter(whole).any(|p| odd.get(*p) == Some(&true)) {
                continue;
            }
            (*unsure, goes_on) = (true, true);
            for place in flow.places.iter().filter(whole) {
                if let Some(odd) = odd.get_mut(*place) {
                    *odd = true;
                }
            }
        }
    }
    unsure
}

/// Moves each flow by the median of its cells' remainders until nothing moves.
fn settle<const N: usize>(flows: &mut [Peeled<N>], left: &mut [i128]) {
    if left.iter().all(|l| *l == 0) {
        return;
    }
    for _ in 0..ROUNDS {
        let mut moved = false;
        for flow in flows.iter_mut() {
            let mut rest = flow.places.map(|p| left.get(p).copied().unwrap_or(0));
            rest.sort_unstable();
            let [least, low, high, _] = rest;
            // If the two in the middle differ, anything between them is as good: the one nearer to no move is
            // taken.
            let by = if low > 0 {
                low
            } else if high < 0 {
                high
            } else {
                0
            };
            // A remainder is never negative in truth; this keeps it from staying so.
            let by = if by == 0 && least < 0 && low <= 0 { least } else { by };
            let by = by.max(-flow.size);
            if by != 0 {
                flow.size += by;
                add(left, flow.places, -by);
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
}

/// A size is sure where nothing is left over in some cell of the flow and the others agree.
fn size_of<const N: usize>(flow: &Peeled<N>, left: &[i128]) -> Bounds<u64> {
    let whole = |v: i128| u64::try_from(v.max(0)).unwrap_or(u64::MAX);
    let rest = flow.places.map(|p| left.get(p).copied().unwrap_or(0));
    let (low, high) = (rest.iter().min().copied().unwrap_or(0), rest.iter().max().copied().unwrap_or(0));
    let estimate = whole(flow.size);
    Bounds {
        estimate,
        lower: whole(flow.size + low.min(0)),
        upper: whole(flow.size + high.min(low.max(0)).max(0)),
    }
}
