//! What waits: real files.

mod real_files;
