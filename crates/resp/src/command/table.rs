//! The commands, and what COMMAND INFO says of them: the facts are those of a Redis 7.0 server, which a test compares.

use crate::protocol::Writer;

/// Where a command's keys are, for COMMAND INFO.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeySpec {
    notes: &'static str,
    first: i64,
    last: i64,
    step: i64,
    /// Words, as are all texts below that are not sentences.
    flags: &'static str,
}

/// What is known of a command.
#[derive(Debug)]
pub struct Command {
    /// The command that the row describes.
    pub id: Id,
    /// In lower case.
    pub name: &'static str,
    /// Words of a request, the name included; negative if there may be more.
    pub arity: i64,
    pub(crate) flags: &'static str,
    /// First key, last key (negative from the end), step.
    pub(crate) keys: [i64; 3],
    categories: &'static str,
    tips: &'static str,
    specs: &'static [KeySpec],
    pub(crate) since: &'static str,
    pub(crate) group: &'static str,
    pub(crate) summary: &'static str,
}

impl Command {
    /// Finds a command by its name, in any case.
    #[must_use]
    pub fn find(name: &[u8]) -> Option<&'static Self> {
        let mut lower = [0; 16];
        let lower = lower.get_mut(..name.len())?;
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        let index = COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(lower)).ok()?;
        Some(&COMMANDS[index])
    }

    /// Whether it may change a key.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.flags.split(' ').any(|flag| flag == "write")
    }

    /// Whether it takes so many words, its name included.
    #[must_use]
    pub const fn takes(&self, words: usize) -> bool {
        let words = words as i64;
        if self.arity < 0 { words >= -self.arity } else { words == self.arity }
    }

    /// Whether a connection may give it before it has authenticated.
    #[must_use]
    pub fn open_to_strangers(&self) -> bool {
        matches!(self.id, Id::Auth | Id::Hello | Id::Quit | Id::Reset)
    }

    /// Its entry in COMMAND and COMMAND INFO.
    pub(crate) fn describe(&self, reply: &mut Writer<'_>) {
        reply.array(10);
        reply.bulk(self.name.as_bytes());
        reply.integer(self.arity);
        simple_set(reply, self.flags);
        for position in self.keys {
            reply.integer(position);
        }
        simple_set(reply, self.categories);
        let tips = || self.tips.split_ascii_whitespace();
        reply.set(tips().count());
        for tip in tips() {
            reply.bulk(tip.as_bytes());
        }
        reply.set(self.specs.len());
        for spec in self.specs {
            spec.describe(reply);
        }
        // Subcommands are not told apart here.
        reply.set(0);
    }
}

fn simple_set(reply: &mut Writer<'_>, words: &str) {
    reply.set(words.split_ascii_whitespace().count());
    for word in words.split_ascii_whitespace() {
        reply.simple(word);
    }
}

impl KeySpec {
    fn describe(&self, reply: &mut Writer<'_>) {
        reply.map(if self.notes.is_empty() { 3 } else { 4 });
        if !self.notes.is_empty() {
            reply.bulk(b"notes");
            reply.bulk(self.notes.as_bytes());
        }
        reply.bulk(b"flags");
        simple_set(reply, self.flags);
        reply.bulk(b"begin_search");
        reply.map(2);
        reply.bulk(b"type");
        reply.bulk(b"index");
        reply.bulk(b"spec");
        reply.map(1);
        reply.bulk(b"index");
        reply.integer(self.first);
        reply.bulk(b"find_keys");
        reply.map(2);
        reply.bulk(b"type");
        reply.bulk(b"range");
        reply.bulk(b"spec");
        reply.map(3);
        for (name, value) in [("lastkey", self.last), ("keystep", self.step), ("limit", 0)] {
            reply.bulk(name.as_bytes());
            reply.integer(value);
        }
    }
}

