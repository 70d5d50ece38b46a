/* Makes and destroys everything, over and over: `cycle ADDRESS PORT ROUNDS`. Descriptors and threads are then as before. */
#include "loop.h"
#include <pthread.h>

static const char *address;
static int port;

static void objects(void)
{
	struct side a, b;
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	CHECK(channel);
	make_pair(&a, &b, 8192);

	/* A CQ with notifications, one of them read. */
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, &a, channel, 0), *told;
	void *context;
	CHECK(cq);
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	CHECK(srq);
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .srq = srq, .cap = caps, .qp_type = IBV_QPT_RC};
	struct ibv_qp *qp = ibv_create_qp(pd, &init), *peer;
	init.srq = NULL;
	CHECK(peer = ibv_create_qp(pd, &init));
	CHECK(qp);
	connect_qp(qp, peer->qp_num);
	connect_qp(peer, qp->qp_num);
	struct ibv_sge sge = {.addr = (uintptr_t)a.memory, .length = 64, .lkey = a.mr->lkey};
	struct ibv_recv_wr *bad_recv, recv = {.sg_list = &sge, .num_sge = 1};
	struct ibv_send_wr *bad, send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	SAME(ibv_post_srq_recv(srq, &recv, &bad_recv), 0);
	SAME(ibv_req_notify_cq(cq, 0), 0);
	SAME(ibv_post_send(peer, &send, &bad), 0);
	SAME(ibv_get_cq_event(channel, &told, &context), 0);
	CHECK(told == cq && context == &a);
	ibv_ack_cq_events(cq, 1);
	SAME(wait_wc(cq).status, IBV_WC_SUCCESS);
	SAME(wait_wc(cq).status, IBV_WC_SUCCESS);
	/* A notification that nobody reads goes with the CQ. */
	SAME(ibv_req_notify_cq(cq, 0), 0);
	SAME(ibv_post_srq_recv(srq, &recv, &bad_recv), 0);
	SAME(ibv_post_send(peer, &send, &bad), 0);
	SAME(wait_wc(cq).status, IBV_WC_SUCCESS);

	/* The extended QP and CQ, and a flushed receive that nobody polls. */
	struct ibv_cq_init_attr_ex cq_init = {.cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS};
	struct ibv_cq_ex *cq_ex = ibv_create_cq_ex(ctx, &cq_init);
	CHECK(cq_ex);
	struct ibv_qp_init_attr_ex ex_init = {.send_cq = ibv_cq_ex_to_cq(cq_ex), .recv_cq = ibv_cq_ex_to_cq(cq_ex), .cap = caps,
		.qp_type = IBV_QPT_RC, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND};
	struct ibv_qp *ex = ibv_create_qp_ex(ctx, &ex_init);
	CHECK(ex);
	connect_qp(ex, ex->qp_num);
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(ex);
	ibv_wr_start(qpx);
	qpx->wr_id = 3;
	qpx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qpx, b.mr->rkey, (uintptr_t)b.memory);
	ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.memory, 4096);
	SAME(ibv_wr_complete(qpx), 0);
	struct ibv_poll_cq_attr poll_attr = {0};
	while (ibv_start_poll(cq_ex, &poll_attr))
		;
	SAME(cq_ex->status, IBV_WC_SUCCESS);
	SAME(cq_ex->wr_id, 3);
	ibv_end_poll(cq_ex);
	SAME(ibv_post_recv(ex, &recv, &bad_recv), 0);
	struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
	SAME(ibv_modify_qp(ex, &err, IBV_QP_STATE), 0);

	/* A memory window, an address handle, UD in a multicast group, another registration. */
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(mw);
	struct ibv_ah_attr ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}};
	SAME(ibv_query_gid(ctx, 1, 0, &ah_attr.grh.dgid), 0);
	struct ibv_ah *ah = ibv_create_ah(pd, &ah_attr);
	CHECK(ah);
	init.qp_type = IBV_QPT_UD;
	struct ibv_qp *ud = ibv_create_qp(pd, &init);
	CHECK(ud);
	struct ibv_qp_attr ud_init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 5}, rtr = {.qp_state = IBV_QPS_RTR};
	SAME(ibv_modify_qp(ud, &ud_init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
	SAME(ibv_modify_qp(ud, &rtr, IBV_QP_STATE), 0);
	union ibv_gid group = {.raw = {[10] = 0xff, 0xff, 230, 1, 2, 3}};
	SAME(ibv_attach_mcast(ud, &group, 0), 0);
	SAME(ibv_detach_mcast(ud, &group, 0), 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, a.memory, 100, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	SAME(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ), 0);
	SAME(ibv_resize_cq(cq, 64), 0);

	SAME(ibv_dereg_mr(mr), 0);
	SAME(ibv_destroy_qp(ud), 0);
	SAME(ibv_destroy_ah(ah), 0);
	SAME(ibv_dealloc_mw(mw), 0);
	SAME(ibv_destroy_qp(ex), 0);
	SAME(ibv_destroy_cq(ibv_cq_ex_to_cq(cq_ex)), 0);
	SAME(ibv_destroy_qp(qp), 0);
	SAME(ibv_destroy_qp(peer), 0);
	SAME(ibv_destroy_srq(srq), 0);
	SAME(ibv_destroy_cq(cq), 0);
	SAME(ibv_destroy_comp_channel(channel), 0);
	destroy_side(&a);
	destroy_side(&b);
}

static struct rdma_cm_event *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *event;
	SAME(rdma_get_cm_event(channel, &event), 0);
	if (event->event != want) {
		fprintf(stderr, "%s (%d) instead of %s\n", rdma_event_str(event->event), event->status, rdma_event_str(want));
		exit(1);
	}
	return event;
}

