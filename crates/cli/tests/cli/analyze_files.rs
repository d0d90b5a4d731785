//! `analyze --report` and `--parquet`, as a user runs them.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use roxmltree::{Document, ParsingOptions};
use serde_json::Value;

use crate::common::{campus, check_headings, run, run_in, scratch, small, text};

fn analyze(folder: &Path, arguments: &[&str]) -> Output {
    let run = Command::new(env!("CARGO_BIN_EXE_slipstream"))
        .arg("analyze")
        .args(arguments)
        .current_dir(folder)
        .output();
    run.unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const TRAFFIC: &str = "synth:profile=campus,packets=4000,seed=3";

/// The page is well-formed, has no figure that is none, and loads nothing.
fn check_page(page: &str) -> Document<'_> {
    let tree =
        Document::parse_with_options(page, ParsingOptions { allow_dtd: true, ..Default::default() }).unwrap();
    for node in tree.descendants() {
        let texts = node.attributes().map(|a| a.value()).chain(node.text());
        for text in texts {
            let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric()).collect();
            assert!(!words.iter().any(|w| ["NaN", "inf", "None", "undefined"].contains(w)), "{text}");
        }
        assert!(
            !["script", "link", "img", "iframe"].contains(&node.tag_name().name()),
            "{:?}",
            node.tag_name()
        );
        let foreign = |a: &roxmltree::Attribute<'_, '_>| {
            ["src", "href"].contains(&a.name()) && !a.value().starts_with('#')
        };
        assert!(!node.attributes().any(|a| foreign(&a) || a.name().starts_with("on")));
    }
    let mut ids: Vec<_> = tree.descendants().filter_map(|n| n.attribute("id")).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "ids are unique");
    for svg in tree.descendants().filter(|n| n.tag_name().name() == "svg") {
        let labels: Vec<&str> = svg.attribute("aria-labelledby").unwrap().split(' ').collect();
        assert!(labels.iter().all(|l| ids.contains(l)), "{labels:?}");
        let drawn = |n: roxmltree::Node<'_, '_>| {
            n.tag_name().name() == "rect" || n.attribute("d").is_some_and(|d| d.len() > 30)
        };
        assert!(svg.descendants().any(drawn), "a chart without data: {labels:?}");
    }
    check_tables(&tree);
    tree
}

/// Tables that are wider than a telephone are scrolled, by keys too, so that each is a stop of the keyboard
/// with a name; and what a program reads aloud knows the table's name, and which cells are heads of what.
fn check_tables(tree: &Document<'_>) {
    let named = |n: &roxmltree::Node<'_, '_>| n.attribute("aria-label").is_some_and(|name| !name.is_empty());
    for table in tree.descendants().filter(|n| n.has_tag_name(("http://www.w3.org/1999/xhtml", "table"))) {
        let scrolled = table.parent().unwrap();
        assert_eq!(scrolled.attribute("class"), Some("sheet"));
        assert_eq!((scrolled.attribute("tabindex"), scrolled.attribute("role")), (Some("0"), Some("group")));
        let caption = table.children().any(|n| n.tag_name().name() == "caption");
        assert!(named(&scrolled) && (caption || named(&table)), "{scrolled:?}");
        let mut heads = table.descendants().filter(|n| n.tag_name().name() == "th");
        assert!(heads.all(|head| head.attribute("scope").is_some()), "{table:?}");
    }
}

#[test]
fn a_page_shows_the_figures_of_the_result() {
    let folder = tempfile::tempdir().unwrap();
    let result = json(&analyze(folder.path(), &[TRAFFIC, "--report", "r.html", "--format", "json"]));
    let page = fs::read_to_string(folder.path().join("r.html")).unwrap();
    let tree = check_page(&page);
    let cells: Vec<&str> = tree.descendants().filter_map(|n| n.text()).collect();
    for of in ["ip", "tcp"] {
        let s = &result[of];
        let slf = format!("{:.3}", s["slf"].as_f64().unwrap());
        assert!(cells.contains(&slf.as_str()), "{of}: {slf}");
        for w in s["windows"].as_array().unwrap() {
            let after = format!("{:.3}", w["slf_after"].as_f64().unwrap());
            assert!(cells.contains(&after.as_str()), "{of}: {after}");
        }
    }
    for e in result["top_endpoints"].as_array().unwrap() {
        assert!(cells.contains(&e["address"].as_str().unwrap()));
    }
    let charts = tree.descendants().filter(|n| n.tag_name().name() == "svg").count();
    let captions = tree.descendants().filter(|n| n.tag_name().name() == "figcaption").count();
    assert!(charts >= 8 && charts == captions, "{charts} charts, {captions} captions");
}

