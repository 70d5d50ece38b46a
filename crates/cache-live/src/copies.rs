//! The servers that have a log's copy, and what is found there: for the daemon, which sends it, and for whoever recovers it elsewhere.

use std::fmt;
use std::net::SocketAddr;

use remanence_cache::copy::{Copier, RECORD_MIN, Rebuilt};
use remanence_remote::{Background, Reactor};
use remanence_remotelog::{AsyncLog, ConnectOptions, GroupError, LogReader};
use remanence_verbs::Context;

/// The longest record that is sent.
const RECORD_MAX: u64 = 512 << 10;

/// The servers that have a log's copy.
#[derive(Clone, Debug)]
pub struct Copies {
    /// All of them, lost ones too.
    pub servers: Vec<SocketAddr>,
    /// How they are connected to.
    pub connect: ConnectOptions,
    /// How many of them must have what a sync waits for: more than half of them if nothing is said, or as many as the log was made with.
    pub acks: Option<u16>,
    /// Whether images of files are kept beside the log.
    pub images: bool,
    /// How the user calls them.
    pub name: String,
}

impl fmt::Display for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Why something was not copied, as a sentence.
#[derive(Debug)]
pub(crate) enum Failed {
    /// It may be if all is begun anew.
    Lost(String),
    /// It is not.
    ForGood(String),
}

impl From<GroupError> for Failed {
    fn from(error: GroupError) -> Self {
        match error {
            GroupError::TooFew { .. } => Self::Lost(error.to_string()),
            // Somebody has taken the log over: this machine was given up.
            _ => Self::ForGood(error.to_string()),
        }
    }
}

impl From<Failed> for String {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Lost(why) | Failed::ForGood(why) => why,
        }
    }
}

/// The log on the servers, open for writing: whoever had it before is shut out.
pub(crate) struct Servers {
    log: AsyncLog,
    reactor: Reactor,
    /// Goes on with it while nothing is sent: servers that were lost are connected to again.
    _background: Background,
    record: u64,
    capacity: u64,
}

impl Servers {
    /// Opens it, and reads what it has; `visit` is called with each record as well.
    pub(crate) fn open(copies: &Copies, visit: &mut RecordVisitor<'_>) -> Result<(Self, Rebuilt), Failed> {
        let context = Context::towards_any(copies.servers.iter().map(SocketAddr::ip)).map_err(lost)?;
        let reactor = Reactor::new(&context).map_err(lost)?;
        let background = reactor.in_background().map_err(lost)?;
        let open = |options: &ConnectOptions| {
            reactor.block_on(AsyncLog::connect(&reactor, &copies.servers, options))
        };
        let acks = copies.acks.unwrap_or(copies.servers.len() as u16 / 2 + 1);
        let log = match open(&copies.connect.clone().acks(acks)) {
            Err(GroupError::Members { .. }) if copies.acks.is_none() => open(&copies.connect),
            opened => opened,
        }?;
        // One of those that have all of it.
        let lacks: Vec<String> = log.lost().into_iter().map(|(name, _)| name).chain(log.behind()).collect();
        let mut whole = copies.servers.iter().filter(|server| !lacks.contains(&server.to_string()));
        let from = *whole.next().ok_or_else(|| Failed::Lost("no server has all of the log yet".into()))?;
        let reader = LogReader::connect(&context, from, &copies.connect).map_err(lost)?;
        let geometry = reader.status().superblock.geometry;
        let (capacity, mut record) = (geometry.capacity(), geometry.payload_max().min(RECORD_MAX));
        if copies.images {
            // At the end of a segment there may be as much left as a record has.
            record = record.min((geometry.payload_max() / 8).max(RECORD_MIN as u64));
        }
        if record < RECORD_MIN as u64 {
            return Err(Failed::ForGood(format!(
                "the logs of these servers have records of {record} bytes at most, and {RECORD_MIN} are needed: serve logs of 4M at least"
            )));
        }
        let rebuilt = read(reader, visit)?;
        Ok((Self { log, reactor, _background: background, record, capacity }, rebuilt))
    }

    /// Bytes of the longest record.
    pub(crate) const fn record(&self) -> usize {
        self.record as usize
    }

    /// Bytes that each has room for.
    pub(crate) const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// How many acknowledge, of how many; and those that do without, and why.
    pub(crate) fn standing(&self) -> ((usize, usize), Vec<(String, String)>) {
        (self.log.quorum(), self.log.lost())
    }

    /// Sends records, and waits until they are durable; the number of the first.
    pub(crate) fn send(&self, records: Vec<Vec<u8>>) -> Result<u64, GroupError> {
        let count = records.len() as u64;
        let last = self.reactor.block_on(self.log.begin_append_batch(records))?;
        self.reactor.block_on(self.log.wait(last + 1))?;
        Ok(last + 1 - count)
    }

