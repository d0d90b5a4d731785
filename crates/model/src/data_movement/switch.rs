//! The number of servers that a switch can slice for (§VI-B b, Fig. 9), from the two points that
//! PayloadPark's paper gives: 26 % of the SRAM with 4 servers of 40 Gbit/s, 38 % with 8.
//!
//! By Little's law the payloads of a server take room in proportion to its rate, so that a faster card counts
//! as several slow ones. Two points leave the growth of SRAM use between and beyond them open: [`Growth`] has
//! two answers. A card that slices for its own server only needs the same room for any number of servers.

/// The growth of SRAM use with the number of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Along the line through the two points: a fixed part, and one for each server.
    Line,
    /// In proportion to the servers, through the second point: the fixed part is taken for theirs.
    Proportional,
}

impl Growth {
    /// Both, first the one that leaves room for more servers.
    pub const BOTH: [Self; 2] = [Self::Line, Self::Proportional];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Line => "line through both points",
            Self::Proportional => "in proportion to the second point",
        }
    }
}

/// A switch that slices for servers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Switch {
    /// Servers and share of the SRAM that they take, two points.
    pub points: [(f64, f64); 2],
    /// Speed of the servers' cards at both points, in Gbit/s.
    pub gbps: f64,
}

impl Default for Switch {
    fn default() -> Self {
        Self { points: [(4.0, 0.26), (8.0, 0.38)], gbps: 40.0 }
    }
}

impl Switch {
    /// Share of the SRAM that so many servers take, with cards of `gbps`; above 1 they don't fit.
    #[must_use]
    pub fn share(&self, growth: Growth, servers: f64, gbps: f64) -> f64 {
        let [(x0, y0), (x1, y1)] = self.points;
        let servers = servers * gbps / self.gbps;
        match growth {
            Growth::Line => y0 + (servers - x0) * (y1 - y0) / (x1 - x0),
            Growth::Proportional => servers * y1 / x1,
        }
    }

    /// The largest number of servers that fit, with cards of `gbps`.
    #[must_use]
    pub fn servers(&self, growth: Growth, gbps: f64) -> u32 {
        // A share never falls with the number of servers, so that the first that has no room ends the search.
        (1..=100_000).take_while(|n| self.share(growth, f64::from(*n), gbps) <= 1.0).last().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_go_through_what_was_measured() {
        let switch = Switch::default();
        for growth in Growth::BOTH {
            assert!((switch.share(growth, 8.0, 40.0) - 0.38).abs() < 1e-12);
        }
        assert!((switch.share(Growth::Line, 4.0, 40.0) - 0.26).abs() < 1e-12);
        // (1 - 0.14) / 0.03, and 8 / 0.38.
        assert_eq!(Growth::BOTH.map(|g| switch.servers(g, 40.0)), [28, 21]);
        // 40 Gbit/s of a card of 100 are two fifths of it; the paper says 8.
        assert_eq!(Growth::BOTH.map(|g| switch.servers(g, 100.0)), [11, 8]);
    }
}
