//! A switch in a thread, replicas and a leader with engines of their own, at loopback addresses of their own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use remanence_auth::Token;
pub(crate) use remanence_effort::address;
use remanence_link::Link;
use remanence_link::udp::{self, UdpLink};
use remanence_pmem::Region;
use remanence_rnic::{Access as Rights, Data, RemoteAddr, SendFlags, SendOp, SendWr, WcStatus};
use remanence_service::server::Stop;
use remanence_switch::private::{Answer, Ask, Memory};
use remanence_switch::{Access, Report};
use remanence_switch_live::{Carrier, Handle, Look, Options, Plane};
use remanence_verbs::{
    ConnectAttr, Connection, Context, Cq, Error, Listener, Mr, Options as Device, Pd, Qp, QpOptions,
};
use remanence_wire::cm::{PortSpace, ServiceId};

/// No test waits longer for anything; none passes or fails by the clock before it.
pub(crate) const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
/// What replicas listen on.
pub(crate) const PORT: u16 = 7700;
pub(crate) const SERVICE: ServiceId = ServiceId::new(PortSpace::Tcp, PORT);
/// Bytes of memory that each side has.
pub(crate) const SIZE: u64 = 1 << 20;

/// A switch that runs.
pub(crate) struct Running {
    pub(crate) addr: IpAddr,
    pub(crate) handle: Handle,
    pub(crate) reports: Receiver<Report>,
    stop: Stop,
    thread: Option<JoinHandle<std::io::Result<Look>>>,
}

impl Running {
    pub(crate) fn new(access: Access) -> Self {
        Self::at(address(), access)
    }

    pub(crate) fn at(addr: IpAddr, access: Access) -> Self {
        let link = UdpLink::open(&udp::Options::new(vec![addr])).expect("a socket on loopback");
        Self::on(Box::new(link), addr, access)
    }

    pub(crate) fn on(link: Box<dyn Link>, addr: IpAddr, access: Access) -> Self {
        // All replicas are waited for, so that a group has all that agree.
        let grace = LIMIT.expect("a limit");
        let options = Options { addr, carrier: Carrier::Udp, services: vec![PORT], access, grace };
        let (plane, handle) = Plane::on(link, &options).expect("a seat");
        let (stop, (says, reports)) = (Stop::new(), channel());
        let stopping = stop.clone();
        let thread = thread::spawn(move || plane.run(&stopping, &mut |report| _ = says.send(report)));
        Self { addr, handle, reports, stop, thread: Some(thread) }
    }

    pub(crate) fn look(&self) -> Look {
        self.handle.ask(|plane| plane.look()).expect("it runs")
    }

    /// Looks until it is so.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&Look) -> bool) -> Look {
        let begin = std::time::Instant::now();
        loop {
            let look = self.look();
            if is_so(&look) {
                return look;
            }
            assert!(Some(begin.elapsed()) < LIMIT, "not within the limit: {what}; {look:?}");
            thread::yield_now();
        }
    }

    /// Stops it, as it is to be stopped.
    pub(crate) fn stop(&mut self) -> Look {
        self.stop.ask();
        let thread = self.thread.take().expect("it is stopped once");
        thread.join().expect("no panic").expect("the link works")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.ask();
    }
}

/// A host with an engine, and memory.
pub(crate) struct Side {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
}

impl Side {
    pub(crate) fn new() -> Self {
        Self::with(Device::udp(address()))
    }

    pub(crate) fn with(device: Device) -> Self {
        let context = Context::open(device).expect("a device");
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(256, None, 0).unwrap();
        let rights = Rights::LOCAL_WRITE | Rights::REMOTE_WRITE | Rights::REMOTE_READ | Rights::FLUSH_GLOBAL;
        let mr = pd.reg_mr(&Region::anonymous(SIZE).unwrap(), rights).unwrap();
        Self { context, pd, cq, mr }
    }

    pub(crate) fn addr(&self) -> Ipv4Addr {
        match self.context.config().gids[0].to_ip() {
            IpAddr::V4(addr) => addr,
            IpAddr::V6(addr) => panic!("{addr}"),
        }
    }

    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.region().read(offset, &mut bytes);
        bytes
    }
}

