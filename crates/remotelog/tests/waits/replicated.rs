//! A replicated service in this process, over loopback.

use std::error::Error;
use std::thread;

use remanence_remote::Stop;
use remanence_remotelog::replicated::{
    Client, ClientError, ClientOptions, Host, HostOptions, Malformed, Refusal, StateMachine,
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
