//! Files of iptables-save as hosts and routers really have them.

use super::text_tests::{check, packet};
use super::*;

fn read(text: &str, how: &IptablesOptions<'_>) -> Result<RuleSet, String> {
    RuleSet::parse_iptables_with(text, how).map_err(|errors| errors.to_string())
}

/// The rules of a gateway with containers: two tables before the one that filters, chains for itself,
/// interfaces, limits.
const GATEWAY: &str = include_str!("../../tests/gateway.rules");

#[test]
fn only_chains_that_packets_come_to_are_read_and_notes_say_so() {
    let how =
        IptablesOptions { input: Some("wan0"), output: Some("docker0"), ..IptablesOptions::new("FORWARD") };
    let set = read(GATEWAY, &how).unwrap();
    let notes: Vec<String> = set.notes().iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "the rule of line 4 is left out: the table `raw` is not used",
            "2 rules of lines 8 to 9 are left out: the table `nat` is not used",
            "2 rules of lines 17 to 18 are left out: packets don't come to the chain `INPUT`",
            "the rule of line 19 is left out: packets don't come to the chain `OUTPUT`",
            "2 rules of lines 27 to 28 are left out: packets don't come to the chain `UNUSED`",
        ]
    );
    // The same chain asked for, or one that calls it, must be right.
    let error =
        read(GATEWAY, &IptablesOptions { input: Some("lo"), ..IptablesOptions::new("INPUT") }).unwrap_err();
    assert!(error.contains("line 18") && error.contains("`mac` is not supported"), "{error}");
    let used = GATEWAY.replace("-j DOCKER\n-A FORWARD -i", "-j UNUSED\n-A FORWARD -i");
    let error = read(&used, &how).unwrap_err();
    assert!(
        error.contains("line 27") && error.contains("line 28") && error.contains("never closed"),
        "{error}"
    );
}

#[test]
fn interfaces_are_those_that_the_stage_stands_between() {
    let between = |input, output| {
        let how =
            IptablesOptions { input: Some(input), output: Some(output), ..IptablesOptions::new("FORWARD") };
        read(GATEWAY, &how).unwrap()
    };
    let (tcp, icmp) = ("tcp 10.9.0.1:1 > 172.17.0.2:80 syn", "icmp 10.9.0.1 > 172.17.0.2");
    check(
        &between("wan0", "docker0"),
        &[(tcp, "allow 26"), ("tcp 10.9.0.1:1 > 172.17.0.2:81 syn", "deny default"), (icmp, "reset 25")],
    );
    check(&between("docker0", "wan0"), &[(tcp, "allow 22"), (icmp, "allow 22")]);
    check(&between("docker0", "docker0"), &[(tcp, "deny 23")]);
    check(&between("eth0", "wan0"), &[(tcp, "log 24, deny default"), (icmp, "log 24, deny default")]);
    check(&between("eth1", "wan0"), &[(icmp, "log 24, reset 25")]);
    check(&between("eth", "wan1"), &[(icmp, "reset 25")]);
    let error = read(GATEWAY, &IptablesOptions::new("FORWARD")).unwrap_err();
    assert!(error.contains("line 20") && error.contains("`out = \"docker0\"`"), "{error}");
    assert!(error.contains("`in = \"docker0\"`"), "{error}");
}

fn rules(lines: &str) -> String {
    format!("*filter\n:FORWARD DROP [0:0]\n{lines}COMMIT\n")
}

/// Rules that iptables refuses, since they would be other ones than they seem.
#[test]
fn options_need_their_protocol_and_stand_once() {
    let said = |rule: &str| {
        read(&rules(&format!("-A FORWARD {rule} -j ACCEPT\n")), &IptablesOptions::new("FORWARD"))
    };
    for (rule, why) in [
        ("--dport 80", "`--dport` needs its protocol"),
        ("-p all --dport 80", "`--dport` needs its protocol"),
        ("! -p tcp --dport 80", "`--dport` needs its protocol"),
        ("-p icmp --sport 80", "`--sport` needs its protocol"),
        ("-m tcp --dport 80", "`tcp` needs its protocol"),
        ("-p udp -m tcp --dport 53", "`tcp` needs its protocol"),
        ("-p udp --syn", "`--syn` needs its protocol"),
        ("-m multiport --dports 1,2", "`multiport` needs its protocol"),
        ("-m icmp --icmp-type 8", "`icmp` needs its protocol"),
        ("-p tcp -p udp", "`-p` is there twice"),
        ("-s 10.0.0.0/8 --source 10.1.0.0/16", "`--source` is there twice"),
        ("-p tcp --dport 80 --destination-port 23", "`--destination-port` is there twice"),
        ("-p tcp -m tcp --syn --tcp-flags SYN SYN", "`--tcp-flags` is there twice"),
        ("-m conntrack --ctstate NEW --ctstate ESTABLISHED", "`--ctstate` is there twice"),
    ] {
        let error = said(rule).unwrap_err();
        assert!(error.contains(why), "{rule}: {error}");
    }
    for rule in [
        "-p tcp --dport 80",
        "-p 6 -m tcp --sport 1024: --dport 80 --syn",
        "-p tcp -m multiport --sports 1,2 -m multiport --dports 3",
        "-p udp -m udp --dport 53 -m conntrack --ctstate NEW -m conntrack ! --ctstate INVALID",
        "-p sctp -m sctp --dport 9",
        "-p icmp -m icmp --icmp-type 8",
        "-p icmp -m comment --comment a -m comment --comment b",
    ] {
        said(rule).unwrap();
    }
}

