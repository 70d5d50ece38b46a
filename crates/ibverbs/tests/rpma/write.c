/* A client writes, flushes, writes atomically and reads; the server, which does nothing meanwhile, finds it all. */
#include "rpma.h"

enum { SIZE = 1 << 20, WORD = 512 << 10 };

/* Position and length of every write: one byte, odd ones, across packets and pages, the last byte. */
static const struct { size_t at, len; } writes[] = {
	{0, 1}, {7, 13}, {4095, 2}, {8192, 4096}, {20001, 70001}, {WORD + 8, 300000}, {SIZE - 1, 1},
};
#define WRITES (sizeof(writes) / sizeof(*writes))

static unsigned char byte_at(size_t at)
{
	return (unsigned char)(at * 31 + at / 251 + 7);
}

/* What the memory must be in the end. */
static void expected(unsigned char *memory)
{
	memset(memory, 0xee, SIZE);
	for (size_t i = 0; i < WRITES; i++)
		for (size_t at = writes[i].at; at < writes[i].at + writes[i].len; at++)
			memory[at] = byte_at(at);
	memcpy(memory + WORD, "8 bytes!", 8);
}

static void server(const char *addr, const char *port)
{
	struct offer offer = {0};
	struct rpma_peer_cfg *pcfg;
	struct rpma_mr_local *mr;
	unsigned char *memory = pages(SIZE), *want = pages(SIZE);
	size_t size;
	bool direct;
	memset(memory, 0xee, SIZE);
	open_peer(addr, 0);
	OK(rpma_peer_cfg_new(&pcfg));
	/* As on a platform whose network writes do not stay in the cache: flushes to persistence are allowed. */
	OK(rpma_peer_cfg_set_direct_write_to_pmem(pcfg, true));
	OK(rpma_peer_cfg_get_direct_write_to_pmem(pcfg, &direct));
	CHECK(direct);
	OK(rpma_peer_cfg_get_descriptor_size(pcfg, &size));
	offer.peer_cfg_size = (uint8_t)size;
	OK(rpma_peer_cfg_get_descriptor(pcfg, offer.descriptors));
	OK(rpma_mr_reg(peer, memory, SIZE, RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC |
			RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT, &mr));
	OK(rpma_mr_get_descriptor_size(mr, &size));
	offer.mr_size = (uint8_t)size;
	CHECK(offer.peer_cfg_size + size <= sizeof(offer.descriptors));
	OK(rpma_mr_get_descriptor(mr, offer.descriptors + offer.peer_cfg_size));
	struct rpma_conn *conn = accept_one(addr, port, NULL, &offer, NULL);
	expect_event(conn, RPMA_CONN_CLOSED);
	expected(want);
	for (size_t at = 0; at < SIZE; at++)
		if (memory[at] != want[at]) {
			fprintf(stderr, "byte %zu is %x, not %x\n", at, memory[at], want[at]);
			exit(1);
		}
	OK(rpma_conn_disconnect(conn));
	OK(rpma_conn_delete(&conn));
	OK(rpma_mr_dereg(&mr));
	OK(rpma_peer_cfg_delete(&pcfg));
	OK(rpma_peer_delete(&peer));
	puts("verified");
}

static void client(const char *addr, const char *port)
{
	struct rpma_conn_cfg *cfg;
	struct rpma_conn_private_data pdata;
	struct rpma_peer_cfg *pcfg;
	struct rpma_mr_local *source, *back;
	struct rpma_mr_remote *remote;
	struct rpma_cq *cq;
	unsigned char *memory = pages(SIZE), *read = pages(SIZE), *want = pages(SIZE);
	size_t size;
	int types;
	open_peer(addr, 1);
	OK(rpma_conn_cfg_new(&cfg));
	OK(rpma_conn_cfg_set_sq_size(cfg, 32));
	OK(rpma_conn_cfg_set_cq_size(cfg, 32));
	struct rpma_conn *conn = connect_to(addr, port, cfg);
	OK(rpma_conn_get_private_data(conn, &pdata));
	CHECK(pdata.ptr && pdata.len >= sizeof(struct offer));
	const struct offer *offer = pdata.ptr;
	OK(rpma_peer_cfg_from_descriptor(offer->descriptors, offer->peer_cfg_size, &pcfg));
	OK(rpma_conn_apply_remote_peer_cfg(conn, pcfg));
	OK(rpma_mr_remote_from_descriptor(offer->descriptors + offer->peer_cfg_size, offer->mr_size, &remote));
	OK(rpma_mr_remote_get_size(remote, &size));
	CHECK(size == SIZE);
	OK(rpma_mr_remote_get_flush_type(remote, &types));
	CHECK(types == (RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT));
	OK(rpma_conn_get_cq(conn, &cq));

	for (size_t at = 0; at < SIZE; at++)
		memory[at] = byte_at(at);
	OK(rpma_mr_reg(peer, memory, SIZE, RPMA_MR_USAGE_WRITE_SRC, &source));
	OK(rpma_mr_reg(peer, read, SIZE, RPMA_MR_USAGE_READ_DST, &back));
	for (size_t i = 0; i < WRITES; i++)
		OK(rpma_write(conn, remote, writes[i].at, source, writes[i].at, writes[i].len, RPMA_F_COMPLETION_ON_ERROR, NULL));
	OK(rpma_flush(conn, remote, 0, SIZE, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, &types));
	/* librpma 1.2 flushes by reading. */
	completion(cq, IBV_WC_RDMA_READ, &types);
	OK(rpma_atomic_write(conn, remote, WORD, "8 bytes!", RPMA_F_COMPLETION_ALWAYS, &size));
	completion(cq, IBV_WC_RDMA_WRITE, &size);
	CHECK(rpma_atomic_write(conn, remote, WORD + 4, "8 bytes!", RPMA_F_COMPLETION_ALWAYS, NULL) == RPMA_E_INVAL);
	OK(rpma_flush(conn, remote, WORD, 8, RPMA_FLUSH_TYPE_PERSISTENT, RPMA_F_COMPLETION_ALWAYS, &cq));
	completion(cq, IBV_WC_RDMA_READ, &cq);

	OK(rpma_read(conn, back, 0, remote, 0, SIZE, RPMA_F_COMPLETION_ALWAYS, read));
	struct ibv_wc wc = completion(cq, IBV_WC_RDMA_READ, read);
	CHECK(wc.byte_len == SIZE);
	expected(want);
	CHECK(!memcmp(read, want, SIZE));

	OK(rpma_conn_disconnect(conn));
	expect_event(conn, RPMA_CONN_CLOSED);
	OK(rpma_mr_remote_delete(&remote));
	OK(rpma_peer_cfg_delete(&pcfg));
	OK(rpma_mr_dereg(&back));
	OK(rpma_mr_dereg(&source));
	OK(rpma_conn_delete(&conn));
	OK(rpma_conn_cfg_delete(&cfg));
	OK(rpma_peer_delete(&peer));
	puts("verified");
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	(strcmp(argv[1], "server") ? client : server)(argv[2], argv[3]);
	return 0;
}
