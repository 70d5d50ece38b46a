//! Commands that are put off, and written together: their replies are those of one after the other, whoever comes between.

use remanence_resp::engine::{Config, Joins, Moment, Session, Shared, joins};
use remanence_resp::joint::{Joint, Piece, Verdict};
use remanence_resp::memory::{Hook, Hooked, MemoryStore, Step};
use remanence_resp::protocol::{Decoder, Limits};
use remanence_resp::store::{Condition, Key, Store, StoreError};

const MOMENT: Moment = Moment { unix_us: 1_000_000, random: 7 };

/// What is done to a key, `k`.
const COMMANDS: &[&str] = &[
    "SET k 1",
    "SET k 2 NX",
    "SET k 3 XX",
    "SET k 4 GET",
    "SETNX k 5",
    "SETEX k 100 6",
    "GETSET k 7",
    "GETDEL k",
    "APPEND k 8",
    "INCR k",
    "INCRBY k 5",
    "INCRBYFLOAT k 0.25",
    "DEL k",
    "UNLINK k",
    "EXPIRE k 100",
    "PERSIST k",
    "SETRANGE k 2 9",
    "HSET k f 1",
    "HSET k g 2 h 3",
    "HDEL k f",
    "HINCRBY k f 2",
    "HSETNX k f 4",
    "GET k",
    "STRLEN k",
    "TYPE k",
    "TTL k",
    "EXISTS k",
    "HGETALL k",
    "HLEN k",
    "GETRANGE k 0 1",
    "PING",
    "ECHO k",
];

fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
    (*state >> 33) as usize
}

