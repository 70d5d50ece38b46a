/* Threads that are cancelled while they wait for the connection manager, with and without event channels, and in its other
 * calls. What they waited for is there for others. */
#include "cm.h"

#include <semaphore.h>

static sem_t begins;
static volatile int came_back;

static void *gets_events(void *channel)
{
	struct rdma_cm_event *event;

	OK(sem_post(&begins));
	OK(rdma_get_cm_event(channel, &event));
	FAIL("there is none");
}

static void *gets_requests(void *listen)
{
	struct rdma_cm_id *id;

	OK(sem_post(&begins));
	OK(rdma_get_request(listen, &id));
	FAIL("there is none");
}

static void ends(pthread_t thread)
{
	void *result;

	OK(pthread_join(thread, &result));
	CHECK(result == PTHREAD_CANCELED);
}

static void cancelled(void *(*waits)(void *), void *of)
{
	pthread_t thread;

	for (int i = 0; i < 20; i++) {
		OK(pthread_create(&thread, NULL, waits, of));
		OK(sem_wait(&begins));
		if (i % 2)
			usleep(500);
		OK(pthread_cancel(thread));
		ends(thread);
	}
}

static int port;
static struct rdma_event_channel *passive, *active;
static struct rdma_cm_id *from;

/* In a thread that is to be cancelled: none of these waits for an event. */
static void *creates(void *none)
{
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *found;
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	int other;

	OK(pthread_cancel(pthread_self()));
	OK(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &found));
	rdma_freeaddrinfo(found);
	CHECK(channel = rdma_create_event_channel());
	id = listener(channel, RDMA_PS_TCP, &other);
	OK(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	OK(rdma_create_qp(from, NULL, &attr));
	came_back = 1;
	pthread_testcancel();
	return none;
}

static void *serves(void *listen)
{
	struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
	struct rdma_cm_id *request;

	OK(rdma_get_request(listen, &request));
	OK(rdma_accept(request, &param));
	OK(rdma_disconnect(request));
	rdma_destroy_ep(request);
	return NULL;
}

int main(void)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP}, *found;
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
	struct rdma_cm_id *listening, *sync, *request;
	struct rdma_cm_event *event;
	pthread_t thread;

	OK(sem_init(&begins, 0, 0));
	CHECK(passive = rdma_create_event_channel());
	CHECK(active = rdma_create_event_channel());
	listening = listener(passive, RDMA_PS_TCP, &port);
	cancelled(gets_events, passive);

	/* Without a channel. */
	OK(rdma_getaddrinfo("127.0.0.1", "0", &hints, &found));
	OK(rdma_create_ep(&sync, found, NULL, &attr));
	rdma_freeaddrinfo(found);
	OK(rdma_listen(sync, 4));
	cancelled(gets_requests, sync);

	/* Both listeners serve those who come now. */
	from = routed(active, RDMA_PS_TCP, port);
	OK(pthread_create(&thread, NULL, creates, NULL));
	ends(thread);
	CHECK(came_back);
	OK(rdma_connect(from, &param));
	event = next(passive, RDMA_CM_EVENT_CONNECT_REQUEST);
	request = event->id;
	OK(rdma_ack_cm_event(event));
	attr = qp_attr(IBV_QPT_RC);
	OK(rdma_create_qp(request, NULL, &attr));
	OK(rdma_accept(request, &param));
	expect(active, from, RDMA_CM_EVENT_ESTABLISHED, 0);
	expect(passive, request, RDMA_CM_EVENT_ESTABLISHED, 0);
	OK(rdma_disconnect(from));
	expect(active, from, RDMA_CM_EVENT_DISCONNECTED, 0);
	expect(passive, request, RDMA_CM_EVENT_DISCONNECTED, 0);
	rdma_destroy_qp(from);
	rdma_destroy_qp(request);
	OK(rdma_destroy_id(from));
	OK(rdma_destroy_id(request));

	from = routed(active, RDMA_PS_TCP, ntohs(rdma_get_src_port(sync)));
	attr = qp_attr(IBV_QPT_RC);
	OK(rdma_create_qp(from, NULL, &attr));
	OK(rdma_connect(from, &param));
	OK(pthread_create(&thread, NULL, serves, sync));
	expect(active, from, RDMA_CM_EVENT_ESTABLISHED, 0);
	OK(rdma_disconnect(from));
	expect(active, from, RDMA_CM_EVENT_DISCONNECTED, 0);
	OK(pthread_join(thread, NULL));
	rdma_destroy_ep(sync);
	rdma_destroy_qp(from);
	OK(rdma_destroy_id(from));
	OK(rdma_destroy_id(listening));

	/* A thread on a channel that is gone sleeps as in the kernel; it can be cancelled there. */
	OK(pthread_create(&thread, NULL, gets_events, passive));
	OK(sem_wait(&begins));
	rdma_destroy_event_channel(passive);
	OK(pthread_cancel(thread));
	ends(thread);
	rdma_destroy_event_channel(active);
	return 0;
}
