//! A service of your own on several servers: a state machine whose commands are durable on as many of them as were asked for before
//! anybody is answered, and are carried out once.
//!
//! A [`StateMachine`] says what a command does, and how its state becomes bytes. A [`Host`] serves it, over the servers of a
//! [log](crate::log); a [`Client`] has commands carried out by whichever host is there, and [`AsyncClient`] is the same with futures:
//! `client.call(b"add 1").await?`. Which failures that survives is what the log's
//! servers say of their memory: see [`crate::log`].
//!
//! `cargo run -p remanence --example counter` has it all in one process; `docs/services.md` of the repository walks through it.

pub use remanence_auth::Token;
pub use remanence_remote::Stop;
pub use remanence_remotelog::replicated::{
    AsyncClient, Client, ClientError, ClientOptions, Host, HostError, HostOptions, Limits, Malformed,
    Refusal, StateMachine,
};
