//! Recipes: lists of typed steps that make updates durable on a responder of one configuration.
//!
//! A recipe is data. The live executor carries its requester's steps out through [`Run`], the responder serves its
//! own; the checker ([`crate::check`]) explores every behaviour of the very same list. Steps are written and printed
//! as in tables 2 and 3 of paper 004: `Rq Write(a)`, `Rsp flush(&a)`.

mod build;
mod run;
mod table;

use std::fmt;

use crate::taxonomy::Config;

pub(crate) use build::complete;
pub use build::{build, variants};
pub use run::{Persistent, Requester, Run, Script, Waiting};
pub use table::{Cell, cells};

/// An update: bytes and where they go. The paper's `a` is 0, its `b` is 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Update(pub u8);

/// The paper's `a`.
pub const A: Update = Update(0);
/// The paper's `b`.
pub const B: Update = Update(1);

impl fmt::Display for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n @ 0..26 => write!(f, "{}", char::from(b'a' + n)),
            n => write!(f, "u{n}"),
        }
    }
}

/// Some of the updates of a recipe, of which there are at most 64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Set(pub u64);

impl Set {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// The set that has only the given update, whose number must be less than 64.
    #[must_use]
    pub const fn one(update: Update) -> Self {
        Self(1 << update.0)
    }

    /// The first `n` updates.
    #[must_use]
    pub const fn first(n: u8) -> Self {
        Self(if n >= 64 { u64::MAX } else { (1 << n) - 1 })
    }

    /// Whether it holds that update.
    #[must_use]
    pub const fn has(self, update: Update) -> bool {
        self.0 >> update.0 & 1 == 1
    }

    /// Whether it holds none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its updates, in order.
    pub fn iter(self) -> impl Iterator<Item = Update> {
        (0..64).map(Update).filter(move |u| self.has(*u))
    }
}

/// What a SEND carries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Message {
    /// Updates of which it only says where they are (`&a`).
    pub notice: Set,
    /// Updates that it brings (`a`), to be copied to their places.
    pub data: Set,
}

impl Message {
    /// A message that says where these are.
    #[must_use]
    pub const fn notice(set: Set) -> Self {
        Self { notice: set, data: Set::NONE }
    }

    /// A message that brings these.
    #[must_use]
    pub const fn data(set: Set) -> Self {
        Self { notice: Set::NONE, data: set }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let notices = self.notice.iter().map(|u| format!("&{u}"));
        let parts: Vec<String> = notices.chain(self.data.iter().map(|u| u.to_string())).collect();
        f.write_str(&parts.join(","))
    }
}

/// How the requester makes the responder push what it has received further down.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Flush {
    /// An RDMA READ on the same QP.
    Read,
    /// A FLUSH with placement type global visibility.
    Global,
    /// A FLUSH with placement type persistence.
    Persistent,
}

/// A step of the requester.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rq {
    /// Posts an RDMA WRITE to the update's place.
    Write(Update),
    /// Posts an RDMA WRITE with immediate, by which the responder learns of it.
    WriteImm(Update),
    /// Posts a SEND.
    Send(Message),
    /// Posts a FLUSH, or the READ that stands in for it, over everything posted before.
    Flush(Flush),
    /// Posts an ATOMIC WRITE, of 8 bytes at most.
    AtomicWrite(Update),
    /// Posts a WRITE with the fence flag: it leaves when all READs and FLUSHes before it have completed.
    FencedWrite(Update),
    /// Waits for the completion of what was posted last.
    Comp,
    /// Waits for the responder's next acknowledgement.
    Receive,
}

/// What the responder's CPU writes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Target {
    /// The place of an update.
    Update(Update),
    /// The receive buffer of the last message.
    Buffer,
}

/// A step of the responder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rsp {
    /// Waits for the next message.
    Receive(Message),
    /// Copies an update from the message to its place.
    Copy(Update),
    /// Makes what is there durable: `pwb` and `psync`, which in a page cache is fdatasync.
    Flush(Target),
    /// Sends the acknowledgement.
    Ack,
    /// Gives a receive buffer back to the RNIC.
    Repost,
}

/// One line of a recipe.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Step {
    /// A step that the requester carries out.
    Rq(Rq),
    /// A step that the responder's CPU carries out.
    Rsp(Rsp),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rq(step) => write!(f, "Rq {step}"),
            Self::Rsp(step) => write!(f, "Rsp {step}"),
        }
    }
}

