//! From one configuration of a running pipeline to the next: what may change in place, and what may not.

use std::path::PathBuf;

use super::config::{Plan, PlannedStage, Wire};
use super::diagnostics::{Diagnostics, Finding};
use super::proxied::proxied;
use super::topology::order;
use slipstream_core::operate::Update;
use slipstream_core::registry::{Common, Ports, Shard, Site};
use slipstream_core::settings::Value;

/// A setting that another configuration gives another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The stage.
    pub stage: String,
    /// The setting.
    pub setting: &'static str,
}

impl Plan {
    /// The settings that change if this pipeline, which runs, is to go by `new`.
    ///
    /// # Errors
    /// Everything that is wrong with the new one, or can't change while it runs: the graph, ports, sizes of
    /// tables. The pipeline is to stay as it is then.
    pub fn changes(&self, new: &Self) -> Result<Vec<Change>, Diagnostics> {
        new.check()?;
        let mut findings = Vec::new();
        self.compare_graphs(new, &mut findings);
        if new.contexts != self.contexts {
            let message = "flow contexts can't change while the pipeline runs";
            findings.push(restart(Finding::new(&new.contexts_span, message)));
        }
        let mut changes = Vec::new();
        for stage in &new.stages {
            let old = self.stage(&stage.name).and_then(|id| self.stages.get(id));
            // Another type has settings of its own.
            let Some(old) = old.filter(|old| old.kind.name == stage.kind.name) else { continue };
            let known = stage.kind.properties.reload.map_or(&[][..], |reload| reload.settings);
            for setting in stage.kind.settings.iter().map(|s| s.name) {
                if self.value(old, setting) == new.value(stage, setting) {
                    continue;
                }
                if known.contains(&setting) {
                    changes.push(Change { stage: stage.name.clone(), setting });
                    continue;
                }
                let mut message =
                    format!("`{setting}` of `{}` can't change while the pipeline runs", stage.name);
                if let [Some(before), Some(after)] = [old, stage].map(|s| s.settings.rules_file(setting))
                    && before == after
                {
                    message += &format!(", and the rules in {} have", after.display());
                }
                findings.push(restart(Finding::new(&new.setting_span(stage, Some(setting)), message)));
            }
            let ports = stage.kind.properties.reload.map(|reload| reload.ports);
            let [before, after] = [old, stage].map(|s| {
                let mut names = ports.map_or_else(Vec::new, |ports| ports(&s.settings));
                names.sort();
                names
            });
            if before != after {
                let (name, names) = (&stage.name, before.join(", "));
                let message = format!("the ports of `{name}` can't change while the pipeline runs: {names}");
                findings.push(restart(Finding::new(&stage.span, message)));
            }
        }
        new.fail_on(findings)?;
        Ok(changes)
    }

    /// A setting as it counts: paths of two configurations are the same where they lead to the same place.
    fn value(&self, stage: &PlannedStage, setting: &str) -> Option<Value> {
        let whole = |path: &PathBuf| Value::File(self.base.join(path));
        match stage.settings.0.get(setting)? {
            Value::File(path) => Some(whole(path)),
            value => Some(value.clone()),
        }
    }

    fn compare_graphs(&self, new: &Self, findings: &mut Vec<Finding>) {
        for stage in &new.stages {
            let old = self.stage(&stage.name).and_then(|id| self.stages.get(id));
            let message = match old {
                None => format!("there is no stage `{}` in the pipeline that runs", stage.name),
                Some(old) if old.kind.name != stage.kind.name || old.role != stage.role => {
                    format!("`{}` is a `{}` in the pipeline that runs", stage.name, old.kind.name)
                }
                Some(_) => continue,
            };
            findings.push(restart(Finding::new(&stage.span, message)));
        }
        for gone in self.stages.iter().filter(|old| new.stage(&old.name).is_none()) {
            let message =
                format!("`{}`, a stage of the pipeline that runs, is not in the graph any more", gone.name);
            findings.push(restart(Finding::new(&(0..1), message)));
        }
        if !findings.is_empty() {
            return;
        }
        let (mine, theirs) = (self.named_wires(), new.named_wires());
        for (wire, name) in new.wires.iter().zip(&theirs) {
            if !mine.contains(name) {
                let message = format!("there is no wire {name} in the pipeline that runs");
                findings.push(restart(Finding::new(&wire.output_span, message)));
            }
        }
        for name in mine.iter().filter(|name| !theirs.contains(name)) {
            let message = format!("the wire {name} of the pipeline that runs is not in the graph any more");
            findings.push(restart(Finding::new(&(0..1), message)));
        }
    }

