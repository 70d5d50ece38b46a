//! A primary for the thread that serves: the machine, a connection to each member, and their clock. This is the one place where a primary
//! waits, and it decides nothing: what is waited for, and until when, [`Primary`] says. [`Member::wait`] does it, where a connection is real.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use remanence_coord::log::group::{Action as LogAction, ConnectionLost, Event as LogEvent};

use super::change::Changes;
use super::images::Copy;
use super::mirror::Ship;
use super::primary::{Action, Event, LeadError, Options, Primary, Sizes};

/// What is taken from one connection before the others are looked at: whoever copies a whole log holds up nobody.
const TAKEN: usize = 32;

/// The connection to a member: its log, and its image. Nothing here waits but [`wait`](Self::wait), which one connection does for all;
/// what was begun ends in the order in which it was begun, calls, READs, updates and orders each for themselves.
pub trait Member {
    /// The time since any beginning, by the clock that all connections of a primary have.
    fn now() -> Duration;

    /// Begins to carry out an action for this member; what comes of it comes out of [`poll`](Self::poll). Nobody asks for a
    /// disconnection here: the connection is dropped.
    ///
    /// # Errors
    /// The member is gone, or there is no way to do it.
    fn begin(&mut self, action: Action) -> Result<(), ConnectionLost>;

    /// What has come, if anything has.
    ///
    /// # Errors
    /// The member is gone: of what was under way nothing is known.
    fn poll(&mut self) -> Result<Option<Event>, ConnectionLost>;

    /// Whether [`poll`](Self::poll) has something for which no [`wait`](Self::wait) ends, as it came with what was begun: what a member does for
    /// itself.
    fn has_come(&self) -> bool {
        false
    }

    /// Waits until something may have come since it waited last, here or on any other connection of the same primary, for no longer than
    /// this; or not at all.
    fn wait(&mut self, limit: Duration) {
        let _ = limit;
    }
}

/// The connections to members, or why there are none.
pub type Connections<C> = Vec<(String, Result<C, ConnectionLost>)>;
/// What the images of members have in a place. Waits for them.
pub type Fetch<'a> = &'a mut dyn FnMut(u64, u32) -> Vec<Vec<u8>>;
/// Puts right what is damaged in this member's own image.
pub type PutRight = Box<dyn FnMut(Fetch<'_>) + Send>;

/// A primary and its connections. What it knows is read from the [`Primary`]; whatever sets something in motion is here.
pub struct Driver<C> {
    primary: Primary,
    connections: Vec<Option<C>>,
    put_right: Option<PutRight>,
}

impl<C> fmt::Debug for Driver<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("primary", &self.primary).finish_non_exhaustive()
    }
}

impl<C> Deref for Driver<C> {
    type Target = Primary;

    fn deref(&self) -> &Primary {
        &self.primary
    }
}

impl<C: Member> Driver<C> {
    /// Takes the log over. Returns when this member [leads](Primary::is_leading); the other images are asked how far they are when this is
    /// [polled](Self::poll).
    ///
    /// # Errors
    /// Too few members, a faster one, or no image here.
    pub fn lead(
        members: Connections<C>,
        own: &str,
        options: &Options,
        sizes: Sizes,
    ) -> Result<Self, LeadError> {
        let names: Vec<String> = members.iter().map(|(name, _)| name.clone()).collect();
        let primary = Primary::new(&names, own, options, sizes)?;
        let mut this = Self { primary, connections: names.iter().map(|_| None).collect(), put_right: None };
        this.take_all(members);
        this.wait_until(Primary::is_leading)?;
        Ok(this)
    }

    /// Takes members in that have promised the log to somebody else, by opening it again: these connections in place of the old ones, all
    /// of them, in the order of the first ones.
    ///
    /// # Errors
    /// It is the primary no more.
    pub fn reopen(&mut self, members: Connections<C>) -> Result<(), LeadError> {
        self.primary.reopen()?;
        self.connections.iter_mut().for_each(|connection| *connection = None);
        self.take_all(members);
        let opened = self.wait_until(Primary::is_leading);
        opened.inspect_err(|error| self.end(error))
    }

    /// There is a connection again to a member that was lost, or none still: it is taken in, in the same epoch, while others are served.
    ///
    /// # Errors
    /// It is the primary no more.
    pub fn reconnect(&mut self, name: &str, connection: Result<C, ConnectionLost>) -> Result<(), LeadError> {
        self.primary.check()?;
        let found = (0..self.connections.len()).find(|n| self.primary.name(*n) == name);
        if let Some(member) = found {
            self.take(member, connection);
        }
        Ok(())
    }

    fn take_all(&mut self, members: Connections<C>) {
        for (member, (_, connection)) in members.into_iter().enumerate() {
            self.take(member, connection);
        }
    }

    fn take(&mut self, member: usize, connection: Result<C, ConnectionLost>) {
        match connection {
            Ok(connection) => {
                self.connections[member] = Some(connection);
                self.primary.connected(C::now(), member);
            }
            Err(why) => {
                self.connections[member] = None;
                self.primary.unreachable(C::now(), member, &why.0);
            }
        }
    }

    /// It is the primary no more.
    fn end(&mut self, error: &LeadError) {
        self.primary.end(error.clone());
        self.connections.iter_mut().for_each(|connection| *connection = None);
    }

    /// Goes on with whatever was begun: members are taken in, copy what they have missed, follow, are sent an image. Does not wait.
    ///
    /// # Errors
    /// It is the primary no more, or its own image cannot be sent.
    pub fn poll(&mut self) -> Result<(), LeadError> {
        self.turn();
        self.time_out();
        self.primary.check()
    }

    /// Asks the images to follow: see [`Primary::follow`]. Does not wait.
    ///
    /// # Errors
    /// It is the primary no more.
    pub fn follow(&mut self) -> Result<(), LeadError> {
        self.begin(|primary| primary.follow(C::now()))
    }

