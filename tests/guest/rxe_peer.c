// A verbs program that does as it is told: the Soft-RoCE end of tests/guest.
//
// It serves one TCP connection, which commands it line by line ("COMMAND ARGUMENT..."), and answers each line with
// one of its own, "ok ..." or "error ...". Whoever holds the connection decides what the test is; the two ends tell
// each other QPNs, PSNs, GIDs, addresses and keys through it, or connect by rdma_cm and need it only to watch.
//
// FLUSH is younger than Debian 12's libibverbs: its work request is written into the send queue as an RDMA WRITE
// and then, before the doorbell, turned into a FLUSH by hand, in the kernel's own format (struct rxe_send_wr).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_user_rxe.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MEMORY = 4 << 20, PMEM = 4 << 20, QPS = 64, PORT = 7777, PATIENCE_MS = 150000 };
// Younger than libibverbs' header.
enum { FLUSH_GLOBAL = 1 << 8, FLUSH_PERSISTENT = 1 << 9, RXE_WR_FLUSH = 14 };
enum {
  QP_RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | FLUSH_GLOBAL,
  RIGHTS = QP_RIGHTS | IBV_ACCESS_MW_BIND,
};

struct peer {
  struct ibv_cq *cq;
  struct ibv_qp *qp;
  struct ibv_qp_ex *qpx;
  struct ibv_ah *ah;
  struct ibv_mw *mw;
  uint32_t remote_qpn;
  struct rdma_cm_id *cm;
};

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr, *pmem_mr; // the second is persistent, if the machine has such memory
static uint8_t *mem, *pmem;
static struct peer peers[QPS];
static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener;
static FILE *control; // answers go here

static void answer(const char *format, ...) {
  va_list list;
  va_start(list, format);
  vfprintf(control, format, list);
  va_end(list);
  fputc('\n', control);
  fflush(control);
}

// Fails the command, not the program.
#define TRY(what) do { if (!(what)) { answer("error %s: %s", #what, strerror(errno)); return; } } while (0)
// A verb that answers with an error number.
#define TRY0(what) do { int e_ = (what); if (e_) { answer("error %s: %s", #what, strerror(e_ < 0 ? errno : e_)); return; } } while (0)

// Byte i of a pattern: both ends compute it, so a byte that went to the wrong place is a wrong byte.
static uint8_t pattern(uint64_t seed, uint64_t i) {
  uint64_t z = seed * 0x9e3779b97f4a7c15 + (i / 8) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 31)) * 0x94d049bb133111eb;
  z ^= z >> 29;
  return z >> (i % 8 * 8);
}