/* A connection of this process with itself, and one that is left half made. */
static void connections(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel(), *other = rdma_create_event_channel();
	struct rdma_cm_id *listener, *active, *passive;
	struct rdma_cm_event *event;
	struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 3, .private_data = "hello",
		.private_data_len = 5};
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	CHECK(channel && other && inet_pton(AF_INET, address, &addr.sin_addr) == 1);
	SAME(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), 0);
	SAME(rdma_bind_addr(listener, (void *)&addr), 0);
	SAME(rdma_listen(listener, 4), 0);
	for (int complete = 0; complete < 2; complete++) {
		/* One each: rdma_create_qp writes into it whose CQs it made. */
		struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = caps}, init2 = init;
		SAME(rdma_create_id(other, &active, NULL, RDMA_PS_TCP), 0);
		SAME(rdma_resolve_addr(active, NULL, (void *)&addr, 2000), 0);
		rdma_ack_cm_event(expect(other, RDMA_CM_EVENT_ADDR_RESOLVED));
		SAME(rdma_resolve_route(active, 2000), 0);
		rdma_ack_cm_event(expect(other, RDMA_CM_EVENT_ROUTE_RESOLVED));
		SAME(rdma_create_qp(active, NULL, &init), 0);
		SAME(rdma_connect(active, &param), 0);
		event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
		CHECK(!memcmp(event->param.conn.private_data, "hello", 5));
		passive = event->id;
		rdma_ack_cm_event(event);
		if (complete) {
			SAME(rdma_create_qp(passive, NULL, &init2), 0);
			SAME(rdma_accept(passive, &param), 0);
			rdma_ack_cm_event(expect(other, RDMA_CM_EVENT_ESTABLISHED));
			rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ESTABLISHED));
			SAME(rdma_disconnect(active), 0);
			rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_DISCONNECTED));
			rdma_ack_cm_event(expect(other, RDMA_CM_EVENT_DISCONNECTED));
			rdma_destroy_qp(passive);
		}
		rdma_destroy_qp(active);
		SAME(rdma_destroy_id(active), 0);
		SAME(rdma_destroy_id(passive), 0);
	}
	SAME(rdma_destroy_id(listener), 0);
	rdma_destroy_event_channel(other);
	rdma_destroy_event_channel(channel);

	struct rdma_addrinfo *info, hints = {.ai_port_space = RDMA_PS_TCP};
	char service[8];
	snprintf(service, sizeof(service), "%d", port);
	SAME(rdma_getaddrinfo(address, service, &hints, &info), 0);
	rdma_freeaddrinfo(info);
	int count;
	struct ibv_context **all = rdma_get_devices(&count);
	CHECK(all && count > 0);
	rdma_free_devices(all);
}

/* In a thread of its own: one that has waited in a call keeps the descriptor that it slept on until it ends, and whether it
 * had to wait is a matter of luck. */
static void *everything(void *unused)
{
	open_device();
	objects();
	close_device();
	/* librdmacm keeps its devices open from the first use on. */
	connections();
	return unused;
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	address = argv[1];
	port = atoi(argv[2]);
	int fds = 0, tasks = 0;
	for (int round = 0; round < atoi(argv[3]); round++) {
		pthread_t thread;
		SAME(pthread_create(&thread, NULL, everything, NULL), 0);
		SAME(pthread_join(thread, NULL), 0);
		if (!round) {
			fds = least(descriptors);
			tasks = least(threads);
		}
		SAME(settled(descriptors, fds), fds);
		SAME(settled(threads, tasks), tasks);
	}
	say("verified");
	return 0;
}
