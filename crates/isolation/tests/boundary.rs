//! What a sandbox can see and do, asked from the inside.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use crate::world::World;

const EPERM: i32 = 1;
const ENOSYS: i32 = 38;

#[test]
fn it_is_root_on_a_computer_of_its_own() {
    let world = World::new();
    let ada = world.start();
    assert_eq!(
        ada.says("id -u; id -g; id -G; hostname; pwd"),
        "0\n0\n0\nada\n/"
    );
    assert_eq!(ada.says("echo $$ | grep -cE '^[0-9]{1,3}$'"), "1");
    // Only PID 1 and the shell with what it starts.
    let pids = ada
        .says("ls /proc | grep -cE '^[0-9]+$'")
        .parse::<u32>()
        .unwrap();
    assert!(pids <= 5, "{pids} processes");
    assert_eq!(ada.says("umask; ulimit -c"), "0022\n0");
    assert_eq!(
        ada.says("node -e 'console.log(6*7)'"),
        "42",
        "node of the host works inside"
    );
}

#[test]
fn nothing_of_the_host_but_its_system_directories_is_visible() {
    let world = World::new();
    std::fs::write(world.home.path().join("marker-of-the-host"), "x").unwrap();
    let ada = world.start();
    assert_eq!(
        ada.says(
            "ls -A /home /root /srv /mnt /media /tmp /workspace /var/lib /var/log | grep -v :"
        ),
        ""
    );
    let top = ada.says("ls -A / | tr '\\n' ' '");
    for name in top.split_whitespace() {
        let known = "bin dev etc home lib lib32 lib64 libx32 media mnt nix opt proc root run sbin srv sys tmp usr var workspace";
        assert!(known.split(' ').any(|k| k == name), "/{name} is visible");
    }
    for secret in [
        "shadow",
        "gshadow",
        "sudoers",
        "ssh",
        "ssl/private",
        "passwd-",
    ] {
        assert_ne!(
            ada.sh(&format!("test -e /etc/{secret}")).code,
            Some(0),
            "/etc/{secret} is visible"
        );
    }
    assert_eq!(ada.says("ls -A /run"), "durable\nlock");
    assert_eq!(ada.says("ls -A /run/durable"), "machine-id\nshim.sock");
    assert_eq!(ada.says("ls -A /sys"), "");
    assert_eq!(
        ada.sh("find / -xdev -name 'marker-of-the-host' -o -xdev -name supervisor.log | grep .")
            .code,
        Some(1)
    );
    let home = world.home.path().display().to_string();
    assert!(
        !ada.says("cat /proc/mounts /proc/self/mountinfo")
            .contains(&home),
        "a path of the host is told"
    );
    // Not one mount of the host is left in the namespace: what is mounted under another path would be reachable by
    // whoever gets above the root.
    let table = ada.says("cut -d' ' -f5 /proc/self/mountinfo");
    let roots = table.lines().filter(|point| *point == "/").count();
    assert_eq!(roots, 1, "{table}");
    assert_ne!(ada.sh("test -w /usr || touch /usr/x").code, Some(0));
    assert_eq!(
        ada.says("ls -ld /usr | cut -d' ' -f3"),
        "nobody",
        "only what everybody may read of the host is readable"
    );
}

#[test]
fn breaking_out_of_a_chroot_leads_to_the_sandbox_itself() {
    let world = World::new();
    let ada = world.start();
    let climb = "mkdir '/tmp/jail'; chroot '/tmp/jail'; chdir '..' for 1..50; chroot '.'; \
                 opendir my $d, '/'; print join ' ', sort readdir $d";
    let done = ada.run(&["perl", "-e", climb]);
    let here = ada.says("ls -a / | LC_ALL=C sort | tr '\\n' ' '");
    assert_eq!(done.out.trim(), here.trim());
    assert_eq!(
        ada.says("ls -a /../.. | LC_ALL=C sort | tr '\\n' ' '")
            .trim(),
        here.trim()
    );
}

#[test]
fn a_file_of_the_host_that_only_root_may_read_stays_closed() {
    let world = World::new();
    let path =
        std::path::Path::new("/usr/lib").join(format!("isolation-test-{}", std::process::id()));
    std::fs::write(&path, "secret").unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let read = world.start().run(&["cat", path.to_str().unwrap()]);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(read.code, Some(1), "{read:?}");
    assert_eq!(read.out, "");
}

