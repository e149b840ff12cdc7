//! Whatever a sandbox asks for ends at its doors, and nothing else is there.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use isolation::StartSpec;

use crate::world::{Sandbox, World};

const REFUSED: &str = "111";

fn with_doors<'w>(world: &'w World, ports: &[u16]) -> Sandbox<'w> {
    let doors = Some(ports.to_vec());
    let spec = world.spec();
    world.start_with(StartSpec { doors, ..spec }).unwrap()
}

/// What the door says to a connection; or the number of the error.
fn tcp(ada: &Sandbox<'_>, host: &str, port: u16) -> String {
    let script = "my $s = IO::Socket::IP->new(PeerHost => $ARGV[0], PeerPort => $ARGV[1], GetAddrInfoFlags => 0); \
                  print(defined($s) ? <$s> : $!+0)";
    let port = port.to_string();
    let done = ada.run(&["perl", "-MIO::Socket::IP", "-e", script, host, &port]);
    assert_eq!(done.code, Some(0), "perl is needed: {done:?}");
    done.out.trim().to_owned()
}

/// Who answers a datagram and what; or the number of the error.
fn udp(ada: &Sandbox<'_>, host: &str, port: u16) -> String {
    let address = "use Socket qw(:all); my ($e, @a) = getaddrinfo($ARGV[0], $ARGV[1], {socktype => SOCK_DGRAM, flags => AI_NUMERICHOST}); \
                   socket(my $s, $a[0]{family}, SOCK_DGRAM, 0) or die;";
    let talk = if port == 53 {
        // Not connected, so that an answer from elsewhere would be seen.
        "send($s, 'who', 0, $a[0]{addr}) or die; alarm 30; my $p = recv($s, my $b, 512, 0); \
         my ($x, $h) = getnameinfo($p, NI_NUMERICHOST); print \"$h $b\""
    } else {
        // Connected, so that the kernel tells at once that nobody is there.
        "connect($s, $a[0]{addr}) or die; send($s, 'who', 0) or die; alarm 30; \
         print defined(recv($s, my $b, 512, 0)) ? 'answered' : $!+0"
    };
    let (script, port) = (format!("{address} {talk}"), port.to_string());
    let done = ada.run(&["perl", "-e", &script, host, &port]);
    assert_eq!(done.code, Some(0), "perl is needed: {done:?}");
    done.out
}

#[expect(clippy::print_stderr, reason = "nobody must take it for a pass")]
fn has_v6() -> bool {
    let has = std::path::Path::new("/proc/net/if_inet6").exists();
    if !has {
        eprintln!("SKIPPED in part: this kernel has no IPv6");
    }
    has
}

#[test]
fn every_address_ends_at_a_door() {
    works(&World::new());
}

/// Also for a user without rights (see `unprivileged`).
pub(crate) fn works(world: &World) {
    let ada = with_doors(world, &[22, 5433]);
    for (host, port) in [
        ("1.2.3.4", 443),
        ("140.82.112.3", 80),
        ("169.254.169.254", 80),
        ("10.0.0.1", 443),
        ("8.8.8.8", 53),
        ("8.8.8.8", 22),
        ("127.0.0.1", 5433),
    ] {
        assert_eq!(tcp(&ada, host, port), format!("{host}:{port}"));
    }
    assert_eq!(
        tcp(&ada, "127.0.0.1", protocol::paths::PROXY_PORT),
        format!("127.0.0.1:{}", protocol::paths::PROXY_PORT)
    );
    for host in ["9.9.9.9", "127.0.0.1", "192.168.1.1"] {
        assert_eq!(tcp(&ada, host, 5432), REFUSED, "{host}");
    }
    // The proxy and the model are on the loopback only.
    for port in [protocol::paths::PROXY_PORT, protocol::paths::MODEL_PORT] {
        assert_eq!(tcp(&ada, "1.2.3.4", port), REFUSED, "{port}");
    }
    for host in ["8.8.8.8", "192.168.0.1", "127.0.0.1", "127.0.0.53"] {
        assert_eq!(udp(&ada, host, 53), format!("{host} {host}"));
    }
    if has_v6() {
        for host in ["2001:db8::1", "fd00:ec2::254", "::1"] {
            assert_eq!(tcp(&ada, host, 443), format!("[{host}]:443"));
            assert_eq!(udp(&ada, host, 53), format!("{host} {host}"));
        }
        assert_eq!(tcp(&ada, "2001:db8::1", 5432), REFUSED);
        assert_eq!(tcp(&ada, "::ffff:1.2.3.4", 443), "1.2.3.4:443");
    }
    assert_eq!(
        ada.says("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"),
        "lo"
    );
    // NTP, QUIC.
    assert_eq!(udp(&ada, "8.8.8.8", 123), REFUSED);
    assert_eq!(udp(&ada, "8.8.8.8", 443), REFUSED);
}

