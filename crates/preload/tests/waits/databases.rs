//! Databases that are killed while clients are at them, checked by their own programs.

use crate::cache::again_as_nobody;
use crate::rounds::{Program, Synced, kills};

/// With clients of pgbench beside; one refuses to serve root, and so everything is somebody else's.
const POSTGRES: Program = Program {
    name: "postgres",
    needs: &["initdb", "postgres", "pg_ctl", "psql", "pgbench", "pg_amcheck", "stdbuf"],
    make: "
        set -e
        initdb -D $DATA -U postgres --auth=trust --locale=C --no-sync --wal-segsize=4 >initdb.log
        echo \"unix_socket_directories = '$PWD'\" >>$DATA/postgresql.conf
        echo \"listen_addresses = ''\" >>$DATA/postgresql.conf
        export PGUSER=postgres PGDATABASE=postgres PGHOST=$PWD
        pg_ctl -D $DATA -l make.log -w start >/dev/null
        psql -qX -c 'CREATE TABLE acked(n bigint PRIMARY KEY, x text); CREATE EXTENSION amcheck'
        pgbench -i -q -s 1 2>make.log
        pg_ctl -D $DATA -m fast -w stop >/dev/null
    ",
    serve: "
        export PGUSER=postgres PGDATABASE=postgres PGHOST=$PWD
        # The one that was killed has left these, and counts as there until its end was asked for.
        rm -f $DATA/postmaster.pid .s.PGSQL.5432 .s.PGSQL.5432.lock
        postgres -D $DATA >>serve.log 2>&1 &
        until psql -qXAt -c 'CHECKPOINT' >/dev/null 2>&1; do kill -0 $! || { tail -5 serve.log >&2; exit 1; }; sleep 0.05; done
        echo ready
        wait
    ",
    load: r#"
        export PGUSER=postgres PGDATABASE=postgres PGHOST=$PWD
        pgbench -n -c 2 -t 40 >load.log 2>&1 </dev/null &
        sed -u "s/.*/INSERT INTO acked VALUES (&, repeat('x', 500)) RETURNING n;/" |
            stdbuf -oL psql -qXAt -v ON_ERROR_STOP=1 2>>load.log
    "#,
    check: r#"
        set -e
        export PGUSER=postgres PGDATABASE=postgres PGHOST=$PWD PGPORT=5433
        # Nobody has this number any more, or somebody else has.
        rm -f $DATA/postmaster.pid
        trap 'cat check.log >&2; pg_ctl -D $DATA -m immediate -w stop >/dev/null 2>&1' EXIT
        pg_ctl -D $DATA -o '-p 5433' -l check.log -w start >check.out
        is() { [ "$(psql -qXAt -c "SELECT $1")" = t ] || { echo "it is not so: $1" >&2; exit 1; }; }
        is '(SELECT count(*) = coalesce(max(n), 0) FROM acked)'
        is "(SELECT count(*) = 0 FROM acked WHERE x <> repeat('x', 500))"
        sum='(SELECT coalesce(sum(delta), 0) FROM pgbench_history)'
        is "(SELECT sum(abalance) FROM pgbench_accounts) = $sum"
        is "(SELECT sum(bbalance) FROM pgbench_branches) = $sum"
        is "(SELECT sum(tbalance) FROM pgbench_tellers) = $sum"
        pg_amcheck --heapallindexed --parent-check >amcheck.out || { cat amcheck.out >&2; exit 1; }
        found=$(psql -qXAt -c 'SELECT coalesce(max(n), 0) FROM acked')
        pg_ctl -D $DATA -m fast -w stop >>check.out
        trap - EXIT
        echo $found
    "#,
    step: 20,
    is_fresh: false,
    synced: Synced::Shared,
};