fn with_request<T>(line: &str, act: impl FnOnce(&remanence_resp::protocol::Request<'_>) -> T) -> T {
    let mut decoder = Decoder::new(Limits::default());
    decoder.push(format!("{line}\r\n").as_bytes());
    let request = decoder.next(false).expect("a request").expect("all of it");
    act(&request)
}

/// Carries a command out on a store.
fn at_once<S: Store>(session: &mut Session, store: &mut S, shared: &Shared, line: &str) -> Vec<u8> {
    let mut out = Vec::new();
    with_request(line, |request| session.execute(request, store, shared, MOMENT, &mut out));
    out
}

fn line(state: &mut u64) -> String {
    let key = ["a", "b", "c"][random(state) % 3];
    COMMANDS[random(state) % COMMANDS.len()].replace(" k", &format!(" {key}"))
}

#[test]
fn whoever_comes_between_the_replies_are_those_of_one_after_the_other() {
    let shared = Shared::new(Config::default(), 0);
    let (mut again, mut rounds) = (0, 0);
    for seed in 0..400 {
        let mut state = seed;
        let (mut store, mut model) = (MemoryStore::default(), MemoryStore::default());
        let mut sessions: Vec<Session> = (0..3).map(|_| Session::open(&shared, "a", "b", 0)).collect();
        let (mut other, mut joint) = (Session::open(&shared, "a", "b", 0), Joint::default());
        for _ in 0..4 {
            let mut replies: Vec<Vec<u8>> = Vec::new();
            // Something is written in any case: what only looks is looked at again for the sake of that.
            let first = std::iter::once("SET first 1".to_owned());
            let lines: Vec<String> =
                first.chain((0..1 + random(&mut state) % 9).map(|_| line(&mut state))).collect();
            let mut interfere = |store: &mut MemoryStore, model: &mut MemoryStore, state: &mut u64| {
                for _ in 0..random(state) % 3 {
                    let line = line(state);
                    let ours = at_once(&mut other, store, &shared, &line);
                    assert_eq!(ours, at_once(&mut other, model, &shared, &line));
                }
            };
            for (n, line) in lines.iter().enumerate() {
                // What comes between two of them comes before all of them in the end.
                interfere(&mut store, &mut model, &mut state);
                let mut out = Vec::new();
                with_request(line, |request| {
                    assert_ne!(joins(request), Joins::Not, "{line}");
                    let owner = n;
                    let store = (&mut store, &mut joint);
                    sessions[n % 3].execute_joined(owner, request, store, &shared, MOMENT, &mut out);
                });
                replies.push(out);
                assert!(joint.has_room());
            }
            interfere(&mut store, &mut model, &mut state);
            let mut left = joint.write(&mut store, &shared);
            // What they were answered is what they would have been from here on, one after the other.
            let mut order: Vec<usize> = (0..lines.len()).collect();
            let mut turn = 0;
            while !left.is_empty() {
                turn += 1;
                again += left.len();
                // Those on other keys are done; others may come before these once more.
                let late: Vec<usize> = left.iter().map(|(piece, _)| piece.owner).collect();
                for n in order.iter().filter(|n| !late.contains(n)) {
                    let reply = at_once(&mut sessions[n % 3], &mut model, &shared, &lines[*n]);
                    assert_eq!(reply, replies[*n], "seed {seed}: {lines:?}, {n}");
                }
                order = late;
                for (piece, verdict) in left {
                    assert_eq!(verdict, Verdict::Again);
                    let n = piece.owner;
                    replies[n].clear();
                    let (pair, out) = ((&mut store, &mut joint), &mut replies[n]);
                    sessions[n % 3].mend((&piece, verdict), pair, &shared, MOMENT, out);
                }
                if turn < 3 {
                    with_request("SET first 1", |request| {
                        let (store, out) = ((&mut store, &mut joint), &mut Vec::new());
                        sessions[0].execute_joined(usize::MAX, request, store, &shared, MOMENT, out);
                    });
                    interfere(&mut store, &mut model, &mut state);
                }
                left = joint.write(&mut store, &shared);
                rounds = rounds.max(turn);
            }
            for n in order {
                let reply = at_once(&mut sessions[n % 3], &mut model, &shared, &lines[n]);
                assert_eq!(reply, replies[n], "seed {seed}: {lines:?}, {n}");
            }
            for name in ["a", "b", "c"] {
                let key = Key { space: 0, name: name.as_bytes() };
                let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                store.get(key, &mut ours).expect("memory does not fail");
                model.get(key, &mut theirs).expect("memory does not fail");
                assert_eq!(ours, theirs, "seed {seed}: {lines:?}");
            }
        }
    }
    assert!(again > 300 && rounds == 3, "{again} again, {rounds} rounds");
}

#[test]
fn commands_are_counted_once_though_they_are_carried_out_again() {
    let shared = Shared::new(Config::default(), 0);
    let (mut store, mut joint) = (MemoryStore::default(), Joint::default());
    let mut session = Session::open(&shared, "a", "b", 0);
    let mut out = Vec::new();
    with_request("INCR a", |request| {
        session.execute_joined(0, request, (&mut store, &mut joint), &shared, MOMENT, &mut out);
    });
    at_once(&mut session, &mut store, &shared, "SET a 5");
    let left = joint.write(&mut store, &shared);
    let (piece, verdict) = left.into_iter().next().expect("somebody was faster");
    let mut out = Vec::new();
    session.mend((&piece, verdict), (&mut store, &mut joint), &shared, MOMENT, &mut out);
    assert_eq!((&out[..], joint.write(&mut store, &shared).len()), (&b":6\r\n"[..], 0));
    let calls = |name: &[u8]| {
        shared.stats.of(remanence_resp::command::Command::find(name).expect("a command").id).calls.get()
    };
    assert_eq!((calls(b"incr"), calls(b"set"), shared.stats.commands.get()), (1, 1, 2));
}

/// There is no room, but for what frees, or nothing is said at all.
struct Broken(StoreError);

impl Hook for Broken {
    fn before(&mut self, step: Step<'_>, _: &mut MemoryStore) -> Result<(), StoreError> {
        match step {
            Step::Put(_, Condition::Freeing(_)) => Ok(()),
            Step::Put(Key { name: b"lost", .. }, _) | Step::All => Err(self.0.clone()),
            _ => Ok(()),
        }
    }
}

fn broken(error: StoreError) -> Hooked<Broken> {
    Hooked { store: MemoryStore::default(), hook: Broken(error) }
}

#[test]
fn what_the_store_does_not_take_is_told_to_all_who_saw_it_and_to_nobody_else() {
    let shared = Shared::new(Config::default(), 0);
    for error in [StoreError::Full, StoreError::Unavailable("it is away".to_owned())] {
        let (mut store, mut joint) = (broken(error.clone()), Joint::default());
        let mut session = Session::open(&shared, "a", "b", 0);
        let lines = ["SET lost 1", "GET lost", "SET kept 2", "INCR kept", "APPEND lost 3", "GET kept"];
        let mut replies: Vec<Vec<u8>> = Vec::new();
        for (n, line) in lines.iter().enumerate() {
            let mut out = Vec::new();
            with_request(line, |request| {
                session.execute_joined(n, request, (&mut store, &mut joint), &shared, MOMENT, &mut out);
            });
            replies.push(out);
        }
        for (piece, verdict) in joint.write(&mut store, &shared) {
            assert_eq!(verdict, Verdict::Failed(error.clone()));
            let n = piece.owner;
            replies[n].clear();
            let out = &mut replies[n];
            session.mend((&piece, verdict), (&mut store, &mut joint), &shared, MOMENT, out);
        }
        assert!(joint.is_empty());
        let failed = format!("-{error}\r\n");
        let wanted = [&failed, &failed, "+OK\r\n", ":3\r\n", &failed, "$1\r\n3\r\n"];
        let replies: Vec<String> =
            replies.into_iter().map(|reply| String::from_utf8(reply).expect("text")).collect();
        assert_eq!(replies, wanted);
    }
}

/// A removal is not refused because it comes with a field that is set, nor is that written because it comes with a removal.
#[test]
fn what_frees_is_not_refused_for_the_sake_of_others() {
    let shared = Shared::new(Config::default(), 0);
    let (mut store, mut joint) = (broken(StoreError::Full), Joint::default());
    let mut session = Session::open(&shared, "a", "b", 0);
    at_once(&mut session, &mut store.store, &shared, "HSET lost f 1 g 2 h 3");
    let lines =
        ["HDEL lost f", "HSET lost i 4", "HDEL lost g", "SET kept 1", "SET lost2 1", "EXPIRE lost2 1000"];
    let mut replies: Vec<Vec<u8>> = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        let mut out = Vec::new();
        with_request(line, |request| {
            session.execute_joined(n, request, (&mut store, &mut joint), &shared, MOMENT, &mut out);
        });
        replies.push(out);
    }
    let mut left = joint.write(&mut store, &shared);
    for round in 0..3 {
        for (piece, verdict) in std::mem::take(&mut left) {
            assert!(piece.owner < 3, "the others wrote another key");
            replies[piece.owner].clear();
            let out = &mut replies[piece.owner];
            session.mend((&piece, verdict), (&mut store, &mut joint), &shared, MOMENT, out);
            // Together once more, and then each by itself.
            if round > 0 {
                left.extend(joint.write(&mut store, &shared));
            }
        }
        left.extend(joint.write(&mut store, &shared));
    }
    assert!(joint.is_empty());
    let full = format!("-{}\r\n", StoreError::Full);
    let wanted = [":1\r\n", &full, ":1\r\n", "+OK\r\n", "+OK\r\n", ":1\r\n"];
    let replies: Vec<String> =
        replies.into_iter().map(|reply| String::from_utf8(reply).expect("text")).collect();
    assert_eq!(replies, wanted);
    assert_eq!(
        at_once(&mut session, &mut store.store, &shared, "HGETALL lost"),
        b"*2\r\n$1\r\nh\r\n$1\r\n3\r\n"
    );
}

