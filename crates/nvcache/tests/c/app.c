/* Calls each function of nvcache.h, and says what is not as the header says. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nvcache.h"

#define CHECK(what)                                                                                 \
	do {                                                                                        \
		if (!(what)) {                                                                      \
			fprintf(stderr, "%s:%d: %s (%s, %s)\n", __FILE__, __LINE__, #what,          \
			        strerror(errno), nverror());                                        \
			exit(1);                                                                    \
		}                                                                                   \
	} while (0)

enum { THREADS = 4, TURNS = 64, LEN = 512, LONG = 8 << 20 };

static int shared;
static pthread_key_t last;

static void *append(void *unused)
{
	char bytes[LEN];

	(void)unused;
	memset(bytes, 'x', sizeof bytes);
	for (int n = 0; n < TURNS; n++)
		CHECK(nvwrite(shared, bytes, sizeof bytes) == LEN);
	return NULL;
}

/* More than the log has room for: it takes a while. */
static void *write_long(void *unused)
{
	char *bytes = calloc(1, LONG);

	(void)unused;
	CHECK(bytes && nvpwrite(shared, bytes, LONG, 0) == LONG);
	free(bytes);
	return NULL;
}

/* Waits until a call of another thread is under way. */
static void wait_for_begin(void)
{
	struct stat about;

	do {
		CHECK(nvfstat(shared, &about) == 0);
		sched_yield();
	} while (about.st_size == 0);
}

static int is_locked(const char *path)
{
	int file = open(path, O_RDONLY), locked;

	CHECK(file >= 0);
	locked = flock(file, LOCK_EX | LOCK_NB) != 0;
	close(file);
	return locked;
}

/* What a thread does last of all. */
static void at_end(void *unused)
{
	(void)unused;
	CHECK(nvclose(-1) == -1 && errno == EBADF && nverror());
}

static void *fail_to_the_last(void *unused)
{
	(void)unused;
	CHECK(nvclose(-1) == -1 && errno == EBADF && *nverror());
	CHECK(pthread_setspecific(last, &last) == 0);
	return NULL;
}

