//! The structures of `rdma/rdma_cma.h` and `rdma/rdma_verbs.h`.
