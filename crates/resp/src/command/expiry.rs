//! Times to live: `expire.c`.

use super::{Call, Change, Done, Failure};
use crate::store::Store;
use crate::value::Head;

#[derive(Clone, Copy, Default)]
struct Only {
    absent: bool,
    present: bool,
    later: bool,
    earlier: bool,
}

impl<S: Store> Call<'_, S> {
    /// EXPIRE and its three sisters.
    pub(super) fn expire(&mut self, seconds: bool, absolute: bool) -> Done {
        let only = self.expire_options()?;
        let value = self.integer(2)?;
        let command = self.command.name;
        let invalid =
            || Failure::text(format!("ERR invalid expire time in '{command}' command").into_bytes());
        let value = if seconds { value.checked_mul(1000).ok_or_else(invalid)? } else { value };
        let (now, base) = (self.now(), if absolute { 0 } else { self.now() });
        // Times in the past are taken, far enough back that they would wrap they are the beginning of time.
        let at =
            if value > 0 { value.checked_add(base).ok_or_else(invalid)? } else { value.saturating_add(base) };
        let changed = self.update(self.word(1), |item, new| {
            let Some(item) = item else { return Ok((Change::Keep, false)) };
            let refused = match item.head.expires {
                None => only.present || only.later,
                Some(old) => only.absent || (only.later && at <= old) || (only.earlier && at >= old),
            };
            if refused {
                return Ok((Change::Keep, false));
            }
            if at <= now {
                return Ok((Change::Delete, true));
            }
            Head { expires: Some(at), ..item.head }.emit(new);
            new.extend_from_slice(item.payload());
            Ok((Change::WriteFreeing, true))
        })?;
        self.reply.flag(changed);
        Ok(())
    }

    fn expire_options(&self) -> Done<Only> {
        let mut only = Only::default();
        for index in 3..self.request.len() {
            if self.is(index, "nx") {
                only.absent = true;
            } else if self.is(index, "xx") {
                only.present = true;
            } else if self.is(index, "gt") {
                only.later = true;
            } else if self.is(index, "lt") {
                only.earlier = true;
            } else {
                let mut text = b"ERR Unsupported option ".to_vec();
                text.extend(c_string(self.word(index)));
                return Err(Failure::text(text));
            }
        }
        if only.absent && (only.present || only.later || only.earlier) {
            return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into());
        }
        if only.later && only.earlier {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(only)
    }

    pub(super) fn ttl(&mut self, seconds: bool) -> Done {
        let now = self.now();
        let left = self.expires_of()?.map(|at| at.map(|at| (at - now).max(0)));
        self.reply_time(left, seconds);
        Ok(())
    }

    pub(super) fn expire_time(&mut self, seconds: bool) -> Done {
        let at = self.expires_of()?;
        self.reply_time(at, seconds);
        Ok(())
    }

    /// When the key expires; nothing at all if there is no key.
    fn expires_of(&mut self) -> Done<Option<Option<i64>>> {
        let found = self.head(self.word(1))?;
        self.count_hit(found.is_some());
        Ok(found.map(|(head, _)| head.expires))
    }

    fn reply_time(&mut self, time: Option<Option<i64>>, seconds: bool) {
        self.reply.integer(match time {
            None => -2,
            Some(None) => -1,
            // To the nearest second, at the end of time too.
            Some(Some(ms)) if seconds => ((i128::from(ms) + 500) / 1000) as i64,
            Some(Some(ms)) => ms,
        });
    }

    pub(super) fn persist(&mut self) -> Done {
        let changed = self.update(self.word(1), |item, new| match item {
            Some(item) if item.head.expires.is_some() => {
                Head::new(item.head.kind).emit(new);
                new.extend_from_slice(item.payload());
                Ok((Change::WriteFreeing, true))
            }
            _ => Ok((Change::Keep, false)),
        })?;
        self.reply.flag(changed);
        Ok(())
    }
}

/// What C's `%s` prints of a word: up to a NUL.
pub(super) fn c_string(word: &[u8]) -> impl Iterator<Item = u8> {
    word.iter().copied().take_while(|&byte| byte != 0)
}
