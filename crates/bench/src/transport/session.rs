//! A pair of ends on one path.

use std::path::Path as FilePath;

use super::agent::Transport;
use super::plan::Path;
use super::protocol::{Burst, Spec, Test};
use crate::role::{Launcher, Pair, Ran};

/// A pair of ends, which is open when it is needed.
pub(crate) struct Session {
    path: Path,
    pair: Pair<Transport, Transport>,
}

impl Session {
    /// Makes the launcher of one; `libraries` is where those find ours that go through the C ABI.
    pub(crate) fn new(program: &FilePath, path: Path, libraries: Option<&FilePath>) -> Result<Self, String> {
        let mut launcher = Launcher::at(program, path.place()?);
        if let Some(directory) = libraries {
            // Loopback is a device beside others only if it is named.
            let interface = launcher.network().interface();
            launcher = launcher.with("REMANENCE_LIB", directory).with("REMANENCE_DEVICE", interface);
        }
        Ok(Self { path, pair: Pair::new(launcher) })
    }

    /// Its processes are others from here on.
    pub(crate) fn renew(&mut self) -> Result<(), String> {
        self.pair.renew()
    }

    /// One run of a test while the server spins.
    pub(crate) fn sample(&mut self, test: Test, size: u64, ms: u64) -> Result<Ran<Vec<u64>>, String> {
        if !self.pair.is_open() {
            let network = self.pair.launcher().network();
            let parse = |address: String| address.parse().map_err(|e| format!("{address}: {e}"));
            let (there, here) = (parse(network.server_address())?, parse(network.client_address())?);
            let spec = |server: bool| Spec {
                carrier: self.path.carrier(),
                address: if server { there } else { here },
                peer: if server { here } else { there },
                interface: network.interface().to_owned(),
                server,
            };
            let (server, client) = (spec(true), spec(false));
            self.pair.open(&server, &client)?;
        }
        let burst = Burst { test, size, ms };
        self.pair.burst(Some(&burst), &burst)
    }
}
