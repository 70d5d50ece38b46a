/* Posting by function calls: every operation, lists that go whole or not at all, deferred errors. */
#include "side.h"

/* ibv_wr_flush came after the headers of Debian 12: the part behind the structure that they know. */
struct newer_qp_ex {
	struct ibv_qp_ex older;
	void (*wr_flush)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, size_t len, uint8_t type,
			 uint8_t level);
};
#define QP_EX_WITH_FLUSH (1 << 11)
#define ACCESS_FLUSH_GLOBAL 0x100
#define ACCESS_FLUSH_PERSISTENT 0x200
#define WC_FLUSH 8

static const uint64_t RC_OPS = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
			       IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
			       IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
			       IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
			       IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_ATOMIC_WRITE | QP_EX_WITH_FLUSH;

static struct ibv_qp *create_ex(struct side *s, enum ibv_qp_type type, uint64_t ops)
{
	struct ibv_qp_init_attr plain = init_attr(s, type);
	struct ibv_qp_init_attr_ex attr = {
		.qp_context = s, .send_cq = s->cq, .recv_cq = s->cq, .cap = plain.cap, .qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = s->pd,
		.send_ops_flags = ops,
	};
	return ibv_create_qp_ex(s->ctx, &attr);
}

static void begin(struct ibv_qp_ex *qp, uint64_t wr_id)
{
	ibv_wr_start(qp);
	qp->wr_id = wr_id;
	qp->wr_flags = IBV_SEND_SIGNALED;
}

static void every_operation_of_a_reliable_connection(struct side *s)
{
	struct ibv_qp *a = create_ex(s, IBV_QPT_RC, RC_OPS), *b = create_qp(s, IBV_QPT_RC);
	struct ibv_wc wc[2];
	CHECK(a);
	connect_qps(s, a, b);
	CHECK(!ibv_qp_to_qp_ex(b));
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a);
	CHECK(qp && (void *)qp == (void *)a);
	uint32_t lkey = s->mr->lkey, rkey = s->mr->rkey;
	uint64_t base = (uintptr_t)s->buf, there = base + 16384;
	memcpy(s->buf, "0123456789abcdef", 16);

	begin(qp, 1);
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, lkey, base, 4);
	EQ(post_recv_at(s, b, 2, 4096, 64), 0);
	EQ(ibv_wr_complete(qp), 0);
	expect_two(s->cq, 1, 2, wc);
	EQ(wc[1].byte_len, 4);
	EQ(memcmp(s->buf + 4096, "0123\0", 5), 0);

	begin(qp, 1);
	ibv_wr_send_imm(qp, htonl(5));
	struct ibv_sge list[2] = { sge(s, 4, 2), sge(s, 0, 2) };
	ibv_wr_set_sge_list(qp, 2, list);
	EQ(post_recv_at(s, b, 2, 4096, 64), 0);
	EQ(ibv_wr_complete(qp), 0);
	expect_two(s->cq, 1, 2, wc);
	EQ(ntohl(wc[1].imm_data), 5);
	EQ(memcmp(s->buf + 4096, "4501", 4), 0);

	begin(qp, 1);
	ibv_wr_rdma_write(qp, rkey, there);
	char mine[8] = "inlined";
	ibv_wr_set_inline_data(qp, mine, 7);
	memset(mine, 0, 8);
	EQ(ibv_wr_complete(qp), 0);
	EQ(expect(s->cq, 1, IBV_WC_SUCCESS).opcode, IBV_WC_RDMA_WRITE);
	EQ(memcmp(s->buf + 16384, "inlined\0", 8), 0);

	begin(qp, 1);
	ibv_wr_rdma_write_imm(qp, rkey, there, htonl(6));
	struct ibv_data_buf pieces[3] = { { "ab", 2 }, { NULL, 0 }, { "cd", 2 } };
	ibv_wr_set_inline_data_list(qp, 3, pieces);
	EQ(post_recv_at(s, b, 2, 4096, 0), 0);
	EQ(ibv_wr_complete(qp), 0);
	expect_two(s->cq, 1, 2, wc);
	EQ(ntohl(wc[1].imm_data), 6);
	EQ(memcmp(s->buf + 16384, "abcdned\0", 8), 0);

	begin(qp, 1);
	ibv_wr_rdma_read(qp, rkey, there);
	ibv_wr_set_sge(qp, lkey, base + 8192, 6);
	EQ(ibv_wr_complete(qp), 0);
	EQ(expect(s->cq, 1, IBV_WC_SUCCESS).byte_len, 6);
	EQ(memcmp(s->buf + 8192, "abcdne\0", 7), 0);

	uint64_t *word = (uint64_t *)(s->buf + 16384 + 64), *old = (uint64_t *)(s->buf + 8192);
	*word = 3;
	begin(qp, 1);
	ibv_wr_atomic_fetch_add(qp, rkey, there + 64, 4);
	ibv_wr_set_sge(qp, lkey, base + 8192, 8);
	EQ(ibv_wr_complete(qp), 0);
	EQ(expect(s->cq, 1, IBV_WC_SUCCESS).opcode, IBV_WC_FETCH_ADD);
	EQ(*old, 3);
	begin(qp, 1);
	ibv_wr_atomic_cmp_swp(qp, rkey, there + 64, 7, 99);
	ibv_wr_set_sge(qp, lkey, base + 8192, 8);
	EQ(ibv_wr_complete(qp), 0);
	EQ(expect(s->cq, 1, IBV_WC_SUCCESS).opcode, IBV_WC_COMP_SWAP);
	EQ(*old, 7);
	EQ(*word, 99);

	uint64_t value = 0x0102030405060708;
	begin(qp, 1);
	ibv_wr_atomic_write(qp, rkey, there + 64, &value);
	EQ(ibv_wr_complete(qp), 0);
	EQ(expect(s->cq, 1, IBV_WC_SUCCESS).opcode, IBV_WC_ATOMIC_WRITE);
	EQ(*word, value);

	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
}

