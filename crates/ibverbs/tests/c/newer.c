/* What rdma-core has had since version 44, whose headers these programs are compiled against: declared here, as its newest
 * headers declare it. */
#include "side.h"

struct ibv_dmah_init_attr;
struct ibv_comp_cntr_init_attr;
struct ibv_mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	struct ibv_dmah *dmah;
	struct ibv_buf *buf;
};
enum { MASK_IOVA = 1, MASK_ADDR = 2, MASK_FD = 4, MASK_DMAH = 16, MASK_BUF = 32 };

struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr);
struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context, struct ibv_dmah_init_attr *attr);
int ibv_query_port_speed(struct ibv_context *context, uint32_t port_num, uint64_t *port_speed);
void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf);
void ibv_free_buf(struct ibv_buf *buf);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access);
struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *context, struct ibv_comp_cntr_init_attr *attr);
int _ibv_query_comp_cntr_caps(struct ibv_context *context, void *caps, size_t size);

#define REFUSED(x, e)                 \
	do {                          \
		errno = 0;            \
		EQ((intptr_t)(x), 0); \
		EQ(errno, e);         \
	} while (0)

int main(void)
{
	struct side s;
	struct ibv_qp *a, *b;
	struct ibv_mr *mr;
	struct ibv_buf *buf = NULL;
	uint64_t speed = 0;
	open_side(&s);

	/* A registration by attributes, at an address of its own choice: a peer writes through it. */
	struct ibv_mr_init_attr attr = { .length = 4096, .access = ALL_ACCESS, .comp_mask = MASK_ADDR | MASK_IOVA, .iova = 0x10000,
					 .addr = s.buf };
	CHECK(mr = ibv_reg_mr_ex(s.pd, &attr));
	CHECK(mr->pd == s.pd && mr->addr == s.buf && mr->length == 4096);
	create_pair(&s, IBV_QPT_RC, &a, &b);
	s.buf[8000] = 77;
	struct ibv_sge one = sge(&s, 8000, 1);
	struct ibv_send_wr wr = { .wr_id = 5, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED, .wr.rdma = { 0x10000 + 100, mr->rkey } };
	EQ(post_one(a, &wr), 0);
	expect(s.cq, 5, IBV_WC_SUCCESS);
	EQ(s.buf[100], 77);
	EQ(ibv_dereg_mr(mr), 0);
	attr.comp_mask = MASK_IOVA;
	REFUSED(ibv_reg_mr_ex(s.pd, &attr), EINVAL);
	attr.comp_mask = MASK_ADDR | MASK_DMAH;
	REFUSED(ibv_reg_mr_ex(s.pd, &attr), EOPNOTSUPP);

	/* Buffers begin with a page, and registrations of them lie inside. */
	uint8_t *at = ibv_alloc_buf(s.pd, 10000, &buf);
	CHECK(at && buf && (uintptr_t)at % 4096 == 0);
	memset(at, 0, 10000);
	CHECK(mr = ibv_reg_buf_mr(s.pd, buf, at + 9000, 1000, ALL_ACCESS));
	CHECK(mr->addr == at + 9000 && mr->length == 1000);
	wr.wr.rdma.remote_addr = (uintptr_t)at + 9999;
	wr.wr.rdma.rkey = mr->rkey;
	EQ(post_one(a, &wr), 0);
	expect(s.cq, 5, IBV_WC_SUCCESS);
	EQ(at[9999], 77);
	EQ(ibv_dereg_mr(mr), 0);
	REFUSED(ibv_reg_buf_mr(s.pd, buf, at + 9000, 1001, ALL_ACCESS), EINVAL);
	REFUSED(ibv_reg_buf_mr(s.pd, buf, at - 1, 1, ALL_ACCESS), EINVAL);
	REFUSED(ibv_reg_buf_mr(s.pd, buf, at + 10001, 0, ALL_ACCESS), EINVAL);
	struct ibv_pd *other = ibv_alloc_pd(s.ctx);
	CHECK(other);
	REFUSED(ibv_reg_buf_mr(other, buf, at, 100, ALL_ACCESS), EINVAL);
	EQ(ibv_dealloc_pd(other), 0);
	errno = 0;
	EQ(ibv_export_buf_dmabuf_fd(buf), -1);
	EQ(errno, ENODATA);
	ibv_free_buf(buf);

	EQ(ibv_query_port_speed(s.ctx, 1, &speed), 0);
	CHECK(speed > 0);
	EQ(ibv_query_port_speed(s.ctx, 2, &speed), EINVAL);
	REFUSED(ibv_alloc_dmah(s.ctx, NULL), EOPNOTSUPP);
	REFUSED(ibv_create_comp_cntr(s.ctx, NULL), EOPNOTSUPP);
	EQ(_ibv_query_comp_cntr_caps(s.ctx, NULL, 0), EOPNOTSUPP);

	EQ(ibv_destroy_qp(a), 0);
	EQ(ibv_destroy_qp(b), 0);
	close_side(&s);
	return 0;
}
