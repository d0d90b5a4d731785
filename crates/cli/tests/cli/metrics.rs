//! `run --metrics`: a live pipeline watched over HTTP, as Prometheus and a person with a browser would.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{self, BINARY};
use serde_json::Value;
use slipstream::stage::DropReason;

const GRAPH: &str = "in :: paced(rate=20kpps, traffic=\"flows=50,packets=5000,slf=2,zipf=1\") \
                     -> reframe(hold=64us) -> heavy :: measure(epoch=200ms) \
                     -> measure(task=cardinality, key=5tuple, epoch=1000p) -> sw :: switch(ports=[\"some: src port 1-30000\"]); \
                     sw[some] -> discard; sw[other] -> out :: null";

/// A pipeline that runs, and where it can be watched; it is ended when dropped.
struct Watched {
    child: Child,
    address: String,
}

impl Watched {
    fn new() -> Self {
        Self::running(GRAPH, 1024)
    }

    /// Of a process that may have so many descriptors.
    fn running(graph: &str, descriptors: u32) -> Self {
        Self::with(&[], graph, descriptors)
    }

    /// With further options.
    fn with(options: &[&str], graph: &str, descriptors: u32) -> Self {
        Self::started(&[options, &["-e", graph]].concat(), descriptors)
    }

    /// Of a process that may have so many descriptors, and these options.
    fn started(options: &[&str], descriptors: u32) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", &format!("ulimit -n {descriptors}; exec \"$0\" \"$@\""), BINARY])
            .args(["run", "--metrics", "127.0.0.1:0", "--duration", "60s"])
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.next().expect("it says where").unwrap();
        let address = line.split("http://").nth(1).and_then(|l| l.split('/').next());
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, address }
    }

    /// Status and body.
    fn get(&self, request: &str) -> (u16, String) {
        let (head, body) = self.answer(request);
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
    }

    /// Head and body.
    fn answer(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
        (head.to_owned(), body.to_owned())
    }

    fn page(&self, path: &str) -> String {
        let (status, body) =
            self.get(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// `/metrics`, once it has a sample above zero for each of these beginnings. The stages of a pipeline end
    /// their epochs one after another, and on a busy machine an epoch may have no packet: one look may miss.
    fn metrics_with(&self, beginnings: &[&str]) -> String {
        let mut missing = Vec::new();
        for _ in 0..400 {
            std::thread::sleep(Duration::from_millis(50));
            let text = self.page("/metrics");
            missing = beginnings
                .iter()
                .filter(|begins| !found(&text, begins).is_some_and(|value| value > 0.0))
                .collect();
            if missing.is_empty() {
                return text;
            }
        }
        panic!("still not served after 20 seconds: {missing:?}");
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of the sample whose name and labels begin so, if there is one.
fn found(text: &str, begins: &str) -> Option<f64> {
    let line = text.lines().find(|l| l.starts_with(begins))?;
    Some(line.rsplit(' ').next().unwrap().parse().unwrap())
}

/// The value of a sample that has to be there.
fn sample(text: &str, begins: &str) -> f64 {
    found(text, begins).unwrap_or_else(|| panic!("no {begins} in {text}"))
}

#[test]
fn a_live_pipeline_can_be_watched() {
    let watched = Watched::new();
    // Until an epoch is over and answered.
    let json = (0..200)
        .find_map(|_| {
            std::thread::sleep(Duration::from_millis(50));
            let json: Value = serde_json::from_str(&watched.page("/measure")).unwrap();
            let ended = |i: usize| json["stages"][i]["measure"]["epochs_ended"].as_u64().unwrap() > 1;
            (ended(0) && ended(1)).then_some(json)
        })
        .expect("no epoch ended in ten seconds");
    assert_eq!(json["schema"], 1);
    let heavy = &json["stages"][0];
    assert_eq!((&heavy["name"], &heavy["measure"]["task"]), (&"heavy".into(), &"heavy-hitters".into()));
    let answers = heavy["measure"]["epochs"][0]["answers"].as_array().unwrap();
    assert!(answers[0]["estimate"].as_u64().unwrap() > 0);
    assert!(json["stages"][1]["measure"]["epochs"][0]["estimate"].as_f64().unwrap() > 10.0);

    assert_eq!(watched.page("/healthz"), "ok\n");
    let text = watched.metrics_with(&[
        "slipstream_stage_busy_seconds_total{stage=\"heavy\",type=\"measure\"}",
        "slipstream_stage_value{stage=\"heavy\",type=\"measure\",name=\"updates\"}",
        "slipstream_measure_flow{stage=\"heavy\",task=\"heavy-hitters\",key=",
        "slipstream_measure_figure{stage=\"measure\",task=\"cardinality\",bound=\"estimate\"}",
        "slipstream_measure_epoch_end_seconds{stage=\"heavy\"",
        "slipstream_dropped_packets_total{stage=\"discard\",type=\"discard\",reason=\"discarded\"}",
        "slipstream_excess_delay_seconds_count{stage=\"out\"",
        "slipstream_build_info{version=\"",
        "slipstream_reframe_slf{stage=\"reframe\",type=\"reframe\",side=\"in\"}",
        "slipstream_reframe_slf{stage=\"reframe\",type=\"reframe\",side=\"out\"}",
        "slipstream_reframe_mean_train{stage=\"reframe\"",
        "slipstream_reframe_added_delay_seconds_count{stage=\"reframe\"",
        "slipstream_elapsed_seconds_total",
        "slipstream_cpu_seconds_total",
    ]);
    assert!(text.ends_with("# EOF\n"), "{text}");
    let came = sample(&text, "slipstream_source_packets_total{source=\"in\"");
    assert!(came > 1000.0);
    for stage in ["heavy", "sw", "out", "reframe"] {
        let taken = sample(&text, &format!("slipstream_stage_packets_total{{stage=\"{stage}\""));
        assert!(taken > 0.0 && taken <= came, "{stage}: {taken} of {came}");
    }
    // A run publishes between batches: on a busy machine two questions may get the same answer.
    let goes_on = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        sample(&watched.page("/metrics"), "slipstream_source_packets_total{source=\"in\"") > came
    });
    assert!(goes_on, "counters stand still at {came}");
}

const BOARD: &str = include_str!("../../../../contrib/grafana/slipstream.json");
const BOOK: &str = include_str!("../../../../book/src/live.md");

/// The families of a page of Prometheus, with their types.
fn families(text: &str) -> BTreeMap<String, String> {
    let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    kinds.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
}

/// The names in a text that begin like those of our figures.
fn names(text: &str) -> BTreeSet<&str> {
    let parts = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    parts.filter(|part| part.starts_with("slipstream_") && !part.ends_with('_')).collect()
}

/// The family of a series' name.
fn family<'f>(families: &'f BTreeMap<String, String>, name: &str) -> Option<&'f str> {
    let of_kind = |kind: &str| match kind {
        "counter" => &["_total"][..],
        "histogram" => &["_bucket", "_sum", "_count"],
        _ => &[""],
    };
    let found = families.iter().find(|(family, kind)| {
        of_kind(kind).iter().any(|end| name.strip_suffix(end) == Some(family.as_str()))
    });
    found.map(|(family, _)| family.as_str())
}

