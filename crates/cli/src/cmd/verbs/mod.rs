//! `rem verbs`: runs a verbs program that knows nothing of us on our RNIC, or installs the libraries for good.
//!
//! The program finds our `libibverbs.so.1` and `librdmacm.so.1` before the system's by `LD_LIBRARY_PATH`, our settings in
//! `REMANENCE_*`, and what it may look for below /sys and /dev in a private view (`view.rs`). Then it takes the place
//! of this process: same process id, so that signals reach it and its exit status is ours.

mod counters;
mod devices;
mod install;
mod library;
mod namespace;
mod port;
mod view;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use devices::unnamed;
pub(crate) use devices::{Device, list as devices};
pub(crate) use library::find as find_libraries;

use crate::fail::{Context as _, Fail};
use crate::ui;

#[derive(clap::Args, Debug)]
#[command(
    override_usage = "rem verbs [OPTIONS] -- COMMAND [ARGS]...\n       rem verbs --install PREFIX | --uninstall PREFIX",
    after_help = "\
Examples:
  rem verbs -- ibv_devinfo                     the devices: one for each interface with an address
  rem verbs -- ib_write_bw -d rem_eth0 server  any program that is linked with libibverbs
  rem verbs --capture run.pcapng -- rping -c -a server
                                               its packets, for Wireshark
  rem verbs --loss 0.02 -- ib_send_lat server  on a path that loses two packets of a hundred
  rem verbs --install /usr/local               the libraries for good, and what to do then

The program takes the place of rem: its signals and its exit status are its own."
)]
pub(crate) struct Args {
    /// How packets travel: udp works everywhere, xdp is fastest between machines (root), shm stays on this host
    #[arg(long, value_enum)]
    link: Option<Link>,
    /// Writes every packet to FILE; the second process of a run writes to FILE.PID
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Loses this share of the packets that leave, 0 to 1
    #[arg(long, value_name = "P")]
    loss: Option<Share>,
    /// Delays every packet that leaves, like 500us or 2ms
    #[arg(long, value_name = "TIME")]
    delay: Option<Delay>,
    /// The seed of what is lost
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Only this device, or these in this order; `rem doctor` lists them
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    device: Vec<String>,
    /// Load the libraries before the program's own: for one that brings others under other names
    #[arg(long)]
    preload: bool,
    /// Leave /sys and /dev as they are
    #[arg(long)]
    no_view: bool,
    /// Say on stderr what was prepared
    #[arg(short, long)]
    verbose: bool,
    /// Install the libraries below PREFIX
    #[arg(long, value_name = "PREFIX", conflicts_with_all = RUN_OPTIONS)]
    install: Option<PathBuf>,
    /// Remove what --install put there
    #[arg(long, value_name = "PREFIX", conflicts_with_all = RUN_OPTIONS, conflicts_with = "install")]
    uninstall: Option<PathBuf>,
    /// Ask whether the view can be had, and do nothing else
    #[arg(long, hide = true)]
    try_view: bool,
    /// The program and its arguments
    #[arg(
        value_name = "COMMAND",
        required_unless_present_any = ["install", "uninstall", "try_view"],
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<OsString>,
}

const RUN_OPTIONS: [&str; 9] =
    ["link", "capture", "loss", "delay", "seed", "device", "preload", "no_view", "command"];

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    Udp,
    Xdp,
    Shm,
}

impl Link {
    const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Xdp => "xdp",
            Self::Shm => "shm",
        }
    }
}

/// A share from 0 to 1, as it was written.
#[derive(Clone, Debug)]
struct Share(String);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            Ok(p) if (0.0..=1.0).contains(&p) => Ok(Self(text.to_owned())),
            _ => Err(format!("{text:?} is no share; write a number from 0 to 1, like 0.02")),
        }
    }
}

/// A time with its unit, as it was written.
#[derive(Clone, Debug)]
struct Delay(String);

