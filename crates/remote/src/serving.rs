//! The server's two threads, as the floor has them: [`Entrance`] decides about requests for sessions, [`Serving`] hands what
//! arrives to the [`Responder`] of its session. What is decided about a message is decided there.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use remanence_auth::Role;
use remanence_codec::clipped;
use remanence_pmem::Region;
use remanence_rnic::{Access, Data, MwBind, PostError, SendFlags, SendWr, WcOpcode};
use remanence_service::Meter;
use remanence_service::server::{
    Admit, Between, Buffers, Claim, Close, Decision, Error as FloorError, Link, Lot, Message, Refusal,
    Request, Service, Session, SessionId, Sessions, Spec, Turn, Workshop,
};
use remanence_verbs::{ConnectAttr, Mw};
use remanence_wire::Qpn;

use crate::admission::{Ends, Verdict};
use crate::grants::{Grants, window};
use crate::hello::{Hello, Rejection, Stranger, VERSION, Welcome, Window};
use crate::message::{Answer, Immediates};
use crate::program::granule_shift;
use crate::responder::{Fault, Responder, Served, Terms, World};
use crate::ring::Ring;
use crate::server::{Ahead, Application, Call, Core, Handler, Unanswered, Word, flush_rights};
use crate::session::{DESCRIBE, SETTLE};

/// Work requests of a session that bind windows, at most.
const BINDS_MAX: u32 = 16;
/// One in so many binds of windows has a completion, as nothing else may free the queue.
const BINDS: u32 = 8;

/// What is kept for a session.
pub(crate) struct State {
    role: Role,
    responder: Responder,
    binds: u32,
    /// By which its client writes its receive buffers; it goes before they do.
    window: Option<Mw>,
}

/// Decides who gets a session, on the accepting thread.
pub(crate) struct Entrance<'a>(pub(crate) &'a Core);

fn reject(why: &str) -> Refusal {
    Refusal(Rejection::Sentence(why.into()).emit())
}

impl Admit for Entrance<'_> {
    type State = State;

    fn admit(
        &mut self,
        request: &Request<'_>,
        place: Claim<'_>,
        workshop: &Workshop<'_>,
    ) -> Result<Decision<State>, Refusal> {
        let core = self.0;
        let hello = Hello::parse(request.private_data).map_err(|stranger| match stranger {
            Stranger::Other => {
                let what = core.options.serves.unwrap_or("a persistence server");
                reject(&format!("this is {what}, and you are no client of one"))
            }
            Stranger::Version(theirs) => reject(&format!(
                "it speaks version {VERSION} of the protocol and you speak {theirs}; use the same release"
            )),
        })?;
        let (role, bond) = match self.judge(request, &hello) {
            Verdict::Admit(role, bond) => (role, bond),
            Verdict::Reject(rejection) => return Err(Refusal(rejection.emit())),
        };
        let agreed = hello.declared.map_or(Ok(core.config), |declared| core.config.agree(&declared));
        let agreed = agreed.map_err(|refusal| reject(&refusal.to_string()))?;
        let place = place.take().map_err(|full| reject(&full.to_string()))?;
        let mut stamp = [0; 8];
        getrandom::fill(&mut stamp).expect("the kernel gives random bytes");
        let stamp = u64::from_be_bytes(stamp);
        // Its stamp is durable before the client hears of it.
        let (ring, buffers) = match &core.layout {
            Some(layout) => {
                let ring = layout.ring(place.index() as u16);
                ring.begin(&core.options.region, stamp).map_err(|_| Refusal::default())?;
                // A READ in place of a FLUSH reads them.
                let access = Access::LOCAL_WRITE | Access::REMOTE_READ | flush_rights(&core.config);
                (ring, Buffers::Within(&core.options.region, ring.first, access))
            }
            None => {
                let buffers = if core.options.immediates { Buffers::Bindable } else { Buffers::Own };
                (Ring::volatile(core.options.slots, core.options.message), buffers)
            }
        };
        // What a server has under way itself, which is nothing; its clients have as many FLUSHes and READs as they ask for.
        let attr = ConnectAttr { max_rd_atomic: 1, ..ConnectAttr::default() };
        // Whatever key a reader finds out, it is good for nothing else through this QP.
        let access = if role.may_write() { attr.access } else { Access::REMOTE_READ };
        let slots = u32::from(ring.slots);
        let spec = Spec {
            slots,
            slot_size: ring.slot_size,
            sends: slots,
            // Those of all messages that a client of ours has under way, and as many notices.
            unsent: 4 * slots as usize,
            extra: BINDS_MAX,
            buffers,
            attr: ConnectAttr { access, ..attr },
        };
        let opened = workshop.open(place, &spec).map_err(|error| match error {
            FloorError::Full(full) => reject(&full.to_string()),
            other => other.into(),
        })?;
        let terms = Terms {
            config: agreed,
            data_len: core.data_len,
            ring,
            durable_buffers: core.layout.is_some(),
            stamp,
            shift: granule_shift(core.data_len),
        };
        let (memory, buffers) = (&core.memory, opened.buffers());
        let welcome = Welcome {
            server: core.config,
            agreed,
            declared: core.declared,
            role,
            guarantee: core.options.region.domain().guarantee(),
            region: Window { rkey: memory.rkey().0, addr: memory.addr(), len: core.data_len },
            buffers: Window { rkey: buffers.rkey().0, addr: buffers.addr(), len: ring.bytes() },
            slots: ring.slots,
            slot_size: ring.slot_size,
            stamp,
            sentence: core.sentence(),
        };
        let mut welcome = welcome.emit();
        if let Some(bond) = bond {
            bond.seal(&mut welcome);
        }
        let state = State { role, responder: Responder::new(terms), binds: 0, window: None };
        Ok(Decision::Session { opened, state, welcome })
    }
}

