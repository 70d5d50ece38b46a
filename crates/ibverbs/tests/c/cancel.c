/* Threads that are cancelled in the library. Those that wait for events end there, whatever their cancellation type; all others
 * finish the call that they are in. Either way nothing stays taken: what happens next is for the threads that are left. */
#include "side.h"

#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

static struct side s;

/* One of the program's threads: a CQ with its channel, and two queue pairs that are connected. */
struct line {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *from, *to;
	int at;
};

static void open_line(struct line *line, int at)
{
	struct ibv_qp_init_attr init = init_attr(&s, IBV_QPT_RC);
	CHECK(line->channel = ibv_create_comp_channel(s.ctx));
	CHECK(line->cq = ibv_create_cq(s.ctx, 64, line, line->channel, 0));
	init.send_cq = init.recv_cq = line->cq;
	CHECK(line->from = ibv_create_qp(s.pd, &init));
	CHECK(line->to = ibv_create_qp(s.pd, &init));
	connect_qps(&s, line->from, line->to);
	line->at = at;
}

static void close_line(struct line *line)
{
	EQ(ibv_destroy_qp(line->from), 0);
	EQ(ibv_destroy_qp(line->to), 0);
	EQ(ibv_destroy_cq(line->cq), 0);
	EQ(ibv_destroy_comp_channel(line->channel), 0);
}

static int post_write(struct line *line, uint64_t wr_id)
{
	struct ibv_sge one = sge(&s, line->at, 64);
	struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { .remote_addr = (uintptr_t)s.buf + line->at + 64, .rkey = s.mr->rkey } };
	return post_one(line->from, &wr);
}

static void get_event(struct line *line)
{
	struct ibv_cq *cq;
	void *context;
	EQ(ibv_get_cq_event(line->channel, &cq, &context), 0);
	CHECK(cq == line->cq && context == line);
	ibv_ack_cq_events(cq, 1);
}

/* A request and its completion, by an event. */
static void round_trip(struct line *line)
{
	EQ(ibv_req_notify_cq(line->cq, 0), 0);
	EQ(post_write(line, 5), 0);
	get_event(line);
	expect(line->cq, 5, IBV_WC_SUCCESS);
}

static void ended(pthread_t thread, int cancelled)
{
	void *result;
	EQ(pthread_join(thread, &result), 0);
	EQ(result == PTHREAD_CANCELED, cancelled);
}

/* Threads that wait. */

static volatile int type, cleaned;

/* Between its cancellation and its end, a thread may use the library. */
static void clean_up(void *line)
{
	round_trip(line);
	cleaned++;
}

static sem_t begins;

static void *waits_for_completions(void *line)
{
	int before;
	pthread_cleanup_push(clean_up, line);
	EQ(sem_post(&begins), 0);
	pthread_setcanceltype(type, &before);
	for (;;) {
		struct ibv_cq *cq;
		void *context;
		EQ(ibv_get_cq_event(((struct line *)line)->channel, &cq, &context), 0);
		CHECK(!"there is none");
	}
	pthread_cleanup_pop(0);
	return NULL;
}

static void *waits_for_events(void *context)
{
	struct ibv_async_event event;
	int before;
	EQ(sem_post(&begins), 0);
	pthread_setcanceltype(type, &before);
	EQ(ibv_get_async_event(context, &event), 0);
	CHECK(!"there is none");
	return NULL;
}

static volatile int rounds_wanted, rounds_done;
static sem_t round_done;

static void *goes_on(void *line)
{
	for (int i = 0; i < rounds_wanted; i++) {
		round_trip(line);
		rounds_done++;
		EQ(sem_post(&round_done), 0);
	}
	return NULL;
}

