# Inside the guest: hands the two ends of the one virtual wire to Soft-RoCE or to us.
#   wire.sh make; wire.sh rxe; wire.sh ours
#
# Soft-RoCE's sockets are in the first network namespace, and know no other: both its devices are there, and each sends
# through its own end of the wire, as it looks up routes by interface. Its port, 4791 at every address, is then taken
# for us, so that our two ends are in namespaces of their own, as two machines would be.
ip=/usr/sbin/ip
name() { [ "$1" = 0 ] && echo near || echo far; }
case $1 in
  make)
    mkdir -p /run/netns
    for end in 0 1; do $ip netns add "$(name $end)"; $ip -n "$(name $end)" link set lo up; done
    $ip link add wire0 mtu 4300 type veth peer name wire1 mtu 4300
    for of in all default; do
      echo 1 > /proc/sys/net/ipv4/conf/$of/accept_local
      echo 0 > /proc/sys/net/ipv4/conf/$of/rp_filter
    done;;
  rxe)
    # It has them already.
    [ -e /sys/class/infiniband/rxe1 ] && exit 0
    for end in 0 1; do
      $ip -n "$(name $end)" link set wire$end netns 1 2>/dev/null
      $ip addr add 10.88.0.$((end + 1))/24 dev wire$end
      $ip link set wire$end up
    done
    for end in 0 1; do rdma link add rxe$end type rxe netdev wire$end || exit 1; done;;
  ours)
    for end in 0 1; do
      rdma link delete rxe$end 2>/dev/null
      $ip link set wire$end netns "$(name $end)"
      $ip -n "$(name $end)" addr add 10.88.0.$((end + 1))/24 dev wire$end
      $ip -n "$(name $end)" link set wire$end up
    done;;
esac
