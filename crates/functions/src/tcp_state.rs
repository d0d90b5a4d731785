//! The state of a TCP connection as a middlebox sees it: from the flags of the segments of both directions.
//!
//! States and moves are those of RFC 9293 §3.3.2 seen from between the two ends, with the names and the
//! treatment of unexpected segments that Linux has: a segment that can belong to no state is invalid; one
//! that may be an answer to something that was not seen (a SYN on an open connection) is let through and
//! moves nothing. Sequence numbers are not tracked.

use slipstream_core::time::{Nanos, SECOND};

/// FIN of a TCP header's flags.
pub const FIN: u8 = 0x01;
/// SYN.
pub const SYN: u8 = 0x02;
/// RST.
pub const RST: u8 = 0x04;
/// ACK.
pub const ACK: u8 = 0x10;

/// URG.
pub const URG: u8 = 0x20;

/// The flags that say what a segment is for.
const KIND: u8 = SYN | ACK | FIN | RST;

/// Returns true if an end may send a segment with these flags (RFC 9293): only a reset and the first segment
/// of a connection have no ACK, nothing begins and ends at once. Linux's tracker calls others invalid; so
/// does ours. PSH, ECE and CWR don't count.
#[inline]
#[must_use]
pub const fn is_plausible(flags: u8) -> bool {
    const SYN_URG: u8 = SYN | URG;
    const SYN_ACK: u8 = SYN | ACK;
    const RST_ACK: u8 = RST | ACK;
    const FIN_ACK: u8 = FIN | ACK;
    const FIN_ACK_URG: u8 = FIN | ACK | URG;
    const ACK_URG: u8 = ACK | URG;
    matches!(
        flags & (FIN | SYN | RST | ACK | URG),
        SYN | SYN_URG | SYN_ACK | RST | RST_ACK | FIN_ACK | FIN_ACK_URG | ACK | ACK_URG
    )
}

/// The way that a packet goes: as the first packet of its connection did, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the end that opened the connection.
    Original,
    /// To it.
    Reply,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TcpState {
    /// A SYN went out.
    #[default]
    SynSent,
    /// SYNs went both ways, neither acknowledged (simultaneous open).
    SynSentBoth,
    /// The SYN was answered by a SYN-ACK.
    SynReceived,
    /// Both ends may send.
    Established,
    /// One end closed its direction.
    FinWait,
    /// The FIN was acknowledged; the other direction is open.
    CloseWait,
    /// Both ends closed.
    LastAck,
    /// Both FINs were acknowledged.
    TimeWait,
    /// Reset.
    Close,
}

/// The effect of a segment on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// This is its state now.
    To(TcpState),
    /// Nothing, not even to its timer; the segment may pass.
    Ignore,
    /// The segment can't belong to the connection.
    Invalid,
    /// A SYN after the connection's end: a new connection of the same ends, opened in the segment's
    /// direction.
    Reopen,
}

const fn names(states: [TcpState; 9]) -> [&'static str; 9] {
    let [a, b, c, d, e, f, g, h, i] = states;
    [a.name(), b.name(), c.name(), d.name(), e.name(), f.name(), g.name(), h.name(), i.name()]
}

