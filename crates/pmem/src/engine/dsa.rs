//! Intel's Data Streaming Accelerator: whether this machine has one that a program may use, and an engine that copies with it.
//!
//! Read first: Intel's DSA architecture specification, the idxd driver's documentation
//! (Documentation/ABI/stable/sysfs-driver-dma-idxd) and `linux/idxd.h`. From there to a copy:
//!
//! 1. An administrator configures a work queue of type *user* and enables it (`accel-config`); it then appears under
//!    `/sys/bus/dsa/devices/wqD.Q` and as the character device `/dev/dsa/wqD.Q`. [`detect`] finds it, or says which condition
//!    is not met.
//! 2. [`DsaEngine::open`] opens that, and maps one page of it, the portal (`portal`). With PASID enabled on the device,
//!    descriptors carry the program's own virtual addresses; no physical addresses, huge pages or pinning as with IOAT
//!    (paper 001, 5.3).
//! 3. A descriptor of 64 bytes (`spec`) goes to the portal, and the device writes a completion record.
//! 4. Unlike IOAT (paper 001, 5.4), descriptors are not carried out in order, and they may stop at a page that is not
//!    present: `copies` has what makes an engine of them, and the argument.
//!
//! **What is known of it.** No machine with DSA was at hand: *this code has never run on the hardware*. It was tested
//! against a device in software, written from the specification too, which carries descriptors out in no order, stops at
//! pages, refuses, and reports as the specification allows (`soft`); and its layouts against the kernel's header. So the
//! engine is used only where somebody asks for it, and it trusts no device that has not earned it: before it takes work, it
//! copies odd lengths between odd addresses, meets pages that are not present, and passes the order test of the paper
//! (`trial`). A device that fails any of that is refused, with a sentence. Durability rests on the CPU's own write-backs in
//! any case.

mod copies;
mod portal;
#[cfg(test)]
pub(super) mod soft;
mod spec;
#[cfg(test)]
mod tests;
mod trial;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::copies::Copies;
use super::{Completion, CopyEngine, CopyError, Options, Promise, Refused, Source, Ticket};
use crate::region::Region;

/// What copies with a device. Its contract is that of every [`CopyEngine`]; it has no thread, so a copy begins in a call of its
/// owner, and where a sync is a system call, [`poll`](CopyEngine::poll) takes as long as that.
#[derive(Debug)]
pub struct DsaEngine(Copies<Region>);

impl DsaEngine {
    /// Opens the first work queue that this machine has for us, and puts it to the test, which takes some milliseconds.
    ///
    /// # Errors
    /// [`Unusable`]: there is none, it cannot be opened, or it did not pass. Nothing is copied by it then.
    pub fn open(options: Options) -> Result<Self, Unusable> {
        let found = detect();
        match found.usable() {
            Some(queue) => Self::open_queue(queue, options),
            None => Err(Unusable::Absent(found.to_string())),
        }
    }

    /// Opens this work queue, and puts it to the test.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_queue(queue: &WorkQueue, options: Options) -> Result<Self, Unusable> {
        if let Some(obstacle) = &queue.obstacle {
            return Err(Unusable::Absent(format!("{}: {obstacle}", queue.name)));
        }
        let limits = queue.limits();
        // Each engine ends what it began, so that the queue is empty when the next one takes over.
        trial::run(&mut || portal::open(queue), limits)?;
        Ok(Self(Copies::new(portal::open(queue)?, limits, options)?))
    }
}

impl CopyEngine for DsaEngine {
    fn options(&self) -> Options {
        self.0.options()
    }

    fn submit(&mut self, from: Source, to: &Region, offset: u64) -> Result<Ticket, Refused> {
        self.0.submit(from, to, offset)
    }

    fn poll(&mut self) -> Option<Completion> {
        self.0.poll()
    }

    fn wait(&mut self) -> Option<Completion> {
        self.0.wait()
    }

