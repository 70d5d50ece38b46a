//! A server of the log: its store on the node's disk, and whom it listens to. It is the same in every cluster of which a log is a part.

use std::collections::BTreeMap;
use std::time::Duration;

use remanence_coord::log::format::DATA_AT;
use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::proto::{Request, emit_reply};
use remanence_coord::log::serve::{Holder, Sessions};
use remanence_coord::log::walk::Local;
use remanence_coord::log::{Geometry, Make, Mode, Reader, Store};
use remanence_pmem::PersistenceDomain;

use super::oracle::Oracle;
use crate::cluster::Input;
use crate::cluster::core::{Core, Host, blank_disk};
use crate::cluster::disk::Disk;

/// What the oracle of a cluster has that is served logs.
pub(in crate::cluster) trait Serves {
    /// The log of a new disk of a server, and where what is flushed is safe. No two are the same.
    fn make(&mut self, node: usize) -> (Make, PersistenceDomain);

    /// Whether servers shut older writers out.
    fn is_fencing(&self) -> bool;

    /// A server has cut a connection off, as another writer came.
    fn has_shut_out(&mut self);
}

/// The log with this number among those of a run, of so many segments.
pub(in crate::cluster) fn new_log(made: u64, seed: u64, mode: Mode, segment: u64, segments: u64) -> Make {
    let geometry = Geometry::new(DATA_AT + segments * segment, segment).expect("a fair geometry");
    let mut name = [0; 16];
    name[..8].copy_from_slice(&made.to_le_bytes());
    Make { mode, geometry, uuid: Uuid(name), salt: made ^ seed << 8 }
}

pub(in crate::cluster) struct Server {
    store: Store<Disk>,
    holder: Holder,
}

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
    if node >= servers.into() {
        return None;
    }
    let without = |n: &usize| !has_say(&core.nodes[*n].disks[0]);
    let lost: Vec<usize> = (0..servers.into()).filter(without).collect();
    let others = lost.iter().filter(|lost| **lost != node).count();
    if lost.len() < servers.into() && others + 1 >= usize::from(acks) {
        return None;
    }
    Some(vec![make(core, node)])
}

/// Whether the word of a server with this disk counts: it has adopted an epoch. Nothing happens to the disk.
fn has_say(disk: &Disk) -> bool {
    Store::open(disk.durable())
        .is_ok_and(|store| store.state().adopted.counter() > 0 && store.damage().is_none())
}

impl Server {
    pub(in crate::cluster) fn boot<O>(host: &mut Host<'_, O>) -> Result<Self, String> {
        let store = Store::open(host.disk(0)).map_err(|e| e.to_string())?;
        match store.damage() {
            Some(damage) => Err(format!("a crash is taken for damage: {damage}")),
            None => Ok(Self { store, holder: Holder::default() }),
        }
    }

    /// It waits for nothing but what it is asked.
    pub(in crate::cluster) const fn deadline(&self) -> Option<Duration> {
        None
    }

    pub(in crate::cluster) fn on<O: Serves>(&mut self, input: Input, host: &mut Host<'_, O>) {
        let Input::Message { connection, bytes } = input else { return };
        let request = Request::parse(&bytes);
        let reply = request.and_then(|request| {
            let (store, session) = (&mut self.store, connection as u64);
            self.holder.answer(store, &mut Connections(host), session, &request, &mut |_| ())
        });
        host.tell(format_args!(
            "is asked {:?}: {}",
            Request::parse(&bytes).ok(),
            match &reply {
                Ok(status) => format!(
                    "records {} to {}, promised {}, adopted {}",
                    status.state.head.sequence,
                    status.tail.sequence,
                    status.state.promised,
                    status.state.adopted
                ),
                Err(refused) => refused.to_string(),
            }
        ));
        if let Some(damage) = self.store.damage() {
            let what = format!("server {} finds damage, and nothing was destroyed: {damage}", host.node());
            host.core().wrong(what);
        }
        host.send(connection, emit_reply(&reply));
    }

    /// Looks whether everything that was acknowledged is there, byte for byte.
    pub(super) fn verify(&mut self, oracle: &Oracle) -> Result<(), String> {
        let status = self.store.status().map_err(|e| e.to_string())?;
        let first = status.state.head.sequence;
        if first > oracle.trimmed {
            return Err(format!(
                "the log begins with record {first}, and those from {} on were not trimmed",
                oracle.trimmed
            ));
        }
        let mut reader = Reader::new(&status);
        let mut found: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        while reader.next_sequence() < status.tail.sequence {
            let Ok(record) = reader.read(&mut Local(self.store.medium()));
            let (record, bytes) = record.map_err(|fault| fault.to_string())?;
            found.insert(record.header.sequence, bytes.to_vec());
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