#[test]
fn nothing_but_tcp_and_names_has_a_way_out() {
    let world = World::new();
    let name = format!("isolation-door-test-{}", std::process::id());
    let _abstract =
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let ada = with_doors(&world, &[]);
    assert!(!ada.says("cat /proc/net/unix").contains(&name));
    const EPERM: i32 = 1;
    const EACCES: i32 = 13;
    const SOCKET: i64 = 41;
    for family in [2, 10] {
        // Raw sockets of any kind, and what asks for one in other words: SCTP, DCCP.
        for protocol in [0, 1, 6, 58, 255] {
            assert_eq!(
                ada.errno(SOCKET, &format!(", {family}, 3, {protocol}")),
                EPERM
            );
        }
        // SOCK_SEQPACKET, SOCK_DCCP, and with flags; SCTP, SMC, L2TP, DCCP, UDP-Lite by number.
        for (kind, protocol) in [
            (5, 0),
            (6, 0),
            (5 | 0x8_0000, 132),
            (1, 132),
            (1, 256),
            (2, 115),
            (6, 33),
            (2, 136),
        ] {
            let args = format!(", {family}, {kind}, {protocol}");
            assert_eq!(ada.errno(SOCKET, &args), EPERM, "{args}");
        }
        for (kind, protocol) in [(1, 0), (1 | 0x8_0800, 6), (2, 0), (2, 17)] {
            let args = format!(", {family}, {kind}, {protocol}");
            assert_eq!(ada.errno(SOCKET, &args), 0, "{args}");
        }
    }
    // Pings without a raw socket are the kernel's to refuse.
    assert_eq!(ada.errno(SOCKET, ", 2, 2, 1"), EACCES);
    // Pairs of anything but Unix sockets.
    assert_eq!(ada.errno(53, ", 30, 1, 0, 0"), EPERM);
    // Nobody inside may ask the kernel about sockets, or change the routes.
    assert_eq!(ada.errno(SOCKET, ", 16, 3, 4"), EPERM);
    assert_ne!(
        ada.sh("ip route del local default table local").code,
        Some(0)
    );
    assert_ne!(ada.sh("ip link set lo down").code, Some(0));
    assert_eq!(tcp(&ada, "1.2.3.4", 443), "1.2.3.4:443");
}

#[test]
fn without_doors_there_is_only_the_loopback() {
    let world = World::new();
    let ada = world.start();
    const UNREACHABLE: &str = "101";
    for (host, port, answer) in [
        ("1.2.3.4", 443, UNREACHABLE),
        ("127.0.0.1", 443, REFUSED),
        ("127.0.0.1", protocol::paths::PROXY_PORT, REFUSED),
    ] {
        assert_eq!(tcp(&ada, host, port), answer, "{host}:{port}");
    }
    // One of each kind after another: a launcher that waits is of the kind of the last start.
    let bea = with_doors(&world, &[]);
    assert_eq!(tcp(&bea, "1.2.3.4", 443), "1.2.3.4:443");
    let cleo = world.start();
    assert_eq!(tcp(&cleo, "1.2.3.4", 443), UNREACHABLE);
}

#[test]
fn servers_inside_work_at_every_other_port() {
    let world = World::new();
    let ada = with_doors(&world, &[]);
    let serve = |address: &str, port: u16| {
        let script = "use IO::Socket::IP; my $l = IO::Socket::IP->new(LocalHost => $ARGV[0], LocalPort => $ARGV[1], Listen => 5, ReuseAddr => 1) \
                      or do { print $!+0; exit }; if (fork) { my $c = $l->accept; print $c 'mine' } \
                      else { my $c = IO::Socket::IP->new(PeerHost => '127.0.0.1', PeerPort => $ARGV[1]); my $t = <$c>; print $t }";
        let done = ada.run(&["perl", "-e", script, address, &port.to_string()]);
        assert_eq!(done.code, Some(0), "{done:?}");
        done.out
    };
    for address in ["127.0.0.1", "0.0.0.0"] {
        for port in [81, 3000, 5432, 8080] {
            assert_eq!(serve(address, port), "mine", "{address}:{port}");
        }
        const IN_USE: &str = "98";
        for port in [53, 80, 443] {
            assert_eq!(serve(address, port), IN_USE, "{address}:{port}");
        }
    }
}

