//! What Prometheus reads: pages of metrics, and the HTTP endpoint that serves them.
//!
//! A [`Source`] writes its families onto a [`Page`] at every scrape, out of counters that it keeps anyway; nothing is kept
//! twice. The text is OpenMetrics 1.0, which Prometheus prefers, and `prometheus-client` writes it: that crate is the
//! Prometheus project's own. Its `Collector` is the seam that we use; its own counters are not, since ours are those that
//! INFO and `--json` print too.
//!
//! HTTP is our own ([`Endpoint`]), for one path and one answer: what crates.io has is either a framework with a runtime, or,
//! as tiny_http, gives each connection a thread for as long as it likes. Here one thread serves all scrapes; how many
//! there are, how large they are and how long they take are bounded.
//!
//! ```
//! use std::sync::Arc;
//! use remanence_metrics::{Endpoint, Source, Unit};
//!
//! let jobs: Source = Arc::new(|page| page.counter("jobs", None, "Jobs that were done.", 3_u64));
//! let endpoint = Endpoint::serve("127.0.0.1:0".parse().unwrap(), vec![jobs, remanence_metrics::process()]).unwrap();
//! println!("curl http://{}/metrics", endpoint.address());
//! # assert!(remanence_metrics::render(vec![Arc::new(|page| page.gauge("age", Some(Unit::Seconds), "Since.", 1.5))])
//! #     .contains("age_seconds 1.5\n"));
//! ```
//!
//! Read first: `docs/metrics.md`, which has every name.
#![forbid(unsafe_code)]

mod endpoint;
mod http;
mod page;
mod sample;

pub use endpoint::Endpoint;
pub use page::{Number, Page, Source, Unit, render};
pub use sample::{Sample, process};
