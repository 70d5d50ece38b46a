//! The same tests on shared memory: operations, connections and threads are the same whatever carries the packets. Alone in its program, by
//! whose name `common` chooses what does.

mod common;

#[path = "waits/operations.rs"]
mod operations;

#[path = "waits/connections.rs"]
mod connections;

#[path = "waits/threads.rs"]
mod threads;

#[path = "waits/wakers.rs"]
mod wakers;
