//! The papers' experiments with real hosts, in small: a web server behind a delay and a reframer (§5.4),
//! what a packet takes in a receiver's network stack by locality (Fig. 1a) and in Open vSwitch (Fig. 3), and
//! what a hold adds to the time of a packet.
//!
//! Hosts are network namespaces of this machine, wires are virtual pairs, and everything shares its cores: so
//! ratios of runs that alternate say more than the figures themselves.

mod net;
mod ovs;
mod receiver;

use std::fs;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use self::net::{End, Net, Running, SERVER};
use super::{Bench, Chart, Claim, Findings, Lab};

pub(super) const LAB: Lab = Lab {
    name: "live",
    source: "Packet Order Matters! (NSDI'22), §5.4 (Figs. 19a, 19b), Figs. 1a and 3a in small",
    what: "real hosts in namespaces (root): nginx behind a delay and a reframer, CPU of a receiver and of Open vSwitch by locality, delay by hold",
    needs: Some("it needs root, and takes network namespaces, nginx, wrk and iperf3"),
    run,
};

/// Seconds until a program that was started is ready.
const READY: Duration = Duration::from_millis(700);
/// Holds whose added delay is measured, ns.
const DELAY_HOLDS: [u64; 5] = [0, 16_000, 64_000, 128_000, 256_000];

/// A part of the lab.
struct Part {
    /// What it measures.
    what: &'static str,
    /// The programs that it takes.
    programs: &'static [&'static str],
    run: fn(&Bench<'_>, &mut Findings) -> anyhow::Result<()>,
}

const PARTS: [Part; 4] = [
    Part { what: "a web server behind a reframer (Figs. 19a, 19b)", programs: &["nginx", "wrk"], run: web },
    Part {
        what: "a receiver's CPU time a packet by locality (Fig. 1a)",
        programs: &["iperf3", "taskset"],
        run: |lab, findings| receiver::run(lab, findings, [0.4, 0.7]),
    },
    Part { what: "the delay that a hold adds", programs: &["ping"], run: delay },
    Part {
        what: "Open vSwitch by locality (Fig. 3a)",
        programs: &ovs::PROGRAMS,
        run: |lab, findings| ovs::run(lab, findings, [0.8, 1.0]),
    },
];

/// All parts whose programs are there; of the others the findings say what they need.
fn run(lab: &Bench<'_>) -> anyhow::Result<Findings> {
    net::need(&["ip", "ethtool", "sysctl"])?;
    let mut findings = Findings::default();
    for Part { what, programs, run } in PARTS {
        match net::need(programs) {
            Ok(()) => run(lab, &mut findings)?,
            Err(why) => {
                let why = format!("not measured: {why}");
                findings.claims.push(Claim::not_comparable(what, Value::Null, Value::Null, why));
            }
        }
    }
    if findings.rows.is_empty() {
        let programs: Vec<&str> = PARTS.iter().flat_map(|part| part.programs).copied().collect();
        net::need(&programs)?;
    }
    Ok(findings)
}