#[test]
fn types_of_icmp_by_name_and_number() {
    let text = rules(
        "-A FORWARD -p icmp -m icmp --icmp-type 8 -j ACCEPT\n\
         -A FORWARD -p icmp -m icmp --icmp-type fragmentation-needed -j REJECT\n\
         -A FORWARD -p icmp -m icmp --icmp-type 3 -j ACCEPT\n\
         -A FORWARD -p icmp -m icmp ! --icmp-type any -j REJECT\n\
         -A FORWARD -s 10.9.0.0/16 -p icmp -m icmp ! --icmp-type 11/1 -j ACCEPT\n",
    );
    let set = RuleSet::parse_iptables(&text, "FORWARD").unwrap();
    assert!(set.reads().icmp);
    for method in [Method::Linear, Method::Fast] {
        let firewall = Firewall::new(set.clone(), method);
        let line = |packet: &PacketFields| {
            firewall.decide(packet, |_, _| {}).rule.map(|i| set.rules()[i as usize].line)
        };
        let of = |kind, code| line(&packet("icmp 10.9.0.1 > 10.0.0.2").with_icmp(kind, code));
        let seen = [of(8, 0), of(8, 3), of(3, 4), of(3, 3), of(11, 1), of(11, 0), of(0, 0)];
        assert_eq!(seen, [Some(3), Some(3), Some(4), Some(5), None, Some(7), Some(7)], "{method:?}");
        // A type that can't be seen matches neither it nor its opposite; nor does what is no ICMP.
        assert_eq!(line(&packet("icmp 10.9.0.1 > 10.0.0.2")), None);
        assert_eq!(line(&packet("udp 10.9.0.1:1 > 10.0.0.2:2")), None);
    }
    let six =
        rules("-A FORWARD -p ipv6-icmp -m icmp6 --icmpv6-type packet-too-big -j ACCEPT\n-A FORWARD -s ::1\n");
    let firewall = Firewall::new(RuleSet::parse_iptables(&six, "FORWARD").unwrap(), Method::Fast);
    let verdict =
        |kind| firewall.decide(&packet("58 2001:db8::1 > ::2").with_icmp(kind, 0), |_, _| {}).verdict;
    assert_eq!((verdict(2), verdict(1)), (Verdict::Allow, Verdict::Deny));
    let error = RuleSet::parse_iptables(&rules("-A FORWARD -p icmp --icmp-type echo-reqest\n"), "FORWARD")
        .unwrap_err();
    assert!(error.to_string().contains("did you mean `echo-request`?"), "{error}");
}

/// Conditions behind a limit are asked only of packets that the limit lets go on; a limit that is reached
/// leads to the next line, also of a rule that calls a chain; a chain called twice has its limits once.
#[test]
fn a_limit_stands_where_the_rule_has_it() {
    let text = "*filter\n:FORWARD DROP [0:0]\n:web - [0:0]\n\
        -A FORWARD -p tcp -m limit --limit 1/s --limit-burst 2 -m tcp --dport 80 -j ACCEPT\n\
        -A FORWARD -p tcp -m limit --limit 7/day -j web\n\
        -A FORWARD -p tcp -j web\n\
        -A web -m limit --limit 1/s -j LOG\n\
        -A web -s 10.0.0.1/32 -j ACCEPT\nCOMMIT\n";
    let set = RuleSet::parse_iptables(text, "FORWARD").unwrap();
    assert_eq!(set.limits.len(), 3);
    for method in [Method::Linear, Method::Fast] {
        let firewall = Firewall::new(set.clone(), method);
        let run = |text: &str, open: [bool; 3]| {
            let (packet, mut asked) = (packet(text), Vec::new());
            let decision =
                firewall.decide_within(firewall.lookup(&packet), &packet, |_, action| match action {
                    Action::Limit { limit, .. } => {
                        asked.push(*limit);
                        open[*limit as usize]
                    }
                    _ => true,
                });
            (decision.rule.map(|i| set.rules()[i as usize].line), asked)
        };
        let (web, other) = ("tcp 10.0.0.1:1 > 10.0.0.2:80", "tcp 10.0.0.2:1 > 10.0.0.2:81");
        assert_eq!(run(web, [true; 3]), (Some(4), vec![0]), "{method:?}");
        assert_eq!(run(web, [false, true, true]), (Some(8), vec![0, 1, 2]));
        assert_eq!(run(web, [false, false, true]), (Some(8), vec![0, 1, 2]));
        assert_eq!(run(other, [true; 3]), (None, vec![0, 1, 2, 2]));
        assert_eq!(run(other, [false; 3]), (None, vec![0, 1, 2]));
        assert_eq!(run("udp 10.0.0.1:1 > 10.0.0.2:80", [true; 3]), (None, vec![]));
    }
}

