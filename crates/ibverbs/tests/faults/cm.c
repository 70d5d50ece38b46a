/* Peers by rdma_cm: `cm ROLE ADDRESS PORT [more]`.
 *
 * serve    accepts whoever comes, lets them write, echoes their messages, and says when they come and go
 * write    writes for ever, as much as goes out
 * wait     waits for messages and events; says which come
 * send     sends a message for every line that it is told, and says how it ended
 * pair     the bystander: messages with a pattern to a server and back, checked, until it is hung up on
 * nobody   connects once, and says what comes of it
 * absent   resolves the address, in every way that there is, and says what comes of it
 * deaf     listens, says when it is asked for a connection, and never answers
 */
#include "faults.h"

enum { SIZE = 4 << 20, MESSAGE = 512, SLOTS = 8 };

/* What a server tells of its memory. */
struct offer {
	uint64_t addr;
	uint32_t rkey;
} __attribute__((packed));

struct conn {
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	char *memory;
	struct conn *next;
};

static struct rdma_event_channel *channel;
static struct sockaddr_storage addr;
static struct rdma_conn_param param = {.responder_resources = 4, .initiator_depth = 4, .retry_count = 3, .rnr_retry_count = 7};

static void parse(const char *text, const char *port)
{
	struct sockaddr_in *in = (void *)&addr;
	struct sockaddr_in6 *in6 = (void *)&addr;
	if (inet_pton(AF_INET, text, &in->sin_addr) == 1) {
		in->sin_family = AF_INET;
		in->sin_port = htons((uint16_t)atoi(port));
	} else {
		CHECK(inet_pton(AF_INET6, text, &in6->sin6_addr) == 1);
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons((uint16_t)atoi(port));
	}
}

static void setup(struct conn *conn)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1}};
	/* QPs of one connection each: its own CQs and PD are made with it. */
	SAME(rdma_create_qp(conn->id, NULL, &init), 0);
	conn->memory = pages(SIZE);
	CHECK(conn->mr = ibv_reg_mr(conn->id->pd, conn->memory, SIZE, ALL));
}

static void destroy(struct conn *conn)
{
	rdma_destroy_qp(conn->id);
	SAME(ibv_dereg_mr(conn->mr), 0);
	munmap(conn->memory, SIZE);
	SAME(rdma_destroy_id(conn->id), 0);
}

static void receive(struct conn *conn, int slot)
{
	struct ibv_sge sge = {.addr = (uintptr_t)conn->memory + (size_t)slot * MESSAGE, .length = MESSAGE, .lkey = conn->mr->lkey};
	struct ibv_recv_wr *bad, wr = {.wr_id = (uint64_t)slot, .sg_list = &sge, .num_sge = 1};
	SAME(ibv_post_recv(conn->id->qp, &wr, &bad), 0);
}

static int send_slot(struct conn *conn, int slot)
{
	struct ibv_sge sge = {.addr = (uintptr_t)conn->memory + (size_t)slot * MESSAGE, .length = MESSAGE, .lkey = conn->mr->lkey};
	struct ibv_send_wr *bad, wr = {.wr_id = 100 + (uint64_t)slot, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED};
	return ibv_post_send(conn->id->qp, &wr, &bad);
}

/* The next event, which must be the one that is expected. */
static struct rdma_cm_event *expect(enum rdma_cm_event_type want)
{
	struct rdma_cm_event *event;
	SAME(rdma_get_cm_event(channel, &event), 0);
	if (event->event != want) {
		fprintf(stderr, "%s (%d) instead of %s\n", rdma_event_str(event->event), event->status, rdma_event_str(want));
		exit(1);
	}
	return event;
}

static void ask(struct conn *conn)
{
	CHECK(channel = rdma_create_event_channel());
	SAME(rdma_create_id(channel, &conn->id, conn, RDMA_PS_TCP), 0);
	SAME(rdma_resolve_addr(conn->id, NULL, (void *)&addr, 2000), 0);
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_ADDR_RESOLVED));
	SAME(rdma_resolve_route(conn->id, 2000), 0);
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_ROUTE_RESOLVED));
	setup(conn);
}

