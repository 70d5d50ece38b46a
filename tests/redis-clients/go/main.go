// Command redis-clients uses go-redis as an application does, against the address given: prints "fine" and exits with 0.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(holds bool, what string) {
	if !holds {
		panic(what)
	}
}

func try(protocol int) {
	ctx := context.Background()
	r := redis.NewClient(&redis.Options{Addr: os.Args[1], ClientName: "go-redis", Protocol: protocol, PoolSize: 20})
	defer r.Close()
	check(must(r.Ping(ctx).Result()) == "PONG", "PING")
	must(r.Set(ctx, "a", "1", time.Minute).Result())
	check(must(r.Get(ctx, "a").Result()) == "1", "GET")
	check(must(r.TTL(ctx, "a").Result()) > 0, "TTL")
	check(!must(r.SetNX(ctx, "a", "2", 0).Result()), "SET NX")
	_, err := r.Get(ctx, "none").Result()
	check(errors.Is(err, redis.Nil), "a key that is not there")
	must(r.Del(ctx, "h", "sum", "w").Result())
	check(must(r.HSet(ctx, "h", "f", "1", "g", "2").Result()) == 2, "HSET")
	check(len(must(r.HGetAll(ctx, "h").Result())) == 2, "HGETALL")
	_, err = r.Incr(ctx, "h").Result()
	check(redis.HasErrorPrefix(err, "WRONGTYPE"), "INCR of a hash")
	// Many at once, over a pool of connections.
	var wait sync.WaitGroup
	for i := 0; i < 50; i++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for j := 0; j < 20; j++ {
				must(r.Incr(ctx, "sum").Result())
			}
		}()
	}
	wait.Wait()
	check(must(r.Get(ctx, "sum").Int()) == 1000, "INCR")
	// A pipeline, a transaction, and one whose key was changed.
	replies := must(r.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := 0; i < 1000; i++ {
			p.Set(ctx, fmt.Sprintf("p%d", i), i, 0)
		}
		return nil
	}))
	check(len(replies) == 1000, "a pipeline")
	must(r.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Incr(ctx, "w")
		p.Expire(ctx, "w", time.Minute)
		return nil
	}))
	err = r.Watch(ctx, func(tx *redis.Tx) error {
		must(r.Incr(ctx, "w").Result())
		_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, "w", "lost", 0)
			return nil
		})
		return err
	}, "w")
	check(errors.Is(err, redis.TxFailedErr), "a key that is watched")
	check(must(r.Get(ctx, "w").Int()) == 2, "what a transaction did that must not")
	seen := map[string]bool{}
	for scan := r.Scan(ctx, 0, "p*", 100).Iterator(); scan.Next(ctx); {
		seen[scan.Val()] = true
	}
	check(len(seen) == 1000, "SCAN")
}

func main() {
	try(2)
	try(3)
	fmt.Println("fine")
}
