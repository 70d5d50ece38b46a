//! `rem demo`: the whole story on one machine.
//!
//! Five acts: start three servers; write, and kill one in the middle; restart it and bring it up to date; kill all
//! three at once and restart them; read everything back and compare every byte.

mod cluster;
mod input;
mod tell;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use remanence_pool::client::measure::Op;
use remanence_pool::client::{Event, SyncReport, Upload};
use remanence_pool::{BlobName, Digest};

use self::cluster::Cluster;
use self::input::Input;
use self::tell::Teller;
use super::perf::Samples;
use super::put::Item;
use crate::args::Size;
use crate::fail::Fail;

/// The servers, by number.
const ALL: [usize; 3] = [0, 1, 2];
/// The one that is killed in the middle.
const VICTIM: usize = 1;
const SURVIVORS: [usize; 2] = [0, 2];
/// A blob counts as written when it is durable on so many servers.
const QUORUM: usize = 2;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem demo              with this project's own source
  rem demo ~/Pictures   with files of yours, which are only read

Everything happens in processes and in a temporary directory of its own, and is gone afterwards.")]
pub(crate) struct Args {
    /// File or directory to write [default: this project's own source]
    path: Option<PathBuf>,
    /// Where the pools lie while the demo runs [default: a temporary directory on a disk]
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What a blob was when it was put.
type Written = BTreeMap<BlobName, (u64, Digest)>;

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    let began = Instant::now();
    let input = Input::find(args.path.as_deref())?;
    let parent = input::place_for_pools(args.dir.as_deref())?;
    let tell = Teller::new(args.json);
    tell.title(&input);
    let cluster = Cluster::new(&parent, ALL.len(), input.pool_size())?;
    cluster.start(&ALL)?;
    tell.started(&cluster.pids(), input.pool_size());

    let latency = durable_latency(&cluster)?;
    let (written, story) = write(&cluster, &input, &tell)?;
    let recovered = catch_up(&cluster, &tell)?;
    cluster.kill_all();
    tell.killed_all();
    let restart = Instant::now();
    cluster.start(&ALL)?;
    tell.restarted(restart.elapsed());
    let verified = verify(&cluster, &written, &tell)?;
    let survives = cluster.said(0, "survives").as_str().unwrap_or_default().to_owned();
    let durable = cluster.said(0, "durable").as_bool().unwrap_or(false);
    drop(cluster);
    tell.summary(&tell::Summary {
        input: &input,
        story: &story,
        latency: &latency,
        recovered: &recovered,
        verified: &verified,
        durable,
        survives: &survives,
        elapsed: began.elapsed(),
    })
}

/// One durable write of 4 KiB at a time, as a program that waits for its log would do it.
fn durable_latency(cluster: &Cluster) -> Result<Samples, Fail> {
    let mut client = cluster.client(&[0], 1)?;
    let fail = |lost: remanence_pool::client::Lost| Fail::new(lost.to_string());
    let mut scratch = client.scratch(0, 64 << 10).map_err(fail)?;
    let mut samples = Samples::new();
    let began = Instant::now();
    scratch.once(Op::DurableWrite, 4096).map_err(fail)?;
    while samples.count() < 1000 && began.elapsed() < Duration::from_secs(2) {
        samples.add(scratch.once(Op::DurableWrite, 4096).map_err(fail)?);
    }
    Ok(samples)
}

/// What happened while it was written.
struct Story {
    bytes: u64,
    blobs: usize,
    elapsed: Duration,
    /// Time from each file's first byte to its durability on the quorum, for those that the kill did not touch.
    undisturbed: Samples,
    /// The slowest of the others.
    disturbed: Option<Duration>,
    killed_pid: u32,
    killed_at: u64,
    noticed_after: Option<Duration>,
    incomplete: usize,
}

