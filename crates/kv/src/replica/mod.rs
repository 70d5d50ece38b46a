//! One store on several servers: the primary ships what it changes, and whoever takes over has everything that anybody was
//! told.
//!
//! Every *member* has a replicated log (`remanence_coord::log`) and an *image* of the medium. One of them, the primary,
//! has a copy of its image as its *working* medium, opens the store there, and serves. No page is copied before it is written
//! there, so that nobody waits for as long as a large image takes; and whatever an image gets the working medium has got before. Clients reach the working medium only. What
//! the server stores passes through a [`Mirror`], and whenever it waits for its medium ([`Medium::psync`]) all that it has
//! changed since goes into the log as records, and the wait is over when `acks` of `members` have them durably. Objects
//! that clients wrote one-sidedly go the same way: the server writes them back before it settles them. Images follow the
//! log, behind what is acknowledged, and the log is trimmed behind the images.
//!
//! Read in this order: [`change`] (what a record says), [`mirror`], [`keeper`] (a member's image), [`images`] (how they follow the log, when
//! that is trimmed, how a lost member is rebuilt), [`primary`] (who takes over, and what is waited for), [`driver`] (who waits),
//! [`upkeep`] (what a primary does for the others between requests), [`takeover`](remanence_coord::takeover) and
//! [`watch`](remanence_coord::watch) (when a member tries to become the primary), [`guard`] (why nobody reads from a primary that was
//! replaced). Read first: `docs/erda.md`, section
//! *On several servers*, and `remanence_coord::log::group`.
//!
//! ARGUMENT that nothing acknowledged is lost. (1) A reply, and a word that readers believe, comes after the psync that
//! covers what it speaks of (rule 4), hence after `acks` members have the records. No acknowledged record is lost while
//! fewer than `acks` members lose their disks: that is the log's own argument. (2) The state of the store is the image at
//! `n` and the records from `n` on, for any `n`: records are bytes and their places, in the order in which they were
//! stored, so applying some of them again ends in the same state. What a prefix of them makes is a medium as a power loss
//! could have left the primary's, with everything gone that was not written back: recovery is that of a single server, and
//! `tests/computes/crash.rs` is about it. (3) The log is trimmed below `n` only when `acks` members have durable images at `n` or
//! later. So if fewer than `acks` members lose their disks, one of these images is left, and all records from its number
//! on are in the log that is chosen. (4) Images take only records that are acknowledged, so none is ever ahead of the log
//! that a later primary chooses. The working medium is ahead, and is thrown away.
//!
//! [`Medium::psync`]: remanence_pmem::Medium::psync

pub mod change;
pub mod check;
pub mod driver;
pub mod guard;
pub mod images;
pub mod keeper;
pub mod mirror;
pub mod primary;
pub mod upkeep;

pub use driver::{Driver, Member};
pub use guard::{Claim, Promise, is_current, likely_primary};
pub use keeper::{ImageReply, Keeper, Order};
pub use mirror::{Mirror, Ship};
pub use primary::{LeadError, Primary, Rebuilding, Sizes};
pub use upkeep::{Bring, Bringing, Round, Upkeep};
