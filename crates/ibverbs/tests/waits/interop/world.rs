//! Two machines, and programs that run on them: this one, with our libraries, and a guest with Soft-RoCE.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::common::listening::Sign;
use crate::common::world::tcp_listens;
use crate::machine::{GUEST, HOST, Machine, TAP, directory};

/// Emulated, the guest is some fifty times slower than we are.
const PATIENCE: Duration = Duration::from_secs(150);

/// How a server is seen to listen.
#[derive(Clone, Copy)]
enum Ready {
    Tcp(u16),
    /// `rdma_listen` has returned.
    Cm,
}

impl Ready {
    /// As the programs choose their ports.
    fn of(command: &str) -> Self {
        let by_cm = ["rping", "ucmatose", "udaddy"].iter().any(|name| command.starts_with(name));
        match command.split(' ').next() {
            _ if by_cm || command.contains(" -R ") => Self::Cm,
            Some("durable") => Self::Tcp(18600),
            _ => Self::Tcp(18515),
        }
    }
}

/// Where a program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Here, on our libraries.
    Ours,
    /// In the guest, on the kernel's.
    Guest,
}

impl Side {
    pub(crate) const fn other(self) -> Self {
        if matches!(self, Self::Ours) { Self::Guest } else { Self::Ours }
    }

    fn address(self) -> String {
        if self == Self::Ours { HOST.to_string() } else { GUEST.to_string() }
    }
}

pub(crate) struct World {
    machine: Machine,
    control: TcpStream,
    /// Where our libraries are.
    libraries: PathBuf,
    /// The places of the IPv4 addresses in both GID tables.
    gids: [String; 2],
    /// More environment for our side.
    pub(crate) weather: Vec<(&'static str, &'static str)>,
    started: u32,
}

/// How a program ended.
pub(crate) struct Ended {
    pub(crate) status: i32,
    pub(crate) text: String,
}

impl World {
    pub(crate) fn new(libraries: PathBuf) -> Self {
        let (machine, control) = Machine::boot(Duration::from_secs(7200));
        let gids = [String::new(), String::new()];
        let mut world = Self { machine, control, libraries, gids, weather: Vec::new(), started: 0 };
        for side in [Side::Ours, Side::Guest] {
            let ended = world.run(side, "ibv_devinfo -v -d {dev}");
            assert_eq!(ended.status, 0, "ibv_devinfo on {side:?}: {}", ended.text);
            let entry =
                ended.text.lines().find(|line| line.contains("GID[") && line.contains(&side.address()));
            let entry = entry.unwrap_or_else(|| panic!("no GID for {}: {}", side.address(), ended.text));
            let number = entry.split(['[', ']']).nth(1).expect("GID[  1]: ...").trim();
            world.gids[side as usize] = number.to_owned();
        }
        world
    }

    /// Starts a command, in which `{dev}` is the side's device, `{gid}` the place of its address in the GID table,
    /// `{own}` that address and `{peer}` the other side's.
    pub(crate) fn start(&mut self, side: Side, command: &str) -> Program {
        let device = if side == Side::Ours { format!("rem_{TAP}") } else { "rxe0".to_owned() };
        let command = command
            .replace("{dev}", &device)
            .replace("{gid}", &self.gids[side as usize])
            .replace("{own}", &side.address())
            .replace("{peer}", &side.other().address());
        self.started += 1;
        match side {
            Side::Ours => self.start_here(&command),
            Side::Guest => Program::Remote(Remote::start(&command)),
        }
    }

    fn start_here(&self, command: &str) -> Program {
        let output = directory().join(format!("program-{}.txt", self.started % 4));
        let file = File::create(&output).expect("the guest's directory can be written");
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        // `durable` is built there, and Debian's daemons' paths are not everybody's.
        path.push(":");
        path.push(directory());
        let mut shell = Command::new("sh");
        let sign = Sign::of(&mut shell);
        let child = shell
            .args(["-c", &format!("exec {command}")])
            .env("PATH", path)
            .env("LD_LIBRARY_PATH", &self.libraries)
            .env("REMANENCE_DEVICE", format!("rem_{TAP}"))
            .envs(self.weather.iter().copied())
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a descriptor"))
            .stderr(file)
            .spawn()
            .expect("sh");
        Program::Here(Here { child, output, sign })
    }

    /// Runs a command to its end.
    pub(crate) fn run(&mut self, side: Side, command: &str) -> Ended {
        self.start(side, command).wait(PATIENCE)
    }

