// FLUSH and ATOMIC WRITE through ibv_wr_*, between two machines: durable -d DEVICE -g GID [-m MTU] [SERVER].
//
// The client writes a record, flushes it, writes its commit word atomically and flushes again, all posted at once, and
// again with other bytes; the server looks at its memory after each. Then a FLUSH that the memory was not registered
// for must be refused. Both ends find each other over TCP.
//
// FLUSH is younger than Debian 12's libibverbs. A library that offers the operation has it at the place where newer
// headers have it; with Soft-RoCE's own, a WRITE becomes a FLUSH by hand in the send queue, as in rxe_peer.c.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <rdma/rdma_user_rxe.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LEN = 3000, COMMIT = 4096, MEMORY = 8192, ROUNDS = 50, PORT = 18600 };
enum { WITH_FLUSH = 1 << 11, FLUSH_GLOBAL = 1 << 8, FLUSH_PERSISTENT = 1 << 9, RXE_WR_FLUSH = 14, WC_FLUSH = 8 };
enum { GLOBAL = 1, PERSISTENT = 2, RANGE = 0, WHOLE_MR = 1 };

// struct ibv_qp_ex of newer headers, where it goes on.
struct qp_ex_with_flush {
  struct ibv_qp_ex old;
  void (*wr_flush)(struct ibv_qp_ex *, uint32_t rkey, uint64_t addr, size_t len, uint8_t placement, uint8_t level);
};

struct end { union ibv_gid gid; uint64_t addr; uint32_t qpn, rkey; };

static uint8_t mem[MEMORY] __attribute__((aligned(4096)));
static struct ibv_qp *qp;
static struct ibv_qp_ex *x;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static int native;

#define NEED(what) do { if (!(what)) { printf("durable: line %d: %s: %m\n", __LINE__, #what); exit(1); } } while (0)

static uint8_t byte(int round, int i) { return (uint8_t)(round * 31 + i * 7 + (i >> 8)); }

static int dial(const char *server) {
  int one = 1, s = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
  if (server) {
    NEED(inet_pton(AF_INET, server, &at.sin_addr) == 1);
    NEED(!connect(s, (struct sockaddr *)&at, sizeof at));
    return s;
  }
  setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  NEED(!bind(s, (struct sockaddr *)&at, sizeof at) && !listen(s, 1));
  int tcp = accept(s, NULL, NULL);
  close(s);
  return tcp;
}

static void exchange(int tcp, const void *ours, void *theirs, size_t len) {
  NEED(write(tcp, ours, len) == (ssize_t)len);
  NEED(recv(tcp, theirs, len, MSG_WAITALL) == (ssize_t)len);
}

