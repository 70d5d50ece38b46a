//! Who may have whose memory: the owner's decision, without a network. What follows from it is in
//! `tests/waits/in_place.rs`.

use remanence_rnic::{AhAttr, Config, MrAttr, QpAttr, QpCaps, QpInit};
use remanence_wire::{Gid, Mtu, Psn};

use super::*;
use crate::flush::FlushQueue;
use crate::memory::RegionMemory;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
const FAR_QPN: Qpn = Qpn::new(0x77);

fn address(last: u8) -> IpAddr {
    [127, 64, 0, last].into()
}

/// A device with one shared MR in a domain, and one RC QP connected to `FAR_QPN` at address 2.
struct Owner {
    device: Device,
    in_place: InPlace,
    mr: Mr,
    qpn: Qpn,
}

impl Owner {
    fn new(same_domain: bool, qp_access: Access, state: QpState) -> Self {
        let mut device = Device::new(Config { gids: vec![Gid::from_ip(address(1))], ..Config::default() });
        let mut memory = RegionMemory::new(Arc::new(FlushQueue::default()));
        let (pd, other) = (device.alloc_pd().unwrap(), device.alloc_pd().unwrap());
        let region = Region::memfd("shared", 4096).unwrap();
        let span = Span { region: memory.insert(region.clone()), offset: 0, len: 4096 };
        let mr_pd = if same_domain { pd } else { other };
        let mr = device.reg_mr(mr_pd, &MrAttr { span, iova: 0, access: ALL }, &memory).unwrap();
        let mut in_place = InPlace::new(true);
        in_place.share(&device, mr_pd, &mr, &region).unwrap();
        let cq = device.create_cq(16).unwrap();
        let caps = QpCaps { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let ty = QpType::Rc;
        let init = QpInit { pd, ty, send_cq: cq, recv_cq: cq, srq: None, caps, sq_sig_all: false };
        let qpn = device.create_qp(&init).unwrap();
        let mut owner = Self { device, in_place, mr, qpn };
        let attr = QpAttr::default();
        owner.modify(QpAttr { state: Some(QpState::Init), access: Some(qp_access), ..attr });
        if state == QpState::Rtr {
            owner.modify(QpAttr {
                state: Some(QpState::Rtr),
                av: Some(AhAttr::new(Gid::from_ip(address(2)))),
                path_mtu: Some(Mtu::B1024),
                dest_qpn: Some(FAR_QPN),
                rq_psn: Some(Psn::new(0)),
                max_dest_rd_atomic: Some(1),
                min_rnr_timer: Some(12),
                ..attr
            });
        }
        owner
    }

    fn modify(&mut self, attr: QpAttr) {
        self.device.modify_qp(Instant::ZERO, self.qpn, &attr).unwrap();
    }

    fn ask(&mut self, from: u8, far_qpn: Qpn, rkey: Rkey) -> Option<(u32, u64)> {
        let far = Far { address: address(from), qpn: far_qpn };
        match self.in_place.grant(&self.device, far, self.qpn, rkey)?.0 {
            Message::Grant { index, generation, .. } => Some((index, generation)),
            other => panic!("{other:?}"),
        }
    }

    /// What stands in a grant of the peer's guard page.
    fn stands(&self, index: u32) -> u64 {
        self.in_place.peers[&address(2)].ours.as_ref().unwrap().0.load_u64(guard::grant_at(index))
    }
}

#[test]
fn memory_is_given_through_a_connected_qp_of_its_domain_and_to_nobody_else() {
    let mut owner = Owner::new(true, ALL, QpState::Rtr);
    let rkey = owner.mr.rkey;
    assert_eq!(owner.ask(3, FAR_QPN, rkey), None, "another process");
    assert_eq!(owner.ask(2, Qpn::new(0x78), rkey), None, "another QP of the process");
    assert_eq!(owner.ask(2, FAR_QPN, Rkey(rkey.0 ^ 0x100)), None, "another key");
    assert!(owner.in_place.peers.is_empty(), "who is refused leaves no trace");
    let (index, generation) = owner.ask(2, FAR_QPN, rkey).expect("the connected QP");
    assert_eq!(owner.stands(index), generation);

    for (access, state) in [(Access::REMOTE_READ, QpState::Rtr), (ALL, QpState::Init)] {
        let mut owner = Owner::new(true, access, state);
        let rkey = owner.mr.rkey;
        assert_eq!(owner.ask(2, FAR_QPN, rkey), None, "{access:?} in {state}");
    }
    let mut owner = Owner::new(false, ALL, QpState::Rtr);
    let rkey = owner.mr.rkey;
    assert_eq!(owner.ask(2, FAR_QPN, rkey), None, "another domain");
}

#[test]
fn a_grant_ends_with_the_memory_and_with_the_connection_and_never_comes_back() {
    let mut owner = Owner::new(true, ALL, QpState::Rtr);
    let rkey = owner.mr.rkey;
    let first = owner.ask(2, FAR_QPN, rkey).unwrap();
    // Asked for again it has the same place, and another generation: an old holder's grant has ended.
    let second = owner.ask(2, FAR_QPN, rkey).unwrap();
    assert_eq!(first.0, second.0);
    assert!(second.1 > first.1);

    owner.modify(QpAttr { state: Some(QpState::Err), ..QpAttr::default() });
    owner.in_place.review(&owner.device);
    assert_eq!(owner.stands(second.0), 0, "the connection has ended");
    assert_eq!(owner.ask(2, FAR_QPN, rkey), None);

    let mut owner = Owner::new(true, ALL, QpState::Rtr);
    let (index, _) = owner.ask(2, FAR_QPN, owner.mr.rkey).unwrap();
    let withdrawal = owner.in_place.mr_gone(&owner.mr);
    assert_eq!((owner.stands(index), withdrawal.guards.len()), (0, 1), "the memory was taken back");
    withdrawal.wait();
    assert_eq!(owner.ask(2, FAR_QPN, owner.mr.rkey), None);
}

#[test]
fn a_peer_gets_so_many_grants_and_no_more() {
    let mut owner = Owner::new(true, ALL, QpState::Rtr);
    let rkey = owner.mr.rkey;
    owner.ask(2, FAR_QPN, rkey).unwrap();
    let grants = &mut owner.in_place.peers.get_mut(&address(2)).unwrap().ours.as_mut().unwrap().1;
    let other = Granted { rkey: Rkey(1), qpn: Qpn::new(9), far: Far { address: address(2), qpn: FAR_QPN } };
    grants.fill(Some(other));
    assert_eq!(owner.ask(2, FAR_QPN, rkey), None, "it goes on by packets");
}
