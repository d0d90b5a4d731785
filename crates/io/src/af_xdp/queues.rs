//! Queues of an interface, as they are written.

/// The queues that a port serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Queues {
    /// All that there are.
    All,
    /// These, ascending, each once.
    These(Vec<u32>),
}

impl Queues {
    /// Numbers that may be written.
    const MOST: u32 = 4096;

    /// Reads `all`, `0`, `0-3`, `0,2,4-5`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text == "all" {
            return Some(Self::All);
        }
        let mut all = Vec::new();
        for part in text.split(',') {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let (from, to) = (number(from)?, number(to)?);
            if from > to {
                return None;
            }
            all.extend(from..=to);
        }
        all.sort_unstable();
        all.dedup();
        Some(Self::These(all))
    }

    /// Their numbers, where an interface has so many.
    pub(super) fn numbers(&self, have: u32) -> Vec<u32> {
        match self {
            Self::All => (0..have).collect(),
            Self::These(numbers) => numbers.clone(),
        }
    }
}

/// A number in digits only.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|n| digits && *n < Queues::MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_read() {
        let these = |numbers: &[u32]| Some(Queues::These(numbers.to_vec()));
        for (text, want) in [
            ("all", Some(Queues::All)),
            ("0", these(&[0])),
            ("2-4", these(&[2, 3, 4])),
            ("5,0-1,1", these(&[0, 1, 5])),
            ("", None),
            ("1-", None),
            ("3-1", None),
            ("+1", None),
            ("0,,1", None),
            ("4096", None),
            ("0-4294967295", None),
        ] {
            assert_eq!(Queues::parse(text), want, "{text}");
        }
        assert_eq!(Queues::All.numbers(2), [0, 1]);
    }
}