/* Two wait, one of them in the seat, and one goes on: whichever is cancelled, and wherever it is. */
static void those_that_wait(int cancel_type)
{
	struct line lines[2], steady;
	pthread_t waiters[2], watcher, other;
	type = cancel_type;
	cleaned = 0;
	rounds_done = 0;
	rounds_wanted = 60;
	open_line(&lines[0], 0);
	open_line(&lines[1], 256);
	open_line(&steady, 512);
	EQ(pthread_create(&other, NULL, goes_on, &steady), 0);
	for (int i = 0; i < 30; i++) {
		EQ(pthread_create(&waiters[0], NULL, waits_for_completions, &lines[0]), 0);
		EQ(pthread_create(&waiters[1], NULL, waits_for_completions, &lines[1]), 0);
		EQ(pthread_create(&watcher, NULL, waits_for_events, s.ctx), 0);
		for (int j = 0; j < 3; j++)
			EQ(sem_wait(&begins), 0);
		/* Sometimes they have not begun to sleep, sometimes they have for long. */
		EQ(sem_wait(&round_done), 0);
		if (i % 3 == 0)
			usleep(2000);
		pthread_t order[3] = { waiters[i % 2], watcher, waiters[1 - i % 2] };
		for (int j = 0; j < 3; j++) {
			EQ(pthread_cancel(order[j]), 0);
			ended(order[j], 1);
		}
		EQ(sem_wait(&round_done), 0);
	}
	ended(other, 0);
	EQ(rounds_done, 60);
	EQ(cleaned, 60);
	close_line(&lines[0]);
	close_line(&lines[1]);
	close_line(&steady);
}

static void *waits_alone(void *line)
{
	EQ(sem_post(&begins), 0);
	get_event(line);
	CHECK(!"there is none");
	return NULL;
}

/* A thread that waits sees to the device for all others; after a while nobody else looks. */
static void the_seat_is_given_up(void)
{
	struct line line, other;
	pthread_t waiter;
	open_line(&line, 0);
	open_line(&other, 256);
	for (int i = 0; i < 4; i++) {
		EQ(pthread_create(&waiter, NULL, waits_alone, &line), 0);
		EQ(sem_wait(&begins), 0);
		usleep(60000);
		EQ(pthread_cancel(waiter), 0);
		ended(waiter, 1);
		round_trip(&other);
	}
	close_line(&line);
	close_line(&other);
}

static void *takes_one(void *line)
{
	EQ(sem_post(&begins), 0);
	get_event(line);
	return NULL;
}

/* The event that a cancelled thread waited for is the next one's, unless it had it already. */
static void no_event_is_lost(void)
{
	struct line line;
	pthread_t waiter;
	void *result;
	open_line(&line, 0);
	for (int i = 0; i < 100; i++) {
		EQ(ibv_req_notify_cq(line.cq, 0), 0);
		EQ(pthread_create(&waiter, NULL, takes_one, &line), 0);
		EQ(sem_wait(&begins), 0);
		EQ(post_write(&line, 3), 0);
		usleep(i);
		EQ(pthread_cancel(waiter), 0);
		EQ(pthread_join(waiter, &result), 0);
		if (result == PTHREAD_CANCELED)
			get_event(&line);
		expect(line.cq, 3, IBV_WC_SUCCESS);
	}
	close_line(&line);
}

/* A thread that is to be cancelled calls each function: the calls that wait do not come back, all others do, with success. */

static struct line own;
static struct ibv_ah_attr ah_attr;

static void none_waits(void)
{
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(s.ctx, &event) || !"there is none");
}

static void devices(void)
{
	struct ibv_context *again = open_first();
	struct ibv_port_attr port;
	EQ(ibv_query_port(again, 1, &port), 0);
	EQ(ibv_close_device(again), 0);
}

static void memory(void)
{
	struct ibv_mr *mr;
	void *page;
	EQ(posix_memalign(&page, 4096, 1 << 20), 0);
	CHECK(mr = ibv_reg_mr(s.pd, page, 1 << 20, ALL_ACCESS));
	EQ(ibv_dereg_mr(mr), 0);
	free(page);
}

static void objects(void)
{
	struct line line;
	open_line(&line, 1024);
	close_line(&line);
}

static void requests(void)
{
	for (int i = 0; i < 200; i++) {
		EQ(post_write(&own, i), 0);
		expect(own.cq, i, IBV_WC_SUCCESS);
	}
}