    /// As [`follow`](Self::follow), and has the log trimmed behind them.
    ///
    /// # Errors
    /// It is the primary no more.
    pub fn trim(&mut self) -> Result<(), LeadError> {
        self.begin(|primary| primary.trim(C::now()))
    }

    /// Begins to send this member's image to whoever [needs one](Primary::needs_image), while the store is served.
    ///
    /// # Errors
    /// It is the primary no more, or this member's own image cannot be read.
    pub fn begin_rebuild(&mut self) -> Result<(), LeadError> {
        self.begin(|primary| primary.begin_rebuild(C::now()))
    }

    fn begin(&mut self, begin: impl FnOnce(&mut Primary)) -> Result<(), LeadError> {
        self.primary.check()?;
        begin(&mut self.primary);
        self.carry_out();
        self.primary.check()
    }

    /// Has this called before an image is sent because the log has no room without, whatever was checked by then.
    pub fn set_put_right(&mut self, put_right: PutRight) {
        self.put_right = Some(put_right);
    }

    /// A member that was sent all of an image since this was asked last.
    pub fn take_rebuilt(&mut self) -> Option<&str> {
        self.primary.take_rebuilt()
    }

    /// What the images of all members have in a place: see [`Primary::copies`].
    pub fn copies(&mut self, at: u64, len: u32) -> Option<Vec<Copy>> {
        let copies = self.primary.copies(at, len);
        if copies.is_none() {
            self.carry_out();
            if self.primary.check().is_err() {
                return Some(Vec::new());
            }
        }
        copies
    }

    /// How long nothing is due, if nothing comes. What is due is done when this is [polled](Self::poll).
    #[must_use]
    pub fn rests(&self) -> Duration {
        if self.connections.iter().flatten().any(Member::has_come) {
            return Duration::ZERO;
        }
        self.primary.deadline().map_or(Duration::MAX, |deadline| deadline.saturating_sub(C::now()))
    }

    /// Carries out what is to be done. Whether anything was.
    fn carry_out(&mut self) -> bool {
        let mut any = false;
        while let Some(action) = self.primary.poll_action() {
            any = true;
            let member = action.member();
            if let Action::Log(LogAction::Disconnect { .. }) = action {
                self.connections[member] = None;
            } else if let Some(connection) = &mut self.connections[member]
                && let Err(why) = connection.begin(action)
            {
                self.lose(member, why);
            }
        }
        any
    }

    fn lose(&mut self, member: usize, why: ConnectionLost) {
        self.connections[member] = None;
        self.primary.handle(C::now(), member, Event::Log(LogEvent::Lost(why.0)));
    }

    /// Does what is to be done, and takes what has come. Whether anything was, or had.
    fn turn(&mut self) -> bool {
        let mut any = self.carry_out();
        for member in 0..self.connections.len() {
            for _ in 0..TAKEN {
                let Some(connection) = &mut self.connections[member] else { break };
                let came = connection.poll();
                any |= !matches!(came, Ok(None));
                // This member carries out at once what its image is told to: of that a part in each turn, and then clients come first.
                let is_last = matches!(came, Ok(Some(Event::Image(_))));
                match came {
                    Ok(None) => break,
                    Ok(Some(event)) => self.primary.handle(C::now(), member, event),
                    Err(why) => self.lose(member, why),
                }
                self.carry_out();
                if is_last {
                    break;
                }
            }
        }
        any
    }

    /// Does what is due. Whether anything was.
    fn time_out(&mut self) -> bool {
        let now = C::now();
        let is_due = self.primary.deadline().is_some_and(|deadline| now >= deadline);
        if is_due {
            self.primary.timeout(now);
            self.carry_out();
        }
        is_due
    }

    /// Does what is due. If nothing was, and nothing has come, waits for the first of: something that comes, and something that is due.
    fn idle(&mut self, any: bool) {
        if self.time_out() || any {
            return;
        }
        let limit = self.rests();
        if let Some(one) = self.connections.iter_mut().flatten().next() {
            one.wait(limit);
        }
    }

    /// Waits until the primary has come that far.
    fn wait_until(&mut self, is_done: impl Fn(&Primary) -> bool) -> Result<(), LeadError> {
        loop {
            let any = self.turn();
            if is_done(&self.primary) {
                return Ok(());
            }
            self.primary.check()?;
            if self.primary.wants_image_right() {
                self.put_image_right();
            } else {
                self.idle(any);
            }
        }
    }

    /// Puts this member's image right as far as that can be done without the store.
    fn put_image_right(&mut self) {
        if let Some(mut put_right) = self.put_right.take() {
            put_right(&mut |at, len| self.wait_for_copies(at, len));
            self.put_right = Some(put_right);
        }
        self.primary.image_is_right(C::now());
    }

    fn wait_for_copies(&mut self, at: u64, len: u32) -> Vec<Vec<u8>> {
        loop {
            if let Some(copies) = self.copies(at, len) {
                return copies.into_iter().map(|copy| copy.bytes).collect();
            }
            let any = self.turn();
            if self.primary.check().is_err() {
                return Vec::new();
            }
            self.idle(any);
        }
    }

    fn ship_all(&mut self, changes: &Changes) -> Result<(), LeadError> {
        self.primary.ship(C::now(), changes)?;
        self.wait_until(Primary::is_shipped)?;
        if self.primary.is_trimming() {
            self.carry_out();
        }
        Ok(())
    }
}

impl<C: Member> Ship for Driver<C> {
    fn ship(&mut self, changes: &Changes) -> Result<(), String> {
        self.ship_all(changes).map_err(|error| {
            self.end(&error);
            error.to_string()
        })
    }
}
