//! A replicated service in this process, over loopback.

use std::error::Error;
use std::future::poll_fn;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use remanence_remote::{Reactor, Stop};
use remanence_remotelog::replicated::{
    AsyncClient, Client, ClientError, ClientOptions, Host, HostOptions, Malformed, Refusal, StateMachine,
};
use remanence_remotelog::{LogOptions, LogServer};
use remanence_verbs::{Context, Options};

/// Answers with the command.
#[derive(Default)]
struct Echo;

impl StateMachine for Echo {
    fn apply(&mut self, command: &[u8]) -> Vec<u8> {
        command.to_vec()
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
