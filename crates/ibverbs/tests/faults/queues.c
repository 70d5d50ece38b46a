/* Queues that are full, and requests that are wrong: which errno, which is the bad one, and that those before it are done. */
#include "loop.h"

static int capacity(struct ibv_qp *qp, int send)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	SAME(ibv_query_qp(qp, &attr, IBV_QP_CAP, &init), 0);
	return (int)(send ? init.cap.max_send_wr : init.cap.max_recv_wr);
}

static void full_queues(void)
{
	struct side a, b;
	cqe = 4096;
	make_pair(&a, &b, 4096);
	int sends = capacity(a.qp, 1), receives = capacity(b.qp, 0);
	CHECK(sends >= 16 && receives >= sends && receives < 2000);
	/* Nobody receives yet: nothing completes, for as long as the RNR timer asks. */
	struct ibv_send_wr *list = calloc((size_t)sends + 3, sizeof(*list)), *bad = NULL;
	struct ibv_sge sge = {.addr = (uintptr_t)a.memory, .length = 8, .lkey = a.mr->lkey};
	for (int i = 0; i < sends + 3; i++)
		list[i] = (struct ibv_send_wr){.wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED, .next = i < sends + 2 ? &list[i + 1] : NULL};
	struct ibv_recv_wr *more = calloc((size_t)receives + 3, sizeof(*more)), *bad_recv = NULL;
	struct ibv_sge into = {.addr = (uintptr_t)b.memory, .length = 64, .lkey = b.mr->lkey};
	for (int i = 0; i < receives + 3; i++)
		more[i] = (struct ibv_recv_wr){.wr_id = (uint64_t)i, .sg_list = &into, .num_sge = 1,
			.next = i < receives + 2 ? &more[i + 1] : NULL};
	SAME(ibv_post_recv(b.qp, more, &bad_recv), ENOMEM);
	SAME(bad_recv - more, receives);
	SAME(ibv_post_send(a.qp, list, &bad), ENOMEM);
	/* Some may have completed already while others were posted. */
	CHECK(bad - list >= sends);
	for (int i = 0; i < bad - list; i++) {
		struct ibv_wc wc = wait_wc(a.cq);
		SAME(wc.status, IBV_WC_SUCCESS);
		SAME(wc.wr_id, i);
	}
	SAME(ibv_post_recv(b.qp, &more[receives + 2], &bad_recv), 0);
	SAME(ibv_post_send(a.qp, &list[sends + 2], &bad), 0);
	SAME(wait_wc(a.cq).wr_id, sends + 2);
	free(list);
	free(more);
	destroy_side(&a);
	destroy_side(&b);
	cqe = 64;
}

static void wrong_requests(void)
{
	struct side a, b;
	make_pair(&a, &b, 4096);
	struct ibv_sge sges[33];
	struct ibv_send_wr *bad = NULL, wr = {.wr_id = 1, .sg_list = sges, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_recv_wr *bad_recv = NULL, recv = {.wr_id = 1, .sg_list = sges, .num_sge = 33};
	for (int i = 0; i < 33; i++)
		sges[i] = (struct ibv_sge){.addr = (uintptr_t)a.memory, .length = 64, .lkey = a.mr->lkey};
	wr.num_sge = 33;
	SAME(ibv_post_send(a.qp, &wr, &bad), EINVAL);
	CHECK(bad == &wr);
	SAME(ibv_post_recv(a.qp, &recv, &bad_recv), EINVAL);
	CHECK(bad_recv == &recv);
	/* More inline data than was asked for. */
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	SAME(ibv_query_qp(a.qp, &attr, IBV_QP_CAP, &init), 0);
	wr.num_sge = 1;
	wr.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
	sges[0].length = init.cap.max_inline_data + 1;
	bad = NULL;
	SAME(ibv_post_send(a.qp, &wr, &bad), EINVAL);
	CHECK(bad == &wr);
	/* An opcode that there is not, and one that RC has not. */
	sges[0].length = 64;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.opcode = (enum ibv_wr_opcode)77;
	bad = NULL;
	SAME(ibv_post_send(a.qp, &wr, &bad), EINVAL);
	CHECK(bad == &wr);
	wr.opcode = IBV_WR_TSO;
	bad = NULL;
	SAME(ibv_post_send(a.qp, &wr, &bad), EINVAL);
	CHECK(bad == &wr);
	/* A QP in RESET takes nothing, one in INIT receives only. */
	struct ibv_qp_init_attr fresh = {.send_cq = a.cq, .recv_cq = a.cq, .cap = caps, .qp_type = IBV_QPT_RC};
	struct ibv_qp *qp = ibv_create_qp(pd, &fresh);
	CHECK(qp);
	wr.opcode = IBV_WR_SEND;
	recv.num_sge = 1;
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL);
	CHECK(ibv_post_recv(qp, &recv, &bad_recv) == EINVAL);
	to_init(qp);
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL);
	SAME(ibv_post_recv(qp, &recv, &bad_recv), 0);
	SAME(ibv_destroy_qp(qp), 0);
	/* Nothing of all this reached the QPs. */
	SAME(post_recv(&b, 64), 0);
	SAME(post(&a, IBV_WR_SEND, 0, 64, 0, 0), 0);
	SAME(wait_wc(a.cq).status, IBV_WC_SUCCESS);
	SAME(wait_wc(b.cq).status, IBV_WC_SUCCESS);
	destroy_side(&a);
	destroy_side(&b);
}

