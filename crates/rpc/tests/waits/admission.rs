//! Tokens over real sockets: who has none or another one, or says what somebody else said, gets no session.

use crate::common;

use common::{LIMIT, Server, device, options};
use remanence_pmem::Region;
use remanence_rnic::{
    Access, AhAttr, Data, QpCaps, QpType, RecvWr, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};
use remanence_rpc::core::config::Config;
use remanence_rpc::core::event::Ended;
use remanence_rpc::header::{Address, HEADER_LEN, Refusal, Repr, Status};
use remanence_rpc::live::{Nexus, Options};
use remanence_rpc::{Error, Token};
use remanence_verbs::{Ah, Context, Cq, Mr, Qp, QpOptions};
use remanence_wire::Qkey;

const OURS: &str = "correct-horse-battery";

fn with(token: &str) -> Options {
    let token = Some(Token::new(token).expect("a fair token"));
    Options { config: Config { token, ..options().config }, ..options() }
}

fn echo(_: u16, bytes: Vec<u8>) -> Vec<u8> {
    bytes
}

#[test]
fn who_has_the_token_is_served_and_nobody_else() {
    let (there, here) = (device(), device());
    let server = Server::start(&there, with(OURS), echo);
    let nexus = Nexus::new(&here).unwrap();
    let to = nexus.resolve(server.at, 0, LIMIT).unwrap();
    let attempt = |options: &Options| -> Result<Vec<u8>, Ended> {
        let mut rpc = nexus.create(options).unwrap();
        match rpc.connect_and_wait(to, |_| {}) {
            Ok(session) => {
                let (status, body) = rpc.call_and_wait(session, 1, b"abc", |_| {}).unwrap();
                assert_eq!(status, Status::Done);
                Ok(body.to_vec())
            }
            Err(Error::NoSession(why)) => Err(why),
            Err(e) => panic!("{e}"),
        }
    };
    assert_eq!(attempt(&options()), Err(Ended::TokenNeeded));
    assert_eq!(attempt(&with("correct-horse-batterz")), Err(Ended::WrongToken));
    assert_eq!(attempt(&with(OURS)), Ok(b"abc".to_vec()));
    let theirs = server.stop();
    assert_eq!((theirs.stats().requests, theirs.stats().unadmitted), (1, 2));
}

#[test]
fn who_has_a_token_calls_no_server_that_has_none() {
    let (there, here) = (device(), device());
    let server = Server::start(&there, options(), echo);
    let nexus = Nexus::new(&here).unwrap();
    let to = nexus.resolve(server.at, 0, LIMIT).unwrap();
    let mut rpc = nexus.create(&with(OURS)).unwrap();
    let refused = rpc.connect_and_wait(to, |_| {});
    assert!(matches!(refused, Err(Error::NoSession(Ended::NoToken))), "{refused:?}");
    assert_eq!(server.stop().stats().requests, 0);
}

/// A UD QP that says whatever the test wants.
struct Enemy {
    qp: Qp,
    cq: Cq,
    memory: Mr,
    to: (Ah, Address),
}

/// The Q_Key of every endpoint: who speaks the protocol knows it.
const QKEY: Qkey = Qkey(0x5270_0001);
const SLOT: u64 = 512;

impl Enemy {
    fn new(context: &Context, to: Address) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64, None, 0).unwrap();
        let caps =
            QpCaps { max_send_wr: 256, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline: 256 };
        let qp = pd.create_qp(&QpOptions { ty: QpType::Ud, caps, ..QpOptions::rc(&cq) }).unwrap();
        qp.activate_ud(QKEY).unwrap();
        let memory = pd.reg_mr(&Region::anonymous(4096).unwrap(), Access::LOCAL_WRITE).unwrap();
        let ah = pd.create_ah(&AhAttr::new(to.gid)).unwrap();
        let this = Self { qp, cq, memory, to: (ah, to) };
        (0..4).for_each(|slot| this.receive(slot));
        this
    }

    fn receive(&self, slot: u64) {
        let sges = [self.memory.sge(slot * SLOT, SLOT as u32)];
        self.qp.post_recvs([RecvWr { wr_id: slot, sges: &sges }]).unwrap();
    }

    fn says(&self, bytes: &[u8]) {
        let mut doorbell = self.qp.doorbell();
        let ud = Some(self.to.0.dest(self.to.1.qpn, QKEY));
        let (op, data, flags) = (SendOp::Send, Data::Inline(bytes), SendFlags::empty());
        doorbell.post_send(&SendWr { wr_id: 9, op, data, flags, ud }).unwrap();
    }

    /// What comes next.
    fn hears(&self) -> Vec<u8> {
        loop {
            let mut wcs = Vec::new();
            self.cq.wait(&mut wcs, 1, Some(LIMIT)).unwrap();
            let wc = wcs.pop().expect("an answer");
            assert_eq!(wc.status, WcStatus::Success);
            if wc.opcode == WcOpcode::Recv {
                let mut bytes = vec![0; wc.byte_len as usize - 40];
                self.memory.region().read(wc.wr_id * SLOT + 40, &mut bytes);
                self.receive(wc.wr_id);
                return bytes;
            }
        }
    }

    fn is_told(&self) -> Repr {
        Repr::parse(self.hears()[..HEADER_LEN].try_into().unwrap()).unwrap()
    }
}

