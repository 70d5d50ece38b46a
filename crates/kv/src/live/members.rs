//! A client's side of a store on several members: who is the primary, and whether what it says may be believed.
//!
//! `replica/guard.rs` has the argument. What a client reads from a primary, and every reply, counts only if the promises of
//! `acks` members let that primary be believed that were read after the operation began; each is one READ of 24 bytes at the
//! member's door. They are posted before the first work request of the operation ([`Members::look_ahead`]) and taken when its
//! last one has come ([`Members::vouched`]), so that nobody waits for them in addition.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use remanence_remote::Reading;
use remanence_remotelog::Epoch;
use remanence_verbs::Context;

use super::member::wire::{EXPORTED, exported};
use super::member::{MemberStats, Role, Said, describe, plain};
use super::wire::What;
use super::{ConnectOptions, Error, Session};
use crate::replica::{Promise, is_current};
use crate::view::View;

/// How long a member may be silent before a client goes on without it.
const SILENT: Duration = Duration::from_secs(3);
/// Between two attempts to reach a member.
const RETRY: Duration = Duration::from_millis(500);

/// The members of a store, as a client reaches them.
#[derive(Debug)]
pub(super) struct Members {
    context: Context,
    options: ConnectOptions,
    doors: Vec<Door>,
    /// Of the primary that it is connected to.
    epoch: Epoch,
    acks: usize,
    /// What the primary said when it was connected to, or asked again.
    said: MemberStats,
    asked: Asked,
}

/// How often members were asked whether the primary may be believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// READs that were under way together with those of an operation: nobody waited for them in addition.
    pub along: u64,
    /// READs after an operation had all that it wanted: each is a round trip more. A member is gone or has come back, or
    /// there is another primary.
    pub after: u64,
}

#[derive(Debug)]
struct Door {
    name: String,
    to: SocketAddr,
    session: Option<remanence_remote::Session>,
    /// A promise that is being read.
    reading: Option<Reading>,
    tried: Option<Instant>,
    why: String,
}

impl Door {
    const fn new(name: String, to: SocketAddr) -> Self {
        Self { name, to, session: None, reading: None, tried: None, why: String::new() }
    }

    /// Reaches the member, unless that was tried just now.
    fn open(&mut self, context: &Context, options: &ConnectOptions) {
        if self.session.is_some() || self.tried.is_some_and(|tried| tried.elapsed() < RETRY) {
            return;
        }
        let quick = options.door(plain(SILENT.min(options.waits())));
        match remanence_remote::Session::connect(context, self.to, quick) {
            Ok(session) => (self.session, self.why) = (Some(session), String::new()),
            Err(error) => self.why = error.to_string(),
        }
        self.tried = Some(Instant::now());
    }

