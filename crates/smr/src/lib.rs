//! Mu on real memory and connections: replicas of a state machine, and their clients.
//!
//! What decides is pure: [`remanence_coord::mu`] is the protocol, and [`remanence_coord::mu::service`] what a state machine and its clients
//! have of it. This is a replica as a process: [`Replica`] has its log in a file, which the leader writes one-sidedly, and makes durable by the
//! recipe that the planner has for that machine; beats are read one-sidedly, too. [`Client`] has commands carried out once, and reads, at
//! whichever replica leads. [`Map`] is a state machine: keys, values and versions.
//!
//! ```
//! use remanence_remote::Stop;
//! use remanence_smr::map::{Change, Outcome, Value};
//! use remanence_smr::{Client, ClientOptions, Map, Replica, ReplicaOptions};
//! use remanence_verbs::{Context, Options};
//!
//! # let path = std::env::temp_dir().join(format!("remanence-smr-doc-{}", std::process::id()));
//! // A group of one: three are three processes, each with a file and a number of its own, and the same members.
//! let device = Context::open(Options::udp("127.9.5.1".parse()?))?;
//! let options = ReplicaOptions::new(&path, 0, vec!["127.9.5.1:7481".parse()?]);
//! let mut replica = Replica::<Map>::bind(&device, &options)?;
//! let (to, stop) = (replica.addr(), Stop::new());
//! std::thread::scope(|scope| {
//!     let running = scope.spawn(|| replica.run(&stop));
//!     let conduct = || -> Result<(), Box<dyn std::error::Error>> {
//!         let mut client = Client::connect_to(&[to], ClientOptions::default())?;
//!         let put = Change::Put { key: b"greeting", value: b"hello" };
//!         // On a majority of the replicas, durably, when it returns.
//!         assert_eq!(Outcome::parse(&client.call(&put.emit())?)?, Outcome::Done(1));
//!         let found = Value::parse(&client.query(b"greeting")?)?.ok_or("it is there")?;
//!         assert_eq!((found.version, &found.bytes[..]), (1, &b"hello"[..]));
//!         Ok(())
//!     };
//!     let result = conduct();
//!     stop.ask();
//!     running.join().expect("the replica's thread").expect("it served");
//!     result
//! })?;
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `docs/smr.md` has the promises and the failures.
#![forbid(unsafe_code)]

mod client;
mod link;
mod mailbox;
pub mod map;
mod replica;
mod rights;

pub use client::{Client, ClientError, ClientOptions};
pub use map::Map;
pub use remanence_coord::mu::Geometry;
pub use remanence_coord::mu::service::{NOBODY, Query, Status};
pub use remanence_coord::replicated::StateMachine;
pub use remanence_remote::{Stop, Token};
pub use replica::{Replica, ReplicaError, ReplicaOptions};

/// The number of the service at a replica, for its clients.
pub const SERVICE: u16 = 4;
