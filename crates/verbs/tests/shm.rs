//! The same tests on shared memory: operations, connections and threads are the same whatever carries the packets.
#![expect(clippy::duplicate_mod, reason = "each file brings its own view of what the tests share")]

#[path = "operations.rs"]
mod operations;

#[path = "connections.rs"]
mod connections;

#[path = "threads.rs"]
mod threads;
