/* RC and UC through ibv_post_send: every opcode, inline data, lists, and what goes wrong. */
#include "side.h"

static void sends_and_immediates(enum ibv_qp_type type)
{
	struct side s;
	struct ibv_qp *a, *b;
	struct ibv_wc wc[2];
	open_side(&s);
	create_pair(&s, type, &a, &b);
	memcpy(s.buf, "hello", 5);
	struct ibv_sge one = sge(&s, 0, 5);
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED };

	EQ(post_recv_at(&s, b, 2, 4096, 100), 0);
	EQ(post_one(a, &wr), 0);
	expect_two(s.cq, 1, 2, wc);
	EQ(wc[0].opcode, IBV_WC_SEND);
	EQ(wc[0].qp_num, a->qp_num);
	EQ(wc[1].opcode, IBV_WC_RECV);
	EQ(wc[1].byte_len, 5);
	EQ(wc[1].wc_flags, IBV_WC_GRH);
	EQ(wc[1].qp_num, b->qp_num);
	EQ(memcmp(s.buf + 4096, "hello\0", 6), 0);

	wr.opcode = IBV_WR_SEND_WITH_IMM;
	wr.imm_data = htonl(0x01020304);
	EQ(post_recv_at(&s, b, 2, 4096, 100), 0);
	EQ(post_one(a, &wr), 0);
	expect_two(s.cq, 1, 2, wc);
	EQ(wc[1].wc_flags, IBV_WC_GRH | IBV_WC_WITH_IMM);
	EQ(ntohl(wc[1].imm_data), 0x01020304);

	memset(s.buf + 8192, 0xee, 16);
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.remote_addr = (uintptr_t)s.buf + 8193;
	wr.wr.rdma.rkey = s.mr->rkey;
	EQ(post_one(a, &wr), 0);
	EQ(expect(s.cq, 1, IBV_WC_SUCCESS).opcode, IBV_WC_RDMA_WRITE);
	wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr.wr.rdma.remote_addr = (uintptr_t)s.buf + 8193 + 5;
	EQ(post_recv_at(&s, b, 2, 4096, 0), 0);
	EQ(post_one(a, &wr), 0);
	expect_two(s.cq, 1, 2, wc);
	EQ(wc[1].opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	EQ(wc[1].byte_len, 5);
	EQ(ntohl(wc[1].imm_data), 0x01020304);
	EQ(memcmp(s.buf + 8192, "\xeehellohello\xee", 12), 0);

	if (type == IBV_QPT_UC) {
		wr.opcode = IBV_WR_RDMA_READ;
		EQ(post_one(a, &wr), EINVAL);
		wr.opcode = IBV_WR_SEND_WITH_INV;
		EQ(post_one(a, &wr), EINVAL);
	}
	EQ(ibv_destroy_cq(s.cq), EBUSY);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	close_side(&s);
}

static void reads_and_atomics(void)
{
	struct side s;
	struct ibv_qp *a, *b;
	open_side(&s);
	create_pair(&s, IBV_QPT_RC, &a, &b);
	for (int i = 0; i < 9000; i++)
		s.buf[8192 + i] = i * 7;
	struct ibv_sge two[2] = { sge(&s, 0, 1), sge(&s, 100, 8000) };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = two, .num_sge = 2, .opcode = IBV_WR_RDMA_READ,
				  .send_flags = IBV_SEND_SIGNALED };
	wr.wr.rdma.remote_addr = (uintptr_t)s.buf + 8192;
	wr.wr.rdma.rkey = s.mr->rkey;
	EQ(post_one(a, &wr), 0);
	struct ibv_wc wc = expect(s.cq, 1, IBV_WC_SUCCESS);
	EQ(wc.opcode, IBV_WC_RDMA_READ);
	EQ(wc.byte_len, 8001);
	EQ(memcmp(s.buf + 100, s.buf + 8193, 8000), 0);

	uint64_t *word = (uint64_t *)(s.buf + 32768), *old = (uint64_t *)(s.buf + 40000);
	*word = 5;
	struct ibv_sge result = sge(&s, 40000, 8);
	struct ibv_send_wr atomic = { .wr_id = 2, .sg_list = &result, .num_sge = 1,
				      .opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .send_flags = IBV_SEND_SIGNALED };
	atomic.wr.atomic.remote_addr = (uintptr_t)word;
	atomic.wr.atomic.rkey = s.mr->rkey;
	atomic.wr.atomic.compare_add = 5;
	atomic.wr.atomic.swap = 0x1122334455667788;
	EQ(post_one(a, &atomic), 0);
	EQ(expect(s.cq, 2, IBV_WC_SUCCESS).opcode, IBV_WC_COMP_SWAP);
	EQ(*old, 5);
	EQ(*word, 0x1122334455667788);
	atomic.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	atomic.wr.atomic.compare_add = 8;
	EQ(post_one(a, &atomic), 0);
	EQ(expect(s.cq, 2, IBV_WC_SUCCESS).opcode, IBV_WC_FETCH_ADD);
	EQ(*old, 0x1122334455667788);
	EQ(*word, 0x1122334455667790);
	result.length = 4;
	EQ(post_one(a, &atomic), EINVAL);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	close_side(&s);
}

