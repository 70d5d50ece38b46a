//! What a responder is, as far as persistence depends on it.
//!
//! Read first: paper 004 ("Correct, Fast Remote Persistence"), section 3.1. Its three axes are the persistence domain,
//! DDIO and where the receive buffers lie. The finished standard and real machines add four: how weak the transport's
//! completions are, which FLUSH the responder executes, whether it has ATOMIC WRITE, and whether writes that nobody
//! ordered otherwise are placed in the order in which they were posted.

use std::fmt;

use remanence_pmem::{PersistenceDomain, Survives};

/// The part of the responder that keeps its content in the failure which is to be survived.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Domain {
    /// DIMM and memory controller (ADR): power loss, caches are lost.
    Dmp,
    /// Memory hierarchy (eADR): power loss, caches are kept, the RNIC's buffers are lost.
    Mhp,
    /// Whole system: power loss, the RNIC's buffers are kept too.
    Wsp,
    /// A plain file: power loss, only what the kernel wrote to the disk is kept. Not in the paper.
    PageCache,
    /// Shared memory: the process dies, the kernel's memory stays. Not in the paper.
    Process,
}

impl Domain {
    /// Every domain, the paper's first.
    pub const ALL: [Self; 5] = [Self::Dmp, Self::Mhp, Self::Wsp, Self::PageCache, Self::Process];
    /// The three of the paper.
    pub const PAPER: [Self; 3] = [Self::Dmp, Self::Mhp, Self::Wsp];

    /// The name in tables, options and machine-readable output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dmp => "DMP",
            Self::Mhp => "MHP",
            Self::Wsp => "WSP",
            Self::PageCache => "page-cache",
            Self::Process => "process",
        }
    }

    /// The domain of a region of ours. `None` for memory that no failure leaves behind.
    #[must_use]
    pub const fn of(region: PersistenceDomain) -> Option<Self> {
        match region {
            PersistenceDomain::Adr => Some(Self::Dmp),
            PersistenceDomain::Eadr => Some(Self::Mhp),
            PersistenceDomain::Wsp => Some(Self::Wsp),
            PersistenceDomain::PageCache => Some(Self::PageCache),
            PersistenceDomain::Process => Some(Self::Process),
            PersistenceDomain::Volatile => None,
        }
    }

    /// What an update in this domain survives.
    #[must_use]
    pub const fn survives(self) -> Survives {
        match self {
            Self::Dmp | Self::Mhp | Self::Wsp | Self::PageCache => Survives::EVERYTHING,
            Self::Process => Survives::PROCESS_CRASH,
        }
    }

    /// A store that is visible is in the domain: nothing needs to be written back.
    #[must_use]
    pub const fn keeps_caches(self) -> bool {
        match self {
            Self::Mhp | Self::Wsp | Self::Process => true,
            Self::Dmp | Self::PageCache => false,
        }
    }
}

/// Where the buffers of the receive queue lie (the paper's RQWRB).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Buffers {
    /// In volatile memory: a message is lost in a crash.
    Dram,
    /// In memory of the persistence domain: recovery finds messages that were not applied.
    Pm,
}

/// What a completion of a posted operation says (004, 3.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Transport {
    /// InfiniBand and RoCE: the responder's RNIC has it.
    Roce,
    /// iWARP: the requester's own TCP has it.
    Iwarp,
}

/// The strongest FLUSH that the responder executes (Annex A19).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FlushSupport {
    /// None: an RDMA READ on the same QP stands in for it.
    Read,
    /// Placement type *global visibility*: out of the RNIC, into the memory hierarchy. The paper's FLUSH.
    Global,
    /// Placement type *persistence* too: into the persistence domain.
    Persistent,
}

/// How an 8-byte update can be ordered behind an outstanding FLUSH.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AtomicSupport {
    /// ATOMIC WRITE: the responder keeps it behind the FLUSH.
    Native,
    /// Only the fence flag: the requester waits for the FLUSH, one round trip, before it sends the WRITE.
    Fenced,
}

/// Whether posted writes to different places become visible in the order in which they were posted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Order {
    /// They do, as the paper assumes of every reliable connection.
    Posted,
    /// They don't: memory registered with `IBV_ACCESS_RELAXED_ORDERING`, several paths, out-of-order placement of
    /// iWARP (RFC 5040 orders delivery, not placement) or of newer RNICs. Completions and messages still promise that
    /// what came before them was placed.
    Relaxed,
}

