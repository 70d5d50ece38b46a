//! A ping-pong of WRITEs between two processes that both spin on memory, as `ib_write_lat` does it: nobody polls while
//! the answer is on its way, so the progress threads must receive it, beside two threads that never sleep.
//!
//! Run: `cargo run --release -p remanence-verbs --example spin_on_memory [ROUNDS [udp|shm]]`. It prints half of the
//! round trips' percentiles; `memory` never polls a CQ within a round, `perftest` polls for its own completion first.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use remanence_pmem::Region;
use remanence_rnic::{Access, Data, RemoteAddr, SendFlags, SendOp, SendWr, Sge, Wc, WcStatus};
use remanence_verbs::{ConnectAttr, Context, Cq, Mr, Options, Qp, QpEndpoint, QpOptions};
use remanence_wire::{Gid, Psn, Qpn, Rkey};

const PART: &str = "REMANENCE_SPIN_PART";
const SIZE: u32 = 64;
/// Where the peer writes, and from where we do.
const IN: u64 = 0;
const OUT: u64 = 4096;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Side {
    cq: Cq,
    qp: Qp,
    mr: Mr,
    region: Region,
}

impl Side {
    fn open(link: &str) -> Result<Self> {
        let options =
            if link == "shm" { Options::shm(None) } else { Options::udp(IpAddr::from(Ipv4Addr::LOCALHOST)) };
        let context = Context::open(options)?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(256, None, 0)?);
        let region = Region::anonymous(8192)?;
        region.populate();
        let mr = pd.reg_mr(&region, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let qp = pd.create_qp(&QpOptions::rc(&cq))?;
        Ok(Self { cq, qp, mr, region })
    }

    fn name(&self) -> String {
        let end = self.qp.endpoint();
        format!("peer {} {} {} {}", end.gid.to_ip(), end.qpn.value(), end.psn.value(), self.mr.rkey().0)
    }

    fn connect(&self, name: &str) -> Result<RemoteAddr> {
        let parts: Vec<&str> = name.split(' ').collect();
        let &["peer", ip, qpn, psn, rkey] = parts.as_slice() else { return Err("no peer".into()) };
        let gid = Gid::from_ip(ip.parse()?);
        let end = QpEndpoint { gid, qpn: Qpn::new(qpn.parse()?), psn: Psn::new(psn.parse()?) };
        self.qp.connect_to(&end, &ConnectAttr::default())?;
        Ok(RemoteAddr { addr: IN, rkey: Rkey(rkey.parse()?) })
    }

    fn post(&self, n: u64, to: RemoteAddr) -> Result<()> {
        self.region.store_u64(OUT + u64::from(SIZE) - 8, n);
        let sges = [Sge { addr: OUT, len: SIZE, lkey: self.mr.lkey() }];
        let (op, data) = (SendOp::Write(to), Data::Sges(&sges));
        Ok(self.qp.post_send(&SendWr { wr_id: n, op, data, flags: SendFlags::SIGNALED, ud: None })?)
    }

    /// The consumer that the library does not see.
    fn spin(&self, n: u64) -> Result<()> {
        let begun = Instant::now();
        let mut turns = 0_u32;
        while self.region.load_u64(IN + u64::from(SIZE) - 8) != n {
            std::hint::spin_loop();
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(1 << 20) && begun.elapsed() > Duration::from_secs(10) {
                return Err(format!("round {n} never came").into());
            }
        }
        Ok(())
    }

    fn reap(&self, wcs: &mut Vec<Wc>) -> Result<()> {
        wcs.clear();
        while self.cq.poll(wcs, 1)? == 0 {}
        (wcs[0].status == WcStatus::Success).then_some(()).ok_or_else(|| format!("{:?}", wcs[0]).into())
    }

    fn play(&self, first: bool, to: RemoteAddr, rounds: u64, perftest: bool, from: u64) -> Result<Vec<u32>> {
        let (mut times, mut wcs) = (Vec::new(), Vec::new());
        let mut last = Instant::now();
        for n in from..from + rounds {
            if !first {
                self.spin(n)?;
            }
            self.post(n, to)?;
            if perftest {
                self.reap(&mut wcs)?;
            }
            if first {
                self.spin(n)?;
            }
            if !perftest && n % 64 == 63 {
                for _ in 0..64 {
                    self.reap(&mut wcs)?;
                }
            }
            let now = Instant::now();
            times.push(u32::try_from(now.duration_since(last).as_nanos())?);
            last = now;
        }
        Ok(times)
    }
}

fn report(what: &str, mut times: Vec<u32>) {
    times.sort_unstable();
    let at = |percent: usize| f64::from(times[(times.len() - 1) * percent / 1000]) / 2000.0;
    println!(
        "{what:9} half a round trip: p50 {:.2} us, p90 {:.2}, p99 {:.2}, p99.9 {:.2}, mean {:.2}",
        at(500),
        at(900),
        at(990),
        at(999),
        times.iter().map(|&t| f64::from(t)).sum::<f64>() / times.len() as f64 / 2000.0
    );
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let rounds: u64 = args.next().map_or(Ok(64_000), |n| n.parse())?;
    let link = args.next().unwrap_or_else(|| "udp".into());
    // A whole number of reapings.
    let rounds = rounds.next_multiple_of(64);
    let side = Side::open(&link)?;
    if std::env::var(PART).is_ok() {
        println!("{}", side.name());
        std::io::stdout().flush()?;
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)?;
        let to = side.connect(line.trim())?;
        for (i, perftest) in [false, true].into_iter().enumerate() {
            side.play(false, to, rounds, perftest, i as u64 * rounds + 64)?;
        }
        return Ok(());
    }
    let mut child = Command::new(std::env::current_exe()?)
        .args([rounds.to_string(), link])
        .env(PART, "second")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    let to = side.connect(&lines.next().ok_or("the second process ended")??)?;
    writeln!(child.stdin.take().ok_or("no input")?, "{}", side.name())?;
    std::thread::sleep(Duration::from_millis(200));
    for (i, (perftest, what)) in [(false, "memory"), (true, "perftest")].into_iter().enumerate() {
        report(what, side.play(true, to, rounds, perftest, i as u64 * rounds + 64)?);
    }
    child.wait()?;
    if std::env::var("STATS").is_ok() {
        let context = side.qp.pd().context();
        println!("{:?}\n{:?}\n{:?}", context.progress_stats(), context.link_stats(), context.stats());
    }
    Ok(())
}
