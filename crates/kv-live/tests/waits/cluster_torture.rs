//! A store on three real processes, killed with SIGKILL at any moment under load, with and without their disks. Nothing
//! acknowledged is lost, nothing torn is ever served, and each key's history, over all takeovers and rebuilds, is one that a
//! register could have had.
//!
//! `REMANENCE_ROUNDS=N` kills N times (3 if nothing is said), `REMANENCE_SEED=n` draws another story. What is killed
//! when does not follow from the seed alone, as the machine has its say.

use crate::servers as live;
use crate::torture::{client, harness};

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use harness::{PATIENCE, Story, Victim, asked, client_part, part, start};
use remanence_effort::Process;
use remanence_kv::Geometry;
use remanence_kv_live::{ConnectOptions, Member, MemberOptions, MemberStats, Role, Stop, Store};
use remanence_pmem::crash_image::{Choices, Seeded};
use remanence_verbs::Context;

const MEMBERS: usize = 3;
const PORT: u16 = 7471;
/// Small regions, so that logs are cleaned all the time, and a small log, so that images are needed.
const GEOMETRY: Geometry =
    Geometry { size: 4 << 20, region_len: 64 << 10, segment_len: 16 << 10, heads: 2, grown_from: 0 };
const SIZE: u64 = GEOMETRY.size + 4096;

fn addrs(list: &str) -> Vec<SocketAddr> {
    list.split(',').map(|text| text.parse().expect("an address")).collect()
}

/// Not a test by itself: the member that is killed.
#[test]
fn be_a_member() {
    let Some([at, list, dir]) = part() else { return };
    let at: SocketAddr = at.parse().expect("an address");
    let members = addrs(&list).into_iter().map(|addr| (addr.to_string(), addr)).collect();
    let context = Context::open(remanence_verbs::Options::udp(at.ip())).expect("a device on loopback");
    let options = MemberOptions::directory(dir, members)
        .size(SIZE)
        .log(1 << 20)
        .geometry(GEOMETRY)
        .keys(64)
        .notice(Duration::from_millis(700))
        .lease(Duration::from_secs(2));
    let mut member = Member::bind(&context, at.port(), options).expect("a member");
    println!("\nready {}", member.addr());
    member.run(&Stop::new()).expect("it is a member");
}

/// Not a test by itself: a client that is killed.
#[test]
fn be_a_client() {
    let Some((to, lane, first, seed)) = client_part() else { return };
    let (context, members) = (live::context(), addrs(&to));
    client::work(|options| Store::connect_members(&context, &members, options), lane, first, seed);
}

struct Cluster {
    seed: u64,
    dirs: Vec<PathBuf>,
    at: Vec<SocketAddr>,
    members: Vec<Option<Process>>,
    context: Context,
    killed: u64,
    /// Of them with all that they had.
    disks: u64,
    /// A member that lost its disk may not have been rebuilt.
    lacking: bool,
}

impl Cluster {
    fn serve(&mut self, n: usize) {
        let part = format!("{} {} {}", self.at[n], self.address(), self.dirs[n].display());
        let mut member = start("cluster_torture::be_a_member", part);
        assert!(member.after("ready ").is_some(), "member {n} does not start");
        self.members[n] = Some(member);
    }

    fn control(&self) -> Store {
        let options: ConnectOptions = live::options().patience(PATIENCE);
        Store::connect_members(&self.context, &self.at, options).expect("a primary")
    }

