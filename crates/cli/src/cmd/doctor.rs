//! `rem doctor`: what this machine guarantees, and what it offers to go fast.
//!
//! Two halves: `look` finds out and decides nothing; what it found is printed as a table or as JSON.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use remanence_bench::machine::Machine;
use remanence_intercept::Way;
use remanence_link::udp::{self, UdpLink};
use remanence_link::{Link as _, shm};
use remanence_pmem::domain::{self, probe_directory};
use remanence_pmem::engine::{DsaEngine, Options as Copying, dsa};
use remanence_pmem::{Domain, StoreGranularity};
use serde_json::{Value, json};

use super::{explain, verbs};
use crate::fail::Fail;
use crate::ui::{self, Mood};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem doctor
  rem doctor /mnt/pmem /srv/data --json
  rem doctor /usr/bin/sqlite3              how `rem run` sees the system calls of a program, and what is in the way
  rem doctor --explain                     which method of remote persistence fits these places, and why
  rem doctor --explain --responder DMP+no-DDIO+PM+read+fenced
                                           the same for another machine, of which that is known
  rem doctor --explain --responder 10.0.0.2:7481
                                           the same for a live server (rem log serve), by a handshake, with measured costs")]
pub(crate) struct Args {
    /// Directories whose guarantees matter [default: here, temporary files, shared memory, and persistent memory], and programs
    #[arg(value_name = "DIRECTORY|PROGRAM")]
    paths: Vec<PathBuf>,
    /// Show how it was found out
    #[arg(short, long)]
    verbose: bool,
    /// Say which method makes remote updates durable, why, what it survives and what would be faster
    #[arg(long)]
    explain: bool,
    /// Explain this responder in place of this machine: domain, DDIO, receive buffers and what differs from RoCE with FLUSH;
    /// or a server, which is asked
    #[arg(long, value_name = "CONFIGURATION|HOST[:PORT]", requires = "explain", conflicts_with = "paths")]
    responder: Option<explain::Responder>,
    /// Local address to send from [default: the one that routes to the server]
    #[arg(long, value_name = "ADDRESS", env = "REM_LOCAL")]
    local: Option<IpAddr>,
    #[command(flatten)]
    tokens: crate::args::Tokens,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One line of the table.
struct Finding {
    mood: Mood,
    name: String,
    text: String,
    /// How it was found out.
    evidence: Vec<String>,
    json: Value,
}

impl Finding {
    fn new(mood: Mood, name: impl Into<String>, text: impl Into<String>, json: Value) -> Self {
        Self { mood, name: name.into(), text: text.into(), evidence: Vec::new(), json }
    }
}

struct Section {
    title: &'static str,
    key: &'static str,
    findings: Vec<Finding>,
}

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    if args.explain {
        return explain_all(args);
    }
    // What is there and no directory is asked about as a program, which says what it is else.
    let is_program = |path: &PathBuf| path.symlink_metadata().is_ok() && !path.is_dir();
    let (programs, directories): (Vec<_>, Vec<_>) = args.paths.iter().cloned().partition(is_program);
    let programs = Section {
        title: "Programs",
        key: "programs",
        findings: programs.iter().map(|path| program(path)).collect(),
    };
    if directories.is_empty() && !programs.findings.is_empty() {
        return show(args, &[programs]);
    }
    let mut sections = vec![
        Section { title: "Machine", key: "machine", findings: machine() },
        Section { title: "Persistence", key: "persistence", findings: persistence(&directories) },
        Section { title: "Links", key: "links", findings: links() },
        Section {
            title: "RDMA devices",
            key: "rdma_devices",
            findings: rdma_devices(Path::new("/sys/class/infiniband")),
        },
        Section { title: "Verbs programs", key: "verbs", findings: verbs_devices() },
        Section { title: "Limits", key: "limits", findings: limits() },
    ];
    if !programs.findings.is_empty() {
        sections.push(programs);
    }
    show(args, &sections)
}

