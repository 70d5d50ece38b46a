// Makes Soft-RoCE send one packet of every opcode that it can send, and of every kind of refusal.
// Runs in two guests at once: `capture server` and `capture client ADDRESS`. See capture.sh.
//
// FLUSH is younger than Debian 12's libibverbs: its work request is written into the send queue as an RDMA WRITE
// and then, before the doorbell, turned into a FLUSH by hand, in the kernel's own format (struct rxe_send_wr).
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_user_rxe.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "FAILED %s:%d %s: %m\n", __FILE__, __LINE__, #what); exit(1); } } while (0)
enum { SIZE = 4096, FLUSH_GLOBAL = 1 << 8 };

static int is_server, tcp;
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t *mem;
static union ibv_gid gids[2]; // IPv4, IPv6
static int gid_index[2];

// What the two sides tell each other about a QP and its memory.
struct side { uint32_t qpn, psn, rkey, mw_rkey; uint64_t addr; union ibv_gid gid[2]; };
static struct side mine, peer;

static void exchange(void) {
  CHECK(write(tcp, &mine, sizeof mine) == sizeof mine);
  for (size_t got = 0; got < sizeof peer;) {
    ssize_t n = read(tcp, (char *)&peer + got, sizeof peer - got);
    CHECK(n > 0);
    got += n;
  }
}

static void open_device(void) {
  struct ibv_device **list = ibv_get_device_list(NULL);
  CHECK(list && list[0]);
  CHECK(ctx = ibv_open_device(list[0]));
  CHECK(pd = ibv_alloc_pd(ctx));
  CHECK(mem = aligned_alloc(SIZE, SIZE));
  for (int i = 0; i < SIZE; i++) mem[i] = i * 7 + i / 256 + is_server;
  CHECK(mr = ibv_reg_mr(pd, mem, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                        IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | FLUSH_GLOBAL));
  for (int i = 0; i < 16; i++) {
    union ibv_gid gid;
    if (ibv_query_gid(ctx, 1, i, &gid)) break;
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    int v = !memcmp(gid.raw, mapped, 12) ? 0 : gid.raw[0] == 0xfd ? 1 : -1;
    if (v >= 0) { gids[v] = gid; gid_index[v] = i; }
  }
  CHECK(gids[0].raw[10] && gids[1].raw[0]);
}

struct test {
  enum ibv_qp_type type;
  struct ibv_cq *cq;
  struct ibv_qp *qp;
  struct ibv_qp_ex *qpx;
  struct ibv_ah *ah;
  struct ibv_mw *mw;
};

// Two connected QPs. `skew` makes the server expect a PSN before the client's first.
static struct test connect_qps(enum ibv_qp_type type, int v6, int skew) {
  struct test t = {.type = type};
  CHECK(t.cq = ibv_create_cq(ctx, 64, NULL, NULL, 0));
  uint64_t ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
  if (type != IBV_QPT_UD) ops |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
  if (type == IBV_QPT_RC)
    ops |= IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
           IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_ATOMIC_WRITE;
  struct ibv_qp_init_attr_ex init = {.send_cq = t.cq, .recv_cq = t.cq, .qp_type = type, .pd = pd, .sq_sig_all = 1,
    .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = ops};
  CHECK(t.qp = ibv_create_qp_ex(ctx, &init));
  CHECK(t.qpx = ibv_qp_to_qp_ex(t.qp));
  static uint32_t psn = 0x5a0000;
  psn += 0x101;
  mine = (struct side){.qpn = t.qp->qp_num, .psn = psn + is_server * 0x800000, .rkey = mr->rkey, .addr = (uintptr_t)mem,
                       .gid = {gids[0], gids[1]}};
  exchange();
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11223344, .qp_access_flags =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | FLUSH_GLOBAL};
  int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
  CHECK(!ibv_modify_qp(t.qp, &a, mask));
  struct ibv_ah_attr ah = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer.gid[v6], .sgid_index = gid_index[v6],
    .hop_limit = 64, .traffic_class = 0x60}};
  a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_256, .dest_qp_num = peer.qpn,
    .rq_psn = peer.psn - (is_server ? skew : 0), .max_dest_rd_atomic = 4, .min_rnr_timer = 12, .ah_attr = ah};
  mask = IBV_QP_STATE;
  if (type != IBV_QPT_UD) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (type == IBV_QPT_RC) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  CHECK(!ibv_modify_qp(t.qp, &a, mask));
  if (type == IBV_QPT_UD) CHECK(t.ah = ibv_create_ah(pd, &ah));
  a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = mine.psn, .max_rd_atomic = 4, .timeout = 14, .retry_cnt = 1,
    .rnr_retry = 1};
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (type == IBV_QPT_RC) mask |= IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
  CHECK(!ibv_modify_qp(t.qp, &a, mask));
  return t;
}

