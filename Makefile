# Three commands do everything on a fresh Debian machine with a Rust toolchain:
#   make demo   builds the release binary and runs the main job on real input
#   make verbs  builds it and the libraries under unmodified verbs programs
#   make test   installs what the tests need, then runs every check: this is CI
# And two for a night:
#   make soak   what takes hours: many seeds, many kills, every mutation
#   make stress the tests that take real time, 50 times each beside busy loops
# And what the loss of power takes from NATS, without the write cache and under it:
#   make power
.PHONY: demo verbs test soak stress power check deps-demo deps-test deps-soak
.DEFAULT_GOAL := help

# Where cargo builds.
TARGET := $(or $(CARGO_TARGET_DIR),./target)

# A C compiler and linker are all that the build itself needs beside Rust; scripts/toolchain looks for them.
DEMO_PACKAGES := gcc libc6-dev
# tshark reads our captures; QEMU boots a stock kernel as a Soft-RoCE peer; the next ones build and run that guest; the
# line from perftest on is verbs programs that run on our libraries, what looks for leaks while they do, and sqlite3, a program under the write cache; the last one
# is Redis and memcached to be compared with, Redis clients that run on our gateway, and a parser of what Prometheus reads. Go, if
# there is none, builds the second opinion about histories (tests/porcupine).
TEST_PACKAGES := $(DEMO_PACKAGES) tshark iproute2 qemu-system-x86 busybox-static cpio kmod xz-utils rdma-core \
	ibverbs-providers ibverbs-utils rdmacm-utils e2fsprogs spin libibverbs-dev librdmacm-dev \
	perftest qperf fio librpma-dev python3-pyverbs ucx-utils libfabric-bin openmpi-bin python3-mpi4py dapl2-utils \
	valgrind sqlite3 \
	redis-server redis-tools memcached python3-redis libhiredis-dev python3-prometheus-client \
	$(if $(shell command -v go 2>/dev/null),,golang-go)
# Programs under the write cache that take long to install, or to be killed often enough; what else of them runs in `make test` is there anyway.
SOAK_PACKAGES := postgresql-15 rocksdb-tools etcd-server etcd-client nats-server default-jdk-headless git

help:
	@sed -n '1,9p' Makefile

demo: deps-demo
	@echo "==> building rem (release)"
	cargo build --release --locked -p remanence-cli
	@echo "==> rem demo"
	$(TARGET)/release/rem demo

verbs: deps-demo
	@echo "==> building rem and the drop-in libraries (release)"
	cargo build --release --locked -p remanence-cli
	cargo xtask dropin --release
	@echo "==> ready: $(TARGET)/release/rem verbs -- ibv_devinfo"

test: deps-test
	cargo xtask check

soak: deps-test deps-soak
	cargo xtask soak

stress: deps-test
	cargo xtask stress

power: deps-demo
	cargo test --locked -p remanence-preload --test waits power_failure -- --nocapture

check:
	cargo xtask check

# Nothing is begun that cannot end, and the remedy is the last thing that is said.
deps-demo:
	$(eval REMEDY := $(shell scripts/toolchain))
	$(if $(REMEDY),$(error $(REMEDY)))

deps-test: deps-demo
	@scripts/debian-packages $(TEST_PACKAGES)

deps-soak: deps-demo
	@scripts/debian-packages $(SOAK_PACKAGES)
