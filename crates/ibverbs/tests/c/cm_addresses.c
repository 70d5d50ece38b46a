/* Addresses that come and go while a device is open, a cable that is pulled, another MTU, and the interface's end. Runs in a
 * network of its own, in which it may do so: the interface rv0, whose other end is rv1, with 10.77.0.1 and fd77::1. */
#include "cm.h"

static struct rdma_event_channel *channel;

static void shell(const char *command)
{
	if (system(command) != 0)
		FAIL("%s", command);
}

/* Reads events of the device up to the one that is expected, all of which must be about its port. */
static void until(struct ibv_context *verbs, enum ibv_event_type expected)
{
	struct pollfd readable = {.fd = verbs->async_fd, .events = POLLIN};
	struct ibv_async_event event;

	do {
		if (poll(&readable, 1, 20000) != 1)
			FAIL("no event while waiting for %s", ibv_event_type_str(expected));
		OK(ibv_get_async_event(verbs, &event));
		if (event.event_type != IBV_EVENT_DEVICE_FATAL)
			CHECK(event.element.port_num == 1);
		ibv_ack_async_event(&event);
	} while (event.event_type != expected);
}

static void quiet(struct ibv_context *verbs)
{
	struct pollfd readable = {.fd = verbs->async_fd, .events = POLLIN};

	CHECK(poll(&readable, 1, 0) == 0);
}

static struct ibv_port_attr port_of(struct ibv_context *verbs)
{
	struct ibv_port_attr attr;

	OK(ibv_query_port(verbs, 1, &attr));
	return attr;
}

/* Where an address is in the table; -1 where it is not. */
static int index_of(struct ibv_context *verbs, const char *ip)
{
	struct in_addr address;
	struct ibv_gid_entry entry, table[16];
	union ibv_gid gid;
	int i, n = ibv_query_gid_table(verbs, table, 16, 0), found = -1, used = 0;

	CHECK(n >= 0 && inet_pton(AF_INET, ip, &address) == 1);
	for (i = 0; i < 16; i++) {
		OK(ibv_query_gid(verbs, 1, i, &gid));
		if (ibv_query_gid_ex(verbs, 1, i, &entry, 0) == ENODATA) {
			CHECK(gid.global.interface_id == 0 && gid.global.subnet_prefix == 0);
			continue;
		}
		CHECK(used < n && table[used].gid_index == (unsigned int)i);
		CHECK(memcmp(&table[used++].gid, &gid, sizeof(gid)) == 0 && memcmp(&entry.gid, &gid, sizeof(gid)) == 0);
		if (gid.raw[10] == 0xff && memcmp(gid.raw + 12, &address, 4) == 0)
			found = i;
	}
	CHECK(used == n);
	return found;
}

struct connection {
	struct rdma_cm_id *listener, *client, *server;
};

