//! One side writes into the other's memory, and reads it back, while the other does nothing at all.
//!
//! ```text
//! cargo run -p remanence-verbs --example 02-write
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use remanence_pmem::Region;
use remanence_rnic::{Access, Data, RemoteAddr, SendFlags, SendOp, SendWr, WcStatus};
use remanence_verbs::{ConnectAttr, Connection, Context, Cq, Listener, Options, Qp, QpOptions};
use remanence_wire::Rkey;

const SERVER: &str = "127.0.0.1:7472";
const CLIENT: &str = "127.0.0.2";
const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

fn main() -> Result<(), Box<dyn Error>> {
    let server: SocketAddr = SERVER.parse()?;
    let context = Context::open(Options::udp(server.ip()))?;
    let listener = Listener::bind(&context, server.port(), 16)?;
    thread::scope(|scope| {
        let serving = scope.spawn(move || serve(&context, &listener).expect("the server's side"));
        write(server)?;
        serving.join().expect("the server's thread");
        Ok(())
    })
}

fn serve(context: &Context, listener: &Listener) -> Result<(), Box<dyn Error>> {
    let incoming = listener.get_request(LIMIT).ok_or("nobody came")?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16, None, 0)?;
    // What peers may reach is a registered region of memory; its rkey is the key to it.
    let memory = Region::anonymous(4096)?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mr = pd.reg_mr(&memory, rights)?;
    let qp = pd.create_qp(&QpOptions::rc(&cq))?;
    let connection = incoming.accept(&qp, &ConnectAttr::default(), &mr.rkey().0.to_be_bytes())?;
    connection.wait_ended(LIMIT)?;
    let mut found = [0; 13];
    memory.read(100, &mut found);
    println!("server: there is {:?} in my memory", String::from_utf8_lossy(&found));
    Ok(())
}

fn write(server: SocketAddr) -> Result<(), Box<dyn Error>> {
    let context = Context::open(Options::udp(CLIENT.parse()?))?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16, None, 0)?;
    let memory = Region::anonymous(4096)?;
    let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE)?;
    let qp = pd.create_qp(&QpOptions::rc(&cq))?;
    let connection = Connection::connect(&qp, server, &ConnectAttr::default(), b"", LIMIT)?;
    let rkey = Rkey(u32::from_be_bytes(*connection.private_data().first_chunk().ok_or("no rkey")?));
    // Addresses of this MR count from zero.
    let remote = RemoteAddr { addr: 100, rkey };

    memory.write(0, b"hello, memory");
    perform(&qp, &cq, SendOp::Write(remote), &[mr.sge(0, 13)])?;
    perform(&qp, &cq, SendOp::Read(remote), &[mr.sge(1000, 13)])?;
    let mut back = [0; 13];
    memory.read(1000, &mut back);
    println!("client: read back {:?}", String::from_utf8_lossy(&back));
    connection.disconnect()?;
    connection.wait_ended(LIMIT)?;
    Ok(())
}

/// Posts one operation and waits for its completion.
fn perform(qp: &Qp, cq: &Cq, op: SendOp, sges: &[remanence_rnic::Sge]) -> Result<(), Box<dyn Error>> {
    let wr = SendWr { wr_id: 1, op, data: Data::Sges(sges), flags: SendFlags::SIGNALED, ud: None };
    qp.post_send(&wr)?;
    let mut completions = Vec::new();
    cq.wait(&mut completions, 1, LIMIT)?;
    match completions.first().ok_or("no completion")?.status {
        WcStatus::Success => Ok(()),
        status => Err(status.to_string().into()),
    }
}
