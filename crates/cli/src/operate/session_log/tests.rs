use std::io::{BufRead, BufReader};
use std::net::UdpSocket;

use super::*;

pub(super) fn event(number: u16) -> SessionEvent {
    SessionEvent {
        time: Nanos(5),
        begins: true,
        protocol: 17,
        inside: ([10, 0, 0, 1].into(), number),
        external: ([192, 0, 2, 1].into(), 2),
        remote: ([198, 51, 100, 1].into(), 3),
    }
}

fn events(numbers: std::ops::Range<u16>) -> Vec<SessionEvent> {
    numbers.map(event).collect()
}

/// The inside ports of whole lines.
fn read(text: &str) -> Vec<u64> {
    let value = |line| serde_json::from_str::<serde_json::Value>(line).unwrap();
    text.lines().map(|line| value(line)["inside_port"].as_u64().unwrap()).collect()
}

#[test]
fn targets_are_read() {
    assert_eq!("ipfix:10.0.0.1:4739".parse(), Ok(Target::Ipfix("10.0.0.1:4739".into())));
    assert_eq!("syslog:[::1]:514".parse(), Ok(Target::Syslog("[::1]:514".into())));
    assert_eq!("json:/var/log/nat".parse(), Ok(Target::Json("/var/log/nat".into())));
    assert_eq!("json:-".parse(), Ok(Target::Json("/dev/stdout".into())));
    for wrong in [
        "",
        "json:",
        "ipfix:10.0.0.1",
        "file",
        "udp:1.2.3.4:5",
        "ipfix:10.0.0.1:0",
        "syslog:10.0.0.1:65536",
        "syslog:[::1]",
    ] {
        assert!(wrong.parse::<Target>().is_err(), "{wrong}");
    }
}

#[test]
fn a_file_that_was_moved_away_begins_anew() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("nat.json");
    let mut log = Log::open(&Target::Json(path.clone()), 1).unwrap();
    assert_eq!(log.write(&events(0..2), None, Nanos(5)).done, 2);
    std::fs::rename(&path, scratch.path().join("old")).unwrap();
    assert_eq!(log.write(&[event(7)], Some(3), Nanos(5)).done, 1);
    let value: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(
        (value["external"].as_str(), value["external_port"].as_u64(), value["shard"].as_u64()),
        (Some("192.0.2.1"), Some(2), Some(3))
    );
    assert_eq!((value["event"].as_str(), value["time_ns"].as_u64()), (Some("session_created"), Some(5)));
}

/// The old file goes on if its folder went with it, and there is no place for another one.
#[test]
fn a_file_goes_on_where_no_other_can_be_begun() {
    let scratch = tempfile::tempdir().unwrap();
    let [folder, moved] = ["log", "old"].map(|name| scratch.path().join(name));
    std::fs::create_dir(&folder).unwrap();
    let mut lines = Lines::open(&folder.join("nat.json")).unwrap();
    lines.write(&events(0..2), None);
    std::fs::rename(&folder, &moved).unwrap();
    assert!(matches!(lines.write(&events(2..4), None), (2, None)));
    std::fs::create_dir(&folder).unwrap();
    assert!(matches!(lines.write(&events(4..5), None), (1, None)));
    let there = |folder: &PathBuf| read(&std::fs::read_to_string(folder.join("nat.json")).unwrap());
    assert_eq!((there(&moved), there(&folder)), (vec![0, 1, 2, 3], vec![4]));
}

/// The end of a line that a process before did not write is not the beginning of another one.
#[test]
fn a_line_that_was_cut_ends_before_the_next() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("nat.json");
    std::fs::write(&path, "{\"time_ns\":1}\n{\"time").unwrap();
    let mut lines = Lines::open(&path).unwrap();
    lines.write(&events(0..2), None);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("{\"time_ns\":1}\n{\"time\n{"), "{text}");
    assert_eq!(text.lines().count(), 4);
}

/// A disk that takes nothing is told of, and nothing counts as written.
#[test]
fn a_full_disk_is_told() {
    let mut full = Lines::open(std::path::Path::new("/dev/full")).unwrap();
    assert!(matches!(full.write(&events(0..3), None), (0, Some(_))));
}

