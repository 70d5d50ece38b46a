//! Where clients come first: whom this member has promised its log to, for one-sided READs, and what it says of itself.

use std::net::SocketAddr;
use std::sync::Arc;

use remanence_pmem::Region;
use remanence_remote::Stop;
use remanence_remotelog::OwnLog;
use remanence_verbs::Context;

use super::node::Node;
use super::wire::export;
use super::{MEMBERS, MemberOptions, config};
use crate::Error;
use remanence_kv::replica::Promise;

/// Receive buffers of a session, and bytes of each.
const SLOTS: u16 = 4;
const SLOT: u32 = 8 << 10;

/// Where clients come to a member: memory that they read, and the server that answers them.
#[derive(Debug)]
pub(super) struct PromiseServer {
    server: remanence_remote::Server,
    exported: Region,
}

impl PromiseServer {
    pub(super) fn bind(context: &Context, port: u16, options: &MemberOptions) -> Result<Self, Error> {
        let exported = Region::anonymous(4096)?;
        let served = remanence_remote::ServerOptions::new(context, exported.clone(), port)
            .serves("a member of a key-value store")
            .declare(config())
            .without_buffers()
            .sessions(options.common.clients + 2 * options.members.len() as u16)
            .messages(SLOTS, SLOT)
            // To be read, and not to be written.
            .guarded();
        Ok(Self { server: remanence_remote::Server::bind(options.common.with_access(served))?, exported })
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// Exports what the log promises, before it promises it, and tells a primary if that is another promise. What this member has is
    /// looked at whenever the log was asked for something.
    pub(super) fn watch(&self, log: &OwnLog, node: &Arc<Node>) {
        let asked = Arc::downgrade(node);
        log.when_answered(move || {
            if let Some(node) = asked.upgrade() {
                node.seen();
            }
        });
        let (exported, node, mut promised) = (self.exported.clone(), Arc::downgrade(node), None);
        log.watch(move |state| {
            let bytes = export(&Promise::of(state));
            for (n, word) in bytes.chunks_exact(8).enumerate() {
                let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
                exported.store_u64(8 * n as u64, word.to_le());
            }
            // It looks when the log can be looked at, which is when the promise is made.
            if promised.replace(state.promised) != Some(state.promised)
                && let Some(node) = node.upgrade()
            {
                node.wake_primary();
            }
        });
    }

    /// Answers clients that ask what this member is.
    pub(super) fn on_call(&mut self, said: impl Fn() -> Vec<u8> + Send + 'static) {
        self.server.on_call(MEMBERS, move |_| Ok(said()));
    }

    pub(super) fn run(&mut self, stop: &Stop) -> Result<(), Error> {
        self.server.run(stop)?;
        Ok(())
    }
}
