//! What the tests share: devices at loopback addresses of their own, and a server in a thread.
#![allow(dead_code, reason = "each test file uses a part")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) use remanence_effort::address;
use remanence_rpc::core::config::Config;
use remanence_rpc::core::event::Event;
use remanence_rpc::header::Status;
use remanence_rpc::live::{Nexus, Options, Rpc};
use remanence_verbs::{Context, Options as Device};

/// No test waits longer for anything; none passes or fails by the clock before it.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const PORT: u16 = 7500;

pub(crate) fn device() -> Context {
    Context::open(Device::udp(address())).expect("a device on the loopback interface")
}

pub(crate) fn socket_addr(context: &Context) -> SocketAddr {
    SocketAddr::new(context.config().gids[0].to_ip(), PORT)
}

/// Patient enough for a machine that does other things too.
pub(crate) fn options() -> Options {
    let config = Config { patience: LIMIT, silence_max: LIMIT * 2, ..Config::default() };
    Options { receives: 256, config, ..Options::default() }
}

/// A server in a thread, which answers with what `act` makes of a request.
pub(crate) struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Rpc>>,
    pub(crate) at: SocketAddr,
}

impl Server {
    pub(crate) fn start(
        context: &Context,
        options: Options,
        mut act: impl FnMut(u16, Vec<u8>) -> Vec<u8> + Send + 'static,
    ) -> Self {
        let nexus = Nexus::serve(context, PORT).unwrap();
        let mut rpc = nexus.create(&options).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let _nexus = nexus;
            while !told.load(Ordering::Relaxed) {
                if let Some(Event::Request { id, service, body }) =
                    rpc.poll(Some(Duration::from_millis(20))).unwrap()
                {
                    let answer = act(service, body.to_vec());
                    rpc.respond_with(id, Status::Done, &answer);
                }
            }
            rpc
        });
        Self { stop, thread: Some(thread), at: socket_addr(context) }
    }

    /// Ends it as a process ends that is killed: nobody is told.
    pub(crate) fn stop(mut self) -> Rpc {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
