//! What clients were told, and what must be true because of that.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Event, History, Kind, NEVER, State};
use remanence_coord::log::Epoch;

use super::Plan;
use super::judge::Disruption;
use crate::report::counters;
use crate::rng::fill;

counters! {
/// What the store did, counted.
Work {
    /// Times that a member tried to take over.
    tried,
    /// Times that one took over.
    led,
    /// Times that one that had taken over ended that.
    stood_down,
    /// Times that one that followed a primary followed nobody any more.
    doubted,
    /// Members that a primary connected to again, in the same epoch.
    reconnected,
    /// Times that a primary opened the log again.
    reopened,
    /// Members that were sent an image.
    rebuilt,
    /// Times that one had to look at its image at once, as the log has no room without sending it.
    put_right,
    /// Times that a primary found that one image more does not follow.
    behind,
    /// Records that were trimmed.
    trimmed,
    /// Places that scrubs put right where the store is served.
    repaired,
    /// Those that they put right in images.
    repaired_images,
    /// Operations that clients began.
    begun,
    /// Those that ended, and are known to have.
    done,
    /// Scans of all keys that were believed.
    scans,
    /// Changes of which nothing is known.
    unknown,
    /// Operations that ended at a primary which could not be believed.
    disbelieved,
    /// Times that a client connected to a primary.
    connected,
    /// Clients that a primary cut off.
    fenced,
}
}

/// What the run knows, and no process of it.
#[derive(Debug)]
pub(crate) struct Oracle {
    pub(super) plan: Plan,
    pub(super) seed: u64,
    pub(super) work: Work,
    /// What was seen of each key, on a clock that only the oracle has.
    pub(super) histories: BTreeMap<Vec<u8>, History>,
    tick: u64,
    writes: u64,
    /// Who has taken the log over, and with which number it went on.
    opened: BTreeMap<Epoch, u64>,
    /// Below which number records are acknowledged, by epoch.
    acknowledged: BTreeMap<Epoch, u64>,
    /// Members that have lost their disks, or never had a say, and do not have all that was acknowledged.
    pub(super) lost: BTreeSet<usize>,
    /// Members in whose images something has rotted, and was not seen to be put right.
    pub(super) rotten: BTreeSet<usize>,
    /// Where something has rotted in any image: nobody puts right what is no value any more.
    pub(super) rotted: Vec<u64>,
    /// The time; when an operation came to its end last, and the longest time between two that did.
    pub(super) now: u64,
    done_at: Option<u64>,
    pub(super) still: u64,
    /// Primaries that have looked at the image which they send next, by the writers of their epochs.
    pub(super) looked_at: BTreeSet<u32>,
    /// What members did that may disturb others, and was not judged yet.
    pub(super) disruptions: Vec<(usize, Disruption)>,
    /// In which epoch each member serves, and since when.
    pub(super) serving: Vec<Option<(Epoch, u64)>>,
    /// How many disks were made.
    pub(super) made: u64,
    /// Operations that each client may still begin.
    pub(super) operations: Vec<u32>,
    /// The change that each client has under way, and when it began: it may die.
    running: BTreeMap<u32, (Vec<u8>, Kind, u64)>,
    /// The last client has seen all keys, and the images are to be looked at.
    pub(super) verify: bool,
    /// They are looked at again then.
    pub(super) next_look: u64,
    /// When all members were seen to take part last.
    pub(super) together: u64,
    /// Nothing was missing.
    pub(super) finished: bool,
    /// What the last client waits for.
    pub(super) waits: String,
}

/// Numbers of writes from this one on are those of values that are all long.
const LONG: u64 = 1 << 40;

/// The bytes of a write.
pub(super) fn value_of(write: u64) -> Vec<u8> {
    let len = match write % 9 {
        _ if write >= LONG => 300 + write * 97 % 1500,
        0 => 900 + write % 900,
        n => (write * 7) % (30 * n),
    };
    let mut value = vec![0; len as usize];
    fill(write ^ 0x5EED << 32, &mut value);
    [&write.to_le_bytes()[..], &value].concat()
}

