/* A thread that waits for events of a channel, and one that asks for them when it is destroyed, as rping's: both sleep for ever,
 * as they would in the kernel, and the program ends as it likes. */
#include "faults.h"
#include <pthread.h>

static struct rdma_event_channel *channel;
static volatile int begun, returned;

static void *wait_for_event(void *unused)
{
	struct rdma_cm_event *event;
	__sync_fetch_and_add(&begun, 1);
	rdma_get_cm_event(channel, &event);
	__sync_fetch_and_add(&returned, 1);
	return unused;
}

static void start(int number)
{
	pthread_t thread;
	SAME(pthread_create(&thread, NULL, wait_for_event, NULL), 0);
	while (begun < number)
		sched_yield();
}

int main(void)
{
	for (int round = 0; round < 4; round++) {
		CHECK(channel = rdma_create_event_channel());
		start(2 * round + 1);
		rdma_destroy_event_channel(channel);
		/* What was freed is used again. */
		for (int i = 0; i < 100; i++)
			free(memset(malloc(16 + (size_t)i), 0xee, 16));
		start(2 * round + 2);
	}
	usleep(20000);
	SAME(returned, 0);
	say("verified");
	return 0;
}
