//! `rem check NAME`: checkers that explore everything and say what they have seen. One file per checker.

mod persistence;

crate::cmd::subcommands! {
    /// Every method of remote persistence, on every machine, with a crash in every state
    Persistence(persistence::Args) => persistence::run,
}
