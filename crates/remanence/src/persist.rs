//! What a plan is asked for and says: how updates become durable on a machine of a given configuration.
//!
//! Most programs need [`Request`] alone, which says what is to be made durable. A [`Config`] is what is known of the server's machine; it
//! is detected, and can be declared. A [`Recipe`] is the list of steps that was proven for it, and [`Persistent`] the token that only the
//! end of a recipe can make.
//!
//! ```
//! use remanence::persist::{Config, Request};
//!
//! // A record of 100 bytes, and then the pointer to it: each durable before the next one is.
//! let request = Request { sizes: vec![100, 8], ordered: true, ..Request::append(100) };
//! assert_eq!(request, Request::append(100));
//! let declared: Config = "DMP+no-DDIO+PM".parse()?;
//! println!("{declared}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use remanence_persist::Config;
pub use remanence_persist::plan::{Costs, Estimate, Plan, Refusal, Request};
pub use remanence_persist::recipe::{Op, Persistent, Recipe, Shape};
pub use remanence_persist::taxonomy::{AtomicSupport, Buffers, Domain, FlushSupport, Order, Transport};
