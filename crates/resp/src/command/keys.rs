//! Keys whatever they hold: `db.c`.

use std::collections::BTreeMap;

use super::{Call, Done, NO_SUCH_KEY, NOT_INTEGER};
use crate::number::parse_i64;
use crate::parts::DATABASES_MAX;
use crate::store::{Change, Condition, Store};
use crate::value::Kind;

impl<S: Store> Call<'_, S> {
    pub(super) fn del(&mut self) -> Done {
        // Whatever is there goes, as long as something that has not expired was there when it was looked at.
        let (mut there, mut done) = (BTreeMap::new(), Vec::new());
        for name in self.request.words(1) {
            if !there.contains_key(&self.key_of(name))
                && let Some((head, version)) = self.head(name)?
            {
                if head.kind == Kind::Parts {
                    let item = self.fetch(self.key_of(name))?;
                    self.leaves(self.key_of(name), item.as_ref());
                }
                there.insert(self.key_of(name), version);
            }
        }
        let delete = |(key, version)| Change { key, value: None, condition: Condition::Is(version) };
        let deletions: Vec<_> = there.into_iter().map(delete).collect();
        self.store.change_many(&deletions, &mut done);
        assert_eq!(done.len(), deletions.len(), "a store answers for each deletion");
        let (mut deleted, mut failure) = (self.session.so_far.take().unwrap_or(0), None);
        for (deletion, done) in deletions.into_iter().zip(done) {
            let gone = done.and_then(|gone| Ok(gone || self.store.delete(deletion.key, Condition::Always)?));
            match gone {
                Ok(gone) => deleted += i64::from(gone),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if let Some(error) = failure {
            // Those that are gone are counted once, if it is carried out again.
            self.session.so_far = Some(deleted);
            return Err(error.into());
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
        // Buckets know the name of their key: those of a large hash are written anew.
        let item = if item.head.kind == Kind::Parts {
            self.leaves(self.key_of(from), Some(&item));
            self.whole_hash(from)?.ok_or(NO_SUCH_KEY)?
        } else {
            item
        };
        if from == to {
            if only_new {
                self.reply.flag(false)
            } else {
                self.reply.ok()
            }
            return Ok(());
        }
        if only_new && self.session.so_far.is_none() && self.head(to)?.is_some() {
            self.reply.flag(false);
            return Ok(());
        }
        self.session.so_far = Some(0);
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

    pub(super) fn select(&mut self) -> Done {
        let index = parse_i64(self.word(1)).ok_or(NOT_INTEGER)?;
        if i32::try_from(index).is_err() {
            return Err("ERR value is out of range, value must between -2147483648 and 2147483647".into());
        }
        let databases = i64::from(self.shared.config.databases.clamp(1, DATABASES_MAX));
        if !(0..databases).contains(&index) {
            return Err("ERR DB index is out of range".into());
        }
        self.session.set_space(index as u8);
        self.reply.ok();
        Ok(())
    }
}
