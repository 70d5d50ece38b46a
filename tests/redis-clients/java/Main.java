import io.lettuce.core.*;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.async.RedisAsyncCommands;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.protocol.ProtocolVersion;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.Pipeline;

/** Lettuce and Jedis, as applications use them, against the address given: prints "fine" and exits with 0. */
public class Main {
  static void check(boolean holds, String what) {
    if (!holds) throw new AssertionError(what);
  }

  static void lettuce(String host, int port, ProtocolVersion protocol) throws Exception {
    RedisClient client = RedisClient.create(RedisURI.builder().withHost(host).withPort(port).withClientName("lettuce").build());
    client.setOptions(ClientOptions.builder().protocolVersion(protocol).build());
    try (StatefulRedisConnection<String, String> connection = client.connect();
        StatefulRedisConnection<String, String> other = client.connect()) {
      RedisCommands<String, String> r = connection.sync();
      r.del("a", "h", "m", "n");
      check("OK".equals(r.set("a", "1", SetArgs.Builder.ex(100).nx())), "SET");
      check("1".equals(r.get("a")) && r.ttl("a") > 0, "GET");
      check(r.hset("h", Map.of("f", "1", "g", "2")) == 2 && r.hgetall("h").size() == 2, "HSET");
      r.multi();
      r.set("m", "1");
      r.incr("m");
      check(r.exec().size() == 2 && "2".equals(r.get("m")), "EXEC");
      r.watch("m");
      other.sync().set("m", "9");
      r.multi();
      r.incr("m");
      check(r.exec().wasDiscarded(), "a key that is watched");
      RedisAsyncCommands<String, String> many = connection.async();
      List<RedisFuture<Long>> futures = new ArrayList<>();
      for (int i = 0; i < 1000; i++) futures.add(many.incr("n"));
      for (RedisFuture<Long> future : futures) future.get();
      check("1000".equals(r.get("n")), "INCR");
      try {
        r.incr("h");
        check(false, "INCR of a hash");
      } catch (RedisCommandExecutionException e) {
        check(e.getMessage().startsWith("WRONGTYPE"), e.getMessage());
      }
      check(!ScanIterator.scan(r, ScanArgs.Builder.matches("n*").limit(10)).stream().toList().isEmpty(), "SCAN");
    } finally {
      client.shutdown();
    }
  }

  static void jedis(String host, int port) {
    try (JedisPooled r = new JedisPooled(host, port)) {
      r.del("j", "jh");
      check("OK".equals(r.set("j", "1")) && r.incr("j") == 2, "jedis INCR");
      check(r.hset("jh", Map.of("f", "1")) == 1, "jedis HSET");
      try (Pipeline p = r.pipelined()) {
        for (int i = 0; i < 1000; i++) p.set("jp" + i, "x");
        p.sync();
      }
      try (var t = r.multi()) {
        t.incr("j");
        t.expire("j", 100);
        check(t.exec().size() == 2, "jedis EXEC");
      }
      check("3".equals(r.get("j")) && r.ttl("j") > 0, "jedis GET");
    }
  }

  public static void main(String[] arguments) throws Exception {
    int colon = arguments[0].lastIndexOf(':');
    String host = arguments[0].substring(0, colon);
    int port = Integer.parseInt(arguments[0].substring(colon + 1));
    lettuce(host, port, ProtocolVersion.RESP2);
    lettuce(host, port, ProtocolVersion.RESP3);
    jedis(host, port);
    System.out.println("fine");
  }
}
