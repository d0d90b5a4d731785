//! Settings and rules that a live run reads anew.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use crate::common::{scratch, text};
use crate::operation::{Running, make_fifo};

#[test]
fn rules_of_a_bypass_are_read_anew() {
    let dir = scratch();
    let rules = dir.path().join("rules");
    let file = format!("@{}", text(&rules));
    let port = format!("shm:{}", text(&dir.path().join("shm")));
    let graph = format!("paced(rate=2kpps) -> r :: reframe(bypass=\"{file}\") -> null");
    for (verb, words, stage) in
        [("run", vec!["-e", &graph], "r"), ("reframe", vec![&port, "null", "--bypass", &file], "reframe")]
    {
        fs::write(&rules, "udp\n").unwrap();
        let mut running = Running::of(verb, dir.path(), &words);
        let changes = || running.ctl(&["reload"]).with(0).json()["changes"].clone();
        assert_eq!(changes(), serde_json::json!([]), "{verb}");
        fs::write(&rules, "tcp\n").unwrap();
        assert_eq!(changes(), serde_json::json!([format!("{stage}.bypass")]), "{verb}");
        fs::write(&rules, "no rule\n").unwrap();
        running.ctl(&["reload"]).with(2).saying(&[text(&rules), "line 1"]);
        running.signal("-HUP");
        sleep(Duration::from_millis(300));
        assert!(!running.has_ended(), "{verb}: a hang-up ended it");
        running.stop().with(0);
    }
}

/// A backend that an operator has drained stays so over reloads of other settings, until a setting of its
/// balancer changes.
#[test]
fn a_backend_stays_drained_until_its_balancer_changes() {
    let dir = scratch();
    let config = dir.path().join("balancer.toml");
    let write = |burst: u32, idle: &str| {
        let text = format!(
            "graph = \"in -> r -> b -> out\"\n[stage.in]\ntype = \"paced\"\nrate = \"2kpps\"\n\
             [stage.r]\ntype = \"reframe\"\nburst = {burst}\n\
             [stage.b]\ntype = \"balancer\"\nservice = \"192.0.2.80:80\"\nsource = \"192.0.2.79\"\n\
             idle = \"{idle}\"\nbackends = [\"10.1.0.1\", \"10.1.0.2\"]\n[stage.out]\ntype = \"null\"\n"
        );
        fs::write(&config, text).unwrap();
    };
    write(32, "300s");
    let running = Running::start(dir.path(), &[text(&config)]);
    let weight = || {
        let report = running.ctl(&["report"]).with(0).json();
        let stages = report["report"]["stages"].as_array().unwrap();
        let balancer = stages.iter().find(|stage| stage["name"] == "b").unwrap();
        balancer["report"]["backends"][0]["weight"].as_u64()
    };
    running.ctl(&["drain", "b", "10.1.0.1"]).with(0);
    assert_eq!(weight(), Some(0));
    for burst in [32, 16] {
        write(burst, "300s");
        running.ctl(&["reload"]).with(0);
        assert_eq!(weight(), Some(0), "burst {burst}");
    }
    write(16, "200s");
    assert_eq!(running.ctl(&["reload"]).with(0).json()["changes"], serde_json::json!(["b.idle"]));
    assert_eq!(weight(), Some(1));
    running.stop().with(0);
}

/// A switch goes by the rules that its file has now, and by another order of its ports.
#[test]
fn rules_of_a_switch_are_read_anew() {
    let dir = scratch();
    let (config, rules) = (dir.path().join("run.toml"), dir.path().join("rules"));
    let write = |ports: &str| {
        let graph = "in -> sw; sw[web] -> c; sw[rest] -> d; sw[other] -> e; c -> out; d -> out; e -> out";
        let text = format!(
            "graph = '{graph}'\n[stage.in]\ntype = 'paced'\nrate = '2kpps'\ntraffic = 'flows=1'\n\
             [stage.sw]\ntype = 'switch'\nports = [{ports}]\n[stage.c]\ntype = 'counter'\n\
             [stage.d]\ntype = 'counter'\n[stage.e]\ntype = 'counter'\n[stage.out]\ntype = 'null'\n"
        );
        fs::write(&config, text).unwrap();
    };
    write("'web: @rules', 'rest: any'");
    fs::write(&rules, "any\n").unwrap();
    let running = Running::start(dir.path(), &[text(&config)]);
    let goes_to = |wanted: &str| {
        let packets = || {
            let report = running.ctl(&["report"]).with(0).json();
            let stages = report["report"]["stages"].as_array().unwrap().clone();
            ["c", "d", "e"].map(|name| {
                let stage = stages.iter().find(|stage| stage["name"] == name).unwrap();
                stage["counters"]["packets_counted"].as_u64().unwrap()
            })
        };
        let before = packets();
        sleep(Duration::from_millis(200));
        let after = packets();
        let went: Vec<&str> = ["c", "d", "e"]
            .into_iter()
            .zip(before.iter().zip(after))
            .filter(|(_, (a, b))| **a < *b)
            .map(|(n, _)| n)
            .collect();
        assert_eq!(went, [wanted]);
    };
    goes_to("c");
    fs::write(&rules, "none\n").unwrap();
    assert_eq!(running.ctl(&["reload"]).with(0).json()["stages"], serde_json::json!(["sw"]));
    goes_to("d");
    write("'rest: none', 'web: none'");
    assert_eq!(running.ctl(&["reload"]).with(0).json()["changes"], serde_json::json!(["sw.ports"]));
    goes_to("e");
    write("'rest: any', 'web: any'");
    running.ctl(&["reload"]).with(0);
    goes_to("d");
    write("'rest: any', 'web: any', 'www: tcp'");
    running.ctl(&["reload"]).with(2).saying(&["the ports of `sw` can't change", "rest, web"]);
    fs::write(&rules, "prot\n").unwrap();
    write("'rest: any', 'web: @rules'");
    running.ctl(&["reload"]).with(2).saying(&["rules", "line 1"]);
    goes_to("d");
    running.stop().with(0);
}

/// A pipe in place of a file that is read again would keep a reload waiting, and everybody behind it.
#[test]
fn a_reload_reads_no_pipes() {
    let dir = scratch();
    let [config, rules] = ["c.toml", "rules.txt"].map(|name| dir.path().join(name));
    let graph = "graph = \"paced(rate=1kpps) -> fw -> null\"\n[stage.fw]\ntype = \"firewall\"\nrules = \"rules.txt\"\n";
    fs::write(&config, graph).unwrap();
    fs::write(&rules, "allow any\n").unwrap();
    let running = Running::start(dir.path(), &[text(&config)]);
    running.ctl(&["reload"]).with(0);
    for path in [&rules, &config] {
        fs::remove_file(path).unwrap();
        make_fifo(path);
        running.ctl(&["reload"]).with(2).saying(&[text(path), "no regular file"]);
    }
    fs::remove_file(&config).unwrap();
    fs::remove_file(&rules).unwrap();
    fs::write(&config, graph).unwrap();
    fs::write(&rules, "deny any\n").unwrap();
    running.ctl(&["reload"]).with(0);
    running.stop().with(0);
}
