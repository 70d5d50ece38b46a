//! What clients and the server say to each other. Everything else is READ and WRITE.
//!
//! Requests come from strangers: [`Request::parse`] takes any bytes, and what it returns has been checked as far as that is
//! possible without the store. [`Reply::parse`] does the same for the client.

mod codec;

use crate::format::{KEY_MAX, Offset};
use crate::view::View;

/// The most requests of a batch.
pub const BATCH_MAX: usize = 256;

/// What a change depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// The change depends on nothing.
    Any,
    /// The key has no value.
    Absent,
    /// The key has a value.
    Present,
    /// The key's value has this version: compare and swap.
    Version(u64),
    /// The same, or that the key has none: 0. And what is written makes it possible to remove something else: where the store is full it
    /// may take some of the room that is kept from other values.
    Freeing(u64),
    /// The same, and what is written lies somewhere else as well, where it is removed next: it may take more of that room, so that what was
    /// begun comes to its end.
    Moving(u64),
}

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Asks for room for a value, which the client then writes itself.
    Put {
        /// The key that is to have the value.
        key: Vec<u8>,
        /// Bytes of the value.
        len: u64,
        /// When it ends, milliseconds of the server's clock; 0: never.
        expires: u64,
        /// The condition of the change.
        expect: Expect,
    },
    /// Has the server write a value: clients ask for it where the view [says so](View::inline_max).
    PutInline {
        /// The key that is to have the value.
        key: Vec<u8>,
        /// The bytes of the value.
        value: Vec<u8>,
        /// When it ends, milliseconds of the server's clock; 0: never.
        expires: u64,
        /// The condition of the change.
        expect: Expect,
    },
    /// Takes a key's value away.
    Delete {
        /// The key that is to have no value.
        key: Vec<u8>,
        /// The condition of the change.
        expect: Expect,
    },
    /// Asks the server for a value. Clients read themselves; this is for those that cannot.
    Get {
        /// The key whose value is asked for.
        key: Vec<u8>,
    },
    /// Has the server make a key's newest whole version durable; it repairs what it can. Readers ask for it when a
    /// checksum fails, or when in durable mode an object may not be durable yet.
    Settle {
        /// The key whose newest version is meant.
        key: Vec<u8>,
    },
    /// These writes of the client's own are done: the server may settle them while it has time.
    Confirm {
        /// The versions that were handed out.
        versions: Vec<u64>,
    },
    /// The client will not finish this write. It must have no WRITE under way for it. If it is not whole by then it never has an
    /// effect, in durable mode not after a crash either; the reply waits for that.
    Abandon {
        /// The version that was handed out.
        version: u64,
    },
    /// So many bytes of an unfinished write of the client's own have been written, and more are on their way: its lease begins
    /// anew, if that is more than was said before. Says nothing about which bytes: who says too much only loses what would
    /// extend the lease later.
    Renew {
        /// The version that was handed out.
        version: u64,
        /// Bytes that have been written so far.
        written: u64,
    },
    /// Asks for keys, in the order of their fingerprints.
    Scan {
        /// Where to begin: 0, or what the last page said.
        cursor: u64,
        /// How many keys to look for; a page may have somewhat more, or fewer.
        limit: u32,
    },
    /// Asks how many keys there are, by their first byte.
    Count,
    /// Takes the values of some keys away, in the order of their fingerprints. Answered with a page of no keys, and
    /// where to go on.
    Clear {
        /// The first byte of the keys that are meant; `None`: all keys are.
        first: Option<u8>,
        /// Where to begin: 0, or what the last answer said.
        cursor: u64,
    },
    /// Asks for the view as it is now.
    View,
    /// Says that nothing that this client has under way uses an older view.
    Acknowledge {
        /// The number of the oldest view that it uses.
        view: u64,
    },
    /// Several requests, none of which is a batch, that share one wait for the medium.
    Batch(Vec<Self>),
}

impl Request {
    /// The change, if this is a request that has the server write or delete a value itself.
    pub(crate) fn inline(&self) -> Option<Inline<'_>> {
        match self {
            Self::PutInline { key, value, expires, expect } => {
                Some(Inline { key, value: Some(value), expires: *expires, expect: *expect })
            }
            Self::Delete { key, expect } => Some(Inline { key, value: None, expires: 0, expect: *expect }),
            _ => None,
        }
    }

    /// The changes of a request or of a batch; empty if any request in it is of another kind.
    #[must_use]
    pub fn inlines(&self) -> Vec<Inline<'_>> {
        match self {
            Self::Batch(requests) => {
                requests.iter().map(Self::inline).collect::<Option<_>>().unwrap_or_default()
            }
            request => request.inline().into_iter().collect(),
        }
    }

    /// Whether it begins to change what a key has, and not only ends what was begun.
    #[must_use]
    pub fn begins_a_change(&self) -> bool {
        match self {
            Self::Put { .. } | Self::PutInline { .. } | Self::Delete { .. } => true,
            Self::Batch(requests) => requests.iter().any(Self::begins_a_change),
            _ => false,
        }
    }

    /// Whether it is about changing what a key has. What is left to a client that may not: to look, to have what it found
    /// made durable, and to say which view it uses.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self {
            Self::Put { .. }
            | Self::PutInline { .. }
            | Self::Delete { .. }
            | Self::Clear { .. }
            | Self::Confirm { .. }
            | Self::Renew { .. }
            | Self::Abandon { .. } => true,
            Self::Get { .. }
            | Self::Settle { .. }
            | Self::Scan { .. }
            | Self::Count
            | Self::View
            | Self::Acknowledge { .. } => false,
            Self::Batch(requests) => requests.iter().any(Self::changes),
        }
    }
}

