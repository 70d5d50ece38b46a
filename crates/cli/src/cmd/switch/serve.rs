//! `rem switch run`.

use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use remanence_switch::{Access, Net, Report};
use remanence_switch_live::{Carrier, Options, Plane};
use serde_json::{Value, json};

use super::{address_of, control, socket_of};
use crate::args;
use crate::fail::{Context as _, Fail};
use crate::serving::{print_line, serve_until_asked, tell_token};
use crate::signals::Stop;
use crate::ui::{self, Mood};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem switch run --listen 192.0.2.9 --service 7700 --allow-leader 192.0.2.0/28 --allow-replica 192.0.2.0/28 \\
      --token-file group.token                    leaders that have the token may make groups of these hosts
  rem switch run --listen 127.0.0.9 --service 7700 --allow-leader 127.0.0.0/8 --allow-replica 127.0.0.0/8
  rem switch groups 127.0.0.9                     in another terminal: its groups

A leader connects to the switch for a service and names replicas; the switch connects to these for the same service, in its name. It sends nothing to an address that is
not allowed here. RoCEv2 itself neither encrypts nor authenticates: on a network that others can forge packets on, a token does not help.")]
pub(super) struct Args {
    /// Address of this machine to listen on, at UDP port 4791, which it takes for itself
    #[arg(long, value_name = "HOST")]
    listen: args::Server,
    /// Carry packets by AF_XDP on this interface, which has the address; needs root
    #[arg(long, value_name = "INTERFACE")]
    xdp: Option<String>,
    /// Port that replicas listen on (of RDMA-CM's TCP port space), for which leaders may have groups made
    #[arg(long = "service", value_name = "PORT", required = true, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    services: Vec<u16>,
    /// Who may have groups made: addresses or networks such as 192.0.2.0/28
    #[arg(long = "allow-leader", value_name = "NET", required = true, value_delimiter = ',')]
    leaders: Vec<Net>,
    /// Whom leaders may name as replicas; nothing is sent to anybody else
    #[arg(long = "allow-replica", value_name = "NET", required = true, value_delimiter = ',')]
    replicas: Vec<Net>,
    #[command(flatten)]
    access: args::AccessOptions,
    /// Groups of one leader's address at a time, those that it waits for included
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    groups: u16,
    /// Wait so many milliseconds for replicas that have said nothing yet, when enough have agreed to be in a group
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=60_000))]
    grace: u64,
    /// Socket by which `groups`, `stats` and `capture` reach it [default: one that they find by the address]
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Print JSON: a line when ready, one for each thing that needs somebody, one at the end
    #[arg(long)]
    json: bool,
    /// Stop when standard input ends: for programs that start servers
    #[arg(long, hide = true)]
    stop_on_eof: bool,
}

/// What who has no token could do, where none is asked for.
const STRANGERS: &str = "have groups made of the replicas, by an address that is allowed";