static void in_rows(void)
{
	for (int i = 0; i < 50; i++) {
		for (int j = 0; j < 8; j++)
			EQ(post_write(&own, j), 0);
		EQ(ibv_req_notify_cq(own.cq, 0), 0);
		for (int j = 0; j < 8; j++)
			expect(own.cq, j, IBV_WC_SUCCESS);
	}
}

static void messages(void)
{
	struct ibv_sge one = sge(&s, own.at, 64);
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED };
	struct ibv_wc both[2];
	EQ(post_recv_at(&s, own.to, 1, own.at + 128, 64), 0);
	EQ(post_one(own.from, &wr), 0);
	expect_two(own.cq, 1, 2, both);
}

static void addresses(void)
{
	struct ibv_ah *ah = ibv_create_ah(s.pd, &ah_attr);
	CHECK(ah);
	EQ(ibv_destroy_ah(ah), 0);
}

static const struct {
	void (*call)(void);
	int waits;
} calls[] = {
	{ none_waits, 1 }, { devices, 0 },  { memory, 0 },   { objects, 0 },
	{ requests, 0 },   { in_rows, 0 }, { messages, 0 }, { addresses, 0 },
};

static volatile int came_back;

static void *cancelled_before(void *call)
{
	EQ(pthread_cancel(pthread_self()), 0);
	((void (*)(void))call)();
	came_back = 1;
	pthread_testcancel();
	CHECK(!"it was cancelled");
	return NULL;
}

static void each_call(void)
{
	struct line other;
	open_line(&own, 2048);
	open_line(&other, 4096);
	ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .grh = { .dgid = s.gid, .hop_limit = 1 } };
	for (unsigned i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		pthread_t thread;
		came_back = 0;
		EQ(pthread_create(&thread, NULL, cancelled_before, calls[i].call), 0);
		ended(thread, 1);
		EQ(came_back, !calls[i].waits);
		round_trip(&own);
		round_trip(&other);
	}
	close_line(&own);
	close_line(&other);
}

/* Anywhere in its calls, as in the program that found this: several threads post and poll, and are cancelled by turns. */

static void *posts_and_polls(void *of)
{
	struct line *line = of;
	EQ(sem_post(&begins), 0);
	for (;;) {
		for (int i = 0; i < 4; i++)
			EQ(post_write(line, 9), 0);
		for (int i = 0; i < 4; i++)
			expect(line->cq, 9, IBV_WC_SUCCESS);
		pthread_testcancel();
	}
	return NULL;
}

static void anywhere(void)
{
	struct line lines[3];
	pthread_t threads[3];
	unsigned random = 12345;
	for (int i = 0; i < 3; i++) {
		open_line(&lines[i], 1024 * i);
		EQ(pthread_create(&threads[i], NULL, posts_and_polls, &lines[i]), 0);
		EQ(sem_wait(&begins), 0);
	}
	for (int i = 0; i < 150; i++) {
		random = random * 1103515245 + 12345;
		usleep((random >> 16) % 300);
		EQ(pthread_cancel(threads[i % 3]), 0);
		ended(threads[i % 3], 1);
		round_trip(&lines[i % 3]);
		EQ(pthread_create(&threads[i % 3], NULL, posts_and_polls, &lines[i % 3]), 0);
		EQ(sem_wait(&begins), 0);
	}
	for (int i = 0; i < 3; i++) {
		EQ(pthread_cancel(threads[i]), 0);
		ended(threads[i], 1);
		close_line(&lines[i]);
	}
}

int main(void)
{
	EQ(sem_init(&begins, 0, 0), 0);
	EQ(sem_init(&round_done, 0, 0), 0);
	open_side(&s);
	those_that_wait(PTHREAD_CANCEL_DEFERRED);
	those_that_wait(PTHREAD_CANCEL_ASYNCHRONOUS);
	the_seat_is_given_up();
	no_event_is_lost();
	each_call();
	anywhere();
	close_side(&s);
	return 0;
}
