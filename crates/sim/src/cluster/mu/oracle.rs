//! What replicas applied and clients were told, and what must be true because of that.

use std::collections::{BTreeMap, BTreeSet};

use remanence_codec::{Malformed, Reader};
use remanence_coord::mu::Memory;
use remanence_coord::replicated::StateMachine;

use super::Plan;
use crate::cluster::core::{ConnectionId, Core};
use crate::cluster::disk::Disk;
use crate::cluster::replicated::{Counter, Simulated, Told};
use crate::history::NEVER;
use crate::report::counters;

counters! {
/// What the group did, counted.
Work {
    /// Times that a replica asked the others for their permission.
    tried,
    /// Times that one led.
    led,
    /// Times that the right to write was given to a peer.
    granted,
    /// Connections that were lost as somebody had no right to write any more.
    rejected,
    /// Entries that were decided.
    decided,
    /// Entries without a value, where a leader had found a hole.
    holes,
    /// Snapshots that replicas made.
    snapshots,
    /// Times that one took another one's in the place of entries.
    restored,
    /// Commands that clients began.
    begun,
    /// Those that a leader answered from its state, as it was confirmed.
    read,
    /// Those that were answered.
    done,
    /// Those of which nothing is known.
    unknown,
    /// Requests that were sent once more.
    sent_again,
    /// Values that were not proposed where they were asked for.
    refused,
    /// Those of them for which a leader had no room.
    busy,
    /// Values of which a replica that led no more could not say what became of them.
    forgotten,
}
}

/// A client, and which of its commands.
pub(super) type Which = (u16, u32);

/// What the entries lead to: a counter, and the last answer to each of a client's commands under way.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct State {
    counter: Counter,
    answered: BTreeMap<Which, Vec<u8>>,
}

/// Commands of a client behind which an earlier one is not asked for again.
const KEPT: u32 = 16;

/// The bytes of a command: who sends it, what it is, and what makes it longer.
pub(super) fn value((client, number): Which, command: &[u8], filler: u64) -> Vec<u8> {
    let (client, number) = (client.to_le_bytes(), number.to_le_bytes());
    let filler = vec![number[0] ^ client[0]; filler as usize];
    [&client[..], &number, &[command.len() as u8], command, &filler].concat()
}

/// Whose it is, and what is asked for.
pub(super) fn parse(value: &[u8]) -> Result<(Which, &[u8]), Malformed> {
    let mut reader = Reader::new(value);
    let which = (reader.u16_le()?, reader.u32_le()?);
    let len = reader.u8()?;
    Ok((which, reader.take(len.into())?))
}

impl State {
    /// Applies a command once. What it is answered, if it can still be asked for.
    pub(super) fn apply(&mut self, value: &[u8]) -> Option<(Which, Vec<u8>)> {
        let (which, command) = parse(value).ok()?;
        let (client, number) = which;
        let last = self.answered.range((client, 0)..=(client, u32::MAX)).next_back();
        let last = last.map_or(0, |((_, number), _)| *number);
        if let Some(answer) = self.answered.get(&which) {
            return Some((which, answer.clone()));
        }
        if number + KEPT <= last {
            return None;
        }
        let answer = self.counter.apply(command);
        self.answered.insert(which, answer.clone());
        self.answered.retain(|(of, n), _| *of != client || n + KEPT > last.max(number));
        Some((which, answer))
    }

    /// What a command is answered that changes nothing; nothing for any other.
    pub(super) fn read(&self, command: &[u8]) -> Option<Vec<u8>> {
        let mut after = self.counter.clone();
        let answer = after.apply(command);
        (after == self.counter).then_some(answer)
    }

    pub(super) fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for ((client, number), answer) in &self.answered {
            bytes.extend(client.to_le_bytes().into_iter().chain(number.to_le_bytes()).chain(answer.clone()));
        }
        [&(self.answered.len() as u16).to_le_bytes(), &bytes[..], &self.counter.snapshot()].concat()
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let mut answered = BTreeMap::new();
        for _ in 0..reader.u16_le()? {
            let which = (reader.u16_le()?, reader.u32_le()?);
            answered.insert(which, reader.take(8)?.to_vec());
        }
        Ok(Self { counter: Counter::restore(reader.rest())?, answered })
    }
}

/// What the run knows, and no process of it.
#[derive(Debug)]
pub(crate) struct Oracle {
    pub(super) plan: Plan,
    pub(super) seed: u64,
    pub(super) work: Work,
    /// The values, as somebody has applied them, and the state before each and behind the last.
    values: Vec<Option<Vec<u8>>>,
    states: Vec<Vec<u8>>,
    state: State,
    /// Entries of which a client was told that they are decided.
    pub(super) acknowledged: BTreeSet<u64>,
    /// On which connections others write to each replica's log, if it lets them, and who.
    pub(super) replication: Vec<Vec<(ConnectionId, usize)>>,
    history: Vec<Told>,
    tick: u64,
    running: BTreeMap<Which, (Vec<u8>, u64)>,
    /// Commands that each client may still begin.
    pub(super) operations: Vec<u32>,
    /// The client that comes last has come to its end.
    pub(super) last_is_done: bool,
}

