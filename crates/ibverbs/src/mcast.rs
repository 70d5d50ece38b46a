//! Multicast groups.
