//! Whether a member had a reason to do what it did, judged by what the run knows and the member does not.
//!
//! A wrong attempt to lead costs a fail-over and no value, so that neither histories nor images tell of it. But where one member has served
//! for a while and nothing was wrong with it, and the others slept at most, or are dead, nobody may try. What goes wrong is data:
//! the faults of the run say who slept, and when.

use std::time::Duration;

use remanence_coord::log::Epoch;
use remanence_coord::takeover::Role;

use super::Node;
use super::body::Body;
use super::oracle::Oracle;
use crate::cluster::core::Core;
use crate::cluster::{Fault, Kind};

/// So long some member may take no part when all faults are over, in nanoseconds: the longest pause between two attempts to connect to it,
/// and a good deal more; less than a log's patience with one that is silent.
const APART: u64 = 15_000_000_000;

/// What a member does by which it may disturb others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Disruption {
    /// It tries to lead.
    Tries,
    /// As a primary of that epoch it has opened the log again.
    Reopens(Epoch),
}

/// How a member has been for a while.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Past {
    /// Nothing was wrong.
    Quiet,
    /// It was stopped now and then.
    Slept,
    /// It has had no process all the time, or did not run.
    Absent,
    /// Something else was wrong with it.
    Troubled,
}

fn past(core: &Core<Oracle>, member: usize, since: u64) -> Past {
    let (now, members) = (core.now(), usize::from(core.oracle.plan.servers));
    let faults = core.faults.iter().filter(|fault| fault.at <= now && fault.ends() >= since);
    let judged = faults.map(|fault| {
        let is_here = fault.node == member;
        let is_whole = fault.at <= since && fault.ends() > now;
        match fault.kind {
            Kind::Aimed(_) | Kind::Linger(_) => Past::Quiet,
            Kind::Partition(peer, _) if peer < members && (is_here || peer == member) => Past::Troubled,
            Kind::Partition(..) => Past::Quiet,
            _ if !is_here => Past::Quiet,
            Kind::Pause if is_whole => Past::Absent,
            Kind::Pause => Past::Slept,
            Kind::Kill | Kind::PowerLoss | Kind::DiskLost if is_whole && !core.nodes[member].is_up => {
                Past::Absent
            }
            _ => Past::Troubled,
        }
    });
    judged.max().unwrap_or(Past::Quiet)
}

/// Judges what was done since the last look.
///
/// # Errors
/// There was no reason for it.
pub(super) fn judge(core: &mut Core<Oracle>, processes: &[Option<Node>]) -> Result<(), String> {
    while let Some((who, disruption)) = core.oracle.disruptions.pop() {
        judge_one(core, processes, who, disruption)?;
    }
    Ok(())
}

fn judge_one(
    core: &Core<Oracle>,
    processes: &[Option<Node>],
    who: usize,
    disruption: Disruption,
) -> Result<(), String> {
    let (plan, now) = (&core.oracle.plan, core.now());
    let (members, acks) = (usize::from(plan.servers), usize::from(plan.acks));
    let Some(since) = now.checked_sub(2 * plan.speeds.retry + 4 * plan.notice) else { return Ok(()) };
    let past: Vec<Past> = (0..members).map(|member| past(core, member, since)).collect();
    let name = |member: usize| &core.nodes[member].name;
    let what = match disruption {
        Disruption::Tries => "tries to lead",
        Disruption::Reopens(_) => "opens the log again",
    };
    // As long as anybody may be silent before it is taken for dead, after wrong suspicions.
    let long = now.checked_sub(2 * plan.speeds.retry + 9 * plan.notice);
    if let Some(since) =
        long.filter(|since| disruption == Disruption::Tries && self::past(core, who, *since) == Past::Quiet)
    {
        let there = (0..members).filter(|member| self::past(core, *member, since) != Past::Absent).count();
        let needed = acks.max(members - acks + 1);
        if there < needed {
            return Err(format!(
                "{} {what}, and only {there} of the {needed} that it needs are there",
                name(who)
            ));
        }
    }
    if past[who] > Past::Slept {
        return Ok(());
    }
    let member = |at: usize| processes[at].as_ref().and_then(Node::member);
    let is_new = |at: usize| member(at).is_some_and(super::member::Member::is_new);
    if disruption == Disruption::Tries && is_new(who) {
        let knows = |at: &usize| past[*at] == Past::Quiet && member(*at).is_some() && !is_new(*at);
        if let Some(other) = (0..members).find(knows) {
            return Err(format!("{} {what} and has nothing, and {} has", name(who), name(other)));
        }
    }
    if past.contains(&Past::Troubled) {
        return Ok(());
    }
    let served = core.oracle.serving.iter().enumerate();
    let latest =
        served.filter_map(|(at, serving)| Some((at, (*serving)?))).max_by_key(|(_, (epoch, _))| *epoch);
    if let Some((at, (epoch, from))) = latest.filter(|(at, (_, from))| *at != who && *from <= since)
        && past[at] == Past::Quiet
        && member(at).is_some_and(super::member::Member::leads)
        && !matches!(disruption, Disruption::Reopens(before) if before > epoch)
    {
        let served = Duration::from_nanos(now - from).as_millis();
        return Err(format!(
            "{} {what}, and {} has served for {served} ms in epoch {epoch}",
            name(who),
            name(at)
        ));
    }
    Ok(())
}

/// Judges whether all members take part, so long after all faults are over: whoever is up and can be reached is taken in by the primary
/// that serves, and not left alone until some patience is over.
///
/// # Errors
/// One does not.
pub(super) fn take_part(core: &mut Core<Oracle>, processes: &[Option<Node>]) -> Result<(), String> {
    let (members, now) = (usize::from(core.oracle.plan.servers), core.now());
    let healed = core.faults.iter().map(Fault::ends).max().unwrap_or(0);
    let one = |at: usize| {
        processes[at].as_ref().and_then(Node::member).is_some_and(super::member::Member::takes_part)
    };
    let apart = (0..members).find(|at| !one(*at));
    let since = core.oracle.together.max(healed);
    match apart {
        None => core.oracle.together = now,
        Some(at) if now > since + APART => {
            let (name, apart) = (&core.nodes[at].name, Duration::from_nanos(now - since).as_secs_f32());
            return Err(format!(
                "{name} takes no part, or does without another one, for {apart} s in which nothing was wrong"
            ));
        }
        Some(_) => {}
    }
    Ok(())
}

/// What is true of what a member knows at any time.
///
/// # Errors
/// It is not.
pub(super) fn knows(body: &mut Body) -> Result<(), String> {
    if let Some(why) = body.wrong.take() {
        return Err(why);
    }
    let Some(leader) = body.takeover.leader() else { return Ok(()) };
    let follows =
        |why: &str| Err(format!("{} follows one of epoch {}, {why}", body.names[body.who], leader.epoch));
    let said = body.said[leader.who].map(|said| said.statement);
    if said.is_none_or(|said| (said.role, said.epoch) != (Role::Primary, leader.epoch)) {
        return follows("that does not say so");
    }
    if body.serves && leader.epoch.counter() <= body.epoch.counter() {
        return follows("and serves");
    }
    Ok(())
}