    /// Waits until the members say so.
    fn wait<T>(&self, what: &str, is: impl Fn(&[Option<MemberStats>]) -> Option<T>) -> T {
        let begin = Instant::now();
        let mut store = self.control();
        loop {
            let said: Vec<Option<MemberStats>> =
                store.members().expect("members").into_iter().map(|(_, said)| said.ok()).collect();
            if let Some(found) = is(&said) {
                return found;
            }
            assert!(begin.elapsed() < PATIENCE, "{what}: {said:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Which member serves: of two that say so, the later.
    fn primary(&self) -> (usize, u64) {
        self.wait("a primary", |said| {
            let primaries = said.iter().enumerate().filter_map(|(n, said)| Some((n, said.as_ref()?)));
            let primaries = primaries.filter(|(_, said)| said.role == Role::Primary);
            primaries.map(|(n, said)| (n, said.epoch.0)).max_by_key(|(_, epoch)| *epoch)
        })
    }

    /// Every member has an image, and follows.
    fn whole(&self) {
        self.wait("all members are whole", |said| {
            let all: Vec<&MemberStats> = said.iter().flatten().collect();
            let primary =
                all.iter().filter(|said| said.role == Role::Primary).max_by_key(|said| said.epoch)?;
            let whole = |said: &&MemberStats| said.complete && said.applied >= said.first && said.acks > 0;
            let settled = all.len() == MEMBERS && primary.lost.is_empty() && primary.of == 0;
            (settled && all.iter().all(whole)).then_some(())
        });
    }
}

impl Victim for Cluster {
    const CLIENTS: u64 = 2;
    const EPOCH: u64 = 6;
    const CLIENT: &'static str = "cluster_torture::be_a_client";

    fn name(&self) -> String {
        format!("{MEMBERS} members, seed {}", self.seed)
    }

    fn begin(&mut self) {
        (0..MEMBERS).for_each(|n| self.serve(n));
        self.whole();
    }

    fn address(&self) -> String {
        self.at.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    fn round(&mut self, story: &mut Story, _: u64) {
        let (primary, served) = self.primary();
        let follower = (primary + 1 + story.choices.pick(MEMBERS - 1)) % MEMBERS;
        let (victims, disk) = match story.choices.pick(12) {
            0..5 => (vec![primary], false),
            5..7 => (vec![follower], false),
            7 => (vec![follower], true),
            8 => (vec![primary], true),
            9 => (vec![primary, follower], false),
            10 => ((0..MEMBERS).collect(), false),
            _ => {
                story.kill_clients(1);
                story.new_clients(1);
                return;
            }
        };
        if disk || self.lacking {
            // Fewer disks than acknowledge are lost at a time, and a member counts as lost until it is rebuilt: with another one down
            // nobody can take over.
            self.whole();
            self.lacking = false;
        }
        for victim in &victims {
            self.members[*victim] = None;
            self.killed += 1;
        }
        if disk {
            std::fs::remove_dir_all(&self.dirs[victims[0]]).expect("it was there");
            self.disks += 1;
            self.lacking = true;
        }
        // While enough are left, clients go on.
        if victims.len() == 1 {
            story.under_load();
        }
        for victim in &victims {
            self.serve(*victim);
        }
        if victims.contains(&primary) {
            self.wait("another primary", |said| {
                let later = |said: &&MemberStats| said.role == Role::Primary && said.epoch.0 > served;
                said.iter().flatten().any(|said| later(&said)).then_some(())
            });
            story.restarted();
        }
    }

    fn revive(&mut self) -> Store {
        self.members.iter_mut().for_each(|member| *member = None);
        (0..MEMBERS).for_each(|n| self.serve(n));
        self.control()
    }

    fn killed(&self) -> String {
        format!("{} members, {} of them with their disks,", self.killed, self.disks)
    }
}

#[test]
fn nothing_is_lost_or_torn_whichever_member_dies() {
    let seed = asked("REMANENCE_SEED").unwrap_or(1);
    let (dir, boards) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir_in("/dev/shm").expect("a directory"));
    let mut cluster = Cluster {
        seed,
        dirs: (0..MEMBERS).map(|n| dir.path().join(format!("m{n}"))).collect(),
        at: (0..MEMBERS).map(|_| SocketAddr::new(live::address(), PORT)).collect(),
        members: (0..MEMBERS).map(|_| None).collect(),
        context: live::context(),
        killed: 0,
        disks: 0,
        lacking: false,
    };
    harness::torture(3, &boards, Seeded::new(seed), &mut cluster);
}