fn show(args: &Args, sections: &[Section]) -> Result<(), Fail> {
    if args.json {
        let mut out = serde_json::Map::new();
        for section in sections {
            let findings = section.findings.iter().map(|finding| {
                let mut entry =
                    json!({ "name": finding.name, "text": finding.text, "evidence": finding.evidence });
                if let (Some(entry), Some(more)) = (entry.as_object_mut(), finding.json.as_object()) {
                    entry.extend(more.clone());
                }
                entry
            });
            out.insert(section.key.to_owned(), findings.collect());
        }
        ui::print_json(&out.into())?;
        return all_tried(&args.paths, sections);
    }
    for section in sections {
        ui::heading(section.title);
        for (n, finding) in section.findings.iter().enumerate() {
            // Directories of one file system have the same guarantees.
            let same = section.findings[..n].iter().find(|earlier| earlier.text == finding.text);
            let text = same.map_or_else(|| finding.text.clone(), |earlier| format!("as {}", earlier.name));
            ui::line(finding.mood, &finding.name, text);
            for evidence in finding.evidence.iter().filter(|_| args.verbose) {
                ui::remark(format!("                           {evidence}"));
            }
        }
    }
    ui::print("");
    all_tried(&args.paths, sections)
}

/// How a program's calls are seen, and what of them a hook would not see.
fn program(path: &Path) -> Finding {
    let name = path.display().to_string();
    let report = match remanence_intercept::inspect(path) {
        Ok(report) => report,
        Err(why) => {
            return Finding::new(Mood::Bad, name, why.to_string(), json!({ "error": why.to_string() }));
        }
    };
    let obstacles: Vec<String> = report.obstacles().iter().map(ToString::to_string).collect();
    let way = super::run::way_of(&report);
    let seen = match way {
        Ok(way) if super::run::defers(&report) => {
            format!("`rem run` sees its calls {way}, in each of its modes")
        }
        Ok(way) => format!("`rem run` sees its calls {way}, in the mode through alone"),
        Err(why) => format!("`rem run` refuses it, as {why}"),
    };
    let json = json!({
        "caught": way.map_or("no", |way| match way {
            Way::Libc => "libc",
            Way::All => "all",
            Way::Outside => "supervisor",
        }),
        "deferred": super::run::defers(&report),
        "interpreter": report.interpreter,
        "libc": format!("{:?}", report.libc).to_lowercase(),
        "needs": report.needs,
        "go": report.go,
        "privileged": report.privileged,
        "io_uring": report.io_uring,
        "sites": report.sites,
        "unpatched": report.unpatched.len(),
        "obstacles": obstacles,
    });
    let (mood, text) = if obstacles.is_empty() {
        (Mood::Good, format!("all its system calls are those of its C library; {seen}"))
    } else {
        let mood = if way.is_ok() { Mood::Note } else { Mood::Bad };
        (mood, format!("{}; {seen}", obstacles.join("; ")))
    };
    let mut finding = Finding::new(mood, name, text, json);
    let sites = report.unpatched.iter().map(|(site, why)| format!("{site:#x}: {why}"));
    let unknown = report.unknown.iter().map(|site| format!("{site:#x}: bytes that could not be decoded"));
    finding.evidence.extend(sites.chain(unknown));
    finding
}

/// Of a directory that was asked about, nothing said is a failure.
fn all_tried(asked: &[PathBuf], sections: &[Section]) -> Result<(), Fail> {
    let untried = |path: &PathBuf| {
        let name = path.display().to_string();
        let mut findings = sections.iter().flat_map(|section| &section.findings);
        let why = findings.find(|finding| finding.name == name)?.json.get("error")?.as_str()?.to_owned();
        // Most sentences begin with what they are about.
        Some(if why.starts_with(&name) { why } else { format!("{name}: {why}") })
    };
    let untried: Vec<_> = asked.iter().filter_map(untried).collect();
    if untried.is_empty() {
        return Ok(());
    }
    Err(Fail::new(format!(
        "nothing can be said of {}; name a directory that is there and that you may write to, or a program",
        untried.join("; ")
    )))
}

