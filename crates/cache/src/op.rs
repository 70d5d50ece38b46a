//! What an entry does to files and names.
//!
//! **Applied once or many times.** A recovery may be cut short and begun anew, and finds files in which some changes, or all, were carried out
//! already. What concerns a file's bytes is absolute, so a second time changes nothing in the end. Changes of names are not: `a` to `b`, `b` to `a`, `c` to
//! `b`, carried out again on their own result, replace what came from `c` by what was `a`, and it has no name left. To carry one out only where the
//! name still means its file does not help either, as a name can come to mean it again. So a recovery carries out none of them: it brings about what each name
//! means in the end ([`Names`](crate::recovery::Names)), which is absolute too.
//!
//! **Logged before or after.** Who changes a name through the log has the place of its entry reserved before it does so in the file system, and commits it
//! behind that, with the directory locked for others who use the log: only then it is known whether it was done, and nothing is waited for in between.
//! While the log is open, names are the program's own to change, and of their entries only the directories are left to be synced.

use remanence_codec::{Malformed, Reader, TooLong, Writer};

use crate::table::FileId;

/// The longest payload of a change that is no write.
const CHANGE_MAX: usize = 1 << 16;

/// A name in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name<'a> {
    /// The directory that has it.
    pub directory: FileId,
    /// The name, without slashes.
    pub name: &'a [u8],
}

/// A change, as an entry has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op<'a> {
    /// Bytes are written.
    Write {
        /// The file that changes.
        file: FileId,
        /// Where the bytes lie in it.
        offset: u64,
        /// What is written there.
        bytes: &'a [u8],
    },
    /// A file is cut short or extended.
    Truncate {
        /// The file that changes.
        file: FileId,
        /// How long it is then.
        len: u64,
    },
    /// `fallocate`, in any of its modes but the two that move what is behind a range: replayed, they would do so twice.
    Allocate {
        /// The file that changes.
        file: FileId,
        /// The mode's flags, as Linux has them.
        mode: u32,
        /// Where the range begins.
        offset: u64,
        /// Bytes of the range.
        len: u64,
    },
    /// What a file is besides its bytes and names: all of it, also what has not changed.
    Attributes {
        /// The file that changes.
        file: FileId,
        /// Its type and permissions, as in `st_mode`.
        mode: u32,
        /// Who owns it.
        user: u32,
        /// Which group does.
        group: u32,
    },
    /// A file is made and gets its first name.
    Create {
        /// The file that is new.
        file: FileId,
        /// What it is called.
        at: Name<'a>,
        /// Its type and permissions, as in `st_mode`; a directory is made so as well.
        mode: u32,
    },
    /// A symbolic link is made.
    Symlink {
        /// The link that is new.
        file: FileId,
        /// What it is called.
        at: Name<'a>,
        /// What it says.
        target: &'a [u8],
    },
    /// A file gets another name.
    Link {
        /// The file that gets it.
        file: FileId,
        /// Its further name.
        at: Name<'a>,
    },
    /// A name is taken away; that of a directory, which is empty, too.
    Unlink {
        /// What has the name.
        file: FileId,
        /// The name that goes.
        at: Name<'a>,
    },
    /// The kernel has synced the file itself: no change of its bytes below an index is due any more. Whoever syncs a file of which something is visible
    /// that the log lacks has this durable before he says that it is synced, else a replay could undo what the sync made durable. Of a directory it is the
    /// names in it that are not due; names of a file are as due as before.
    Settled {
        /// The file or directory that was synced.
        file: FileId,
        /// The log's head before it was synced.
        upto: u64,
    },
    /// A file's name is replaced by another.
    Rename {
        /// What has the name.
        file: FileId,
        /// The name that goes.
        from: Name<'a>,
        /// The name that comes.
        to: Name<'a>,
        /// What had that name, if both were exchanged, and gets the other one.
        exchanged: Option<FileId>,
    },
}

impl<'a> Op<'a> {
    /// The file that the change is about.
    #[must_use]
    pub const fn file(&self) -> FileId {
        match *self {
            Self::Write { file, .. }
            | Self::Truncate { file, .. }
            | Self::Allocate { file, .. }
            | Self::Attributes { file, .. }
            | Self::Settled { file, .. }
            | Self::Create { file, .. }
            | Self::Symlink { file, .. }
            | Self::Link { file, .. }
            | Self::Unlink { file, .. }
            | Self::Rename { file, .. } => file,
        }
    }

    /// The directories whose names change.
    #[must_use]
    pub fn directories(&self) -> [Option<FileId>; 2] {
        match *self {
            Self::Write { .. }
            | Self::Truncate { .. }
            | Self::Allocate { .. }
            | Self::Attributes { .. }
            | Self::Settled { .. } => [None, None],
            Self::Create { at, .. }
            | Self::Symlink { at, .. }
            | Self::Link { at, .. }
            | Self::Unlink { at, .. } => [Some(at.directory), None],
            Self::Rename { from, to, .. } => [Some(from.directory), Some(to.directory)],
        }
    }

    /// The files and directories that it names, the first of which it is about.
    #[must_use]
    pub fn files(&self) -> Vec<FileId> {
        let exchanged = match *self {
            Self::Rename { exchanged, .. } => exchanged,
            _ => None,
        };
        std::iter::once(self.file())
            .chain(self.directories().into_iter().flatten())
            .chain(exchanged)
            .collect()
    }

