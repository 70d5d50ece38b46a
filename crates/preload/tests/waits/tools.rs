//! Tools that sync what they write, and programs in other languages: what they say is the same, and what they had done when they were killed is there.

use crate::rounds::{Program, Synced, has, kills, same};

/// Checks a file of numbered lines, and says how many are whole.
const LINES: &str = r#"
    awk '$1 == NR && NF == 2 && length($2) == 300 { n = NR } END { print n + 0 }' $DATA/lines
"#;

/// Each file is written, synced and renamed once: its sync is the kernel's.
const GIT: Program = Program {
    name: "git",
    needs: &["git"],
    make: "
        set -e
        export HOME=/nonexistent
        git init -q $DATA/repository
        cd $DATA/repository
        git config core.fsync all
        git config core.fsyncMethod fsync
        git config gc.auto 0
        git config user.name name
        git config user.email name@example.org
    ",
    serve: "",
    load: r#"
        export HOME=/nonexistent
        cd $DATA/repository
        # As whoever finds that nobody is there any more does.
        find .git -name '*.lock' -delete
        while read n; do
            seq $n $((n + 99)) >file.$((n % 5))
            git add -A && git commit -q -m $n >/dev/null && echo $n || exit 1
            [ $((n % 16)) != 0 ] || git gc -q --prune=now
        done
    "#,
    check: r#"
        set -e
        export HOME=/nonexistent
        cd $DATA/repository
        git fsck --full --strict --no-dangling >&2
        found=$(git rev-list --count HEAD)
        [ "$(git log --format=%s)" = "$(seq $found -1 1)" ]
        git archive HEAD | tar x -O | wc -c >&2
        echo $found
    "#,
    step: 3,
    is_fresh: false,
    synced: Synced::Once,
};

/// Packages that are made as they are needed, into a root of their own.
const DPKG: Program = Program {
    name: "dpkg",
    needs: &["dpkg", "dpkg-deb"],
    make: "
        set -e
        mkdir -p $DATA/system/var/lib/dpkg/info $DATA/system/var/lib/dpkg/updates
        : >$DATA/system/var/lib/dpkg/status
    ",
    serve: "",
    load: r#"
        while read n; do
            name=p$((n % 5))
            rm -rf package && mkdir -p package/DEBIAN package/usr/share/$name
            printf 'Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: n <n@example.org>\nDescription: d\n' $name $n >package/DEBIAN/control
            seq $n $((n + 999)) >package/usr/share/$name/file
            dpkg-deb --root-owner-group -Znone -b package package.deb >/dev/null &&
                dpkg --root=$DATA/system --force-not-root --force-script-chrootless -i package.deb >>load.log 2>&1 </dev/null && echo $n || exit 1
        done
    "#,
    check: r#"
        set -e
        root="--root=$DATA/system --force-not-root --force-script-chrootless"
        dpkg $root --configure -a >&2
        found=0
        dpkg-query --admindir=$DATA/system/var/lib/dpkg -W -f '${db:Status-Status} ${Package} ${Version}\n' >packages
        while read status name n; do
            # One that was at it when it was killed is to be installed again, as dpkg says.
            [ $status = installed ] || continue
            [ "$(cat $DATA/system/usr/share/$name/file)" = "$(seq $n $((n + 999)))" ]
            [ $n -le $found ] || found=$n
        done <packages
        echo $found
    "#,
    step: 2,
    is_fresh: false,
    synced: Synced::Once,
};

const ARCHIVES: Program = Program {
    name: "archives",
    needs: &["tar", "cp", "dd", "sync"],
    make: "seq 1 20000 >$DATA/source",
    serve: "",
    load: r"
        while read n; do
            dd if=$DATA/source of=$DATA/dd.$n bs=9000 conv=fsync status=none &&
                cp $DATA/source $DATA/cp.$n && sync $DATA/cp.$n &&
                tar cf $DATA/tar.$n -C $DATA source && sync -d $DATA/tar.$n && echo $n || exit 1
        done
    ",
    check: r"
        cd $DATA
        n=1
        while cmp -s source dd.$n && cmp -s source cp.$n && tar xOf tar.$n 2>/dev/null | cmp -s - source; do
            n=$((n + 1))
        done
        echo $((n - 1))
    ",
    step: 2,
    is_fresh: false,
    synced: Synced::Once,
};