    fn copy(&mut self, from: &[u8], to: &Region, offset: u64) -> Result<Promise, CopyError> {
        self.0.copy(from, to, offset)
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn oldest(&self) -> Option<Ticket> {
        self.0.oldest()
    }
}

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The machine has no queue for us.
    #[error("{0}")]
    Absent(String),
    /// The CPU cannot hand descriptors to a queue of this kind.
    #[error("this CPU has no {0}, by which descriptors get to the device")]
    Cpu(&'static str),
    /// The system refuses. (`EBUSY`: a dedicated queue has one user at a time.)
    #[error("{doing} {} failed: {source}", path.display())]
    Os {
        /// What we were about to do.
        doing: &'static str,
        /// The queue's character device.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No memory for what the device writes.
    #[error(transparent)]
    Memory(#[from] crate::Error),
    /// The device did something else than it was told.
    #[error("the device did not pass the test that it is put to before it is trusted: {0}")]
    Trial(String),
}

/// What a device did to a copy. The engine that had it has stopped, and its owner may make another kind of engine.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// It said so.
    #[error("it answered status {:#04x}, {}", .0, spec::words(*.0))]
    Status(u8),
    /// What it said cannot be.
    #[error("it says that it stopped after {completed} of {of} bytes, which is no stop")]
    Impossible {
        /// Bytes that it says were copied.
        completed: u64,
        /// Bytes that were to be copied.
        of: u64,
    },
    /// It has completed nothing for ten seconds. What it may still read or write is never freed.
    #[error("it has done nothing for ten seconds with what it has")]
    Lost,
    /// It could not be reached.
    #[error("it cannot be reached: {0}")]
    Portal(io::Error),
}

/// What a queue and its device allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) struct Limits {
    /// Descriptors that it may have at a time.
    pub(super) in_flight: usize,
    /// Bytes of a descriptor, at most.
    pub(super) transfer_max: u64,
    /// Whether the cache-control flag is known to the device.
    pub(super) cache_control: bool,
    /// How long it may do nothing with what it has.
    pub(super) idle_max: Duration,
}

/// A work queue of a DSA device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkQueue {
    /// Its name: `wq0.0`.
    pub name: String,
    /// The character device by which a program uses it, if it is there.
    pub device: Option<PathBuf>,
    /// Whether it is shared (ENQCMD) or dedicated (MOVDIR64B).
    pub shared: bool,
    /// How many descriptors it holds.
    pub size: u32,
    /// The longest copy of one descriptor, in bytes.
    pub max_transfer: u64,
    /// Whether a descriptor can say that its bytes go to the CPU's cache.
    pub cache_control: bool,
    /// Why a program cannot use it; `None` if it could.
    pub obstacle: Option<String>,
}

impl WorkQueue {
    /// More descriptors at a time than the pieces of a copy need be.
    const IN_FLIGHT_MAX: u32 = 64;
    /// Far beyond any copy's time: a device of which nothing was heard for so long has lost what it had.
    const IDLE_MAX: Duration = Duration::from_secs(10);

    fn limits(&self) -> Limits {
        Limits {
            in_flight: self.size.clamp(1, Self::IN_FLIGHT_MAX) as usize,
            transfer_max: self.max_transfer.clamp(1, u32::MAX.into()),
            cache_control: self.cache_control,
            idle_max: Self::IDLE_MAX,
        }
    }
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dsa {
    /// Every work queue, in the order of their names.
    pub queues: Vec<WorkQueue>,
    /// Whether the bus is there at all.
    pub bus: bool,
}

impl Dsa {
    /// The first work queue that a program could use.
    #[must_use]
    pub fn usable(&self) -> Option<&WorkQueue> {
        self.queues.iter().find(|queue| queue.obstacle.is_none())
    }
}

impl fmt::Display for Dsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(queue) = self.usable() {
            return write!(
                f,
                "Intel DSA is here ({}, {}), for those who ask for it; else copies are the CPU's",
                queue.name,
                if queue.shared { "shared" } else { "dedicated" }
            );
        }
        match self.queues.first() {
            None if self.bus => f.write_str(
                "Intel DSA is here, without a work queue: configure one of type user with accel-config",
            ),
            None => f.write_str("no Intel DSA: there is no dsa bus, so copies are the CPU's"),
            Some(queue) => write!(
                f,
                "Intel DSA is here, and cannot be used: {}: {}",
                queue.name,
                queue.obstacle.as_deref().unwrap_or("no reason is known")
            ),
        }
    }
}

