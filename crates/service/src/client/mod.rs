//! The client's half: one device, one completion queue, any number of sessions on it.
//!
//! A [`Reactor`] has the completion queue. Each session has an [`Endpoint`] there, which is its QP and the completions of
//! that; whichever thread takes completions out of the queue hands them on to the endpoints that they are of. Nothing here
//! knows what the sessions say.
//!
//! [`Endpoint::poll`] is the base: it takes what has come and does not wait. Two faces lie over it, and both end in the one
//! wait of `reactor.rs`: a thread waits for one session ([`Endpoint::wait`]), or for any of them, for the first deadline and for
//! other threads ([`Waiter::wait`]); and a task is woken when its session has something ([`Endpoint::poll_ready`]), or its
//! [`Timer`] is over, while some thread waits ([`Reactor::in_background`], or the task's own: [`Reactor::block_on`]). What waits for
//! more than one thing is written once for both: `faces.rs`.
//!
//! A connection that is lost is made again, after delays that grow: `reconnect.rs` says when, for every client.
//!
//! Where a client can do one thing at a time, its tasks take turns: `turns.rs`.
//!
//! Read first: `reactor.rs`, whose head says who waits and who is woken.

mod delays;
mod faces;
mod reactor;
mod reconnect;
mod turns;

pub use delays::Delays;
pub use faces::{Face, at_once, elsewhere};
pub use reactor::{Background, Came, Canceller, Endpoint, Reactor, ReactorWaker, Timer, Waiter};
pub use reconnect::{Reconnect, Reconnecting};
pub use turns::{Turn, Turns};
