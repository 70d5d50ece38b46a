//! Receives messages without burning a core: ask for a notification, sleep on the channel, drain the CQ, ask again.
//! The order matters: what arrives between draining and asking would otherwise wait for the next message.
//!
//! ```text
//! cargo run -p remanence-verbs --example 04-receive-by-events
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use remanence_pmem::Region;
use remanence_rnic::{Access, Data, RecvWr, SendFlags, SendOp, SendWr, WcStatus};
use remanence_verbs::{ConnectAttr, Connection, Context, Listener, Options, QpOptions};

const SERVER: &str = "127.0.0.1:7474";
const CLIENT: &str = "127.0.0.2";
const LIMIT: Option<Duration> = Some(Duration::from_secs(10));
const MESSAGES: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let server: SocketAddr = SERVER.parse()?;
    let context = Context::open(Options::udp(server.ip()))?;
    let listener = Listener::bind(&context, server.port(), 16)?;
    thread::scope(|scope| {
        let serving = scope.spawn(move || serve(&context, &listener).expect("the server's side"));
        send(server)?;
        serving.join().expect("the server's thread");
        Ok(())
    })
}

fn serve(context: &Context, listener: &Listener) -> Result<(), Box<dyn Error>> {
    let incoming = listener.get_request(LIMIT).ok_or("nobody came")?;
    let pd = context.alloc_pd()?;
    let channel = context.create_comp_channel()?;
    let cq = context.create_cq(16, Some(&channel), 0)?;
    let memory = Region::anonymous(4096)?;
    let mr = pd.reg_mr(&memory, Access::LOCAL_WRITE)?;
    let qp = pd.create_qp(&QpOptions::rc(&cq))?;
    let connection = incoming.accept(&qp, &ConnectAttr::default(), b"")?;
    // A SEND needs a posted receive; one that finds none is repeated until there is one (RNR).
    for slot in 0..4 {
        qp.post_recv(&RecvWr { wr_id: slot, sges: &[mr.sge(slot * 64, 64)] })?;
    }
    cq.req_notify(false)?;
    let mut received = 0;
    while received < MESSAGES {
        channel.get_event(LIMIT).ok_or("no message came")?;
        cq.req_notify(false)?;
        let mut completions = Vec::new();
        while cq.poll(&mut completions, 16)? > 0 {}
        for completion in completions {
            let mut message = vec![0; completion.byte_len as usize];
            memory.read(completion.wr_id * 64, &mut message);
            println!("server: {}", String::from_utf8_lossy(&message));
            qp.post_recv(&RecvWr { wr_id: completion.wr_id, sges: &[mr.sge(completion.wr_id * 64, 64)] })?;
            received += 1;
        }
    }
    connection.disconnect()?;
    connection.wait_ended(LIMIT)?;
    Ok(())
}

fn send(server: SocketAddr) -> Result<(), Box<dyn Error>> {
    let context = Context::open(Options::udp(CLIENT.parse()?))?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16, None, 0)?;
    let qp = pd.create_qp(&QpOptions::rc(&cq))?;
    let connection = Connection::connect(&qp, server, &ConnectAttr::default(), b"", LIMIT)?;
    for i in 0..MESSAGES {
        let message = format!("message {i}");
        // Inline data is copied when it is posted: no registered memory is needed.
        let wr = SendWr {
            wr_id: i as u64,
            op: SendOp::Send,
            data: Data::Inline(message.as_bytes()),
            flags: SendFlags::SIGNALED,
            ud: None,
        };
        qp.post_send(&wr)?;
        let mut completions = Vec::new();
        cq.wait(&mut completions, 1, LIMIT)?;
        assert_eq!(completions.first().map(|completion| completion.status), Some(WcStatus::Success));
        thread::sleep(Duration::from_millis(10));
    }
    connection.wait_ended(LIMIT)?;
    Ok(())
}
