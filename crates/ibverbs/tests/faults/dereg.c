/* Memory that goes away while it is in use: the status of both sides, and nothing else. */
#include "loop.h"

static struct side a, b;

static void begin(size_t size) { make_pair(&a, &b, size); }

static void end(void)
{
	destroy_side(&a);
	destroy_side(&b);
}

static void forget(struct side *side)
{
	SAME(ibv_dereg_mr(side->mr), 0);
	side->mr = NULL;
}

static void remote_gone(enum ibv_wr_opcode opcode)
{
	begin(4096);
	uint32_t rkey = b.mr->rkey;
	forget(&b);
	SAME(post(&a, opcode, 0, 64, (uintptr_t)b.memory, rkey), 0);
	SAME(wait_wc(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	/* The connection is over: what follows is flushed. */
	SAME(post(&a, IBV_WR_SEND, 0, 64, 0, 0), 0);
	SAME(wait_wc(a.cq).status, IBV_WC_WR_FLUSH_ERR);
	end();
}

static void local_gone(void)
{
	begin(4096);
	struct ibv_mr *mr = ibv_reg_mr(pd, a.memory, 4096, ALL);
	struct ibv_sge sge = {.addr = (uintptr_t)a.memory, .length = 64, .lkey = mr->lkey};
	struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = {.remote_addr = (uintptr_t)b.memory, .rkey = b.mr->rkey}};
	SAME(ibv_dereg_mr(mr), 0);
	SAME(ibv_post_send(a.qp, &wr, &bad), 0);
	SAME(wait_wc(a.cq).status, IBV_WC_LOC_PROT_ERR);
	end();
}

static void receive_gone(void)
{
	begin(4096);
	SAME(post_recv(&b, 64), 0);
	forget(&b);
	SAME(post(&a, IBV_WR_SEND, 0, 64, 0, 0), 0);
	SAME(wait_wc(a.cq).status, IBV_WC_REM_OP_ERR);
	SAME(wait_wc(b.cq).status, IBV_WC_LOC_PROT_ERR);
	end();
}

static void too_long_for_the_receive(void)
{
	begin(4096);
	SAME(post_recv(&b, 16), 0);
	SAME(post(&a, IBV_WR_SEND, 0, 64, 0, 0), 0);
	SAME(wait_wc(a.cq).status, IBV_WC_REM_INV_REQ_ERR);
	SAME(wait_wc(b.cq).status, IBV_WC_LOC_LEN_ERR);
	end();
}

static void nobody_receives(void)
{
	begin(4096);
	SAME(post(&a, IBV_WR_SEND, 0, 64, 0, 0), 0);
	SAME(wait_wc(a.cq).status, IBV_WC_RNR_RETRY_EXC_ERR);
	end();
}

/* In the middle of a long WRITE or READ, at either end; and the memory is unmapped at once, as free() may do. */
static void in_flight(enum ibv_wr_opcode opcode, int theirs)
{
	enum { SIZE = 64 << 20 };
	begin(SIZE);
	memset(a.memory, 1, SIZE);
	memset(b.memory, 2, SIZE);
	SAME(post(&a, opcode, 0, SIZE, (uintptr_t)b.memory, b.mr->rkey), 0);
	/* It has begun once a byte has arrived; on a slow day it may not have. */
	volatile char *seen = opcode == IBV_WR_RDMA_READ ? a.memory : b.memory;
	char was = *seen;
	struct ibv_wc wc;
	int done = 0;
	for (int i = 0; i < 1000 && *seen == was && !done; i++)
		done = ibv_poll_cq(a.cq, 1, &wc);
	struct side *side = theirs ? &b : &a;
	forget(side);
	munmap(side->memory, SIZE);
	side->memory = pages(side->size = 4096);
	/* On a fast day, or one on which somebody else had the core, it is done already. */
	if (!done)
		wc = wait_wc(a.cq);
	if (wc.status != IBV_WC_SUCCESS)
		SAME(wc.status, theirs ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_PROT_ERR);
	say("%s %s: %s", opcode == IBV_WR_RDMA_READ ? "read" : "write", theirs ? "theirs" : "ours", ibv_wc_status_str(wc.status));
	end();
}

int main(void)
{
	open_device();
	remote_gone(IBV_WR_RDMA_WRITE);
	remote_gone(IBV_WR_RDMA_READ);
	local_gone();
	receive_gone();
	too_long_for_the_receive();
	nobody_receives();
	for (int theirs = 0; theirs < 2; theirs++) {
		in_flight(IBV_WR_RDMA_WRITE, theirs);
		in_flight(IBV_WR_RDMA_READ, theirs);
	}
	close_device();
	say("verified");
	return 0;
}
