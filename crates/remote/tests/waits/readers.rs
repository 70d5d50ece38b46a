//! A token for readers over real connections: who has it reads, and whatever it tries else changes nothing.

use crate::common;

use std::time::Duration;

use common::{Host, context, fixed, session};
use remanence_persist::plan::Request;
use remanence_persist::recipe::{Op, Shape, build};
use remanence_persist::taxonomy::Buffers;
use remanence_pmem::{FileOptions, PersistenceDomain, Region};
use remanence_remote::admission::{Ends, Transcript};
use remanence_remote::hello::{Credentials, Hello, Rejection, Welcome};
use remanence_remote::message::{Entry, Header, Kind};
use remanence_remote::program::Program;
use remanence_remote::{Error, Options, Role, Server, ServerOptions, Session, Token, Work};
use remanence_rnic::{
    Access, Data, Placement, RemoteAddr, Selectivity, SendFlags, SendOp, SendWr, Wc, WcStatus,
};
use remanence_verbs::{ConnectAttr, Connection, Context, Cq, Mr, Pd, QpOptions};
use remanence_wire::Rkey;

pub(crate) const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
pub(crate) const WRITERS: &str = "writers-writers-writers";
pub(crate) const READERS: &str = "readers-readers-readers";
pub(crate) const SERVICE: u16 = 3;

fn token(text: &str) -> Token {
    Token::new(text).expect("a fair token")
}

pub(crate) fn with(text: &str) -> Options {
    fixed().tokens([token(text)])
}

/// It answers calls with what their client may do.
fn host() -> Host {
    Host::with(
        1 << 20,
        Some(PersistenceDomain::Adr),
        |o| o.token(token(WRITERS)).reader_token(token(READERS)),
        |server| {
            server.on_call(SERVICE, |call| Ok(format!("{:?}", call.role).into_bytes()));
        },
    )
}

fn bytes(host: &Host) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    host.region.read(0, &mut bytes);
    bytes
}

#[test]
fn a_reader_reads_and_calls_and_is_told_that_it_may_not_write() {
    let host = host();
    let mut writer = session(&host, with(WRITERS));
    assert_eq!(writer.role(), Role::Writer);
    let plan = writer.plan(&Request::record(64)).expect("a plan");
    let _ = writer.persist(&plan, &[(64, &[7; 64])]).expect("it may");
    assert_eq!(writer.call(SERVICE, b"").expect("an answer"), b"Writer");

    let mut reader = session(&host, with(READERS));
    assert_eq!(reader.role(), Role::Reader);
    assert_eq!(reader.call(SERVICE, b"").expect("an answer"), b"Reader");
    let plan = reader.plan(&Request::record(64)).expect("a plan is no right");
    let said = [
        reader.persist(&plan, &[(64, &[8; 64])]).map(drop),
        reader.submit(&plan, &[(64, &[8; 64])]).map(drop),
        reader.together(&[Work::Read { at: 0, len: 8 }, Work::Write { at: 64, bytes: &[8; 64] }]).map(drop),
        reader.together(&[Work::Persist { plan: &plan, updates: &[(64, &[8; 64])] }]).map(drop),
    ];
    for said in said {
        let e = said.expect_err("it is a reader");
        assert!(matches!(e, Error::ReadOnly(_)) && e.to_string().contains("one for readers"), "{e}");
    }
    // Nothing was sent, and the session goes on.
    let mut found = [0; 192];
    reader.read(0, &mut found).expect("it may");
    assert_eq!(found, *[[0; 64], [7; 64], [0; 64]].as_flattened());
}

#[test]
fn readers_have_a_token_of_their_own_and_no_say_in_what_recovery_applies() {
    type Change = fn(ServerOptions) -> ServerOptions;
    let bind = |change: Change| {
        let dir = tempfile::tempdir().expect("a directory");
        let region = FileOptions::new().create(1 << 20).open(dir.path().join("memory")).expect("a file");
        Server::bind(change(ServerOptions::new(&context(), region, 0)))
    };
    let refused: [(&str, Change); 5] = [
        ("one for writers", |o| o.reader_token(token(READERS))),
        ("another one", |o| o.token(token(READERS)).reader_token(token(READERS))),
        ("in DRAM", |o| o.token(token(WRITERS)).reader_token(token(READERS)).buffers(Buffers::Pm)),
        ("in DRAM", |o| o.guarded().buffers(Buffers::Pm)),
        ("in DRAM", |o| o.calls_by_immediate().buffers(Buffers::Pm)),
    ];
    for (why, change) in refused {
        let e = bind(change).expect_err(why);
        assert!(e.to_string().contains(why), "{e}");
    }
    assert!(bind(|o| o.token(token(WRITERS)).reader_token(token(READERS))).is_ok());
}