    /// Gives up what is below a number.
    pub(crate) fn trim(&self, below: u64) -> Result<(), GroupError> {
        self.reactor.block_on(self.log.trim(below))
    }

    /// Sends a last record, and leaves nothing else, or what is not below a number.
    pub(crate) fn close(&self, last: Vec<u8>, below: Option<u64>) -> Result<(), GroupError> {
        let number = self.send(vec![last])?;
        self.trim(below.unwrap_or(number).min(number))?;
        self.reactor.block_on(self.log.clone().close())
    }
}

fn lost(why: impl fmt::Display) -> Failed {
    Failed::Lost(why.to_string())
}

/// What is called with each record and its number; an error that it returns ends the reading.
pub type RecordVisitor<'t> = dyn FnMut(u64, &[u8]) -> Result<(), String> + 't;

/// One who keeps nothing of the records.
fn ignore(_: u64, _: &[u8]) -> Result<(), String> {
    Ok(())
}

fn read(reader: LogReader, visit: &mut RecordVisitor<'_>) -> Result<Rebuilt, Failed> {
    let mut rebuilt = Rebuilt::default();
    for record in reader {
        let record = record.map_err(lost)?;
        rebuilt.add(&record.payload).map_err(|why| Failed::ForGood(why.to_string()))?;
        visit(record.sequence, &record.payload).map_err(Failed::ForGood)?;
    }
    Ok(rebuilt)
}

/// A log that was taken over from its servers, to be recovered. Its writer, if it lives, writes no more.
pub struct Taken {
    servers: Servers,
    rebuilt: Rebuilt,
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken").field("layout", &self.rebuilt.layout()).finish_non_exhaustive()
    }
}

impl Taken {
    /// Takes it over, and reads it.
    ///
    /// # Errors
    /// A sentence: too few of the servers are there, or they have something else.
    pub fn take(copies: &Copies) -> Result<Self, String> {
        Self::take_with(copies, &mut ignore)
    }

    /// The same; `visit` is called with each record as well.
    ///
    /// # Errors
    /// A sentence: too few of the servers are there, they have something else, or `visit` returned an error.
    pub fn take_with(copies: &Copies, visit: &mut RecordVisitor<'_>) -> Result<Self, String> {
        let mut any = false;
        let mut count = |number: u64, record: &[u8]| {
            any = true;
            visit(number, record)
        };
        let (servers, rebuilt) = Servers::open(copies, &mut count)?;
        // Also of one that was closed files may be made again: nobody goes on with it meanwhile.
        if let Some(layout) = rebuilt.layout().filter(|_| !rebuilt.is_closed() || copies.images && any) {
            servers.send(vec![Copier::taken(layout, rebuilt.tail())]).map_err(|why| why.to_string())?;
        }
        Ok(Self { servers, rebuilt })
    }

    /// What is there.
    #[must_use]
    pub const fn rebuilt(&self) -> &Rebuilt {
        &self.rebuilt
    }

    /// Says that all of it is in its files, durably. `keeps_images`: what the servers have of files stays there.
    ///
    /// # Errors
    /// A sentence: it can be recovered once more.
    pub fn close(self, keeps_images: bool) -> Result<(), String> {
        let Some(layout) = self.rebuilt.layout() else { return Ok(()) };
        // No entry is as high as the head that the recovery has left.
        let tail = self.rebuilt.end();
        let below = keeps_images.then_some(0);
        self.servers.close(Copier::closed(layout, tail), below).map_err(|why| why.to_string())
    }
}

/// Reads what the servers have, and takes nothing from anybody: of the one that has most.
///
/// # Errors
/// A sentence: none of them is there, or they have something else.
pub fn look(copies: &Copies) -> Result<Rebuilt, String> {
    look_with(copies, &mut ignore)
}

/// The same; `visit` is called with each record as well.
///
/// # Errors
/// A sentence: none of them is there, they have something else, or `visit` returned an error.
pub fn look_with(copies: &Copies, visit: &mut RecordVisitor<'_>) -> Result<Rebuilt, String> {
    let (mut best, mut why) = (None, "no server was named".to_owned());
    for server in &copies.servers {
        match LogReader::connect_to(*server, &copies.connect) {
            Ok(reader) => {
                let status = reader.status();
                let has = (status.tail.epoch, status.tail.sequence);
                if best.as_ref().is_none_or(|(most, _)| has > *most) {
                    best = Some((has, reader));
                }
            }
            Err(error) => why = format!("{server}: {error}"),
        }
    }
    let (_, reader) = best.ok_or(why)?;
    Ok(read(reader, visit)?)
}