/// Looks at this machine.
#[must_use]
pub fn detect() -> Dsa {
    detect_under(Path::new("/"))
}

/// Looks at a machine whose root directory is this one.
#[must_use]
pub fn detect_under(root: &Path) -> Dsa {
    let devices = root.join("sys/bus/dsa/devices");
    let Ok(entries) = fs::read_dir(&devices) else { return Dsa { queues: Vec::new(), bus: false } };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.strip_prefix("wq").is_some_and(|rest| rest.contains('.')))
        .collect();
    names.sort();
    Dsa { queues: names.iter().map(|name| work_queue(root, &devices, name)).collect(), bus: true }
}

fn work_queue(root: &Path, devices: &Path, name: &str) -> WorkQueue {
    let attribute = |of: &str, what: &str| {
        fs::read_to_string(devices.join(of).join(what)).map(|text| text.trim().to_owned()).unwrap_or_default()
    };
    // "wq3.1" is a queue of "dsa3".
    let owner = name.strip_prefix("wq").and_then(|rest| rest.split('.').next()).unwrap_or_default();
    let owner = format!("dsa{owner}");
    let node = root.join("dev/dsa").join(name);
    let kind = attribute(name, "type");
    let obstacle = if !devices.join(&owner).exists() {
        Some(format!("it is a queue of no {owner}, such as one of the analytics accelerator"))
    } else if attribute(&owner, "state") != "enabled" {
        Some(format!("{owner} is not enabled: accel-config enable-device {owner}"))
    } else if kind != "user" {
        Some(format!("it is of type {}, not user", if kind.is_empty() { "unknown" } else { &kind }))
    } else if attribute(name, "state") != "enabled" {
        Some(format!("it is not enabled: accel-config enable-wq {owner}/{name}"))
    } else if attribute(&owner, "pasid_enabled") != "1" {
        Some(format!("{owner} does not take virtual addresses: boot with the IOMMU in scalable mode"))
    } else if attribute(name, "size").parse().is_ok_and(|size: u32| size == 0) {
        Some("it has no room for a descriptor".to_owned())
    } else if !node.exists() {
        Some(format!("{} is missing", Path::new("/dev/dsa").join(name).display()))
    } else {
        None
    };
    WorkQueue {
        name: name.to_owned(),
        device: node.exists().then_some(node),
        shared: attribute(name, "mode") == "shared",
        size: attribute(name, "size").parse().unwrap_or(0),
        max_transfer: attribute(name, "max_transfer_size").parse().unwrap_or(0),
        cache_control: has_cache_control(&attribute(&owner, "gen_cap")),
        obstacle,
    }
}

/// General capabilities, bit 2: the flag is known for memory.
fn has_cache_control(capabilities: &str) -> bool {
    let digits = capabilities.strip_prefix("0x").unwrap_or(capabilities);
    u64::from_str_radix(digits, 16).is_ok_and(|capabilities| capabilities & 1 << 2 != 0)
}

#[cfg(test)]
mod detection {
    use super::*;

    /// A directory that stands for a machine's root, gone when the test ends.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("remanence-dsa-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }

