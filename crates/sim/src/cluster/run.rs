//! Processes on the nodes, and faults that happen to them.

use remanence_pmem::crash_image::Failure;

use super::core::{Core, Event, Host, tell};
use super::fault::{Fault, Kind, Way};
use super::{Input, NodeId, Process};

/// Events that one run may take. Thousands are usual; a loop without an end is a violation.
const EVENTS_MAX: u64 = 1_000_000;

/// A cluster, and what runs on it.
#[derive(Debug)]
pub(super) struct Cluster<P: Process> {
    pub(super) core: Core<P::Oracle>,
    processes: Vec<Option<P>>,
}

impl<P: Process> Cluster<P> {
    /// All nodes start, and faults come when they come.
    pub(super) fn new(mut core: Core<P::Oracle>, faults: &[Fault]) -> Self {
        core.faults = faults.to_vec();
        for (n, fault) in faults.iter().enumerate() {
            core.queue.push(fault.at, Event::Begin(n));
            core.queue.push(fault.ends(), Event::End(n));
        }
        let processes = core.nodes.iter().map(|_| None).collect();
        let mut cluster = Self { core, processes };
        (0..cluster.processes.len()).for_each(|node| cluster.boot(node));
        cluster
    }

    /// Runs until the service says that it is over, for so long at most.
    pub(super) fn run(&mut self, limit: u64) {
        while self.core.what_is_wrong().is_none() {
            if P::look(&mut self.core, &mut self.processes) {
                return;
            }
            let Some(event) = self.core.queue.pop() else {
                return self.core.wrong("nothing will ever happen again".into());
            };
            self.core.counts.events += 1;
            self.core.trace.hash(self.core.now());
            if self.core.now() > limit || self.core.counts.events > EVENTS_MAX {
                return self.core.wrong("it does not come to an end".into());
            }
            match event {
                Event::Begin(n) => self.begin(n),
                Event::End(n) => self.end(n),
                event => {
                    if let Some((node, input)) = self.core.happens(event) {
                        self.deliver(node, input);
                    }
                    self.look_for_power();
                }
            }
        }
    }

    fn deliver(&mut self, node: NodeId, input: Input) {
        let Some(process) = &mut self.processes[node] else { return };
        self.core.begins(node);
        process.on(input, &mut Host { core: &mut self.core, node });
        self.core.ends(node, process.deadline());
    }

    fn boot(&mut self, node: NodeId) {
        let state = &mut self.core.nodes[node];
        (state.is_up, state.down_by) = (true, None);
        self.core.begins(node);
        match P::boot(&mut Host { core: &mut self.core, node }) {
            Ok(process) => {
                self.core.ends(node, process.deadline());
                self.processes[node] = Some(process);
                tell!(self.core, "{} starts", self.core.nodes[node].name);
            }
            Err(why) => {
                let why = format!("{} does not start: {why}", self.core.nodes[node].name);
                self.core.wrong(why);
            }
        }
    }

    fn crash(&mut self, node: NodeId, failure: Failure, fault: usize) {
        let salt = self.core.faults[fault].salt;
        self.processes[node] = None;
        self.core.crash(node, failure, salt);
        self.core.nodes[node].down_by = Some(fault);
    }

    /// Nodes whose power has gone in the middle of something.
    fn look_for_power(&mut self) {
        for node in 0..self.core.nodes.len() {
            if self.core.nodes[node].power.is_gone() {
                let within =
                    |fault: &Fault| fault.node == node && matches!(fault.kind, Kind::PowerLossWithin(_));
                let now = self.core.now();
                // Of several the one that ends last, so that it is up again when all are over.
                let faults = self.core.faults.iter().enumerate();
                let fault =
                    faults.filter(|(_, f)| within(f) && f.at <= now).max_by_key(|(n, f)| (f.ends(), *n));
                let fault = fault.map(|(n, _)| n).expect("something has cut it");
                (self.core.counts.power_losses, self.core.counts.power_losses_within) =
                    (self.core.counts.power_losses + 1, self.core.counts.power_losses_within + 1);
                self.crash(node, Failure::PowerLoss, fault);
            }
        }
    }