static int open_device(void) {
  // The connection manager opens each device once, and makes QPs on that context only.
  struct ibv_context **list = rdma_get_devices(NULL);
  return list && (ctx = list[0]) && (pd = ibv_alloc_pd(ctx)) &&
         (mem = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED &&
         (mr = ibv_reg_mr(pd, mem, MEMORY, RIGHTS)) && (channel = rdma_create_event_channel());
}

// pmem: ok ADDRESS RKEY LENGTH, of a region that may be flushed to persistence
static void do_pmem(void) {
  if (!pmem_mr) {
    int fd = open("/dev/dax0.0", O_RDWR);
    TRY(fd >= 0);
    TRY((pmem = mmap(NULL, PMEM, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) != MAP_FAILED);
    TRY(pmem_mr = ibv_reg_mr(pd, pmem, PMEM, RIGHTS | FLUSH_PERSISTENT));
  }
  answer("ok %lu %u %d", (uintptr_t)pmem, pmem_mr->rkey, PMEM);
}

// The IPv4 (or, if asked, the IPv6) GID of the port.
static int gid_index(int v6, union ibv_gid *gid) {
  static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
  for (int i = 0; i < 16 && !ibv_query_gid(ctx, 1, i, gid); i++)
    if (v6 ? gid->raw[0] == 0xfd : !memcmp(gid->raw, mapped, 12)) return i;
  return -1;
}

static struct peer *find(int id) { return id >= 0 && id < QPS && peers[id].qp ? &peers[id] : NULL; }

static int free_slot(void) {
  for (int i = 0; i < QPS; i++)
    if (!peers[i].qp) return i;
  errno = ENOSPC;
  return -1;
}

static int make_qp(struct peer *p, enum ibv_qp_type type, struct rdma_cm_id *id) {
  uint64_t ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
  if (type != IBV_QPT_UD) ops |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
  if (type == IBV_QPT_RC)
    ops |= IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
           IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_BIND_MW;
  if (!(p->cq = ibv_create_cq(ctx, 512, NULL, NULL, 0))) return -1;
  struct ibv_qp_init_attr_ex init = {.send_cq = p->cq, .recv_cq = p->cq, .qp_type = type, .pd = pd, .sq_sig_all = 1,
    .cap = {.max_send_wr = 128, .max_recv_wr = 128, .max_send_sge = 2, .max_recv_sge = 2},
    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = ops};
  if (id) {
    if (rdma_create_qp_ex(id, &init)) return -1;
    p->qp = id->qp;
    p->cm = id;
  } else if (!(p->qp = ibv_create_qp_ex(ctx, &init))) {
    return -1;
  }
  p->qpx = ibv_qp_to_qp_ex(p->qp);
  return 0;
}

static void destroy(struct peer *p) {
  if (p->ah) ibv_destroy_ah(p->ah);
  if (p->mw) ibv_dealloc_mw(p->mw);
  if (p->cm) {
    rdma_destroy_qp(p->cm);
    rdma_destroy_id(p->cm);
  } else {
    ibv_destroy_qp(p->qp);
  }
  ibv_destroy_cq(p->cq);
  memset(p, 0, sizeof *p);
}

static void hex(const union ibv_gid *gid, char *out) {
  for (int i = 0; i < 16; i++) sprintf(out + 2 * i, "%02x", gid->raw[i]);
}

// qp TYPE V6: ok ID QPN GID
static void do_qp(const char *type, int v6) {
  int id = free_slot();
  TRY(id >= 0);
  enum ibv_qp_type t = !strcmp(type, "rc") ? IBV_QPT_RC : !strcmp(type, "uc") ? IBV_QPT_UC : IBV_QPT_UD;
  TRY0(make_qp(&peers[id], t, NULL));
  union ibv_gid gid;
  TRY(gid_index(v6, &gid) >= 0);
  char text[33];
  hex(&gid, text);
  answer("ok %d %u %s", id, peers[id].qp->qp_num, text);
}

// rts ID QPN THEIR_PSN MY_PSN GID MTU
static void do_rts(int id, uint32_t qpn, uint32_t their_psn, uint32_t my_psn, const char *gid_text, int mtu) {
  struct peer *p = find(id);
  TRY(p);
  enum ibv_qp_type type = p->qp->qp_type;
  union ibv_gid gid, own;
  for (int i = 0; i < 16; i++) {
    unsigned byte = 0;
    TRY(sscanf(gid_text + 2 * i, "%2x", &byte) == 1);
    gid.raw[i] = byte;
  }
  int index = gid_index(gid.raw[0] == 0xfd, &own);
  TRY(index >= 0);
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11223344,
    .qp_access_flags = QP_RIGHTS | FLUSH_PERSISTENT};
  int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
  TRY0(ibv_modify_qp(p->qp, &a, mask));
  struct ibv_ah_attr ah = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = index, .hop_limit = 64}};
  a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .dest_qp_num = qpn, .rq_psn = their_psn, .max_dest_rd_atomic = 16,
    .min_rnr_timer = 1, .ah_attr = ah,
    .path_mtu = mtu == 4096 ? IBV_MTU_4096 : mtu == 2048 ? IBV_MTU_2048 : mtu == 1024 ? IBV_MTU_1024 : mtu == 512 ? IBV_MTU_512 : IBV_MTU_256};
  mask = IBV_QP_STATE;
  if (type != IBV_QPT_UD) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (type == IBV_QPT_RC) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  TRY0(ibv_modify_qp(p->qp, &a, mask));
  if (type == IBV_QPT_UD) TRY(p->ah = ibv_create_ah(pd, &ah));
  p->remote_qpn = qpn;
  a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = my_psn, .max_rd_atomic = 16, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (type == IBV_QPT_RC) mask |= IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
  TRY0(ibv_modify_qp(p->qp, &a, mask));
  answer("ok");
}

