"""redis-py, as an application uses it, against the address given: prints "fine" and exits with 0."""

import sys
import threading
import time

import redis

host, port = sys.argv[1].rsplit(":", 1)


def client(**options):
    return redis.Redis(host=host, port=int(port), socket_timeout=60, **options)


r = client(decode_responses=True)
assert r.ping() is True
assert r.set("a", "1") is True and r.get("a") == "1" and r.get("missing") is None
assert r.set("a", "2", nx=True) is None and r.set("a", "3", xx=True, get=True) == "1"
assert r.set("t", "x", ex=100) and 0 < r.ttl("t") <= 100 and r.pttl("t") > 1000
assert r.expire("a", 50) and r.persist("a") and r.ttl("a") == -1 and r.ttl("missing") == -2
assert r.set("t", "x", keepttl=True) and r.ttl("t") > 0
assert r.setex("t", 10, "y") and r.psetex("t", 10000, "z") and r.getex("t", persist=True) == "z" and r.ttl("t") == -1
assert r.mset({"k1": "v1", "k2": "v2"}) and r.mget("k1", "nope", "k2") == ["v1", None, "v2"]
assert r.msetnx({"k1": "x", "k9": "x"}) is False
assert r.incr("n") == 1 and r.incrby("n", 10) == 11 and r.decr("n", 1) == 10 and r.incrbyfloat("f", 0.1) == 0.1
assert r.append("a", "xyz") == 4 and r.strlen("a") == 4 and r.getrange("a", 1, 2) == "xy"
assert r.exists("a", "k1", "nope") == 2 and r.delete("k1", "nope") == 1 and r.unlink("k2") == 1
assert r.rename("a", "b") and r.type("b") == "string" and r.type("none") == "none"
assert r.hset("h", "f", "1") == 1 and r.hset("h", mapping={"g": "2", "i": "3"}) == 2
assert r.hgetall("h") == {"f": "1", "g": "2", "i": "3"} and r.hmget("h", "f", "x") == ["1", None]
assert r.hincrby("h", "f", 5) == 6 and r.hincrbyfloat("h", "g", 0.5) == 2.5 and r.hlen("h") == 3
assert r.hkeys("h") == ["f", "g", "i"] and r.hvals("h") == ["6", "2.5", "3"] and r.hexists("h", "f")
assert r.hdel("h", "i", "x") == 1 and r.hsetnx("h", "f", "9") == 0 and r.hstrlen("h", "f") == 1
assert dict(r.hscan_iter("h")) == {"f": "6", "g": "2.5"}
for i in range(200):
    r.set(f"scan:{i}", i)
assert set(r.scan_iter("scan:*", count=7)) == {f"scan:{i}" for i in range(200)}
assert len(r.keys("scan:1?")) == 10 and r.dbsize() >= 200 and r.randomkey() is not None
assert set(r.scan_iter(_type="hash")) == {"h"}

# A pipeline as redis-py makes it by default: in MULTI and EXEC; and with a key that is watched.
with r.pipeline() as p:
    for i in range(100):
        p.set(f"m{i}", i)
        p.incr("total", i)
    replies = p.execute()
assert replies[-1] == 4950 and r.get("m99") == "99"
with r.pipeline() as p:
    p.watch("total")
    seen = int(p.get("total"))
    r.incr("total")
    p.multi()
    p.set("total", seen + 1000)
    try:
        p.execute()
        assert False, "the watched key has changed"
    except redis.WatchError:
        pass
assert r.transaction(lambda p: (p.multi(), p.incr("total")), "total") == [4952]

# A pipeline without MULTI.
with r.pipeline(transaction=False) as p:
    for i in range(1000):
        p.set(f"p{i}", i)
        p.get(f"p{i}")
    replies = p.execute()
assert replies == [x for i in range(1000) for x in (True, str(i))]

# Errors arrive as errors, and the connection lives on.
for bad, kind in [
    (lambda: r.incr("h"), "WRONGTYPE"),
    (lambda: r.execute_command("NOSUCH", "a"), "unknown command"),
    (lambda: r.rename("nope", "x"), "no such key"),
    (lambda: r.incr("b"), "not an integer"),
]:
    try:
        bad()
    except redis.ResponseError as error:
        assert kind in str(error), error
    else:
        raise AssertionError(kind)
assert r.ping()

# Bytes are bytes.
raw = client()
blob = bytes(range(256)) * 1000
assert raw.set(b"\x00\xff\r\n", blob) and raw.get(b"\x00\xff\r\n") == blob

# Databases, names, INFO, CONFIG, TIME.
other = client(db=3, decode_responses=True)
assert other.get("b") is None and other.set("only", "here") and other.dbsize() == 1 and other.flushdb()
assert r.client_setname("tester") and r.client_getname() == "tester" and r.client_id() > 0
assert any(c["name"] == "tester" for c in r.client_list())
info = r.info()
assert info["redis_version"].startswith("7.") and info["connected_clients"] >= 1 and info["db0"]["keys"] > 0
assert "maxclients" in r.config_get("max*") and abs(r.time()[0] - time.time()) < 600
assert r.command_count() > 50 and r.echo("hello") == "hello"

# Channels, by a thread of the library's own.
listening, heard = r.pubsub(), []
listening.subscribe(**{"news": lambda message: heard.append(message["data"])})
listening.psubscribe(**{"n*": lambda message: heard.append(message["pattern"])})
for kind in ("subscribe", "psubscribe"):
    assert listening.get_message(timeout=60)["type"] == kind
assert r.publish("news", "first") == 2 and r.pubsub_numsub("news") == [("news", 1)] and r.pubsub_channels() == ["news"]
while len(heard) < 2:
    listening.get_message(timeout=60)
assert sorted(heard) == ["first", "n*"], heard
listening.close()

# Many threads on one pool: a counter loses nothing.
def work():
    for _ in range(100):
        r.incr("shared")


threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
assert r.get("shared") == "800"
print("fine")
