//! Two managers and a network between them.

mod linux;
mod lossy;
mod pair;
mod rules;