#[test]
fn an_enemy_learns_that_a_token_is_needed_and_nothing_else() {
    let (there, here) = (device(), device());
    let server = Server::start(&there, with(OURS), echo);
    let nexus = Nexus::new(&here).unwrap();
    let to = nexus.resolve(server.at, 0, LIMIT).unwrap();
    let enemy = Enemy::new(&here, to);
    let (session, key, incarnation, capacity, credits) = (3, 4, 5, 1024, 8);
    let refused = |why| Repr::Refuse { session, key, why };
    // Nothing to show.
    enemy.says(&Repr::Connect { session, key, incarnation, capacity, credits }.emit());
    assert_eq!(enemy.is_told(), refused(Refusal::TokenNeeded));
    // Cut short and too long, at every length that a header says of itself: no answer to any of them, but the last.
    let ask = [&Repr::Ask { session, key }.emit()[..], &[7; 32]].concat();
    let prove = Repr::Prove { session, key, incarnation, capacity, credits }.emit();
    (0..ask.len()).for_each(|len| enemy.says(&ask[..len]));
    for behind in [0, 8, 39, 41, 64] {
        enemy.says(&[&prove[..], &vec![0; behind]].concat());
    }
    enemy.says(&ask);
    let challenge = enemy.hears();
    let header = Repr::parse(challenge[..HEADER_LEN].try_into().unwrap());
    assert_eq!(header, Ok(Repr::Challenge { session, key }));
    // Another server asks for something else, though it was asked the same.
    let elsewhere = device();
    let other = Server::start(&elsewhere, with(OURS), echo);
    let enemys = Enemy::new(&here, nexus.resolve(other.at, 0, LIMIT).unwrap());
    for _ in 0..4 {
        enemys.says(&ask);
        assert_ne!(enemys.hears()[HEADER_LEN..], challenge[HEADER_LEN..]);
    }
    // A guess, and the same once more.
    let name = &challenge[HEADER_LEN..][..8];
    let guess = [&prove[..], name, &[0xee; 32]].concat();
    enemy.says(&guess);
    assert_eq!(enemy.is_told(), refused(Refusal::WrongToken));
    enemy.says(&guess);
    assert_eq!(enemy.is_told(), refused(Refusal::Late));
    // A call without a session, with the numbers that the first session has.
    let call = Repr::Request { session: 0, key, request: 0, packet: 0, service: 1, length: 0 };
    enemy.says(&call.emit());
    assert_eq!(enemy.is_told(), Repr::Reset { session: 0, key });
    let theirs = server.stop();
    let stats = theirs.stats();
    assert_eq!((theirs.sessions(), stats.requests, stats.unadmitted), (0, 0, 3), "{stats:?}");
    assert_eq!(stats.malformed, 64 + 5, "{stats:?}");
}

/// Tokens hold on a bad network: who has one is let in, and told of a wrong one.
#[test]
fn a_bad_network_costs_time_only() {
    use remanence_link::fault::{Faults, Plan};
    use remanence_verbs::Options as Device;
    let faults = Faults { loss: 0.1, duplication: 0.1, reordering: 0.1, ..Faults::default() };
    let bad = |seed| {
        let plan = Plan { tx: faults, rx: faults };
        Context::open(Device { faults: Some((plan, seed)), ..Device::udp(common::address()) })
            .expect("a device on the loopback interface")
    };
    let (there, here) = (bad(5), bad(6));
    let server = Server::start(&there, with(OURS), echo);
    let nexus = Nexus::new(&here).unwrap();
    let to = nexus.resolve(server.at, 0, LIMIT).unwrap();
    for _ in 0..6 {
        let mut rpc = nexus.create(&with(OURS)).unwrap();
        let session = rpc.connect_and_wait(to, |_| {}).unwrap();
        let (_, body) = rpc.call_and_wait(session, 1, b"abc", |_| {}).unwrap();
        assert_eq!(body.to_vec(), b"abc");
    }
    let mut rpc = nexus.create(&with("correct-horse-batterz")).unwrap();
    let refused = rpc.connect_and_wait(to, |_| {});
    // (If the refusal is lost again and again, the next one says that too many came.)
    let known = matches!(refused, Err(Error::NoSession(Ended::WrongToken | Ended::Wait(_))));
    assert!(known, "{refused:?}");
    assert_eq!(server.stop().stats().requests, 6);
}
