/* Shared receive queues, memory windows, notifications and asynchronous events. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>
#include "side.h"

static int readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	return poll(&p, 1, 0);
}

/* The next event that is not just news of a first packet. */
static struct ibv_async_event next_event(struct side *s)
{
	struct ibv_async_event event;
	for (;;) {
		EQ(ibv_get_async_event(s->ctx, &event), 0);
		if (event.event_type != IBV_EVENT_COMM_EST)
			return event;
		ibv_ack_async_event(&event);
	}
}

static void no_event(struct side *s)
{
	struct ibv_async_event event;
	int flags = fcntl(s->ctx->async_fd, F_GETFL);
	fcntl(s->ctx->async_fd, F_SETFL, flags | O_NONBLOCK);
	while (ibv_get_async_event(s->ctx, &event) == 0) {
		EQ(event.event_type, IBV_EVENT_COMM_EST);
		ibv_ack_async_event(&event);
	}
	fcntl(s->ctx->async_fd, F_SETFL, flags);
}

static struct ibv_srq *create_srq(struct side *s)
{
	struct ibv_srq_init_attr attr = { .srq_context = s, .attr = { .max_wr = 8, .max_sge = 2 } };
	struct ibv_srq *srq = ibv_create_srq(s->pd, &attr);
	CHECK(srq && srq->srq_context == s && srq->pd == s->pd);
	CHECK(attr.attr.max_wr >= 8 && attr.attr.max_sge >= 2);
	return srq;
}

static void shared_receive_queues(struct side *s)
{
	struct ibv_srq *srq = create_srq(s);
	struct ibv_recv_wr rr[10], *bad;
	struct ibv_srq_attr attr;
	struct ibv_sge room = sge(s, 4096, 64);
	uint32_t number;
	memset(rr, 0, sizeof rr);
	for (int i = 0; i < 10; i++) {
		rr[i].wr_id = 200 + i;
		rr[i].sg_list = &room;
		rr[i].num_sge = 1;
		rr[i].next = i < 9 ? &rr[i + 1] : NULL;
	}
	EQ(ibv_post_srq_recv(srq, rr, &bad), ENOMEM);
	EQ(bad - rr, 8);
	struct ibv_sge three[3] = { room, room, room };
	struct ibv_recv_wr wide = { .sg_list = three, .num_sge = 3 };
	EQ(ibv_query_srq(srq, &attr), 0);
	EQ(attr.max_wr, 8);
	EQ(attr.srq_limit, 0);
	attr.max_wr = 4;
	EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), EINVAL);
	attr.max_wr = 16;
	EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), 0);
	EQ(ibv_modify_srq(srq, &attr, 4), EINVAL);
	EQ(ibv_post_srq_recv(srq, &wide, &bad), EINVAL);
	EQ(ibv_post_srq_recv(srq, &rr[8], &bad), 0);
	EQ(ibv_get_srq_num(srq, &number), 0);
	attr.srq_limit = 9;
	EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	EQ(ibv_query_srq(srq, &attr), 0);
	EQ(attr.max_wr, 16);
	EQ(attr.srq_limit, 9);

	struct ibv_qp_init_attr init = init_attr(s, IBV_QPT_RC);
	init.srq = srq;
	struct ibv_qp *b1 = ibv_create_qp(s->pd, &init), *b2 = ibv_create_qp(s->pd, &init);
	CHECK(b1 && b2 && b1->srq == srq);
	EQ(init.cap.max_recv_wr, 0);
	struct ibv_qp *a1 = create_qp(s, IBV_QPT_RC), *a2 = create_qp(s, IBV_QPT_RC);
	connect_qps(s, a1, b1);
	connect_qps(s, a2, b2);
	EQ(post_recv_at(s, b1, 1, 0, 8), EINVAL);
	EQ(ibv_destroy_srq(srq), EBUSY);
	no_event(s);
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_wc wc[2];
	for (int i = 0; i < 2; i++) {
		EQ(post_one(i ? a2 : a1, &wr), 0);
		expect_two(s->cq, 1, 200 + i, wc);
		EQ(wc[1].qp_num, i ? b2->qp_num : b1->qp_num);
	}
	/* Eight are left, one fewer than the limit: told once. */
	struct ibv_async_event event = next_event(s);
	EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK(event.element.srq == srq);
	ibv_ack_async_event(&event);
	EQ(ibv_query_srq(srq, &attr), 0);
	EQ(attr.srq_limit, 0);
	EQ(post_one(a1, &wr), 0);
	expect_two(s->cq, 1, 202, wc);
	no_event(s);

	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	EQ(ibv_modify_qp(b1, &error, IBV_QP_STATE), 0);
	event = next_event(s);
	EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
	CHECK(event.element.qp == b1);
	ibv_ack_async_event(&event);
	EQ(ibv_destroy_qp(a1), 0);
	EQ(ibv_destroy_qp(a2), 0);
	EQ(ibv_destroy_qp(b1), 0);
	EQ(ibv_destroy_qp(b2), 0);
	EQ(ibv_destroy_srq(srq), 0);

	struct ibv_srq_init_attr_ex ex = { .srq_context = s, .attr = { .max_wr = 8, .max_sge = 1 },
					   .comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE,
					   .srq_type = IBV_SRQT_BASIC, .pd = s->pd };
	srq = ibv_create_srq_ex(s->ctx, &ex);
	CHECK(srq);
	EQ(ibv_destroy_srq(srq), 0);
	ex.srq_type = IBV_SRQT_XRC;
	srq = ibv_create_srq_ex(s->ctx, &ex);
	EQ(errno, EOPNOTSUPP);
	CHECK(!srq);
}

