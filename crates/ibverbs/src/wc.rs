//! Work completions, from the engine to C.