impl fmt::Display for Rq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(u) => write!(f, "Write({u})"),
            Self::WriteImm(u) => write!(f, "WriteImm({u})"),
            Self::Send(m) => write!(f, "Send({m})"),
            Self::Flush(Flush::Read) => f.write_str("Read"),
            Self::Flush(Flush::Global) => f.write_str("Flush"),
            Self::Flush(Flush::Persistent) => f.write_str("Flush(persistent)"),
            Self::AtomicWrite(u) => write!(f, "AtomicWrite({u})"),
            Self::FencedWrite(u) => write!(f, "FencedWrite({u})"),
            Self::Comp => f.write_str("Comp"),
            Self::Receive => f.write_str("Receive(ack)"),
        }
    }
}

impl fmt::Display for Rsp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Receive(m) => write!(f, "Receive({m})"),
            Self::Copy(u) => write!(f, "copy({u})"),
            Self::Flush(Target::Update(u)) => write!(f, "flush(&{u})"),
            Self::Flush(Target::Buffer) => f.write_str("flush(buffer)"),
            Self::Ack => f.write_str("Send(ack)"),
            Self::Repost => f.write_str("repost"),
        }
    }
}

/// The operation that carries the updates, by which the paper's tables are divided.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Op {
    /// RDMA WRITE, of which the responder's CPU is not told.
    Write,
    /// RDMA WRITE with immediate.
    WriteImm,
    /// SEND, into a receive buffer of the responder.
    Send,
}

impl Op {
    /// All operations, in the order of the paper's tables.
    pub const ALL: [Self; 3] = [Self::Write, Self::WriteImm, Self::Send];

    /// The name in tables and machine-readable output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE_IMM",
            Self::Send => "SEND",
        }
    }
}

/// How many updates there are, and what is asked of their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Shape {
    /// How many, 1 to 64.
    pub count: u8,
    /// Each must be durable before the next one is.
    pub ordered: bool,
    /// The last one is an aligned word of 8 bytes, like the tail pointer of a log.
    pub word: bool,
}

impl Shape {
    /// The paper's singleton (table 2).
    pub const SINGLETON: Self = Self { count: 1, ordered: false, word: false };
    /// The paper's compound (table 3): `a` of any length, then a `b` of at most 8 bytes.
    pub const COMPOUND: Self = Self { count: 2, ordered: true, word: true };
    /// `a` then `b`, both of any length.
    pub const COMPOUND_LONG: Self = Self { count: 2, ordered: true, word: false };

    /// So many updates in any order.
    #[must_use]
    pub const fn batch(count: u8) -> Self {
        Self { count, ordered: false, word: false }
    }

    /// So many updates, each before the next.
    #[must_use]
    pub const fn list(count: u8) -> Self {
        Self { count, ordered: true, word: false }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.count, self.ordered, self.word) {
            (1, _, false) => f.write_str("singleton"),
            (1, _, true) => f.write_str("word"),
            (2, true, true) => f.write_str("compound"),
            (2, true, false) => f.write_str("compound-long"),
            (n, true, word) => write!(f, "ordered-{n}{}", if word { "-word" } else { "" }),
            (n, false, _) => write!(f, "batch-{n}"),
        }
    }
}

/// Where a recipe comes from.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// A cell of paper 004: the number of its table.
    Table(u8),
    /// The text of a section of paper 004.
    Section(&'static str),
    /// The finished standard: Annex A19.
    Annex,
    /// Ours, and why it is right.
    Ours(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(n) => write!(f, "paper 004, table {n}"),
            Self::Section(s) => write!(f, "paper 004, section {s}"),
            Self::Annex => f.write_str("IBA Annex A19"),
            Self::Ours(why) => write!(f, "ours: {why}"),
        }
    }
}

/// A list of steps that makes some updates durable.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Recipe {
    /// The updates that it is for.
    pub shape: Shape,
    /// The steps, of both sides, as the paper lists them. Each side carries its own out in this order.
    pub steps: Vec<Step>,
    /// What the responder does afterwards, while the requester goes on.
    pub deferred: Vec<Rsp>,
    /// Recovery must apply the whole messages that it finds in receive buffers, oldest first.
    pub replay: bool,
    /// Where it comes from.
    pub source: Source,
}

impl Recipe {
    /// The requester's steps.
    pub fn requester(&self) -> impl Iterator<Item = Rq> {
        self.steps.iter().filter_map(|step| match step {
            Step::Rq(step) => Some(*step),
            Step::Rsp(_) => None,
        })
    }

    /// The responder's steps, without the deferred ones.
    pub fn responder(&self) -> impl Iterator<Item = Rsp> {
        self.steps.iter().filter_map(|step| match step {
            Step::Rsp(step) => Some(*step),
            Step::Rq(_) => None,
        })
    }