/// A responder's configuration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Config {
    /// The persistence domain: what survives a loss of power.
    pub domain: Domain,
    /// Arriving data goes to the CPU's cache.
    pub ddio: bool,
    /// Where messages are received.
    pub buffers: Buffers,
    /// What a completion says.
    pub transport: Transport,
    /// Which FLUSH there is.
    pub flush: FlushSupport,
    /// Whether there is ATOMIC WRITE.
    pub atomic: AtomicSupport,
    /// Whether writes stay in order.
    pub order: Order,
}

impl Config {
    /// What must be assumed of a machine of which nothing is known: the weakest of the paper's configurations, no new
    /// operation, no order.
    pub const SAFE: Self = Self {
        domain: Domain::Dmp,
        ddio: true,
        buffers: Buffers::Dram,
        transport: Transport::Iwarp,
        flush: FlushSupport::Read,
        atomic: AtomicSupport::Fenced,
        order: Order::Relaxed,
    };

    /// One of the paper's twelve, on InfiniBand or RoCE, with the operations that the paper takes for granted.
    #[must_use]
    pub const fn paper(domain: Domain, ddio: bool, buffers: Buffers) -> Self {
        Self {
            domain,
            ddio,
            buffers,
            transport: Transport::Roce,
            flush: FlushSupport::Global,
            atomic: AtomicSupport::Native,
            order: Order::Posted,
        }
    }

    /// The paper's twelve in the order of its table 1.
    #[must_use]
    pub fn papers() -> Vec<Self> {
        let mut all = Vec::with_capacity(12);
        for domain in Domain::PAPER {
            for ddio in [true, false] {
                for buffers in [Buffers::Dram, Buffers::Pm] {
                    all.push(Self::paper(domain, ddio, buffers));
                }
            }
        }
        all
    }

    /// Every configuration that the axes span.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = Vec::with_capacity(480);
        for domain in Domain::ALL {
            for ddio in [true, false] {
                for buffers in [Buffers::Dram, Buffers::Pm] {
                    for transport in [Transport::Roce, Transport::Iwarp] {
                        for flush in [FlushSupport::Read, FlushSupport::Global, FlushSupport::Persistent] {
                            for atomic in [AtomicSupport::Native, AtomicSupport::Fenced] {
                                for order in [Order::Posted, Order::Relaxed] {
                                    all.push(Self { domain, ddio, buffers, transport, flush, atomic, order });
                                }
                            }
                        }
                    }
                }
            }
        }
        all
    }

    /// Whether the paper has a cell for it (either transport).
    #[must_use]
    pub fn is_papers(&self) -> bool {
        Domain::PAPER.contains(&self.domain)
            && self.flush == FlushSupport::Global
            && self.atomic == AtomicSupport::Native
            && self.order == Order::Posted
    }

    /// The short name of the paper's axes: `DMP+DDIO+DRAM`.
    #[must_use]
    pub fn short(&self) -> String {
        let ddio = if self.ddio { "DDIO" } else { "no-DDIO" };
        let buffers = match self.buffers {
            Buffers::Dram => "DRAM",
            Buffers::Pm => "PM",
        };
        format!("{}+{ddio}+{buffers}", self.domain.name())
    }
}

/// All axes, those that differ from the paper's behind the short name: `DMP+DDIO+DRAM+iwarp+read+fenced+relaxed`.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())?;
        let more = [
            (self.transport == Transport::Iwarp, "iwarp"),
            (self.flush == FlushSupport::Read, "read"),
            (self.flush == FlushSupport::Persistent, "persistent"),
            (self.atomic == AtomicSupport::Fenced, "fenced"),
            (self.order == Order::Relaxed, "relaxed"),
        ];
        more.into_iter().filter(|(yes, _)| *yes).try_for_each(|(_, word)| write!(f, "+{word}"))
    }
}

/// What a configuration is on one axis.
type Change = fn(&mut Config);

