//! Several processes at one address, and processes that die.
//!
//! Each test starts this test program again as its child, which plays the part that the environment names.

use crate::common;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as SocketAddrUnix, UnixDatagram};
use std::time::Duration;

use common::{LIMIT, Side, address, open_at, wr};
use remanence_effort::{Process, again};
use remanence_rnic::{RecvWr, RemoteAddr, SendOp, WcStatus};
use remanence_verbs::{ConnectAttr, Connection, Listener, Progress};
use remanence_wire::Rkey;

const PART: &str = "REMANENCE_TEST_SERVER_AT";

/// A server in a process of its own; killed when dropped.
struct Server {
    process: Process,
    peer: SocketAddr,
}

impl Server {
    fn start(address: IpAddr, port: u16) -> Self {
        let mut command = again("processes::the_part_of_the_server");
        let mut process = Process::start(command.env(PART, format!("{address} {port}")));
        process.after("listening").expect("the server goes on");
        Self { process, peer: SocketAddr::new(address, port) }
    }

    fn kill(&mut self) {
        self.process.kill();
    }
}

/// Accepts whoever comes, tells the rkey of its memory, and serves until it is killed.
#[test]
#[ignore = "a child process of `cargo test -p remanence-verbs --test waits processes::`"]
fn the_part_of_the_server() {
    let Ok(part) = std::env::var(PART) else { return };
    let (address, port) = part.split_once(' ').unwrap();
    let side = Side::with(open_at(address.parse().unwrap(), Progress::default()));
    let listener = Listener::bind(&side.context, port.parse().unwrap(), 64).unwrap();
    println!("listening");
    let mut connections = Vec::new();
    while let Some(incoming) = listener.get_request(LIMIT) {
        let qp = side.qp();
        let rkey = side.mr.rkey().0.to_be_bytes();
        let connection = incoming.accept(&qp, &ConnectAttr::default(), &rkey).unwrap();
        for wr_id in 0..16 {
            qp.post_recv(&RecvWr { wr_id, sges: &[side.mr.sge(1 << 16, 64)] }).unwrap();
        }
        connections.push(connection);
    }
}

fn connect(client: &Side, peer: SocketAddr, attr: &ConnectAttr) -> (Connection, RemoteAddr) {
    let connection = Connection::connect(&client.qp(), peer, attr, b"", LIMIT).unwrap();
    let rkey = Rkey(u32::from_be_bytes(*connection.private_data().first_chunk().unwrap()));
    (connection, RemoteAddr { addr: 0, rkey })
}

fn write_and_read_back(client: &Side, connection: &Connection, remote: RemoteAddr, value: u64) {
    client.mr.region().store_u64(0, value);
    client.mr.region().store_u64(8, 0);
    connection.qp().post_send(&wr(1, SendOp::Write(remote), &[client.mr.sge(0, 8)])).unwrap();
    connection.qp().post_send(&wr(2, SendOp::Read(remote), &[client.mr.sge(8, 8)])).unwrap();
    assert_eq!((client.success().wr_id, client.success().wr_id), (1, 2));
    assert_eq!(client.mr.region().load_u64(8), value);
}

#[test]
fn three_processes_and_we_share_one_address() {
    let address = address();
    let servers: Vec<_> = (7471..7474).map(|port| Server::start(address, port)).collect();
    let client = Side::with(open_at(address, Progress::default()));
    let connections: Vec<_> =
        servers.iter().map(|server| connect(&client, server.peer, &ConnectAttr::default())).collect();
    for round in 0..100 {
        for (i, (connection, remote)) in connections.iter().enumerate() {
            write_and_read_back(&client, connection, *remote, round * 10 + i as u64);
        }
    }
    let taken = Listener::bind(&client.context, 7472, 1).unwrap_err();
    assert!(taken.to_string().contains("7472 is taken"), "{taken}");
}

