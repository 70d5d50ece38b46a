//! What waits: caches on real files, processes that are killed, disks that fail, programs in C.

mod c;
mod faults;
mod files;
mod kills;
mod model;
mod pages;
mod support;
