//! The poll log: when the processor polled, and how many packets each poll took.
//!
//! Two forms, told apart by their first bytes:
//!
//! - **Text**: a line of column names, then a line a poll, fields apart by commas. The time is the column
//!   `time_ns` (or `t_ns`, `time`), or in ticks of a clock `cycles` (or `t1`, `tsc`); the batch is `batch`
//!   (or `v`, `vecsize`). Optional: `empty_before`, the polls without packets since the line before, where
//!   the log leaves them out (a busy core makes millions a second); `rate`, any text that names the load
//!   under which a poll was taken, and `run`: polls are consecutive only within one rate and run. Lines that
//!   begin with `#` are comments; one that says `clock 3393 MHz` tells the frequency of the ticks.
//! - **Binary**: the eight bytes `SLPPOLL1`, then for each poll two LEB128 numbers: ns since the poll before
//!   (of the first, since the epoch of the clock), and packets. A poll of a busy core takes three or four
//!   bytes.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};

use crate::error::Error;

/// First bytes of a binary log.
pub const MAGIC: [u8; 8] = *b"SLPPOLL1";
/// The most polls that are read of a log.
pub const MAX_POLLS: usize = 1 << 26;
/// The longest line of a text log, bytes.
const MAX_LINE: u64 = 4096;

/// A poll.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Poll {
    /// Its time, in ns by a clock that doesn't run backwards; only differences count. In a log that was read,
    /// since its first poll: a time since 1970 would leave a number with a fraction no room for single ns.
    pub time_ns: f64,
    /// Packets that it took.
    pub batch: u32,
    /// Polls that took none between the poll before in the log and this one, of which the log says no more.
    pub empty_before: u32,
}

/// Consecutive polls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Under which load, as the log calls it; empty where it doesn't.
    pub rate: String,
    /// In order of time.
    pub polls: Vec<Poll>,
}

impl Run {
    /// Packets of a poll and the time to the next one, ns: what its batch took. Where polls were left out of
    /// the log, nobody knows when the service ended, so it doesn't count.
    pub fn services(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.gaps().filter(|g| g.2 == 0).map(|(batch, ns, _)| (batch, ns))
    }

    /// Packets of a poll, the time to the next one in the log, ns, and how many polls without packets lie
    /// between.
    pub fn gaps(&self) -> impl Iterator<Item = (u32, f64, u32)> + '_ {
        let next = self.polls.iter().skip(1);
        self.polls.iter().zip(next).map(|(a, b)| (a.batch, b.time_ns - a.time_ns, b.empty_before))
    }
}

/// A clock is given, and the log needs none.
const IN_NS: &str = "its times are in ns, which no clock changes; ticks are in a column cycles, t1 or tsc";

/// A log as it was read: at least one run, each with polls in order of time.
#[derive(Clone, Debug, PartialEq)]
pub struct PollLog {
    /// The runs, in the order in which they began.
    pub runs: Vec<Run>,
}

impl PollLog {
    /// Reads a log in either form. `clock_mhz` is the frequency of the ticks, where times are in ticks; it
    /// goes before what the log says. Of a log in ns it would change nothing, so it is refused.
    ///
    /// # Errors
    /// [`Error::PollLog`] at the line, or record, that can't be: malformed, out of order, nothing at all;
    /// [`Error::TooLarge`] for more than [`MAX_POLLS`] polls.
    pub fn read(name: &str, from: impl BufRead, clock_mhz: Option<f64>) -> Result<Self, Error> {
        Self::read_at_most(MAX_POLLS, name, from, clock_mhz)
    }

    fn read_at_most(
        most: usize,
        name: &str,
        mut from: impl BufRead,
        clock_mhz: Option<f64>,
    ) -> Result<Self, Error> {
        let mut log = Self { runs: Vec::new() };
        let at = |line| move |error: io::Error| wrong(name, line, &error.to_string());
        let binary = from.fill_buf().map_err(at(1))?.starts_with(&MAGIC);
        if binary {
            if clock_mhz.is_some() {
                return Err(wrong(name, 1, IN_NS));
            }
            log.read_binary(most, name, from)?;
        } else {
            log.read_text(most, name, from, clock_mhz)?;
        }
        if log.polls() == 0 {
            return Err(wrong(name, 1, "there is no poll in it"));
        }
        Ok(log)
    }

