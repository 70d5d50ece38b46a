/* UD: address handles, the GRH area, source QPs, Q_Keys. */
#include "side.h"

static void groups(struct side *s)
{
	struct ibv_qp *a, *b, *rc = create_qp(s, IBV_QPT_RC);
	struct ibv_wc wc;
	union ibv_gid group = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 230, 1, 2, 3 } };
	create_pair(s, IBV_QPT_UD, &a, &b);
	EQ(ibv_attach_mcast(rc, &group, 0), EINVAL);
	EQ(ibv_attach_mcast(a, &s->gid, 0), EINVAL);
	EQ(ibv_attach_mcast(a, &group, 0), 0);
	EQ(ibv_attach_mcast(b, &group, 0), 0);
	EQ(ibv_attach_mcast(b, &group, 0), 0);
	EQ(ibv_destroy_qp(b), EBUSY);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = group } };
	struct ibv_ah *ah = ibv_create_ah(s->pd, &attr);
	CHECK(ah);
	struct ibv_sge one = sge(s, 0, 8);
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_SEND };
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = 0xffffff;
	wr.wr.ud.remote_qkey = QKEY;
	EQ(post_recv_at(s, a, 2, 4096, 48), 0);
	EQ(post_recv_at(s, b, 2, 8192, 48), 0);
	EQ(post_one(a, &wr), 0);
	for (int i = 0; i < 2; i++) {
		wc = expect(s->cq, 2, IBV_WC_SUCCESS);
		EQ(wc.src_qp, a->qp_num);
	}
	EQ(memcmp(s->buf + 4096 + 40, s->buf, 8), 0);
	EQ(memcmp(s->buf + 8192 + 40, s->buf, 8), 0);
	EQ(ibv_detach_mcast(b, &group, 0), 0);
	EQ(ibv_detach_mcast(b, &group, 0), EINVAL);
	EQ(ibv_destroy_qp(b), 0);
	EQ(ibv_detach_mcast(a, &group, 0), 0);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(rc), 0);
	EQ(ibv_destroy_ah(ah), 0);
}

int main(void)
{
	struct side s;
	struct ibv_qp *a, *b;
	struct ibv_wc wc[2];
	open_side(&s);
	groups(&s);
	create_pair(&s, IBV_QPT_UD, &a, &b);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = s.gid, .hop_limit = 64 } };
	struct ibv_ah *ah = ibv_create_ah(s.pd, &attr);
	CHECK(ah);
	memcpy(s.buf, "datagram", 8);
	struct ibv_sge one = sge(&s, 0, 8);
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
				  .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(77) };
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = b->qp_num;
	wr.wr.ud.remote_qkey = QKEY;
	EQ(post_recv_at(&s, b, 2, 4096, 100), 0);
	EQ(post_one(a, &wr), 0);
	expect_two(s.cq, 1, 2, wc);
	EQ(wc[1].byte_len, 48);
	EQ(wc[1].src_qp, a->qp_num);
	EQ(wc[1].qp_num, b->qp_num);
	EQ(wc[1].wc_flags, IBV_WC_GRH | IBV_WC_WITH_IMM);
	EQ(ntohl(wc[1].imm_data), 77);
	EQ(wc[1].slid, 0);
	EQ(wc[1].pkey_index, 0);
	EQ(memcmp(s.buf + 4096 + 40, "datagram", 8), 0);

	/* An answer to whoever that was. */
	struct ibv_ah *back = ibv_create_ah_from_wc(s.pd, &wc[1], (struct ibv_grh *)(s.buf + 4096), 1);
	CHECK(back);
	wr.wr.ud.ah = back;
	wr.wr.ud.remote_qpn = wc[1].src_qp;
	EQ(post_recv_at(&s, a, 2, 8192, 48), 0);
	EQ(post_one(b, &wr), 0);
	expect_two(s.cq, 1, 2, wc);
	EQ(wc[1].src_qp, b->qp_num);

	/* A wrong Q_Key: sent, and dropped there. */
	wr.wr.ud.remote_qkey = QKEY + 1;
	EQ(post_recv_at(&s, a, 3, 8192, 48), 0);
	EQ(post_one(b, &wr), 0);
	expect(s.cq, 1, IBV_WC_SUCCESS);
	wr.wr.ud.remote_qkey = QKEY;
	wr.sg_list = NULL;
	wr.num_sge = 0;
	EQ(post_one(b, &wr), 0);
	expect_two(s.cq, 1, 3, wc);
	EQ(wc[1].byte_len, 40);

	one.length = 4097;
	wr.sg_list = &one;
	wr.num_sge = 1;
	EQ(post_one(b, &wr), EINVAL);
	one.length = 8;
	wr.wr.ud.ah = NULL;
	EQ(post_one(b, &wr), EINVAL);
	wr.wr.ud.ah = back;
	wr.opcode = IBV_WR_RDMA_WRITE;
	EQ(post_one(b, &wr), EINVAL);
	EQ(ibv_destroy_ah(back), 0);
	EQ(ibv_destroy_ah(ah), 0);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	close_side(&s);
	return 0;
}