static struct offer connect_to(struct conn *conn)
{
	struct offer offer;
	ask(conn);
	for (int slot = 0; slot < SLOTS; slot++)
		receive(conn, slot);
	SAME(rdma_connect(conn->id, &param), 0);
	struct rdma_cm_event *event = expect(RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->param.conn.private_data_len >= sizeof(offer));
	memcpy(&offer, event->param.conn.private_data, sizeof(offer));
	rdma_ack_cm_event(event);
	return offer;
}

static void accept_conn(struct rdma_cm_id *id, struct conn **all)
{
	struct conn *conn = calloc(1, sizeof(*conn));
	conn->id = id;
	id->context = conn;
	setup(conn);
	for (int slot = 0; slot < SLOTS; slot++)
		receive(conn, slot);
	struct offer offer = {(uintptr_t)conn->memory, conn->mr->rkey};
	struct rdma_conn_param answer = param;
	answer.private_data = &offer;
	answer.private_data_len = sizeof(offer);
	if (rdma_accept(id, &answer)) {
		/* The peer has given up meanwhile. */
		say("gone before it was accepted: %d", errno);
		destroy(conn);
		free(conn);
		return;
	}
	conn->next = *all;
	*all = conn;
}

/* Takes all completions; how many were flushed. */
static int drain(struct conn *conn, struct ibv_cq *cq, int echo)
{
	struct ibv_wc wc;
	int flushed = 0;
	while (ibv_poll_cq(cq, 1, &wc) == 1) {
		if (wc.status == IBV_WC_WR_FLUSH_ERR) {
			flushed++;
		} else if (wc.status != IBV_WC_SUCCESS) {
			say("status %s", ibv_wc_status_str(wc.status));
		} else if (wc.opcode == IBV_WC_RECV && echo) {
			if (send_slot(conn, (int)wc.wr_id))
				say("cannot echo");
		} else if (wc.opcode == IBV_WC_SEND && echo) {
			receive(conn, (int)wc.wr_id - 100);
		}
	}
	return flushed;
}

/* A server's, before anybody came. */
static int ready_fds, ready_tasks;

static void leave(struct conn *conn, struct conn **all)
{
	rdma_disconnect(conn->id);
	/* Everything that was posted comes back. */
	int flushed = 0;
	for (int i = 0; i < 10000 && flushed < SLOTS; i++) {
		flushed += drain(conn, conn->id->recv_cq, 0) + drain(conn, conn->id->send_cq, 0);
		usleep(1000);
	}
	for (struct conn **at = all; *at; at = &(*at)->next)
		if (*at == conn) {
			*at = conn->next;
			break;
		}
	destroy(conn);
	free(conn);
	/* While others are connected it is what it happens to be. */
	int fds = *all ? descriptors() : settled(descriptors, ready_fds), tasks = *all ? threads() : settled(threads, ready_tasks);
	say("gone %d flushed, %d descriptors, %d threads", flushed, fds, tasks);
}

static void serve(void)
{
	struct rdma_cm_id *listener;
	struct conn *all = NULL;
	CHECK(channel = rdma_create_event_channel());
	SAME(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), 0);
	SAME(rdma_bind_addr(listener, (void *)&addr), 0);
	SAME(rdma_listen(listener, 64), 0);
	fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	ready_fds = least(descriptors);
	ready_tasks = least(threads);
	say("ready %d descriptors, %d threads", ready_fds, ready_tasks);
	for (;;) {
		struct rdma_cm_event *event;
		struct pollfd news = {.fd = channel->fd, .events = POLLIN};
		poll(&news, 1, 1);
		for (struct conn *conn = all; conn; conn = conn->next) {
			drain(conn, conn->id->recv_cq, 1);
			drain(conn, conn->id->send_cq, 1);
		}
		if (rdma_get_cm_event(channel, &event)) {
			SAME(errno, EAGAIN);
			continue;
		}
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type type = event->event;
		int status = event->status;
		rdma_ack_cm_event(event);
		switch (type) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			accept_conn(id, &all);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			say("established");
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			say("disconnected");
			leave(id->context, &all);
			break;
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			break;
		case RDMA_CM_EVENT_REJECTED:
		case RDMA_CM_EVENT_UNREACHABLE:
		case RDMA_CM_EVENT_CONNECT_ERROR:
			/* Half of a handshake: accepted, and never confirmed. */
			say("half open: %s %d", rdma_event_str(type), status);
			leave(id->context, &all);
			break;
		default:
			say("event %s %d", rdma_event_str(type), status);
		}
	}
}