static int inside(uint64_t offset, uint64_t len) { return offset <= MEMORY && len <= MEMORY - offset; }

// recv ID OFFSET LEN
static void do_recv(int id, uint64_t offset, uint32_t len) {
  struct peer *p = find(id);
  TRY(p && inside(offset, len));
  struct ibv_sge sge = {.addr = (uintptr_t)mem + offset, .length = len, .lkey = mr->lkey};
  struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
  TRY0(ibv_post_recv(p->qp, &wr, &bad));
  answer("ok");
}

// The send queue's mapping, found by the magic number in its youngest work request.
static struct rxe_send_wqe *find_wqe(uint64_t magic) {
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[512];
  void *found = NULL;
  while (maps && !found && fgets(line, sizeof line, maps)) {
    unsigned long from, to;
    if (!strstr(line, "infiniband") || sscanf(line, "%lx-%lx", &from, &to) != 2) continue;
    for (unsigned long at = from; at + sizeof(struct rxe_send_wqe) <= to; at += 8)
      if (*(uint64_t *)at == magic) found = (void *)at;
  }
  if (maps) fclose(maps);
  return found;
}

static void do_flush(struct peer *p, uint32_t len, uint64_t addr, uint32_t rkey, uint8_t placement, uint8_t level) {
  static uint64_t magic = 0x464c555348000000;
  p->qpx->wr_id = ++magic;
  p->qpx->wr_flags = 0;
  ibv_wr_start(p->qpx);
  ibv_wr_rdma_write(p->qpx, rkey, addr);
  ibv_wr_set_sge(p->qpx, 0, 0, 0);
  struct rxe_send_wqe *wqe = find_wqe(magic);
  if (!wqe) ibv_wr_abort(p->qpx);
  TRY(wqe);
  wqe->wr.opcode = RXE_WR_FLUSH;
  struct { uint64_t remote_addr; uint32_t length, rkey; uint8_t type, level; } flush = {addr, len, rkey, placement, level};
  memcpy(&wqe->wr.wr, &flush, sizeof flush);
  wqe->dma.length = wqe->dma.resid = len; // the RETH's length comes from here
  TRY0(ibv_wr_complete(p->qpx));
  answer("ok");
}

// post ID OP OFFSET LEN ADDR RKEY A B; A and B are: immediate data; compare and swap; addend; placement and level
static void do_post(int id, const char *op, uint64_t offset, uint32_t len, uint64_t addr, uint32_t rkey, uint64_t a, uint64_t b) {
  struct peer *p = find(id);
  TRY(p && (inside(offset, len) || !strcmp(op, "flush")));
  if (!strcmp(op, "flush")) {
    do_flush(p, len, addr, rkey, a, b);
    return;
  }
  struct ibv_qp_ex *x = p->qpx;
  int sge = 1;
  x->wr_id = 1;
  x->wr_flags = 0;
  ibv_wr_start(x);
  if (!strcmp(op, "send")) ibv_wr_send(x);
  else if (!strcmp(op, "send_imm")) ibv_wr_send_imm(x, htonl(a));
  else if (!strcmp(op, "send_inv")) ibv_wr_send_inv(x, rkey);
  else if (!strcmp(op, "write")) ibv_wr_rdma_write(x, rkey, addr);
  else if (!strcmp(op, "write_imm")) ibv_wr_rdma_write_imm(x, rkey, addr, htonl(a));
  else if (!strcmp(op, "read")) ibv_wr_rdma_read(x, rkey, addr);
  else if (!strcmp(op, "cas")) ibv_wr_atomic_cmp_swp(x, rkey, addr, a, b);
  else if (!strcmp(op, "faa")) ibv_wr_atomic_fetch_add(x, rkey, addr, a);
  else if (!strcmp(op, "atomic_write")) ibv_wr_atomic_write(x, rkey, addr, mem + offset), sge = 0;
  else {
    ibv_wr_abort(x);
    answer("error no operation %s", op);
    return;
  }
  if (p->qp->qp_type == IBV_QPT_UD) ibv_wr_set_ud_addr(x, p->ah, p->remote_qpn, 0x11223344);
  if (sge) ibv_wr_set_sge(x, mr->lkey, (uintptr_t)mem + offset, len);
  TRY0(ibv_wr_complete(x));
  answer("ok");
}