/// One engine behind the other, with a sync behind each write; what is there is what its checksums say.
const FIO: Program = Program {
    name: "fio",
    needs: &["fio"],
    make: "",
    serve: "",
    load: r#"
        # As `rem run` does with a program that has calls of its own.
        export REMANENCE_CACHE_SCOPE=all
        set -- psync pvsync2 sync libaio
        rm -f $DATA/file.*
        while read n; do
            fio --name=job --directory=$DATA --filename=file.$n --ioengine=$1 --rw=randwrite --bs=4k --size=128k --fsync=1 \
                --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed=$n --output=load.log </dev/null && echo $n || exit 1
            set -- $2 $3 $4 $1
        done
    "#,
    check: r"
        set -e
        found=0
        while [ -e $DATA/file.$((found + 1)) ] && fio --name=job --directory=$DATA --filename=file.$((found + 1)) --ioengine=psync \
            --rw=randwrite --bs=4k --size=128k --verify=crc32c --verify_only=1 --verify_fatal=1 --randseed=$((found + 1)) \
            --output=check.log 2>>check.err >&2; do
            found=$((found + 1))
        done
        echo $found
    ",
    step: 1,
    is_fresh: true,
    synced: Synced::Often,
};

/// It appends and syncs; beside that it writes a file anew under another name, renames it, and syncs the directory.
const PYTHON: Program = Program {
    name: "python",
    needs: &["/usr/bin/python3"],
    make: ": >$DATA/lines; echo 0 >$DATA/last",
    serve: "",
    load: r#"
        exec /usr/bin/python3 -c '
import os, sys
directory = os.environ["DATA"]
file = os.open(directory + "/lines", os.O_RDWR | os.O_APPEND)
# What was not acknowledged before is done anew.
done = int(open(directory + "/last").read())
os.ftruncate(file, sum(len(line) for line in open(directory + "/lines", "rb").readlines()[:done]))
for n in sys.stdin:
    n = n.strip()
    os.write(file, (n + " " + "x" * 300 + "\n").encode())
    os.fsync(file)
    with open(directory + "/new", "w") as new:
        new.write(n)
        new.flush()
        os.fsync(new.fileno())
    os.rename(directory + "/new", directory + "/last")
    at = os.open(directory, os.O_RDONLY)
    os.fsync(at)
    os.close(at)
    print(n, flush=True)
'
    "#,
    check: r#"
        n=$(awk '$1 == NR && NF == 2 && length($2) == 300 { n = NR } END { print n + 0 }' $DATA/lines)
        last=$(cat $DATA/last)
        [ $last = $n ] || [ $last = $((n - 1)) ] || { echo "$n lines, and the last is $last" >&2; exit 1; }
        echo $last
    "#,
    step: 20,
    is_fresh: false,
    synced: Synced::Same,
};

const JAVA: Program = Program {
    name: "java",
    needs: &["java", "javac"],
    make: r#"
        set -e
        : >$DATA/lines
        cat >Lines.java <<'END'
import java.io.*;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.*;

class Lines {
    public static void main(String[] arguments) throws IOException {
        Path path = Path.of(System.getenv("DATA"), "lines");
        String before = Files.readString(path);
        FileChannel file = FileChannel.open(path, StandardOpenOption.WRITE);
        file.truncate(before.lastIndexOf('\n') + 1);
        file.position(file.size());
        BufferedReader numbers = new BufferedReader(new InputStreamReader(System.in));
        for (String n; (n = numbers.readLine()) != null;) {
            file.write(ByteBuffer.wrap((n + " " + "x".repeat(300) + "\n").getBytes()));
            file.force(Integer.parseInt(n) % 2 == 0);
            System.out.println(n);
            System.out.flush();
        }
    }
}
END
        javac -d . Lines.java
    "#,
    serve: "",
    load: "exec java -cp . Lines",
    check: LINES,
    step: 20,
    is_fresh: false,
    synced: Synced::Same,
};

