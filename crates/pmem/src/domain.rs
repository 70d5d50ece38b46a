//! Which failures data survives: the persistence domain of a region, and the words for it.
//!
//! Detected once, when a region is made (`detect`), and carried with it. Visible is not durable: a store is
//! visible to other processes at once, and durable when it has reached the persistence domain, which is what
//! `psync` waits for.

mod detect;

use std::fmt;

pub use detect::{Machine, PmemDevice, machine, probe_directory};
pub(crate) use detect::{of_anonymous, of_borrowed, of_copy, of_file, of_foreign, of_memfd};

/// The part of the memory hierarchy that keeps its content, weakest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum PersistenceDomain {
    /// Nothing: the memory goes with the process.
    Volatile = 0,
    /// The kernel's memory (shm, tmpfs): outlives the process, not the kernel.
    Process = 1,
    /// The device behind a page cache: a store gets there by msync or fdatasync.
    PageCache = 2,
    /// The memory controller's write queue and the DIMMs (ADR; the papers' DMP): cache lines must be written back.
    Adr = 3,
    /// The CPU caches too (eADR; the papers' MHP): what is visible is durable.
    Eadr = 4,
    /// The whole system, network card included (WSP): only ever declared, by who knows of the battery.
    Wsp = 5,
}

impl PersistenceDomain {
    /// Every domain, weakest first.
    pub const ALL: [Self; 6] =
        [Self::Volatile, Self::Process, Self::PageCache, Self::Adr, Self::Eadr, Self::Wsp];

    /// How much a store must be followed by before it is durable.
    #[must_use]
    pub const fn granularity(self) -> StoreGranularity {
        match self {
            Self::Volatile | Self::Process => StoreGranularity::None,
            Self::PageCache => StoreGranularity::Page,
            Self::Adr => StoreGranularity::CacheLine,
            Self::Eadr | Self::Wsp => StoreGranularity::Byte,
        }
    }

    /// The name that options and machine-readable output use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Volatile => "volatile",
            Self::Process => "process",
            Self::PageCache => "page-cache",
            Self::Adr => "adr",
            Self::Eadr => "eadr",
            Self::Wsp => "wsp",
        }
    }

    /// The domain of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|domain| domain.name() == name)
    }

    /// What data survives in this domain when the platform keeps its word: before psync, and after it.
    #[must_use]
    const fn survives(self) -> (Survives, Survives) {
        match self {
            Self::Volatile => (Survives::NOTHING, Survives::NOTHING),
            Self::Process => (Survives::PROCESS_CRASH, Survives::PROCESS_CRASH),
            // A dirty cache line outlives its process, and may or may not outlive a reset of the machine.
            Self::PageCache | Self::Adr => (Survives::PROCESS_CRASH, Survives::EVERYTHING),
            Self::Eadr | Self::Wsp => (Survives::EVERYTHING, Survives::EVERYTHING),
        }
    }
}

impl fmt::Display for PersistenceDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Volatile => "volatile memory",
            Self::Process => "shared memory",
            Self::PageCache => "page cache",
            Self::Adr => "persistent memory (ADR)",
            Self::Eadr => "persistent memory and caches (eADR)",
            Self::Wsp => "whole system persistence (WSP)",
        })
    }
}

/// The unit in which stores are made durable (libpmem2's term).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StoreGranularity {
    /// What is visible is durable.
    Byte,
    /// Cache lines must be written back.
    CacheLine,
    /// Pages must be written to the device by a system call.
    Page,
    /// Nothing makes a store durable.
    None,
}

/// A set of failures; none by default.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Survives {
    /// The process is killed, or panics.
    pub process_crash: bool,
    /// The kernel panics, or the machine is reset.
    pub os_crash: bool,
    /// The power goes.
    pub power_loss: bool,
}

impl Survives {
    /// No failure at all.
    pub const NOTHING: Self = Self { process_crash: false, os_crash: false, power_loss: false };
    /// A crash of the process only.
    pub const PROCESS_CRASH: Self = Self { process_crash: true, os_crash: false, power_loss: false };
    /// All three failures.
    pub const EVERYTHING: Self = Self { process_crash: true, os_crash: true, power_loss: true };

