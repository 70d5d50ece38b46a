//! Sessions and servers over loopback: the handshake, every cell's recipes step by step, pipelines, calls, recovery.

use crate::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use common::{Host, context, declared, fixed, session};
use remanence_link::fault::{Faults, Plan};
use remanence_persist::Config;
use remanence_persist::plan::{Costs, Request};
use remanence_persist::recipe::Op;
use remanence_persist::taxonomy::{Buffers, Domain};
use remanence_pmem::{PersistenceDomain, Survives};
use remanence_remote::{CostSource, Done, Error, Face, Options, Reactor, Session, Work};
use remanence_verbs::Context;

fn fill(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (seed.wrapping_mul(0x9E37_79B9).wrapping_add(n * 13) >> 3) as u8 | 1).collect()
}

#[test]
fn a_record_and_an_append_are_durable_in_a_file() {
    let host = Host::file(1 << 20, |o| o);
    let mut session = session(&host, Options::default());
    assert_eq!(session.config().domain, Domain::PageCache);
    assert!(session.region().sentence.contains("DDIO is assumed on"), "{}", session.region());
    assert_ne!(*session.costs(), Costs::PAPERS, "they were measured");
    let plan = session.plan(&Request::append(4000)).expect("a plan");
    let token =
        session.persist(&plan, &[(4096, &[7; 4000]), (8, &1_u64.to_le_bytes())]).expect("it is there");
    assert_eq!((token.updates(), token.survives()), (2, Survives::EVERYTHING));
    let mut back = [0; 4008];
    session.read(4096, &mut back[..4000]).expect("it is there");
    session.read(8, &mut back[4000..]).expect("it is there");
    assert_eq!((&back[..4000], back[4000]), (&[7; 4000][..], 1));
}

/// The recipes of a cell, each carried out several times and checked at the server.
fn every_method(host: &Host, config: Config) {
    let mut session = session(host, fixed().declare(config));
    assert_eq!(*session.config(), config);
    let requests = [
        Request::record(100),
        Request::append(300),
        Request { checksum: true, ..Request { sizes: vec![64, 200], ..Request::append(8) } },
        Request { sizes: vec![40; 5], ..Request::record(40) },
        Request { ordered: true, sizes: vec![24; 4], ..Request::record(24) },
    ];
    for (n, request) in requests.iter().enumerate() {
        let plans = Op::ALL.into_iter().map(|op| session.plan_by(op, request)).collect::<Vec<_>>();
        for (op, plan) in Op::ALL.into_iter().zip(plans) {
            let plan = plan.unwrap_or_else(|e| panic!("{config} {op:?}: {e}"));
            for round in 0..3_u64 {
                let data: Vec<Vec<u8>> =
                    request.sizes.iter().map(|len| fill(round * 7 + n as u64, *len as usize)).collect();
                let at = |i: usize| 4096 + (op as u64 * 64 + i as u64) * 512;
                let updates: Vec<(u64, &[u8])> =
                    data.iter().enumerate().map(|(i, d)| (at(i), &d[..])).collect();
                let token = session
                    .persist(&plan, &updates)
                    .unwrap_or_else(|e| panic!("{config} {}: {e}", plan.recipe));
                assert_eq!(usize::from(token.updates()), request.sizes.len());
                if plan.recipe.replay {
                    session.settle().expect("it is there");
                }
                for (i, bytes) in data.iter().enumerate() {
                    let mut back = vec![0; bytes.len()];
                    host.region.read(at(i), &mut back);
                    assert_eq!(back, *bytes, "{config} {}: update {i} of round {round}", plan.recipe);
                }
            }
        }
    }
}

#[test]
fn the_papers_cells_are_carried_out_step_by_step() {
    for config in Config::papers() {
        let host =
            Host::declared(1 << 20, declared(&config), |o| o.declare(config).sessions(2).messages(16, 2048));
        every_method(&host, config);
    }
}