// bind ID OFFSET LEN: ok RKEY; binds a type 2 memory window, which completes as any work request
static void do_bind(int id, uint64_t offset, uint64_t len) {
  struct peer *p = find(id);
  TRY(p && inside(offset, len));
  if (!p->mw) TRY(p->mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2));
  struct ibv_mw_bind_info bind = {.mr = mr, .addr = (uintptr_t)mem + offset, .length = len,
    .mw_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};
  uint32_t rkey = ibv_inc_rkey(p->mw->rkey);
  p->qpx->wr_id = 3;
  p->qpx->wr_flags = 0;
  ibv_wr_start(p->qpx);
  ibv_wr_bind_mw(p->qpx, p->mw, rkey, &bind);
  TRY0(ibv_wr_complete(p->qpx));
  answer("ok %u", rkey);
}

// wait ID COUNT: ok STATUS:OPCODE:LENGTH:IMMEDIATE ...
static void do_wait(int id, int count) {
  struct peer *p = find(id);
  TRY(p);
  char text[8192] = "ok";
  size_t used = 2;
  for (int waited = 0; count > 0 && waited < PATIENCE_MS * 5;) {
    struct ibv_wc wc;
    int n = ibv_poll_cq(p->cq, 1, &wc);
    TRY(n >= 0);
    if (!n) {
      usleep(200);
      waited++;
      continue;
    }
    count--;
    uint32_t imm = wc.wc_flags & IBV_WC_WITH_IMM ? ntohl(wc.imm_data) : 0;
    used += snprintf(text + used, sizeof text - used, " %d:%d:%u:%u", wc.status, wc.opcode, wc.byte_len, imm);
    TRY(used < sizeof text - 64);
  }
  if (count) answer("error %d completions did not come", count);
  else answer("%s", text);
}

// The next event of the connection manager, which has to be this one.
static struct rdma_cm_event *expect(enum rdma_cm_event_type type) {
  struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
  struct rdma_cm_event *event;
  if (poll(&fd, 1, PATIENCE_MS) != 1) {
    answer("error no event in place of %s", rdma_event_str(type));
    return NULL;
  }
  if (rdma_get_cm_event(channel, &event)) {
    answer("error rdma_get_cm_event: %s", strerror(errno));
    return NULL;
  }
  if (event->event == type) return event;
  answer("error %s (status %d) in place of %s", rdma_event_str(event->event), event->status, rdma_event_str(type));
  rdma_ack_cm_event(event);
  return NULL;
}

static void private_hex(const struct rdma_cm_event *event, char *out) {
  const uint8_t *data = event->param.conn.private_data;
  int len = data ? event->param.conn.private_data_len : 0;
  strcpy(out, "-");
  for (int i = 0; i < len; i++) sprintf(out + 2 * i, "%02x", data[i]);
}

static struct rdma_conn_param with_private(const char *text) {
  return (struct rdma_conn_param){.responder_resources = 16, .initiator_depth = 16, .retry_count = 7, .rnr_retry_count = 7,
    .private_data = text, .private_data_len = strlen(text)};
}

union address { struct sockaddr any; struct sockaddr_in v4; struct sockaddr_in6 v6; };

static union address address(const char *text, int port) {
  union address at = {.v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)}};
  if (inet_pton(AF_INET6, text, &at.v6.sin6_addr) == 1) return at;
  at.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
  inet_pton(AF_INET, text, &at.v4.sin_addr);
  return at;
}

