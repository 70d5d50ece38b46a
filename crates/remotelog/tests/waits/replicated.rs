//! A replicated service in this process, over loopback.

use std::error::Error;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::channel;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use remanence_persist::Config;
use remanence_persist::taxonomy::Domain;
use remanence_pmem::{Region, Survives};
use remanence_remote::{Reactor, Server, ServerOptions, Session, Stop};
use remanence_remotelog::replicated::{
    AsyncClient, Client, ClientError, ClientOptions, Host, HostOptions, Malformed, Refusal, Reply, Request,
    SERVICE, StateMachine,
};
use remanence_remotelog::{LogOptions, LogServer};
use remanence_verbs::{Context, Options};

/// Longer than any test goes on.
const FOR_EVER: Duration = Duration::from_secs(36_000);
/// At which an answer is longer than a message.
const LONG: u8 = 0xFE;

/// Answers with the command, or at length.
#[derive(Default)]
struct Echo;

impl StateMachine for Echo {
    fn apply(&mut self, command: &[u8]) -> Vec<u8> {
        if command == [LONG] { vec![LONG; 5000] } else { command.to_vec() }
    }

    fn snapshot(&self) -> Vec<u8> {
        Vec::new()
    }

    fn restore(_: &[u8]) -> Result<Self, Malformed> {
        Ok(Self)
    }
}

/// What a client of a host with such options does.
fn with_host(options: HostOptions, does: impl FnOnce(&mut Client) -> Result<(), Box<dyn Error>>) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let device = Context::open(Options::udp("127.0.0.1".parse().expect("one"))).expect("a device");
    let log = LogOptions::file(directory.path().join("log")).size(4 << 20);
    let mut server = LogServer::open(&device, log).expect("a server");
    let mut host = Host::<Echo>::bind(&device, &[server.addr()], options).expect("a host");
    let hosts = [host.addr()];
    let (stop, stop_server) = (Stop::new(), Stop::new());
    thread::scope(|scope| {
        scope.spawn(|| server.run(&stop_server).expect("it serves"));
        let hosting = scope.spawn(|| host.run(&stop).expect("it has the log"));
        let client = Client::connect_to(&hosts, ClientOptions::default());
        let done = client.map_err(Into::into).and_then(|mut client| does(&mut client));
        stop.ask();
        let hosted = hosting.join();
        stop_server.ask();
        hosted.expect("the host ends well");
        done.expect("the client is served");
    });
}

#[test]
fn a_command_that_no_message_takes_is_refused_at_once_and_others_are_not() {
    with_host(HostOptions::default(), |client| {
        let too_long = client.call(&[7; 4040]);
        assert_eq!(too_long, Err(ClientError::Refused(Refusal::TooLong(4039))));
        assert_eq!(client.call(&[7; 4039])?, [7; 4039]);
        // The log is in /dev/shm.
        assert_eq!(client.survives()?, Some(Survives::PROCESS_CRASH));
        Ok(())
    });
    with_host(HostOptions::default().messages(64 << 10), |client| {
        assert_eq!(client.call(&[7; 60_000])?, vec![7; 60_000]);
        Ok(())
    });
}

/// Counts its commands; each is answered with how many there were.
#[derive(Default)]
struct Count(u64);

impl StateMachine for Count {
    fn apply(&mut self, _: &[u8]) -> Vec<u8> {
        self.0 += 1;
        self.snapshot()
    }

    fn snapshot(&self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }

    fn restore(snapshot: &[u8]) -> Result<Self, Malformed> {
        snapshot.try_into().map(|count| Self(u64::from_le_bytes(count))).map_err(|_| Malformed { at: 0 })
    }
}

/// What tasks of a client do while one host serves, and another one goes on when that one is stopped.
fn with_two_hosts<T>(does: impl FnOnce(&Reactor, &AsyncClient, &Stop) -> T) -> T {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let device = Context::open(Options::udp("127.0.0.1".parse().expect("one"))).expect("a device");
    let log = LogOptions::file(directory.path().join("log")).size(4 << 20);
    let mut server = LogServer::open(&device, log).expect("a server");
    let bind = || Host::<Count>::bind(&device, &[server.addr()], HostOptions::default()).expect("a host");
    let (mut first, mut second) = (bind(), bind());
    let hosts = [first.addr(), second.addr()];
    let [stop_first, stop_second, stop_server] = [(); 3].map(|()| Stop::new());
    thread::scope(|scope| {
        scope.spawn(|| server.run(&stop_server).expect("it serves"));
        let hosting = scope.spawn(|| {
            first.run(&stop_first).expect("it has the log");
            second.run(&stop_second).expect("it has the log");
        });
        let reactor = Reactor::new(&device).expect("a reactor");
        let client =
            AsyncClient::connect(&reactor, &hosts, ClientOptions::default()).expect("hosts are named");
        let done = does(&reactor, &client, &stop_first);
        stop_second.ask();
        stop_first.ask();
        hosting.join().expect("the hosts end well");
        stop_server.ask();
        done
    })
}

