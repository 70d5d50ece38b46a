/* What the C tests share: an open device with everything that a queue pair needs, and ways to connect two of them.
 * Each test program prints nothing and exits with 0, or says which check failed. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <arpa/inet.h>
#include <infiniband/verbs.h>

#define CHECK(x)                                                                                       \
	do {                                                                                           \
		errno = 0;                                                                             \
		if (!(x)) {                                                                            \
			fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__, #x, errno,   \
				strerror(errno));                                                      \
			exit(1);                                                                       \
		}                                                                                      \
	} while (0)

#define EQ(x, y)                                                                                       \
	do {                                                                                           \
		long long x_ = (long long)(x), y_ = (long long)(y);                                    \
		if (x_ != y_) {                                                                        \
			fprintf(stderr, "%s:%d: %s is %lld, not %lld = %s\n", __FILE__, __LINE__, #x,  \
				x_, y_, #y);                                                           \
			exit(1);                                                                       \
		}                                                                                      \
	} while (0)

#define SIZE 65536
#define ALL_ACCESS                                                                                     \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |                   \
	 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND)
#define QKEY 0x11111111

struct side {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t *buf;
	union ibv_gid gid;
	int gid_index;
};

static struct ibv_context *open_first(void)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list && n > 0);
	struct ibv_context *ctx = ibv_open_device(list[0]);
	CHECK(ctx);
	ibv_free_device_list(list);
	return ctx;
}

static void open_side(struct side *s)
{
	s->ctx = open_first();
	CHECK(s->pd = ibv_alloc_pd(s->ctx));
	CHECK(s->cq = ibv_create_cq(s->ctx, 256, s, NULL, 0));
	CHECK(s->buf = calloc(1, SIZE));
	CHECK(s->mr = ibv_reg_mr(s->pd, s->buf, SIZE, ALL_ACCESS));
	s->gid_index = 0;
	CHECK(ibv_query_gid(s->ctx, 1, 0, &s->gid) == 0);
}

static void close_side(struct side *s)
{
	EQ(ibv_dereg_mr(s->mr), 0);
	EQ(ibv_destroy_cq(s->cq), 0);
	EQ(ibv_dealloc_pd(s->pd), 0);
	EQ(ibv_close_device(s->ctx), 0);
	free(s->buf);
}

static struct ibv_qp_init_attr init_attr(struct side *s, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {
		.qp_context = s, .send_cq = s->cq, .recv_cq = s->cq, .qp_type = type,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 4,
			 .max_inline_data = 64 },
	};
	return attr;
}

static struct ibv_qp *create_qp(struct side *s, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = init_attr(s, type);
	struct ibv_qp *qp = ibv_create_qp(s->pd, &attr);
	CHECK(qp);
	EQ(qp->state, IBV_QPS_RESET);
	return qp;
}

static int to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
						       IBV_ACCESS_REMOTE_ATOMIC | 0x300 };
	int kind = qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | kind);
}

static int to_rtr(struct ibv_qp *qp, struct side *s, uint32_t dest)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = dest, .rq_psn = 0x123,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = s->gid, .sgid_index = s->gid_index, .hop_limit = 1 } },
	};
	int mask = IBV_QP_STATE;
	if (qp->qp_type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	return ibv_modify_qp(qp, &attr, mask);
}

/* Ready to send. Patient: a test machine may starve one of the two ends for seconds. */
static int to_rts_within(struct ibv_qp *qp, int rnr_retry, int timeout)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .sq_psn = 0x123, .timeout = timeout, .retry_cnt = 6,
				    .rnr_retry = rnr_retry, .max_rd_atomic = 4 };
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	return ibv_modify_qp(qp, &attr, mask);
}

static int to_rts(struct ibv_qp *qp, int rnr_retry)
{
	return to_rts_within(qp, rnr_retry, 20);
}

static void connect_rnr(struct side *s, struct ibv_qp *a, struct ibv_qp *b, int rnr_retry)
{
	EQ(to_init(a), 0);
	EQ(to_init(b), 0);
	EQ(to_rtr(a, s, b->qp_num), 0);
	EQ(to_rtr(b, s, a->qp_num), 0);
	EQ(to_rts(a, rnr_retry), 0);
	EQ(to_rts(b, rnr_retry), 0);
	EQ(a->state, IBV_QPS_RTS);
}

static void connect_qps(struct side *s, struct ibv_qp *a, struct ibv_qp *b)
{
	connect_rnr(s, a, b, 7);
}

/* Two queue pairs of one device that are connected to each other. */
static void create_pair(struct side *s, enum ibv_qp_type type, struct ibv_qp **a, struct ibv_qp **b)
{
	*a = create_qp(s, type);
	*b = create_qp(s, type);
	connect_qps(s, *a, *b);
}

static struct ibv_sge sge(struct side *s, int at, int len)
{
	struct ibv_sge sge = { .addr = (uintptr_t)s->buf + at, .length = len, .lkey = s->mr->lkey };
	return sge;
}

static int post_recv_at(struct side *s, struct ibv_qp *qp, uint64_t wr_id, int at, int len)
{
	struct ibv_sge one = sge(s, at, len);
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &one, .num_sge = 1 }, *bad;
	return ibv_post_recv(qp, &wr, &bad);
}

static int post_one(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;
	int e = ibv_post_send(qp, wr, &bad);
	if (e && bad != wr)
		CHECK(!"bad_wr names the request");
	return e;
}

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* The next completion. Polls, as that is what drives. */
static struct ibv_wc next_wc(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	double end = seconds() + 50;
	int n;
	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		CHECK(seconds() < end);
	EQ(n, 1);
	return wc;
}

static struct ibv_wc expect(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = next_wc(cq);
	if (wc.wr_id != wr_id || wc.status != status) {
		fprintf(stderr, "completion %" PRIu64 " is %s, not completion %" PRIu64 " with %s\n", wc.wr_id,
			ibv_wc_status_str(wc.status), wr_id, ibv_wc_status_str(status));
		exit(1);
	}
	return wc;
}

/* Two completions in either order: out[0] is the one of wr_id a, out[1] the one of b. */
static void expect_two(struct ibv_cq *cq, uint64_t a, uint64_t b, struct ibv_wc out[2])
{
	struct ibv_wc one = next_wc(cq), two = next_wc(cq);
	int swap = one.wr_id == b;
	out[swap] = one;
	out[!swap] = two;
	EQ(out[0].wr_id, a);
	EQ(out[1].wr_id, b);
	EQ(out[0].status, IBV_WC_SUCCESS);
	EQ(out[1].status, IBV_WC_SUCCESS);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
	EQ(qp->state, attr.qp_state);
	return attr.qp_state;
}
