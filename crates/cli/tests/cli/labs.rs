//! `lab` with several labs: a folder of pages. Labs run one point each, as the environment says, since a
//! whole one takes half a minute.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{BINARY, Ended, interrupt, names, run, scratch};

/// A point that `chain` knows; `nf-locality` knows none of this name and fails.
const POINT: &str = "baseline,0,1";

fn lab(dir: &Path, words: &[&str]) -> Ended {
    let mut command = Command::new(BINARY);
    command.arg("lab").args(words).current_dir(dir).env("SLIPSTREAM_LAB_POINT", POINT);
    Ended::of(command.stdin(Stdio::null()).output().unwrap())
}

#[test]
fn a_lab_that_fails_does_not_lose_the_others() {
    let dir = scratch();
    fs::create_dir_all(dir.path().join("site")).unwrap();
    fs::write(dir.path().join("site/mine.txt"), "mine").unwrap();
    fs::write(dir.path().join("site/index.html"), "old").unwrap();
    let words = ["nf-locality", "chain", "--quick", "--report", "site", "--format", "json"];
    let ended = lab(dir.path(), &words)
        .with(1)
        .saying(&["lab nf-locality: no such subject", "labs that failed: nf-locality"]);
    let json = ended.json();
    assert_eq!((&json["schema"], &json["failed_labs"]), (&1.into(), &1.into()));
    assert_eq!(json["command"], "slipstream lab nf-locality chain --quick");
    assert_eq!(json["labs"].as_array().unwrap().len(), 1);
    assert_eq!(json["labs"][0]["name"], "chain");
    assert_eq!(json["failed"][0]["error"], "no such subject");
    assert_eq!(json["left_out"].as_array().unwrap().len(), 0);
    assert_eq!(names(&dir.path().join("site")), ["chain.html", "index.html", "mine.txt"]);
    let index = fs::read_to_string(dir.path().join("site/index.html")).unwrap();
    assert!(index.contains("<a href=\"chain.html\">") && index.contains("no such subject"), "{index}");
}

#[test]
fn a_report_that_cannot_be_written_loses_no_result() {
    let dir = scratch();
    // The page would take the place of a folder.
    fs::create_dir_all(dir.path().join("site/chain.html/x")).unwrap();
    let words = ["chain", "nf-locality", "--quick", "--report", "site", "--format", "json"];
    let ended = lab(dir.path(), &words).with(2).saying(&["chain.html"]);
    assert_eq!(ended.json()["labs"][0]["name"], "chain");
    assert_eq!(names(&dir.path().join("site")), ["chain.html"]);
}

#[test]
fn several_labs_are_checked_and_shown_as_one() {
    let dir = scratch();
    // The same lab as JSON keeps its shape.
    let json = lab(dir.path(), &["chain", "--quick", "--format", "json"]).with(0).json();
    assert!(json["name"] == "chain" && json["labs"].is_null());
    let ended = lab(dir.path(), &["chain", "nf-locality", "--quick", "--fail-if", "failed_claims>0"]).with(1);
    let text = String::from_utf8(ended.stdout.clone()).unwrap();
    assert!(text.contains("chain: the chain") && text.contains("Failed"), "{text}");
}

#[test]
fn mistakes_are_told_before_a_lab_is_run() {
    let dir = scratch();
    fs::write(dir.path().join("file"), "x").unwrap();
    for (words, why) in [
        (vec!["--all", "chain"], "cannot be used with"),
        (vec!["--report", "x"], "required"),
        (vec!["--fail-if", "failed_claims>0"], "required"),
        (vec!["chain", "nope"], "there is no lab \"nope\""),
        (vec!["chain", "hold", "chain"], "lab chain is named twice"),
        (vec!["chain", "hold", "--report", "file"], "--report file: is no folder"),
        (vec!["--all", "--report", "file/in"], "--report file/in: this folder can't be made"),
        (vec!["--all", "--report", "-"], "name a folder"),
        (vec!["--all", "--fail-if", "x"], "no comparison"),
    ] {
        lab(dir.path(), &words).with(2).silent().saying(&[why]);
    }
    assert_eq!(names(dir.path()), ["file"], "nothing is made of a mistake");
    let help = String::from_utf8(run(["lab", "--help"]).with(0).stdout).unwrap();
    assert!(help.contains("slipstream lab --all --report figures"), "{help}");
}

/// All labs in earnest, until the user interrupts the first of them.
#[test]
fn an_interrupt_leaves_no_half_of_a_site() {
    let dir = scratch();
    let words = ["lab", "--all", "--quick", "--report", "a/site"];
    let child = Command::new(BINARY)
        .args(words)
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let site = dir.path().join("a/site");
    interrupt(&child, "-INT");
    Ended::of(child.wait_with_output().unwrap()).with(130).silent().saying(&["interrupted"]);
    assert_eq!(names(&site), [""; 0]);
}