    /// All polls.
    #[must_use]
    pub fn polls(&self) -> usize {
        self.runs.iter().map(|r| r.polls.len()).sum()
    }

    /// The names of the loads, in order of their first poll.
    #[must_use]
    pub fn rates(&self) -> Vec<&str> {
        let mut rates: Vec<&str> = Vec::new();
        for run in &self.runs {
            if !rates.contains(&run.rate.as_str()) {
                rates.push(&run.rate);
            }
        }
        rates
    }

    /// The part under one load.
    #[must_use]
    pub fn of_rate(&self, rate: &str) -> Self {
        Self { runs: self.runs.iter().filter(|r| r.rate == rate).cloned().collect() }
    }

    /// The share of polls that took 0, 1, 2, … packets.
    #[must_use]
    pub fn batch_pmf(&self) -> Vec<f64> {
        let all = self.runs.iter().flat_map(|r| &r.polls);
        let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
        all.for_each(|p| *counts.entry(p.batch).or_default() += 1);
        let empty: u64 = self.runs.iter().flat_map(Run::gaps).map(|g| u64::from(g.2)).sum();
        *counts.entry(0).or_default() += empty;
        let most = counts.last_key_value().map_or(0, |(v, _)| *v as usize);
        let polls = (self.polls() as u64 + empty).max(1) as f64;
        (0..=most).map(|v| counts.get(&(v as u32)).copied().unwrap_or(0) as f64 / polls).collect()
    }

    /// Packets served in a second, from the first poll of each run to its last; none where there is no time
    /// between.
    #[must_use]
    pub fn rate_pps(&self) -> Option<f64> {
        let gaps = self.runs.iter().flat_map(Run::gaps);
        let (packets, ns) = gaps.fold((0.0, 0.0), |(n, t), (v, d, _)| (n + f64::from(v), t + d));
        (ns > 0.0 && packets > 0.0).then(|| packets / ns * 1e9)
    }

    fn read_text(
        &mut self,
        most: usize,
        name: &str,
        mut from: impl BufRead,
        clock_mhz: Option<f64>,
    ) -> Result<(), Error> {
        let mut polls = 0..most;
        let mut clock = clock_mhz;
        let mut columns: Option<Columns> = None;
        let mut origin = None;
        // Index of the run for each rate and run number.
        let mut places: BTreeMap<(String, String), usize> = BTreeMap::new();
        let mut buffer = Vec::new();
        for number in 1u64.. {
            buffer.clear();
            let limited = from.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut buffer);
            if limited.map_err(|e| wrong(name, number, &e.to_string()))? == 0 {
                break;
            }
            if buffer.len() as u64 > MAX_LINE {
                return Err(wrong(name, number, "the line is too long for a poll"));
            }
            let line = std::str::from_utf8(&buffer).map_err(|_| wrong(name, number, "it is not text"))?;
            // Some programs begin a text with a byte order mark.
            let line = if number == 1 { line.strip_prefix('\u{feff}').unwrap_or(line) } else { line }.trim();
            if let Some(comment) = line.strip_prefix('#') {
                clock = clock.or_else(|| clock_of(comment));
                continue;
            }
            if line.is_empty() {
                continue;
            }
            let Some(columns) = &columns else {
                let found = Columns::of(name, number, line)?;
                if clock_mhz.is_some() && !found.ticks {
                    return Err(wrong(name, number, IN_NS));
                }
                columns = Some(found);
                continue;
            };
            let (key, poll) = columns.poll(name, number, line, clock, &mut origin)?;
            let place = *places.entry(key).or_insert_with_key(|key| {
                self.runs.push(Run { rate: key.0.clone(), polls: Vec::new() });
                self.runs.len() - 1
            });
            polls.next().ok_or_else(|| too_many(most))?;
            self.push(name, number, place, poll)?;
        }
        Ok(())
    }

    fn read_binary(&mut self, most: usize, name: &str, mut from: impl BufRead) -> Result<(), Error> {
        let mut polls = 0..most;
        from.consume(MAGIC.len());
        self.runs.push(Run::default());
        let mut time = 0u64;
        let mut origin = None;
        for number in 1u64.. {
            let fail = |error: io::Error| wrong(name, number, &error.to_string());
            if from.fill_buf().map_err(fail)?.is_empty() {
                break;
            }
            let step = read_number(&mut from).map_err(fail)?;
            time =
                time.checked_add(step).ok_or_else(|| wrong(name, number, "its time is beyond all times"))?;
            let batch = u32::try_from(read_number(&mut from).map_err(fail)?)
                .map_err(|_| wrong(name, number, "it has more packets than there can be"))?;
            let time_ns = (time - *origin.get_or_insert(time)) as f64;
            polls.next().ok_or_else(|| too_many(most))?;
            self.push(name, number, 0, Poll { time_ns, batch, empty_before: 0 })?;
        }
        Ok(())
    }

    fn push(&mut self, name: &str, number: u64, place: usize, poll: Poll) -> Result<(), Error> {
        let Some(run) = self.runs.get_mut(place) else { return Ok(()) };
        if let Some(last) = run.polls.last()
            && poll.time_ns <= last.time_ns
        {
            let before = last.time_ns - poll.time_ns;
            let why = if before > 0.0 {
                format!("its time is {before} ns before that of the poll before; polls must be in order")
            } else {
                "its time is that of the poll before: a service can't take no time".to_owned()
            };
            return Err(wrong(name, number, &why));
        }
        run.polls.push(poll);
        Ok(())
    }
}

