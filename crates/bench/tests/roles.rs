//! What becomes of a burst whose processes fail: each end's own sentence is in the error, and the next one finds both well again.
//!
//! This program has no test harness: started with the arguments `bench-agent ROLE` it is one of the processes.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use remanence_bench::role::{Causes, Launcher, PATIENCE, Pair, Role, serve_controller};
use remanence_remote::Stop;
use serde::{Deserialize, Serialize};

/// What an end does when it is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Behaviour {
    Answer,
    Refuse,
    Panic,
    Die,
    Hang,
}

fn act(who: &str, behaviour: Behaviour) -> Result<u64, String> {
    match behaviour {
        Behaviour::Answer => Ok(std::process::id().into()),
        Behaviour::Refuse => Err(format!("{who} does not like it")),
        Behaviour::Panic => panic!("{who} panics, as it is to"),
        Behaviour::Die => std::process::abort(),
        Behaviour::Hang => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
    }
}

fn until(stop: &Stop) {
    let this = std::thread::current();
    let _wakes = stop.wakes(move || this.unpark());
    while !stop.is_asked() {
        std::thread::park();
    }
}

/// Serves a burst, and then does what it is to.
struct Server;

impl Role for Server {
    const WORD: &'static str = "server";
    type Spec = Behaviour;
    type Here = u32;
    type Peer = u32;
    type Burst = Behaviour;
    type Values = ();

    fn open(behaviour: Behaviour) -> Result<(Self, u32), String> {
        act("its open", behaviour)?;
        Ok((Self, std::process::id()))
    }

    fn serve(&mut self, behaviour: Behaviour, stop: &Stop) -> Result<(), String> {
        until(stop);
        act("its service", behaviour).map(drop)
    }
}

/// The process that it is, the one of its peer that it was told of, and for how long it has been that.
#[derive(Debug, Serialize, Deserialize)]
struct Seen {
    own: u64,
    peer: u32,
    bursts: u32,
}

struct Client {
    peer: u32,
    bursts: u32,
}

impl Role for Client {
    const WORD: &'static str = "client";
    type Spec = Behaviour;
    type Here = u32;
    type Peer = u32;
    type Burst = Behaviour;
    type Values = Seen;

    fn open(behaviour: Behaviour) -> Result<(Self, u32), String> {
        act("its open", behaviour)?;
        Ok((Self { peer: 0, bursts: 0 }, std::process::id()))
    }

    fn connect(&mut self, peer: u32) -> Result<(), String> {
        self.peer = peer;
        Ok(())
    }

    fn run(&mut self, behaviour: Behaviour) -> Result<Seen, String> {
        self.bursts += 1;
        Ok(Seen { own: act("its run", behaviour)?, peer: self.peer, bursts: self.bursts })
    }

    fn count(&self, causes: &mut Causes) {
        causes.retransmits += u64::from(self.bursts) * 3;
    }
}

/// Serves whoever comes; may end of itself.
struct Resident(Behaviour);

impl Role for Resident {
    const WORD: &'static str = "resident";
    const RESIDENT: bool = true;
    type Spec = Behaviour;
    type Here = u32;
    type Peer = u32;
    type Burst = ();
    type Values = ();

    fn open(behaviour: Behaviour) -> Result<(Self, u32), String> {
        Ok((Self(behaviour), std::process::id()))
    }