/// Times are real ones, though somebody has set the clock since the run began.
#[test]
fn times_are_real_whatever_the_clock_of_the_run_says() {
    const HOUR: u64 = 3_600_000_000_000;
    let scratch = tempfile::tempdir().unwrap();
    let target = Target::Json(scratch.path().join("nat.json"));
    let clock = LiveClock::get().behind(HOUR);
    let log = SessionLog::with_room(&target, Log::open(&target, 1).unwrap(), 1, 10, clock).unwrap();
    let before = real_time().0;
    log.offer(0, &[SessionEvent { time: clock.now(), ..event(1) }]);
    log.end_soon();
    assert!(log.finish());
    let text = std::fs::read_to_string(scratch.path().join("nat.json")).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let time = value["time_ns"].as_u64().unwrap();
    assert!(time.abs_diff(before) < HOUR / 2, "{time}, and it was {before}");
}

/// A reader that has stopped keeps nobody; what it didn't take is counted, and what it takes later comes
/// whole and in order.
#[test]
fn a_reader_that_has_stopped_keeps_nobody() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let reader = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let target = Target::Json(path.clone());
    let log =
        SessionLog::with_room(&target, Log::open(&target, 1).unwrap(), 1, 2000, LiveClock::get()).unwrap();
    let since = slipstream::clock::now();
    for _ in 0..10 {
        log.offer(0, &events(0..1000));
    }
    log.end_soon();
    assert!(log.finish(), "it is not stdout that has stopped");
    let took = since.elapsed();
    assert!((PATIENCE..2 * PATIENCE).contains(&took), "{took:?}");
    let (lost, stuck) = {
        let state = log.shared.lock();
        (state.lost as usize, state.in_hand + state.waiting.len())
    };
    assert!(lost >= 7000 - AT_ONCE && stuck > 1000, "lost {lost}, stuck {stuck}");
    // Figures of the run have these and those that never came.
    log.missed(3);
    assert_eq!(log.trouble(), (lost as u64 + 3, 0));
    // Those that are in the pipe are whole lines, and all others are accounted for.
    let mut lines = BufReader::new(reader).lines();
    let taken = 10_000 - lost - stuck;
    for number in 0..taken + stuck {
        let line = lines.next().unwrap().unwrap();
        assert_eq!(read(&line), [number as u64 % 1000]);
    }
}

/// Datagrams that nobody takes are lost, and each is counted; the next one that somebody takes comes whole,
/// and with what it takes to read it.
#[test]
fn datagrams_that_are_refused_are_counted() {
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = nobody.local_addr().unwrap().to_string();
    drop(nobody);
    for target in [Target::Syslog(to.clone()), Target::Ipfix(to.clone())] {
        let mut log = Log::open(&target, 1).unwrap();
        let (mut lost, mut errors) = (0, 0);
        for numbers in [0..1, 1..2, 2..3, 3..4, 4..5, 5..5] {
            let written = log.write(&events(numbers), None, Nanos(5));
            (lost, errors) = (lost + written.lost, errors + u64::from(written.error.is_some()));
            thread::sleep(Duration::from_millis(20));
        }
        assert!(lost == 5 && errors >= 4, "{target:?}: {lost} lost, {errors} errors");
        let somebody = UdpSocket::bind(&to).unwrap();
        somebody.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let (mut datagram, mut sizes) = ([0; 2000], Vec::new());
        for number in 5..7 {
            let written = log.write(&[event(number)], None, Nanos(5));
            assert_eq!((written.done, written.lost, written.error.is_none()), (1, 0, true), "{target:?}");
            sizes.push(somebody.recv(&mut datagram).unwrap());
        }
        let templates = matches!(target, Target::Ipfix(_));
        assert_eq!(sizes[0] > sizes[1], templates, "{target:?}: {sizes:?}");
    }
}

/// An error about a datagram keeps the next one from nobody who listens by then.
#[test]
fn a_datagram_behind_one_that_was_refused_goes_out() {
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = nobody.local_addr().unwrap().to_string();
    drop(nobody);
    let mut datagrams = Datagrams::to(to.as_str()).unwrap();
    datagrams.send(b"lost", 3).unwrap();
    thread::sleep(Duration::from_millis(20));
    let somebody = UdpSocket::bind(&to).unwrap();
    somebody.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(datagrams.send(b"comes", 4).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    let mut datagram = [0; 9];
    assert_eq!(somebody.recv(&mut datagram).unwrap(), b"comes".len());
    let written = sent(&mut datagrams, 7, None);
    assert_eq!((written.done, written.lost, written.error.is_none()), (7, 3, true));
}
