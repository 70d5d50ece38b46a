//! Engine against engine, in memory and in simulated time.

mod bad_input;
mod basic;
mod keepalive;
mod mutated;
mod pair;
mod parting;
mod reliable;
mod riding;
mod states;
mod trains;
mod verbs;