const SETS: &str = "create hosts hash:ip family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0x5a\n\
    add hosts 10.0.0.1\nadd hosts 10.0.0.9 comment \"timeout\"\n\
    create nets hash:net family inet hashsize 64 maxelem 9\nadd nets 10.66.0.0/16\nadd nets 10.67.0.0/24\n\
    create services hash:ip,port family inet hashsize 64 maxelem 9\n\
    add services 192.0.2.1,tcp:80\nadd services 192.0.2.1,udp:53\nadd services 192.0.2.9,sctp:443\n\
    create open bitmap:port range 0-65535\nadd open 443\nadd open 8000-8010\n\
    create six hash:net family inet6\nadd six 2001:db8::/32\n";

#[test]
fn sets_are_those_of_ipset_save() {
    let sets = IpSets::parse(SETS).unwrap();
    let how = IptablesOptions { sets: Some(&sets), ..IptablesOptions::new("FORWARD") };
    let text = rules(
        "-A FORWARD -m set --match-set hosts src -j ACCEPT\n\
         -A FORWARD -m set --match-set nets dst -j REJECT\n\
         -A FORWARD -m set --match-set services dst,dst -j ACCEPT\n\
         -A FORWARD -p tcp -m set --match-set open src -j ACCEPT\n\
         -A FORWARD -p udp -m set ! --match-set nets src -m set --match-set open dst -j ACCEPT\n\
         -A FORWARD -s 10.0.0.7/32 -m set --match-set open dst -j ACCEPT\n\
         -A FORWARD -s 10.0.0.7/32 -m set ! --match-set open dst -j REJECT\n",
    );
    let set = read(&text, &how).unwrap();
    check(
        &set,
        &[
            ("tcp 10.0.0.1:1 > 10.66.0.2:80", "allow 3"),
            ("47 10.0.0.9 > 10.66.0.2", "allow 3"),
            ("47 10.0.0.8 > 10.66.255.255", "reset 4"),
            ("47 10.0.0.8 > 10.67.1.0", "deny default"),
            ("tcp 10.0.0.8:1 > 192.0.2.1:80", "allow 5"),
            ("udp 10.0.0.8:1 > 192.0.2.1:80", "deny default"),
            ("udp 10.0.0.8:1 > 192.0.2.1:53", "allow 5"),
            ("udp 10.0.0.8 > 192.0.2.1 fragment", "deny default"),
            ("tcp 10.0.0.8:8010 > 192.0.2.2:53", "allow 6"),
            ("tcp 10.0.0.8:8011 > 192.0.2.2:53", "deny default"),
            ("udp 10.0.0.8:5 > 192.0.2.2:443", "allow 7"),
            ("udp 10.67.0.8:5 > 192.0.2.2:443", "deny default"),
            // Sets of ports alone are of TCP and UDP.
            ("tcp 10.0.0.7:5 > 192.0.2.2:443", "allow 8"),
            ("132 10.0.0.7:5 > 192.0.2.2:443", "reset 9"),
            ("132 10.0.0.7:5 > 192.0.2.9:443", "allow 5"),
        ],
    );
    let six = rules("-A FORWARD -s ::/0 -m set --match-set six src -j ACCEPT\n");
    let six = read(&six, &how).unwrap();
    check(&six, &[("58 2001:db8::1 > ::2", "allow 3"), ("58 2001:db9::1 > ::2", "deny default")]);
    for (line, what) in [
        ("-A FORWARD -m set --match-set host src\n", "did you mean `hosts`?"),
        ("-A FORWARD -m set --match-set services dst\n", "list of sides"),
        ("-A FORWARD -m set --match-set hosts there\n", "list of sides"),
    ] {
        let error = read(&rules(line), &how).unwrap_err();
        assert!(error.contains(what), "{error}");
    }
    let error = read(&rules("-A FORWARD -m set --match-set hosts src\n"), &IptablesOptions::new("FORWARD"))
        .unwrap_err();
    assert!(error.contains("`sets = \"FILE\"`"), "{error}");
    for (text, what) in [
        ("create a list:set size 8\n", "`list:set` are not supported"),
        ("create a hash:ip timeout 300\n", "`timeout` is not supported"),
        ("create a hash:net\nadd a 10.0.0.0/8 nomatch\n", "`nomatch` is not supported"),
        ("create a hash:ip\nadd a ::1\n", "no entry of this set"),
        ("create a hash:ip family inet6\nadd a 10.0.0.1\n", "no entry of this set"),
        ("create a hash:ip\nadd a 10.0.0.1-::1\n", "no entry of this set"),
        ("create a hash:ip\nadd a 10.0.0.9-10.0.0.1\n", "no entry of this set"),
        ("create a hash:ip,port\nadd a 10.0.0.1,icmp:8/0\n", "no entry of this set"),
        ("add a 10.0.0.1\n", "there is no set `a`"),
        ("flush a now\n", "expected `create` or `add`"),
        ("create a\n", "the line ends early"),
    ] {
        let errors = IpSets::parse(text).unwrap_err().to_string();
        assert!(errors.contains(what), "{text}: {errors}");
    }
}