/// A client that does all by hand, and heeds nothing.
pub(crate) struct Raw {
    pub(crate) connection: Connection,
    pub(crate) welcome: Welcome,
    pub(crate) cq: Cq,
    pub(crate) local: Mr,
    _pd: Pd,
}

impl Raw {
    pub(crate) fn connect(host: &Host, text: &str) -> Self {
        let device = context();
        let nonce = [9; 32];
        let asking = Hello { declared: None, credentials: Credentials::Nonce(nonce) };
        let (pd, cq) = (device.alloc_pd().expect("room"), device.create_cq(64, None, 0).expect("room"));
        let challenge = match Self::knock(&device, &pd, &cq, host, |_| asking) {
            Err(Rejection::Challenge(theirs)) => theirs,
            other => panic!("{:?}", other.map(drop)),
        };
        let answer = |ends| Transcript::new(token(text), nonce, challenge, ends).answer(&asking);
        let connection = Self::knock(&device, &pd, &cq, host, answer).expect("it has a token");
        let welcome = Welcome::parse(&connection.private_data()).expect("a Welcome");
        let local = Region::anonymous(1 << 16).expect("memory");
        let local = pd.reg_mr(&local, Access::LOCAL_WRITE).expect("fair");
        Self { connection, welcome, cq, local, _pd: pd }
    }

    fn knock(
        device: &Context,
        pd: &Pd,
        cq: &Cq,
        host: &Host,
        hello: impl FnOnce(Ends) -> Hello,
    ) -> Result<Connection, Rejection> {
        let qp = pd.create_qp(&QpOptions::rc(cq)).expect("room");
        let client = device.link_caps().addresses[0];
        let hello = hello(Ends { client, qpn: qp.qpn().value(), server: host.addr });
        match Connection::connect(&qp, host.addr, &ConnectAttr::default(), &hello.emit(), LIMIT) {
            Ok(connection) => Ok(connection),
            Err(remanence_verbs::Error::Rejected { private_data, .. }) => {
                Err(Rejection::parse(&private_data))
            }
            Err(e) => panic!("{e}"),
        }
    }

    fn place(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.welcome.region.addr + offset, rkey: Rkey(self.welcome.region.rkey) }
    }

    /// Posts one work request with 8 bytes, and waits for its end.
    pub(crate) fn post(&self, op: SendOp, bytes: &[u8]) -> WcStatus {
        self.local.region().write(0, bytes);
        let sge = [self.local.sge(0, bytes.len() as u32)];
        let data = Data::Sges(if bytes.is_empty() { &[] } else { &sge });
        let wr = SendWr { wr_id: 1, op, data, flags: SendFlags::SIGNALED, ud: None };
        self.connection.qp().post_send(&wr).expect("posted");
        let mut done: Vec<Wc> = Vec::new();
        while done.is_empty() {
            self.cq.wait(&mut done, 1, LIMIT).expect("a completion queue");
        }
        done[0].status
    }
}