/// A pipeline that has a figure of each family.
const ALL: &str = "in :: paced(rate=20kpps, traffic=\"flows=50,slf=2,zipf=1,packets=5000\") -> reframe(hold=64us) \
                   -> flow_stats -> measure(epoch=100ms) -> measure(task=cardinality, epoch=100ms) \
                   -> sw :: switch(ports=[\"some: src port 1-30000\"]); sw[some] -> discard; sw[other] -> out :: null";

#[test]
fn the_board_and_the_book_name_what_is_served() {
    let watched = Watched::running(ALL, 1024);
    let text = watched.metrics_with(&[
        "slipstream_measure_flow{",
        "slipstream_measure_figure{",
        "slipstream_reframe_mean_train{",
        "slipstream_stage_level{stage=\"flow_stats\",type=\"flow_stats\",name=\"flows\"}",
    ]);
    let served = families(&text);
    let board: Value = serde_json::from_str(BOARD).unwrap();
    let targets = |panel: &Value| panel["targets"].as_array().cloned().unwrap_or_default();
    let panels = board["panels"].as_array().unwrap();
    let queries: Vec<String> = panels
        .iter()
        .flat_map(targets)
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .chain(["label_values(slipstream_build_info, instance)".to_owned()])
        .collect();
    assert!(board["templating"].to_string().contains(&queries[queries.len() - 1]));
    assert!(queries.len() > 10);
    let mut shown = BTreeSet::new();
    for name in queries.iter().flat_map(|query| names(query)) {
        let family = family(&served, name).unwrap_or_else(|| panic!("{name} is not served: {served:?}"));
        shown.insert(family);
    }
    // Rates on the board are of counters.
    for (query, rest) in
        queries.iter().flat_map(|query| query.split("rate(").skip(1).map(move |r| (query, r)))
    {
        let name = names(rest).into_iter().find(|name| rest.starts_with(name)).unwrap();
        assert!(name.ends_with("_total") || name.ends_with("_bucket") || name.ends_with("_count"), "{query}");
    }
    // Times, settings in ns and bytes are no numbers of entries or events, and are not among these.
    for (counted, without) in [
        ("slipstream_stage_level{", "name!~\".*_ns|.*_bytes\""),
        ("slipstream_stage_count_total{", "name!~\".*_ns|(.*_)?bytes(_.*)?\""),
    ] {
        let query = queries.iter().find(|query| query.contains(counted)).unwrap();
        assert!(query.contains(without), "{query}");
    }
    // The book has histograms without the ends of their series.
    let book = names(BOOK);
    let told = |name: &str| book.contains(name) || book.iter().any(|n| family(&served, n) == Some(name));
    let untold: Vec<_> = served.keys().filter(|family| !told(family)).collect();
    assert!(untold.is_empty(), "not in the book: {untold:?}");
    // Levels are gauges, all else that a stage counts is a counter.
    assert!(
        sample(&text, "slipstream_stage_level{stage=\"flow_stats\",type=\"flow_stats\",name=\"flows\"}")
            > 0.0
    );
    assert!(
        !text.contains(
            "slipstream_stage_count_total{stage=\"flow_stats\",type=\"flow_stats\",name=\"flows\"}"
        )
    );
    assert!(
        sample(&text, "slipstream_stage_count_total{stage=\"measure\",type=\"measure\",name=\"updates\"}")
            > 0.0
    );
}

