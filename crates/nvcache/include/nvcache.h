/*
 * NVCache as a library: files whose reads and writes stay in the program, over a log in persistent memory.
 *
 *   cc app.c -I crates/nvcache/include -L target/release -lremanence_nvcache
 *
 * Each function that fails gives -1, sets errno, and leaves a sentence that nverror() gives. A process has one cache. Threads may
 * share it and its descriptors. A forked child may not use its parent's (ECHILD); it may call exec.
 */
#ifndef NVCACHE_H
#define NVCACHE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Each write waits until it is durable, also where the log is on a disk. */
#define NV_STRICT 1u
/*
 * NVPages: the file that nvinit names has pages in place of a log, with a small redo log. It may be where a log's may be, and each
 * function does and promises the same. log_size is that of this file, and memory says nothing, as pages are nowhere else.
 */
#define NV_PAGES 2u
/* With NV_PAGES: pages are read from their files and written to them by O_DIRECT. Files whose system has none are refused. */
#define NV_DIRECT 4u

/* Fields that are 0 stand for what is usual. */
struct nv_options {
	size_t size;              /* sizeof(struct nv_options) */
	uint64_t log_size;        /* bytes of a log that is made: 128 MiB; one that is there has to have this size */
	uint64_t memory;          /* bytes of file content that are kept in memory: 64 MiB */
	unsigned int flags;       /* NV_STRICT, NV_PAGES, NV_DIRECT */
	unsigned int patience_ms; /* how long a call waits while the disk takes nothing at all: a minute */
};

/*
 * Opens the log, or makes it. What a crash has left in it is recovered first; where somebody has to decide something for that it
 * fails with EUCLEAN, and nverror() says which option of `rem cache recover` decides. EBUSY: somebody else has it.
 */
int nvinit(const char *log, const struct nv_options *options);

/*
 * Waits for the calls of other threads that are under way, closes all descriptors, brings all into the files, closes the log. If a disk
 * does not take it, the log keeps it.
 */
int nvshutdown(void);

/*
 * As open(2): O_RDONLY, O_WRONLY, O_RDWR, O_APPEND, O_CREAT, O_EXCL, O_TRUNC, O_SYNC, O_DSYNC, O_NOFOLLOW; O_CLOEXEC, O_NOCTTY,
 * O_NONBLOCK and O_LARGEFILE change nothing, and others are refused (EINVAL). Regular files only. mode is always to be given, and
 * counts with O_CREAT. The file is locked (flock) until its last descriptor is closed: EBUSY where another
 * program, or somebody's lock, has it. The number is no other descriptor's of the process, and read(2) and write(2) refuse it.
 */
int nvopen(const char *path, int flags, mode_t mode);

/*
 * With its last descriptor a file has all that was written to it, durably, and others may open it: calls of other threads on it that are
 * under way are waited for. close(2) in its place closes nothing here but the number, which nvclose still takes.
 */
int nvclose(int nvd);

/* Another descriptor with the same position. */
int nvdup(int nvd);

/*
 * As read(2), write(2), pread(2), pwrite(2), lseek(2), ftruncate(2). A write that has returned survives the death of this process at
 * any moment. It survives the loss of power when it has returned, where the log is on persistent memory, or with NV_STRICT,
 * O_SYNC or O_DSYNC on a disk; when nvfsync has returned, where the log is in a file on a disk; and when nvflush has, where it is in
 * /dev/shm. ETIMEDOUT: the log is full, and the disk has taken nothing for as long as is waited. ENOSPC, EIO and so on: the
 * disk does not take what was written before, of which nothing is lost; it is tried again, and until it is done the file takes no writes.
 */
ssize_t nvread(int nvd, void *into, size_t len);
ssize_t nvwrite(int nvd, const void *from, size_t len);
ssize_t nvpread(int nvd, void *into, size_t len, int64_t offset);
ssize_t nvpwrite(int nvd, const void *from, size_t len, int64_t offset);
int64_t nvlseek(int nvd, int64_t offset, int whence);
int nvftruncate(int nvd, int64_t len);

/* Waits until all that was written to the file is durable in the log, as far as the log's medium is durable. */
int nvfsync(int nvd);

/* Waits until all that was written to the file, or to all files if nvd is -1, is in the file itself, durably. */
int nvflush(int nvd);

/* As stat(2) and fstat(2), with the length and the time of what was written. */
int nvstat(const char *path, struct stat *about);
int nvfstat(int nvd, struct stat *about);

/* As unlink(2), and nothing is kept for the file after a crash if it is open here. */
int nvunlink(const char *path);

/* Why the last call of this thread that failed has; valid until the next one fails. */
const char *nverror(void);

#ifdef __cplusplus
}
#endif

#endif
