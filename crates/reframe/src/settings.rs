//! The settings of the reframer, each defined once: for pipelines, the command line and the configuration's
//! default.

use std::path::Path;

use slipstream_core::batch::BATCH;
use slipstream_core::heavy::Top;
use slipstream_core::registry::{BuildError, Need, Partner, lonely};
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_wire::gro::Limits;

use crate::{Admit, BudgetError, Class, ClassSettings, Encapsulation, Knowledge, Policy, ReframeConfig};

/// The settings: in a pipeline, on the command line, and here by default.
pub const SETTINGS: &[Setting] = &[
    Setting::new(
        "hold",
        Kind::TimeOr("auto", 0, ReframeConfig::MAX_HOLD_NS),
        "Longest wait of any packet; 0 = pass-through; auto: the one that pays most at present, between \
         `hold_min` and `hold_max`",
    )
    .or("64us"),
    Setting::new(
        "hold_min",
        Kind::Time(0, ReframeConfig::MAX_HOLD_NS),
        "With hold=auto: the shortest hold; 0 if it is left out: nothing is held while that gains nothing",
    ),
    Setting::new(
        "hold_max",
        Kind::Time(1, ReframeConfig::MAX_HOLD_NS),
        "With hold=auto: the longest hold, and so the longest wait of any packet; 256us if it is left out",
    ),
    Setting::new(
        "burst",
        Kind::Count(1, BATCH as u64),
        "Packets in a train at which it leaves at once; it never has more",
    )
    .or("32"),
    Setting::new(
        "capacity",
        Kind::Count(1, ReframeConfig::MAX_CAPACITY as u64),
        "Packets held at most; then the oldest train leaves",
    )
    .or("8192"),
    Setting::new(
        "capacity_bytes",
        Kind::Bytes(1, ReframeConfig::MAX_CAPACITY_BYTES),
        "Bytes held at most, as captured; then the oldest train leaves",
    )
    .or("64MiB"),
    Setting::new(
        "flows",
        Kind::Count(1, ReframeConfig::MAX_FLOWS as u64),
        "Flows whose age and size are remembered; at least 1024 and twice the capacity",
    )
    .or("1048576"),
    Setting::new(
        "policy",
        Kind::Words(&[
            ("oldest", "Oldest flow first, by the flow's first packet ever seen"),
            ("waiting", "Longest wait in the buffer first"),
            ("shortest", "Shortest flow first, by packets seen so far"),
        ]),
        "Order among trains that are released together",
    )
    .or("oldest"),
    Setting::new(
        "admit",
        Kind::Words(&[
            ("always", "Hold a flow from its first packet on"),
            ("second", "A flow's first packet passes at once; holding begins with its second"),
            ("adaptive", "A train waits for its next packet only as long as that is worth it"),
        ]),
        "From which packet on a flow is held, and whether all of `hold` is waited for",
    )
    .or("always"),
    Setting::new(
        "budget",
        Kind::Text("price=TIME, delay=TIME or train=PACKETS"),
        "With admit=adaptive: mean added delay or mean train to reach, or the price, which is the delay that \
         one packet more in a train is worth; a delay of a quarter of `hold` if it is left out. With hold=auto \
         the same; a price of `hold_max` if it is left out",
    ),
    Setting::new(
        "bypass",
        Kind::Rules,
        "Packets that pass at once, after the train of their own flow: rules, @FILE with rules, or `none`",
    )
    .or(ReframeConfig::BYPASS),
    Setting::new(
        "class",
        Kind::List(&Kind::Text("NAME: RULE => hold=TIME, burst=N, weight=N, or NAME: RULE => bypass")),
        "Packets to be treated in their own way; the first class that matches counts. In place of a rule, \
         `top 1 %` or `top 20` are the flows with the most packets of late, `top 1 % of RULE` those with most \
         packets of the rule",
    ),
    Setting::new(
        "top_window",
        Kind::Count(ReframeConfig::MIN_TOP_WINDOW as u64, Top::MAX_WINDOW as u64),
        "Packets after which the flows of a class `top …` are ranked anew, by as many packets and those of \
         the window before",
    )
    .or("4096"),
    Setting::new(
        "compress",
        Kind::Words(&[
            ("off", "Nothing"),
            ("ack", "Coalesce pure TCP acknowledgements"),
            ("gro", "Make super-frames of TCP segments and UDP datagrams in sequence"),
            ("ack,gro", "Both"),
        ]),
        "What to do to a train on its way out",
    )
    .or("off"),
    Setting::new(
        "gro_bytes",
        Kind::Bytes(ReframeConfig::MIN_GRO_BYTES as u64, Limits::MOST_BYTES as u64),
        "Bytes of a super-frame at most, from its IP header on",
    )
    .or("65535"),
    Setting::new(
        "gro_segments",
        Kind::Count(2, BATCH as u64),
        "Packets in a super-frame at most; of UDP never more than 64",
    )
    .or("64"),
    Setting::new(
        "gro_verify",
        Kind::Bool,
        "Verify checksums already where super-frames are made, so that the report counts none with a wrong one; \
         a port that sends super-frames verifies them in any case",
    )
    .or("false"),
    Setting::new("tcp_order", Kind::Bool, "Restore TCP sequence order inside a train").or("false"),
    Setting::new(
        "tunnel",
        Kind::Words(&[
            ("outer", "The outermost IP header makes the flow"),
            ("inner", "The innermost IP header of GRE, VXLAN, GENEVE and IP-in-IP does"),
        ]),
        "Which IP header of a tunnel makes the flow, and is seen by the rules here",
    )
    .or("outer"),
];

