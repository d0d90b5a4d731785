//! The command's help with examples that run, its completions, its manual page.

use std::process::Command;

use crate::common::{self, BINARY, Ended, run, scratch, traces};

/// Every verb, as the help lists them, and those of `analyze`, `measure`, `model` and `slice`; the empty one
/// is the command itself.
fn verbs() -> Vec<String> {
    let mut verbs = listed("");
    assert!(verbs.len() >= 5, "{verbs:?}");
    verbs.extend(listed("analyze"));
    verbs.extend(listed("measure"));
    verbs.extend(listed("model"));
    verbs.extend(listed("slice"));
    verbs.push(String::new());
    verbs
}

/// The verbs that the help of a verb lists.
fn listed(verb: &str) -> Vec<String> {
    let help = help(verb);
    let listed = help.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| !l.is_empty());
    let names = listed.filter(|l| !l.starts_with("   ")).filter_map(|l| l.split_whitespace().next());
    names.filter(|n| *n != "help").map(|n| format!("{verb} {n}").trim().to_owned()).collect()
}

fn help(verb: &str) -> String {
    let ended = run(verb.split_whitespace().chain(["--help"]));
    let ended = ended.with(0);
    assert_eq!(ended.stderr, "", "help belongs on stdout");
    String::from_utf8(ended.stdout).unwrap()
}

/// The commands below "Example:" or "Examples:": indented by two, a line that goes on ends with a backslash.
fn examples(help: &str) -> Vec<String> {
    let lines =
        help.lines().skip_while(|l| !l.starts_with("Example")).skip(1).take_while(|l| l.starts_with("  "));
    let text = lines.collect::<Vec<_>>().join("\n");
    let commands = text.replace("\\\n", " ");
    commands.lines().map(|l| l.trim().to_owned()).collect()
}

/// Commands of a verb run as they stand, one after the other, in a directory with the bundled traces.
fn examples_run(verb: &str) {
    let help = help(verb);
    let examples = examples(&help);
    assert!(!examples.is_empty(), "{verb}: no example in\n{help}");
    let dir = scratch();
    std::os::unix::fs::symlink(traces(), dir.path().join("traces")).unwrap();
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(BINARY, bin.join("slipstream")).unwrap();
    // The reader of manual pages may not be installed.
    if !Command::new("man").arg("--version").output().is_ok_and(|o| o.status.success()) {
        Command::new("ln").arg("-s").arg("/bin/cat").arg(bin.join("man")).status().unwrap();
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    for example in examples {
        let begins = ["slipstream ", "echo "].iter().any(|begin| example.starts_with(begin));
        assert!(begins, "{verb}: {example:?} is no command");
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", &example]).current_dir(dir.path()).env("PATH", &path);
        let ended = Ended::of(shell.stdin(std::process::Stdio::null()).output().unwrap());
        assert_eq!(ended.status, Some(0), "{example}\n{}", ended.stderr);
        assert!(!ended.stdout.is_empty() || example.contains('>'), "{example} printed nothing");
    }
}

/// Verbs whose examples leave something running in the background are apart from others: they wait for
/// seconds, in which the others compute, and one after the other, since several name the same socket. Those
/// of `ctl` name another one.
#[test]
fn every_example_runs() {
    let (waiting, others): (Vec<_>, Vec<_>) =
        verbs().into_iter().partition(|verb| examples(&help(verb)).iter().any(|e| e.contains(" & ")));
    assert!(!waiting.is_empty() && !others.is_empty(), "{waiting:?}, {others:?}");
    std::thread::scope(|scope| {
        for verbs in [waiting, others, listed("ctl")] {
            scope.spawn(move || verbs.iter().for_each(|verb| examples_run(verb)));
        }
    });
}

#[test]
fn completions_for_every_shell_know_the_verbs() {
    for shell in ["bash", "zsh", "fish"] {
        let ended = run(["completions", shell]).with(0);
        let script = String::from_utf8(ended.stdout).unwrap();
        for word in ["analyze", "reframe", "synth", "hold", "policy"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
    }
    run(["completions", "command.com"]).with(2).silent().saying(&["bash"]);
    let dir = scratch();
    let file = dir.path().join("slipstream.bash");
    std::fs::write(&file, run(["completions", "bash"]).with(0).stdout).unwrap();
    let sourced = Command::new("bash")
        .args(["-euc", "source \"$0\"; complete -p slipstream"])
        .arg(&file)
        .output()
        .unwrap();
    Ended::of(sourced).with(0);
    for (verb, begun, completed) in [("lab", "nf", "nf-locality"), ("list", "refr", "reframe")] {
        let words = format!(
            "source \"$0\"; COMP_WORDS=(slipstream {verb} {begun}); COMP_CWORD=2; \
             _slipstream slipstream {begun} {verb}; echo \"${{COMPREPLY[*]}}\""
        );
        let completing = Command::new("bash").args(["-c", &words]).arg(&file).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&completing.stdout).trim(), completed, "{verb} {begun}");
    }
}

