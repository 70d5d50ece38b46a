/* Messages with waits for completions: one channel for both CQs at the client, two at the server, and an SRQ there. */
#include "rpma.h"

enum { SLOT = 1024, SLOTS = 16, ROUNDS = 200 };

static struct rpma_srq *srq;
static struct rpma_mr_local *in, *out;
static char *inbox, *outbox;

static void boxes(void)
{
	inbox = pages(SLOT * SLOTS);
	outbox = pages(SLOT * SLOTS);
	OK(rpma_mr_reg(peer, inbox, SLOT * SLOTS, RPMA_MR_USAGE_RECV, &in));
	OK(rpma_mr_reg(peer, outbox, SLOT * SLOTS, RPMA_MR_USAGE_SEND, &out));
}

static void compose(char *slot, const char *who, int round)
{
	memset(slot, round, SLOT);
	snprintf(slot, 64, "%s %d", who, round);
}

static void check(const char *slot, const char *who, int round, unsigned len)
{
	char want[SLOT];
	compose(want, who, round);
	CHECK(len == (unsigned)(64 + round % 900));
	CHECK(!memcmp(slot, want, len));
}

static void server(const char *addr, const char *port)
{
	struct rpma_srq_cfg *scfg;
	struct rpma_conn_cfg *cfg;
	struct rpma_cq *cq, *rcq;
	struct rpma_srq *same;
	open_peer(addr, 0);
	boxes();
	OK(rpma_srq_cfg_new(&scfg));
	OK(rpma_srq_cfg_set_rq_size(scfg, SLOTS));
	OK(rpma_srq_cfg_set_rcq_size(scfg, SLOTS));
	OK(rpma_srq_new(peer, scfg, &srq));
	OK(rpma_srq_get_rcq(srq, &rcq));
	CHECK(rcq);
	OK(rpma_conn_cfg_new(&cfg));
	OK(rpma_conn_cfg_set_sq_size(cfg, SLOTS));
	OK(rpma_conn_cfg_set_cq_size(cfg, SLOTS));
	OK(rpma_conn_cfg_set_srq(cfg, srq));
	OK(rpma_conn_cfg_get_srq(cfg, &same));
	CHECK(same == srq);
	for (long slot = 0; slot < SLOTS; slot++)
		OK(rpma_srq_recv(srq, in, (size_t)slot * SLOT, SLOT, (void *)slot));
	struct rpma_conn *conn = accept_one(addr, port, cfg, NULL, NULL);
	OK(rpma_conn_get_cq(conn, &cq));
	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_wc wc;
		int ret;
		while ((ret = rpma_cq_get_wc(rcq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
			OK(rpma_cq_wait(rcq));
		OK(ret);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
		CHECK(wc.wc_flags & IBV_WC_WITH_IMM && ntohl(wc.imm_data) == (unsigned)round + 7);
		check(inbox + wc.wr_id * SLOT, "client", round, wc.byte_len);
		OK(rpma_srq_recv(srq, in, wc.wr_id * SLOT, SLOT, (void *)(uintptr_t)wc.wr_id));
		compose(outbox, "server", round);
		OK(rpma_send(conn, out, 0, (size_t)(64 + round % 900), RPMA_F_COMPLETION_ALWAYS, &cq));
		completion(cq, IBV_WC_SEND, &cq);
	}
	expect_event(conn, RPMA_CONN_CLOSED);
	OK(rpma_conn_disconnect(conn));
	OK(rpma_conn_delete(&conn));
	OK(rpma_conn_cfg_delete(&cfg));
	OK(rpma_srq_delete(&srq));
	OK(rpma_srq_cfg_delete(&scfg));
	OK(rpma_mr_dereg(&in));
	OK(rpma_mr_dereg(&out));
	OK(rpma_peer_delete(&peer));
	puts("verified");
}

static void client(const char *addr, const char *port)
{
	struct rpma_conn_cfg *cfg;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	int fd;
	open_peer(addr, 1);
	boxes();
	OK(rpma_conn_cfg_new(&cfg));
	OK(rpma_conn_cfg_set_sq_size(cfg, SLOTS));
	OK(rpma_conn_cfg_set_cq_size(cfg, SLOTS));
	OK(rpma_conn_cfg_set_rq_size(cfg, SLOTS));
	OK(rpma_conn_cfg_set_rcq_size(cfg, SLOTS));
	OK(rpma_conn_cfg_set_compl_channel(cfg, true));
	OK(rpma_conn_req_new(peer, addr, port, cfg, &req));
	/* Receives may stand before there is a connection. */
	for (long slot = 0; slot < SLOTS; slot++)
		OK(rpma_conn_req_recv(req, in, (size_t)slot * SLOT, SLOT, (void *)slot));
	OK(rpma_conn_req_connect(&req, NULL, &conn));
	expect_event(conn, RPMA_CONN_ESTABLISHED);
	OK(rpma_conn_get_compl_fd(conn, &fd));
	CHECK(fd >= 0);
	for (int round = 0; round < ROUNDS; round++) {
		bool sent = false, got = false;
		compose(outbox, "client", round);
		OK(rpma_send_with_imm(conn, out, 0, (size_t)(64 + round % 900), RPMA_F_COMPLETION_ALWAYS, (uint32_t)round + 7, conn));
		while (!sent || !got) {
			struct rpma_cq *cq;
			bool is_rcq;
			struct ibv_wc wc;
			OK(rpma_conn_wait(conn, 0, &cq, &is_rcq));
			while (!rpma_cq_get_wc(cq, 1, &wc, NULL)) {
				CHECK(wc.status == IBV_WC_SUCCESS);
				if (is_rcq) {
					check(inbox + wc.wr_id * SLOT, "server", round, wc.byte_len);
					OK(rpma_recv(conn, in, wc.wr_id * SLOT, SLOT, (void *)(uintptr_t)wc.wr_id));
					got = true;
				} else {
					CHECK(wc.opcode == IBV_WC_SEND && wc.wr_id == (uintptr_t)conn);
					sent = true;
				}
			}
		}
	}
	OK(rpma_conn_disconnect(conn));
	expect_event(conn, RPMA_CONN_CLOSED);
	OK(rpma_conn_delete(&conn));
	OK(rpma_conn_cfg_delete(&cfg));
	OK(rpma_mr_dereg(&in));
	OK(rpma_mr_dereg(&out));
	OK(rpma_peer_delete(&peer));
	puts("verified");
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	(strcmp(argv[1], "server") ? client : server)(argv[2], argv[3]);
	return 0;
}