#[test]
fn names_are_asked_for_at_the_door_and_any_family_is_looked_for() {
    let world = World::new();
    let image = tempfile::tempdir_in(world.home.path()).unwrap();
    for dir in ["etc", "run/systemd/resolve"] {
        std::fs::create_dir_all(image.path().join(dir)).unwrap();
    }
    let stub = "run/systemd/resolve/stub-resolv.conf";
    std::fs::write(image.path().join(stub), "nameserver 127.0.0.53\n").unwrap();
    std::os::unix::fs::symlink(format!("../{stub}"), image.path().join("etc/resolv.conf")).unwrap();
    let spec = || StartSpec {
        doors: Some(vec![]),
        ..world.spec()
    };
    let bea = world
        .start_with(StartSpec {
            image: protocol::Image::Dir(image.path().to_owned()),
            ..spec()
        })
        .unwrap();
    let cat = bea.run(&[protocol::paths::BIN, "cat", "/etc/resolv.conf"]);
    assert!(cat.out.contains("nameserver 127.0.0.1\n"), "{cat:?}");
    let ada = world.start_with(spec()).unwrap();
    assert!(
        ada.says("cat /etc/resolv.conf")
            .contains("nameserver 127.0.0.1\n")
    );
    assert_ne!(
        ada.sh("echo nameserver 8.8.8.8 > /etc/resolv.conf").code,
        Some(0)
    );
    // The workspace has nothing of it.
    assert!(!ada.spec.upper.join("etc/resolv.conf").exists());
    let looked = "use Socket qw(:all); for (AF_INET, AF_INET6) { my ($e) = getaddrinfo($_ == AF_INET ? '1.2.3.4' : '2001:db8::1', 80, \
                  {family => $_, socktype => SOCK_STREAM, flags => AI_ADDRCONFIG}); print $e ? 'none ' : 'some ' }";
    let found = ada.run(&["perl", "-e", looked]).out;
    assert!(found.starts_with("some "), "{found}");
    assert!(!has_v6() || found == "some some ", "{found}");
}

#[test]
fn impossible_doors_are_refused_in_words() {
    let world = World::new();
    for ports in [
        vec![0],
        vec![protocol::paths::MODEL_PORT],
        (1000..1200).collect(),
    ] {
        let doors = Some(ports);
        let spec = world.spec();
        let error = world.start_with(StartSpec { doors, ..spec }).err().unwrap();
        assert!(error.to_string().contains("door"), "{error}");
        assert!(error.remedy().unwrap().contains("policy"));
    }
    // Named twice, or named at all where one is anyway.
    let ada = with_doors(&world, &[443, 5432, 5432]);
    assert_eq!(tcp(&ada, "1.2.3.4", 5432), "1.2.3.4:5432");
}

