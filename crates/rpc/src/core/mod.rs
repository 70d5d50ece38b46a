//! The protocol, sans-IO: time, packets and memory come in; packets, deadlines and events are polled out.
//!
//! The client drives, as in eRPC (Kalia, Andersen, Kaminsky, NSDI '19, section 4.3): every packet of a server answers
//! one of its client, so that credits, congestion control, timers and retransmission live at the client alone.
//!
//! ```text
//! client                          server
//!   Request 0  ----------------->   Credit 0 comes back for every packet of the request but the last
//!   Request 1  ----------------->   the handler has the request, and answers when it likes
//!              <-----------------   Response 0 answers the last
//!   More 1     ----------------->   and each further packet of the response is asked for
//!              <-----------------   Response 1
//! ```
//! What a client may have under way is bounded by credits (for the server's sake) and by a window (for the network's).
//! Loss is repaired by going back to the oldest packet without an answer. A server remembers the last call of each slot
//! with its response, and a client reuses a slot only when it has the whole response: so a call is carried out at most
//! once, whatever the network repeats. A session does not outlive either end: a server that started anew does not know
//! it and says so, and the client is told that the outcome of what was under way is unknown.
//!
//! An endpoint that has a token has sessions only with those that prove to have it too. To all others it says one word, and
//! keeps nothing of them.
//!
//! | file | what |
//! |---|---|
//! | `config.rs`, `event.rs`, `buffers.rs` | what the caller says, is told, and brings; `heap.rs`: buffers for ends without a device |
//! | `congestion.rs` | round trips, the timeout and the window |
//! | `client.rs`, `server.rs` | the two halves of a session; `fragment.rs`: what both do with a packet of a message |
//! | `admission.rs` | who gets a session: tokens, and what their proofs are bound to |
//! | `endpoint.rs` | sessions, timers, and the order in which packets leave |

mod admission;
pub mod buffers;
mod client;
pub mod config;
pub mod congestion;
pub mod endpoint;
pub mod event;
mod fragment;
pub mod heap;
mod server;
#[cfg(test)]
mod tests;
