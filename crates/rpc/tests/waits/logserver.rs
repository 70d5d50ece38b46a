//! The persistent log server: many clients, and a real process that is killed.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{LIMIT, PORT, address, device, options};
use remanence_effort::{Process, again};
use remanence_pmem::{FileOptions, Region};
use remanence_rpc::Stop;
use remanence_rpc::durable::Fault;
use remanence_rpc::header::Status;
use remanence_rpc::live::Nexus;
use remanence_rpc::log::{APPEND, BOUNDS, Client, LogFile, Options, READ, Server, TRIM, Word};
use remanence_verbs::{Context, Options as Device};

const LEN: u64 = 8 << 20;
/// In the environment of a process that is to be a server: word, address, file.
const PART: &str = "REMANENCE_RPC_TEST_LOG";

fn client(here: &Context, at: SocketAddr) -> Client {
    let nexus = Nexus::new(here).unwrap();
    let to = nexus.resolve(at, 0, LIMIT).unwrap();
    Client::connect(nexus.create(&options()).unwrap(), to).unwrap()
}

/// An entry says whose it is, and is of a length of its own.
fn entry(client: u64, number: u64) -> Vec<u8> {
    let mut bytes = client.to_be_bytes().to_vec();
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend((0..number * 13 % 300).map(|i| (i + number + client) as u8));
    bytes
}

fn owner(bytes: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
    (word(0), word(8))
}

#[test]
fn what_is_appended_is_read_and_trimmed() {
    for (word, batch) in [(Word::Plain, 1), (Word::RotatingCounter, 32), (Word::RotatingRegister, 1)] {
        let there = device();
        let nexus = Nexus::serve(&there, PORT).unwrap();
        let log = LogFile::format(Region::anonymous(LEN).unwrap(), word, 7).unwrap();
        let mut server = Server::new(nexus.create(&options()).unwrap(), log, Options { batch });
        let stop = Stop::new();
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| server.run(&stop));
            let at = common::socket_addr(&there);
            let clients: Vec<_> = (0..3)
                .map(|n| {
                    scope.spawn(move || {
                        let here = device();
                        let mut client = client(&here, at);
                        let mut ended = BTreeMap::new();
                        for number in 0..100 {
                            client.submit(&entry(n, number)).unwrap();
                        }
                        while let Some(appended) = client.wait(None).unwrap() {
                            let twin = ended.insert(appended.number, appended.outcome.unwrap());
                            assert_eq!(twin, None);
                        }
                        assert_eq!(ended.len(), 100);
                        for (&number, &position) in ended.iter().step_by(7) {
                            assert_eq!(client.read(position).unwrap().0, entry(n, number));
                        }
                        ended
                    })
                })
                .collect();
            let mut positions: Vec<_> =
                clients.into_iter().flat_map(|client| client.join().unwrap().into_values()).collect();
            positions.sort_unstable();
            positions.dedup();
            assert_eq!(positions.len(), 300, "every entry has a place of its own");
            let here = device();
            let mut client = client(&here, at);
            let (head, tail) = client.bounds().unwrap();
            assert_eq!((head, positions[0]), (0, 0));
            let last = client.append(b"the last").unwrap();
            assert!(last >= tail);
            client.trim(positions[100]).unwrap();
            assert_eq!(client.bounds().unwrap().0, positions[100]);
            assert!(matches!(client.read(positions[99]), Err(Fault::Refused(_))));
            assert!(matches!(client.trim(positions[200] + 8), Err(Fault::Refused(_))), "no entry ends there");
            let bounds = client.bounds().unwrap();
            answers_are_big_endian(&here, at, last, bounds.1);
            let refused = client.append(&vec![0; LEN as usize / 2]);
            assert!(matches!(&refused, Err(Fault::Lost(why)) if why.contains("does not fit")), "{refused:?}");
            // Nobody calls any more: it sleeps, until this wakes it.
            stop.ask();
            serving.join().unwrap().unwrap();
        });
        let (appends, commits) = server.counts();
        assert_eq!(appends, 302);
        if batch == 1 {
            assert_eq!(commits, 302, "each on its own, as in the paper");
        }
    }
}

