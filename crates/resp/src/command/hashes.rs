//! Hashes: `t_hash.c`. A small one lies in one value, a large one in parts; [`crate::value`] says why, and [`crate::parts`] how.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use super::{
    ATTEMPTS, CONTENDED, Call, Change, Done, Failure, Item, NO_NUMBER, NOT_FLOAT, OVERFLOW, Seen, WRONG_TYPE,
    wrong_arity,
};
use crate::engine::Shared;
use crate::float80::Float80;
use crate::number::parse_i64;
use crate::parts::{Root, buckets, put_change, weight};
use crate::protocol::Writer;
use crate::store::{Key, Store};
use crate::value::{Fields, Hash, Head, Kind, put};

/// So many fields are looked for one by one; more, through an index.
const FEW: usize = 8;
/// Buckets of a hash that are read at a time where all are wanted.
pub(super) const STRETCH: u32 = 64;

impl<'a, S: Store> Call<'a, S> {
    pub(super) fn hget(&mut self) -> Done {
        let name = self.word(2);
        let there = self.look(self.word(1), true, |hash, reply| {
            match hash.get(name)? {
                Some(value) => reply.bulk(&value),
                None => reply.null(),
            }
            Ok(())
        })?;
        if there.is_none() {
            self.reply.null();
        }
        Ok(())
    }

    pub(super) fn hmget(&mut self) -> Done {
        let names: Vec<&[u8]> = self.request.words(2).collect();
        let there = self.look(self.word(1), true, |hash, reply| {
            let values = hash.get_many(&names)?;
            reply.array(values.len());
            for value in values {
                match value {
                    Some(value) => reply.bulk(&value),
                    None => reply.null(),
                }
            }
            Ok(())
        })?;
        if there.is_none() {
            self.reply.array(names.len());
            names.iter().for_each(|_| self.reply.null());
        }
        Ok(())
    }

    pub(super) fn hgetall(&mut self) -> Done {
        let there = self.look(self.word(1), true, |hash, reply| {
            let all = hash.all()?;
            let fields = Fields::parse(&all)?;
            reply.map(fields.count());
            for (name, value) in fields {
                reply.bulk(name);
                reply.bulk(value);
            }
            Ok(())
        })?;
        if there.is_none() {
            self.reply.map(0);
        }
        Ok(())
    }

    /// HKEYS and HVALS.
    pub(super) fn hash_column(&mut self, names: bool) -> Done {
        let there = self.look(self.word(1), true, |hash, reply| {
            let all = hash.all()?;
            let fields = Fields::parse(&all)?;
            reply.array(fields.count());
            for (name, value) in fields {
                reply.bulk(if names { name } else { value });
            }
            Ok(())
        })?;
        if there.is_none() {
            self.reply.array(0);
        }
        Ok(())
    }

    pub(super) fn hlen(&mut self) -> Done {
        let count = self.look(self.word(1), true, |hash, _| Ok(hash.len()))?.unwrap_or(0);
        self.reply.integer(count as i64);
        Ok(())
    }

    pub(super) fn hexists(&mut self) -> Done {
        let name = self.word(2);
        let there = self.look(self.word(1), true, |hash, _| Ok(hash.get(name)?.is_some()))?;
        self.reply.flag(there.unwrap_or(false));
        Ok(())
    }

    pub(super) fn hstrlen(&mut self) -> Done {
        let name = self.word(2);
        let len =
            self.look(self.word(1), true, |hash, _| Ok(hash.get(name)?.map_or(0, |value| value.len())))?;
        self.reply.integer(len.unwrap_or(0) as i64);
        Ok(())
    }

