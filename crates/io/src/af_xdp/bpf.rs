//! The bpf(2) system call, as far as the port needs it: a map of sockets, a program, and the link that ties
//! the program to an interface as long as somebody has it open.

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::instruction::Instruction;
use super::program::COUNTER;

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP: libc::c_int = 1;
const MAP_UPDATE: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const LINK_UPDATE: libc::c_int = 29;

const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;

/// Bytes of the kernel's account of why it refuses a program.
const LOG: usize = 64 << 10;
/// It is to have the errors alone, and not each instruction (`BPF_LOG_STATS`).
const LOG_LEVEL: u32 = 4;

/// The way in which an interface runs the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// In its driver, before the kernel makes a packet of its own of it.
    Native,
    /// Behind the driver (`SKB` mode).
    Generic,
}

impl Mode {
    fn flag(self) -> u32 {
        match self {
            Self::Generic => 1 << 1,
            Self::Native => 1 << 2,
        }
    }
}

/// The argument of `BPF_MAP_CREATE`.
#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

/// The argument of `BPF_MAP_UPDATE_ELEM` and `BPF_MAP_LOOKUP_ELEM`.
#[repr(C)]
#[derive(Default)]
struct MapElement {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The argument of `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kern_version: u32,
    flags: u32,
    name: [u8; 16],
}

/// The argument of `BPF_LINK_CREATE`.
#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// The argument of `BPF_LINK_UPDATE`.
#[repr(C)]
#[derive(Default)]
struct LinkUpdate {
    link: u32,
    program: u32,
    flags: u32,
    old_program: u32,
}

/// The argument of a bpf(2) command.
///
/// # Safety
/// Its layout is the beginning of the kernel's, and its pointers, if any, are to memory that the command may
/// use.
unsafe trait Attributes {}

// SAFETY: numbers only.
unsafe impl Attributes for MapCreate {}
// SAFETY: made by `put` and `counted` alone, with pointers to values that outlive the call.
unsafe impl Attributes for MapElement {}
// SAFETY: made by `load` alone, with pointers to values that outlive the call.
unsafe impl Attributes for ProgLoad {}
// SAFETY: numbers only.
unsafe impl Attributes for LinkCreate {}
// SAFETY: numbers only.
unsafe impl Attributes for LinkUpdate {}

fn bpf<A: Attributes>(command: libc::c_int, mut attributes: A) -> io::Result<libc::c_long> {
    let len = size_of_val(&attributes);
    // SAFETY: pointer and length are those of a value that outlives the call; `Attributes` says that what it
    // points to does.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attributes, len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn descriptor<A: Attributes>(command: libc::c_int, attributes: A) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    // SAFETY: these commands return a new descriptor (closed at exec), which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn number(fd: &impl AsRawFd) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}

/// A map from queues to sockets.
pub(super) fn sockets(queues: u32) -> io::Result<OwnedFd> {
    descriptor(
        MAP_CREATE,
        MapCreate { map_type: MAP_TYPE_XSKMAP, key_size: 4, value_size: 4, max_entries: queues },
    )
}

/// From now on packets of a queue go to this socket.
pub(super) fn put(map: &OwnedFd, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let value = number(&socket);
    let (key, value) = (&raw const queue as u64, &raw const value as u64);
    bpf(MAP_UPDATE, MapElement { map: number(map), key, value, ..MapElement::default() }).map(drop)
}

/// A map of counters, one for each queue.
pub(super) fn counters(queues: u32) -> io::Result<OwnedFd> {
    let value_size = COUNTER as u32;
    descriptor(
        MAP_CREATE,
        MapCreate { map_type: MAP_TYPE_ARRAY, key_size: 4, value_size, max_entries: queues },
    )
}

/// The count of a queue in a map of counters.
pub(super) fn counted(map: &OwnedFd, queue: u32) -> io::Result<u64> {
    let mut counter = [0_u64; COUNTER / 8];
    let (key, value) = (&raw const queue as u64, &raw mut counter as u64);
    bpf(MAP_LOOKUP, MapElement { map: number(map), key, value, ..MapElement::default() })?;
    let [count, ..] = counter;
    Ok(count)
}

/// Loads a program; where the kernel refuses, the error has its last words.
pub(super) fn load(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    let attributes = |log: Option<&mut Vec<u8>>| ProgLoad {
        prog_type: PROG_TYPE_XDP,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        log_level: if log.is_some() { LOG_LEVEL } else { 0 },
        log_size: log.as_ref().map_or(0, |log| log.len() as u32),
        log: log.map_or(0, |log| log.as_mut_ptr() as u64),
        name: *b"slipstream\0\0\0\0\0\0",
        ..ProgLoad::default()
    };
    descriptor(PROG_LOAD, attributes(None)).or_else(|error| {
        if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EACCES | libc::E2BIG)) {
            return Err(error);
        }
        let mut log = vec![0; LOG];
        let again = descriptor(PROG_LOAD, attributes(Some(&mut log)));
        again.map_err(|error| {
            let said = String::from_utf8_lossy(&log);
            let said = said.trim_matches(['\0', '\n']).lines();
            let last = said.filter(|line| !is_figure(line)).collect::<Vec<_>>().join(" / ");
            // Without a word of the verifier it is the right that is missing.
            if last.is_empty() { error } else { io::Error::other(format!("{error}: {last}")) }
        })
    })
}

/// A line of the verifier's account is about its own work.
fn is_figure(line: &str) -> bool {
    ["verification time ", "stack depth ", "processed ", "insns_stack_depth "]
        .iter()
        .any(|figure| line.starts_with(figure))
}

/// Ties a program to an interface, until the link is closed.
pub(super) fn attach(program: &OwnedFd, interface: u32, mode: Mode) -> io::Result<OwnedFd> {
    let link =
        LinkCreate { program: number(program), interface, attach_type: ATTACH_XDP, flags: mode.flag() };
    descriptor(LINK_CREATE, link)
}

/// Puts a program in the place of the one that a link ties to an interface, from one packet to the next.
pub(super) fn replace(link: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    let update = LinkUpdate { link: number(link), program: number(program), ..LinkUpdate::default() };
    bpf(LINK_UPDATE, update).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::prefilter::{MOST, Prefilter};
    use super::super::program::{Only, program};
    use super::*;
    use slipstream_core::rules::Rule;

    /// The kernel's verifier takes the program, in both forms. It takes root, as everything live does.
    #[test]
    fn the_kernel_takes_the_program() {
        let map = sockets(4).expect("a map of sockets: this test needs root");
        for stamped in [false, true] {
            load(&program(map.as_raw_fd(), None, stamped)).expect("the program");
        }
        let nonsense = load(&[[0x95; 8]]).unwrap_err();
        assert!(nonsense.to_string().len() > 20, "{nonsense}");
    }

    /// It takes rules of every kind, and as many as may be given.
    #[test]
    fn the_kernel_takes_rules() {
        let map = sockets(4).expect("a map of sockets: this test needs root");
        let array = counters(4).unwrap();
        let list = |n: usize, one: &dyn Fn(usize) -> String| (0..n).map(one).collect::<Vec<_>>();
        for text in [
            "any".to_owned(),
            "none".to_owned(),
            "not (tcp port 80,443 and src 10.0.0.0/8,2001:db8::/33) and not fragment".to_owned(),
            "vlan 5,7-9; dscp ef,0-7; ecn ce; flags syn,!ack; ip6 proto 47-255".to_owned(),
            "length 64-128,1500-".to_owned(),
            format!("dst {}", list(MOST - 1, &|n| format!("10.{}.{}.0/24", n / 200, n % 200)).join(",")),
            list(MOST / 4, &|n| format!("src 10.0.{}.{} and dst port {n}", n / 200, n % 200)).join("; "),
            format!("src {}", list(MOST / 4 - 1, &|n| format!("2001:db8:{n:x}::1")).join(",")),
            list(MOST / 2, &|n| format!("length {}", 60 + 2 * n)).join(" or "),
            list(290, &|n| format!("(src port {n} or dst port {n}) and (not vlan {n} or ecn {})", n % 4))
                .join(" and "),
        ] {
            let rules = Prefilter::new(&Rule::parse(&text).unwrap()).unwrap();
            let only = Only { rules: &rules, counters: array.as_raw_fd() };
            let loaded = load(&program(map.as_raw_fd(), Some(only), true));
            assert!(loaded.is_ok(), "{loaded:?}: {text:.200}");
        }
        assert_eq!(counted(&array, 3).unwrap(), 0);
        assert!(counted(&array, 4).is_err());
    }
}
