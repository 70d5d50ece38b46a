//! The environment variables that say how devices are opened, parsed once.