/// A replica, which agrees with whoever may be a leader.
pub(crate) struct Member {
    pub(crate) side: Side,
    listener: Listener,
    token: Option<Token>,
}

impl Member {
    pub(crate) fn new() -> Self {
        Self::with(Side::new())
    }

    pub(crate) fn with(side: Side) -> Self {
        let listener = Listener::bind(&side.context, PORT, 16).unwrap();
        Self { side, listener, token: None }
    }

    /// It asks leaders to have that.
    pub(crate) fn with_token(self, token: Token) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Agrees to the next request.
    pub(crate) fn agree(&self) -> Connection {
        let incoming = self.listener.get_request(LIMIT).expect("a request");
        let ask = Ask::parse(incoming.private_data()).expect("a request of a switch");
        if let Some(token) = &self.token {
            assert!(ask.is_proven(token, SERVICE, ask.addrs[0].into()), "{ask:?}");
        }
        let qp = self.side.pd.create_qp(&QpOptions::rc(&self.side.cq)).unwrap();
        let remote = self.side.mr.remote(0);
        let memory = Memory { va: remote.addr, size: SIZE, rkey: remote.rkey, linux_flush: false };
        incoming.accept(&qp, &ConnectAttr::default(), &memory.to_bytes()).unwrap()
    }

    /// Nobody has asked for anything.
    pub(crate) fn is_left_alone(&self) -> bool {
        self.listener.try_get_request().is_none()
    }
}

/// A leader with its group.
pub(crate) struct Leader<'a> {
    pub(crate) side: &'a Side,
    pub(crate) qp: Qp,
    pub(crate) connection: Connection,
    pub(crate) memory: Memory,
}

/// What a leader asks for.
pub(crate) fn ask(members: &[Ipv4Addr], writes: u8, epoch: u64) -> Ask {
    Ask { writes, reads: 1, leader: 1, epoch, proof: [0; 16], addrs: members.to_vec() }
}

/// Asks a switch for a group, which takes that the replicas agree meanwhile.
pub(crate) fn connect<'a>(side: &'a Side, switch: IpAddr, ask: &Ask) -> Result<Leader<'a>, Error> {
    let qp = side.pd.create_qp(&QpOptions::rc(&side.cq)).unwrap();
    let to = SocketAddr::new(switch, PORT);
    let connection = Connection::connect(&qp, to, &ConnectAttr::default(), &ask.to_bytes(), LIMIT)?;
    let answer = Answer::parse(&connection.private_data()).expect("an answer");
    let memory = answer.memory.expect("a group");
    Ok(Leader { side, qp, connection, memory })
}

/// A group of these, all of which agree; others that are asked for do so elsewhere.
pub(crate) fn group<'a>(
    side: &'a Side,
    switch: IpAddr,
    members: &[&Member],
    ask: &Ask,
) -> (Leader<'a>, Vec<Connection>) {
    thread::scope(|scope| {
        let leader = scope.spawn(move || connect(side, switch, ask));
        let connections = members.iter().map(|member| member.agree()).collect();
        (leader.join().expect("no panic").unwrap_or_else(|e| panic!("{e}")), connections)
    })
}

impl Leader<'_> {
    pub(crate) fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.memory.va + offset, rkey: self.memory.rkey }
    }

    /// Carries out one request, with so many bytes of the leader's memory from `offset` on.
    pub(crate) fn perform(&self, op: SendOp, offset: u64, len: u32) -> WcStatus {
        let sges = [self.side.mr.sge(offset, len)];
        let data = Data::Sges(&sges[..usize::from(len > 0)]);
        let wr = SendWr { wr_id: 1, op, data, flags: SendFlags::SIGNALED, ud: None };
        self.qp.post_send(&wr).unwrap();
        let mut wcs = Vec::new();
        assert_eq!(self.side.cq.wait(&mut wcs, 1, LIMIT), Ok(1), "no completion within the limit");
        wcs[0].status
    }

    /// Writes these bytes to the same place of all.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> WcStatus {
        self.side.mr.region().write(offset, bytes);
        self.perform(SendOp::Write(self.remote(offset)), offset, bytes.len() as u32)
    }
}

/// Bytes that tell where they are.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}
