//! The system calls that nothing in a sandbox may make.
//!
//! A deny list on top of what missing capabilities and namespaces refuse already: calls that load code into the kernel,
//! change the view of the file system, make namespaces, reach the host's keyrings, or have a history of holes that no
//! capability closes. Two filters, since a filter has one answer: `ENOSYS` where libraries know a way without, else `EPERM`.

use std::collections::BTreeMap;
use std::io;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op,
    SeccompCondition as Condition, SeccompFilter, SeccompRule as Rule, TargetArch, sock_filter,
};

const REFUSED: &[c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_nfsservctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    SYS_OPEN_TREE_ATTR,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    libc::SYS_kexec_file_load,
];
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[c_long] = &[
    libc::SYS_ioperm,
    libc::SYS_iopl,
    libc::SYS_sysfs,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS__sysctl,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[c_long] = &[];
/// Newer than the `libc` crate.
const SYS_OPEN_TREE_ATTR: c_long = 467;

/// `clone3` hides its flags from a filter; told that it does not exist, libraries use `clone`.
const ABSENT: &[c_long] = &[
    libc::SYS_clone3,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
];

const NAMESPACES: [u64; 7] = [
    0x0002_0000, // CLONE_NEWNS
    0x0200_0000, // CLONE_NEWCGROUP
    0x0400_0000, // CLONE_NEWUTS
    0x0800_0000, // CLONE_NEWIPC
    0x1000_0000, // CLONE_NEWUSER
    0x2000_0000, // CLONE_NEWPID
    0x4000_0000, // CLONE_NEWNET
];
/// In `clone` this bit belongs to the exit signal.
const NEW_TIME: u64 = 0x80;

const UNIX: u64 = 1;
const INET: u64 = 2;
const INET6: u64 = 10;
const NETLINK: u64 = 16;
const SOCKET_FAMILIES: [u64; 4] = [UNIX, INET, INET6, NETLINK];
const NETLINK_ROUTE: u64 = 0;
/// What is spoken over IP: the kind's own, ICMP, TCP, UDP, ICMPv6, and MPTCP, which falls back to TCP. Others (SCTP, SMC, DCCP,
/// L2TP …) only load code into the kernel that nobody needs here.
const IP_PROTOCOLS: [u64; 6] = [0, 1, 6, 17, 58, 262];
/// Kinds of sockets over IP that mean such a protocol without naming it: RAW, SEQPACKET, DCCP.
const IP_KINDS: [u64; 3] = [3, 5, 6];
/// Above these bits a kind carries flags.
const KIND_BITS: u64 = 0xf;

/// Plain Linux, with an old release number, for a debugger without address randomisation; and the question itself.
const PERSONALITIES: [u64; 6] = [0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff];

const IOCTLS: [u64; 12] = [
    0x5412,      // TIOCSTI: types into somebody else's terminal
    0x541c,      // TIOCLINUX: the same on a console
    0x5000_9401, // BTRFS_IOC_SNAP_CREATE: nested subvolumes hide data from snapshots
    0x5000_940e, // BTRFS_IOC_SUBVOL_CREATE
    0x5000_940f, // BTRFS_IOC_SNAP_DESTROY
    0x5000_9417, // BTRFS_IOC_SNAP_CREATE_V2
    0x5000_9418, // BTRFS_IOC_SUBVOL_CREATE_V2
    0x5000_943f, // BTRFS_IOC_SNAP_DESTROY_V2
    0x4008_9413, // BTRFS_IOC_DEFAULT_SUBVOL
    0x4008_941a, // BTRFS_IOC_SUBVOL_SETFLAGS
    0x4008_6602, // FS_IOC_SETFLAGS: `chattr +C` takes a file's checksums away, and its damage is seen by nobody
    0x8004_587d, // FS_IOC_SHUTDOWN
];

/// x32 calls carry this bit in their number and pass an architecture check.
#[cfg(target_arch = "x86_64")]
const X32_BIT: u32 = 0x4000_0000;

/// The compiled filters.
#[derive(Debug)]
pub(super) struct Filters([BpfProgram; 2]);

impl Filters {
    /// Compiles them; do it before time counts.
    pub(super) fn compile() -> io::Result<Self> {
        let absent = ABSENT.iter().map(|nr| (*nr, Vec::new())).collect();
        Ok(Self([
            program(absent, libc::ENOSYS)?,
            without_x32(program(refused()?, libc::EPERM)?),
        ]))
    }

    /// Installs them on this thread and what it starts.
    pub(super) fn apply(&self) -> io::Result<()> {
        for filter in &self.0 {
            seccompiler::apply_filter(filter).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

fn program(rules: BTreeMap<i64, Vec<Rule>>, errno: i32) -> io::Result<BpfProgram> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let answer = SeccompAction::Errno(errno.cast_unsigned());
    SeccompFilter::new(rules, SeccompAction::Allow, answer, arch)
        .and_then(TryInto::try_into)
        .map_err(io::Error::other)
}

fn refused() -> io::Result<BTreeMap<i64, Vec<Rule>>> {
    let always = REFUSED
        .iter()
        .chain(REFUSED_HERE)
        .map(|nr| (*nr, Vec::new()));
    let mut rules: BTreeMap<i64, Vec<Rule>> = always.collect();
    let bit = |flag: u64| all([(0, Len::Qword, Op::MaskedEq(flag), flag)]);
    let clone = NAMESPACES
        .into_iter()
        .map(bit)
        .collect::<io::Result<Vec<_>>>()?;
    let mut unshare = clone.clone();
    unshare.push(bit(NEW_TIME)?);
    rules.insert(libc::SYS_clone, clone);
    rules.insert(libc::SYS_unshare, unshare);
    let mut socket = vec![
        all(SOCKET_FAMILIES.map(|family| (0, Len::Dword, Op::Ne, family)))?,
        all([
            (0, Len::Dword, Op::Eq, NETLINK),
            (2, Len::Dword, Op::Ne, NETLINK_ROUTE),
        ])?,
    ];
    for family in [INET, INET6] {
        let [a, b, c, d, e, f] = IP_PROTOCOLS.map(|protocol| (2, Len::Dword, Op::Ne, protocol));
        socket.push(all([(0, Len::Dword, Op::Eq, family), a, b, c, d, e, f])?);
        for kind in IP_KINDS {
            socket.push(all([
                (0, Len::Dword, Op::Eq, family),
                (1, Len::Dword, Op::MaskedEq(KIND_BITS), kind),
            ])?);
        }
    }
    rules.insert(libc::SYS_socket, socket);
    let pair = all([(0, Len::Dword, Op::Ne, UNIX)])?;
    rules.insert(libc::SYS_socketpair, vec![pair]);
    rules.insert(
        libc::SYS_personality,
        vec![all(PERSONALITIES.map(|p| (0, Len::Dword, Op::Ne, p)))?],
    );
    let ioctls = IOCTLS
        .into_iter()
        .map(|i| all([(1, Len::Dword, Op::Eq, i)]));
    rules.insert(libc::SYS_ioctl, ioctls.collect::<io::Result<_>>()?);
    Ok(rules)
}

/// A rule that holds when every condition on an argument does.
fn all<const N: usize>(conditions: [(u8, Len, Op, u64); N]) -> io::Result<Rule> {
    conditions
        .into_iter()
        .map(|(argument, length, op, value)| Condition::new(argument, length, op, value))
        .collect::<Result<Vec<_>, _>>()
        .and_then(Rule::new)
        .map_err(io::Error::other)
}

#[cfg(target_arch = "x86_64")]
fn without_x32(mut program: BpfProgram) -> BpfProgram {
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_AT_LEAST: u16 = 0x35;
    const RETURN: u16 = 0x06;
    let absent = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
    let head = [
        sock_filter {
            code: LOAD_WORD,
            jt: 0,
            jf: 0,
            k: 0,
        },
        sock_filter {
            code: JUMP_IF_AT_LEAST,
            jt: 0,
            jf: 1,
            k: X32_BIT,
        },
        sock_filter {
            code: RETURN,
            jt: 0,
            jf: 0,
            k: absent,
        },
    ];
    program.splice(0..0, head);
    program
}

#[cfg(not(target_arch = "x86_64"))]
fn without_x32(program: BpfProgram) -> BpfProgram {
    program
}
