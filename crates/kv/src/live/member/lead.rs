//! Taking over, and what a primary's serving thread does besides serving.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use remanence_remotelog::format::superblock::Uuid;

use super::check::{Check, Held, Images, put_right, scrub};
use super::connection::DEPTH;
use super::link::Roads;
use super::node::Node;
use super::wire::MemberStats;
use super::{MemberOptions, Ships};
use crate::live::medium::{New, make_if_blank};
use crate::live::memory::Memory;
use crate::live::{Error, Server};
use crate::proto::Refusal;
use crate::replica::primary::Options as GroupOptions;
use crate::replica::takeover::{Input, Obstacle};
use crate::replica::{LeadError, Mirror, Primary, Rebuilding};
use crate::server::{Scrubbed, Server as Core};

/// Places that are remembered to have been asked for.
const ASKED_MAX: usize = 4096;
/// Bytes of an image that are sent between two messages of clients.
const REBUILD: u64 = 256 << 10;
/// How often a primary looks whom it has lost.
const LOOK: Duration = Duration::from_millis(50);
/// An image that does not follow is asked to again after this; and so are members for what they have of a damaged value.
const AGAIN: Duration = Duration::from_secs(1);

/// What a primary does between the messages of clients.
#[derive(Debug)]
pub(crate) struct Upkeep {
    node: Arc<Node>,
    ships: Ships,
    looked: Instant,
    busy: bool,
    /// Somebody may lack an image, or be gone: that is to be found out.
    follow: bool,
    /// When all images were asked to follow.
    followed: Instant,
    /// How many members took part when that was looked at last.
    part: usize,
    /// The processes that it is connected to.
    lives: Vec<u64>,
    /// Who needs an image gets one that was checked.
    check: Check,
}

impl Upkeep {
    /// Takes members in that are back, and rebuilds who has no image. Returns whether there is more to do at once.
    ///
    /// # Errors
    /// It is the primary no more. A sentence.
    pub(crate) fn turn(&mut self, core: &mut Core<Memory>) -> Result<bool, String> {
        let now = Instant::now();
        let due = now.duration_since(self.looked) >= LOOK;
        if !due && !self.busy {
            return Ok(false);
        }
        self.looked = now;
        let connections = {
            let state = &mut *self.node.lock();
            // Whoever was lost may have been taken in already, by connections that were made before.
            let others = (0..self.node.names.len()).filter(|at| *at != self.node.who);
            let wanted = others.into_iter().any(|at| self.node.wants_back(state, at));
            state.connections.take().filter(|_| wanted || !state.lost.is_empty())
        };
        if connections.is_some() || self.node.changed_lives(&self.lives) {
            self.lives = self.node.lives();
            self.follow = true;
        }
        // Who was the primary before may have been ending that still.
        self.follow |= now.duration_since(self.followed) >= AGAIN && !self.node.lock().behind.is_empty();
        let promised = self.node.log.with(|store| store.state().promised);
        // One that has been taken in meanwhile may lack an image.
        if connections.is_none() && promised == self.node.lock().epoch {
            let part = self.ships.with_ship(Primary::poll).unwrap_or_default();
            self.follow |= part > self.part;
            self.part = part;
        }
        let follow = std::mem::take(&mut self.follow);
        if follow {
            self.followed = now;
        }
        let checked = self.check.is_done();
        let turned = self.ships.with_ship(|primary| {
            if let Some(connections) = connections {
                primary.reopen(connections)?;
            } else if promised != primary.epoch() {
                return Err(LeadError::Deposed);
            }
            if follow {
                primary.begin_to_catch_up()?;
            }
            let rebuilding = match primary.needs_image() {
                Some(name) if !checked => {
                    Rebuilding::UnderWay { name: name.to_owned(), sent: 0, of: self.node.image.len() }
                }
                _ => primary.rebuild(REBUILD)?,
            };
            if matches!(rebuilding, Rebuilding::Done(_)) {
                primary.begin_to_catch_up()?;
            }
            let to_check = primary.needs_image().is_some();
            Ok((rebuilding, to_check, primary.lost(), primary.behind(), primary.epoch()))
        });
        let deposed = |why: String| {
            self.node.lock().why.clone_from(&why);
            why
        };
        let (rebuilding, to_check, lost, behind, epoch) =
            turned.map_err(|error: LeadError| deposed(error.to_string()))?;
        match &rebuilding {
            Rebuilding::UnderWay { .. } if to_check => {
                let images = Images { ships: &self.ships, image: &self.node.image };
                self.check.step(core, &images).map_err(|refusal| deposed(refusal.to_string()))?;
            }
            // Sent as it was checked.
            Rebuilding::UnderWay { .. } => {}
            Rebuilding::Nobody | Rebuilding::Done(_) => self.check = Check::default(),
        }
        let state = &mut *self.node.lock();
        state.epoch = epoch;
        state.lost = lost.into_iter().map(|(name, _)| name).collect();
        state.behind = behind.into_iter().map(|(name, why)| format!("{name}: {why}")).collect();
        self.busy = matches!(rebuilding, Rebuilding::UnderWay { .. } | Rebuilding::Done(_));
        state.rebuilding = match rebuilding {
            Rebuilding::UnderWay { name, sent, of } => Some((name, sent, of)),
            Rebuilding::Nobody | Rebuilding::Done(_) => None,
        };
        Ok(self.busy)
    }

