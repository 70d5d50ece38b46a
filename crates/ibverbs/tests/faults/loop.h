/* Two RC QPs of this process, connected with each other. */
#include "faults.h"

static struct ibv_context *ctx;
static struct ibv_pd *pd;

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	ctx = ibv_open_device(list[0]);
	CHECK(ctx);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(ctx);
	CHECK(pd);
}

static void close_device(void)
{
	SAME(ibv_dealloc_pd(pd), 0);
	SAME(ibv_close_device(ctx), 0);
}

struct side {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *memory;
	size_t size;
};

static struct ibv_qp_cap caps = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64};
static int cqe = 64;

static void make_side(struct side *side, size_t size)
{
	struct ibv_qp_init_attr init = {.cap = caps, .qp_type = IBV_QPT_RC};
	side->size = size;
	side->memory = pages(size);
	CHECK(side->mr = ibv_reg_mr(pd, side->memory, size, ALL));
	CHECK(side->cq = ibv_create_cq(ctx, cqe, side, NULL, 0));
	init.send_cq = init.recv_cq = side->cq;
	CHECK(side->qp = ibv_create_qp(pd, &init));
}

static void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL};
	SAME(ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
}

static void connect_qp(struct ibv_qp *qp, uint32_t dest)
{
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = dest, .rq_psn = 7,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 1,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 4}}};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 16, .retry_cnt = 7, .rnr_retry = 1, .sq_psn = 7,
		.max_rd_atomic = 4};
	SAME(ibv_query_gid(ctx, 1, 0, &rtr.ah_attr.grh.dgid), 0);
	to_init(qp);
	SAME(ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
	SAME(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			IBV_QP_MAX_QP_RD_ATOMIC), 0);
}

static void make_pair(struct side *a, struct side *b, size_t size)
{
	make_side(a, size);
	make_side(b, size);
	connect_qp(a->qp, b->qp->qp_num);
	connect_qp(b->qp, a->qp->qp_num);
}

static void destroy_side(struct side *side)
{
	SAME(ibv_destroy_qp(side->qp), 0);
	SAME(ibv_destroy_cq(side->cq), 0);
	if (side->mr)
		SAME(ibv_dereg_mr(side->mr), 0);
	munmap(side->memory, side->size);
}

static int post(struct side *side, enum ibv_wr_opcode opcode, unsigned flags, uint32_t len, uint64_t addr, uint32_t rkey)
{
	struct ibv_sge sge = {.addr = (uintptr_t)side->memory, .length = len, .lkey = side->mr->lkey};
	struct ibv_send_wr *bad, wr = {.wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED | flags, .wr.rdma = {.remote_addr = addr, .rkey = rkey}};
	return ibv_post_send(side->qp, &wr, &bad);
}

static int post_recv(struct side *side, uint32_t len)
{
	struct ibv_sge sge = {.addr = (uintptr_t)side->memory, .length = len, .lkey = side->mr->lkey};
	struct ibv_recv_wr *bad, wr = {.wr_id = 9, .sg_list = &sge, .num_sge = 1};
	return ibv_post_recv(side->qp, &wr, &bad);
}
