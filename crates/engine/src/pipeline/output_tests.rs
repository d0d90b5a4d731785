//! Files that a pipeline would write: none that it reads, and each by one stage.

use super::*;

/// What is read, be it by a stage or as the configuration itself, is not replaced; but a capture may take the
/// place of its input.
#[test]
fn what_is_read_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["in.pcap", "rules"] {
        std::fs::write(at(name), "udp\n").unwrap();
    }
    std::os::unix::fs::symlink("rules", at("link")).unwrap();
    let plan = |graph: &str| Plan::from_graph(graph, None, None, folder.path());
    for (graph, told) in [
        ("in :: pcap(path=in.pcap) -> flow_stats(export=in.pcap) -> null", "in.pcap, and `in` reads "),
        ("in :: pcap(path=in.pcap) -> tap(path=./in.pcap) -> null", "in.pcap, and `in` reads "),
        ("in :: synth -> firewall(rules=rules) -> pcap(path=link)", "link, and `firewall` reads "),
        ("in :: synth -> tap(path=rules) -> firewall(rules=rules) -> null", "rules, and `firewall` reads "),
        ("in :: synth -> counter(rules=@rules) -> pcap(path=rules)", "rules, and `counter` reads "),
        ("in :: synth -> tap(path=rules, rules=@rules) -> null", "rules, and `tap` reads "),
        (
            "in :: synth -> s :: switch(ports=[\"dns: @rules\"]); s[dns] -> pcap(path=rules); s[other] -> null",
            "rules, and `s` reads ",
        ),
        (
            "in :: synth -> reframe(class=[\"web: @rules => hold=9us\"]) -> pcap(path=rules)",
            "rules, and `reframe` reads ",
        ),
    ] {
        let error = plan(graph).unwrap_err().to_string();
        assert!(error.contains(told) && error.contains("it would be replaced"), "{graph}: {error}");
    }
    plan("in :: pcap(path=in.pcap) -> firewall(rules=rules) -> pcap(path=./in.pcap)").unwrap();
    let own = at("own.toml");
    for (path, refused) in [("./own.toml", true), ("own.pcap", false)] {
        std::fs::write(&own, format!("graph = 'in :: synth -> pcap(path={path})'")).unwrap();
        let error = Plan::from_file(&own).err().map(|error| error.to_string());
        assert_eq!(error.is_some_and(|error| error.contains("this configuration is there")), refused);
    }
}

/// A capture in several files has the names that these may have, and not the one that they are made of.
#[test]
fn files_with_numbers_are_outputs_as_well() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["x-00001.pcap", "in.pcap"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    std::os::unix::fs::symlink("in.pcap", folder.path().join("x-00003.pcap")).unwrap();
    let several = "pcap(path=./x.pcap, rotate_size=1MB)";
    let plan =
        |before: &str| Plan::from_graph(&format!("{before} -> out :: {several}"), None, None, folder.path());
    for (before, told) in [
        ("in :: pcap(path=x-00001.pcap)", "in files with numbers, and `in` reads"),
        ("in :: pcap(path=x-00003.pcap)", "in files with numbers, and `in` reads"),
        ("in :: synth -> tap(path=x-00001.pcap)", "x-00001.pcap, and so does `out`"),
        ("in :: synth -> tap(path=x-123456.pcap)", "x-123456.pcap, and so does `out`"),
        ("in :: synth -> t :: tee; t[1] -> pcap(path=x.pcap, rotate_time=1s); t", "and so does `out`"),
    ] {
        let error = plan(before).unwrap_err().to_string();
        assert!(error.contains(told), "{before}: {error}");
    }
    for good in ["in :: pcap(path=x.pcap)", "in :: pcap(path=in.pcap) -> tap(path=x-1.pcap)"] {
        std::fs::write(folder.path().join("x.pcap"), "").unwrap();
        plan(good).unwrap();
    }
}

/// Each file is written by one stage, whatever the names by which the stages know it.
#[test]
fn a_file_is_written_by_one_stage() {
    let folder = tempfile::tempdir().unwrap();
    let plan = |graph: &str| Plan::from_graph(graph, None, None, folder.path());
    let refused = |graph: &str| plan(graph).unwrap_err().0;
    let [first, second] = &refused("in :: synth -> tap(path=a.pcap) -> out :: pcap(path=./a.pcap)")[..]
    else {
        panic!("two places")
    };
    assert_eq!((first.error.column, second.error.column), (25, 53));
    for (told, message) in
        [(first, "a.pcap, and so does `out`: one would replace"), (second, "a.pcap, and so does `tap`:")]
    {
        assert!(told.error.message.contains(message), "{told}");
    }
    std::fs::write(folder.path().join("a.pcap"), "").unwrap();
    std::os::unix::fs::symlink("a.pcap", folder.path().join("link.pcap")).unwrap();
    let three = "in :: synth -> tap(path=a.pcap) -> t :: tap(path=link.pcap) -> out :: pcap(path=./a.pcap)";
    assert_eq!(refused(three).len(), 3 + 1, "the first is told of with each of the others");
    for stdout in [
        "in :: synth -> tap(path=-) -> out :: pcap(path=-)",
        "in :: synth -> tap(path=/dev/stdout) -> out :: pcap(path=-)",
        "in :: synth -> t :: tee; t[0] -> pcap(path=/dev/fd/1); t[1] -> pcap(path=/dev/stdout)",
        "in :: synth -> flow_stats(export=\"/proc/self/fd/1\") -> out :: pcap(path=-)",
    ] {
        let all = refused(stdout);
        assert!(all.len() == 2 && all.iter().all(|told| told.to_string().contains("mixed")), "{all:?}");
    }
    let folders = "in :: synth -> a :: measure(save=.) -> b :: measure(save=./) -> out :: null";
    assert_eq!(refused(folders).len(), 2);
    for good in [
        "in :: synth -> tap(path=/dev/null) -> out :: pcap(path=/dev/null)",
        "in :: pcap(path=-) -> out :: pcap(path=-)",
        "in :: pcap(path=a.pcap) -> out :: pcap(path=a.pcap)",
        "in :: synth -> a :: measure(save=.) -> tap(path=b.pcap) -> out :: pcap(path=a.pcap)",
    ] {
        plan(good).unwrap();
    }
    let port = |path: &str| {
        Some(("pcap", vec![("path".to_owned(), folder.path().join(path).display().to_string())]))
    };
    let ends = Plan::from_graph("tap(path=b.pcap)", port("a.pcap"), port("b.pcap"), folder.path());
    let all = ends.unwrap_err().0;
    assert_eq!(all.iter().map(|d| d.file.as_str()).collect::<Vec<_>>(), ["graph", "out"]);
}
