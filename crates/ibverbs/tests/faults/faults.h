/* What the programs of the fault tests share. They say what happens in lines; a test reads them. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                        \
	do {                                                                                               \
		if (!(what)) {                                                                             \
			fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
			exit(1);                                                                           \
		}                                                                                          \
	} while (0)

/* Equal numbers, or a line with both. */
#define SAME(a, b)                                                                                          \
	do {                                                                                                \
		long a_ = (long)(a), b_ = (long)(b);                                                        \
		if (a_ != b_) {                                                                        \
			fprintf(stderr, "%s:%d: %s is %ld, not %ld (errno %d)\n", __FILE__, __LINE__, #a, a_, b_, errno);     \
			exit(1);                                                                            \
		}                                                                                           \
	} while (0)

static void say(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

static int entries(const char *dir)
{
	DIR *at = opendir(dir);
	int n = 0;
	CHECK(at);
	while (readdir(at))
		n++;
	closedir(at);
	return n;
}

static int descriptors(void) { return entries("/proc/self/fd"); }
static int threads(void) { return entries("/proc/self/task"); }

/* What there is, when there is nothing that is about to go: the library's housekeeping opens a descriptor for a moment, an
 * object that another thread had in its hands goes with that thread's turn, and a thread that was joined is a task for a while
 * yet. Of several looks that are apart the least one counts. */
static int least(int (*count)(void))
{
	int n = count();
	for (int i = 0; i < 20; i++) {
		usleep(2000);
		int again = count();
		n = again < n ? again : n;
	}
	return n;
}

/* Waits until there is no more of it than before; what is left after half a minute stays for ever. */
static int settled(int (*count)(void), int before)
{
	int now = count();
	for (int i = 0; now > before && i < 15000; i++) {
		usleep(2000);
		now = count();
	}
	return now > before ? now : before;
}

static void *pages(size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	return at;
}

/* Waits for one completion, as one of many that share few cores. */
static struct ibv_wc wait_wc(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		sched_yield();
	SAME(n, 1);
	return wc;
}

enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
