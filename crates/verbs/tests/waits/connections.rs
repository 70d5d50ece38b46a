//! Connections by the connection manager, blocking and not, made, refused, lost and ended.

use crate::common;

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::thread;

use common::{LIMIT, Side, address, address_of, open, socket_addr, wr};
use remanence_link::{WaitFd, wait};
use remanence_rnic::cm::{CmError, Event, Listen, Path, SidrReply};
use remanence_rnic::{QpState, RecvWr, SendOp, WcStatus};
use remanence_verbs::{CmChannel, ConnectAttr, Connection, Error, Listener, Phase, Progress};
use remanence_wire::cm::{PortSpace, RejReason, ServiceId, SidrRep};
use remanence_wire::{Qkey, Qpn};

const PORT: u16 = 7471;

/// A server that accepts one connection and hands both over.
fn accept_one(server: &Side, listener: &Listener, private_data: &[u8]) -> Connection {
    let incoming = listener.get_request(LIMIT).expect("a request");
    let connection = incoming.accept(&server.qp(), &ConnectAttr::default(), private_data).unwrap();
    assert!(connection.wait_established(LIMIT).unwrap());
    connection
}

fn connected() -> (Side, Side, Connection, Connection) {
    let (client, server) = (Side::new(), Side::new());
    let listener = Listener::bind(&server.context, PORT, 16).unwrap();
    let peer = socket_addr(&server.context, PORT);
    let (ours, theirs) = thread::scope(|scope| {
        let theirs = scope.spawn(|| accept_one(&server, &listener, b"welcome"));
        let ours = Connection::connect(&client.qp(), peer, &ConnectAttr::default(), b"hello", LIMIT).unwrap();
        (ours, theirs.join().unwrap())
    });
    (client, server, ours, theirs)
}

#[test]
fn two_sides_connect_tell_each_other_something_and_disconnect() {
    let (client, server) = (Side::new(), Side::new());
    let listener = Listener::bind(&server.context, PORT, 16).unwrap();
    let peer = socket_addr(&server.context, PORT);
    thread::scope(|scope| {
        scope.spawn(|| {
            let incoming = listener.get_request(LIMIT).expect("a request");
            assert_eq!(incoming.peer(), address_of(&client.context));
            assert_eq!(&incoming.private_data()[..6], b"hello\0");
            assert_eq!(incoming.private_data().len(), 56, "the whole field, as rdma_cm gives it");
            let qp = server.qp();
            let connection = incoming.accept(&qp, &ConnectAttr::default(), b"welcome").unwrap();
            assert!(connection.wait_established(LIMIT).unwrap());
            qp.post_recv(&RecvWr { wr_id: 1, sges: &[server.mr.sge(0, 64)] }).unwrap();
            let wc = server.success();
            assert_eq!((wc.byte_len, server.bytes(0, 4)), (4, b"data".to_vec()));
            assert!(connection.wait_ended(LIMIT).unwrap());
            assert_eq!(qp.query().unwrap().state, QpState::Err);
        });
        let qp = client.qp();
        let connection = Connection::connect(&qp, peer, &ConnectAttr::default(), b"hello", LIMIT).unwrap();
        assert_eq!(&connection.private_data()[..8], b"welcome\0");
        client.fill(0, b"data");
        qp.post_send(&wr(1, SendOp::Send, &[client.mr.sge(0, 4)])).unwrap();
        client.success();
        connection.disconnect().unwrap();
        assert!(connection.wait_ended(LIMIT).unwrap());
        assert_eq!(connection.advance().unwrap().to_string(), "ended by us");
    });
}

#[test]
fn a_peer_that_says_no_is_quoted() {
    let (client, server) = (Side::new(), Side::new());
    let listener = Listener::bind(&server.context, PORT, 16).unwrap();
    let peer = socket_addr(&server.context, PORT);
    thread::scope(|scope| {
        scope.spawn(|| listener.get_request(LIMIT).unwrap().reject(b"not you").unwrap());
        let refused = Connection::connect(&client.qp(), peer, &ConnectAttr::default(), b"", LIMIT);
        let refused = refused.unwrap_err();
        let sentence = format!("{peer} refused the connection: the program there said no");
        assert_eq!((refused.to_string(), format!("{refused:?}")), (sentence.clone(), sentence));
        match refused {
            Error::Rejected { reason, private_data, .. } => {
                assert_eq!(reason, RejReason::CONSUMER_DEFINED);
                assert_eq!(&private_data[..8], b"not you\0");
            }
            other => panic!("{other}"),
        }
    });
}

