//! Several things behind one doorbell, and what a server says without being asked.

use crate::common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Host, fixed, session};
use remanence_persist::plan::Request;
use remanence_remote::{Done, Error, SessionControl, Work};

const LEN: u64 = 4 << 20;
const SERVICE: u16 = 7;

/// A server that echoes calls, and answers "notify" with a notice.
fn host(turns: &Arc<AtomicU64>) -> Host {
    let turns = Arc::clone(turns);
    Host::with(
        LEN,
        None,
        |options| options,
        move |server| {
            let cutter: SessionControl = server.cutter();
            let asked = Arc::new(Mutex::new(Vec::new()));
            let asking = Arc::clone(&asked);
            server.on_call(SERVICE, move |call| {
                if call.request == b"notify" {
                    asking.lock().expect("no panic").push(call.session);
                }
                if call.request == b"refuse" { Err("not that".to_owned()) } else { Ok(call.request.to_vec()) }
            });
            server.on_turn(move |_| {
                turns.fetch_add(1, Ordering::AcqRel);
                for session in asked.lock().expect("no panic").drain(..) {
                    cutter.notify(session, b"as you asked".to_vec());
                }
                Some(Duration::from_millis(1))
            });
        },
    )
}

#[test]
fn everything_comes_back_in_its_place_however_much_there_is() {
    let host = host(&Arc::default());
    host.region.write(1 << 20, &vec![9; 3 << 20]);
    // Staging holds a fraction of it.
    let mut session = session(&host, fixed().staging(128 << 10));
    let plan = session.plan(&Request { replay: false, ..Request::record(64) }).expect("a plan");
    let large = vec![3; 900_000];
    let update: &[(u64, &[u8])] = &[(4096, &[5; 64])];
    let work = [
        Work::Read { at: 1 << 20, len: 3 << 20 },
        Work::Call { service: SERVICE, request: b"one" },
        Work::Write { at: 8192, bytes: &large },
        Work::Persist { plan: &plan, updates: update },
        Work::Call { service: SERVICE, request: b"refuse" },
        Work::Read { at: 0, len: 0 },
    ];
    let done = session.together(&work).expect("carried out");
    assert!(matches!(&done[0], Done::Read(bytes) if *bytes == vec![9; 3 << 20]));
    assert!(matches!(&done[1], Done::Reply(Ok(answer)) if answer == b"one"));
    assert!(matches!(&done[2], Done::Written));
    assert!(matches!(&done[3], Done::Persistent(_)));
    assert!(matches!(&done[4], Done::Reply(Err(why)) if why == "not that"));
    assert!(matches!(&done[5], Done::Read(bytes) if bytes.is_empty()));
    let mut written = vec![0; large.len()];
    host.region.read(8192, &mut written);
    assert!(written == large);
    let mut durable = [0; 64];
    host.region.read(4096, &mut durable);
    assert_eq!(durable, [5; 64]);
    // What can never be done is told, and the session goes on.
    let outside = [Work::Read { at: 0, len: 8 }, Work::Write { at: LEN - 4, bytes: &[1; 8] }];
    assert!(matches!(session.together(&outside), Err(Error::Argument(_))));
    assert_eq!(session.call(SERVICE, b"still there").expect("an answer"), b"still there");
    assert!(session.together(&[]).expect("nothing").is_empty());
}

#[test]
fn a_server_may_speak_first() {
    let turns = Arc::default();
    let host = host(&turns);
    let mut session = session(&host, fixed());
    assert_eq!(session.notice(), None);
    session.call(SERVICE, b"notify").expect("an answer");
    let begin = Instant::now();
    let notice = loop {
        session.poll().expect("the session goes on");
        if let Some(notice) = session.notice() {
            break notice;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "no notice");
        std::thread::yield_now();
    };
    assert_eq!(notice, b"as you asked");
    // Without messages it gets its turns as well.
    let seen = turns.load(Ordering::Acquire);
    while turns.load(Ordering::Acquire) < seen + 3 {
        assert!(begin.elapsed() < Duration::from_secs(60), "no turns");
        std::thread::yield_now();
    }
}

