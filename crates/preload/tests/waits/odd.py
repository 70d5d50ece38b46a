"""odd.py SEED COUNT [synced]: makes so many calls that programs seldom make below the directory that it is in, and says what each gave, and what is there then. It knows nothing of a cache:
what it says is the same with one. With one more argument all of it is synced first, and it waits. `odd.py tree` says only what is there."""
import ctypes, hashlib, os, random, stat, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NUMBER = dict(
    write=1, open=2, close=3, lseek=8, pwrite=18, writev=20, dup=32, dup2=33, sendfile=40, fsync=74, fdatasync=75,
    truncate=76, ftruncate=77, rename=82, mkdir=83, rmdir=84, creat=85, link=86, unlink=87, symlink=88, chmod=90,
    fchmod=91, chown=92, mknod=133, setxattr=188, fsetxattr=190, removexattr=197, openat=257, mkdirat=258, fchownat=260,
    unlinkat=263, renameat=264, linkat=265, symlinkat=266, fchmodat=268, utimensat=280, fallocate=285, dup3=292,
    pwritev=296, renameat2=316, copy_file_range=326, pwritev2=328, openat2=437, fchmodat2=452,
)
HERE = -100
draw = random.Random(sys.argv[1])
kept, fds = [], []


def call(name, *arguments):
    """What the kernel gives, or its error."""
    given = []
    for argument in arguments:
        if isinstance(argument, bytes):
            argument = ctypes.create_string_buffer(argument)
            kept.append(argument)
        given.append(ctypes.c_long(argument) if isinstance(argument, int) else argument)
    value = libc.syscall(ctypes.c_long(NUMBER[name]), *given)
    return value if value >= 0 else -ctypes.get_errno()


NAMES = [b"a", b"b", b"c", b"s", b"t", b"l", b"loop", b"nowhere", b"f", b"x\ny", b"\xff\xfe", b"n" * 255, b"n" * 256, b".", b"..", b""]
PLACES = [b"", b"", b"", b"d0/", b"d0/", b"d1/", b"d1/", b"d0/s/", b"./d1//", b"d0/../d1/", b"ld/", b"a/", b"missing/", b"/proc/self/cwd/d0/"]


def path():
    one = draw.choice(PLACES) + draw.choice(NAMES)
    end = draw.choice([b""] * 12 + [b"/", b"//", b"/."])
    if draw.random() < 0.01:
        return 0 if draw.random() < 0.5 else 1
    if draw.random() < 0.01:
        return one + b"/" * 4200
    if fds and draw.random() < 0.03:
        return b"/proc/self/fd/%d" % draw.choice(fds)
    return one + end


def directory():
    return draw.choice([HERE, HERE, HERE, D0, D1, -1, 999] + fds[:2])


def fd():
    return draw.choice(fds) if fds and draw.random() < 0.95 else draw.choice([-1, 999, D0, D1])


def flags():
    some = os.O_NONBLOCK | draw.choice([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR, 3])
    for flag, share in [
        (os.O_CREAT, 0.6), (os.O_EXCL, 0.2), (os.O_TRUNC, 0.2), (os.O_APPEND, 0.2), (os.O_NOFOLLOW, 0.1), (os.O_CLOEXEC, 0.5),
        (os.O_DIRECTORY, 0.04), (os.O_PATH, 0.04), (os.O_TMPFILE, 0.04), (os.O_DSYNC, 0.05), (os.O_SYNC, 0.03), (0x4000_0000, 0.01),
    ]:
        if draw.random() < share:
            some |= flag
    return some


def mode():
    return draw.choice([0o644, 0o600, 0o755, 0o444, 0o4755, 0o2755, 0o1777, 0o200, 0, 0o170777])


def opened(value):
    if value >= 0:
        fds.append(value)
        if len(fds) > 10:
            close()
    return value


def close():
    value = call("close", fds.pop(draw.randrange(len(fds)))) if fds else call("close", 999)
    return value


def data():
    return bytes([draw.randrange(256)]) * draw.choice([0, 1, 7, 600, 4096, 5000, 40000])


def vectors():
    parts = [ctypes.create_string_buffer(b"v" * draw.choice([1, 0, 3, 4096])) for _ in range(draw.choice([0, 1, 3]))]
    kept.extend(parts)
    return struct.pack(f"{2 * len(parts)}Q", *[n for part in parts for n in (ctypes.addressof(part), len(part) - 1)]) + b" ", len(parts)