    fn reside(&mut self, stop: &Stop) -> Result<(), String> {
        if self.0 == Behaviour::Answer {
            until(stop);
        }
        act("its service", self.0).map(drop)
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some("bench-agent") {
        return match args.next().as_deref() {
            Some("server") => serve_controller::<Server>(),
            Some("client") => serve_controller::<Client>(),
            Some("resident") => serve_controller::<Resident>(),
            other => panic!("there is no role {other:?}"),
        };
    }
    each_failure_is_reported_by_both_ends_and_the_next_burst_is_well();
    who_cannot_be_opened_is_tried_again_and_not_for_ever();
    a_resident_that_fails_says_why();
    println!("roles: fine");
    ExitCode::SUCCESS
}

fn launcher() -> Launcher {
    Launcher::here(Path::new(&std::env::current_exe().expect("it runs")))
}

fn each_failure_is_reported_by_both_ends_and_the_next_burst_is_well() {
    // (server, client, what the error has, what it has not)
    let cases: &[(Behaviour, Behaviour, &[&str], &str)] = &[
        (Behaviour::Answer, Behaviour::Refuse, &["the client: its run does not like it"], "the server"),
        (Behaviour::Refuse, Behaviour::Answer, &["the server: its service does not like it"], "the client"),
        (
            Behaviour::Refuse,
            Behaviour::Refuse,
            &["the client: its run does not like it", "the server: its service does not like it"],
            "ended",
        ),
        (Behaviour::Answer, Behaviour::Die, &["the client: its process ended: signal: 6"], "the server"),
        (Behaviour::Die, Behaviour::Answer, &["the server: its process ended: signal: 6"], "the client"),
        (
            Behaviour::Panic,
            Behaviour::Panic,
            &["the client: its process ended", "the server: the serving thread panicked"],
            "signal",
        ),
        (
            Behaviour::Die,
            Behaviour::Die,
            &["the client: its process ended", "the server: its process ended"],
            "panicked",
        ),
    ];
    let mut pair: Pair<Server, Client> = Pair::new(launcher());
    for (server, client, has, lacks) in cases {
        burst_is_well(&mut pair);
        let why = pair.burst(Some(server), client).expect_err("it fails");
        for sentence in *has {
            assert_eq!(why.matches(sentence).count(), 1, "{server:?}, {client:?}: {why}");
        }
        assert!(!why.contains(lacks), "{server:?}, {client:?}: {why}");
        assert!(!pair.is_open());
    }
    // Who hangs is ended. A busy machine may keep the other one for as long: then it is tried again.
    for (server, client) in [(Behaviour::Answer, Behaviour::Hang), (Behaviour::Hang, Behaviour::Answer)] {
        let who = if client == Behaviour::Hang { "the client" } else { "the server" };
        loop {
            burst_is_well(&mut pair);
            pair = pair.patience(Duration::from_secs(2));
            let why = pair.burst(Some(&server), &client).expect_err("it hangs");
            assert!(why.contains("no answer for 2 s, so its process was ended"), "{why}");
            pair = pair.patience(PATIENCE);
            if why.contains(&format!("{who}: no answer")) {
                break;
            }
        }
    }
    burst_is_well(&mut pair);
}

fn burst_is_well(pair: &mut Pair<Server, Client>) {
    pair.open(&Behaviour::Answer, &Behaviour::Answer).expect("it opens");
    for n in 1..3 {
        let ran = pair.burst(Some(&Behaviour::Answer), &Behaviour::Answer).expect("both are well");
        assert_eq!(ran.values.bursts, n, "a role lives from when it is opened");
        assert_ne!(ran.values.own, u64::from(ran.values.peer), "they are processes");
        assert_eq!((ran.client.retransmits, ran.server.retransmits), (3, 0), "each counts its own bursts");
    }
    let before = pair.burst(Some(&Behaviour::Answer), &Behaviour::Answer).expect("well").values;
    pair.close().expect("nothing failed");
    pair.open(&Behaviour::Answer, &Behaviour::Answer).expect("it opens");
    let after = pair.burst(Some(&Behaviour::Answer), &Behaviour::Answer).expect("well").values;
    assert_eq!(
        (before.own, before.peer, 1),
        (after.own, after.peer, after.bursts),
        "processes stay, roles do not"
    );
    pair.renew().expect("nothing failed");
    assert!(!pair.is_open());
    pair.open(&Behaviour::Answer, &Behaviour::Answer).expect("it opens");
    let others = pair.burst(Some(&Behaviour::Answer), &Behaviour::Answer).expect("well").values;
    assert!(
        others.own != after.own && others.peer != after.peer,
        "both are new: {others:?} behind {after:?}"
    );
}

fn who_cannot_be_opened_is_tried_again_and_not_for_ever() {
    let mut pair: Pair<Server, Client> = Pair::new(launcher());
    for _ in 0..2 {
        let why = pair.open(&Behaviour::Refuse, &Behaviour::Answer).expect_err("it is refused");
        assert_eq!(why, "the server: its open does not like it");
    }
    burst_is_well(&mut pair);
    let mut open = || pair.open(&Behaviour::Answer, &Behaviour::Die).expect_err("it dies");
    for _ in 0..3 {
        assert!(open().starts_with("the client: its process ended"));
    }
    let why = open();
    assert!(why.ends_with("not tried again)") && why.contains("its process ended"), "{why}");
    // Something else is.
    burst_is_well(&mut pair);
}

fn a_resident_that_fails_says_why() {
    let mut pair: Pair<Resident, Client> = Pair::new(launcher());
    pair.open(&Behaviour::Answer, &Behaviour::Answer).expect("it opens");
    let ran = pair.burst(None, &Behaviour::Answer).expect("both are well");
    assert_eq!((ran.values.bursts, ran.client.retransmits), (1, 3));
    let why = pair.burst(None, &Behaviour::Refuse).expect_err("the client refuses");
    assert_eq!(why, "the client: its run does not like it");
    pair.open(&Behaviour::Answer, &Behaviour::Answer).expect("it opens again");
    pair.close().expect("it was asked to stop");
    for (behaviour, sentence) in [
        (Behaviour::Refuse, "the server: its service does not like it"),
        (Behaviour::Panic, "the server: the serving thread panicked"),
        (Behaviour::Die, "the server: its process ended: signal: 6"),
    ] {
        // It fails by itself, now or soon: no matter who notices.
        let why = loop {
            let done =
                pair.open(&behaviour, &Behaviour::Answer).and_then(|_| pair.burst(None, &Behaviour::Answer));
            match done.and_then(|_| pair.close()) {
                Ok(()) => {}
                Err(why) => break why,
            }
        };
        assert!(why.contains(sentence), "{behaviour:?}: {why}");
    }
}