fn explain_all(args: &Args) -> Result<(), Fail> {
    let mut all = Vec::new();
    match &args.responder {
        Some(explain::Responder::Configuration(config, unsaid)) => {
            all.push(explain::responder(&config.to_string(), config, unsaid)?);
        }
        Some(explain::Responder::Server(server)) => {
            all.push(explain::server(server, args.local, &args.tokens)?)
        }
        None => explain_places(args, &mut all)?,
    }
    if args.json {
        let explained: Vec<Value> = all.into_iter().map(|e| e.json).collect();
        return ui::print_json(&json!({ "explained": explained }));
    }
    for (n, explained) in all.iter().enumerate() {
        ui::heading(&explained.name);
        match all[..n].iter().find(|earlier| earlier.text == explained.text) {
            Some(earlier) => ui::print(format_args!("as {}", earlier.name)),
            None => ui::print(format_args!("{}", explained.text.trim_end())),
        }
    }
    Ok(())
}

fn explain_places(args: &Args, all: &mut Vec<explain::Explained>) -> Result<(), Fail> {
    let paths = if args.paths.is_empty() { usual_places() } else { args.paths.clone() };
    for path in paths {
        let name = path.display().to_string();
        match probe_directory(&path) {
            Ok(domain) => all.push(explain::place(&name, domain.domain())?),
            Err(e) if args.paths.is_empty() => ui::line(Mood::Bad, &name, format!("cannot be tried: {e}")),
            Err(e) => {
                return Err(Fail::new(format!("{name} cannot be tried ({e}); give a directory to write to")));
            }
        }
    }
    Ok(())
}

