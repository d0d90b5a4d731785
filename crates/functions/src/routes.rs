//! Routes from a file: where packets to a prefix go.
//!
//! ```text
//! # comments and blank lines
//! 10.0.0.0/8     via 192.0.2.1 port 1
//! 192.0.2.0/24   port 1                                 # on the link
//! 2001:db8::/32  via 2001:db8:1::1 port wan mac 02:00:00:00:00:01
//! default        via 192.0.2.254 port 0
//! ::/0           via fe80::1 port 0
//! blackhole 10.66.0.0/16
//! ```
//!
//! Output of `ip route` is understood as well: `dev` is `port`, and attributes of Linux alone (`proto`,
//! `scope`, `src`, `hoplimit` and the like) are passed over.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;

use super::firewall::RuleSetErrors;
use super::lpm::Lpm;
use super::text::{Errors, Line, mac, short};
use slipstream_core::rules::RuleError;
use slipstream_core::rules::names::nearest;
use slipstream_core::text_file;

/// Errors in a text of routes.
pub type RouteErrors = RuleSetErrors;

/// An error of a file of routes, which can't be used.
#[derive(Debug, thiserror::Error)]
pub enum RouteFileError {
    /// It can't be read, or isn't UTF-8.
    #[error("{path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Something in it is wrong.
    #[error(transparent)]
    Text(#[from] RouteErrors),
}

/// The next hop of packets to a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// They go out.
    Forward {
        /// The next router; `None` for a prefix on the link, whose hosts are reached themselves.
        gateway: Option<IpAddr>,
        /// The port by name or number, where the route says.
        port: Option<String>,
        /// The Ethernet address of the gateway, where the route says.
        mac: Option<[u8; 6]>,
    },
    /// They are dropped without a word.
    Blackhole,
    /// They are dropped, and their sender is told that there is no route.
    Unreachable,
    /// They are dropped, and their sender is told that they are not allowed.
    Prohibit,
    /// There is no route for them in this table, not even a shorter one.
    Throw,
}

/// One route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destinations, without host bits.
    pub net: IpNet,
    /// Next hop of its packets.
    pub next: NextHop,
    /// Of several routes with one prefix, that with the lowest counts. 0 where nothing is said.
    pub metric: u32,
    /// The line of the text, from 1.
    pub line: u32,
}

/// Routes of a file, one for each prefix, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    routes: Vec<Route>,
    skipped: Vec<u32>,
}

const WORDS: [&str; 9] =
    ["via", "port", "dev", "mac", "metric", "blackhole", "unreachable", "prohibit", "throw"];
/// Words of `ip route` that take a value and mean nothing here.
const PASSED_OVER: [&str; 15] = [
    "proto",
    "protocol",
    "scope",
    "src",
    "pref",
    "expires",
    "error",
    "realm",
    "realms",
    "nhid",
    "uid",
    "ttl-propagate",
    "users",
    "used",
    "age",
];
/// Those that may have a `lock` before the value: what Linux as a host is to assume about the way.
const METRICS: [&str; 16] = [
    "mtu",
    "window",
    "rtt",
    "rttvar",
    "ssthresh",
    "cwnd",
    "advmss",
    "reordering",
    "hoplimit",
    "initcwnd",
    "features",
    "rto_min",
    "initrwnd",
    "quickack",
    "congctl",
    "fastopen_no_cookie",
];
/// Words of `ip route` without a value that mean nothing here.
const FLAGS: [&str; 9] = [
    "onlink",
    "linkdown",
    "pervasive",
    "notify",
    "trap",
    "offload",
    "rt_trap",
    "rt_offload",
    "rt_offload_failed",
];
/// Begins the line in which `ip route get` says more about the route before it.
const CACHE: &str = "cache";
/// Kinds of routes that `ip route show table all` prints and that forward nothing.
const LOCAL: [&str; 4] = ["local", "broadcast", "multicast", "anycast"];
const EXAMPLE: &str = "a route is `10.0.0.0/8 via 192.0.2.1 port 1`, or `blackhole 10.0.0.0/8`";