    fn begin(&mut self, n: usize) {
        let fault = self.core.faults[n];
        let node = fault.node;
        self.core.trace.hash(0xfa << 32 ^ n as u64);
        if self.core.trace.is_on() {
            let sentence = fault.sentence(&self.core.names());
            self.core.line(format_args!("fault {n}: {sentence}"));
        }
        if let Kind::Aimed(aim) = fault.kind {
            return self.core.aims.push((n, aim.nth));
        }
        if !self.core.nodes[node].is_up {
            return;
        }
        let counts = &mut self.core.counts;
        match fault.kind {
            Kind::Pause => {
                counts.pauses += 1;
                self.core.nodes[node].stopped.push(n);
            }
            Kind::Kill => {
                counts.kills += 1;
                self.crash(node, Failure::ProcessCrash, n);
            }
            Kind::PowerLoss => {
                counts.power_losses += 1;
                self.crash(node, Failure::PowerLoss, n);
            }
            Kind::PowerLossWithin(syncs) => self.core.nodes[node].power.goes_after(syncs, fault.salt),
            Kind::DiskLost => {
                let lost = P::new_disks(&mut self.core, &self.processes, node);
                self.crash(node, Failure::PowerLoss, n);
                if lost.is_none() {
                    self.core.counts.power_losses += 1;
                }
                if let Some(disks) = lost {
                    self.core.counts.disks_lost += 1;
                    tell!(self.core, "{} has lost its disk", self.core.nodes[node].name);
                    self.core.plug_in(node, disks);
                }
            }
            Kind::Rots => {
                counts.power_losses += 1;
                self.crash(node, Failure::PowerLoss, n);
                if P::rots(&mut self.core, &self.processes, node, fault.salt) {
                    self.core.counts.rotted += 1;
                    tell!(self.core, "something rots on {}", self.core.nodes[node].name);
                }
            }
            Kind::MediumFails => {
                counts.media_failed += 1;
                self.core.nodes[node].disks.iter().for_each(super::disk::Disk::fail);
            }
            Kind::SyncFails => {
                counts.media_failed += 1;
                self.core.nodes[node].disks.iter().for_each(super::disk::Disk::fail_once);
            }
            Kind::DiskFails(disk) => {
                counts.media_failed += 1;
                self.core.nodes[node].disks[disk].fail();
            }
            Kind::Hangs => {
                counts.hung += 1;
                let now = self.core.now();
                self.core.nodes[node].hangs.insert(n, now);
            }
            Kind::SlowDisk(times) => {
                counts.slow += 1;
                self.core.nodes[node].slow_disk.insert(n, times);
            }
            Kind::SlowLink(times) => {
                counts.slow += 1;
                self.core.nodes[node].slow_link.insert(n, times);
            }
            Kind::Datagrams(harm, percent) => {
                self.core.nodes[node].harms.insert(n, (harm, percent));
            }
            Kind::Aimed(_) => {}
            Kind::Linger(client) => {
                counts.lingered += 1;
                self.core.linger(client, fault.ends());
            }
            Kind::Partition(peer, way) => {
                counts.partitions += 1;
                let until = fault.ends();
                let blocked = &mut self.core.blocked;
                let mut block = |from: usize, to: usize| blocked[from][to] = blocked[from][to].max(until);
                if way != Way::In {
                    block(node, peer);
                }
                if way != Way::Out {
                    block(peer, node);
                }
            }
        }
    }

    fn end(&mut self, n: usize) {
        let Fault { node, kind, .. } = self.core.faults[n];
        match kind {
            Kind::Pause if self.core.nodes[node].stopped.contains(&n) => self.core.goes_on(node, n),
            Kind::PowerLossWithin(_) if self.core.nodes[node].is_up => self.core.nodes[node].power.stays(),
            // Whoever looks after it takes the disk out, with what is durable on it, and starts the machine again.
            Kind::MediumFails | Kind::SyncFails | Kind::DiskFails(_) if self.core.nodes[node].is_up => {
                self.crash(node, Failure::PowerLoss, n);
            }
            Kind::Aimed(_) => self.core.aims.retain(|(aim, _)| *aim != n),
            Kind::Hangs => self.core.answers(node, n),
            Kind::SlowDisk(_) => drop(self.core.nodes[node].slow_disk.remove(&n)),
            Kind::Datagrams(..) => drop(self.core.nodes[node].harms.remove(&n)),
            Kind::SlowLink(_) => drop(self.core.nodes[node].slow_link.remove(&n)),
            _ => {}
        }
        if self.core.nodes[node].down_by == Some(n) {
            self.boot(node);
        }
    }
}
