//! One Redis client: its socket, its requests, its replies.
//!
//! A turn carries out what has been received, sends what that gave, and receives more, until nothing is left to do or the
//! turn has done its [share](Turn::share) of work, so that one busy client does not keep the others waiting. Replies of a pipeline are sent
//! together, and plain GETs that follow each other go to the store together. Commands that change a key are put off: a worker gives
//! the store what all its connections have changed at once, and only then sends them their replies. A command that others are in the way of
//! waits with its connection, and so does one whose key another command holds, until that one lets go of it. A client that does not read its replies is not read from: what it has sent stays where it is, in the end in
//! the client's own socket.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use remanence_resp::engine::{
    Isolation, Joins, Long, Moment, Part, Session, Shared, alike, isolation, joins,
};
use remanence_resp::joint::{Joint, Mended, Piece, Verdict};
use remanence_resp::protocol::{Decoder, Limits};
use remanence_resp::store::Store;

use crate::process;
use crate::stream::Stream;

/// What a command takes of a turn's share beside the bytes of its request and its reply: it takes some such time.
pub(crate) const COMMAND: usize = 1024;
/// What a received byte takes of a turn's share.
const RECEIVED: usize = 4;
/// Plain GETs of a pipeline that are carried out together at most.
const RUN: usize = 64;
/// Bytes that one turn sends: a reader that is as fast as we are never makes the socket say that it is full.
const SENDS: usize = 512 * 1024;
/// Bytes that are taken of what a peer has sent and will not be answered.
const DRAIN: usize = 4 << 20;
/// An output buffer that grew beyond this for large replies is given back once it is empty; all of it is, once the
/// connection has been idle for a while.
const KEEP: usize = 64 * 1024;
/// A connection is new until it has had so many turns: one that asks for much and comes anew for each command has as little of a round as one
/// that stays and is behind.
pub(crate) const NEW: u8 = 16;
/// Bytes that a connection may hold whatever the others do: who fills the memory keeps nobody from small requests.
const SMALL: usize = 128 * 1024;

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    session: Session,
    decoder: Decoder,
    output: Vec<u8>,
    /// How much of `output` has been sent.
    sent: usize,
    /// Edge-triggered: true until the socket said that it would block.
    readable: bool,
    writable: bool,
    /// The peer has closed its half.
    ended: bool,
    /// The gateway stops: what has been received is answered, and nothing more is received.
    leaving: bool,
    /// Microseconds of Unix time since when output has been waiting, without any of it being taken.
    stalled_us: Option<i64>,
    throttled: bool,
    /// The peer has closed its half, or the socket failed, and that has not been read yet.
    hung_up: bool,
    /// How many requests may be carried out together, by how large replies have been.
    run_max: usize,
    /// Commands of its were put off: nothing is sent until the store has taken what they changed.
    held_back: bool,
    /// A command that is carried out a part each turn.
    long: Option<Long>,
    /// The keys of a command on several that waits for others, and is carried out again as a whole.
    hold: Option<u64>,
    /// Its next command waits for one that holds keys of its.
    barred: bool,
    /// How long it waits between two attempts.
    pub(crate) pause: Duration,
    /// Replies to those that came out otherwise.
    mended: Mended,
    /// Bytes that are counted as its share of what all connections hold.
    held: usize,
    /// It is over, but for what is [drained](Self::drain).
    over: bool,
    /// Bytes that may still be drained.
    undrained: usize,
    /// It has given back its buffers since its last turn.
    pub(crate) is_relaxed: bool,
    /// It is among those of its worker that have a turn to come.
    pub(crate) queued: bool,
    /// Its last turn did all that a turn does, or has not made up for what one before did beyond that, which is the debt.
    behind: bool,
    debt: usize,
    /// Turns in which it had something carried out, as long as they are few.
    turns: u8,
}

/// What a turn has done so far.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Progress {
    /// Bytes of requests that were carried out and of their replies, where each command counts [so many](COMMAND) more, or those of the
    /// [values](Session::take_work) that they read and wrote, whichever are more.
    carried_out: usize,
    received: usize,
    sent: usize,
}