#[test]
fn several_traces_have_a_total_and_a_part_each() {
    let folder = tempfile::tempdir().unwrap();
    let other = "synth:flows=5,packets=300,seed=4,protocol=udp";
    let groups = ["--by", "dst-port", "--groups", "3"];
    let arguments = [&[TRAFFIC, other, "--report", "r.html", "--format", "json"], groups.as_slice()].concat();
    let result = json(&analyze(folder.path(), &arguments));
    let page = fs::read_to_string(folder.path().join("r.html")).unwrap();
    let tree = check_page(&page);
    // Each has its groups, as the result has them.
    let traces = result["traces"].as_array().unwrap();
    let of_all = [&result["total"], &traces[0], &traces[1]].map(|of| &of["groups"]);
    let sheets: Vec<_> = tree
        .descendants()
        .filter(|n| n.is_element() && n.text().is_some_and(|text| text.starts_with("By dst-port")))
        .map(|head| head.parent().unwrap())
        .collect();
    assert_eq!(sheets.len(), of_all.len());
    for (sheet, groups) in sheets.iter().zip(of_all) {
        let rows: Vec<_> = sheet.descendants().filter(|n| n.tag_name().name() == "tr").skip(1).collect();
        let listed = groups["listed"]
            .as_array()
            .unwrap()
            .iter()
            .chain(groups["rest"].as_object().map(|_| &groups["rest"]));
        for (row, group) in rows.iter().zip(listed.clone()) {
            let cells: Vec<_> = row
                .descendants()
                .filter(|n| n.is_text())
                .filter_map(|n| n.text())
                .filter(|t| !t.trim().is_empty())
                .collect();
            assert_eq!(cells[0], group["name"].as_str().unwrap());
            assert_eq!(cells[1].replace(',', ""), group["packets"].to_string());
        }
        assert_eq!(rows.len(), listed.count());
    }
    let heads: Vec<_> = tree.descendants().filter(|n| n.tag_name().name() == "h2").collect();
    let heads: Vec<_> = heads.iter().map(|n| n.descendants().find_map(|d| d.text()).unwrap()).collect();
    assert_eq!(heads, ["total of 2 traces", TRAFFIC, other]);
    // A link to a trace opens what is closed: browsers do so where it leads to something within.
    let links: Vec<_> = tree
        .descendants()
        .filter_map(|n| n.attribute("href"))
        .filter_map(|to| to.strip_prefix('#'))
        .collect();
    assert_eq!(links.len(), 3);
    for (number, link) in links.iter().enumerate() {
        let to = tree.descendants().find(|n| n.attribute("id") == Some(link)).unwrap();
        let opens = to.ancestors().skip(1).any(|n| n.tag_name().name() == "details");
        assert_eq!(opens, number > 0, "{link}");
    }
    // The command line is as long as its user makes it.
    assert!(page.contains("code { overflow-wrap: anywhere; }"));
    // Paper has what is closed, too, and in ink whatever the screen.
    assert!(page.contains("details::details-content { content-visibility: visible; block-size: auto; }"));
    assert!(page.contains("@media screen and (prefers-color-scheme: dark)"));
}

#[test]
fn a_trace_without_packets_makes_a_sensible_page() {
    let folder = tempfile::tempdir().unwrap();
    // A pcap file that ends after its header.
    let header = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
    fs::write(folder.path().join("empty.pcap"), header).unwrap();
    let arguments = ["empty.pcap", "--report", "r.html", "--parquet", "f.parquet", "--format", "json"];
    json(&analyze(folder.path(), &arguments));
    let page = fs::read_to_string(folder.path().join("r.html")).unwrap();
    let tree = check_page(&page);
    assert!(!tree.descendants().any(|n| n.tag_name().name() == "svg"));
    assert!(page.contains("no IP packet"));
    let flows = SerializedFileReader::new(File::open(folder.path().join("f.parquet")).unwrap()).unwrap();
    assert_eq!(flows.metadata().file_metadata().num_rows(), 0);
}

#[cfg(unix)]
#[test]
fn a_hostile_file_name_stays_text() {
    let folder = tempfile::tempdir().unwrap();
    let name = "<script>alert(1)<\\script>&\"'{{ 7*7 }}\u{1b}[31m.pcap";
    json(&analyze(folder.path(), &["synth:packets=300,flows=3", "--format", "json"]));
    let make = Command::new(env!("CARGO_BIN_EXE_slipstream"))
        .args(["synth", "--packets", "300", "--flows", "3", name])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(make.status.success());
    json(&analyze(folder.path(), &[name, "--report", "r.html", "--format", "json"]));
    let page = fs::read_to_string(folder.path().join("r.html")).unwrap();
    let tree = check_page(&page);
    let head = tree.descendants().find(|n| n.tag_name().name() == "bdi").unwrap();
    assert_eq!(head.text(), Some(name.replace('\u{1b}', "\u{fffd}").as_str()));
}