    /// Verifies some values, where they are served and in the images of all members.
    ///
    /// # Errors
    /// Nothing can be shipped any more, or as for the scrub of a store that lies on one server.
    pub(crate) fn scrub(
        &self,
        core: &mut Core<Memory>,
        cursor: u64,
        limit: usize,
    ) -> Result<(Scrubbed, Vec<Held>), Refusal> {
        scrub(core, &self.ships, &self.node.names, (cursor, limit))
    }

    /// What other members have, for a value that is damaged here. They are waited for, and nobody is served meanwhile: so who
    /// reads one again and again that no member has whole does not have them asked each time.
    pub(crate) fn copies(&self) -> crate::server::Copies {
        let ships = self.ships.clone();
        let (mut asked, mut asked_in) = (BTreeMap::new(), None);
        Box::new(move |at, len| {
            let now = Instant::now();
            ships.with_ship(|primary| {
                // Others are there than the last time.
                if asked_in.replace(primary.epoch()) != Some(primary.epoch()) {
                    asked.clear();
                }
                if is_time(&mut asked, (at, len), now) { primary.copies(at, len) } else { Vec::new() }
            })
        })
    }

    /// The epoch, and what else clients are told.
    pub(crate) fn said(&self) -> MemberStats {
        // Not the epoch of the last look: a client that asks has seen that it is another one.
        let epoch = self.ships.with_ship(|primary| primary.epoch());
        MemberStats { epoch, ..self.node.said() }
    }
}

/// Whether others may be asked for a place: not if they were a moment ago.
fn is_time(asked: &mut BTreeMap<(u64, u32), Instant>, place: (u64, u32), now: Instant) -> bool {
    if asked.len() >= ASKED_MAX {
        asked.clear();
    }
    let before = asked.get(&place);
    let is_time = before.is_none_or(|before| now.saturating_duration_since(*before) >= AGAIN);
    if is_time {
        asked.insert(place, now);
    }
    is_time
}

/// Why this member cannot take over, though nobody serves, for whoever looks.
pub(super) fn explain(node: &Node, obstacle: Obstacle) -> String {
    let state = node.lock();
    let members = node.names.len();
    let missing = || -> String {
        let others = (0..members).filter(|at| *at != node.who && node.recent(&state, *at).is_none());
        // Those that are missing for one reason together.
        let mut by_reason: Vec<(String, Vec<&str>)> = Vec::new();
        for at in others {
            let (name, why) = (node.names[at].as_str(), node.absent(&state, at));
            match by_reason.iter_mut().find(|(reason, _)| *reason == why) {
                Some((_, names)) => names.push(name),
                None => by_reason.push((why, vec![name])),
            }
        }
        by_reason
            .iter()
            .map(|(why, names)| format!("{} ({why})", names.join(", ")))
            .collect::<Vec<_>>()
            .join("; ")
    };
    match obstacle {
        Obstacle::IsNew => "this member is new: it is rebuilt by the member that takes over".into(),
        Obstacle::NotAll => {
            format!("a new store needs all of its {members} members to be made; missing: {}", missing())
        }
        Obstacle::NoImage => {
            "the image of this member is incomplete: it is rebuilt by the member that takes over".into()
        }
        Obstacle::TooFew { there, needed } => format!(
            "{there} of {members} members are there, and {needed} are needed; start the others: {}",
            missing()
        ),
    }
}

