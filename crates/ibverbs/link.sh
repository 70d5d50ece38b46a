#!/bin/sh
# Links the archive of this crate into libibverbs.so.1 and librdmacm.so.1, with rdma-core's version nodes.
#
#   link.sh ARCHIVE OUTDIR
#
# Both are made of the lists in exports/: a name and its node on each line. The second library only jumps into the first
# one, where its functions are exported once more, as rem_NAME of the node REMANENCE_1: so the two share all state.
# Nothing is done if the libraries are newer than what they are made of; several may call this at once.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
archive=$1
out=$2
cc=${CC:-cc}

mkdir -p "$out"
exec 9>"$out/.lock"
flock 9

newest=$out/librdmacm.so.1
if [ -e "$newest" ] && [ "$newest" -nt "$archive" ] && [ "$newest" -nt "$here/link.sh" ] &&
	[ "$newest" -nt "$here/src/cancel.c" ] &&
	[ "$newest" -nt "$here/exports/ibverbs.txt" ] && [ "$newest" -nt "$here/exports/rdmacm.txt" ]; then
	exit 0
fi

tmp=$(mktemp -d -p "$out")
trap 'rm -rf "$tmp"' EXIT

# A version script of a list; what follows the last name is the second argument. Public nodes inherit from the one before
# them; private ones stand alone.
map() {
	sort -k2,2V -k1,1 "$1" | awk -v last="$2" '
		$2 != node {
			if (node != "") print (node ~ /PRIVATE/ || before == "") ? "};" : "} " before ";"
			if (node != "" && node !~ /PRIVATE/) before = node
			node = $2
			print node " {\n  global:"
		}
		{ print "    " $1 ";" }
		END { print last; print (node ~ /PRIVATE/ || before == "") ? "};" : "} " before ";" }'
}

# The private node of rdma-core 34 to 56 is in the list; these are of later releases, with the same names.
later='57 59 64 65'
grep ' IBVERBS_PRIVATE_34$' "$here/exports/ibverbs.txt" | cut -d' ' -f1 | grep -v '^verbs_register_driver_34$' >"$tmp/private"

{
	map "$here/exports/ibverbs.txt" ""
	for node in $later; do
		echo "IBVERBS_PRIVATE_$node {"
		echo '  global:'
		echo "    verbs_register_driver_$node;"
		echo '};'
	done
	echo 'REMANENCE_1 {'
	echo '  global:'
	sed 's/^\([^ ]*\) .*/    rem_\1;/' "$here/exports/rdmacm.txt"
	echo '  local: *;'
	echo '};'
} >"$tmp/ibverbs.map"
map "$here/exports/rdmacm.txt" "  local: *;" >"$tmp/rdmacm.map"

case $($cc -dumpmachine) in
x86_64*)
	jump='  jmp *rem_NAME@GOTPCREL(%rip)'
	straight='  jmp NAME'
	;;
aarch64*)
	straight='  b NAME'
	jump='  adrp x16, :got:rem_NAME
  ldr x16, [x16, #:got_lo12:rem_NAME]
  br x16'
	;;
*)
	echo "link.sh: no jumps for $($cc -dumpmachine)" >&2
	exit 1
	;;
esac
while read -r name _; do
	printf '.globl %s\n.type %s, %%function\n%s:\n' "$name" "$name" "$name"
	printf '%s\n' "$jump" | sed "s/NAME/$name/"
	printf '.size %s, . - %s\n' "$name" "$name"
done <"$here/exports/rdmacm.txt" >"$tmp/rdmacm.s"
echo '.section .note.GNU-stack,"",%progbits' >>"$tmp/rdmacm.s"

# A name can be in one node of a version script. In the others it is a jump to it, or a variable, which no provider changes.
{
	for node in $later; do
		echo '.text'
		while read -r name; do
			[ "$name" = verbs_allow_disassociate_destroy ] && continue
			printf '.globl at%s_%s\n.type at%s_%s, %%function\nat%s_%s:\n' \
				"$node" "$name" "$node" "$name" "$node" "$name"
			printf '%s\n' "$straight" | sed "s/NAME/$name/"
			printf '.size at%s_%s, . - at%s_%s\n' "$node" "$name" "$node" "$name"
			printf '.symver at%s_%s, %s@IBVERBS_PRIVATE_%s\n' "$node" "$name" "$name" "$node"
		done <"$tmp/private"
		variable="at${node}_verbs_allow_disassociate_destroy"
		printf '.section .rodata\n.globl %s\n.type %s, %%object\n%s: .byte 0\n.size %s, 1\n' \
			"$variable" "$variable" "$variable" "$variable"
		printf '.symver %s, verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_%s\n' "$variable" "$node"
		driver=verbs_register_driver_$node
		printf '.text\n.globl %s\n.type %s, %%function\n%s:\n' "$driver" "$driver" "$driver"
		printf '%s\n' "$straight" | sed 's/NAME/verbs_register_driver_34/'
		printf '.size %s, . - %s\n' "$driver" "$driver"
	done
	echo '.section .note.GNU-stack,"",%progbits'
} >"$tmp/later.s"