#[test]
fn manual_pages_render() {
    for verb in verbs() {
        let page = run(["man"].into_iter().chain(verb.split_whitespace())).with(0).stdout;
        let text = String::from_utf8(page.clone()).unwrap();
        assert!(text.contains(".TH") && text.contains(".SH"), "{verb}: {text}");
        let dir = scratch();
        let file = dir.path().join("page.1");
        std::fs::write(&file, page).unwrap();
        let Ok(groff) = Command::new("groff").args(["-Kutf8", "-man", "-Tutf8", "-ww"]).arg(&file).output()
        else {
            assert!(std::env::var_os("CI").is_none(), "groff is not installed");
            eprintln!("groff is not installed: the page was not rendered");
            continue;
        };
        let ended = Ended::of(groff).with(0);
        assert!(!ended.stdout.is_empty());
        assert_eq!(ended.stderr, "", "{verb}: groff complains");
    }
    run(["man", "nonsense"]).with(2).silent().saying(&["nonsense"]);
    run(["man", "model", "nonsense"]).with(2).silent().saying(&["model nonsense", "slipstream model --help"]);
}

/// Whatever page a page names is there.
#[test]
fn manual_pages_name_each_other() {
    let dir = scratch();
    let folder = dir.path().join("man1");
    run(["man", "--into", common::text(&folder)]).with(2).silent().saying(&[
        "--into",
        "there is no folder",
        "man1; make it first",
    ]);
    std::fs::create_dir(&folder).unwrap();
    run(["man", "--into", common::text(&folder)]).with(0).silent();
    let pages = common::names(&folder);
    for verb in verbs() {
        let page = format!("slipstream-{verb}.1").replace(' ', "-").replace("-.", ".");
        assert!(pages.contains(&page), "{page} is not among {pages:?}");
    }
    let mut named = 0;
    for page in &pages {
        let text = std::fs::read_to_string(folder.join(page)).unwrap().replace('\\', "");
        for name in text.lines().filter_map(|line| line.strip_suffix("(1)")) {
            assert!(pages.contains(&format!("{name}.1")), "{page} names {name}(1)");
            named += 1;
        }
        let verb = page.trim_end_matches(".1").split('-').skip(1);
        let printed = run(["man"].into_iter().chain(verb)).with(0).stdout;
        assert!(printed == std::fs::read(folder.join(page)).unwrap(), "{page}");
    }
    assert_eq!(named, pages.len() - 1, "each page but the first is named once");
}

#[test]
fn version_and_usage() {
    let version = run(["--version"]).with(0).stdout;
    assert_eq!(String::from_utf8(version).unwrap(), format!("slipstream {}\n", env!("CARGO_PKG_VERSION")));
    common::run::<&str>([]).with(2).silent().saying(&["Usage"]);
    run(["frobnicate"]).with(2).silent().saying(&["frobnicate"]);
    run(["analyze"]).with(2).silent().saying(&["<TRACE>"]);
}

/// One name for the number of threads does in every verb that takes one.
#[test]
fn threads_are_workers_in_every_verb() {
    let campus = traces().join("campus.pcap.gz");
    let campus = campus.to_str().unwrap();
    let graph = ["run", "-i", campus, "-o", "null", "-e", "reframe"];
    for words in [&["analyze", campus][..], &["reframe", campus, "null"], &["measure", campus], &graph] {
        for name in ["--threads", "--workers"] {
            run([words, &[name, "2"]].concat()).with(0);
            run([words, &[name, "0"]].concat()).with(2).silent();
        }
    }
}
