//! A server: it recovers its memory, and does what the recipe has for a responder's processor about each message.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use remanence_persist::recipe::{Rq, Rsp, Target};
use remanence_persist::taxonomy::Buffers;
use remanence_pmem::Medium as _;

use super::oracle::Oracle;
use crate::cluster::core::{ConnectionId, Host};
use crate::cluster::disk::Disk;
use crate::cluster::stages::{Receives, copy};
use crate::cluster::{Input, Moment};

/// A client wants to post in this lane.
pub(super) const HELLO: u8 = b'H';
/// A client may begin.
pub(super) const READY: u8 = b'R';
/// The acknowledgement of a recipe.
pub(super) const ACK: u8 = b'A';

/// What goes on in a lane.
struct Session {
    connection: ConnectionId,
    /// The next of the processor's steps.
    next: usize,
    /// Messages that it has received.
    received: u64,
}

pub(super) struct Server {
    disk: Disk,
    /// What the processor does about one carrying out of the recipe.
    steps: Vec<Rsp>,
    sessions: BTreeMap<usize, Session>,
    /// Its medium has failed, and it has ended.
    has_ended: bool,
}

impl Server {
    pub(super) fn boot(host: &mut Host<'_, Oracle>) -> Result<Self, String> {
        let (node, life, disk) = (host.node(), host.life(), host.disk(0));
        let oracle = host.oracle();
        oracle.opens(&disk, node)?;
        oracle.work.found_again += u64::from(life > 0);
        let recipe = &oracle.plan.recipe;
        let steps = recipe.responder().chain(recipe.deferred.iter().copied()).collect();
        Ok(Self { disk, steps, sessions: BTreeMap::new(), has_ended: false })
    }

    /// It waits for nothing but messages.
    pub(super) const fn deadline(&self) -> Option<Duration> {
        None
    }

    pub(super) fn on(&mut self, input: Input, host: &mut Host<'_, Oracle>) {
        let Input::Message { connection, bytes } = input else { return };
        if self.has_ended {
            return;
        }
        let done = match bytes[..] {
            [HELLO, a, b] => self.begin(u16::from_le_bytes([a, b]).into(), connection, host),
            _ => self.receive(connection, &bytes, host),
        };
        if done.is_err() && !host.has_no_power() {
            host.tell(format_args!("ends, as its medium has failed"));
            self.has_ended = true;
            host.oracle().work.media_ended += 1;
        }
    }

    /// A session begins in a lane: whoever had it before is cut off, and its messages are applied.
    fn begin(
        &mut self,
        lane: usize,
        connection: ConnectionId,
        host: &mut Host<'_, Oracle>,
    ) -> io::Result<()> {
        if let Some(old) = self.sessions.remove(&lane) {
            host.cut(old.connection);
        }
        let oracle = host.oracle();
        oracle.work.sessions += 1;
        let applied = oracle.recover(&self.disk, &[lane])?;
        oracle.work.replayed += applied;
        let (plan, salt) = (&oracle.plan, oracle.seed ^ oracle.work.sessions << 32);
        let receives = Receives {
            ddio: plan.config.ddio,
            domain: plan.domain,
            count: plan.buffers,
            on_disk: (plan.config.buffers == Buffers::Pm).then(|| oracle.layout.buffers(lane)),
            salt,
        };
        host.let_in(connection, receives);
        self.sessions.insert(lane, Session { connection, next: 0, received: 0 });
        host.send(connection, vec![READY]);
        Ok(())
    }

    /// A message was received, and the processor goes on until it needs the next one.
    fn receive(
        &mut self,
        connection: ConnectionId,
        bytes: &[u8],
        host: &mut Host<'_, Oracle>,
    ) -> io::Result<()> {
        let Some((lane, number, n)) = Oracle::parse(bytes) else {
            host.core().wrong(format!("a message means nothing: {bytes:?}"));
            return Ok(());
        };
        // What an earlier session has received is that one's, which is over.
        let Some(session) = self.sessions.get_mut(&lane).filter(|session| session.connection == connection)
        else {
            return Ok(());
        };
        host.moment(Moment::Request, Some(connection));
        let (oracle, disk) = (host.known(), &self.disk);
        let (layout, buffers) = (oracle.layout, oracle.plan.buffers);
        let Some(Rsp::Receive(message)) = self.steps.get(session.next).copied() else {
            host.core().wrong("a message has come for which the processor does not wait".into());
            return Ok(());
        };
        let whole = oracle.message(lane, number, n);
        let is_its = match oracle.messages[n] {
            Rq::Send(sent) => sent == message,
            _ => true,
        };
        if bytes != whole || !is_its {
            host.core().wrong(format!("message {n} of {number} is received as another one, or damaged"));
            return Ok(());
        }
        let (base, len) = layout.buffers(lane);
        let buffer = base + session.received % buffers * len;
        session.received += 1;
        session.next += 1;
        while let Some(step) = self.steps.get(session.next).copied() {
            let done = match step {
                Rsp::Receive(_) => return Ok(()),
                Rsp::Copy(update) => {
                    let bytes = host.known().content(lane, number, update);
                    copy(disk, layout.place(lane, number, update), &bytes);
                    Ok(())
                }
                Rsp::Flush(Target::Update(update)) => {
                    let at = layout.place(lane, number, update);
                    disk.persist(at..at + layout.update(update) as u64)
                }
                Rsp::Flush(Target::Buffer) => disk.persist(buffer..buffer + whole.len() as u64),
                Rsp::Ack => {
                    host.send(connection, vec![ACK]);
                    Ok(())
                }
                Rsp::Repost => {
                    host.repost(connection);
                    Ok(())
                }
            };
            done?;
            session.next += 1;
        }
        session.next = 0;
        Ok(())
    }
}
