//! A server that echoes, and all that its clients may do to it.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use remanence_effort::address;
use remanence_link::fault::Plan;
use remanence_link::{WaitFd, wait};
use remanence_pmem::{FileOptions, Region};
use remanence_rnic::{Access, Data, QpCaps, QpState, RecvWr, SendFlags, SendOp, SendWr, Wc, WcStatus};
use remanence_service::server::{
    Admit, Between, Bounds, Buffers, Claim, Close, Control, Decision, Error, Full, Lot, Message, Options,
    Refusal, Request, Server, Service, Session, SessionId, Sessions, Spec, Stop, Turn, Workshop,
};
use remanence_verbs::{ConnectAttr, Connection, Context, Cq, Mr, Pd, QpOptions};

const SLOTS: u32 = 8;
const SLOT: u32 = 1024;
const POLLIN: i16 = 1;
/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);

fn context() -> Context {
    Context::open(remanence_verbs::Options::udp(address())).expect("a device on loopback")
}

/// Lets in who says "echo".
struct Gate {
    /// How long the service takes for somebody who says "slow".
    slow: Duration,
    /// Who says "hold" stops it between two waits here.
    hold: Arc<Barrier>,
    /// Where second QPs are made.
    pd: Pd,
    /// Second QPs that were not connected.
    lost: Vec<SessionId>,
}

impl Admit for Gate {
    type State = u64;

    fn admit(
        &mut self,
        request: &Request<'_>,
        place: Claim<'_>,
        workshop: &Workshop<'_>,
    ) -> Result<Decision<u64>, Refusal> {
        let place = place.take().map_err(|full| Refusal(full.to_string().into_bytes()))?;
        if let Some(session) = self.lost.first() {
            return Err(Refusal(format!("{} has lost {}", session.0, self.lost.len()).into_bytes()));
        }
        match &request.private_data[..4] {
            b"echo" => {}
            b"slow" => std::thread::sleep(self.slow),
            b"hold" => {
                self.hold.wait();
                self.hold.wait();
            }
            b"more" => {
                let pd = self.pd.clone();
                let attr = ConnectAttr::default();
                return Ok(Decision::Second { session: SessionId(1), pd, attr });
            }
            b"fail" => panic!("the gate has failed"),
            _ => return Err(Refusal(b"say echo".to_vec())),
        }
        let spec = Spec {
            slots: SLOTS,
            slot_size: SLOT,
            sends: 2,
            unsent: 16,
            extra: 0,
            buffers: Buffers::Own,
            attr: ConnectAttr { access: Access::empty(), ..ConnectAttr::default() },
        };
        let opened = match workshop.open(place, &spec) {
            Ok(opened) => opened,
            Err(Error::Full(full)) => return Err(Refusal(full.to_string().into_bytes())),
            Err(other) => panic!("{other}"),
        };
        let welcome = opened.id().0.to_be_bytes().to_vec();
        Ok(Decision::Session { opened, state: 0, welcome })
    }

    fn not_connected(&mut self, session: SessionId) {
        self.lost.push(session);
    }
}

/// Echoes what it gets, and ends who says "bad" or "bye". The buffers of those that say "keep" it keeps, and who says "hold"
/// stops it between two waits at the barrier.
struct Echo {
    hold: Arc<Barrier>,
    /// The first turn wants another one.
    again: Option<Control>,
    ended: Vec<(SessionId, u64)>,
    turns: u64,
}

impl Service for Echo {
    type State = u64;

    fn message(&mut self, session: &mut Session<u64>, message: &Message) -> Result<(), Close> {
        let mut bytes = vec![0; message.len as usize];
        session.link.read(message.number, &mut bytes);
        session.state += 1;
        assert_eq!(session.state, message.number, "each is handed over once, in order");
        if bytes == b"keep" {
            return Ok(());
        }
        session.link.give_back(message.number);
        if bytes == b"bad" {
            return Err(Close::Expelled);
        }
        if bytes == b"hold" {
            self.hold.wait();
            self.hold.wait();
        }
        if bytes == b"bye" {
            session.link.send(b"farewell".to_vec());
            session.link.leave();
        }
        session.link.send(bytes);
        Ok(())
    }