fn number(answer: Result<Vec<u8>, ClientError>) -> u64 {
    let bytes = answer.expect("it is carried out");
    u64::from_le_bytes(bytes.try_into().expect("a number"))
}

#[test]
fn many_tasks_have_one_client_and_none_loses_its_command_with_a_host() {
    let mut answers = with_two_hosts(|reactor, client, stop_first| {
        let mut calls: Vec<_> = (0..20).map(|_| Some(Box::pin(client.call(b"one")))).collect();
        let mut answers = Vec::new();
        reactor.block_on(poll_fn(|task| {
            for call in &mut calls {
                if let Some(running) = call
                    && let Poll::Ready(answer) = running.as_mut().poll(task)
                {
                    answers.push(number(answer));
                    *call = None;
                    // While the others wait.
                    if answers.len() == 5 {
                        stop_first.ask();
                    }
                }
            }
            if calls.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
        }));
        answers
    });
    assert!(answers.is_sorted(), "they have their turns: {answers:?}");
    answers.dedup();
    assert_eq!(answers, (1..=20).collect::<Vec<_>>(), "each was carried out once");
}

#[test]
fn a_command_that_is_dropped_was_carried_out_or_not_and_the_next_one_is() {
    with_two_hosts(|reactor, client, _| {
        let background = reactor.in_background().expect("a thread");
        let (mut last, mut done, mut dropped) = (0, 0, 0);
        for n in 0..60 {
            let call = reactor.within(Duration::from_micros(n % 30 * 20), client.call(b"one"));
            match reactor.block_on(call) {
                Some(answer) => {
                    let answer = number(answer);
                    done += 1;
                    assert!(answer > last && answer <= done + dropped, "{answer} after {done} and {dropped}");
                    last = answer;
                }
                None => dropped += 1,
            }
        }
        drop(background);
        let answer = number(reactor.block_on(client.call(b"one")));
        assert!(answer > last && answer > done && answer <= done + dropped + 1);
    });
}

#[test]
fn who_waits_for_a_host_that_never_comes_is_told_and_the_next_one_has_its_turn() {
    let device = Context::open(Options::udp("127.0.0.1".parse().expect("one"))).expect("a device");
    let host = Host::<Count>::bind(&device, &[], HostOptions::default()).expect("a host");
    let options = ClientOptions::default().patience(Duration::from_millis(100));
    let client = AsyncClient::connect_to(&[host.addr()], options.clone()).expect("it is named");
    let reactor = Reactor::new(&device).expect("a reactor");
    for _ in 0..2 {
        let unknown = reactor.block_on(client.call(b"one"));
        assert!(matches!(unknown, Err(ClientError::Unknown(_))), "{unknown:?}");
    }
    let nobody = AsyncClient::connect(&reactor, &[], options).expect_err("nobody is named");
    assert!(nobody.to_string().contains("name all that may have the service"), "{nobody}");
}

#[test]
fn of_an_answer_that_no_message_takes_it_is_said_at_once_that_its_command_was_carried_out() {
    with_host(HostOptions::default(), |client| {
        let oversized = client.call(&[LONG]);
        assert_eq!(oversized, Err(ClientError::Oversized { len: 5000, max: 4071 }));
        assert_eq!(client.call(&[7; 4039])?, [7; 4039], "and it goes on");
        Ok(())
    });
}

/// A host that may have carried a command out has gone, and another one takes no command that is as long.
#[test]
fn a_command_that_may_have_been_carried_out_is_not_said_to_be_refused() {
    let device = Context::open(Options::udp("127.0.0.1".parse().expect("one"))).expect("a device");
    let host = |bytes| {
        let region = Region::anonymous(4096).expect("memory");
        let options = ServerOptions::new(&device, region, 0).declare(Config::software(Domain::Process));
        let mut server = Server::bind(options.without_buffers().messages(4, bytes)).expect("a server");
        server.on_call(SERVICE, |call| {
            Ok(match Request::parse(call.request).expect("a request") {
                Request::Open => Reply::Opened(1),
                Request::Command { .. } => Reply::Unknown("too few have confirmed it".into()),
            }
            .emit())
        });
        server
    };
    let (mut long, mut short) = (host(64 << 10), host(4096));
    let hosts = [long.addr(), short.addr()];
    let stop = Stop::new();
    thread::scope(|scope| {
        scope.spawn(|| long.run(&stop).map(drop));
        scope.spawn(|| short.run(&stop).map(drop));
        let options = ClientOptions::default().patience(Duration::from_secs(2));
        let told =
            Client::connect(&device, &hosts, options.clone()).and_then(|mut client| client.call(&[7; 6000]));
        // Whoever asks the second one first has asked nobody who could have carried it out.
        let refused =
            Client::connect(&device, &hosts[1..], options).and_then(|mut client| client.call(&[7; 6000]));
        stop.ask();
        assert!(matches!(told, Err(ClientError::Unknown(_))), "{told:?}");
        assert!(matches!(refused, Err(ClientError::Refused(Refusal::TooLong(_)))), "{refused:?}");
    });
}