static void inline_data_is_copied_when_posted(void)
{
	struct side s;
	struct ibv_qp *a, *b;
	uint8_t mine[80];
	open_side(&s);
	create_pair(&s, IBV_QPT_RC, &a, &b);
	memset(mine, 7, sizeof mine);
	mine[63] = 8;
	struct ibv_sge parts[3] = { { .addr = (uintptr_t)mine, .length = 60 }, { .addr = 0, .length = 0 },
				    { .addr = (uintptr_t)mine + 60, .length = 4 } };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = parts, .num_sge = 3, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE };
	wr.wr.rdma.remote_addr = (uintptr_t)s.buf;
	wr.wr.rdma.rkey = s.mr->rkey;
	EQ(post_one(a, &wr), 0);
	memset(mine, 0, sizeof mine);
	expect(s.cq, 1, IBV_WC_SUCCESS);
	EQ(s.buf[0], 7);
	EQ(s.buf[62], 7);
	EQ(s.buf[63], 8);
	EQ(s.buf[64], 0);
	parts[2].length = 5;
	EQ(post_one(a, &wr), EINVAL);
	wr.num_sge = 1;
	parts[0].length = 65;
	EQ(post_one(a, &wr), EINVAL);
	parts[0].length = 0;
	EQ(post_one(a, &wr), 0);
	expect(s.cq, 1, IBV_WC_SUCCESS);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	close_side(&s);
}

static void a_list_is_posted_up_to_the_bad_one(void)
{
	struct side s;
	struct ibv_qp *a, *b;
	struct ibv_send_wr wr[20], *bad;
	struct ibv_recv_wr rr[20], *bad_rr;
	open_side(&s);
	create_pair(&s, IBV_QPT_RC, &a, &b);
	struct ibv_sge one = sge(&s, 0, 8), five[5] = { one, one, one, one, one };
	memset(wr, 0, sizeof wr);
	memset(rr, 0, sizeof rr);
	for (int i = 0; i < 20; i++) {
		wr[i].wr_id = 100 + i;
		wr[i].next = i < 19 ? &wr[i + 1] : NULL;
		wr[i].sg_list = &one;
		wr[i].num_sge = 1;
		wr[i].opcode = IBV_WR_SEND;
		wr[i].send_flags = IBV_SEND_SIGNALED;
		rr[i].wr_id = 200 + i;
		rr[i].next = i < 19 ? &rr[i + 1] : NULL;
	}
	/* Sixteen fit. */
	EQ(ibv_post_recv(b, rr, &bad_rr), ENOMEM);
	EQ(bad_rr - rr, 16);
	wr[3].sg_list = five;
	wr[3].num_sge = 5;
	EQ(ibv_post_send(a, wr, &bad), EINVAL);
	EQ(bad - wr, 3);
	for (int seen = 0; seen < 3;) {
		struct ibv_wc wc = next_wc(s.cq);
		/* The receives have no room for 8 bytes. */
		if (wc.wr_id >= 200) {
			EQ(wc.status, seen == 0 && wc.wr_id == 200 ? IBV_WC_LOC_LEN_ERR : IBV_WC_WR_FLUSH_ERR);
			continue;
		}
		EQ(wc.wr_id, 100 + seen);
		EQ(wc.status, seen == 0 ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_WR_FLUSH_ERR);
		seen++;
	}
	EQ(state_of(a), IBV_QPS_ERR);
	EQ(state_of(b), IBV_QPS_ERR);
	wr[3].next = NULL;
	wr[3].num_sge = -1;
	EQ(ibv_post_send(a, &wr[3], &bad), EINVAL);
	rr[0].next = NULL;
	rr[0].num_sge = -1;
	EQ(ibv_post_recv(b, rr, &bad_rr), EINVAL);
	EQ(bad_rr - rr, 0);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	close_side(&s);
}