    fn ended(&mut self, session: &mut Session<u64>) {
        let state = session.link.qp().query().expect("it is there").state;
        assert_eq!(state, QpState::Err, "something could still arrive, and be acknowledged");
        self.ended.push((session.link.id(), session.state));
    }

    fn turn(&mut self, _: &mut Sessions<u64>, _: &Lot<'_>) -> Turn {
        self.turns += 1;
        if let Some(control) = self.again.take() {
            control.wake();
        }
        Turn::Idle
    }
}

struct Host {
    addr: SocketAddr,
    control: Control,
    stop: Stop,
    hold: Arc<Barrier>,
    thread: Option<JoinHandle<(Echo, Result<(), Error>)>>,
}

impl Host {
    fn new(change: impl FnOnce(&mut Options)) -> Self {
        Self::on(&context(), change)
    }

    fn on(device: &Context, change: impl FnOnce(&mut Options)) -> Self {
        Self::resting_on(None, device, change)
    }

    fn resting_on(medium: Option<&Region>, device: &Context, change: impl FnOnce(&mut Options)) -> Self {
        let bounds = Bounds { sessions: 64, each: 64, bytes: 64 << 20 };
        let mut options = Options { port: 0, backlog: 64, message: SLOT, bounds, quiet: None };
        change(&mut options);
        let mut server = Server::bind(device, options).expect("a server");
        medium.into_iter().for_each(|medium| server.rests_on(medium));
        let (addr, control, stop) = (server.addr(), server.control(), Stop::new());
        let stopping = stop.clone();
        let hold = Arc::new(Barrier::new(2));
        let mut echo =
            Echo { hold: Arc::clone(&hold), again: Some(server.control()), ended: Vec::new(), turns: 0 };
        let thread = std::thread::spawn(move || {
            let (slow, hold) = (Duration::from_millis(500), Arc::clone(&echo.hold));
            let mut gate = Gate { slow, hold, pd: server.pd().clone(), lost: Vec::new() };
            let result = server.run(&mut echo, &mut gate, &stopping);
            assert_eq!(server.bytes(), 0, "all memory of sessions is given back");
            (echo, result)
        });
        Self { addr, control, stop, hold, thread: Some(thread) }
    }

    fn bounded(sessions: u32, each: u32, bytes: u64) -> Self {
        Self::new(|options| options.bounds = Bounds { sessions, each, bytes })
    }

    fn stop(mut self) -> Echo {
        self.stop.ask();
        let (echo, result) = self.thread.take().expect("it runs").join().expect("it does not panic");
        result.expect("it served");
        echo
    }

