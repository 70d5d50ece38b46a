#!/bin/bash
# A Linux machine with Soft-RoCE (or with emulated NVDIMMs) in seconds: Debian's stock 6.12 kernel under QEMU's
# software emulation. Needs no privilege but for the tap that its caller made.
#   guest.sh build DIR              kernel, modules and initramfs in DIR; again only what has changed
#   guest.sh boot DIR TAP           boots behind the tap as 10.77.0.2 and fd77::2, with an emulated NVDIMM as /dev/dax0.0,
#                                   and runs rxe_peer, and the agent beside it; the console is this terminal
#   guest.sh alone DIR PORT TREE    boots behind no tap: what connects to 127.0.0.1:PORT talks to the agent. The files in
#                                   TREE are in the guest too, and rxe is loaded but has no device
#   guest.sh pmem DIR PROGRAM...    boots with emulated NVDIMMs, runs each program in an ext4-dax mount on one of them
#                                   (REMANENCE_TEST_DIR names it), and ends with the first status that is not 0
#   guest.sh kept DIR IMAGE PROGRAM...
#                                   boots with an emulated NVDIMM whose content the file IMAGE keeps, and runs the command in
#                                   an ext4-dax mount on it; the boot that makes IMAGE makes the file system too. This very
#                                   process becomes the emulator: who kills it cuts the guest's power
#   guest.sh disk DIR IMAGE PROGRAM...
#                                   the same with a disk (virtio) in place of the NVDIMM, and ext4 on it: what the guest's kernel
#                                   had not written yet is gone with the power
# A missing tool or package ends it with status 3 and one sentence.
set -euo pipefail
# What goes into the guest are the system's own libraries, whoever calls.
unset LD_LIBRARY_PATH LD_PRELOAD
here=$(cd "$(dirname "$0")" && pwd)
command=${1:-} dir=$(mkdir -p "${2:-.}" && cd "${2:-.}" && pwd)

missing() { echo "$*" >&2; exit 3; }
need() { for tool in "$@"; do type -P "$tool" >/dev/null || missing "$tool is not installed"; done; }
export PATH=$PATH:/usr/sbin:/sbin

kernel_version() { basename "$(ls -d "$dir"/kernel/lib/modules/6.12* 2>/dev/null | head -n 1)"; }

# One at a time: several tests share the directory.
lock() { exec 9> "$dir/lock" && flock 9; }
unlock() { exec 9>&-; }

