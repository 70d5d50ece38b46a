//! A node's end of all its sessions: the endpoint of `rpc` as it is, with a clock, datagrams, and what was drawn for this life.

use std::sync::Arc;
use std::time::Duration;

use remanence_rnic::time::Instant;
use remanence_rpc::Token;
use remanence_rpc::core::config::Config;
use remanence_rpc::core::endpoint::{Endpoint, Stats};
use remanence_rpc::core::event::RequestId;
use remanence_rpc::core::heap::{Datagram, Heap};
use remanence_rpc::header::{Address, HEADER_LEN, Repr, Status};
use remanence_wire::{Gid, Qpn};

use super::oracle::Oracle;
use crate::cluster::core::Host;
use crate::cluster::{Input, NodeId};
use crate::rng::Rng;

/// The token of all but strangers, and theirs.
const TOKENS: [&str; 2] = ["correct-horse-battery", "correct-horse-batterz"];
/// The number of the first node's QP.
const QPN: u32 = 16;

/// Where a node is.
pub(super) fn address(node: NodeId) -> Address {
    let [high, low] = (node as u16).to_be_bytes();
    Address { gid: Gid::from_ip([10, 0, high, low].into()), qpn: Qpn::new(QPN + node as u32) }
}

/// Who is there.
pub(super) const fn node_at(address: Address) -> NodeId {
    (address.qpn.value() - QPN) as NodeId
}

pub(super) struct End {
    pub(super) core: Endpoint<Heap>,
    heap: Heap,
    /// What was counted of it.
    counted: Stats,
}

impl End {
    pub(super) fn boot(host: &Host<'_, Oracle>) -> Self {
        let (node, oracle) = (host.node(), host.known());
        let plan = &oracle.plan;
        // Without what guards against it, one that starts anew says and draws what it did in its last life.
        let life = if plan.guarded { host.life() } else { 0 };
        let mut rng = Rng::new(oracle.seed, (6000 + node as u64) << 32 ^ u64::from(life));
        let mut secret = [0; 32];
        secret.chunks_mut(8).for_each(|word| word.copy_from_slice(&rng.u64().to_be_bytes()));
        let token = TOKENS[usize::from(oracle.is_stranger(node))];
        let config = Config {
            incarnation: u64::from(life) + 1,
            seed: rng.u64(),
            token: (plan.strangers > 0).then(|| Token::new(token).expect("a fair token")),
            secret,
            own: address(node),
            datagram: plan.datagram,
            message_max: 1 << 20,
            credits: plan.credits,
            backlog: 64,
            sessions_max: 64,
            timeout_min: Duration::from_micros(500),
            timeout_max: Duration::from_millis(20),
            probe: Duration::from_millis(2),
            patience: Duration::from_millis(200),
            ping: Duration::from_millis(50),
            silence_max: Duration::from_millis(400),
            queueing: Duration::from_micros(100),
        };
        let heap = Heap { largest: None, short: plan.short[node] };
        Self { core: Endpoint::new(config), heap, counted: Stats::default() }
    }

    pub(super) fn now(host: &Host<'_, Oracle>) -> Instant {
        Instant::ZERO + host.now()
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.core.poll_timeout().map(|at| at.since(Instant::ZERO))
    }

    /// Takes what has come, and does what is due.
    pub(super) fn take(&mut self, input: Input, host: &mut Host<'_, Oracle>) {
        let now = Self::now(host);
        if let Input::Datagram { from, bytes } = input {
            host.tell(format_args!("hears of node {from}: {:?}", header(&bytes)));
            self.core.handle_packet(now, &mut self.heap, address(from), Datagram(bytes));
        }
        self.core.handle_timeout(now);
    }

    /// Answers a request.
    pub(super) fn respond(&mut self, id: RequestId, status: Status, bytes: Vec<u8>) {
        let length = bytes.len() as u32;
        let message = (length > 0).then(|| Arc::new(bytes));
        self.core.respond(id, status, message, length);
    }

    /// Sends what may leave.
    pub(super) fn transmit(&mut self, host: &mut Host<'_, Oracle>) {
        let now = Self::now(host);
        while let Some(transmit) = self.core.poll_transmit(now) {
            let (to, Datagram(bytes)) = (node_at(transmit.to), Datagram::of(&transmit));
            if bytes.len() > host.known().plan.datagram {
                host.core().wrong(format!("a datagram of {} bytes", bytes.len()));
            }
            host.tell(format_args!("says to node {to}: {:?}", header(&bytes)));
            host.datagram(to, bytes);
        }
        let stats = *self.core.stats();
        let was = std::mem::replace(&mut self.counted, stats);
        let work = &mut host.oracle().work;
        work.timeouts += stats.timeouts - was.timeouts;
        work.stale += stats.stale - was.stale;
        work.strange += stats.unknown - was.unknown;
        work.misbehaved += stats.misbehaved - was.misbehaved;
        if stats.malformed > 0 {
            host.core().wrong("what a node sent is no packet".into());
        }
        if stats.misbehaved > 0 && host.known().plan.strangers == 0 {
            host.core().wrong("a rule is taken for broken that no network breaks".into());
        }
    }
}

/// What a datagram begins with.
fn header(bytes: &[u8]) -> Option<Repr> {
    Repr::parse(bytes.first_chunk::<HEADER_LEN>()?).ok()
}
