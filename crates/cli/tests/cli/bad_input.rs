//! Whatever is wrong with what it is given: exit status 2, a message that names it and says what to do,
//! nothing on stdout, no file left behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common::{self, BINARY, Ended, names, run, run_in, run_under, run_with, scratch, small, text};

/// Both verbs that read must refuse this input in these words.
#[track_caller]
fn refused(input: &Path, words: &[&str]) {
    let dir = scratch();
    run([Path::new("analyze"), input]).with(2).silent().saying(words);
    run([Path::new("reframe"), input, &dir.path().join("out.pcap")]).with(2).silent().saying(words);
    assert_eq!(names(dir.path()), [""; 0], "something was left behind");
}

#[test]
fn a_format_that_is_none() {
    let dir = scratch();
    let file = dir.path().join("notes.txt");
    fs::write(&file, "some notes, no packets at all\n").unwrap();
    refused(&file, &["notes.txt", "not pcap or pcapng"]);
    fs::write(&file, [0x7f, b'E', b'L', b'F', 2, 1, 1, 0]).unwrap();
    refused(&file, &["notes.txt", "not pcap or pcapng"]);
}

#[test]
fn an_empty_file() {
    let dir = scratch();
    let file = dir.path().join("empty.pcap");
    fs::write(&file, "").unwrap();
    refused(&file, &["empty.pcap", "empty"]);
}

#[test]
fn a_missing_file() {
    refused(Path::new("/nowhere/at-all.pcap"), &["/nowhere/at-all.pcap", "no such file"]);
}

#[test]
fn a_directory() {
    let dir = scratch();
    refused(dir.path(), &[text(dir.path()), "directory"]);
    run([Path::new("reframe"), small(), dir.path()])
        .with(2)
        .silent()
        .saying(&[text(dir.path()), "directory"]);
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn a_file_that_may_not_be_read() {
    let dir = scratch();
    let (secret, binary) = (dir.path().join("secret.pcap"), dir.path().join("slipstream"));
    fs::copy(small(), &secret).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    let mut command = if fs::File::open(&secret).is_ok() {
        // Privileged: permissions don't bind us, so somebody else has to try.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::copy(BINARY, &binary).unwrap();
        let mut other = Command::new("setpriv");
        other.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&binary);
        other
    } else {
        Command::new(BINARY)
    };
    let output =
        command.arg("analyze").arg(&secret).output().expect("setpriv (util-linux) is there when run as root");
    Ended::of(output).with(2).silent().saying(&["secret.pcap", "permission"]);
}

#[test]
fn a_file_cut_off_in_a_packet() {
    let dir = scratch();
    let cut = dir.path().join("cut.pcap");
    let bytes = fs::read(small()).unwrap();
    // A header of 24 bytes, 100 records of 16 + 96 bytes at most; the cut is in the middle of one.
    let mut at = 24;
    while at < 9000 {
        at += 16 + u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap()) as usize;
    }
    fs::write(&cut, &bytes[..at + 20]).unwrap();
    let said = format!("byte {at}");
    let words = ["cut.pcap", said.as_str()];

    let analyzed = run(["analyze", "--format", "json", text(&cut)]).with(0).saying(&words);
    assert_eq!(analyzed.json()["truncated_at_byte"], at);
    let out = dir.path().join("out.pcap");
    let reframed = run(["reframe", text(&cut), text(&out), "--format", "json"]).with(0).saying(&words);
    assert_eq!(reframed.json()["truncated_at_byte"], at);
    let again = run(["analyze", "--format", "json", text(&out)]).with(0);
    assert_eq!(
        again.json()["records"],
        analyzed.json()["records"],
        "the packets before the damage are all there"
    );
    assert_eq!(again.json()["truncated_at_byte"], serde_json::Value::Null);

    fs::remove_file(&out).unwrap();
    run(["analyze", "--strict", text(&cut)]).with(2).silent().saying(&words);
    run(["reframe", "--strict", text(&cut), text(&out)]).with(2).silent().saying(&words);
    for in_memory in [&["--preload"][..], &["--loop", "2"]] {
        let reframe = |more: &[&str]| run([&["reframe", text(&cut), "null"], in_memory, more].concat());
        assert_eq!(reframe(&["--format", "json"]).with(0).saying(&words).json()["truncated_at_byte"], at);
        reframe(&["--strict"]).with(2).silent().saying(&words);
    }
    for workers in ["1", "2"] {
        let replay = ["run", "-i", text(&cut), "-o", text(&out), "-e", "counter", "--workers", workers];
        run(replay.iter().chain(&["--strict"])).with(2).silent().saying(&words);
    }
    assert_eq!(names(dir.path()), ["cut.pcap"], "--strict leaves no output behind");
}

