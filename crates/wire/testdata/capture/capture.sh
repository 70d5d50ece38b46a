#!/bin/bash
# Captures golden packets from two Linux guests that talk over Soft-RoCE. As root on Debian 12:
#   capture.sh DIR      leaves DIR/capture.pcap; takes about a minute after the packages are installed
# The guests run Debian's stock 6.12 kernel (bookworm-backports or security) under QEMU's software emulation, on
# a bridge inside a network namespace of our own. `split.py` picks one packet per file out of the capture.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && cd "$1"
dir=$PWD ns=remanence-capture-$$

apt-get install -y --no-install-recommends qemu-system-x86 busybox-static cpio kmod xz-utils iproute2 gcc libc6-dev \
  libibverbs-dev ibverbs-providers rdma-core rdmacm-utils tshark >/dev/null

if [ ! -d k ]; then
  package=$(apt-cache search '^linux-image-6\.12\..*deb12-amd64$' | awk '{print $1}' | sort -V | tail -n 1)
  apt-get download "$package" && dpkg -x "$package"_*.deb k && rm -f "$package"_*.deb
fi
kernel=$(basename k/lib/modules/6.12*)
depmod -b k "$kernel"
gcc -O1 -o capture "$here/capture.c" -libverbs

rm -rf root; mkdir -p root/{bin,dev,proc,sys,tmp,mods,etc/libibverbs.d}
cp "$(command -v busybox)" root/bin/busybox
cp capture root/bin/
# crc32 must be loaded before rxe, or `rdma link add` fails.
n=0
for module in crc32_generic crc32_pclmul virtio_net ib_umad rdma_ucm rdma_rxe; do
  modprobe -d k -S "$kernel" --show-depends "$module" 2>/dev/null || true
done | awk '/^insmod/ {print $2}' | awk '!seen[$0]++' | while read -r ko; do
  n=$((n + 1)); xz -dc "$ko" > "root/mods/$(printf %03d $n)-$(basename "$ko" .xz)"
done
echo 'driver rxe' > root/etc/libibverbs.d/rxe.driver
for file in "$(command -v rping)" "$(command -v udaddy)" "$(command -v rdma)" "$(command -v ip)" "$PWD/capture" \
            /usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so /lib/x86_64-linux-gnu/libgcc_s.so.1; do
  [ "$file" = "$PWD/capture" ] || cp -L --parents "$file" root/
  { ldd "$file" || true; } | grep -oE '/[^ ]+' | while read -r lib; do cp -L --parents "$lib" root/; done
done
cat > root/init <<'I'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin:/usr/sbin:/sbin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev; mount -t tmpfs t /tmp
for m in /mods/*; do insmod $m 2>/dev/null || echo failed $m; done
read cmdline < /proc/cmdline
case $cmdline in *role=server*) me=2;; *) me=3;; esac
echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad; echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad
ip link set lo up; ip link set eth0 up
ip addr add 10.77.0.$me/24 dev eth0; ip addr add fd77::$me/64 dev eth0
rdma link add rxe0 type rxe netdev eth0
sleep 1
if [ $me = 2 ]; then
  capture server
  timeout 20 udaddy -b 10.77.0.2 -c 1 -C 1 -S 64
  timeout 20 rping -s -a fd77::2 -C 1 -S 64
  sleep 3
else
  capture client 10.77.0.2
  sleep 2; timeout 20 udaddy -s 10.77.0.2 -c 1 -C 1 -S 64
  sleep 3; timeout 20 rping -c -a fd77::2 -C 1 -S 64
  timeout 20 rping -c -a 10.77.0.2 -p 9 -C 1
fi
echo DONE; poweroff -f
I
chmod +x root/init
(cd root && find . | cpio -o -H newc 2>/dev/null | gzip -1) > initrd.gz

ip netns add "$ns"
trap 'kill $(jobs -p) 2>/dev/null || true; wait; ip netns del "$ns"' EXIT
ip -n "$ns" link add br0 type bridge
ip -n "$ns" link set br0 up
for tap in server client; do
  ip -n "$ns" tuntap add "$tap" mode tap
  ip -n "$ns" link set "$tap" master br0 up
done
ip netns exec "$ns" dumpcap -q -P -i br0 -f 'udp port 4791' -w "$dir/capture.pcap" &
dump=$!
guest() {
  ip netns exec "$ns" timeout 200 qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 1 -m 512M -nographic -no-reboot \
    -kernel "$dir"/k/boot/vmlinuz-6.12* -initrd "$dir/initrd.gz" \
    -append "console=ttyS0 panic=-1 quiet tsc=reliable no_timer_check mitigations=off role=$1" \
    -netdev "tap,id=n0,ifname=$1,script=no,downscript=no" -device "virtio-net-pci,netdev=n0,mac=52:54:00:77:00:0$2" \
    </dev/null > "$dir/$1.log" 2>&1
}
guest server 2 & server=$!
guest client 3 & client=$!
wait "$client" "$server" || true
kill -INT "$dump"; wait "$dump" || true
tshark -r capture.pcap -T fields -e infiniband.bth.opcode 2>/dev/null | sort -n | uniq -c
