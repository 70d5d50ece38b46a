/* Threads of the program that are cancelled, pthread_cancel(3), while they are in the library: compiled by link.sh.
 *
 * A cancelled thread unwinds its stack, from the cancellation point that it is in, or comes to. Through frames of Rust that
 * is no way out: what they hold (the device lock, a waiter's seat) would stay held, or the process would abort. So no frame of
 * Rust ever lies between a cancellation point and the program:
 *
 * - What sleeps until something happens does it here, in `blocking`, which is a frame of C that the program called. The
 *   calls are done in steps; a step never sleeps. A thread that does not come back from its sleep gives up what others
 *   relied on it for.
 * - Every other cancellation point of the C library that the rest of this object calls, the standard library of Rust
 *   included, is called with cancellation disabled: the linker puts the functions at the end of this file in between
 *   (--wrap). That costs nothing where no system call is made.
 *
 * So the calls that wait are cancellation points, as those of rdma-core are, which wait in read(2); all others are none. Threads
 * whose cancellation is asynchronous may be cancelled in the calls that wait too; in any other POSIX does not allow it.
 */
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

/* As in sleep.rs. */
struct rem_sleep {
	struct pollfd *fds;
	unsigned long count;
	struct timespec limit;
	int is_limited;
	int signalled;
	int has_begun;
	struct pollfd one;
	void *pending;
};

/* What a step answers that is not the end of its call. */
#define ASLEEP 1

typedef int step(void *, void *, void *, void *, struct rem_sleep *);

extern step rem_cq_event_step, rem_async_event_step, rem_cm_event_step, rem_request_step, rem_connect_step,
	rem_accept_step, rem_disconnect_step, rem_resolve_step;

extern void rem_give_up(void *);

extern int __real_ppoll(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);

/* A call that may wait. */
static int blocking(step *step, void *a, void *b, void *c, void *d)
{
	struct rem_sleep sleep = { .fds = NULL };
	int type, before, ignored, ready, result;

	/* The C library may be about to cancel a thread whose type is asynchronous; it looks at the type again when it does,
	 * but not at the state. */
	pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
	/* Also when there is no need to sleep: a thread that always finds something can be cancelled. */
	pthread_testcancel();
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	pthread_cleanup_push(rem_give_up, &sleep);
	while ((result = step(a, b, c, d, &sleep)) == ASLEEP) {
		pthread_setcancelstate(before, &ignored);
		ready = __real_ppoll(sleep.fds, sleep.count, sleep.is_limited ? &sleep.limit : NULL, NULL);
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &ignored);
		sleep.signalled = ready < 0 && errno == EINTR;
	}
	pthread_cleanup_pop(0);
	pthread_setcancelstate(before, &ignored);
	pthread_setcanceltype(type, &ignored);
	return result;
}

int ibv_get_cq_event(void *channel, void *cq, void *cq_context)
{
	return blocking(rem_cq_event_step, channel, cq, cq_context, NULL);
}

int ibv_get_async_event(void *context, void *event)
{
	return blocking(rem_async_event_step, context, event, NULL, NULL);
}

int rem_rdma_get_cm_event(void *channel, void *event)
{
	return blocking(rem_cm_event_step, channel, event, NULL, NULL);
}

int rem_rdma_get_request(void *listen, void *id)
{
	return blocking(rem_request_step, listen, id, NULL, NULL);
}

/* These wait for identifiers that have no event channel. */

int rem_rdma_connect(void *id, void *conn_param)
{
	return blocking(rem_connect_step, id, conn_param, NULL, NULL);
}

int rem_rdma_accept(void *id, void *conn_param)
{
	return blocking(rem_accept_step, id, conn_param, NULL, NULL);
}

int rem_rdma_disconnect(void *id)
{
	return blocking(rem_disconnect_step, id, NULL, NULL, NULL);
}

int rem_rdma_resolve_addr(void *id, void *src_addr, void *dst_addr, int timeout_ms)
{
	return blocking(rem_resolve_step, id, src_addr, dst_addr, (void *)(intptr_t)timeout_ms);
}

