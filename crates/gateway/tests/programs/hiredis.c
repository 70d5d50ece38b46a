/* hiredis, as an application uses it, against the host and port given: prints "fine" and exits with 0. */
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "not so: %s\n", what);
        exit(1);
    }
}

static redisReply *run(redisContext *c, int type, const char *line) {
    redisReply *reply = redisCommand(c, line);
    check(reply != NULL && reply->type == type, line);
    return reply;
}

int main(int argc, char **argv) {
    struct timeval patience = {60, 0};
    check(argc == 3, "host and port are given");
    redisContext *c = redisConnectWithTimeout(argv[1], atoi(argv[2]), patience);
    check(c != NULL && !c->err, "connected");
    redisSetTimeout(c, patience);

    freeReplyObject(run(c, REDIS_REPLY_STATUS, "SET a 1"));
    redisReply *reply = run(c, REDIS_REPLY_INTEGER, "INCRBY a 41");
    check(reply->integer == 42, "42");
    freeReplyObject(reply);
    freeReplyObject(run(c, REDIS_REPLY_NIL, "GET missing"));
    freeReplyObject(run(c, REDIS_REPLY_ERROR, "HGET a f"));

    /* Bytes with a NUL in them. */
    reply = redisCommand(c, "SET %b %b", "k\0ey", (size_t)4, "v\0alue", (size_t)6);
    check(reply && reply->type == REDIS_REPLY_STATUS, "set bytes");
    freeReplyObject(reply);
    reply = redisCommand(c, "GET %b", "k\0ey", (size_t)4);
    check(reply && reply->len == 6 && !memcmp(reply->str, "v\0alue", 6), "get bytes");
    freeReplyObject(reply);

    freeReplyObject(run(c, REDIS_REPLY_INTEGER, "HSET h f 1 g 2"));
    reply = run(c, REDIS_REPLY_ARRAY, "HGETALL h");
    check(reply->elements == 4 && !strcmp(reply->element[3]->str, "2"), "all of the hash");
    freeReplyObject(reply);

    /* A pipeline: everything is sent before anything is read. */
    for (int i = 0; i < 10000; i++) redisAppendCommand(c, "SET p:%d %d", i, i);
    for (int i = 0; i < 10000; i++) redisAppendCommand(c, "GET p:%d", i);
    for (int i = 0; i < 20000; i++) {
        check(redisGetReply(c, (void **)&reply) == REDIS_OK, "a reply of the pipeline");
        if (i >= 10000) check(atoi(reply->str) == i - 10000, "in order");
        freeReplyObject(reply);
    }
    redisFree(c);
    puts("fine");
    return 0;
}
