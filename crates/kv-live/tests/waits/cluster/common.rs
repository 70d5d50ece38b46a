//! Members of a test's own, all in this process, each with an address and a directory of its own.
#![allow(dead_code, reason = "each test program uses a part")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use remanence_kv_live::{
    ConnectOptions, Error, Member, MemberMetrics, MemberOptions, MemberStats, Role, Stop, Store,
};
use remanence_verbs::Context;
use tempfile::TempDir;

use super::live::{PATIENCE, address, context, options};

pub(crate) const SIZE: u64 = 4 << 20;
/// Where clients reach the members: at addresses of their own, so at the same port.
const PORT: u16 = 7471;

type Change = fn(MemberOptions) -> MemberOptions;

/// One member: its place, and its thread while it runs.
pub(crate) struct Host {
    pub(crate) addr: SocketAddr,
    dir: PathBuf,
    running: Option<Running>,
}

struct Running {
    metrics: MemberMetrics,
    stop: Stop,
    thread: JoinHandle<Result<MemberStats, Error>>,
}

/// A store on several members.
pub(crate) struct Cluster {
    pub(crate) hosts: Vec<Host>,
    pub(crate) change: Change,
    dir: TempDir,
}

impl Cluster {
    pub(crate) fn new(count: usize, change: Change) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let hosts = (0..count)
            .map(|n| Host {
                addr: SocketAddr::new(address(), PORT),
                dir: dir.path().join(format!("m{n}")),
                running: None,
            })
            .collect();
        let mut this = Self { hosts, change, dir };
        (0..count).for_each(|n| this.start(n));
        this
    }

    pub(crate) fn members(&self) -> Vec<(String, SocketAddr)> {
        self.hosts.iter().map(|host| (host.addr.to_string(), host.addr)).collect()
    }

    pub(crate) fn addrs(&self) -> Vec<SocketAddr> {
        self.hosts.iter().map(|host| host.addr).collect()
    }

    pub(crate) fn options(&self, n: usize) -> MemberOptions {
        let options = MemberOptions::directory(&self.hosts[n].dir, self.members())
            .size(SIZE)
            .lease(Duration::from_secs(60))
            .notice(Duration::from_secs(3));
        (self.change)(options)
    }

    pub(crate) fn start(&mut self, n: usize) {
        let options = self.options(n);
        let context =
            Context::open(remanence_verbs::Options::udp(self.hosts[n].addr.ip())).expect("a device");
        let mut member = Member::bind(&context, PORT, options).expect("a member");
        let (metrics, stop) = (member.metrics(), Stop::new());
        let stopping = stop.clone();
        let thread = std::thread::spawn(move || member.run(&stopping));
        self.hosts[n].running = Some(Running { metrics, stop, thread });
    }

    /// Ends a member.
    pub(crate) fn stop(&mut self, n: usize) {
        let running = self.hosts[n].running.take().expect("it runs");
        running.stop.ask();
        running.thread.join().expect("the member's thread").expect("it ends well");
    }

    /// All that the member had is gone.
    pub(crate) fn lose_disk(&self, n: usize) {
        assert!(self.hosts[n].running.is_none(), "it is in use");
        std::fs::remove_dir_all(&self.hosts[n].dir).expect("it was there");
    }

    pub(crate) fn dir_of(&self, n: usize) -> PathBuf {
        self.hosts[n].dir.clone()
    }

    /// All have ended; what they have stays as long as this.
    pub(crate) fn ended(mut self) -> Self {
        (0..self.hosts.len()).for_each(|n| self.stop(n));
        self
    }

    /// The member has this in its directory, and nothing of its own.
    pub(crate) fn replace_dir(&self, n: usize, with: &std::path::Path) {
        self.lose_disk(n);
        std::fs::create_dir(&self.hosts[n].dir).expect("there is none");
        for file in ["image", "log", "ledger"] {
            std::fs::copy(with.join(file), self.hosts[n].dir.join(file)).expect("a copy");
        }
    }

    /// Whether a member that was started runs no more.
    pub(crate) fn has_ended(&self, n: usize) -> bool {
        self.hosts[n].running.as_ref().is_none_or(|running| running.thread.is_finished())
    }

    /// Why the member ends by itself.
    pub(crate) fn fails(&mut self, n: usize) -> String {
        self.start(n);
        let running = self.hosts[n].running.take().expect("it runs");
        let begin = Instant::now();
        while !running.thread.is_finished() {
            assert!(begin.elapsed() < PATIENCE, "it goes on: {:?}", running.metrics.read());
            std::thread::sleep(Duration::from_millis(5));
        }
        let ended = running.thread.join().expect("the member's thread");
        ended.expect_err("it ends for a reason").to_string()
    }

    pub(crate) fn said(&self, n: usize) -> Option<MemberStats> {
        self.hosts[n].running.as_ref().map(|running| running.metrics.read())
    }

    pub(crate) fn metrics(&self, n: usize) -> MemberMetrics {
        self.hosts[n].running.as_ref().expect("it runs").metrics.clone()
    }

    /// Waits until the members are in a state.
    pub(crate) fn wait<T>(&self, what: &str, is: impl Fn(&Self) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(found) = is(self) {
                return found;
            }
            if begin.elapsed() >= PATIENCE {
                let said: Vec<_> = (0..self.hosts.len()).map(|n| self.said(n)).collect();
                panic!("{what}: {said:#?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Which member is the primary, once one is.
    pub(crate) fn primary(&self) -> usize {
        self.wait("a primary", |this| {
            (0..this.hosts.len()).find(|n| this.said(*n).is_some_and(|said| said.role == Role::Primary))
        })
    }

    /// Waits until the primary has all members, with images.
    pub(crate) fn whole(&self) {
        self.wait("all members", |this| {
            let said = (0..this.hosts.len()).map(|n| this.said(n)).collect::<Option<Vec<_>>>()?;
            let primary = said.iter().find(|said| said.role == Role::Primary)?;
            // Who is new has not been taken in yet.
            let whole = |said: &MemberStats| said.acks > 0 && said.complete && said.applied >= said.first;
            (primary.lost.is_empty() && primary.of == 0 && said.iter().all(whole)).then_some(())
        });
    }

    pub(crate) fn client(&self) -> Store {
        Store::connect_members(&context(), &self.addrs(), patient()).expect("connected")
    }
}

pub(crate) fn patient() -> ConnectOptions {
    options().patience(PATIENCE)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for host in &self.hosts {
            if let Some(running) = &host.running {
                running.stop.ask();
            }
        }
        for host in &mut self.hosts {
            if let Some(running) = host.running.take() {
                let _ = running.thread.join();
            }
        }
    }
}