#define UNCANCELLED(type, name, parameters, arguments)              \
	extern type __real_##name parameters;                       \
	type __wrap_##name parameters;                              \
	type __wrap_##name parameters                               \
	{                                                           \
		int before, ignored;                                \
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before); \
		type result = __real_##name arguments;              \
		pthread_setcancelstate(before, &ignored);           \
		return result;                                      \
	}

/* Those that are used, of the list in link.sh. */
UNCANCELLED(int, clock_nanosleep, (clockid_t a, int b, const struct timespec *c, struct timespec *d), (a, b, c, d))
UNCANCELLED(int, close, (int a), (a))
UNCANCELLED(int, closedir, (DIR *a), (a))
UNCANCELLED(int, connect, (int a, const struct sockaddr *b, socklen_t c), (a, b, c))
UNCANCELLED(int, epoll_wait, (int a, struct epoll_event *b, int c, int d), (a, b, c, d))
UNCANCELLED(int, fcntl, (int a, int b, uintptr_t c), (a, b, c))
UNCANCELLED(int, fdatasync, (int a), (a))
UNCANCELLED(int, getaddrinfo,
	    (const char *a, const char *b, const struct addrinfo *c, struct addrinfo **d), (a, b, c, d))
UNCANCELLED(int, getifaddrs, (struct ifaddrs **a), (a))
UNCANCELLED(ssize_t, getrandom, (void *a, size_t b, unsigned c), (a, b, c))
UNCANCELLED(int, msync, (void *a, size_t b, int c), (a, b, c))
UNCANCELLED(int, open64, (const char *a, int b, mode_t c), (a, b, c))
UNCANCELLED(DIR *, opendir, (const char *a), (a))
UNCANCELLED(int, pause, (void), ())
UNCANCELLED(int, poll, (struct pollfd *a, nfds_t b, int c), (a, b, c))
UNCANCELLED(int, ppoll, (struct pollfd *a, nfds_t b, const struct timespec *c, const sigset_t *d), (a, b, c, d))
UNCANCELLED(ssize_t, pread64, (int a, void *b, size_t c, int64_t d), (a, b, c, d))
UNCANCELLED(int, pthread_cond_wait, (pthread_cond_t *a, pthread_mutex_t *b), (a, b))
UNCANCELLED(int, pthread_join, (pthread_t a, void **b), (a, b))
UNCANCELLED(int, pthread_timedjoin_np, (pthread_t a, void **b, const struct timespec *c), (a, b, c))
UNCANCELLED(ssize_t, pwrite64, (int a, const void *b, size_t c, int64_t d), (a, b, c, d))
UNCANCELLED(ssize_t, read, (int a, void *b, size_t c), (a, b, c))
UNCANCELLED(struct dirent64 *, readdir64, (DIR *a), (a))
UNCANCELLED(char *, realpath, (const char *a, char *b), (a, b))
UNCANCELLED(ssize_t, recv, (int a, void *b, size_t c, int d), (a, b, c, d))
UNCANCELLED(ssize_t, recvfrom, (int a, void *b, size_t c, int d, struct sockaddr *e, socklen_t *f), (a, b, c, d, e, f))
UNCANCELLED(int, recvmmsg, (int a, struct mmsghdr *b, unsigned c, int d, struct timespec *e), (a, b, c, d, e))
UNCANCELLED(ssize_t, recvmsg, (int a, struct msghdr *b, int c), (a, b, c))
UNCANCELLED(ssize_t, send, (int a, const void *b, size_t c, int d), (a, b, c, d))
UNCANCELLED(ssize_t, sendmsg, (int a, const struct msghdr *b, int c), (a, b, c))
UNCANCELLED(ssize_t, sendto, (int a, const void *b, size_t c, int d, const struct sockaddr *e, socklen_t f),
	    (a, b, c, d, e, f))
UNCANCELLED(int, sync_file_range, (int a, int64_t b, int64_t c, unsigned d), (a, b, c, d))
UNCANCELLED(ssize_t, write, (int a, const void *b, size_t c), (a, b, c))
UNCANCELLED(ssize_t, writev, (int a, const struct iovec *b, int c), (a, b, c))