#[test]
fn what_the_standard_adds_and_what_is_missing_is_carried_out_too() {
    for text in [
        "DMP+DDIO+DRAM+persistent",
        "DMP+DDIO+PM+persistent+fenced",
        "DMP+no-DDIO+PM+read+fenced",
        "MHP+DDIO+PM+read",
        "WSP+DDIO+PM+iwarp+fenced+relaxed",
        "DMP+no-DDIO+DRAM+fenced+relaxed",
        "process+DDIO+PM",
        "process+DDIO+DRAM+read+fenced",
    ] {
        let config: Config = text.parse().expect("a configuration");
        let host = Host::declared(1 << 20, declared(&config), |o| o.declare(config).messages(8, 2048));
        every_method(&host, config);
    }
}

#[test]
fn runs_are_pipelined_and_receive_buffers_never_run_out() {
    for text in
        ["DMP+DDIO+DRAM", "DMP+no-DDIO+PM", "MHP+DDIO+DRAM", "DMP+DDIO+PM+persistent", "MHP+DDIO+PM+relaxed"]
    {
        let config: Config = text.parse().expect("a configuration");
        let mut host = Host::declared(1 << 20, declared(&config), |o| o.declare(config).messages(8, 1024));
        let device = context();
        let mut session =
            Session::connect(&device, host.addr, fixed().declare(config).depth(24)).expect("connected");
        for op in Op::ALL {
            let plan = session.plan_by(op, &Request::append(64)).expect("a plan");
            let mut ended = Vec::new();
            for n in 0..300_u64 {
                // All of them move the same pointer: the last one stays.
                let (record, pointer) = (fill(n, 64), (n + 1).to_le_bytes());
                session.submit(&plan, &[(4096 + n * 64, &record), (64, &pointer)]).expect("it is there");
                while let Some((ticket, _)) = session.poll().expect("it is there") {
                    ended.push(ticket);
                }
            }
            ended.extend(session.finish().expect("it is there").into_iter().map(|(ticket, _)| ticket));
            assert_eq!(ended.len(), 300);
            assert!(ended.is_sorted(), "runs end in the order of their tickets");
            session.settle().expect("it is there");
            assert_eq!(host.region.load_u64(64).to_le(), 300, "{text} {}", plan.recipe);
            for n in 0..300 {
                let mut back = [0; 64];
                host.region.read(4096 + n * 64, &mut back);
                assert_eq!(back[..], fill(n, 64), "{text} {}: record {n}", plan.recipe);
            }
        }
        assert_eq!(device.stats().rx_rnr_nak, 0, "{text}: a message found no receive buffer");
        drop(session);
        assert!(host.stop().served.messages > 0);
    }
}

#[test]
fn an_update_larger_than_staging_and_one_of_many_pieces_arrive() {
    let host = Host::declared(16 << 20, PersistenceDomain::Adr, |o| o);
    let mut session = session(&host, fixed().staging(8192));
    let large = fill(3, 3 << 20);
    let plan = session.plan(&Request::record(large.len() as u32)).expect("a plan");
    let _ = session.persist(&plan, &[(1 << 20, &large)]).expect("it is there");
    let mut back = vec![0; large.len()];
    session.read(1 << 20, &mut back).expect("it is there");
    assert_eq!(back, large);
    // 64 updates all over the place share one wait.
    let many: Vec<Vec<u8>> = (0..64).map(|n| fill(n, 48)).collect();
    let request = Request { sizes: vec![48; 64], ..Request::record(48) };
    let plan = session.plan(&request).expect("a plan");
    assert_eq!(plan.recipe.waits(), 1);
    let updates: Vec<(u64, &[u8])> =
        many.iter().enumerate().map(|(n, d)| (5 << 20 | (n as u64) << 13, &d[..])).collect();
    let _ = session.persist(&plan, &updates).expect("it is there");
    for (at, bytes) in updates {
        let mut back = vec![0; 48];
        host.region.read(at, &mut back);
        assert_eq!(back, bytes);
    }
}

