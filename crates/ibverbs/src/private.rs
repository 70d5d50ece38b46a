//! The private version node that provider libraries link to (libmlx5 and libefa, which programs link to).