    fn ends(&self, session: SessionId) {
        let begin = Instant::now();
        while self.control.is_live(session) {
            assert!(begin.elapsed() < LONG, "it goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.ask();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Client {
    connection: Connection,
    cq: Cq,
    mr: Mr,
    session: SessionId,
    posted: u64,
}

impl Client {
    fn connect(context: &Context, host: &Host, says: &[u8]) -> Result<Self, String> {
        Self::with(context, host, says, 16)
    }

    /// With so many receive buffers.
    fn with(context: &Context, host: &Host, says: &[u8], receives: u64) -> Result<Self, String> {
        Self::to(context, host.addr, says, receives)
    }

    fn to(context: &Context, addr: SocketAddr, says: &[u8], receives: u64) -> Result<Self, String> {
        let pd = context.alloc_pd().expect("room");
        let cq = context.create_cq(256, None, 0).expect("room");
        let memory = Region::anonymous(17 * u64::from(SLOT)).expect("memory");
        let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE).expect("registered");
        let caps =
            QpCaps { max_send_wr: 128, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let qp = pd.create_qp(&QpOptions { caps, ..QpOptions::rc(&cq) }).expect("room");
        let connection = Connection::connect(&qp, addr, &ConnectAttr::default(), says, Some(LONG));
        let connection = connection.map_err(|e| match e {
            remanence_verbs::Error::Rejected { private_data, .. } => {
                let words = String::from_utf8_lossy(&private_data);
                words.trim_end_matches('\0').to_owned()
            }
            other => other.to_string(),
        })?;
        let welcome = connection.private_data();
        let session = SessionId(u64::from_be_bytes(welcome[..8].try_into().expect("eight bytes")));
        let mut client = Self { connection, cq, mr, session, posted: 0 };
        (0..receives).for_each(|_| client.post());
        Ok(client)
    }

    fn post(&mut self) {
        let sge = self.mr.sge(self.posted % 16 * u64::from(SLOT), SLOT);
        self.connection.qp().post_recv(&RecvWr { wr_id: self.posted, sges: &[sge] }).expect("room");
        self.posted += 1;
    }

    fn send(&self, bytes: &[u8]) {
        let at = 16 * u64::from(SLOT);
        self.mr.region().write(at, bytes);
        let sge = self.mr.sge(at, bytes.len() as u32);
        let data = Data::Sges(std::slice::from_ref(&sge));
        let wr = SendWr { wr_id: u64::MAX, op: SendOp::Send, data, flags: SendFlags::SIGNALED, ud: None };
        let _ = self.connection.qp().post_send(&wr);
    }

    /// The next completion.
    fn completion(&self) -> Wc {
        let begin = Instant::now();
        let mut found = Vec::new();
        while found.is_empty() {
            self.cq.wait(&mut found, 1, Some(Duration::from_secs(1))).expect("it has room");
            assert!(begin.elapsed() < LONG, "nothing comes");
        }
        found[0]
    }

    /// The next message; `None`: the session is over.
    fn receive(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.completion() {
                wc if wc.status != WcStatus::Success => return None,
                wc if wc.wr_id != u64::MAX => {
                    let mut bytes = vec![0; wc.byte_len as usize];
                    self.mr.region().read(wc.wr_id % 16 * u64::from(SLOT), &mut bytes);
                    self.post();
                    return Some(bytes);
                }
                _ => {}
            }
        }
    }

    fn echo(&mut self, bytes: &[u8]) {
        self.send(bytes);
        assert_eq!(self.receive().as_deref(), Some(bytes));
    }
}

#[test]
fn many_sessions_are_served_in_order_and_none_has_the_number_of_another() {
    let host = Host::new(|_| ());
    let device = context();
    let mut clients: Vec<_> =
        (0..40).map(|_| Client::connect(&device, &host, b"echo").expect("let in")).collect();
    for round in 0..30_u32 {
        for (n, client) in clients.iter_mut().enumerate() {
            // Short ones go inline, long ones through a buffer; the ring is gone around.
            let len = if (round as usize + n).is_multiple_of(3) { 900 } else { 8 };
            client.echo(&vec![(round + n as u32) as u8; len]);
        }
    }
    let mut ids: Vec<_> = clients.iter().map(|client| client.session).collect();
    drop(clients.split_off(20));
    ids[20..].iter().for_each(|id| host.ends(*id));
    let late = Client::connect(&device, &host, b"echo").expect("let in");
    ids.push(late.session);
    let mut numbers = ids.clone();
    numbers.dedup();
    assert_eq!(numbers, ids, "they go up");
    assert_eq!(host.control.counters().messages(), 40 * 30);
    let echo = host.stop();
    let mut ended: Vec<_> = echo.ended;
    ended.sort();
    assert_eq!(ended.len(), 41, "each is ended once");
    assert!(ended.iter().take(40).all(|(_, messages)| *messages == 30) && ended[40].1 == 0);
}

#[test]
fn strangers_and_slow_admission_do_not_make_a_session_wait() {
    let host = Host::new(|_| ());
    let mut client = Client::connect(&context(), &host, b"echo").expect("let in");
    std::thread::scope(|scope| {
        let strangers: Vec<_> = (0..3)
            .map(|n| {
                let host = &host;
                scope.spawn(move || {
                    let device = context();
                    for _ in 0..10 {
                        let told = Client::connect(&device, host, b"what").map(drop);
                        assert_eq!(told, Err("say echo".into()));
                    }
                    if n == 0 { Client::connect(&device, host, b"slow").map(drop) } else { Ok(()) }
                })
            })
            .collect();
        // While the gate takes its half a second, this goes on: more round trips than fit behind it.
        let mut trips = 0_u64;
        while !strangers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            client.echo(b"still here");
            trips += 1;
        }
        assert!(trips > 20, "{trips}");
        strangers.into_iter().for_each(|thread| thread.join().expect("it does not panic").expect("let in"));
    });
    assert_eq!(host.control.counters().refused(), 30);
}

#[test]
fn who_does_not_take_its_answers_is_ended_and_nobody_else() {
    let host = Host::new(|_| ());
    let device = context();
    let mut other = Client::connect(&device, &host, b"echo").expect("let in");
    let deaf = Client::with(&device, &host, b"echo", 0).expect("let in");
    for _ in 0..100 {
        deaf.send(&[7; 600]);
    }
    host.ends(deaf.session);
    other.echo(b"not me");
    assert_eq!(host.control.counters().expelled(), 1);
}

#[test]
fn who_breaks_the_protocol_is_expelled_and_who_leaves_gets_its_last_answers() {
    let host = Host::new(|_| ());
    let device = context();
    let mut bad = Client::connect(&device, &host, b"echo").expect("let in");
    bad.send(b"bad");
    assert_eq!(bad.receive(), None);
    host.ends(bad.session);
    let mut polite = Client::connect(&device, &host, b"echo").expect("let in");
    polite.send(b"bye");
    assert_eq!(polite.receive().as_deref(), Some(&b"farewell"[..]));
    assert_eq!(polite.receive(), None, "nothing is sent after the last words, and the session is over");
    host.ends(polite.session);
    assert_eq!(host.control.counters().expelled(), 1);
}

#[test]
fn sessions_above_the_bounds_are_told_so_and_one_that_ends_makes_room() {
    let refused = |full: Full| Err(full.to_string());
    let connect = |device: &Context, host: &Host| Client::connect(device, host, b"echo");
    let (here, there) = (context(), context());
    let host = Host::bounded(3, 2, 64 << 20);
    let one = connect(&here, &host).expect("let in");
    let _two = connect(&here, &host).expect("let in");
    assert_eq!(connect(&here, &host).map(drop), refused(Full::Address));
    let _three = connect(&there, &host).expect("let in from elsewhere");
    assert_eq!(connect(&there, &host).map(drop), refused(Full::Sessions));
    let gone = one.session;
    drop(one);
    host.ends(gone);
    // The place is free when the session's QP is gone, a moment later.
    let begin = Instant::now();
    let again = loop {
        match connect(&there, &host) {
            Ok(client) => break client,
            Err(why) => assert!(why == Full::Sessions.to_string() && begin.elapsed() < LONG, "{why}"),
        }
    };
    assert!(again.session > gone);
    // A session has 8 receive buffers and 2 send buffers of 1 KiB.
    let host = Host::bounded(64, 64, 25 << 10);
    let _two = [connect(&here, &host).expect("let in"), connect(&here, &host).expect("let in")];
    assert_eq!(connect(&here, &host).map(drop), refused(Full::Memory));
}

#[test]
fn a_notice_wakes_an_idle_server_and_so_does_the_end_of_a_session() {
    let host = Host::new(|_| ());
    let device = context();
    let mut client = Client::connect(&device, &host, b"echo").expect("let in");
    let mut other = Client::connect(&device, &host, b"echo").expect("let in");
    client.echo(b"hello");
    for n in 0..50_u8 {
        host.control.notify(client.session, vec![n; 4]);
        assert_eq!(client.receive(), Some(vec![n; 4]));
    }
    host.control.end(client.session);
    host.ends(client.session);
    assert_eq!(client.receive(), None);
    // To who is gone nothing is said.
    host.control.notify(client.session, b"anybody?".to_vec());
    other.echo(b"hello");
    let echo = host.stop();
    assert_eq!(echo.ended.len(), 2);
}

/// Its client may know that it is durable.
#[test]
fn what_has_arrived_is_handed_over_before_a_session_that_is_cut_has_ended() {
    let host = Host::new(|_| ());
    let device = context();
    let cut = Client::connect(&device, &host, b"echo").expect("let in");
    let other = Client::connect(&device, &host, b"echo").expect("let in");
    other.send(b"hold");
    host.hold.wait();
    for _ in 0..SLOTS {
        cut.send(b"keep");
        let wc = cut.completion();
        assert_eq!((wc.wr_id, wc.status), (u64::MAX, WcStatus::Success), "it is acknowledged");
    }
    // All receive buffers are used, and nothing is under way to the client: no work request of the session is flushed.
    host.control.end(cut.session);
    host.hold.wait();
    host.ends(cut.session);
    assert!(host.stop().ended.contains(&(cut.session, SLOTS.into())));
}

#[test]
fn what_has_arrived_when_a_server_stops_is_handed_over_and_not_answered() {
    let host = Host::new(|_| ());
    let device = context();
    let mut late = Client::connect(&device, &host, b"echo").expect("let in");
    let other = Client::connect(&device, &host, b"echo").expect("let in");
    other.send(b"hold");
    host.hold.wait();
    for n in 0..3 {
        late.send(&[n; 8]);
        let wc = late.completion();
        assert_eq!((wc.wr_id, wc.status), (u64::MAX, WcStatus::Success), "it is acknowledged");
    }
    // It does not look at its queue again before it stops.
    host.stop.ask();
    host.hold.wait();
    let (late_one, other_one) = ((late.session, 3), (other.session, 1));
    let ended = host.stop().ended;
    assert!(ended.len() == 2 && ended.contains(&late_one) && ended.contains(&other_one), "{ended:?}");
    assert_eq!(late.receive(), None);
}

/// The thread that serves had looked for it before it was there.
#[test]
fn who_is_let_in_while_a_server_stops_is_a_session_that_ends() {
    let host = Host::new(|_| ());
    let (addr, hold) = (host.addr, Arc::clone(&host.hold));
    let client =
        std::thread::spawn(move || Client::to(&context(), addr, b"hold", 1).map(|mut it| it.receive()));
    hold.wait();
    host.stop.ask();
    std::thread::sleep(Duration::from_millis(100));
    hold.wait();
    let control = host.control.clone();
    assert_eq!(host.stop().ended, [(SessionId(1), 0)]);
    assert_eq!((control.is_live(SessionId(1)), control.counters().ended()), (false, 1));
    // It may be over before it was up.
    assert!(matches!(client.join().expect("it does not panic"), Ok(None) | Err(_)));
}

#[test]
fn who_decided_for_a_second_qp_hears_that_it_was_not_connected() {
    let mut options = remanence_verbs::Options::udp(address());
    options.config.max_qp = 1;
    let host = Host::on(&Context::open(options).expect("a device on loopback"), |_| ());
    let device = context();
    let mut client = Client::connect(&device, &host, b"echo").expect("let in");
    let none = Client::connect(&device, &host, b"more").map(drop);
    assert!(none.is_err(), "the device has no room for it");
    assert_eq!(Client::connect(&device, &host, b"what").map(drop), Err("1 has lost 1".into()));
    client.echo(b"still here");
}

#[test]
fn a_limit_of_no_time_for_quiet_clients_lets_the_others_be_served() {
    let host = Host::new(|options| options.quiet = Some(Duration::ZERO));
    let device = context();
    let _quiet = Client::connect(&device, &host, b"echo").expect("let in");
    let mut client = Client::connect(&device, &host, b"echo").expect("let in");
    client.echo(b"hello");
}

#[test]
fn a_stop_remembers_those_servers_only_that_run() {
    let stop = Stop::new();
    let bounds = Bounds { sessions: 1, each: 1, bytes: 64 << 20 };
    let options = Options { port: 0, backlog: 1, message: SLOT, bounds, quiet: None };
    let server = Server::bind(&context(), options).expect("a server");
    stop.ask();
    for _ in 0..3 {
        let hold = Arc::new(Barrier::new(2));
        let mut gate =
            Gate { slow: Duration::ZERO, hold: Arc::clone(&hold), pd: server.pd().clone(), lost: Vec::new() };
        let mut echo = Echo { hold, again: None, ended: Vec::new(), turns: 0 };
        server.run(&mut echo, &mut gate, &stop).expect("it ends at once");
    }
    assert_eq!(format!("{stop:?}"), "Stop { asked: true, servers: 0 }");
}

/// Its clients would have been served, and nobody let in, for ever.
#[test]
fn a_server_whose_admission_panics_ends_and_says_so() {
    let mut host = Host::new(|_| ());
    let device = context();
    let mut client = Client::connect(&device, &host, b"echo").expect("let in");
    Client::connect(&device, &host, b"fail").map(drop).expect_err("it is refused");
    assert_eq!(client.receive(), None, "it is told");
    let (echo, result) =
        host.thread.take().expect("it ran").join().expect("the thread that serves does not panic");
    assert_eq!(echo.ended, [(client.session, 0)]);
    let why = result.expect_err("it failed").to_string();
    assert!(why.contains("admission panicked"), "{why}");
}

/// It was met by somebody else than the service, which has nothing to do: the device, for a peer's FLUSH.
#[test]
fn a_server_whose_medium_fails_ends_and_says_so() {
    let path = std::env::temp_dir().join(format!("remanence-service-{}-medium", std::process::id()));
    let medium = FileOptions::new().create(4 * 4096).open(&path).expect("a file");
    let mut host = Host::resting_on(Some(&medium), &context(), |_| ());
    let device = context();
    let mut client = Client::connect(&device, &host, b"echo").expect("let in");
    client.echo(b"hello");
    let rounds = host.control.counters().rounds();
    std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(0)).expect("cut");
    std::fs::remove_file(&path).expect("it is there");
    medium.read(8192, &mut [0]);
    medium.persist(0..8).expect_err("it is gone");
    assert_eq!(client.receive(), None, "it is told");
    let (echo, result) =
        host.thread.take().expect("it ran").join().expect("the thread that serves does not panic");
    assert_eq!(echo.ended, [(client.session, 1)]);
    assert!(host.control.counters().rounds() > rounds, "it was woken");
    let why = result.expect_err("it failed").to_string();
    assert!(why.contains("the medium failed") && why.contains("truncated"), "{why}");
}

