//! Where the two processes of a bench stand: on one host over loopback, or in two network namespaces of our own
//! that a veth pair joins. The namespaces go away with the value.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Where client and server run.
#[derive(Debug)]
pub enum Place {
    /// Both on this host, over 127.0.0.1.
    Loopback,
    /// Each in its own network namespace.
    Veth(Veth),
}

/// A veth pair between two namespaces; deleted on drop.
#[derive(Debug)]
pub struct Veth {
    names: [String; 2],
}

impl Veth {
    /// The interface's name inside each namespace.
    pub const INTERFACE: &'static str = "veth0";

    /// Makes the namespaces and the pair; `mtu` is that of the interfaces.
    ///
    /// # Errors
    /// One sentence; most often, that it takes root.
    pub fn new(mtu: u32) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("rem-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let veth = Self { names: [format!("{id}-s"), format!("{id}-c")] };
        let [server, client] = &veth.names;
        let mtu = mtu.to_string();
        ip(&["netns", "add", server])?;
        ip(&["netns", "add", client])?;
        let (end, interface) = (["netns", server], Self::INTERFACE);
        ip(&[
            "-n", client, "link", "add", interface, "mtu", &mtu, "type", "veth", "peer", "name", interface,
            "mtu", &mtu, end[0], end[1],
        ])?;
        for (name, address) in [(server, "10.88.0.1/24"), (client, "10.88.0.2/24")] {
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            ip(&["-n", name, "addr", "add", address, "dev", interface])?;
            ip(&["-n", name, "link", "set", interface, "up"])?;
        }
        Ok(veth)
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(args: &[&str]) -> Result<(), String> {
    let output = Command::new("ip")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("the `ip` command of iproute2 is needed: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {}: {} (network namespaces take root)", args.join(" "), why.trim()))
}

impl Place {
    /// The address at which the client finds the server.
    #[must_use]
    pub fn server_address(&self) -> String {
        match self {
            Self::Loopback => "127.0.0.1".into(),
            Self::Veth(_) => "10.88.0.1".into(),
        }
    }

    /// The network interface between the two.
    #[must_use]
    pub const fn interface(&self) -> &'static str {
        match self {
            Self::Loopback => "lo",
            Self::Veth(_) => Veth::INTERFACE,
        }
    }

    /// The address of the client.
    #[must_use]
    pub fn client_address(&self) -> String {
        match self {
            Self::Loopback => "127.0.0.1".into(),
            Self::Veth(_) => "10.88.0.2".into(),
        }
    }

    /// A command that runs `program` pinned to `core` at the client's or the server's end.
    #[must_use]
    pub fn command(&self, program: &str, core: usize, client: bool) -> Command {
        match self {
            Self::Loopback => crate::peers::pinned(program, core),
            Self::Veth(veth) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &veth.names[usize::from(client)], "taskset", "-c"]);
                command.args([&core.to_string(), program]);
                command
            }
        }
    }
}