/// Two lines of a panel have two names: a legend has every label that its lines differ by.
#[test]
fn lines_of_the_board_have_names_of_their_own() {
    let board: Value = serde_json::from_str(BOARD).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let targets: Vec<_> = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten().collect();
    assert!(targets.len() > 15);
    for target in targets {
        let [expr, legend] = ["expr", "legendFormat"].map(|key| target[key].as_str().unwrap());
        let labels =
            between(expr, "by (", ')').flat_map(|list| list.split(", ")).filter(|label| *label != "le");
        for label in labels {
            assert!(legend.contains(&format!("{{{{{label}}}}}")), "no {label} in {legend:?} of {expr}");
        }
    }
}

const RULES: &str = include_str!("../../../../contrib/prometheus/slipstream.rules.yml");
const ALERTS: &str = include_str!("../../../../book/src/alerts.md");

/// An alert rule: its name, and its other lines as `key: value`.
struct Rule {
    alert: String,
    lines: Vec<(String, String)>,
}

impl Rule {
    fn all() -> Vec<Self> {
        let rules = RULES.split("- alert: ").skip(1).map(|rule| {
            let (alert, rest) = rule.split_once('\n').unwrap();
            let lines = rest.lines().filter_map(|line| line.trim().split_once(": "));
            let lines = lines.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            Self { alert: alert.to_owned(), lines }
        });
        rules.collect()
    }

    fn get(&self, key: &str) -> &str {
        let found = self.lines.iter().find(|(name, _)| name == key);
        found.map_or_else(|| panic!("{} has no {key}", self.alert), |(_, value)| value)
    }
}

