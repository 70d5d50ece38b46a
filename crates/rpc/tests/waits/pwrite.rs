//! One-sided durable writes over real sockets.

use crate::common;

use std::net::SocketAddr;
use std::path::PathBuf;

use common::{LIMIT, address, device};
use remanence_pmem::{FileOptions, PersistenceDomain, Region};
use remanence_rnic::{Data, SendFlags, SendOp, SendWr};
use remanence_rpc::pwrite::{Error, Export, Method, Writer};
use remanence_service::client::Reactor;
use remanence_verbs::{ConnectAttr, Connection, Context, Listener, Phase, QpOptions};

const LEN: u64 = 1 << 20;
const PORT: u16 = 7501;

/// A file that goes with the test.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str) -> Self {
        let name = format!("remanence-rpc-{}-{name}", std::process::id());
        // A persistence domain can be declared for a tmpfs only: a file on a disk has that of the page cache.
        Self(PathBuf::from("/dev/shm").join(name))
    }

    fn region(&self, declared: Option<PersistenceDomain>) -> Region {
        let options = FileOptions::new().create(LEN);
        declared.map_or(options.clone(), |domain| options.declare(domain)).open(&self.0).unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn at(context: &Context) -> SocketAddr {
    SocketAddr::new(context.config().gids[0].to_ip(), PORT)
}

fn bytes(region: &Region, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.read(offset, &mut bytes);
    bytes
}

#[test]
fn every_method_writes_what_and_where_it_should() {
    let file = TempFile::new("methods");
    let region = file.region(Some(PersistenceDomain::Adr));
    let (there, here) = (device(), device());
    let _export = Export::start(&there, PORT, &region).unwrap();
    let mut writer = Writer::connect(&here, at(&there), 8, 16 << 10, LIMIT).unwrap();
    assert_eq!(writer.len(), LEN);
    assert!(writer.guarantee().declared);
    // One at a time, then with the window full; the last bytes of the region too.
    for (n, method) in Method::ALL.into_iter().enumerate() {
        let start = 100_000 * n as u64 + 1;
        writer.write(method, start, &[n as u8 + 1; 3000]).unwrap();
        assert_eq!(bytes(&region, start - 1, 1), [0]);
        assert_eq!(bytes(&region, start, 3000), [n as u8 + 1; 3000]);
        assert_eq!(bytes(&region, start + 3000, 1), [0]);
        let mut finished = 0;
        for i in 0..100_u64 {
            if writer.room() == 0 {
                finished = writer.wait().unwrap();
            }
            writer.submit(method, 500_000 + i * 100, &[i as u8 + n as u8; 100]).unwrap();
        }
        // (Each round ends with two more.)
        let target = 103 * n as u64 + 101;
        while finished < target {
            finished = writer.wait().unwrap();
        }
        for i in 0..100_u64 {
            assert_eq!(bytes(&region, 500_000 + i * 100, 100), [i as u8 + n as u8; 100]);
        }
        writer.write(method, LEN - 4, &[9; 4]).unwrap();
        assert_eq!(bytes(&region, LEN - 4, 4), [9; 4]);
        writer.write(method, 0, &[]).unwrap();
    }
}

#[test]
fn what_a_method_survives_is_said() {
    let file = TempFile::new("survives");
    let adr = file.region(Some(PersistenceDomain::Adr));
    let (there, here) = (device(), device());
    let export = Export::start(&there, PORT, &adr).unwrap();
    let writer = Writer::connect(&here, at(&there), 1, 64, LIMIT).unwrap();
    // What is visible is in the responder's cache, which a power loss takes.
    assert!(!writer.survives(Method::WriteRead).unwrap().power_loss);
    assert!(writer.survives(Method::WriteFlush).unwrap().power_loss);
    drop((writer, export, adr));
    let file = TempFile::new("survives-eadr");
    let eadr = file.region(Some(PersistenceDomain::Eadr));
    let _export = Export::start(&there, PORT, &eadr).unwrap();
    let writer = Writer::connect(&here, at(&there), 1, 64, LIMIT).unwrap();
    assert!(writer.survives(Method::WriteRead).unwrap().power_loss, "caches survive");
}

#[test]
fn memory_without_a_persistence_domain_is_not_flushed() {
    let region = Region::anonymous(LEN).unwrap();
    let (there, here) = (device(), device());
    let _export = Export::start(&there, PORT, &region).unwrap();
    let mut writer = Writer::connect(&here, at(&there), 1, 64, LIMIT).unwrap();
    assert_eq!(writer.survives(Method::WriteFlush), None);
    let refused = writer.submit(Method::WriteFlush, 0, &[1]);
    assert!(matches!(refused, Err(Error::NoFlush(_))), "{refused:?}");
    writer.write(Method::WriteRead, 0, &[1]).unwrap();
    assert_eq!(bytes(&region, 0, 2), [1, 0]);
}

#[test]
fn bad_places_and_peers_are_refused_with_a_sentence() {
    let region = Region::anonymous(LEN).unwrap();
    let (there, here) = (device(), device());
    let export = Export::start(&there, PORT, &region).unwrap();
    let mut writer = Writer::connect(&here, at(&there), 1, 64, LIMIT).unwrap();
    for (offset, len) in [(LEN, 1), (LEN - 1, 2), (u64::MAX, 1)] {
        let refused = writer.submit(Method::Write, offset, &vec![1; len]);
        assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{refused:?}");
    }
    writer.write(Method::Write, LEN - 1, &[5]).unwrap();
    assert!(matches!(Export::start(&there, PORT, &region), Err(Error::Device(_))), "the port is taken");
    // Who has something to say is no writer.
    let pd = here.alloc_pd().unwrap();
    let cq = here.create_cq(4, None, 0).unwrap();
    let qp = pd.create_qp(&QpOptions::rc(&cq)).unwrap();
    let connection = Connection::connect(&qp, at(&there), &ConnectAttr::default(), b"", Some(LIMIT)).unwrap();
    let (op, flags) = (SendOp::Send, SendFlags::empty());
    qp.post_send(&SendWr { wr_id: 0, op, data: Data::Inline(b"hello"), flags, ud: None }).unwrap();
    let begin = std::time::Instant::now();
    while !matches!(connection.advance(), Ok(Phase::Ended(_)) | Err(_)) {
        assert!(begin.elapsed() < LIMIT, "it has a session still");
        std::thread::yield_now();
    }
    writer.write(Method::Write, LEN - 1, &[6]).unwrap();
    // The exporter goes: what is under way fails, and is not said to be there.
    drop(export);
    let failed = (0..1000).find_map(|_| writer.write(Method::WriteRead, 0, &[1]).err());
    assert!(failed.is_some(), "nobody exports the memory any more");
    // Somebody else listens.
    let other = device();
    let listener = Listener::bind(&other, PORT, 4).unwrap();
    let accepting = {
        let other = other.clone();
        std::thread::spawn(move || {
            let pd = other.alloc_pd().unwrap();
            let cq = other.create_cq(4, None, 0).unwrap();
            let qp = pd.create_qp(&QpOptions::rc(&cq)).unwrap();
            let incoming = listener.get_request(Some(LIMIT)).unwrap();
            incoming.accept(&qp, &ConnectAttr::default(), b"HTTP/1.1 400").unwrap()
        })
    };
    let refused = Writer::connect(&here, at(&other), 1, 64, LIMIT);
    assert!(matches!(refused, Err(Error::NotAnExport(_))), "{refused:?}");
    drop(accepting.join().unwrap());
    let nobody = SocketAddr::new(address(), PORT);
    assert!(Writer::connect(&here, nobody, 1, 64, std::time::Duration::from_millis(200)).is_err());
}

#[test]
fn an_export_has_so_many_writers_of_an_address_and_one_that_goes_makes_room() {
    let region = Region::anonymous(LEN).unwrap();
    let (there, here) = (device(), device());
    let export = Export::start(&there, 0, &region).unwrap();
    let at = SocketAddr::new(at(&there).ip(), export.port());
    // All of them on one completion queue.
    let reactor = Reactor::new(&here).unwrap();
    let connect = || Writer::connect_on(&reactor, at, 2, 64, LIMIT);
    let mut writers: Vec<_> = (0..128).map(|n| connect().unwrap_or_else(|e| panic!("{n}: {e}"))).collect();
    let refused = connect();
    assert!(
        matches!(&refused, Err(Error::Refused(_, why)) if why.contains("as it takes from one address")),
        "{refused:?}"
    );
    for (n, writer) in (0..128).zip(&mut writers) {
        writer.submit(Method::WriteRead, u64::from(n) * 8, &[n; 8]).unwrap();
    }
    // In another order than they were submitted in.
    for (n, writer) in (0..128).zip(&mut writers).rev() {
        assert_eq!(writer.wait().unwrap(), 1);
        assert_eq!(bytes(&region, u64::from(n) * 8, 8), [n; 8]);
    }
    drop(writers.pop());
    // The server hears of the end some time later.
    let begin = std::time::Instant::now();
    let mut again = loop {
        match connect() {
            Err(Error::Refused(..)) => assert!(begin.elapsed() < LIMIT, "no room again"),
            other => break other.unwrap(),
        }
    };
    again.write(Method::WriteRead, LEN - 8, &[200; 8]).unwrap();
    assert_eq!(bytes(&region, LEN - 8, 8), [200; 8]);
}
