//! The words of `slipstream recommend`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::flags::number_of;
use super::model::{Process, Ring};
use super::{Damage, Reporting};
use crate::units::{Duration, Nanoseconds, Rate};

/// What to look for in a hold time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Aim {
    /// The most packets served at this load; of holds that serve as many, the shortest mean latency.
    #[default]
    Throughput,
    /// The shortest hold within a hundredth of the most packets that a core can serve: room for more load.
    Capacity,
    /// The shortest mean latency.
    Latency,
}

/// How long should I hold packets, and what will it bring?
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                        slipstream recommend traces/campus.pcap.gz\n  \
                        slipstream recommend traces/campus.pcap.gz --load 1.2 --costs \\\n    \
                        <(echo '{\"per_train_ns\": 500, \"per_packet_ns\": 200}')\n  \
                        slipstream recommend traces/campus.pcap.gz --p99 200us \\\n    \
                        --aim capacity --holds 0,16us,64us,128us --format json --costs \\\n    \
                        <(echo '{\"per_train_ns\": 500, \"per_packet_ns\": 200}')")]
pub(crate) struct Recommend {
    /// A capture (pcap, pcapng; plain, gzip or zstd) or `synth:KEY=VALUE,…`. It is read once a hold.
    pub(crate) trace: PathBuf,
    /// What packets cost: a JSON object with `per_train_ns` and `per_packet_ns` (and, if known,
    /// `per_batch_ns`, `empty_poll_ns`, `per_held_packet_ns`, and errors), or what `slipstream lab
    /// nf-locality --format json` printed [default: 60 ns a train and 65 ns a packet, as `slipstream lab
    /// hold` measures for flow statistics, router, firewall and NAT in polls of 32 packets].
    #[arg(long, value_name = "FILE.json", conflicts_with = "measure")]
    pub(crate) costs: Option<PathBuf>,
    /// Measure on this machine what packets cost, as `slipstream lab nf-locality --quick` does: half a
    /// minute.
    #[arg(long)]
    pub(crate) measure: bool,
    /// Which function of a lab's result: nat, firewall, 'firewall with cache', chain [default: chain].
    #[arg(long, value_name = "NAME")]
    pub(crate) function: Option<String>,
    /// Packets that come in a second; by default as many as in the trace. More packets are taken to be more
    /// flows of the same kind.
    #[arg(long, value_name = "RATE", conflicts_with = "load")]
    pub(crate) rate: Option<Rate>,
    /// The same as a share of what a core can serve without holding: 1 is saturation.
    #[arg(long, value_name = "LOAD")]
    pub(crate) load: Option<f64>,
    /// What to look for.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) aim: Aim,
    /// Longest time from arrival to the end of service, holding included, for 99 of 100 packets.
    #[arg(long, value_name = "TIME")]
    pub(crate) p99: Option<Nanoseconds>,
    /// Holds to choose from.
    #[arg(
        long,
        value_name = "TIME,…",
        value_delimiter = ',',
        value_parser = hold,
        default_value = "0,4us,8us,16us,24us,32us,48us,64us,96us,128us,192us,256us,384us,512us"
    )]
    pub(crate) holds: Vec<Duration>,
    /// Packets in a train at which it leaves at once, 1 to 256.
    #[arg(long, value_name = "PACKETS", default_value_t = 32, value_parser = burst)]
    pub(crate) burst: u16,
    /// What holding itself adds to a packet, 0 where another machine does it [default: as in the costs, else
    /// measured here, with the trace's packets in front of a function].
    #[arg(long, value_name = "TIME")]
    pub(crate) hold_cost: Option<Nanoseconds>,
    #[command(flatten)]
    pub(crate) ring: Ring,
    /// How the times between packets are distributed [default: negbin, with the variation that the trace
    /// has].
    #[arg(long, value_enum)]
    pub(crate) interarrival: Option<Process>,
    /// Coefficient of variation of negbin times [default: as in the trace].
    #[arg(long, value_name = "CV")]
    pub(crate) cv: Option<f64>,
    /// Length of a slot of the model [default: 10ns, longer where packets come seldom].
    #[arg(long, value_name = "TIME")]
    pub(crate) slot: Option<Nanoseconds>,
    /// Write the result as one HTML file with charts.
    #[arg(long, alias = "html", value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) damage: Damage,
    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

/// A hold as the stage `reframe` takes it, without `auto`.
fn hold(text: &str) -> Result<Duration, String> {
    // Text that is no time is refused here: the words of the setting would offer `auto`.
    text.parse::<Duration>().map_err(|e| e.to_string())?;
    number_of("reframe", "hold", text).map(Duration)
}

/// A burst as the stage `reframe` takes it.
fn burst(text: &str) -> Result<u16, String> {
    u16::try_from(number_of("reframe", "burst", text)?).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_and_bursts_are_those_of_the_reframer() {
        assert_eq!((hold("0"), hold("4us")), (Ok(Duration(0)), Ok(Duration(4000))));
        assert_eq!((burst("1"), burst("256")), (Ok(1), Ok(256)));
        for (wrong, word) in
            [(burst("300").map(u64::from), "1 to 256"), (burst("0").map(u64::from), "1 to 256")]
        {
            assert!(wrong.as_ref().is_err_and(|e| e.contains(word)), "{wrong:?}");
        }
        for (text, word) in [("5s", "are possible"), ("auto", "not a time"), ("many", "many")] {
            let wrong = hold(text);
            assert!(wrong.as_ref().is_err_and(|e| e.contains(word)), "{wrong:?}");
            assert!(wrong.is_err_and(|e| !e.contains("auto,")), "`auto` is offered, and then refused");
        }
    }
}
