//! Calls by WRITE with immediate, live: who asked for it calls so, others call by SEND, and no session reaches the receive buffers of
//! another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Host, context, session};
use crate::readers::{LIMIT, READERS, Raw, SERVICE, WRITERS, with};
use remanence_pmem::PersistenceDomain;
use remanence_remote::message::{Answer, AnswerKind, BY_IMMEDIATE, HEADER, Header, Immediates, Kind};
use remanence_remote::{Server, ServerOptions, Session, Token};
use remanence_rnic::{RecvWr, RemoteAddr, SendOp, Wc, WcStatus};
use remanence_wire::Rkey;

/// It answers a call with what it was asked, and counts.
fn host(change: impl FnOnce(ServerOptions) -> ServerOptions) -> (Host, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let counting = Arc::clone(&asked);
    let token = |text: &str| Token::new(text).expect("a fair token");
    let host = Host::with(
        1 << 20,
        Some(PersistenceDomain::Adr),
        // Those that were cut off may keep their places for a while.
        |o| change(o.token(token(WRITERS)).reader_token(token(READERS)).sessions(64)),
        |server: &mut Server| {
            server.on_call(SERVICE, move |call| {
                counting.fetch_add(1, Ordering::Relaxed);
                Ok(call.request.to_vec())
            });
        },
    );
    (host, asked)
}

fn message(raw: &Raw, number: u64, service: u16, body: &[u8]) -> Vec<u8> {
    let (stamp, kind) = (raw.welcome.stamp, Kind::Call);
    let header = Header { stamp, number, after: 0, kind, replay: false, part: 0, plan: service, entries: 0 };
    let mut hash = crc32fast::Hasher::new();
    hash.update(body);
    [&header.emit(body.len() as u32, &hash)[..], body].concat()
}

/// Posts a call, and waits for its answer.
fn ask(raw: &Raw, op: SendOp, message: &[u8]) -> Answer {
    let into = raw.local.len() / 2;
    let sge = [raw.local.sge(into, 4096)];
    raw.connection.qp().post_recv(&RecvWr { wr_id: 2, sges: &sge }).expect("posted");
    let mut status = raw.post(op, message);
    let mut done: Vec<Wc> = Vec::new();
    if status == WcStatus::Success {
        // Whichever of the two came first, the other one comes now.
        raw.cq.wait(&mut done, 1, LIMIT).expect("a completion queue");
        status = done[0].status;
    }
    assert_eq!(status, WcStatus::Success);
    let mut header = [0; 8];
    raw.local.region().read(into, &mut header);
    let body = u32::from_be_bytes(header[4..].try_into().expect("four")) as usize;
    let mut bytes = vec![0; remanence_remote::message::ANSWER_HEADER + body];
    raw.local.region().read(into, &mut bytes);
    Answer::parse(&bytes).expect("an answer")
}

fn opened(host: &Host) -> (Raw, Immediates) {
    let raw = Raw::connect(host, WRITERS);
    let answer = ask(&raw, SendOp::Send, &message(&raw, 1, BY_IMMEDIATE, b""));
    assert_eq!(answer.kind, AnswerKind::Reply);
    (raw, Immediates::parse(&answer.body).expect("an answer"))
}

/// Where message `number` of a session is received, by that key.
fn slot(raw: &Raw, number: u64, rkey: u32) -> RemoteAddr {
    let at = (number - 1) % u64::from(raw.welcome.slots) * u64::from(raw.welcome.slot_size);
    RemoteAddr { addr: raw.welcome.buffers.addr + at, rkey: Rkey(rkey) }
}

