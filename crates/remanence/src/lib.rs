//! Durable remote memory, entirely in userspace: what a program that uses Remanence needs, in one place.
//!
//! There is a software RNIC that speaks RoCEv2 on any Linux machine, without RDMA hardware and without privileges; on it, five
//! services that say *durable* only when data is in the server's persistence domain. Each is a module here:
//!
//! | module | what it is | when a call returns |
//! |---|---|---|
//! | [`verbs`] | RDMA: WRITE, READ, SEND, atomics and FLUSH between registered memories | a completed WRITE is *visible*; a completed FLUSH to persistence is *durable* |
//! | [`remote`] | updates of a server's memory, made durable by the cheapest method that is proven for that machine | durable; the token says what the update survives |
//! | [`pool`] | blobs: streams under names, on one server or several | durable on as many servers as were asked for, which is a majority at least |
//! | [`kv`] | a key-value store that clients read without the server's CPU; on one server or several members | durable, in a store of mode durable, which is what is made if nothing is said |
//! | [`log`] | an append-only log, on one server or several | durable on as many servers as the log was made with |
//! | [`replicated`] | a service of your own: any state machine, on the servers of a log | carried out once, and durable on as many servers |
//!
//! [`pmem`] has the memory that is served, and [`persist`] what plans and tokens say.
//!
//! # What an acknowledgement promises
//!
//! *Visible*: every observer of the memory sees the bytes. *Durable*: they are in the persistence domain of the memory that they lie in.
//! Which failures that survives depends on what the server serves: what lies in a file on a disk that keeps what it acknowledges, or in
//! persistent memory, survives a crash of the process, of the system, and a loss of power; what lies in `/dev/shm` survives a crash of
//! the process, and no more. Nobody has to guess: a [`Region`](pmem::Region) says it in a sentence ([`Region::domain`](pmem::Region::domain)), so does every server when it
//! starts, and whatever acknowledges has it as data ([`Survives`](pmem::Survives)): the token of an update
//! ([`Persistent`](remote::Persistent)), the report of a put ([`PutReport`](pool::PutReport)), and `survives` of each client of a
//! store, a pool, a log and a replicated service.
//!
//! A call that fails says in its error what is known: that nothing was changed, or that the change was made or was not.
//!
//! # Begin
//!
//! Not published yet; the dependency is the repository, or a copy of it:
//!
//! ```toml
//! [dependencies]
//! remanence = { path = "remanence/crates/remanence" }    # or: git = "URL of the repository"
//! ```
//!
//! Then, for each service, an example that starts its own server on a loopback address:
//!
//! ```text
//! cargo run -p remanence --example verbs      # an RDMA WRITE ping-pong
//! cargo run -p remanence --example remote     # a durable write to a server's file, and its token
//! cargo run -p remanence --example pool       # a blob put and got
//! cargo run -p remanence --example kv         # put, get, scan
//! cargo run -p remanence --example log        # append and read
//! cargo run -p remanence --example futures    # the log and the counter, with futures for any executor
//! cargo run -p remanence --example counter    # a service of fifty lines, and what becomes of it when its host is gone
//! ```
//!
//! Clients need no address of their own: `connect_to` takes the local address from which the server is reached. Who has many
//! connections opens one device ([`verbs::Context`]) and connects all of them by it.
//!
//! ```
//! use remanence::kv::{ConnectOptions, PutOptions, Server, ServerOptions, Stop, Store};
//! use remanence::verbs::{Context, Options};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("remanence-facade-doc-{}", std::process::id()));
//! let device = Context::open(Options::udp("127.0.0.1".parse()?))?;
//! let mut server = Server::bind(&device, ServerOptions::file(&path).size(4 << 20))?;
//! let (to, stop) = (server.addr(), Stop::new());
//! let use_it = || -> Result<(), Box<dyn std::error::Error>> {
//!     let mut store = Store::connect_to(to, ConnectOptions::default())?;
//!     store.put(b"remanence", b"what stays", PutOptions::default())?; // durable when it returns
//!     assert_eq!(store.get(b"remanence")?.ok_or("gone")?.value, b"what stays");
//!     Ok(())
//! };
//! std::thread::scope(|scope| {
//!     let serving = scope.spawn(|| server.run(&stop));
//!     let used = use_it();
//!     stop.ask();
//!     serving.join().expect("the server's thread")?;
//!     used
//! })?;
//! # std::fs::remove_file(&path)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Who may reach a server
//!
//! Without a [`Token`] only this machine may, unless `insecure` is said. With one, client and server prove to each other that they
//! have it, and nothing is read or written before that. RoCEv2 itself neither encrypts nor authenticates: who can forge packets on
//! the path can forge data, as on any RDMA fabric.
#![forbid(unsafe_code)]

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// And so are those of the page about services.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/services.md")]
struct Services;

pub mod kv;
pub mod log;
pub mod persist;
pub mod pmem;
pub mod pool;
pub mod remote;
pub mod replicated;
pub mod verbs;

pub use remanence_auth::{BadToken, Role, Token};
