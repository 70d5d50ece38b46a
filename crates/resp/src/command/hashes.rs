//! Hashes: `t_hash.c`. One value holds a whole one; [`crate::value`] says why.

use super::{Call, Change, Done, Item, NO_NUMBER, NOT_FLOAT, OVERFLOW, wrong_arity};
use crate::float80::Float80;
use crate::number::parse_i64;
use crate::store::Store;
use crate::value::{Fields, Hash, Head, Kind};

impl<'a, S: Store> Call<'a, S> {
    pub(super) fn hget(&mut self) -> Done {
        let Some(item) = self.load_counted(self.word(1))? else {
            self.reply.null();
            return Ok(());
        };
        match item.fields()?.get(self.word(2)) {
            Some(value) => self.reply.bulk(value),
            None => self.reply.null(),
        }
        self.release(item);
        Ok(())
    }

    pub(super) fn hmget(&mut self) -> Done {
        let item = self.load_counted(self.word(1))?;
        let fields = match &item {
            Some(item) => Some(item.fields()?),
            None => None,
        };
        // Few of them are looked for one by one; many, through an index.
        let names = self.request.words(2);
        self.reply.array(names.len());
        let index = fields.filter(|_| names.len() > 8).map(Fields::index);
        for name in names {
            let value = match &index {
                Some(index) => index.get(name).copied(),
                None => fields.and_then(|fields| fields.get(name)),
            };
            match value {
                Some(value) => self.reply.bulk(value),
                None => self.reply.null(),
            }
        }
        if let Some(item) = item {
            self.release(item);
        }
        Ok(())
    }

    pub(super) fn hgetall(&mut self) -> Done {
        let Some(item) = self.load_counted(self.word(1))? else {
            self.reply.map(0);
            return Ok(());
        };
        let fields = item.fields()?;
        self.reply.map(fields.count());
        for (name, value) in fields {
            self.reply.bulk(name);
            self.reply.bulk(value);
        }
        self.release(item);
        Ok(())
    }

    /// HKEYS and HVALS.
    pub(super) fn hash_column(&mut self, names: bool) -> Done {
        let Some(item) = self.load_counted(self.word(1))? else {
            self.reply.array(0);
            return Ok(());
        };
        let fields = item.fields()?;
        self.reply.array(fields.count());
        for (name, value) in fields {
            self.reply.bulk(if names { name } else { value });
        }
        self.release(item);
        Ok(())
    }

    pub(super) fn hlen(&mut self) -> Done {
        let count = self.of_fields(|fields| fields.count())?.unwrap_or(0);
        self.reply.integer(count as i64);
        Ok(())
    }

    pub(super) fn hexists(&mut self) -> Done {
        let name = self.word(2);
        let there = self.of_fields(|fields| fields.get(name).is_some())?.unwrap_or(false);
        self.reply.flag(there);
        Ok(())
    }

    pub(super) fn hstrlen(&mut self) -> Done {
        let name = self.word(2);
        let len = self.of_fields(|fields| fields.get(name).map_or(0, <[u8]>::len))?.unwrap_or(0);
        self.reply.integer(len as i64);
        Ok(())
    }

    fn of_fields<T>(&mut self, look: impl FnOnce(Fields<'_>) -> T) -> Done<Option<T>> {
        let Some(item) = self.load_counted(self.word(1))? else { return Ok(None) };
        let answer = look(item.fields()?);
        self.release(item);
        Ok(Some(answer))
    }

    /// HSET, and HMSET which answers OK.
    pub(super) fn hset(&mut self) -> Done {
        if self.request.len() % 2 == 1 {
            return Err(wrong_arity(self.command.name));
        }
        let request = self.request;
        let created = self.update(self.word(1), |item, new| {
            let mut hash = stored(item)?;
            let mut created = 0;
            for index in (2..request.len()).step_by(2) {
                created += i64::from(hash.set(request.word(index), request.word(index + 1)));
            }
            Ok((write(item, &hash, new), created))
        })?;
        if self.command.name == "hset" {
            self.reply.integer(created)
        } else {
            self.reply.ok()
        }
        Ok(())
    }

    pub(super) fn hsetnx(&mut self) -> Done {
        let (name, value) = (self.word(2), self.word(3));
        let created = self.update(self.word(1), |item, new| {
            let mut hash = stored(item)?;
            if hash.get(name).is_some() {
                return Ok((Change::Keep, false));
            }
            hash.set(name, value);
            Ok((write(item, &hash, new), true))
        })?;
        self.reply.flag(created);
        Ok(())
    }

    pub(super) fn hdel(&mut self) -> Done {
        let request = self.request;
        let deleted = self.update(self.word(1), |item, new| {
            let mut hash = stored(item)?;
            let deleted = request.words(2).filter(|name| hash.remove(name)).count();
            let change = if deleted > 0 { write(item, &hash, new) } else { Change::Keep };
            Ok((change, deleted as i64))
        })?;
        self.reply.integer(deleted);
        Ok(())
    }

    pub(super) fn hincrby(&mut self) -> Done {
        let by = self.integer(3)?;
        let sum = self.change_field(|old| {
            let old = match old {
                None => 0,
                Some(old) => parse_i64(old).ok_or("ERR hash value is not an integer")?,
            };
            let sum = old.checked_add(by).ok_or(OVERFLOW)?;
            Ok((sum.to_string().into_bytes(), sum))
        })?;
        self.reply.integer(sum);
        Ok(())
    }

    pub(super) fn hincrbyfloat(&mut self) -> Done {
        let by = Float80::parse(self.word(3)).ok_or(NOT_FLOAT)?;
        if matches!(by, Float80::Infinite(_)) {
            return Err("ERR value is NaN or Infinity".into());
        }
        let sum = self.change_field(|old| {
            let old = match old {
                None => Float80::ZERO,
                Some(old) => Float80::parse(old).ok_or("ERR hash value is not a float")?,
            };
            let sum = old.plus(by).and_then(Float80::print).ok_or(NO_NUMBER)?.into_bytes();
            Ok((sum.clone(), sum))
        })?;
        self.reply.bulk(&sum);
        Ok(())
    }

    /// Changes the field of the second word.
    fn change_field<T>(&mut self, change: impl Fn(Option<&[u8]>) -> Done<(Vec<u8>, T)>) -> Done<T> {
        let name = self.word(2);
        self.update(self.word(1), |item, new| {
            let fields = match item {
                None => Fields::default(),
                Some(item) => item.fields()?,
            };
            let (value, answer) = change(fields.get(name))?;
            let mut hash = Hash::new(fields);
            hash.set(name, &value);
            Ok((write(item, &hash, new), answer))
        })
    }
}

/// The hash of a key, empty if there is none.
fn stored(item: Option<&Item>) -> Done<Hash<'_>> {
    Ok(Hash::new(item.map(Item::fields).transpose()?.unwrap_or_default()))
}

/// The hash as the key's new value. One that came out empty goes.
fn write(item: Option<&Item>, hash: &Hash<'_>, new: &mut Vec<u8>) -> Change {
    if hash.is_empty() {
        return Change::Delete;
    }
    item.map_or(Head::new(Kind::Hash), |item| item.head).emit(new);
    hash.emit(new);
    Change::Write
}
