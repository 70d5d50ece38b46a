//! Strings: `t_string.c`.

use std::collections::BTreeMap;

use super::{
    Call, Change, Done, Failure, Item, NO_NUMBER, NOT_FLOAT, NOT_INTEGER, OVERFLOW, SYNTAX, wrong_arity,
};
use crate::float80::Float80;
use crate::number::parse_i64;
use crate::store::{self, Condition, Key, Store};
use crate::value::{Head, Kind, UnixMs};

const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";

/// When SET and GETEX let a key expire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expiry {
    /// SET: never. GETEX: as before.
    Unsaid,
    Keep,
    Persist,
    /// The word with the time, whether in seconds, whether Unix time.
    At {
        word: usize,
        seconds: bool,
        absolute: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Options {
    absent: bool,
    present: bool,
    get: bool,
    expiry: Expiry,
}

impl<'a, S: Store> Call<'a, S> {
    pub(super) fn get(&mut self) -> Done {
        let item = self.load_counted(self.word(1))?;
        self.reply_bulk(item)
    }

    pub(super) fn mget(&mut self) -> Done {
        self.reply.array(self.request.len() - 1);
        for name in self.request.words(1) {
            match self.load_counted(name)? {
                Some(item) if item.head.kind == Kind::String => self.reply_bulk(Some(item))?,
                _ => self.reply.null(),
            }
        }
        Ok(())
    }

    pub(super) fn set(&mut self) -> Done {
        let options = self.options(3, true)?;
        let expires = self.expires(options.expiry)?;
        let (name, value) = (self.word(1), self.word(2));
        if !options.absent && !options.present && !options.get && options.expiry != Expiry::Keep {
            self.overwrite(name, Head { kind: Kind::String, expires }, value)?;
            self.reply.ok();
            return Ok(());
        }
        let (written, before) = self.update(name, |item, new| {
            let before = match item {
                Some(item) if options.get => Some(item.string()?.to_vec()),
                _ => None,
            };
            if (options.absent && item.is_some()) || (options.present && item.is_none()) {
                return Ok((Change::Keep, (false, before)));
            }
            let expires = match options.expiry {
                Expiry::Keep => item.and_then(|item| item.head.expires),
                _ => expires,
            };
            Head { kind: Kind::String, expires }.emit(new);
            new.extend_from_slice(value);
            Ok((Change::Write, (true, before)))
        })?;
        if options.get {
            self.count_hit(before.is_some());
            match before {
                Some(before) => self.reply.bulk(&before),
                None => self.reply.null(),
            }
        } else if written {
            self.reply.ok();
        } else {
            self.reply.null();
        }
        Ok(())
    }

    pub(super) fn setex(&mut self, seconds: bool) -> Done {
        let expires = self.expires(Expiry::At { word: 2, seconds, absolute: false })?;
        self.overwrite(self.word(1), Head { kind: Kind::String, expires }, self.word(3))?;
        self.reply.ok();
        Ok(())
    }

    pub(super) fn setnx(&mut self) -> Done {
        let value = self.word(2);
        let written = self.update(self.word(1), |item, new| {
            if item.is_some() {
                return Ok((Change::Keep, false));
            }
            Head::new(Kind::String).emit(new);
            new.extend_from_slice(value);
            Ok((Change::Write, true))
        })?;
        self.reply.flag(written);
        Ok(())
    }

    pub(super) fn mset(&mut self) -> Done {
        if self.request.len().is_multiple_of(2) {
            return Err(wrong_arity(self.command.name));
        }
        self.overwrite_all()?;
        self.reply.ok();
        Ok(())
    }

    /// Writes the pairs of the request: the store is given all of them at once, and waits once for its medium.
    fn overwrite_all(&mut self) -> Done {
        let mut values = self.buffer();
        let (mut ends, mut written) = (Vec::new(), Vec::new());
        for index in (1..self.request.len()).step_by(2) {
            Head::new(Kind::String).emit(&mut values);
            values.extend_from_slice(self.word(index + 1));
            ends.push(values.len());
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let names = (1..self.request.len()).step_by(2).map(|index| self.key_of(self.word(index)));
        // Of a key that is there twice the last value stays.
        let last: BTreeMap<Key<'_>, &[u8]> =
            names.zip(starts.zip(&ends)).map(|(key, (start, end))| (key, &values[start..*end])).collect();
        let condition = Condition::Always;
        let puts: Vec<_> = last
            .into_iter()
            .map(|(key, value)| store::Change { key, value: Some(value), condition })
            .collect();
        self.store.change_many(&puts, &mut written);
        assert_eq!(written.len(), puts.len(), "a store answers for each value");
        puts.iter().for_each(|put| self.shared.wrote(put.key));
        self.recycle(values);
        // One that failed is told of, as it was when they were written one by one.
        written.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(())
    }

    pub(super) fn msetnx(&mut self) -> Done {
        if self.request.len().is_multiple_of(2) {
            return Err(wrong_arity(self.command.name));
        }
        if self.session.so_far.is_none() && !self.are_absent()? {
            self.reply.flag(false);
            return Ok(());
        }
        self.session.so_far = Some(0);
        self.overwrite_all()?;
        self.reply.flag(true);
        Ok(())
    }

    /// Whether none of the keys of pairs is there.
    pub(super) fn are_absent(&mut self) -> Done<bool> {
        for index in (1..self.request.len()).step_by(2) {
            if self.head(self.word(index))?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn getset(&mut self) -> Done {
        let value = self.word(2);
        let before = self.update(self.word(1), |item, new| {
            let before = item.map(Item::string).transpose()?.map(<[u8]>::to_vec);
            Head::new(Kind::String).emit(new);
            new.extend_from_slice(value);
            Ok((Change::Write, before))
        })?;
        self.reply_before(before);
        Ok(())
    }

    pub(super) fn getdel(&mut self) -> Done {
        let before = self.update(self.word(1), |item, _| match item {
            None => Ok((Change::Keep, None)),
            Some(item) => Ok((Change::Delete, Some(item.string()?.to_vec()))),
        })?;
        self.reply_before(before);
        Ok(())
    }

    fn reply_before(&mut self, before: Option<Vec<u8>>) {
        self.count_hit(before.is_some());
        match before {
            Some(before) => self.reply.bulk(&before),
            None => self.reply.null(),
        }
    }

    pub(super) fn getex(&mut self) -> Done {
        let options = self.options(2, false)?;
        let name = self.word(1);
        if options.expiry == Expiry::Unsaid {
            let item = self.load_counted(name)?;
            return self.reply_bulk(item);
        }
        // The time is looked at only if there is a key to give it to, as in Redis.
        let (command, now) = (self.command.name, self.now());
        let at = match options.expiry {
            Expiry::At { word, seconds, absolute } => Some((self.word(word), seconds, absolute)),
            _ => None,
        };
        let before = self.update(name, |item, new| {
            let Some(item) = item else { return Ok((Change::Keep, None)) };
            let before = Some(item.string()?.to_vec());
            let expires = match at {
                // Nothing is written where there is nothing to take away: who watches the key sees no change.
                None if item.head.expires.is_none() => return Ok((Change::Keep, before)),
                None => None,
                Some((text, seconds, absolute)) => {
                    let expires = expires_at(text, seconds, absolute, now, command)?;
                    if absolute && expires <= now {
                        return Ok((Change::Delete, before));
                    }
                    Some(expires)
                }
            };
            Head { expires, ..item.head }.emit(new);
            new.extend_from_slice(item.payload());
            Ok((Change::Write, before))
        })?;
        self.reply_before(before);
        Ok(())
    }

    pub(super) fn append(&mut self) -> Done {
        let (more, max) = (self.word(2), self.shared.config.bulk_max);
        let len = self.update(self.word(1), |item, new| {
            let old = item.map(Item::string).transpose()?.unwrap_or_default();
            if item.is_some() && old.len() + more.len() > max {
                return Err(TOO_LONG.into());
            }
            item.map_or(Head::new(Kind::String), |item| item.head).emit(new);
            new.extend_from_slice(old);
            new.extend_from_slice(more);
            Ok((Change::Write, old.len() + more.len()))
        })?;
        self.reply.integer(len as i64);
        Ok(())
    }

    pub(super) fn strlen(&mut self) -> Done {
        let item = self.load_counted(self.word(1))?;
        let len = match &item {
            None => 0,
            Some(item) => item.string()?.len(),
        };
        self.reply.integer(len as i64);
        Ok(())
    }

    pub(super) fn getrange(&mut self) -> Done {
        let (start, end) = (self.integer(2)?, self.integer(3)?);
        let Some(item) = self.load_counted(self.word(1))? else {
            self.reply.bulk(b"");
            return Ok(());
        };
        let string = item.string()?;
        let len = string.len() as i64;
        // Both from the end and crossed: nothing, before anything is clamped.
        if start < 0 && end < 0 && start > end {
            self.reply.bulk(b"");
            return Ok(());
        }
        let from_end = |index: i64| if index < 0 { (len.saturating_add(index)).max(0) } else { index };
        let (start, end) = (from_end(start), from_end(end).min(len - 1));
        if start > end || len == 0 {
            self.reply.bulk(b"");
        } else {
            self.reply.bulk(&string[start as usize..=end as usize]);
        }
        self.release(item);
        Ok(())
    }

    pub(super) fn setrange(&mut self) -> Done {
        let offset = self.integer(2)?;
        if offset < 0 {
            return Err("ERR offset is out of range".into());
        }
        let (patch, max) = (self.word(3), self.shared.config.bulk_max);
        let len = self.update(self.word(1), |item, new| {
            let old = item.map(Item::string).transpose()?.unwrap_or_default();
            if patch.is_empty() {
                return Ok((Change::Keep, old.len()));
            }
            let end = offset as u64 + patch.len() as u64;
            if end > max as u64 {
                return Err(TOO_LONG.into());
            }
            item.map_or(Head::new(Kind::String), |item| item.head).emit(new);
            let (start, end) = (new.len(), end as usize);
            new.extend_from_slice(old);
            if new.len() < start + end {
                new.resize(start + end, 0);
            }
            new[start + end - patch.len()..start + end].copy_from_slice(patch);
            Ok((Change::Write, new.len() - start))
        })?;
        self.reply.integer(len as i64);
        Ok(())
    }

    pub(super) fn incrby(&mut self) -> Done {
        let by = self.integer(2)?;
        self.increment_by(by)
    }

    pub(super) fn decrby(&mut self) -> Done {
        let by = self.integer(2)?.checked_neg().ok_or("ERR decrement would overflow")?;
        self.increment_by(by)
    }

    pub(super) fn increment_by(&mut self, by: i64) -> Done {
        let sum = self.update(self.word(1), |item, new| {
            let old = match item {
                None => 0,
                Some(item) => parse_i64(item.string()?).ok_or(NOT_INTEGER)?,
            };
            let sum = old.checked_add(by).ok_or(OVERFLOW)?;
            item.map_or(Head::new(Kind::String), |item| item.head).emit(new);
            new.extend_from_slice(sum.to_string().as_bytes());
            Ok((Change::Write, sum))
        })?;
        self.reply.integer(sum);
        Ok(())
    }

    pub(super) fn incrbyfloat(&mut self) -> Done {
        let by = self.word(2);
        let sum = self.update(self.word(1), |item, new| {
            let old = match item {
                None => Float80::ZERO,
                Some(item) => Float80::parse(item.string()?).ok_or(NOT_FLOAT)?,
            };
            let by = Float80::parse(by).ok_or(NOT_FLOAT)?;
            let sum = old.plus(by).and_then(Float80::print).ok_or(NO_NUMBER)?;
            item.map_or(Head::new(Kind::String), |item| item.head).emit(new);
            new.extend_from_slice(sum.as_bytes());
            Ok((Change::Write, sum))
        })?;
        self.reply.bulk(sum.as_bytes());
        Ok(())
    }

    /// The options of SET and GETEX, from a word on.
    fn options(&self, first: usize, set: bool) -> Done<Options> {
        let mut options = Options { absent: false, present: false, get: false, expiry: Expiry::Unsaid };
        let mut index = first;
        while index < self.request.len() {
            let next = (index + 1 < self.request.len()).then_some(index + 1);
            // The same unit twice is taken, and the later one counts; so it is in Redis.
            let free = |seconds: bool, absolute: bool| match options.expiry {
                Expiry::Unsaid => true,
                Expiry::At { seconds: s, absolute: a, .. } => s == seconds && a == absolute,
                Expiry::Keep | Expiry::Persist => false,
            };
            let timed =
                [("ex", true, false), ("px", false, false), ("exat", true, true), ("pxat", false, true)]
                    .into_iter()
                    .find(|(word, ..)| self.is(index, word));
            if set && self.is(index, "nx") && !options.present {
                options.absent = true;
            } else if set && self.is(index, "xx") && !options.absent {
                options.present = true;
            } else if set && self.is(index, "get") {
                options.get = true;
            } else if set
                && self.is(index, "keepttl")
                && matches!(options.expiry, Expiry::Unsaid | Expiry::Keep)
            {
                options.expiry = Expiry::Keep;
            } else if !set
                && self.is(index, "persist")
                && matches!(options.expiry, Expiry::Unsaid | Expiry::Persist)
            {
                options.expiry = Expiry::Persist;
            } else if let (Some((_, seconds, absolute)), Some(word)) = (timed, next)
                && free(seconds, absolute)
            {
                options.expiry = Expiry::At { word, seconds, absolute };
                index += 1;
            } else {
                return Err(SYNTAX.into());
            }
            index += 1;
        }
        Ok(options)
    }

    fn expires(&self, expiry: Expiry) -> Done<Option<UnixMs>> {
        let Expiry::At { word, seconds, absolute } = expiry else { return Ok(None) };
        expires_at(self.word(word), seconds, absolute, self.now(), self.command.name).map(Some)
    }
}

/// When a key expires, of a word that says so: `getExpireMillisecondsOrReply`.
fn expires_at(text: &[u8], seconds: bool, absolute: bool, now: UnixMs, command: &str) -> Done<UnixMs> {
    let value = parse_i64(text).ok_or(NOT_INTEGER)?;
    let invalid = || Failure::text(format!("ERR invalid expire time in '{command}' command").into_bytes());
    if value <= 0 {
        return Err(invalid());
    }
    let value = if seconds { value.checked_mul(1000).ok_or_else(invalid)? } else { value };
    let value = if absolute { Some(value) } else { value.checked_add(now) };
    value.filter(|value| *value > 0).ok_or_else(invalid)
}