impl Progress {
    /// The work of it, by what most was done of. What is received may be the first that touches its memory.
    pub(crate) fn work(&self) -> usize {
        self.carried_out.max(self.received.saturating_mul(RECEIVED)).max(self.sent)
    }
}

/// What a worker lends to a turn.
pub(crate) struct Turn<'a, S> {
    pub(crate) store: &'a mut S,
    pub(crate) shared: &'a Shared,
    pub(crate) alone: &'a RwLock<()>,
    pub(crate) buffer: &'a mut [u8],
    pub(crate) random: &'a mut u64,
    pub(crate) output_high: usize,
    /// Bytes that all connections may hold together.
    pub(crate) memory: usize,
    /// Where changes go, to be written together with those of other connections.
    pub(crate) joint: &'a mut Joint,
    /// There is no room for more that waits: nothing is put off.
    pub(crate) is_crowded: bool,
    /// The connection's number there.
    pub(crate) place: usize,
    /// How much is carried out, and [received](RECEIVED). What begins within it is carried out whole.
    pub(crate) share: usize,
    pub(crate) progress: Progress,
}

/// How a turn ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum After {
    /// Nothing to do until the socket says so.
    Wait,
    /// There is more to do at once.
    Again,
    /// Commands were put off: when they are written, an [end](Connection::release) of that is due.
    Joint,
    /// A command cannot be put off for lack of room: when those that were are written, the turn goes on. Where others are in the way of
    /// these, it is another turn.
    Full,
    /// Others are in the way of a command, which is to be tried again a little later.
    InTheWay,
    /// The connection is over.
    Close,
}

impl Connection {
    pub(crate) fn new(stream: Stream, session: Session, limits: Limits) -> Self {
        Self {
            stream,
            session,
            decoder: Decoder::new(limits),
            output: Vec::new(),
            sent: 0,
            readable: true,
            writable: true,
            ended: false,
            leaving: false,
            stalled_us: None,
            throttled: false,
            hung_up: false,
            run_max: RUN / 4,
            held_back: false,
            long: None,
            hold: None,
            barred: false,
            pause: Duration::ZERO,
            mended: Mended::default(),
            held: 0,
            over: false,
            undrained: DRAIN,
            is_relaxed: false,
            queued: false,
            behind: false,
            debt: 0,
            turns: 0,
        }
    }

    pub(crate) const fn session(&self) -> &Session {
        &self.session
    }

    /// It is gone.
    pub(crate) fn close(mut self, shared: &Shared) {
        if let Some(long) = &mut self.long {
            long.give_back(shared);
        }
        if let Some(hold) = self.hold {
            shared.give_back(hold);
        }
        shared.holds(self.held, 0);
        self.session.close(shared);
    }

    /// The socket is ready for something.
    pub(crate) const fn wake(&mut self, readable: bool, writable: bool, hung_up: bool) {
        self.readable |= readable;
        self.writable |= writable;
        self.hung_up |= hung_up;
    }

    /// Since when the peer has taken nothing of what waits for it.
    pub(crate) const fn stalled_us(&self) -> Option<i64> {
        self.stalled_us
    }

    /// Whether anything is left to send.
    pub(crate) const fn owes(&self) -> bool {
        self.sent < self.output.len()
    }

    /// Nothing more is received from here on.
    pub(crate) const fn leave(&mut self) {
        self.leaving = true;
    }

    /// Gives back the memory that an idle connection keeps for its next turn: thousands of them are mostly idle.
    pub(crate) fn relax(&mut self, shared: &Shared) {
        self.is_relaxed = true;
        if !self.owes() {
            self.output = Vec::new();
            self.sent = 0;
        }
        self.decoder.relax();
        self.session.relax();
        self.tell_held(shared);
    }

