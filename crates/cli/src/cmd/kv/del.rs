//! `rem kv del`.

use std::io::{self, Write as _};

use remanence_kv::proto::Expect;
use serde_json::json;

use super::{At, Condition, Reach, field, refused};
use crate::fail::{Context as _, Fail};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem kv del 127.0.0.1 greeting
  rem kv del 127.0.0.1 greeting --expect 1099511627777
                                                   only if that is its version

Prints how many keys had a value. In a store of mode `durable` they have none for good when it returns.")]
pub(super) struct Args {
    /// Server as HOST or HOST:PORT; of a store on several, one member or all of them, separated by commas
    #[arg(value_name = "SERVER")]
    server: At,
    /// Keys
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<String>,
    /// Delete only if the key is `present`, or has this version
    #[arg(long, value_name = "CONDITION")]
    expect: Option<Condition>,
    /// Print JSON, one line for each key
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let expect = args.expect.map_or(Expect::Any, |condition| condition.0);
    let mut store = args.reach.connect(&args.server)?;
    let mut out = io::stdout().lock();
    let unwritten = || "standard output cannot be written".to_owned();
    let mut deleted = 0_u64;
    for key in &args.keys {
        let version = store
            .delete(key.as_bytes(), expect)
            .map_err(|e| Fail::new(format!("{}: {}", args.server, refused(key.as_bytes(), &e))))?;
        deleted += u64::from(version.is_some());
        if args.json {
            let mut done = json!({ "deleted": version.is_some(), "version": version });
            field(&mut done, "key", key.as_bytes());
            writeln!(out, "{done}").context(unwritten)?;
        }
    }
    if args.json { Ok(()) } else { writeln!(out, "{deleted}").context(unwritten) }
}