// cm_listen PORT
static void do_cm_listen(int port) {
  union address at = address("::", port); // IPv4 too
  if (listener) rdma_destroy_id(listener);
  listener = NULL;
  TRY0(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
  TRY0(rdma_bind_addr(listener, &at.any));
  TRY0(rdma_listen(listener, 8));
  answer("ok");
}

// cm_accept PRIVATE: ok ID QPN THEIR_PRIVATE; or, with PRIVATE "reject", ok
static void do_cm_accept(const char *text) {
  struct rdma_cm_event *event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
  if (!event) return;
  char theirs[520];
  private_hex(event, theirs);
  struct rdma_cm_id *cm = event->id;
  rdma_ack_cm_event(event);
  if (!strcmp(text, "reject")) {
    TRY0(rdma_reject(cm, "go away", 7));
    rdma_destroy_id(cm);
    answer("ok");
    return;
  }
  int id = free_slot();
  TRY(id >= 0);
  TRY0(make_qp(&peers[id], IBV_QPT_RC, cm));
  struct rdma_conn_param param = with_private(text);
  TRY0(rdma_accept(cm, &param));
  if (!(event = expect(RDMA_CM_EVENT_ESTABLISHED))) return;
  rdma_ack_cm_event(event);
  answer("ok %d %u %s", id, peers[id].qp->qp_num, theirs);
}

// cm_connect ADDRESS PORT PRIVATE: ok ID QPN THEIR_PRIVATE
static void do_cm_connect(const char *host, int port, const char *text) {
  union address at = address(host, port);
  struct rdma_cm_id *cm;
  struct rdma_cm_event *event;
  int id = free_slot();
  TRY(id >= 0);
  TRY0(rdma_create_id(channel, &cm, NULL, RDMA_PS_TCP));
  TRY0(rdma_resolve_addr(cm, NULL, &at.any, PATIENCE_MS));
  if (!(event = expect(RDMA_CM_EVENT_ADDR_RESOLVED))) return;
  rdma_ack_cm_event(event);
  TRY0(rdma_resolve_route(cm, PATIENCE_MS));
  if (!(event = expect(RDMA_CM_EVENT_ROUTE_RESOLVED))) return;
  rdma_ack_cm_event(event);
  TRY0(make_qp(&peers[id], IBV_QPT_RC, cm));
  struct rdma_conn_param param = with_private(text);
  TRY0(rdma_connect(cm, &param));
  if (!(event = expect(RDMA_CM_EVENT_ESTABLISHED))) {
    destroy(&peers[id]);
    return;
  }
  char theirs[520];
  private_hex(event, theirs);
  rdma_ack_cm_event(event);
  answer("ok %d %u %s", id, peers[id].qp->qp_num, theirs);
}

// cm_disconnect ID; cm_gone ID: the other side did it
static void do_cm_end(int id, int ours) {
  struct peer *p = find(id);
  TRY(p && p->cm);
  if (ours) TRY0(rdma_disconnect(p->cm));
  struct rdma_cm_event *event = expect(RDMA_CM_EVENT_DISCONNECTED);
  if (!event) return;
  rdma_ack_cm_event(event);
  if (!ours) TRY0(rdma_disconnect(p->cm));
  destroy(p);
  answer("ok");
}

// mtu BYTES: of the interface; the device's follows
static void do_mtu(int mtu) {
  struct ifreq request = {.ifr_mtu = mtu};
  strcpy(request.ifr_name, "eth0");
  int s = socket(AF_INET, SOCK_DGRAM, 0);
  int failed = ioctl(s, SIOCSIFMTU, &request);
  close(s);
  TRY(!failed);
  answer("ok");
}

static void do_compare(const uint8_t *at, uint64_t len, uint64_t seed) {
  for (uint64_t i = 0; i < len; i++)
    if (at[i] != pattern(seed, i)) {
      answer("error byte %lu is %#x and should be %#x", i, at[i], pattern(seed, i));
      return;
    }
  answer("ok");
}

static void do_check(uint64_t offset, uint64_t len, uint64_t seed) {
  TRY(inside(offset, len));
  do_compare(mem + offset, len, seed);
}

static void do_fill(uint64_t offset, uint64_t len, uint64_t seed) {
  TRY(inside(offset, len));
  for (uint64_t i = 0; i < len; i++) mem[offset + i] = pattern(seed, i);
  answer("ok");
}

static void obey(char *line) {
  char word[4][600] = {{0}};
  uint64_t n[8] = {0};
  int id;
  if (sscanf(line, "qp %7s %lu", word[0], n) == 2) do_qp(word[0], n[0]);
  else if (sscanf(line, "rts %d %lu %lu %lu %32s %lu", &id, n, n + 1, n + 2, word[0], n + 3) == 6) do_rts(id, n[0], n[1], n[2], word[0], n[3]);
  else if (sscanf(line, "recv %d %lu %lu", &id, n, n + 1) == 3) do_recv(id, n[0], n[1]);
  else if (sscanf(line, "post %d %31s %lu %lu %lu %lu %lu %lu", &id, word[0], n, n + 1, n + 2, n + 3, n + 4, n + 5) >= 4)
    do_post(id, word[0], n[0], n[1], n[2], n[3], n[4], n[5]);
  else if (!strcmp(line, "pmem")) do_pmem();
  else if (sscanf(line, "pmem_check %lu %lu %lu", n, n + 1, n + 2) == 3) {
    TRY(pmem && n[0] + n[1] <= PMEM);
    do_compare(pmem + n[0], n[1], n[2]);
  } else if (sscanf(line, "mtu %lu", n) == 1) do_mtu(n[0]);
  else if (sscanf(line, "wait %d %lu", &id, n) == 2) do_wait(id, n[0]);
  else if (sscanf(line, "bind %d %lu %lu", &id, n, n + 1) == 3) do_bind(id, n[0], n[1]);
  else if (sscanf(line, "destroy %d", &id) == 1) {
    struct peer *p = find(id);
    TRY(p);
    destroy(p);
    answer("ok");
  } else if (!strcmp(line, "memory")) answer("ok %lu %u %d", (uintptr_t)mem, mr->rkey, MEMORY);
  else if (sscanf(line, "fill %lu %lu %lu", n, n + 1, n + 2) == 3) do_fill(n[0], n[1], n[2]);
  else if (sscanf(line, "check %lu %lu %lu", n, n + 1, n + 2) == 3) do_check(n[0], n[1], n[2]);
  else if (sscanf(line, "word %lu", n) == 1) {
    TRY(inside(n[0], 8) && n[0] % 8 == 0);
    answer("ok %lu", *(volatile uint64_t *)(mem + n[0]));
  } else if (sscanf(line, "set %lu %lu", n, n + 1) == 2) {
    TRY(inside(n[0], 8) && n[0] % 8 == 0);
    *(volatile uint64_t *)(mem + n[0]) = n[1];
    answer("ok");
  } else if (sscanf(line, "cm_listen %lu", n) == 1) do_cm_listen(n[0]);
  else if (sscanf(line, "cm_accept %255s", word[0]) == 1) do_cm_accept(word[0]);
  else if (sscanf(line, "cm_connect %63s %lu %255s", word[0], n, word[1]) == 3) do_cm_connect(word[0], n[0], word[1]);
  else if (sscanf(line, "cm_disconnect %d", &id) == 1) do_cm_end(id, 1);
  else if (sscanf(line, "cm_gone %d", &id) == 1) do_cm_end(id, 0);
  else answer("error no command %s", line);
}

int main(void) {
  setvbuf(stdout, NULL, _IONBF, 0);
  if (!open_device()) return perror("rxe_peer: no RDMA device"), 1;
  union address at = address("0.0.0.0", PORT);
  int one = 1, s = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(s, &at.any, sizeof at.v4) || listen(s, 1)) return perror("rxe_peer: control port"), 1;
  printf("rxe_peer ready\n");
  int tcp = accept(s, NULL, NULL);
  FILE *commands = tcp < 0 ? NULL : fdopen(tcp, "r");
  if (!commands || !(control = fdopen(dup(tcp), "w"))) return perror("rxe_peer: control connection"), 1;
  char *line = NULL;
  size_t room = 0;
  ssize_t len;
  while ((len = getline(&line, &room, commands)) > 0) {
    line[strcspn(line, "\r\n")] = 0;
    if (!strcmp(line, "quit")) break;
    obey(line);
  }
  return 0;
}
