/* Both ends of a connection of librpma: "rpma server ADDRESS PORT FILE", "rpma client ADDRESS PORT".
 *
 * The server exports a mapped file and sends what a client needs to reach it as private data. The client receives a
 * greeting, writes, flushes, writes 8 bytes atomically, reads everything back, and says goodbye with a message. The
 * server then looks into its memory. */
#include <fcntl.h>
#include <librpma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE (256 * 1024)
#define DATA 8192                /* where the client's data begins: the page before it is for messages */
#define LENGTH (SIZE - DATA - 64) /* bytes of it */
#define WORD 4096                /* where its atomic word goes */

static void must(int ret, const char *what)
{
	if (ret) {
		fprintf(stderr, "%s failed: %s\n", what, rpma_err_2str(ret));
		exit(1);
	}
}

static unsigned char pattern(size_t n)
{
	return (unsigned char)(n * 7 + n / 251);
}

static void wait_event(struct rpma_conn *conn, enum rpma_conn_event wanted)
{
	enum rpma_conn_event event;

	must(rpma_conn_next_event(conn, &event), "rpma_conn_next_event");
	printf("event %s\n", rpma_utils_conn_event_2str(event));
	if (event != wanted) {
		fprintf(stderr, "the wrong event: error\n");
		exit(1);
	}
}

static void complete(struct rpma_cq *cq, enum ibv_wc_opcode opcode, uint32_t length, uint64_t id)
{
	struct ibv_wc wc;

	for (;;) {
		must(rpma_cq_wait(cq), "rpma_cq_wait");
		int ret = rpma_cq_get_wc(cq, 1, &wc, NULL);
		if (ret == RPMA_E_NO_COMPLETION)
			continue;
		must(ret, "rpma_cq_get_wc");
		break;
	}
	if (wc.status != IBV_WC_SUCCESS || wc.opcode != opcode || wc.wr_id != id ||
	    (length && wc.byte_len != length)) {
		fprintf(stderr, "completion error: %s, opcode %d, %u bytes, id %lu\n",
			ibv_wc_status_str(wc.status), wc.opcode, wc.byte_len, (unsigned long)wc.wr_id);
		exit(1);
	}
}

static struct rpma_peer *peer_at(const char *address, enum rpma_util_ibv_context_type type)
{
	struct ibv_context *context;
	struct rpma_peer *peer;

	must(rpma_utils_get_ibv_context(address, type, &context), "rpma_utils_get_ibv_context");
	must(rpma_peer_new(context, &peer), "rpma_peer_new");
	return peer;
}

static void serve(const char *address, const char *port, const char *file)
{
	struct rpma_peer *peer = peer_at(address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
	struct rpma_peer_cfg *cfg;
	struct rpma_mr_local *mr;
	struct rpma_ep *ep;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	struct rpma_cq *cq, *rcq;
	struct rpma_conn_cfg *conn_cfg;
	size_t mr_size, cfg_size;
	unsigned char described[128];

	int fd = open(file, O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, SIZE)) {
		perror("file error");
		exit(1);
	}
	unsigned char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	strcpy((char *)memory, "welcome");
	must(rpma_mr_reg(peer, memory, SIZE,
			 RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV |
				 RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT,
			 &mr), "rpma_mr_reg");
	must(rpma_peer_cfg_new(&cfg), "rpma_peer_cfg_new");
	must(rpma_peer_cfg_set_direct_write_to_pmem(cfg, true), "rpma_peer_cfg_set_direct_write_to_pmem");
	must(rpma_mr_get_descriptor_size(mr, &mr_size), "rpma_mr_get_descriptor_size");
	must(rpma_peer_cfg_get_descriptor_size(cfg, &cfg_size), "rpma_peer_cfg_get_descriptor_size");
	described[0] = mr_size;
	must(rpma_mr_get_descriptor(mr, described + 1), "rpma_mr_get_descriptor");
	must(rpma_peer_cfg_get_descriptor(cfg, described + 1 + mr_size), "rpma_peer_cfg_get_descriptor");
	struct rpma_conn_private_data data = { described, 1 + mr_size + cfg_size };

	must(rpma_ep_listen(peer, address, port, &ep), "rpma_ep_listen");
	must(rpma_conn_cfg_new(&conn_cfg), "rpma_conn_cfg_new");
	must(rpma_conn_cfg_set_rcq_size(conn_cfg, 10), "rpma_conn_cfg_set_rcq_size");
	must(rpma_ep_next_conn_req(ep, conn_cfg, &req), "rpma_ep_next_conn_req");
	must(rpma_conn_req_recv(req, mr, 64, 64, (void *)11), "rpma_conn_req_recv");
	must(rpma_conn_req_connect(&req, &data, &conn), "rpma_conn_req_connect");
	wait_event(conn, RPMA_CONN_ESTABLISHED);
	must(rpma_conn_get_cq(conn, &cq), "rpma_conn_get_cq");
	must(rpma_conn_get_rcq(conn, &rcq), "rpma_conn_get_rcq");
	must(rpma_send(conn, mr, 0, 8, RPMA_F_COMPLETION_ALWAYS, (void *)12), "rpma_send");
	complete(cq, IBV_WC_SEND, 0, 12);
	complete(rcq, IBV_WC_RECV, 8, 11);
	printf("goodbye of the client: %s\n", memory + 64);
	wait_event(conn, RPMA_CONN_CLOSED);
	must(rpma_conn_disconnect(conn), "rpma_conn_disconnect");

	for (size_t n = 0; n < LENGTH; n++)
		if (memory[DATA + n] != pattern(n)) {
			fprintf(stderr, "byte %zu: data error\n", n);
			exit(1);
		}
	for (size_t n = DATA + LENGTH; n < SIZE; n++)
		if (memory[n]) {
			fprintf(stderr, "byte %zu, which nobody wrote: data error\n", n);
			exit(1);
		}
	printf("memory is as written, the atomic word is %.8s\n", memory + WORD);
	must(rpma_conn_delete(&conn), "rpma_conn_delete");
	must(rpma_conn_cfg_delete(&conn_cfg), "rpma_conn_cfg_delete");
	must(rpma_ep_shutdown(&ep), "rpma_ep_shutdown");
	must(rpma_mr_dereg(&mr), "rpma_mr_dereg");
	must(rpma_peer_cfg_delete(&cfg), "rpma_peer_cfg_delete");
	must(rpma_peer_delete(&peer), "rpma_peer_delete");
}