#[test]
fn the_application_is_asked_and_may_refuse() {
    let host = Host::with(
        1 << 20,
        None,
        |o| o,
        |server| {
            let mut calls = 0_u64;
            server.on_call(7, move |call| {
                calls += 1;
                if call.request == b"no" {
                    Err("not now".into())
                } else {
                    Ok([call.request, &calls.to_be_bytes()].concat())
                }
            });
            server.on_call(8, |_| Ok(vec![9; 3000]));
        },
    );
    let mut session = session(&host, fixed());
    assert_eq!(session.call(7, b"trim").expect("answered"), [&b"trim"[..], &1_u64.to_be_bytes()].concat());
    assert!(matches!(session.call(7, b"no"), Err(Error::Application(why)) if why == "not now"));
    assert!(matches!(session.call(1, b""), Err(Error::Application(why)) if why.contains("no service 1")));
    for _ in 0..200 {
        assert_eq!(session.call(8, b"").expect("answered").len(), 3000);
    }
    assert!(matches!(session.call(7, &[0; 5000]), Err(Error::Argument(_))));
    assert_eq!(session.call(7, b"x").expect("the session goes on")[1..], 3_u64.to_be_bytes());
}

#[test]
fn both_sides_rely_on_the_weaker_of_what_they_declare() {
    let host = Host::declared(1 << 20, PersistenceDomain::Eadr, |o| o.ddio(false));
    let weak: Config = "DMP+DDIO+DRAM+read+fenced".parse().expect("a configuration");
    let mut session = session(&host, fixed().declare(weak));
    assert_eq!(session.config().to_string(), "DMP+DDIO+DRAM+read+fenced");
    assert_eq!(session.server_config().to_string(), "MHP+no-DDIO+DRAM+persistent");
    assert!(session.plan(&Request::record(64)).expect("a plan").recipe.is_two_sided());
    let other: Config = "process+DDIO+DRAM".parse().expect("a configuration");
    let Err(e) = Session::connect(&context(), host.addr, fixed().declare(other)) else { panic!("it agreed") };
    assert!(matches!(&e, Error::Refused { why, .. } if why.contains("one side says")), "{e}");
}

#[test]
fn memory_that_may_be_written_in_any_order_is_refused_unless_it_is_expected() {
    let host = Host::file(1 << 20, |o| o.relaxed_ordering());
    let Err(e) = Session::connect(&context(), host.addr, fixed()) else { panic!("it did not mind") };
    assert!(matches!(e, Error::Relaxed), "{e}");
    let known: Config = "page-cache+DDIO+DRAM+persistent+relaxed".parse().expect("a configuration");
    let mut session = session(&host, fixed().declare(known));
    let plan = session.plan(&Request::append(64)).expect("proven for it");
    let _ = session.persist(&plan, &[(64, &[1; 64]), (0, &[2; 8])]).expect("it is there");
}

#[test]
fn what_cannot_be_carried_out_is_refused_and_the_session_goes_on() {
    let host = Host::declared(1 << 20, PersistenceDomain::Adr, |o| o);
    let mut session = session(&host, fixed());
    let plan = session.plan(&Request::append(64)).expect("a plan");
    let mut refused = |updates: &[(u64, &[u8])], what: &str| match session.persist(&plan, updates) {
        Err(Error::Argument(why)) => assert!(why.contains(what), "{why}"),
        other => panic!("{what}: {other:?}"),
    };
    refused(&[(0, &[1; 64])], "the plan is for 2 updates");
    refused(&[((1 << 20) - 63, &[1; 64]), (0, &[1; 8])], "does not lie in");
    refused(&[(u64::MAX, &[1; 64]), (0, &[1; 8])], "does not lie in");
    refused(&[(0, &[1; 64]), (66, &[1; 8])], "aligned word");
    refused(&[(0, &[1; 64]), (64, &[1; 9])], "aligned word");
    let bare = Request { checksum: false, ..Request::record(64) };
    let refusal = session.plan(&bare).expect_err("nothing would find a torn update");
    assert!(refusal.to_string().contains("checksum"), "{refusal}");
    let _ = session.persist(&plan, &[(0, &[1; 64]), (64, &[1; 8])]).expect("the session goes on");
}

