/* Datagrams: a service finds its peer's QP, answers, says no; a group hears what is sent to it. */
#include "cm.h"

#define GRH 40

static struct rdma_event_channel *channel;

struct side {
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	char buffer[GRH + 64];
};

static void equip(struct side *side, struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_UD);

	*side = (struct side){.id = id};
	OK(rdma_create_qp(id, NULL, &attr));
	CHECK(id->qp->state == IBV_QPS_RTS);
	side->mr = rdma_reg_msgs(id, side->buffer, sizeof(side->buffer));
	CHECK(side->mr);
	OK(rdma_post_recv(id, NULL, side->buffer, sizeof(side->buffer), side->mr));
}

static void done(struct side *side)
{
	rdma_destroy_qp(side->id);
	OK(rdma_dereg_mr(side->mr));
	OK(rdma_destroy_id(side->id));
}

static void hear(struct side *side, const char *text)
{
	struct ibv_wc wc;

	CHECK(rdma_get_recv_comp(side->id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(wc.wc_flags & IBV_WC_GRH && wc.byte_len == GRH + strlen(text) + 1);
	CHECK(strcmp(side->buffer + GRH, text) == 0);
}

static void say(struct side *side, const char *text, struct rdma_ud_param *to)
{
	struct ibv_ah *ah = ibv_create_ah(side->id->pd, &to->ah_attr);
	char copy[16];
	struct ibv_wc wc;

	CHECK(ah && to->qkey == RDMA_UDP_QKEY);
	strcpy(copy, text);
	OK(rdma_post_ud_send(side->id, NULL, copy, strlen(text) + 1, NULL, IBV_SEND_INLINE, ah, to->qp_num));
	CHECK(rdma_get_send_comp(side->id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	OK(ibv_destroy_ah(ah));
}

static struct rdma_cm_id *ask(struct rdma_cm_id *listen, struct rdma_cm_id *client)
{
	struct rdma_conn_param param = {.private_data = "who?", .private_data_len = 4};
	struct rdma_cm_event *event;
	struct rdma_cm_id *server;

	OK(rdma_connect(client, &param));
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	server = event->id;
	CHECK(event->listen_id == listen && server->qp_type == IBV_QPT_UD && server->ps == RDMA_PS_UDP);
	CHECK(event->param.ud.private_data_len == 180 && memcmp(event->param.ud.private_data, "who?\0", 5) == 0);
	OK(rdma_ack_cm_event(event));
	return server;
}

static void a_service(void)
{
	int port;
	struct rdma_cm_id *listen = listener(channel, RDMA_PS_UDP, &port), *other;
	struct rdma_conn_param param = {.private_data = "me", .private_data_len = 2};
	struct side client, server;
	struct rdma_cm_event *event;

	equip(&client, routed(channel, RDMA_PS_UDP, port));
	equip(&server, ask(listen, client.id));
	param.qp_num = server.id->qp->qp_num;
	OK(rdma_accept(server.id, &param));
	event = next(channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == client.id && event->param.ud.qp_num == server.id->qp->qp_num);
	CHECK(event->param.ud.private_data_len == 136 && memcmp(event->param.ud.private_data, "me\0", 3) == 0);
	CHECK(event->param.ud.ah_attr.is_global && event->param.ud.ah_attr.port_num == 1);
	say(&client, "hello", &event->param.ud);
	hear(&server, "hello");
	OK(rdma_ack_cm_event(event));
	done(&client);
	done(&server);

	other = routed(channel, RDMA_PS_UDP, port);
	struct rdma_cm_id *refused = ask(listen, other);
	OK(rdma_reject(refused, NULL, 0));
	expect(channel, other, RDMA_CM_EVENT_UNREACHABLE, 2); /* SIDR: rejected */
	OK(rdma_destroy_id(refused));
	OK(rdma_destroy_id(other));
	OK(rdma_destroy_id(listen));
	other = routed(channel, RDMA_PS_UDP, port);
	OK(rdma_connect(other, NULL));
	expect(channel, other, RDMA_CM_EVENT_UNREACHABLE, 1); /* SIDR: no such service */
	OK(rdma_destroy_id(other));
}

static void join(struct side *side, struct sockaddr_in *group, struct rdma_ud_param *ud)
{
	struct rdma_cm_event *event;

	OK(rdma_join_multicast(side->id, SA(*group), side));
	event = next(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(event->id == side->id && event->status == 0 && event->param.ud.private_data == side);
	CHECK(event->param.ud.qp_num == 0xffffff);
	CHECK(memcmp(event->param.ud.ah_attr.grh.dgid.raw + 12, &group->sin_addr, 4) == 0);
	*ud = event->param.ud;
	OK(rdma_ack_cm_event(event));
}

static void a_group(void)
{
	struct sockaddr_in group = at("239.77.1.2", 0), local = at("127.0.0.1", 0), no_group = at("10.0.0.1", 0);
	struct rdma_cm_join_mc_attr_ex only_send = {
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
		.addr = SA(group)};
	struct rdma_cm_id *id, *deaf;
	struct rdma_ud_param ud;
	struct side a, b;
	struct ibv_wc wc;

	OK(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP));
	REFUSED(rdma_join_multicast(id, SA(group), NULL), EINVAL);
	OK(rdma_bind_addr(id, SA(local)));
	REFUSED(rdma_join_multicast(id, SA(no_group), NULL), EINVAL);
	equip(&a, id);
	OK(rdma_create_id(channel, &deaf, NULL, RDMA_PS_UDP));
	OK(rdma_bind_addr(deaf, SA(local)));
	equip(&b, deaf);
	join(&a, &group, &ud);
	only_send.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS;
	REFUSED(rdma_join_multicast_ex(b.id, &only_send, NULL), EINVAL);
	only_send.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	OK(rdma_join_multicast_ex(b.id, &only_send, &b));
	struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(event->id == b.id && event->param.ud.private_data == &b);
	say(&b, "everyone", &event->param.ud);
	OK(rdma_ack_cm_event(event));
	hear(&a, "everyone");
	CHECK(ibv_poll_cq(b.id->recv_cq, 1, &wc) == 0);
	OK(rdma_leave_multicast(a.id, SA(group)));
	REFUSED(rdma_leave_multicast(a.id, SA(group)), EADDRNOTAVAIL);
	OK(rdma_leave_multicast(b.id, SA(group)));
	done(&a);
	done(&b);
}

int main(void)
{
	channel = rdma_create_event_channel();
	CHECK(channel);
	a_service();
	a_group();
	none(channel);
	rdma_destroy_event_channel(channel);
	return 0;
}