        fn queue(&self, name: &str, kind: &str, state: &str) {
            for (what, value) in [
                ("type", kind),
                ("state", state),
                ("mode", "dedicated"),
                ("size", "16"),
                ("max_transfer_size", "2147483648"),
            ] {
                self.put(&format!("sys/bus/dsa/devices/{name}/{what}"), value);
            }
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_machine_without_the_bus_has_none() {
        let root = Root::new("none");
        let found = detect_under(&root.0);
        assert_eq!(found, Dsa { queues: Vec::new(), bus: false });
        assert!(found.to_string().starts_with("no Intel DSA"), "{found}");
    }

    #[test]
    fn each_condition_is_named_until_all_are_met() {
        let root = Root::new("all");
        let says = |what: &str| {
            let found = detect_under(&root.0).to_string();
            assert!(found.contains(what), "{found:?} does not say {what:?}");
        };
        root.put("sys/bus/dsa/devices/dsa0/state", "disabled");
        says("without a work queue");
        root.queue("wq0.0", "none", "disabled");
        says("dsa0 is not enabled");
        root.put("sys/bus/dsa/devices/dsa0/state", "enabled");
        says("of type none");
        root.queue("wq0.0", "user", "disabled");
        says("accel-config enable-wq dsa0/wq0.0");
        root.queue("wq0.0", "user", "enabled");
        says("scalable mode");
        root.put("sys/bus/dsa/devices/dsa0/pasid_enabled", "1");
        says("is missing");
        root.put("dev/dsa/wq0.0", "");
        says("for those who ask for it");
        let found = detect_under(&root.0);
        let queue = found.usable().unwrap();
        assert_eq!((queue.shared, queue.size, queue.max_transfer), (false, 16, 1 << 31));
        let limits = queue.limits();
        assert_eq!((limits.in_flight, limits.transfer_max, limits.cache_control), (16, 1 << 31, false));
        root.put("sys/bus/dsa/devices/dsa0/gen_cap", "0x40915f0107");
        assert!(detect_under(&root.0).usable().unwrap().cache_control);
        root.put("sys/bus/dsa/devices/dsa0/gen_cap", "0x40915f0103");
        assert!(!detect_under(&root.0).usable().unwrap().cache_control);
        root.put("sys/bus/dsa/devices/wq0.0/size", "0");
        says("no room");
    }

    #[test]
    fn a_queue_of_the_kernel_does_not_hide_one_that_is_usable() {
        let root = Root::new("second");
        root.put("sys/bus/dsa/devices/dsa0/state", "enabled");
        root.put("sys/bus/dsa/devices/dsa0/pasid_enabled", "1");
        root.queue("wq0.0", "kernel", "enabled");
        root.queue("wq0.1", "user", "enabled");
        root.put("dev/dsa/wq0.1", "");
        let found = detect_under(&root.0);
        assert_eq!(found.queues.len(), 2);
        assert_eq!(found.usable().unwrap().name, "wq0.1");
    }

    #[test]
    fn a_queue_that_is_no_device_is_refused_and_nothing_is_written_to_it() {
        let root = Root::new("pretended");
        root.put("sys/bus/dsa/devices/dsa0/state", "enabled");
        root.put("sys/bus/dsa/devices/dsa0/pasid_enabled", "1");
        root.queue("wq0.0", "user", "enabled");
        root.put("dev/dsa/wq0.0", &"x".repeat(4095));
        let found = detect_under(&root.0);
        let mut queue = found.usable().unwrap().clone();
        queue.obstacle = Some("it is on fire".into());
        let refused = DsaEngine::open_queue(&queue, Options::new()).unwrap_err().to_string();
        assert_eq!(refused, "wq0.0: it is on fire");
        queue.obstacle = None;
        fs::remove_file(root.0.join("dev/dsa/wq0.0")).unwrap();
        let refused = DsaEngine::open_queue(&queue, Options::new()).unwrap_err().to_string();
        assert!(refused.starts_with("opening ") && refused.contains("wq0.0 failed"), "{refused}");
    }

    #[test]
    fn this_machine_says_something() {
        println!("{}", detect());
        match DsaEngine::open(Options::new()) {
            Ok(engine) => println!("{engine:?} passed its test"),
            Err(why) => println!("{why}"),
        }
    }
}
