//! Live remote persistence: configurations are exchanged, the cheapest proven recipe is picked and carried out over verbs,
//! and what messages left in persistent memory is applied after a crash.
//!
//! A [`Server`] exports a region and serves the responder's steps; a [`Session`] plans and carries out. Only the end of a
//! recipe mints a [`Persistent`](remanence_persist::Persistent), which says what the update survives.
//!
//! ```
//! use remanence_persist::plan::Request;
//! use remanence_pmem::FileOptions;
//! use remanence_remote::{Options, Server, ServerOptions, Session, Stop};
//! use remanence_verbs::Context;
//!
//! # let path = std::env::temp_dir().join(format!("remanence-remote-doc-{}", std::process::id()));
//! let device = |ip: &str| Context::open(remanence_verbs::Options::udp(ip.parse().expect("an address")));
//! let region = FileOptions::new().create(1 << 20).open(&path)?;
//! let mut server = Server::bind(ServerOptions::new(&device("127.9.8.1")?, region, 0))?;
//! let (to, stop) = (server.addr(), Stop::new());
//! let client = device("127.9.8.2")?;
//! std::thread::scope(|scope| {
//!     let serving = scope.spawn(|| server.run(&stop));
//!     let conduct = || -> Result<(), Box<dyn std::error::Error>> {
//!         let mut session = Session::connect(&client, to, Options::default())?;
//!         println!("{}", session.region());
//!         // A record, and then the pointer to it: each durable before the next one is.
//!         let plan = session.plan(&Request::append(12))?;
//!         let token = session.persist(&plan, &[(64, b"not lost any"), (0, &1_u64.to_le_bytes())])?;
//!         println!("survives {}, by {}", token.survives(), plan.recipe);
//!         Ok(())
//!     };
//!     let result = conduct();
//!     stop.ask();
//!     serving.join().expect("the server's thread").expect("it served");
//!     result
//! })?;
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Read in this order: [`hello`] (the handshake), [`admission`] (who is heard), [`message`], [`program`] (the responder's half of a recipe), the two
//! sans-IO halves [`requester`] and [`responder`], [`ring`] (receive buffers in persistent memory, and recovery). The live
//! halves around them own the QPs and decide nothing. `docs/persistence.md`, section *Live*, has what is promised.
#![forbid(unsafe_code)]

pub mod admission;
mod ahead;
mod costs;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod grants;
pub mod hello;
mod immediates;
pub mod message;
pub mod program;
pub mod requester;
pub mod responder;
pub mod ring;
mod server;
mod serving;
mod session;
mod together;

pub use ahead::{Reading, Writing};
pub use costs::CostSource;
pub use error::Error;
pub use grants::Grants;
pub use remanence_auth::{Role, Token, may_listen};
pub use remanence_codec::Malformed;
pub use remanence_service::Deadlines;
pub use remanence_service::client::{
    Background, Delays, Face, Reactor, ReactorWaker, Reconnect, Reconnecting, Timer, Turns, Waiter, at_once,
    elsewhere,
};
pub use remanence_service::server::Stop;
pub use remanence_service::{Meter, Metered};
pub use requester::Ticket;
pub use server::{Call, Server, ServerOptions, SessionControl, Stats, Unanswered};
pub use session::{Options, Plan, RemoteRegion, Session};
pub use together::{Done, Work};