    /// Tells what it holds now.
    fn tell_held(&mut self, shared: &Shared) {
        let long = self.long.as_ref().map_or(0, Long::bytes);
        let now = self.decoder.capacity() + self.output.capacity() + self.session.queued_bytes() + long;
        shared.holds(self.held, now);
        self.held = now;
    }

    /// Whether there is no memory for so many bytes more of this connection.
    fn exceeds(&self, more: usize, shared: &Shared, memory: usize) -> bool {
        more > 0
            && self.held + more > SMALL
            && shared.client_memory().saturating_add(more as u64) > memory as u64
    }

    /// It is told that there is no memory for what it wants, and keeps nothing but that.
    fn turn_away(&mut self, shared: &Shared) {
        self.decoder = Decoder::new(Limits::default());
        self.output.shrink_to_fit();
        self.session.no_memory(shared, &mut self.output);
        self.tell_held(shared);
    }

    /// Takes up to so many bytes of what the peer has sent and will not be answered, so that closing the socket does not cost it the
    /// replies that are still under way: a socket closed over unread bytes resets the connection. Whether there may be more to take.
    pub(crate) fn drain(&mut self, buffer: &mut [u8], max: usize) -> bool {
        let mut left = max.min(self.undrained);
        self.undrained -= left;
        while left > 0 {
            let size = left.min(buffer.len());
            match self.stream.read(&mut buffer[..size]) {
                Ok(count) if count > 0 => left -= count,
                _ => self.undrained = 0,
            }
            if self.undrained == 0 {
                break;
            }
        }
        self.undrained > 0
    }

    /// One of its commands that were put off came out otherwise: what it is answered is found now. It may be put off again.
    pub(crate) fn mend<S: Store>(
        &mut self,
        (piece, verdict): (&Piece, Verdict),
        store: (&mut S, &mut Joint),
        shared: &Shared,
        moment: Moment,
    ) {
        let mut reply = Vec::new();
        self.session.mend((piece, verdict), store, shared, moment, &mut reply);
        self.mended.put(piece, reply);
    }

    /// What was put off has been written: its replies are sent, and its turn is over. How it ended.
    pub(crate) fn release(&mut self, shared: &Shared) -> After {
        self.held_back = false;
        self.mended.apply(&mut self.output);
        if self.flush(shared).is_err() {
            return After::Close;
        }
        let unanswered = self.decoder.pending() > 0 || self.readable && !self.leaving;
        let over = self.ended || self.session.closing() || self.session.peer().killed();
        let unsent = self.owes() && self.writable;
        if unanswered || over || unsent || self.session.has_mail() { After::Again } else { After::Wait }
    }

    /// Whether a command of its has begun, and is not over.
    pub(crate) const fn is_busy(&self) -> bool {
        self.held_back || self.long.is_some() || self.session.is_waiting()
    }

    /// Whether a command of its has begun and is not over, or waits for keys.
    pub(crate) const fn waits(&self) -> bool {
        self.is_busy() || self.barred
    }

    /// Whether it comes behind those that want little.
    pub(crate) const fn is_behind(&self) -> bool {
        self.behind
    }

    /// Whether it has come a short while ago, by its turns.
    pub(crate) const fn is_new(&self) -> bool {
        self.turns < NEW
    }

    /// Does what there is to do, within its share.
    pub(crate) fn turn<S: Store>(&mut self, with: &mut Turn<'_, S>) -> After {
        self.is_relaxed = false;
        let after = self.go_on(with);
        if after != After::Full {
            let work = with.progress.work();
            self.debt = work.saturating_sub(with.share).max(self.debt.saturating_sub(with.share));
            self.behind = work >= with.share || self.debt > 0;
            self.turns = self.turns.saturating_add(u8::from(with.progress.carried_out > 0));
        }
        after
    }

    fn go_on<S: Store>(&mut self, with: &mut Turn<'_, S>) -> After {
        if !self.over {
            let after = self.serve(with);
            if after != After::Close {
                return after;
            }
            self.over = true;
        }
        let rest = with.share / RECEIVED;
        with.progress.received += rest;
        if self.drain(with.buffer, rest) { After::Again } else { After::Close }
    }

