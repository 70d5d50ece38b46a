//! What only computes. Threads run one at a time, and a seed says which: a test that fails fails again.

mod baton;
mod cleaner;
mod copy;
mod crash;
mod damage;
mod files;
mod foreign;
mod hostile;
mod images;
mod log;
mod pages;
mod pages_crash;
mod pages_damage;
mod pages_random;
mod reads;
mod through;