#[test]
fn its_authority_is_trusted_beside_those_of_the_image() {
    let world = World::new();
    let image = tempfile::tempdir_in(world.home.path()).unwrap();
    let outside = tempfile::tempdir_in(world.home.path()).unwrap();
    std::fs::write(outside.path().join("roots"), "outside\n").unwrap();
    for dir in ["etc/ssl/certs", "etc/pki/tls/certs"] {
        std::fs::create_dir_all(image.path().join(dir)).unwrap();
    }
    let at = |name: &str| image.path().join(name);
    std::fs::write(at("etc/pki/tls/certs/ca-bundle.crt"), "theirs").unwrap();
    // One more name of the same, a link out of the image, and something that is no bundle.
    std::os::unix::fs::symlink("../pki/tls/certs/ca-bundle.crt", at("etc/ssl/cert.pem")).unwrap();
    let roots = outside.path().join("roots");
    std::os::unix::fs::symlink(&roots, at("etc/ssl/ca-bundle.pem")).unwrap();
    std::fs::create_dir(at("etc/ssl/certs/ca-certificates.crt")).unwrap();
    let ca = Some("ours\n".to_owned());
    let ada = world
        .start_with(StartSpec {
            ca,
            image: protocol::Image::Dir(image.path().to_owned()),
            ..world.spec()
        })
        .unwrap();
    let read = |path: &str| ada.run(&[protocol::paths::BIN, "cat", path]).out;
    assert_eq!(read(protocol::paths::CA_CERT), "ours\n");
    for path in [
        protocol::paths::CA_BUNDLE,
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/cert.pem",
    ] {
        assert_eq!(read(path), "theirs\nours\n", "{path}");
    }
    assert!(!read("/etc/ssl/ca-bundle.pem").contains("ours"));
    assert_eq!(std::fs::read_to_string(roots).unwrap(), "outside\n");
    let theirs = std::fs::read_to_string(at("etc/pki/tls/certs/ca-bundle.crt"));
    assert_eq!(theirs.unwrap(), "theirs");
    assert_eq!(ada.list("/etc/ssl/certs/ca-certificates.crt"), [""; 0]);

    // Where nobody is asked for, nothing is there; what the workspace made of the bundle keeps nobody from starting.
    let spec = world.spec();
    let etc = spec.upper.join("etc/ssl/certs");
    std::fs::create_dir_all(&etc).unwrap();
    let huge = std::fs::File::create(etc.join("ca-certificates.crt")).unwrap();
    huge.set_len(1 << 40).unwrap();
    let bea = world.start_with(spec).unwrap();
    assert_eq!(bea.says("ls /run/durable"), "machine-id\nshim.sock");
    let (spec, ca) = (bea.spec.clone(), Some("ours\n".to_owned()));
    drop(bea);
    let bea = world.start_with(StartSpec { ca, ..spec }).unwrap();
    assert_eq!(bea.says("cat /run/durable/ca.pem"), "ours");
    assert_eq!(
        bea.says("tail -n 1 /etc/ssl/certs/ca-certificates.crt"),
        "ours"
    );
    for script in [
        "echo evil > /run/durable/ca-bundle.pem",
        "echo evil > /etc/ssl/certs/ca-certificates.crt",
        "mv /etc/ssl/certs/ca-certificates.crt /tmp",
        "umount /etc/ssl/certs/ca-certificates.crt",
    ] {
        assert_ne!(bea.sh(script).code, Some(0), "{script}");
    }
}

#[test]
fn its_authority_is_trusted_by_the_javas_of_the_image() {
    let busybox = std::path::Path::new("/bin/busybox");
    if !busybox.exists() {
        eprintln!("SKIPPED: a static busybox at /bin/busybox is needed (package busybox-static)");
        return;
    }
    let world = World::new();
    let image = tempfile::tempdir_in(world.home.path()).unwrap();
    let at = |name: &str| image.path().join(name);
    let places = [
        "etc/ssl/certs/java/cacerts",
        "opt/java/openjdk/lib/security/cacerts",
        "usr/lib/jvm/java-8/jre/lib/security/cacerts",
    ];
    for place in places {
        std::fs::create_dir_all(at(place).parent().unwrap()).unwrap();
        std::fs::write(at(place), "theirs").unwrap();
    }
    let link = at("usr/lib/jvm/java-21/lib/security");
    std::fs::create_dir_all(&link).unwrap();
    std::os::unix::fs::symlink("/etc/ssl/certs/java/cacerts", link.join("cacerts")).unwrap();
    let ca = Some(
        "-----BEGIN CERTIFICATE-----\nMAhkdXJhYmxlIQ==\n-----END CERTIFICATE-----\n".to_owned(),
    );
    let start = || {
        let spec = StartSpec {
            ca: ca.clone(),
            image: protocol::Image::Dir(image.path().to_owned()),
            ..world.spec()
        };
        world.start_with(spec).unwrap()
    };
    std::fs::create_dir(at("bin")).unwrap();
    std::fs::copy(busybox, at("bin/busybox")).unwrap();
    let read = |ada: &Sandbox<'_>, path: &str| ada.run(&["/bin/busybox", "strings", path]).out;
    // Without a bundle there is nothing that could stand for what the image's keystore has.
    let ada = start();
    assert_eq!(read(&ada, &format!("/{}", places[0])), "theirs\n");
    drop(ada);
    std::fs::write(at("etc/ssl/cert.pem"), "no certificate\n").unwrap();
    let ada = start();
    let ours = read(&ada, protocol::paths::CA_KEYSTORE);
    assert!(
        ours.contains("X.509") && ours.contains("durable!"),
        "{ours}"
    );
    for place in places
        .into_iter()
        .chain(["usr/lib/jvm/java-21/lib/security/cacerts"])
    {
        assert_eq!(read(&ada, &format!("/{place}")), ours, "{place}");
    }
    drop(ada);
    for place in places {
        assert_eq!(std::fs::read_to_string(at(place)).unwrap(), "theirs");
    }
}