/// The bytes that answers always had; `last` is the entry "the last", and `end` the end of the log.
fn answers_are_big_endian(here: &Context, at: SocketAddr, last: u64, end: u64) {
    let nexus = Nexus::new(here).unwrap();
    let to = nexus.resolve(at, 0, LIMIT).unwrap();
    let mut rpc = nexus.create(&options()).unwrap();
    let session = rpc.connect_and_wait(to, |_| {}).unwrap();
    let mut call = |service, request: &[u8]| {
        let (status, body) = rpc.call_and_wait(session, service, request, |_| {}).unwrap();
        assert_eq!(status, Status::Done);
        body.to_vec()
    };
    assert_eq!(call(READ, &last.to_be_bytes()), [&end.to_be_bytes()[..], b"the last"].concat());
    let appended = call(APPEND, b"");
    let bounds = call(BOUNDS, b"");
    assert_eq!(appended, [end.to_be_bytes().as_slice(), &bounds[8..]].concat());
    assert_eq!(call(TRIM, &bounds[..8]), b"");
}

/// Not a test by itself: the process that [`nothing_acknowledged_is_lost_when_the_server_is_killed`] kills.
#[test]
fn be_a_server() {
    let Ok(part) = std::env::var(PART) else { return };
    let mut words = part.splitn(3, ' ');
    let mut next = || words.next().unwrap();
    let (word, at, path) = (next(), next(), next());
    let word = Word::ALL.into_iter().find(|known| known.name() == word).unwrap();
    let at: IpAddr = at.parse().unwrap();
    let fresh = !Path::new(path).exists();
    let region = FileOptions::new().create(LEN).open(path).unwrap();
    let log =
        if fresh { LogFile::format(region, word, 99) } else { LogFile::open(region, |_, _| {}) }.unwrap();
    let context = Context::open(Device::udp(at)).unwrap();
    let nexus = Nexus::serve(&context, PORT).unwrap();
    let mut server = Server::new(nexus.create(&options()).unwrap(), log, Options::default());
    println!("\nready");
    server.run(&Stop::new()).unwrap();
}

fn start(word: Word, at: IpAddr, path: &Path) -> Process {
    let part = format!("{word} {at} {}", path.display());
    let mut server = Process::start(again("logserver::be_a_server").env(PART, part));
    server.after("ready").expect("the server starts");
    server
}

struct Gone(PathBuf);

impl Drop for Gone {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
    let kills = remanence_effort::rounds(2, 50);
    for word in Word::ALL {
        // On a disk: behind the page cache, where durable takes a system call.
        let name = format!("remanence-rpc-{}-{word}.log", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _gone = Gone(path.clone());
        let mut acknowledged: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for life in 0..kills {
            let at = address();
            let server = start(word, at, &path);
            let stop = Arc::new(AtomicBool::new(false));
            let (ack, acks) = std::sync::mpsc::channel();
            let clients: Vec<_> = (0..2)
                .map(|n| {
                    let (stop, ack) = (Arc::clone(&stop), ack.clone());
                    let me = life * 10 + n;
                    std::thread::spawn(move || {
                        let here = device();
                        let mut client = client(&here, SocketAddr::new(at, PORT));
                        let mut mine = Vec::new();
                        let mut number = 0;
                        while !stop.load(Ordering::Relaxed) {
                            while client.under_way() < 12 {
                                client.submit(&entry(me, number)).unwrap();
                                number += 1;
                            }
                            if let Some(appended) = client.wait(Some(Duration::from_millis(20))).unwrap()
                                && let Ok(position) = appended.outcome
                            {
                                mine.push((position, (me, appended.number)));
                                ack.send(()).unwrap();
                            }
                        }
                        mine
                    })
                })
                .collect();
            // Killed in the middle of its work, which goes on at both clients.
            (0..200 + life * 57).for_each(|_| acks.recv_timeout(LIMIT).expect("it works"));
            // Not in step with the acknowledgements: they come between two commits.
            std::thread::sleep(Duration::from_micros(u64::from(word as u8) * 450 + life * 310 % 1700));
            drop(server);
            stop.store(true, Ordering::Relaxed);
            acknowledged.extend(clients.into_iter().flat_map(|client| client.join().unwrap()));
            let region = FileOptions::new().open(&path).unwrap();
            let (mut found, mut owners) = (BTreeMap::new(), BTreeSet::new());
            let log = LogFile::open(region, |place, bytes| {
                let whose = owner(bytes);
                assert_eq!(bytes, entry(whose.0, whose.1), "the entry at {} is damaged", place.position);
                assert!(owners.insert(whose), "{whose:?} was appended twice");
                found.insert(place.position, whose);
            })
            .unwrap();
            assert_eq!(log.word(), word);
            for (position, whose) in &acknowledged {
                assert_eq!(found.get(position), Some(whose), "acknowledged at {position}, and lost");
            }
            eprintln!("{word}, life {life}: {} acknowledged, {} found", acknowledged.len(), found.len());
        }
    }
}