/// Counts how often the store is waited for. Somebody else increments `a` before each of the first of those times.
#[derive(Default)]
struct Waits {
    waits: usize,
    others: usize,
    /// The store's server is away.
    is_away: bool,
}

impl Hook for Waits {
    const TOGETHER: bool = true;

    fn before(&mut self, step: Step<'_>, store: &mut MemoryStore) -> Result<(), StoreError> {
        if self.is_away {
            return Err(StoreError::InTheWay);
        }
        if !matches!(step, Step::Get(_) | Step::All) {
            self.waits += 1;
            if self.others > 0 {
                self.others -= 1;
                let shared = Shared::new(Config::default(), 0);
                let mut other = Session::open(&shared, "a", "b", 0);
                at_once(&mut other, store, &shared, "INCR a");
            }
        }
        Ok(())
    }
}

fn transaction(session: &mut Session, store: &mut impl Store, shared: &Shared, lines: &[String]) -> String {
    assert_eq!(at_once(session, store, shared, "MULTI"), b"+OK\r\n");
    for line in lines {
        assert_eq!(at_once(session, store, shared, line), b"+QUEUED\r\n", "{line}");
    }
    String::from_utf8(at_once(session, store, shared, "EXEC")).expect("text")
}

#[test]
fn a_transaction_waits_once_for_all_that_it_changes() {
    let shared = Shared::new(Config::default(), 0);
    let mut store = Hooked::<Waits>::default();
    let mut session = Session::open(&shared, "a", "b", 0);
    let mut lines: Vec<String> = (0..300).map(|n| format!("SET key{n} {n}")).collect();
    lines.extend((0..50).map(|n| format!("INCR key{n}")));
    lines.extend((0..50).map(|n| format!("HSET hash{n} f {n}")));
    lines.push("GET key7".to_owned());
    let reply = transaction(&mut session, &mut store, &shared, &lines);
    assert!(reply.starts_with("*401\r\n+OK\r\n") && reply.ends_with(":1\r\n$1\r\n8\r\n"), "{reply}");
    assert_eq!(store.hook.waits, 1);
    // What is on several keys waits for what was before it, and by itself.
    lines.insert(20, "MSET one 1 two 2".to_owned());
    transaction(&mut session, &mut store, &shared, &lines);
    assert_eq!(store.hook.waits, 1 + 3);
    // More than are put off at a time.
    let lines: Vec<String> = (0..5000).map(|n| format!("SET key{n} {n}")).collect();
    transaction(&mut session, &mut store, &shared, &lines);
    assert!(store.hook.waits < 4 + 20, "{}", store.hook.waits);
}