def how():
    size = draw.choice([24] * 8 + [8, 0, 32])
    permits = mode() & draw.choice([0o7777, 0o7777, 0o177777])
    return struct.pack("QQQQ", flags() & draw.choice([-1, ~0x4000_0000]), permits if draw.random() < 0.9 else 0, draw.choice([0] * 6 + [4, 8, 1 << 40]), 0), size


def times():
    return draw.choice([0, struct.pack("qqqq", 5, 0, 1000, 7), struct.pack("qqqq", 0, (1 << 30) - 1, 0, (1 << 30) - 2)])


def length():
    return draw.choice([0, 1, 100, 4096, 9999, 70000])


def small():
    return draw.choice([length(), length(), length(), -1])


def one():
    what = draw.choice(CALLS)
    if what == "open":
        return what, opened(call("open", path(), flags(), mode()))
    if what == "openat":
        return what, opened(call("openat", directory(), path(), flags(), mode()))
    if what == "creat":
        return what, opened(call("creat", path(), mode()))
    if what == "openat2":
        text, size = how()
        return what, opened(call("openat2", directory(), path(), text, size))
    if what in ("mkdir", "chmod"):
        return what, call(what, path(), mode())
    if what in ("rmdir", "unlink"):
        return what, call(what, path())
    if what == "mkdirat":
        return what, call(what, directory(), path(), mode())
    if what == "unlinkat":
        return what, call(what, directory(), path(), draw.choice([0, 0, 0x200, 0x100, 0x201]))
    if what in ("rename", "link", "symlink"):
        return what, call(what, path(), path())
    if what == "renameat":
        return what, call(what, directory(), path(), directory(), path())
    if what == "renameat2":
        return what, call(what, directory(), path(), directory(), path(), draw.choice([0, 1, 2, 2, 3, 8]))
    if what == "linkat":
        return what, call(what, directory(), path(), directory(), path(), draw.choice([0, 0, 0, 0x400, 0x1000, 0x800000, 1]))
    if what == "linkfd":
        own = fd()
        if draw.random() < 0.5:
            return what, call("linkat", own, b"", HERE, path(), 0x1000)
        return what, call("linkat", HERE, b"/proc/self/fd/%d" % own, HERE, path(), 0x400)
    if what == "symlinkat":
        return what, call(what, path(), directory(), path())
    if what == "mknod":
        return what, call(what, path(), draw.choice([stat.S_IFREG, stat.S_IFIFO, 0]) | 0o600, 0)
    if what == "fchmod":
        return what, call(what, fd(), mode() & 0o7777)
    if what == "fchmodat":
        return what, call(what, directory(), path(), mode())
    if what == "fchmodat2":
        return what, call(what, directory(), path(), mode(), draw.choice([0, 0x100, 0x1000, 1]))
    if what == "chown":
        return what, call(what, path(), -1, draw.choice([-1, os.getgid()]))
    if what == "fchownat":
        return what, call(what, directory(), path(), os.getuid(), -1, draw.choice([0, 0x100, 0x1000, 1]))
    if what == "utimensat":
        return what, call(what, directory(), path(), times(), draw.choice([0, 0x100, 0x1000, 1]))
    if what == "setxattr":
        return what, call(what, path(), b"user.a", b"value", 5, 0)
    if what == "fsetxattr":
        return what, call(what, fd(), b"user.b", b"value", 5, 0)
    if what == "removexattr":
        return what, call(what, path(), b"user.a")
    if what == "truncate":
        return what, call(what, path(), small())
    if what == "ftruncate":
        return what, call(what, fd(), small())
    if what == "fallocate":
        return what, call(what, fd(), draw.choice([0, 1, 3, 0x10, 8, 0x20, 2]), small(), small())
    if what in ("write", "pwrite"):
        text = data()
        return what, call(what, fd(), text, len(text), *([small()] if what == "pwrite" else []))
    if what == "writev":
        text, count = vectors()
        return what, call(what, fd(), text, count)
    if what == "pwritev":
        text, count = vectors()
        return what, call(what, fd(), text, count, small(), 0)
    if what == "pwritev2":
        text, count = vectors()
        return what, call(what, fd(), text, count, draw.choice([-1, 0, 500]), 0, draw.choice([0, 2, 4, 0x10, 0x12, 1 << 20]))
    if what in ("fsync", "fdatasync", "dup"):
        value = call(what, fd())
        return what, opened(value) if what == "dup" else value
    if what == "dup2":
        return what, call(what, fd(), draw.choice(fds) if fds else 999)
    if what == "dup3":
        return what, call(what, fd(), draw.choice(fds) if fds else 999, draw.choice([0, os.O_CLOEXEC, 1]))
    if what == "lseek":
        return what, call(what, fd(), small(), draw.choice([0, 1, 2]))
    if what == "sendfile":
        return what, call(what, fd(), fd(), 0, length())
    if what == "copy_file_range":
        return what, call(what, fd(), 0, fd(), 0, length(), 0)
    if what == "close":
        return what, close()
    raise ValueError(what)