#[test]
fn a_compressed_file_cut_off() {
    let dir = scratch();
    let cut = dir.path().join("cut.pcap.gz");
    let bytes = fs::read(common::campus()).unwrap();
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let ended = run(["analyze", "--format", "json", text(&cut)]).with(0).saying(&["cut.pcap.gz", "gzip"]);
    let records = ended.json()["records"].as_u64().unwrap();
    assert!((1_000..24_000).contains(&records), "{records} packets of half a file");
    run(["analyze", "--strict", text(&cut)]).with(2).silent().saying(&["cut.pcap.gz"]);
}

/// Settings that must be refused before anything is done: the options, and what the message must say.
#[test]
fn settings_out_of_range_and_words_that_are_none() {
    let table: &[(&[&str], &[&str])] = &[
        (&["--hold", "64 parsecs"], &["--hold", "parsecs", "us"]),
        (&["--hold", "64"], &["--hold", "unit"]),
        (&["--hold", "5s"], &["hold", "4s"]),
        (&["--burst", "0"], &["burst", "1 to 256"]),
        (&["--burst", "257"], &["burst", "1 to 256"]),
        (&["--burst", "many"], &["--burst", "many"]),
        (&["--capacity", "0"], &["capacity"]),
        (&["--capacity", "12 apples"], &["--capacity", "apples"]),
        (&["--workers", "0"], &["--workers"]),
        (&["--loop", "0"], &["--loop"]),
        (&["--policy", "fifo"], &["--policy", "fifo", "oldest, waiting, shortest"]),
        (&["--admit", "third"], &["--admit", "third", "always, second, adaptive"]),
        (&["--admit", "adaptive", "--budget", "soon"], &["--budget", "soon", "such as delay=30us"]),
        (
            &["--admit", "adaptive", "--budget", "delay=1ms"],
            &["budget = delay=1ms", "hold = 64us", "raise hold"],
        ),
        (&["--admit", "adaptive", "--budget", "train=33"], &["budget = train=33", "burst = 32"]),
        (&["--budget", "delay=10us"], &["admit = adaptive"]),
        (&["--gro-bytes", "9000"], &["--gro-bytes: `gro_bytes`", "compress = gro", "leave this out"]),
        (&["--compress", "ack", "--gro-segments", "9"], &["--gro-segments", "compress = gro"]),
        (&["--gro-verify"], &["--gro-verify", "compress = gro"]),
        (&["--top-window", "64"], &["--top-window", "without a class `top …`"]),
        (
            &["--admit", "adaptive", "--budget", "delay=50us", "--class", "web: tcp port 80 => hold=20us"],
            &["class \"web\"", "hold = 20us"],
        ),
        (&["--compress", "zip"], &["--compress", "zip", "ack"]),
        (&["--bypass", "tcp prot 80"], &["--bypass", "line 1, column 5", "prot", "proto"]),
        (&["--bypass", "tcp port 80 or\nudp prt 53"], &["--bypass", "line 2, column 5", "prt"]),
        (&["--bypass", "tcp port 65536"], &["--bypass", "column 10", "65536"]),
        (&["--bypass", "(tcp syn"], &["--bypass", "column"]),
        (&["--bypass", "@/nowhere/rules"], &["--bypass", "/nowhere/rules"]),
        (&["--class", "web: tcp prt 80 => hold=1ms"], &["--class", "web", "column 5", "prt"]),
        (&["--class", "tcp port 80"], &["--class", "NAME: RULE"]),
        (&["--class", "web: tcp port 80"], &["--class", "=>"]),
        (&["--class", "web: tcp port 80 => hold=1parsec"], &["web", "hold", "parsec"]),
        (&["--class", "web: tcp port 80 => burst=257"], &["burst", "1 to 256"]),
        (
            &["--class", "web: tcp port 80 => speed=1"],
            &["web", "speed", "hold_max, burst, weight and bypass"],
        ),
        (&["--class", "a: udp => hold=0, hold=1ms"], &["class \"a\"", "hold is set twice"]),
        (&["--class", "a: udp => bypass, burst=8"], &["class \"a\"", "burst says nothing"]),
        (&["--class", "default: udp => burst=8"], &["default", "another name"]),
        (&["--fail-if", "slf_out"], &["--fail-if", "comparison"]),
        (&["--fail-if", "slf_out<one"], &["--fail-if", "one", "number"]),
        (&["--fail-if", "slf_out<nan"], &["--fail-if", "nan", "not a number"]),
        (&["--pace", "real", "--workers", "2"], &["--pace real"]),
        (&["--coalesce", "40us"], &["--coalesce", "live ports"]),
        (&["--fix-offloads"], &["--fix-offloads", "live ports"]),
        (&["--no-such-option"], &["--no-such-option"]),
    ];
    let dir = scratch();
    for (options, words) in table {
        let out = dir.path().join("out.pcap");
        let base = ["reframe", text(small()), text(&out)];
        let ended = run(base.iter().chain(*options));
        assert_eq!(ended.status, Some(2), "{options:?}: {}", ended.stderr);
        assert!(ended.stdout.is_empty(), "{options:?} wrote to stdout");
        for word in *words {
            assert!(ended.stderr.contains(word), "{options:?}: {word:?} is not in: {}", ended.stderr);
        }
        assert_eq!(names(dir.path()), [""; 0], "{options:?} left something behind");
    }
    // That there is no such key is known only once the result is there.
    run(["reframe", text(small()), "null", "--fail-if", "no.such.key<1"])
        .with(2)
        .saying(&["--fail-if", "\"no\""]);
}

