//! Servers of Go that are killed while clients are at them: three members of etcd on one log, and NATS with JetStream.

use std::path::PathBuf;
use std::process::Command;

use remanence_intercept::{Way, inspect};

use crate::rounds::{Program, Synced, kills};

/// Three members, all of whose syncs wait for the log, and all of which are killed together.
const ETCD: Program = Program {
    name: "etcd-cluster",
    needs: &["etcd", "etcdctl"],
    make: r#"
        cat >members.sh <<'END'
export ETCDCTL_API=3 REMANENCE_CACHE_SCOPE=all
export ETCDCTL_ENDPOINTS=http://$ADDRESS:2371,http://$ADDRESS:2372,http://$ADDRESS:2373
for n in 1 2 3; do
    client=http://$ADDRESS:237$n
    peer=http://$ADDRESS:238$n
    etcd --name m$n --data-dir $DATA/m$n --listen-client-urls $client --advertise-client-urls $client \
        --listen-peer-urls $peer --initial-advertise-peer-urls $peer --initial-cluster-state new \
        --initial-cluster m1=http://$ADDRESS:2381,m2=http://$ADDRESS:2382,m3=http://$ADDRESS:2383 >>$LOG 2>&1 &
    members="$members $!"
done
until etcdctl endpoint health >/dev/null 2>&1; do kill -0 $members || exit 1; sleep 0.05; done
END
    "#,
    serve: "
        LOG=serve.log
        . ./members.sh
        echo ready
        wait
    ",
    load: r#"
        export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=http://$ADDRESS:2371,http://$ADDRESS:2372,http://$ADDRESS:2373
        while read n; do etcdctl put k$n v$n </dev/null >/dev/null 2>>load.log && echo $n || exit 1; done
    "#,
    check: r#"
        set -e
        trap 'tail -n 50 check.log >&2; kill $members' EXIT
        LOG=check.log
        . ./members.sh
        # What the members have is the same, when each has all of it.
        turn=0
        until [ "$(etcdctl endpoint hashkv | sed 's/.*, //' | sort -u | wc -l)" = 1 ]; do
            [ $((turn += 1)) -lt 200 ]
            sleep 0.05
        done
        found=$(etcdctl get k --prefix --keys-only | grep -c k) || :
        [ "$(etcdctl get k --prefix | sed s/^k/v/ | sort)" = "$(seq -f v%.0f 1 $found | sed p | sort)" ]
        kill $members
        wait $members || :
        trap - EXIT
        echo $found
    "#,
    step: 5,
    is_fresh: false,
    synced: Synced::Often,
};

/// What speaks with it: a line of its protocol is a question, and a message on the inbox is the answer.
pub(crate) const NATS_CLIENT: &str = r#"
cat >client.py <<'END'
import json, os, socket, sys

class Client:
    def __init__(self):
        self.socket = socket.create_connection((os.environ["ADDRESS"], 4222))
        self.file = self.socket.makefile("rb")
        self.file.readline()
        self.socket.sendall(b'CONNECT {"verbose":false}\r\nSUB inbox 1\r\n')

    def ask(self, subject, payload):
        self.socket.sendall(b"PUB %s inbox %d\r\n%s\r\n" % (subject, len(payload), payload))
        while True:
            line = self.file.readline()
            if not line:
                sys.exit(1)
            if line.startswith(b"PING"):
                self.socket.sendall(b"PONG\r\n")
            elif line.startswith(b"MSG"):
                answer = self.file.read(int(line.split()[-1]))
                self.file.readline()
                return json.loads(answer)
            elif line.startswith(b"-ERR"):
                sys.exit(line.decode())
END
"#;

/// `sync_interval: always`: a message is synced before it is acknowledged.
const NATS: Program = Program {
    name: "nats",
    needs: &["nats-server", "/usr/bin/python3"],
    make: NATS_CLIENT,
    serve: r#"
        cat >server.sh <<'END'
printf 'listen: "%s:4222"\njetstream { store_dir: "%s/%s", sync_interval: always }\n' $ADDRESS $PWD $DATA >$DATA.conf
export REMANENCE_CACHE_SCOPE=all
. ./under.sh
$UNDER nats-server -c $DATA.conf >>$LOG 2>&1 &
server=$!
until /usr/bin/python3 -c '
import client
client.Client().ask(b"$JS.API.INFO", b"")
' 2>/dev/null; do kill -0 $server || exit 1; sleep 0.05; done
END
        LOG=serve.log
        . ./server.sh
        echo ready
        wait
    "#,
    load: r#"
        exec /usr/bin/python3 -c '
import client, sys
nats = client.Client()
made = nats.ask(b"$JS.API.STREAM.CREATE.s", b"{\"name\":\"s\",\"subjects\":[\"s\"],\"storage\":\"file\"}")
assert "error" not in made or "in use" in made["error"]["description"], made
for n in sys.stdin:
    n = n.strip()
    stored = nats.ask(b"s", n.encode() + b" " + b"x" * 300)
    assert stored.get("seq") == int(n), stored
    print(n, flush=True)
' 2>>load.log
    "#,
    check: r#"
        set -e
        trap 'tail -n 50 check.log >&2; kill $server' EXIT
        LOG=check.log
        . ./server.sh
        /usr/bin/python3 -c '
import base64, client
nats = client.Client()
found = nats.ask(b"$JS.API.STREAM.INFO.s", b"")["state"]["last_seq"]
for n in range(1, found + 1):
    message = nats.ask(b"$JS.API.STREAM.MSG.GET.s", b"{\"seq\":%d}" % n)
    assert base64.b64decode(message["message"]["data"]) == b"%d " % n + b"x" * 300, message
print(found)
' >found
        kill $server
        wait $server || :
        trap - EXIT
        cat found
    "#,
    step: 10,
    is_fresh: false,
    synced: Synced::Often,
};

#[test]
fn three_members_of_etcd() {
    kills(ETCD);
}

/// The server, if one is installed that can sync before it acknowledges: those before 2.10 cannot. Says so, if not.
pub(crate) fn nats_that_syncs() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&paths).chain(["/usr/sbin".into()]);
    let Some(program) = places.map(|place| place.join("nats-server")).find(|program| program.is_file())
    else {
        println!("skipped: nats-server is not installed");
        return None;
    };
    let configuration = std::env::temp_dir().join(format!("remanence-nats-{}.conf", std::process::id()));
    std::fs::write(&configuration, "jetstream { sync_interval: always }\n").expect("room");
    let knows = Command::new(&program).arg("-t").arg("-c").arg(&configuration).output();
    std::fs::remove_file(&configuration).expect("it is there");
    if !knows.expect("it starts").status.success() {
        println!("skipped: {} cannot sync before it acknowledges", program.display());
        return None;
    }
    Some(program)
}

/// Debian's is one that the loader loads, and its makers' is static.
#[test]
fn nats_with_jetstream() {
    let Some(program) = nats_that_syncs() else { return };
    let way = inspect(program).expect("a program").way();
    let under = if way == Ok(Way::Outside) { "$SUPERVISED" } else { "" };
    println!("nats: {way:?}");
    let make = format!("{NATS_CLIENT}echo 'UNDER={under}' >under.sh\n");
    kills(Program { make: make.leak(), ..NATS });
}