#[test]
fn who_wants_a_turn_while_one_ends_gets_the_next() {
    let host = Host::new(|_| ());
    // Nothing else happens in this server.
    host.control.wake();
    let begin = Instant::now();
    while host.control.counters().rounds() < 2 {
        assert!(begin.elapsed() < LONG, "it sleeps");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(100));
    // A wake that finds it between two sleeps may end both.
    assert!((2..=4).contains(&host.stop().turns));
}

/// It was admitted, and never said that it knows: its place was lost for ever.
#[test]
fn a_client_that_goes_before_its_connection_is_up_leaves_its_place() {
    let host = Host::bounded(1, 1, 64 << 20);
    drop(let_in_and_silent(&context(), &host));
    host.ends(SessionId(1));
    assert_eq!(host.stop().ended, [(SessionId(1), 0)]);
}

/// Asks, is let in, and says nothing more: the connection manager of the server waits for its RTU.
fn let_in_and_silent(device: &Context, host: &Host) -> Connection {
    let pd = device.alloc_pd().expect("room");
    let cq = device.create_cq(16, None, 0).expect("room");
    let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    let qp = pd.create_qp(&QpOptions { caps, ..QpOptions::rc(&cq) }).expect("room");
    let connection = Connection::start(&qp, host.addr, &ConnectAttr::default(), b"echo").expect("asked");
    let begin = Instant::now();
    let fd = connection.fd().expect("a descriptor").as_raw_fd();
    let is_readable = || {
        let fd = WaitFd { fd, events: POLLIN };
        wait::poll(&[fd], Some(Duration::from_millis(1))).expect("looked")
    };
    while !is_readable() {
        assert!(begin.elapsed() < LONG, "it is not let in");
    }
    connection
}