/// Settings about super-frames, where none are made.
pub(crate) const PARTNERS: &[Partner] = &[Partner {
    of: &["gro_bytes", "gro_segments", "gro_verify"],
    need: Need::Is("compress", &["gro", "ack,gro"]),
}];

impl ReframeConfig {
    /// The configuration that the values of [`SETTINGS`] make. Files of rules in classes are relative to
    /// `base`.
    ///
    /// # Errors
    /// A class can't be read, or what [`validate`](Self::validate) says.
    pub fn from_settings(settings: &Settings, base: &Path) -> Result<Self, BuildError> {
        let mut config = Self::without_classes(settings);
        if settings.text("hold") != "auto" {
            for bound in ["hold_min", "hold_max"] {
                if settings.optional_number(bound).is_some() {
                    let fault = "is a bound of hold = auto; set that too, or leave this out";
                    return Err(BuildError::setting(bound, fault.to_owned()));
                }
            }
        }
        if let Some(error) = lonely(PARTNERS, SETTINGS, settings).next() {
            return Err(error);
        }
        config.budget = match settings.text("budget") {
            "" => None,
            text => {
                Some(text.parse().map_err(|e: BudgetError| BuildError::setting("budget", e.to_string()))?)
            }
        };
        let class = |text| Class::parse(text, &config.default, base);
        config.classes = settings
            .texts("class")
            .map(class)
            .collect::<Result<_, _>>()
            .map_err(|e| BuildError::setting("class", e.to_string()))?;
        config.validate().map_err(|e| BuildError::stage(e.to_string()))?;
        let usual = Self::default().top_window;
        if config.top_window != usual && config.classes.iter().all(|class| class.top.is_none()) {
            let fault = "`top_window` has no effect without a class `top …`";
            return Err(
                BuildError::setting("top_window", fault).hint("set such a class too, or leave this out")
            );
        }
        Ok(config)
    }

    /// The same but for classes, which have to be read.
    fn without_classes(settings: &Settings) -> Self {
        let auto = settings.text("hold") == "auto";
        let bound = |name, usual| settings.optional_number(name).unwrap_or(usual);
        Self {
            // The ranges of these numbers are those of their types at most.
            default: ClassSettings {
                hold_ns: if auto { bound("hold_max", Self::USUAL_MAX_NS) } else { settings.number("hold") },
                hold_min_ns: auto.then(|| bound("hold_min", 0)),
                burst: settings.number("burst") as u16,
                weight: 1,
                bypass: false,
            },
            capacity: settings.number("capacity") as u32,
            capacity_bytes: settings.number("capacity_bytes"),
            flows: settings.number("flows") as u32,
            policy: match settings.text("policy") {
                "waiting" => Policy::Waiting,
                "shortest" => Policy::Shortest,
                _ => Policy::Oldest,
            },
            admit: match settings.text("admit") {
                "second" => Admit::Second,
                "adaptive" => Admit::Adaptive,
                _ => Admit::Always,
            },
            budget: None,
            knows: Knowledge::default(),
            bypass: settings.rules("bypass"),
            classes: Vec::new(),
            top_window: settings.number("top_window") as u32,
            heavy_flows: None,
            compress_ack: settings.text("compress").contains("ack"),
            compress_gro: settings.text("compress").contains("gro"),
            gro: Limits {
                bytes: settings.number("gro_bytes") as u32,
                segments: settings.number("gro_segments") as u16,
            },
            gro_verify: settings.flag("gro_verify"),
            tcp_order: settings.flag("tcp_order"),
            encapsulation: match settings.text("tunnel") {
                "inner" => Encapsulation::Inner,
                _ => Encapsulation::Outer,
            },
            seed: 0x5115_57e4_a11e_1234,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipstream_core::settings::Value;

    /// The defaults of the definitions make the default configuration, and it is valid.
    #[test]
    fn the_defaults_are_those_of_the_definitions() {
        let config = ReframeConfig::without_classes(&Settings::defaults(SETTINGS));
        assert_eq!(
            format!("{config:?}"),
            format!("{:?}", ReframeConfig::default()),
            "without an operating system"
        );
        assert_eq!(config.validate(), Ok(()));
        let sizes = (config.capacity, config.capacity_bytes, config.flows);
        assert_eq!((config.default.hold_ns, config.default.burst), (64_000, 32));
        assert_eq!(sizes, (8192, 64 << 20, 1 << 20));
        assert!(!config.compress_ack && !config.tcp_order && config.classes.is_empty());
    }

    /// The ends of every range are what `validate` lets pass.
    #[test]
    fn ranges_are_those_that_are_checked() {
        for setting in SETTINGS {
            let (Kind::Time(low, high) | Kind::Count(low, high) | Kind::Bytes(low, high)) = setting.kind
            else {
                continue;
            };
            for (n, right) in [(low, true), (high, true), (high + 1, false)] {
                let auto = Value::Text("auto".into());
                let settings = Settings::defaults(SETTINGS);
                let settings = if setting.name.starts_with("hold_") {
                    // Each bound is in its place wherever the other one is.
                    let other = Value::Number(if setting.name == "hold_min" { high } else { 0 });
                    let other_name = if setting.name == "hold_min" { "hold_max" } else { "hold_min" };
                    settings.with("hold", auto).with(other_name, other)
                } else if setting.name.starts_with("gro_") {
                    settings.with("compress", Value::Text("gro".into()))
                } else if setting.name == "top_window" {
                    let class = Value::Text("elephants: top 1 % => burst=64".into());
                    settings.with("class", Value::List(vec![class]))
                } else {
                    settings
                };
                let settings = settings.with(setting.name, Value::Number(n));
                let config = ReframeConfig::from_settings(&settings, Path::new(""));
                assert_eq!(config.is_ok(), right, "{} = {n}", setting.name);
            }
        }
    }
}