    /// Waits until a server listens, or has ended.
    fn listens(&mut self, side: Side, serving: &mut Program, ready: Ready) {
        if side == Side::Guest {
            let look = match ready {
                Ready::Tcp(port) => format!("grep -qE ':{port:04X} 0+:0000 0A' /proc/net/tcp /proc/net/tcp6"),
                Ready::Cm => "rdma resource show cm_id | grep -q 'state LISTEN'".to_owned(),
            };
            let mut looking = self.start(side, &format!("until {look}; do sleep 0.1; done"));
            let until = Instant::now() + PATIENCE;
            while Instant::now() < until && !looking.ended() && !serving.ended() {
                std::thread::sleep(Duration::from_millis(5));
            }
            return;
        }
        let until = Instant::now() + PATIENCE;
        let listens = |serving: &Program| match ready {
            Ready::Tcp(port) => tcp_listens("self", port),
            Ready::Cm => matches!(serving, Program::Here(here) if here.sign.is_given()),
        };
        while Instant::now() < until && !listens(serving) && !serving.ended() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Runs a server and a client until both have ended well, and returns what the client said; the error is what both
    /// said.
    pub(crate) fn serve_and_ask(&mut self, server: (Side, &str), client: &str) -> Result<String, String> {
        let (side, command) = server;
        let mut serving = self.start(side, command);
        self.listens(side, &mut serving, Ready::of(command));
        let both = |ended: &Ended, other: &Ended| {
            format!(
                "{side:?} serves: {command}\nclient: {client}\nclient ended with {}:\n{}\nserver ended with {}:\n{}",
                ended.status, ended.text, other.status, other.text
            )
        };
        let asked = self.run(side.other(), client);
        if asked.status != 0 {
            return Err(both(&asked, &serving.wait(Duration::from_secs(3))));
        }
        let served = serving.wait(PATIENCE);
        if served.status == 0 { Ok(asked.text) } else { Err(both(&asked, &served)) }
    }

    /// Lets the guest power off.
    pub(crate) fn end(mut self) {
        self.control.write_all(b"quit\n").expect("the guest listens");
        self.machine.wait();
    }
}

/// A program that runs. Dropped, it is killed.
pub(crate) enum Program {
    Here(Here),
    Remote(Remote),
}

impl Program {
    fn ended(&mut self) -> bool {
        match self {
            Self::Here(here) => here.child.try_wait().is_ok_and(|status| status.is_some()),
            Self::Remote(remote) => remote.look(Duration::ZERO).is_some(),
        }
    }

    /// Waits for its end; after `limit` it is killed, and its status is -1.
    pub(crate) fn wait(mut self, limit: Duration) -> Ended {
        let start = Instant::now();
        let status = match &mut self {
            Self::Remote(remote) => remote.look(limit).unwrap_or(-1),
            Self::Here(here) => loop {
                match here.child.try_wait().expect("our child") {
                    Some(status) => break status.code().unwrap_or(-2),
                    None if start.elapsed() > limit => break -1,
                    None => std::thread::sleep(Duration::from_millis(5)),
                }
            },
        };
        let text = match &self {
            Self::Remote(remote) => remote.text.clone(),
            Self::Here(here) => {
                String::from_utf8_lossy(&std::fs::read(&here.output).unwrap_or_default()).into_owned()
            }
        };
        Ended { status, text }
    }
}

pub(crate) struct Here {
    child: Child,
    output: PathBuf,
    sign: Sign,
}

impl Drop for Here {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Remote {
    /// Closed, the agent kills the program.
    _stream: TcpStream,
    heard: Receiver<Vec<u8>>,
    text: String,
    status: Option<i32>,
}

impl Remote {
    fn start(command: &str) -> Self {
        let agent = SocketAddr::from((GUEST, 7778));
        let mut stream = TcpStream::connect_timeout(&agent, PATIENCE).expect("the agent listens");
        stream.write_all(format!("{command}\n").as_bytes()).expect("the agent reads");
        let mut reader = stream.try_clone().expect("a descriptor");
        let (sender, heard) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(len @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..len].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { _stream: stream, heard, text: String::new(), status: None }
    }

    /// Its status, if it ends within `limit`.
    fn look(&mut self, limit: Duration) -> Option<i32> {
        let start = Instant::now();
        while self.status.is_none() {
            match self.heard.recv_timeout(limit.saturating_sub(start.elapsed())) {
                Ok(bytes) => self.text.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => {
                    let (text, status) = self.text.rsplit_once("status ").unwrap_or((&self.text, "-3"));
                    self.status = Some(status.trim().parse().unwrap_or(-3));
                    self.text = text.to_owned();
                }
            }
        }
        self.status
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self._stream.shutdown(std::net::Shutdown::Both);
    }
}