/// The parts of a text between one of these beginnings and the end that follows it.
fn between<'t>(text: &'t str, begin: &'t str, end: char) -> impl Iterator<Item = &'t str> {
    text.split(begin).skip(1).map(move |rest| rest.split_once(end).unwrap().0)
}

/// The source text of the crates, without this one's tests.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() && entry.file_name().is_none_or(|name| name != "tests" && name != "target") {
            text += &sources(&entry);
        } else if entry.extension().is_some_and(|end| end == "rs") {
            text += &std::fs::read_to_string(&entry).unwrap();
        }
    }
    text
}

#[test]
fn alert_rules_are_about_what_is_served() {
    let watched = Watched::running(ALL, 1024);
    let text =
        watched.metrics_with(&["slipstream_reframe_mean_train{", "slipstream_excess_delay_seconds_count{"]);
    let served = families(&text);
    let labels_of = |family: &str| -> BTreeSet<String> {
        let of_family =
            |line: &&str| line.starts_with(&format!("{family}_")) || line.starts_with(&format!("{family}{{"));
        let lines = text.lines().filter(|line| !line.starts_with('#')).filter(of_family);
        let pairs = lines.filter_map(|line| Some(line.split_once('{')?.1.rsplit_once('}')?.0));
        let names = pairs.flat_map(|pairs| pairs.split(',')).filter_map(|pair| pair.split_once('='));
        // Prometheus adds the first two, and shards have a label of theirs.
        names
            .map(|(name, _)| name.to_owned())
            .chain(["job", "instance", "shard"].map(str::to_owned))
            .collect()
    };
    let reasons: BTreeSet<&str> = DropReason::GENERAL.iter().map(|reason| reason.name()).collect();
    let code = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    let rules = Rule::all();
    assert!(rules.len() > 15);
    for rule in &rules {
        let expr = rule.get("expr");
        assert!(["warning", "critical"].contains(&rule.get("severity")), "{}", rule.alert);
        assert!(rule.get("summary").contains("$labels.instance") && rule.get("description").len() > 40);
        let row = ALERTS.lines().find(|line| line.starts_with(&format!("| `{}` |", rule.alert)));
        let row = row.unwrap_or_else(|| panic!("{} is not in the book", rule.alert));
        assert!(row.contains(&format!("| {} |", rule.get("severity"))), "{row}");
        let mut known = BTreeSet::new();
        for name in names(expr) {
            let family = family(&served, name);
            let family = family.unwrap_or_else(|| panic!("{}: {name} is not served", rule.alert));
            known.extend(labels_of(family));
        }
        let lists = ["by (", "on (", "group_left ("].into_iter().flat_map(|begin| between(expr, begin, ')'));
        let matched = between(expr, "{", '}').flat_map(|all| all.split_inclusive("\", "));
        let matched: Vec<(&str, &str)> = matched.filter_map(|one| one.split_once(['=', '!'])).collect();
        let told = ["summary", "description"].map(|text| rule.get(text));
        let told = told.into_iter().flat_map(|text| between(text, "$labels.", ' ')).map(str::to_owned);
        let asked = lists.flat_map(|list| list.split(", ")).filter(|label| !label.is_empty());
        let asked = asked.chain(matched.iter().map(|(label, _)| *label)).map(str::to_owned);
        for label in asked.chain(told) {
            assert!(known.contains(&label), "{}: no label {label} among {known:?}", rule.alert);
        }
        for (label, values) in matched {
            for value in values.trim_matches(|c| "=~\", ".contains(c)).split('|') {
                let is_there = match label {
                    "reason" => reasons.contains(value),
                    _ => code.contains(&format!("\"{value}\"")),
                };
                assert!(is_there, "{}: there is no {label} {value}", rule.alert);
            }
        }
    }
    // Drops that somebody asked for are no alert.
    let asked_for =
        DropReason::GENERAL.iter().filter(|reason| reason.is_asked_for()).map(|reason| reason.name());
    let left_out: BTreeSet<_> = asked_for.chain(["not_sent"]).collect();
    let left_out = left_out.into_iter().collect::<Vec<_>>().join("|");
    let much = rules.iter().find(|rule| rule.alert == "SlipstreamDropsMuch").unwrap();
    assert!(much.get("expr").contains(&format!("reason!~\"{left_out}\"")), "{left_out}");
}