int main(int argc, char **argv)
{
	struct nv_options options = { .size = sizeof options, .log_size = 64 * 4160, .memory = 16 * 4096 };
	struct nv_options strange = { .size = 3 }, unknown = options, endless = options, vast = options;
	pthread_t threads[THREADS];
	char path[4096], symbolic[4096], bytes[64];
	struct stat about;
	int file, again, child, status;

	CHECK(argc == 3);
	CHECK(nvopen("x", O_RDONLY, 0) == -1 && errno == EBADF);
	CHECK(nvinit(NULL, NULL) == -1 && errno == EINVAL);
	CHECK(nvinit(argv[1], &strange) == -1 && errno == EINVAL && strstr(nverror(), "nv_options.size"));
	unknown.flags = 1u << 31;
	CHECK(nvinit(argv[1], &unknown) == -1 && errno == EINVAL && strstr(nverror(), "nv_options.flags"));
	endless.log_size = UINT64_MAX;
	CHECK(nvinit(argv[1], &endless) == -1 && errno == EINVAL && strstr(nverror(), "size"));
	vast.memory = UINT64_MAX;
	CHECK(nvinit(argv[1], &vast) == -1 && errno == EINVAL && strstr(nverror(), "memory"));
	CHECK(stat(argv[1], &about) == -1 && errno == ENOENT);
	options.flags = NV_STRICT | (strstr(argv[1], "pages") ? NV_PAGES : 0) | (strstr(argv[1], "direct") ? NV_DIRECT : 0);
	options.patience_ms = 100000;
	CHECK(nvinit(argv[1], &options) == 0);
	CHECK(nvinit(argv[1], &options) == -1 && errno == EINVAL);

	snprintf(path, sizeof path, "%s/file", argv[2]);
	CHECK(nvopen(path, O_RDWR, 0) == -1 && errno == ENOENT);
	file = nvopen(path, O_RDWR | O_CREAT | O_EXCL, 0644);
	CHECK(file >= 0);
	CHECK(nvopen(path, O_RDWR | O_CREAT | O_EXCL, 0644) == -1 && errno == EEXIST);
	/* Who takes it for a descriptor of the system is told. */
	CHECK(write(file, "past", 4) == -1 && errno == EBADF);
	CHECK(read(file, bytes, 4) == -1 && errno == EBADF);

	CHECK(nvwrite(file, "hello", 5) == 5);
	CHECK(nvpwrite(file, "world", 5, 4096) == 5);
	CHECK(nvlseek(file, 0, SEEK_CUR) == 5);
	CHECK(nvlseek(file, -5, SEEK_END) == 4096);
	CHECK(nvread(file, bytes, sizeof bytes) == 5 && memcmp(bytes, "world", 5) == 0);
	CHECK(nvread(file, bytes, sizeof bytes) == 0);
	CHECK(nvpread(file, bytes, 10, 0) == 10 && memcmp(bytes, "hello\0\0\0\0\0", 10) == 0);
	CHECK(nvpread(file, bytes, 1, -1) == -1 && errno == EINVAL);
	CHECK(nvpread(file, NULL, 1, 0) == -1 && errno == EINVAL);
	CHECK(nvlseek(file, 9, SEEK_HOLE) == 4101 && nvlseek(file, 9, SEEK_DATA) == 9);
	CHECK(nvlseek(file, 5000, SEEK_DATA) == -1 && errno == ENXIO);
	CHECK(nvlseek(file, 0, 99) == -1 && errno == EINVAL);
	CHECK(nvfstat(file, &about) == 0 && about.st_size == 4101 && S_ISREG(about.st_mode));
	CHECK(stat(path, &about) == 0 && about.st_size == 0);
	CHECK(nvstat(path, &about) == 0 && about.st_size == 4101);
	CHECK(nvfsync(file) == 0);
	CHECK(nvftruncate(file, 6000) == 0 && nvftruncate(file, 4101) == 0);
	CHECK(nvftruncate(file, -1) == -1 && errno == EINVAL);

	again = nvdup(file);
	CHECK(again >= 0 && again != file);
	CHECK(nvlseek(file, 3, SEEK_SET) == 3 && nvlseek(again, 0, SEEK_CUR) == 3);
	CHECK(nvclose(file) == 0);
	CHECK(nvread(file, bytes, 1) == -1 && errno == EBADF);
	CHECK(nvread(again, bytes, 2) == 2 && memcmp(bytes, "lo", 2) == 0);
	CHECK(nvflush(again) == 0 && stat(path, &about) == 0 && about.st_size == 4101);

	/* A child has no part of it. */
	child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(nvpwrite(again, "child", 5, 0) == -1 && errno == ECHILD && nvread(again, bytes, 1) == -1 ? 0 : 1);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(nvpread(again, bytes, 5, 0) == 5 && memcmp(bytes, "hello", 5) == 0);

	file = nvopen(path, O_WRONLY | O_APPEND | O_DSYNC, 0);
	CHECK(nvpwrite(file, ", appended", 10, 0) == 10);
	CHECK(nvread(file, bytes, 1) == -1 && errno == EBADF);
	CHECK(nvclose(file) == 0 && nvclose(again) == 0);
	CHECK(nvclose(file) == -1 && errno == EBADF);
	CHECK(nvopen(argv[2], O_RDONLY, 0) == -1 && errno == EINVAL);
	CHECK(nvopen(path, O_RDWR | O_DIRECT, 0) == -1 && errno == EINVAL);
	CHECK(nvopen(path, O_ACCMODE, 0) == -1 && errno == EINVAL);
	CHECK(nvopen(path, O_RDONLY | O_TRUNC, 0) == -1 && errno == EINVAL);
	snprintf(symbolic, sizeof symbolic, "%s/link", argv[2]);
	CHECK(symlink("file", symbolic) == 0);
	CHECK(nvopen(symbolic, O_RDONLY | O_NOFOLLOW, 0) == -1 && errno == ELOOP);
	CHECK(nvopen(symbolic, O_RDWR | O_CREAT | O_EXCL, 0600) == -1 && errno == EEXIST);
	file = nvopen(symbolic, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
	CHECK(file >= 0 && nvclose(file) == 0);

	/* Who closes a number by close(2) has given it back: nothing else that has it is closed here. */
	file = nvopen(path, O_RDWR | O_NOFOLLOW, 0);
	CHECK(file >= 0 && close(file) == 0);
	CHECK(dup2(0, file) == file);
	CHECK(nvpread(file, bytes, 5, 0) == 5 && memcmp(bytes, "hello", 5) == 0);
	CHECK(nvclose(file) == 0 && fcntl(file, F_GETFD) >= 0 && !is_locked(path));
	CHECK(close(file) == 0);
	file = nvopen(path, O_RDWR, 0);
	CHECK(file >= 0 && close(file) == 0);
	again = nvopen(path, O_RDONLY, 0);
	CHECK(again == file && (fcntl(again, F_GETFL) & O_PATH));
	CHECK(nvpwrite(again, "x", 1, 0) == -1 && errno == EBADF);
	CHECK(nvclose(again) == 0 && fcntl(again, F_GETFD) == -1 && !is_locked(path));

	snprintf(path, sizeof path, "%s/gone", argv[2]);
	file = nvopen(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(file >= 0 && nvwrite(file, "gone", 4) == 4);
	CHECK(nvunlink(path) == 0 && stat(path, &about) == -1 && errno == ENOENT);
	CHECK(nvpread(file, bytes, 4, 0) == 4 && memcmp(bytes, "gone", 4) == 0);
	CHECK(nvclose(file) == 0);

	snprintf(path, sizeof path, "%s/threads", argv[2]);
	shared = nvopen(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
	CHECK(shared >= 0);
	for (int n = 0; n < THREADS; n++)
		CHECK(pthread_create(&threads[n], NULL, append, NULL) == 0);
	for (int n = 0; n < THREADS; n++)
		CHECK(pthread_join(threads[n], NULL) == 0);
	CHECK(nvflush(-1) == 0);

	/* A call of another thread that is under way is waited for: by who closes the file, and by who ends all. */
	for (int n = 0; n < 2; n++) {
		snprintf(path, sizeof path, "%s/long", argv[2]);
		shared = nvopen(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		CHECK(shared >= 0 && pthread_create(&threads[0], NULL, write_long, NULL) == 0);
		wait_for_begin();
		CHECK(is_locked(path));
		/* What is open is closed. */
		CHECK((n == 0 ? nvclose(shared) : nvshutdown()) == 0);
		CHECK(stat(path, &about) == 0 && about.st_size == LONG && !is_locked(path));
		CHECK(pthread_join(threads[0], NULL) == 0);
	}
	CHECK(nvshutdown() == -1 && errno == EBADF);
	CHECK(pthread_key_create(&last, at_end) == 0);
	CHECK(pthread_create(&threads[0], NULL, fail_to_the_last, NULL) == 0);
	CHECK(pthread_join(threads[0], NULL) == 0);

	/* A child of a process that has none any more may have one. */
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(nvinit(argv[1], &options) == 0);
		file = nvopen(path, O_RDWR, 0);
		CHECK(file >= 0 && nvpwrite(file, "child", 5, 0) == 5 && nvshutdown() == 0);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return 0;
}
