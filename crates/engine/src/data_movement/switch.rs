//! How many servers a switch can slice for (§VI-B b, Fig. 9), from the two points that its paper gives: 26 % of the SRAM with 4
//! servers of 40 Gbit/s, 38 % with 8 (PayloadPark).
//!
//! By Little's law the payloads of a server take room in proportion to its rate, so that a faster card counts as several slow
//! ones. How the use of SRAM goes on between and beyond two points nobody knows: two ways are given. A card that slices for itself takes what
//! it takes whatever the number of servers.

/// How the use of SRAM grows with the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Along the line through the two points: a part that is always there, and one for each server.
    Line,
    /// In proportion to the servers, from the second point on: what is always there at four servers is taken for theirs.
    Proportional,
}

impl Growth {
    /// Both, the one that allows for more servers first.
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
    /// Speed of the servers' cards at these points, in Gbit/s.
    pub gbps: f64,
}

impl Default for Switch {
    fn default() -> Self {
        Self { points: [(4.0, 0.26), (8.0, 0.38)], gbps: 40.0 }
    }
}

impl Switch {
    /// Share of the SRAM that so many servers take, with cards of `gbps`; above 1 there is no room.
    #[must_use]
    pub fn share(&self, growth: Growth, servers: f64, gbps: f64) -> f64 {
        let [(x0, y0), (x1, y1)] = self.points;
        let servers = servers * gbps / self.gbps;
        match growth {
            Growth::Line => y0 + (servers - x0) * (y1 - y0) / (x1 - x0),
            Growth::Proportional => servers * y1 / x1,
        }
    }

    /// Servers that there is room for, with cards of `gbps`.
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
