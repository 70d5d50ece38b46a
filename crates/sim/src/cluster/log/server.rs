//! A server of the log: its store on the node's disk, and whom it listens to. It is the same in every cluster of which a log is a part.

use std::collections::BTreeMap;
use std::time::Duration;

use remanence_coord::log::format::DATA_AT;
use remanence_coord::log::format::record::HEADER_LEN;
use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::proto::{Request, emit_reply};
use remanence_coord::log::serve::{Holder, Sessions};
use remanence_coord::log::walk::Local;
use remanence_coord::log::{Epoch, Geometry, Make, Mode, Reader, Refused, Status, Store};
use remanence_pmem::{Medium as _, PersistenceDomain};

use super::oracle::Oracle;
use crate::cluster::core::{ConnectionId, Core, Host, blank_disk};
use crate::cluster::disk::Disk;
use crate::cluster::{Input, Moment};
use crate::rng::Rng;

/// Whether something has rotted on a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cluster) enum Rot {
    /// Nothing has rotted there.
    None,
    /// It is there, and must be noticed.
    There,
    /// It may have been cut off.
    Perhaps,
}

/// What the oracle of a cluster has that is served logs.
pub(in crate::cluster) trait Serves {
    /// The log of a new disk of a server, and where what is flushed is safe. No two are the same.
    fn make(&mut self, node: usize) -> (Make, PersistenceDomain);

    /// Whether servers shut older writers out.
    fn is_fencing(&self) -> bool;

    /// A server has cut a connection off, as another writer came.
    fn has_shut_out(&mut self);

    /// A server has done what it came to, and its log ends before that record then; none: it may have done it or not.
    fn has_done(&mut self, _node: usize, _what: Moment, _end: Option<u64>) {}

    /// Whether something has rotted on the disk of a server.
    fn rot(&self, _node: usize) -> Rot {
        Rot::None
    }
}

/// The log with this number among those of a run, of so many segments.
pub(in crate::cluster) fn new_log(made: u64, seed: u64, mode: Mode, segment: u64, segments: u64) -> Make {
    let geometry = Geometry::new(DATA_AT + segments * segment, segment).expect("a fair geometry");
    let mut name = [0; 16];
    name[..8].copy_from_slice(&made.to_le_bytes());
    Make { mode, geometry, uuid: Uuid(name), salt: made ^ seed << 8 }
}

/// A session that is promised nothing.
const STRANGER: u64 = u64::MAX;

pub(in crate::cluster) struct Server {
    store: Store<Disk>,
    holder: Holder,
    /// Who was told to ask again for which promise, and how often others were since.
    told: Option<(Epoch, ConnectionId, u32)>,
}

/// So often at least others are to ask again for the sake of who was told so before.
const PATIENCE: u32 = 200;

/// The connections of a server as sessions.
struct Connections<'a, 'b, O>(&'a mut Host<'b, O>);

impl<O: Serves> Sessions for Connections<'_, '_, O> {
    fn is_live(&self, session: u64) -> bool {
        self.0.known().is_fencing() && self.0.is_live(session as usize)
    }

    fn cut(&mut self, session: u64) {
        self.0.tell(format_args!("cuts connection {session}"));
        self.0.cut(session as usize);
        self.0.oracle().has_shut_out();
    }
}

/// A disk with an empty log.
pub(in crate::cluster) fn make<O: Serves>(core: &mut Core<O>, node: usize) -> Disk {
    let (make, domain) = core.oracle.make(node);
    let disk = blank_disk(make.geometry.size, domain);
    Store::create(disk.clone(), &make).expect("a new disk is healthy");
    disk
}

/// New disks for a server that has lost its own. So many may be lost at a time as a record that is acknowledged lies on others beside one. A
/// server counts among them until it has a say again, and so does one that never had one, but for a group of which nobody has one yet.
pub(in crate::cluster) fn new_disks<O: Serves>(
    core: &mut Core<O>,
    node: usize,
    (servers, acks): (u16, u16),
) -> Option<Vec<Disk>> {
    may_be_lost(core, node, (servers, acks)).then(|| vec![make(core, node)])
}