    fn serve<S: Store>(&mut self, with: &mut Turn<'_, S>) -> After {
        if self.held_back {
            return After::Wait;
        }
        let receives = with.share / RECEIVED;
        loop {
            if self.session.peer().killed() && !self.is_busy() {
                return After::Close;
            }
            self.take_mail(with);
            match self.carry_out(with) {
                Ok(()) => {}
                Err(Pause::PutOff) => return After::Joint,
                Err(Pause::Full) => return After::Full,
                Err(Pause::InTheWay) => {
                    return if self.send(with) { After::InTheWay } else { After::Close };
                }
                // Whoever lets go of the keys has it looked at.
                Err(Pause::Barred) => return if self.send(with) { After::Wait } else { After::Close },
                Err(Pause::Throttled) => {
                    // Not before what waits has been sent: is there room now?
                    if !self.send(with) {
                        return After::Close;
                    }
                    if self.output.len() - self.sent > with.output_high {
                        if !self.throttled {
                            self.throttled = true;
                            with.shared.stats.throttled.add(1);
                        }
                        return if self.writable { After::Again } else { After::Wait };
                    }
                    continue;
                }
            }
            self.throttled = false;
            if !self.send(with) {
                return After::Close;
            }
            let unsent = self.owes() && self.writable;
            if unsent || self.long.is_some() || self.takes_mail(with.output_high) {
                return After::Again;
            }
            // The end is only read once everything before it has been carried out.
            if self.session.closing() || self.ended {
                return if self.owes() { After::Wait } else { After::Close };
            }
            if with.progress.carried_out >= with.share || with.progress.received >= receives {
                return After::Again;
            }
            if self.session.peer().killed() {
                continue;
            }
            if !self.readable || self.leaving {
                return After::Wait;
            }
            match self.receive(with, receives - with.progress.received) {
                Ok(count) => with.progress.received += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return After::Close,
            }
        }
    }

    /// Sends what there is to send; whether the connection goes on. One that takes nothing any more does until the command that has begun is over:
    /// that is not left in the middle.
    fn send<S>(&mut self, with: &mut Turn<'_, S>) -> bool {
        match self.flush(with.shared) {
            Ok(sent) => with.progress.sent += sent,
            Err(_) => {
                self.output.clear();
                (self.sent, self.ended) = (0, true);
                return self.is_busy();
            }
        }
        true
    }

    /// Whether there are messages of channels for it, and it is not behind with its replies: behind them they wait.
    fn takes_mail(&self, output_high: usize) -> bool {
        self.output.len() - self.sent <= output_high && self.session.has_mail()
    }

    fn take_mail<S>(&mut self, with: &Turn<'_, S>) {
        if self.takes_mail(with.output_high) {
            self.session.take_mail(with.shared, &mut self.output);
            self.tell_held(with.shared);
        }
    }

    /// Receives up to so many bytes; how many.
    fn receive<S>(&mut self, with: &mut Turn<'_, S>, max: usize) -> io::Result<usize> {
        let size = max.min(with.buffer.len());
        let count = self.stream.read(&mut with.buffer[..size])?;
        with.shared.stats.reads.add(1);
        with.shared.stats.input_bytes.add(count as u64);
        self.session.peer().touch(process::unix_us());
        if count == 0 {
            self.ended = true;
            self.readable = false;
        } else if count < size && self.stream.is_tcp() && !self.hung_up {
            // epoll(7): a short read has emptied the socket, and what comes from here on is told as an edge; but for an end
            // that has been told already.
            self.readable = false;
        }
        if self.exceeds(self.decoder.growth(count), with.shared, with.memory) {
            self.turn_away(with.shared);
            return Ok(count);
        }
        self.decoder.push(&with.buffer[..count]);
        self.tell_held(with.shared);
        Ok(count)
    }

