//! What messages of a pool have besides integers, which are big-endian, as everything that travels.

use remanence_codec::{Field, Lists, Malformed, Protocol, Reader, Writer, fields};
use remanence_pmem::Guarantee;
use remanence_pmem::layout::Uuid;

use super::{Code, EXTENTS_PER_MESSAGE, PoolInfo, RemoteExtent};
use crate::auth::Fingerprint;
use crate::blob::{BlobName, Digest, Listing, State, Version};

/// The protocol of a pool, for the tables of its messages.
pub(super) enum Pool {}

impl Protocol for Pool {
    const BIG_ENDIAN: bool = true;
}

impl Lists for Pool {
    const WIDE: bool = false;
}

fields!(Pool: Uuid { 0 });
fields!(Pool: Fingerprint { 0 });
fields!(Pool: Digest { 0 });
fields!(Pool: Version { counter, writer });
fields!(Pool: PoolInfo { uuid, size, capacity, free, blobs, sequence, guarantee, survives });
fields!(Pool: Listing { name, version, state });
fields!(Pool: enum State { 0 = Deleted, 1 = Live { len, digest }, });

impl Field<Pool> for RemoteExtent {
    fn emit(&self, to: &mut Writer) {
        to.u64_be(self.addr);
        to.u64_be(self.len);
        to.u32_be(self.rkey);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let run = Self { addr: from.u64_be()?, len: from.u64_be()?, rkey: from.u32_be()? };
        // A READ of no bytes would be taken for the end of the blob.
        if run.len == 0 || run.addr.checked_add(run.len).is_none() { from.fail() } else { Ok(run) }
    }

    fn parse_items(count: usize, from: &mut Reader<'_>) -> Result<Vec<Self>, Malformed> {
        if count > EXTENTS_PER_MESSAGE { from.fail() } else { from.many(count, 1, Self::parse) }
    }
}

impl Field<Pool> for Guarantee {
    fn emit(&self, to: &mut Writer) {
        to.u16_be(self.to_bits());
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Self::from_bits(from.u16_be()?).ok_or(from.malformed())
    }
}

impl Field<Pool> for Code {
    fn emit(&self, to: &mut Writer) {
        to.u8(*self as u8);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let code = from.u8()?;
        Self::ALL.into_iter().find(|c| *c as u8 == code).ok_or(from.malformed())
    }
}

impl Field<Pool> for BlobName {
    fn emit(&self, to: &mut Writer) {
        emit_text(self.as_str(), to);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (len, here) = (from.u16_be()?, from.malformed());
        Self::from_bytes(from.take(len.into())?).map_err(|_| here)
    }
}

impl Field<Pool> for Option<BlobName> {
    fn emit(&self, to: &mut Writer) {
        to.u8(self.is_some().into());
        self.iter().for_each(|name| name.emit(to));
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.bool()?.then(|| Field::<Pool>::parse(from)).transpose()
    }
}

impl Field<Pool> for String {
    fn emit(&self, to: &mut Writer) {
        emit_text(self, to);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (len, here) = (from.u16_be()?, from.malformed());
        let text = std::str::from_utf8(from.take(len.into())?).map_err(|_| here)?;
        // It will be printed: no terminal may be told what to do by a peer.
        if text.chars().any(char::is_control) { Err(here) } else { Ok(text.to_owned()) }
    }
}

fn emit_text(text: &str, to: &mut Writer) {
    to.u16_be(text.len().try_into().expect("texts are bounded by who makes the message"));
    to.bytes(text.as_bytes());
}