    /// Every wire by the names of its ends.
    fn named_wires(&self) -> Vec<String> {
        let wire = |w: &Wire| {
            let [from, to] = [w.from, w.to].map(|id| self.stages.get(id));
            let output = from.map(|s| port_name(s, &s.kind.outputs, w.output.as_deref()));
            let input = to.map(|s| port_name(s, &s.kind.inputs, w.input.as_deref()));
            let [output, input] = [output, input].map(Option::unwrap_or_default);
            let [from, to] = [from, to].map(|stage| stage.map_or("?", |s| s.name.as_str()));
            format!("{from}[{output}] -> [{input}]{to}")
        };
        self.wires.iter().map(wire).collect()
    }

    /// Makes what [`Operate::update`](slipstream_core::operate::Operate::update) takes of the stages that go
    /// by this plan from now on, where `changes` says what is new in it: of each of these stages, and of
    /// those that name files, its name and its settings with all that their files say. It may take long, and
    /// is for one run of the pipeline: shards need one each.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn updates(&self, changes: &[Change]) -> Result<Vec<(String, Update)>, Diagnostics> {
        let (mut findings, mut updates) = (Vec::new(), Vec::new());
        let common = Common::default();
        let translated = proxied(self, &mut findings);
        let live = self.stages.iter().any(|s| s.kind.live());
        for id in order(&self.stages, &self.wires).unwrap_or_default() {
            let Some(planned) = self.stages.get(id) else { continue };
            let Some(reload) = planned.kind.properties.reload else { continue };
            let changed = changes.iter().any(|change| change.stage == planned.name);
            if !changed && !(reload.reads_files)(&planned.settings) {
                continue;
            }
            let proxied = translated.get(id).map_or(&[][..], Vec::as_slice);
            let (name, role, base) = (&planned.name, planned.role, &self.base);
            let (common, shard) = (&common, Shard::ALONE);
            let site =
                Site { name, role, dry: false, base, seed: 0, choices: 0, live, proxied, common, shard };
            match (reload.make)(&planned.settings, &site) {
                Ok(update) => updates.push((planned.name.clone(), update)),
                Err(error) => findings.push(self.finding(planned, error)),
            }
        }
        self.fail_on(findings)?;
        Ok(updates)
    }
}

fn restart(finding: Finding) -> Finding {
    finding.hint("start the pipeline anew for this")
}