macro_rules! commands {
    ($($id:ident($name:literal, $arity:literal, $flags:literal, $keys:expr, $categories:literal, $tips:literal,
        [$(($notes:literal, $first:literal, $last:literal, $step:literal, $spec:literal)),*],
        $since:literal, $group:literal, $summary:literal);)*) => {
        /// Which command; the number is its place in [`COMMANDS`].
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Id {
            $(#[doc = $summary] $id,)*
        }

        /// Every command, by name.
        pub static COMMANDS: &[Command] = &[$(Command {
            id: Id::$id,
            name: $name,
            arity: $arity,
            flags: $flags,
            keys: $keys,
            categories: $categories,
            tips: $tips,
            specs: &[$(KeySpec { notes: $notes, first: $first, last: $last, step: $step, flags: $spec }),*],
            since: $since,
            group: $group,
            summary: $summary,
        }),*];
    };
}

// Name, arity, flags, keys, categories, tips, key specifications, since, group, summary.
commands! {
    Append("append", 3, "write denyoom fast", [1, 1, 1], "@write @string @fast", "", [("", 1, 0, 1, "RW insert")], "2.0.0", "string", "Adds bytes to the end of a string");
    Auth("auth", -2, "noscript loading stale fast no_auth allow_busy", [0, 0, 0], "@fast @connection", "", [], "1.0.0", "connection", "Authenticates the connection");
    Client("client", -2, "", [0, 0, 0], "@slow", "", [], "2.4.0", "connection", "Commands about connections");
    Cluster("cluster", -2, "", [0, 0, 0], "@slow", "", [], "3.0.0", "cluster", "Says that there is no cluster");
    Command("command", -1, "loading stale", [0, 0, 0], "@slow @connection", "nondeterministic_output_order", [], "2.8.13", "server", "Commands about commands");
    Config("config", -2, "", [0, 0, 0], "@slow", "", [], "2.0.0", "server", "Reads the configuration");
    DbSize("dbsize", 1, "readonly fast", [0, 0, 0], "@keyspace @read @fast", "request_policy:all_shards response_policy:agg_sum", [], "1.0.0", "server", "Counts the keys of the database");
    Decr("decr", 2, "write denyoom fast", [1, 1, 1], "@write @string @fast", "", [("", 1, 0, 1, "RW access update")], "1.0.0", "string", "Takes one from an integer");
    DecrBy("decrby", 3, "write denyoom fast", [1, 1, 1], "@write @string @fast", "", [("", 1, 0, 1, "RW access update")], "1.0.0", "string", "Takes a number from an integer");
    Del("del", -2, "write", [1, -1, 1], "@keyspace @write @slow", "request_policy:multi_shard response_policy:agg_sum", [("", 1, -1, 1, "RM delete")], "1.0.0", "generic", "Deletes keys");
    Discard("discard", 1, "noscript loading stale fast allow_busy", [0, 0, 0], "@fast @transaction", "", [], "2.0.0", "transactions", "Discards a transaction");
    Echo("echo", 2, "loading stale fast", [0, 0, 0], "@fast @connection", "", [], "1.0.0", "connection", "Answers with its argument");
    Exec("exec", 1, "noscript loading stale skip_slowlog", [0, 0, 0], "@slow @transaction", "", [], "1.2.0", "transactions", "Carries a transaction out");
    Exists("exists", -2, "readonly fast", [1, -1, 1], "@keyspace @read @fast", "request_policy:multi_shard response_policy:agg_sum", [("", 1, -1, 1, "RO")], "1.0.0", "generic", "Counts which of the keys exist");
    Expire("expire", -3, "write fast", [1, 1, 1], "@keyspace @write @fast", "", [("", 1, 0, 1, "RW update")], "1.0.0", "generic", "Sets a key's time to live in seconds");
    ExpireAt("expireat", -3, "write fast", [1, 1, 1], "@keyspace @write @fast", "", [("", 1, 0, 1, "RW update")], "1.2.0", "generic", "Sets when a key expires, in seconds of Unix time");
    ExpireTime("expiretime", 2, "readonly fast", [1, 1, 1], "@keyspace @read @fast", "", [("", 1, 0, 1, "RO access")], "7.0.0", "generic", "Says when a key expires, in seconds of Unix time");
    FlushAll("flushall", -1, "write", [0, 0, 0], "@keyspace @write @slow @dangerous", "request_policy:all_shards response_policy:all_succeeded", [], "1.0.0", "server", "Deletes every key of every database");
    FlushDb("flushdb", -1, "write", [0, 0, 0], "@keyspace @write @slow @dangerous", "request_policy:all_shards response_policy:all_succeeded", [], "1.0.0", "server", "Deletes every key of the database");
    Get("get", 2, "readonly fast", [1, 1, 1], "@read @string @fast", "", [("", 1, 0, 1, "RO access")], "1.0.0", "string", "Reads a string");
    GetDel("getdel", 2, "write fast", [1, 1, 1], "@write @string @fast", "", [("", 1, 0, 1, "RW access delete")], "6.2.0", "string", "Reads a string and deletes it");
    GetEx("getex", -2, "write fast", [1, 1, 1], "@write @string @fast", "", [("RW and UPDATE because it changes the TTL", 1, 0, 1, "RW access update")], "6.2.0", "string", "Reads a string and sets when it expires");
    GetRange("getrange", 4, "readonly", [1, 1, 1], "@read @string @slow", "", [("", 1, 0, 1, "RO access")], "2.4.0", "string", "Reads a part of a string");
    GetSet("getset", 3, "write denyoom fast", [1, 1, 1], "@write @string @fast", "", [("", 1, 0, 1, "RW access update")], "1.0.0", "string", "Writes a string and answers with the one before");
    HDel("hdel", -3, "write fast", [1, 1, 1], "@write @hash @fast", "", [("", 1, 0, 1, "RW delete")], "2.0.0", "hash", "Deletes fields of a hash");
    Hello("hello", -1, "noscript loading stale fast no_auth allow_busy", [0, 0, 0], "@fast @connection", "", [], "6.0.0", "connection", "Chooses the protocol version, and authenticates");
    HExists("hexists", 3, "readonly fast", [1, 1, 1], "@read @hash @fast", "", [("", 1, 0, 1, "RO")], "2.0.0", "hash", "Says whether a hash has a field");
    HGet("hget", 3, "readonly fast", [1, 1, 1], "@read @hash @fast", "", [("", 1, 0, 1, "RO access")], "2.0.0", "hash", "Reads a field of a hash");
    HGetAll("hgetall", 2, "readonly", [1, 1, 1], "@read @hash @slow", "nondeterministic_output_order", [("", 1, 0, 1, "RO access")], "2.0.0", "hash", "Reads a hash");
    HIncrBy("hincrby", 4, "write denyoom fast", [1, 1, 1], "@write @hash @fast", "", [("", 1, 0, 1, "RW access update")], "2.0.0", "hash", "Adds a number to an integer field");
    HIncrByFloat("hincrbyfloat", 4, "write denyoom fast", [1, 1, 1], "@write @hash @fast", "", [("", 1, 0, 1, "RW access update")], "2.6.0", "hash", "Adds a number to a field");
    HKeys("hkeys", 2, "readonly", [1, 1, 1], "@read @hash @slow", "nondeterministic_output_order", [("", 1, 0, 1, "RO access")], "2.0.0", "hash", "Lists the fields of a hash");
    HLen("hlen", 2, "readonly fast", [1, 1, 1], "@read @hash @fast", "", [("", 1, 0, 1, "RO")], "2.0.0", "hash", "Counts the fields of a hash");
    HMGet("hmget", -3, "readonly fast", [1, 1, 1], "@read @hash @fast", "", [("", 1, 0, 1, "RO access")], "2.0.0", "hash", "Reads fields of a hash");
    HMSet("hmset", -4, "write denyoom fast", [1, 1, 1], "@write @hash @fast", "", [("", 1, 0, 1, "RW update")], "2.0.0", "hash", "Writes fields of a hash");
    HScan("hscan", -3, "readonly", [1, 1, 1], "@read @hash @slow", "nondeterministic_output", [("", 1, 0, 1, "RO access")], "2.8.0", "hash", "Goes through the fields of a hash");
    HSet("hset", -4, "write denyoom fast", [1, 1, 1], "@write @hash @fast", "", [("", 1, 0, 1, "RW update")], "2.0.0", "hash", "Writes fields of a hash");
    HSetNx("hsetnx", 4, "write denyoom fast", [1, 1, 1], "@write @hash @fast", "", [("", 1, 0, 1, "RW insert")], "2.0.0", "hash", "Writes a field of a hash that has none of the name");
    HStrLen("hstrlen", 3, "readonly fast", [1, 1, 1], "@read @hash @fast", "", [("", 1, 0, 1, "RO")], "3.2.0", "hash", "Says how long a field is");
    HVals("hvals", 2, "readonly", [1, 1, 1], "@read @hash @slow", "nondeterministic_output_order", [("", 1, 0, 1, "RO access")], "2.0.0", "hash", "Lists the values of a hash");
    Incr("incr", 2, "write denyoom fast", [1, 1, 1], "@write @string @fast", "", [("", 1, 0, 1, "RW access update")], "1.0.0", "string", "Adds one to an integer");
    IncrBy("incrby", 3, "write denyoom fast", [1, 1, 1], "@write @string @fast", "", [("", 1, 0, 1, "RW access update")], "1.0.0", "string", "Adds a number to an integer");
    IncrByFloat("incrbyfloat", 3, "write denyoom fast", [1, 1, 1], "@write @string @fast", "", [("", 1, 0, 1, "RW access update")], "2.6.0", "string", "Adds a number to a number");
    Info("info", -1, "loading stale", [0, 0, 0], "@slow @dangerous", "nondeterministic_output request_policy:all_shards response_policy:special", [], "1.0.0", "server", "Says how the server is");
    Keys("keys", 2, "readonly", [0, 0, 0], "@keyspace @read @slow @dangerous", "request_policy:all_shards nondeterministic_output_order", [], "1.0.0", "generic", "Lists the keys that match a pattern");
    MGet("mget", -2, "readonly fast", [1, -1, 1], "@read @string @fast", "request_policy:multi_shard", [("", 1, -1, 1, "RO access")], "1.0.0", "string", "Reads strings");
    MSet("mset", -3, "write denyoom", [1, -1, 2], "@write @string @slow", "request_policy:multi_shard response_policy:all_succeeded", [("", 1, -1, 2, "OW update")], "1.0.1", "string", "Writes strings");
    MSetNx("msetnx", -3, "write denyoom", [1, -1, 2], "@write @string @slow", "request_policy:multi_shard response_policy:agg_min", [("", 1, -1, 2, "OW insert")], "1.0.1", "string", "Writes strings if none of the keys exists");
    Multi("multi", 1, "noscript loading stale fast allow_busy", [0, 0, 0], "@fast @transaction", "", [], "1.2.0", "transactions", "Begins a transaction");
    Persist("persist", 2, "write fast", [1, 1, 1], "@keyspace @write @fast", "", [("", 1, 0, 1, "RW update")], "2.2.0", "generic", "Takes a key's expiry away");
    PExpire("pexpire", -3, "write fast", [1, 1, 1], "@keyspace @write @fast", "", [("", 1, 0, 1, "RW update")], "2.6.0", "generic", "Sets a key's time to live in milliseconds");
    PExpireAt("pexpireat", -3, "write fast", [1, 1, 1], "@keyspace @write @fast", "", [("", 1, 0, 1, "RW update")], "2.6.0", "generic", "Sets when a key expires, in milliseconds of Unix time");
    PExpireTime("pexpiretime", 2, "readonly fast", [1, 1, 1], "@keyspace @read @fast", "", [("", 1, 0, 1, "RO access")], "7.0.0", "generic", "Says when a key expires, in milliseconds of Unix time");
    Ping("ping", -1, "fast", [0, 0, 0], "@fast @connection", "request_policy:all_shards response_policy:all_succeeded", [], "1.0.0", "connection", "Answers");
    PSetEx("psetex", 4, "write denyoom", [1, 1, 1], "@write @string @slow", "", [("", 1, 0, 1, "OW update")], "2.6.0", "string", "Writes a string with a time to live in milliseconds");
    PSubscribe("psubscribe", -2, "pubsub noscript loading stale", [0, 0, 0], "@pubsub @slow", "", [], "2.0.0", "pubsub", "Listens to channels whose names match patterns");
    PTtl("pttl", 2, "readonly fast", [1, 1, 1], "@keyspace @read @fast", "nondeterministic_output", [("", 1, 0, 1, "RO access")], "2.6.0", "generic", "Says how many milliseconds a key has left");
    Publish("publish", 3, "pubsub loading stale fast", [0, 0, 0], "@pubsub @fast", "", [], "2.0.0", "pubsub", "Sends a message to a channel");
    PubSub("pubsub", -2, "", [0, 0, 0], "@slow", "", [], "2.8.0", "pubsub", "Says who listens to what");
    PUnsubscribe("punsubscribe", -1, "pubsub noscript loading stale", [0, 0, 0], "@pubsub @slow", "", [], "2.0.0", "pubsub", "Listens to patterns no more");
    Quit("quit", -1, "noscript loading stale fast no_auth allow_busy", [0, 0, 0], "@fast @connection", "", [], "1.0.0", "connection", "Closes the connection");
    RandomKey("randomkey", 1, "readonly", [0, 0, 0], "@keyspace @read @slow", "request_policy:all_shards nondeterministic_output", [], "1.0.0", "generic", "Names some key");
    Rename("rename", 3, "write", [1, 2, 1], "@keyspace @write @slow", "", [("", 1, 0, 1, "RW access delete"), ("", 2, 0, 1, "OW update")], "1.0.0", "generic", "Renames a key");
    RenameNx("renamenx", 3, "write fast", [1, 2, 1], "@keyspace @write @fast", "", [("", 1, 0, 1, "RW access delete"), ("", 2, 0, 1, "OW insert")], "1.0.0", "generic", "Renames a key if nothing has the new name");
    Reset("reset", 1, "noscript loading stale fast no_auth allow_busy", [0, 0, 0], "@fast @connection", "", [], "6.2.0", "connection", "Makes the connection as new");
    Scan("scan", -2, "readonly", [0, 0, 0], "@keyspace @read @slow", "nondeterministic_output request_policy:special", [], "2.8.0", "generic", "Goes through the keys");
    Select("select", 2, "loading stale fast", [0, 0, 0], "@fast @connection", "", [], "1.0.0", "connection", "Chooses the database");
    Set("set", -3, "write denyoom", [1, 1, 1], "@write @string @slow", "", [("RW and ACCESS due to the optional `GET` argument", 1, 0, 1, "RW access update variable_flags")], "1.0.0", "string", "Writes a string");
    SetEx("setex", 4, "write denyoom", [1, 1, 1], "@write @string @slow", "", [("", 1, 0, 1, "OW update")], "2.0.0", "string", "Writes a string with a time to live in seconds");
    SetNx("setnx", 3, "write denyoom fast", [1, 1, 1], "@write @string @fast", "", [("", 1, 0, 1, "OW insert")], "1.0.0", "string", "Writes a string if the key does not exist");
    SetRange("setrange", 4, "write denyoom", [1, 1, 1], "@write @string @slow", "", [("", 1, 0, 1, "RW update")], "2.2.0", "string", "Overwrites a part of a string");
    StrLen("strlen", 2, "readonly fast", [1, 1, 1], "@read @string @fast", "", [("", 1, 0, 1, "RO")], "2.2.0", "string", "Says how long a string is");
    Subscribe("subscribe", -2, "pubsub noscript loading stale", [0, 0, 0], "@pubsub @slow", "", [], "2.0.0", "pubsub", "Listens to channels");
    Substr("substr", 4, "readonly", [1, 1, 1], "@read @string @slow", "", [("", 1, 0, 1, "RO access")], "1.0.0", "string", "Reads a part of a string");
    Time("time", 1, "loading stale fast", [0, 0, 0], "@fast", "nondeterministic_output", [], "2.6.0", "server", "Says what time it is");
    Touch("touch", -2, "readonly fast", [1, -1, 1], "@keyspace @read @fast", "request_policy:multi_shard response_policy:agg_sum", [("", 1, -1, 1, "RO")], "3.2.1", "generic", "Counts which of the keys exist");
    Ttl("ttl", 2, "readonly fast", [1, 1, 1], "@keyspace @read @fast", "nondeterministic_output", [("", 1, 0, 1, "RO access")], "1.0.0", "generic", "Says how many seconds a key has left");
    Type("type", 2, "readonly fast", [1, 1, 1], "@keyspace @read @fast", "", [("", 1, 0, 1, "RO")], "1.0.0", "generic", "Says what a key holds");
    Unlink("unlink", -2, "write fast", [1, -1, 1], "@keyspace @write @fast", "request_policy:multi_shard response_policy:agg_sum", [("", 1, -1, 1, "RM delete")], "4.0.0", "generic", "Deletes keys");
    Unsubscribe("unsubscribe", -1, "pubsub noscript loading stale", [0, 0, 0], "@pubsub @slow", "", [], "2.0.0", "pubsub", "Listens to channels no more");
    Unwatch("unwatch", 1, "noscript loading stale fast allow_busy", [0, 0, 0], "@fast @transaction", "", [], "2.2.0", "transactions", "Forgets the watched keys");
    Watch("watch", -2, "noscript loading stale fast allow_busy", [1, -1, 1], "@fast @transaction", "", [("", 1, -1, 1, "RO")], "2.2.0", "transactions", "Has EXEC do nothing if keys change before it");
}

#[cfg(test)]
mod tests {
    use super::{COMMANDS, Command};

    #[test]
    fn commands_are_sorted_and_found_in_any_case() {
        assert!(COMMANDS.windows(2).all(|pair| pair[0].name < pair[1].name));
        for (index, command) in COMMANDS.iter().enumerate() {
            assert_eq!(command.id as usize, index);
            assert!(std::ptr::eq(Command::find(command.name.to_uppercase().as_bytes()).unwrap(), command));
        }
        assert!(Command::find(b"").is_none());
        assert!(Command::find(b"getx").is_none());
        assert!(Command::find(&[b'g'; 100]).is_none());
    }
}
