//! The book's tables of settings are what the definitions say.

use std::path::Path;

use crate::common::run;

const BEGIN: &str = "<!-- settings: ";
const END: &str = "<!-- end of settings -->";

fn pages(folder: &Path, all: &mut Vec<std::path::PathBuf>) {
    for file in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
        if file.is_dir() {
            pages(&file, all);
        } else if file.extension().is_some_and(|e| e == "md") {
            all.push(file);
        }
    }
}

#[test]
fn each_type_has_its_table_of_settings_as_it_is_defined() {
    let mut all = Vec::new();
    pages(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../book/src"), &mut all);
    let mut kinds = Vec::new();
    for page in all {
        let text = std::fs::read_to_string(&page).unwrap();
        for part in text.split(BEGIN).skip(1) {
            let (kind, rest) = part.split_once(" -->\n").unwrap();
            let (table, _) = rest.split_once(END).unwrap_or_else(|| panic!("{}: no {END}", page.display()));
            let printed = String::from_utf8(run(["list", "--markdown", kind]).with(0).stdout).unwrap();
            let hint = "ci/docs.py SLIPSTREAM --refresh writes it anew";
            assert_eq!(table.trim(), printed.trim(), "{}, {kind}: {hint}", page.display());
            kinds.push(kind.to_owned());
        }
    }
    kinds.sort_unstable();
    let listed: serde_json::Value =
        serde_json::from_slice(&run(["list", "--format", "json"]).with(0).stdout).unwrap();
    let stages = listed["stages"].as_array().unwrap().iter();
    let mut types: Vec<String> = stages
        .filter(|stage| !stage["settings"].as_array().unwrap().is_empty())
        .map(|stage| stage["name"].as_str().unwrap().to_owned())
        .collect();
    types.sort_unstable();
    assert_eq!(kinds, types, "each type has its table once");
}

/// Every row has as many cells as the head, whatever a text has in it.
#[test]
fn tables_are_sound() {
    for kind in ["reframe", "firewall", "balancer", "synth", "l2fwd"] {
        let printed = String::from_utf8(run(["list", "--markdown", kind]).with(0).stdout).unwrap();
        for line in printed.lines() {
            let bars = line.replace("\\|", "").matches('|').count();
            assert_eq!(bars, 5, "{kind}: {line}");
        }
    }
    run(["list", "--markdown"]).with(2).silent();
}