fetch_kernel() {
  [ ! -e "$dir/kernel/.complete" ] || return 0
  need apt-cache apt-get dpkg depmod
  local package
  package=$(apt-cache search '^linux-image-6\.12\..*deb12-amd64$' | awk '{print $1}' | sort -V | tail -n 1)
  [ -n "$package" ] || missing "apt knows no linux-image-6.12 for Debian 12: run apt-get update"
  echo "fetching $package"
  rm -rf "$dir/kernel" "$dir/deb" && mkdir -p "$dir/deb"
  (cd "$dir/deb" && apt-get download -qq "$package" >/dev/null 2>&1) || missing "apt-get could not download $package"
  dpkg -x "$dir"/deb/*.deb "$dir/kernel" && rm -rf "$dir/deb"
  depmod -b "$dir/kernel" "$(basename "$dir"/kernel/lib/modules/6.12*)"
  touch "$dir/kernel/.complete"
}

# Copies a program and the libraries that it loads.
install_program() {
  local file=$1 root=$2
  cp -L --parents "$file" "$root/"
  { ldd "$file" 2>/dev/null || true; } | grep -oE '/[^ ]+' | while read -r library; do cp -Lu --parents "$library" "$root/"; done
}

# The modules named and what they need, unpacked, in the order of loading.
install_modules() {
  local root=$1 version number=0; shift
  version=$(kernel_version)
  mkdir -p "$root/modules"
  for module in "$@"; do
    modprobe -d "$dir/kernel" -S "$version" --show-depends "$module" 2>/dev/null || true
  done | awk '/^insmod/ {print $2}' | awk '!seen[$0]++' | while read -r file; do
    number=$((number + 1))
    xz -dc "$file" > "$root/modules/$(printf %03d $number)-$(basename "$file" .xz)"
  done
}

pack() { (cd "$1" && find . | LC_ALL=C sort | cpio -o -H newc --quiet | gzip -1) > "$2.new" && mv "$2.new" "$2"; }

# Verbs programs as Debian has them, those that are installed.
programs() {
  local name
  for name in ib_{write,read,send,atomic}_{lat,bw} ibv_{rc,uc,ud,srq}_pingpong ibv_devices ibv_devinfo rping ucmatose \
      udaddy cmtime rdma_server rdma_client; do
    type -P "$name" || true
  done
}

fresh_root() { rm -rf "$1" && mkdir -p "$1"/{bin,dev,proc,sys,tmp,mnt,etc/libibverbs.d} && cp "$(type -P busybox)" "$1/bin/busybox"; }

# Turns a raw namespace into one that can be mapped directly, by file systems (pfn, nd_pmem) or as a device (dax,
# dax_pmem). ndctl would do it through the same files.
namespace='namespace() {
  devices=/sys/bus/nd/devices seed=$(cat /sys/bus/nd/devices/region$1/$2_seed)
  echo namespace$1.0 > /sys/bus/nd/drivers/nd_pmem/unbind
  cat /proc/sys/kernel/random/uuid > $devices/$seed/uuid; echo 2097152 > $devices/$seed/align
  echo ram > $devices/$seed/mode 2>/dev/null; echo namespace$1.0 > $devices/$seed/namespace
  echo $seed > /sys/bus/nd/drivers/$3/bind
}'

preamble='#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin:/usr/sbin:/sbin # busybox prefers its own ip and tc to these
# No tmpfs on /tmp: what runs here keeps the path that it has on the host, which may lie there.
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /modules/*; do insmod $module 2>/dev/null || echo "could not load $module"; done'

build() {
  need qemu-system-x86_64 busybox cpio gzip xz modprobe rdma ip gcc ldd
  for header in infiniband/verbs.h rdma/rdma_cma.h rdma/rdma_user_rxe.h; do
    [ -e "/usr/include/$header" ] || missing "the C header $header is not installed (libibverbs-dev, librdmacm-dev)"
  done
  local provider=/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so
  [ -e "$provider" ] || missing "libibverbs has no rxe provider (ibverbs-providers)"
  lock
  fetch_kernel
  local stamp; stamp=$(cat "$here"/guest.sh "$here"/*.c "$provider" $(programs) | cksum)
  [ "$(cat "$dir/rxe.stamp" 2>/dev/null)" != "$stamp" ] || return 0
  echo "building the guest"
  gcc -O1 -g -Wall -Wextra -o "$dir/rxe_peer" "$here/rxe_peer.c" -libverbs -lrdmacm
  gcc -O1 -g -Wall -Wextra -o "$dir/agent" "$here/agent.c"
  gcc -O1 -g -Wall -Wextra -o "$dir/durable" "$here/durable.c" -libverbs
  local root=$dir/root
  fresh_root "$root"
  # crc32 must be loaded before rxe, or `rdma link add` fails.
  install_modules "$root" crc32_generic crc32_pclmul virtio_pci virtio_net ib_umad rdma_ucm rdma_rxe \
    nd_pmem nfit dax_pmem device_dax veth sch_netem
  echo 'driver rxe' > "$root/etc/libibverbs.d/rxe.driver"
  for file in $(type -P rdma ip tc) $(programs) "$dir"/{rxe_peer,agent,durable} "$provider" \
      /lib/x86_64-linux-gnu/lib{gcc_s.so.1,rt.so.1,util.so.1,pthread.so.0,m.so.6,dl.so.2}; do
    install_program "$file" "$root"
  done
  mv "$root/$dir"/{rxe_peer,agent,durable} "$root/bin/"
  cat > "$root/init" <<I
$preamble
mkdir -p /dev/shm /run; mount -t tmpfs shm /dev/shm
echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad; echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad
ip link set lo up; ip link set eth0 mtu 4300; ip link set eth0 up
agent &
if grep -q remanence=alone /proc/cmdline; then
  ip addr add 10.0.2.15/24 dev eth0
  wait
fi
ip addr add 10.77.0.2/24 dev eth0; ip addr add fd77::2/64 dev eth0
rdma link add rxe0 type rxe netdev eth0
$namespace
namespace 0 dax dax_pmem
rxe_peer
echo "guest ends"; poweroff -f
I
  chmod +x "$root/init"
  pack "$root" "$dir/rxe.gz"
  echo "$stamp" > "$dir/rxe.stamp"
}

emulate() {
  exec qemu-system-x86_64 -accel tcg,thread=multi -cpu "${cpu:-max}" -nographic -no-reboot -nodefaults -serial stdio \
    -kernel "$dir"/kernel/boot/vmlinuz-6.12* \
    -append "console=ttyS0 panic=-1 quiet tsc=reliable no_timer_check mitigations=off ${append:-}" "$@" </dev/null
}

pmem() {
  need qemu-system-x86_64 busybox cpio gzip xz modprobe mke2fs ldd
  lock
  fetch_kernel
  local root=$dir/pmem-root run='' file claim=${PERSISTENCE:-mem-ctrl}
  fresh_root "$root"
  install_modules "$root" crc32c_generic crc32c_intel nd_pmem nfit ext4
  install_program "$(type -P mke2fs)" "$root"
  for file in "$@"; do
    install_program "$file" "$root"
    run+="$file --nocapture --test-threads=1 || status=\$?"$'\n'
  done
  cat > "$root/init" <<I
$preamble
mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm
$namespace
namespace 0 pfn nd_pmem
$(type -P mke2fs) -q -F -t ext4 -b 4096 /dev/pmem0 2>/dev/null # not busybox' own, which makes ext2
mount -t ext4 -o dax /dev/pmem0 /mnt || poweroff -f
export REMANENCE_TEST_DIR=/mnt RUST_BACKTRACE=0
status=0
$run
echo "guest status \$status"; poweroff -f
I
  chmod +x "$root/init"
  pack "$root" "$dir/$claim.gz"
  unlock
  (emulate -smp 1 -m 768M,slots=2,maxmem=4G -machine "pc,nvdimm=on,nvdimm-persistence=$claim" \
    -object memory-backend-ram,id=m1,size=256M -device nvdimm,id=n1,memdev=m1 -initrd "$dir/$claim.gz") | tee "$dir/$claim.log"
  status=$(tr -d '\r' < "$dir/$claim.log" | sed -n 's/^guest status //p')
  exit "${status:-1}"
}

# On "pmem0" or "vda", a file system that a file keeps.
kept() {
  need qemu-system-x86_64 busybox cpio gzip xz modprobe mke2fs ldd truncate
  local device=$1 image=$2 root=$dir/kept-root append=remanence=again options= prepare=; shift 2
  local machine=(-machine pc,nvdimm=on,nvdimm-persistence=mem-ctrl -device nvdimm,id=n1,memdev=m1
    -object "memory-backend-file,id=m1,share=on,mem-path=$image,size=128M")
  if [ "$device" = vda ]; then
    machine=(-drive "file=$image,if=none,id=d1,format=raw,cache=writeback" -device virtio-blk-pci,drive=d1)
  else
    options='-o dax' prepare='namespace 0 pfn nd_pmem'
  fi
  lock
  fetch_kernel
  if [ ! -e "$image" ]; then
    append=remanence=fresh
    truncate -s 128M "$image"
    fresh_root "$root"
    install_modules "$root" crc32c_generic crc32c_intel nd_pmem nfit virtio_pci virtio_blk ext4
    install_program "$(type -P mke2fs)" "$root"
    install_program "$1" "$root"
    cat > "$root/init" <<I
$preamble
mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm; ifconfig lo up
$namespace
if grep -q remanence=fresh /proc/cmdline; then
  $prepare
  $(type -P mke2fs) -q -F -t ext4 -b 4096 /dev/$device 2>/dev/null
fi
mount -t ext4 $options /dev/$device /mnt || poweroff -f
export REMANENCE_TEST_DIR=/mnt RUST_BACKTRACE=0
$*
echo "guest status \$?"; umount /mnt; poweroff -f
I
    chmod +x "$root/init"
    pack "$root" "$image.gz"
  fi
  unlock
  emulate -smp 2 -m 768M,slots=2,maxmem=4G "${machine[@]}" -initrd "$image.gz"
}

# The kernel unpacks one archive behind the other.
alone() {
  local port=$1 tree=$2 append=remanence=alone
  # For measurements: without the instructions whose emulation takes many times as long as what they replace, which both
  # sides would use for checksums and copies on a real CPU.
  local cpu=max,pclmulqdq=off,avx=off,avx2=off,erms=off
  pack "$tree" "$dir/tree.gz"
  cat "$dir/rxe.gz" "$dir/tree.gz" > "$dir/alone.gz"
  emulate -smp 2 -m 1G -initrd "$dir/alone.gz" -device virtio-net-pci,netdev=n0,romfile= \
    -netdev "user,id=n0,restrict=on,hostfwd=tcp:127.0.0.1:$port-:7778"
}

case $command in
  build) build;;
  pmem) shift 2; pmem "$@";;
  kept) shift 2; kept pmem0 "$@";;
  disk) shift 2; kept vda "$@";;
  boot) emulate -smp 2 -m 512M,slots=2,maxmem=2G -initrd "$dir/rxe.gz" -device virtio-net-pci,netdev=n0,romfile= \
          -machine pc,nvdimm=on,nvdimm-persistence=mem-ctrl \
          -object memory-backend-ram,id=m1,size=64M -device nvdimm,id=n1,memdev=m1 \
          -netdev "tap,id=n0,ifname=$3,script=no,downscript=no";;
  alone) alone "$3" "$4";;
  *) sed -n '2,18s/^# //p' "$0"; exit 2;;
esac
