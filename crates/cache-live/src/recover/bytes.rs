//! What is due to the bytes of a file: carried out; or reconciled with what somebody else has made of the file, and put into a file beside it where that
//! cannot be.

use std::io;

use remanence_cache::foreign::{PAGE, Pages, Verdict};
use remanence_cache::op::Op;
use remanence_cache::recovery::{Made, Scan};
use remanence_cache::{Damage, Entry};
use remanence_pmem::Medium;

use super::Error;
use super::files::{Files, Kind};
use super::find::Found;

/// Bytes that are copied at a time.
const PIECE: usize = 64 << 10;
/// What the name of a file beside another ends with.
const RECOVERED: &[u8] = b".rem-recovered";
/// The longest name that Linux has.
const NAME_MAX: usize = 255;
/// `FALLOC_FL_KEEP_SIZE`.
const KEEP_SIZE: u32 = 0x01;
/// `FALLOC_FL_PUNCH_HOLE` and `FALLOC_FL_ZERO_RANGE`.
const ZEROS: u32 = 0x02 | 0x10;
/// The modes of `fallocate` that a log has: these, and what only frees or reserves room.
const KNOWN: u32 = KEEP_SIZE | ZEROS | 0x40;

/// Carries an operation out.
pub(super) fn apply<F: Files>(files: &F, node: &F::Node, op: &Op<'_>) -> io::Result<()> {
    match *op {
        Op::Write { offset, bytes, .. } => files.write(node, offset, bytes),
        Op::Truncate { len, .. } => files.truncate(node, len),
        Op::Allocate { mode, offset, len, .. } => {
            if mode & !KNOWN != 0 {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            match files.allocate(node, mode, offset, len) {
                // Room is nothing that anybody was promised; zeros and a length are.
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    allocate_by_hand(files, node, mode, offset, offset.saturating_add(len))
                }
                other => other,
            }
        }
        Op::Attributes { mode, user, group, .. } => files.attributes(node, mode, user, group),
        _ => Ok(()),
    }
}

fn allocate_by_hand<F: Files>(files: &F, node: &F::Node, mode: u32, from: u64, to: u64) -> io::Result<()> {
    let len = files.about(node)?.len;
    if mode & ZEROS != 0 {
        let zeros = [0; PIECE];
        let mut at = from;
        while at < to.min(len) {
            let piece = (to.min(len) - at).min(PIECE as u64) as usize;
            files.write(node, at, &zeros[..piece])?;
            at += piece as u64;
        }
    }
    if mode & KEEP_SIZE == 0 && to > len { files.truncate(node, to) } else { Ok(()) }
}

/// What became of a file that somebody else has changed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Reconciled {
    /// Where the pages lie that were kept.
    pub(super) kept: Vec<u64>,
    /// Pages that were replayed.
    pub(super) replayed: u64,
    /// The log would have cut it, and it was not.
    pub(super) uncut: bool,
    /// The name of the file beside it that has what the log has.
    pub(super) beside: Option<Vec<u8>>,
}

/// The entries of one file, read when they are needed.
pub(super) struct Entries<'a, M> {
    pub(super) medium: &'a M,
    pub(super) scan: &'a Scan,
    pub(super) entries: &'a [Entry],
}

impl<M: Medium> Entries<'_, M> {
    fn read(&self, entry: &Entry, into: &mut Vec<u8>) -> Result<(), Damage> {
        self.scan.payload(self.medium, entry, into)
    }

    /// All but the last, if that cuts the file short: it was logged before that was done, and who logged it may have been killed in between.
    pub(super) fn before_cut(&self) -> Result<Option<Self>, Error> {
        let Some((last, before)) = self.entries.split_last() else { return Ok(None) };
        let mut payload = Vec::new();
        self.read(last, &mut payload)?;
        let cuts = matches!(last.op(&payload), Some(Op::Truncate { .. }));
        Ok(cuts.then_some(Self { entries: before, ..*self }))
    }

    /// Each of them, in order.
    fn each(&self, mut with: impl FnMut(&Entry, &Op<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let mut payload = Vec::new();
        for entry in self.entries {
            self.read(entry, &mut payload)?;
            if let Some(op) = entry.op(&payload) {
                with(entry, &op)?;
            }
        }
        Ok(())
    }
}

/// Where a file beside another is made.
pub(super) struct Beside<'a, N> {
    pub(super) directory: &'a N,
    pub(super) name: &'a [u8],
    /// The name that it has until it is whole.
    pub(super) for_now: Vec<u8>,
}