fn machine() -> Vec<Finding> {
    let machine = Machine::here();
    let cpu = domain::machine();
    let (copies, dsa) = who_copies(&dsa::detect());
    let flags = cpu_flags(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
    let has = |flag: &str| flags.iter().any(|f| f == flag);
    let instructions: Vec<&str> = ["clflush", "clflushopt", "clwb"].into_iter().filter(|i| has(i)).collect();
    let all = if instructions.is_empty() {
        String::new()
    } else {
        format!(" (the CPU has {})", instructions.join(", "))
    };
    vec![
        Finding::new(Mood::Good, "cpu", machine.to_string(), json!({ "cores": machine.cores })),
        Finding::new(
            Mood::Good,
            "write-back",
            format!("{} writes cache lines of {} bytes back{all}", cpu.instruction, cpu.line),
            json!({ "instruction": cpu.instruction.to_string(), "line": cpu.line, "available": instructions }),
        ),
        Finding::new(Mood::Note, "copies", copies, json!({ "dsa": dsa })),
        Finding::new(
            Mood::Note,
            "DDIO",
            "assumed on, as no portable query exists: a NIC's writes may stop in the CPU's cache, so a WRITE alone is \
             never taken for durable. Our own RNIC writes with the CPU and executes FLUSH, so it is right either way",
            json!({ "assumed": "on" }),
        ),
    ]
}

/// What is said of copy engines, and the accelerator's queue if it passed the test that every engine on it is put to.
fn who_copies(found: &dsa::Dsa) -> (String, Option<String>) {
    let Some(queue) = found.usable() else { return (found.to_string(), None) };
    match DsaEngine::open_queue(queue, Copying::new()) {
        Ok(_) => (format!("{found}. It passed its test just now"), Some(queue.name.clone())),
        Err(why) => (format!("Intel DSA is here ({}), and is refused: {why}", queue.name), None),
    }
}

fn cpu_flags(cpuinfo: &str) -> Vec<String> {
    let line = cpuinfo.lines().find(|l| l.starts_with("flags") || l.starts_with("Features"));
    let list = line.and_then(|l| l.split_once(':')).map_or("", |(_, list)| list);
    list.split_whitespace().map(str::to_owned).collect()
}

fn persistence(given: &[PathBuf]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let paths = if given.is_empty() { usual_places() } else { given.to_vec() };
    for path in paths {
        let name = path.display().to_string();
        findings.push(match probe_directory(&path) {
            Ok(domain) => of_domain(name, &domain),
            Err(e) => Finding::new(
                Mood::Bad,
                name,
                format!("cannot be tried: {e}"),
                json!({ "error": e.to_string() }),
            ),
        });
    }
    let devices = domain::machine().devices;
    for device in &devices {
        let keeps = match device.persistence_domain.as_str() {
            "cpu_cache" => "the platform flushes the CPU caches on power loss (eADR)",
            "memory_controller" => "the platform flushes the memory controller on power loss (ADR)",
            _ => "the platform does not say what it flushes on power loss",
        };
        let dax = if device.dax { "can be mapped directly (DAX)" } else { "cannot be mapped directly" };
        findings.push(Finding::new(
            if device.dax { Mood::Good } else { Mood::Note },
            format!("/dev/{}", device.name),
            format!("persistent memory; {dax}; {keeps}"),
            json!({ "dax": device.dax, "persistence_domain": device.persistence_domain }),
        ));
    }
    if devices.is_empty() {
        let text = "none in this machine: durability comes from disks, by fdatasync";
        findings.push(Finding::new(Mood::Absent, "persistent memory", text, json!({ "devices": 0 })));
    }
    findings
}

/// Here, temporary files, shared memory, and whatever is mounted for direct access.
fn usual_places() -> Vec<PathBuf> {
    let here = std::env::current_dir().unwrap_or_else(|_| ".".into());
    let mut places = vec![here, std::env::temp_dir(), "/dev/shm".into()];
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for line in mounts.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let dax = words.get(3).is_some_and(|o| o.split(',').any(|o| o == "dax" || o.starts_with("dax=")));
        if let (true, Some(place)) = (dax, words.get(1)) {
            places.push(place.into());
        }
    }
    let mut seen = Vec::new();
    places.retain(|place| {
        place.is_dir() && !seen.contains(place) && {
            seen.push(place.clone());
            true
        }
    });
    places
}

fn of_domain(name: String, domain: &Domain) -> Finding {
    let guarantee = domain.guarantee();
    let method = match domain.granularity() {
        StoreGranularity::Byte => "what is visible is durable; FLUSH is a fence",
        StoreGranularity::CacheLine => "FLUSH writes cache lines back",
        StoreGranularity::Page => "FLUSH is an fdatasync",
        StoreGranularity::None => "FLUSH with persistence is refused here",
    };
    let mood = if guarantee.is_durable() { Mood::Good } else { Mood::Note };
    let mut finding = Finding::new(
        mood,
        name,
        format!("{domain}; {method}"),
        json!({
            "domain": domain.domain().name(),
            "medium": domain.medium(),
            "durable": guarantee.is_durable(),
            "survives": guarantee.after_psync.to_string(),
            "before_flush": guarantee.before_psync.to_string(),
            "caveat": domain.caveat(),
            "method": method,
        }),
    );
    finding.evidence = domain.evidence().to_vec();
    finding
}

fn links() -> Vec<Finding> {
    vec![udp_link(), port(), xdp_link(), shm_link()]
}

fn udp_link() -> Finding {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let options = udp::Options { port: 0, ..udp::Options::new(vec![loopback]) };
    match UdpLink::open(&options) {
        Ok(link) => {
            let segments = link.caps().max_segments;
            let buffers = link.buffer_sizes().map_or(0, |(receive, _)| receive);
            let json =
                json!({ "available": true, "segmentation_offload": segments > 1, "receive_buffer": buffers });
            let buffers = ui::bytes(buffers as u64);
            if segments > 1 {
                let text = format!(
                    "works everywhere; segmentation offload sends up to {segments} packets at a time; {buffers} of receive buffer"
                );
                Finding::new(Mood::Good, "UDP", text, json)
            } else {
                let text = format!(
                    "works, without segmentation offload (needs Linux 4.18): streams are several times slower; {buffers} of receive buffer"
                );
                Finding::new(Mood::Note, "UDP", text, json)
            }
        }
        Err(e) => {
            Finding::new(Mood::Bad, "UDP", format!("cannot be opened: {e}"), json!({ "available": false }))
        }
    }
}