impl Entrance<'_> {
    fn judge(&self, request: &Request<'_>, hello: &Hello) -> Verdict {
        let mut fresh = [0; 32];
        getrandom::fill(&mut fresh).expect("the kernel gives random bytes");
        let server = SocketAddr::new(request.local, self.0.floor.addr().port());
        let ends = Ends { client: request.peer, qpn: request.qpn.value(), server };
        self.0.admission().judge(self.0.begin.elapsed(), fresh, &ends, hello)
    }
}

/// Serves, on the serving thread.
pub(crate) struct Serving<'a> {
    core: &'a Core,
    application: &'a mut Application,
    meter: Option<&'a Meter>,
    /// When this turn's work began, if it is metered.
    since: Option<u64>,
    /// Of the sessions that are over.
    served: Served,
}

impl<'a> Serving<'a> {
    pub(crate) fn new(core: &'a Core, application: &'a mut Application, meter: Option<&'a Meter>) -> Self {
        Self { core, application, meter, since: None, served: Served::default() }
    }

    pub(crate) const fn served(&self) -> Served {
        self.served
    }

    /// Has the responder of a session do something.
    fn respond<T>(
        &mut self,
        session: &mut Session<State>,
        act: impl FnOnce(&mut Responder, &Region, &Region, &mut Live<'_>) -> T,
    ) -> T {
        let Session { state: State { role, responder, window, .. }, link } = session;
        let buffers = link.region().clone();
        let handlers = &mut self.application.handlers;
        let mut world = Live { role: *role, link, window, handlers, core: self.core };
        act(responder, &self.core.options.region, &buffers, &mut world)
    }
}

impl Service for Serving<'_> {
    type State = State;

    fn between(&self) -> Between {
        match (&self.application.round, self.application.spins) {
            (Some(_), _) => Between::Works,
            (None, true) => Between::Spins,
            (None, false) => Between::Sleeps,
        }
    }

    fn work(&mut self) {
        if let Some(work) = &mut self.application.round {
            work();
        }
    }