/* As they lie in packed structures: C's loads do not mind. */
static void lists_may_lie_anywhere(void)
{
	struct side s;
	struct ibv_qp *a, *b;
	struct ibv_send_wr *bad;
	struct ibv_recv_wr *bad_rr;
	_Alignas(16) char room[2][4 + 2 * sizeof(struct ibv_sge)];
	open_side(&s);
	create_pair(&s, IBV_QPT_RC, &a, &b);
	struct ibv_sge from[2] = { sge(&s, 0, 8), sge(&s, 100, 8) }, to[2] = { sge(&s, 1000, 4), sge(&s, 1100, 12) };
	memcpy(room[0] + 4, from, sizeof from);
	memcpy(room[1] + 4, to, sizeof to);
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = (void *)(room[0] + 4), .num_sge = 2, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED };
	struct ibv_recv_wr rr = { .wr_id = 2, .sg_list = (void *)(room[1] + 4), .num_sge = 2 };
	memcpy(s.buf, "01234567", 8);
	memcpy(s.buf + 100, "89abcdef", 8);
	EQ(ibv_post_recv(b, &rr, &bad_rr), 0);
	EQ(ibv_post_send(a, &wr, &bad), 0);
	for (int i = 0; i < 2; i++)
		EQ(next_wc(s.cq).status, IBV_WC_SUCCESS);
	EQ(memcmp(s.buf + 1000, "0123", 4), 0);
	EQ(memcmp(s.buf + 1100, "456789abcdef", 12), 0);
	/* More than any queue takes. */
	wr.num_sge = 1000;
	EQ(ibv_post_send(a, &wr, &bad), EINVAL);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	close_side(&s);
}

static void a_full_send_queue_says_so(void)
{
	struct side s;
	struct ibv_send_wr wr[20], *bad;
	open_side(&s);
	struct ibv_qp *a = create_qp(&s, IBV_QPT_RC);
	memset(wr, 0, sizeof wr);
	EQ(ibv_post_send(a, wr, &bad), EINVAL);
	EQ(post_recv_at(&s, a, 1, 0, 8), EINVAL);
	EQ(to_init(a), 0);
	EQ(post_recv_at(&s, a, 1, 0, 8), 0);
	/* Nobody answers there. */
	EQ(to_rtr(a, &s, 0x777777), 0);
	EQ(to_rts_within(a, 7, 10), 0);
	for (int i = 0; i < 20; i++) {
		wr[i].wr_id = i;
		wr[i].next = i < 19 ? &wr[i + 1] : NULL;
		wr[i].opcode = IBV_WR_SEND;
	}
	EQ(ibv_post_send(a, wr, &bad), ENOMEM);
	EQ(bad - wr, 16);
	/* None is signalled, but errors complete all the same. */
	expect(s.cq, 0, IBV_WC_RETRY_EXC_ERR);
	for (int i = 1; i < 17; i++) {
		struct ibv_wc wc = next_wc(s.cq);
		EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
	}
	EQ(ibv_poll_cq(s.cq, 1, &(struct ibv_wc){ 0 }), 0);
	EQ(ibv_destroy_qp(a), 0);
	close_side(&s);
}