static void work(const char *address, const char *port)
{
	struct rpma_peer *peer = peer_at(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
	struct rpma_peer_cfg *cfg;
	struct rpma_mr_local *mr;
	struct rpma_mr_remote *remote;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	struct rpma_cq *cq, *rcq;
	struct rpma_conn_cfg *conn_cfg;
	struct rpma_conn_private_data data;
	unsigned char *memory = aligned_alloc(4096, SIZE);
	size_t remote_size;

	memset(memory, 0, SIZE);
	for (size_t n = 0; n < LENGTH; n++)
		memory[DATA + n] = pattern(n);
	must(rpma_mr_reg(peer, memory, SIZE,
			 RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV,
			 &mr), "rpma_mr_reg");
	must(rpma_conn_cfg_new(&conn_cfg), "rpma_conn_cfg_new");
	must(rpma_conn_cfg_set_rcq_size(conn_cfg, 10), "rpma_conn_cfg_set_rcq_size");
	must(rpma_conn_req_new(peer, address, port, conn_cfg, &req), "rpma_conn_req_new");
	must(rpma_conn_req_recv(req, mr, 0, 64, (void *)1), "rpma_conn_req_recv");
	must(rpma_conn_req_connect(&req, NULL, &conn), "rpma_conn_req_connect");
	wait_event(conn, RPMA_CONN_ESTABLISHED);
	must(rpma_conn_get_private_data(conn, &data), "rpma_conn_get_private_data");
	unsigned char *described = data.ptr;
	must(rpma_mr_remote_from_descriptor(described + 1, described[0], &remote), "rpma_mr_remote_from_descriptor");
	must(rpma_peer_cfg_from_descriptor(described + 1 + described[0], data.len - 1 - described[0], &cfg),
	     "rpma_peer_cfg_from_descriptor");
	must(rpma_conn_apply_remote_peer_cfg(conn, cfg), "rpma_conn_apply_remote_peer_cfg");
	must(rpma_mr_remote_get_size(remote, &remote_size), "rpma_mr_remote_get_size");
	if (remote_size != SIZE) {
		fprintf(stderr, "size error\n");
		exit(1);
	}
	must(rpma_conn_get_cq(conn, &cq), "rpma_conn_get_cq");
	must(rpma_conn_get_rcq(conn, &rcq), "rpma_conn_get_rcq");
	complete(rcq, IBV_WC_RECV, 8, 1);
	printf("greeting of the server: %s\n", memory);

	must(rpma_write(conn, remote, DATA, mr, DATA, LENGTH, RPMA_F_COMPLETION_ON_ERROR, (void *)2), "rpma_write");
	must(rpma_flush(conn, remote, DATA, LENGTH, RPMA_FLUSH_TYPE_PERSISTENT, RPMA_F_COMPLETION_ALWAYS, (void *)3),
	     "rpma_flush");
	complete(cq, IBV_WC_RDMA_READ, 0, 3);
	must(rpma_atomic_write(conn, remote, WORD, "atomical", RPMA_F_COMPLETION_ALWAYS, (void *)4), "rpma_atomic_write");
	complete(cq, IBV_WC_RDMA_WRITE, 0, 4);
	must(rpma_flush(conn, remote, WORD, 8, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, (void *)5),
	     "rpma_flush");
	complete(cq, IBV_WC_RDMA_READ, 0, 5);

	memset(memory, 0, SIZE);
	must(rpma_read(conn, mr, WORD, remote, WORD, SIZE - WORD, RPMA_F_COMPLETION_ALWAYS, (void *)6), "rpma_read");
	complete(cq, IBV_WC_RDMA_READ, 0, 6);
	for (size_t n = 0; n < LENGTH; n++)
		if (memory[DATA + n] != pattern(n)) {
			fprintf(stderr, "byte %zu read back: data error\n", n);
			exit(1);
		}
	printf("read back, with the word %.8s\n", memory + WORD);
	strcpy((char *)memory, "goodbye");
	must(rpma_send(conn, mr, 0, 8, RPMA_F_COMPLETION_ALWAYS, (void *)7), "rpma_send");
	complete(cq, IBV_WC_SEND, 0, 7);
	must(rpma_conn_disconnect(conn), "rpma_conn_disconnect");
	wait_event(conn, RPMA_CONN_CLOSED);
	must(rpma_conn_delete(&conn), "rpma_conn_delete");
	must(rpma_conn_cfg_delete(&conn_cfg), "rpma_conn_cfg_delete");
	must(rpma_mr_remote_delete(&remote), "rpma_mr_remote_delete");
	must(rpma_peer_cfg_delete(&cfg), "rpma_peer_cfg_delete");
	must(rpma_mr_dereg(&mr), "rpma_mr_dereg");
	must(rpma_peer_delete(&peer), "rpma_peer_delete");
	free(memory);
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "server"))
		serve(argv[2], argv[3], argv[4]);
	else if (argc == 4 && !strcmp(argv[1], "client"))
		work(argv[2], argv[3]);
	else
		return 2;
	return 0;
}
