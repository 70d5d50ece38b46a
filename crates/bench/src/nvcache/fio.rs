//! fio, as a second opinion of our own loop: the same writes, by a program of somebody else's.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::ends::BLOCK;
use crate::process::{Running, spawn};

/// How much longer than its burst it may take: it makes its files first.
const PATIENCE: Duration = Duration::from_secs(60);

/// What it is asked.
pub(super) struct Run<'a> {
    /// Where it has its files.
    pub(super) directory: &'a Path,
    pub(super) jobs: usize,
    /// Bytes of each file.
    pub(super) bytes: u64,
    /// It syncs behind so many writes; never, if none.
    pub(super) fsync: u64,
    pub(super) time: Duration,
}

impl Run<'_> {
    fn arguments(&self) -> Vec<String> {
        let Self { directory, jobs, bytes, fsync, time } = self;
        let fixed = "--name=fio --filename_format=fio.$jobnum --rw=randwrite --ioengine=psync --thread --group_reporting --time_based \
                     --fallocate=none --invalidate=0 --overwrite=1 --norandommap --output-format=json";
        let mut arguments: Vec<String> = fixed.split_whitespace().map(str::to_owned).collect();
        arguments.extend([
            format!("--directory={}", directory.display()),
            format!("--bs={BLOCK}"),
            format!("--size={bytes}"),
            format!("--numjobs={jobs}"),
            format!("--fsync={fsync}"),
            format!("--runtime={}ms", time.as_millis()),
        ]);
        arguments
    }

    /// Its command line, for a reader.
    pub(super) fn words(&self) -> String {
        format!("fio {}", self.arguments().join(" "))
    }

    /// Runs it behind a command; millions of writes a second.
    pub(super) fn rate(&self, under: &[OsString]) -> Result<f64, String> {
        let words = under.iter().cloned().chain([OsString::from("fio")]).collect::<Vec<_>>();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(self.arguments());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = spawn(&mut command).map_err(|e| format!("fio cannot be started: {e}"))?;
        let (status, said) = Running(child).finish(self.time + PATIENCE)?;
        if !status.success() {
            return Err(format!("fio ended with {status}: {}", said.trim()));
        }
        parse(&said)
            .ok_or_else(|| format!("fio said no rate: {}", said.chars().take(200).collect::<String>()))
    }
}

/// Millions of writes a second, of what it said as JSON, behind warnings if it has some.
fn parse(said: &str) -> Option<f64> {
    let report: Value = serde_json::from_str(&said[said.find('{')?..]).ok()?;
    let job = &report["jobs"][0];
    if job["error"].as_i64() != Some(0) {
        return None;
    }
    let rate = job["write"]["iops"].as_f64()?;
    (rate > 0.0).then_some(rate / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_all_jobs_is_read() {
        let said =
            "note: something\n{\"jobs\":[{\"error\":0,\"write\":{\"iops\":250000.0,\"total_ios\":5}}]}\n";
        assert_eq!(parse(said), Some(0.25));
        assert_eq!(parse("fio: no such engine"), None);
        assert_eq!(parse("{\"jobs\":[{\"error\":5,\"write\":{\"iops\":1.0}}]}"), None);
        assert_eq!(parse("{\"jobs\":[{\"error\":0,\"write\":{\"iops\":0.0}}]}"), None, "it has done nothing");
    }

    #[test]
    fn it_is_asked_for_the_same_writes() {
        let time = Duration::from_millis(150);
        let run = Run { directory: Path::new("/d"), jobs: 8, bytes: 1 << 20, fsync: 1, time };
        let words = run.words();
        for part in
            ["--directory=/d", "--bs=4096", "--numjobs=8", "--fsync=1", "--runtime=150ms", "--size=1048576"]
        {
            assert!(words.contains(part), "no {part}: {words}");
        }
    }
}