#[test]
fn git() {
    kills(GIT);
}

#[test]
fn dpkg() {
    kills(DPKG);
}

#[test]
fn tar_cp_and_dd() {
    kills(ARCHIVES);
}

#[test]
fn fio() {
    kills(FIO);
}

#[test]
fn python() {
    kills(PYTHON);
}

#[test]
fn java() {
    kills(JAVA);
}

#[test]
fn git_says_the_same() {
    same(
        "git",
        &["git"],
        "
        export GIT_AUTHOR_DATE=2001-01-01T00:00:00Z GIT_COMMITTER_DATE=2001-01-01T00:00:00Z
        export GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=e GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=e
        git -c init.defaultBranch=main init -q repository; cd repository
        git config core.fsync all
        seq 1 1000 >a; git add a; git commit -q -m one
        seq 1 1100 >a; cp a b; git add -A; git commit -q -m two; git tag -a -m tag tag
        git checkout -q -b other HEAD~; echo x >>a; git commit -q -a -m three; git checkout -q main
        git gc -q; git repack -q -a -d; git fsck --full --strict
        git log --all --format='%H %s'; git show-ref; git count-objects
        git clone -q . ../clone; git -C ../clone fsck --full; git -C ../clone log --all --format='%H %s'
        git bundle create -q ../bundle --all; git bundle verify -q ../bundle
        git archive --format=tar HEAD | sha256sum
        ",
    );
}

#[test]
fn archives_and_packages_say_the_same() {
    same(
        "packages",
        &["tar", "dpkg", "dpkg-deb"],
        r"
        mkdir -p tree/a/b; seq 1 9999 >tree/a/one; ln tree/a/one tree/a/two; ln -s one tree/a/three; truncate -s 1M tree/a/b/hole
        tar c --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -Sf tree.tar tree; sha256sum tree.tar
        mkdir out; tar xf tree.tar -C out; sync out/tree/a/* ; find out | sort; find out -type f | sort | xargs sha256sum
        tar rf tree.tar out; tar tf tree.tar | sort; tar df tree.tar -C . out
        mkdir -p p/DEBIAN p/usr/share/p; cp tree/a/one p/usr/share/p
        printf 'Package: p\nVersion: 1\nArchitecture: all\nMaintainer: n <n@example.org>\nDescription: d\n' >p/DEBIAN/control
        dpkg-deb --root-owner-group -b p p.deb
        mkdir -p root/var/lib/dpkg/info root/var/lib/dpkg/updates; : >root/var/lib/dpkg/status
        options='--root=root --force-not-root --force-script-chrootless'
        dpkg $options -i p.deb; dpkg $options --audit; cat root/var/lib/dpkg/status
        sha256sum root/usr/share/p/one; dpkg $options -r p; cat root/var/lib/dpkg/status
        ",
    );
}

/// How `rem run` sees the calls of those that are there.
#[test]
fn servers_of_go_are_seen() {
    for server in ["/usr/bin/etcd", "/usr/sbin/nats-server"] {
        if has(&[server]) {
            let found = remanence_intercept::inspect(server).expect("a program");
            assert_eq!(found.way(), Ok(remanence_intercept::Way::All), "{server}");
        }
    }
}

/// Calls that programs seldom make, in directories whose syncs are absorbed: with names, flags and descriptors that the kernel refuses, too.
#[test]
fn odd_calls_say_the_same() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/waits/odd.py");
    for seed in remanence_effort::seeds(3) {
        same("odd", &["python3"], &format!("python3 {script} {seed} 1500"));
    }
}