static void write_for_ever(void)
{
	struct conn conn = {0};
	struct offer offer = connect_to(&conn);
	struct ibv_sge sge = {.addr = (uintptr_t)conn.memory, .length = 1 << 20, .lkey = conn.mr->lkey};
	struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = {.remote_addr = offer.addr, .rkey = offer.rkey}};
	memset(conn.memory, 0x5a, SIZE);
	for (int i = 0; i < 16; i++)
		SAME(ibv_post_send(conn.id->qp, &wr, &bad), 0);
	for (long n = 0;; n++) {
		SAME(wait_wc(conn.id->send_cq).status, IBV_WC_SUCCESS);
		SAME(ibv_post_send(conn.id->qp, &wr, &bad), 0);
		if (n == 4)
			say("writing");
	}
}

static void wait_for_news(void)
{
	struct conn conn = {0};
	struct rdma_cm_event *event;
	struct ibv_cq *cq;
	void *context;
	connect_to(&conn);
	SAME(ibv_req_notify_cq(conn.id->recv_cq, 0), 0);
	say("waiting");
	struct pollfd news[2] = {{.fd = channel->fd, .events = POLLIN}, {.fd = conn.id->recv_cq_channel->fd, .events = POLLIN}};
	SAME(poll(news, 1, -1), 1);
	SAME(rdma_get_cm_event(channel, &event), 0);
	say("event %s %d", rdma_event_str(event->event), event->status);
	rdma_ack_cm_event(event);
	/* As it is said in rdma_disconnect(3): what is posted is flushed, and that is an event of the CQ. */
	SAME(rdma_disconnect(conn.id), 0);
	SAME(poll(news + 1, 1, -1), 1);
	SAME(ibv_get_cq_event(conn.id->recv_cq_channel, &cq, &context), 0);
	CHECK(cq == conn.id->recv_cq);
	ibv_ack_cq_events(cq, 1);
	for (int slot = 0; slot < SLOTS; slot++)
		SAME(wait_wc(cq).status, IBV_WC_WR_FLUSH_ERR);
	say("flushed");
	destroy(&conn);
	rdma_destroy_event_channel(channel);
}

static void send_lines(void)
{
	struct conn conn = {0};
	char line[64];
	connect_to(&conn);
	say("waiting");
	while (fgets(line, sizeof(line), stdin)) {
		SAME(send_slot(&conn, 0), 0);
		say("status %s", ibv_wc_status_str(wait_wc(conn.id->send_cq).status));
	}
	rdma_disconnect(conn.id);
	destroy(&conn);
	rdma_destroy_event_channel(channel);
}

static void pair(void)
{
	struct conn conn = {0};
	long rounds = 0;
	struct pollfd in = {.fd = 0, .events = POLLIN};
	connect_to(&conn);
	/* Slots of the echo are 0 to 7, ours lies behind them. */
	unsigned char *out = (unsigned char *)conn.memory + SLOTS * MESSAGE;
	struct ibv_sge sge = {.addr = (uintptr_t)out, .length = MESSAGE, .lkey = conn.mr->lkey};
	struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	say("running %d %u", (int)conn.id->qp->qp_num >> 16, conn.id->qp->qp_num);
	do {
		for (int i = 0; i < MESSAGE; i++)
			out[i] = (unsigned char)(rounds * 7 + i);
		SAME(ibv_post_send(conn.id->qp, &wr, &bad), 0);
		struct ibv_wc wc = wait_wc(conn.id->recv_cq);
		SAME(wc.status, IBV_WC_SUCCESS);
		SAME(wc.byte_len, MESSAGE);
		CHECK(!memcmp(conn.memory + wc.wr_id * MESSAGE, out, MESSAGE));
		receive(&conn, (int)wc.wr_id);
		SAME(wait_wc(conn.id->send_cq).status, IBV_WC_SUCCESS);
		rounds++;
	} while (!poll(&in, 1, 1));
	SAME(rdma_disconnect(conn.id), 0);
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_DISCONNECTED));
	destroy(&conn);
	rdma_destroy_event_channel(channel);
	say("rounds %ld", rounds);
}

