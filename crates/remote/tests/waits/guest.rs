//! Persistent memory that is really mapped with MAP_SYNC, and a machine whose power really goes: a guest (`tests/guest`) with
//! an emulated NVDIMM, or with a disk and a journal on it, runs a server and a client, is cut off in the middle of their
//! work, and boots again.
//!
//! Skipped, with the reason, where QEMU or what the guest is made of cannot be had.

use crate::common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::{context, fixed};
use remanence_persist::plan::Request;
use remanence_persist::recipe::Op;
use remanence_persist::taxonomy::Buffers;
use remanence_pmem::{FileOptions, Journaling};
use remanence_remote::{Server, ServerOptions, Session, Stop};

const RECORD: u64 = 256;
/// Runs under way at a time. Nothing is promised of the order between them, so that each says where it is in a page of its own:
/// who makes one page durable does nothing for another one.
const RUNS: u64 = 4;
const PAGE: u64 = 4096;
const FIRST: u64 = RUNS * PAGE;
const LEN: u64 = 4 << 20;
/// Of the boot whose power goes. Receive buffers are in the region, too.
const RECORDS: u64 = LEN / RECORD / 2;
const JOURNAL: u64 = 128 << 10;
/// A guest on a busy machine takes its time.
const LIMIT: Duration = Duration::from_secs(150);

fn record(n: u64) -> Vec<u8> {
    (0..RECORD / 8).flat_map(|k| (((n + 1) << 32) + (k + 1) * 0x0101).to_be_bytes()).collect()
}

/// What runs in the guest, each time that it boots: looks at what is there, and goes on.
#[test]
fn in_the_guest() {
    let Ok(dir) = std::env::var("REMANENCE_TEST_DIR") else { return };
    // Without effect on persistent memory. The shortest: it begins anew every 30 syncs.
    let file = FileOptions::new().create(LEN).journal(Journaling::Len(JOURNAL));
    let region = file.open(Path::new(&dir).join("memory")).expect("a file");
    println!("journal {:?}", region.journal());
    let options =
        ServerOptions::new(&context(), region, 0).buffers(Buffers::Pm).sessions(2).messages(16, 2048);
    let mut server = Server::bind(options).expect("a server");
    let (to, stop, applied) = (server.addr(), Stop::new(), server.recovered().applied);
    println!("serves {}", server.sentence());
    std::thread::scope(|scope| {
        scope.spawn(|| server.run(&stop).expect("it serves"));
        let mut session = Session::connect(&context(), to, fixed().depth(RUNS as usize)).expect("connected");
        let mut all = vec![0; (FIRST + RECORDS * RECORD) as usize];
        session.read(0, &mut all).expect("it is there");
        let is_whole = |n: u64| all[(FIRST + n * RECORD) as usize..][..RECORD as usize] == record(n);
        // What says that a record is there was written behind it.
        let ordered = (0..RUNS).all(|run| {
            let word = &all[(run * PAGE) as usize..][..8];
            u64::from_le_bytes(word.try_into().expect("8 bytes")).checked_sub(1).is_none_or(is_whole)
        });
        let mut tail = (0..RECORDS).take_while(|n| is_whole(*n)).count() as u64;
        println!("found {tail} {ordered} {applied}");
        let request = Request::append(RECORD as u32);
        let plans = Op::ALL.map(|op| session.plan_by(op, &request).expect("a plan"));
        let mut acknowledged = tail;
        // The first boot goes on until its power goes; the second one only shows that it can.
        let end = if tail == 0 { RECORDS } else { tail + 10 };
        while tail < end {
            let pointer = (tail + 1).to_le_bytes();
            let updates: [(u64, &[u8]); 2] =
                [(FIRST + tail * RECORD, &record(tail)), (tail % RUNS * PAGE, &pointer)];
            session.submit(&plans[(tail / 5 % 3) as usize], &updates).expect("the server lives");
            tail += 1;
            while session.poll().expect("the server lives").is_some() {
                acknowledged += 1;
                println!("acknowledged {acknowledged}");
            }
        }
        session.finish().expect("the server lives");
        stop.ask();
    });
    println!("ends");
}