/// The rules as Prometheus reads them, where its tool is installed.
#[test]
fn prometheus_takes_the_alert_rules() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/prometheus");
    for words in [["check", "rules", "slipstream.rules.yml"], ["test", "rules", "slipstream.tests.yml"]] {
        match Command::new("promtool").args(words).current_dir(folder).output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => panic!("{error}"),
            Ok(output) => assert!(output.status.success(), "{output:?}"),
        }
    }
}

/// Reloads, saved states and a log of sessions that fails are figures that an alert can be on.
#[test]
fn troubles_of_the_run_are_counted() {
    let scratch = tempfile::tempdir().unwrap();
    let (config, state) = (scratch.path().join("run.toml"), scratch.path().join("state/state"));
    std::fs::create_dir(state.parent().unwrap()).unwrap();
    let graph = "paced(rate=1kpps, traffic=\"flows=5,packets=100000\") -> n :: nat(pool=[192.0.2.1]) -> null";
    let set = |graph: &str| std::fs::write(&config, format!("graph = '''{graph}'''")).unwrap();
    set(graph);
    let socket = scratch.path().join("control");
    let [config_word, state_word, socket_word] =
        [&config, &state, &socket].map(|path| path.to_str().unwrap());
    let log = "json:/dev/full";
    let watched = Watched::started(
        &[config_word, "--state", state_word, "--control", socket_word, "--session-log", log],
        1024,
    );
    let count = |name: &str| format!("slipstream_run_count_total{{name=\"{name}\"}}");
    // Sessions begin, and their log is full from the start.
    let text = watched.metrics_with(&[&count("session_log_errors")]);
    for none in ["reloads", "reloads_refused", "states_saved", "states_not_saved"] {
        assert_eq!(sample(&text, &count(none)), 0.0, "{none}");
    }
    assert_eq!(sample(&text, "slipstream_stage_trouble{stage=\"n\",type=\"nat\"}"), 0.0);
    let ask = |verb: &[&str], status| {
        common::run(verb.iter().chain(&["--control", socket_word])).with(status);
    };
    ask(&["ctl", "save"], 0);
    set("paced -> nonsense");
    ask(&["reload"], 2);
    set(&graph.replace("[192.0.2.1]", "[192.0.2.1, 192.0.2.2]"));
    ask(&["reload"], 0);
    std::fs::remove_dir_all(state.parent().unwrap()).unwrap();
    ask(&["ctl", "save"], 2);
    let text = watched.page("/metrics");
    for name in ["reloads", "reloads_refused", "states_saved", "states_not_saved"] {
        assert_eq!(sample(&text, &count(name)), 1.0, "{name} in {text}");
    }
}

#[test]
fn top_says_what_goes_on() {
    let watched = Watched::new();
    let words = ["top", &watched.address, "--once", "--interval", "500ms", "--format", "json"];
    let json = |words: &[&str], status| -> Value {
        serde_json::from_slice(&common::run(words).with(status).stdout).unwrap()
    };
    // A busy machine may be late with an answer, and the next look then sees what this one missed.
    let shown = (0..20)
        .map(|_| json(&words, 0))
        .find(|j| j["packets_in_pps"].as_f64().unwrap() > 1000.0)
        .expect("nothing goes on for ten seconds");
    assert_eq!(shown["schema"], 1);
    let names: Vec<_> =
        shown["stages"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["in", "reframe", "heavy", "measure", "sw", "out", "discard"]);
    let reframed = &shown["stages"][2];
    assert!(
        reframed["mean_train"].as_f64().unwrap() >= 1.0 && reframed["busy"].as_f64().unwrap() < 1.0,
        "{shown}"
    );
    assert!(shown["dropped_pps"]["discarded"].as_f64().unwrap() > 0.0, "{shown}");
    let table = String::from_utf8(common::run(["top", &watched.address, "--once"]).with(0).stdout).unwrap();
    assert!(table.contains("in/s") && table.contains("reframe"), "{table}");
    // A hold that sets itself says what others would give, once it has tried some.
    let graph =
        "paced(rate=50kpps, traffic=\"slf=4,flows=100\") -> reframe(hold=auto, hold_max=256us) -> null";
    let tuned = Watched::running(graph, 1024);
    let words = ["top", &tuned.address, "--once", "--interval", "500ms", "--format", "json"];
    let tried = |shown: &Value| shown["holds"][0]["auto"]["tried"].as_array().map_or(0, Vec::len);
    let shown = (0..20).map(|_| json(&words, 0)).find(|j| tried(j) > 3).expect("it tries no holds");
    assert_eq!(shown["holds"][0]["stage"], "reframe");
    let table = String::from_utf8(common::run(["top", &tuned.address, "--once"]).with(0).stdout).unwrap();
    assert!(table.contains("Holds of reframe, at present"), "{table}");
    // A check makes a probe for monitoring of it.
    let failed = ["top", &watched.address, "--fail-if", "packets_in_pps>=0", "--format", "json"];
    assert!(json(&failed, 1)["interval_ns"].as_u64().unwrap() > 0);
}

