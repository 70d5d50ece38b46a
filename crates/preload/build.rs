//! The library is a program's guest: what the crates below it hand out to C programs is hidden in it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
}
