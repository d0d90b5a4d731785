//! System calls that a run has no use for once its ports are open.
//!
//! A program that takes packets from strangers gives up what it needs no more: from then on the kernel
//! refuses to start programs, to look into other processes, to load modules, to mount, to change users, names
//! or clocks. A fault by which a packet could have the program do something else is then a way to less.
//!
//! The calls of a list are refused, and all others allowed: a reload opens files and sockets, and an
//! interface that comes back is given its program by bpf(2) again. A service has the list of what is allowed
//! from its unit.

use std::io;

use libc::{BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, c_long, sock_filter};

/// The system call interface whose numbers the list has (`AUDIT_ARCH_…` of linux/audit.h).
#[cfg(target_arch = "x86_64")]
const INTERFACE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const INTERFACE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const INTERFACE: Option<u32> = None;

/// On x86-64, numbers from here on are those of another interface (x32).
const OTHER_NUMBERS: u32 = 0x4000_0000;

/// Places in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const INTERFACE_AT: u32 = 4;

/// The calls that are refused.
const REFUSED: &[c_long] = &[
    // Other programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Other processes, and the kernel's view of this one.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    // The kernel and the machine.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_personality,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // File systems and name spaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_mknodat,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_unshare,
    libc::SYS_setns,
    // Users, capabilities and keys.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Names and clocks of the machine.
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
];

// A jump goes as far as the last of them is from the first.
const _: () = assert!(REFUSED.len() + 3 <= u8::MAX as usize);

/// Refuses from now on, for all threads of the process and for good, what a run has no use for: such a call
/// gives `EPERM`. No program gets more rights than this process has, either (`no_new_privs`).
///
/// # Errors
/// The kernel has no filters of system calls, or this processor's numbers are not known here.
pub fn confine() -> io::Result<()> {
    install(libc::SECCOMP_FILTER_FLAG_TSYNC)
}

/// The same, with flags of seccomp(2).
fn install(flags: libc::c_ulong) -> io::Result<()> {
    let program = program(INTERFACE.ok_or(io::ErrorKind::Unsupported)?);
    let argument = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: this prctl reads its numbers alone.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mode = c_long::from(libc::SECCOMP_SET_MODE_FILTER);
    // SAFETY: the kernel copies the program, which outlives the call and is only read.
    match unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const argument) } {
        0 => Ok(()),
        // With this flag, the number of a thread that has another filter.
        thread if thread > 0 => Err(io::Error::other(format!("thread {thread} has another filter"))),
        _ => Err(io::Error::last_os_error()),
    }
}

fn plain(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// The filter: calls of another interface, and those of the list, are refused.
fn program(interface: u32) -> Vec<sock_filter> {
    let refused = REFUSED.len() as u8;
    let jump = |kind: u32, k: u32, yes: u8, no: u8| sock_filter {
        jt: yes,
        jf: no,
        ..plain(BPF_JMP | kind | BPF_K, k)
    };
    let load = |at: u32| plain(BPF_LD | BPF_W | BPF_ABS, at);
    // Behind these four come the comparisons, then the return for calls that are allowed and that for others.
    let mut program = vec![
        load(INTERFACE_AT),
        jump(BPF_JEQ, interface, 0, refused + 3),
        load(NUMBER_AT),
        jump(BPF_JGE, OTHER_NUMBERS, refused + 1, 0),
    ];
    program.extend((0..refused).zip(REFUSED).map(|(n, call)| jump(BPF_JEQ, *call as u32, refused - n, 0)));
    program.push(plain(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW));
    program.push(plain(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    program
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::Command;
    use std::thread;

    use super::*;

    /// The answer of the program to a call, by its own rules.
    fn answer(program: &[sock_filter], interface: u32, number: u32) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            match u32::from(step.code) {
                code if code == BPF_LD | BPF_W | BPF_ABS => {
                    accumulator = if step.k == NUMBER_AT { number } else { interface };
                }
                code if code == BPF_RET | BPF_K => return step.k,
                code => {
                    let holds = if code == BPF_JMP | BPF_JEQ | BPF_K {
                        accumulator == step.k
                    } else {
                        accumulator >= step.k
                    };
                    at += usize::from(if holds { step.jt } else { step.jf });
                }
            }
        }
    }

    #[test]
    fn what_is_listed_is_refused_and_nothing_else() {
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        let listed: BTreeSet<u32> = REFUSED.iter().map(|call| *call as u32).collect();
        assert_eq!(listed.len(), REFUSED.len(), "none is listed twice");
        let program = program(7);
        for number in 0..1000 {
            let expected = if listed.contains(&number) { refused } else { libc::SECCOMP_RET_ALLOW };
            assert_eq!(answer(&program, 7, number), expected, "call {number}");
            assert_eq!(answer(&program, 8, number), refused);
            assert_eq!(answer(&program, 7, OTHER_NUMBERS | number), refused);
        }
    }

    /// A thread that is confined by itself starts no program, and goes on with all else.
    #[test]
    fn a_confined_thread_starts_no_program() {
        let status = || std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let started = || Command::new("true").status().map_err(|error| error.kind());
        let (before, after, status_then) = thread::spawn(move || {
            let before = started();
            install(0).unwrap();
            // A thread that it starts is confined like it.
            let after = thread::spawn(started).join().unwrap();
            (before, after, status())
        })
        .join()
        .unwrap();
        assert!(before.unwrap().success());
        assert_eq!(after.unwrap_err(), io::ErrorKind::PermissionDenied);
        assert!(
            status_then.contains("Seccomp:\t2") && status_then.contains("NoNewPrivs:\t1"),
            "{status_then}"
        );
        // This one isn't.
        assert!(started().unwrap().success());
    }
}
