//! Plain GETs of a pipeline, several at once: the store is asked for all of them together, and each has the reply, the error and
//! the counts that it would have had alone.

use super::{Call, Command, Done, answer_failure, count};
use crate::engine::{Moment, Session, Shared};
use crate::protocol::{Run, Writer};
use crate::store::{Fetched, Key, OPERATION, Store, StoreError};
use crate::value::{Head, Kind, UnixMs};

/// Carries out a run of requests that are [`alike`](crate::engine::alike).
pub(crate) fn dispatch_run<S: Store>(
    session: &mut Session,
    run: &Run<'_>,
    store: &mut S,
    shared: &Shared,
    moment: Moment,
    out: &mut Vec<u8>,
) -> &'static Command {
    let command = Command::find(run.request(0).word(0)).expect("a run is of GET");
    gets(session, run, command, store, shared, moment, out);
    command
}

fn gets<S: Store>(
    session: &mut Session,
    run: &Run<'_>,
    command: &'static Command,
    store: &mut S,
    shared: &Shared,
    moment: Moment,
    out: &mut Vec<u8>,
) {
    let mut values = session.spare.pop().unwrap_or_default();
    values.clear();
    let mut fetched = std::mem::take(&mut session.fetched);
    let space = session.space;
    let keys: Vec<Key<'_>> = run.requests().map(|request| Key { space, name: request.word(1) }).collect();
    store.get_many(&keys, &mut values, &mut fetched);
    assert_eq!(fetched.len(), keys.len(), "a store answers for each key");
    // Where it could not be asked for one of them, all of them come again.
    let stops = fetched.contains(&Err(StoreError::InTheWay));
    let asked: Done = if stops { Err(StoreError::InTheWay.into()) } else { Ok(()) };
    if session.waits(&asked, moment) {
        fetched.clear();
        session.fetched = fetched;
        return recycle(session, values);
    }
    session.worked(keys.len() * OPERATION + values.len());
    let now = moment.now();
    // Counters are shared by all threads: a run adds to each of them once.
    let (mut hits, mut misses) = (0, 0);
    for (request, fetched) in run.requests().zip(fetched.drain(..)) {
        match plain(&fetched, &values, now) {
            Some(Some(payload)) => {
                hits += 1;
                Writer::new(out, session.version).bulk(payload);
                continue;
            }
            Some(None) => {
                misses += 1;
                Writer::new(out, session.version).null();
                continue;
            }
            None => {}
        }
        let start = out.len();
        let reply = Writer::new(out, session.version);
        let mut call = Call { command, request: &request, store, session, shared, moment, reply };
        let done = call.get_of(fetched, &values);
        count(shared, command, &done);
        if let Err(failure) = done {
            answer_failure(session, shared, &failure, start, out);
        }
    }
    shared.stats.hits.add(hits);
    shared.stats.misses.add(misses);
    count_many(shared, command, hits + misses);
    session.fetched = fetched;
    recycle(session, values);
}

/// What most GETs find: a string that stays or has not expired, or nothing. `None`: something else.
fn plain<'v>(fetched: &Fetched, values: &'v [u8], now: UnixMs) -> Option<Option<&'v [u8]>> {
    let Some((_, range)) = fetched.as_ref().ok()? else { return Some(None) };
    let (head, start) = Head::parse(&values[range.clone()]).ok()?;
    let fair = head.kind == Kind::String && !head.expired(now);
    fair.then(|| Some(&values[range.start + start..range.end]))
}

/// Counts so many commands that did not fail.
fn count_many(shared: &Shared, command: &Command, calls: u64) {
    shared.stats.commands.add(calls);
    shared.stats.of(command.id).calls.add(calls);
}

/// As [`Call::recycle`].
fn recycle(session: &mut Session, buffer: Vec<u8>) {
    if buffer.capacity() <= 64 * 1024 && session.spare.len() < 3 {
        session.spare.push(buffer);
    }
}

impl<S: Store> Call<'_, S> {
    /// GET, of a value that the store has been asked for.
    fn get_of(&mut self, fetched: Fetched, values: &[u8]) -> Done {
        let item = match fetched? {
            None => None,
            Some((version, range)) => {
                let (head, start) = Head::parse(&values[range.clone()])?;
                if head.expired(self.now()) {
                    let key = self.key_of(self.word(1));
                    self.expire_now(key, version)?;
                    None
                } else {
                    Some((head, &values[range.start + start..range.end]))
                }
            }
        };
        self.count_hit(item.is_some());
        match item {
            None => self.reply.null(),
            Some((Head { kind: Kind::String, .. }, payload)) => self.reply.bulk(payload),
            Some(_) => return Err(super::WRONG_TYPE.into()),
        }
        Ok(())
    }
}
