//! What waits: caches on real files, processes that are killed, disks that fail, programs in C.

#[path = "../../../preload/tests/common/disk.rs"]
mod disk;

mod c;
mod faults;
mod files;
mod kills;
mod model;
mod pages;
mod support;