# Cancellation points of the C library, those of pthreads(7) and of Linux. A thread of the program that is cancelled must
# not unwind from one of them through frames of Rust, so src/cancel.c stands in between; one that it does not know is an
# undefined reference to __wrap_NAME here.
points='accept accept4 aio_suspend clock_nanosleep close closedir connect copy_file_range creat creat64 epoll_pwait
	epoll_pwait2 epoll_wait fallocate fallocate64 fcntl fcntl64 fdatasync fsync getaddrinfo getifaddrs getnameinfo getrandom
	lockf lockf64 mq_receive mq_send mq_timedreceive mq_timedsend msgrcv msgsnd msync nanosleep open open64 openat openat64
	opendir pause poll ppoll pread pread64 preadv preadv2 preadv64 preadv64v2 pselect pthread_cond_clockwait
	pthread_cond_timedwait pthread_cond_wait pthread_join pthread_timedjoin_np pwrite pwrite64 pwritev
	pwritev2 pwritev64 pwritev64v2 read readdir readdir64 readv realpath recv recvfrom recvmmsg recvmsg select
	sem_clockwait sem_timedwait sem_wait send sendmmsg sendmsg sendto sigpause sigsuspend sigtimedwait sigwait
	sigwaitinfo sleep splice sync_file_range syslog system tcdrain tee usleep vmsplice wait wait3 wait4 waitid waitpid
	write writev'
wraps=
for point in $points; do
	wraps="$wraps -Wl,--wrap=$point"
done
$cc -std=gnu11 -D_GNU_SOURCE -O2 -fPIC -Wall -Wextra -c -o "$tmp/cancel.o" "$here/src/cancel.c"

# -z nodelete: programs load and unload verbs libraries, and ours has threads. The linker keeps all of the archive and
# then drops what nothing exported needs.
$cc -shared -o "$tmp/libibverbs.so.1" -Wl,-soname,libibverbs.so.1 \
	-Wl,--version-script="$tmp/ibverbs.map" -Wl,-Bsymbolic-functions -Wl,--gc-sections \
	-Wl,-z,nodelete -Wl,-z,now -Wl,-z,relro -Wl,-z,defs \
	$wraps "$tmp/cancel.o" "$tmp/later.s" -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
	-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc

# A name that nobody defines is silently left out by the linker, and found by the first program that needs it.
{
	cut -d' ' -f1 "$here/exports/ibverbs.txt"
	sed 's/^\([^ ]*\) .*/rem_\1/' "$here/exports/rdmacm.txt"
} | sort >"$tmp/wanted"
nm -D --defined-only "$tmp/libibverbs.so.1" | awk '{ sub(/@.*/, "", $3); print $3 }' | sort -u >"$tmp/there"
missing=$(comm -23 "$tmp/wanted" "$tmp/there")
if [ -n "$missing" ]; then
	echo "link.sh: names of exports/*.txt that the crate does not define:" >&2
	echo "$missing" >&2
	exit 1
fi

$cc -shared -nostartfiles -o "$tmp/librdmacm.so.1" -Wl,-soname,librdmacm.so.1 \
	-Wl,--version-script="$tmp/rdmacm.map" -Wl,-z,nodelete -Wl,-z,now -Wl,-z,relro \
	-Wl,-rpath,'$ORIGIN' -Wl,--no-as-needed "$tmp/rdmacm.s" "$tmp/libibverbs.so.1"

# In this order: who finds the last one finds everything. Programs that run now keep the files they have mapped.
for library in libibverbs librdmacm; do
	ln -sfn "$library.so.1" "$out/$library.so"
	mv -f "$tmp/$library.so.1" "$out/$library.so.1"
done
