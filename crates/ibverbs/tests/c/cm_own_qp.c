/* QPs that the program makes by itself, with the attributes that the connection gives; identifiers that change their
 * channel; the peer's last word by another way; a peer that never answers. */
#include "cm.h"

static struct rdma_event_channel *channel, *elsewhere;

static struct ibv_qp *own_qp(struct rdma_cm_id *id, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);

	attr.send_cq = attr.recv_cq = cq;
	return ibv_create_qp(id->pd, &attr);
}

static void move(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state to)
{
	struct ibv_qp_attr attr = {.qp_state = to};
	int mask = 0;

	OK(rdma_init_qp_attr(id, &attr, &mask));
	CHECK(attr.qp_state == to && mask & IBV_QP_STATE);
	if (to == IBV_QPS_INIT)
		CHECK(mask & IBV_QP_PORT && mask & IBV_QP_PKEY_INDEX && mask & IBV_QP_ACCESS_FLAGS && attr.port_num == 1);
	if (to == IBV_QPS_RTR)
		CHECK(mask & IBV_QP_AV && mask & IBV_QP_DEST_QPN && attr.ah_attr.is_global && attr.ah_attr.grh.hop_limit &&
		      attr.ah_attr.grh.traffic_class == 32);
	if (to == IBV_QPS_RTS)
		CHECK(mask & IBV_QP_SQ_PSN && mask & IBV_QP_TIMEOUT && attr.timeout == 15);
	OK(ibv_modify_qp(qp, &attr, mask));
}

static struct rdma_cm_id *asking(int port, struct ibv_qp **qp)
{
	struct rdma_cm_id *id = routed(channel, RDMA_PS_TCP, port);
	struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7, .responder_resources = 1,
					.initiator_depth = 1};
	uint8_t tos = 32, timeout = 15;

	OK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)));
	OK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout)));
	REFUSED(rdma_connect(id, NULL), EINVAL); /* no QP, and nothing said of one */
	*qp = own_qp(id, ibv_create_cq(id->verbs, 8, NULL, NULL, 0));
	CHECK(*qp);
	move(id, *qp, IBV_QPS_INIT);
	param.qp_num = (*qp)->qp_num;
	REFUSED(rdma_establish(id), EINVAL);
	OK(rdma_connect(id, &param));
	return id;
}

static struct rdma_cm_id *asked(struct rdma_event_channel *where)
{
	struct rdma_cm_event *event = next(where, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	uint8_t tos = 32, timeout = 15;

	OK(rdma_ack_cm_event(event));
	OK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)));
	OK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout)));
	return id;
}

static void accepted(struct rdma_cm_id *id, struct ibv_qp **qp)
{
	struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = 7};

	*qp = own_qp(id, ibv_create_cq(id->verbs, 8, NULL, NULL, 0));
	move(id, *qp, IBV_QPS_INIT);
	move(id, *qp, IBV_QPS_RTR);
	move(id, *qp, IBV_QPS_RTS);
	param.qp_num = (*qp)->qp_num;
	OK(rdma_accept(id, &param));
}

static void gone(struct rdma_cm_id *id, struct ibv_qp *qp)
{
	struct ibv_cq *cq = qp->send_cq;

	OK(ibv_destroy_qp(qp));
	OK(ibv_destroy_cq(cq));
	OK(rdma_destroy_id(id));
}

static void by_hand(void)
{
	int port;
	struct rdma_cm_id *listen = listener(channel, RDMA_PS_TCP, &port), *client, *server;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
	struct ibv_ece ece = {.vendor_id = 1};
	struct ibv_qp *there, *here;
	struct rdma_cm_event *event;
	int mask;

	client = asking(port, &here);
	REFUSED(rdma_init_qp_attr(client, &attr, &mask), EINVAL); /* nobody has answered */
	server = asked(channel);
	OK(rdma_get_remote_ece(server, &ece));
	CHECK(ece.vendor_id == 0 && ece.options == 0);
	accepted(server, &there);
	event = next(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(event->id == client && event->param.conn.qp_num == there->qp_num);
	CHECK(event->param.conn.private_data_len == 196);
	OK(rdma_ack_cm_event(event));
	move(client, here, IBV_QPS_INIT);
	move(client, here, IBV_QPS_RTR);
	move(client, here, IBV_QPS_RTS);
	none(channel);
	OK(rdma_establish(client));
	expect(channel, server, RDMA_CM_EVENT_ESTABLISHED, 0);
	REFUSED(rdma_notify(server, IBV_EVENT_QP_FATAL), EINVAL);
	OK(rdma_notify(server, IBV_EVENT_COMM_EST));
	OK(rdma_disconnect(server));
	for (int i = 0; i < 2; i++) {
		event = next(channel, RDMA_CM_EVENT_DISCONNECTED);
		CHECK(here->state == IBV_QPS_RTS); /* it is the program's */
		OK(rdma_ack_cm_event(event));
	}
	gone(client, here);
	gone(server, there);

	/* The RTU is lost, as it were, and the program says that data came. */
	client = asking(port, &here);
	server = asked(channel);
	accepted(server, &there);
	event = next(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
	OK(rdma_ack_cm_event(event));
	OK(rdma_notify(server, IBV_EVENT_COMM_EST));
	expect(channel, server, RDMA_CM_EVENT_ESTABLISHED, 0);
	/* The one who asked says no in the end. */
	OK(rdma_reject(client, "never mind", 10));
	event = next(channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(event->id == server);
	OK(rdma_ack_cm_event(event));
	gone(client, here);
	gone(server, there);
	OK(rdma_destroy_id(listen));
}

static void migration(void)
{
	int port;
	struct rdma_cm_id *listen = listener(channel, RDMA_PS_TCP, &port), *client, *server;
	struct pollfd readable = {.fd = channel->fd, .events = POLLIN};
	struct ibv_qp *there, *here;
	struct rdma_cm_event *event;

	client = asking(port, &here);
	CHECK(poll(&readable, 1, 20000) == 1);
	/* The request waits, and goes along. */
	OK(rdma_migrate_id(listen, elsewhere));
	none(channel);
	server = asked(elsewhere);
	CHECK(server->channel == elsewhere);
	OK(rdma_migrate_id(server, channel));
	accepted(server, &there);
	CHECK(poll(&readable, 1, 20000) == 1);
	OK(rdma_migrate_id(client, elsewhere));
	event = next(elsewhere, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(event->id == client);
	OK(rdma_ack_cm_event(event));
	OK(rdma_establish(client));
	expect(channel, server, RDMA_CM_EVENT_ESTABLISHED, 0);
	/* To a channel of its own: calls wait from now on, and back. */
	OK(rdma_migrate_id(client, NULL));
	REFUSED(rdma_migrate_id(client, NULL), EINVAL);
	OK(rdma_disconnect(client));
	CHECK(client->event->event == RDMA_CM_EVENT_DISCONNECTED);
	expect(channel, server, RDMA_CM_EVENT_DISCONNECTED, 0);
	OK(rdma_migrate_id(client, elsewhere));
	CHECK(!client->event);
	expect(elsewhere, client, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
	gone(client, here);
	gone(server, there);
	OK(rdma_destroy_id(listen));
}

int main(void)
{
	channel = rdma_create_event_channel();
	elsewhere = rdma_create_event_channel();
	CHECK(channel && elsewhere);
	by_hand();
	migration();
	none(channel);
	none(elsewhere);
	rdma_destroy_event_channel(elsewhere);
	rdma_destroy_event_channel(channel);
	return 0;
}