/// Twenty of them a second shut everybody else out, as each had a place for as long as its reply was repeated.
#[test]
fn who_is_let_in_and_says_nothing_more_makes_room_and_who_has_said_something_does_not() {
    let host = Host::bounded(2, 2, 64 << 20);
    let device = context();
    let _silent = [(); 2].map(|()| let_in_and_silent(&device, &host));
    let connect = || Client::connect(&device, &host, b"echo");
    // They were let in before this, and are kept for a moment only.
    std::thread::sleep(Duration::from_millis(100));
    let mut clients = [(); 2].map(|()| connect().expect("a silent one goes"));
    clients.iter_mut().for_each(|client| client.echo(b"hello"));
    host.ends(SessionId(1));
    host.ends(SessionId(2));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(connect().map(drop), Err(Full::Address.to_string()));
    clients.iter_mut().for_each(|client| client.echo(b"still here"));
}

#[test]
fn an_idle_server_does_not_wake_up_and_stops_at_once() {
    let host = Host::new(|_| ());
    let device = context();
    let mut clients: Vec<_> =
        (0..8).map(|_| Client::connect(&device, &host, b"echo").expect("let in")).collect();
    clients.iter_mut().for_each(|client| client.echo(b"hello"));
    // The last session that began may still be taken over.
    std::thread::sleep(Duration::from_millis(200));
    let before = host.control.counters().rounds();
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(host.control.counters().rounds(), before, "it woke up for nothing");
    // Nothing ticks: were it not woken, it would not stop at all.
    let echo = host.stop();
    assert_eq!(echo.ended.len(), 8);
    clients.iter_mut().for_each(|client| assert_eq!(client.receive(), None, "it is told"));
}

