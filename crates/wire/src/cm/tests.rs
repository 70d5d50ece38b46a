//! Layout tests. Byte-exactness against a real conversation is in `tests/computes/golden.rs`.

use super::*;
use crate::psn::Psn;
use crate::types::{Gid, Pkey, Qkey, Qpn};

/// One example of each message, with every field set to something of its own.
fn examples() -> Vec<Message> {
    let path = Path {
        local_lid: 0x0102,
        remote_lid: 0x0304,
        local_gid: Gid([0x11; 16]),
        remote_gid: Gid([0x22; 16]),
        flow_label: 0xa_bcde,
        packet_rate: 0x2a,
        traffic_class: 0x60,
        hop_limit: 0x40,
        service_level: 5,
        subnet_local: true,
        local_ack_timeout: 19,
    };
    vec![
        Message::Req(Req {
            local_comm_id: 0x0a0b_0c0d,
            service_id: ServiceId::new(PortSpace::Tcp, 7471),
            local_ca_guid: 0x0102_0304_0506_0708,
            local_qkey: Qkey(0x1111_2222),
            local_qpn: Qpn::new(0x12_3456),
            responder_resources: 16,
            local_eecn: 0x33_4455,
            initiator_depth: 8,
            remote_eecn: 0x66_7788,
            remote_cm_response_timeout: 20,
            transport_service: TransportService::Uc,
            end_to_end_flow_control: true,
            starting_psn: Psn::new(0xfe_dcba),
            local_cm_response_timeout: 21,
            retry_count: 6,
            pkey: Pkey(0x8001),
            path_mtu: 5,
            rdc_exists: true,
            rnr_retry_count: 7,
            max_cm_retries: 15,
            srq: true,
            extended_transport_type: 3,
            primary: path,
            alternate: Path { hop_limit: 1, ..path },
            sap_supported: true,
            private_data: [0xd1; 92],
        }),
        Message::Mra(Mra {
            local_comm_id: 1,
            remote_comm_id: 2,
            message: RejectedMessage::Rep,
            service_timeout: 24,
            private_data: [0xd2; 222],
        }),
        Message::Rej(Rej {
            local_comm_id: 3,
            remote_comm_id: 4,
            message: RejectedMessage::Other,
            info_len: 0x55,
            reason: RejReason::CONSUMER_DEFINED,
            info: [0xe3; 72],
            private_data: [0xd3; 148],
        }),
        Message::Rep(Rep {
            local_comm_id: 5,
            remote_comm_id: 6,
            local_qkey: Qkey(7),
            local_qpn: Qpn::new(0x89_abcd),
            local_eecn: 0xef_0123,
            starting_psn: Psn::new(0x45_6789),
            responder_resources: 1,
            initiator_depth: 2,
            target_ack_delay: 15,
            failover_accepted: 2,
            end_to_end_flow_control: true,
            rnr_retry_count: 5,
            srq: true,
            local_ca_guid: u64::MAX - 7,
            private_data: [0xd4; 196],
        }),
        Message::Rtu(Rtu { local_comm_id: 7, remote_comm_id: 8, private_data: [0xd5; 224] }),
        Message::Dreq(Dreq {
            local_comm_id: 9,
            remote_comm_id: 10,
            remote_qpn: Qpn::new(11),
            private_data: [0xd6; 220],
        }),
        Message::Drep(Drep { local_comm_id: 12, remote_comm_id: 13, private_data: [0xd7; 224] }),
        Message::SidrReq(SidrReq {
            request_id: 14,
            pkey: Pkey::DEFAULT,
            service_id: ServiceId::new(PortSpace::Udp, 4000),
            private_data: [0xd8; 216],
        }),
        Message::SidrRep(SidrRep {
            request_id: 15,
            status: SidrRep::STATUS_REJECTED,
            info_len: 72,
            qpn: Qpn::new(16),
            service_id: ServiceId(17),
            qkey: Qkey::RDMA_UDP,
            info: [0xe9; 72],
            private_data: [0xd9; 136],
        }),
        Message::Lap(Lap {
            local_comm_id: 18,
            remote_comm_id: 19,
            remote_qpn: Qpn::new(20),
            remote_cm_response_timeout: 22,
            alternate: path,
            private_data: [0xda; 168],
        }),
        Message::Apr(Apr {
            local_comm_id: 23,
            remote_comm_id: 24,
            info_len: 25,
            status: 26,
            info: [0xeb; 72],
            private_data: [0xdb; 148],
        }),
    ]
}

#[test]
fn every_message_survives_a_round_trip() {
    for (number, message) in examples().into_iter().enumerate() {
        assert_eq!(usize::from(message.attribute_id()), 0x10 + number);
        let repr = Repr { transaction_id: 0x7766_5544_3322_1100, message };
        assert_eq!(Repr::parse(&repr.to_bytes()), Ok(repr));
    }
}

