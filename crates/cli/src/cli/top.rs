//! The words of `slipstream top`.

use clap::Args;

use super::Reporting;
use crate::units::Duration;

/// Watch a pipeline that runs with --metrics.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
                        slipstream run --metrics 127.0.0.1:9464 --duration 4s -e \\\n    \
                        'paced(rate=100kpps) -> reframe -> counter -> null' & \\\n    \
                        slipstream top --once --interval 500ms")]
pub(crate) struct Top {
    /// Where it serves its metrics; waited for up to five seconds.
    #[arg(value_name = "[ADDRESS]:PORT", default_value = "127.0.0.1:9464")]
    pub(crate) address: String,
    /// How often to look, from 100 ms to a minute.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) interval: Duration,
    /// Look twice, say what went on between, and end; so it is also with --format json, and where the output
    /// is no terminal.
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) reporting: Reporting,
}