impl TcpState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::SynSent,
        Self::SynSentBoth,
        Self::SynReceived,
        Self::Established,
        Self::FinWait,
        Self::CloseWait,
        Self::LastAck,
        Self::TimeWait,
        Self::Close,
    ];

    /// The names of all states, in the same order.
    pub const NAMES: [&'static str; 9] = names(Self::ALL);

    /// The state of this number.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SynSent => "syn_sent",
            Self::SynSentBoth => "syn_sent_both",
            Self::SynReceived => "syn_received",
            Self::Established => "established",
            Self::FinWait => "fin_wait",
            Self::CloseWait => "close_wait",
            Self::LastAck => "last_ack",
            Self::TimeWait => "time_wait",
            Self::Close => "close",
        }
    }

    /// The state that a connection's first segment puts it in; `None` if no connection can begin like this.
    /// `loose`: an ACK begins one that was established before anybody looked.
    #[must_use]
    pub const fn first(flags: u8, loose: bool) -> Option<Self> {
        match flags & (SYN | ACK | FIN | RST) {
            SYN => Some(Self::SynSent),
            ACK if loose => Some(Self::Established),
            _ => None,
        }
    }

    /// Returns true if a segment is a SYN of the connection's opener, though an end has closed its direction
    /// and the connection is not known to be over: it moves nothing, since it may be forged, but what was
    /// not seen may have ended the connection, and then this one begins another.
    #[must_use]
    pub const fn asks_again(self, direction: Direction, flags: u8) -> bool {
        self.is_closing() && matches!(direction, Direction::Original) && flags & KIND == SYN
    }

    /// Returns true if a segment answers [such a SYN](Self::asks_again), so that the connection is another
    /// one now, in the state [`SynReceived`](Self::SynReceived). (An end that still has the old one answers
    /// by an ACK, RFC 9293 §3.10.7.4.)
    #[must_use]
    pub const fn begins_again(self, direction: Direction, flags: u8) -> bool {
        self.is_closing() && matches!(direction, Direction::Reply) && flags & KIND == SYN | ACK
    }

    const fn is_closing(self) -> bool {
        matches!(self, Self::FinWait | Self::CloseWait | Self::LastAck)
    }

    /// The effect of a segment with `flags` on a connection in this state.
    #[inline]
    #[must_use]
    pub const fn step(self, direction: Direction, flags: u8) -> Step {
        use Direction::{Original, Reply};
        use Step::{Ignore, Invalid, Reopen, To};
        use TcpState::{
            Close, CloseWait, Established, FinWait, LastAck, SynReceived, SynSent, SynSentBoth, TimeWait,
        };
        if flags & RST != 0 {
            return if flags & SYN == 0 { To(Close) } else { Invalid };
        }
        match flags & (SYN | ACK | FIN) {
            SYN => match (self, direction) {
                (SynSent, Original) => To(SynSent),
                (SynSent | SynSentBoth, _) => To(SynSentBoth),
                (TimeWait, _) | (Close, Original) => Reopen,
                (_, Original) => Ignore,
                (_, Reply) => Invalid,
            },
            bits if bits == SYN | ACK => match (self, direction) {
                (SynSent, Reply) | (SynSentBoth, _) | (SynReceived, Original) => To(SynReceived),
                (_, Reply) => Ignore,
                (_, Original) => Invalid,
            },
            bits if bits & SYN != 0 => Invalid,
            bits if bits & FIN != 0 => match self {
                SynSent | SynSentBoth => Invalid,
                SynReceived | Established => To(FinWait),
                FinWait | CloseWait | LastAck => To(LastAck),
                TimeWait | Close => To(self),
            },
            ACK => match (self, direction) {
                (SynSent | SynSentBoth, Original) => Invalid,
                (SynSent | SynSentBoth, Reply) => Ignore,
                (SynReceived, Original) => To(Established),
                (FinWait, _) => To(CloseWait),
                (LastAck, _) => To(TimeWait),
                _ => To(self),
            },
            _ => Invalid,
        }
    }
}

/// Flags that may move a connection to another state each time that they are seen.
pub const MOVES: u8 = FIN | SYN | RST;

/// Time, in nanoseconds, for which a connection is remembered after its last segment, by its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpTimeouts {
    /// [`TcpState::SynSent`] and [`TcpState::SynSentBoth`].
    pub syn_sent: u64,
    /// [`TcpState::SynReceived`].
    pub syn_received: u64,
    /// [`TcpState::Established`].
    pub established: u64,
    /// [`TcpState::FinWait`].
    pub fin_wait: u64,
    /// [`TcpState::CloseWait`].
    pub close_wait: u64,
    /// [`TcpState::LastAck`].
    pub last_ack: u64,
    /// [`TcpState::TimeWait`].
    pub time_wait: u64,
    /// [`TcpState::Close`].
    pub close: u64,
}

impl TcpTimeouts {
    /// As Linux's connection tracking has them by default.
    pub const LINUX: Self = Self {
        syn_sent: 120 * SECOND,
        syn_received: 60 * SECOND,
        established: 5 * 86_400 * SECOND,
        fin_wait: 120 * SECOND,
        close_wait: 60 * SECOND,
        last_ack: 30 * SECOND,
        time_wait: 120 * SECOND,
        close: 10 * SECOND,
    };

    /// The least that RFC 5382 REQ-5 allows a NAT: 2 h 4 min for established connections, 4 min for those
    /// that open, close or (RFC 7857 §2.2) were reset.
    pub const RFC_5382: Self = Self::by_phase((2 * 60 + 4) * 60 * SECOND, 4 * 60 * SECOND);

    /// The two timeouts that RFC 5382 tells apart, in nanoseconds: that of established connections, and that
    /// of transitory ones, which open, close or were reset.
    #[must_use]
    pub const fn by_phase(established: u64, transitory: u64) -> Self {
        Self {
            syn_sent: transitory,
            syn_received: transitory,
            established,
            fin_wait: transitory,
            close_wait: transitory,
            last_ack: transitory,
            time_wait: transitory,
            close: transitory,
        }
    }

    /// The shortest of them, in nanoseconds.
    #[must_use]
    pub fn shortest(&self) -> u64 {
        let Self { syn_sent, syn_received, established, fin_wait, close_wait, last_ack, time_wait, close } =
            *self;
        let all = [syn_sent, syn_received, established, fin_wait, close_wait, last_ack, time_wait, close];
        all.into_iter().min().unwrap_or(0)
    }

    /// The timeout of a state, in nanoseconds.
    #[inline]
    #[must_use]
    pub const fn of(&self, state: TcpState) -> u64 {
        match state {
            TcpState::SynSent | TcpState::SynSentBoth => self.syn_sent,
            TcpState::SynReceived => self.syn_received,
            TcpState::Established => self.established,
            TcpState::FinWait => self.fin_wait,
            TcpState::CloseWait => self.close_wait,
            TcpState::LastAck => self.last_ack,
            TcpState::TimeWait => self.time_wait,
            TcpState::Close => self.close,
        }
    }