/// Offsets (from the end of the MAD header), widths and values of the REQ above, written down once more from
/// table 106.
#[test]
fn req_fields_are_where_table_106_puts_them() {
    let message = examples().remove(0);
    let bytes = Repr { transaction_id: 1, message }.to_bytes();
    assert_eq!(bytes[..4], [1, 7, 2, 3]);
    assert_eq!(bytes[16..18], [0, 0x10]);
    let data = &bytes[24..];
    assert_eq!(data[..4], [0x0a, 0x0b, 0x0c, 0x0d]);
    assert_eq!(data[4..8], [0; 4]);
    assert_eq!(data[8..16], [0, 0, 0, 0, 0x01, 0x06, 0x1d, 0x2f]);
    assert_eq!(data[28..32], [0x11, 0x11, 0x22, 0x22]);
    assert_eq!(data[32..36], [0x12, 0x34, 0x56, 16]);
    assert_eq!(data[36..40], [0x33, 0x44, 0x55, 8]);
    assert_eq!(data[40..44], [0x66, 0x77, 0x88, 20 << 3 | 1 << 1 | 1]);
    assert_eq!(data[44..48], [0xfe, 0xdc, 0xba, 21 << 3 | 6]);
    assert_eq!(data[48..52], [0x80, 0x01, 5 << 4 | 1 << 3 | 7, 15 << 4 | 1 << 3 | 3]);
    assert_eq!(data[52..56], [1, 2, 3, 4]);
    assert_eq!(data[88..96], [0xab, 0xcd, 0xe0, 0x2a, 0x60, 0x40, 5 << 4 | 1 << 3, 19 << 3]);
    assert_eq!(data[137], 1);
    assert_eq!(data[139], 19 << 3 | 1 << 2);
    assert_eq!(data[140..], [0xd1; 92]);
}

#[test]
fn other_classes_and_attributes_are_refused() {
    let good = Repr { transaction_id: 1, message: examples().remove(4) }.to_bytes();
    for (at, value) in [(0, 2), (1, 3), (2, 1), (3, 1), (17, 0x0f), (17, 0x1b), (16, 1)] {
        let mut bytes = good;
        bytes[at] = value;
        assert!(matches!(Repr::parse(&bytes), Err(Error::Mad(_))), "byte {at} = {value}");
    }
}

#[test]
fn cma_header_holds_both_ip_versions() {
    for (src, dst) in [("10.1.2.3", "10.4.5.6"), ("fe80::1", "2001:db8::2")] {
        let header = CmaHeader { src: src.parse().unwrap(), src_port: 0x1234, dst: dst.parse().unwrap() };
        let data = Req::cma_private_data(&header, b"hello").unwrap();
        assert_eq!(data[..4], [0, if src.contains('.') { 0x40 } else { 0x60 }, 0x12, 0x34]);
        let Message::Req(req) = examples().remove(0) else { unreachable!() };
        let req = Req { private_data: data, ..req };
        let (parsed, user) = req.cma().unwrap();
        assert_eq!((parsed, &user[..6]), (header, &b"hello\0"[..]));
    }
    let mut bytes = [0; CMA_HEADER_LEN];
    assert_eq!(CmaHeader::parse(&bytes), Err(Error::CmField("CMA IP version")));
    bytes[0] = 1;
    assert_eq!(CmaHeader::parse(&bytes), Err(Error::CmField("CMA version")));
}

#[test]
fn user_data_is_limited_to_56_and_180_bytes() {
    let header = CmaHeader { src: [10, 0, 0, 1].into(), src_port: 1, dst: [10, 0, 0, 2].into() };
    assert!(Req::cma_private_data(&header, &[0; 56]).is_some());
    assert!(Req::cma_private_data(&header, &[0; 57]).is_none());
    assert!(SidrReq::cma_private_data(&header, &[0; 180]).is_some());
    assert!(SidrReq::cma_private_data(&header, &[0; 181]).is_none());
}

#[test]
fn service_ids_name_ports() {
    assert_eq!(ServiceId::new(PortSpace::Tcp, 7471).0, 0x0106_1d2f);
    assert_eq!(ServiceId(0x0106_1d2f).to_string(), "tcp:7471");
    assert_eq!(ServiceId(0x0111_0001).port(), Some(1));
    assert_eq!(ServiceId(0x1234_0106_1d2f).port_space(), None);
}

#[test]
fn an_exponent_is_a_power_of_two_of_four_microseconds() {
    assert_eq!(exponent_to_duration(14), Duration::from_nanos(67_108_864));
}

#[test]
#[should_panic(expected = "in a field of 3 bits")]
fn a_value_too_wide_for_its_field_is_our_own_mistake() {
    let Message::Req(req) = examples().remove(0) else { unreachable!() };
    let message = Message::Req(Req { retry_count: 8, ..req });
    let _ = Repr { transaction_id: 0, message }.to_bytes();
}