static void windows(struct side *s)
{
	struct ibv_qp *a = create_ex(s, IBV_QPT_RC, RC_OPS), *b = create_qp(s, IBV_QPT_RC);
	struct ibv_wc wc[2];
	CHECK(a);
	connect_qps(s, a, b);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a);
	struct ibv_mw *mw = ibv_alloc_mw(s->pd, IBV_MW_TYPE_2);
	CHECK(mw);
	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	struct ibv_mw_bind_info info = { .mr = s->mr, .addr = (uintptr_t)s->buf + 16384, .length = 64,
					 .mw_access_flags = IBV_ACCESS_REMOTE_WRITE };
	begin(qp, 1);
	ibv_wr_bind_mw(qp, mw, rkey, &info);
	EQ(ibv_wr_complete(qp), 0);
	EQ(expect(s->cq, 1, IBV_WC_SUCCESS).opcode, IBV_WC_BIND_MW);

	/* The peer writes through it, then takes it away with a SEND. */
	memcpy(s->buf, "windowed", 8);
	struct ibv_sge one = sge(s, 0, 8);
	struct ibv_send_wr wr = { .wr_id = 3, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED };
	wr.wr.rdma.remote_addr = (uintptr_t)s->buf + 16384;
	wr.wr.rdma.rkey = rkey;
	EQ(post_one(b, &wr), 0);
	expect(s->cq, 3, IBV_WC_SUCCESS);
	EQ(memcmp(s->buf + 16384, "windowed", 8), 0);
	wr.opcode = IBV_WR_SEND_WITH_INV;
	wr.invalidate_rkey = rkey;
	EQ(post_recv_at(s, a, 4, 4096, 8), 0);
	EQ(post_one(b, &wr), 0);
	expect_two(s->cq, 3, 4, wc);
	EQ(wc[1].wc_flags, IBV_WC_GRH | IBV_WC_WITH_INV);
	EQ(wc[1].invalidated_rkey, rkey);

	/* Bound again, it is taken away by its owner, and the peer is refused. */
	rkey = ibv_inc_rkey(rkey);
	begin(qp, 1);
	ibv_wr_bind_mw(qp, mw, rkey, &info);
	qp->wr_id = 2;
	ibv_wr_local_inv(qp, rkey);
	EQ(ibv_wr_complete(qp), 0);
	expect(s->cq, 1, IBV_WC_SUCCESS);
	EQ(expect(s->cq, 2, IBV_WC_SUCCESS).opcode, IBV_WC_LOCAL_INV);
	wr.opcode = IBV_WR_RDMA_WRITE;
	EQ(post_one(b, &wr), 0);
	expect(s->cq, 3, IBV_WC_REM_ACCESS_ERR);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	EQ(ibv_dealloc_mw(mw), 0);
}