fn too_many(most: usize) -> Error {
    Error::TooLarge {
        what: "the poll log",
        needed: format!("more than {most} polls"),
        limit: most.to_string(),
        advice: "a tenth of it says as much",
    }
}

fn wrong(name: &str, line: u64, why: &str) -> Error {
    Error::PollLog { name: name.to_owned(), line, why: why.to_owned() }
}

/// The frequency in a comment such as `taken on core 3, clock 3393 MHz`.
fn clock_of(comment: &str) -> Option<f64> {
    let lower = comment.to_ascii_lowercase();
    // The word may stand in a file name, too.
    lower.split("clock").skip(1).find_map(|rest| {
        let mut words = rest.split_whitespace();
        let value: f64 = words.next()?.parse().ok()?;
        (words.next()?.starts_with("mhz") && value.is_finite() && value > 0.0).then_some(value)
    })
}

/// The places of the fields in a line.
struct Columns {
    time: usize,
    ticks: bool,
    batch: usize,
    empty: Option<usize>,
    rate: Option<usize>,
    run: Option<usize>,
}

impl Columns {
    fn of(name: &str, number: u64, header: &str) -> Result<Self, Error> {
        let names: Vec<String> = header.split(',').map(|n| n.trim().to_ascii_lowercase()).collect();
        // Nobody knows which of two columns was meant.
        let find = |wanted: &[&str]| {
            let mut found = names.iter().enumerate().filter(|(_, n)| wanted.contains(&n.as_str()));
            match (found.next(), found.next()) {
                (Some((_, first)), Some((_, second))) => {
                    let why = format!(
                        "the columns {first:?} and {second:?} are both taken for the same; leave one out"
                    );
                    Err(wrong(name, number, &why))
                }
                (first, _) => Ok(first.map(|(at, _)| at)),
            }
        };
        let nanoseconds = find(&["time_ns", "t_ns", "time"])?;
        let ticks = find(&["cycles", "t1", "tsc"])?;
        let lacks = |what: &str| wrong(name, number, &format!("the column names lack {what}: {header:?}"));
        Ok(Self {
            time: nanoseconds.or(ticks).ok_or_else(|| lacks("a time (time_ns, or cycles with a clock)"))?,
            ticks: nanoseconds.is_none(),
            batch: find(&["batch", "v", "vecsize"])?.ok_or_else(|| lacks("a batch size (batch)"))?,
            empty: find(&["empty_before"])?,
            rate: find(&["rate"])?,
            run: find(&["run"])?,
        })
    }

