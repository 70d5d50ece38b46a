//! What a server of a store and a member of one are told alike.

use std::time::Duration;

use remanence_pmem::{Journaling, PersistenceDomain};
use remanence_remote::Token;

use remanence_kv::format::Geometry;

/// The options of both.
#[derive(Clone, Debug)]
pub(super) struct Common {
    pub(super) size: Option<u64>,
    pub(super) geometry: Option<Geometry>,
    pub(super) keys: Option<u64>,
    pub(super) declared: Option<PersistenceDomain>,
    pub(super) journal: Journaling,
    pub(super) lease: Duration,
    pub(super) clients: u16,
    pub(super) clean: bool,
    pub(super) token: Option<Token>,
    pub(super) readers: Option<Token>,
    pub(super) insecure: bool,
}

impl Common {
    pub(super) const NEW: Self = Self {
        size: None,
        geometry: None,
        keys: None,
        declared: None,
        journal: Journaling::IfMade,
        lease: Duration::from_secs(2),
        clients: 64,
        clean: true,
        token: None,
        readers: None,
        insecure: false,
    };

    /// With what is said here of who may come, for the access policy of a server.
    pub(super) fn with_access(
        &self,
        mut options: remanence_remote::ServerOptions,
    ) -> remanence_remote::ServerOptions {
        if let Some(token) = &self.token {
            options = options.token(token.clone());
        }
        if let Some(readers) = &self.readers {
            options = options.reader_token(readers.clone());
        }
        if self.insecure { options.insecure() } else { options }
    }
}

/// The builders of the options that are alike, for a type that has them as `common`.
macro_rules! common_options {
    () => {
        /// How a new store is divided; 4 KiB of the medium stay behind it. The paper's proportions if nothing is said.
        #[must_use]
        pub const fn geometry(mut self, geometry: Geometry) -> Self {
            self.common.geometry = Some(geometry);
            self
        }

        /// For how many keys the first table of a new store is made. It grows when it must.
        #[must_use]
        pub const fn keys(mut self, count: u64) -> Self {
            self.common.keys = Some(count);
            self
        }

        /// Takes the operator's word for the persistence domain of what it keeps, where the machine does not tell.
        #[must_use]
        pub const fn declare(mut self, domain: PersistenceDomain) -> Self {
            self.common.declared = Some(domain);
            self
        }

        /// Whether what it keeps on a disk is made durable by way of a journal; files that it makes are, if nothing is said.
        #[must_use]
        pub const fn journal(mut self, journal: remanence_pmem::Journaling) -> Self {
            self.common.journal = journal;
            self
        }

        /// How long a client may take to finish a write or to get on with it, or to acknowledge a view, before it is cut off; 2 s
        /// if nothing is said. Nothing depends on it for being right, only for how long others wait.
        #[must_use]
        pub const fn lease(mut self, time: Duration) -> Self {
            self.common.lease = time;
            self
        }

        /// Clients at a time from one address, and a quarter more from others; 64 if nothing is said.
        #[must_use]
        pub const fn clients(mut self, count: u16) -> Self {
            self.common.clients = count;
            self
        }

        /// Whether logs are cleaned when free regions run low, without being asked; yes if nothing is said.
        #[must_use]
        pub const fn clean_by_itself(mut self, yes: bool) -> Self {
            self.common.clean = yes;
            self
        }

        /// Admits clients that prove to have this token, too. They may look at everything, and change nothing: what they ask
        /// for is refused ([`Refusal::ReadOnly`](remanence_kv::proto::Refusal::ReadOnly)), and their RNIC has no right to. There must
        /// be a token for the others, and another one.
        #[must_use]
        pub fn reader_token(mut self, token: Token) -> Self {
            self.common.readers = Some(token);
            self
        }

        /// Lets others than this machine reach it without a token: they may read and write the store's memory.
        #[must_use]
        pub const fn insecure(mut self) -> Self {
            self.common.insecure = true;
            self
        }
    };
}

pub(super) use common_options;