/// Whether the group can do without what is on the disk of a server.
pub(super) fn may_be_lost<O>(core: &Core<O>, node: usize, (servers, acks): (u16, u16)) -> bool {
    if node >= servers.into() {
        return false;
    }
    let without = |n: &usize| !has_say(&core.nodes[*n].disks[0]);
    let lost: Vec<usize> = (0..servers.into()).filter(without).collect();
    let others = lost.iter().filter(|lost| **lost != node).count();
    lost.len() == usize::from(servers) || others + 1 < usize::from(acks)
}

/// Flips a bit in the header of a record below that number, if there is one; or has the tail word say that the log ends earlier, where a later
/// record proves that it does not.
pub(super) fn rot(disk: &Disk, remembered: u64, salt: u64) -> bool {
    let Ok(store) = Store::open(disk.durable()) else { return false };
    let rules = store.rules();
    let (mut at, mut payload, mut places) = (store.state().head, Vec::new(), Vec::new());
    while at.sequence < remembered {
        let Ok(Ok(found)) = rules.next(&mut Local(store.medium()), &at, &mut payload) else { break };
        places.push(rules.geometry.offset(found.position));
        at = found.after;
    }
    let mut rng = Rng::new(salt, 21);
    if places.is_empty() || store.damage().is_some() {
        return false;
    }
    if store.superblock().mode == Mode::Compound && rng.one_in(2) {
        let mut ends = Vec::new();
        while let Ok(Ok(found)) = rules.next(&mut Local(store.medium()), &at, &mut payload) {
            let Ok(proof) = rules.proof(&mut Local(store.medium()), &at);
            ends.extend(proof.map(|_| at.position));
            at = found.after;
        }
        if !ends.is_empty() {
            let word = store.tail_word();
            disk.store_u64(word, rng.pick(&ends).to_le());
            return disk.persist(word..word + 8).is_ok();
        }
    }
    let offset = rng.pick(&places) + rng.below(HEADER_LEN);
    let mut byte = [0];
    disk.read(offset, &mut byte);
    disk.write(offset, &[byte[0] ^ 1 << rng.below(8)]);
    disk.persist(offset..offset + 1).is_ok()
}

/// Whether the word of a server with this disk counts: it has adopted an epoch. Nothing happens to the disk.
fn has_say(disk: &Disk) -> bool {
    Store::open(disk.durable())
        .is_ok_and(|store| store.state().adopted.counter() > 0 && store.damage().is_none())
}

/// All records of a log, by their numbers.
pub(super) fn contents(store: &mut Store<Disk>) -> Result<BTreeMap<u64, Vec<u8>>, String> {
    let status = store.status().map_err(|e| e.to_string())?;
    let mut reader = Reader::new(&status);
    let mut found = BTreeMap::new();
    while reader.next_sequence() < status.tail.sequence {
        let Ok(record) = reader.read(&mut Local(store.medium()));
        let (record, bytes) = record.map_err(|fault| fault.to_string())?;
        found.insert(record.header.sequence, bytes.to_vec());
    }
    Ok(found)
}

/// What a server says to what it was asked.
pub(in crate::cluster) fn said(reply: &Result<Status, Refused>) -> String {
    match reply {
        Ok(Status { state, tail, .. }) => format!(
            "records {} to {}, promised {}, adopted {}",
            state.head.sequence, tail.sequence, state.promised, state.adopted
        ),
        Err(refused) => refused.to_string(),
    }
}

/// What a server comes to when it is asked for that.
pub(in crate::cluster) const fn moment(request: &Request) -> Moment {
    match request {
        Request::Status => Moment::Look,
        Request::Grant { .. } => Moment::Promise,
        Request::Truncate { .. } | Request::Reset { .. } => Moment::Cut,
        Request::Adopt { .. } => Moment::Adopt,
        Request::Trim { .. } | Request::Known { .. } => Moment::Note,
    }
}