/// Takes over, if it can, and serves until it is stopped or somebody else takes over.
///
/// # Errors
/// It could not, or does not any more. A sentence.
pub(super) fn lead(
    node: &Arc<Node>,
    roads: &Roads,
    options: &MemberOptions,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let sentence = |error: &dyn std::fmt::Display| Error::Argument(error.to_string());
    let is_new = node.seen().is_new();
    let mut random = [0; 20];
    getrandom::fill(&mut random).map_err(|e| sentence(&format!("the system gives no random bytes: {e}")))?;
    let (writer, group) = random.split_first_chunk().expect("four bytes and sixteen");
    let acks = match options.acks {
        Some(acks) => Some(acks),
        None => is_new.then(|| options.acks_of(node.names.len()) as u16),
    };
    let group = Uuid(group.try_into().expect("sixteen bytes"));
    let group_options =
        GroupOptions::new(u32::from_le_bytes(*writer), group).acks(acks).depth(DEPTH).grace(node.notice);
    let trim_after = options.log_len(node.image.len()) / 4;
    let connections = roads.connections(node);
    let (mut primary, _) =
        Primary::lead(connections, node.own_name(), &group_options, trim_after).map_err(|e| sentence(&e))?;
    let image = node.image.clone();
    primary.set_put_right(Box::new(move |fetch| {
        // A medium that fails is found by the next order that changes the image.
        let _ = put_right(&image, fetch);
    }));
    let epoch = primary.epoch();
    // Dropped after the server, and all that is left of its medium.
    let (working, _shown) = node.show_image(epoch)?;
    let ships: Ships = Mirror::new(working.clone(), primary);
    let memory = Memory::Replicated(ships.clone());
    make_if_blank(&memory, &New { geometry: options.common.geometry, keys: options.common.keys })?;
    let upkeep = Upkeep {
        node: Arc::clone(node),
        ships: ships.clone(),
        looked: Instant::now(),
        busy: true,
        follow: true,
        followed: Instant::now(),
        part: 0,
        lives: node.lives(),
        check: Check::default(),
    };
    let mut server = Server::bind_replicated(&roads.context, options.store(working), memory, upkeep)?;
    {
        let state = &mut *node.lock();
        state.happens(node.now(), Input::Leads { epoch });
        state.joined = true;
        state.why.clear();
        (state.epoch, state.store_port) = (epoch, server.addr().port());
        state.store = Some(server.metrics());
        state.connections = None;
        state.lost = ships.with_ship(|primary| primary.lost()).into_iter().map(|(name, _)| name).collect();
    }
    node.notify();
    options.tell(node);
    let over = AtomicBool::new(false);
    let served = std::thread::scope(|scope| {
        scope.spawn(|| roads.bring_back(node, &over));
        let served = server.run(stop);
        over.store(true, std::sync::atomic::Ordering::Release);
        served
    });
    drop(server);
    let failed = ships.failed();
    match (served, failed) {
        (Err(_), Some(why)) => Err(Error::Argument(why)),
        (Err(error), None) => {
            let why = node.lock().why.clone();
            Err(if why.is_empty() { error } else { Error::Argument(why) })
        }
        (Ok(_), _) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_not_asked_for_one_place_again_and_again() {
        let (begin, mut asked) = (Instant::now(), BTreeMap::new());
        assert!(is_time(&mut asked, (64, 10), begin));
        assert!(!is_time(&mut asked, (64, 10), begin + AGAIN / 2));
        assert!(is_time(&mut asked, (64, 20), begin), "what turned out to be longer");
        assert!(is_time(&mut asked, (64, 10), begin + AGAIN), "one of them may be back");
        assert!(!is_time(&mut asked, (64, 10), begin + AGAIN), "counted from the last time");
        for at in 0..2 * ASKED_MAX as u64 {
            is_time(&mut asked, (at, 1), begin);
            assert!(asked.len() <= ASKED_MAX);
        }
    }
}
