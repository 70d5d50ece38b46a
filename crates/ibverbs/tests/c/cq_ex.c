/* Completion queues read field by field, next to those that are polled; sizes, resizing, overflow. */
#include <pthread.h>
#include <stdatomic.h>
#include "side.h"

static struct ibv_cq_ex *create(struct side *s, uint64_t wc_flags, uint32_t flags)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 64, .cq_context = s, .wc_flags = wc_flags,
					    .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = flags };
	return ibv_create_cq_ex(s->ctx, &attr);
}

/* Sends n messages of 0 to n - 1 bytes from a to b. */
static void send_some(struct side *s, struct ibv_qp *a, struct ibv_qp *b, int n)
{
	for (int i = 0; i < n; i++) {
		struct ibv_sge one = sge(s, 0, i);
		struct ibv_send_wr wr = { .wr_id = i, .sg_list = &one, .num_sge = 1,
					  .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(1000 + i),
					  .send_flags = IBV_SEND_SIGNALED };
		EQ(post_recv_at(s, b, 100 + i, 4096, 64), 0);
		EQ(post_one(a, &wr), 0);
		expect(s->cq, i, IBV_WC_SUCCESS);
	}
}

static void fields_are_read_one_by_one(struct side *s, uint32_t flags)
{
	struct ibv_cq_ex *cq = create(s, IBV_WC_STANDARD_FLAGS, flags);
	CHECK(cq);
	CHECK(!cq->read_completion_ts && !cq->read_cvlan);
	CHECK(cq->cq_context == s && cq->cqe >= 64);
	struct ibv_qp_init_attr init = init_attr(s, IBV_QPT_RC);
	init.recv_cq = ibv_cq_ex_to_cq(cq);
	struct ibv_qp *b = ibv_create_qp(s->pd, &init), *a = create_qp(s, IBV_QPT_RC);
	CHECK(b);
	connect_qps(s, a, b);
	struct ibv_poll_cq_attr attr = { 0 };
	EQ(ibv_start_poll(cq, &attr), ENOENT);
	attr.comp_mask = 1;
	EQ(ibv_start_poll(cq, &attr), EINVAL);
	attr.comp_mask = 0;

	/* More than are taken at once, and in pieces. */
	send_some(s, a, b, 14);
	send_some(s, a, b, 0);
	int seen = 0;
	double end = seconds() + 50;
	while (seen < 14) {
		int e = ibv_start_poll(cq, &attr);
		if (e == ENOENT) {
			CHECK(seconds() < end);
			continue;
		}
		EQ(e, 0);
		do {
			EQ(cq->status, IBV_WC_SUCCESS);
			EQ(cq->wr_id, 100 + seen);
			EQ(ibv_wc_read_opcode(cq), IBV_WC_RECV);
			EQ(ibv_wc_read_byte_len(cq), seen);
			EQ(ibv_wc_read_wc_flags(cq), IBV_WC_GRH | IBV_WC_WITH_IMM);
			EQ(ntohl(ibv_wc_read_imm_data(cq)), 1000 + seen);
			EQ(ibv_wc_read_qp_num(cq), b->qp_num);
			EQ(ibv_wc_read_vendor_err(cq), 0);
			EQ(ibv_wc_read_slid(cq), 0);
			EQ(ibv_wc_read_sl(cq), 0);
			EQ(ibv_wc_read_dlid_path_bits(cq), 0);
			seen++;
		} while (seen % 5 != 0 && ibv_next_poll(cq) == 0);
		ibv_end_poll(cq);
	}
	EQ(ibv_start_poll(cq, &attr), ENOENT);

	/* What was taken ahead is there for ibv_poll_cq too. */
	send_some(s, a, b, 10);
	while (ibv_start_poll(cq, &attr) == ENOENT)
		CHECK(seconds() < end);
	EQ(cq->wr_id, 100);
	ibv_end_poll(cq);
	for (int i = 1; i < 10; i++)
		EQ(expect(ibv_cq_ex_to_cq(cq), 100 + i, IBV_WC_SUCCESS).byte_len, i);
	EQ(ibv_start_poll(cq, &attr), ENOENT);

	/* A queue pair that is reset takes its completions with it, also those. */
	send_some(s, a, b, 10);
	while (ibv_start_poll(cq, &attr) == ENOENT)
		CHECK(seconds() < end);
	EQ(cq->wr_id, 100);
	ibv_end_poll(cq);
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	EQ(ibv_modify_qp(b, &reset, IBV_QP_STATE), 0);
	EQ(ibv_start_poll(cq, &attr), ENOENT);
	EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), EBUSY);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