    /// Looks at a hash; nothing, if there is none. It may be called again, where parts that it read were another state. What is
    /// looked up comes before the reply is begun.
    pub(super) fn look<T>(
        &mut self,
        name: &'a [u8],
        count: bool,
        mut look: impl FnMut(&mut View<'_, S>, &mut Writer<'_>) -> Done<T>,
    ) -> Done<Option<T>> {
        let key = self.key_of(name);
        let (mut seen, mut hold) = (Seen::default(), None);
        for attempt in 0..ATTEMPTS {
            let item = self.load(name)?;
            if count && attempt == 0 {
                self.count_hit(item.is_some());
            }
            let Some(item) = item else { return Ok(None) };
            // One that came whole from elsewhere, by a dump or an earlier release, is not read so again and again.
            if item.head.kind == Kind::Hash && attempt == 0 {
                self.shared.fold_if_due(key, item.bytes());
            }
            let mut view = View::new(self.store, key.space, Some(&item), seen.newer)?;
            match look(&mut view, &mut self.reply) {
                Err(Failure::Missed(missed)) => seen.again(self.store, key, Some(&item), missed)?,
                done => {
                    let done = done?;
                    self.release(item);
                    return Ok(Some(done));
                }
            }
            // Whoever reads much of it and is too late asks the others of this gateway to leave its parts alone for so long.
            let shared = self.shared;
            hold.get_or_insert_with(|| shared.hold(key));
        }
        Err(CONTENDED.into())
    }

    /// A hash as one value, whatever it is in.
    pub(super) fn whole_hash(&mut self, name: &'a [u8]) -> Done<Option<Item>> {
        let Some(bytes) = self.look(name, false, |hash, _| hash.all().map(Cow::into_owned))? else {
            return Ok(None);
        };
        let Some(item) = self.load(name)? else { return Ok(None) };
        let head = Head { kind: Kind::Hash, ..item.head };
        Ok(Some(Item { head, version: item.version, bytes, start: 0 }))
    }

    /// Changes a hash, as [`update`](Self::update) does a key.
    fn change_hash<T>(&mut self, mut change: impl FnMut(&mut Edit<'_, 'a, S>) -> Done<(bool, T)>) -> Done<T> {
        let (space, shared, key) = (self.session.space, self.shared, self.key_of(self.word(1)));
        self.update_over(self.word(1), |store, newer, item, new| {
            let mut edit = Edit::new(View::new(store, space, item, newer)?);
            let (changed, answer) = change(&mut edit)?;
            if !changed {
                return Ok((Change::Keep, answer));
            }
            let head = item.map_or(Head::new(Kind::Hash), |item| item.head);
            Ok((edit.finish(shared, key, head, new), answer))
        })
    }

