//! Keys whatever they hold: `db.c`.

use std::collections::BTreeMap;

use super::{Call, Done, NO_SUCH_KEY, NOT_INTEGER, SYNTAX};
use crate::glob;
use crate::number::parse_i64;
use crate::store::{Change, Condition, Store};
use crate::value::Head;

impl<S: Store> Call<'_, S> {
    pub(super) fn del(&mut self) -> Done {
        // Whatever is there goes, as long as something that has not expired was there when it was looked at.
        let (mut there, mut done) = (BTreeMap::new(), Vec::new());
        for name in self.request.words(1) {
            if !there.contains_key(&self.key_of(name))
                && let Some((_, version)) = self.head(name)?
            {
                there.insert(self.key_of(name), version);
            }
        }
        let delete = |(key, version)| Change { key, value: None, condition: Condition::Is(version) };
        let deletions: Vec<_> = there.into_iter().map(delete).collect();
        self.store.change_many(&deletions, &mut done);
        assert_eq!(done.len(), deletions.len(), "a store answers for each deletion");
        let mut deleted = 0;
        for (deletion, done) in deletions.into_iter().zip(done) {
            deleted += i64::from(done? || self.store.delete(deletion.key, Condition::Always)?);
        }
        self.reply.integer(deleted);
        Ok(())
    }

    pub(super) fn exists(&mut self) -> Done {
        let mut found = 0;
        for name in self.request.words(1) {
            let there = self.head(name)?.is_some();
            self.count_hit(there);
            found += i64::from(there);
        }
        self.reply.integer(found);
        Ok(())
    }

    pub(super) fn kind(&mut self) -> Done {
        let kind = self.head(self.word(1))?.map_or("none", |(head, _)| head.kind.name());
        self.reply.simple(kind);
        Ok(())
    }

    /// Runs alone: between its two writes, nobody looks.
    pub(super) fn rename(&mut self, only_new: bool) -> Done {
        let (from, to) = (self.word(1), self.word(2));
        let Some(item) = self.load(from)? else { return Err(NO_SUCH_KEY.into()) };
        if from == to {
            if only_new {
                self.reply.flag(false)
            } else {
                self.reply.ok()
            }
            return Ok(());
        }
        if only_new && self.head(to)?.is_some() {
            self.reply.flag(false);
            return Ok(());
        }
        // First the new name: a crash between the two leaves the value under both, and never under none.
        self.overwrite(to, item.head, item.payload())?;
        self.store.delete(self.key_of(from), Condition::Always)?;
        self.release(item);
        if only_new {
            self.reply.flag(true)
        } else {
            self.reply.ok()
        }
        Ok(())
    }

    pub(super) fn keys(&mut self) -> Done {
        let pattern = self.word(1);
        let (now, space) = (self.now(), self.session.space);
        let (mut names, mut cursor) = (Vec::new(), 0);
        loop {
            cursor = self.store.scan(space, cursor, 1024, &mut |name, head| {
                if glob::matches(pattern, name, false)
                    && Head::parse(head).is_ok_and(|(head, _)| !head.expired(now))
                {
                    names.push(name.to_vec());
                }
            })?;
            if cursor == 0 {
                break;
            }
        }
        // A scan may show a key twice.
        names.sort_unstable();
        names.dedup();
        self.reply.array(names.len());
        for name in names {
            self.reply.bulk(&name);
        }
        Ok(())
    }

    pub(super) fn randomkey(&mut self) -> Done {
        let space = self.session.space;
        let (mut random, mut name) = (self.moment.random, self.buffer());
        // A few tries for one that has not expired; then whichever comes, as Redis does.
        for tries in 0..100 {
            if !self.store.sample(space, random, &mut name)? {
                self.reply.null();
                return Ok(());
            }
            let key = crate::store::Key { space, name: &name };
            let mut head = self.buffer();
            let there = self.store.head(key, &mut head)?;
            let live = there.is_some() && Head::parse(&head).is_ok_and(|(head, _)| !head.expired(self.now()));
            self.recycle(head);
            if live || tries == 99 {
                break;
            }
            random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        }
        self.reply.bulk(&name);
        self.recycle(name);
        Ok(())
    }

    pub(super) fn dbsize(&mut self) -> Done {
        let count = self.store.count(self.session.space)?;
        self.reply.integer(count as i64);
        Ok(())
    }

    pub(super) fn flush(&mut self, all: bool) -> Done {
        match self.request.len() {
            1 => {}
            2 if self.is(1, "sync") || self.is(1, "async") => {}
            _ => return Err(SYNTAX.into()),
        }
        self.store.clear((!all).then_some(self.session.space))?;
        self.reply.ok();
        Ok(())
    }

    pub(super) fn select(&mut self) -> Done {
        let index = parse_i64(self.word(1)).ok_or(NOT_INTEGER)?;
        if i32::try_from(index).is_err() {
            return Err("ERR value is out of range, value must between -2147483648 and 2147483647".into());
        }
        let databases = i64::from(self.shared.config.databases.clamp(1, 256));
        if !(0..databases).contains(&index) {
            return Err("ERR DB index is out of range".into());
        }
        self.session.set_space(index as u8);
        self.reply.ok();
        Ok(())
    }
}
