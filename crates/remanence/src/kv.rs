//! A key-value store in a server's memory, which clients read one-sidedly: a GET is one or two READs, and the server's CPU sees nothing
//! of it.
//!
//! A change that returns has happened, and in a store of mode [`Mode::Durable`], which is what is made if nothing is said, it survives
//! what the server's medium survives; in a store on several [`Member`]s, as many of them have it. [`Store`] is a client that waits,
//! [`AsyncStore`] one with futures for any executor. When the connection breaks they connect again, and say
//! [`Error::Unknown`] of a change of which they cannot know whether it was made.
//!
//! ```no_run
//! use remanence::kv::{ConnectOptions, Expect, PutOptions, Store};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut store = Store::connect_to("192.0.2.7:7471".parse()?, ConnectOptions::default())?;
//! let version = store.put(b"greeting", b"hello", PutOptions::default())?;
//! // Compare and swap: only if it is still that version.
//! store.put(b"greeting", b"hello again", PutOptions { expect: Expect::Version(version), ..Default::default() })?;
//! for key in store.keys() {
//!     println!("{}", String::from_utf8_lossy(&key?));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! `cargo run -p remanence --example kv` has the server too. `docs/kv.md` of the repository says what an acknowledgement promises on which
//! medium, and `docs/async.md` what a future that goes away means.

pub use remanence_auth::{Role, Token};
pub use remanence_kv::client::Found;
pub use remanence_kv::format::BadGeometry;
pub use remanence_kv::server::{OpenError, Recovered, Scrubbed, Stats, Usage};
pub use remanence_kv::{Expect, Geometry, Mode, Refusal};
pub use remanence_kv_live::{
    Asked, AsyncEntries, AsyncKeys, AsyncStore, Cancelled, Cancelling, Change, ConnectOptions, Entries,
    Error, Held, Keys, Local, Locals, Member, MemberMetrics, MemberOptions, MemberStats, Metrics, Page,
    Pending, PutOptions, Role as MemberRole, Said, Server, ServerOptions, Stop, Store, StoreStats, Version,
};