/// The name of a key.
pub(super) fn key_of(n: u64) -> Vec<u8> {
    format!("key{n}").into_bytes()
}

/// The write that a value is of.
///
/// # Errors
/// It is of none.
pub(super) fn state_of(value: &[u8]) -> Result<State, String> {
    let number = value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    number.filter(|number| value == value_of(*number)).ok_or_else(|| {
        format!("a value is served that nobody has written: {number:?}, {} bytes", value.len())
    })
}

impl Oracle {
    pub(super) fn new(seed: u64, plan: &Plan) -> Self {
        Self {
            plan: plan.clone(),
            seed,
            work: Work::default(),
            histories: BTreeMap::new(),
            tick: 0,
            writes: if plan.long { LONG } else { 0 },
            opened: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            lost: (0..plan.servers.into()).collect(),
            rotten: BTreeSet::new(),
            rotted: Vec::new(),
            now: 0,
            done_at: None,
            still: 0,
            looked_at: BTreeSet::new(),
            disruptions: Vec::new(),
            serving: vec![None; plan.servers.into()],
            made: 0,
            operations: vec![plan.operations; plan.clients.into()],
            running: BTreeMap::new(),
            verify: false,
            next_look: 0,
            together: 0,
            finished: false,
            waits: "it has not come".into(),
        }
    }

    /// A moment that no other one is the same as.
    const fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// A number for the next write.
    pub(super) const fn next_write(&mut self) -> u64 {
        self.writes += 1;
        self.writes
    }

    /// A client begins an operation; if that is a change, it may take effect though the client dies. When it begins.
    pub(super) fn begins(&mut self, key: &[u8], client: u32, kind: Option<Kind>) -> u64 {
        self.work.begun += 1;
        let invoked = self.tick();
        if let Some(kind) = kind {
            self.running.insert(client, (key.to_vec(), kind, invoked));
        }
        invoked
    }

    /// A client is started again: of what it had under way nothing is known.
    pub(super) fn has_died(&mut self, client: u32) {
        if let Some((key, kind, invoked)) = self.running.remove(&client) {
            self.record(&key, client, kind, invoked, false);
        }
    }

    /// An operation has come to nothing.
    pub(super) fn forgets(&mut self, client: u32) {
        self.running.remove(&client);
    }

    /// An operation is over, or nobody will know what becomes of it.
    pub(super) fn record(&mut self, key: &[u8], client: u32, kind: Kind, invoked: u64, is_known: bool) {
        self.running.remove(&client);
        let returned = if is_known { self.tick() } else { NEVER };
        let event = Event { kind, client, invoked, returned, maybe: !is_known };
        self.histories.entry(key.to_vec()).or_default().events.push(event);
        if is_known {
            self.work.done += 1;
            if self.now < self.plan.heals {
                let last = self.done_at.replace(self.now).unwrap_or(self.now);
                self.still = self.still.max(self.now - last);
            }
        } else {
            self.work.unknown += 1;
        }
    }

    /// A scan is over that has seen these keys, each at a moment since it began, and missed all others.
    pub(super) fn scanned(&mut self, client: u32, invoked: u64, seen: &BTreeSet<Vec<u8>>) {
        self.work.scans += 1;
        let returned = self.tick();
        for n in 0..self.plan.keys {
            let key = key_of(n);
            let kind = if seen.contains(&key) { Kind::NoSwap(0) } else { Kind::Read(0) };
            let event = Event { kind, client, invoked, returned, maybe: false };
            self.histories.entry(key).or_default().events.push(event);
        }
    }

    /// One more than the highest number that was acknowledged.
    pub(super) fn next(&self) -> u64 {
        self.acknowledged.values().copied().max().unwrap_or(0)
    }

