//! What is counted, for INFO and for Prometheus.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::command::{COMMANDS, Id};

/// A number that threads add to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `amount` to the count.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Takes away what was added.
    pub fn subtract(&self, amount: u64) {
        self.0.fetch_sub(amount, Ordering::Relaxed);
    }

    /// What was added so far, less what was taken away.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// One command's counts.
#[derive(Debug, Default)]
pub struct CommandStats {
    /// Times it was carried out.
    pub calls: Counter,
    /// Microseconds that took, together.
    pub microseconds: Counter,
    /// Times it was refused before it was tried: wrong number of words, not authenticated.
    pub rejected: Counter,
    /// Times it was carried out and answered an error.
    pub failed: Counter,
}

/// All counts of a gateway.
#[derive(Debug)]
pub struct Stats {
    /// Connections that were accepted.
    pub connections: Counter,
    /// Connections that were turned away, since there were too many.
    pub rejected_connections: Counter,
    /// Bytes received from clients.
    pub input_bytes: Counter,
    /// Bytes sent to clients.
    pub output_bytes: Counter,
    /// Reads from sockets.
    pub reads: Counter,
    /// Writes to sockets.
    pub writes: Counter,
    /// Commands carried out.
    pub commands: Counter,
    /// Reads of keys that were there.
    pub hits: Counter,
    /// Reads of keys that were not.
    pub misses: Counter,
    /// Keys that were deleted since their time had come.
    pub expired: Counter,
    /// Error replies that were sent.
    pub errors: Counter,
    /// Connections closed since they sent what is no request.
    pub protocol_errors: Counter,
    /// Connections closed since they were idle.
    pub idle_closed: Counter,
    /// Connections closed since they had not authenticated in time.
    pub stranger_closed: Counter,
    /// Connections closed since the memory for all of them was used up, and they wanted more.
    pub memory_closed: Counter,
    /// Connections that were closed as they did not read the messages of channels.
    pub mail_closed: Counter,
    /// Times a connection was not read from, since it did not read its replies.
    pub throttled: Counter,
    /// Times that the wait of a thread ended, with something to do or with nothing.
    pub wakeups: Counter,
    by_command: Vec<CommandStats>,
    by_error: Mutex<BTreeMap<String, u64>>,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            connections: Counter::default(),
            rejected_connections: Counter::default(),
            input_bytes: Counter::default(),
            output_bytes: Counter::default(),
            reads: Counter::default(),
            writes: Counter::default(),
            commands: Counter::default(),
            hits: Counter::default(),
            misses: Counter::default(),
            expired: Counter::default(),
            errors: Counter::default(),
            protocol_errors: Counter::default(),
            idle_closed: Counter::default(),
            stranger_closed: Counter::default(),
            memory_closed: Counter::default(),
            mail_closed: Counter::default(),
            throttled: Counter::default(),
            wakeups: Counter::default(),
            by_command: COMMANDS.iter().map(|_| CommandStats::default()).collect(),
            by_error: Mutex::default(),
        }
    }
}

/// So many different error codes are told apart; the rest is counted together, as texts of errors can come from a
/// client.
const ERROR_CODES_MAX: usize = 64;

impl Stats {
    /// One command's counts.
    #[must_use]
    pub fn of(&self, command: Id) -> &CommandStats {
        &self.by_command[command as usize]
    }

    /// Counts an error by the first word of its text.
    pub fn error(&self, text: &[u8]) {
        self.errors.add(1);
        let code = text.split(|&byte| byte == b' ').next().unwrap_or(text);
        let code = String::from_utf8_lossy(code);
        let mut counts = self.by_error.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&*code) {
            *count += 1;
        } else if counts.len() < ERROR_CODES_MAX {
            counts.insert(code.into_owned(), 1);
        }
    }

    /// Errors by code.
    #[must_use]
    pub fn errors_by_code(&self) -> BTreeMap<String, u64> {
        self.by_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the counts to zero that CONFIG RESETSTAT resets.
    pub fn reset(&self) {
        let counters = [
            &self.connections,
            &self.rejected_connections,
            &self.input_bytes,
            &self.output_bytes,
            &self.reads,
            &self.writes,
            &self.commands,
            &self.hits,
            &self.misses,
            &self.expired,
            &self.errors,
            &self.protocol_errors,
            &self.idle_closed,
            &self.stranger_closed,
            &self.memory_closed,
            &self.mail_closed,
            &self.throttled,
            &self.wakeups,
        ];
        counters.into_iter().for_each(Counter::reset);
        for command in &self.by_command {
            [&command.calls, &command.microseconds, &command.rejected, &command.failed]
                .into_iter()
                .for_each(Counter::reset);
        }
        self.by_error.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
