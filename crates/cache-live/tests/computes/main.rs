//! What only computes: recovery over a file system that is simulated.

mod disk;
mod recovery;
mod sizes;