/// Streams everything to all three servers, and kills one when half of the bytes are out.
fn write(cluster: &Cluster, input: &Input, tell: &Teller) -> Result<(Written, Story), Fail> {
    let mut client = cluster.client(&ALL, ALL.len())?;
    let bar = tell.bar(input.bytes);
    let mut written = Written::new();
    let (mut sent, mut killed_pid, mut killed_at) = (0, 0, 0);
    let (mut killed, mut noticed): (Option<Instant>, Option<Instant>) = (None, None);
    let (mut undisturbed, mut disturbed) = (Samples::new(), None);
    let upload = Upload { quorum: QUORUM, servers: None };
    let report = client.put(input.items.iter().map(Item::open), &upload, &mut |event| match event {
        Event::Sent(bytes) => {
            bar.add(bytes);
            sent += bytes;
            if killed.is_none() && sent >= input.bytes / 2 {
                killed_pid = cluster.kill(VICTIM);
                killed = Some(Instant::now());
                killed_at = sent;
                tell.killed(&bar, VICTIM, killed_pid, killed_at);
            }
        }
        Event::Lost(lost) => {
            noticed = Some(Instant::now());
            tell.lost(&bar, lost, killed.map(|at| at.elapsed()));
        }
        Event::Durable { name, len, digest, took, .. } => {
            written.insert(name.clone(), (len, digest));
            // Between the kill and its being noticed everybody waited for the dead server.
            let began = Instant::now().checked_sub(took);
            let spared = killed.is_none() || noticed.is_some_and(|at| began.is_some_and(|began| began > at));
            if spared {
                undisturbed.add(took);
            } else {
                disturbed = disturbed.max(Some(took));
            }
        }
    });
    bar.done();
    let report = report.map_err(|e| Fail::new(e.to_string()))?;
    if killed.is_none() {
        return Err(Fail::new("there was nothing to write; name a file or directory with something in it"));
    }
    let story = Story {
        bytes: report.bytes,
        blobs: report.blobs,
        elapsed: report.elapsed,
        undisturbed,
        disturbed,
        killed_pid,
        killed_at,
        noticed_after: killed.zip(noticed).map(|(killed, noticed)| noticed - killed),
        incomplete: report.incomplete,
    };
    tell.written(&story);
    Ok((written, story))
}

/// The killed server comes back.
struct Recovered {
    pid: u64,
    /// Blobs that it had kept.
    kept: u64,
    sync: SyncReport,
}

fn catch_up(cluster: &Cluster, tell: &Teller) -> Result<Recovered, Fail> {
    cluster.start(&[VICTIM])?;
    let kept = cluster.said(VICTIM, "blobs").as_u64().unwrap_or(0);
    let pid = cluster.said(VICTIM, "pid").as_u64().unwrap_or(0);
    let mut target = cluster.client(&[VICTIM], 1)?;
    let mut sources = cluster.client(&SURVIVORS, 1)?;
    let sync = target.catch_up(&mut sources, &mut |_| ()).map_err(|e| Fail::new(e.to_string()))?;
    let recovered = Recovered { pid, kept, sync };
    tell.caught_up(VICTIM, &recovered);
    Ok(recovered)
}

/// What was read back.
struct Verified {
    bytes: u64,
    elapsed: Duration,
}

/// Reads every blob from every server, and compares what comes with what was put.
fn verify(cluster: &Cluster, written: &Written, tell: &Teller) -> Result<Verified, Fail> {
    let mut client = cluster.client(&ALL, ALL.len())?;
    let total: u64 = written.values().map(|(len, _)| len).sum();
    let bar = tell.bar(total * ALL.len() as u64);
    let began = Instant::now();
    let mut wrong = Vec::new();
    let mut buffer = vec![0; 128 << 10];
    for server in ALL {
        for (name, (len, digest)) in written {
            let mut found = blake3_of(&mut client, server, name, &mut buffer, &bar);
            if let Ok((found_len, found_digest)) = &found
                && (found_len, found_digest) != (len, digest)
            {
                found = Err(format!("\"{name}\" is not what was written"));
            }
            if let Err(what) = found {
                wrong.push(format!("server {}: {what}", server + 1));
            }
        }
    }
    bar.done();
    if let Some(first) = wrong.first() {
        return Err(Fail::new(format!(
            "{} of {} blobs are wrong after the crashes, the first one: {first}",
            wrong.len(),
            written.len() * ALL.len()
        )));
    }
    let verified = Verified { bytes: total * ALL.len() as u64, elapsed: began.elapsed() };
    tell.verified(&verified);
    Ok(verified)
}

fn blake3_of(
    client: &mut remanence_pool::client::Client,
    server: usize,
    name: &BlobName,
    buffer: &mut [u8],
    bar: &crate::ui::Bar,
) -> Result<(u64, Digest), String> {
    let mut reader = client.open(server, name).map_err(|lost| lost.to_string())?;
    let mut hasher = Digest::hasher();
    let mut len = 0;
    loop {
        let n = reader.read(buffer).map_err(|e| e.to_string())?;
        if n == 0 {
            return Ok((len, hasher.finish()));
        }
        hasher.update(&buffer[..n]);
        len += n as u64;
        bar.add(n as u64);
    }
}

impl Input {
    /// Room for the input and for its catalogue, which has 1/128 of a pool for each half and fills three quarters of it.
    fn pool_size(&self) -> Size {
        let blocks: u64 = self.items.iter().map(|item| item.len.unwrap_or(0).div_ceil(4096) * 4096).sum();
        let records: u64 = self.items.iter().map(|item| 128 + item.name.as_str().len() as u64).sum();
        let room = (blocks + blocks / 4 + (48 << 20)).max(records * 128 * 4 / 3);
        Size(room.next_multiple_of(16 << 20))
    }
}