#[test]
fn a_killed_peer_shows_as_a_failed_completion_and_its_successor_is_reached() {
    let address = address();
    let mut server = Server::start(address, 7471);
    let client = Side::new();
    // It gives up after half a second; and with it would come, after two, the news that the peer is dead. Nothing is asked
    // of the living server with so little patience: it may wait for a core.
    let attr = ConnectAttr { retry_cnt: 1, ..ConnectAttr::default() };
    let (connection, remote) = connect(&client, server.peer, &attr);
    server.kill();
    connection.qp().post_send(&wr(3, SendOp::Write(remote), &[client.mr.sge(0, 8)])).unwrap();
    connection.qp().post_send(&wr(4, SendOp::Write(remote), &[client.mr.sge(0, 8)])).unwrap();
    let (first, second) = (client.completion(), client.completion());
    // On a machine so busy that half a second of listening takes two, the news comes first, and ends the connection.
    let failed = [WcStatus::RetryExcErr, WcStatus::WrFlushErr].contains(&first.status);
    assert!(first.wr_id == 3 && failed, "{first:?}");
    assert_eq!((second.wr_id, second.status), (4, WcStatus::WrFlushErr));
    drop(connection);
    let again = Server::start(address, 7471);
    let (connection, remote) = connect(&client, again.peer, &ConnectAttr::default());
    write_and_read_back(&client, &connection, remote, 2);
}

#[test]
fn a_killed_peer_is_missed_by_who_only_waits() {
    let mut server = Server::start(address(), 7471);
    // One of another address, whose host has nobody left at the port afterwards, and one that shares it.
    let (other, same) = (Side::new(), Side::with(open_at(server.peer.ip(), Progress::default())));
    let attr = ConnectAttr::default();
    let connections = [&other, &same].map(|side| connect(side, server.peer, &attr).0);
    server.kill();
    for connection in connections {
        assert!(connection.wait_ended(LIMIT).unwrap(), "nobody said so");
    }
}

/// A process of this host that has a place and no socket at the port, as another user's has none: all that is its comes from
/// others.
struct Guest {
    slot: u8,
    socket: UnixDatagram,
}

impl Guest {
    fn new() -> Self {
        // Where nobody sits. Who sits somewhere holds the place's name.
        let (slot, socket) = (0..=u8::MAX)
            .find_map(|slot| {
                let name = SocketAddrUnix::from_abstract_name(format!("remanence/slot/{slot:02x}")).unwrap();
                UnixDatagram::bind_addr(&name).ok().map(|socket| (slot, socket))
            })
            .expect("a free place");
        socket.set_read_timeout(LIMIT).unwrap();
        Self { slot, socket }
    }
}

/// As a program does that ends by exit: its device is open, and nobody has looked at what came.
#[test]
fn what_came_for_others_goes_on_to_them_when_a_process_leaves() {
    /// Fewer than the kernel keeps for a socket of its kind (net.unix.max_dgram_qlen is 10).
    const COUNT: u8 = 8;
    for progress in [Progress::ByConsumer, Progress::default()] {
        let address = address();
        let leaving = Side::with(open_at(address, progress));
        let guest = Guest::new();
        let world = UdpSocket::bind((address, 0)).unwrap();
        let peers_port = leaving.context.link_caps().port;
        for number in 0..COUNT {
            // SEND Only of UD, to a QP of the guest's.
            let mut datagram = [number; 64];
            datagram[..8].copy_from_slice(&[0x64, 0, 0xff, 0xff, 0, guest.slot, 0, 9]);
            world.send_to(&datagram, (address, peers_port)).unwrap();
        }
        leaving.context.leave(LIMIT.expect("one"));
        let mut heard = [0; 256];
        for number in 0..COUNT {
            let len = guest.socket.recv(&mut heard).expect("it was lost");
            assert_eq!(heard[len - 1], number, "in their order");
        }
        // It is gone, although it is still open.
        UdpSocket::bind((address, peers_port)).expect("the port is free");
        assert!(leaving.context.get_async_event(Some(Duration::ZERO)).is_none());
        leaving.qp();
    }
}