impl Server {
    pub(in crate::cluster) fn boot<O: Serves>(host: &mut Host<'_, O>) -> Result<Self, String> {
        let store = Store::open(host.disk(0)).map_err(|e| e.to_string())?;
        match (store.damage(), host.known().rot(host.node())) {
            (Some(damage), Rot::None) => Err(format!("a crash is taken for damage: {damage}")),
            (None, Rot::There) => Err("what has rotted is not noticed".into()),
            _ => Ok(Self { store, holder: Holder::default(), told: None }),
        }
    }

    /// It waits for nothing but what it is asked.
    pub(in crate::cluster) const fn deadline(&self) -> Option<Duration> {
        None
    }

    pub(in crate::cluster) fn on<O: Serves>(&mut self, input: Input, host: &mut Host<'_, O>) {
        let Input::Message { connection, bytes } = input else { return };
        let request = Request::parse(&bytes);
        if let Ok(request) = &request {
            host.moment(moment(request), Some(connection));
        }
        let asked = request.clone().ok();
        let (store, session) = (&mut self.store, connection as u64);
        let reply = request.and_then(|request| {
            self.holder.answer(store, &mut Connections(host), session, &request, &mut |_| ())
        });
        if let Some(Request::Grant { epoch }) = asked {
            self.is_in_turn(epoch, connection, &reply, host);
        }
        let store = &mut self.store;
        if let Some(request @ (Request::Truncate { .. } | Request::Reset { .. } | Request::Adopt { .. })) =
            &asked
        {
            // Whoever has overheard it.
            let stranger = self.holder.answer(store, &mut Connections(host), STRANGER, request, &mut |_| ());
            if !matches!(stranger, Err(Refused::Fenced { .. })) {
                host.core().wrong(format!("one that was not promised the log may ask for {request:?}"));
            }
        }
        host.tell(format_args!("is asked {:?}: {}", Request::parse(&bytes).ok(), said(&reply)));
        let node = host.node();
        match self.store.damage() {
            Some(damage) if host.known().rot(node) == Rot::None => {
                let what = format!("server {node} finds damage, and nothing was destroyed: {damage}");
                host.core().wrong(what);
            }
            _ => {}
        }
        if let Some(asked) = asked {
            let done = reply.as_ref().ok().filter(|_| !host.has_no_power());
            host.oracle().has_done(node, moment(&asked), done.map(|status| status.tail.sequence));
        }
        host.send(connection, emit_reply(&reply));
    }

    /// Who was told to ask again for a promise is let in before an earlier writer.
    fn is_in_turn<O: Serves>(
        &mut self,
        epoch: Epoch,
        connection: ConnectionId,
        reply: &Result<Status, Refused>,
        host: &mut Host<'_, O>,
    ) {
        let waiting = self.told.filter(|(later, who, _)| *later > epoch && host.is_live(*who));
        match (reply, waiting) {
            (Err(Refused::Busy), None) => self.told = Some((epoch, connection, 0)),
            (Err(Refused::Busy), Some((later, who, times))) => self.told = Some((later, who, times + 1)),
            (Ok(_), Some((later, _, times))) if times < PATIENCE && host.known().is_fencing() => {
                host.core().wrong(format!(
                    "epoch {epoch} is promised before epoch {later}, which was told to ask again"
                ));
            }
            (Ok(_), _) => self.told = None,
            (Err(_), _) => {}
        }
    }

    /// Looks whether everything that was acknowledged is there, byte for byte.
    pub(super) fn verify(&mut self, oracle: &Oracle) -> Result<(), String> {
        let found = contents(&mut self.store)?;
        let first = self.store.state().head.sequence;
        if first > oracle.trimmed {
            return Err(format!(
                "the log begins with record {first}, and those from {} on were not trimmed",
                oracle.trimmed
            ));
        }
        for (sequence, bytes) in oracle.from(first) {
            match found.get(&sequence) {
                Some(there) if there == bytes => {}
                Some(_) => return Err(format!("record {sequence} is not the one that was acknowledged")),
                None => return Err(format!("record {sequence} is not there, and was acknowledged")),
            }
        }
        Ok(())
    }
}