static void send_inv(struct side *s)
{
	struct ibv_qp *a = create_ex(s, IBV_QPT_RC, RC_OPS), *b = create_ex(s, IBV_QPT_RC, RC_OPS);
	struct ibv_wc wc[2];
	connect_qps(s, a, b);
	struct ibv_qp_ex *qa = ibv_qp_to_qp_ex(a), *qb = ibv_qp_to_qp_ex(b);
	struct ibv_mw *mw = ibv_alloc_mw(s->pd, IBV_MW_TYPE_2);
	struct ibv_mw_bind_info info = { .mr = s->mr, .addr = (uintptr_t)s->buf, .length = 64,
					 .mw_access_flags = IBV_ACCESS_REMOTE_READ };
	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	begin(qb, 1);
	ibv_wr_bind_mw(qb, mw, rkey, &info);
	EQ(ibv_wr_complete(qb), 0);
	expect(s->cq, 1, IBV_WC_SUCCESS);
	EQ(post_recv_at(s, b, 2, 4096, 8), 0);
	begin(qa, 1);
	ibv_wr_send_inv(qa, rkey);
	EQ(ibv_wr_complete(qa), 0);
	expect_two(s->cq, 1, 2, wc);
	EQ(wc[1].wc_flags, IBV_WC_GRH | IBV_WC_WITH_INV);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	EQ(ibv_dealloc_mw(mw), 0);
}

static void flushes(struct side *s)
{
	struct ibv_qp *a = create_ex(s, IBV_QPT_RC, RC_OPS), *b = create_qp(s, IBV_QPT_RC);
	connect_qps(s, a, b);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a);
	struct newer_qp_ex *newer = (struct newer_qp_ex *)qp;
	uint64_t addr = (uintptr_t)s->buf + 16384;
	struct ibv_mr *mr = ibv_reg_mr(s->pd, s->buf, SIZE, ALL_ACCESS | ACCESS_FLUSH_GLOBAL);
	CHECK(mr);
	begin(qp, 1);
	ibv_wr_rdma_write(qp, mr->rkey, addr);
	ibv_wr_set_inline_data(qp, "durable?", 8);
	qp->wr_id = 2;
	newer->wr_flush(qp, mr->rkey, addr, 8, 1, 0);
	qp->wr_id = 3;
	newer->wr_flush(qp, mr->rkey, 0, 0, 1, 1);
	EQ(ibv_wr_complete(qp), 0);
	expect(s->cq, 1, IBV_WC_SUCCESS);
	EQ(expect(s->cq, 2, IBV_WC_SUCCESS).opcode, WC_FLUSH);
	EQ(expect(s->cq, 3, IBV_WC_SUCCESS).opcode, WC_FLUSH);
	EQ(memcmp(s->buf + 16384, "durable?", 8), 0);
	for (int type = 0; type < 256; type += 4) {
		begin(qp, 4);
		newer->wr_flush(qp, mr->rkey, addr, 8, type, 0);
		EQ(ibv_wr_complete(qp), EINVAL);
	}
	begin(qp, 4);
	newer->wr_flush(qp, mr->rkey, addr, 8, 1, 2);
	EQ(ibv_wr_complete(qp), EINVAL);
	begin(qp, 4);
	newer->wr_flush(qp, mr->rkey, addr, 1ULL << 32, 1, 0);
	EQ(ibv_wr_complete(qp), EINVAL);
	/* Registered for visibility, asked for persistence. */
	begin(qp, 5);
	newer->wr_flush(qp, mr->rkey, addr, 8, 2, 0);
	EQ(ibv_wr_complete(qp), 0);
	expect(s->cq, 5, IBV_WC_REM_ACCESS_ERR);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	EQ(ibv_dereg_mr(mr), 0);
}

