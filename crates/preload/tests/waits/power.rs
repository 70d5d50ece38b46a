//! The loss of power under NATS with JetStream, as users of it have met it (nats-server, issue 7564): as it comes, it acknowledges messages that no disk has; told to sync each, it waits for the
//! disk; and under the cache it waits for a log that is written in one place. The disk is a file system that is cut off while a client publishes.
//!
//! `cargo test -p remanence-preload --test waits power_failure -- --nocapture`, or `make power`, says how many messages were acknowledged, how many are there, and how fast that was.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use remanence_intercept::{Way, inspect};

use crate::cache::{Cache, Talk};
use crate::disk::Disk;
use crate::rounds::has;
use crate::servers::{NATS_CLIENT, nats_that_syncs};

const NEVER: u64 = 3000;
/// How long messages are published before the power is lost: less than what a file system keeps to itself.
const PUBLISHED: Duration = Duration::from_secs(3);

/// Publishes for as long as it lives, and says the number of each message when it is acknowledged.
const PUBLISH: &str = r#"
import client, itertools
nats = client.reached()
made = nats.ask(b"$JS.API.STREAM.CREATE.s", b"{\"name\":\"s\",\"subjects\":[\"s\"],\"storage\":\"file\"}")
assert "error" not in made, made
for n in itertools.count(1):
    stored = nats.ask(b"s", b"%d " % n + b"x" * 300)
    assert stored.get("seq") == n, stored
    print(n, flush=True)
"#;

/// Says how many messages there are, each of which is whole.
const COUNT: &str = r#"
import base64, client
nats = client.reached()
found = nats.ask(b"$JS.API.STREAM.INFO.s", b"").get("state", {"last_seq": 0})["last_seq"]
for n in range(1, found + 1):
    message = nats.ask(b"$JS.API.STREAM.MSG.GET.s", b"{\"seq\":%d}" % n)
    if "error" in message or base64.b64decode(message["message"]["data"]) != b"%d " % n + b"x" * 300:
        found = n - 1
        break
print(found)
"#;

/// Waits for the server.
const REACHED: &str = r#"
def reached():
    import time
    for _ in range(600):
        try:
            nats = Client()
            nats.ask(b"$JS.API.INFO", b"")
            return nats
        except OSError:
            time.sleep(0.05)
    sys.exit("no server")
"#;

/// What became of a run.
struct Outcome {
    acknowledged: u64,
    there: u64,
    rate: f64,
}

/// A server, which ends with this.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(mut command: Command, place: &Path) -> Server {
    let log = File::options().create(true).append(true).open(place.join("serve.log")).expect("room");
    command.arg("-c").arg(place.join("nats.conf")).stdin(Stdio::null());
    command.stdout(log.try_clone().expect("a descriptor")).stderr(log);
    Server(command.spawn().expect("it starts"))
}

fn client(place: &Path, script: &str, address: &str) -> Command {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script]).current_dir(place).env("ADDRESS", address);
    command
}

/// A server that syncs each message, or not, under the cache, or not. `None`: no file system can be mounted here.
fn power_is_lost(program: &Path, syncs: bool, is_cached: bool) -> Option<Outcome> {
    let outside = Cache::new("power", NEVER)?;
    let mut disk = Disk::new(outside.path("image"), outside.path("disk"), 256)?;
    let mut cache = is_cached.then(|| Cache::at(disk.place.clone(), NEVER));
    let (place, address) = (&outside.place, remanence_effort::address().to_string());
    let data = disk.place.join("data");
    fs::create_dir(&data).expect("room");
    rustix::fs::sync();
    let interval = if syncs { ", sync_interval: always" } else { "" };
    let text =
        format!("listen: \"{address}:4222\"\njetstream {{ store_dir: \"{}\"{interval} }}\n", data.display());
    fs::write(place.join("nats.conf"), text).expect("room");
    fs::write(place.join("client.sh"), format!("{NATS_CLIENT}cat >>client.py <<'END'{REACHED}END\n"))
        .expect("room");
    let made = Command::new("sh").arg("client.sh").current_dir(place).status();
    assert!(made.expect("a shell").success());

    let command = match &cache {
        Some(cache) if inspect(program).expect("a program").way() == Ok(Way::Outside) => {
            cache.supervised(program)
        }
        Some(cache) => {
            let mut command = cache.command(program);
            command.env("REMANENCE_CACHE_SCOPE", "all");
            command
        }
        None => Command::new(program),
    };
    let server = serve(command, place);
    let mut publisher = Talk::with(&mut client(place, PUBLISH, &address));
    let (mut acknowledged, mut begun) = (0, None);
    while begun.is_none_or(|begun: Instant| begun.elapsed() < PUBLISHED) {
        acknowledged = publisher.line().expect("it goes on").parse().expect("a number");
        begun.get_or_insert_with(Instant::now);
    }
    disk.cut_off();
    let took = begun.map_or(PUBLISHED, |begun| begun.elapsed());
    publisher.child.kill().expect("it runs");
    publisher.child.wait().expect("it ends");
    if let Some(cache) = &mut cache {
        cache.kill_programs(0);
        cache.kill_daemon();
    }
    drop(server);

    disk.unmount().and_then(|()| disk.mount()).expect("it can be mounted again");
    if let Some(cache) = &mut cache {
        println!("{}", cache.start_again().expect("nobody has to decide anything"));
    }
    let server = serve(Command::new(program), place);
    let counted = client(place, COUNT, &address).output().expect("python");
    let there = String::from_utf8_lossy(&counted.stdout).trim().parse();
    let there = there.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&counted.stderr)));
    drop(server);
    if let Some(cache) = &mut cache {
        cache.stop_and_keep();
    }
    Some(Outcome { acknowledged, there, rate: acknowledged as f64 / took.as_secs_f64() })
}

#[test]
fn power_failure_of_nats_with_and_without_us() {
    let Some(program) = nats_that_syncs() else { return };
    if !has(&["/usr/bin/python3"]) {
        return;
    }
    println!("{:44} {:>12} {:>12} {:>12} {:>10}", "", "acknowledged", "there", "lost", "a second");
    for (name, syncs, is_cached) in [
        ("as it comes", false, false),
        ("sync_interval: always", true, false),
        ("sync_interval: always, under rem run", true, true),
    ] {
        let Some(Outcome { acknowledged, there, rate }) = power_is_lost(&program, syncs, is_cached) else {
            return;
        };
        let lost = acknowledged.saturating_sub(there);
        println!("{name:44} {acknowledged:>12} {there:>12} {lost:>12} {rate:>10.0}");
        assert_eq!(lost > 0, !syncs, "{name}");
    }
}