    fn arrived(&mut self, sessions: &Sessions<State>, lot: &Lot<'_>) {
        // Looking whether there is anything to do is nobody's message; what a turn put off is.
        let metered = self.meter.is_some() && (!lot.completions.is_empty() || lot.due);
        self.since = metered.then(Meter::now);
        if let Some((service, look)) = &mut self.application.ahead
            && lot.messages >= 2
        {
            look_ahead(sessions, lot, *service, look);
        }
    }

    fn message(&mut self, session: &mut Session<State>, message: &Message) -> Result<(), Close> {
        let result = self.respond(session, |responder, region, buffers, world| {
            responder.message(message.len, message.imm, region, buffers, world)?;
            if responder.is_pressed() { responder.idle(region, buffers, world) } else { Ok(()) }
        });
        // What was said last goes out; then the connection ends, and the client learns of it.
        result.map_err(|_: Fault| Close::Expelled)
    }

    fn settle(&mut self, session: &mut Session<State>) -> Result<(), Close> {
        let result =
            self.respond(session, |responder, region, buffers, world| responder.idle(region, buffers, world));
        result.map_err(|_: Fault| Close::Ended)
    }

    /// Binds the windows that were given: an answer may carry the key of any of them.
    fn ready(&mut self, session: &mut Session<State>) -> bool {
        let (grants, id) = (&self.core.grants, session.link.id().0);
        while let Some(bind) = grants.next_bind(id) {
            session.state.binds = session.state.binds.wrapping_add(1);
            let signaled = session.state.binds.is_multiple_of(BINDS);
            let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
            let wr = SendWr { wr_id: Link::OWN, op: bind.op, data: Data::Sges(&[]), flags, ud: None };
            match session.link.qp().post_send(&wr) {
                Ok(()) => {}
                Err(PostError::QueueFull | PostError::InvalidState) => {
                    grants.put_back(id, bind);
                    return false;
                }
                Err(_) => {
                    session.link.fail();
                    return false;
                }
            }
        }
        true
    }

    fn notice(&mut self, session: &mut Session<State>, word: Vec<u8>) {
        match Word::parse(word) {
            // A client that does not look at what it is told needs no more of it.
            Some(Word::Notice(body)) if session.link.unsent() < session.link.slots() as usize => {
                self.respond(session, |responder, _, _, world| responder.notice(body, world));
            }
            Some(Word::Answer(number, answer)) => {
                self.respond(session, |responder, _, _, world| responder.answered(number, answer, world));
            }
            _ => {}
        }
    }

    /// What it left in its buffers is applied: it may have been told that it is durable.
    fn ended(&mut self, session: &mut Session<State>) {
        let Session { state: State { role, responder, .. }, link } = session;
        let mut nobody = EndedSession { session: link.id(), role: *role, grants: &self.core.grants };
        let _ = responder.settle(&self.core.options.region, link.region(), &mut nobody);
        self.core.grants.take_all(link.id().0);
        self.served += responder.served();
    }

    fn turn(&mut self, _: &mut Sessions<State>, lot: &Lot<'_>) -> Turn {
        match &mut self.application.turn {
            Some(turn) => turn(lot.completions.len()).map_or(Turn::End, Turn::After),
            None => Turn::Idle,
        }
    }

    fn rests(&mut self, lot: &Lot<'_>) {
        if let (Some(meter), Some(since)) = (self.meter, self.since) {
            meter.add(lot.messages as u64, since);
        }
    }
}

/// Shows the calls of a service that are among what has arrived.
fn look_ahead(sessions: &Sessions<State>, lot: &Lot<'_>, service: u16, look: &mut Ahead) {
    let (mut before, mut found) = (BTreeMap::<Qpn, u64>::new(), Vec::new());
    for wc in lot.received() {
        let Some(Session { state, link }) = sessions.of_qp(wc.qpn) else { continue };
        let nth = before.entry(wc.qpn).or_default();
        let imm = (wc.opcode == WcOpcode::RecvRdmaWithImm).then(|| wc.imm.unwrap_or(0));
        if state.responder.is_in_its_buffer(imm)
            && let Some((asked, body)) = state.responder.call_ahead(*nth, wc.byte_len, link.region())
            && asked == service
        {
            found.push((link.id().0, state.role, body));
        }
        *nth += 1;
    }
    if found.len() >= 2 {
        let calls =
            found.iter().map(|(session, role, request)| Call { session: *session, role: *role, request });
        look(&calls.collect::<Vec<_>>());
    }
}

