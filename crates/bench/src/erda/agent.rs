//! A server process of the bench, which does what its controller says on standard input: so that a server's CPU time is its
//! own process's, and clients' is not in it.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use remanence_erda_paper::baseline::{Scheme, Sizes};
use remanence_kv::view::Mode;
use remanence_kv_live::{Server, ServerOptions};
use remanence_persist::Config;
use remanence_persist::taxonomy::{Buffers, Domain};
use remanence_pmem::{FileOptions, PersistenceDomain};
use remanence_remote::{Meter, Stop};
use remanence_verbs::{Context, Options};

use super::baseline::{BaselineOptions, BaselineServer};
use super::protocol::{Carrier, Cost, Open, Reply, Request, Served};
use crate::process::answer;

/// Clients of one server at a time: 16 threads, and who cleans.
const CLIENTS: u16 = 24;
/// Records that the baselines' buffers have room for.
const RECORDS: u64 = 1024;

/// Serves one controller on standard input and output until it closes them.
pub fn main() -> ExitCode {
    let mut open: Option<Running> = None;
    answer(|request| handle(request, &mut open))
}

fn handle(request: Request, running: &mut Option<Running>) -> Result<Reply, String> {
    match request {
        Request::Open(open) => {
            // Its file goes first.
            drop(running.take());
            let (started, sentence) = Running::start(&open)?;
            let addr = started.addr;
            *running = Some(started);
            Ok(Reply::Opened { addr, sentence })
        }
        Request::Cost => {
            let metered = running.as_ref().ok_or("nothing is open")?.meter.read();
            Ok(Reply::Cost(Cost {
                messages: metered.messages,
                application_us: metered.application.as_nanos() as f64 / 1e3,
                process_us: process_us()?,
            }))
        }
        Request::Close => running.take().ok_or("nothing is open")?.end().map(|()| Reply::Closed),
    }
}

/// CPU time of all threads of this process, by the scheduler's own account.
fn process_us() -> Result<f64, String> {
    let words = |e: std::io::Error| format!("the CPU time of this process cannot be read: {e}");
    let mut nanos = 0_u64;
    for task in std::fs::read_dir("/proc/self/task").map_err(words)? {
        let path = task.map_err(words)?.path().join("schedstat");
        // A thread may end meanwhile.
        let Ok(text) = std::fs::read_to_string(path) else { continue };
        nanos += text.split(' ').next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(nanos as f64 / 1e3)
}

/// A device; on UDP at an address of 127/8 that nobody else of this process uses.
pub(super) fn device(carrier: Carrier) -> Result<Context, String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let options = match carrier {
        Carrier::Udp => {
            let process = std::process::id() % 60_000 + 256;
            let n = NEXT.fetch_add(1, Ordering::Relaxed) % 254 + 1;
            Options::udp(IpAddr::from([127, (process >> 8) as u8, process as u8, n as u8]))
        }
        Carrier::Shm => Options::shm(None),
    };
    Context::open(options).map_err(|e| e.to_string())
}

/// What the paper's NVM is taken for: memory behind an ADR platform, with DDIO off, so that both a FLUSH and the paper's
/// READ after a WRITE make it durable. Declared: the steps are carried out, and nothing makes it true.
pub(super) fn declared() -> Config {
    Config::paper(Domain::Dmp, false, Buffers::Dram)
}

/// A store that is served.
struct Running {
    addr: SocketAddr,
    meter: Meter,
    stop: Stop,
    thread: Option<JoinHandle<Result<(), String>>>,
    _file: File,
}

/// A file that goes with its store.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn words(e: impl std::fmt::Display) -> String {
    e.to_string()
}

impl Running {
    fn start(open: &Open) -> Result<(Self, String), String> {
        let context = device(open.carrier)?;
        let _ = std::fs::remove_file(&open.file);
        let file = File(open.file.clone());
        let stop = Stop::new();
        let scheme = match open.served {
            Served::Erda { durable } => return Self::erda(&context, open, durable, file, stop),
            Served::RedoLogging => Scheme::RedoLogging,
            Served::ReadAfterWrite => Scheme::ReadAfterWrite,
        };
        let options = BaselineOptions {
            scheme,
            // Some more than there are: what was deleted is not free at once.
            sizes: Sizes {
                key: open.key,
                value: open.value,
                keys: 2 * open.keys + RECORDS,
                records: RECORDS,
            },
            configuration: open.declared.then(declared),
            clients: CLIENTS,
        };
        let mut memory = FileOptions::new().create(options.medium());
        if open.declared {
            memory = memory.declare(PersistenceDomain::Adr);
        }
        let region = memory.open(&open.file).map_err(words)?;
        region.populate();
        let mut server = BaselineServer::bind(&context, region, &options)?;
        let application = open.load.put_on(&mut server)?;
        let (addr, meter) = (server.addr(), server.meter());
        let stopping = stop.clone();
        let thread = serve(move || {
            let _beside = application;
            server.run(&stopping)
        })?;
        Ok((Self { addr, meter, stop, thread: Some(thread), _file: file }, String::new()))
    }

    fn erda(
        context: &Context,
        open: &Open,
        durable: bool,
        file: File,
        stop: Stop,
    ) -> Result<(Self, String), String> {
        let options = |place: ServerOptions| {
            let place = place.mode(if durable { Mode::Durable } else { Mode::Erda }).clients(CLIENTS);
            place.keys(2 * open.keys)
        };
        let options = if open.declared {
            let memory = FileOptions::new().create(open.size).declare(PersistenceDomain::Adr);
            let region = memory.open(&open.file).map_err(words)?;
            region.populate();
            // Clients hold the key to everything, and write every value, as in the paper and of the baselines.
            options(ServerOptions::region(region)).configuration(declared()).guarded(false).inline_max(0)
        } else {
            options(ServerOptions::file(&open.file).size(open.size))
        };
        let mut server = Server::bind(context, options).map_err(words)?;
        let application = open.load.put_on(&mut server)?;
        let (addr, meter, sentence) = (server.addr(), server.meter(), server.sentence());
        let stopping = stop.clone();
        let thread = serve(move || {
            let _beside = application;
            server.run(&stopping).map(drop).map_err(words)
        })?;
        Ok((Self { addr, meter, stop, thread: Some(thread), _file: file }, sentence))
    }

    fn end(mut self) -> Result<(), String> {
        self.stop.ask();
        let served = self.thread.take().map(JoinHandle::join);
        match served {
            Some(Ok(result)) => result,
            _ => Err("the serving thread panicked".into()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.ask();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    run: impl FnOnce() -> Result<(), String> + Send + 'static,
) -> Result<JoinHandle<Result<(), String>>, String> {
    std::thread::Builder::new().name("application".into()).spawn(run).map_err(|e| e.to_string())
}