    /// HSET, and HMSET which answers OK.
    pub(super) fn hset(&mut self) -> Done {
        if self.request.len() % 2 == 1 {
            return Err(wrong_arity(self.command.name));
        }
        let request = self.request;
        let created = self.change_hash(|hash| {
            hash.will_look_for(request.words(2).step_by(2))?;
            let mut created = 0;
            for index in (2..request.len()).step_by(2) {
                created += i64::from(hash.set(request.word(index), Cow::Borrowed(request.word(index + 1))));
            }
            Ok((true, created))
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
        let created = self.change_hash(|hash| {
            hash.will_look_for(std::iter::once(name))?;
            if hash.get(name).is_some() {
                return Ok((false, false));
            }
            hash.set(name, Cow::Borrowed(value));
            Ok((true, true))
        })?;
        self.reply.flag(created);
        Ok(())
    }

    pub(super) fn hdel(&mut self) -> Done {
        let request = self.request;
        let deleted = self.change_hash(|hash| {
            hash.will_look_for(request.words(2))?;
            let deleted = request.words(2).filter(|name| hash.remove(name)).count();
            Ok((deleted > 0, deleted as i64))
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
        self.change_hash(|hash| {
            hash.will_look_for(std::iter::once(name))?;
            let (value, answer) = change(hash.get(name).as_deref())?;
            hash.set(name, Cow::Owned(value));
            Ok((true, answer))
        })
    }
}

/// A hash that is looked at.
pub(super) struct View<'v, S> {
    store: &'v mut S,
    space: u8,
    shape: Shape<'v>,
    /// Whether parts that are newer than the key's value are taken as they are.
    newer: bool,
    /// Whether one of the fields that were looked for may have been changed since the batch.
    logged: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Shape<'v> {
    Whole(Fields<'v>),
    Parts(Root<'v>),
}

impl<'v, S: Store> View<'v, S> {
    /// What a key has; empty if there is none.
    fn new(store: &'v mut S, space: u8, item: Option<&'v Item>, newer: bool) -> Done<Self> {
        let shape = match item.map(|item| (item.head.kind, item.payload())) {
            None => Shape::Whole(Fields::default()),
            Some((Kind::Hash, payload)) => Shape::Whole(Fields::parse(payload)?),
            Some((Kind::Parts, payload)) => Shape::Parts(Root::parse(payload)?),
            Some((Kind::String, _)) => return Err(WRONG_TYPE.into()),
        };
        Ok(Self { store, space, shape, newer, logged: false })
    }

    pub(super) const fn shape(&self) -> Shape<'v> {
        self.shape
    }

    /// How many fields.
    fn len(&self) -> u64 {
        match self.shape {
            Shape::Whole(fields) => fields.count() as u64,
            Shape::Parts(root) => root.fields,
        }
    }

    /// The value of a field.
    fn get(&mut self, name: &[u8]) -> Done<Option<Cow<'v, [u8]>>> {
        match self.shape {
            Shape::Whole(fields) => Ok(fields.get(name).map(Cow::Borrowed)),
            Shape::Parts(_) => Ok(self.get_many(&[name])?.pop().flatten()),
        }
    }

    /// The values of several fields.
    fn get_many(&mut self, names: &[&[u8]]) -> Done<Vec<Option<Cow<'v, [u8]>>>> {
        let root = match self.shape {
            Shape::Whole(fields) if names.len() <= FEW => {
                return Ok(names.iter().map(|name| fields.get(name).map(Cow::Borrowed)).collect());
            }
            Shape::Whole(fields) => {
                let index = fields.index();
                return Ok(names.iter().map(|name| index.get(name).copied().map(Cow::Borrowed)).collect());
            }
            Shape::Parts(root) => root,
        };
        let changed = match names.len() <= FEW {
            true => None,
            false => Some(root.sealed.chain(root.log).collect::<BTreeMap<_, _>>()),
        };
        self.logged |= changed.is_some();
        // The numbers of those that the changes leave as they are, by bucket and name.
        let mut sought: BTreeMap<u32, BTreeMap<&[u8], Vec<usize>>> = BTreeMap::new();
        let mut values = vec![None; names.len()];
        for (n, name) in names.iter().enumerate() {
            let change = match &changed {
                Some(changed) => changed.get(name).copied(),
                None => root.changed(name, &mut self.logged),
            };
            match change {
                Some(value) => values[n] = value.map(Cow::Borrowed),
                None => sought.entry(root.place(name)).or_default().entry(name).or_default().push(n),
            }
        }
        let places: Vec<u32> = sought.keys().copied().collect();
        buckets(self.store, self.space, &root, &places, self.newer, &mut |place, fields| {
            let Some(sought) = sought.get(&place) else { return };
            for (name, value) in fields {
                for n in sought.get(name).into_iter().flatten() {
                    values[*n] = Some(Cow::Owned(value.to_vec()));
                }
            }
        })?;
        Ok(values)
    }

    /// Every field, as a whole hash has them.
    pub(super) fn all(&mut self) -> Done<Cow<'v, [u8]>> {
        match self.shape {
            Shape::Whole(fields) => Ok(Cow::Borrowed(fields.bytes())),
            Shape::Parts(root) => {
                let mut all = Vec::new();
                let mut from = 0;
                while from < root.buckets {
                    let to = root.buckets.min(from + STRETCH);
                    self.stretch(&root, from, to, &mut all)?;
                    from = to;
                }
                Ok(Cow::Owned(all))
            }
        }
    }

    /// Appends the fields of the buckets from one on up to another, as a whole hash has them; how many.
    pub(super) fn stretch(&mut self, root: &Root<'_>, from: u32, to: u32, all: &mut Vec<u8>) -> Done<usize> {
        let mut count = 0;
        let changes: BTreeMap<&[u8], Option<&[u8]>> = root.sealed.chain(root.log).collect();
        let places: Vec<u32> = (from..to).collect();
        buckets(self.store, self.space, root, &places, self.newer, &mut |place, fields| {
            // What is to be moved stands in its old bucket, too.
            for (name, value) in fields {
                if !changes.contains_key(name) && (!root.sealing() || root.place(name) == place) {
                    put(name, all);
                    put(value, all);
                    count += 1;
                }
            }
        })?;
        for (name, value) in changes {
            if let Some(value) = value
                && (from..to).contains(&root.place(name))
            {
                put(name, all);
                put(value, all);
                count += 1;
            }
        }
        Ok(count)
    }
}

/// A hash that is being changed, by what a request says.
struct Edit<'e, 'a: 'e, S> {
    view: View<'e, S>,
    draft: Draft<'e>,
    /// Whether a field has been set.
    sets: bool,
    request: PhantomData<&'e &'a ()>,
}