/// Things to be said that may wait for who reads them. What is more is not said.
const UNSAID: usize = 1024;

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let asked = Stop::listen()?;
    let at = address_of(&args.listen)?;
    args.access.check(at, STRANGERS, None)?;
    if !at.is_ipv4() {
        return Err(Fail::new(format!(
            "leaders name replicas by IPv4 addresses, and {at} is none; listen on one"
        )));
    }
    if let Some(service) = twice(&args.services) {
        return Err(Fail::new(format!("--service {service} is there twice; leave one of them out")));
    }
    let token = args.access.token()?;
    let access = Access {
        leaders: args.leaders.clone(),
        replicas: args.replicas.clone(),
        token: token.as_ref().map(|(token, _)| token.clone()),
        groups: args.groups.into(),
    };
    let grace = Duration::from_millis(args.grace);
    let carrier = args.xdp.clone().map_or(Carrier::Udp, Carrier::Xdp);
    let options = Options { addr: at, carrier, services: args.services.clone(), access, grace };
    let (plane, handle) = Plane::open(&options).context(|| format!("there is no switch at {at}"))?;
    let socket = args.control.clone().map_or_else(|| socket_of(at), Ok)?;
    let control = control::Control::begin(&socket, handle)?;
    let link = if args.xdp.is_some() { "xdp" } else { "udp" };
    if args.json {
        let ready = json!({
            "event": "ready",
            "address": at.to_string(),
            "pid": std::process::id(),
            "link": link,
            "services": args.services,
            "leaders": names(&args.leaders),
            "replicas": names(&args.replicas),
            "control": socket,
            "token_file": token.as_ref().and_then(|(_, file)| *file),
            "token_fingerprint": token.as_ref().map(|(token, _)| token.fingerprint().to_string()),
        });
        print_line(&ready.to_string())?;
    } else {
        let ports: Vec<String> = args.services.iter().map(u16::to_string).collect();
        let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
        ui::line(Mood::Good, "switch", format!("{at} ({link}), for service {}", ui::list(&ports)));
        ui::line(Mood::Good, "leaders", names(&args.leaders).join(", "));
        ui::line(Mood::Good, "replicas", names(&args.replicas).join(", "));
        tell_token(token.as_ref(), at, "replicas' memory, by an address that is allowed");
        let of = match &args.control {
            Some(socket) => format!("--control {}", socket.display()),
            None => at.to_string(),
        };
        ui::remark(format!("\n  rem switch groups {of}\n  rem switch capture FILE {of}\n"));
        ui::remark("  Ctrl-C stops the switch, and ends its groups.");
    }
    // The thread that carries packets does not wait for who reads what is said.
    let (says, said) = sync_channel(UNSAID);
    let as_json = args.json;
    let saying = std::thread::spawn(move || said.into_iter().for_each(|report| say(&report, as_json)));
    let what = format!("the switch at {at}");
    let last = serve_until_asked(&asked, args.stop_on_eof, Path::new(&what), args.json, move |stop| {
        plane.run(stop, &mut |report| _ = says.try_send(report))
    });
    // Both end with the plane.
    let _ = saying.join();
    control.end();
    let last = last?;
    if args.json {
        let mut stopped = json!({ "event": "stopped" });
        stopped["counters"] = control::counters(&last);
        print_line(&stopped.to_string())
    } else {
        let requests = usize::try_from(last.switch.scattered).unwrap_or(usize::MAX);
        ui::remark(format!("stopped after {}", ui::count(requests, "request")));
        Ok(())
    }
}

/// What is there more than once.
fn twice(services: &[u16]) -> Option<u16> {
    let repeats = |(at, service): (usize, &u16)| services[..at].contains(service).then_some(*service);
    services.iter().enumerate().find_map(repeats)
}

fn names(nets: &[Net]) -> Vec<String> {
    nets.iter().map(Net::to_string).collect()
}

/// Says what the switch cannot put right.
fn say(report: &Report, as_json: bool) {
    if as_json {
        // Who does not read it any more has the end of the process.
        let _ = print_line(&event(report).to_string());
        return;
    }
    let (mood, text) = match *report {
        Report::Behind { group, replica, missing } => (
            Mood::Bad,
            format!(
                "replica {replica} of group {group} misses PSN {missing}, which the leader does not have any more"
            ),
        ),
        Report::LeftOut { group, replica } => {
            (Mood::Bad, format!("replica {replica} of group {group} counts no more"))
        }
        Report::Refused { group, replica, code } => {
            (Mood::Note, format!("replica {replica} refused a request of group {group}: {code}"))
        }
        Report::Discrepancy { group, replica, psn } => (
            Mood::Bad,
            format!("replica {replica} of group {group} has other data at PSN {psn} than one before"),
        ),
        Report::Replaced { group, by } => {
            (Mood::Note, format!("group {group} made room for group {by}, of a later leader"))
        }
    };
    ui::line(mood, "report", text);
}

fn event(report: &Report) -> Value {
    match *report {
        Report::Behind { group, replica, missing } => {
            json!({ "event": "behind", "group": group.0, "replica": replica, "missing": missing.value() })
        }
        Report::LeftOut { group, replica } => {
            json!({ "event": "left_out", "group": group.0, "replica": replica })
        }
        Report::Refused { group, replica, code } => {
            json!({ "event": "refused", "group": group.0, "replica": replica, "why": code.to_string() })
        }
        Report::Discrepancy { group, replica, psn } => {
            json!({ "event": "discrepancy", "group": group.0, "replica": replica, "psn": psn.value() })
        }
        Report::Replaced { group, by } => json!({ "event": "replaced", "group": group.0, "by": by.0 }),
    }
}