    /// Three bits for a message: process crash, OS crash, power loss, from the lowest on.
    #[must_use]
    pub const fn to_bits(self) -> u16 {
        self.process_crash as u16 | (self.os_crash as u16) << 1 | (self.power_loss as u16) << 2
    }

    /// The inverse of [`to_bits`](Self::to_bits); higher bits count for nothing.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self { process_crash: bits & 1 != 0, os_crash: bits & 2 != 0, power_loss: bits & 4 != 0 }
    }

    /// What survives in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self::from_bits(self.to_bits() & other.to_bits())
    }
}

impl fmt::Display for Survives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (self.process_crash, "a process crash"),
            (self.os_crash, "an OS crash"),
            (self.power_loss, "a power loss"),
        ];
        let words: Vec<&str> = names.iter().filter(|(yes, _)| *yes).map(|(_, word)| *word).collect();
        match words.as_slice() {
            [] => f.write_str("no failure"),
            [one] => write!(f, "{one} only"),
            [first, second] => write!(f, "{first} and {second}"),
            _ => write!(f, "{}", words.join(", ").replace(", a power", " and a power")),
        }
    }
}

/// What a region promises, small enough to tell a peer: 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Guarantee {
    /// The persistence domain.
    pub domain: PersistenceDomain,
    /// Somebody said so; the machine does not.
    pub declared: bool,
    /// What a visible store survives.
    pub before_psync: Survives,
    /// What it survives once psync has returned.
    pub after_psync: Survives,
}

impl Guarantee {
    /// What a domain promises when the platform keeps its word.
    #[must_use]
    pub const fn of(domain: PersistenceDomain) -> Self {
        let (before_psync, after_psync) = domain.survives();
        Self { domain, declared: false, before_psync, after_psync }
    }

    /// Sixteen bits for a handshake or a header on media: domain 0..3, declared 3, before 4..7, after 7..10.
    #[must_use]
    pub const fn to_bits(self) -> u16 {
        self.domain as u16
            | (self.declared as u16) << 3
            | self.before_psync.to_bits() << 4
            | self.after_psync.to_bits() << 7
    }

    /// The inverse of [`to_bits`](Self::to_bits); `None` for bits that it never makes.
    #[must_use]
    pub fn from_bits(bits: u16) -> Option<Self> {
        let domain = *PersistenceDomain::ALL.get(usize::from(bits & 7))?;
        (bits >> 10 == 0).then(|| Self {
            domain,
            declared: bits & 8 != 0,
            before_psync: Survives::from_bits(bits >> 4),
            after_psync: Survives::from_bits(bits >> 7),
        })
    }

    /// Whether psync makes data survive a power loss, on the machine's own word or a declared one.
    #[must_use]
    pub const fn is_durable(self) -> bool {
        self.after_psync.power_loss
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.domain)?;
        if self.declared {
            f.write_str(", declared and not detected")?;
        }
        if self.before_psync == self.after_psync {
            write!(f, ": data survives {}", self.after_psync)
        } else {
            write!(f, ": data survives {} once persisted, {} before", self.after_psync, self.before_psync)
        }
    }
}

/// The persistence domain of one region: what it promises, on which medium, and how we know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Domain {
    guarantee: Guarantee,
    medium: String,
    caveat: Option<String>,
    evidence: Vec<String>,
}

impl Domain {
    /// What the region promises.
    #[must_use]
    pub const fn guarantee(&self) -> Guarantee {
        self.guarantee
    }

    /// The persistence domain.
    #[must_use]
    pub const fn domain(&self) -> PersistenceDomain {
        self.guarantee.domain
    }

    /// The unit in which stores are made durable.
    #[must_use]
    pub const fn granularity(&self) -> StoreGranularity {
        self.guarantee.domain.granularity()
    }

    /// What holds the data, as a person would name it: "ext4 on vda".
    #[must_use]
    pub fn medium(&self) -> &str {
        &self.medium
    }

    /// What weakens the promise, or what it rests on, if anything.
    #[must_use]
    pub fn caveat(&self) -> Option<&str> {
        self.caveat.as_deref()
    }

    /// The facts that led here, in the order in which they were found.
    #[must_use]
    pub fn evidence(&self) -> &[String] {
        &self.evidence
    }