/// Options that mean nothing in a replay are refused, and nothing is written.
#[test]
fn options_of_live_runs_in_a_replay() {
    let dir = scratch();
    let out = dir.path().join("out.pcap");
    for (options, words) in [
        (&["--coalesce", "40us"][..], ["--coalesce", "live ports"]),
        (&["--fix-offloads"], ["--fix-offloads", "live ports"]),
        (&["--pace", "real", "--workers", "2"], ["--pace real", "one worker"]),
    ] {
        let base = ["run", "-i", text(small()), "-o", text(&out), "-e", "reframe"];
        run(base.iter().chain(options)).with(2).silent().saying(&words);
        assert_eq!(names(dir.path()), [""; 0], "{options:?} left something behind");
    }
}

/// Several threads for what runs on one are refused before a port is open: the port of this one can't be.
#[test]
fn several_threads_for_what_runs_on_one() {
    let dir = scratch();
    let port = format!("shm:{}", text(&dir.path().join("not/there/shm")));
    let graph = format!("paced(rate=1kpps, packets=10) -> shm(path=\"{}\")", port.trim_start_matches("shm:"));
    run(["run", "-e", &graph, "--workers", "2"]).with(2).silent().saying(&["one thread", "--workers"]);
    run(["reframe", "synth:packets=10", &port, "--workers", "2"])
        .with(2)
        .silent()
        .saying(&["one thread", "--workers"]);
    run(["run", "-e", &graph]).with(2).silent().saying(&["opening", "not/there"]);
}

#[test]
fn settings_of_analyze() {
    for (options, words) in [
        (["--window", "64 parsecs"], ["--window", "parsecs"]),
        (["--window", "16us,64"], ["--window", "unit"]),
        (["--burst", "0"], ["--burst", "0"]),
        (["--tunnel", "middle"], ["--tunnel", "outer, inner"]),
        (["--format", "xml"], ["--format", "table, json"]),
    ] {
        run(["analyze", text(small())].iter().chain(&options)).with(2).silent().saying(&words);
    }
}

#[test]
fn an_output_in_a_directory_that_is_not_there() {
    let dir = scratch();
    let out = dir.path().join("not/there/out.pcap");
    run(["reframe", text(small()), text(&out)]).with(2).silent().saying(&[text(&out), "folder"]);
    assert_eq!(names(dir.path()), [""; 0]);
}

