/* What the tests of librdmacm share: checks that say where they failed, and the steps that every connection takes. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define FAIL(...)                                                                                                      \
	do {                                                                                                           \
		fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                        \
		fprintf(stderr, __VA_ARGS__);                                                                          \
		fprintf(stderr, " (errno %d, %s)\n", errno, strerror(errno));                                          \
		_exit(1);                                                                                              \
	} while (0)
#define CHECK(what)                                                                                                    \
	do {                                                                                                           \
		if (!(what))                                                                                           \
			FAIL("not so: %s", #what);                                                                     \
	} while (0)
#define OK(call)                                                                                                       \
	do {                                                                                                           \
		if ((call) != 0)                                                                                       \
			FAIL("%s failed", #call);                                                                      \
	} while (0)
#define REFUSED(call, why)                                                                                             \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		if ((call) != -1 || errno != (why))                                                                    \
			FAIL("%s was not refused with %s", #call, #why);                                               \
	} while (0)

static inline struct sockaddr_in at(const char *ip, int port)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_port = htons(port)};

	CHECK(inet_pton(AF_INET, ip, &sin.sin_addr) == 1);
	return sin;
}

#define SA(sin) ((struct sockaddr *)&(sin))

/* The next event, which must be the one that is expected. */
static inline struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	struct pollfd readable = {.fd = channel->fd, .events = POLLIN};
	struct rdma_cm_event *event;

	if (poll(&readable, 1, 20000) != 1)
		FAIL("no event while waiting for %s", rdma_event_str(expected));
	OK(rdma_get_cm_event(channel, &event));
	if (event->event != expected)
		FAIL("%s (status %d) instead of %s", rdma_event_str(event->event), event->status,
		     rdma_event_str(expected));
	return event;
}

/* The same, of an identifier and with a status, and done with. */
static inline void expect(struct rdma_event_channel *channel, struct rdma_cm_id *id, enum rdma_cm_event_type expected,
			  int status)
{
	struct rdma_cm_event *event = next(channel, expected);

	CHECK(event->id == id);
	if (event->status != status)
		FAIL("%s with status %d instead of %d", rdma_event_str(expected), event->status, status);
	OK(rdma_ack_cm_event(event));
}

static inline void none(struct rdma_event_channel *channel)
{
	struct pollfd readable = {.fd = channel->fd, .events = POLLIN};
	struct rdma_cm_event *event;

	CHECK(poll(&readable, 1, 0) == 0);
	CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	REFUSED(rdma_get_cm_event(channel, &event), EAGAIN);
	CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) & ~O_NONBLOCK) == 0);
}

static inline struct ibv_qp_init_attr qp_attr(enum ibv_qp_type type)
{
	return (struct ibv_qp_init_attr){
		.qp_type = type,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 16},
		.sq_sig_all = 1,
	};
}

/* An identifier that listens on a port that the system chose. */
static inline struct rdma_cm_id *listener(struct rdma_event_channel *channel, enum rdma_port_space ps, int *port)
{
	struct sockaddr_in any = at("127.0.0.1", 0);
	struct rdma_cm_id *id;

	OK(rdma_create_id(channel, &id, (void *)0x1157, ps));
	OK(rdma_bind_addr(id, SA(any)));
	OK(rdma_listen(id, 4));
	*port = ntohs(rdma_get_src_port(id));
	CHECK(*port >= 1024);
	return id;
}

/* An identifier that knows the way to a port. */
static inline struct rdma_cm_id *routed(struct rdma_event_channel *channel, enum rdma_port_space ps, int port)
{
	struct sockaddr_in to = at("127.0.0.1", port);
	struct rdma_cm_id *id;

	OK(rdma_create_id(channel, &id, NULL, ps));
	OK(rdma_resolve_addr(id, NULL, SA(to), 2000));
	expect(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	OK(rdma_resolve_route(id, 2000));
	expect(channel, id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	return id;
}