impl Routes {
    /// Routes from text, one a line. `default` is 0.0.0.0/0, or ::/0 where its gateway is an IPv6 address or
    /// where it has a preference (`pref`), as routes of IPv6 alone have.
    ///
    /// # Errors
    /// Everything that is wrong, up to twenty errors, each with its place and a hint; two routes with one
    /// prefix and one metric.
    pub fn parse(text: &str) -> Result<Self, RouteErrors> {
        let mut errors = Errors::default();
        let mut routes = Self::default();
        let mut all: Vec<(Route, Line<'_>)> = Vec::new();
        for (number, line) in (1_u32..).zip(Line::all(text)) {
            match (Reader { text, rest: line }).route(number) {
                Ok(Some(route)) => all.push((route, line)),
                Ok(None) if matches!(line.word().0.text, "" | CACHE) => {}
                Ok(None) => routes.skipped.push(number),
                Err(error) => errors.push(error),
            }
            if errors.is_full() {
                break;
            }
        }
        all.sort_by_key(|(route, _)| (route.net, route.metric, route.line));
        for same in all.chunk_by(|(a, _), (b, _)| a.net == b.net) {
            for pair in same.windows(2) {
                if let [(a, _), (b, line)] = pair
                    && a.metric == b.metric
                {
                    let message = format!("line {} has a route to {} already", a.line, a.net);
                    errors.push(
                        line.trimmed()
                            .error(text, message)
                            .hint("a `metric` tells which one counts: the lowest"),
                    );
                }
            }
            routes.routes.extend(same.first().map(|(route, _)| route.clone()));
        }
        routes.routes.sort_by_key(|route| route.line);
        errors.finish(routes)
    }

    /// Routes from a file.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), the errors naming the file; a file that can't be read or isn't UTF-8.
    pub fn parse_file(path: impl AsRef<Path>) -> Result<Self, RouteFileError> {
        let path = path.as_ref();
        let text =
            text_file::read(path).map_err(|source| RouteFileError::Read { path: path.to_owned(), source })?;
        Ok(Self::parse(&text).map_err(|errors| errors.in_file(path))?)
    }

    /// The routes.
    #[must_use]
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// Lines with routes of Linux that forward nothing (`local`, `broadcast`, `dead`, link-local networks and
    /// the like), and that are left out.
    #[must_use]
    pub fn skipped(&self) -> &[u32] {
        &self.skipped
    }

    /// A table whose values are indexes into [`routes`](Self::routes).
    #[must_use]
    pub fn table(&self) -> Lpm {
        Lpm::build(self.routes.iter().map(|route| route.net).zip(0_u32..))
    }
}

/// Says that all addresses of a prefix stay on their link (RFC 4291 §2.5.6).
fn is_link_local(net: IpNet) -> bool {
    matches!(net, IpNet::V6(net) if net.prefix_len() >= 10 && net.addr().is_unicast_link_local())
}

/// A line that is being read.
struct Reader<'a> {
    text: &'a str,
    rest: Line<'a>,
}

