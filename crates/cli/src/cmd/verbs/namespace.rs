//! A mount namespace of our own: what is mounted in it, nobody else sees, and it ends with its last process.
//!
//! Room for `unsafe`: unshare(2), which could take a thread's descriptors away if it was asked to. It is not.
#![expect(
    unsafe_code,
    reason = "unshare(2) has no safe wrapper; only namespaces are left, never descriptors"
)]

use std::fs;
use std::io;
use std::process::{Command, Stdio};

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// How the namespace was had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    /// With the rights that this process has.
    Privileged,
    /// With those of a user namespace of its own.
    UserNamespace,
}

/// Enters one. An unprivileged process first lets a child try: half a user namespace would be worse than none, as the
/// program would run as nobody in it. `why_no_user`: why it is not to be a user namespace, if there is a reason.
pub(super) fn enter_checked(why_no_user: impl FnOnce() -> Option<&'static str>) -> io::Result<How> {
    if mounts().is_ok() {
        return Ok(How::Privileged);
    }
    if let Some(why) = why_no_user() {
        return Err(io::Error::other(why));
    }
    let child = Command::new("/proc/self/exe")
        .args(["verbs", "--try-view"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()?;
    if !child.status.success() {
        let why = String::from_utf8_lossy(&child.stderr);
        return Err(io::Error::other(why.trim().trim_start_matches("rem: ").to_owned()));
    }
    enter()?;
    Ok(How::UserNamespace)
}

/// Enters a user namespace with a mount namespace, as the same user. After an error the process is good for nothing.
pub(super) fn enter() -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(())
}

/// What others mount later still appears here; what we mount stays here.
fn mounts() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(())
}

fn unshare(flags: UnshareFlags) -> io::Result<()> {
    assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: the descriptor table stays shared, as the assertion says.
    unsafe { unshare_unsafe(flags) }.map_err(io::Error::from)
}
