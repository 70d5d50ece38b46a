//! A store without a network: its server and any number of clients in one thread, over memory that a test can look into, and
//! every message through its bytes. For the tests of what is built on a client ([`RemoteMemory`]); nothing of it lasts.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use remanence_pmem::crash_image::CrashImage;
use remanence_pmem::{Medium as _, PersistenceDomain};

use crate::client::{Client, Completion, RemoteMemory, Verb};
use crate::format::Geometry;
use crate::proto::{Changed, Inline, Refusal, Reply, Request};
use crate::server::{ClientId, OpenError, Options, Server, format};
use crate::view::View;

/// So often a client lets the server go on while it waits for others; there is nobody else here who could.
const TRIES: u32 = 1000;

/// The store. Clones are the same one.
#[derive(Clone)]
pub struct Local {
    image: Arc<CrashImage>,
    server: Rc<RefCell<Server<Arc<CrashImage>>>>,
    now: Rc<Cell<u64>>,
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").field("now", &self.now).finish_non_exhaustive()
    }
}

impl Local {
    /// An empty one, whose first table is for about so many keys.
    ///
    /// # Errors
    /// The geometry will not do.
    pub fn new(geometry: &Geometry, keys: u64, options: Options) -> Result<Self, OpenError> {
        let image = Arc::new(CrashImage::new(geometry.size, PersistenceDomain::Adr));
        format(&image, geometry, keys, 0x5EED, [7; 16])?;
        let (server, _) = Server::open(Arc::clone(&image), options)?;
        Ok(Self { image, server: Rc::new(RefCell::new(server)), now: Rc::new(Cell::new(1)) })
    }

    /// A new client, which keeps so many locations, and how it reaches the store.
    #[must_use]
    pub fn connect(&self, locations: usize) -> (Client, Reach) {
        let id = self.server.borrow_mut().connect();
        (Client::new(self.view(), locations), Reach { local: self.clone(), id, cut_off: false, far: false })
    }

    /// The view as it is now.
    ///
    /// # Panics
    /// As [`go_on`](Self::go_on).
    #[must_use]
    pub fn view(&self) -> View {
        self.server.borrow().view()
    }

    /// A millisecond passes, and the server does what it does between messages.
    ///
    /// # Panics
    /// This memory does not fail.
    pub fn go_on(&self) {
        self.now.set(self.now.get() + 1);
        self.server.borrow_mut().step(self.now.get(), 64).expect("memory does not fail");
    }
}

/// How a client reaches a [`Local`] store.
#[derive(Debug)]
pub struct Reach {
    local: Local,
    id: ClientId,
    cut_off: bool,
    far: bool,
}

impl Reach {
    /// Everything is posted, as by a client that is elsewhere: nothing is [loaded](RemoteMemory::load), and nothing
    /// [written by the server](RemoteMemory::put_all).
    #[must_use]
    pub const fn far(mut self) -> Self {
        self.far = true;
        self
    }

    /// From here on nothing of it arrives.
    #[must_use]
    pub const fn cut_off(mut self) -> Self {
        self.cut_off = true;
        self
    }
}

impl RemoteMemory for Reach {
    type Error = &'static str;

    fn post(&mut self, verbs: Vec<Verb>) -> Result<Vec<Completion>, Self::Error> {
        if self.cut_off {
            return Err("the link is down");
        }
        let Local { image, server, now } = &self.local;
        let call = |request: &Request| {
            let request = Request::parse(&request.emit()).expect("what was emitted is parsed");
            let reply = server.borrow_mut().handle(now.get(), self.id, &request);
            Reply::parse(&reply.emit()).expect("what was emitted is parsed")
        };
        Ok(verbs.into_iter().map(|verb| verb.carry_out(image, call)).collect())
    }

    fn load(&mut self, at: u64, into: &mut [u8]) -> Result<bool, Self::Error> {
        if self.cut_off {
            return Err("the link is down");
        }
        if !self.far {
            self.local.image.read(at, into);
        }
        Ok(!self.far)
    }

    fn put_all(
        &mut self,
        puts: &[Inline<'_>],
        done: &mut Vec<Result<Changed, Refusal>>,
    ) -> Result<bool, Self::Error> {
        if self.cut_off {
            return Err("the link is down");
        }
        if !self.far {
            self.local.server.borrow_mut().put_all(self.local.now.get(), self.id, puts, done);
        }
        Ok(!self.far)
    }

    fn now(&self) -> u64 {
        self.local.now.get()
    }

    fn again(&mut self, tries: u32) -> Result<(), Self::Error> {
        if tries > TRIES {
            return Err("it was tried for too long");
        }
        let mut server = self.local.server.borrow_mut();
        server.step(self.local.now.get(), 16).expect("memory does not fail");
        Ok(())
    }
}