static void receive(struct test *t, uint32_t len) {
  struct ibv_sge sge = {.addr = (uintptr_t)mem + 2048, .length = len, .lkey = mr->lkey};
  struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
  CHECK(!ibv_post_recv(t->qp, &wr, &bad));
}

static int wait_completion(struct test *t) {
  struct ibv_wc wc;
  for (int i = 0; i < 3000; i++) {
    int n = ibv_poll_cq(t->cq, 1, &wc);
    CHECK(n >= 0);
    if (n) return wc.status;
    usleep(1000);
  }
  return -1;
}

// The send queue's mapping, found by the magic number in its youngest work request.
static void *find_wqe(uint64_t magic) {
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[512];
  void *found = NULL;
  while (fgets(line, sizeof line, maps)) {
    unsigned long from, to;
    if (!strstr(line, "infiniband") || sscanf(line, "%lx-%lx", &from, &to) != 2) continue;
    for (unsigned long at = from; at + 64 <= to; at += 8)
      if (*(uint64_t *)at == magic) found = (void *)at;
  }
  fclose(maps);
  return found;
}

static void post_flush(struct test *t, uint64_t addr, uint32_t len, uint32_t rkey, uint8_t placement, uint8_t level) {
  static uint64_t magic = 0x464c555348000000;
  t->qpx->wr_id = ++magic;
  ibv_wr_start(t->qpx);
  ibv_wr_rdma_write(t->qpx, rkey, addr);
  ibv_wr_set_sge(t->qpx, 0, 0, 0);
  struct rxe_send_wqe *wqe = find_wqe(magic);
  CHECK(wqe);
  wqe->wr.opcode = 14; // IB_WR_FLUSH
  struct { uint64_t remote_addr; uint32_t length, rkey; uint8_t type, level; } flush = {addr, len, rkey, placement, level};
  memcpy(&wqe->wr.wr, &flush, sizeof flush);
  wqe->dma.length = wqe->dma.resid = len; // the RETH's length comes from here
  CHECK(!ibv_wr_complete(t->qpx));
}

enum op { SEND, SEND_IMM, SEND_INV, WRITE, WRITE_IMM, READ, CAS, FAA, ATOMIC_WRITE, FLUSH_RANGE, FLUSH_MR, FLUSH_PERSISTENT };

static void post(struct test *t, enum op op, uint32_t len, uint64_t addr, uint32_t rkey) {
  struct ibv_qp_ex *x = t->qpx;
  if (op >= FLUSH_RANGE) {
    post_flush(t, addr, len, rkey, op == FLUSH_PERSISTENT ? 2 : 1, op == FLUSH_MR);
    return;
  }
  x->wr_id = op;
  x->wr_flags = op == SEND_IMM ? IBV_SEND_SOLICITED : 0;
  ibv_wr_start(x);
  switch (op) {
  case SEND: ibv_wr_send(x); break;
  case SEND_IMM: ibv_wr_send_imm(x, htonl(0x01020304)); break;
  case SEND_INV: ibv_wr_send_inv(x, rkey); break;
  case WRITE: ibv_wr_rdma_write(x, rkey, addr); break;
  case WRITE_IMM: ibv_wr_rdma_write_imm(x, rkey, addr, htonl(0xa1a2a3a4)); break;
  case READ: ibv_wr_rdma_read(x, rkey, addr); break;
  case CAS: ibv_wr_atomic_cmp_swp(x, rkey, addr, 0x1112131415161718, 0x2122232425262728); break;
  case FAA: ibv_wr_atomic_fetch_add(x, rkey, addr, 0x3132333435363738); break;
  case ATOMIC_WRITE: ibv_wr_atomic_write(x, rkey, addr, mem + 8); break;
  default: abort();
  }
  if (t->type == IBV_QPT_UD) ibv_wr_set_ud_addr(x, t->ah, peer.qpn, 0x11223344);
  if (op != ATOMIC_WRITE) ibv_wr_set_sge(x, mr->lkey, (uintptr_t)mem + 1, len);
  CHECK(!ibv_wr_complete(x));
}

