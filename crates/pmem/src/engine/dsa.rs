//! Intel's Data Streaming Accelerator: whether this machine has one that a program may use.
//!
//! There is no back end for it. It could not be run on any machine at hand, and code that has never copied a byte
//! must not be trusted with durable ones; so the detection is all there is, and it says which condition is met and
//! which is not. What a back end has to do, from the idxd driver's documentation
//! (Documentation/ABI/stable/sysfs-driver-dma-idxd) and Intel's DSA architecture specification:
//!
//! 1. An administrator configures a work queue of type *user* and enables it (`accel-config`); it then appears under
//!    `/sys/bus/dsa/devices/wqD.Q` and as the character device `/dev/dsa/wqD.Q`.
//! 2. The program opens that, and maps one page of it, the portal. With PASID enabled on the device, descriptors carry
//!    the program's own virtual addresses; no physical addresses, huge pages or pinning as with IOAT (paper 001, 5.3).
//! 3. A descriptor of 64 bytes goes to the portal by MOVDIR64B (dedicated queue) or ENQCMD (shared queue: it may be
//!    refused, and is then tried again), and the device writes a completion record.
//! 4. *Order.* Unlike IOAT (paper 001, 5.4), descriptors are not carried out in order: the engine would have to set
//!    the *fence* flag within a batch, or await a copy before it submits the next.
//! 5. *Durability.* With the descriptor's *cache control* flag clear, the copy goes to memory and not to the cache,
//!    which is direct cache access off. Whether the completion record is written only after the data is in the
//!    persistence domain is a question to the platform's vendor; a sound back end writes the range back with the CPU
//!    unless told.
//! 6. A page that is not present makes a copy stop with a partial completion (unless *block on fault* may be set),
//!    which has to be resumed.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

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
    /// Why a program cannot use it; `None` if it could.
    pub obstacle: Option<String>,
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
                "Intel DSA is here ({}, {}), and not used: there is no back end for it yet, copies are the CPU's",
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
        obstacle,
    }
}

#[cfg(test)]
mod tests {
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
        says("not used: there is no back end");
        let found = detect_under(&root.0);
        let queue = found.usable().unwrap();
        assert_eq!((queue.shared, queue.size, queue.max_transfer), (false, 16, 1 << 31));
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
    fn this_machine_says_something() {
        println!("{}", detect());
    }
}
