//! A guest with Linux' Soft-RoCE in it, and nothing around it: `tests/guest` builds and boots it, its agent runs
//! commands. The recipe is part of this program, so that the bench needs no checkout.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::process;

const RECIPE: [(&str, &str); 4] = [
    ("guest.sh", include_str!("../../../../tests/guest/guest.sh")),
    ("agent.c", include_str!("../../../../tests/guest/agent.c")),
    ("durable.c", include_str!("../../../../tests/guest/durable.c")),
    ("rxe_peer.c", include_str!("../../../../tests/guest/rxe_peer.c")),
];
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// A bench that takes longer is killed with its guest.
const LIFE_LIMIT_S: &str = "3600";

/// A running guest; dropped, it is killed.
pub(super) struct Guest {
    machine: Child,
    agent: SocketAddr,
    directory: PathBuf,
}

impl Guest {
    /// Builds what it is made of in `directory`, if that is not there yet, and boots it with the files below `tree`.
    pub(super) fn boot(directory: &Path, tree: &Path) -> Result<Self, String> {
        let fault = |e: std::io::Error| format!("{}: {e}", directory.display());
        let recipe = directory.join("recipe");
        std::fs::create_dir_all(&recipe).map_err(fault)?;
        for (name, text) in RECIPE {
            std::fs::write(recipe.join(name), text).map_err(fault)?;
        }
        let script = recipe.join("guest.sh");
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).map_err(fault)?;
        let built = Command::new(&script).arg("build").arg(directory).output().map_err(fault)?;
        if !built.status.success() {
            return Err(format!("the guest: {}", String::from_utf8_lossy(&built.stderr).trim()));
        }
        let agent = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).map_err(fault)?;
        let log = File::create(directory.join("alone.log")).map_err(fault)?;
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", LIFE_LIMIT_S])
            .arg(&script)
            .arg("alone")
            .arg(directory)
            .arg(agent.port().to_string())
            .arg(tree)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(fault)?)
            .stderr(log);
        let machine = process::spawn_parent(&mut command).map_err(fault)?;
        let mut guest = Self { machine, agent, directory: directory.to_owned() };
        let start = Instant::now();
        // The emulator's own network answers before the guest does, and then hangs up.
        while guest.run("true", Duration::from_secs(5)).is_err() {
            let ended = guest.machine.try_wait().map_err(fault)?;
            if ended.is_some() || start.elapsed() > BOOT_LIMIT {
                return Err(format!("the guest did not come up: {}", guest.tail()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(guest)
    }

    /// Runs a shell command to its end and returns what it printed.
    pub(super) fn run(&self, command: &str, limit: Duration) -> Result<String, String> {
        let fault = |e: std::io::Error| format!("the guest does not answer: {e}");
        let mut agent = TcpStream::connect_timeout(&self.agent, limit).map_err(fault)?;
        agent.set_read_timeout(Some(limit)).map_err(fault)?;
        agent.write_all(command.as_bytes()).and_then(|()| agent.write_all(b"\n")).map_err(fault)?;
        let mut text = String::new();
        agent.read_to_string(&mut text).map_err(fault)?;
        match text.rsplit_once("status ") {
            Some((printed, status)) if status.trim() == "0" => Ok(printed.to_owned()),
            Some((printed, _)) => Err(printed.trim().to_owned()),
            None => Err(format!("the guest is gone: {}", self.tail())),
        }
    }

    fn tail(&self) -> String {
        let text = std::fs::read(self.directory.join("alone.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join(" | ")
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if matches!(self.machine.try_wait(), Ok(None)) {
            // `timeout` hands SIGTERM on to the emulator; SIGKILL it could not hand on.
            let _ = Command::new("kill").arg(self.machine.id().to_string()).status();
            let _ = self.machine.wait();
        }
    }
}
