//! Capabilities inside a sandbox, as bit masks with the kernel's numbers.

const CHOWN: u64 = 1 << 0;
const DAC_OVERRIDE: u64 = 1 << 1;
const FOWNER: u64 = 1 << 3;
const FSETID: u64 = 1 << 4;
const KILL: u64 = 1 << 5;
const SETGID: u64 = 1 << 6;
const SETUID: u64 = 1 << 7;
const SETPCAP: u64 = 1 << 8;
const NET_BIND_SERVICE: u64 = 1 << 10;
const SYS_CHROOT: u64 = 1 << 18;
const SYS_PTRACE: u64 = 1 << 19;
const SETFCAP: u64 = 1 << 31;

/// What root has in an operation; also the bounding set of the whole sandbox.
pub const OP_CAPS: u64 = CHOWN
    | DAC_OVERRIDE
    | FOWNER
    | FSETID
    | KILL
    | SETGID
    | SETUID
    | SETPCAP
    | NET_BIND_SERVICE
    | SYS_CHROOT
    | SETFCAP;

/// What PID 1 of a sandbox has. It holds one that no operation can ever get, so that the kernel's subset rule refuses
/// every attempt of an operation to trace it.
pub const SUPERVISOR_CAPS: u64 = OP_CAPS | SYS_PTRACE;