#[test]
fn what_is_not_supported_is_said_or_left_out_with_a_note() {
    for (rule, what) in [
        ("-m mark --mark 0x1 -j ACCEPT", "the match `mark` is not supported"),
        ("-m mac --mac-source 00:11:22:33:44:55 -j ACCEPT", "the match `mac` is not supported"),
        ("-m hashlimit --hashlimit-upto 5/s -j ACCEPT", "the match `hashlimit` is not supported"),
        ("-m addrtype --dst-type LOCAL -j ACCEPT", "address type `LOCAL`"),
        ("-p tcp -m tcp --tcp-option 2 -j ACCEPT", "`--tcp-option` is not supported"),
        ("-f -j DROP", "all fragments but the first"),
        ("-j MARK --set-xmark 0x1/0xffffffff", "the target `MARK` is not supported"),
        ("-j NFQUEUE --queue-num 0", "the target `NFQUEUE` is not supported"),
        ("-m conntrack --ctstate DNAT -j ACCEPT", "the state `DNAT` is not supported"),
        ("-m limit -m limit -j ACCEPT", "a rule has one limit"),
        ("--limit 5/min -j ACCEPT", "write `-m limit` before it"),
        ("-m conntrack --ctorigdst 10.0.0.1 -j ACCEPT", "`--ctorigdst` is not supported"),
    ] {
        let text = rules(&format!("-A FORWARD {rule}\n-A FORWARD -j ACCEPT\n"));
        let error = read(&text, &IptablesOptions::new("FORWARD")).unwrap_err();
        assert!(error.contains("line 3") && error.contains(what) && error.contains("hint"), "{error}");
        let how = IptablesOptions { leave_out_unsupported: true, ..IptablesOptions::new("FORWARD") };
        let set = read(&text, &how).unwrap();
        assert_eq!((set.rules().len(), set.notes().len()), (1, 1), "{rule}");
        assert!(
            set.notes()[0].to_string().starts_with("the rule of line 3 is left out: "),
            "{}",
            set.notes()[0]
        );
    }
    // A rule that is wrong is an error, also if unsupported rules are left out.
    let how = IptablesOptions { leave_out_unsupported: true, ..IptablesOptions::new("FORWARD") };
    for wrong in [
        "-s 10.0.0.300",
        "-p tcp --dport 99999",
        "-j nowhere",
        "-m limit --limit 0/s",
        "-m limit --limit-burst 0",
    ] {
        assert!(read(&rules(&format!("-A FORWARD {wrong}\n")), &how).is_err(), "{wrong}");
    }
}

#[test]
fn multicast_is_an_address_type_that_needs_no_routes() {
    let text = rules(
        "-A FORWARD -m addrtype --dst-type MULTICAST -j REJECT\n-A FORWARD -m addrtype ! --src-type MULTICAST -j ACCEPT\n",
    );
    check(
        &RuleSet::parse_iptables(&text, "FORWARD").unwrap(),
        &[
            ("udp 10.0.0.1:1 > 239.0.0.1:2", "reset 3"),
            ("udp 10.0.0.1:1 > 10.0.0.2:2", "allow 4"),
            ("udp 224.0.0.1:1 > 10.0.0.2:2", "deny default"),
        ],
    );
}