#[test]
fn there_is_no_network_but_loopback() {
    let world = World::new();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port();
    let name = format!("isolation-test-{}", std::process::id());
    let _abstract =
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let ada = world.start();
    assert_eq!(
        ada.says("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"),
        "lo"
    );
    let connect = |port: u16| {
        ada.sh(&format!(
            "perl -MIO::Socket::INET -e 'exit !IO::Socket::INET->new(\"127.0.0.1:{port}\")'"
        ))
        .code
    };
    assert_ne!(connect(port), Some(0), "the host's loopback is reached");
    assert_eq!(
        connect(protocol::paths::MODEL_PORT),
        Some(0),
        "the model listener is not there"
    );
    assert!(!ada.says("cat /proc/net/unix").contains(&name));
    assert_ne!(
        ada.sh("perl -MIO::Socket::INET -e 'exit !IO::Socket::INET->new(\"1.1.1.1:53\")'")
            .code,
        Some(0)
    );
}

#[test]
fn only_harmless_devices_exist_and_none_can_be_made() {
    let world = World::new();
    let ada = world.start();
    let names = "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero";
    assert_eq!(ada.says("ls /dev | tr '\\n' ' '").trim(), names);
    assert_eq!(
        ada.says("stat -c '%F %t:%T' /dev/null"),
        "character special file 1:3"
    );
    assert_eq!(
        ada.says(
            "echo x > /dev/null; head -c 3 /dev/zero | wc -c; echo hi > /dev/shm/f; cat /dev/shm/f"
        ),
        "3\nhi"
    );
    for script in [
        "mknod /tmp/sda b 8 0",
        "mknod /tmp/kmsg c 1 11",
        "rm /dev/null",
        "ln -s x /dev/x",
        "chmod 0 /dev/null",
    ] {
        assert_ne!(ada.sh(script).code, Some(0), "{script}");
    }
    assert_eq!(
        ada.says("script -qec 'tty' /dev/null | tr -d '\\r'"),
        "/dev/pts/0",
        "a terminal can be opened"
    );
}

#[test]
fn what_tells_of_or_changes_the_machine_is_closed() {
    let world = World::new();
    let ada = world.start();
    for script in [
        "echo 1 > /proc/sys/kernel/panic",
        "echo x > /proc/sys/kernel/core_pattern",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "echo h > /proc/sysrq-trigger",
        "head -c 1 /proc/kcore | grep -q .",
        "grep -q . /proc/keys",
        "grep -q . /proc/timer_list",
        "grep -q . /proc/interrupts",
        "dd if=/proc/kmsg of=/dev/null bs=1 count=1 iflag=nonblock",
        "dd if=/proc/kpageflags of=/dev/null bs=8 count=1",
        "cat /proc/slabinfo",
        "cat /proc/vmallocinfo",
        "ls /proc/acpi | grep -q .",
        "ls /sys | grep -q .",
        "mkdir /sys/x",
        "echo 1 > /proc/irq/default_smp_affinity",
        "echo 1 > /proc/fs/x",
        "echo 1 > /proc/bus/x",
        "grep -q cgroup /proc/self/mountinfo",
        "grep -q debugfs /proc/self/mountinfo",
        "mount -t tmpfs x /mnt",
        "mount -o remount,rw /usr",
        "umount /proc/sys",
        "umount -l /usr",
        "hostname eve",
        "unshare -U true",
        "unshare -m true",
        "nsenter -t 1 -m true",
        "chroot / unshare -n true",
        "dmesg",
        "touch /opt/durable/bin/x",
        "rm /opt/durable/bin/durable",
        "rm /run/durable/shim.sock",
        "mv /run/durable/shim.sock /run/durable/x",
        "chmod 0 /run/durable/shim.sock",
    ] {
        assert_ne!(ada.sh(script).code, Some(0), "{script}");
    }
    assert_eq!(ada.says("cat /proc/sys/user/max_user_namespaces"), "0");
    assert_eq!(ada.says("stat -c %a /run/durable/shim.sock"), "666");
}

