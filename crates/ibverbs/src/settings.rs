//! The environment variables that say how devices are opened, parsed once.
//!
//! A program that was built for hardware has no options for us, so they come from outside:
//!
//! | variable | value | what it does |
//! |---|---|---|
//! | `REMANENCE_DEVICE` | names, with commas | these devices only, in this order; interface names will do |
//! | `REMANENCE_LINK` | `udp`, `xdp`, `shm` | what carries the packets; `udp` if nothing is said |
//! | `REMANENCE_ADDRESS` | an IP address | the address of the `shm` device; any free one if nothing is said |
//! | `REMANENCE_MTU` | 256 to 4096 | the largest path MTU to offer |
//! | `REMANENCE_CAPTURE` | a file | records all packets, for Wireshark; a second process writes `FILE.PID` |
//! | `REMANENCE_LOSS` | 0 to 1 | loses this part of the packets that we send |
//! | `REMANENCE_DELAY` | a time, such as `500us` | holds back each packet that we send |
//! | `REMANENCE_SEED` | a number | which packets are lost |

use std::env;
use std::ffi::{OsString, c_int};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use once_cell::race::OnceBox;
use remanence_link::fault::{Faults, Plan};
use remanence_wire::Mtu;

/// What carries a device's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum LinkChoice {
    #[default]
    Udp,
    Xdp,
    Shm,
}

/// What the environment says.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Settings {
    /// Only these devices, in this order; empty means all.
    pub(crate) devices: Vec<String>,
    pub(crate) link: LinkChoice,
    pub(crate) address: Option<IpAddr>,
    pub(crate) mtu: Option<Mtu>,
    pub(crate) capture: Option<PathBuf>,
    /// Faults of the network, and their seed.
    pub(crate) faults: Option<(Plan, u64)>,
}

/// The settings of this process. If a variable makes no sense, the user is told so once, and no device is opened.
pub(crate) fn get() -> Result<&'static Settings, c_int> {
    static SETTINGS: OnceBox<Result<Settings, String>> = OnceBox::new();
    static TOLD: AtomicBool = AtomicBool::new(false);
    let settings = SETTINGS.get_or_init(|| Box::new(parse(|name| env::var_os(name))));
    settings.as_ref().map_err(|sentence| {
        if !TOLD.swap(true, Ordering::Relaxed) {
            eprintln!("remanence: {sentence}");
        }
        libc::EINVAL
    })
}

fn parse(get: impl Fn(&str) -> Option<OsString>) -> Result<Settings, String> {
    let text = |name: &str| -> Result<Option<String>, String> {
        let Some(value) = get(name) else { return Ok(None) };
        let value = value.into_string().map_err(|_| format!("{name} is not UTF-8"))?;
        Ok(Some(value.trim().to_owned()).filter(|value| !value.is_empty()))
    };
    let mut settings = Settings::default();
    if let Some(names) = text("REMANENCE_DEVICE")? {
        settings.devices =
            names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    }
    settings.link = match text("REMANENCE_LINK")?.as_deref() {
        None | Some("udp") => LinkChoice::Udp,
        Some("xdp") => LinkChoice::Xdp,
        Some("shm") => LinkChoice::Shm,
        Some(other) => return Err(format!("REMANENCE_LINK={other}: use udp, xdp or shm")),
    };
    if let Some(address) = text("REMANENCE_ADDRESS")? {
        let parsed =
            address.parse().map_err(|_| format!("REMANENCE_ADDRESS={address}: use an IP address"))?;
        settings.address = Some(parsed);
    }
    if let Some(mtu) = text("REMANENCE_MTU")? {
        let found = Mtu::ALL.into_iter().find(|m| m.to_string() == mtu);
        let found = found.ok_or_else(|| format!("REMANENCE_MTU={mtu}: use 256, 512, 1024, 2048 or 4096"))?;
        settings.mtu = Some(found);
    }
    settings.capture = get("REMANENCE_CAPTURE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let mut faults = Faults::NONE;
    if let Some(loss) = text("REMANENCE_LOSS")? {
        let rate = loss.parse().ok().filter(|rate| (0.0..=1.0).contains(rate));
        faults.loss = rate.ok_or_else(|| format!("REMANENCE_LOSS={loss}: use a number from 0 to 1"))?;
    }
    if let Some(delay) = text("REMANENCE_DELAY")? {
        let time = duration(&delay);
        faults.delay =
            time.ok_or_else(|| format!("REMANENCE_DELAY={delay}: use a number with ns, us, ms or s"))?;
    }
    let seed = match text("REMANENCE_SEED")? {
        Some(seed) => seed.parse().map_err(|_| format!("REMANENCE_SEED={seed}: use a number"))?,
        None => 1,
    };
    if faults != Faults::NONE {
        settings.faults = Some((Plan { tx: faults, rx: Faults::NONE }, seed));
    }
    Ok(settings)
}

/// A time with its unit.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| c != '.' && !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim() {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * scale).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Settings, String> {
        parse(|name| variables.iter().find(|v| v.0 == name).map(|v| v.1.into()))
    }

    #[test]
    fn silence_is_the_default() {
        assert_eq!(of(&[]), Ok(Settings::default()));
        assert_eq!(of(&[("REMANENCE_LINK", ""), ("REMANENCE_CAPTURE", "")]), Ok(Settings::default()));
    }

    #[test]
    fn each_variable_is_understood() {
        let settings = of(&[
            ("REMANENCE_DEVICE", "rem_eth1, lo"),
            ("REMANENCE_LINK", "shm"),
            ("REMANENCE_ADDRESS", "127.64.0.9"),
            ("REMANENCE_MTU", "1024"),
            ("REMANENCE_CAPTURE", "run.pcapng"),
            ("REMANENCE_LOSS", "0.25"),
            ("REMANENCE_DELAY", "1.5ms"),
            ("REMANENCE_SEED", "7"),
        ])
        .expect("all of them make sense");
        assert_eq!(settings.devices, ["rem_eth1", "lo"]);
        assert_eq!((settings.link, settings.mtu), (LinkChoice::Shm, Some(Mtu::B1024)));
        assert_eq!(settings.address, "127.64.0.9".parse().ok());
        assert_eq!(settings.capture, Some(PathBuf::from("run.pcapng")));
        let (plan, seed) = settings.faults.expect("some");
        assert_eq!((plan.tx.loss, plan.tx.delay, seed), (0.25, Duration::from_micros(1500), 7));
        assert_eq!(plan.rx, Faults::NONE);
    }

    #[test]
    fn nonsense_is_named_with_what_to_write_instead() {
        for (name, value, hint) in [
            ("REMANENCE_LINK", "tcp", "udp, xdp or shm"),
            ("REMANENCE_MTU", "1500", "1024"),
            ("REMANENCE_LOSS", "1.5", "0 to 1"),
            ("REMANENCE_LOSS", "NaN", "0 to 1"),
            ("REMANENCE_DELAY", "500", "us"),
            ("REMANENCE_DELAY", "1h", "us"),
            ("REMANENCE_SEED", "x", "number"),
            ("REMANENCE_ADDRESS", "here", "IP address"),
        ] {
            let sentence = of(&[(name, value)]).expect_err("nonsense");
            assert!(sentence.contains(name) && sentence.contains(hint), "{sentence}");
        }
    }
}