static const struct { const char *name; enum ibv_qp_type type; enum op op; uint32_t len; int recv, v6, skew; int64_t offset; int bad_rkey; } tests[] = {
  {"rc send only", IBV_QPT_RC, SEND, 5, 1024},
  {"rc send", IBV_QPT_RC, SEND, 601, 1024},
  {"rc send imm only", IBV_QPT_RC, SEND_IMM, 6, 1024},
  {"rc send imm", IBV_QPT_RC, SEND_IMM, 602, 1024},
  {"rc send inv only", IBV_QPT_RC, SEND_INV, 7, 1024},
  {"rc send inv", IBV_QPT_RC, SEND_INV, 603, 1024},
  {"rc write only", IBV_QPT_RC, WRITE, 11},
  {"rc write empty", IBV_QPT_RC, WRITE, 0},
  {"rc write", IBV_QPT_RC, WRITE, 600},
  {"rc write imm only", IBV_QPT_RC, WRITE_IMM, 9, 1024},
  {"rc write imm", IBV_QPT_RC, WRITE_IMM, 605, 1024},
  {"rc read only", IBV_QPT_RC, READ, 10},
  {"rc read", IBV_QPT_RC, READ, 607},
  {"rc cas", IBV_QPT_RC, CAS, 8},
  {"rc faa", IBV_QPT_RC, FAA, 8},
  {"rc atomic write", IBV_QPT_RC, ATOMIC_WRITE, 8},
  {"rc flush range", IBV_QPT_RC, FLUSH_RANGE, 512},
  {"rc flush mr", IBV_QPT_RC, FLUSH_MR, 0},
  {"rc flush persistent, refused", IBV_QPT_RC, FLUSH_PERSISTENT, 512},
  {"uc send only", IBV_QPT_UC, SEND, 5, 1024},
  {"uc send", IBV_QPT_UC, SEND, 601, 1024},
  {"uc send imm only", IBV_QPT_UC, SEND_IMM, 6, 1024},
  {"uc send imm", IBV_QPT_UC, SEND_IMM, 602, 1024},
  {"uc write only", IBV_QPT_UC, WRITE, 11},
  {"uc write", IBV_QPT_UC, WRITE, 600},
  {"uc write imm only", IBV_QPT_UC, WRITE_IMM, 9, 1024},
  {"uc write imm", IBV_QPT_UC, WRITE_IMM, 605, 1024},
  {"ud send", IBV_QPT_UD, SEND, 13, 1024},
  {"ud send imm", IBV_QPT_UD, SEND_IMM, 14, 1024},
  {"rnr nak", IBV_QPT_RC, SEND, 4},
  {"nak psn sequence error", IBV_QPT_RC, WRITE, 4, .skew = 1},
  {"nak invalid request", IBV_QPT_RC, CAS, 8, .offset = 1},
  {"nak remote access error", IBV_QPT_RC, READ, 8, .bad_rkey = 1},
  {"nak remote operational error", IBV_QPT_RC, SEND, 64, .recv = -64},
  {"ipv6 rc write only", IBV_QPT_RC, WRITE, 12, .v6 = 1},
  {"ipv6 rc read", IBV_QPT_RC, READ, 300, .v6 = 1},
  {"ipv6 ud send", IBV_QPT_UD, SEND, 15, 1024, .v6 = 1},
};

int main(int argc, char **argv) {
  is_server = argc < 3;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(7777)};
  int s = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  if (is_server) {
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    CHECK(!bind(s, (void *)&at, sizeof at) && !listen(s, 1));
    CHECK((tcp = accept(s, NULL, NULL)) >= 0);
  } else {
    inet_aton(argv[2], &at.sin_addr);
    while (connect(tcp = socket(AF_INET, SOCK_STREAM, 0), (void *)&at, sizeof at)) { close(tcp); usleep(200000); }
  }
  open_device();
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
    struct test t = connect_qps(tests[i].type, tests[i].v6, tests[i].skew);
    if (is_server) {
      if (tests[i].recv > 0) receive(&t, tests[i].recv);
      if (tests[i].recv < 0) { // a receive buffer that no MR covers
        struct ibv_sge sge = {.addr = 8, .length = -tests[i].recv, .lkey = mr->lkey ^ 0xff};
        struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
        CHECK(!ibv_post_recv(t.qp, &wr, &bad));
      }
      if (tests[i].op == SEND_INV) { // a window for the client to invalidate
        CHECK(t.mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2));
        mine.mw_rkey = ibv_inc_rkey(t.mw->rkey);
        struct ibv_mw_bind_info bind = {.mr = mr, .addr = (uintptr_t)mem, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_READ};
        ibv_wr_start(t.qpx);
        ibv_wr_bind_mw(t.qpx, t.mw, mine.mw_rkey, &bind);
        CHECK(!ibv_wr_complete(t.qpx));
        printf("bind: %d\n", wait_completion(&t));
      }
    }
    exchange(); // the server is ready
    if (!is_server) {
      uint32_t rkey = tests[i].op == SEND_INV ? peer.mw_rkey : tests[i].bad_rkey ? peer.rkey ^ 0x5500 : peer.rkey;
      post(&t, tests[i].op, tests[i].len, peer.addr + 512 + tests[i].offset, rkey);
      printf("%-32s qpn %#x status %d\n", tests[i].name, t.qp->qp_num, wait_completion(&t));
      fflush(stdout);
    }
    usleep(20000);
    exchange(); // the client is done
    ibv_destroy_qp(t.qp);
    if (t.mw) ibv_dealloc_mw(t.mw);
    if (t.ah) ibv_destroy_ah(t.ah);
    ibv_destroy_cq(t.cq);
  }
  return 0;
}