static void full_cq(void)
{
	struct side a, b;
	cqe = 1;
	caps.max_send_wr = 512;
	make_pair(&a, &b, 4096);
	int room = a.cq->cqe;
	CHECK(room >= 1 && room < 500);
	struct ibv_async_event event;
	int pending = 0;
	for (int i = 0; i < room + 1; i++)
		SAME(post(&a, IBV_WR_RDMA_WRITE, 0, 8, (uintptr_t)b.memory, b.mr->rkey), 0);
	/* One of the CQ and one of the QP, in whichever order. */
	int cq_err = 0, qp_fatal = 0;
	while (!cq_err || !qp_fatal) {
		SAME(ibv_get_async_event(ctx, &event), 0);
		if (event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == a.cq)
			cq_err++;
		else if (event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == a.qp)
			qp_fatal++;
		else
			pending++;
		ibv_ack_async_event(&event);
	}
	SAME(pending, 0);
	destroy_side(&a);
	destroy_side(&b);
	cqe = 64;
	caps.max_send_wr = 16;
}

static void full_srq(void)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct side a;
	struct ibv_srq_attr attr;
	CHECK(srq);
	make_side(&a, 4096);
	SAME(ibv_query_srq(srq, &attr), 0);
	struct ibv_sge sge = {.addr = (uintptr_t)a.memory, .length = 64, .lkey = a.mr->lkey};
	struct ibv_recv_wr *bad = NULL, wr = {.sg_list = &sge, .num_sge = 1};
	for (unsigned i = 0; i < attr.max_wr; i++)
		SAME(ibv_post_srq_recv(srq, &wr, &bad), 0);
	SAME(ibv_post_srq_recv(srq, &wr, &bad), ENOMEM);
	CHECK(bad == &wr);
	SAME(ibv_destroy_srq(srq), 0);
	destroy_side(&a);
}

/* Objects in use are not destroyed, and are as good as before. */
static void busy(void)
{
	struct side a, b;
	make_pair(&a, &b, 4096);
	SAME(ibv_dealloc_pd(pd), EBUSY);
	SAME(ibv_destroy_cq(a.cq), EBUSY);
	SAME(post(&a, IBV_WR_RDMA_WRITE, 0, 8, (uintptr_t)b.memory, b.mr->rkey), 0);
	SAME(wait_wc(a.cq).status, IBV_WC_SUCCESS);
	destroy_side(&a);
	destroy_side(&b);
}

/* Larger than the device can have: refused, with the errno of the kernel's drivers. */
static void too_much(void)
{
	struct ibv_device_attr device;
	SAME(ibv_query_device(ctx, &device), 0);
	CHECK(!ibv_create_cq(ctx, device.max_cqe + 1, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(ctx, 16, NULL, NULL, ctx->num_comp_vectors) && errno == EINVAL);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = caps, .qp_type = IBV_QPT_RC};
	init.cap.max_send_wr = (unsigned)device.max_qp_wr + 1;
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	init.cap = caps;
	init.cap.max_recv_sge = (unsigned)device.max_sge + 1;
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	init.cap = caps;
	init.qp_type = IBV_QPT_RAW_PACKET;
	CHECK(!ibv_create_qp(pd, &init) && errno == EOPNOTSUPP);
	CHECK(!ibv_reg_mr(pd, (void *)16, 4096, ALL) && errno == EFAULT);
	char byte;
	/* A peer's rights need our own. */
	CHECK(!ibv_reg_mr(pd, &byte, 1, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	SAME(ibv_destroy_cq(cq), 0);
}

int main(void)
{
	open_device();
	full_queues();
	wrong_requests();
	full_cq();
	full_srq();
	busy();
	too_much();
	close_device();
	say("verified");
	return 0;
}
