/* Children of a process with live QPs: whatever they do, the parent's connection goes on; and they can have their own. */
#include "loop.h"

static struct side a, b;

static void traffic(int rounds)
{
	for (int i = 0; i < rounds; i++) {
		memset(a.memory, i + 1, 4096);
		SAME(post(&a, IBV_WR_RDMA_WRITE, 0, 4096, (uintptr_t)b.memory, b.mr->rkey), 0);
		SAME(wait_wc(a.cq).status, IBV_WC_SUCCESS);
		CHECK(!memcmp(a.memory, b.memory, 4096));
		SAME(post_recv(&b, 64), 0);
		SAME(post(&a, IBV_WR_SEND, 0, 64, 0, 0), 0);
		SAME(wait_wc(a.cq).status, IBV_WC_SUCCESS);
		SAME(wait_wc(b.cq).status, IBV_WC_SUCCESS);
	}
}

static void child(const char *name, void (*life)(void))
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		life();
		_exit(0);
	}
	int status = 0, turns = 0;
	while (!waitpid(pid, &status, WNOHANG)) {
		traffic(1);
		CHECK(turns++ < 100000);
	}
	if (status) {
		fprintf(stderr, "%s: status %x\n", name, status);
		exit(1);
	}
	traffic(50);
	say("%s", name);
}

static void idle(void)
{
	/* Its own copy of the memory: nothing that the parent does arrives here. */
	char was = b.memory[0];
	for (int i = 0; i < 50; i++) {
		usleep(1000);
		CHECK(b.memory[0] == was);
	}
	memset(b.memory, 0xee, 4096);
}

static void other_program(void)
{
	execlp("true", "true", NULL);
	_exit(1);
}

static void ends_by_exit(void) { exit(0); }

/* As destructors of its language may do. What it is told does not matter. */
static void destroys_what_it_inherited(void)
{
	ibv_destroy_qp(a.qp);
	ibv_destroy_cq(a.cq);
	ibv_dereg_mr(a.mr);
	ibv_dealloc_pd(pd);
	ibv_close_device(ctx);
}

static void posts_to_what_it_inherited(void)
{
	struct ibv_wc wc;
	post(&a, IBV_WR_RDMA_WRITE, 0, 4096, (uintptr_t)b.memory, b.mr->rkey);
	for (int i = 0; i < 100; i++)
		ibv_poll_cq(a.cq, 1, &wc);
	ibv_req_notify_cq(a.cq, 0);
}

static void own_device(void)
{
	/* The globals are this process' own. */
	open_device();
	make_pair(&a, &b, 4096);
	traffic(100);
	destroy_side(&a);
	destroy_side(&b);
	close_device();
}

int main(void)
{
	SAME(ibv_fork_init(), 0);
	CHECK(ibv_is_fork_initialized() != IBV_FORK_DISABLED);
	open_device();
	make_pair(&a, &b, 4096);
	traffic(50);
	child("idle", idle);
	child("exec", other_program);
	child("exit", ends_by_exit);
	child("destroy", destroys_what_it_inherited);
	child("post", posts_to_what_it_inherited);
	child("own", own_device);
	destroy_side(&a);
	destroy_side(&b);
	close_device();
	say("verified");
	return 0;
}