#[test]
fn a_host_that_opens_its_log_hears_a_stop() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let device = Context::open(Options::udp("127.0.0.1".parse().expect("one"))).expect("a device");
    let log = LogOptions::file(directory.path().join("log")).size(4 << 20);
    // Nobody serves it: who connects waits.
    let server = LogServer::open(&device, log).expect("a server");
    let options = HostOptions::default().patience(FOR_EVER);
    let mut host = Host::<Echo>::bind(&device, &[server.addr()], options).expect("a host");
    let (stop, (ended, end)) = (Stop::new(), channel());
    let asked = stop.clone();
    let hosting = thread::spawn(move || ended.send(host.run(&asked).map(drop)).expect("it is waited for"));
    stop.ask();
    let ran = end.recv_timeout(Duration::from_secs(120)).expect("it ends when it is asked to");
    ran.expect("it ends well");
    hosting.join().expect("it does not panic");
}

/// Counts its commands.
#[derive(Default)]
struct Counter(u8);

impl StateMachine for Counter {
    fn apply(&mut self, _: &[u8]) -> Vec<u8> {
        self.0 += 1;
        vec![self.0]
    }

    fn snapshot(&self) -> Vec<u8> {
        vec![self.0]
    }

    fn restore(snapshot: &[u8]) -> Result<Self, Malformed> {
        snapshot.first().copied().map(Self).ok_or(Malformed { at: 0 })
    }
}

#[test]
fn clients_hear_at_once_that_too_few_servers_are_there_and_go_on_when_they_are_back() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let device = Context::open(Options::udp("127.0.0.1".parse().expect("one"))).expect("a device");
    let open = |path: &Path, port| {
        let log = LogOptions::file(path).size(4 << 20).port(port);
        LogServer::open(&device, log).expect("a server")
    };
    let paths = [0, 1, 2].map(|n| directory.path().join(format!("log{n}")));
    let servers = paths.each_ref().map(|path| open(path, 0));
    let logs = servers.each_ref().map(LogServer::addr);
    // A host that waited for its servers would do so for hours.
    let options = HostOptions::default().acks(2).patience(FOR_EVER);
    let mut host = Host::<Counter>::bind(&device, &logs, options).expect("a host");
    let address = host.addr();
    let (stop, stops) = (Stop::new(), [(); 3].map(|()| Stop::new()));
    let again = Stop::new();
    let (open, again) = (&open, &again);
    let served = thread::scope(|scope| {
        let running = servers
            .into_iter()
            .zip(&stops)
            .map(|(mut server, stop)| scope.spawn(move || server.run(stop).map(drop)));
        let mut running: Vec<_> = running.collect();
        let hosting = scope.spawn(|| host.run(&stop).map(drop));
        let ask = |request: &Request| ask(&device, address, request);
        let mut conduct = || -> Result<(), Box<dyn Error>> {
            let Reply::Opened(session) = ask(&Request::Open)? else { return Err("no session".into()) };
            let command = |number| Request::Command { session, number, command: Vec::new() };
            assert_eq!(ask(&command(1))?, Reply::Done(vec![1]));
            for (stop, server) in stops[1..].iter().zip(running.drain(1..)) {
                stop.ask();
                server.join().expect("a server's thread")?;
            }
            for _ in 0..3 {
                let told = ask(&command(2))?;
                let is_told = matches!(told, Reply::Unknown(_) | Reply::Refused(Refusal::TooFew(_)));
                assert!(is_told, "{told:?}");
            }
            for (path, log) in paths[1..].iter().zip(&logs[1..]) {
                let mut server = open(path, log.port());
                scope.spawn(move || server.run(again).map(drop));
            }
            while ask(&command(2))? != Reply::Done(vec![2]) {
                thread::yield_now();
            }
            Ok(())
        };
        let done = conduct();
        stop.ask();
        let hosted = hosting.join();
        stops.iter().chain([again]).for_each(Stop::ask);
        hosted.expect("the host's thread").expect("it serves");
        done
    });
    served.expect("all are told");
}

/// What a host says, in a session of its own.
fn ask(device: &Context, host: SocketAddr, request: &Request) -> Result<Reply, Box<dyn Error>> {
    let options = remanence_remote::Options::default().patience(Duration::from_secs(120));
    let mut session = Session::connect(device, host, options)?;
    Ok(Reply::parse(&session.call(SERVICE, &request.emit())?)?)
}
