//! Servers that executed FLUSHes, and do not any more: by a right that was taken, or since the medium failed. Nothing that is not
//! durable is acknowledged, what was acknowledged is there, and the next session goes on.

use crate::common;

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use common::{Host, address, context, fixed, session};
use remanence_persist::Config;
use remanence_persist::plan::Request;
use remanence_persist::recipe::{Flush, Op, Rq};
use remanence_pmem::{FileOptions, Guarantee, PersistenceDomain, Region};
use remanence_remote::hello::{Welcome, Window};
use remanence_remote::message::{Answer, AnswerKind, Parsed};
use remanence_remote::{Error, Role, Session};
use remanence_rnic::{Access, Data, QpAttr, RecvWr, SendFlags, SendOp, SendWr, Wc, WcStatus};
use remanence_verbs::{
    ConnectAttr, Context, Incoming, Listener, Mr, Options as DeviceOptions, Pd, QpOptions,
};
use tempfile::TempDir;

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
const LEN: u64 = 1 << 16;
const SLOTS: u16 = 16;
const SLOT_SIZE: u32 = 512;

/// What the QP of a client may be used for.
const ALL: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// A server whose CPU does nothing but to say who it is. It is told what its client may do, and does as it is told.
struct Fickle {
    addr: SocketAddr,
    rights: Sender<Option<Access>>,
    done: Receiver<()>,
    region: Region,
    thread: JoinHandle<()>,
    _dir: TempDir,
}

impl Fickle {
    /// Serves one client after the other, each in its configuration.
    fn serve(sessions: &[&str]) -> Self {
        let sessions: Vec<Config> =
            sessions.iter().map(|text| text.parse().expect("a configuration")).collect();
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let domain = common::declared(&sessions[0]);
        let file = FileOptions::new().create(LEN).declare(domain);
        let region = file.open(dir.path().join("memory")).expect("a file");
        let ip = address();
        let device = Context::open(DeviceOptions::udp(ip)).expect("a device");
        let listener = Listener::bind(&device, 7777, 4).expect("free");
        let (rights, told) = channel();
        let (tell, done) = channel();
        let served = region.clone();
        let thread = std::thread::spawn(move || {
            let pd = device.alloc_pd().expect("room");
            let mr = pd.reg_mr(&served, ALL | Access::LOCAL_WRITE).expect("it is persistent memory");
            for config in sessions {
                let incoming = listener.get_request(LIMIT).expect("somebody came");
                one(&device, &pd, &mr, incoming, config, domain, &told, &tell);
            }
        });
        Self { addr: (ip, 7777).into(), rights, done, region, thread, _dir: dir }
    }