/// Rules of a port are read, and found to be possible, before anything is opened.
#[test]
fn rules_of_a_port_that_cannot_be() {
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("rules.txt");
    let graph = || format!("af_xdp(interface=nope0, only='@{}') -> null", rules.display());
    std::fs::write(&rules, "udp port 53\ntcp prot 80\n").unwrap();
    let place = ["rules.txt", "line 2, column 5", "prot"];
    run(["validate", "-e", &graph()]).with(2).saying(&place);
    run(["run", "-e", &graph()]).with(2).silent().saying(&place);
    let prefixes =
        |n: usize| (0..n).map(|n| format!("10.{}.{}.0/24", n / 250, n % 250)).collect::<Vec<_>>().join(",");
    std::fs::write(&rules, format!("udp port 53\nsrc {}\n", prefixes(2040))).unwrap();
    run(["validate", "-e", &graph()]).with(0);
    std::fs::write(&rules, format!("udp port 53\nsrc {}\n", prefixes(3000))).unwrap();
    let place = ["rules.txt:2: ", "3005 comparisons; rule 2, `src 10.0.0.0/24,", "only=", "2048"];
    run(["validate", "-e", &graph()]).with(2).saying(&place);
    run(["run", "-e", &graph()]).with(2).silent().saying(&place);
    // Rules are counted, and so are lines: among them are comments, and rules of several lines.
    let text = format!("# DNS\n\nudp port 53; tcp port 53\n(\nsrc {}\n)\n", prefixes(3000));
    std::fs::write(&rules, text).unwrap();
    run(["validate", "-e", &graph()]).with(2).saying(&["rules.txt:4: ", "rule 3, `src 10.0.0.0/24,"]);
    let sends = "null -> af_xdp(interface=nope0, only=udp)";
    run(["validate", "-e", sends]).with(2).saying(&["`only` is about packets that come in", "receives"]);
}

#[test]
fn ports_that_are_not_built() {
    run(["analyze", "af_packet:eth0"]).with(2).silent().saying(&["af_packet:eth0", "live port"]);
    run(["reframe", "af_packet:nope0", "null"]).with(2).silent().saying(&["nope0"]);
    run(["reframe", text(small()), "af_packet:nope0"]).with(2).silent().saying(&["nope0"]);
    run(["reframe", text(small()), "af_xdp:nope0"]).with(2).silent().saying(&["nope0"]);
    run(["reframe", "af_xdp:lo:1-x", "null"]).with(2).silent().saying(&["1-x", "names no queues", "queues"]);
    run(["reframe", "tap:a/b", "null"]).with(2).silent().saying(&["a/b", "can't be an interface's name"]);
    run(["analyze", "af_xdp:eth0:1"]).with(2).silent().saying(&["af_xdp:eth0:1", "live port"]);
    run(["analyze", "tap:eth0"]).with(2).silent().saying(&["tap:eth0", "live port"]);
    run(["reframe", "af_packet:nope0", "dpdk:nope0"])
        .with(2)
        .silent()
        .saying(&["dpdk:nope0", "built without"]);
    run(["reframe", text(small()), "null", "--lock-memory"])
        .with(2)
        .silent()
        .saying(&["--lock-memory", "for live ports"]);
    run(["reframe", text(small()), "null", "--duration", "1s"])
        .with(2)
        .silent()
        .saying(&["--duration", "live"]);
    run(["run", "-i", text(small()), "-o", "null", "-e", "counter", "--poll-log", "x.csv"])
        .with(2)
        .silent()
        .saying(&["--poll-log", "live"]);
    // What stands on the command line isn't shown as a place in the graph.
    let ends = [
        ("nowhere.pcap", "null", "slipstream: in: nowhere.pcap: no such file"),
        ("synth:flows=x", "null", r#"slipstream: in: synth:flows=x: flows: "x" is not a number"#),
        ("synth:", "/nowhere/x.pcap", "slipstream: out: /nowhere/x.pcap: there is no folder"),
    ];
    for (input, output, said) in ends {
        let run = run(["run", "-i", input, "-o", output, "-e", "reframe"]).with(2).silent().saying(&[said]);
        assert!(!run.stderr.contains("line 1"), "{}", run.stderr);
    }
    // Before the run, not after it: this one would last for an hour.
    let paced = "paced(rate=1pps, packets=3600) -> null";
    for (log, why) in [("no/such/x.csv", "no folder"), (".", "is a directory"), ("-", "stdout is taken")] {
        run(["run", "-e", paced, "--poll-log", log]).with(2).silent().saying(&["--poll-log", why]);
    }
    let port = "dpdk:0000:01:00.0";
    run(["reframe", port, "null"]).with(2).silent().saying(&[port, "built without DPDK", "capture file"]);
    run(["reframe", text(small()), port]).with(2).silent().saying(&[port, "built without DPDK"]);
    run(["analyze", port]).with(2).silent().saying(&[port, "built without DPDK"]);
    run(["run", "-i", "dpdk:net_null0", "-o", "null", "-e", "counter"])
        .with(2)
        .silent()
        .saying(&["dpdk", "make dpdk"]);
    run(["analyze", "null"]).with(2).silent().saying(&["null"]);
    run(["reframe", text(small()), "synth:packets=5"]).with(2).silent().saying(&["synth"]);
    run(["analyze", "synth:packets=many"]).with(2).silent().saying(&["packets"]);
}

/// A pcapng block: its type, then its body between two lengths.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = (12 + body.len() as u32).to_le_bytes();
    [&kind.to_le_bytes(), &length[..], body, &length].concat()
}