/// Who has the port of RoCEv2.
fn port() -> Finding {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let text = |holder: &str| format!("{} is {holder}", udp::ROCE_PORT);
    match std::net::UdpSocket::bind((loopback, udp::ROCE_PORT)) {
        Ok(_) => Finding::new(Mood::Good, "UDP port", text("free at 127.0.0.1"), json!({ "free": true })),
        Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => Finding::new(
            Mood::Note,
            "UDP port",
            text(
                "in use at 127.0.0.1: by other processes of ours, which share it, or by a kernel RoCE device, which does not",
            ),
            json!({ "free": false }),
        ),
        Err(e) => Finding::new(
            Mood::Bad,
            "UDP port",
            format!("{} cannot be bound: {e}", udp::ROCE_PORT),
            json!({ "free": false }),
        ),
    }
}

/// The capabilities that AF_XDP needs (capabilities(7)): loading a program, attaching it, opening the socket.
const CAPABILITIES: [(u32, &str); 3] = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (39, "CAP_BPF")];
const CAP_SYS_ADMIN: u32 = 21;

fn xdp_link() -> Finding {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let has = |bit: u32| effective >> bit & 1 == 1;
    let missing: Vec<&str> = CAPABILITIES
        .into_iter()
        .filter(|(bit, _)| !(has(*bit) || *bit == 39 && has(CAP_SYS_ADMIN)))
        .map(|(_, name)| name)
        .collect();
    let interfaces: Vec<String> = remanence_link::route::interfaces()
        .map(|all| all.into_iter().filter(|i| i.up && !i.loopback).map(|i| i.name).collect())
        .unwrap_or_default();
    let json = json!({ "privileged": missing.is_empty(), "missing": missing, "interfaces": interfaces });
    let mut names = interfaces;
    names.dedup();
    match (missing.is_empty(), names.is_empty()) {
        (true, false) => {
            let text =
                format!("this process may use it, on {}: the fastest way between machines", names.join(", "));
            Finding::new(Mood::Good, "AF_XDP", text, json)
        }
        (true, true) => {
            let text = "this process may use it, and there is no interface but loopback to use it on";
            Finding::new(Mood::Absent, "AF_XDP", text, json)
        }
        (false, _) => {
            let text = format!(
                "needs {}; run as root, or give rem these capabilities with setcap",
                missing.join(", ")
            );
            Finding::new(Mood::Absent, "AF_XDP", text, json)
        }
    }
}

fn shm_link() -> Finding {
    match shm::ShmLink::open(&shm::Config::default()) {
        Ok(_) => {
            let text = "processes of this host can reach each other without the kernel between them";
            Finding::new(Mood::Good, "shared memory", text, json!({ "available": true }))
        }
        Err(e) => Finding::new(
            Mood::Bad,
            "shared memory",
            format!("cannot be used: {e}"),
            json!({ "available": false }),
        ),
    }
}

fn rdma_devices(class: &Path) -> Vec<Finding> {
    let mut findings: Vec<Finding> = fs::read_dir(class)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let word = |path: &str| {
                fs::read_to_string(entry.path().join(path)).unwrap_or_default().trim().to_owned()
            };
            let (state, rate, kind) = (word("ports/1/state"), word("ports/1/rate"), word("node_desc"));
            let software = entry.path().join("parent").exists();
            let what = if software {
                "a software device of the kernel (Soft-RoCE or siw)"
            } else {
                "a hardware device"
            };
            let text = format!("{what}, port 1 {state}, {rate}");
            let json = json!({ "software": software, "state": state, "rate": rate, "description": kind });
            Finding::new(Mood::Good, name, text, json)
        })
        .collect();
    findings.sort_by(|a, b| a.name.cmp(&b.name));
    if findings.is_empty() {
        let text = "none, and none is needed: rem brings its own RNIC, in software";
        findings.push(Finding::new(Mood::Absent, "devices", text, json!({ "devices": 0 })));
    }
    findings
}