    fn describe(&mut self) -> Result<Option<MemberStats>, Error> {
        self.drop_reading();
        let Some(session) = &mut self.session else { return Ok(None) };
        match describe(session, self.to) {
            Ok(said) => Ok(Some(said)),
            Err(Error::Remote(error)) => {
                self.lose(&error);
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }

    /// Begins to read its promise. Returns whether that is under way.
    fn post(&mut self) -> bool {
        debug_assert!(self.reading.is_none(), "{} is being read already", self.name);
        let Some(session) = &mut self.session else { return false };
        match session.post_read(0, EXPORTED as u32) {
            Ok(reading) => self.reading = Some(reading),
            Err(error) => self.lose(&error),
        }
        self.reading.is_some()
    }

    /// The promise that was begun to be read; `None` if it was being changed, or the member is gone.
    fn take(&mut self) -> Option<Promise> {
        let reading = self.reading.take()?;
        let mut bytes = [0; EXPORTED];
        if let Err(error) = self.session.as_mut()?.finish_read(reading, &mut bytes) {
            self.lose(&error);
            return None;
        }
        exported(&bytes)
    }

    /// Whatever an operation that broke off has begun to read says nothing of what comes after it.
    fn drop_reading(&mut self) {
        let _ = self.take();
    }

    fn promise(&mut self, asked: &mut Asked) -> Option<Promise> {
        // Twice: it may be changing just now.
        for _ in 0..2 {
            if !self.post() {
                return None;
            }
            asked.after += 1;
            if let Some(promise) = self.take() {
                return Some(promise);
            }
        }
        None
    }

    fn lose(&mut self, error: &remanence_remote::Error) {
        (self.session, self.reading) = (None, None);
        self.why = error.to_string();
    }
}

impl Members {
    /// Some members of a store, or all of them: any one that is there knows the others.
    ///
    /// # Errors
    /// None of them is there, they belong to different stores, or they ask for another token.
    pub(super) fn find(
        context: &Context,
        some: &[SocketAddr],
        options: &ConnectOptions,
    ) -> Result<Self, Error> {
        let doors = some.iter().map(|to| Door::new(to.to_string(), *to)).collect();
        let mut this = Self {
            context: context.clone(),
            options: options.clone(),
            doors,
            epoch: Epoch::NONE,
            acks: 0,
            said: MemberStats::default(),
            asked: Asked::default(),
        };
        let described = this.describe_all()?;
        let mut known: Option<(SocketAddr, MemberStats)> = None;
        for (door, said) in this.doors.iter().zip(described) {
            let Some(said) = said else { continue };
            match &known {
                Some((first, other)) if other.members != said.members || !same(other, &said) => {
                    return Err(Error::Argument(format!(
                        "{first} and {} are members of different stores ({} and {}); name members of one",
                        door.to,
                        other.members.join(","),
                        said.members.join(",")
                    )));
                }
                Some(_) => {}
                None => known = Some((door.to, said)),
            }
        }
        let Some((_, said)) = known else { return Err(this.nobody()) };
        let mut all = Vec::new();
        for name in &said.members {
            let to = name.to_socket_addrs().ok().and_then(|mut found| found.next()).ok_or_else(|| {
                Error::Argument(format!(
                    "the member {name} cannot be resolved here; start the members with names or \
                     addresses that their clients know"
                ))
            })?;
            all.push((name.clone(), to));
        }
        if let Some(unknown) = some.iter().find(|to| all.iter().all(|(_, member)| member != *to)) {
            return Err(Error::Argument(format!(
                "{unknown} is no member of the store, which lies on {}; name only those",
                said.members.join(",")
            )));
        }
        let mut old = std::mem::take(&mut this.doors);
        this.doors = all
            .into_iter()
            .map(|(name, to)| match old.iter().position(|door| door.to == to) {
                Some(at) => Door { name, ..old.swap_remove(at) },
                None => Door::new(name, to),
            })
            .collect();
        Ok(this)
    }

    fn describe_all(&mut self) -> Result<Vec<Option<MemberStats>>, Error> {
        let (context, options) = (&self.context, &self.options);
        std::thread::scope(|scope| {
            for door in &mut self.doors {
                scope.spawn(|| door.open(context, options));
            }
        });
        self.doors.iter_mut().map(Door::describe).collect()
    }

    fn nobody(&self) -> Error {
        let why: Vec<String> = self
            .doors
            .iter()
            .filter(|door| door.session.is_none())
            .map(|door| format!("{}: {}", door.name, door.why))
            .collect();
        Error::NoPrimary(why.join("; "))
    }

    /// Connects to the primary, if there is one at the moment.
    ///
    /// # Errors
    /// There is none, or not enough members vouch for it.
    pub(super) fn connect(&mut self) -> Result<(Session, View), Error> {
        let described = self.describe_all()?;
        let primary = (self.doors.iter().zip(&described))
            .filter_map(|(door, said)| Some((door.to, said.as_ref()?)))
            .filter(|(_, said)| said.role == Role::Primary && said.store_port != 0)
            .max_by_key(|(_, said)| said.epoch);
        let Some((to, said)) = primary else {
            let why = |(door, said): (&Door, &Option<MemberStats>)| match said {
                None => format!("{}: {}", door.name, door.why),
                Some(said) if said.why.is_empty() => format!("{} is {}", door.name, said.role.name()),
                Some(said) => format!("{} is {}: {}", door.name, said.role.name(), said.why),
            };
            let why: Vec<String> = self.doors.iter().zip(&described).map(why).collect();
            return Err(Error::NoPrimary(why.join("; ")));
        };
        let to = SocketAddr::new(to.ip(), said.store_port);
        let (mut session, view) = Session::connect(&self.context, to, &self.options)?;
        self.ask(&mut session)?;
        if !self.vouched(&mut session)? {
            return Err(Error::NoPrimary(format!(
                "{} serves, and too few of the other members say that it may",
                self.said.members.get(usize::from(self.said.who)).map_or("a member", String::as_str)
            )));
        }
        Ok((session, view))
    }

    fn ask(&mut self, session: &mut Session) -> Result<(), Error> {
        let said = session.ask(What::Lead, &[])?;
        let Some(Ok(said)) = MemberStats::parse(&said) else {
            return Err(Error::Protocol("what the primary says of itself is nothing"));
        };
        self.epoch = said.epoch;
        self.acks = usize::from(said.acks).max(1);
        self.said = said;
        Ok(())
    }

    /// An operation begins: begins to read the promises of as many members as have to vouch for what it will bring.
    pub(super) fn look_ahead(&mut self) {
        self.doors.iter_mut().for_each(Door::drop_reading);
        let mut wanted = self.acks;
        for door in &mut self.doors {
            let posted = wanted > 0 && door.post();
            wanted -= usize::from(posted);
            self.asked.along += u64::from(posted);
        }
    }

    /// Whether what was read from this primary since [`look_ahead`](Self::look_ahead), and what it has said since, may be
    /// believed.
    ///
    /// # Errors
    /// It does not answer any more.
    pub(super) fn vouched(&mut self, session: &mut Session) -> Result<bool, Error> {
        if self.along() || self.enough() {
            return Ok(true);
        }
        // It has taken a member in that came back, by which its epoch is a new one; perhaps more than one meanwhile.
        loop {
            let before = self.epoch;
            self.ask(session)?;
            if self.epoch == before {
                break;
            }
            if self.enough() {
                return Ok(true);
            }
        }
        // A member is there again that was not.
        let (context, options) = (&self.context, &self.options);
        self.doors.iter_mut().for_each(|door| door.open(context, options));
        Ok(self.enough())
    }

    /// Whether the promises that were read along with the operation are enough.
    fn along(&mut self) -> bool {
        let epoch = self.epoch;
        let reading = |door: &&mut Door| door.reading.is_some();
        let promises: Vec<Promise> = self.doors.iter_mut().filter(reading).filter_map(Door::take).collect();
        is_current(epoch, &promises, self.acks)
    }

    fn enough(&mut self) -> bool {
        let mut promises = Vec::with_capacity(self.acks);
        for at in 0..self.doors.len() {
            let promise = self.doors[at].promise(&mut self.asked);
            if let Some(promise) = promise.filter(|promise| promise.lets(self.epoch)) {
                promises.push(promise);
            } else {
                // Others are asked first from now on.
                let door = self.doors.remove(at);
                self.doors.push(door);
                return self.enough_of_all();
            }
            if is_current(self.epoch, &promises, self.acks) {
                return true;
            }
        }
        false
    }

    fn enough_of_all(&mut self) -> bool {
        let epoch = self.epoch;
        let asked = &mut self.asked;
        let promises: Vec<Promise> = self.doors.iter_mut().filter_map(|door| door.promise(asked)).collect();
        is_current(epoch, &promises, self.acks)
    }

    /// What each member says of itself, and why the others do not.
    ///
    /// # Errors
    /// One is none of the protocol.
    pub(super) fn stats(&mut self) -> Result<Vec<(String, Said)>, Error> {
        let described = self.describe_all()?;
        let mut all: Vec<(String, Said)> = (self.doors.iter().zip(described))
            .map(|(door, said)| (door.name.clone(), said.ok_or_else(|| door.why.clone())))
            .collect();
        let place = |name: &String| self.said.members.iter().position(|member| member == name);
        all.sort_by_key(|(name, _)| place(name));
        Ok(all)
    }

    /// How often members were asked so far.
    pub(super) const fn asked(&self) -> Asked {
        self.asked
    }

    /// What the primary said last.
    pub(super) const fn primary(&self) -> &MemberStats {
        &self.said
    }
}

/// Whether two members can be of one store: one that is new can be of any.
fn same(one: &MemberStats, other: &MemberStats) -> bool {
    let new = remanence_remotelog::format::superblock::Uuid::default();
    one.group == new || other.group == new || one.group == other.group
}
