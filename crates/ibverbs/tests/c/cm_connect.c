/* One program, one channel, both sides: connected, refused, left alone; what is said and heard on the way. */
#include "cm.h"

static struct rdma_event_channel *channel;

static enum ibv_qp_state state(struct rdma_cm_id *id)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	OK(ibv_query_qp(id->qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

static void all_zero_behind(const char *data, int from, int to)
{
	while (from < to)
		CHECK(data[from++] == 0);
}

static struct rdma_cm_id *request(struct rdma_cm_id *listen, int port, struct rdma_cm_id *client)
{
	struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	const struct rdma_conn_param *conn = &event->param.conn;

	CHECK(event->listen_id == listen && event->status == 0);
	CHECK(id != listen && id->channel == channel && id->context == (void *)0x1157);
	CHECK(id->verbs && id->pd && id->port_num == 1 && id->ps == RDMA_PS_TCP && id->qp_type == IBV_QPT_RC);
	CHECK(id->verbs == client->verbs); /* one for each device and process */
	CHECK(conn->private_data_len == 56 && memcmp(conn->private_data, "hello", 5) == 0);
	all_zero_behind(conn->private_data, 5, 56);
	/* What the peer can have outstanding is what we may have to serve, and the other way round. */
	CHECK(conn->responder_resources == 3 && conn->initiator_depth == 2);
	CHECK(conn->retry_count == 5 && conn->rnr_retry_count == 6 && conn->qp_num == client->qp->qp_num);
	CHECK(ntohs(rdma_get_src_port(id)) == port);
	CHECK(rdma_get_dst_port(id) == rdma_get_src_port(client));
	CHECK(((struct sockaddr_in *)rdma_get_peer_addr(id))->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	OK(rdma_ack_cm_event(event));
	return id;
}

static struct rdma_cm_id *asking(int port)
{
	struct rdma_conn_param param = {.private_data = "hello",
					.private_data_len = 5,
					.responder_resources = 2,
					.initiator_depth = 3,
					.retry_count = 5,
					.rnr_retry_count = 6};
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct rdma_cm_id *id = routed(channel, RDMA_PS_TCP, port);

	CHECK(id->route.num_paths == 1 && id->route.path_rec->pkey == 0xffff);
	CHECK(memcmp(&id->route.path_rec->dgid, &id->route.addr.addr.ibaddr.dgid, 16) == 0);
	OK(rdma_create_qp(id, NULL, &attr));
	CHECK(id->qp && id->send_cq && id->recv_cq && id->send_cq_channel && id->recv_cq_channel);
	CHECK(attr.send_cq == id->send_cq && id->qp->pd == id->pd);
	CHECK(state(id) == IBV_QPS_INIT);
	REFUSED(rdma_create_qp(id, NULL, &attr), EINVAL);
	OK(rdma_connect(id, &param));
	REFUSED(rdma_connect(id, &param), EINVAL);
	return id;
}

static void done(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(!id->qp && !id->send_cq && !id->recv_cq_channel);
	OK(rdma_destroy_id(id));
}

static void connected(struct rdma_cm_id *listen, int port)
{
	struct rdma_conn_param param = {.private_data = "welcome",
					.private_data_len = 7,
					.responder_resources = RDMA_MAX_RESP_RES,
					.initiator_depth = 1,
					.rnr_retry_count = 4};
	struct rdma_cm_id *client = asking(port), *server = request(listen, port, client);
	struct ibv_qp_init_attr init, attr = qp_attr(IBV_QPT_RC);
	struct ibv_qp_attr is;
	struct rdma_cm_event *event;
	char text[16] = "one two three", heard[16] = "";
	struct ibv_mr *mr;
	struct ibv_wc wc;
	int ended = 0, gone = 0;

	OK(rdma_create_qp(server, NULL, &attr));
	mr = rdma_reg_msgs(server, heard, sizeof(heard));
	CHECK(mr);
	OK(rdma_post_recv(server, (void *)7, heard, sizeof(heard), mr));
	OK(rdma_accept(server, &param));
	CHECK(state(server) == IBV_QPS_RTS);

	event = next(channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == client);
	CHECK(event->param.conn.private_data_len == 196 && memcmp(event->param.conn.private_data, "welcome", 7) == 0);
	all_zero_behind(event->param.conn.private_data, 7, 196);
	CHECK(event->param.conn.responder_resources == 1 && event->param.conn.initiator_depth == 3);
	CHECK(event->param.conn.qp_num == server->qp->qp_num && event->param.conn.rnr_retry_count == 4);
	CHECK(state(client) == IBV_QPS_RTS);
	OK(rdma_ack_cm_event(event));
	expect(channel, server, RDMA_CM_EVENT_ESTABLISHED, 0);

	OK(ibv_query_qp(client->qp, &is, IBV_QP_ACCESS_FLAGS, &init));
	CHECK(is.max_rd_atomic == 3 && is.max_dest_rd_atomic == 1 && is.retry_cnt == 5 && is.rnr_retry == 4);
	CHECK(is.qp_access_flags & IBV_ACCESS_REMOTE_WRITE && is.qp_access_flags & IBV_ACCESS_REMOTE_READ);
	OK(ibv_query_qp(server->qp, &is, IBV_QP_ACCESS_FLAGS, &init));
	CHECK(is.max_rd_atomic == 1 && is.max_dest_rd_atomic == 3 && is.rnr_retry == 6);

	OK(rdma_post_send(client, (void *)8, text, sizeof(text), NULL, IBV_SEND_INLINE));
	CHECK(rdma_get_send_comp(client, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == 8);
	CHECK(rdma_get_recv_comp(server, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == 7);
	CHECK(wc.byte_len == sizeof(text) && memcmp(heard, text, sizeof(text)) == 0);

	OK(rdma_post_recv(server, (void *)9, heard, sizeof(heard), mr));
	OK(rdma_disconnect(client));
	CHECK(state(client) == IBV_QPS_ERR);
	while (gone < 2) {
		struct pollfd readable = {.fd = channel->fd, .events = POLLIN};

		CHECK(poll(&readable, 1, 20000) == 1);
		OK(rdma_get_cm_event(channel, &event));
		CHECK(event->status == 0);
		if (event->event == RDMA_CM_EVENT_DISCONNECTED) {
			ended++;
			if (event->id == server) {
				/* The QP is ours until we say so. */
				CHECK(state(server) == IBV_QPS_RTS);
				CHECK(ibv_poll_cq(server->recv_cq, 1, &wc) == 0);
				OK(rdma_disconnect(server));
				CHECK(rdma_get_recv_comp(server, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
			}
		} else {
			CHECK(event->event == RDMA_CM_EVENT_TIMEWAIT_EXIT && ended == 2);
			gone++;
		}
		OK(rdma_ack_cm_event(event));
	}
	OK(rdma_disconnect(client)); /* nobody there any more, and nothing wrong with that */
	rdma_dereg_mr(mr);
	done(client);
	done(server);
	none(channel);
}

static void refused(struct rdma_cm_id *listen, int port)
{
	struct rdma_cm_id *client = asking(port), *server = request(listen, port, client);
	struct rdma_cm_event *event;
	struct ibv_wc wc;

	OK(rdma_reject(server, "no, thank you", 13));
	REFUSED(rdma_reject(server, NULL, 0), EINVAL);
	OK(rdma_destroy_id(server));
	event = next(channel, RDMA_CM_EVENT_REJECTED);
	CHECK(event->id == client && event->status == 28); /* consumer defined */
	CHECK(event->param.conn.private_data_len == 148);
	CHECK(memcmp(event->param.conn.private_data, "no, thank you", 13) == 0);
	all_zero_behind(event->param.conn.private_data, 13, 148);
	CHECK(state(client) == IBV_QPS_ERR && ibv_poll_cq(client->send_cq, 1, &wc) == 0);
	OK(rdma_ack_cm_event(event));
	done(client);
}

static void nobody_listens(void)
{
	struct rdma_cm_id *client = asking(9);

	expect(channel, client, RDMA_CM_EVENT_REJECTED, 8); /* invalid service id */
	done(client);
}

static void destroyed_undecided(struct rdma_cm_id *listen, int port)
{
	struct rdma_cm_id *client = asking(port), *server = request(listen, port, client);

	OK(rdma_destroy_id(server));
	expect(channel, client, RDMA_CM_EVENT_REJECTED, 28);
	done(client);
	/* And the other way round: nobody is there to be accepted. */
	client = asking(port);
	server = request(listen, port, client);
	done(client);
	none(channel);
	if (rdma_accept(server, &(struct rdma_conn_param){.qp_num = 5}) == 0) {
		struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_REJECTED);

		CHECK(event->id == server);
		OK(rdma_ack_cm_event(event));
	}
	OK(rdma_destroy_id(server));
	none(channel);
}

/* A request outlives the listener that heard it; one that nobody looked at goes with it. */
static void the_listener_goes(void)
{
	int port;
	struct rdma_cm_id *listen = listener(channel, RDMA_PS_TCP, &port), *server, *first, *second;
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct pollfd readable = {.fd = channel->fd, .events = POLLIN};

	first = asking(port);
	server = request(listen, port, first);
	second = asking(port);
	CHECK(poll(&readable, 1, 20000) == 1);
	OK(rdma_destroy_id(listen));
	expect(channel, second, RDMA_CM_EVENT_REJECTED, 28);
	OK(rdma_create_qp(server, NULL, &attr));
	OK(rdma_accept(server, NULL));
	expect(channel, first, RDMA_CM_EVENT_ESTABLISHED, 0);
	expect(channel, server, RDMA_CM_EVENT_ESTABLISHED, 0);
	done(server);
	expect(channel, first, RDMA_CM_EVENT_DISCONNECTED, 0);
	done(first);
	done(second);
	none(channel);
}

static void *destroys(void *id)
{
	OK(rdma_destroy_id(id));
	return (void *)1;
}

static void destruction_waits_for_acknowledgements(void)
{
	struct sockaddr_in to = at("127.0.0.1", 7);
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	pthread_t thread;

	OK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	OK(rdma_resolve_addr(id, NULL, SA(to), 2000));
	event = next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	OK(pthread_create(&thread, NULL, destroys, id));
	usleep(100000);
	CHECK(pthread_tryjoin_np(thread, NULL) == EBUSY);
	OK(rdma_ack_cm_event(event));
	OK(pthread_join(thread, NULL));
	/* What was not handed out vanishes. */
	OK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	OK(rdma_resolve_addr(id, NULL, SA(to), 2000));
	OK(rdma_destroy_id(id));
	none(channel);
}

int main(void)
{
	int port;
	struct rdma_cm_id *listen;

	channel = rdma_create_event_channel();
	CHECK(channel);
	none(channel);
	listen = listener(channel, RDMA_PS_TCP, &port);
	connected(listen, port);
	connected(listen, port);
	refused(listen, port);
	nobody_listens();
	destroyed_undecided(listen, port);
	the_listener_goes();
	destruction_waits_for_acknowledgements();
	OK(rdma_destroy_id(listen));
	none(channel);
	rdma_destroy_event_channel(channel);
	return 0;
}