#[test]
fn no_work_request_of_a_reader_changes_anything() {
    let host = host();
    host.region.write(0, &[7; 4096]);
    let before = bytes(&host);
    type Make = fn(RemoteAddr) -> SendOp;
    let ops: [(&str, Make, &[u8]); 6] = [
        ("WRITE", SendOp::Write, &[8; 64]),
        ("WRITE with immediate", |to| SendOp::WriteImm(to, 1), &[8; 64]),
        (
            "compare and swap",
            |remote| SendOp::CompareSwap { remote, compare: 0x0707_0707_0707_0707, swap: 8 },
            &[0; 8],
        ),
        ("fetch and add", |remote| SendOp::FetchAdd { remote, add: 1 }, &[0; 8]),
        ("ATOMIC WRITE", SendOp::AtomicWrite, &[8; 8]),
        (
            "FLUSH",
            |remote| SendOp::Flush {
                remote,
                len: 64,
                placement: Placement::GlobalVisibility,
                selectivity: Selectivity::Range,
            },
            &[],
        ),
    ];
    for (what, op, payload) in ops {
        let reader = Raw::connect(&host, READERS);
        assert_eq!(reader.welcome.role, Role::Reader);
        assert_eq!(reader.post(SendOp::Read(reader.place(64)), &[0; 8]), WcStatus::Success);
        let status = reader.post(op(reader.place(64)), payload);
        assert_eq!(status, WcStatus::RemInvReqErr, "{what}");
        assert!(bytes(&host) == before, "a reader's {what} changed something");
    }
    // The same requests are a writer's right: it is the token, not the key, that they lack.
    let writer = Raw::connect(&host, WRITERS);
    assert_eq!(writer.post(SendOp::Write(writer.place(64)), &[8; 64]), WcStatus::Success);
    assert!(bytes(&host) != before);
}

#[test]
fn nobody_reads_what_others_send_to_the_server() {
    let host = host();
    let victim = Raw::connect(&host, WRITERS);
    // All sessions share the server's PD, so a key that somebody guesses is as good as one that was told.
    let theirs = victim.welcome.buffers;
    let remote = RemoteAddr { addr: theirs.addr, rkey: Rkey(theirs.rkey) };
    let flush = |placement| SendOp::Flush { remote, len: 64, placement, selectivity: Selectivity::Range };
    for text in [READERS, WRITERS] {
        let reach = [
            ("READ", SendOp::Read(remote), &[0; 8][..]),
            ("WRITE", SendOp::Write(remote), &[8; 8]),
            ("FLUSH", flush(Placement::GlobalVisibility), &[]),
        ];
        for (what, op, payload) in reach {
            let hostile = Raw::connect(&host, text);
            assert_eq!(hostile.post(SendOp::Read(hostile.place(64)), &[0; 8]), WcStatus::Success);
            let status = hostile.post(op, payload);
            let refused = matches!(status, WcStatus::RemAccessErr | WcStatus::RemInvReqErr);
            assert!(refused, "a {what} reaches the receive buffers of another session: {status:?}");
        }
    }
    // Not even their owner has a use for that.
    assert_eq!(victim.post(SendOp::Read(remote), &[0; 8]), WcStatus::RemAccessErr);
}

#[test]
fn no_message_of_a_reader_changes_anything() {
    let host = host();
    let recipe = build(&Raw::connect(&host, READERS).welcome.agreed, Op::Send, Shape::SINGLETON);
    let program = Program::compile(&recipe).expect("a list").emit();
    let mut update = Vec::new();
    Entry::emit(&mut update, 64, 8, true);
    update.extend_from_slice(b"forged!!");
    for (text, lands) in [(READERS, false), (WRITERS, true)] {
        let before = bytes(&host);
        let raw = Raw::connect(&host, text);
        let message = |number: u64, kind: Kind, entries: u16, body: &[u8]| {
            let stamp = raw.welcome.stamp;
            let header = Header { stamp, number, after: 0, kind, replay: false, part: 0, plan: 0, entries };
            let mut hash = crc32fast::Hasher::new();
            hash.update(body);
            [&header.emit(body.len() as u32, &hash)[..], body].concat()
        };
        assert_eq!(raw.post(SendOp::Send, &message(1, Kind::Plan, 0, &program)), WcStatus::Success);
        // It arrives: what is done about it is another matter.
        assert_eq!(raw.post(SendOp::Send, &message(2, Kind::Update, 1, &update)), WcStatus::Success);
        if lands {
            let begin = std::time::Instant::now();
            while host.region.load_u64(64) == 0 {
                assert!(Some(begin.elapsed()) < LIMIT, "a writer's message is not applied");
                std::thread::yield_now();
            }
        } else {
            // The server ends such a session, and then nothing of it is left to be done.
            assert!(raw.connection.wait_ended(LIMIT).expect("it ends"), "the session goes on");
            assert!(bytes(&host) == before, "a reader's message changed something");
        }
    }
    let _ = Session::connect(&context(), host.addr, with(READERS)).expect("others go on");
}
