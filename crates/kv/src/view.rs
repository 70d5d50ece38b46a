//! What a client knows of a server, so that it can reach into its memory.

use std::collections::BTreeMap;

use crate::format::slot::TableAt;
use crate::format::{Geometry, ObjectAddress, Offset};

/// What the acknowledgement of a PUT means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// As in the paper: an update is atomic, and visible when it is acknowledged. A failure of the server may take it back,
    /// and a reader may have seen it before. Requests come by WRITE with immediate, in which the client's number is; the server
    /// answers with the address, and the client WRITEs the object there. The acknowledgement is the end of that WRITE, and nobody
    /// makes the object durable for it.
    Erda,
    /// An acknowledged update survives what the server's persistence domain survives, and so does whatever was read.
    Durable,
}

/// A link of a head's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// The byte of the medium where the region starts.
    pub at: u64,
    /// The epoch that objects in this region have to name.
    pub epoch: u32,
}

/// The memory of a server as it is laid out now: the paper's head array, and the tables.
///
/// Views are numbered. The server sends a new one when a client that goes on with the old one could miss something: a table
/// comes or goes, a region is about to be used for something else. It waits for every client to say that nothing under way
/// uses an older view, and never for a time to pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// The number of the view; each new one of a run has a higher one.
    pub number: u64,
    /// How often the store was opened; what a client has cached belongs to one of them.
    pub boot: u32,
    /// What the acknowledgement of a PUT means.
    pub mode: Mode,
    /// Whether the store lies on several servers: then the server settles a write, and ships it, before the client may
    /// believe that it lasts. The memory that clients write to is not what lasts.
    pub replicated: bool,
    /// Values of at most so many bytes go to the server with the request, in one message, and it writes them: a round trip
    /// less counts for more than its copy. 0: clients write every value, as in the paper.
    pub inline_max: u32,
    /// How the medium is divided.
    pub geometry: Geometry,
    /// The store's salt, which hashes and checksums depend on.
    pub salt: u64,
    /// The hash table, and while it is resized the one that entries move to.
    pub tables: Vec<TableAt>,
    /// The links of every head's log, by the head's ID and the link's number.
    pub links: BTreeMap<(u8, u16), Link>,
}

impl View {
    /// Where an object lies on the medium, and what its checksum covers. `None`: the view does not know the link.
    #[must_use]
    pub fn locate(&self, head: u8, offset: Offset) -> Option<(u64, ObjectAddress)> {
        let (link, unit) = self.geometry.split(offset);
        let link = self.links.get(&(head, link))?;
        let place = ObjectAddress { salt: self.salt, head, offset, epoch: link.epoch };
        Some((link.at + u64::from(unit) * crate::format::UNIT, place))
    }

    /// The most bytes that can be read from there without leaving the segment, in which every object ends.
    #[must_use]
    pub fn readable(&self, offset: Offset) -> u64 {
        let unit = u64::from(self.geometry.split(offset).1) * crate::format::UNIT;
        self.geometry.segment_len - unit % self.geometry.segment_len
    }
}
