// ioredis and node-redis, as applications use them, against the address given: prints "fine" and exits with 0.
"use strict";
const assert = require("node:assert");
const Redis = require("ioredis");
const { createClient } = require("redis");

const [host, port] = process.argv[2].split(/:(?=\d+$)/);

async function ioredis() {
  const r = new Redis({ host, port: Number(port), connectionName: "ioredis", maxRetriesPerRequest: 1 });
  assert.equal(await r.set("a", "1"), "OK");
  assert.equal(await r.get("a"), "1");
  assert.equal(await r.set("t", "x", "EX", 100, "NX"), "OK");
  assert.ok((await r.ttl("t")) > 0);
  assert.equal(await r.incrby("n", 5), 5);
  assert.equal(await r.hset("h", { f: "1", g: "2" }), 2);
  assert.deepEqual(await r.hgetall("h"), { f: "1", g: "2" });
  assert.deepEqual(await r.mget("a", "none"), ["1", null]);
  // A transaction, and a pipeline of many.
  assert.deepEqual(await r.multi().set("m", "1").incr("m").get("m").exec(), [[null, "OK"], [null, 2], [null, "2"]]);
  const many = r.pipeline();
  for (let i = 0; i < 1000; i++) many.set(`p${i}`, i);
  assert.equal((await many.exec()).length, 1000);
  // A key that is watched, and changed by another connection.
  const other = r.duplicate();
  await r.watch("m");
  await other.set("m", "9");
  assert.equal(await r.multi().incr("m").exec(), null);
  // What the database sees of a cursor, and bytes that are no text.
  const seen = new Set();
  for await (const keys of r.scanStream({ match: "p*", count: 100 })) keys.forEach((key) => seen.add(key));
  assert.equal(seen.size, 1000);
  const bytes = Buffer.from([0, 255, 13, 10, 128]);
  await r.set("bytes", bytes);
  assert.deepEqual(await r.getBuffer("bytes"), bytes);
  await assert.rejects(r.incr("h"), /WRONGTYPE/);
  assert.equal(await r.del("a", "t"), 2);
  await other.quit();
  await r.quit();
}

async function nodeRedis(RESP) {
  const r = createClient({ socket: { host, port: Number(port) }, name: "node-redis", RESP });
  r.on("error", (error) => { throw error; });
  await r.connect();
  assert.equal(await r.set("b", "1", { EX: 100 }), "OK");
  assert.equal(await r.get("b"), "1");
  await r.del("hn");
  assert.equal(await r.hSet("hn", { f: "1", g: "2" }), 2);
  assert.deepEqual({ ...(await r.hGetAll("hn")) }, { f: "1", g: "2" });
  assert.deepEqual(await r.multi().set("mn", "1").incr("mn").exec(), ["OK", 2]);
  // Commands of one turn leave together.
  const replies = await Promise.all(Array.from({ length: 1000 }, (_, i) => r.incrBy("sum", i)));
  assert.equal(replies.length, 1000);
  const keys = [];
  for await (const page of r.scanIterator({ MATCH: "p1*", COUNT: 50 })) keys.push(...[page].flat());
  assert.equal(new Set(keys).size, 111);
  await r.close();
}

(async () => {
  await ioredis();
  await nodeRedis(2);
  await nodeRedis(3);
  console.log("fine");
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