#[test]
fn what_was_answered_goes_out_before_a_stop() {
    let host = Host::new(|_| ());
    let mut client = Client::with(&context(), &host, b"echo", 0).expect("let in");
    client.send(b"one");
    client.send(&[5; 700]);
    let begin = Instant::now();
    while host.control.counters().messages() < 2 {
        assert!(begin.elapsed() < LONG);
        std::thread::yield_now();
    }
    // Nothing could be received up to now.
    let stopping = std::thread::spawn(move || host.stop());
    (0..2).for_each(|_| client.post());
    assert_eq!(client.receive().as_deref(), Some(&b"one"[..]));
    assert_eq!(client.receive(), Some(vec![5; 700]));
    stopping.join().expect("it stops");
}

#[test]
fn a_client_that_dies_is_noticed_and_a_quiet_one_stays() {
    let host = Host::new(|options| options.quiet = Some(Duration::from_millis(50)));
    let mut quiet = Client::connect(&context(), &host, b"echo").expect("let in");
    let plan = Plan::default();
    let options =
        remanence_verbs::Options { faults: Some((plan, 1)), ..remanence_verbs::Options::udp(address()) };
    let device = Context::open(options).expect("a device on loopback");
    let mut dies = Client::connect(&device, &host, b"echo").expect("let in");
    dies.echo(b"alive");
    device.fault_control().expect("it has faults").isolate_all();
    host.ends(dies.session);
    assert!(host.control.counters().probed() > 0);
    quiet.echo(b"still here");
    assert!(host.control.is_live(quiet.session));
}