impl FromStr for Delay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // In this order: "5ms" ends with "s" too.
        let number = ["ns", "us", "ms", "s"].iter().find_map(|unit| text.strip_suffix(unit));
        match number.map(str::parse::<f64>) {
            Some(Ok(_)) if text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains('e') => {
                Ok(Self(text.to_owned()))
            }
            _ => Err(format!("{text:?} is no time; write a number and ns, us, ms or s, like 500us")),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    if args.try_view {
        return namespace::enter().map_err(|why| Fail::new(why.to_string()));
    }
    if let Some(prefix) = &args.install {
        return install::install(prefix);
    }
    if let Some(prefix) = &args.uninstall {
        return install::uninstall(prefix);
    }
    let libraries = library::find()?;
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    let settings = settings(args, &libraries)?;
    for (name, value) in &settings {
        command.env(name, value);
    }
    let warn = |text: String| anstream::eprintln!("rem: {text}");
    let say = |text: String| {
        if args.verbose {
            anstream::eprintln!("rem: {text}");
        }
    };
    for (name, value) in &settings {
        say(format!("{name}={}", value.display()));
    }
    if args.no_view {
        say("/sys and /dev are left as they are".into());
    } else {
        let devices = chosen(args.link, &args.device)?;
        match view::enter(&devices) {
            Ok(how) => {
                say(format!("/sys/class/infiniband and /dev/infiniband are there for the program, {how}"))
            }
            // Not only for those who asked: what depends on it says that there is no such transport, and no more.
            Err(why) => match view::make_nodes(&devices) {
                Ok(()) => warn(format!(
                    "the program runs without /sys/class/infiniband ({why}); /dev/infiniband has plain nodes for it, which \
                     stay there"
                )),
                Err(nodes) => warn(format!(
                    "the program runs without /sys/class/infiniband ({why}) and /dev/infiniband ({nodes}): UCX finds no \
                     devices so, most others do; allow user namespaces or mknod, or say --no-view to be told no more"
                )),
            },
        }
    }
    Err(cannot_run(&args.command[0], &command.exec()))
}

/// The environment of the program.
fn settings(args: &Args, libraries: &Path) -> Result<Vec<(&'static str, OsString)>, Fail> {
    let mut path = libraries.as_os_str().to_owned();
    if let Some(more) = std::env::var_os("LD_LIBRARY_PATH").filter(|p| !p.is_empty()) {
        path.push(":");
        path.push(more);
    }
    let mut all = vec![("LD_LIBRARY_PATH", path)];
    if let Some(link) = args.link {
        all.push(("REMANENCE_LINK", link.name().into()));
    }
    if let Some(file) = &args.capture {
        // The program may change its directory before it opens a device.
        let file = std::path::absolute(file)
            .context(|| format!("the capture file {} has no place", file.display()))?;
        if let Some(place) = file.parent().filter(|place| !place.is_dir()) {
            return Err(Fail::new(format!(
                "there is no directory {} for the capture: make it, or name another file",
                place.display()
            )));
        }
        all.push(("REMANENCE_CAPTURE", file.into()));
    }
    if let Some(Share(loss)) = &args.loss {
        all.push(("REMANENCE_LOSS", loss.into()));
    }
    if let Some(Delay(delay)) = &args.delay {
        all.push(("REMANENCE_DELAY", delay.into()));
    }
    if args.preload {
        let mut both = OsString::new();
        for name in ["libibverbs.so.1", "librdmacm.so.1"] {
            both.push(libraries.join(name));
            both.push(":");
        }
        both.push(std::env::var_os("LD_PRELOAD").unwrap_or_default());
        all.push(("LD_PRELOAD", both));
    }
    if let Some(seed) = args.seed {
        all.push(("REMANENCE_SEED", seed.to_string().into()));
    }
    if !args.device.is_empty() {
        all.push(("REMANENCE_DEVICE", args.device.join(",").into()));
    }
    Ok(all)
}

/// The devices that the program will have.
fn chosen(link: Option<Link>, names: &[String]) -> Result<Vec<Device>, Fail> {
    let all = match link {
        Some(Link::Shm) => vec![Device::in_shared_memory()],
        _ => devices().context(|| "the network interfaces cannot be listed".into())?,
    };
    if names.is_empty() {
        return Ok(unnamed(all));
    }
    let find = |name: &String| {
        all.iter().find(|device| device.is_called(name)).cloned().ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|device| device.name.as_str()).collect();
            Fail::new(format!("there is no device {name}; this host has {}", ui::list(&known)))
        })
    };
    names.iter().map(find).collect()
}

/// As env(1) and the shells: 127 if there is no such program, 126 if it cannot be run.
fn cannot_run(program: &OsStr, why: &std::io::Error) -> Fail {
    let program = Path::new(program).display();
    if why.kind() == std::io::ErrorKind::NotFound {
        Fail::new(format!("there is no program {program}; check its name, or give its path")).with_status(127)
    } else {
        Fail::new(format!("{program} cannot be run ({why})")).with_status(126)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_delays_are_checked_before_the_program_runs() {
        for good in ["0", "0.02", "1", "1e-3"] {
            assert!(good.parse::<Share>().is_ok(), "{good}");
        }
        for bad in ["", "2%", "-0.1", "1.5", "NaN", "x"] {
            assert!(bad.parse::<Share>().is_err(), "{bad}");
        }
        for good in ["500us", "2ms", "1s", "0.5ms", "250ns"] {
            assert!(good.parse::<Delay>().is_ok(), "{good}");
        }
        for bad in ["", "5", "us", "-1ms", "1m", "1 h", "infs", "1e3us"] {
            assert!(bad.parse::<Delay>().is_err(), "{bad}");
        }
    }
}