#[test]
fn flows_of_all_traces_add_up_to_the_result() {
    let folder = tempfile::tempdir().unwrap();
    let other = "synth:flows=5,packets=300,seed=4";
    let result =
        json(&analyze(folder.path(), &[TRAFFIC, other, "--parquet", "f.parquet", "--format", "json"]));
    let reader = SerializedFileReader::new(File::open(folder.path().join("f.parquet")).unwrap()).unwrap();
    let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    for trace in result["traces"].as_array().unwrap() {
        let file = trace["file"].as_str().unwrap();
        let rows: Vec<_> = rows.iter().filter(|r| r.get_string(0).unwrap() == file).collect();
        let sum = |column: usize| rows.iter().map(|r| r.get_long(column).unwrap() as u64).sum::<u64>();
        let flows = rows.iter().filter(|r| r.get_long(9).unwrap() > 0).count() as u64;
        assert_eq!(trace["ip"]["flows"], rows.len() as u64);
        assert_eq!(trace["ip"]["packets"], sum(8));
        assert_eq!(trace["tcp"]["flows"], flows);
        assert_eq!(trace["tcp"]["packets"], sum(9));
    }
}

/// A damaged trace that is left out has no rows in the table of packets, as in that of flows.
#[test]
fn packets_are_those_of_the_traces_that_count() {
    let folder = scratch();
    let whole = fs::read(small()).unwrap();
    fs::write(folder.path().join("cut.pcap"), &whole[..whole.len() - 1]).unwrap();
    fs::write(folder.path().join("whole.pcap"), &whole).unwrap();
    let traces = ["cut.pcap", "whole.pcap", "synth:packets=100"];
    let count = |options: &[&str]| {
        let words = ["--keep-going", "--parquet-packets", "p.parquet", "--format", "json"];
        let result = json(&analyze(folder.path(), &[&traces[..], options, &words[..]].concat()));
        let file = File::open(folder.path().join("p.parquet")).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        for trace in result["traces"].as_array().unwrap() {
            let rows = reader.get_row_iter(None).unwrap().map(Result::unwrap);
            let rows = rows.filter(|r| trace["file"] == r.get_string(0).unwrap().as_str()).count();
            assert_eq!(trace["records"], rows, "{options:?}");
        }
        assert_eq!(result["total"]["records"], reader.get_row_iter(None).unwrap().count(), "{options:?}");
        result["traces"].as_array().unwrap().len()
    };
    assert_eq!(count(&[]), 3);
    assert_eq!(count(&["--strict"]), 2);
    // Damage behind what counts is none.
    assert_eq!(count(&["--strict", "-c", "10"]), 3);

    let words = ["-", "whole.pcap", "--strict", "--keep-going", "--parquet-packets", "p.parquet"];
    run_in(folder.path(), ["analyze"].iter().chain(&words)).with(0).saying(&["-: ", "reads traces twice"]);
}

