//! `rem`, the one binary.
fn main() {}