    /// Carries out requests as long as some of the share is left.
    fn carry_out<S: Store>(&mut self, with: &mut Turn<'_, S>) -> Result<(), Pause> {
        let mut now = None;
        self.barred = false;
        if self.long.is_some() {
            if !self.part(with)? {
                return Ok(());
            }
            with.progress.carried_out += self.session.take_work();
        }
        while with.progress.carried_out < with.share && !self.session.closing() {
            if self.output.len() - self.sent > with.output_high {
                return Err(if self.held_back { Pause::PutOff } else { Pause::Throttled });
            }
            let stranger = self.session.stranger(with.shared);
            let left = (with.share - with.progress.carried_out).div_ceil(COMMAND);
            let may_join = self.session.may_join(with.shared);
            // What is carried out one by one may have to wait one by one; and who has waited for an answer is the one who asked.
            let one_by_one = self.held_back || !may_join || self.session.is_waiting();
            let together = if one_by_one { 1 } else { self.run_max.min(left) };
            let received = self.decoder.pending();
            match self.decoder.next_run(stranger, together, alike) {
                Ok(None) => break,
                Ok(Some(run)) => {
                    let joins = if may_join { joins(&run.request(0)) } else { Joins::Not };
                    let joined = joins == Joins::Writes || joins == Joins::Looks && self.held_back;
                    let has_room = with.joint.has_room() && !with.is_crowded;
                    if self.held_back && !joined || joined && !has_room {
                        self.decoder.unread();
                        return Err(if self.held_back { Pause::PutOff } else { Pause::Full });
                    }
                    let start = *now.get_or_insert_with(process::unix_us);
                    *with.random = next_random(*with.random);
                    let moment = Moment { unix_us: start, random: *with.random };
                    let (owed, held, runs) = (self.output.len(), self.held, run.len());
                    self.long = self.session.begin(&run.request(0), with.store, with.shared, moment);
                    if self.long.is_some() {
                        if !self.part(with)? {
                            return Ok(());
                        }
                        with.progress.carried_out += self.session.take_work().max(COMMAND);
                        now = None;
                        continue;
                    }
                    let is_alone = !joined && isolation(&run.request(0)) == Isolation::Alone;
                    let apart = apart(with.alone, is_alone);
                    if self.hold.is_none() && self.session.is_barred(&run, with.shared) {
                        self.decoder.unread();
                        self.barred = !self.held_back;
                        return Err(if self.held_back { Pause::PutOff } else { Pause::Barred });
                    }
                    let (shared, out) = (with.shared, &mut self.output);
                    let command = match joined {
                        true => {
                            let store = (&mut *with.store, &mut *with.joint);
                            let request = run.request(0);
                            self.session.execute_joined(with.place, &request, store, shared, moment, out)
                        }
                        false => self.session.execute_run(&run, with.store, shared, moment, out),
                    };
                    if self.session.is_waiting() {
                        if is_alone && self.hold.is_none() {
                            self.hold = Some(self.session.hold(&run.request(0), shared));
                        }
                        self.decoder.unread();
                        return Err(if self.held_back { Pause::PutOff } else { Pause::InTheWay });
                    }
                    self.held_back |= joined;
                    if let Some(hold) = self.hold.take() {
                        shared.give_back(hold);
                    }
                    drop(apart);
                    // Replies to requests that are carried out together are in memory together.
                    let each = (self.output.len() - owed) / runs;
                    self.run_max = (with.output_high / (each + 1)).clamp(1, RUN);
                    // The end of one command is the start of the next: one look at the clock for both.
                    let end = process::unix_us();
                    if let Some(command) = command {
                        with.shared
                            .stats
                            .of(command.id)
                            .microseconds
                            .add(end.saturating_sub(start).max(0) as u64);
                    }
                    now = Some(end);
                    let wire = received - self.decoder.pending() + self.output.len() - owed;
                    with.progress.carried_out += self.session.take_work().max(runs * COMMAND + wire);
                    self.tell_held(with.shared);
                    if self.held > held.max(SMALL) && with.shared.client_memory() > with.memory as u64 {
                        // What it has been told of is sent, and what this wanted to know is not kept.
                        self.output.truncate(owed);
                        self.turn_away(with.shared);
                    }
                }
                Err(error) => {
                    self.session.protocol_error(&error, with.shared, &mut self.output);
                    break;
                }
            }
        }
        if self.held_back { Err(Pause::PutOff) } else { Ok(()) }
    }