#[test]
fn a_path_that_can_not_be_written_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    for option in ["--report", "--parquet"] {
        for (path, why) in [("no/such/folder/f", "there is no folder"), (".", "directory"), ("-", "stdout")] {
            let output = analyze(folder.path(), &["synth:packets=100", option, path]);
            let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{complaint}");
            assert!(
                complaint.contains(&format!("{option} {path}")) && complaint.contains(why),
                "{complaint}"
            );
        }
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_failed_analysis_leaves_older_files_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("r.html"), "old").unwrap();
    let output = analyze(folder.path(), &["no-such.pcap", "--report", "r.html", "--parquet", "f.parquet"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(fs::read(folder.path().join("r.html")).unwrap(), b"old");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// A page has what was asked for: two traces beside each other, and the frontier's figures.
#[test]
fn a_page_has_the_comparison_and_the_frontier() {
    let dir = scratch();
    let page = dir.path().join("p.html");
    let trace = campus();
    let words = ["analyze", "--diff", "--frontier", text(&trace), text(small()), "--report", text(&page)];
    run(words).with(0);
    let page = std::fs::read_to_string(page).unwrap();
    for figure in ["SLF after of a hold of 64us", "<h3>Mean delay at equal mean train</h3>"] {
        assert!(page.contains(figure), "{figure}");
    }
    check_headings(&page);
}

/// A copy of a plain pcap whose packets came so many seconds later.
fn later(pcap: &[u8], seconds: u32) -> Vec<u8> {
    let mut copy = pcap.to_vec();
    let mut at = 24;
    while at + 16 <= copy.len() {
        let number = |from: usize| u32::from_le_bytes(pcap[from..from + 4].try_into().unwrap());
        copy[at..at + 4].copy_from_slice(&(number(at) + seconds).to_le_bytes());
        at += 16 + number(at + 8) as usize;
    }
    copy
}

/// Most of the time from the first to the last packet is in none of the traces: rates are those of the time
/// that is.
#[test]
fn traces_of_different_years_have_no_time_in_between() {
    let dir = scratch();
    let old = fs::read(small()).unwrap();
    for (name, seconds) in [("old.pcap", 0), ("beside.pcap", 0), ("new.pcap", 500_000_000)] {
        fs::write(dir.path().join(name), later(&old, seconds)).unwrap();
    }
    let total = |other: &str| {
        let words = ["old.pcap", other, "--report", "p.html"];
        let shown = String::from_utf8(analyze(dir.path(), &words).stdout).unwrap();
        let shown = shown.split_once("total of 2 traces").unwrap().1.to_owned();
        let row =
            |what: &str| shown.lines().find(|line| line.trim_start().starts_with(what)).unwrap().to_owned();
        let page = fs::read_to_string(dir.path().join("p.html")).unwrap();
        (row("duration"), row("packets a second"), page)
    };
    let apart = "duration, without the time between the traces";
    let (duration, rate, page) = total("new.pcap");
    assert!(duration.contains(apart) && !duration.contains("day"), "{duration}");
    assert!(page.contains(apart) && !page.contains(" days"), "the page has the time in between");
    // Twice as many packets in twice the time.
    let alone = String::from_utf8(analyze(dir.path(), &["old.pcap"]).stdout).unwrap();
    let of_one = alone.lines().find(|line| line.trim_start().starts_with("packets a second")).unwrap();
    let value = |line: &str| line.split_whitespace().rev().take(2).collect::<Vec<_>>().join(" ");
    assert_eq!(value(&rate), value(of_one));
    let words = ["old.pcap", "new.pcap", "--format", "json"];
    let result = json(&analyze(dir.path(), &words));
    assert!(
        result["total"]["duration_ns"].as_u64().unwrap() > 400_000_000_000_000_000,
        "JSON stays as it is"
    );
    // Traces of the same time are no case of this.
    let (duration, ..) = total("beside.pcap");
    assert!(!duration.contains(apart), "{duration}");
}

/// A trace of one flow is told of in the singular.
#[test]
fn one_flow_is_not_told_of_as_many() {
    let dir = scratch();
    run(["synth", "--flows", "1", "--packets", "50", text(&dir.path().join("one.pcap"))]).with(0);
    analyze(dir.path(), &["one.pcap", "--report", "p.html"]);
    let page = fs::read_to_string(dir.path().join("p.html")).unwrap();
    assert!(
        page.contains("The one flow (all IP) has 50 packets.")
            || page.contains("The one flow (TCP) has 50 packets.")
    );
    assert!(!page.contains("the 1 flows") && !page.contains("The 1 flows"), "{page}");
}

/// The frontier tells prices as they are set, and nothing of a trace without a flow.
#[test]
fn a_fixed_hold_has_the_price_that_makes_one() {
    let dir = scratch();
    let none = dir.path().join("none.pcap");
    run(["reframe", "--rules", "none", text(small()), text(&none)]).with(0);
    let table = |trace: &str, window: &str| {
        let ended = run(["analyze", "--frontier", "--burst", "4", "--window", window, trace]).with(0);
        String::from_utf8(ended.stdout).unwrap()
    };
    assert!(!table(text(&none), "16us").contains("equal mean train"));
    let fixed = table(text(&campus()), "2us,1s");
    assert!(fixed.contains("  1000s\n") && !fixed.contains(" min\n"), "{fixed}");
    // The verdict has the figures of the table, each in one piece.
    let told = table(text(&campus()), "64us");
    let row: Vec<&str> =
        told.lines().rfind(|line| line.starts_with("  64us ")).unwrap().split_whitespace().collect();
    let words: Vec<&str> = told.split([' ', '\n']).filter(|word| !word.is_empty()).collect();
    let price = format!("packets wait {}\u{a0}{} on average,", row[2], row[3]);
    assert!(words.join(" ").contains(&price), "{price}: {told}");
}

/// Parts of different settings: which settings, and what they are.
#[test]
fn parts_that_differ_are_told_by_what_they_differ_in() {
    let dir = scratch();
    let [one, two] = ["1.part", "2.part"].map(|name| dir.path().join(name));
    run(["analyze", "--part", "1/2", "--save", text(&one), text(small())]).with(0);
    let words = ["analyze", "--part", "2/2", "--save", text(&two), text(small())];
    run(words.iter().chain(&["--window", "16us", "--burst", "8"])).with(0);
    run(["analyze", "merge", text(&one), text(&two)])
        .with(2)
        .silent()
        .saying(&["--window (16us,64us,128us and 16us), --burst (32 and 8)"]);
}