/// Connections of the web server's clients (place 0), and of the receiver (1): 16 each, or as
/// `SLIPSTREAM_LAB_CONNECTIONS=128,32` says.
fn connections(place: usize) -> anyhow::Result<u32> {
    const USUAL: u32 = 16;
    let Ok(text) = std::env::var("SLIPSTREAM_LAB_CONNECTIONS") else { return Ok(USUAL) };
    let number = text.split(',').nth(place).and_then(|number| number.trim().parse().ok());
    number.filter(|n| (1..=1024).contains(n)).with_context(|| {
        format!("SLIPSTREAM_LAB_CONNECTIONS={text}: two numbers from 1 to 1024 are needed, as in 128,32")
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The program in the middle, with this graph between ports `c` and `s`.
fn middle(lab: &Bench<'_>, net: &Net, graph: &str) -> anyhow::Result<Running> {
    middle_on(lab, net, None, graph)
}

/// The same, on this core.
fn middle_on(lab: &Bench<'_>, net: &Net, core: Option<usize>, graph: &str) -> anyhow::Result<Running> {
    let ports = "c :: af_packet(interface=mc, ring=16384); s :: af_packet(interface=ms, ring=16384); ";
    let graph = format!("{ports}{graph}");
    let mut running =
        net.start_on(End::Middle, core, &lab.program, &["run", "--format", "json", "-e", &graph])?;
    running.settle(READY)?;
    Ok(running)
}

/// Result of a run: mean packets of a flow back to back towards a port, and packets that were lost.
fn seen(report: &str, port: &str) -> anyhow::Result<(f64, f64)> {
    let report: Value = serde_json::from_str(report).context("the report of the program in the middle")?;
    let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_f64).unwrap_or_default();
    let all = |list: &str| report.get(list).and_then(Value::as_array).cloned().unwrap_or_default();
    let stage = all("stages").into_iter().find(|s| s.get("name").and_then(Value::as_str) == Some(port));
    let stage = stage.with_context(|| format!("the report has no stage `{port}`"))?;
    let lost =
        |s: &Value| s.get("counters").map_or(0.0, |c| number(c, "dropped_by_kernel") + number(c, "too_long"));
    let lost: f64 = all("sources").iter().map(lost).sum();
    Ok((number(&stage, "packets_in") / number(&stage, "trains").max(1.0), lost))
}

/// One run of §5.4.
#[derive(Debug, Default)]
struct Fetched {
    bytes_per_second: f64,
    p50_s: f64,
    p99_s: f64,
    slf: f64,
}

/// A time as wrk prints it, in s.
fn wrk_time(text: &str) -> Option<f64> {
    let text = text.trim();
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let (number, unit) = units.iter().find_map(|(unit, s)| Some((text.strip_suffix(unit)?, s)))?;
    Some(number.parse::<f64>().ok()? * unit)
}

/// A number of bytes as wrk prints it.
fn wrk_bytes(text: &str) -> Option<f64> {
    let units = [("KB", 1024.0), ("MB", 1_048_576.0), ("GB", 1_073_741_824.0), ("B", 1.0)];
    let (number, unit) = units.iter().find_map(|(unit, n)| Some((text.trim().strip_suffix(unit)?, n)))?;
    Some(number.parse::<f64>().ok()? * unit)
}

fn wrk(text: &str) -> anyhow::Result<Fetched> {
    let find = |label: &str| text.lines().find_map(|line| line.trim().strip_prefix(label)).map(str::trim);
    let all = find("Transfer/sec:").and_then(wrk_bytes).zip(find("50%").and_then(wrk_time));
    let ((bytes_per_second, p50_s), p99_s) =
        all.zip(find("99%").and_then(wrk_time)).with_context(|| format!("not as wrk writes: {text}"))?;
    if p50_s <= 0.0 {
        bail!("no file came whole before the time was over: {text}");
    }
    Ok(Fetched { bytes_per_second, p50_s, p99_s, slf: f64::NAN })
}

const NGINX: &str = "daemon off; master_process off; pid DIR/pid; error_log DIR/error.log;
events { worker_connections 4096; }
http { access_log off; client_body_temp_path DIR/body; proxy_temp_path DIR/proxy; fastcgi_temp_path DIR/fastcgi;
uwsgi_temp_path DIR/uwsgi; scgi_temp_path DIR/scgi; server { listen 80; root DIR/www; } }
";

/// §5.4 in small: clients, a delay of 10 ± 2 ms each way, a reframer both ways, nginx.
fn web(lab: &Bench<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    let (runs, seconds) = if lab.quick { (1, 2) } else { (5, 3) };
    let connections = connections(0)?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().to_string_lossy().into_owned();
    fs::create_dir(folder.path().join("www"))?;
    fs::write(folder.path().join("www/file"), vec![b'x'; 1 << 20])?;
    fs::write(folder.path().join("nginx.conf"), NGINX.replace("DIR", &path))?;
    let delay = "delay(time=10ms, jitter=2ms, per_flow=true)";
    let kinds = [
        ("without", format!("c -> {delay} -> s; s -> {delay} -> c")),
        (
            "hold 64 us",
            format!("c -> {delay} -> reframe(hold=64us) -> s; s -> reframe(hold=64us) -> {delay} -> c"),
        ),
    ];
    let mut all = [Vec::new(), Vec::new()];
    for run in 0..runs {
        for (kind, (_, graph)) in all.iter_mut().zip(&kinds) {
            let net = Net::new()?;
            let conf = format!("{path}/nginx.conf");
            let mut nginx = net.start(End::Server, "nginx", &["-p", &path, "-c", &conf])?;
            nginx.settle(READY)?;
            let box_ = middle(lab, &net, graph)?;
            let (c, d) = (format!("-c{connections}"), format!("-d{seconds}s"));
            let url = format!("http://{SERVER}/file");
            let text =
                net.run(End::Clients, "wrk", &["-t1", &c, &d, "--timeout", "30s", "--latency", &url])?;
            let (slf, _) = seen(&box_.interrupt()?, "s")?;
            kind.push(Fetched { slf, ..wrk(&text)? });
        }
        lab.step(0.4 * f64::from(run + 1) / f64::from(runs))?;
    }
    let of =
        |kind: usize, f: fn(&Fetched) -> f64| median(all.get(kind).into_iter().flatten().map(f).collect());
    for (n, (name, _)) in kinds.iter().enumerate() {
        findings.row(json!({
            "part": "web", "middle": name, "connections": connections, "runs": runs,
            "megabytes_per_second": of(n, |f| f.bytes_per_second) / 1e6, "completion_p50_s": of(n, |f| f.p50_s),
            "completion_p99_s": of(n, |f| f.p99_s), "slf_to_server": of(n, |f| f.slf),
        }));
    }
    let ratio = |f: fn(&Fetched) -> f64| {
        let [without, with] = &all;
        median(without.iter().zip(with).map(|(a, b)| f(b) / f(a)).collect())
    };
    findings.claims.push(Claim::number(
        "throughput of the web server with a reframer, of that without (Fig. 19a)",
        1.2,
        ratio(|f| f.bytes_per_second),
        0.1,
        1.0,
    ));
    findings.claims.push(Claim::number(
        "completion time of 1 MB, median, with a reframer, of that without (Fig. 19b)",
        3.1 / 3.4,
        ratio(|f| f.p50_s),
        0.05,
        1.0,
    ));
    findings.claims.push(Claim::number(
        "SLF seen by the server, with a reframer, of that without",
        14.0 / 1.25,
        ratio(|f| f.slf),
        0.25,
        1.0,
    ));
    Ok(())
}

/// Delay that a hold adds to the way there and back of a single packet.
fn delay(lab: &Bench<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    let (runs, pings) = if lab.quick { (1, "200") } else { (5, "200") };
    let mut all: Vec<Vec<f64>> = vec![Vec::new(); DELAY_HOLDS.len()];
    for run in 0..runs {
        for (hold, times) in DELAY_HOLDS.iter().zip(&mut all) {
            let net = Net::new()?;
            let _box = middle(lab, &net, &format!("c -> reframe(hold={hold}ns) -> s; s -> c"))?;
            let text = net.run(End::Clients, "ping", &["-c", pings, "-i", "0.002", "-q", SERVER])?;
            times.push(ping_mean_us(&text).with_context(|| format!("not as ping writes: {text}"))?);
        }
        lab.step(0.7 + 0.1 * f64::from(run + 1) / f64::from(runs))?;
    }
    let none = median(all.first().cloned().unwrap_or_default());
    let mut worst: f64 = 0.0;
    let mut added = Vec::new();
    for (hold, times) in DELAY_HOLDS.iter().zip(&all) {
        let more = median(times.clone()) - none;
        findings.row(json!({
            "part": "delay", "hold_ns": hold, "round_trip_us": median(times.clone()), "added_us": more, "runs": runs,
        }));
        if *hold > 0 {
            worst = worst.max((more - *hold as f64 / 1e3).abs());
        }
        added.push(Some(more));
    }
    findings.claims.push(Claim::checked(
        "mean delay that a hold adds to a packet that comes alone, less the hold: most, in us",
        Value::Null,
        worst,
        "at most 60",
        worst <= 60.0,
    ));
    findings.draw(Chart {
        title: "Added delay by hold".into(),
        caption: "Mean round trip of pings with a reframer one way, less that with a hold of 0.".into(),
        x_label: "hold, µs".into(),
        y_label: "µs".into(),
        groups: DELAY_HOLDS.iter().map(|h| (h / 1000).to_string()).collect(),
        series: vec![("added".into(), added)],
    });
    Ok(())
}

/// The mean of the round trips, in µs.
fn ping_mean_us(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("rtt "))?;
    line.split('=').nth(1)?.split('/').nth(1)?.trim().parse::<f64>().ok().map(|ms| ms * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_print_is_read() {
        let text = "Running 2s test @ http://10.78.0.2/file\n  Latency Distribution\n     50%  120.53ms\n     75%  150.00ms\n     \
                    90%  200.00ms\n     99%    1.02s \n  100 requests in 2.00s, 100.10MB read\nRequests/sec:     50.00\n\
                    Transfer/sec:     50.05MB\n";
        let got = wrk(text).unwrap();
        assert!((got.p50_s - 0.12053).abs() < 1e-9 && (got.p99_s - 1.02).abs() < 1e-9, "{got:?}");
        assert!((got.bytes_per_second - 50.05 * 1_048_576.0).abs() < 1.0);
        assert!(wrk("unable to connect").is_err());
        let rtt = "5 packets transmitted, 5 received\nrtt min/avg/max/mdev = 0.028/0.041/0.067/0.014 ms\n";
        assert!((ping_mean_us(rtt).unwrap() - 41.0).abs() < 1e-9);
        assert_eq!(ping_mean_us("0 received"), None);
    }

    #[test]
    fn what_the_program_in_the_middle_saw_is_read() {
        let report = json!({
            "sources": [{ "name": "c", "counters": { "dropped_by_kernel": 3, "too_long": 1 } }, { "name": "s", "counters": {} }],
            "stages": [{ "name": "s", "packets_in": 100, "trains": 25 }],
        });
        assert_eq!(seen(&report.to_string(), "s").unwrap(), (4.0, 4.0));
        assert!(seen("{}", "s").is_err() && seen("no json", "s").is_err());
    }
}