static void errors_have_their_status(void)
{
	static const struct {
		enum ibv_wr_opcode opcode;
		int bad_lkey, bad_rkey, beyond, misaligned, no_recv;
		enum ibv_wc_status status;
	} cases[] = {
		{ IBV_WR_RDMA_WRITE, 0, 1, 0, 0, 0, IBV_WC_REM_ACCESS_ERR },
		{ IBV_WR_RDMA_READ, 0, 0, 1, 0, 0, IBV_WC_REM_ACCESS_ERR },
		{ IBV_WR_SEND, 1, 0, 0, 0, 0, IBV_WC_LOC_PROT_ERR },
		{ IBV_WR_RDMA_READ, 1, 0, 0, 0, 0, IBV_WC_LOC_PROT_ERR },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 0, 0, 1, 0, IBV_WC_REM_INV_REQ_ERR },
		{ IBV_WR_SEND, 0, 0, 0, 0, 1, IBV_WC_RNR_RETRY_EXC_ERR },
		{ IBV_WR_LOCAL_INV, 0, 1, 0, 0, 0, IBV_WC_MW_BIND_ERR },
	};
	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct side s;
		open_side(&s);
		struct ibv_qp *a = create_qp(&s, IBV_QPT_RC), *b = create_qp(&s, IBV_QPT_RC);
		connect_rnr(&s, a, b, 0);
		struct ibv_sge one = sge(&s, 0, 8);
		struct ibv_send_wr wr[2] = { { .wr_id = 1, .next = &wr[1], .opcode = cases[i].opcode,
					       .sg_list = &one, .num_sge = 1 },
					     { .wr_id = 2, .opcode = IBV_WR_SEND } },
				   *bad;
		uint64_t addr = (uintptr_t)s.buf + 4096 + (cases[i].beyond ? SIZE : 0) + cases[i].misaligned;
		uint32_t rkey = s.mr->rkey + cases[i].bad_rkey;
		one.lkey += cases[i].bad_lkey;
		if (cases[i].opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wr[0].wr.atomic.remote_addr = addr;
			wr[0].wr.atomic.rkey = rkey;
		} else if (cases[i].opcode == IBV_WR_LOCAL_INV) {
			wr[0].num_sge = 0;
			wr[0].invalidate_rkey = rkey;
		} else {
			wr[0].wr.rdma.remote_addr = addr;
			wr[0].wr.rdma.rkey = rkey;
		}
		EQ(ibv_post_send(a, wr, &bad), 0);
		struct ibv_wc wc = next_wc(s.cq);
		if (cases[i].opcode == IBV_WR_LOCAL_INV)
			CHECK(wc.status != IBV_WC_SUCCESS);
		else
			EQ(wc.status, cases[i].status);
		EQ(wc.wr_id, 1);
		EQ(wc.qp_num, a->qp_num);
		expect(s.cq, 2, IBV_WC_WR_FLUSH_ERR);
		EQ(state_of(a), IBV_QPS_ERR);
		EQ(ibv_destroy_qp(a), 0);
		EQ(ibv_destroy_qp(b), 0);
		close_side(&s);
	}
}