/// The words of each axis, and what is taken where none of them is said.
const WORDS: [(&[(&str, Change)], &str); 7] = [
    (
        &[
            ("dmp", |c| c.domain = Domain::Dmp),
            ("adr", |c| c.domain = Domain::Dmp),
            ("mhp", |c| c.domain = Domain::Mhp),
            ("eadr", |c| c.domain = Domain::Mhp),
            ("wsp", |c| c.domain = Domain::Wsp),
            ("page-cache", |c| c.domain = Domain::PageCache),
            ("process", |c| c.domain = Domain::Process),
        ],
        "DMP (ADR)",
    ),
    (&[("ddio", |c| c.ddio = true), ("no-ddio", |c| c.ddio = false)], "DDIO on (else say no-DDIO)"),
    (
        &[("dram", |c| c.buffers = Buffers::Dram), ("pm", |c| c.buffers = Buffers::Pm)],
        "receive buffers in DRAM (else say PM)",
    ),
    (
        &[
            ("roce", |c| c.transport = Transport::Roce),
            ("ib", |c| c.transport = Transport::Roce),
            ("iwarp", |c| c.transport = Transport::Iwarp),
        ],
        "InfiniBand or RoCE (else say iwarp)",
    ),
    (
        &[
            ("read", |c| c.flush = FlushSupport::Read),
            ("global", |c| c.flush = FlushSupport::Global),
            ("persistent", |c| c.flush = FlushSupport::Persistent),
        ],
        "an RNIC that has the FLUSH to visibility (if it has none, as most that are sold, say read; persistent if it has that one)",
    ),
    (
        &[("native", |c| c.atomic = AtomicSupport::Native), ("fenced", |c| c.atomic = AtomicSupport::Fenced)],
        "an RNIC that has ATOMIC WRITE (else say fenced)",
    ),
    (
        &[("posted", |c| c.order = Order::Posted), ("relaxed", |c| c.order = Order::Relaxed)],
        "writes that are placed in their order (else say relaxed)",
    ),
];

impl Config {
    /// What is taken for granted where a configuration is written as `text`: the paper's value of each axis of which `text`
    /// says nothing, in words.
    #[must_use]
    pub fn unsaid(text: &str) -> Vec<&'static str> {
        let said = |words: &[(&str, Change)]| {
            text.split('+').any(|word| words.iter().any(|(name, _)| name.eq_ignore_ascii_case(word.trim())))
        };
        WORDS.iter().filter(|(words, _)| !said(words)).map(|(_, otherwise)| *otherwise).collect()
    }
}

/// The inverse of `Display`; words may stand in any order and case, and what is not said is the paper's
/// ([`unsaid`](Config::unsaid)).
impl std::str::FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut config = Self::paper(Domain::Dmp, true, Buffers::Dram);
        let mut said: [Option<&str>; WORDS.len()] = [None; WORDS.len()];
        for word in text.split('+').map(str::trim) {
            let find = |words: &[(&str, Change)]| {
                words.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, change)| *change)
            };
            let axis = WORDS.iter().enumerate().find_map(|(n, (words, _))| Some((n, find(words)?)));
            let Some((axis, change)) = axis else {
                return Err(format!(
                    "{word:?} is no part of a configuration; write one like DMP+no-DDIO+PM+iwarp+read+fenced+relaxed"
                ));
            };
            if let Some(other) = said[axis].replace(word) {
                return Err(format!(
                    "{other} and {word} are two values of one thing; say which of them it is"
                ));
            }
            change(&mut config);
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_configuration_has_a_name_that_leads_back_to_it() {
        let all = Config::all();
        assert_eq!(all.len(), 480);
        for config in all {
            assert_eq!(config.to_string().parse(), Ok(config));
        }
        assert!("DMP+DDR".parse::<Config>().is_err());
    }

    #[test]
    fn what_is_not_said_is_taken_for_granted_aloud_and_contradictions_are_refused() {
        assert_eq!(Config::unsaid("DMP+DDIO+DRAM+ib+read+fenced+relaxed"), [""; 0]);
        let unsaid = Config::unsaid("mhp + pm");
        assert_eq!(unsaid.len(), 5);
        assert!(unsaid.iter().any(|what| what.contains("say read")), "{unsaid:?}");
        for text in ["DMP+MHP", "DDIO+no-DDIO", "DMP+DRAM+pm", "WSP+persistent+READ", "DMP+DDIO+DDIO"] {
            let e = text.parse::<Config>().expect_err("a contradiction");
            assert!(e.contains("two values of one thing"), "{text}: {e}");
        }
    }

    #[test]
    fn the_papers_twelve_are_those_of_its_table_1() {
        let names: Vec<String> = Config::papers().iter().map(Config::short).collect();
        assert_eq!(names.len(), 12);
        assert_eq!(names[0], "DMP+DDIO+DRAM");
        assert_eq!(names[11], "WSP+no-DDIO+PM");
        assert_eq!(Config::all().iter().filter(|c| c.is_papers()).count(), 24);
    }

    #[test]
    fn a_region_of_ours_has_its_domain() {
        assert_eq!(Domain::of(PersistenceDomain::Adr), Some(Domain::Dmp));
        assert_eq!(Domain::of(PersistenceDomain::Volatile), None);
        for region in PersistenceDomain::ALL {
            // What the taxonomy says of a domain must be what the region itself promises after psync.
            if let Some(domain) = Domain::of(region) {
                assert_eq!(domain.survives(), remanence_pmem::Guarantee::of(region).after_psync);
            }
        }
    }
}
