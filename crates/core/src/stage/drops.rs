//! The reasons for which packets are dropped, and how many are.

use core::fmt;

/// The reasons that stages of any type may have, each with its name in reports: all that is said of them
/// follows from one list.
macro_rules! drop_reasons {
    ($($(#[$doc:meta])+ $reason:ident $name:literal,)+) => {
        /// The reason why a packet was dropped: one that stages of several types may have, or one of a type's
        /// own.
        ///
        /// ```
        /// use slipstream_core::stage::{DropReason, Drops, OwnReason};
        ///
        /// const TOO_SALTY: DropReason = DropReason::Own(OwnReason::new(0, "too_salty"));
        /// let mut drops = Drops::default();
        /// drops.add(TOO_SALTY, 3);
        /// drops.add(DropReason::Denied, 1);
        /// let names: Vec<_> = drops.iter().map(|(reason, packets)| (reason.name(), packets)).collect();
        /// assert_eq!(names, [("denied", 1), ("too_salty", 3)]);
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DropReason {
            $($(#[$doc])+ $reason,)+
            /// One that only this type of stages has, or a few that know of each other.
            Own(OwnReason),
        }

        /// The numbers of the reasons.
        #[derive(Clone, Copy)]
        #[repr(u8)]
        enum Number {
            $($reason,)+
            /// That of a type's first own reason.
            Own,
        }

        impl DropReason {
            /// The reasons that stages of any type may have, in the order of their numbers.
            pub const GENERAL: [Self; GENERAL] = [$(Self::$reason,)+];

            /// Its name in reports.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)+
                    Self::Own(own) => own.name,
                }
            }

            /// Its number: the place in [`GENERAL`](Self::GENERAL); those of a type's own come behind.
            #[inline]
            #[must_use]
            pub const fn number(self) -> u8 {
                match self {
                    $(Self::$reason => Number::$reason as u8,)+
                    Self::Own(own) => Number::Own as u8 + own.place,
                }
            }
        }
    };
}

drop_reasons! {
    /// The stage is there to throw packets away.
    Discarded "discarded",
    /// The port that the packet left by leads nowhere.
    Unconnected "unconnected",
    /// A firewall rule says so.
    Denied "denied",
    /// Connection tracking takes it for no part of any connection.
    Invalid "invalid",
    /// No route to the destination.
    NoRoute "no_route",
    /// A route that says so.
    Blackhole "blackhole",
    /// Time to live or hop limit used up.
    HopLimit "hop_limit",
    /// Longer than the way out allows, and must not be fragmented.
    TooBig "too_big",
    /// Headers that can't be, or were not captured far enough.
    Malformed "malformed",
    /// The function has no use for this kind of packet.
    Unsupported "unsupported",
    /// No address or port is left for translation.
    NoPort "no_port",
    /// No translation exists for a packet from outside, and none may be made.
    NoMapping "no_mapping",
    /// The table of connections is full.
    TableFull "table_full",
    /// A host, or a port of it, has as many connections as it may have.
    SessionLimit "session_limit",
    /// Over the rate.
    RateLimited "rate_limited",
    /// No backend is healthy.
    NoBackend "no_backend",
    /// It would go out by the port that it came in by.
    SamePort "same_port",
    /// A live port can't send it.
    NotSent "not_sent",
    /// Addresses that no packet on its way may have, such as a source that is no single host.
    Martian "martian",
    /// Sent to another station of the link.
    OtherStation "other_station",
    /// For the stage itself, which has done what was asked.
    Local "local",
    /// Nobody says who has the address of the next hop.
    Unresolved "unresolved",
    /// A fragment whose datagram was not complete in time.
    FragmentTimeout "fragment_timeout",
    /// A fragment of a datagram whose fragments overlap, or disagree about its end.
    FragmentOverlap "fragment_overlap",
    /// A fragment that was there already.
    FragmentDuplicate "fragment_duplicate",
    /// A fragment whose incomplete datagram gave way to later ones, or has too many of them.
    FragmentLimit "fragment_limit",
}

const GENERAL: usize = Number::Own as usize;

impl DropReason {
    /// True of drops that somebody has asked for: by a stage that throws packets away, a rule, a route or a
    /// rate, or by an address that isn't this stage's. Others are losses.
    #[must_use]
    pub const fn is_asked_for(self) -> bool {
        matches!(
            self,
            Self::Discarded
                | Self::Denied
                | Self::Blackhole
                | Self::RateLimited
                | Self::OtherStation
                | Self::Local
        )
    }
}

/// A reason for dropping packets that is a stage type's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnReason {
    place: u8,
    name: &'static str,
}

impl OwnReason {
    /// Reasons of its own that a stage type can have.
    pub const MOST: usize = 16;

    /// The one with this place among the type's own, below [`MOST`](Self::MOST), and with this name in
    /// reports: a-z, 0-9 and _.
    ///
    /// # Panics
    /// If there is no such place, which a constant tells when it is compiled.
    #[must_use]
    pub const fn new(place: u8, name: &'static str) -> Self {
        assert!((place as usize) < Self::MOST, "a stage type has 16 reasons of its own at most");
        Self { place, name }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Packets that a stage dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    general: [u64; GENERAL],
    /// By place; the name is empty before the first such packet.
    own: [(&'static str, u64); OwnReason::MOST],
}

impl Drops {
    /// Counts packets.
    #[inline]
    pub fn add(&mut self, reason: DropReason, packets: u64) {
        if let Some(n) = self.general.get_mut(usize::from(reason.number())) {
            *n += packets;
        } else if let DropReason::Own(OwnReason { place, name }) = reason
            && let Some(own) = self.own.get_mut(usize::from(place))
        {
            *own = (name, own.1 + packets);
        }
    }

    /// Adds the counts of another stage of the same type.
    pub fn merge(&mut self, other: &Self) {
        other.iter().for_each(|(reason, packets)| self.add(reason, packets));
    }

    /// All packets.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, packets)| packets).sum()
    }

    /// The reasons for which packets were dropped, and how many, in the order of the reasons' numbers.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> {
        let own = |(place, (name, packets))| (DropReason::Own(OwnReason { place, name }), packets);
        let own = (0..).zip(self.own).map(own);
        DropReason::GENERAL.into_iter().zip(self.general).chain(own).filter(|(_, n)| *n > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::Verdict;

    #[test]
    fn reasons_keep_their_numbers_and_names() {
        let mut names: Vec<_> = DropReason::GENERAL.iter().map(|r| r.name()).collect();
        for (i, reason) in DropReason::GENERAL.into_iter().enumerate() {
            assert_eq!(usize::from(reason.number()), i);
            assert_eq!(Verdict::drop(reason).outcome(), Err(reason));
            assert_ne!(Verdict::drop(reason), Verdict::KEPT);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::GENERAL.len());
        let own = DropReason::Own(OwnReason::new(15, "own"));
        assert_eq!((own.number(), own.name()), (GENERAL as u8 + 15, "own"));
        assert_eq!(Verdict::drop(own).outcome(), Err(DropReason::Discarded));
        for port in 0..Verdict::MAX_PORTS {
            assert_eq!(Verdict::port(port).outcome(), Ok(port));
        }
    }

    #[test]
    fn drops_add_up() {
        let mut drops = Drops::default();
        drops.add(DropReason::Denied, 3);
        drops.add(DropReason::NotSent, 1);
        let own = [3, 15].map(|place| DropReason::Own(OwnReason::new(place, "own")));
        drops.add(own[1], 5);
        let mut all = drops;
        all.merge(&drops);
        all.add(own[0], 1);
        assert_eq!(all.total(), 19);
        let want = [(DropReason::Denied, 6), (DropReason::NotSent, 2), (own[0], 1), (own[1], 10)];
        assert_eq!(all.iter().collect::<Vec<_>>(), want);
    }
}
