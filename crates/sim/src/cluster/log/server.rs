//! A server of the log: its store on the node's disk, and whom it listens to.

use std::collections::BTreeMap;

use remanence_coord::log::format::DATA_AT;
use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::proto::{Request, emit_reply};
use remanence_coord::log::serve::{Holder, Sessions};
use remanence_coord::log::walk::Local;
use remanence_coord::log::{Geometry, Make, Reader, Store};

use super::oracle::Oracle;
use crate::cluster::Input;
use crate::cluster::core::{Core, Host, blank_disk};
use crate::cluster::disk::Disk;

pub(super) struct Server {
    store: Store<Disk>,
    holder: Holder,
}

/// The connections of a server as sessions.
struct Connections<'a, 'b>(&'a mut Host<'b, Oracle>);

impl Sessions for Connections<'_, '_> {
    fn is_live(&self, session: u64) -> bool {
        self.0.known().plan.fencing && self.0.is_live(session as usize)
    }

    fn cut(&mut self, session: u64) {
        self.0.tell(format_args!("cuts connection {session}"));
        self.0.cut(session as usize);
        self.0.core().oracle.work.shut_out += 1;
    }
}

/// A disk with an empty log.
pub(super) fn make(core: &mut Core<Oracle>, node: usize) -> Disk {
    core.oracle.made += 1;
    let (plan, made) = (&core.oracle.plan, core.oracle.made);
    let geometry =
        Geometry::new(DATA_AT + plan.segments[node] * plan.segment, plan.segment).expect("a fair geometry");
    let mut name = [0; 16];
    name[..8].copy_from_slice(&made.to_le_bytes());
    let make = Make { mode: plan.mode, geometry, uuid: Uuid(name), salt: made ^ core.oracle.seed << 8 };
    let disk = blank_disk(geometry.size, plan.domain);
    Store::create(disk.clone(), &make).expect("a new disk is healthy");
    disk
}

/// Whether the word of a server with this disk counts: it has adopted an epoch. Nothing happens to the disk.
pub(super) fn has_say(disk: &Disk) -> bool {
    Store::open(disk.durable())
        .is_ok_and(|store| store.state().adopted.counter() > 0 && store.damage().is_none())
}

impl Server {
    pub(super) fn boot(host: &mut Host<'_, Oracle>) -> Result<Self, String> {
        let store = Store::open(host.disk(0)).map_err(|e| e.to_string())?;
        match store.damage() {
            Some(damage) => Err(format!("a crash is taken for damage: {damage}")),
            None => Ok(Self { store, holder: Holder::default() }),
        }
    }

    pub(super) fn on(&mut self, input: Input, host: &mut Host<'_, Oracle>) {
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
