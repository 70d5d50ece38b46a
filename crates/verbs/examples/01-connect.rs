//! Two devices on one machine connect their QPs, and part again. Everything after this builds on it.
//!
//! ```text
//! cargo run -p remanence-verbs --example 01-connect
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use remanence_verbs::{ConnectAttr, Connection, Context, Listener, Options, QpOptions};

const SERVER: &str = "127.0.0.1:7471";
const CLIENT: &str = "127.0.0.2";
const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

fn main() -> Result<(), Box<dyn Error>> {
    let server: SocketAddr = SERVER.parse()?;
    // A device lives on a link; this one on UDP sockets. No privileges, no hardware.
    let context = Context::open(Options::udp(server.ip()))?;
    let listener = Listener::bind(&context, server.port(), 16)?;
    thread::scope(|scope| {
        let serving = scope.spawn(move || serve(&context, &listener).expect("the server's side"));
        connect(server)?;
        serving.join().expect("the server's thread");
        Ok(())
    })
}

fn serve(context: &Context, listener: &Listener) -> Result<(), Box<dyn Error>> {
    let incoming = listener.get_request(LIMIT).ok_or("nobody came")?;
    println!("server: {} says {:?}", incoming.peer(), text(incoming.private_data()));
    // A QP belongs to a protection domain and reports to a completion queue. Accepting connects it.
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16, None, 0)?;
    let qp = pd.create_qp(&QpOptions::rc(&cq))?;
    let connection = incoming.accept(&qp, &ConnectAttr::default(), b"be welcome")?;
    connection.wait_established(LIMIT)?;
    println!("server: connected, our QP is {:?}", qp.qpn());
    connection.wait_ended(LIMIT)?;
    println!("server: {}", connection.advance()?);
    Ok(())
}

fn connect(server: SocketAddr) -> Result<(), Box<dyn Error>> {
    let context = Context::open(Options::udp(CLIENT.parse()?))?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16, None, 0)?;
    let qp = pd.create_qp(&QpOptions::rc(&cq))?;
    let connection = Connection::connect(&qp, server, &ConnectAttr::default(), b"hello", LIMIT)?;
    println!("client: the server says {:?}", text(&connection.private_data()));
    connection.disconnect()?;
    connection.wait_ended(LIMIT)?;
    println!("client: {}", connection.advance()?);
    Ok(())
}

/// Private data comes padded with zeros.
fn text(private_data: &[u8]) -> String {
    String::from_utf8_lossy(private_data).trim_end_matches('\0').to_owned()
}
