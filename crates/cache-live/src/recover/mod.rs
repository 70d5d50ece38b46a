//! Recovery on real files: the executor of what [`remanence_cache::recovery`] decides.