#[test]
fn a_persistent_flush_that_the_region_cannot_keep_is_refused_when_it_is_declared() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let options = remanence_pmem::FileOptions::new().create(1 << 16);
    let region = options.open(dir.path().join("shm")).expect("a file");
    let options = remanence_remote::ServerOptions::new(&context(), region, 0);
    let config: Config = "DMP+DDIO+DRAM+persistent".parse().expect("a configuration");
    let e = remanence_remote::Server::bind(options.declare(config)).expect_err("it cannot");
    assert!(e.to_string().contains("nothing makes this region durable"), "{e}");
    let volatile = remanence_pmem::Region::anonymous(1 << 16).expect("memory");
    let options = remanence_remote::ServerOptions::new(&context(), volatile, 0);
    let e = remanence_remote::Server::bind(options).expect_err("nothing survives");
    assert!(e.to_string().contains("nothing of this region outlives its process"), "{e}");
}

#[test]
fn costs_are_measured_once_and_remembered() {
    let host = Host::declared(1 << 20, PersistenceDomain::Adr, |o| o.buffers(Buffers::Pm).sessions(2));
    let first = session(&host, Options::default().costs(CostSource::Measured));
    let again = session(&host, Options::default());
    assert_eq!(first.costs(), again.costs());
    assert!(first.costs().round_trip > 0.0);
    assert_ne!(*first.costs(), Costs::PAPERS, "they are what plans are compared by");
}

#[test]
fn sessions_share_a_server_and_one_too_many_is_told_so() {
    let host = Host::declared(1 << 20, PersistenceDomain::Adr, |o| {
        o.declare("DMP+no-DDIO+PM".parse().expect("a configuration")).sessions(2).messages(8, 1024)
    });
    let mut both = [session(&host, fixed()), session(&host, fixed())];
    let Err(e) = Session::connect(&context(), host.addr, fixed()) else { panic!("there was room") };
    assert!(matches!(&e, Error::Refused { why, .. } if why.contains("as many sessions")), "{e}");
    // Interleaved, by messages that are applied late.
    let request = Request::record(200);
    let plans = [0, 1].map(|n: usize| both[n].plan_by(Op::Send, &request).expect("a plan"));
    for n in 0..60_u64 {
        for (who, session) in both.iter_mut().enumerate() {
            let at = 4096 + (n * 2 + who as u64) * 256;
            session.submit(&plans[who], &[(at, &fill(at, 200))]).expect("it is there");
        }
    }
    for session in &mut both {
        while session.next_ended().expect("it is there").is_some() {}
        session.settle().expect("it is there");
    }
    for n in 0..120 {
        let mut back = [0; 200];
        host.region.read(4096 + n * 256, &mut back);
        assert_eq!(back[..], fill(4096 + n * 256, 200), "record {n}");
    }
    // When one has gone there is room again, soon.
    drop(both);
    let again = (0..300).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        Session::connect(&context(), host.addr, fixed()).ok()
    });
    assert!(again.is_some(), "no room");
}

#[test]
fn a_session_and_a_server_may_move_to_another_thread() {
    fn moves<T: Send>() {}
    moves::<Session>();
    moves::<remanence_remote::Server>();
}