static void attributes_come_back(void)
{
	struct side s;
	struct ibv_qp *a, *b;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	open_side(&s);
	create_pair(&s, IBV_QPT_RC, &a, &b);
	EQ(ibv_query_qp(a, &attr, ~0, &init), 0);
	EQ(attr.qp_state, IBV_QPS_RTS);
	EQ(attr.cur_qp_state, IBV_QPS_RTS);
	EQ(attr.path_mtu, IBV_MTU_1024);
	EQ(attr.path_mig_state, IBV_MIG_MIGRATED);
	EQ(attr.rq_psn, 0x123);
	EQ(attr.sq_psn, 0x123);
	EQ(attr.dest_qp_num, b->qp_num);
	EQ(attr.qp_access_flags, 0x30e);
	EQ(attr.port_num, 1);
	EQ(attr.timeout, 20);
	EQ(attr.retry_cnt, 6);
	EQ(attr.rnr_retry, 7);
	EQ(attr.min_rnr_timer, 1);
	EQ(attr.max_rd_atomic, 4);
	EQ(attr.max_dest_rd_atomic, 4);
	EQ(attr.ah_attr.is_global, 1);
	EQ(attr.ah_attr.port_num, 1);
	EQ(memcmp(&attr.ah_attr.grh.dgid, &s.gid, 16), 0);
	CHECK(attr.cap.max_send_wr >= 16 && attr.cap.max_inline_data >= 64);
	CHECK(init.qp_context == &s && init.send_cq == s.cq && init.recv_cq == s.cq && !init.srq);
	EQ(init.qp_type, IBV_QPT_RC);
	EQ(init.sq_sig_all, 0);

	/* The state machine. */
	EQ(to_rtr(a, &s, b->qp_num), EINVAL);
	attr.qp_state = IBV_QPS_SQD;
	EQ(ibv_modify_qp(a, &attr, IBV_QP_STATE), 0);
	EQ(state_of(a), IBV_QPS_SQD);
	attr.qp_state = IBV_QPS_RTS;
	attr.cur_qp_state = IBV_QPS_RTS;
	EQ(ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL);
	EQ(a->state, IBV_QPS_SQD);
	attr.cur_qp_state = IBV_QPS_SQD;
	EQ(ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), 0);
	attr.qp_state = IBV_QPS_ERR;
	EQ(ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_PORT), EINVAL);
	EQ(ibv_modify_qp(a, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RESET;
	EQ(ibv_modify_qp(a, &attr, IBV_QP_STATE), 0);
	EQ(state_of(a), IBV_QPS_RESET);
	EQ(to_rts(a, 7), EINVAL);
	EQ(to_init(a), 0);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);

	/* What there is not. */
	init = init_attr(&s, IBV_QPT_RAW_PACKET);
	CHECK(!ibv_create_qp(s.pd, &init));
	init = init_attr(&s, IBV_QPT_RC);
	init.cap.max_send_wr = 1 << 30;
	CHECK(!ibv_create_qp(s.pd, &init));
	init = init_attr(&s, IBV_QPT_RC);
	init.send_cq = NULL;
	CHECK(!ibv_create_qp(s.pd, &init));
	close_side(&s);
}

static void a_fence_and_sq_sig_all(void)
{
	struct side s;
	open_side(&s);
	struct ibv_qp_init_attr init = init_attr(&s, IBV_QPT_RC);
	init.sq_sig_all = 1;
	struct ibv_qp *a = ibv_create_qp(s.pd, &init), *b = create_qp(&s, IBV_QPT_RC);
	CHECK(a);
	connect_qps(&s, a, b);
	struct ibv_sge one = sge(&s, 0, 8);
	struct ibv_send_wr wr[2] = {
		{ .wr_id = 1, .next = &wr[1], .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_RDMA_READ },
		{ .wr_id = 2, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		  .send_flags = IBV_SEND_FENCE },
	}, *bad;
	memcpy(s.buf + 4096, "fetched!", 8);
	wr[0].wr.rdma.remote_addr = (uintptr_t)s.buf + 4096;
	wr[1].wr.rdma.remote_addr = (uintptr_t)s.buf + 8192;
	wr[0].wr.rdma.rkey = wr[1].wr.rdma.rkey = s.mr->rkey;
	EQ(ibv_post_send(a, wr, &bad), 0);
	expect(s.cq, 1, IBV_WC_SUCCESS);
	expect(s.cq, 2, IBV_WC_SUCCESS);
	EQ(memcmp(s.buf + 8192, "fetched!", 8), 0);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	close_side(&s);
}

int main(void)
{
	sends_and_immediates(IBV_QPT_RC);
	sends_and_immediates(IBV_QPT_UC);
	reads_and_atomics();
	inline_data_is_copied_when_posted();
	a_list_is_posted_up_to_the_bad_one();
	lists_may_lie_anywhere();
	a_full_send_queue_says_so();
	errors_have_their_status();
	attributes_come_back();
	a_fence_and_sq_sig_all();
	return 0;
}
