//! READs and WRITEs that are not waited for at once: of several sessions they are under way at the same time.

use std::time::{Duration, Instant};

use remanence_service::client::{Face, at_once};

use crate::error::Error;
use crate::session::Session;

/// A READ that was posted. It holds staging until [`Session::finish_read`] has taken what it brought.
#[derive(Debug)]
#[must_use = "it holds staging until it is finished"]
pub struct Reading {
    number: u64,
    staged: u64,
    len: u32,
}

/// A WRITE that was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Writing(u64);

impl Session {
    /// Posts a plain RDMA WRITE, and does not wait: `None` if it did not begin now. What it writes is visible when
    /// [`is_written`](Self::is_written) says so, and nothing is said of whether it is durable.
    ///
    /// # Errors
    /// [`Error::Argument`]: it does not lie in the server's region. Else the session is over.
    pub fn try_write(&mut self, offset: u64, bytes: &[u8]) -> Result<Option<Writing>, Error> {
        self.writes()?;
        self.alive()?;
        let begun = self.unless_refused(|this| {
            this.with_port(|requester, port| Ok(requester.write(offset, bytes, port)))
        })?;
        Ok(begun.map(Writing))
    }

    /// Whether a WRITE has ended.
    #[must_use]
    pub const fn is_written(&self, writing: Writing) -> bool {
        self.is_done(writing.0)
    }

    /// Posts an RDMA READ of what is visible at the server, and does not wait for it. It reads at a moment between now and
    /// the end of [`finish_read`](Self::finish_read). Until then nothing may be asked for that needs more staging than there
    /// is: a long READ, say.
    ///
    /// # Errors
    /// [`Error::Argument`]: it does not lie in the server's region, or has more than a fourth of
    /// [`Options::staging`](crate::Options::staging). Else the session is over.
    pub fn post_read(&mut self, offset: u64, len: u32) -> Result<Reading, Error> {
        let most = self.staging_len() / 4;
        if u64::from(len) > most {
            return Err(Error::Argument(format!("a READ that is not waited for has {most} bytes at most")));
        }
        loop {
            self.alive()?;
            let begun = self.with_port(|requester, _| Ok(requester.read(offset, len)))?;
            match begun {
                Ok((number, staged)) => return Ok(Reading { number, staged, len }),
                Err(refused) => at_once(self.make_room(Face::Thread, refused))?,
            }
        }
    }

    /// As [`post_read`](Self::post_read), but does not wait for room either: `None` if it did not begin now.
    ///
    /// # Errors
    /// As [`post_read`](Self::post_read).
    pub fn try_read(&mut self, offset: u64, len: u32) -> Result<Option<Reading>, Error> {
        self.alive()?;
        let begun =
            self.unless_refused(|this| this.with_port(|requester, _| Ok(requester.read(offset, len))))?;
        Ok(begun.map(|(number, staged)| Reading { number, staged, len }))
    }

    /// What a READ has brought, when it has: it is finished then.
    pub fn try_finish_read(&mut self, reading: &Reading) -> Option<Vec<u8>> {
        // Most looks come before it: they cost no memory.
        self.is_done(reading.number).then(|| {
            let mut bytes = vec![0; reading.len as usize];
            self.take_read(reading.number, reading.staged, &mut bytes);
            bytes
        })
    }

    /// As [`finish_read`](Self::finish_read), but waits no longer than this. False: it has not come; it may still.
    ///
    /// # Errors
    /// The session is over.
    ///
    /// # Panics
    /// `into` is not as long as what is read.
    pub fn finish_read_within(
        &mut self,
        reading: &Reading,
        into: &mut [u8],
        limit: Duration,
    ) -> Result<bool, Error> {
        assert_eq!(into.len(), reading.len as usize, "what was read goes somewhere else");
        let begin = Instant::now();
        loop {
            if self.take_read(reading.number, reading.staged, into) {
                return Ok(true);
            }
            let left = limit.saturating_sub(begin.elapsed());
            self.wait_within(left)?;
            if left.is_zero() {
                return Ok(self.take_read(reading.number, reading.staged, into));
            }
        }
    }

    /// Waits for a READ of this session, if it has not come yet, and takes what it brought.
    ///
    /// # Errors
    /// The session is over.
    ///
    /// # Panics
    /// `into` is not as long as what is read.
    pub fn finish_read(&mut self, reading: Reading, into: &mut [u8]) -> Result<(), Error> {
        assert_eq!(into.len(), reading.len as usize, "what was read goes somewhere else");
        while !self.take_read(reading.number, reading.staged, into) {
            self.wait()?;
        }
        Ok(())
    }
}
