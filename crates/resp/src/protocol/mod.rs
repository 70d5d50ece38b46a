//! The bytes: requests in, replies out.

mod decoder;
mod frame;
mod inline;
mod writer;

pub use decoder::{Decoder, Limits, ProtocolError, Request, Run};
pub use frame::{Frame, FrameError, parse_frame};
pub use writer::{Version, Writer};
