//! Fields of CM messages: where each lies is said once, in the table of its message, by which it is both read and written.
//!
//! A table names the place of each field behind its type: `at(12)` is whole bytes from byte 12 on, big-endian; `bits(9, 0, 5)` are five bits
//! of byte 9 from its top bit on. The other places are functions of [`get`] and [`put`] too.

use super::cma::ServiceId;
use super::reject::RejReason;
use crate::psn::Psn;
use crate::types::{Gid, Pkey, Qkey, Qpn};

/// Makes a message, or a part of one, of the table of its fields.
macro_rules! message {
    (
        $(#[$doc:meta])*
        $name:ident {
            $($(#[$field_doc:meta])* $field:ident: $type:ty = $place:ident($($argument:tt)*),)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            pub(super) fn parse(data: &[u8]) -> Self {
                Self { $($field: $crate::cm::field::get::$place(data, $($argument)*),)* }
            }

            pub(super) fn emit(&self, data: &mut [u8]) {
                $($crate::cm::field::put::$place(data, &self.$field, $($argument)*);)*
            }
        }
    };
}
pub(super) use message;

/// A value of whole bytes.
pub(super) trait Bytes: Sized {
    fn get(bytes: &[u8]) -> Self;
    fn put(&self, bytes: &mut [u8]);
}

impl<const N: usize> Bytes for [u8; N] {
    fn get(bytes: &[u8]) -> Self {
        *bytes.first_chunk().expect("a table has no field behind the end")
    }

    fn put(&self, bytes: &mut [u8]) {
        bytes[..N].copy_from_slice(self);
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Bytes for $number {
            fn get(bytes: &[u8]) -> Self {
                Self::from_be_bytes(Bytes::get(bytes))
            }

            fn put(&self, bytes: &mut [u8]) {
                self.to_be_bytes().put(bytes);
            }
        }
    )*};
}
numbers!(u8 u16 u32 u64);

macro_rules! wrappers {
    ($($wrapper:ident)*) => {$(
        impl Bytes for $wrapper {
            fn get(bytes: &[u8]) -> Self {
                Self(Bytes::get(bytes))
            }

            fn put(&self, bytes: &mut [u8]) {
                self.0.put(bytes);
            }
        }
    )*};
}
wrappers!(Gid Pkey Qkey RejReason ServiceId);

macro_rules! numbers24 {
    ($($number:ident)*) => {$(
        impl Bytes for $number {
            fn get(bytes: &[u8]) -> Self {
                Self::new(get::low24(bytes, 0))
            }

            fn put(&self, bytes: &mut [u8]) {
                put::low24(bytes, &self.value(), 0);
            }
        }
    )*};
}
numbers24!(Psn Qpn);

/// A value of some bits of a byte.
pub(super) trait Bits {
    fn from_bits(bits: u8) -> Self;
    fn to_bits(&self) -> u8;
}

impl Bits for u8 {
    fn from_bits(bits: u8) -> Self {
        bits
    }

    fn to_bits(&self) -> u8 {
        *self
    }
}

impl Bits for bool {
    fn from_bits(bits: u8) -> Self {
        bits != 0
    }

    fn to_bits(&self) -> u8 {
        (*self).into()
    }
}

/// Reads the field at a place.
pub(super) mod get {
    use super::{Bits, Bytes};
    use crate::cm::req::Path;

    pub(in crate::cm) fn at<T: Bytes>(data: &[u8], at: usize) -> T {
        T::get(&data[at..])
    }

    /// A number of 24 bits.
    pub(in crate::cm) fn low24(data: &[u8], at: usize) -> u32 {
        u32::from_be_bytes([0, data[at], data[at + 1], data[at + 2]])
    }

    /// The upper 20 of 24 bits.
    pub(in crate::cm) fn flow_label(data: &[u8], at: usize) -> u32 {
        low24(data, at) >> 4
    }

    pub(in crate::cm) fn bits<T: Bits>(data: &[u8], at: usize, from: u32, width: u32) -> T {
        T::from_bits(data[at] >> (8 - from - width) & (0xff >> (8 - width)))
    }

    pub(in crate::cm) fn path(data: &[u8], at: usize) -> Path {
        Path::parse(&data[at..])
    }

    /// A path as a LAP has it: the static rate is behind the traffic class and the hop limit.
    pub(in crate::cm) fn lap_path(data: &[u8], at: usize) -> Path {
        let mut bytes: [u8; Path::LEN] = super::get::at(data, at);
        bytes[Path::RATE..Path::RATE + 3].rotate_right(1);
        Path::parse(&bytes)
    }
}

/// Writes the field at a place. The bits of it were zero.
pub(super) mod put {
    use super::{Bits, Bytes};
    use crate::cm::req::Path;

    pub(in crate::cm) fn at<T: Bytes>(data: &mut [u8], value: &T, at: usize) {
        value.put(&mut data[at..]);
    }

    pub(in crate::cm) fn low24(data: &mut [u8], value: &u32, at: usize) {
        assert!(*value < 1 << 24, "{value:#x} in a field of 24 bits");
        data[at..at + 3].copy_from_slice(&value.to_be_bytes()[1..]);
    }

    pub(in crate::cm) fn flow_label(data: &mut [u8], value: &u32, at: usize) {
        low24(data, &(value << 4), at);
    }

    pub(in crate::cm) fn bits<T: Bits>(data: &mut [u8], value: &T, at: usize, from: u32, width: u32) {
        let value = value.to_bits();
        assert!(value <= 0xff >> (8 - width), "{value} in a field of {width} bits");
        data[at] |= value << (8 - from - width);
    }

    pub(in crate::cm) fn path(data: &mut [u8], value: &Path, at: usize) {
        value.emit(&mut data[at..]);
    }

    pub(in crate::cm) fn lap_path(data: &mut [u8], value: &Path, at: usize) {
        let mut bytes = [0; Path::LEN];
        value.emit(&mut bytes);
        bytes[Path::RATE..Path::RATE + 3].rotate_left(1);
        bytes.put(&mut data[at..]);
    }
}