/// The name of one of a stage's `ports`, whether a graph has its name, its number, or nothing, which is the
/// first; its number where settings name it that can't change.
fn port_name(stage: &PlannedStage, ports: &Ports, written: Option<&str>) -> String {
    let names = match (ports, stage.kind.properties.reload) {
        (Ports::AsSet(_), Some(reload)) => (reload.ports)(&stage.settings),
        _ => ports.names(),
    };
    let written = written.unwrap_or("0");
    let number = || written.parse().ok().and_then(|number: usize| names.get(number));
    // A port that has a number for a name is meant by it.
    let name = names.iter().find(|name| *name == written).or_else(number);
    name.map_or_else(|| written.to_owned(), String::clone)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Plan {
        Plan::from_toml(text, "p.toml", "".as_ref()).unwrap()
    }

    fn refused(old: &str, new: &str) -> Vec<(usize, String)> {
        let errors = plan(old).changes(&plan(new)).unwrap_err();
        errors.0.iter().map(|d| (d.error.line, d.error.message.clone())).collect()
    }

    const OLD: &str = "graph = \"in :: null -> reframe -> out :: null\"\n[stage.reframe]\nhold = \"64us\"\n";

    #[test]
    fn what_may_change_is_told_and_what_may_not_is_refused_with_its_line() {
        let new = OLD.replace("64us", "32us");
        let changes = plan(OLD).changes(&plan(&new)).unwrap();
        assert_eq!(changes, [Change { stage: "reframe".into(), setting: "hold" }]);
        assert_eq!(plan(OLD).changes(&plan(OLD)).unwrap(), []);
        // The default, written.
        assert_eq!(plan(OLD).changes(&plan(&format!("{OLD}burst = 32\n"))).unwrap(), []);

        let all = refused(OLD, &format!("{OLD}flows = 4096\n"));
        assert!(matches!(all.as_slice(), [(4, why)] if why.contains("`flows` of `reframe`")), "{all:?}");
        let all = refused(OLD, &OLD.replace("-> out", "-> counter -> out"));
        assert!(matches!(all.as_slice(), [(1, why)] if why.contains("no stage `counter`")), "{all:?}");
        let all = refused(&OLD.replace("-> out", "-> counter -> out"), OLD);
        assert!(matches!(all.as_slice(), [(1, why)] if why.contains("`counter`")), "{all:?}");
        let all = refused(OLD, &OLD.replace("in :: null", "in :: synth"));
        assert!(matches!(all.as_slice(), [(1, why)] if why.contains("`in` is a `null`")), "{all:?}");
        let all = refused(OLD, &format!("context = \"off\"\n{OLD}"));
        assert!(matches!(all.as_slice(), [(1, why)] if why.contains("flow contexts")), "{all:?}");
    }

    /// A switch keeps its ports. Rules in a file that has changed are a change, or are said not to be
    /// possible.
    #[test]
    fn ports_of_a_switch_stay() {
        let dir = tempfile::tempdir().unwrap();
        let rules = dir.path().join("rules.txt");
        std::fs::write(&rules, "udp\n").unwrap();
        let with = |ports: &str| {
            format!(
                "graph = 'in :: null -> s :: switch; s[a] -> c :: counter -> out :: null; s[other] -> out'\n\
                 [stage.s]\nports = [{ports}]\n[stage.c]\nrules = '@{}'\n",
                rules.display()
            )
        };
        let old = with("'a: tcp', 'b: udp'");
        let changes = plan(&old).changes(&plan(&with("'b: udp port 53', 'a: tcp'"))).unwrap();
        assert_eq!(changes, [Change { stage: "s".into(), setting: "ports" }]);
        let all = refused(&old, &with("'a: tcp', 'c: udp'"));
        assert!(
            matches!(all.as_slice(), [(_, why)] if why.contains("the ports of `s` can't change") && why.contains("a, b")),
            "{all:?}"
        );
        let before = plan(&old);
        std::fs::write(&rules, "tcp\n").unwrap();
        let why = before.changes(&plan(&old)).unwrap_err().to_string();
        assert!(why.contains("`rules` of `c` can't change") && why.contains("rules.txt have"), "{why}");
    }

    #[test]
    fn another_wire_is_refused() {
        let (a, b) = (
            "s[a] -> m -> out :: null; s[other] -> [back]m",
            "s[a] -> [back]m -> out :: null; s[other] -> m",
        );
        let dir = tempfile::tempdir().unwrap();
        let rules = dir.path().join("rules.txt");
        std::fs::write(&rules, "default deny\n").unwrap();
        let graph = |wires| {
            format!(
                "graph = '''in :: null -> s :: switch; m :: firewall; {wires}'''\n[stage.m]\nrules = {rules:?}\n[stage.s]\nports = [\"a: tcp\"]\n"
            )
        };
        let all = refused(&graph(a), &graph(b));
        assert_eq!(all.len(), 4, "{all:?}");
        assert!(all.iter().any(|(_, why)| why.contains("no wire s[other] -> [in]m")), "{all:?}");
        // The same ones, written in another way.
        let same = "s[0] -> [0]m; m[0] -> [in]out :: null; s[other] -> [1]m";
        assert_eq!(plan(&graph(a)).changes(&plan(&graph(same))).unwrap(), []);
    }

    /// In another order of the rules, a number is another port; what runs would go on by the old one.
    #[test]
    fn a_number_that_comes_to_mean_another_port_is_refused() {
        let graph = |ports: &str, port: &str| {
            format!(
                "graph = 'in :: null -> s :: switch; s[{port}] -> c :: counter -> out :: null; s[other] -> out'\n\
                 [stage.s]\nports = [{ports}]\n"
            )
        };
        let [old, new] = ["'a: tcp', 'b: udp'", "'b: udp', 'a: tcp'"];
        let all = refused(&graph(old, "0"), &graph(new, "0"));
        assert!(all.iter().any(|(_, why)| why.contains("no wire s[b] -> [in]c")), "{all:?}");
        let changes = plan(&graph(old, "0")).changes(&plan(&graph(new, "1"))).unwrap();
        assert_eq!(changes, [Change { stage: "s".into(), setting: "ports" }]);
    }
}