/// With its file written anew every now and then, by a child that is forked.
const REDIS: Program = Program {
    name: "redis",
    needs: &["redis-server", "redis-cli", "redis-check-aof", "stdbuf"],
    make: "",
    serve: r#"
        redis-server --port 0 --unixsocket $PWD/s.sock --dir $DATA --appendonly yes --appendfsync always --save "" >>serve.log &
        until redis-cli -s s.sock ping 2>/dev/null | grep -q PONG; do kill -0 $! || exit 1; sleep 0.05; done
        echo ready
        wait
    "#,
    load: r#"
        pad=$(printf %0300d 0)
        sed -u "s/.*/RPUSH list &:$pad/; /[02468]00:/ s/$/\nBGREWRITEAOF/" | stdbuf -oL redis-cli -s s.sock
    "#,
    check: r#"
        set -e
        manifest=$DATA/appendonlydir/appendonly.aof.manifest
        redis-check-aof $manifest >check.log || yes | redis-check-aof --fix $manifest >>check.log
        redis-server --port 0 --unixsocket $PWD/c.sock --dir $DATA --appendonly yes --appendfsync always --save "" >>check.log &
        trap "cat check.log >&2; kill $!" EXIT
        until redis-cli -s c.sock ping 2>/dev/null | grep -q PONG; do kill -0 $!; sleep 0.05; done
        found=$(redis-cli -s c.sock LLEN list)
        [ "$(redis-cli -s c.sock LRANGE list 0 -1)" = "$(seq -f "%.0f:$(printf %0300d 0)" 1 $found)" ]
        redis-cli -s c.sock shutdown nosave
        wait
        trap - EXIT
        echo $found
    "#,
    step: 20,
    is_fresh: false,
    synced: Synced::Same,
};

/// A thread of `db_bench` that syncs each put, and says how many it has done; its tables are written meanwhile.
const ROCKSDB: Program = Program {
    name: "rocksdb",
    needs: &["db_bench", "ldb"],
    make: "",
    serve: "",
    load: r"
        rm -rf $DATA/db
        # In the first round the log keeps all; later tables are written and logs deleted all the time.
        [ $ROUND = 0 ] && more='--benchmark_write_rate_limit=100000' || more='--write_buffer_size=131072'
        db_bench --db=$DATA/db --benchmarks=fillseq --sync=1 --num=1000000 --value_size=400 --stats_interval=1 \
            --compression_type=none $more 2>&1 >/dev/null |
            sed -un 's/.*thread 0: ([0-9]*,\([0-9]*\)) ops.*/\1/p'
    ",
    check: r#"
        set -e
        ldb --db=$DATA/db checkconsistency | grep -q OK
        # Each begins with its number, in eight bytes.
        ldb --db=$DATA/db scan --hex | cut -c3-18 >keys
        [ "$(cat keys)" = "$(seq 0 $(($(wc -l <keys) - 1)) | xargs printf '%016X\n')" ]
        wc -l <keys
    "#,
    step: 40,
    is_fresh: true,
    // Something that it does in each round has the log come into its files.
    synced: Synced::Often,
};

/// A program of Go that the loader loads: its calls are seen at its own instruction.
const ETCD: Program = Program {
    name: "etcd",
    needs: &["etcd", "etcdctl"],
    make: "",
    serve: r#"
        export ETCDCTL_API=3 REMANENCE_CACHE_SCOPE=all
        clients=http://$ADDRESS:2379
        etcd --data-dir $DATA/etcd --listen-client-urls $clients --advertise-client-urls $clients \
            --listen-peer-urls http://$ADDRESS:2380 >>serve.log 2>&1 &
        until etcdctl --endpoints $clients endpoint health >/dev/null 2>&1; do kill -0 $! || exit 1; sleep 0.05; done
        echo ready
        wait
    "#,
    load: r#"
        export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=http://$ADDRESS:2379
        while read n; do etcdctl put k$n v$n </dev/null >/dev/null 2>>load.log && echo $n || exit 1; done
    "#,
    check: r#"
        set -e
        export ETCDCTL_API=3 REMANENCE_CACHE_SCOPE=all
        clients=http://$ADDRESS:2379
        etcd --data-dir $DATA/etcd --listen-client-urls $clients --advertise-client-urls $clients \
            --listen-peer-urls http://$ADDRESS:2380 >>check.log 2>&1 &
        trap "tail -n 50 check.log >&2; kill $!" EXIT
        export ETCDCTL_ENDPOINTS=$clients
        until etcdctl endpoint health >/dev/null 2>&1; do kill -0 $!; sleep 0.05; done
        etcdctl endpoint hashkv >&2
        found=$(etcdctl get k --prefix --keys-only | grep -c k) || :
        [ "$(etcdctl get k --prefix | sed s/^k/v/ | sort)" = "$(seq -f v%.0f 1 $found | sed p | sort)" ]
        kill $!
        wait $! || :
        trap - EXIT
        etcdctl snapshot status $DATA/etcd/member/snap/db >&2
        echo $found
    "#,
    step: 5,
    is_fresh: false,
    // With so few numbers, syncs of its log may be the kernel's again in any round.
    synced: Synced::Often,
};

