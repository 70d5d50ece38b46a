//! SCAN and HSCAN: a cursor is a place in the order of hashes, of keys in the store and of fields here.

use super::{Call, Done, Failure, NOT_INTEGER, SYNTAX};
use crate::glob;
use crate::number::{parse_cursor, parse_i64};
use crate::store::Store;
use crate::value::Head;

/// Hashes of so many fields in so many bytes are answered whole: what Redis keeps as a list and answers whole is no
/// larger (`hash-max-listpack-entries` 512, `hash-max-listpack-value` 64).
const SMALL_FIELDS: usize = 512;
const SMALL_BYTES: usize = 64 * 1024;

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
        let Some(item) = self.load_counted(self.word(1))? else {
            self.reply.array(2);
            self.reply.bulk(b"0");
            self.reply.array(0);
            return Ok(());
        };
        let fields = item.fields()?;
        let options = self.scan_options(3, false)?;
        let small = item.payload().len() <= SMALL_BYTES && fields.count() <= SMALL_FIELDS;
        let (next, mut shown) = if small {
            (0, fields.collect::<Vec<_>>())
        } else {
            // Fields in the order of their hashes, from the cursor on: what is written between two calls moves none.
            let mut rest: Vec<_> =
                fields.map(|field| (hash(field.0), field)).filter(|(hash, _)| *hash >= cursor).collect();
            rest.sort_unstable();
            let mut end = options.count.min(rest.len());
            // Fields of one hash are shown together.
            while end > 0 && end < rest.len() && rest[end].0 == rest[end - 1].0 {
                end += 1;
            }
            let next = rest.get(end).map_or(0, |(hash, _)| *hash);
            rest.truncate(end);
            (next, rest.into_iter().map(|(_, field)| field).collect())
        };
        if let Some(pattern) = options.pattern {
            shown.retain(|(name, _)| glob::matches(pattern, name, false));
        }
        self.reply.array(2);
        self.reply.bulk(next.to_string().as_bytes());
        self.reply.array(shown.len() * 2);
        for (name, value) in shown {
            self.reply.bulk(name);
            self.reply.bulk(value);
        }
        self.release(item);
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

/// FNV-1a; 1 at least, since 0 is the start.
fn hash(name: &[u8]) -> u64 {
    let hash = name.iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    });
    hash.max(1)
}
