/* A static program that writes and syncs its file, by the name of its first argument; it knows nothing of a cache. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RECORD = 600 };

static void must(int holds, const char *what) {
    if (!holds) {
        dprintf(2, "%s: %s\n", what, strerror(errno));
        exit(3);
    }
}

/* Says a line. Where a supervisor is killed in the middle of that call, the call fails, and nothing was said yet. */
static void say(const char *line, int len) {
    while (write(1, line, len) < 0 && errno == EIO) {
    }
}

/* For each byte on its standard input, writes a record and says its number when it is durable; or, as E and a number, which error there was instead, and tries it again the next time. */
static int forever(int file, uint64_t run) {
    char byte;
    uint64_t n = 0, record[RECORD / 8];
    while (read(0, &byte, 1) == 1) {
        for (int at = 0; at < RECORD / 8; at++)
            record[at] = run << 32 | n;
        char line[32];
        ssize_t written = pwrite(file, record, RECORD, n * RECORD);
        if (written != RECORD || fdatasync(file) != 0)
            say(line, snprintf(line, sizeof line, "E%d\n", errno));
        else
            say(line, snprintf(line, sizeof line, "%llu\n", (unsigned long long)n++));
    }
    return 0;
}

static volatile sig_atomic_t rings;

static void ring(int signal) {
    (void)signal;
    rings++;
}

/* Appends numbered lines while a timer interrupts it all the time. */
static int append(const char *path, int count) {
    struct sigaction action = {.sa_handler = ring, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 100}, {0, 100}};
    int file = open(path, O_WRONLY | O_APPEND);
    must(file >= 0, "open");
    must(setitimer(ITIMER_REAL, &often, NULL) == 0, "setitimer");
    for (int n = 0; n < count; n++) {
        char line[32];
        int len = snprintf(line, sizeof line, "%09d\n", n);
        must(write(file, line, len) == len, "write");
        if (n % 16 == 0)
            must(fsync(file) == 0, "fsync");
    }
    dprintf(1, "%d\n", rings > 0);
    return 0;
}

static int thread_file;

static void *thread(void *number) {
    for (int n = 0; n < 50; n++)
        must(pwrite(thread_file, number, 8, n * 8) == 8, "pwrite");
    return NULL;
}

/* Makes calls of all kinds that change a file, one after the other and a known number of each. */
static int count(int file, const char *path) {
    char byte, *pages = mmap(NULL, 12288, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int n = 0; n < 3; n++) {
        must(pwrite(file, "first", 5, n) == 5, "pwrite");
        must(fsync(file) == 0, "fsync");
    }
    dprintf(1, "ready\n");
    must(read(0, &byte, 1) == 1, "a byte");
    struct iovec parts[3] = {{"one", 3}, {NULL, 0}, {"three", 5}};
    for (int n = 0; n < 10; n++) {
        must(write(file, "abc", 3) == 3, "write");
        must(pwrite(file, "defg", 4, 100 * n) == 4, "pwrite");
        must(writev(file, parts, 3) == 8, "writev");
        must(pwritev(file, parts, 3, 1000 + n) == 8, "pwritev");
        must(pwritev2(file, parts, 3, -1, 0) == 8, "pwritev2");
        must(ftruncate(file, 20000 + n) == 0, "ftruncate");
        must(fallocate(file, 0, 0, 30000 + n) == 0, "fallocate");
    }
    /* The second page is not there: as much is written as can be read, and then nothing. */
    must(munmap(pages + 4096, 4096) == 0, "munmap");
    must(pwrite(file, pages, 8192, 0) == 4096, "a write from memory that ends");
    /* 71 changes; and 100 of two threads; and 10 of a child. */
    pthread_t threads[2];
    uint64_t numbers[2] = {1, 2};
    thread_file = file;
    for (int n = 0; n < 2; n++)
        must(pthread_create(&threads[n], NULL, thread, &numbers[n]) == 0, "a thread");
    for (int n = 0; n < 2; n++)
        must(pthread_join(threads[n], NULL) == 0, "a thread");
    pid_t child = fork();
    if (child == 0) {
        int own = open(path, O_WRONLY | O_APPEND);
        for (int n = 0; n < 10; n++)
            must(write(own, "child", 5) == 5, "write");
        _exit(0);
    }
    int status = 1;
    must(waitpid(child, &status, 0) == child && status == 0, "a child");
    must(fdatasync(file) == 0, "fdatasync");
    dprintf(1, "done\n");
    must(read(0, &byte, 1) == 0, "the end");
    return 0;
}

/* Writes over what it has synced when nobody may look into it any more. */
static int hidden(int file) {
    for (int n = 0; n < 4; n++) {
        must(pwrite(file, "before", 6, 100 * n) == 6, "pwrite");
        must(fsync(file) == 0, "fsync");
    }
    dprintf(1, "ready\n");
    must(prctl(PR_SET_DUMPABLE, 0) == 0, "prctl");
    must(pwrite(file, "behind", 6, 300) == 6, "pwrite");
    must(fsync(file) == 0, "fsync");
    dprintf(1, "done\n");
    char byte;
    must(read(0, &byte, 1) == 0, "the end");
    return 0;
}

int main(int argc, char **argv) {
    must(argc > 3, "what to do, a file, and a number");
    int file = open(argv[2], O_RDWR);
    must(file >= 0, "open");
    if (strcmp(argv[1], "forever") == 0)
        return forever(file, strtoull(argv[3], NULL, 10));
    if (strcmp(argv[1], "append") == 0)
        return append(argv[2], atoi(argv[3]));
    if (strcmp(argv[1], "hidden") == 0)
        return hidden(file);
    return count(file, argv[2]);
}