#[test]
fn a_port_where_nobody_listens_and_a_host_where_nobody_is_are_told_apart() {
    let (client, server) = (Side::new(), Side::new());
    let attr = ConnectAttr::default();
    let peer = socket_addr(&server.context, PORT + 1);
    let error = Connection::connect(&client.qp(), peer, &attr, b"", LIMIT).unwrap_err();
    assert!(error.to_string().contains("nothing listens on that port"), "{error}");
    let nobody = SocketAddr::new(address(), PORT);
    let error = Connection::connect(&client.qp(), nobody, &attr, b"", LIMIT).unwrap_err();
    assert!(error.to_string().contains("does not answer"), "{error}");
    assert_eq!(format!("{error:?}"), error.to_string(), "what `main` prints");
}

#[test]
fn a_port_is_taken_once() {
    let side = Side::new();
    let first = Listener::bind(&side.context, PORT, 1).unwrap();
    let error = Listener::bind(&side.context, PORT, 1).unwrap_err();
    assert!(error.to_string().contains("7471 is taken"), "{error}");
    drop(first);
    Listener::bind(&side.context, PORT, 1).unwrap();
}

#[test]
fn when_one_side_drops_its_connection_the_others_work_is_flushed() {
    let (client, server, ours, theirs) = connected();
    theirs.qp().post_recv(&RecvWr { wr_id: 3, sges: &[server.mr.sge(0, 64)] }).unwrap();
    drop(ours);
    assert!(theirs.wait_ended(LIMIT).unwrap());
    let wc = server.completion();
    assert_eq!((wc.wr_id, wc.status), (3, WcStatus::WrFlushErr));
    drop(client);
}

#[test]
fn both_sides_may_disconnect_at_once() {
    let (_client, _server, ours, theirs) = connected();
    thread::scope(|scope| {
        for connection in [&ours, &theirs] {
            scope.spawn(move || {
                // The other side may have been faster: then it is over already.
                let _ = connection.disconnect();
                assert!(connection.wait_ended(LIMIT).unwrap());
            });
        }
    });
}

#[test]
fn a_program_with_an_event_loop_connects_without_blocking() {
    let (client, server) = (Side::new(), Side::new());
    let listener = Listener::bind(&server.context, PORT, 16).unwrap();
    let peer = socket_addr(&server.context, PORT);
    let ours = Connection::start(&client.qp(), peer, &ConnectAttr::default(), b"loop").unwrap();
    let mut theirs = None::<Connection>;
    let readable = |fd: i32| WaitFd { fd, events: libc::POLLIN };
    loop {
        let up = ours.advance().unwrap() == Phase::Established;
        if theirs.is_none() {
            theirs = listener
                .try_get_request()
                .map(|incoming| incoming.accept(&server.qp(), &ConnectAttr::default(), b"").unwrap());
        }
        let other_up = theirs.as_ref().is_some_and(|theirs| theirs.advance().unwrap() == Phase::Established);
        if up && other_up {
            break;
        }
        let mut fds =
            vec![readable(ours.fd().unwrap().as_raw_fd()), readable(listener.fd().unwrap().as_raw_fd())];
        fds.extend(theirs.as_ref().map(|theirs| readable(theirs.fd().unwrap().as_raw_fd())));
        assert!(wait::poll(&fds, LIMIT).unwrap(), "nothing happens any more");
    }
}

#[test]
fn many_clients_connect_at_the_same_time() {
    let server = Side::new();
    let listener = Listener::bind(&server.context, PORT, 64).unwrap();
    let peer = socket_addr(&server.context, PORT);
    thread::scope(|scope| {
        scope.spawn(|| {
            let connections: Vec<_> = (0..32)
                .map(|_| {
                    let incoming = listener.get_request(LIMIT).expect("a request");
                    incoming.accept(&server.qp(), &ConnectAttr::default(), b"").unwrap()
                })
                .collect();
            for connection in connections {
                assert!(connection.wait_ended(LIMIT).unwrap());
            }
        });
        for _ in 0..4 {
            scope.spawn(|| {
                let client = Side::with(open(Progress::default()));
                for _ in 0..8 {
                    let qp = client.qp();
                    let connection =
                        Connection::connect(&qp, peer, &ConnectAttr::default(), b"", LIMIT).unwrap();
                    client.fill(0, b"x");
                    qp.post_send(&wr(1, SendOp::Write(server.mr.remote(0)), &[client.mr.sge(0, 1)])).unwrap();
                    client.success();
                    connection.disconnect().unwrap();
                }
            });
        }
    });
}