    /// From now on its client may do this; or (`None`) the client has gone, and the next one may come.
    fn tell(&self, access: Option<Access>) {
        self.rights.send(access).expect("it serves");
        if access.is_some() {
            self.done.recv().expect("it did so");
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "a server in one function")]
fn one(
    device: &Context,
    pd: &Pd,
    mr: &Mr,
    incoming: Incoming,
    config: Config,
    domain: PersistenceDomain,
    told: &Receiver<Option<Access>>,
    tell: &Sender<()>,
) {
    let cq = device.create_cq(64, None, 0).expect("room");
    let qp = pd.create_qp(&QpOptions::rc(&cq)).expect("room");
    let ring = Region::anonymous(u64::from(SLOTS) * u64::from(SLOT_SIZE)).expect("memory");
    let ring = pd.reg_mr(&ring, Access::LOCAL_WRITE).expect("fair");
    let welcome = Welcome {
        server: config,
        agreed: config,
        declared: true,
        role: Role::Writer,
        guarantee: Guarantee::of(domain),
        region: Window { rkey: mr.rkey().0, addr: mr.addr(), len: mr.len() },
        buffers: Window { rkey: ring.rkey().0, addr: ring.addr(), len: ring.len() },
        slots: SLOTS,
        slot_size: SLOT_SIZE,
        stamp: 1,
        sentence: String::new(),
    };
    let attr = ConnectAttr { access: ALL, ..ConnectAttr::default() };
    let connection = incoming.accept(&qp, &attr, &welcome.emit()).expect("accepted");
    // What it is, is asked for; nothing else is.
    let sge = [ring.sge(0, SLOT_SIZE)];
    qp.post_recv(&RecvWr { wr_id: 1, sges: &sge }).expect("room");
    let mut completions: Vec<Wc> = Vec::new();
    while completions.is_empty() {
        cq.wait(&mut completions, 1, LIMIT).expect("it is asked");
    }
    assert_eq!(completions[0].status, WcStatus::Success);
    let mut asked = vec![0; completions[0].byte_len as usize];
    ring.region().read(0, &mut asked);
    let number = Parsed::read(&asked).expect("a message").header.number;
    let body = b"fickle".to_vec();
    let bytes = Answer { kind: AnswerKind::Reply, number, reposted: number, body }.emit();
    let data = Data::Inline(&bytes);
    qp.post_send(&SendWr { wr_id: 2, op: SendOp::Send, data, flags: SendFlags::empty(), ud: None })
        .expect("room");
    while let Ok(Some(access)) = told.recv() {
        qp.modify(&QpAttr { access: Some(access), ..QpAttr::default() }).expect("a QP that is ready to send");
        tell.send(()).expect("the test goes on");
    }
    let _ = connection.wait_ended(LIMIT);
}

fn content(n: u64) -> [u8; 200] {
    [n as u8 + 1; 200]
}

fn found(region: &Region, n: u64) -> bool {
    let mut bytes = [0; 200];
    region.read(n * 256, &mut bytes);
    bytes == content(n)
}

#[test]
fn a_flush_that_is_refused_in_mid_session_mints_nothing_and_the_next_session_goes_on() {
    // FLUSH to persistence, and to visibility: the server goes on with another right, or says that it has none.
    for (first, then, flush, kept) in [
        ("DMP+DDIO+DRAM+persistent", "DMP+DDIO+DRAM+persistent", Flush::Persistent, Access::FLUSH_GLOBAL),
        ("MHP+DDIO+DRAM", "MHP+DDIO+DRAM+read", Flush::Global, Access::FLUSH_PERSISTENT),
    ] {
        let server = Fickle::serve(&[first, then]);
        let mut session = Session::connect(&context(), server.addr, fixed()).expect("it executes FLUSH");
        let plan = session.plan_by(Op::Write, &Request::record(200)).expect("a plan");
        assert!(plan.recipe.requester().any(|step| step == Rq::Flush(flush)), "{}", plan.recipe);
        for n in 0..5 {
            let _ = session.persist(&plan, &[(n * 256, &content(n))]).expect("it executes FLUSH");
        }
        let flushes = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        server.tell(Some((ALL - flushes) | kept));
        let tokens = (5..9).map(|n| session.submit(&plan, &[(n * 256, &content(n))]));
        let refused = tokens.filter_map(Result::err).next();
        let e = refused.or_else(|| session.finish().err()).expect("it refuses FLUSH");
        let Error::FlushWithdrawn { status, .. } = &e else { panic!("{e:?}") };
        assert_eq!(*status, WcStatus::RemInvReqErr, "{e}");
        for part in
            ["until now", "what was acknowledged is as safe", "may be durable or not", "connect again"]
        {
            assert!(e.to_string().contains(part), "{part}: {e}");
        }
        assert_eq!(
            session.poll().map(|ended| ended.is_some()).ok(),
            None,
            "nothing was minted, and nothing will be"
        );
        assert!(matches!(session.persist(&plan, &[(0, &[0; 200])]), Err(Error::Over)));
        drop(session);
        server.tell(None);
        // What was acknowledged is there; who connects again writes what was not, and goes on.
        assert!((0..5).all(|n| found(&server.region, n)), "{first}");
        let mut session = Session::connect(&context(), server.addr, fixed()).expect("it is there");
        let plan = session.plan_by(Op::Write, &Request::record(200)).expect("a plan");
        for n in 5..9 {
            let _ = session.persist(&plan, &[(n * 256, &content(n))]).expect("it goes on");
        }
        drop(session);
        server.tell(None);
        assert!((0..9).all(|n| found(&server.region, n)), "{then}");
        server.thread.join().expect("the server ends");
    }
}

#[test]
fn a_medium_that_fails_under_a_flush_is_told_and_what_was_acknowledged_is_there_when_it_is_mended() {
    let mut host = Host::declared(1 << 20, PersistenceDomain::Adr, |o| o);
    let mut first = session(&host, fixed());
    let mut other = session(&host, fixed());
    let plan = first.plan_by(Op::Write, &Request::record(200)).expect("a plan");
    assert!(plan.recipe.requester().any(|step| step == Rq::Flush(Flush::Persistent)), "{}", plan.recipe);
    for n in 0..5 {
        let _ = first.persist(&plan, &[(n * 256, &content(n))]).expect("it goes on");
    }
    // Somebody cuts the file, far behind what was written: the medium is not what it was, and the server cannot know what else
    // is lost. It sees that when it touches the place.
    let path = host.path();
    let cut = |len| std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(len));
    cut(1 << 19).expect("a file");
    host.region.read(3 << 18, &mut [0]);
    let e = first.persist(&plan, &[(5 * 256, &content(5))]).expect_err("nothing can be made durable");
    assert!(matches!(e, Error::MediumFailed { status: WcStatus::RemOpErr, .. }), "{e:?}");
    for part in [
        "medium failed",
        "what was acknowledged is safe if",
        "may be durable or not",
        "start the server again",
    ] {
        assert!(e.to_string().contains(part), "{part}: {e}");
    }
    // Nobody else is told that something is durable either: the server, which was asked for nothing, ends, and says why.
    let ended = host.ends().expect_err("it served on a medium that failed").to_string();
    assert!(ended.contains("the medium failed") && ended.contains("truncated"), "{ended}");
    let plan = other.plan_by(Op::Write, &Request::record(200)).expect("a plan");
    assert!(other.persist(&plan, &[(0, &[9; 200])]).is_err());
    drop((first, other));
    // Mended, and served again.
    cut(1 << 20).expect("a file");
    let again = Host::again(host, PersistenceDomain::Adr, |o| o);
    let mut session = session(&again, fixed());
    for n in 1..5 {
        let mut bytes = [0; 200];
        session.read(n * 256, &mut bytes).expect("it is there");
        assert_eq!(bytes, content(n), "record {n}");
    }
    let plan = session.plan_by(Op::Write, &Request::record(200)).expect("a plan");
    let _ = session.persist(&plan, &[(5 * 256, &content(5))]).expect("it goes on");
    assert!(found(&again.region, 5));
}