/* Connects to a service at an address of this host, and says something. The service is that of a listener, or of its own. */
static struct connection connected_to(const char *ip, struct rdma_cm_id *listener)
{
	struct rdma_conn_param param = {.retry_count = 1, .rnr_retry_count = 1};
	struct ibv_qp_init_attr client_attr = qp_attr(IBV_QPT_RC), server_attr = qp_attr(IBV_QPT_RC);
	struct sockaddr_in to = at(ip, 0), from = at("10.77.0.1", 0);
	char text[16] = "one two three", heard[16] = "";
	struct rdma_cm_event *event;
	struct connection c;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	c.listener = NULL;
	if (!listener) {
		OK(rdma_create_id(channel, &c.listener, NULL, RDMA_PS_TCP));
		OK(rdma_bind_addr(c.listener, SA(to)));
		OK(rdma_listen(c.listener, 4));
		listener = c.listener;
	}
	to.sin_port = rdma_get_src_port(listener);
	OK(rdma_create_id(channel, &c.client, NULL, RDMA_PS_TCP));
	OK(rdma_resolve_addr(c.client, SA(from), SA(to), 2000));
	expect(channel, c.client, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	OK(rdma_resolve_route(c.client, 2000));
	expect(channel, c.client, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	OK(rdma_create_qp(c.client, NULL, &client_attr));
	OK(rdma_connect(c.client, &param));
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == listener);
	c.server = event->id;
	OK(rdma_ack_cm_event(event));
	OK(rdma_create_qp(c.server, NULL, &server_attr));
	mr = rdma_reg_msgs(c.server, heard, sizeof(heard));
	CHECK(mr);
	OK(rdma_post_recv(c.server, NULL, heard, sizeof(heard), mr));
	OK(rdma_accept(c.server, &param));
	expect(channel, c.client, RDMA_CM_EVENT_ESTABLISHED, 0);
	expect(channel, c.server, RDMA_CM_EVENT_ESTABLISHED, 0);
	OK(rdma_post_send(c.client, NULL, text, sizeof(text), NULL, IBV_SEND_INLINE));
	CHECK(rdma_get_send_comp(c.client, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(c.server, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(memcmp(heard, text, sizeof(text)) == 0);
	OK(rdma_dereg_mr(mr));
	return c;
}

static struct connection connected(const char *ip)
{
	return connected_to(ip, NULL);
}

static void done(struct connection c)
{
	rdma_destroy_qp(c.client);
	rdma_destroy_qp(c.server);
	OK(rdma_destroy_id(c.client));
	OK(rdma_destroy_id(c.server));
	if (c.listener)
		OK(rdma_destroy_id(c.listener));
}

static int ready_to_receive(struct ibv_qp *qp, int sgid_index, struct ibv_qp_attr *way)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

	OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	way->ah_attr.grh.sgid_index = sgid_index;
	return ibv_modify_qp(qp, way,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int main(void)
{
	struct sockaddr_in first = at("10.77.0.1", 0), anywhere = at("0.0.0.0", 0);
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct ibv_qp_attr way = {.qp_state = IBV_QPS_RTR,
				  .path_mtu = IBV_MTU_1024,
				  .dest_qp_num = 77,
				  .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}}};
	struct connection old, new;
	struct ibv_context *verbs;
	struct rdma_cm_id *id, *wide;
	int at_first, came;
	struct ibv_qp *qp;
	struct ibv_wc wc;

	channel = rdma_create_event_channel();
	CHECK(channel);
	OK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	OK(rdma_bind_addr(id, SA(first)));
	verbs = id->verbs;
	CHECK(verbs && strcmp(ibv_get_device_name(verbs->device), "rem_rv0") == 0);
	at_first = index_of(verbs, "10.77.0.1");
	CHECK(port_of(verbs).state == IBV_PORT_ACTIVE && port_of(verbs).phys_state == 5 && at_first == 0);
	CHECK(port_of(verbs).active_mtu == IBV_MTU_1024);
	quiet(verbs);
	OK(rdma_create_id(channel, &wide, NULL, RDMA_PS_TCP));
	OK(rdma_bind_addr(wide, SA(anywhere)));
	OK(rdma_listen(wide, 4));
	old = connected_to("10.77.0.1", wide);

	/* An address that came later is as good as the first. */
	shell("ip addr add 10.77.0.2/24 dev rv0");
	until(verbs, IBV_EVENT_GID_CHANGE);
	quiet(verbs);
	came = index_of(verbs, "10.77.0.2");
	CHECK(came > 0 && index_of(verbs, "10.77.0.1") == at_first);
	done(connected_to("10.77.0.2", wide));
	new = connected("10.77.0.2");

	/* It goes: its connection ends, that of the other address does not; its place is empty, and nobody's. */
	shell("ip addr del 10.77.0.2/24 dev rv0");
	until(verbs, IBV_EVENT_GID_CHANGE);
	CHECK(index_of(verbs, "10.77.0.2") == -1 && index_of(verbs, "10.77.0.1") == at_first);
	OK(rdma_post_send(new.client, NULL, "lost", 4, NULL, IBV_SEND_INLINE));
	CHECK(rdma_get_send_comp(new.client, &wc) == 1 && wc.status == IBV_WC_RETRY_EXC_ERR);
	done(new);
	attr.send_cq = attr.recv_cq = ibv_create_cq(verbs, 4, NULL, NULL, 0);
	qp = ibv_create_qp(id->pd, &attr);
	CHECK(qp);
	OK(ibv_query_gid(verbs, 1, at_first, &way.ah_attr.grh.dgid));
	CHECK(ready_to_receive(qp, came, &way) == EINVAL);
	OK(ibv_destroy_qp(qp));

	/* The place is taken by the next one. */
	shell("ip addr add 10.77.0.3/24 dev rv0");
	until(verbs, IBV_EVENT_GID_CHANGE);
	CHECK(index_of(verbs, "10.77.0.3") == came);
	qp = ibv_create_qp(id->pd, &attr);
	CHECK(qp && ready_to_receive(qp, came, &way) == 0);
	OK(ibv_destroy_qp(qp));
	done(connected("10.77.0.3"));

	/* The cable is pulled, and a short while later put back. */
	shell("ip link set rv1 down");
	until(verbs, IBV_EVENT_PORT_ERR);
	CHECK(port_of(verbs).state == IBV_PORT_DOWN && port_of(verbs).phys_state == 3);
	shell("ip link set rv1 up");
	until(verbs, IBV_EVENT_PORT_ACTIVE);
	CHECK(port_of(verbs).state == IBV_PORT_ACTIVE && port_of(verbs).phys_state == 5);
	quiet(verbs);

	/* No event tells of an MTU. The next event is behind it. */
	shell("ip link set rv0 mtu 9000 && ip addr del 10.77.0.3/24 dev rv0");
	until(verbs, IBV_EVENT_GID_CHANGE);
	CHECK(port_of(verbs).active_mtu == IBV_MTU_4096);
	qp = ibv_create_qp(id->pd, &attr);
	way.path_mtu = IBV_MTU_4096;
	CHECK(qp && ready_to_receive(qp, at_first, &way) == 0);
	OK(ibv_destroy_qp(qp));
	shell("ip link set rv0 mtu 1500 && ip addr add 10.77.0.3/24 dev rv0");
	until(verbs, IBV_EVENT_GID_CHANGE);
	CHECK(port_of(verbs).active_mtu == IBV_MTU_1024);
	qp = ibv_create_qp(id->pd, &attr);
	CHECK(qp && ready_to_receive(qp, at_first, &way) == EINVAL);
	OK(ibv_destroy_qp(qp));

	/* A thousand come and go; whatever news were lost, the last one is there in the end, and the first never went. */
	shell("(for i in $(seq 1000); do a=10.79.$((i / 250)).$((i % 250 + 1))/32;"
	      " echo addr add $a dev rv0; echo addr del $a dev rv0; done; echo addr add 10.77.0.4/24 dev rv0) | ip -batch -");
	while (index_of(verbs, "10.77.0.4") == -1)
		until(verbs, IBV_EVENT_GID_CHANGE);
	CHECK(index_of(verbs, "10.77.0.1") == at_first && index_of(verbs, "10.77.0.3") == came);
	done(connected("10.77.0.4"));
	done(connected_to("10.77.0.4", wide));
	done(connected_to("10.77.0.1", wide));
	OK(rdma_destroy_id(wide));
	OK(rdma_post_send(old.client, NULL, "gone", 4, NULL, IBV_SEND_INLINE));
	CHECK(rdma_get_send_comp(old.client, &wc) == 1);
	done(old);

	/* Who is bound to no device is not told of its end; who is bound to it, once. */
	OK(rdma_create_id(channel, &wide, NULL, RDMA_PS_TCP));
	OK(rdma_bind_addr(wide, SA(anywhere)));
	OK(rdma_listen(wide, 4));
	none(channel);
	shell("ip link del rv0");
	until(verbs, IBV_EVENT_DEVICE_FATAL);
	CHECK(port_of(verbs).state == IBV_PORT_DOWN);
	expect(channel, id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
	none(channel);
	OK(rdma_destroy_id(wide));
	OK(rdma_destroy_id(id));
	return 0;
}