static void what_there_is_not(struct side *s)
{
	CHECK(!create(s, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, 0));
	create(s, IBV_WC_EX_WITH_CVLAN, 0);
	EQ(errno, EOPNOTSUPP);
	create(s, 0, 1 << 7);
	EQ(errno, EOPNOTSUPP);
	struct ibv_cq_ex *cq = create(s, IBV_WC_EX_WITH_BYTE_LEN, 0);
	CHECK(cq && cq->read_byte_len && !cq->read_imm_data);
	EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	CHECK(!ibv_create_cq(s->ctx, 0, NULL, NULL, 0));
	CHECK(!ibv_create_cq(s->ctx, -1, NULL, NULL, 0));
	CHECK(!ibv_create_cq(s->ctx, 10, NULL, NULL, 1 << 20));
	CHECK(!ibv_create_cq(s->ctx, 1 << 30, NULL, NULL, 0));
	struct ibv_modify_cq_attr attr = { .attr_mask = IBV_CQ_ATTR_MODERATE,
					   .moderate = { .cq_count = 10, .cq_period = 10 } };
	EQ(ibv_modify_cq(s->cq, &attr), EOPNOTSUPP);
}

static atomic_int read_in_all;

static void *reader(void *arg)
{
	struct ibv_cq_ex *cq = arg;
	struct ibv_poll_cq_attr attr = { 0 };
	double end = seconds() + 50;
	while (read_in_all < 64) {
		CHECK(seconds() < end);
		if (ibv_start_poll(cq, &attr))
			continue;
		do {
			uint64_t id = cq->wr_id;
			EQ(ibv_wc_read_byte_len(cq), id - 100);
			read_in_all++;
		} while (!ibv_next_poll(cq));
		ibv_end_poll(cq);
	}
	return NULL;
}

/* Between start and end a queue belongs to one thread. */
static void two_threads_read_one_queue(struct side *s)
{
	struct ibv_cq_ex *cq = create(s, IBV_WC_STANDARD_FLAGS, 0);
	struct ibv_qp_init_attr init = init_attr(s, IBV_QPT_RC);
	init.recv_cq = ibv_cq_ex_to_cq(cq);
	struct ibv_qp *b = ibv_create_qp(s->pd, &init), *a = create_qp(s, IBV_QPT_RC);
	pthread_t one, two;
	connect_qps(s, a, b);
	EQ(pthread_create(&one, NULL, reader, cq), 0);
	EQ(pthread_create(&two, NULL, reader, cq), 0);
	for (int i = 0; i < 4; i++)
		send_some(s, a, b, 16);
	EQ(pthread_join(one, NULL), 0);
	EQ(pthread_join(two, NULL), 0);
	EQ(read_in_all, 64);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

static void queues_are_resized_and_overflow(struct side *s)
{
	struct ibv_cq *small = ibv_create_cq(s->ctx, 4, NULL, NULL, 0);
	CHECK(small && small->cqe >= 4);
	struct ibv_qp_init_attr init = init_attr(s, IBV_QPT_RC);
	init.recv_cq = small;
	struct ibv_qp *b = ibv_create_qp(s->pd, &init), *a = create_qp(s, IBV_QPT_RC);
	connect_qps(s, a, b);
	EQ(ibv_resize_cq(small, 8), 0);
	EQ(small->cqe, 8);
	send_some(s, a, b, 6);
	EQ(ibv_resize_cq(small, 5), EINVAL);
	EQ(ibv_resize_cq(small, 0), EINVAL);
	EQ(ibv_resize_cq(small, -3), EINVAL);
	EQ(small->cqe, 8);
	for (int i = 0; i < 6; i++)
		expect(small, 100 + i, IBV_WC_SUCCESS);
	EQ(ibv_resize_cq(small, 2), 0);

	/* The third has no room. */
	struct ibv_sge one = sge(s, 0, 1);
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED };
	for (int i = 0; i < 3; i++) {
		EQ(post_recv_at(s, b, 100 + i, 4096, 64), 0);
		EQ(post_one(a, &wr), 0);
		next_wc(s->cq);
	}
	struct ibv_async_event event;
	EQ(ibv_get_async_event(s->ctx, &event), 0);
	if (event.event_type == IBV_EVENT_COMM_EST) {
		ibv_ack_async_event(&event);
		EQ(ibv_get_async_event(s->ctx, &event), 0);
	}
	EQ(event.event_type, IBV_EVENT_CQ_ERR);
	CHECK(event.element.cq == small);
	ibv_ack_async_event(&event);
	EQ(ibv_get_async_event(s->ctx, &event), 0);
	EQ(event.event_type, IBV_EVENT_QP_FATAL);
	CHECK(event.element.qp == b);
	ibv_ack_async_event(&event);
	expect(small, 100, IBV_WC_SUCCESS);
	expect(small, 101, IBV_WC_SUCCESS);
	struct ibv_wc wc;
	EQ(ibv_poll_cq(small, 1, &wc), -1);
	EQ(state_of(b), IBV_QPS_ERR);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	EQ(ibv_destroy_cq(small), 0);
}

int main(void)
{
	struct side s;
	open_side(&s);
	fields_are_read_one_by_one(&s, 0);
	fields_are_read_one_by_one(&s, IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
	what_there_is_not(&s);
	two_threads_read_one_queue(&s);
	queues_are_resized_and_overflow(&s);
	close_side(&s);
	return 0;
}