#[test]
fn system_calls_that_reach_into_the_kernel_are_refused() {
    let world = World::new();
    let ada = world.start();
    let absent = [(425, ", 8, 0"), (426, ", 0, 0"), (435, ", 0, 0")];
    for (call, args) in absent {
        assert_eq!(ada.errno(call, args), ENOSYS, "system call {call}");
    }
    // add_key keyctl bpf perf_event_open mount fsopen open_tree move_mount mount_setattr userfaultfd setns
    // open_by_handle_at kexec_load init_module finit_module fanotify_init ptrace-free ones: swapon reboot settimeofday acct
    for call in [
        248, 250, 321, 298, 165, 430, 428, 429, 442, 323, 308, 304, 246, 175, 313, 300, 167, 169,
        164, 163, 103, 155, 166,
    ] {
        assert_eq!(
            ada.errno(call, ", 0, 0, 0, 0, 0"),
            EPERM,
            "system call {call}"
        );
    }
    // unshare of each namespace, and clone with it; personality; sockets of other families.
    for flag in [
        0x0002_0000_u64,
        0x0200_0000,
        0x0400_0000,
        0x0800_0000,
        0x1000_0000,
        0x2000_0000,
        0x4000_0000,
    ] {
        assert_eq!(
            ada.errno(272, &format!(", {flag}")),
            EPERM,
            "unshare {flag:#x}"
        );
        assert_eq!(
            ada.errno(56, &format!(", {}, 0, 0, 0, 0", flag | 17)),
            EPERM,
            "clone {flag:#x}"
        );
    }
    assert_eq!(
        ada.errno(272, ", 0x400"),
        0,
        "unsharing descriptors is harmless"
    );
    assert_eq!(ada.errno(135, ", 0x0400000"), EPERM);
    assert_eq!(ada.errno(135, ", 0xffffffff"), 0);
    for (family, kind, protocol) in [
        (38, 5, 0),
        (40, 1, 0),
        (17, 3, 0),
        (44, 3, 0),
        (16, 3, 6),
        (15, 3, 2),
        (33, 2, 0),
    ] {
        assert_eq!(
            ada.errno(41, &format!(", {family}, {kind}, {protocol}")),
            EPERM,
            "family {family}"
        );
    }
    // nfnetlink, generic netlink, uevents, audit, crypto.
    for protocol in [12, 16, 15, 9, 21] {
        let args = format!(", 16, 3, {protocol}");
        assert_eq!(ada.errno(41, &args), EPERM, "netlink {protocol}");
    }
    for (family, kind) in [(1, 1), (2, 1), (10, 1), (16, 3)] {
        assert_eq!(
            ada.errno(41, &format!(", {family}, {kind}, 0")),
            0,
            "family {family}"
        );
    }
    for request in [0x5412_u64, 0x541c, 0x5000_940e, 0x5000_9401, 0x4008_6602] {
        assert_eq!(
            ada.errno(16, &format!(", 0, {request}, 0")),
            EPERM,
            "ioctl {request:#x}"
        );
        let high = request | 1 << 32;
        assert_eq!(
            ada.errno(16, &format!(", 0, {high}, 0")),
            EPERM,
            "ioctl {high:#x}"
        );
    }
    // The same call by its x32 number.
    assert_eq!(ada.errno(0x4000_0000 + 165, ", 0, 0, 0, 0, 0"), ENOSYS);
    assert_eq!(ada.errno(0x4000_0000 + 39, ""), ENOSYS);
}

#[test]
fn pid_1_is_out_of_reach_even_for_root() {
    let world = World::new();
    let ada = world.start();
    for script in [
        "ls /proc/1/fd/ | grep -q .",
        "ls /proc/1/root/ | grep -q .",
        "ls /proc/1/cwd/ | grep -q .",
        "readlink /proc/1/exe",
        "cat /proc/1/environ | grep -q .",
        "cat /proc/1/maps | grep -q .",
        "dd if=/proc/1/mem of=/dev/null bs=1 count=1",
    ] {
        assert_ne!(ada.sh(script).code, Some(0), "{script}");
    }
    assert_eq!(ada.errno(101, ", 16, 1, 0, 0"), EPERM, "ptrace attach");
    assert_eq!(ada.errno(101, ", 0x4206, 1, 0, 0"), EPERM, "ptrace seize");
    let steal = "my $p = syscall(434, 1, 0); $! = 0; my $r = syscall(438, $p, 0, 0); print $r == -1 ? $!+0 : 0";
    assert_eq!(
        ada.run(&["perl", "-e", steal]).out,
        EPERM.to_string(),
        "pidfd_getfd"
    );
    // A debugger works on what is one's own.
    assert_eq!(
        ada.says("sleep 9 & perl -e 'print syscall(101, 0x4206, $ARGV[0]+0, 0, 0)' $!; kill $!"),
        "0"
    );
}

#[test]
fn an_operation_has_few_privileges_and_no_descriptor_of_ours() {
    let world = World::new();
    let ada = world.start();
    let status = ada.says("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | tr '\\t' ' '");
    let caps = format!("{:016x}", protocol::caps::OP_CAPS);
    for line in [
        format!("CapPrm: {caps}"),
        format!("CapEff: {caps}"),
        format!("CapBnd: {caps}"),
    ] {
        assert!(status.contains(&line), "{line} not in {status}");
    }
    for line in [
        "CapInh: 0000000000000000",
        "CapAmb: 0000000000000000",
        "NoNewPrivs: 1",
        "Seccomp: 2",
    ] {
        assert!(status.contains(line), "{line} not in {status}");
    }
    assert_eq!(
        ada.says("ls /proc/self/fd | tr '\\n' ' '"),
        "0 1 2 3",
        "3 is the directory that ls reads"
    );
    assert_eq!(
        ada.sh_as(1000, "id -u; grep CapEff /proc/self/status | cut -f2")
            .out,
        "1000\n0000000000000000\n"
    );
}
