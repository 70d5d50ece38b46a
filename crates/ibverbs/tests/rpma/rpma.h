/* What our librpma programs share: `PROGRAM server|client ADDRESS PORT`, one line and a status when something is wrong. */
#include <arpa/inet.h>
#include <errno.h>
#include <librpma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(what)                                                                       \
	do {                                                                              \
		if (!(what)) {                                                            \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
			exit(1);                                                          \
		}                                                                         \
	} while (0)

/* An rpma call that must succeed. */
#define OK(call)                                                                                                \
	do {                                                                                                    \
		int ret_ = (call);                                                                              \
		if (ret_) {                                                                                     \
			fprintf(stderr, "%s:%d: %s: %s (errno %d)\n", __FILE__, __LINE__, #call, rpma_err_2str(ret_), errno); \
			exit(1);                                                                                \
		}                                                                                               \
	} while (0)

/* What a server tells of its memory, in the private data of its answer. */
struct offer {
	uint8_t peer_cfg_size, mr_size;
	char descriptors[48];
};

static struct rpma_peer *peer;

static void open_peer(const char *addr, int remote)
{
	struct ibv_context *ctx;
	OK(rpma_utils_get_ibv_context(addr, remote ? RPMA_UTIL_IBV_CONTEXT_REMOTE : RPMA_UTIL_IBV_CONTEXT_LOCAL, &ctx));
	OK(rpma_peer_new(ctx, &peer));
}

static void *pages(size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	return at;
}

static void expect_event(struct rpma_conn *conn, enum rpma_conn_event want)
{
	enum rpma_conn_event event = RPMA_CONN_UNDEFINED;
	OK(rpma_conn_next_event(conn, &event));
	if (event != want) {
		fprintf(stderr, "%s instead of %s\n", rpma_utils_conn_event_2str(event), rpma_utils_conn_event_2str(want));
		exit(1);
	}
}

/* Says on stdout that clients may come, accepts one, and offers it what `offer` has. */
static struct rpma_conn *accept_one(const char *addr, const char *port, struct rpma_conn_cfg *cfg, struct offer *offer,
		void (*before)(struct rpma_conn_req *))
{
	struct rpma_ep *ep;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	struct rpma_conn_private_data pdata = {offer, sizeof(*offer)};
	OK(rpma_ep_listen(peer, addr, port, &ep));
	puts("ready");
	fflush(stdout);
	OK(rpma_ep_next_conn_req(ep, cfg, &req));
	if (before)
		before(req);
	OK(rpma_conn_req_connect(&req, offer ? &pdata : NULL, &conn));
	expect_event(conn, RPMA_CONN_ESTABLISHED);
	OK(rpma_ep_shutdown(&ep));
	return conn;
}

static struct rpma_conn *connect_to(const char *addr, const char *port, struct rpma_conn_cfg *cfg)
{
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	OK(rpma_conn_req_new(peer, addr, port, cfg, &req));
	OK(rpma_conn_req_connect(&req, NULL, &conn));
	expect_event(conn, RPMA_CONN_ESTABLISHED);
	return conn;
}

/* Waits for one completion of the CQ, by its descriptor, and checks it. */
static struct ibv_wc completion(struct rpma_cq *cq, enum ibv_wc_opcode opcode, const void *context)
{
	struct ibv_wc wc;
	int ret;
	while ((ret = rpma_cq_get_wc(cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
		OK(rpma_cq_wait(cq));
	OK(ret);
	if (wc.status != IBV_WC_SUCCESS || wc.opcode != opcode || wc.wr_id != (uintptr_t)context) {
		fprintf(stderr, "status %s, opcode %d (not %d), context %lx\n", ibv_wc_status_str(wc.status), wc.opcode, opcode,
				(long)wc.wr_id);
		exit(1);
	}
	return wc;
}