#[test]
fn calls_that_come_together_are_shown_before_the_first_of_them_is_answered() {
    type Asked = (u64, Vec<u8>);
    type Said = (bool, Vec<Asked>);
    // What was shown, and what was asked to be answered, in the order of the server.
    let said: Arc<Mutex<Vec<Said>>> = Arc::default();
    let (showing, answering) = (Arc::clone(&said), Arc::clone(&said));
    let host = Host::with(
        LEN,
        None,
        |options| options,
        move |server| {
            server.on_calls(SERVICE, move |calls| {
                let asked = calls.iter().map(|call| (call.session, call.request.to_vec())).collect();
                showing.lock().expect("no panic").push((true, asked));
            });
            server.on_call(SERVICE, move |call| {
                let asked = (call.session, call.request.to_vec());
                answering.lock().expect("no panic").push((false, vec![asked]));
                Ok(call.request.to_vec())
            });
            server.on_call(SERVICE + 1, |call| Ok(call.request.to_vec()));
        },
    );
    let mut session = session(&host, fixed());
    let (begin, mut round) = (Instant::now(), 0_u32);
    let shown = |said: &[Said]| said.iter().any(|(shown, _)| *shown);
    while !shown(&said.lock().expect("no panic")) {
        assert!(begin.elapsed() < Duration::from_secs(60), "they never come together");
        round += 1;
        let names: Vec<Vec<u8>> = (0..4_u8).map(|n| [&round.to_le_bytes()[..], &[n]].concat()).collect();
        let call = |request| Work::Call { service: SERVICE, request };
        let other = Work::Call { service: SERVICE + 1, request: b"another's" };
        let work = [call(&names[0][..]), call(&names[1]), other, call(&names[2]), call(&names[3])];
        let done = session.together(&work).expect("carried out");
        assert!(done.iter().all(|done| matches!(done, Done::Reply(Ok(_)))), "{done:?}");
    }
    let said = said.lock().expect("no panic");
    let answered: Vec<&Asked> =
        said.iter().filter(|(shown, _)| !shown).flat_map(|(_, asked)| asked).collect();
    assert_eq!(answered.len() as u32, 4 * round);
    for (n, (_, asked)) in said.iter().enumerate().filter(|(_, (shown, _))| *shown) {
        assert!(asked.len() >= 2, "{asked:?}");
        // They are the next to be answered, in their order.
        let next: Vec<&Asked> = said[n + 1..].iter().flat_map(|(_, asked)| asked).take(asked.len()).collect();
        assert_eq!(next, asked.iter().collect::<Vec<_>>());
    }
}

/// Ticks of CPU time (a hundredth of a second each) that a thread of this process has used.
fn cpu_of(thread: &str) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).expect("a thread of ours");
    let behind_name = stat.rsplit_once(')').expect("a name in parentheses").1;
    let fields: Vec<&str> = behind_name.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}

/// A server that does nothing beside answering was busy for ever from then on, and its host with it.
#[test]
fn a_server_whose_session_was_cut_sleeps_again() {
    let (tell, told) = std::sync::mpsc::channel();
    let shared: Arc<Mutex<Option<SessionControl>>> = Arc::default();
    let keeps = Arc::clone(&shared);
    let host = Host::with(
        LEN,
        None,
        |options| options,
        move |server| {
            *keeps.lock().expect("no panic") = Some(server.cutter());
            server.on_call(SERVICE, move |call| {
                let thread = std::fs::read_link("/proc/thread-self").expect("Linux");
                let thread = thread.file_name().expect("a number").to_string_lossy().into_owned();
                tell.send((thread, call.session)).expect("the test waits");
                Ok(Vec::new())
            });
        },
    );
    let mut one = session(&host, fixed());
    one.call(SERVICE, b"").expect("an answer");
    let (thread, id) = told.recv().expect("it was called");
    let cutter = shared.lock().expect("no panic").take().expect("a server has one");
    cutter.cut(id);
    let begin = Instant::now();
    while cutter.is_live(id) {
        assert!(begin.elapsed() < Duration::from_secs(60), "the session goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = cpu_of(&thread);
    std::thread::sleep(Duration::from_secs(1));
    let used = cpu_of(&thread) - before;
    assert!(used < 20, "{used} hundredths of a second of CPU in a second in which nobody asks for anything");
}
