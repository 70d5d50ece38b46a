//! Two sides write into each other's memory by RDMA WRITE, in turn, and look at their own for the answer. Neither asks the other's
//! program for anything.
//!
//! ```text
//! cargo run --release -p remanence --example verbs
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use remanence::verbs::{
    Access, ConnectAttr, Connection, Context, Cq, Data, Listener, Mr, Options, Pd, Qp, QpOptions, Region,
    RemoteAddr, Rkey, SendFlags, SendOp, SendWr, WcStatus,
};

const ROUNDS: u64 = 1000;
const LIMIT: Duration = Duration::from_secs(10);

/// Where the other side writes the number of a round, and where a side has the number that it sends.
const THEIRS: u64 = 0;
const OURS: u64 = 64;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    // A device lives on UDP sockets here: no privileges, no hardware. Port 0 is one that is free.
    let context = Context::open(Options::udp("127.0.0.1".parse()?))?;
    let listener = Listener::bind(&context, 0, 16)?;
    let server = SocketAddr::new("127.0.0.1".parse()?, listener.port());
    println!("server: listening at {server}");
    thread::scope(|scope| {
        let pong = scope.spawn(|| pong(&context, &listener).map_err(|e| e.to_string()));
        let took = ping(server)?;
        pong.join().expect("the server's thread")?;
        println!("client: {ROUNDS} rounds, {:.1} us each", took.as_secs_f64() * 1e6 / ROUNDS as f64);
        Ok(())
    })
}

/// What each side has: memory that the other may write, and a QP to write the other's with.
struct Side {
    memory: Region,
    mr: Mr,
    cq: Cq,
    qp: Qp,
    _pd: Pd,
}

impl Side {
    fn new(context: &Context) -> Result<Self, Box<dyn Error>> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(16, None, 0)?;
        let memory = Region::anonymous(4096)?;
        let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let qp = pd.create_qp(&QpOptions::rc(&cq))?;
        Ok(Self { memory, mr, cq, qp, _pd: pd })
    }

    /// The key to this side's memory, for the other.
    fn key(&self) -> [u8; 4] {
        self.mr.rkey().0.to_be_bytes()
    }

    /// Writes a round's number into the other side's memory. Complete means that it is visible there, and no more.
    fn write(&self, round: u64, theirs: Rkey) -> Result<(), Box<dyn Error>> {
        self.memory.store_u64(OURS, round);
        let op = SendOp::Write(RemoteAddr { addr: THEIRS, rkey: theirs });
        let data = Data::Sges(&[self.mr.sge(OURS, 8)]);
        self.qp.post_send(&SendWr { wr_id: round, op, data, flags: SendFlags::SIGNALED, ud: None })?;
        let mut completions = Vec::new();
        self.cq.wait(&mut completions, 1, Some(LIMIT))?;
        match completions.first().ok_or("the other side does not answer")?.status {
            WcStatus::Success => Ok(()),
            status => Err(status.to_string().into()),
        }
    }

    /// Looks at this side's memory until the other has written the number of this round.
    fn await_round(&self, round: u64) -> Result<(), Box<dyn Error>> {
        let begin = Instant::now();
        while self.memory.load_u64(THEIRS) < round {
            // Whoever polls drives the device; nothing completes here.
            self.cq.poll(&mut Vec::new(), 1)?;
            if begin.elapsed() > LIMIT {
                return Err("the other side has stopped writing".into());
            }
            thread::yield_now();
        }
        Ok(())
    }
}

fn pong(context: &Context, listener: &Listener) -> Result<(), Box<dyn Error>> {
    let incoming = listener.get_request(Some(LIMIT)).ok_or("nobody came")?;
    let side = Side::new(context)?;
    let theirs = key_in(incoming.private_data())?;
    let connection = incoming.accept(&side.qp, &ConnectAttr::default(), &side.key())?;
    connection.wait_established(Some(LIMIT))?;
    for round in 1..=ROUNDS {
        side.await_round(round)?;
        side.write(round, theirs)?;
    }
    connection.wait_ended(Some(LIMIT))?;
    Ok(())
}

fn ping(server: SocketAddr) -> Result<Duration, Box<dyn Error>> {
    let side = Side::new(&Context::towards(server.ip())?)?;
    let connection =
        Connection::connect(&side.qp, server, &ConnectAttr::default(), &side.key(), Some(LIMIT))?;
    let theirs = key_in(&connection.private_data())?;
    let begin = Instant::now();
    for round in 1..=ROUNDS {
        side.write(round, theirs)?;
        side.await_round(round)?;
    }
    let took = begin.elapsed();
    connection.disconnect()?;
    connection.wait_ended(Some(LIMIT))?;
    Ok(took)
}

/// The keys travel in the private data of the connection's messages.
fn key_in(private_data: &[u8]) -> Result<Rkey, Box<dyn Error>> {
    Ok(Rkey(u32::from_be_bytes(*private_data.first_chunk().ok_or("no key to the other side's memory")?)))
}