static void windows_of_type_1(struct side *s)
{
	struct ibv_qp *a, *b;
	create_pair(s, IBV_QPT_RC, &a, &b);
	struct ibv_mw *mw = ibv_alloc_mw(s->pd, IBV_MW_TYPE_1);
	CHECK(mw && mw->type == IBV_MW_TYPE_1 && mw->pd == s->pd);
	uint32_t first = mw->rkey;
	struct ibv_mw_bind bind = { .wr_id = 5, .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { .mr = s->mr, .addr = (uintptr_t)s->buf + 16384, .length = 8,
						   .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
	EQ(ibv_bind_mw(a, mw, &bind), 0);
	CHECK(mw->rkey != first);
	EQ(expect(s->cq, 5, IBV_WC_SUCCESS).opcode, IBV_WC_BIND_MW);
	EQ(ibv_destroy_qp(b) || ibv_destroy_qp(a), 0);

	/* Reached through any queue pair of the domain, within its bounds. */
	create_pair(s, IBV_QPT_RC, &a, &b);
	memcpy(s->buf, "type one!", 9);
	struct ibv_sge one = sge(s, 0, 8);
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED };
	wr.wr.rdma.remote_addr = (uintptr_t)s->buf + 16384;
	wr.wr.rdma.rkey = mw->rkey;
	memset(s->buf + 16384, 0xee, 16);
	EQ(post_one(b, &wr), 0);
	expect(s->cq, 1, IBV_WC_SUCCESS);
	EQ(memcmp(s->buf + 16384, "type one\xee", 9), 0);
	one.length = 9;
	EQ(post_one(b, &wr), 0);
	expect(s->cq, 1, IBV_WC_REM_ACCESS_ERR);
	EQ(s->buf[16384 + 8], 0xee);
	struct ibv_send_wr type_2 = { .opcode = IBV_WR_BIND_MW };
	type_2.bind_mw.mw = mw;
	EQ(post_one(a, &type_2), EINVAL);
	bind.bind_info.mr = NULL;
	EQ(ibv_bind_mw(a, mw, &bind), EINVAL);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	EQ(ibv_dealloc_mw(mw), 0);
	CHECK(!ibv_alloc_mw(s->pd, 9));
}

/* Sends one message of n requests, the last of which asks for a solicited event. */
static void message(struct side *s, struct ibv_qp *a, struct ibv_qp *b, int solicited)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED | (solicited ? IBV_SEND_SOLICITED : 0) };
	EQ(post_recv_at(s, b, 2, 4096, 8), 0);
	EQ(post_one(a, &wr), 0);
	expect(s->cq, 1, IBV_WC_SUCCESS);
}

struct acker {
	struct ibv_cq *cq;
	volatile int acked;
};

static void *ack_later(void *arg)
{
	struct acker *acker = arg;
	usleep(50000);
	acker->acked = 1;
	ibv_ack_cq_events(acker->cq, 1);
	return NULL;
}

