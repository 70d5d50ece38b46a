//! `http://ADDRESS/metrics`: a thread with an epoll, and scrapes that cost no more than they may.

use std::fmt;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use crate::http;
use crate::page::{Pages, Source};

/// Scrapes at a time. Whoever comes beyond that takes the place of the one that came first, of those that have not asked yet if
/// there are such: who only connects keeps nobody out.
const SCRAPES_MAX: usize = 64;
/// From a scrape's first byte to its last.
const PATIENCE: Duration = Duration::from_secs(10);
/// How soon the system is asked again that had no descriptor for somebody.
const AGAIN: Duration = Duration::from_secs(1);

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const SEATS: usize = 2;

/// A place that Prometheus scrapes. It is not authenticated. Dropped, it ends.
pub struct Endpoint {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Serves what the sources say, from a thread of its own. Port 0 is any that is free.
    ///
    /// # Errors
    /// The address cannot be had, or the system refuses a thread or an epoll.
    pub fn serve(address: SocketAddr, sources: Vec<Source>) -> io::Result<Self> {
        let mut listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let stop = Arc::new(AtomicBool::new(false));
        let host = Host {
            poll,
            listener,
            pages: Pages::new(sources),
            scrapes: Vec::new(),
            stop: Arc::clone(&stop),
            again: false,
        };
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(move || host.run())?;
        Ok(Self { address, stop, waker, thread: Some(thread) })
    }

    /// Where it is, with the port that was free.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // A thread that is not woken is not waited for.
        if self.waker.wake().is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// One request that is being received or answered.
struct Scrape {
    stream: TcpStream,
    since: Instant,
    request: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
}

impl Scrape {
    /// Goes on as far as the socket lets it; whether there is more to come.
    fn turn(&mut self, pages: &Pages) -> io::Result<bool> {
        let blocked = |error: &io::Error| error.kind() == ErrorKind::WouldBlock;
        let mut buffer = [0; 2048];
        while self.answer.is_empty() {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(false),
                Ok(count) => self.request.extend_from_slice(&buffer[..count]),
                Err(error) if blocked(&error) => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            self.answer = http::answer(&self.request, || pages.text()).unwrap_or_default();
        }
        while self.sent < self.answer.len() {
            match self.stream.write(&self.answer[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if blocked(&error) => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

struct Host {
    poll: Poll,
    listener: TcpListener,
    pages: Pages,
    scrapes: Vec<Option<Scrape>>,
    stop: Arc<AtomicBool>,
    /// The system had no descriptor left for somebody who waits: it is asked again at the next tick.
    again: bool,
}

impl Host {
    fn run(mut self) {
        let mut events = Events::with_capacity(SCRAPES_MAX + SEATS);
        while !self.stop.load(Ordering::Acquire) {
            match self.poll.poll(&mut events, self.until()) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => panic!("epoll of the metrics endpoint failed: {error}"),
            }
            for event in &events {
                match event.token() {
                    WAKER => {}
                    LISTENER => self.again = true,
                    Token(seat) => self.turn(seat - SEATS),
                }
            }
            if std::mem::take(&mut self.again) {
                self.accept();
            }
            let now = Instant::now();
            for seat in &mut self.scrapes {
                seat.take_if(|scrape| now.duration_since(scrape.since) >= PATIENCE);
            }
        }
    }

    /// For how long nothing is to be done, unless somebody has news.
    fn until(&self) -> Option<Duration> {
        let first = self.scrapes.iter().flatten().map(|scrape| scrape.since).min();
        let late = first.map(|since| (since + PATIENCE).saturating_duration_since(Instant::now()));
        let again = self.again.then_some(AGAIN);
        late.into_iter().chain(again).min()
    }

    /// Where a scrape finds its place.
    fn place(&self) -> usize {
        let free = self.scrapes.iter().position(Option::is_none);
        if let Some(free) = free.or((self.scrapes.len() < SCRAPES_MAX).then_some(self.scrapes.len())) {
            return free;
        }
        // Those that have asked are being answered.
        let order = |scrape: &Scrape| (!scrape.answer.is_empty(), scrape.since);
        let taken = self.scrapes.iter().flatten().enumerate();
        taken.min_by_key(|(_, scrape)| order(scrape)).map_or(0, |(place, _)| place)
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.seat(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Whoever it was has gone again.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(_) => {
                    self.again = true;
                    return;
                }
            }
        }
    }

    fn seat(&mut self, mut stream: TcpStream) {
        let place = self.place();
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut stream, Token(SEATS + place), interest).is_err() {
            return;
        }
        if place == self.scrapes.len() {
            self.scrapes.push(None);
        }
        let since = Instant::now();
        self.scrapes[place] =
            Some(Scrape { stream, since, request: Vec::new(), answer: Vec::new(), sent: 0 });
        self.turn(place);
    }

    fn turn(&mut self, place: usize) {
        let Some(Some(scrape)) = self.scrapes.get_mut(place) else { return };
        // One that failed is over, too: whoever it was can scrape again.
        if !scrape.turn(&self.pages).unwrap_or(false) {
            self.scrapes[place] = None;
        }
    }
}
