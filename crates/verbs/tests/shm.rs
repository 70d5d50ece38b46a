//! The same tests on shared memory: operations, connections and threads are the same whatever carries the packets.

#[path = "operations.rs"]
mod operations;

#[path = "connections.rs"]
mod connections;

#[path = "threads.rs"]
mod threads;