    /// A member has taken the log over, which goes on with this number; or has opened it again, as the primary that it was.
    pub(super) fn opens(&mut self, epoch: Epoch, start: u64, again: bool) -> Result<(), String> {
        // Records are told apart by the counter alone.
        let is_twice = self.opened.keys().any(|other| other.counter() == epoch.counter());
        if self.opened.insert(epoch, start).is_some() || is_twice {
            return Err(format!("two members have taken the log over with epoch {epoch}"));
        }
        if again {
            return self.check();
        }
        // Nothing that an earlier primary was asked for can take effect any more, unless it has by now.
        let tick = self.tick();
        let events = self.histories.values_mut().flat_map(|history| &mut history.events);
        events.filter(|event| event.returned == NEVER).for_each(|event| event.returned = tick);
        self.check()
    }

    /// A primary says that all records below this number are acknowledged.
    pub(super) fn acknowledges(&mut self, epoch: Epoch, below: u64) -> Result<(), String> {
        let known = self.acknowledged.entry(epoch).or_default();
        if *known >= below {
            return Ok(());
        }
        *known = below;
        self.check()
    }

    /// No log that was taken over lacks what was acknowledged before.
    fn check(&self) -> Result<(), String> {
        for (epoch, below) in &self.acknowledged {
            for (later, start) in self.opened.range(epoch..).filter(|(later, _)| *later > epoch) {
                if start < below {
                    return Err(format!(
                        "the records below {below} are acknowledged in epoch {epoch}, and epoch {later} begins with record {start}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether one register a key could have had these histories. Of what is still under way nothing is known.
    pub(super) fn judge(&mut self) -> Result<(), String> {
        let running: Vec<u32> = self.running.keys().copied().collect();
        running.into_iter().for_each(|client| self.has_died(client));
        for (key, history) in &self.histories {
            if !history.is_linearizable() {
                let mut events = history.events.clone();
                events.sort_by_key(|event| event.invoked);
                let events: Vec<String> = events.iter().map(|event| format!("{event:?}")).collect();
                return Err(format!(
                    "no register could have had this history of {:?}: {}",
                    String::from_utf8_lossy(key),
                    events.join(" ")
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Params;

    fn oracle() -> Oracle {
        Oracle::new(1, &Plan::draw(1, &Params::default()))
    }

    #[test]
    fn what_contradicts_an_acknowledgement_is_seen_when_it_happens() {
        let epoch = |counter| Epoch::new(counter, 1);
        let mut oracle = oracle();
        oracle.opens(epoch(1), 0, false).expect("the first");
        oracle.acknowledges(epoch(1), 3).expect("nobody else has");
        oracle.opens(epoch(3), 3, false).expect("it has all of it");
        assert!(oracle.opens(epoch(3), 3, false).is_err(), "twice");
        assert!(oracle.acknowledges(epoch(1), 4).is_err(), "too late");
        assert_eq!(oracle.next(), 4);
    }

    #[test]
    fn what_is_not_known_ends_when_somebody_else_has_taken_over() {
        let mut oracle = oracle();
        let begun = oracle.tick();
        oracle.record(b"k", 0, Kind::Write(1), begun, false);
        let begun = oracle.tick();
        oracle.record(b"k", 1, Kind::Read(0), begun, true);
        oracle.opens(Epoch::new(2, 1), 0, false).expect("the first");
        assert_eq!(oracle.judge(), Ok(()), "it has not happened");
        let begun = oracle.tick();
        oracle.record(b"k", 1, Kind::Read(1), begun, true);
        assert_eq!(oracle.judge(), Ok(()), "it has happened at the last moment");
        let begun = oracle.tick();
        oracle.record(b"k", 1, Kind::Read(0), begun, true);
        assert!(oracle.judge().is_err(), "it was lost");
    }

    #[test]
    fn a_value_says_of_which_write_it_is() {
        for write in [1, 9, 18, 1000, LONG + 1] {
            assert_eq!(state_of(&value_of(write)), Ok(write));
            let mut torn = value_of(write);
            torn.push(0);
            assert!(state_of(&torn).is_err());
        }
        assert!(state_of(&[1]).is_err());
    }
}