/// A pcapng file with an Ethernet and a raw IP interface and a packet of 4 bytes from each.
fn two_links() -> Vec<u8> {
    let section = [&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
    let packet = |interface: u32| {
        let fields = [interface, 0, 1, 4, 4].map(u32::to_le_bytes).concat();
        block(6, &[fields, vec![1, 2, 3, 4]].concat())
    };
    let interface = |link: u8| block(1, &[link, 0, 0, 0, 0, 0, 0, 0]);
    [block(0x0a0d_0d0a, &section), interface(1), interface(101), packet(0), packet(1)].concat()
}

#[test]
fn links_of_two_types_do_not_fit_a_pcap() {
    let dir = scratch();
    let both = dir.path().join("both.pcapng");
    fs::write(&both, two_links()).unwrap();
    let out = dir.path().join("out.pcap");
    run(["reframe", text(&both), text(&out)]).with(2).silent().saying(&["out.pcap", "pcapng"]);
    assert_eq!(names(dir.path()), ["both.pcapng"], "no half-written output");
    let report =
        run_in(dir.path(), ["reframe", "both.pcapng", "out.pcapng", "--format", "json"]).with(0).json();
    assert_eq!(report["packets_out"], 2);
}

/// In a graph and in a configuration as on the command line.
#[test]
fn classes_that_contradict_themselves() {
    let dir = scratch();
    let class = "a: udp => hold=0, hold=1ms";
    let graph = format!("reframe(class=[\"{class}\"])");
    let words = ["run", "-i", text(small()), "-o", "null", "-e", &graph];
    run(words).with(2).silent().saying(&["hold is set twice"]);
    let config = format!("graph = \"in -> reframe -> out\"\n[stage.reframe]\nclass = ['{class}']\n");
    let ends = "[stage.in]\ntype = \"synth\"\n[stage.out]\ntype = \"null\"\n";
    fs::write(dir.path().join("p.toml"), config + ends).unwrap();
    run_in(dir.path(), ["validate", "p.toml"]).with(2).saying(&["hold is set twice"]);
}

/// The name of a file that nobody would give one.
#[test]
fn a_port_whose_type_is_misspelt_is_no_file() {
    let (dir, trace) = (scratch(), text(small()));
    for words in [
        &["reframe", trace, "af_paket:eth1"][..],
        &["reframe", "af_paket:eth1", "null"],
        &["analyze", "af_paket:eth1"],
        &["measure", "af_paket:eth1"],
        &["synth", "af_paket:eth1"],
        &["run", "-i", trace, "-o", "af_paket:eth1", "-e", "counter"],
        &["run", "-i", "af_paket:eth1", "-o", "null", "-e", "counter"],
        &["reframe", "af_packet:lo", "af_paket:eth1"],
    ] {
        run_in(dir.path(), words)
            .with(2)
            .silent()
            .saying(&["did you mean `af_packet:eth1`?", "./af_paket:eth1"]);
        assert_eq!(names(dir.path()), [""; 0], "{words:?}");
    }
    run_in(dir.path(), ["reframe", trace, "wire:lo"]).with(2).silent().saying(&["`af_packet:lo`"]);
    run_in(dir.path(), ["reframe", trace, "./af_paket:eth1"]).with(0);
    run_in(dir.path(), ["reframe", trace, "monday:first"]).with(0);
    // A file that is there is one.
    run_in(dir.path(), ["analyze", "af_paket:eth1"]).with(0);
    run_in(dir.path(), ["run", "-i", "af_paket:eth1", "-o", "null", "-e", "counter"]).with(0);
    assert_eq!(names(dir.path()), ["af_paket:eth1", "monday:first"]);
}

/// What was given to be read is not written to, nor the other way round.
#[test]
fn ends_are_not_turned_round() {
    let dir = scratch();
    let [from, to] = ["in.pcap", "out.pcap"].map(|name| dir.path().join(name));
    fs::copy(small(), &from).unwrap();
    fs::copy(small(), &to).unwrap();
    let (from_there, to_there) = (["-i", text(&from)], ["-o", text(&to)]);
    for (ends, graph, told) in [
        ([from_there, to_there].concat(), "out -> counter -> in", "`in` is the input"),
        (from_there.to_vec(), "synth(traffic=\"packets=9\") -> in", "`in` is the input"),
        (to_there.to_vec(), "out -> counter -> null", "`out` is the output"),
    ] {
        run([&["run", "-e", graph], &ends[..]].concat()).with(2).silent().saying(&[told, "in -> … -> out"]);
    }
    assert!([from, to].iter().all(|file| fs::read(file).unwrap() == fs::read(small()).unwrap()));
}

#[test]
fn an_export_is_an_output_as_others_are() {
    let dir = scratch();
    let run = |graph: &str| run_in(dir.path(), ["run", "-i", text(small()), "-o", "o.pcap", "-e", graph]);
    for graph in [
        "flow_stats(export=\"o.pcap\")",
        "a :: flow_stats(export=x) -> b :: flow_stats(export=\"./x\")",
        "tap(path=q) -> flow_stats(export=q)",
    ] {
        run(graph).with(2).silent().saying(&["one would replace the other"]);
    }
    assert_eq!(names(dir.path()), [""; 0]);
    run("a :: flow_stats -> b :: flow_stats -> c :: flow_stats(export=x)").with(0);
}

/// Their names say something else than what would be in them.
/// One mistake is one error, which names what the user has to change.
#[test]
fn settings_that_do_not_fit_together_are_told_once_and_by_their_names() {
    let dir = scratch();
    let refused = |words: &[&str], told: &[&str]| {
        let ended = run_in(dir.path(), words).with(2).silent().saying(told);
        assert!(!ended.stderr.contains("stands before"), "{}", ended.stderr);
        assert_eq!(names(dir.path()), [""; 0], "{words:?} left something behind");
    };
    let small = text(small());
    let through = |graph| ["run", "-i", small, "-o", "null", "-e", graph];
    refused(&through("slice(min_age=1s, max_age=1ms) -> splice"), &["1s at least", "1ms"]);
    refused(&through("slice(rate=1mpps) -> splice"), &["rate"]);
    refused(&["run", "-i", small, "-o", "", "-e", "reframe"], &["empty"]);
    refused(&["reframe", small, "null", "--hold", "auto", "--budget", "delay=1ms"], &["raise hold_max"]);
    for output in ["af_packet(interface=eth9)", "tap(interface=eth9, mtu=9000)"] {
        refused(&["run", "-i", small, "-o", output, "-e", "reframe"], &["-e", ":eth9`"]);
    }
    refused(&["reframe", small, "null", "--rules", "@missing"], &["missing", "No such file"]);
    refused(&["model", "fit", "."], &["this is a folder"]);
    let model =
        ["model", "solve", "--rate", "10mpps", "--service-base", "600ns", "--service-per-packet", "77ns"];
    refused(&[&model[..], &["--queue", "64", "--batch", "8", "--fit", "per-rate"]].concat(), &["--log"]);
}

#[test]
fn outputs_in_another_compression() {
    let dir = scratch();
    for name in ["out.pcap.xz", "out.pcap.Z", "out.z"] {
        run_in(dir.path(), ["reframe", text(small()), name]).with(2).silent().saying(&[name, ".gz or .zst"]);
    }
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn errors_name_what_was_written_and_nothing_else() {
    let dir = scratch();
    for (verb, config, said) in [
        ("run", "nope.toml", "slipstream: nope.toml: can't be read: No such file"),
        ("validate", "nope.toml", "nope.toml: can't be read: No such file"),
        ("run", text(small()), "a capture, not a configuration"),
    ] {
        let ended = run_in(dir.path(), [verb, config]).with(2).saying(&[said]);
        assert!(!ended.stderr.contains("line 1"), "{}", ended.stderr);
    }
    let slice = |options: &[&str]| {
        let words = ["slice", "run", "synth:packets=10", "null", "--through", "no/there"];
        run_in(dir.path(), words.iter().chain(options)).with(2).silent()
    };
    for options in [&[][..], &["--whole"]] {
        let ended = slice(options).saying(&["--through no/there: opening"]);
        assert!(!ended.stderr.contains("graph") && !ended.stderr.contains("column"), "{}", ended.stderr);
    }
    slice(&["--slice", "entries=4, hodl=3"]).saying(&["--slice: line 1, column 12", "hodl"]);
    run(["top", "127.0.0.1:99999"]).with(2).silent().saying(&["127.0.0.1:99999", "1 to 65535"]);
    run(["top", "127.0.0.1"]).with(2).silent().saying(&["127.0.0.1:9464"]);
    fs::write(dir.path().join("polls.csv"), "time_ns,batch\n0,5\n").unwrap();
    run_in(dir.path(), ["model", "fit", "polls.csv"])
        .with(2)
        .silent()
        .saying(&["polls.csv", "two consecutive polls"]);
}

/// A file that Slipstream itself wrote is no capture; the message tells whose it is.
#[test]
fn files_of_slipstream_are_called_by_their_names() {
    let dir = scratch();
    let [part, state] = ["a.part", "a.state"].map(|name| dir.path().join(name));
    run(["analyze", "--save", text(&part), text(small())]).with(0);
    run(["measure", "--save", text(&state), text(small())]).with(0);
    run(["analyze", text(&part)]).with(2).silent().saying(&["slipstream analyze merge"]);
    run(["analyze", text(&state)]).with(2).silent().saying(&["slipstream measure query"]);
    let polls = dir.path().join("polls");
    fs::write(&polls, b"SLPPOLL1\x01\x02").unwrap();
    run(["measure", text(&polls)]).with(2).silent().saying(&["slipstream model fit"]);
}

/// Files that are no captures are missed in the same words as captures.
#[test]
fn files_that_cannot_be_read_are_told_alike() {
    let dir = scratch();
    let (none, folder) = (text(&dir.path().join("none")).to_owned(), text(dir.path()));
    let small = text(small());
    for words in [
        &["analyze", "merge"][..],
        &["measure", "query"],
        &["measure", "merge"],
        &["model", "fit"],
        &["recommend", small, "--costs"],
    ] {
        let ended = run([words, &[none.as_str()]].concat()).with(2).silent().saying(&["none: no such file"]);
        assert!(!ended.stderr.contains("os error"), "{}", ended.stderr);
    }
    for words in [&["analyze", "merge"][..], &["measure", "query"], &["recommend", small, "--costs"]] {
        run([words, &[folder]].concat()).with(2).silent().saying(&["is a directory; name a file"]);
    }
}

/// A file that is none of ours is not read to its end, which may be far away, or nowhere.
#[test]
fn files_of_others_are_not_read_into_memory() {
    for (words, said) in [
        ("measure query", "no state"),
        ("measure merge", "no state"),
        ("analyze merge", "no saved part"),
        ("validate", "more than 256 MiB"),
        ("run", "more than 256 MiB"),
    ] {
        for from in ["/dev/zero", "- </dev/zero"] {
            run_under("ulimit -v 3000000", Path::new("."), &format!("{words} {from}"))
                .with(2)
                .silent()
                .saying(&[said]);
        }
    }
}

/// A state may be longer than any text, also where it comes from a pipe.
#[test]
fn long_states_come_from_stdin_whole() {
    let mut state = b"SLIPMEAS\x02\0".to_vec();
    state.resize((256 << 20) + 1000, 0);
    let checksum = format!("its checksum, at byte {}, is wrong", state.len() - 4);
    run_with(&state, &["measure", "query", "-"]).with(2).silent().saying(&[&checksum]);
}