    /// What acknowledged data survives and where it lies, in so few words that a server says it when it starts; the whole of it is
    /// what [`Display`](fmt::Display) says.
    #[must_use]
    pub fn summary(&self) -> String {
        let Survives { process_crash, os_crash, power_loss } = self.guarantee.after_psync;
        let survives = match (power_loss, os_crash, process_crash) {
            (true, ..) => "a power loss",
            (_, true, _) => "an OS crash, and no power loss",
            (_, _, true) => "a process crash, and no more",
            _ => "no failure",
        };
        let declared = if self.guarantee.declared { ", declared and not detected" } else { "" };
        format!("acknowledged data survives {survives}: {}{declared}", self.medium)
    }

    /// Says that psync writes to a journal of so many bytes, and not to the pages, and whether that is replayed in any case.
    pub(crate) fn journaled(&mut self, len: u64, always: bool) {
        let size = if len >> 20 > 0 { format!("{} MiB", len >> 20) } else { format!("{} KiB", len >> 10) };
        self.medium.push_str(&format!(" with a journal of {size}"));
        self.evidence
            .push(format!("psync writes the lines to a journal of {size} in the file, the pages follow"));
        if always {
            self.guarantee.before_psync = Survives::NOTHING;
            self.evidence
                .push("the journal is replayed by whoever opens the file, whatever was visible".into());
        }
    }

    /// Replaces what was detected by what somebody declares. What goes with the kernel still does: a battery does
    /// not bring a tmpfs through a kernel panic.
    fn declare(&mut self, declared: PersistenceDomain) {
        let detected = self.guarantee.domain;
        self.evidence.push(format!("{} was detected, {} declared", detected.name(), declared.name()));
        self.guarantee = Guarantee { declared: true, ..Guarantee::of(declared) };
        if detected == PersistenceDomain::Process {
            self.guarantee.before_psync.os_crash = false;
            self.guarantee.after_psync.os_crash = false;
        }
        self.caveat = None;
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.medium, self.guarantee)?;
        match &self.caveat {
            Some(caveat) => write!(f, " ({caveat})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_each_failure() {
        let page = Guarantee::of(PersistenceDomain::PageCache);
        assert_eq!(
            page.to_string(),
            "page cache: data survives a process crash, an OS crash and a power loss once persisted, a process \
             crash only before"
        );
        let shm = Guarantee::of(PersistenceDomain::Process);
        assert_eq!(shm.to_string(), "shared memory: data survives a process crash only");
        let none = Guarantee::of(PersistenceDomain::Volatile);
        assert_eq!(none.to_string(), "volatile memory: data survives no failure");
    }

    #[test]
    fn a_guarantee_goes_through_its_bits() {
        for domain in PersistenceDomain::ALL {
            for declared in [false, true] {
                let guarantee = Guarantee { declared, ..Guarantee::of(domain) };
                assert_eq!(Guarantee::from_bits(guarantee.to_bits()), Some(guarantee));
            }
            assert_eq!(PersistenceDomain::from_name(domain.name()), Some(domain));
        }
        assert_eq!(Guarantee::from_bits(6), None, "no domain has this number");
        assert_eq!(Guarantee::from_bits(1 << 10), None, "unknown bits are refused");
    }

    #[test]
    fn a_declared_domain_says_so_and_keeps_what_the_kernel_loses() {
        let mut domain = Domain {
            guarantee: Guarantee::of(PersistenceDomain::Process),
            medium: "tmpfs".to_owned(),
            caveat: None,
            evidence: Vec::new(),
        };
        domain.declare(PersistenceDomain::Wsp);
        assert!(domain.to_string().contains("declared and not detected"), "{domain}");
        assert!(!domain.guarantee().after_psync.os_crash);
        assert!(domain.guarantee().after_psync.power_loss);
    }

    #[test]
    fn only_page_cache_and_adr_gain_by_psync() {
        for domain in PersistenceDomain::ALL {
            let guarantee = Guarantee::of(domain);
            let gains = guarantee.before_psync != guarantee.after_psync;
            let works = matches!(domain.granularity(), StoreGranularity::Page | StoreGranularity::CacheLine);
            assert_eq!(gains, works, "{domain}");
        }
    }
}