static void open_qp(const char *name, int mtu, int gid_index, int tcp, struct end *theirs) {
  struct ibv_device **list = ibv_get_device_list(NULL), *found = NULL;
  for (; list && *list; list++)
    if (!name || !strcmp(ibv_get_device_name(*list), name)) found = *list;
  NEED(found);
  struct ibv_context *ctx = ibv_open_device(found);
  NEED(ctx);
  struct ibv_pd *pd = ibv_alloc_pd(ctx);
  int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | FLUSH_GLOBAL;
  NEED(pd && (mr = ibv_reg_mr(pd, mem, MEMORY, access)) && (cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
  struct ibv_qp_init_attr_ex init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd, .sq_sig_all = 1,
    .cap = {.max_send_wr = 32, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_WRITE | WITH_FLUSH};
  native = (qp = ibv_create_qp_ex(ctx, &init)) != NULL;
  if (!native) {
    init.send_ops_flags &= ~(uint64_t)WITH_FLUSH;
    NEED(qp = ibv_create_qp_ex(ctx, &init));
  }
  x = ibv_qp_to_qp_ex(qp);
  NEED(x);
  printf("FLUSH is %s\n", native ? "ibv_wr_flush" : "made by hand");
  struct end ours = {.addr = (uintptr_t)mem, .qpn = qp->qp_num, .rkey = mr->rkey};
  NEED(!ibv_query_gid(ctx, 1, gid_index, &ours.gid));
  exchange(tcp, &ours, theirs, sizeof ours);
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access | FLUSH_PERSISTENT};
  NEED(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = theirs->qpn, .max_dest_rd_atomic = 8,
    .min_rnr_timer = 1, .ah_attr = {.is_global = 1, .port_num = 1,
    .grh = {.dgid = theirs->gid, .sgid_index = gid_index, .hop_limit = 64}}};
  NEED(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .max_rd_atomic = 8, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
  NEED(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT |
                              IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY));
  exchange(tcp, "ready", (char[5]){0}, 5);
}

// The send queue's mapping, found by the magic number in its youngest work request.
static struct rxe_send_wqe *find_wqe(uint64_t magic) {
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[512];
  while (maps && fgets(line, sizeof line, maps)) {
    unsigned long from, to;
    if (!strstr(line, "infiniband") || sscanf(line, "%lx-%lx", &from, &to) != 2) continue;
    for (unsigned long at = from; at + sizeof(struct rxe_send_wqe) <= to; at += 8)
      if (*(uint64_t *)at == magic) return fclose(maps), (void *)at;
  }
  NEED(!"a work request in the send queue");
  return NULL;
}

static void flush(const struct end *to, uint32_t len, uint8_t placement, uint8_t level) {
  static uint64_t magic = 0x464c555348000000;
  x->wr_id = ++magic;
  if (native) {
    ((struct qp_ex_with_flush *)x)->wr_flush(x, to->rkey, to->addr, len, placement, level);
    return;
  }
  ibv_wr_rdma_write(x, to->rkey, to->addr);
  ibv_wr_set_sge(x, 0, 0, 0);
  struct rxe_send_wqe *wqe = find_wqe(magic);
  wqe->wr.opcode = RXE_WR_FLUSH;
  struct { uint64_t remote_addr; uint32_t length, rkey; uint8_t type, level; } wr = {to->addr, len, to->rkey, placement, level};
  memcpy(&wqe->wr.wr, &wr, sizeof wr);
  wqe->dma.length = wqe->dma.resid = len; // the RETH's length comes from here
}

static struct ibv_wc complete(void) {
  struct ibv_wc wc;
  time_t start = time(NULL);
  int n;
  while ((n = ibv_poll_cq(cq, 1, &wc)) == 0) NEED(time(NULL) - start < 20);
  NEED(n == 1);
  return wc;
}

static void done(int opcode) {
  struct ibv_wc wc = complete();
  if (wc.status != IBV_WC_SUCCESS || (int)wc.opcode != opcode) {
    printf("durable: %s, opcode %d in place of %d\n", ibv_wc_status_str(wc.status), wc.opcode, opcode);
    exit(1);
  }
}

static void ask(int tcp, const struct end *to) {
  for (int round = 1; round <= ROUNDS; round++) {
    for (int i = 0; i < LEN; i++) mem[i] = byte(round, i);
    uint64_t commit = round;
    x->wr_flags = 0;
    ibv_wr_start(x);
    ibv_wr_rdma_write(x, to->rkey, to->addr);
    ibv_wr_set_sge(x, mr->lkey, (uintptr_t)mem, LEN);
    flush(to, LEN, GLOBAL, RANGE);
    ibv_wr_atomic_write(x, to->rkey, to->addr + COMMIT, &commit);
    flush(to, 0, GLOBAL, WHOLE_MR);
    NEED(!ibv_wr_complete(x));
    done(IBV_WC_RDMA_WRITE), done(WC_FLUSH), done(IBV_WC_ATOMIC_WRITE), done(WC_FLUSH);
    char answer;
    NEED(write(tcp, "", 1) == 1 && read(tcp, &answer, 1) == 1);
  }
  ibv_wr_start(x);
  flush(to, LEN, PERSISTENT, RANGE);
  NEED(!ibv_wr_complete(x));
  struct ibv_wc wc = complete();
  printf("a FLUSH to persistence: %s\n", ibv_wc_status_str(wc.status));
  NEED(wc.status == IBV_WC_REM_ACCESS_ERR);
}

static void serve(int tcp) {
  char question;
  int round = 0;
  while (read(tcp, &question, 1) == 1) {
    round++;
    for (int i = 0; i < LEN; i++) NEED(mem[i] == byte(round, i));
    NEED(mem[LEN] == 0 && *(volatile uint64_t *)(mem + COMMIT) == (uint64_t)round);
    NEED(write(tcp, "", 1) == 1);
  }
  NEED(round == ROUNDS);
}

int main(int argc, char **argv) {
  const char *device = NULL;
  int gid = 0, mtu = IBV_MTU_1024, c;
  setvbuf(stdout, NULL, _IONBF, 0);
  while ((c = getopt(argc, argv, "d:g:m:")) != -1)
    if (c == 'd') device = optarg;
    else if (c == 'g') gid = atoi(optarg);
    else if (c == 'm') mtu = atoi(optarg) == 4096 ? IBV_MTU_4096 : IBV_MTU_1024;
    else return 2;
  struct end theirs;
  int tcp = dial(argv[optind]);
  NEED(tcp >= 0);
  open_qp(device, mtu, gid, tcp, &theirs);
  if (argv[optind]) ask(tcp, &theirs);
  else serve(tcp);
  printf("durable: ok\n");
  return 0;
}
