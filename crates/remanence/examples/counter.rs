//! A replicated counter: the service itself is `Counter`. `main` starts three log servers and a host in this process, adds, ends the host,
//! goes on at another one, and at last without one of the log servers.
//!
//! ```text
//! cargo run --release -p remanence --example counter
//! cargo run --release -p remanence --example counter -- sim --seeds 0..500    # the same type in 500 simulated clusters
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::thread;

use remanence::log::{Server, ServerOptions};
use remanence::replicated::{Client, ClientOptions, Host, HostOptions, Malformed, StateMachine, Stop};
use remanence::verbs::{Context, Options};
use remanence_sim::cluster::replicated::{Simulated, simulate};

/// A number that commands add to; each is answered with what it has become.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Counter(u64);

impl StateMachine for Counter {
    fn apply(&mut self, command: &[u8]) -> Vec<u8> {
        let add = number(command).unwrap_or(0);
        self.0 = self.0.wrapping_add(add);
        self.snapshot()
    }

    fn snapshot(&self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }

    fn restore(snapshot: &[u8]) -> Result<Self, Malformed> {
        number(snapshot).map(Self).ok_or(Malformed { at: 0 })
    }
}

/// What clients ask for in simulated clusters: four of five add one.
impl Simulated for Counter {
    const COMMAND: &'static str = "cargo run --release -p remanence --example counter -- sim";

    fn command(number: u64) -> Vec<u8> {
        u64::from(!number.is_multiple_of(5)).to_le_bytes().to_vec()
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Adds one so many times; what the counter is then.
fn count(client: &mut Client, times: u32) -> Result<u64, Box<dyn Error>> {
    let mut value = None;
    for _ in 0..times {
        value = number(&client.call(&1_u64.to_le_bytes())?);
    }
    Ok(value.ok_or("the counter has no answer")?)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some("sim") {
        let arguments: Vec<String> = arguments.collect();
        println!("{:?}", simulate::<Counter>(&arguments.join(" "))?);
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let device = Context::open(Options::udp("127.0.0.1".parse()?))?;
    let mut servers = Vec::new();
    for name in ["one.log", "two.log", "three.log"] {
        let file = directory.path().join(name);
        servers.push(Server::open(&device, ServerOptions::file(&file).size(1 << 20))?);
        println!("log server: {}", file.display());
    }
    let logs: Vec<SocketAddr> = servers.iter().map(Server::addr).collect();
    // A command is durable on two of the three when it is answered: any one of them may be lost.
    let options = || HostOptions::default().acks(2);
    let mut first = Host::<Counter>::bind(&device, &logs, options())?;
    let mut second = Host::<Counter>::bind(&device, &logs, options())?;
    let hosts = [first.addr(), second.addr()];
    let stops = [(); 5].map(|()| Stop::new());
    let [stop_first, stop_second, stop_servers @ ..] = &stops;
    thread::scope(|scope| {
        let serving: Vec<_> = servers
            .iter_mut()
            .zip(stop_servers)
            .map(|(server, stop)| scope.spawn(move || server.run(stop)))
            .collect();
        let first = scope.spawn(move || first.run(stop_first));
        let done = (|| {
            let mut client = Client::connect_to(&hosts, ClientOptions::default())?;
            println!("client: after 100 commands the counter is {}", count(&mut client, 100)?);
            // The host goes; another one takes the log over, and has all that was answered.
            stop_first.ask();
            first.join().expect("the host's thread")?;
            let second = scope.spawn(move || second.run(stop_second));
            println!("client: after 100 more at another host it is {}", count(&mut client, 100)?);
            // A log server goes, which nobody waits for.
            stop_servers[2].ask();
            let value = count(&mut client, 100)?;
            println!("client: after 100 more on the two servers that are left it is {value}");
            stop_second.ask();
            second.join().expect("the host's thread")?;
            if value == 300 { Ok(()) } else { Err(format!("300 were added, and it is {value}").into()) }
        })();
        stops.iter().for_each(Stop::ask);
        for server in serving {
            server.join().expect("a server's thread")?;
        }
        done
    })
}