static void a_list_goes_whole_or_not_at_all(struct side *s)
{
	struct ibv_qp *a = create_ex(s, IBV_QPT_RC, RC_OPS), *b = create_qp(s, IBV_QPT_RC);
	connect_qps(s, a, b);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a);
	uint64_t base = (uintptr_t)s->buf, there = base + 16384;
	uint32_t lkey = s->mr->lkey, rkey = s->mr->rkey;
	struct ibv_wc wc;
	memset(s->buf + 16384, 0xee, 1024);

	/* One more than the queue has. */
	for (int n = 17; n >= 16; n--) {
		ibv_wr_start(qp);
		for (int i = 0; i < n; i++) {
			uint8_t byte = i;
			qp->wr_id = i;
			qp->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_rdma_write(qp, rkey, there + i);
			ibv_wr_set_inline_data(qp, &byte, 1);
		}
		EQ(ibv_wr_complete(qp), n == 17 ? ENOMEM : 0);
	}
	for (int i = 0; i < 16; i++) {
		expect(s->cq, i, IBV_WC_SUCCESS);
		EQ(s->buf[16384 + i], i);
	}
	EQ(s->buf[16384 + 16], 0xee);

	/* The second is wrong in itself: found out when the list is complete, or before. */
	for (int kind = 0; kind < 6; kind++) {
		struct ibv_sge five[5] = { { 0 } };
		char long_data[65] = { 0 };
		begin(qp, 1);
		ibv_wr_rdma_write(qp, rkey, there + 100);
		ibv_wr_set_inline_data(qp, "x", 1);
		switch (kind) {
		case 0:
			ibv_wr_atomic_fetch_add(qp, rkey, there, 1);
			ibv_wr_set_sge(qp, lkey, base, 4);
			break;
		case 1:
			ibv_wr_send(qp);
			ibv_wr_set_sge_list(qp, 5, five);
			break;
		case 2:
			ibv_wr_send(qp);
			ibv_wr_set_inline_data(qp, long_data, 65);
			break;
		case 3:
			ibv_wr_set_ud_addr(qp, NULL, 0, 0);
			break;
		case 4:
			ibv_wr_send_tso(qp, long_data, 8, 8);
			break;
		case 5:
			ibv_wr_set_xrc_srqn(qp, 1);
			break;
		}
		EQ(ibv_wr_complete(qp), kind < 4 ? EINVAL : EOPNOTSUPP);
	}
	begin(qp, 1);
	ibv_wr_set_sge(qp, lkey, base, 4);
	EQ(ibv_wr_complete(qp), EINVAL);

	begin(qp, 1);
	ibv_wr_rdma_write(qp, rkey, there + 100);
	ibv_wr_set_inline_data(qp, "x", 1);
	ibv_wr_abort(qp);
	ibv_wr_start(qp);
	EQ(ibv_wr_complete(qp), 0);
	EQ(ibv_poll_cq(s->cq, 1, &wc), 0);
	EQ(s->buf[16384 + 100], 0xee);

	begin(qp, 7);
	ibv_wr_rdma_write(qp, rkey, there + 100);
	ibv_wr_set_inline_data(qp, "x", 1);
	EQ(ibv_wr_complete(qp), 0);
	expect(s->cq, 7, IBV_WC_SUCCESS);
	EQ(s->buf[16384 + 100], 'x');
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
}

static void datagrams(struct side *s)
{
	struct ibv_qp *a = create_ex(s, IBV_QPT_UD, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
	struct ibv_qp *b = create_qp(s, IBV_QPT_UD);
	struct ibv_wc wc[2];
	CHECK(a);
	connect_qps(s, a, b);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = s->gid } };
	struct ibv_ah *ah = ibv_create_ah(s->pd, &attr);
	CHECK(ah);
	EQ(post_recv_at(s, b, 2, 4096, 100), 0);
	begin(qp, 1);
	ibv_wr_send_imm(qp, htonl(9));
	ibv_wr_set_ud_addr(qp, ah, b->qp_num, QKEY);
	ibv_wr_set_inline_data(qp, "dg", 2);
	EQ(ibv_wr_complete(qp), 0);
	expect_two(s->cq, 1, 2, wc);
	EQ(wc[1].byte_len, 42);
	EQ(wc[1].src_qp, a->qp_num);
	begin(qp, 1);
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, "dg", 2);
	EQ(ibv_wr_complete(qp), EINVAL);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	EQ(ibv_destroy_ah(ah), 0);
}

static void what_there_is_not(struct side *s)
{
	errno = 0;
	CHECK(!create_ex(s, IBV_QPT_RC, IBV_QP_EX_WITH_TSO));
	create_ex(s, IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ);
	EQ(errno, EOPNOTSUPP);
	create_ex(s, IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE);
	EQ(errno, EOPNOTSUPP);
	create_ex(s, IBV_QPT_XRC_SEND, IBV_QP_EX_WITH_SEND);
	EQ(errno, EOPNOTSUPP);
	create_ex(s, IBV_QPT_RC, 1ULL << 40);
	EQ(errno, EOPNOTSUPP);
	struct ibv_qp *uc = create_ex(s, IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND);
	CHECK(uc);
	EQ(ibv_destroy_qp(uc), 0);
	struct ibv_qp_init_attr plain = init_attr(s, IBV_QPT_RC);
	struct ibv_qp_init_attr_ex attr = { .send_cq = s->cq, .recv_cq = s->cq, .cap = plain.cap,
					    .qp_type = IBV_QPT_RC, .pd = s->pd,
					    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
					    .create_flags = IBV_QP_CREATE_SCATTER_FCS };
	CHECK(!ibv_create_qp_ex(s->ctx, &attr));
	attr.create_flags = 0;
	struct ibv_qp *qp = ibv_create_qp_ex(s->ctx, &attr);
	CHECK(qp && !ibv_qp_to_qp_ex(qp));
	CHECK(attr.cap.max_send_wr >= 16);
	EQ(ibv_destroy_qp(qp), 0);
}

int main(void)
{
	struct side s;
	open_side(&s);
	every_operation_of_a_reliable_connection(&s);
	windows(&s);
	send_inv(&s);
	flushes(&s);
	a_list_goes_whole_or_not_at_all(&s);
	datagrams(&s);
	what_there_is_not(&s);
	close_side(&s);
	return 0;
}