    /// When a connection in `state` is forgotten if nothing more comes.
    #[inline]
    #[must_use]
    pub const fn deadline(&self, state: TcpState, now: Nanos) -> Nanos {
        now.after(self.of(state))
    }
}

#[cfg(test)]
mod tests {
    use super::Direction::{Original, Reply};
    use super::*;

    fn run(segments: &[(Direction, u8)]) -> Vec<Step> {
        let mut state = TcpState::first(segments[0].1, true).unwrap();
        let mut steps = vec![];
        for &(direction, flags) in &segments[1..] {
            let step = state.step(direction, flags);
            if let Step::To(next) = step {
                state = next;
            }
            steps.push(step);
        }
        steps
    }

    #[test]
    fn a_connection_from_open_to_close() {
        use TcpState::*;
        let steps = run(&[
            (Original, SYN),
            (Reply, SYN | ACK),
            (Original, ACK),
            (Reply, ACK),
            (Original, FIN | ACK),
            (Reply, ACK),
            (Reply, FIN | ACK),
            (Original, ACK),
            (Original, SYN),
        ]);
        let states = [SynReceived, Established, Established, FinWait, CloseWait, LastAck, TimeWait];
        let expected: Vec<_> = states.map(Step::To).into_iter().chain([Step::Reopen]).collect();
        assert_eq!(steps, expected);
    }

    #[test]
    fn both_may_open_at_once() {
        use TcpState::*;
        let steps =
            run(&[(Original, SYN), (Reply, SYN), (Original, SYN | ACK), (Reply, SYN | ACK), (Original, ACK)]);
        let expected = [Step::To(SynSentBoth), Step::To(SynReceived), Step::Ignore, Step::To(Established)];
        assert_eq!(steps, expected);
    }

    /// The moves as a table, a row per kind of segment and direction, a column per state. `-` ignored, `!`
    /// invalid, `+` a new connection.
    #[test]
    fn every_move() {
        use TcpState::*;
        let states =
            [SynSent, SynSentBoth, SynReceived, Established, FinWait, CloseWait, LastAck, TimeWait, Close];
        let names = ["SS", "S2", "SR", "ES", "FW", "CW", "LA", "TW", "CL"];
        for (flags, direction, row) in [
            (SYN, Original, "SS S2 - - - - - + +"),
            (SYN, Reply, "S2 S2 ! ! ! ! ! + !"),
            (SYN | ACK, Original, "! SR SR ! ! ! ! ! !"),
            (SYN | ACK, Reply, "SR SR - - - - - - -"),
            (FIN | ACK, Original, "! ! FW FW LA LA LA TW CL"),
            (FIN | ACK, Reply, "! ! FW FW LA LA LA TW CL"),
            (ACK, Original, "! ! ES ES CW CW TW TW CL"),
            (ACK, Reply, "- - SR ES CW CW TW TW CL"),
            (RST, Original, "CL CL CL CL CL CL CL CL CL"),
            (RST | ACK, Reply, "CL CL CL CL CL CL CL CL CL"),
            (RST | SYN, Reply, "! ! ! ! ! ! ! ! !"),
            (SYN | FIN, Original, "! ! ! ! ! ! ! ! !"),
            (0, Original, "! ! ! ! ! ! ! ! !"),
        ] {
            let seen: Vec<&str> = states
                .iter()
                .map(|state| match state.step(direction, flags) {
                    Step::Ignore => "-",
                    Step::Invalid => "!",
                    Step::Reopen => "+",
                    Step::To(next) => names[states.iter().position(|s| *s == next).unwrap()],
                })
                .collect();
            assert_eq!(seen.join(" "), row, "flags {flags:#x} {direction:?}");
        }
    }

    #[test]
    fn what_begins_a_connection() {
        assert_eq!(TcpState::first(SYN, false), Some(TcpState::SynSent));
        assert_eq!(TcpState::first(ACK, true), Some(TcpState::Established));
        assert_eq!(TcpState::first(ACK, false), None);
        for flags in [SYN | ACK, FIN | ACK, RST, RST | ACK, 0, SYN | FIN, SYN | RST] {
            assert_eq!(TcpState::first(flags, true), None, "{flags:#x}");
        }
    }

    #[test]
    fn every_state_has_the_timeout_of_its_phase() {
        use TcpState::*;
        let timeouts = TcpTimeouts::by_phase(7, 3);
        for state in [SynSent, SynSentBoth, SynReceived, FinWait, CloseWait, LastAck, TimeWait, Close] {
            assert_eq!(timeouts.of(state), 3, "{state:?}");
        }
        assert_eq!((timeouts.of(Established), timeouts.shortest()), (7, 3));
        assert_eq!(TcpTimeouts::LINUX.deadline(Close, Nanos(5)), Nanos(10 * SECOND + 5));
    }
}