/// The world of a session that is over.
struct EndedSession<'a> {
    session: SessionId,
    role: Role,
    grants: &'a Grants,
}

impl World for EndedSession<'_> {
    fn send(&mut self, _: Answer) {}

    fn repost(&mut self, _: u64) {}

    fn may_write(&mut self, offset: u64, len: u64) -> bool {
        self.role.may_write() && self.grants.covers(self.session.0, offset, len)
    }

    fn call(&mut self, _: u16, _: &[u8]) -> Result<Vec<u8>, String> {
        Err("the session is over".into())
    }
}

struct Live<'a> {
    role: Role,
    link: &'a mut Link,
    window: &'a mut Option<Mw>,
    handlers: &'a mut BTreeMap<u16, Handler>,
    core: &'a Core,
}

impl Live<'_> {
    fn answer_max(&self) -> usize {
        self.link.slot_size() as usize - crate::message::ANSWER_HEADER
    }
}

impl World for Live<'_> {
    fn send(&mut self, answer: Answer) {
        self.link.send(answer.emit());
    }

    fn repost(&mut self, number: u64) {
        self.link.give_back(number);
    }

    fn may_write(&mut self, offset: u64, len: u64) -> bool {
        self.role.may_write() && self.core.grants.covers(self.link.id().0, offset, len)
    }

    /// A memory window over its own buffers, which is bound in front of the answer that carries the key.
    fn immediates(&mut self) -> Result<Immediates, String> {
        if !self.core.options.immediates || !self.role.may_write() {
            return Err("this server takes your calls by SEND".to_owned());
        }
        let buffers = self.link.buffers();
        let len = u64::from(self.link.slots()) * u64::from(self.link.slot_size());
        let bind = MwBind { mr: buffers.lkey(), addr: buffers.addr(), len, access: Access::REMOTE_WRITE };
        let made = window(self.core.floor.pd(), bind).and_then(|(mw, rkey, op)| {
            let wr =
                SendWr { wr_id: Link::OWN, op, data: Data::Sges(&[]), flags: SendFlags::SIGNALED, ud: None };
            self.link.qp().post_send(&wr).is_ok().then_some((mw, rkey))
        });
        let (mw, rkey) = made.ok_or("the device has no memory window left; calls go on by SEND")?;
        *self.window = Some(mw);
        // As many sessions as that are never there at once.
        Ok(Immediates { number: self.link.id().0 as u32, rkey: rkey.0 })
    }

    fn call_later(&mut self, number: u64, service: u16, request: &[u8]) -> bool {
        let (session, answer_max) = (self.link.id().0, self.answer_max());
        let Some(Handler::Later(handler)) = self.handlers.get_mut(&service) else { return false };
        handler(&Call { session, role: self.role, request }, Unanswered { session, number, answer_max });
        true
    }

    fn call(&mut self, service: u16, request: &[u8]) -> Result<Vec<u8>, String> {
        match (service, self.handlers.get_mut(&service)) {
            (SETTLE, _) => Ok(Vec::new()),
            (DESCRIBE, _) => Ok(clipped(&self.core.sentence(), self.answer_max()).into()),
            (_, Some(Handler::Now(handler))) => {
                handler(&Call { session: self.link.id().0, role: self.role, request })
            }
            (_, Some(Handler::Later(_)) | None) => Err(match self.core.options.serves {
                Some(what) => format!(
                    "this server is {what}, which has not what is asked for; check the address and the port"
                ),
                None => format!("the server has no service {service}"),
            }),
        }
    }
}