    /// The requester needs the responder's CPU before it may go on.
    #[must_use]
    pub fn is_two_sided(&self) -> bool {
        self.requester().any(|step| step == Rq::Receive)
    }

    /// How many receive buffers it uses.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.requester().filter(|step| matches!(step, Rq::Send(_) | Rq::WriteImm(_))).count()
    }

    /// How often the requester waits for the responder.
    #[must_use]
    pub fn waits(&self) -> usize {
        self.requester().filter(|step| matches!(step, Rq::Comp | Rq::Receive | Rq::FencedWrite(_))).count()
    }

    /// What must hold beyond the configuration, in sentences. The checker shows what happens without
    /// ([`crate::check::Assumption`]).
    #[must_use]
    pub fn preconditions(&self, config: &Config) -> Vec<&'static str> {
        let mut all = Vec::new();
        // Where messages are durable when they are received, applying them again repairs a torn copy.
        if !(self.shape.word || self.replay && config.domain.keeps_caches()) {
            all.push(
                "the last update carries a checksum that recovery verifies: a crash may leave a part of it, in units of 8 bytes",
            );
        }
        if self.replay {
            all.push(
                "recovery finds the messages in the receive buffers, verifies each one's checksum and applies the \
                 whole ones, oldest first, before anything else",
            );
            all.push(
                "a receive buffer is posted again only after the effect of its message is durable itself",
            );
        }
        if self.replay && self.requester().any(|s| matches!(s, Rq::Flush(Flush::Global | Flush::Persistent)))
        {
            all.push("the FLUSH names the receive buffer, whose region grants it");
        }
        if self.requester().any(|s| matches!(s, Rq::Flush(Flush::Read))) {
            all.push("the READ is posted on the QP of the updates, and memory is not registered with relaxed ordering");
        }
        if self.requester().any(|s| matches!(s, Rq::WriteImm(_))) && !self.is_two_sided() {
            all.push("the immediate may be lost in a crash, though the update is not");
        }
        all
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<String> = self.steps.iter().map(Step::to_string).collect();
        f.write_str(&steps.join("; "))
    }
}

/// Steps in the paper's notation, as a constant: `steps![Rq Write(a); Rsp Receive(&a); Rq Comp]`.
macro_rules! steps {
    (@set) => { $crate::recipe::Set::NONE };
    (@u a) => { $crate::recipe::A };
    (@u b) => { $crate::recipe::B };
    (@m a) => { $crate::recipe::Message::data($crate::recipe::Set(1)) };
    (@m b) => { $crate::recipe::Message::data($crate::recipe::Set(2)) };
    (@m a, b) => { $crate::recipe::Message::data($crate::recipe::Set(3)) };
    (@m &a) => { $crate::recipe::Message::notice($crate::recipe::Set(1)) };
    (@m &b) => { $crate::recipe::Message::notice($crate::recipe::Set(2)) };
    (@m &a, b) => {
        $crate::recipe::Message { notice: $crate::recipe::Set(1), data: $crate::recipe::Set(2) }
    };
    (@s Rq Write($u:tt)) => { Step::Rq(Rq::Write(steps!(@u $u))) };
    (@s Rq WriteImm($u:tt)) => { Step::Rq(Rq::WriteImm(steps!(@u $u))) };
    (@s Rq AtomicWrite($u:tt)) => { Step::Rq(Rq::AtomicWrite(steps!(@u $u))) };
    (@s Rq FencedWrite($u:tt)) => { Step::Rq(Rq::FencedWrite(steps!(@u $u))) };
    (@s Rq Send($($m:tt)*)) => { Step::Rq(Rq::Send(steps!(@m $($m)*))) };
    (@s Rq Flush) => { Step::Rq(Rq::Flush(Flush::Global)) };
    (@s Rq Comp) => { Step::Rq(Rq::Comp) };
    (@s Rq Receive(ack)) => { Step::Rq(Rq::Receive) };
    (@s Rsp Receive($($m:tt)*)) => { Step::Rsp(Rsp::Receive(steps!(@m $($m)*))) };
    (@s Rsp copy($u:tt)) => { Step::Rsp(Rsp::Copy(steps!(@u $u))) };
    (@s Rsp flush(&$u:tt)) => { Step::Rsp(Rsp::Flush(Target::Update(steps!(@u $u)))) };
    (@s Rsp Send(ack)) => { Step::Rsp(Rsp::Ack) };
    ($($who:ident $what:ident $(($($args:tt)*))?);+ $(;)?) => {
        &[$(steps!(@s $who $what $(($($args)*))?)),+]
    };
}
use steps;