#[test]
fn a_transaction_answers_as_its_commands_do_one_after_the_other() {
    let shared = Shared::new(Config::default(), 0);
    for seed in 0..300 {
        let mut state = seed;
        let (mut store, mut model) = (MemoryStore::default(), MemoryStore::default());
        let mut sessions = [0, 1].map(|_| Session::open(&shared, "a", "b", 0));
        for _ in 0..5 {
            let several =
                ["MSET a 1 b x", "DEL a b", "RENAME a b", "MGET a b c", "DBSIZE", "EXISTS a b", "NONE"];
            let lines: Vec<String> = (0..random(&mut state) % 20)
                .map(|_| match random(&mut state) % 5 {
                    0 => several[random(&mut state) % (several.len() - 1)].to_owned(),
                    _ => line(&mut state),
                })
                .collect();
            let mut wanted = format!("*{}\r\n", lines.len()).into_bytes();
            for line in &lines {
                wanted.extend(at_once(&mut sessions[1], &mut model, &shared, line));
            }
            let reply = transaction(&mut sessions[0], &mut store, &shared, &lines);
            assert_eq!(reply, String::from_utf8_lossy(&wanted), "seed {seed}: {lines:?}");
        }
    }
}

#[test]
fn a_transaction_that_somebody_beside_the_gateway_comes_between_answers_what_holds() {
    for others in [1, 2, 5, 40] {
        let shared = Shared::new(Config::default(), 0);
        let mut store = Hooked { store: MemoryStore::default(), hook: Waits { others, ..Waits::default() } };
        let mut session = Session::open(&shared, "a", "b", 0);
        let lines = ["SET b 1", "INCR a", "APPEND b 2", "INCR a", "GET b", "GET a"];
        let reply = transaction(&mut session, &mut store, &shared, &lines.map(str::to_owned));
        let first: usize =
            reply["*6\r\n+OK\r\n:".len()..].lines().next().expect("a line").parse().expect("a number");
        let next = first + 1;
        let wanted = format!(
            "*6\r\n+OK\r\n:{first}\r\n:2\r\n:{next}\r\n$2\r\n12\r\n${}\r\n{next}\r\n",
            next.to_string().len()
        );
        assert_eq!(reply, wanted);
        assert!(first > 1, "somebody came between");
        let last = at_once(&mut session, &mut store.store, &shared, "GET a");
        let sum = (others - store.hook.others + 2).to_string();
        assert_eq!(last, format!("${}\r\n{sum}\r\n", sum.len()).into_bytes(), "each was counted once");
    }
}

#[test]
fn what_is_to_be_carried_out_again_waits_for_a_store_that_is_away() {
    let shared = Shared::new(Config::default(), 0);
    let (mut store, mut joint) = (Hooked::<Waits>::default(), Joint::default());
    let mut session = Session::open(&shared, "a", "b", 0);
    let mut replies = vec![Vec::new(); 3];
    for (n, (line, out)) in ["INCR a", "APPEND b x", "GET a"].into_iter().zip(&mut replies).enumerate() {
        with_request(line, |request| {
            session.execute_joined(n, request, (&mut store, &mut joint), &shared, MOMENT, out);
        });
    }
    at_once(&mut session, &mut store, &shared, "SET a 5");
    let mut left = joint.write(&mut store, &shared);
    let mut mend = |left: Vec<(Piece, Verdict)>, store: &mut Hooked<Waits>, joint: &mut Joint| {
        for (piece, verdict) in left {
            assert_eq!(verdict, Verdict::Again);
            let out = &mut replies[piece.owner];
            out.clear();
            session.mend((&piece, verdict), (&mut *store, &mut *joint), &shared, MOMENT, out);
            assert_eq!((out.is_empty(), session.is_waiting()), (store.hook.is_away, false));
        }
    };
    store.hook.is_away = true;
    mend(left, &mut store, &mut joint);
    for _ in 0..3 {
        assert!(joint.write(&mut store, &shared).is_empty());
        assert_eq!((joint.pieces(), joint.is_obstructed()), (2, true));
    }
    store.hook.is_away = false;
    left = joint.write(&mut store, &shared);
    assert_eq!(left.len(), 2);
    mend(left, &mut store, &mut joint);
    assert!(joint.write(&mut store, &shared).is_empty() && !joint.is_obstructed());
    assert_eq!(replies, [&b":6\r\n"[..], b":1\r\n", b"$1\r\n6\r\n"]);
}
