//! Messages as tables: the order of a message's fields is said once, and writing and reading both follow it.

use crate::{Malformed, Reader, Writer};

/// What the messages of a protocol have in common. Only its type is used.
pub trait Protocol {
    /// Whether integers are big-endian.
    const BIG_ENDIAN: bool;
}

/// A protocol whose lists begin with a count.
pub trait Lists: Protocol {
    /// Whether the count has four bytes, and not two.
    const WIDE: bool;
}

/// What a message of the protocol `P` can have as a field.
pub trait Field<P>: Sized {
    /// Appends it to a message.
    fn emit(&self, to: &mut Writer);

    /// Takes it off the front of a message.
    ///
    /// # Errors
    /// The bytes there are none.
    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed>;

    /// Appends some, one behind the other.
    fn emit_items(items: &[Self], to: &mut Writer) {
        items.iter().for_each(|item| item.emit(to));
    }

    /// Takes so many, one behind the other.
    ///
    /// # Errors
    /// There are not so many.
    fn parse_items(count: usize, from: &mut Reader<'_>) -> Result<Vec<Self>, Malformed> {
        from.many(count, 1, Self::parse)
    }
}

macro_rules! integers {
    ($($integer:ident $be:ident $le:ident,)*) => {$(
        impl<P: Protocol> Field<P> for $integer {
            fn emit(&self, to: &mut Writer) {
                if P::BIG_ENDIAN { to.$be(*self) } else { to.$le(*self) }
            }

            fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                if P::BIG_ENDIAN { from.$be() } else { from.$le() }
            }
        }
    )*};
}

integers! {
    u16 u16_be u16_le,
    u32 u32_be u32_le,
    u64 u64_be u64_le,
}

impl<P: Protocol> Field<P> for u8 {
    fn emit(&self, to: &mut Writer) {
        to.u8(*self);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.u8()
    }

    fn emit_items(items: &[Self], to: &mut Writer) {
        to.bytes(items);
    }

    fn parse_items(count: usize, from: &mut Reader<'_>) -> Result<Vec<Self>, Malformed> {
        from.take(count).map(<[Self]>::to_vec)
    }
}

/// A byte that is 0 or 1.
impl<P: Protocol> Field<P> for bool {
    fn emit(&self, to: &mut Writer) {
        to.u8((*self).into());
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.bool()
    }
}

impl<P: Protocol, const N: usize> Field<P> for [u8; N] {
    fn emit(&self, to: &mut Writer) {
        to.bytes(self);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.array()
    }
}

/// A count, and the items.
impl<P: Lists, T: Field<P>> Field<P> for Vec<T> {
    fn emit(&self, to: &mut Writer) {
        const BOUNDED: &str = "lists are bounded by who makes the message";
        if P::WIDE {
            Field::<P>::emit(&u32::try_from(self.len()).expect(BOUNDED), to);
        } else {
            Field::<P>::emit(&u16::try_from(self.len()).expect(BOUNDED), to);
        }
        T::emit_items(self, to);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = if P::WIDE {
            <u32 as Field<P>>::parse(from)? as usize
        } else {
            <u16 as Field<P>>::parse(from)?.into()
        };
        T::parse_items(count, from)
    }
}

/// Makes a type a field of a protocol: a struct of the fields that are named, in that order, or an enum that begins with the byte of its variant.
///
/// ```
/// # use remanence_codec::{Field, Protocol, Reader, Writer, fields};
/// enum Ours {}
/// impl Protocol for Ours {
///     const BIG_ENDIAN: bool = true;
/// }
/// struct Place {
///     at: u32,
///     of: u8,
/// }
/// fields!(Ours: Place { of, at });
/// enum State {
///     Gone,
///     There(Place),
/// }
/// fields!(Ours: enum State { 0 = Gone, 1 = There(place), });
///
/// let mut message = Writer::new(64);
/// State::There(Place { at: 2, of: 3 }).emit(&mut message);
/// State::Gone.emit(&mut message);
/// assert_eq!(message.finish().expect("room"), [1, 3, 0, 0, 0, 2, 0]);
/// ```
#[macro_export]
macro_rules! fields {
    ($protocol:ty: enum $name:ident { $($table:tt)* }) => {
        $crate::tagged!($protocol: $name { $($table)* });

        impl $crate::Field<$protocol> for $name {
            fn emit(&self, to: &mut $crate::Writer) {
                to.u8(self.tag());
                self.emit_fields(to);
            }

            fn parse(from: &mut $crate::Reader<'_>) -> Result<Self, $crate::Malformed> {
                let tag = from.u8()?;
                Self::parse_fields(tag, from)
            }
        }
    };
    ($protocol:ty: $name:ident { $($field:tt),* $(,)? }) => {
        impl $crate::Field<$protocol> for $name {
            fn emit(&self, to: &mut $crate::Writer) {
                $($crate::Field::<$protocol>::emit(&self.$field, to);)*
            }

            fn parse(from: &mut $crate::Reader<'_>) -> Result<Self, $crate::Malformed> {
                Ok(Self { $($field: $crate::Field::<$protocol>::parse(from)?,)* })
            }
        }
    };
}

/// Gives an enum `tag`, `emit_fields` and `parse_fields` by a table of its variants: the byte that tells one, and its fields in their order.
#[macro_export]
macro_rules! tagged {
    ($protocol:ty: $name:ident {
        $($tag:literal = $variant:ident $({ $($field:ident),* $(,)? })? $(($inner:ident))?,)*
    }) => {
        impl $name {
            const fn tag(&self) -> u8 {
                match self {
                    $(Self::$variant { .. } => $tag,)*
                }
            }

            fn emit_fields(&self, to: &mut $crate::Writer) {
                match self {
                    $(Self::$variant $({ $($field,)* })? $(($inner))? => {
                        $($($crate::Field::<$protocol>::emit($field, to);)*)?
                        $($crate::Field::<$protocol>::emit($inner, to);)?
                    })*
                }
            }

            fn parse_fields(tag: u8, from: &mut $crate::Reader<'_>) -> Result<Self, $crate::Malformed> {
                Ok(match tag {
                    $($tag => Self::$variant
                        $({ $($field: $crate::Field::<$protocol>::parse(from)?,)* })?
                        $(({
                            let $inner = $crate::Field::<$protocol>::parse(from)?;
                            $inner
                        }))?,)*
                    _ => return from.fail(),
                })
            }
        }
    };
}