static void notifications(struct side *s)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(s->ctx);
	CHECK(channel && !readable(channel->fd));
	struct ibv_cq *cq = ibv_create_cq(s->ctx, 64, &channel, channel, 0), *got;
	CHECK(cq && cq->channel == channel);
	EQ(ibv_destroy_comp_channel(channel), EBUSY);
	struct ibv_qp_init_attr init = init_attr(s, IBV_QPT_RC);
	init.recv_cq = cq;
	struct ibv_qp *b = ibv_create_qp(s->pd, &init), *a = create_qp(s, IBV_QPT_RC);
	void *context;
	connect_qps(s, a, b);
	message(s, a, b, 0);
	expect(cq, 2, IBV_WC_SUCCESS);
	CHECK(!readable(channel->fd));

	/* One notification for each request. */
	EQ(ibv_req_notify_cq(cq, 0), 0);
	message(s, a, b, 0);
	message(s, a, b, 0);
	EQ(ibv_get_cq_event(channel, &got, &context), 0);
	CHECK(got == cq && context == &channel);
	CHECK(!readable(channel->fd));
	expect(cq, 2, IBV_WC_SUCCESS);
	expect(cq, 2, IBV_WC_SUCCESS);

	/* Solicited ones, and errors. */
	EQ(ibv_req_notify_cq(cq, 1), 0);
	message(s, a, b, 0);
	expect(cq, 2, IBV_WC_SUCCESS);
	CHECK(!readable(channel->fd));
	message(s, a, b, 1);
	EQ(ibv_get_cq_event(channel, &got, &context), 0);
	expect(cq, 2, IBV_WC_SUCCESS);
	EQ(ibv_req_notify_cq(cq, 1), 0);
	EQ(post_recv_at(s, b, 3, 4096, 8), 0);
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	EQ(ibv_modify_qp(b, &error, IBV_QP_STATE), 0);
	EQ(ibv_get_cq_event(channel, &got, &context), 0);
	expect(cq, 3, IBV_WC_WR_FLUSH_ERR);
	fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	EQ(ibv_get_cq_event(channel, &got, &context), -1);
	EQ(errno, EAGAIN);

	/* Destroying waits for the third acknowledgement. */
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	ibv_ack_cq_events(cq, 2);
	struct acker acker = { .cq = cq };
	pthread_t thread;
	EQ(pthread_create(&thread, NULL, ack_later, &acker), 0);
	EQ(ibv_destroy_cq(cq), 0);
	EQ(acker.acked, 1);
	EQ(pthread_join(thread, NULL), 0);

	/* The pending notification of a destroyed queue vanishes. */
	cq = ibv_create_cq(s->ctx, 64, NULL, channel, 0);
	init.recv_cq = cq;
	b = ibv_create_qp(s->pd, &init);
	a = create_qp(s, IBV_QPT_RC);
	connect_qps(s, a, b);
	EQ(ibv_req_notify_cq(cq, 0), 0);
	message(s, a, b, 0);
	double end = seconds() + 50;
	while (!readable(channel->fd))
		CHECK(seconds() < end);
	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	EQ(ibv_destroy_cq(cq), 0);
	CHECK(!readable(channel->fd));
	EQ(ibv_destroy_comp_channel(channel), 0);
}

static struct ibv_async_event pending;
static volatile int acked;

static void *ack_async_later(void *arg)
{
	usleep(50000);
	acked = 1;
	ibv_ack_async_event(&pending);
	return arg;
}

static void a_queue_pair_waits_for_its_events(struct side *s)
{
	struct ibv_qp *a, *b;
	pthread_t thread;
	create_pair(s, IBV_QPT_RC, &a, &b);
	no_event(s);
	struct ibv_qp_attr drain = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	EQ(ibv_modify_qp(a, &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
	pending = next_event(s);
	EQ(pending.event_type, IBV_EVENT_SQ_DRAINED);
	CHECK(pending.element.qp == a);
	EQ(pthread_create(&thread, NULL, ack_async_later, NULL), 0);
	EQ(ibv_destroy_qp(a), 0);
	EQ(acked, 1);
	EQ(pthread_join(thread, NULL), 0);

	/* An event that nobody took goes with its queue pair. */
	struct ibv_qp *c = create_qp(s, IBV_QPT_RC);
	EQ(to_init(c), 0);
	EQ(to_rtr(c, s, b->qp_num), 0);
	EQ(to_rts(c, 7), 0);
	EQ(ibv_modify_qp(c, &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
	CHECK(readable(s->ctx->async_fd));
	EQ(ibv_destroy_qp(c), 0);
	CHECK(!readable(s->ctx->async_fd));
	EQ(ibv_destroy_qp(b), 0);
}

int main(void)
{
	struct side s;
	open_side(&s);
	shared_receive_queues(&s);
	windows_of_type_1(&s);
	notifications(&s);
	a_queue_pair_waits_for_its_events(&s);
	close_side(&s);
	return 0;
}
