//! librdmacm as C programs use it: `c/cm_*.c` against the installed headers and our libraries. Each is a story of its
//! own, and says itself what is wrong.

use crate::common;

use std::fs;

use common::world;

/// Compiles one of the programs and runs it. (Its parts that start it again find our libraries in the environment.)
fn story(name: &str, source: &str) {
    let dir = common::scratch(name);
    fs::write(dir.join("cm.h"), include_str!("../c/cm.h")).expect("written");
    let program = common::compile(&dir, name, source);
    let output = common::program_alone(program).output().expect("it runs");
    assert!(
        output.status.success(),
        "{name}: {:?}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    fs::remove_dir_all(&dir).expect("removed");
}

#[test]
fn connections_are_made_refused_and_ended_and_everyone_is_told() {
    story("cm_connect", include_str!("../c/cm_connect.c"));
}

#[test]
fn ports_and_addresses_are_given_as_the_kernel_gives_them() {
    story("cm_bind", include_str!("../c/cm_bind.c"));
}

#[test]
fn endpoints_wait_for_what_they_ask() {
    story("cm_sync", include_str!("../c/cm_sync.c"));
}

#[test]
fn datagrams_find_their_service_and_their_group() {
    story("cm_ud", include_str!("../c/cm_ud.c"));
}

#[test]
fn programs_may_bring_their_own_qps_and_change_their_channels() {
    story("cm_own_qp", include_str!("../c/cm_own_qp.c"));
}

#[test]
fn a_thread_that_is_cancelled_leaves_events_to_others() {
    story("cm_cancel", include_str!("../c/cm_cancel.c"));
}

/// In a network that the program changes while its device is open.
#[test]
fn addresses_come_and_go_while_a_device_is_open_and_everyone_is_told() {
    let dir = common::scratch("cm_addresses");
    fs::write(dir.join("cm.h"), include_str!("../c/cm.h")).expect("written");
    let program = common::compile(&dir, "cm_addresses", include_str!("../c/cm_addresses.c"));
    let mut command = world::namespace();
    let script = format!("{} && echo there && exec timeout 240 {}", world::INTERFACE, program.display());
    command.args(["sh", "-c", &script]).env("LD_LIBRARY_PATH", common::dropin());
    let output = command.env("REMANENCE_DEVICE", "rem_rv0").output().expect("unshare");
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.stdout.starts_with(b"there") {
        assert!(output.status.success(), "{:?}: {errors}", output.status);
    } else {
        println!("skipped: no network namespace: {}", errors.trim());
    }
    fs::remove_dir_all(&dir).expect("removed");
}

#[test]
fn who_calls_rsockets_is_told_once_that_there_are_none() {
    const SOURCE: &str = r"
        #include <rdma/rsocket.h>
        #include <errno.h>
        int main(void)
        {
            int first = rsocket(AF_INET, SOCK_STREAM, 0), e = errno;
            return first == -1 && e == ENOSYS && rsocket(AF_INET, SOCK_STREAM, 0) == -1 && errno == ENOSYS ? 0 : 1;
        }";
    let dir = common::scratch("rsockets");
    let program = common::compile(&dir, "rsockets", SOURCE);
    let output = common::program_alone(program).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {said}", output.status);
    assert_eq!(said.matches("rsockets").count(), 1, "{said}");
    fs::remove_dir_all(&dir).expect("removed");
}
