# counters.sh REM: what a port has counted, read by a process of its own after others have ended. Numbers of a network
# namespace that is gone may be there already, under the same name.
set -eu
rem=$1
at=/sys/class/infiniband/rem_lo/ports/1

count() { "$rem" verbs -- cat "$at/$1"; }

# Runs a server, and a client that is tried until the server listens.
pair() {
	"$rem" verbs -- $1 >/dev/null &
	until "$rem" verbs -- $2 >/dev/null 2>&1; do :; done
	wait
}

sends=$(count hw_counters/rdma_sends) receives=$(count hw_counters/rdma_recvs) errors=$(count counters/port_rcv_errors)
pair "ibv_rc_pingpong -d rem_lo -g 0 -n 1000" "ibv_rc_pingpong -d rem_lo -g 0 -n 1000 127.0.0.1"
echo closed: $(($(count hw_counters/rdma_sends) - sends)) $(($(count hw_counters/rdma_recvs) - receives)) \
	$(($(count counters/port_rcv_errors) - errors)) $(count hw_counters/lifespan)