#[test]
fn a_ud_service_is_resolved_over_plain_channels() {
    let (client, server) = (Side::new(), Side::new());
    let (asking, answering) = (CmChannel::new().unwrap(), CmChannel::new().unwrap());
    let service_id = ServiceId::new(PortSpace::Udp, PORT);
    let listen = Listen { service_id, local: None, backlog: 4 };
    let listener = server.context.cm().listen(&listen, &answering, 11).unwrap();
    let gid = |side: &Side| side.context.config().gids[0];
    let path = Path { local: gid(&client), remote: gid(&server) };
    let id = client.context.cm().resolve(path, service_id, Some(9), b"who?", &asking, 22).unwrap();

    let asked = answering.get_event(LIMIT).unwrap();
    assert_eq!(asked.user_data, 11);
    let Some(Event::SidrRequest(request)) = asked.event else { panic!("{asked:?}") };
    assert_eq!((request.listener, &request.private_data[..4]), (listener, &b"who?"[..]));
    let (qpn, qkey) = (Qpn::new(0x1234), Qkey::RDMA_UDP);
    let reply = SidrReply { status: SidrRep::STATUS_VALID, qpn, qkey, private_data: b"me" };
    server.context.cm().sidr_reply(request.id, &reply).unwrap();

    let answered = asking.get_event(LIMIT).unwrap();
    assert_eq!(answered.user_data, 22);
    let Some(Event::SidrResponse { id: answered_id, qpn: told, qkey: key, private_data, .. }) =
        answered.event
    else {
        panic!("{answered:?}")
    };
    assert_eq!((answered_id, told, key, &private_data[..2]), (id, qpn, qkey, &b"me"[..]));
    server.context.cm().unlisten(listener);
    assert_eq!(asking.try_get_event(), None);
}

#[test]
fn a_claimed_port_is_taken_before_anybody_listens_and_events_move_with_their_owner() {
    let (client, server) = (Side::new(), Side::new());
    let service_id = ServiceId::new(PortSpace::Tcp, PORT + 1);
    let gid = |side: &Side| side.context.config().gids[0];
    let claim = server.context.cm().claim(service_id, Some(gid(&server))).unwrap();
    let taken = server.context.cm().claim(service_id, None).unwrap_err();
    assert!(matches!(taken, Error::Cm(CmError::InUse)), "{taken}");

    let (first, second) = (CmChannel::new().unwrap(), CmChannel::new().unwrap());
    let listen = Listen { service_id, local: Some(gid(&server)), backlog: 1 };
    let listener = server.context.cm().listen_claimed(claim, &listen, &first, 1).unwrap();
    let peer = SocketAddr::new(gid(&server).to_ip(), PORT + 1);
    let (qp, other) = (client.qp(), client.qp());
    let connection = Connection::start(&qp, peer, &ConnectAttr::default(), b"").unwrap();
    let asked = first.get_event(LIMIT).expect("a request");
    let Some(Event::ConnectRequest(request)) = asked.event else { panic!("{asked:?}") };
    server.context.cm().adopt(request.id, &second, 2);

    // The backlog of one has room again, and what the channel holds moves with the listener.
    let another = Connection::start(&other, peer, &ConnectAttr::default(), b"").unwrap();
    let asked = first.get_event(LIMIT).expect("another request");
    assert!(matches!(asked.event, Some(Event::ConnectRequest(_))), "{asked:?}");
    first.push(7);
    server.context.cm().adopt_listener(listener, &second);
    first.move_to(7, &second);
    assert_eq!(first.try_get_event(), None);
    let own = second.try_get_event().expect("the consumer's own event");
    assert_eq!((own.user_data, own.event), (7, None));
    server.context.cm().unlisten(listener);
    assert!(another.wait_established(LIMIT).is_err(), "nobody adopted it");

    server.context.cm().reject(request.id, RejReason::CONSUMER_DEFINED, b"").unwrap();
    assert!(connection.wait_established(LIMIT).is_err());
    drop(server.context.cm().claim(service_id, None).expect("the port is free again"));
}