/// Works, and writes down in which order it works and is handed messages. During its first piece of work two arrive.
struct Worker {
    clients: Receiver<Client>,
    client: Option<Client>,
    order: Vec<String>,
    stop: Stop,
}

impl Service for Worker {
    type State = u64;

    fn between(&self) -> Between {
        Between::Works
    }

    fn work(&mut self) {
        let Some(client) = &self.client else {
            self.client = self.clients.try_recv().ok();
            return;
        };
        if self.order.is_empty() {
            for word in [b"one", b"two"] {
                client.send(word);
                // It is acknowledged, and so in the server's queue.
                assert_eq!(client.completion().status, WcStatus::Success);
            }
        } else {
            self.stop.ask();
        }
        self.order.push("work".into());
    }

    fn message(&mut self, session: &mut Session<u64>, message: &Message) -> Result<(), Close> {
        let mut bytes = vec![0; message.len as usize];
        session.link.read(message.number, &mut bytes);
        session.link.give_back(message.number);
        self.order.push(String::from_utf8(bytes).expect("a word"));
        Ok(())
    }
}

/// What a busy application is to those who need its help: they wait until it looks, and not for another piece of its work.
#[test]
fn what_came_during_a_piece_of_work_is_handed_over_before_the_next_one() {
    let bounds = Bounds { sessions: 1, each: 1, bytes: 1 << 20 };
    let options = Options { port: 0, backlog: 1, message: SLOT, bounds, quiet: None };
    let server = Server::bind(&context(), options).expect("a server");
    let (addr, stop) = (server.addr(), Stop::new());
    let (sender, clients) = std::sync::mpsc::channel();
    let mut worker = Worker { clients, client: None, order: Vec::new(), stop: stop.clone() };
    let (hold, pd) = (Arc::new(Barrier::new(1)), server.pd().clone());
    let mut gate = Gate { slow: Duration::ZERO, hold, pd, lost: Vec::new() };
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| server.run(&mut worker, &mut gate, &stop));
        sender.send(Client::to(&context(), addr, b"echo", 1).expect("let in")).expect("it is there");
        serving.join().expect("it does not panic").expect("it served");
    });
    assert_eq!(worker.order, ["work", "one", "two", "work"]);
}
