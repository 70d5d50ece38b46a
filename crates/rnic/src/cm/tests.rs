//! Two managers and a network between them.

mod lossy;
mod pair;
mod rules;
