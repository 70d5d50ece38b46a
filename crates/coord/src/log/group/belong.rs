//! Whether servers belong together, and what is said where they do not.

use super::{GroupError, Options};
use crate::log::format::Epoch;
use crate::log::format::superblock::Uuid;
use crate::log::store::Status;

pub(super) fn too_few_sentence(reached: usize, needed: usize, named: usize, why: &str) -> String {
    // Of a log on one server there are no others.
    if named == 1 {
        return format!(
            "the log's only server cannot be written to ({why}); nothing that was acknowledged was changed, and it lies there alone"
        );
    }
    format!(
        "{reached} of the {needed} servers that must be heard were reached ({why}); nothing was changed that matters, and what was \
         acknowledged is safe on the others: start them, or wait"
    )
}

/// Whether a server's word counts: it has taken part, and knows what it knew.
pub(super) fn has_say(status: &Status) -> bool {
    status.state.adopted != Epoch::NONE && status.damage.is_none()
}

/// As what a group was made, or is made now.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) group: Uuid,
    pub(super) acks: u16,
    pub(super) new: bool,
}

pub(super) fn belong_together(
    names: &[&str],
    told: &[Option<&Status>],
    options: &Options,
) -> Result<Made, GroupError> {
    let members = names.len();
    let told = || told.iter().enumerate().filter_map(|(n, status)| Some((n, (*status)?)));
    for (n, status) in told() {
        let uuid = status.superblock.uuid;
        if let Some((m, _)) = told().find(|(m, other)| *m < n && other.superblock.uuid == uuid) {
            return Err(GroupError::Twice { a: names[m].into(), b: names[n].into() });
        }
    }
    // A group whose making was cut short is made again: where no server has a record, none was acknowledged, unless more
    // disks were lost than the group can stand.
    let empty = |status: &Status| (status.tail.sequence, status.damage) == (0, None);
    let new = told().count() == members && told().all(|(_, status)| empty(status));
    let Some((_, first)) = told().find(|(_, status)| status.state.group != Uuid::default()) else {
        let acks = options.acks.unwrap_or(members as u16).clamp(1, members as u16);
        // It is made if all of them are there; they are not, or it would be known to be new.
        return Ok(Made { group: options.group, acks, new: true });
    };
    let ours = first.state.group;
    for (n, status) in told() {
        let theirs = status.state.group;
        if theirs != ours && theirs != Uuid::default() {
            return Err(GroupError::Stranger { server: names[n].into(), theirs, ours });
        }
    }
    let servers = |n: usize| format!("{n} server{}", if n == 1 { "" } else { "s" });
    let (made, acks) = (usize::from(first.state.members), first.state.acks);
    if made != members || options.acks.is_some_and(|asked| asked != acks) {
        let asked = options.acks.map_or_else(String::new, |asked| format!(" with {asked}"));
        let given = format!("{}{asked}", servers(members));
        return Err(GroupError::Members { made: servers(made), acks, given });
    }
    Ok(Made { group: ours, acks, new })
}