#[test]
fn a_task_waits_for_what_a_thread_would_and_gives_a_silent_server_up() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let host = Host::with(
        1 << 20,
        None,
        |o| o,
        |server| {
            server.on_call(7, |call| Ok(call.request.to_vec()));
            server.on_call(8, move |_| {
                held.recv().expect("the test lets it go on");
                Ok(Vec::new())
            });
        },
    );
    let looks = Arc::new(AtomicU32::new(0));
    let looked = Arc::clone(&looks);
    // Whoever looks finds that the server is of no use from the third time on, but for as long as it answers.
    let silent = Arc::new(AtomicBool::new(false));
    let is_silent = Arc::clone(&silent);
    let options = fixed().give_up(Duration::from_millis(1), move |_| {
        is_silent.load(Ordering::Relaxed) && looked.fetch_add(1, Ordering::Relaxed) == 2
    });
    let reactor = Reactor::new(&context()).expect("a device");
    let mut session = Session::connect_on(&reactor, host.addr, options).expect("connected");
    let mut other = Session::connect_on(&reactor, host.addr, fixed()).expect("connected");
    reactor.block_on(async {
        let task = Face::Task;
        let plan = session.plan_as(task, &Request::append(64)).await.expect("a plan");
        for n in 1..40_u64 {
            let updates: [(u64, &[u8]); 2] = [(n * 64, &[n as u8; 64]), (0, &n.to_le_bytes())];
            let token = session.persist_as(task, &plan, &updates).await.expect("it is there");
            assert_eq!(token.updates(), 2);
            let mut back = [0; 64];
            other.read_as(task, n * 64, &mut back).await.expect("it is there");
            assert_eq!(back, [n as u8; 64]);
            assert_eq!(other.call_as(task, 7, &[n as u8]).await.expect("answered"), [n as u8]);
        }
        let work = [Work::Read { at: 64, len: 600 << 10 }, Work::Call { service: 7, request: b"both" }];
        let done = other.together_as(task, &work).await.expect("both end");
        assert!(matches!(&done[..], [Done::Read(bytes), Done::Reply(Ok(reply))]
            if bytes[..64] == [1; 64] && reply == b"both"));
        silent.store(true, Ordering::Relaxed);
        let error = session.call_as(task, 8, &[]).await.expect_err("nobody answers");
        assert!(matches!(error, Error::GivenUp(_)), "{error}");
        assert!(matches!(session.call_as(task, 7, &[]).await, Err(Error::Over)));
    });
    assert_eq!(looks.load(Ordering::Relaxed), 3);
    release.send(()).expect("it is held");
}

#[test]
fn over_a_bad_network_every_recipe_comes_to_its_end() {
    let faults =
        Faults { loss: 0.02, duplication: 0.02, reordering: 0.02, corruption: 0.01, ..Faults::default() };
    let plan = Plan { rx: faults, ..Plan::default() };
    for (seed, text) in ["DMP+DDIO+DRAM", "DMP+no-DDIO+PM+fenced", "MHP+DDIO+PM+read"].into_iter().enumerate()
    {
        let config: Config = text.parse().expect("a configuration");
        let host =
            Host::declared(1 << 20, declared(&config), |o| o.declare(config).sessions(2).messages(8, 1024));
        let options = remanence_verbs::Options {
            faults: Some((plan, seed as u64 + 1)),
            ..remanence_verbs::Options::udp(common::address())
        };
        let device = Context::open(options).expect("a device");
        let mut session = Session::connect(&device, host.addr, fixed().declare(config)).expect("connected");
        for op in Op::ALL {
            let plan = session.plan_by(op, &Request::append(100)).expect("a plan");
            for n in 0..60_u64 {
                let updates: [(u64, &[u8]); 2] =
                    [(4096 + n * 128, &fill(n, 100)), (64, &(n + 1).to_le_bytes())];
                session.submit(&plan, &updates).expect("it arrives");
            }
            assert!(session.finish().is_ok());
            session.settle().expect("it arrives");
            assert_eq!(host.region.load_u64(64).to_le(), 60, "{text} {}", plan.recipe);
            for n in 0..60 {
                let mut back = [0; 100];
                host.region.read(4096 + n * 128, &mut back);
                assert_eq!(back[..], fill(n, 100), "{text} {}: record {n}", plan.recipe);
            }
        }
        assert!(device.fault_control().expect("asked for").stats().lost > 0, "the network was not bad");
    }
}

#[test]
fn a_cable_that_is_cut_ends_the_session_with_a_sentence() {
    let host = Host::declared(1 << 20, PersistenceDomain::Adr, |o| o);
    let options = remanence_verbs::Options {
        faults: Some((Plan::default(), 1)),
        ..remanence_verbs::Options::udp(common::address())
    };
    let device = Context::open(options).expect("a device");
    let mut session = Session::connect(&device, host.addr, fixed()).expect("connected");
    let plan = session.plan(&Request::record(64)).expect("a plan");
    device.fault_control().expect("asked for").isolate_all();
    let e = session.persist(&plan, &[(0, &[1; 64])]).expect_err("nobody hears it");
    assert!(e.to_string().contains("may be durable or not"), "{e}");
    assert!(matches!(session.persist(&plan, &[(0, &[1; 64])]), Err(Error::Over)));
}
