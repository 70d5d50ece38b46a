//! Calls that persist, over real sockets.

use crate::common;

use std::path::PathBuf;
use std::thread::JoinHandle;

use common::{LIMIT, PORT, device, options, socket_addr};
use remanence_pmem::engine::{Options as Engine, Placement, Promise};
use remanence_pmem::{FileOptions, PersistenceDomain, Region};
use remanence_rpc::Stop;
use remanence_rpc::copier::Copier;
use remanence_rpc::durable::{Client, Fault, Server};
use remanence_rpc::live::Nexus;
use remanence_verbs::Context;

const LEN: u64 = 1 << 20;

/// A server in a thread.
struct Serving {
    stop: Stop,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Serving {
    fn start(context: &Context, region: &Region, copier: Copier) -> Self {
        let nexus = Nexus::serve(context, PORT).unwrap();
        let rpc = nexus.create(&options()).unwrap();
        let mut server = Server::new(rpc, region.clone(), copier);
        let stop = Stop::new();
        let told = stop.clone();
        let thread = std::thread::spawn(move || {
            let _nexus = nexus;
            server.run(&told)
        });
        Self { stop, thread: Some(thread) }
    }

    fn end(mut self) -> std::io::Result<()> {
        self.stop.ask();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.ask();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn client(here: &Context, there: &Context) -> Client {
    let nexus = Nexus::new(here).unwrap();
    let to = nexus.resolve(socket_addr(there), 0, LIMIT).unwrap();
    Client::connect(nexus.create(&options()).unwrap(), to).unwrap()
}

fn bytes(region: &Region, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.read(offset, &mut bytes);
    bytes
}

fn copiers() -> Vec<(&'static str, Copier)> {
    let options = Engine::new().window(4);
    vec![
        ("stores", Copier::inline(options, Placement::WriteBack)),
        ("non-temporal", Copier::inline(options, Placement::NonTemporal)),
        ("worker", Copier::worker(options, Placement::NonTemporal, 0).unwrap()),
        ("worker from 4 KiB", Copier::worker(options, Placement::NonTemporal, 4096).unwrap()),
        ("adaptive", Copier::adaptive(options, Placement::NonTemporal).unwrap()),
        ("worker, cached", Copier::worker(options, Placement::Cached, 0).unwrap()),
    ]
}

#[test]
fn every_engine_brings_every_byte_to_its_place() {
    for (name, copier) in copiers() {
        eprintln!("{name}");
        let region = Region::anonymous(LEN).unwrap();
        let (there, here) = (device(), device());
        let promise = copier.promise();
        let serving = Serving::start(&there, &region, copier);
        let mut client = client(&here, &there);
        let (len, guarantee, said) = client.describe().unwrap();
        assert_eq!((len, guarantee, said), (LEN, region.domain().guarantee(), promise));
        let sizes = [0, 1, 100, 4056, 4057, 10_000, 70_000];
        // Each to a place of its own: calls that are under way at the same time have no order, as a packet of one may be lost
        // and sent again.
        let writes: Vec<_> = sizes.iter().cycle().take(40).zip(1_u8..).collect();
        for batch in writes.chunks(12) {
            let at = |n: usize| 1000 + 80_000 * n as u64;
            for (n, &(&size, byte)) in batch.iter().enumerate() {
                client.submit(at(n), &vec![byte; size]).unwrap();
            }
            while client.under_way() > 0 {
                client.wait().unwrap();
            }
            for (n, &(&size, byte)) in batch.iter().enumerate() {
                assert_eq!(bytes(&region, at(n), size), vec![byte; size], "{name}: {size} bytes");
            }
        }
        // Of two, of which one was acknowledged before the other one was begun, the last one stays.
        client.write(1000, &[76; 80_000]).unwrap();
        client.write(1000, &[77; 80_000]).unwrap();
        assert_eq!(bytes(&region, 1000, 80_000), vec![77; 80_000]);
        client.write(81_000, &[0; 4]).unwrap();
        assert_eq!((bytes(&region, 999, 1), bytes(&region, 81_000, 1)), (vec![0], vec![0]));
        assert_eq!(client.read(80_998, 4).unwrap(), [77, 77, 0, 0]);
        serving.end().unwrap();
    }
}

#[test]
fn a_request_that_makes_no_sense_is_refused_and_changes_nothing() {
    let region = Region::anonymous(LEN).unwrap();
    let (there, here) = (device(), device());
    let _serving = Serving::start(&there, &region, Copier::inline(Engine::new(), Placement::NonTemporal));
    let mut client = client(&here, &there);
    for (offset, len) in [(LEN, 1), (LEN - 1, 2), (u64::MAX, 1)] {
        let refused = client.write(offset, &vec![1; len]);
        assert!(matches!(&refused, Err(Fault::Refused(why)) if why.contains("do not lie")), "{refused:?}");
    }
    assert!(matches!(client.read(LEN - 3, 4), Err(Fault::Refused(_))));
    client.write(LEN - 1, &[9]).unwrap();
    assert_eq!(bytes(&region, LEN - 2, 2), [0, 9]);
    let nexus = Nexus::new(&here).unwrap();
    let to = nexus.resolve(socket_addr(&there), 0, LIMIT).unwrap();
    let mut rpc = nexus.create(&options()).unwrap();
    let session = rpc.connect(to).unwrap();
    for (service, request) in [(1, &b"short"[..]), (2, b"short"), (99, b"")] {
        let (status, _) = rpc.call_and_wait(session, service, request, |_| {}).unwrap();
        assert_ne!(status, remanence_rpc::header::Status::Done, "service {service}");
    }
}

/// A file that is cut short under its server: what is not durable is not acknowledged, and the server ends.
#[test]
fn a_failed_medium_is_never_acknowledged() {
    for copier in [
        Copier::inline(Engine::new(), Placement::NonTemporal),
        Copier::worker(Engine::new(), Placement::NonTemporal, 0).unwrap(),
    ] {
        let path = PathBuf::from("/dev/shm").join(format!("remanence-rpc-{}-cut", std::process::id()));
        let _gone = Gone(path.clone());
        let region = FileOptions::new().create(LEN).declare(PersistenceDomain::Adr).open(&path).unwrap();
        let (there, here) = (device(), device());
        let serving = Serving::start(&there, &region, copier);
        let mut client = client(&here, &there);
        assert_eq!(client.describe().unwrap().2, Promise::Synced);
        client.write(LEN / 2, &[1; 5000]).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(4096).unwrap();
        let refused = client.write(LEN / 2, &[2; 5000]);
        assert!(matches!(refused, Err(Fault::Refused(_) | Fault::Lost(_))), "{refused:?}");
        let ended = serving.end();
        assert!(ended.is_err(), "the server goes on with a medium that failed");
    }
}

struct Gone(PathBuf);

impl Drop for Gone {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
