//! The words of `slipstream ctl` and `slipstream reload`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Format;

/// A pipeline that runs for a while, with more options, and what it is asked.
macro_rules! example {
    ($before:literal, $more:literal, $graph:literal, $asked:literal) => {
        concat!(
            "Example:\n  ",
            $before,
            "slipstream run --control /tmp/slipstream.ctl --duration 2s",
            $more,
            " \\\n    -e '",
            $graph,
            "' \\\n    & sleep 1 && slipstream ctl --control /tmp/slipstream.ctl ",
            $asked
        )
    };
}

/// The socket of a pipeline that runs.
#[derive(Clone, Debug, Args)]
pub(crate) struct Reach {
    /// The socket that `run --control` made.
    #[arg(long, value_name = "PATH", default_value = "/run/slipstream/control", global = true)]
    pub(crate) control: PathBuf,
    /// How to print the answer.
    #[arg(long, value_enum, default_value_t, global = true)]
    pub(crate) format: Format,
}

/// Operate a pipeline that runs with --control.
#[derive(Debug, Args)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Example:\n  \
                  slipstream run --control /tmp/slipstream.control --duration 3s \\\n    \
                  -e 'paced(rate=10kpps) -> reframe -> counter -> null' & \\\n    \
                  sleep 1 && slipstream ctl --control /tmp/slipstream.control show"
)]
pub(crate) struct Ctl {
    #[command(flatten)]
    pub(crate) reach: Reach,
    #[command(subcommand)]
    pub(crate) verb: CtlVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CtlVerb {
    /// What each stage did: batches, packets a batch and a train, time a packet.
    #[command(after_help = example!("", "", "paced(rate=10kpps) -> reframe -> null", "show"))]
    Show,
    /// Everything that is counted, as `run --format json` prints it at the end.
    #[command(after_help = example!(
        "",
        "",
        "paced(rate=10kpps) -> reframe -> null",
        "report --format json"
    ))]
    Report,
    /// Packets and bytes by rule of a firewall.
    #[command(after_help = example!(
        "echo default allow | ",
        "",
        "paced(rate=10kpps) -> fw :: firewall(rules=\"-\") -> null",
        "rules fw"
    ))]
    Rules {
        /// The firewall.
        stage: String,
    },
    /// The tables that stages have.
    #[command(after_help = example!(
        "",
        "",
        "paced(rate=10kpps) -> nat(pool=[203.0.113.1]) -> null",
        "tables"
    ))]
    Tables,
    /// Entries of a table, such as sessions of a NAT or connections of a firewall.
    #[command(after_help = example!(
        "",
        "",
        "paced(rate=10kpps) -> nat(pool=[203.0.113.1]) -> null",
        "list nat sessions --limit 3"
    ))]
    List(Entries),
    /// Take entries out of a table.
    #[command(after_help = example!(
        "",
        "",
        "paced(rate=10kpps) -> nat(pool=[203.0.113.1]) -> null",
        "delete nat sessions --only protocol=17"
    ))]
    Delete(Entries),
    /// Give a backend of a balancer no new connections; it keeps those that it has.
    #[command(after_help = example!(
        "",
        "",
        "paced(10kpps) -> balancer(service=\"192.0.2.80:80\", backends=[10.0.0.1], mode=nat)->null",
        "drain balancer 10.0.0.1"
    ))]
    Drain(Backend),
    /// Take a backend of a balancer for dead: its connections go to others.
    #[command(after_help = example!(
        "",
        "",
        "paced(10kpps) -> balancer(service=\"192.0.2.80:80\", backends=[10.0.0.1], mode=nat)->null",
        "down balancer 10.0.0.1"
    ))]
    Down(Backend),
    /// Give a backend of a balancer connections again.
    #[command(after_help = example!(
        "",
        "",
        "paced(10kpps) -> balancer(service=\"192.0.2.80:80\", backends=[10.0.0.1], mode=nat)->null",
        "up balancer 10.0.0.1"
    ))]
    Up(Backend),
    /// Read the configuration and its files anew.
    #[command(after_help = example!("", "", "paced(rate=10kpps) -> reframe -> null", "reload"))]
    Reload,
    /// Save the state (`run --state`) now.
    #[command(after_help = example!(
        "",
        " --state /tmp/slipstream.state",
        "paced(rate=10kpps) -> nat(pool=[203.0.113.1]) -> null",
        "save"
    ))]
    Save,
    /// Ask whether the pipeline is there.
    #[command(after_help = example!("", "", "paced(rate=10kpps) -> null", "ping"))]
    Ping,
}

/// Entries of a table.
#[derive(Clone, Debug, Args)]
pub(crate) struct Entries {
    /// The stage.
    pub(crate) stage: String,
    /// Its table: `ctl tables` has them.
    pub(crate) table: String,
    /// Only entries that have this value, as in inside=10.0.0.5; may be given several times.
    #[arg(long, value_name = "FIELD=VALUE")]
    pub(crate) only: Vec<String>,
    /// Entries at most; 0: all. A long list is printed as it comes, tables 10,000 rows at a time.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) limit: u64,
}

/// A backend.
#[derive(Clone, Debug, Args)]
pub(crate) struct Backend {
    /// The balancer.
    pub(crate) stage: String,
    /// The backend's address.
    pub(crate) address: String,
}

/// Have a pipeline that runs with --control read its configuration anew, as a hang-up does.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
                        slipstream run --control /tmp/slipstream.control --duration 3s \\\n    \
                        -e 'paced(rate=10kpps) -> reframe -> counter -> null' & \\\n    \
                        sleep 1 && slipstream reload --control /tmp/slipstream.control")]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    pub(crate) reach: Reach,
}
