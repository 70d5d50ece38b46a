//! The rules of every link, over a veth pair of our own. What is special to AF_XDP is tested in `tests/waits/xdp.rs`.

use std::io;
use std::net::UdpSocket;
use std::time::Duration;

use crate::conformance::{self, Pair};
use crate::veth::{End, Veth};
use crate::xdp::{Config, Mode, XdpLink};

/// The suite looks at one end at a time, and frames for an unresolved neighbour wait for their sender: so let the
/// kernels get to know each other first.
fn acquaint(veth: &Veth) -> io::Result<()> {
    let [left, right] = [End::Left, End::Right].map(|end| {
        veth.within(end, || {
            let socket = UdpSocket::bind((end.ipv4(), 9999))?;
            socket.set_read_timeout(Some(Duration::from_secs(60)))?;
            Ok(socket)
        })
    });
    let (left, right) = (left?, right?);
    left.send_to(b"?", (End::Right.ipv4(), 9999))?;
    let (_, from) = right.recv_from(&mut [0; 8])?;
    right.send_to(b"!", from)?;
    left.recv_from(&mut [0; 8]).map(drop)
}

#[test]
fn conformance() {
    let veth = match Veth::new(1500) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            println!("SKIPPED: network namespaces need root: {e}");
            return;
        }
        other => other.expect("a veth pair"),
    };
    acquaint(&veth).expect("the kernels reach each other");
    for mode in [Mode::Generic, Mode::Native] {
        conformance::all(|| {
            let [a, b] = [End::Left, End::Right].map(|end| {
                let config = Config { mode, ..Config::new(Veth::INTERFACE) };
                let link = veth.within(end, || Ok(XdpLink::open(&config))).expect("a thread at this end");
                Box::new(link.unwrap_or_else(|e| panic!("{e}")))
            });
            Pair { a, b, lossy: true, sees_ecn: true }
        });
    }
}