struct Guest {
    process: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Guest {
    fn boot(kind: &str, image: &Path) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guest/guest.sh");
        let this = std::env::current_exe().expect("this program");
        let mut process = Command::new(script)
            .arg(kind)
            .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest"))
            .arg(image)
            .arg(this)
            .args(["--exact", "guest::in_the_guest", "--nocapture", "--test-threads=1"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("a shell");
        let console = BufReader::new(process.stdout.take().expect("piped"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            console
                .split(b'\n')
                .map_while(Result::ok)
                .try_for_each(|line| send.send(String::from_utf8_lossy(&line).trim_end().to_owned()))
        });
        Self { process, lines, said: Vec::new() }
    }

    /// The rest of the next line that has this; `Err` with the status if the guest ends before.
    fn next(&mut self, wanted: &str) -> Result<String, Option<i32>> {
        let begin = Instant::now();
        loop {
            let left = LIMIT.saturating_sub(begin.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.said.push(line.clone());
                    if let Some((_, rest)) = line.split_once(wanted) {
                        return Ok(rest.to_owned());
                    }
                }
                Err(_) if begin.elapsed() >= LIMIT => {
                    panic!("the guest says nothing more of {wanted:?}: {}", self.said.join("\n"))
                }
                Err(_) => return Err(self.process.wait().expect("it has ended").code()),
            }
        }
    }

    fn must(&mut self, wanted: &str) -> String {
        self.next(wanted).unwrap_or_else(|status| {
            panic!("the guest ended ({status:?}) without {wanted:?}: {}", self.said.join("\n"))
        })
    }
}

impl Drop for Guest {
    /// The power goes.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_guest_with_an_nvdimm_is_cut_off_and_has_every_acknowledged_update_when_it_boots_again() {
    cut_off("kept", "journal None", "DMP+DDIO+PM+persistent");
}

/// What was not written to the disk is gone with the guest's page cache, and its kernel has another boot ID: whatever the
/// journal alone has must be replayed.
#[test]
fn a_guest_with_a_disk_is_cut_off_and_has_every_acknowledged_update_when_it_boots_again() {
    cut_off("disk", "journal Some(", "page cache");
}

fn cut_off(kind: &str, journal: &str, sentence: &str) {
    if std::env::var_os("REMANENCE_TEST_DIR").is_some() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let image: PathBuf = dir.path().join("image");
    let mut guest = Guest::boot(kind, &image);
    match guest.next(journal) {
        Ok(_) => {}
        Err(Some(3)) => {
            eprintln!("skipped: the guest cannot be had here");
            return;
        }
        Err(status) => panic!("the guest ended ({status:?}): {}", guest.said.join("\n")),
    }
    let serves = guest.must("serves ");
    assert!(serves.contains(sentence), "{serves}");
    assert!(guest.must("found ").starts_with("0 true"));
    let mut acknowledged = 0;
    for _ in 0..60 + std::process::id() % 40 {
        acknowledged = guest.must("acknowledged ").trim().parse::<u64>().expect("a number");
    }
    // Whatever it said until the power went counts.
    drop(guest.process.kill());
    drop(guest.process.wait());
    while let Ok(line) = guest.lines.recv() {
        let more = line.split_once("acknowledged ").and_then(|(_, n)| n.parse().ok());
        acknowledged = more.map_or(acknowledged, |n: u64| n.max(acknowledged));
    }
    let mut guest = Guest::boot(kind, &image);
    guest.must(journal);
    let found = guest.must("found ");
    let words: Vec<&str> = found.split_whitespace().collect();
    let tail: u64 = words[0].parse().expect("a number");
    assert!(tail >= acknowledged, "{acknowledged} records were acknowledged, and {tail} are there");
    assert_eq!(words[1], "true", "a second update is there without the first one: {found}");
    println!("{acknowledged} acknowledged, {tail} there, {} messages applied", words[2]);
    guest.must("ends");
}
