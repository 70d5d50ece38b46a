//! What is left of a device in a forked child.
//!
//! A child has the memory of its parent, of the moment of the fork, and none of its threads: the device lock may be
//! held by a thread that is not there, and what it protects be half changed. So nothing of it is touched again, not
//! even to drop it. Its descriptors are closed (`remanence_link::abandon_inherited`), and whoever asks for the lock
//! gets that of an heir: a driver without objects, whose link does not work. To it every handle is unknown, so calls
//! fail as they do for objects that were destroyed, and drops find nothing to do.
//!
//! Other locks are not waited for either: `EventQueue`, and the methods that take the lock of a CQ's lanes, look at the
//! generation first.

use std::io;
use std::sync::Arc;

use remanence_link::{Link, LinkCaps, LinkStats, Outgoing, Received, WaitFd};
use remanence_rnic::{Config, Device, cm};

use crate::cm::Connections;
use crate::driver::{Driver, Signals};
use crate::flush::FlushQueue;
use crate::handover::Progress;
use crate::memory::RegionMemory;

/// The driver of a device that was abandoned.
pub(crate) fn heir(caps: &LinkCaps, signals: &Signals) -> Driver {
    Driver::failed(
        Device::new(Config { max_pd: 0, max_cq: 0, ..Config::default() }),
        RegionMemory::new(Arc::new(FlushQueue::default())),
        Connections::new(cm::Config::default(), false),
        gone(caps),
        Progress::ByConsumer,
        signals.clone(),
    )
}

/// A link that carries nothing any more.
pub(crate) fn gone(caps: &LinkCaps) -> Box<dyn Link> {
    Box::new(Gone(caps.clone()))
}

struct Gone(LinkCaps);

impl Link for Gone {
    fn caps(&self) -> &LinkCaps {
        &self.0
    }

    fn tx_buffer(&mut self) -> io::Result<&mut [u8]> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn send(&mut self, _: &Outgoing) -> io::Result<()> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn recv(&mut self, _: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        Ok(0)
    }

    fn wait_fds(&self, _: &mut Vec<WaitFd>) {}

    fn prepare_wait(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    fn stats(&self) -> LinkStats {
        LinkStats::default()
    }
}