    /// The rate and run of a line, and its poll.
    fn poll(
        &self,
        name: &str,
        number: u64,
        line: &str,
        clock: Option<f64>,
        origin: &mut Option<u64>,
    ) -> Result<((String, String), Poll), Error> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let field = |i: usize| {
            let lacks =
                || wrong(name, number, &format!("it has {} fields, not {} or more", fields.len(), i + 1));
            fields.get(i).copied().ok_or_else(lacks)
        };
        let text = field(self.time)?;
        let time =
            since(text, origin).ok_or_else(|| wrong(name, number, &format!("{text:?} is not a time")))?;
        let whole = |at: usize, what: &str| {
            let text = field(at)?;
            text.parse().map_err(|_| wrong(name, number, &format!("{text:?} is not a number of {what}")))
        };
        let batch = whole(self.batch, "packets")?;
        let empty_before = self.empty.map_or(Ok(0), |at| whole(at, "polls"))?;
        let time_ns = match (self.ticks, clock) {
            (false, _) => time,
            (true, Some(mhz)) => time * 1e3 / mhz,
            (true, None) => {
                return Err(wrong(
                    name,
                    number,
                    "times are in ticks; say of which clock, as in `# clock 3393 MHz`",
                ));
            }
        };
        let text = |i: Option<usize>| i.map_or(Ok(""), field).map(str::to_owned);
        Ok(((text(self.rate)?, text(self.run)?), Poll { time_ns, batch, empty_before }))
    }
}

/// Time since `origin`; the first time is the origin. Times in whole numbers, with a fraction or without, are
/// subtracted before they are rounded.
fn since(text: &str, origin: &mut Option<u64>) -> Option<f64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if let Ok(whole) = whole.parse::<u64>()
        && fraction.bytes().all(|b| b.is_ascii_digit())
    {
        let fraction: f64 = if fraction.is_empty() { 0.0 } else { format!("0.{fraction}").parse().ok()? };
        let origin = *origin.get_or_insert(whole);
        let apart = whole.abs_diff(origin) as f64;
        return Some(if whole < origin { fraction - apart } else { fraction + apart });
    }
    let time: f64 = text.parse().ok().filter(|t: &f64| t.is_finite() && *t >= 0.0)?;
    Some(time - *origin.get_or_insert(time as u64) as f64)
}

fn read_number(from: &mut impl Read) -> io::Result<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let mut byte = [0u8];
        from.read_exact(&mut byte)?;
        let bits = u64::from(byte[0] & 0x7f);
        if bits << shift >> shift != bits {
            break;
        }
        value |= bits << shift;
        if byte[0] < 0x80 {
            return Ok(value);
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "a number is longer than 64 bits"))
}

/// Writes a binary log of bounded size: what a data path calls once a poll. It neither allocates nor reads a
/// clock.
#[derive(Debug)]
pub struct PollWriter<W> {
    to: W,
    last_ns: u64,
    left: u64,
    omitted: u64,
}

impl<W: Write> PollWriter<W> {
    /// Begins a log of at most `limit` polls; those after are counted, not written. `to` should be buffered.
    ///
    /// # Errors
    /// Those of writing.
    pub fn new(mut to: W, limit: u64) -> io::Result<Self> {
        to.write_all(&MAGIC)?;
        Ok(Self { to, last_ns: 0, left: limit, omitted: 0 })
    }

    /// Notes a poll at a time, ns. A time before the last one counts as one ns after it.
    ///
    /// # Errors
    /// Those of writing.
    pub fn poll(&mut self, time_ns: u64, batch: u32) -> io::Result<()> {
        let Some(left) = self.left.checked_sub(1) else {
            self.omitted += 1;
            return Ok(());
        };
        self.left = left;
        let time_ns = time_ns.max(self.last_ns.saturating_add(1));
        let mut bytes = [0u8; 16];
        let mut room = bytes.as_mut_slice();
        put_number(&mut room, time_ns - self.last_ns);
        put_number(&mut room, u64::from(batch));
        let used = 16 - room.len();
        self.last_ns = time_ns;
        self.to.write_all(bytes.get(..used).unwrap_or_default())
    }

    /// Polls that came after the limit.
    pub fn omitted(&self) -> u64 {
        self.omitted
    }

    /// Ends the log.
    ///
    /// # Errors
    /// Those of writing.
    pub fn finish(mut self) -> io::Result<W> {
        self.to.flush()?;
        Ok(self.to)
    }
}

