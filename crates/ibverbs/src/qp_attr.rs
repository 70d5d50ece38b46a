//! Attributes of queue pairs, between C and the engine.