CALLS = ["open"] * 6 + ["openat"] * 4 + ["creat", "openat2", "openat2", "mkdir", "mkdir", "mkdirat", "rmdir", "unlink", "unlink", "unlinkat", "unlinkat"]
CALLS += ["rename"] * 3 + ["renameat", "renameat2", "renameat2", "link", "link", "linkat", "linkat", "linkfd", "symlink", "symlinkat", "mknod"]
CALLS += ["chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchownat", "utimensat", "setxattr", "fsetxattr", "removexattr", "truncate"]
CALLS += ["ftruncate", "fallocate", "write", "write", "write", "pwrite", "pwrite", "writev", "pwritev", "pwritev2", "pwritev2", "fsync", "fsync"]
CALLS += ["fdatasync", "dup", "dup2", "dup3", "lseek", "sendfile", "copy_file_range", "close", "close"]


def sync():
    for place in ["d0", "d0/s", "d1", "."]:
        try:
            own = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as why:
            print("sync", place, why.errno)
            continue
        os.fsync(own)
        os.close(own)


def sync_all():
    for base, directories, files in os.walk(b"."):
        for own in [os.path.join(base, name) for name in files] + [base]:
            if stat.S_ISREG(os.lstat(own).st_mode) or own == base:
                one = os.open(own, os.O_RDONLY)
                os.fsync(one)
                os.close(one)


def tree():
    """All that is there: of a file by which names, what its bytes are, and who may do what with it."""
    names = {}
    for base, directories, files in os.walk(b"."):
        for name in sorted(directories + files):
            own = os.path.join(base, name)
            about = os.lstat(own)
            text = b""
            if stat.S_ISREG(about.st_mode):
                if os.geteuid() != 0:
                    os.chmod(own, about.st_mode & 0o7777 | 0o600)
                text = hashlib.sha256(open(own, "rb").read()).hexdigest().encode()
            elif stat.S_ISLNK(about.st_mode):
                text = os.readlink(own)
            more = sorted(os.listxattr(own, follow_symlinks=False)) if stat.S_ISREG(about.st_mode) else []
            names.setdefault(about.st_ino, [oct(about.st_mode), 0 if stat.S_ISDIR(about.st_mode) else about.st_size, text, more, []])[4].append(own)
    for found in sorted(names.values(), key=lambda found: sorted(found[4])):
        print(found[:4], sorted(found[4]))


if sys.argv[1] == "tree":
    tree()
    sys.exit()
os.umask(draw.choice([0o22, 0o77, 0]))
for place in ["d0", "d0/s", "d1"]:
    os.mkdir(place)
os.symlink("d1", "ld")
os.symlink("loop", "d0/loop")
os.symlink("missing", "d0/nowhere")
for _ in range(3):
    sync()
D0, D1 = os.open("d0", os.O_RDONLY), os.open("d1", os.O_RDONLY)
# What the kernel refuses, where all else is right.
os.close(os.open("d0/first", os.O_CREAT | os.O_WRONLY, 0o600))
sync()
for flag in [0, 1, 0x400, 0x1000, 0x800000]:
    print("linkat", flag, call("linkat", D0, b"first", D1, b"first-%x" % flag, flag))
for size in [24, 8, 0, 32]:
    value = call("openat2", D0, b"second-%d" % size, struct.pack("QQQQ", os.O_CREAT | os.O_RDWR, 0o600, 0, 0), size)
    print("openat2", size, opened(value))
for n in range(int(sys.argv[2])):
    print(n, *one())
    del kept[:]
    if n % 23 == 0:
        sync()
if len(sys.argv) > 3:
    sync_all()
tree()
if len(sys.argv) > 3:
    print("synced", flush=True)
    sys.stdin.read()