fn put_number(room: &mut &mut [u8], mut value: u64) {
    loop {
        let more = value >= 0x80;
        let Some((byte, rest)) = std::mem::take(room).split_first_mut() else { return };
        *byte = value as u8 & 0x7f | if more { 0x80 } else { 0 };
        *room = rest;
        value >>= 7;
        if !more {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<PollLog, Error> {
        PollLog::read("log", text.as_bytes(), None)
    }

    #[test]
    fn text_in_ns_and_in_ticks() {
        let log = read("time_ns,batch\n100,3\n250.5,0\n400,7\n").unwrap();
        let services: Vec<_> = log.runs[0].services().collect();
        assert_eq!(services, [(3, 150.5), (0, 149.5)]);
        assert_eq!(log.rate_pps(), Some(3.0 / 300.0 * 1e9));
        let log = read(
            "# clock-x.dat (clock 2000 MHz; y)\nrate,run,t1,v\n5,0,1000,2\n5,1,10,3\n5,0,3000,2\n7,0,1,1\n",
        )
        .unwrap();
        assert_eq!(log.rates(), ["5", "7"]);
        assert_eq!(log.runs.len(), 3);
        assert_eq!(log.runs[0].services().collect::<Vec<_>>(), [(2, 1000.0)]);
        assert_eq!(log.of_rate("5").batch_pmf(), [0.0, 0.0, 2.0 / 3.0, 1.0 / 3.0]);
    }

    #[test]
    fn a_clock_is_refused_where_times_are_in_ns() {
        let mut writer = PollWriter::new(Vec::new(), 9).unwrap();
        writer.poll(1, 1).unwrap();
        let binary = writer.finish().unwrap();
        for log in [&b"# clock 2000 MHz\ntime,batch\n0,3\n250,0\n"[..], &binary] {
            PollLog::read("log", log, None).unwrap();
            let error = PollLog::read("log", log, Some(2000.0)).unwrap_err().to_string();
            assert!(error.contains("times are in ns"), "{error}");
        }
    }

    /// Times since 1970 in ns: a number with a fraction has no room for single ns there.
    #[test]
    fn no_time_is_rounded_for_its_size() {
        for (unit, clock) in [("time_ns", None), ("t1", Some(1000.0))] {
            let text = format!(
                "{unit},batch,run\n1763792000123456789,3,1\n1763792000123456790,2,1\n1763792000123456790.25,0,1\n\
                 1763792000123456780,1,2\n1.763792000123456e18,1,3\n"
            );
            let log = PollLog::read("log", text.as_bytes(), clock).unwrap();
            assert_eq!(log.runs[0].services().collect::<Vec<_>>(), [(3, 1.0), (2, 0.25)]);
            assert_eq!(log.runs[1].polls[0].time_ns, -9.0);
            assert!((log.runs[2].polls[0].time_ns + 789.0).abs() < 256.0);
        }
        let mut writer = PollWriter::new(Vec::new(), 9).unwrap();
        for time in [1_763_792_000_123_456_789, 1_763_792_000_123_456_790, 1_763_792_000_123_457_000] {
            writer.poll(time, 1).unwrap();
        }
        let log = PollLog::read("log", writer.finish().unwrap().as_slice(), None).unwrap();
        assert_eq!(log.runs[0].services().collect::<Vec<_>>(), [(1, 1.0), (1, 210.0)]);
    }

    #[test]
    fn polls_that_the_log_leaves_out_count() {
        let log = read("time_ns,batch,empty_before,source\n1000,3,7,0\n1300,2,0,0\n2000,1,5,0\n2100,4,0,0\n")
            .unwrap();
        let run = &log.runs[0];
        // The second poll was followed by five empty ones: when its service ended is not known.
        assert_eq!(run.services().collect::<Vec<_>>(), [(3, 300.0), (1, 100.0)]);
        assert_eq!(run.gaps().map(|g| g.2).collect::<Vec<_>>(), [0, 5, 0]);
        let ninth = 1.0 / 9.0;
        assert_eq!(log.batch_pmf(), [5.0 * ninth, ninth, ninth, ninth, ninth]);
        assert_eq!(log.rate_pps(), Some(6.0 / 1100.0 * 1e9));
        assert!(read("time_ns,batch,empty_before\n5,1,-1\n").is_err());
    }

    /// As spreadsheets write it.
    #[test]
    fn a_byte_order_mark_is_no_part_of_a_column() {
        let log = read("\u{feff}time_ns,batch\n100,3\n250,0\n").unwrap();
        assert_eq!(log.runs[0].services().collect::<Vec<_>>(), [(3, 150.0)]);
        let log = read("\u{feff}# clock 2000 MHz\nt1,v\n100,3\n300,0\n").unwrap();
        assert_eq!(log.runs[0].services().collect::<Vec<_>>(), [(3, 100.0)]);
    }

    #[test]
    fn two_columns_for_the_same_are_refused() {
        for header in ["time_ns,batch,batch", "time_ns,t_ns,batch", "time_ns,v,batch", "t1,batch,run,Run"] {
            let error = read(&format!("{header}\n1,2,3,4\n")).unwrap_err().to_string();
            assert!(error.contains("line 1") && error.contains("both taken for the same"), "{error}");
        }
        // Ticks beside the same time in ns say nothing else.
        assert!(read("time_ns,t1,batch\n1,2,3\n").is_ok());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, line, word) in [
            ("", 1, "no poll"),
            ("time_ns,batch\n", 1, "no poll"),
            ("time,v\n5,1\n3,1\n", 3, "in order"),
            ("time,v\n5,1\n5,1\n", 3, "no time"),
            ("time,v\n5\n", 2, "fields"),
            ("time,v\nx,1\n", 2, "\"x\""),
            ("time,v\nNaN,1\n", 2, "not a time"),
            ("time,v\n-1,1\n", 2, "not a time"),
            ("time,v\n1,-1\n", 2, "\"-1\""),
            ("time,v\n1,1e99\n", 2, "1e99"),
            ("a,b\n", 1, "time_ns"),
            ("time\n", 1, "batch"),
            ("t1,v\n1,1\n", 2, "clock"),
        ] {
            match read(text) {
                Err(Error::PollLog { line: at, why, .. }) => {
                    assert!(at == line && why.contains(word), "{text:?}: {at} {why}");
                }
                other => panic!("{text:?}: {other:?}"),
            }
        }
        assert!(PollLog::read("log", [b'x'; 10_000].as_slice(), None).is_err());
        assert!(PollLog::read("log", [0xffu8, b'\n'].as_slice(), None).is_err());
        let cut = [MAGIC.as_slice(), &[5, 0x80]].concat();
        assert!(matches!(PollLog::read("log", cut.as_slice(), None), Err(Error::PollLog { line: 1, .. })));
        let endless = [MAGIC.as_slice(), &[0xff; 40]].concat();
        assert!(PollLog::read("log", endless.as_slice(), None).is_err());
    }

    /// In one run, and in a run for each poll.
    #[test]
    fn no_more_polls_are_read_than_may_be() {
        let mut writer = PollWriter::new(Vec::new(), 200).unwrap();
        (1..=100).for_each(|time| writer.poll(time, 1).unwrap());
        let mut logs = vec![writer.finish().unwrap()];
        for runs in [1, 70, 100] {
            let lines = (0..100).map(|n| format!("{n},1,{}\n", n % runs));
            logs.push(format!("time_ns,batch,run\n{}", lines.collect::<String>()).into_bytes());
        }
        for log in logs {
            let read = |most| PollLog::read_at_most(most, "log", log.as_slice(), None);
            assert_eq!(read(100).unwrap().polls(), 100);
            assert!(matches!(read(99), Err(Error::TooLarge { .. })));
        }
    }

    proptest! {
        #[test]
        fn binary_is_read_as_written(polls in prop::collection::vec((0..1u64 << 52, any::<u32>()), 1..200), limit in 1..300u64) {
            let mut times: Vec<u64> = polls.iter().map(|p| p.0 + 1).collect();
            times.sort_unstable();
            times.dedup();
            let mut writer = PollWriter::new(Vec::new(), limit).unwrap();
            let poll = |(t, p): (&u64, &(u64, u32))| {
                Poll { time_ns: (t - times[0]) as f64, batch: p.1, empty_before: 0 }
            };
            let expected: Vec<Poll> = times.iter().zip(&polls).map(poll).collect();
            for (time, (_, batch)) in times.iter().zip(&polls) {
                writer.poll(*time, *batch).unwrap();
            }
            let kept = expected.len().min(limit as usize);
            prop_assert_eq!(writer.omitted(), (expected.len() - kept) as u64);
            let bytes = writer.finish().unwrap();
            let log = PollLog::read("log", bytes.as_slice(), None).unwrap();
            prop_assert_eq!(&log.runs[0].polls, &expected[..kept]);
        }
    }
}
