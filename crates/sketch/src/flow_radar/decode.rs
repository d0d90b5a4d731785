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

use super::{Cell, FlowRadar, TABLES};
use crate::{Bounds, Flow, order};

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

    /// Sizes of flows whose bounds are so.
    pub(super) fn sizes(&self, so: fn(&Bounds<u64>) -> bool) -> Vec<u64> {
        let mut sizes = Vec::with_capacity(self.flows.len());
        for flow in &self.flows {
            if so(&flow.size) {
                sizes.push(flow.size.estimate);
            }
        }
        sizes
    }
}

/// A flow while sizes are solved for.
struct Peeled {
    size: i128,
    places: [usize; TABLES],
}

/// Sizes of the flows that were peeled, in their order; what is hidden and left as in [`Decoded`].
struct Solved {
    sizes: Vec<Bounds<u64>>,
    hidden: u64,
    left: Vec<u64>,
}

impl<const N: usize> FlowRadar<N> {
    /// All flows that can be told, and how many can't.
    #[must_use]
    pub fn decoded(&self) -> Decoded<N> {
        let (mut cells, mut counts) = (self.cells.clone(), Vec::with_capacity(self.cells.len()));
        let (keys, peeled) = self.peel(&mut cells);
        let mut left = Vec::with_capacity(cells.len());
        for (cell, rest) in self.cells.iter().zip(&cells) {
            left.push(i128::from(cell.weight));
            counts.push(rest.flows);
        }
        let undecoded = counts.iter().take(self.width).map(|n| u64::from(*n)).sum();
        let solved = if undecoded > 0 {
            partly(&peeled, left, &counts, self.hidden_usually() > HIDDEN_A_CELL * self.width as f64)
        } else {
            wholly(peeled, left, self.width)
        };
        let mut flows = Vec::with_capacity(keys.len());
        for (key, size) in keys.iter().zip(&solved.sizes) {
            flows.push(Flow { key: *key, size: *size });
        }
        order::by_key(&mut flows, |f| &f.key);
        Decoded { flows, undecoded, hidden: solved.hidden, left: solved.left }
    }

    /// Takes flows out of the cells until none is left with one.
    fn peel(&self, cells: &mut [Cell<N>]) -> (Vec<[u8; N]>, Vec<Peeled>) {
        let mut pure = Vec::new();
        for (i, cell) in cells.iter().enumerate() {
            if cell.flows == 1 {
                pure.push(i);
            }
        }
        let (mut keys, mut peeled) = (Vec::new(), Vec::new());
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
            keys.push(cell.keys);
            peeled.push(Peeled { size: i128::from(cell.weight), places });
        }
        (keys, peeled)
    }
}

/// Sizes where all flows were peeled, given the weights of the cells.
fn wholly(mut peeled: Vec<Peeled>, mut left: Vec<i128>, width: usize) -> Solved {
    for flow in &peeled {
        add(&mut left, flow.places, -flow.size);
    }
    settle(&mut peeled, &mut left);
    let sizes = peeled.iter().map(|f| size_of(f, &left)).collect();
    // A hidden flow leaves its weight in one cell of each sub-table.
    let tables = left.chunks(width.max(1));
    let hidden = tables.map(|t| t.iter().filter(|l| **l != 0).count() as u64).max().unwrap_or(0);
    Solved { sizes, hidden, left: left.into_iter().map(whole).collect() }
}

/// Sizes and bounds where flows are left that couldn't be peeled, `counts` of them by cell; whether all are
/// unsure.
fn partly(peeled: &[Peeled], mut left: Vec<i128>, counts: &[u32], all_unsure: bool) -> Solved {
    peeled.iter().for_each(|flow| add(&mut left, flow.places, -flow.size));
    let unsure = if all_unsure { vec![true; peeled.len()] } else { unsure(peeled, &left, counts) };
    for (flow, _) in peeled.iter().zip(&unsure).filter(|(_, unsure)| **unsure) {
        add(&mut left, flow.places, flow.size);
    }
    let left: Vec<u64> = left.into_iter().map(whole).collect();
    let size = |(flow, unsure): (&Peeled, bool)| {
        let estimate = whole(flow.size);
        if !unsure {
            return Bounds::exact(estimate);
        }
        let upper = flow.places.iter().filter_map(|p| left.get(*p)).min().copied().unwrap_or(0);
        Bounds { estimate: estimate.min(upper), lower: 0, upper }
    };
    Solved { sizes: peeled.iter().zip(unsure).map(size).collect(), hidden: 0, left }
}

/// The most that a flow may weigh that has a cell in each sub-table: what the one where least is left has.
pub(super) fn most_in_a_table(left: &[u64], width: usize) -> Option<u64> {
    left.chunks(width.max(1)).map(|table| table.iter().max().copied().unwrap_or(0)).min()
}

/// A weight that may have come out below nothing.
fn whole(weight: i128) -> u64 {
    u64::try_from(weight.max(0)).unwrap_or(u64::MAX)
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
fn unsure(flows: &[Peeled], left: &[i128], counts: &[u32]) -> Vec<bool> {
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
fn settle(flows: &mut [Peeled], left: &mut [i128]) {
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
fn size_of(flow: &Peeled, left: &[i128]) -> Bounds<u64> {
    let rest = flow.places.map(|p| left.get(p).copied().unwrap_or(0));
    let (low, high) = (rest.iter().min().copied().unwrap_or(0), rest.iter().max().copied().unwrap_or(0));
    let estimate = whole(flow.size);
    Bounds {
        estimate,
        lower: whole(flow.size + low.min(0)),
        upper: whole(flow.size + high.min(low.max(0)).max(0)),
    }
}
