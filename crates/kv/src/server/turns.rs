//! When whoever drives a [`Server`](super::Server) has it [do what can wait](super::Server::step). Pure: it is told the time.

use std::time::Duration;

/// Settling waits so long for the next message, as those that come together share a wait for the medium.
const QUIET: Duration = Duration::from_millis(1);
/// It is not put off for longer than this, however many messages come.
const LATE: Duration = Duration::from_millis(10);
/// Cleaning and growing take this part of the time at most while there are messages, and all of it while there are none: were
/// they slower than writers, writers would wait for room until the whole log is cleaned.
const SHARE: u32 = 3;

/// When steps are taken between messages.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    last_message: Duration,
    /// No message came in the turn of the last step.
    idle: bool,
    last_step: Duration,
    /// When it is the turn of the next step, if messages come.
    next_step: Duration,
    /// Something came that a step may have to do with.
    work: bool,
    /// The last step left something undone.
    more: bool,
}

impl Turns {
    /// A server begins to serve now.
    #[must_use]
    pub const fn new(now: Duration) -> Self {
        Self { last_message: now, idle: false, last_step: now, next_step: now, work: true, more: false }
    }

    /// There is something to do that is no message.
    pub const fn asked(&mut self) {
        self.work = true;
    }

    /// So many messages were served. Whether it is time for a step.
    pub fn is_due(&mut self, now: Duration, messages: usize) -> bool {
        if messages > 0 {
            (self.last_message, self.work) = (now, true);
        }
        self.idle = messages == 0;
        let due = match self.more {
            true => now >= self.next_step,
            false => now.saturating_sub(self.last_message) >= QUIET,
        };
        due || now.saturating_sub(self.last_step) >= LATE
    }

    /// A step was taken. `more`: it left something undone that need not wait; `work`: or something else is to be done.
    pub fn stepped(&mut self, begin: Duration, end: Duration, more: bool, work: bool) {
        self.last_step = begin;
        let rest = if self.idle { 0 } else { SHARE - 1 };
        self.next_step = end + end.saturating_sub(begin) * rest;
        (self.more, self.work) = (more, more || work);
    }

    /// How long nothing need be done, if no message comes.
    #[must_use]
    pub fn rest(&self, now: Duration, idle: Duration) -> Duration {
        match (self.more, self.work) {
            (true, _) => self.next_step.saturating_sub(now).min(QUIET),
            (false, true) => QUIET,
            (false, false) => idle.max(QUIET),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_micros(50);
    const MESSAGE: Duration = Duration::from_micros(10);

    /// Serves for a tenth of a second. Returns the messages, and the steps.
    fn serve(clients: bool, more: bool) -> (u32, u32) {
        let begin = Duration::from_secs(1);
        let mut now = begin;
        let (mut messages, mut steps) = (0, 0);
        let mut turns = Turns::new(begin);
        turns.stepped(begin, begin + STEP, more, true);
        while now < begin + Duration::from_millis(100) {
            if clients {
                messages += 1;
                now += MESSAGE;
            } else {
                now += turns.rest(now, Duration::from_secs(1)).max(Duration::from_nanos(100));
            }
            if turns.is_due(now, usize::from(clients)) {
                steps += 1;
                turns.stepped(now, now + STEP, more, true);
                now += STEP;
            }
        }
        (messages, steps)
    }

    #[test]
    fn cleaning_has_its_share_beside_messages_and_all_the_time_without() {
        let (messages, steps) = serve(true, true);
        assert!((600..=700).contains(&steps) && messages > 6_000, "{steps} steps, {messages} messages");
        let (_, steps) = serve(false, true);
        assert!(steps > 900, "{steps} steps while nobody asks for anything");
    }

    #[test]
    fn settling_waits_for_a_pause_but_not_for_ever() {
        let (messages, steps) = serve(true, false);
        assert!((8..=10).contains(&steps) && messages > 9_000, "{steps} steps, {messages} messages");
        let (_, steps) = serve(false, false);
        assert!((80..=100).contains(&steps), "{steps} steps");
    }

    #[test]
    fn with_nothing_to_do_it_rests() {
        let now = Duration::from_secs(1);
        let mut turns = Turns::new(now);
        turns.stepped(now, now, false, false);
        assert_eq!(turns.rest(now, Duration::from_millis(250)), Duration::from_millis(250));
        turns.asked();
        assert_eq!(turns.rest(now, Duration::from_millis(250)), QUIET);
    }
}
