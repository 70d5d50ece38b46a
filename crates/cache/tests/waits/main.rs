//! What waits: real threads over real memory, and a real file. `cargo xtask test` runs each of these modules as a program of its own, and asks a
//! test that failed again, by itself.

mod regions;
