//! Writes into a remote file and makes it durable: WRITE, then FLUSH with placement type persistence. The completion
//! of the FLUSH means what the region's domain says; without it, a completed WRITE is visible and no more.
//!
//! ```text
//! cargo run -p remanence-verbs --example 03-flush-to-persistent [FILE]
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use remanence_pmem::{FileOptions, Region};
use remanence_rnic::{Access, Data, Placement, RemoteAddr, Selectivity, SendFlags, SendOp, SendWr, WcStatus};
use remanence_verbs::{ConnectAttr, Connection, Context, Listener, Options, QpOptions};
use remanence_wire::Rkey;

const SERVER: &str = "127.0.0.1:7473";
const CLIENT: &str = "127.0.0.2";
const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

fn main() -> Result<(), Box<dyn Error>> {
    let file =
        std::env::args_os().nth(1).map_or_else(|| std::env::temp_dir().join("remote-memory"), PathBuf::from);
    let memory = FileOptions::new().create(1 << 20).open(&file)?;
    println!("server: {}: {}", file.display(), memory.domain());
    let server: SocketAddr = SERVER.parse()?;
    let context = Context::open(Options::udp(server.ip()))?;
    let listener = Listener::bind(&context, server.port(), 16)?;
    thread::scope(|scope| {
        let serving = scope.spawn(move || serve(&context, &listener, &memory).expect("the server's side"));
        persist(server)?;
        serving.join().expect("the server's thread");
        Ok(())
    })
}

fn serve(context: &Context, listener: &Listener, memory: &Region) -> Result<(), Box<dyn Error>> {
    let incoming = listener.get_request(LIMIT).ok_or("nobody came")?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16, None, 0)?;
    // Refused, with the reason, where nothing makes this memory durable.
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::FLUSH_PERSISTENT;
    let mr = pd.reg_mr(memory, rights)?;
    let qp = pd.create_qp(&QpOptions::rc(&cq))?;
    let connection = incoming.accept(&qp, &ConnectAttr::default(), &mr.rkey().0.to_be_bytes())?;
    connection.wait_ended(LIMIT)?;
    Ok(())
}

fn persist(server: SocketAddr) -> Result<(), Box<dyn Error>> {
    let context = Context::open(Options::udp(CLIENT.parse()?))?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16, None, 0)?;
    let memory = Region::anonymous(4096)?;
    let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE)?;
    let qp = pd.create_qp(&QpOptions::rc(&cq))?;
    let connection = Connection::connect(&qp, server, &ConnectAttr::default(), b"", LIMIT)?;
    let rkey = Rkey(u32::from_be_bytes(*connection.private_data().first_chunk().ok_or("no rkey")?));
    let remote = RemoteAddr { addr: 0, rkey };

    memory.write(0, b"this survives a power failure\n");
    let line = [mr.sge(0, 30)];
    let write = SendWr {
        wr_id: 1,
        op: SendOp::Write(remote),
        data: Data::Sges(&line),
        flags: SendFlags::empty(),
        ud: None,
    };
    let flush = SendWr {
        wr_id: 2,
        op: SendOp::Flush {
            remote,
            len: 30,
            placement: Placement::Persistence,
            selectivity: Selectivity::Range,
        },
        data: Data::Sges(&[]),
        flags: SendFlags::SIGNALED,
        ud: None,
    };
    let begin = Instant::now();
    // One doorbell for both: the FLUSH does not wait for the WRITE's acknowledgement, the responder keeps the order.
    qp.post_sends(&[write, flush]).map_err(|(_, e)| e)?;
    let mut completions = Vec::new();
    cq.wait(&mut completions, 1, LIMIT)?;
    let completion = completions.first().ok_or("no completion")?;
    if completion.status != WcStatus::Success {
        return Err(completion.status.to_string().into());
    }
    println!("client: durable after {:?}", begin.elapsed());
    connection.disconnect()?;
    connection.wait_ended(LIMIT)?;
    Ok(())
}
