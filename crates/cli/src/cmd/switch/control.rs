//! The socket by which a switch is looked at: one question in a line, and its answer in a line; behind that of `capture` the file itself, until either side ends.
//!
//! It is its user's alone, as are the directory of its usual place and the file itself.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use remanence_switch::{ReplicaView, View};
use remanence_switch_live::{Handle, Look, Recording};
use rustix::fs::Mode;
use rustix::process::umask;
use serde_json::{Map, Value, json};

use crate::fail::{Context as _, Fail};

/// How long a client may take to say what it wants, and to take an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a question.
const QUESTION: u64 = 64;

/// The socket of a switch that runs.
pub(super) struct Control {
    socket: PathBuf,
    /// Who writes a recording down.
    recording: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Control {
    /// Listens, and answers in a thread that ends with the process.
    pub(super) fn begin(socket: &Path, handle: Handle) -> Result<Self, Fail> {
        // Nobody else's from the first moment on.
        let mask = umask(Mode::RWXG | Mode::RWXO);
        let listener = listen(socket);
        umask(mask);
        let listener = listener?;
        let recording = Arc::default();
        let this = Self { socket: socket.to_owned(), recording: Arc::clone(&recording) };
        std::thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                for client in listener.incoming() {
                    // Who goes away before he is answered is nobody's concern; where the process has no descriptors left, who comes waits.
                    match client {
                        Ok(client) => drop(answer(client, &handle, &recording)),
                        Err(_) => std::thread::sleep(PATIENCE),
                    }
                }
            })
            .context(|| "a thread cannot be started".into())?;
        Ok(this)
    }

    /// The switch has ended: what was recorded is written down, and the socket is gone.
    pub(super) fn end(self) {
        let writing = self.recording.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writing) = writing {
            let _ = writing.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Listens where nobody does.
fn listen(socket: &Path) -> Result<UnixListener, Fail> {
    let name = socket.display();
    let place = || format!("the control socket {name} cannot be had");
    match UnixListener::bind(socket) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            if UnixStream::connect(socket).is_ok() {
                let why =
                    format!("another switch is controlled by {name}; name another socket with --control");
                return Err(Fail::new(why));
            }
            if !std::fs::symlink_metadata(socket).is_ok_and(|file| file.file_type().is_socket()) {
                return Err(Fail::new(format!(
                    "{name} is a file, and no socket; name another one with --control"
                )));
            }
            // Of one that was killed.
            std::fs::remove_file(socket).and_then(|()| UnixListener::bind(socket)).context(place)
        }
        other => other.context(place),
    }
}

fn answer(client: UnixStream, handle: &Handle, recording: &Mutex<Option<JoinHandle<()>>>) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut question = String::new();
    BufReader::new((&client).take(QUESTION)).read_line(&mut question)?;
    let gone = || json!({ "error": "the switch has stopped" });
    let look = || handle.ask(|plane| plane.look());
    let said = match question.trim() {
        "groups" => look().map_or_else(gone, |look| groups(&look)),
        "stats" => look().map_or_else(gone, |look| json!({ "counters": counters(&look) })),
        "capture" => match handle.ask(|plane| plane.record()) {
            Some(Ok(blocks)) => {
                writeln!(&client, "{}", json!({ "event": "capturing" }))?;
                let writing = std::thread::spawn(move || write_down(blocks, client));
                *recording.lock().unwrap_or_else(PoisonError::into_inner) = Some(writing);
                return Ok(());
            }
            Some(Err(_)) => json!({ "error": "somebody captures already; end that first" }),
            None => gone(),
        },
        other => json!({ "error": format!("{other:?} is nothing that a switch is asked for") }),
    };
    writeln!(&client, "{said}")
}

/// Hands a recording over, until it is over, or its reader has gone or does not keep up.
fn write_down(blocks: Recording, mut client: UnixStream) {
    for block in blocks {
        if client.write_all(&block).is_err() {
            return;
        }
    }
}

/// Asks a switch.
pub(super) fn ask(socket: &Path, question: &str) -> Result<(Value, BufReader<UnixStream>), Fail> {
    let none = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Fail::new(format!(
            "no switch of yours is controlled by {}; see `rem switch run`",
            socket.display()
        )),
        _ => Fail::new(format!("the switch cannot be asked by {} ({e})", socket.display())),
    };
    let stream = UnixStream::connect(socket).map_err(none)?;
    writeln!(&stream, "{question}").map_err(none)?;
    let (mut reader, mut line) = (BufReader::new(stream), String::new());
    reader.read_line(&mut line).map_err(none)?;
    let said: Value = serde_json::from_str(&line).map_err(|_| Fail::new("the switch has stopped"))?;
    match said["error"].as_str() {
        Some(error) => Err(Fail::new(error)),
        None => Ok((said, reader)),
    }
}

fn groups(look: &Look) -> Value {
    let replica = |one: &ReplicaView| {
        json!({
            "address": one.end.addr.to_string(),
            "qpn": one.end.qpn.value(),
            "lag": one.lag,
            "behind": one.behind,
            "out": one.out,
        })
    };
    let group = |view: &View| {
        json!({
            "group": view.id.0,
            "service": view.service & 0xffff,
            "epoch": view.epoch,
            "leader": view.leader.addr.to_string(),
            "leader_qpn": view.leader.qpn.value(),
            "qpn": view.broadcast.value(),
            "writes": view.writes,
            "reads": view.reads,
            "open": view.open,
            "refused": view.refused.map(|code| code.to_string()),
            "replicas": view.replicas.iter().map(replica).collect::<Vec<_>>(),
        })
    };
    json!({ "groups": look.groups.iter().map(group).collect::<Vec<_>>() })
}

/// Everything that was counted, by its name.
pub(super) fn counters(look: &Look) -> Value {
    let (plane, link) = (&look.plane, &look.link);
    let more = [
        ("groups", look.groups.len() as u64),
        ("elsewhere", plane.elsewhere),
        ("unsendable", plane.unsendable),
        ("unreachable", plane.unreachable),
        ("blocked", plane.blocked),
        ("unrecorded", plane.unrecorded),
        ("received", link.rx_datagrams),
        ("received_batches", link.rx_batches),
        ("sent", link.tx_datagrams),
        ("sent_batches", link.tx_batches),
        ("send_failed", link.tx_failed),
    ];
    let all = look.switch.named().into_iter().chain(more);
    Value::Object(all.map(|(name, count)| (name.to_owned(), count.into())).collect::<Map<_, _>>())
}