/// What a program has under `rem verbs`.
fn verbs_devices() -> Vec<Finding> {
    let mut findings = vec![match verbs::find_libraries() {
        Ok(place) => {
            let text = format!("{}; `rem verbs -- COMMAND` runs a program with them", place.display());
            Finding::new(Mood::Good, "libraries", text, json!({ "directory": place }))
        }
        Err(fail) => Finding::new(Mood::Absent, "libraries", fail.to_string(), json!({ "directory": null })),
    }];
    for device in verbs::devices().unwrap_or_default() {
        let addresses: Vec<String> = device.addresses.iter().map(ToString::to_string).collect();
        let text = format!("{}; {} bytes to a packet", addresses.join(", "), device.path_mtu());
        let json = json!({
            "interface": device.interface,
            "addresses": addresses,
            "path_mtu": device.path_mtu(),
        });
        findings.push(Finding::new(Mood::Good, device.name, text, json));
    }
    findings
}

fn limits() -> Vec<Finding> {
    let text = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let soft = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()).unwrap_or("unknown").to_owned()
    };
    let files = soft("Max open files");
    let locked = soft("Max locked memory");
    let number = |text: &str| text.parse::<u64>().unwrap_or(u64::MAX);
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().parse::<u64>().unwrap_or(0);
    let receive = read("/proc/sys/net/core/rmem_max");
    // A burst of 16 MiB and the kernel's bookkeeping for it; below a few MiB streams lose packets.
    let (mood, advice) = match receive {
        n if n >= 4 << 20 => (Mood::Good, ""),
        _ => (Mood::Note, "; for fast streams without root: sysctl net.core.rmem_max=16777216"),
    };
    let shown = |text: &str| match text.parse::<u64>() {
        Ok(n) => ui::bytes(n),
        Err(_) => text.to_owned(),
    };
    vec![
        Finding::new(
            if number(&files) >= 1024 { Mood::Good } else { Mood::Note },
            "open files",
            &*files,
            json!({ "value": files }),
        ),
        Finding::new(
            Mood::Good,
            "locked memory",
            format!("{} (registered memory is not locked here, so any value will do)", shown(&locked)),
            json!({ "value": locked }),
        ),
        Finding::new(
            mood,
            "socket buffers",
            format!("up to {} for a receive buffer{advice}", ui::bytes(receive)),
            json!({ "rmem_max": receive }),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_cpu_are_found() {
        let cpuinfo = "processor\t: 0\nflags\t\t: fpu clflush clwb\n";
        assert_eq!(cpu_flags(cpuinfo), ["fpu", "clflush", "clwb"]);
        assert_eq!(cpu_flags(""), [""; 0]);
    }

    #[test]
    fn devices_are_read_from_sysfs_and_their_absence_is_no_error() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(rdma_devices(&dir.path().join("none"))[0].mood, Mood::Absent);
        let port = dir.path().join("rxe0/ports/1");
        fs::create_dir_all(&port).expect("made");
        fs::write(port.join("state"), "4: ACTIVE\n").expect("written");
        fs::write(port.join("rate"), "2.5 Gb/sec (1X SDR)\n").expect("written");
        fs::write(dir.path().join("rxe0/parent"), "eth0\n").expect("written");
        let found = rdma_devices(dir.path());
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].text,
            "a software device of the kernel (Soft-RoCE or siw), port 1 4: ACTIVE, 2.5 Gb/sec (1X SDR)"
        );
    }
}
