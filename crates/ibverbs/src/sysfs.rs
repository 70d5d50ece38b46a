//! What programs read below `/sys` through the library.
