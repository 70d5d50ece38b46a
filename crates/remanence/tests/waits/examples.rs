//! The examples do what they say. Each is run as it stands; what it finds otherwise is an error.

use remanence_sim::cluster::replicated::simulate;

#[path = "../../examples/counter.rs"]
mod counter;
#[path = "../../examples/futures.rs"]
mod futures;
#[path = "../../examples/kv.rs"]
mod kv;
#[path = "../../examples/log.rs"]
mod log;
#[path = "../../examples/pool.rs"]
mod pool;
#[path = "../../examples/remote.rs"]
mod remote;
#[path = "../../examples/verbs.rs"]
mod verbs;

#[test]
fn the_ping_pong_of_writes_comes_to_its_end() {
    verbs::main().expect("1000 rounds");
}

#[test]
fn a_durable_write_has_its_token() {
    remote::main().expect("a token");
}

#[test]
fn blobs_are_put_and_got() {
    pool::main().expect("two servers are enough");
}

#[test]
fn a_store_is_written_read_and_scanned() {
    kv::main().expect("what was put is there");
}

#[test]
fn a_log_is_appended_to_and_read() {
    log::main().expect("two servers are enough");
}

#[test]
fn a_counter_goes_on_when_its_host_is_gone() {
    counter::main().expect("nothing is lost, and nothing is counted twice");
}

/// Here, and not where things only compute, as it is the same file as above.
#[test]
fn the_counter_is_one_counter_whatever_happens_to_its_servers_hosts_and_clients() {
    let (mut done, mut undecided) = (0, 0);
    let seeds = remanence_effort::seeds(150);
    let are_all = seeds.are_all();
    for seed in seeds {
        let work = simulate::<counter::Counter>(&format!("--seed {seed}"));
        let work = work.unwrap_or_else(|why| panic!("{why}"));
        (done, undecided) = (done + work.done, undecided + work.undecided);
    }
    assert!(!are_all || done > 150 * 20 && undecided < 15, "{done} commands, {undecided} runs undecided");
}

#[test]
fn futures_append_and_count() {
    futures::main().expect("each is carried out once");
}