    /// What names mean when it is carried out: `None` for nothing.
    #[must_use]
    pub fn meanings(&self) -> [Option<(Name<'a>, Option<FileId>)>; 2] {
        match *self {
            Self::Write { .. }
            | Self::Truncate { .. }
            | Self::Allocate { .. }
            | Self::Attributes { .. }
            | Self::Settled { .. } => [None, None],
            Self::Create { file, at, .. } | Self::Symlink { file, at, .. } | Self::Link { file, at } => {
                [Some((at, Some(file))), None]
            }
            Self::Unlink { at, .. } => [Some((at, None)), None],
            // The last one counts where both names are one.
            Self::Rename { file, from, to, exchanged } => [Some((from, exchanged)), Some((to, Some(file)))],
        }
    }

    /// Which bytes of the file can change, if no others do; `None` where names change. Where it is settled none do.
    #[must_use]
    pub const fn span(&self) -> Option<(u64, u64)> {
        match *self {
            Self::Write { offset, bytes, .. } => Some((offset, offset.saturating_add(bytes.len() as u64))),
            Self::Truncate { .. } | Self::Allocate { .. } | Self::Attributes { .. } => Some((0, u64::MAX)),
            Self::Settled { .. } => Some((0, 0)),
            _ => None,
        }
    }

    /// The payload of a change that is none by its header alone.
    ///
    /// # Errors
    /// Names are too long.
    pub(crate) fn payload(&self) -> Result<Vec<u8>, TooLong> {
        let mut out = Writer::new(CHANGE_MAX);
        let name = |out: &mut Writer, name: Name<'_>| {
            out.u32_le(name.directory.0);
            out.u16_le(name.name.len().min(usize::from(u16::MAX)) as u16);
            out.bytes(name.name);
        };
        match *self {
            Self::Write { .. } | Self::Settled { .. } => {}
            Self::Truncate { len, .. } => {
                out.u8(1);
                out.u64_le(len);
            }
            Self::Allocate { mode, offset, len, .. } => {
                out.u8(2);
                out.u32_le(mode);
                out.u64_le(offset);
                out.u64_le(len);
            }
            Self::Create { at, mode, .. } => {
                out.u8(3);
                name(&mut out, at);
                out.u32_le(mode);
            }
            Self::Symlink { at, target, .. } => {
                out.u8(4);
                name(&mut out, at);
                out.bytes(target);
            }
            Self::Link { at, .. } => {
                out.u8(5);
                name(&mut out, at);
            }
            Self::Unlink { at, .. } => {
                out.u8(6);
                name(&mut out, at);
            }
            Self::Attributes { mode, user, group, .. } => {
                out.u8(8);
                out.u32_le(mode);
                out.u32_le(user);
                out.u32_le(group);
            }
            Self::Rename { from, to, exchanged, .. } => {
                out.u8(7);
                name(&mut out, from);
                name(&mut out, to);
                out.u8(u8::from(exchanged.is_some()));
                out.u32_le(exchanged.map_or(0, |other| other.0));
            }
        }
        out.finish()
    }

    /// Reads the payload of a change that is no write.
    ///
    /// # Errors
    /// These bytes are none.
    pub(crate) fn parse(file: FileId, payload: &'a [u8]) -> Result<Self, Malformed> {
        fn name<'a>(bytes: &mut Reader<'a>) -> Result<Name<'a>, Malformed> {
            let directory = FileId(bytes.u32_le()?);
            let len = bytes.u16_le()?;
            Ok(Name { directory, name: bytes.take(len.into())? })
        }
        let mut bytes = Reader::new(payload);
        let op = match bytes.u8()? {
            1 => Self::Truncate { file, len: bytes.u64_le()? },
            2 => {
                Self::Allocate { file, mode: bytes.u32_le()?, offset: bytes.u64_le()?, len: bytes.u64_le()? }
            }
            3 => Self::Create { file, at: name(&mut bytes)?, mode: bytes.u32_le()? },
            4 => {
                let at = name(&mut bytes)?;
                return Ok(Self::Symlink { file, at, target: bytes.rest() });
            }
            5 => Self::Link { file, at: name(&mut bytes)? },
            6 => Self::Unlink { file, at: name(&mut bytes)? },
            7 => {
                let (from, to) = (name(&mut bytes)?, name(&mut bytes)?);
                let (exchanged, other) = (bytes.bool()?, FileId(bytes.u32_le()?));
                Self::Rename { file, from, to, exchanged: exchanged.then_some(other) }
            }
            8 => {
                let [mode, user, group] = [bytes.u32_le()?, bytes.u32_le()?, bytes.u32_le()?];
                Self::Attributes { file, mode, user, group }
            }
            _ => return bytes.fail(),
        };
        bytes.end()?;
        Ok(op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_emitted_is_parsed_and_nothing_shorter_is() {
        let file = FileId(7);
        let at = Name { directory: FileId(1), name: b"a" };
        let to = Name { directory: FileId(2), name: b"" };
        for op in [
            Op::Truncate { file, len: 9 },
            Op::Allocate { file, mode: 3, offset: 4, len: 5 },
            Op::Attributes { file, mode: 0o100_600, user: 1, group: 2 },
            Op::Create { file, at, mode: 0o100_644 },
            Op::Symlink { file, at, target: b"target" },
            Op::Link { file, at },
            Op::Unlink { file, at: to },
            Op::Rename { file, from: at, to, exchanged: None },
            Op::Rename { file, from: at, to, exchanged: Some(FileId(8)) },
        ] {
            let payload = op.payload().expect("it is short");
            assert_eq!(Op::parse(file, &payload), Ok(op));
            if !matches!(op, Op::Symlink { .. }) {
                assert!(Op::parse(file, &payload[..payload.len() - 1]).is_err(), "{op:?}");
            }
        }
        assert!(Op::parse(file, &[0]).is_err() && Op::parse(file, &[]).is_err());
        let long = [0; CHANGE_MAX];
        assert!(Op::Symlink { file, at, target: &long }.payload().is_err());
    }
}
