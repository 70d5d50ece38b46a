/* Addresses, ports and options: what is given, what is taken, and by which process. */
#include "cm.h"

static struct rdma_event_channel *channel;

static struct rdma_cm_id *fresh(enum rdma_port_space ps)
{
	struct rdma_cm_id *id;

	OK(rdma_create_id(channel, &id, NULL, ps));
	return id;
}

static void ports(void)
{
	struct sockaddr_in any_port = at("127.0.0.1", 0), anywhere = at("0.0.0.0", 0), taken, elsewhere;
	struct rdma_cm_id *a = fresh(RDMA_PS_TCP), *b = fresh(RDMA_PS_TCP), *c = fresh(RDMA_PS_UDP);
	int one = 1;

	CHECK(!a->verbs && rdma_get_src_port(a) == 0);
	OK(rdma_bind_addr(a, SA(any_port)));
	CHECK(a->verbs && a->pd && a->port_num == 1);
	CHECK(strcmp(ibv_get_device_name(a->verbs->device), "rem_lo") == 0);
	REFUSED(rdma_bind_addr(a, SA(any_port)), EINVAL);
	taken = at("127.0.0.1", ntohs(rdma_get_src_port(a)));
	CHECK(taken.sin_port != 0 && rdma_get_dst_port(a) == 0);
	REFUSED(rdma_bind_addr(b, SA(taken)), EADDRINUSE);
	/* Every address has that one among it. */
	elsewhere = at("0.0.0.0", ntohs(taken.sin_port));
	REFUSED(rdma_bind_addr(b, SA(elsewhere)), EADDRNOTAVAIL);
	/* Datagrams have ports of their own. */
	OK(rdma_bind_addr(c, SA(taken)));
	/* Free again with its owner. */
	OK(rdma_destroy_id(a));
	OK(rdma_bind_addr(b, SA(taken)));
	OK(rdma_destroy_id(b));
	OK(rdma_destroy_id(c));

	/* Those who agree to share a port may, until one listens. */
	a = fresh(RDMA_PS_TCP);
	b = fresh(RDMA_PS_TCP);
	OK(rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)));
	OK(rdma_set_option(b, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)));
	OK(rdma_bind_addr(a, SA(taken)));
	OK(rdma_bind_addr(b, SA(taken)));
	OK(rdma_listen(a, 1));
	REFUSED(rdma_listen(b, 1), EADDRINUSE);
	REFUSED(rdma_listen(a, 1), EINVAL);
	OK(rdma_destroy_id(a));
	OK(rdma_listen(b, 1));
	OK(rdma_destroy_id(b));

	a = fresh(RDMA_PS_TCP);
	OK(rdma_bind_addr(a, SA(anywhere)));
	CHECK(!a->verbs && rdma_get_src_port(a) != 0);
	OK(rdma_listen(a, 0));
	CHECK(!a->verbs);
	OK(rdma_destroy_id(a));
	a = fresh(RDMA_PS_TCP);
	OK(rdma_listen(a, 0)); /* unbound: any address, any port */
	CHECK(rdma_get_src_port(a) != 0);
	OK(rdma_destroy_id(a));
}

