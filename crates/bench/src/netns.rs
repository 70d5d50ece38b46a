//! Where the two processes of a bench stand: on one host over loopback, or in two network namespaces of our own
//! that a veth pair joins. Where there are more of them, each is in a namespace of its own, on a cable to a bridge that can be
//! pulled. The namespaces go away with the value.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process;

/// Where client and server run.
#[derive(Debug)]
pub enum NetworkPath {
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
        let id = id();
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
        self.names.iter().for_each(|name| remove(name));
    }
}

/// A bridge in a namespace of its own, and cables from it to others; deleted on drop.
#[derive(Debug)]
pub struct Star {
    hub: String,
    ends: Vec<String>,
}

impl Star {
    /// Makes the namespaces, so many at the ends, and what joins them.
    ///
    /// # Errors
    /// One sentence; most often, that it takes root.
    pub fn new(ends: usize) -> Result<Self, String> {
        let id = id();
        let star = Self { hub: format!("{id}-h"), ends: (0..ends).map(|n| format!("{id}-{n}")).collect() };
        let (hub, interface) = (&star.hub, Veth::INTERFACE);
        ip(&["netns", "add", hub])?;
        ip(&["-n", hub, "link", "set", "lo", "up"])?;
        ip(&["-n", hub, "link", "add", "br0", "type", "bridge"])?;
        ip(&["-n", hub, "addr", "add", &format!("{}/24", Self::HUB), "dev", "br0"])?;
        ip(&["-n", hub, "link", "set", "br0", "up"])?;
        for (n, end) in star.ends.iter().enumerate() {
            let (port, address) = (port(n), format!("{}/24", Self::end(n)));
            ip(&["netns", "add", end])?;
            let peer = ["peer", "name", interface, "netns", end];
            ip(&[&["-n", hub, "link", "add", &port, "type", "veth"][..], &peer].concat())?;
            ip(&["-n", hub, "link", "set", &port, "master", "br0", "up"])?;
            ip(&["-n", end, "link", "set", "lo", "up"])?;
            ip(&["-n", end, "addr", "add", &address, "dev", interface])?;
            ip(&["-n", end, "link", "set", interface, "up"])?;
        }
        Ok(star)
    }

    /// The address of the bridge.
    pub const HUB: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 89, 0, 254));

    /// The address at an end.
    #[must_use]
    pub const fn end(n: usize) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 89, 0, n as u8 + 1))
    }

    /// What stands before a command line that is to run at an end.
    #[must_use]
    pub fn prefix(&self, n: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.ends[n]].map(str::to_owned).into()
    }

    /// The namespace of the bridge, by its name.
    #[must_use]
    pub fn hub(&self) -> &str {
        &self.hub
    }
}

/// Moves the calling thread to a namespace, for good; the threads and processes that it starts are there, too.
///
/// # Errors
/// What the kernel says.
pub fn enter(name: &str) -> Result<(), String> {
    let path = format!("/run/netns/{name}");
    let namespace = File::open(&path).map_err(|e| format!("{path}: {e}"))?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|e| format!("{path}: {e}"))
}

/// Pulls the cable of an end of the star whose [bridge](Star::hub) this is: its interface has no carrier then, and nothing arrives either
/// way.
///
/// # Errors
/// What `ip` says.
pub fn cut(hub: &str, n: usize) -> Result<(), String> {
    ip(&["-n", hub, "link", "set", &port(n), "down"])
}

impl Drop for Star {
    fn drop(&mut self) {
        self.ends.iter().chain([&self.hub]).for_each(|name| remove(name));
    }
}

/// The bridge's end of a cable.
fn port(n: usize) -> String {
    format!("port{n}")
}

/// What the names of namespaces that are made together begin with.
fn id() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("rem-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// What a process has made, and not deleted.
pub(crate) fn those_of(process: u32) -> Vec<String> {
    let begin = format!("rem-{process}-");
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&begin)).collect()
}

/// Deletes one. Whether that was done is seen by whoever looks for [those](those_of) that are left.
pub(crate) fn remove(name: &str) {
    let _ = ip(&["netns", "del", name]);
}

fn ip(args: &[&str]) -> Result<(), String> {
    process::run_tool("ip", args).map_err(|why| format!("{why} (network namespaces take root and iproute2)"))
}

impl NetworkPath {
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