const fn sqlite(name: &'static str, make: &'static str) -> Program {
    Program {
        name,
        needs: &["sqlite3", "stdbuf"],
        make,
        serve: "",
        load: r#"
            { echo 'PRAGMA synchronous=FULL;'; sed -u "s/.*/INSERT INTO t VALUES(&, randomblob(700)); SELECT &;/"; } |
                stdbuf -oL sqlite3 -batch $DATA/db
        "#,
        check: r#"
            set -e
            [ "$(sqlite3 $DATA/db 'PRAGMA integrity_check')" = ok ]
            [ "$(sqlite3 $DATA/db 'SELECT count(*) = coalesce(max(n), 0) FROM t')" = 1 ]
            sqlite3 $DATA/db 'SELECT count(*) FROM t'
        "#,
        step: 20,
        is_fresh: false,
        synced: Synced::Same,
    }
}

/// Three processes that write to one database, of which one is asked.
const SQLITE_SHARED: Program = Program {
    name: "sqlite-shared",
    load: r#"
        for n in 1 2; do
            while sleep 0.02; do echo "INSERT INTO u VALUES($n, randomblob(300));"; done |
                sqlite3 -batch -cmd '.timeout 60000' -cmd 'PRAGMA synchronous=FULL' $DATA/db >load.log 2>&1 &
        done
        { echo '.timeout 60000'; echo 'PRAGMA synchronous=FULL;'
            sed -u "s/.*/INSERT INTO t VALUES(&, randomblob(700)); SELECT &;/"; } |
            stdbuf -oL sqlite3 -batch $DATA/db
    "#,
    synced: Synced::Shared,
    ..sqlite(
        "sqlite-shared",
        "sqlite3 $DATA/db 'PRAGMA journal_mode=WAL; CREATE TABLE t(n INTEGER PRIMARY KEY, x); CREATE TABLE u(n, x)' >&2",
    )
};

#[test]
fn sqlite_with_many_processes() {
    kills(SQLITE_SHARED);
}

#[test]
fn postgres() {
    if !again_as_nobody("databases::postgres") {
        kills(POSTGRES);
    }
}

#[test]
fn redis() {
    kills(REDIS);
}

#[test]
fn rocksdb() {
    kills(ROCKSDB);
}

#[test]
fn etcd() {
    kills(ETCD);
}

#[test]
fn sqlite_with_a_log() {
    kills(sqlite(
        "sqlite-wal",
        "sqlite3 $DATA/db 'PRAGMA journal_mode=wal; CREATE TABLE t(n INTEGER PRIMARY KEY, x)'",
    ));
}

#[test]
fn sqlite_with_a_rollback_journal() {
    // A journal that is gone may have the log drained: then what it has is on no old bytes.
    let make = "sqlite3 $DATA/db 'CREATE TABLE t(n INTEGER PRIMARY KEY, x)'";
    kills(Program { synced: Synced::Often, ..sqlite("sqlite-delete", make) });
}
