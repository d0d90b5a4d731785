//! Counters, as C sees them.

use core::mem::size_of;

use slipstream_reframe::embed::Reframer;

use crate::config::Sized0;

/// Counters of a reframer. Set `size` to sizeof(slip_stats) before slip_reframe_stats fills in the rest.
///
/// Packets in = packets out + held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct slip_stats {
    /// Bytes of this structure.
    pub size: usize,
    /// Packets that were taken.
    pub packets_in: u64,
    /// Packets that left, polled or not.
    pub packets_out: u64,
    /// ... of those, packets that wait to be polled.
    pub unpolled: u64,
    /// Packets held now.
    pub held: u64,
    /// Most packets held at once.
    pub held_max: u64,
    /// Packets without a flow, which passed at once.
    pub unclassified: u64,
    /// Packets of a flow that passed at once.
    pub bypassed: u64,
    /// Runs of one flow among the packets that came in.
    pub runs_in: u64,
    /// ... and among those that went out.
    pub runs_out: u64,
    /// Trains that left.
    pub trains: u64,
    /// ... because they were full.
    pub released_full: u64,
    /// ... because their first packet had waited for the hold.
    pub released_deadline: u64,
    /// ... because there was no room.
    pub released_capacity: u64,
    /// ... because a packet of their flow passed at once, those packets included.
    pub released_bypass: u64,
    /// ... because of slip_reframe_drain.
    pub released_drain: u64,
    /// Flows that were forgotten because the flow table was full.
    pub flow_evictions: u64,
    /// Flows far from where their hash says. Above 0, somebody knows the seed.
    pub long_probes: u64,
    /// Added delay of packets that left: mean in ns.
    pub delay_mean_ns: u64,
    /// ... median, within 0.4 %.
    pub delay_p50_ns: u64,
    /// ... 99th percentile, within 0.4 %.
    pub delay_p99_ns: u64,
    /// ... greatest.
    pub delay_max_ns: u64,
}

// SAFETY: numbers.
unsafe impl Sized0 for slip_stats {
    fn usual() -> Self {
        Self { size: size_of::<Self>(), ..Self::default() }
    }

    fn ends_a_field(size: usize) -> bool {
        size.is_multiple_of(8)
    }
}

impl slip_stats {
    /// All of them.
    pub(crate) fn of(reframer: &Reframer) -> Self {
        let stats = reframer.stats();
        let total = stats.total();
        let [full, deadline, capacity, bypass, drain] = total.released;
        let quantile = |q| total.delay.quantile(q).map_or(0, |ns| ns as u64);
        Self {
            size: size_of::<Self>(),
            packets_in: stats.packets_in,
            packets_out: stats.packets_out,
            unpolled: reframer.unpolled() as u64,
            held: u64::from(stats.held),
            held_max: u64::from(stats.held_max),
            unclassified: stats.unclassified,
            bypassed: total.packets_bypassed,
            runs_in: stats.runs_in,
            runs_out: stats.runs_out,
            trains: total.trains,
            released_full: full,
            released_deadline: deadline,
            released_capacity: capacity,
            released_bypass: bypass,
            released_drain: drain,
            flow_evictions: stats.flow_evictions,
            long_probes: stats.long_probes,
            delay_mean_ns: total.delay.mean().map_or(0, |ns| ns as u64),
            delay_p50_ns: quantile(0.5),
            delay_p99_ns: quantile(0.99),
            delay_max_ns: total.delay.max().unwrap_or(0),
        }
    }
}