impl Oracle {
    pub(super) fn new(seed: u64, plan: &Plan) -> Self {
        let state = State::default();
        Self {
            plan: plan.clone(),
            seed,
            work: Work::default(),
            values: Vec::new(),
            states: vec![state.emit()],
            state,
            acknowledged: BTreeSet::new(),
            replication: vec![Vec::new(); plan.servers.into()],
            history: Vec::new(),
            tick: 0,
            running: BTreeMap::new(),
            operations: vec![plan.operations; plan.clients.into()],
            last_is_done: false,
        }
    }

    /// What goes into the checksums of all entries.
    pub(super) const fn salt(&self) -> u64 {
        self.seed ^ 0x4d75
    }

    const fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// Entries that somebody has applied.
    pub(super) fn decided(&self) -> u64 {
        self.values.len() as u64
    }

    /// A replica applies a value.
    pub(super) fn applies(&mut self, index: u64, value: Option<&[u8]>) -> Result<(), String> {
        match self.values.get(index as usize) {
            Some(known) if known.as_deref() == value => Ok(()),
            Some(known) => {
                Err(format!("at index {index} one replica applies {known:?}, and another {value:?}"))
            }
            None if index == self.decided() => {
                (self.work.decided, self.work.holes) =
                    (self.work.decided + 1, self.work.holes + u64::from(value.is_none()));
                value.and_then(|value| self.state.apply(value));
                self.values.push(value.map(<[u8]>::to_vec));
                self.states.push(self.state.emit());
                Ok(())
            }
            None => Err(format!("index {index} is applied, and nobody has applied the one before")),
        }
    }

    /// A replica has this state before it applies that index.
    pub(super) fn has_state(&self, index: u64, state: &[u8]) -> Result<(), String> {
        match self.states.get(index as usize) {
            Some(known) if known == state => Ok(()),
            _ => Err(format!("the entries below {index} do not lead to what a snapshot of them has")),
        }
    }

    /// A client begins a command.
    pub(super) fn begins(&mut self, which: Which, command: Vec<u8>) {
        self.work.begun += 1;
        let invoked = self.tick();
        self.running.insert(which, (command, invoked));
    }

    /// It was answered.
    pub(super) fn ends(&mut self, which: Which, answer: Vec<u8>) {
        if let Some((command, invoked)) = self.running.remove(&which) {
            self.work.done += 1;
            let returned = self.tick();
            let client = which.0.into();
            self.history.push(Told { client, command, invoked, returned, answer: Some(answer) });
        }
    }

    /// Nothing will be known of what this client has under way: it has died.
    pub(super) fn forgets(&mut self, client: u16) {
        let gone: Vec<Which> =
            self.running.range((client, 0)..=(client, u32::MAX)).map(|(which, _)| *which).collect();
        for (command, invoked) in
            gone.iter().filter_map(|which| self.running.remove(which)).collect::<Vec<_>>()
        {
            self.work.unknown += 1;
            let client = client.into();
            self.history.push(Told { client, command, invoked, returned: NEVER, answer: None });
        }
    }

    pub(super) fn waits(&self) -> String {
        let which: Vec<&Which> = self.running.keys().collect();
        format!("{} entries are decided; of clients wait for answers: {which:?}", self.values.len())
    }

    pub(super) fn judge(&mut self) -> Result<(), String> {
        // What is under way may have been carried out.
        (0..=self.plan.own.clients).for_each(|client| self.forgets(client));
        Counter::judge(&self.history).map(drop)
    }
}

/// The first of these entries that the worst crash of all nodes now would not leave on a majority of them: in its log, or in a snapshot.
pub(super) fn lost<'a>(core: &Core<Oracle>, indexes: impl Iterator<Item = &'a u64>) -> Option<u64> {
    let (plan, values) = (&core.oracle.plan, &core.oracle.values);
    let memories: Vec<(Memory<Disk>, u64)> = core.nodes[..usize::from(plan.servers)]
        .iter()
        .filter_map(|node| Memory::open(node.disks[0].durable()).ok())
        .map(|memory| {
            let covered = memory.snapshot().map_or(0, |(_, found)| found.index);
            (memory, covered)
        })
        .collect();
    let is_there = |memory: &Memory<Disk>, index: u64| {
        let (entry, value) = (memory.entry(index), values.get(index as usize));
        entry.is_some_and(|entry| value.is_some_and(|value| value.as_ref() == Some(&entry.payload)))
    };
    let has = |index: u64| {
        let all = memories.iter();
        all.filter(|(memory, covered)| *covered > index || is_there(memory, index)).count()
    };
    indexes.copied().find(|index| has(*index) < usize::from(plan.acks))
}