/// Brings a file that somebody else has changed to what the log has where that undoes nothing, page by page. In a dry run it only says what it would do.
pub(super) fn reconcile<M: Medium, F: Files>(
    files: &F,
    found: &Found<F::Node>,
    entries: &Entries<'_, M>,
    for_now: Vec<u8>,
    dry: bool,
    shown: &str,
) -> Result<Reconciled, Error> {
    let bad = |what: &'static str| Error::of(what, shown.to_owned());
    let mut pages = Pages::default();
    entries.each(|entry, op| {
        pages.add(*entry, op);
        Ok(())
    })?;
    let len = files.about(&found.node).map_err(bad("looked at"))?.len;
    let whole = pages.len(len);
    let mut done = Reconciled { uncut: whole < len, ..Reconciled::default() };
    let mut page_of = vec![0; PAGE as usize];
    let mut judge = |page: u64| -> Result<Verdict, Error> {
        page_of.fill(0);
        if page * PAGE < len {
            files.read(&found.node, page * PAGE, &mut page_of).map_err(bad("read"))?;
        }
        Ok(pages.judge(page, &page_of, |entry, into| entries.read(entry, into))?)
    };
    let mut replayed = Vec::new();
    for page in pages.pages(len) {
        match judge(page)? {
            Verdict::Done => {}
            // Where it ends may be somebody else's word, or what the crash has left: nothing makes it longer, and no page ends where its last byte differs.
            Verdict::Replayed { .. } if whole > len && (page + 1) * PAGE > len => done.kept.push(page * PAGE),
            Verdict::Replayed { .. } => replayed.push(page),
            Verdict::Kept => done.kept.push(page * PAGE),
        }
    }
    let last = whole.saturating_sub(1) / PAGE * PAGE;
    if whole > len && !done.kept.contains(&last) {
        done.kept.push(last);
        done.kept.sort_unstable();
    }
    done.replayed = replayed.len() as u64;
    if dry {
        return Ok(done);
    }
    if done.uncut || !done.kept.is_empty() {
        // Before anything of it is changed: it is whole and durable first.
        let (directory, name) =
            found.place.as_ref().ok_or_else(|| Error::Nowhere { path: shown.to_owned() })?;
        let beside = Beside { directory, name, for_now };
        done.beside = Some(set_aside(files, &beside, Some(&found.node), entries, shown)?);
    }
    for page in replayed {
        if let Verdict::Replayed { offset, bytes } = judge(page)? {
            files.write(&found.node, offset, &bytes).map_err(bad("written"))?;
        }
    }
    files.sync(&found.node).map_err(bad("synced"))?;
    Ok(done)
}

/// Puts a file beside another: what that has, if there is one, with all entries carried out on it. Returns its name, which no other file had that has something else.
pub(super) fn set_aside<M: Medium, F: Files>(
    files: &F,
    beside: &Beside<'_, F::Node>,
    base: Option<&F::Node>,
    entries: &Entries<'_, M>,
    shown: &str,
) -> Result<Vec<u8>, Error> {
    let bad = |what: &'static str| Error::of(what, format!("{shown}.rem-recovered"));
    let Beside { directory, name, for_now } = beside;
    if files.named(directory, for_now).map_err(bad("looked at"))?.is_some() {
        files.unlink(directory, for_now, false).map_err(bad("made"))?;
    }
    files.make(directory, for_now, &Made::Node { mode: 0o100_600 }).map_err(bad("made"))?;
    let Some(new) = files.named(directory, for_now).map_err(bad("looked at"))? else {
        return Err(bad("made")(io::ErrorKind::NotFound.into()));
    };
    if let Some(base) = base {
        copy(files, base, &new).map_err(bad("written"))?;
    }
    entries.each(|_, op| apply(files, &new, op).map_err(bad("written")))?;
    files.sync(&new).map_err(bad("synced"))?;
    let mut number = 0;
    let name = loop {
        let mut end = RECOVERED.to_vec();
        if number > 0 {
            end.extend_from_slice(format!(".{number}").as_bytes());
        }
        let name = [&name[..name.len().min(NAME_MAX - end.len())], &end[..]].concat();
        match files.named(directory, &name).map_err(bad("looked at"))? {
            None => {
                files.link((directory, for_now), (directory, &name)).map_err(bad("made"))?;
                break name;
            }
            // A recovery that was cut short had come so far.
            Some(there) if is_same(files, &there, &new).map_err(bad("read"))? => break name,
            Some(_) => number += 1,
        }
    };
    files.sync(directory).map_err(bad("synced"))?;
    files.unlink(directory, for_now, false).map_err(bad("made"))?;
    files.sync(directory).map_err(bad("synced"))?;
    Ok(name)
}

/// Copies a file, leaving out what is zeros.
fn copy<F: Files>(files: &F, from: &F::Node, to: &F::Node) -> io::Result<()> {
    let len = files.about(from)?.len;
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < len {
        let some = files.read(from, at, &mut piece)?;
        if some == 0 {
            break;
        }
        if piece[..some].iter().any(|byte| *byte != 0) {
            files.write(to, at, &piece[..some])?;
        }
        at += some as u64;
    }
    files.truncate(to, len)
}

fn is_same<F: Files>(files: &F, one: &F::Node, other: &F::Node) -> io::Result<bool> {
    let (about, len) = (files.about(one)?, files.about(other)?.len);
    if about.kind != Kind::File || about.len != len {
        return Ok(false);
    }
    let (mut first, mut second) = (vec![0; PIECE], vec![0; PIECE]);
    for at in (0..len).step_by(PIECE) {
        let some = (files.read(one, at, &mut first)?, files.read(other, at, &mut second)?);
        if some.0 != some.1 || first[..some.0] != second[..some.1] {
            return Ok(false);
        }
    }
    Ok(true)
}