#[test]
fn top_says_what_it_can_not_watch() {
    common::run(["top", "--interval", "1ms"]).with(2).silent().saying(&["--interval", "100ms"]);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    common::run(["top", &free, "--once"]).with(2).silent().saying(&[
        "no pipeline answers at",
        &free,
        "--metrics",
    ]);
}

#[test]
fn what_is_no_request_for_it_is_refused() {
    let watched = Watched::new();
    let get = |line: &str| watched.get(&format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).0;
    assert_eq!(get("GET /"), 200);
    assert_eq!(get("GET /nothing"), 404);
    assert_eq!(get("POST /metrics"), 405);
    assert_eq!(watched.get("nonsense\r\n\r\n").0, 400);
    // It goes on after all that.
    assert!(watched.page("/metrics").contains("slipstream_elapsed"));
}

/// A client that has nothing more to say gets its answer, too.
#[test]
fn a_client_may_end_its_side() {
    let watched = Watched::new();
    let mut stream = TcpStream::connect(&watched.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("slipstream_elapsed"), "{answer:?}");
}

/// A client gets the format that it reads, and a counter has the name there that its series have.
#[test]
fn a_client_gets_the_format_that_it_reads() {
    let watched = Watched::new();
    let answer = |accept: &str| {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{accept}Connection: close\r\n\r\n");
        watched.answer(&request)
    };
    for accept in ["", "Accept: */*\r\n", "Accept: text/plain;q=0.5, application/openmetrics-text\r\n"] {
        let (head, body) = answer(accept);
        assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0;"), "{head}");
        assert!(
            body.contains("# TYPE slipstream_source_packets counter\n") && body.ends_with("# EOF\n"),
            "{body}"
        );
    }
    for accept in ["Accept: text/plain;version=0.0.4\r\n", "Accept: text/html,*/*;q=0.8\r\n"] {
        let (head, body) = answer(accept);
        assert!(head.contains("content-type: text/plain; version=0.0.4;"), "{head}");
        assert!(!body.contains("# EOF") && !body.contains("# UNIT"), "{body}");
        // In this format a series that has no type of its own name has none.
        let families = families(&body);
        for line in body.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            assert!(
                families.contains_key(name) || of_histogram.is_some_and(|f| families.contains_key(f)),
                "{line}"
            );
        }
    }
}

/// The means that a board shows are of the time that it shows: rates of counters that the means of the whole
/// run are made of.
#[test]
fn means_of_a_time_are_rates_of_counters() {
    let watched = Watched::running(ALL, 1024);
    let text = watched.metrics_with(&["slipstream_reframe_trains_total{"]);
    let of = |name: &str, more: &str| {
        sample(&text, &format!("slipstream_reframe_{name}{{stage=\"reframe\",type=\"reframe\"{more}}}"))
    };
    for side in [",side=\"in\"", ",side=\"out\""] {
        let (slf, now) = (of("slf", side), of("packets_total", side) / of("runs_total", side));
        assert!((slf - now).abs() < 1e-9, "{slf} and {now} in {text}");
    }
    let (mean, now) = (of("mean_train", ""), of("train_packets_total", "") / of("trains_total", ""));
    assert!((mean - now).abs() < 1e-9, "{mean} and {now} in {text}");
    let mut figures = BOARD.lines().filter(|line| line.contains("\"expr\""));
    assert!(figures.all(|line| !line.contains("reframe_slf{") && !line.contains("mean_train{")));
}

