//! Whether what was acknowledged lies where it must, in the middle of a run.
//!
//! A record is acknowledged when enough servers have it durably. From then on each disk that is lost may cost one of these, and a
//! server counts among the lost ones until it has adopted again: then it has all that was acknowledged, and nothing else instead. So at any time a record
//! lies on as many servers as acknowledge, but for as many as have no say. A run that breaks this has lost nothing yet; a loss of
//! one more disk would. It is looked at when a server adopts, when a writer opens the log, and now and then when a record is acknowledged.

use std::collections::BTreeMap;

use remanence_coord::log::Store;

use super::oracle::Oracle;
use super::server::{Rot, contents};
use crate::cluster::core::Core;

/// Looks at what would be left on all disks if the power went now.
///
/// # Errors
/// Too little, in words.
pub(super) fn check(core: &Core<Oracle>) -> Result<(), String> {
    let (servers, acks) = (usize::from(core.oracle.plan.servers), usize::from(core.oracle.plan.acks));
    let latest = core.oracle.latest();
    let (mut logs, mut lost): (Vec<BTreeMap<u64, Vec<u8>>>, _) = (Vec::new(), 0);
    for n in 0..servers {
        let failed = |why: String| format!("server {n}, if its power went now: {why}");
        let store = Store::open(core.nodes[n].disks[0].durable());
        let mut store = store.map_err(|error| failed(error.to_string()))?;
        if let Some(damage) = store.damage() {
            if core.oracle.rotten[n] == Rot::None {
                return Err(failed(damage.to_string()));
            }
            lost += 1;
            continue;
        }
        if store.state().adopted.counter() == 0 {
            lost += 1;
            continue;
        }
        let log = contents(&mut store).map_err(failed)?;
        if latest == Some(store.state().adopted) {
            // Given up or not, what it has is what was acknowledged.
            let is_other =
                |(sequence, bytes): &(u64, &[u8])| log.get(sequence).is_some_and(|there| there != bytes);
            if let Some((sequence, _)) = core.oracle.from(0).find(is_other) {
                return Err(format!("server {n} has adopted the log with another record {sequence}"));
            }
        }
        logs.push(log);
    }
    for (sequence, bytes) in core.oracle.from(core.oracle.trimmed) {
        let has = |log: &&BTreeMap<u64, Vec<u8>>| log.get(&sequence).is_some_and(|record| record == bytes);
        let there = logs.iter().filter(has).count();
        if there + lost < acks {
            return Err(format!(
                "record {sequence} was acknowledged by {acks} servers and lies on {there}, and only {lost} have no say"
            ));
        }
    }
    Ok(())
}