    /// Carries out a part of the command that is carried out in parts; whether it is over. If not, others are served before it goes on.
    fn part<S: Store>(&mut self, with: &mut Turn<'_, S>) -> Result<bool, Pause> {
        let Some(mut long) = self.long.take() else { return Ok(true) };
        let (owed, held, start) = (self.output.len(), self.held, process::unix_us());
        *with.random = next_random(*with.random);
        let moment = Moment { unix_us: start, random: *with.random };
        let apart = apart(with.alone, long.alone());
        if long.is_barred(&self.session, with.shared) {
            self.long = Some(long);
            self.barred = true;
            return Err(Pause::Barred);
        }
        let part = self.session.go_on(&mut long, with.store, with.shared, moment, &mut self.output);
        drop(apart);
        let took = process::unix_us().saturating_sub(start).max(0) as u64;
        with.shared.stats.of(long.id()).microseconds.add(took);
        if part != Part::Last {
            self.long = Some(long);
        }
        self.tell_held(with.shared);
        // What is one moment is not left in the middle.
        let may_end = self.long.as_ref().is_none_or(|long| !long.is_one_moment());
        if may_end && self.held > held.max(SMALL) && with.shared.client_memory() > with.memory as u64 {
            self.long = None;
            self.output.truncate(owed);
            self.turn_away(with.shared);
            return Ok(true);
        }
        match part {
            Part::Last => Ok(true),
            Part::Waits => Err(Pause::InTheWay),
            Part::More => {
                with.progress.carried_out += with.share;
                Ok(false)
            }
        }
    }

    /// Sends what waits, as far as the socket takes it, and no more than a turn sends; how much.
    fn flush(&mut self, shared: &Shared) -> io::Result<usize> {
        let mut left = SENDS;
        while self.owes() && self.writable && left > 0 {
            let end = self.output.len().min(self.sent + left);
            match self.stream.write(&self.output[self.sent..end]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    left -= count;
                    self.sent += count;
                    self.stalled_us = None;
                    shared.stats.writes.add(1);
                    shared.stats.output_bytes.add(count as u64);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.owes() {
            self.stalled_us.get_or_insert_with(process::unix_us);
            // What has been sent is not dragged along.
            if self.sent > KEEP {
                self.output.drain(..self.sent);
                self.sent = 0;
            }
        } else {
            self.output.clear();
            self.output.shrink_to(KEEP);
            self.sent = 0;
            self.stalled_us = None;
        }
        self.tell_held(shared);
        Ok(SENDS - left)
    }
}

type Apart<'l> = (Option<RwLockWriteGuard<'l, ()>>, Option<RwLockReadGuard<'l, ()>>);

/// Keeps commands apart, as long as this lasts: nothing runs beside one that is alone.
pub(crate) fn apart(lock: &RwLock<()>, is_alone: bool) -> Apart<'_> {
    // A poisoned lock protects nothing that could be torn.
    match is_alone {
        true => (Some(lock.write().unwrap_or_else(PoisonError::into_inner)), None),
        false => (None, Some(lock.read().unwrap_or_else(PoisonError::into_inner))),
    }
}

/// Why no more requests are carried out for now.
enum Pause {
    /// More output waits than may.
    Throttled,
    /// Some were put off, and are to be answered first.
    PutOff,
    /// There is no room for another one to be put off, and none of its own were.
    Full,
    /// Others are in the way.
    InTheWay,
    /// Another command holds keys of the next one, and tells when it is over.
    Barred,
}

/// A step of splitmix64's sequence.
pub(crate) const fn next_random(state: u64) -> u64 {
    let z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB) ^ z
}