#[test]
fn who_asks_for_it_calls_by_immediate_and_others_call_by_send() {
    let (mut taking, asked) = host(ServerOptions::calls_by_immediate);
    let mut one = session(&taking, with(WRITERS));
    assert!(one.call_by_immediate().expect("a session"));
    let mut other = session(&taking, with(WRITERS));
    let mut reader = session(&taking, with(READERS));
    assert!(!reader.call_by_immediate().expect("a session"), "a reader writes nothing");
    for n in 0..300_u32 {
        for session in [&mut one, &mut other, &mut reader] {
            let body = vec![n as u8; 1 + n as usize * 13];
            assert_eq!(session.call(SERVICE, &body).expect("an answer"), body);
        }
    }
    assert_eq!((asked.load(Ordering::Relaxed), taking.stop().expelled), (900, 0));

    // A server that takes none says so, and the client goes on as ever.
    let (sending, asked) = host(|options| options);
    let mut one = session(&sending, with(WRITERS));
    assert!(!one.call_by_immediate().expect("a session"));
    assert_eq!(one.call(SERVICE, b"by SEND").expect("an answer"), b"by SEND");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn a_key_to_receive_buffers_is_good_through_its_own_connection_and_for_its_own_buffers_alone() {
    let (host, asked) = host(ServerOptions::calls_by_immediate);
    let (victim, ours) = opened(&host);
    let call = message(&victim, 2, SERVICE, b"mine");
    type Reach = fn(&Raw, Immediates) -> SendOp;
    let reaches: [Reach; 3] = [
        |victim, ours| SendOp::Write(slot(victim, 2, ours.rkey)),
        |victim, ours| SendOp::WriteImm(slot(victim, 2, ours.rkey), ours.number),
        |victim, ours| SendOp::WriteImm(slot(victim, 2, victim.welcome.buffers.rkey), ours.number),
    ];
    for reach in reaches {
        let (hostile, theirs) = opened(&host);
        assert!(theirs.number != ours.number && theirs.rkey != ours.rkey);
        let op = reach(&victim, ours);
        assert_eq!(hostile.post(op, &call), WcStatus::RemAccessErr, "{op:?}");
    }
    // Nor does a key reach beyond the buffers that it is for, or read them.
    let len = victim.welcome.buffers.len;
    for (place, op) in [
        (len - 8, SendOp::Write as fn(RemoteAddr) -> SendOp),
        (len, SendOp::Write),
        (u64::MAX - 7, SendOp::Write),
        (0, SendOp::Read),
    ] {
        let (own, key) = opened(&host);
        let addr = own.welcome.buffers.addr.wrapping_add(place);
        let status = own.post(op(RemoteAddr { addr, rkey: Rkey(key.rkey) }), &[8; 64]);
        assert_eq!(status, WcStatus::RemAccessErr, "at {place}");
    }
    let answer = ask(&victim, SendOp::WriteImm(slot(&victim, 2, ours.rkey), ours.number), &call);
    assert_eq!((answer.kind, &answer.body[..]), (AnswerKind::Reply, &b"mine"[..]));
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn who_writes_what_is_no_call_of_his_own_is_cut_off_and_others_go_on() {
    let (mut host, asked) = host(ServerOptions::calls_by_immediate);
    let (mut well, ours) = opened(&host);
    let mut number = 1;
    let mut cut = 0;
    type Wrong = fn(&Raw, Immediates) -> (u64, u32, Vec<u8>);
    let wrongs: [(&str, Wrong); 6] = [
        ("another client's number", |raw, key| (2, key.number ^ 1, message(raw, 2, SERVICE, b"x"))),
        ("another buffer", |raw, key| (3, key.number, message(raw, 2, SERVICE, b"x"))),
        ("a call before its turn", |raw, key| (3, key.number, message(raw, 3, SERVICE, b"x"))),
        ("no byte", |_, key| (2, key.number, Vec::new())),
        ("half a call", |raw, key| {
            (2, key.number, message(raw, 2, SERVICE, &[7; 64])[..HEADER + 8].to_vec())
        }),
        ("more than a buffer", |raw, key| (2, key.number, vec![7; raw.welcome.slot_size as usize + 64])),
    ];
    for (what, wrong) in wrongs {
        let (raw, key) = opened(&host);
        let (at, imm, bytes) = wrong(&raw, key);
        assert_eq!(
            raw.post(SendOp::WriteImm(slot(&raw, at, key.rkey), imm), &bytes),
            WcStatus::Success,
            "{what}"
        );
        assert!(raw.connection.wait_ended(LIMIT).expect("it ends"), "{what}: the session goes on");
        cut += 1;
        number += 1;
        let call = message(&well, number, SERVICE, what.as_bytes());
        let answer = ask(&well, SendOp::WriteImm(slot(&well, number, ours.rkey), ours.number), &call);
        assert_eq!(answer.body, what.as_bytes(), "others go on");
        assert_eq!(asked.load(Ordering::Relaxed), cut);
    }
    // Who has not asked has no number.
    let raw = Raw::connect(&host, WRITERS);
    let place = RemoteAddr { addr: raw.welcome.region.addr, rkey: Rkey(raw.welcome.region.rkey) };
    assert_eq!(raw.post(SendOp::WriteImm(place, 0), &[7; 64]), WcStatus::Success);
    assert!(raw.connection.wait_ended(LIMIT).expect("it ends"), "the session goes on");
    well = opened(&host).0;
    drop(well);
    let _ = Session::connect(&context(), host.addr, with(WRITERS)).expect("others go on");
    assert_eq!(host.stop().expelled, cut + 1);
}