impl<'a> Reader<'a> {
    fn word(&mut self) -> Option<Line<'a>> {
        let (word, rest) = self.rest.word();
        self.rest = rest;
        (!word.text.is_empty()).then_some(word)
    }

    /// The value of `of`.
    fn value(&mut self, of: Line<'a>) -> Result<Line<'a>, RuleError> {
        let missing = || of.error(self.text, format!("`{}` lacks its value", short(of.text))).hint(EXAMPLE);
        let (word, rest) = self.rest.word();
        self.rest = rest;
        if word.text.is_empty() { Err(missing()) } else { Ok(word) }
    }

    /// The route, or nothing for a line without one that counts.
    fn route(mut self, line: u32) -> Result<Option<Route>, RuleError> {
        let Some(mut first) = self.word() else { return Ok(None) };
        let kind = match first.text {
            "blackhole" => Some(NextHop::Blackhole),
            "unreachable" => Some(NextHop::Unreachable),
            "prohibit" => Some(NextHop::Prohibit),
            "throw" => Some(NextHop::Throw),
            CACHE => return Ok(None),
            // A route over several next hops goes on in such lines.
            "nexthop" => return Err(self.several(first)),
            kind if LOCAL.contains(&kind) => return Ok(None),
            _ => None,
        };
        if kind.is_some() || first.text == "unicast" {
            first = self.value(first)?;
        }
        let prefix = if first.text == "default" { None } else { Some(self.prefix(first)?) };
        let (mut gateway, mut port, mut mac, mut metric, mut alive) = (None, None, None, None, true);
        let (mut preferred, mut local) = (false, false);
        while let Some(word) = self.word() {
            let twice = match word.text {
                "via" => gateway.replace(self.gateway(word, prefix)?).is_some(),
                "dev" | "port" => port.replace(self.value(word)?.text.to_owned()).is_some(),
                "mac" | "lladdr" => mac.replace(self.mac(word)?).is_some(),
                "metric" => metric.replace(self.metric(word)?).is_some(),
                "dead" => !std::mem::replace(&mut alive, false),
                "table" => {
                    local |= self.is_of_local_table(word)?;
                    false
                }
                flag if FLAGS.contains(&flag) => false,
                other if PASSED_OVER.contains(&other) => {
                    self.value(word)?;
                    preferred |= other == "pref";
                    false
                }
                other if METRICS.contains(&other) => {
                    let value = self.value(word)?;
                    if value.text == "lock" {
                        self.value(value)?;
                    }
                    false
                }
                "nexthop" => return Err(self.several(word)),
                other => return Err(self.unknown(word, other)),
            };
            if twice {
                return Err(word.error(self.text, format!("`{}` is there twice", word.text)));
            }
        }
        if local {
            return Ok(None);
        }
        let next = match kind {
            Some(kind) if gateway.is_none() => kind,
            Some(_) => return Err(first.error(self.text, "a route that drops has no gateway")),
            // Each interface has its own, whatever a table says.
            None if gateway.is_none() && port.is_some() && prefix.is_some_and(is_link_local) => {
                return Ok(None);
            }
            None if gateway.is_none() && port.is_none() => {
                return Err(first
                    .error(self.text, "the route leads nowhere")
                    .hint("add `via ADDRESS` or `port NAME`"));
            }
            None => NextHop::Forward { gateway, port, mac },
        };
        let v6 = gateway.map_or(preferred, |gateway| gateway.is_ipv6());
        let any = if v6 { "::/0" } else { "0.0.0.0/0" };
        let net = prefix.unwrap_or_else(|| any.parse().unwrap_or_default());
        Ok(alive.then_some(Route { net, next, metric: metric.unwrap_or(0), line }))
    }

    /// Returns true for a route of the table `local`, which forwards nothing, and false for one of `main`.
    /// All packets come to these two, and to others those of a rule (`ip rule`).
    fn is_of_local_table(&mut self, word: Line<'a>) -> Result<bool, RuleError> {
        let value = self.value(word)?;
        match value.text {
            "local" | "255" => Ok(true),
            "main" | "254" => Ok(false),
            other => {
                let message = format!("the table `{}` is for the packets of a rule", short(other));
                let hint = "leave the route out, or write it without `table` if it is for all packets";
                Err(word.error(self.text, message).hint(hint))
            }
        }
    }

    fn several(&self, word: Line<'a>) -> RuleError {
        let error = word.error(self.text, "routes over several next hops are not supported");
        error.hint("write one `via` a route; the load balancer shares load")
    }

    fn prefix(&self, word: Line<'a>) -> Result<IpNet, RuleError> {
        let text = word.text;
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(address.into());
        }
        match text.parse::<IpNet>() {
            Ok(net) if net == net.trunc() => Ok(net),
            Ok(net) => {
                let error = word.error(self.text, format!("`{net}` has bits set beyond its prefix"));
                Err(error.hint(format!("write `{}`", net.trunc())))
            }
            Err(_) => {
                let error = word.error(self.text, format!("`{}` is no prefix", short(text)));
                Err(match nearest(text, WORDS.into_iter().chain(["default"])) {
                    Some(near) => error.hint(format!("did you mean `{near}`?")),
                    None => error.hint(EXAMPLE),
                })
            }
        }
    }

    fn gateway(&mut self, word: Line<'a>, prefix: Option<IpNet>) -> Result<IpAddr, RuleError> {
        let mut value = self.value(word)?;
        let version = match value.text {
            "inet" => Some(false),
            "inet6" => Some(true),
            _ => None,
        };
        if version.is_some() {
            value = self.value(value)?;
        }
        let Ok(address) = value.text.parse::<IpAddr>() else {
            let error = value.error(self.text, format!("`{}` is no address", short(value.text)));
            return Err(error.hint("names aren't looked up; write `via 192.0.2.1`"));
        };
        let of = version.or(prefix.map(|net| matches!(net, IpNet::V6(_))));
        if of.is_some_and(|six| six != address.is_ipv6()) {
            let error = value.error(self.text, "the gateway is of the other IP version than the prefix");
            return Err(error.hint(format!("if that is meant (RFC 8950), write `via inet6 {address}`")));
        }
        Ok(address)
    }

    fn mac(&mut self, word: Line<'a>) -> Result<[u8; 6], RuleError> {
        let value = self.value(word)?;
        match mac(value.text) {
            Some([first, ..]) if first & 1 == 1 => {
                Err(value.error(self.text, "a gateway can't have a multicast address"))
            }
            Some(mac) => Ok(mac),
            None => {
                let error = value.error(self.text, format!("`{}` is no Ethernet address", short(value.text)));
                Err(error.hint("write `mac 02:00:00:00:00:01`"))
            }
        }
    }

    fn metric(&mut self, word: Line<'a>) -> Result<u32, RuleError> {
        let value = self.value(word)?;
        value.text.parse().map_err(|_| {
            let error = value.error(self.text, format!("`{}` is no metric", short(value.text)));
            error.hint("a metric is a number; the lowest counts")
        })
    }

    fn unknown(&self, word: Line<'a>, text: &str) -> RuleError {
        let error = word.error(self.text, format!("unknown word `{}`", short(text)));
        match nearest(text, WORDS.into_iter()) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error.hint(EXAMPLE),
        }
    }
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
