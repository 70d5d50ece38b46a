//! SCAN and HSCAN: a cursor is a place in the order of the keys' hashes in the store, and a bucket of a large hash.

use super::hashes::{STRETCH, Shape};
use super::{Call, Done, Failure, NOT_INTEGER, SYNTAX};
use crate::glob;
use crate::number::{parse_cursor, parse_i64};
use crate::store::Store;
use crate::value::{Fields, Head};

struct Options<'a> {
    count: usize,
    pattern: Option<&'a [u8]>,
    kind: Option<&'a [u8]>,
}

impl<'a, S: Store> Call<'a, S> {
    pub(super) fn scan(&mut self) -> Done {
        let cursor = self.cursor(1)?;
        let options = self.scan_options(2, true)?;
        let now = self.now();
        let mut names = Vec::new();
        let next = self.store.scan(self.session.space, cursor, options.count, &mut |name, head| {
            let Ok((head, _)) = Head::parse(head) else { return };
            let wanted = options.pattern.is_none_or(|pattern| glob::matches(pattern, name, false))
                && options.kind.is_none_or(|kind| kind.eq_ignore_ascii_case(head.kind.name().as_bytes()))
                && !head.expired(now);
            if wanted {
                names.push(name.to_vec());
            }
        })?;
        self.reply.array(2);
        self.reply.bulk(next.to_string().as_bytes());
        self.reply.array(names.len());
        for name in names {
            self.reply.bulk(&name);
        }
        Ok(())
    }

    pub(super) fn hscan(&mut self) -> Done {
        let cursor = self.cursor(2)?;
        let options = self.scan_options(3, false);
        let there = self.look(self.word(1), true, |hash, reply| {
            let options = options.as_ref().map_err(Failure::clone)?;
            let mut all = Vec::new();
            let next = match hash.shape() {
                // What lies in one value is shown at once, as Redis does with what lies in one list.
                Shape::Whole(fields) => {
                    all.extend_from_slice(fields.bytes());
                    0
                }
                // Bucket by bucket: fields move only to buckets that come later. Anything else is a cursor of another hash.
                Shape::Parts(root) => {
                    let mut from =
                        u32::try_from(cursor).ok().filter(|from| *from < root.buckets).unwrap_or(0);
                    let mut count = 0;
                    while from < root.buckets && count < options.count {
                        // As many buckets as that many fields are in, about.
                        let left = (options.count - count) as u64;
                        let left = left.saturating_mul(root.buckets.into()) / root.fields.max(1);
                        let to = root.buckets.min(from + left.clamp(1, STRETCH.into()) as u32);
                        count += hash.stretch(&root, from, to, &mut all)?;
                        from = to;
                    }
                    if from < root.buckets { u64::from(from) } else { 0 }
                }
            };
            let mut shown: Vec<_> = Fields::parse(&all)?.collect();
            if let Some(pattern) = options.pattern {
                shown.retain(|(name, _)| glob::matches(pattern, name, false));
            }
            reply.array(2);
            reply.bulk(next.to_string().as_bytes());
            reply.array(shown.len() * 2);
            for (name, value) in shown {
                reply.bulk(name);
                reply.bulk(value);
            }
            Ok(())
        })?;
        if there.is_none() {
            self.reply.array(2);
            self.reply.bulk(b"0");
            self.reply.array(0);
        }
        Ok(())
    }

    fn cursor(&self, index: usize) -> Done<u64> {
        parse_cursor(self.word(index)).ok_or_else(|| Failure::from("ERR invalid cursor"))
    }

    fn scan_options(&self, first: usize, kinds: bool) -> Done<Options<'a>> {
        let mut options = Options { count: 10, pattern: None, kind: None };
        let mut index = first;
        while index < self.request.len() {
            if index + 1 == self.request.len() {
                return Err(SYNTAX.into());
            }
            let value = self.word(index + 1);
            if self.is(index, "count") {
                let count = parse_i64(value).ok_or(NOT_INTEGER)?;
                options.count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or(SYNTAX)?;
            } else if self.is(index, "match") {
                options.pattern = (value != b"*").then_some(value);
            } else if kinds && self.is(index, "type") {
                options.kind = Some(value);
            } else {
                return Err(SYNTAX.into());
            }
            index += 2;
        }
        Ok(options)
    }
}
