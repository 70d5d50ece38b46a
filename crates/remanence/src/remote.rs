//! Updates of a server's memory, durable when they are acknowledged, on whatever is at the other end.
//!
//! A [`Server`] exports a [`Region`](crate::pmem::Region). A [`Session`] agrees with it on what the machine is, plans by what is to be
//! made durable ([`Request`]), and carries the plan out: the cheapest method that is proven for that machine. Only the end of that makes a
//! [`Persistent`], which says what the update survives. Without it nothing is known to be durable, whatever was sent.
//!
//! ```no_run
//! use remanence::remote::{ConnectOptions, Request, Session};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut session = Session::connect_to("192.0.2.7:7471".parse()?, ConnectOptions::default())?;
//! println!("{}", session.region()); // what is served, and what it survives
//! let plan = session.plan(&Request::append(12))?;
//! let token = session.persist(&plan, &[(64, b"not lost any"), (0, &1_u64.to_le_bytes())])?;
//! println!("survives {}, by {}", token.survives(), plan.recipe);
//! # Ok(())
//! # }
//! ```
//!
//! `cargo run -p remanence --example remote` has the server too. This is the protocol of the memory itself: `rem serve` serves a
//! [`pool`](crate::pool), to which a `Session` cannot connect.

pub use remanence_auth::{Role, Token};
pub use remanence_persist::plan::{Refusal, Request};
pub use remanence_persist::recipe::Persistent;
pub use remanence_pmem::Survives;
pub use remanence_remote::requester::Broken;
pub use remanence_remote::responder::{Fault, Served};
pub use remanence_remote::ring::{Recovered, RingError};
pub use remanence_remote::{
    Background, Call, CostSource, Done, Error, Face, Grants, Meter, Metered, Options as ConnectOptions, Plan,
    Reactor, Reading, RemoteRegion, Server, ServerOptions, Session, SessionControl, Stats, Stop, Ticket,
    Timer, Work,
};