static void addresses(void)
{
	struct sockaddr_in nobodys = at("192.0.2.123", 0), nowhere = at("203.0.113.1", 7), away = at("127.0.0.1", 7);
	struct sockaddr_in6 link_local = {.sin6_family = AF_INET6};
	struct sockaddr unknown = {.sa_family = AF_UNIX};
	struct rdma_cm_id *id = fresh(RDMA_PS_TCP);
	struct sockaddr_in local = at("127.0.0.1", 0);

	inet_pton(AF_INET6, "fe80::1", &link_local.sin6_addr);
	REFUSED(rdma_bind_addr(id, SA(link_local)), EINVAL);
	REFUSED(rdma_bind_addr(id, SA(nobodys)), EADDRNOTAVAIL);
	REFUSED(rdma_bind_addr(id, &unknown), EINVAL);
	REFUSED(rdma_resolve_addr(id, NULL, &unknown, 100), EINVAL);
	REFUSED(rdma_resolve_addr(id, &unknown, SA(away), 100), EINVAL);
	REFUSED(rdma_resolve_route(id, 100), EINVAL);
	CHECK(rdma_create_qp(id, NULL, &(struct ibv_qp_init_attr){.qp_type = IBV_QPT_RC}) == -1);
	/* The address is settled first, then the way. */
	OK(rdma_bind_addr(id, SA(local)));
	OK(rdma_resolve_addr(id, NULL, SA(away), 100));
	expect(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	REFUSED(rdma_resolve_addr(id, NULL, SA(away), 100), EINVAL);
	CHECK(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	CHECK(rdma_get_dst_port(id) == htons(7));
	OK(rdma_resolve_route(id, 100));
	REFUSED(rdma_resolve_route(id, 100), EINVAL);
	expect(channel, id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	OK(rdma_destroy_id(id));

	/* From here to there is no way for a loopback address; what exactly is wrong is the kernel's to say. */
	id = fresh(RDMA_PS_TCP);
	CHECK(rdma_resolve_addr(id, SA(local), SA(nowhere), 100) == -1);
	OK(rdma_destroy_id(id));
	none(channel);
}

static void options(void)
{
	struct rdma_cm_id *id = fresh(RDMA_PS_TCP), *ud = fresh(RDMA_PS_UDP);
	struct sockaddr_in any_port = at("127.0.0.1", 0);
	uint8_t tos = 32, timeout = 14;
	int no = 0;

	OK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)));
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &no, sizeof(no)), EINVAL);
	OK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout)));
	REFUSED(rdma_set_option(ud, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout)), EINVAL);
	OK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &no, sizeof(no)));
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, 77, &no, sizeof(no)), ENOSYS);
	REFUSED(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &no, sizeof(no)), ENOSYS);
	OK(rdma_bind_addr(id, SA(any_port)));
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &no, sizeof(no)), EINVAL);
	OK(rdma_destroy_id(id));
	OK(rdma_destroy_id(ud));
}

static void odds_and_ends(void)
{
	struct ibv_context **devices;
	struct rdma_cm_id *id;
	int n, lo = 0;

	devices = rdma_get_devices(&n);
	CHECK(devices && n > 0 && !devices[n]);
	for (int i = 0; i < n; i++)
		lo += strcmp(ibv_get_device_name(devices[i]->device), "rem_lo") == 0;
	CHECK(lo == 1);
	rdma_free_devices(devices);
	REFUSED(rdma_create_id(channel, &id, NULL, 0x7777), EINVAL);
	REFUSED(rdma_ack_cm_event(NULL), EINVAL);
	REFUSED(rdma_get_cm_event(channel, NULL), EINVAL);
	CHECK(strcmp(rdma_event_str(RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT") == 0);
	CHECK(strcmp(rdma_event_str(99), "UNKNOWN EVENT") == 0);
}

/* Another process of this host: has the port that is named, or finds it taken. */
static int other(const char *port, int expected)
{
	struct sockaddr_in addr = at("127.0.0.1", atoi(port));
	struct rdma_cm_id *id = fresh(RDMA_PS_TCP);

	if (expected)
		REFUSED(rdma_bind_addr(id, SA(addr)), expected);
	else
		OK(rdma_bind_addr(id, SA(addr)));
	OK(rdma_destroy_id(id));
	return 0;
}

static void in_another_process(const char *self, int port, int expected)
{
	char command[256];

	snprintf(command, sizeof(command), "%s %d %d", self, port, expected);
	CHECK(system(command) == 0);
}

int main(int argc, char **argv)
{
	struct rdma_cm_id *id;
	int port;

	channel = rdma_create_event_channel();
	CHECK(channel);
	if (argc == 3)
		return other(argv[1], atoi(argv[2]));
	ports();
	addresses();
	options();
	odds_and_ends();
	id = listener(channel, RDMA_PS_TCP, &port);
	in_another_process(argv[0], port, EADDRINUSE);
	OK(rdma_destroy_id(id));
	in_another_process(argv[0], port, 0);
	none(channel);
	rdma_destroy_event_channel(channel);
	return 0;
}
