/* Signals end the calls that wait for events, as they end read(2), unless their handler has SA_RESTART; and they come to the
 * threads of the program, never to those of the library. qperf ends each of its tests with a timer that does this. */
#include "side.h"

#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t taken, elsewhere;
static pthread_t program;

static void handler(int signal)
{
	(void)signal;
	taken++;
	if (!pthread_equal(pthread_self(), program))
		elsewhere++;
}

/* Every 2 ms, as one alone may come before the call has begun to wait. */
static void timer(int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
	struct itimerval often = { { 0, 2000 }, { 0, 2000 } };
	EQ(sigaction(SIGALRM, &action, NULL), 0);
	EQ(setitimer(ITIMER_REAL, &often, NULL), 0);
}

static struct ibv_qp *qp;

/* After many signals, something happens: a receive is flushed. */
static void *later(void *channel)
{
	struct ibv_recv_wr wr = { .wr_id = 7 }, *bad;
	sigset_t alarm;
	int before = taken;
	(void)channel;
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	EQ(pthread_sigmask(SIG_BLOCK, &alarm, NULL), 0);
	while (taken < before + 50)
		usleep(1000);
	EQ(ibv_post_recv(qp, &wr, &bad), 0);
	return NULL;
}

int main(void)
{
	struct side s;
	struct ibv_cq *cq, *found;
	void *context;
	struct ibv_async_event event;
	pthread_t thread;
	program = pthread_self();
	open_side(&s);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(s.ctx);
	CHECK(channel);
	CHECK(cq = ibv_create_cq(s.ctx, 16, &s, channel, 0));
	struct ibv_qp_init_attr init = init_attr(&s, IBV_QPT_RC);
	init.recv_cq = cq;
	CHECK(qp = ibv_create_qp(s.pd, &init));
	EQ(to_init(qp), 0);
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	EQ(ibv_modify_qp(qp, &error, IBV_QP_STATE), 0);
	EQ(ibv_req_notify_cq(cq, 0), 0);

	timer(0);
	for (int i = 0; i < 50; i++) {
		errno = 0;
		EQ(ibv_get_cq_event(channel, &found, &context), -1);
		EQ(errno, EINTR);
		EQ(ibv_get_async_event(s.ctx, &event), -1);
		EQ(errno, EINTR);
	}
	timer(SA_RESTART);
	EQ(pthread_create(&thread, NULL, later, channel), 0);
	EQ(ibv_get_cq_event(channel, &found, &context), 0);
	CHECK(found == cq && context == &s);
	ibv_ack_cq_events(cq, 1);
	struct itimerval never = { { 0, 0 }, { 0, 0 } };
	EQ(setitimer(ITIMER_REAL, &never, NULL), 0);
	EQ(pthread_join(thread, NULL), 0);
	CHECK(taken > 100);
	EQ(elsewhere, 0);

	EQ(ibv_destroy_qp(qp), 0);
	EQ(ibv_destroy_cq(cq), 0);
	EQ(ibv_destroy_comp_channel(channel), 0);
	close_side(&s);
	return 0;
}