enum Draft<'e> {
    Whole(Hash<'e>),
    Parts {
        root: Root<'e>,
        /// What is changed.
        now: BTreeMap<&'e [u8], Option<Cow<'e, [u8]>>>,
        /// What the fields that are looked for had.
        had: BTreeMap<Vec<u8>, Option<Cow<'e, [u8]>>>,
    },
}

impl<'e, 'a: 'e, S: Store> Edit<'e, 'a, S> {
    fn new(view: View<'e, S>) -> Self {
        let draft = match view.shape {
            Shape::Whole(fields) => Draft::Whole(Hash::new(fields)),
            Shape::Parts(root) => Draft::Parts { root, now: BTreeMap::new(), had: BTreeMap::new() },
        };
        Self { view, draft, sets: false, request: PhantomData }
    }

    /// Looks up what fields have that are asked about, set, or removed: only those may be.
    fn will_look_for<'n>(&mut self, names: impl Iterator<Item = &'n [u8]>) -> Done {
        if let Draft::Parts { had, .. } = &mut self.draft {
            let names: Vec<&[u8]> = names.collect();
            let values = self.view.get_many(&names)?;
            *had = names.into_iter().map(<[u8]>::to_vec).zip(values).collect();
        }
        Ok(())
    }

    /// The value of a field.
    fn get(&self, name: &[u8]) -> Option<Cow<'e, [u8]>> {
        match &self.draft {
            Draft::Whole(hash) => hash.get(name).cloned(),
            Draft::Parts { had, .. } => had.get(name).cloned().flatten(),
        }
    }

    /// Sets a field; whether it is new.
    fn set(&mut self, name: &'a [u8], value: Cow<'a, [u8]>) -> bool {
        self.sets = true;
        match &mut self.draft {
            Draft::Whole(hash) => hash.set(name, value),
            Draft::Parts { root, now, had } => {
                let old = had.insert(name.to_vec(), Some(value.clone())).flatten();
                root.bytes = root.bytes.saturating_add(weight(name.len(), value.len()));
                match &old {
                    Some(old) => root.bytes = root.bytes.saturating_sub(weight(name.len(), old.len())),
                    None => root.fields += 1,
                }
                now.insert(name, Some(value));
                old.is_none()
            }
        }
    }

    /// Removes a field; whether it was there.
    fn remove(&mut self, name: &'a [u8]) -> bool {
        match &mut self.draft {
            Draft::Whole(hash) => hash.remove(name),
            Draft::Parts { root, now, had } => {
                let Some(old) = had.insert(name.to_vec(), None).flatten() else { return false };
                root.bytes = root.bytes.saturating_sub(weight(name.len(), old.len()));
                root.fields = root.fields.saturating_sub(1);
                now.insert(name, None);
                true
            }
        }
    }

    /// The hash as the key's new value. One that came out empty goes. In the same write a batch that is in all buckets is taken out, and
    /// changes that have become many are made one.
    fn finish(&self, shared: &Shared, key: Key<'_>, head: Head, new: &mut Vec<u8>) -> Change {
        match &self.draft {
            Draft::Whole(hash) if hash.is_empty() => return Change::Delete,
            Draft::Parts { root, .. } if root.fields == 0 => return Change::Delete,
            Draft::Whole(hash) => {
                head.emit(new);
                hash.emit(new);
            }
            Draft::Parts { root, now, .. } => {
                head.emit(new);
                let applied = if root.sealing() { shared.applied(key) } else { None };
                let root = applied.and_then(|applied| root.without(applied)).unwrap_or(*root);
                root.emit_changed(new, shared.config.hash_whole, |new| {
                    // Only what was looked for is changed.
                    match self.view.logged {
                        true => root.log.emit_others(|name| now.contains_key(name), new),
                        false => root.log.emit(new),
                    }
                    for (name, value) in now {
                        put_change(name, value.as_deref(), new);
                    }
                });
            }
        }
        if self.sets { Change::Write } else { Change::WriteFreeing }
    }
}