static void nobody(void)
{
	struct conn conn = {0};
	struct rdma_cm_event *event;
	ask(&conn);
	SAME(rdma_connect(conn.id, &param), 0);
	SAME(rdma_get_cm_event(channel, &event), 0);
	say("event %s %d", rdma_event_str(event->event), event->status);
	rdma_ack_cm_event(event);
	destroy(&conn);
	rdma_destroy_event_channel(channel);
	/* The same, synchronously: -1 and an errno. */
	struct rdma_cm_id *id;
	SAME(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	SAME(rdma_resolve_addr(id, NULL, (void *)&addr, 2000), 0);
	SAME(rdma_resolve_route(id, 2000), 0);
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
	SAME(rdma_create_qp(id, NULL, &init), 0);
	int ret = rdma_connect(id, &param);
	say("connect %d %s", ret, strerrorname_np(errno));
	rdma_destroy_qp(id);
	SAME(rdma_destroy_id(id), 0);
}

static void resolve(struct rdma_cm_id *id, int timeout_ms)
{
	struct rdma_cm_event *event;
	SAME(rdma_resolve_addr(id, NULL, (void *)&addr, timeout_ms), 0);
	/* One answer is enough. */
	SAME(rdma_resolve_addr(id, NULL, (void *)&addr, timeout_ms), -1);
	SAME(errno, EINVAL);
	SAME(rdma_resolve_route(id, timeout_ms), -1);
	SAME(errno, EINVAL);
	SAME(rdma_get_cm_event(channel, &event), 0);
	CHECK(event->id == id);
	say("event %s %d, %s device", rdma_event_str(event->event), event->status, id->verbs ? "a" : "no");
	rdma_ack_cm_event(event);
}

static void absent(void)
{
	struct rdma_cm_id *id, *others[8];
	int fds, tasks, ret;
	CHECK(channel = rdma_create_event_channel());
	SAME(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	fds = least(descriptors);
	tasks = least(threads);
	resolve(id, 300);
	/* It is as it was before it asked. */
	resolve(id, 0);
	SAME(rdma_destroy_id(id), 0);
	/* Who does not want to know any more is not told, and waits for nothing. */
	for (int i = 0; i < 8; i++) {
		SAME(rdma_create_id(channel, &others[i], NULL, i & 1 ? RDMA_PS_UDP : RDMA_PS_TCP), 0);
		SAME(rdma_resolve_addr(others[i], NULL, (void *)&addr, i & 2 ? -1 : 1000000), 0);
	}
	for (int i = 0; i < 8; i++)
		SAME(rdma_destroy_id(others[i]), 0);
	say("left %d descriptors, %d threads", settled(descriptors, fds) - fds, settled(threads, tasks) - tasks);
	rdma_destroy_event_channel(channel);
	/* The same, synchronously: -1 and an errno. */
	SAME(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	ret = rdma_resolve_addr(id, NULL, (void *)&addr, 300);
	say("resolve %d %s", ret, strerrorname_np(errno));
	SAME(rdma_destroy_id(id), 0);
}

static void deaf(void)
{
	struct rdma_cm_id *listener;
	CHECK(channel = rdma_create_event_channel());
	SAME(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), 0);
	SAME(rdma_bind_addr(listener, (void *)&addr), 0);
	SAME(rdma_listen(listener, 4), 0);
	say("ready");
	rdma_ack_cm_event(expect(RDMA_CM_EVENT_CONNECT_REQUEST));
	say("asked");
	pause();
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} roles[] = {{"serve", serve}, {"write", write_for_ever}, {"wait", wait_for_news}, {"send", send_lines}, {"pair", pair},
		{"nobody", nobody}, {"absent", absent}, {"deaf", deaf}};
	CHECK(argc == 4);
	parse(argv[2], argv[3]);
	for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++)
		if (!strcmp(argv[1], roles[i].name)) {
			roles[i].run();
			return 0;
		}
	return 2;
}