/// Clients that connect and say nothing cost it neither its descriptors nor its life.
#[test]
fn idle_connections_do_not_end_it() {
    for descriptors in [1024, 40] {
        let watched = Watched::running(GRAPH, descriptors);
        let idle: Vec<_> = (0..200).map(|_| TcpStream::connect(&watched.address).unwrap()).collect();
        assert!(watched.page("/metrics").contains("slipstream_elapsed"), "with {descriptors} descriptors");
        drop(idle);
        assert!(watched.page("/metrics").contains("slipstream_elapsed"));
    }
}

/// The data path makes at most one report in a tenth of a second, and who asks gets one that is newer than
/// the question.
#[test]
fn many_who_ask_share_one_report() {
    let watched = Watched::new();
    watched.page("/report");
    let ask = || {
        let until = slipstream::clock::now() + Duration::from_secs(2);
        let mut times = Vec::new();
        while slipstream::clock::now() < until {
            let report: Value = serde_json::from_str(&watched.page("/report")).unwrap();
            times.push(report["time_ns"].as_u64().unwrap());
        }
        times
    };
    let times: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(times.iter().all(|t| t.is_sorted_by(|a, b| a < b)), "{times:?}");
    let mut reports = times.concat();
    reports.sort_unstable();
    reports.dedup();
    assert!((2..=25).contains(&reports.len()), "{} reports in two seconds", reports.len());
}

/// A source is of one type on every shard, and shards have what the run has, together.
#[test]
fn a_source_has_its_type_on_every_shard() {
    let graph = "in :: paced(rate=1kpps, packets=500, traffic=\"flows=50,packets=500\") -> reframe(hold=64us) -> out :: null; \
                 paced(rate=1pps) -> null";
    let watched = Watched::with(&["--shards", "2"], graph, 1024);
    let taken = |text: &str| -> Vec<f64> {
        let of = text.lines().filter(|line| line.starts_with("slipstream_stage_packets_total{stage=\"out\""));
        of.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
    };
    let text = (0..200).find_map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        let text = watched.page("/metrics");
        (taken(&text).iter().sum::<f64>() >= 500.0).then_some(text)
    });
    let text = text.expect("not all of the packets came in ten seconds");
    assert_eq!((taken(&text).len(), taken(&text).iter().sum::<f64>()), (2, 500.0), "{text}");
    for shard in 0..2 {
        let of = format!("slipstream_source_packets_total{{source=\"in\",type=\"paced\",shard=\"{shard}\"}}");
        assert!(found(&text, &of).is_some(), "no {of} in {text}");
    }
}

/// An alert on a series that begins with the first drop misses that drop.
#[test]
fn reasons_are_there_before_the_first_drop() {
    let graph = "paced(rate=1kpps, traffic=\"flows=5,packets=5000\") -> n :: nat(pool=[192.0.2.1]) -> null";
    let watched = Watched::running(graph, 1024);
    let text = watched.page("/metrics");
    for reason in ["no_port", "table_full"] {
        let known =
            format!("slipstream_dropped_packets_total{{stage=\"n\",type=\"nat\",reason=\"{reason}\"}}");
        assert_eq!(sample(&text, &known), 0.0);
    }
    let healthy = ["top", &watched.address, "--once", "--fail-if", "dropped_pps.table_full>0"];
    common::run(healthy).with(0);
}

#[test]
fn an_address_that_cannot_be_had_is_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let words = ["run", "--metrics", &address, "-e", "in :: synth -> out :: null"];
    common::run(words).with(2).silent().saying(&["--metrics", &address]);
    common::run(["run", "--metrics", "nowhere", "-e", "in :: synth -> out :: null"]).with(2);
}