/// An extent that was handed out for a part of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Its place in the log.
    pub offset: Offset,
    /// Its place on the medium.
    pub at: u64,
    /// Bytes of the value that it is for.
    pub len: u32,
}

/// A value for the server to write, or a deletion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inline<'a> {
    /// The key that is to be changed.
    pub key: &'a [u8],
    /// The value; `None`: the key is to have none.
    pub value: Option<&'a [u8]>,
    /// When it ends, in milliseconds of the server's clock; 0: never.
    pub expires: u64,
    /// What the change depends on.
    pub expect: Expect,
}

/// What became of an [`Inline`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Changed {
    /// The value was written, and lies here.
    Value(Reserved),
    /// The key has no value since this version; 0: it had none before.
    Gone(u64),
}

impl From<Changed> for Reply {
    fn from(changed: Changed) -> Self {
        match changed {
            Changed::Value(place) => Self::Written(place),
            Changed::Gone(version) => Self::Done { version },
        }
    }
}

/// Room that was handed out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reserved {
    /// The version that the object must have; it names the reservation too.
    pub version: u64,
    /// The head whose log the place is in.
    pub head: u8,
    /// The place in that log.
    pub offset: Offset,
    /// The epoch of the region, which the object has to name.
    pub epoch: u32,
    /// Where the object starts on the medium.
    pub at: u64,
    /// Where the chunks of the value go, if it does not fit a segment; otherwise empty.
    pub extents: Vec<Extent>,
}

/// Why a request was not carried out. The sentence says what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The condition does not hold.
    #[error("the key has version {found} (0: no value): read it again and decide anew")]
    WrongVersion {
        /// The version that the key has; 0: it has no value.
        found: u64,
    },
    /// Somebody's write of this key is under way.
    #[error("a write of this key is under way: try again")]
    Unfinished,
    /// The table is about to grow.
    #[error("the hash table has no place for the key until it has grown: try again")]
    Growing,
    /// There is no room until the log has been cleaned, which is under way or about to be.
    #[error("the pool has no room until its log has been cleaned: try again")]
    Cleaning,
    /// There is no room, and cleaning by itself makes none.
    #[error(
        "the pool is full: delete keys, clean the log if that is not done by itself, or make the pool larger"
    )]
    Full,
    /// The value can never fit.
    #[error("a value of {len} bytes is too large for this pool, which has {pool}")]
    TooLarge {
        /// Bytes of the value.
        len: u64,
        /// Bytes of the whole pool.
        pool: u64,
    },
    /// No key is that long, or empty.
    #[error("a key has 1 to {KEY_MAX} bytes")]
    BadKey,
    /// The client has too many unfinished writes.
    #[error("too many unfinished writes of this client: finish or abandon some first")]
    TooMany,
    /// The client said something that makes no sense.
    #[error("the request means nothing")]
    Malformed,
    /// The reservation does not exist, or not any more, or is another client's.
    #[error(
        "this client has no such unfinished write: it was finished or abandoned, or its lease was over; write it again if it is still wanted"
    )]
    NotYours,
    /// The server has given up on the client.
    #[error(
        "the server has closed this session, as within its lease a write made no progress or a view was not acknowledged: connect again"
    )]
    Fenced,
    /// What was acknowledged is damaged.
    #[error("the value is damaged on the medium: restore it from a copy")]
    Damaged,
    /// The client's token is one for readers.
    #[error("the token that was given is one for readers; use the one for writers to change something")]
    ReadOnly,
    /// The medium failed.
    #[error("the server's medium failed: nothing more is made durable until it is replaced")]
    Medium,
}

/// What the server answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// There is room for the value, which the client writes now.
    Reserved(Reserved),
    /// The value is written, and lies there.
    Written(Reserved),
    /// The change is made.
    Done {
        /// The version that it made; 0: there was nothing to change.
        version: u64,
    },
    /// The key has no value.
    Absent,
    /// The key's newest version is whole, and in durable mode durable.
    Settled {
        /// The version that is whole.
        version: u64,
    },
    /// The key's value, to a client that asked for it.
    Value {
        /// The version of the value.
        version: u64,
        /// When it ends, in milliseconds of the server's clock; 0: never.
        expires: u64,
        /// The bytes of the value.
        value: Vec<u8>,
    },
    /// Keys that a scan has found; none in the answer to [`Request::Clear`].
    Page {
        /// Where to go on; `None` at the end.
        next: Option<u64>,
        /// The keys, in the order of their fingerprints; those of damaged values are among them.
        keys: Vec<Vec<u8>>,
        /// Values beside those, which are damaged so much that nobody can tell their keys.
        nameless: u32,
    },
    /// How many keys begin with each byte, of those bytes that any key begins with.
    Counts {
        /// Whether all have been counted. A store that was opened a moment ago is not done yet: ask again.
        whole: bool,
        /// Each first byte, and how many keys begin with it.
        counts: Vec<(u8, u64)>,
    },
    /// The view of the server as it is now.
    View(View),
    /// Answers to a batch, in order.
    Batch(Vec<Self>),
    /// The request was carried out, and there is nothing to say.
    Ok,
    /// The request was not carried out.
    Refused(Refusal),
}

impl Reply {
    /// Whether the server has written a value, and made it as durable as its mode promises.
    #[must_use]
    pub fn tells_of_a_value(&self) -> bool {
        match self {
            Self::Written(_) => true,
            Self::Batch(replies) => replies.iter().any(Self::tells_of_a_value),
            _ => false,
        }
    }
}
