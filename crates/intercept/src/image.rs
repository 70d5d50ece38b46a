//! An ELF object as the scanner sees it: segments with addresses, and where its functions begin and end.
//!
//! Read first: the ELF-64 object file format, chapters 1 and 5; the Linux Standard Base, 10.6 (`.eh_frame` and `.eh_frame_hdr`).
//! The same view is made of a file and of what is mapped in this process. No byte of it is believed: what does not fit
//! is left out, and the scanner goes on with less knowledge.

use std::ops::Range;

/// Bytes that are loaded at an address.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Where its first byte is.
    pub address: u64,
    /// What is there.
    pub bytes: &'a [u8],
    /// Whether it may be executed.
    pub executable: bool,
}

/// An object: its segments, and what tells where functions begin.
#[derive(Clone, Debug, Default)]
pub struct Image<'a> {
    /// What is loaded, in any order.
    pub segments: Vec<Segment<'a>>,
    /// The address of its `.eh_frame_hdr`, if it has one.
    pub eh_frame_hdr: Option<u64>,
}

impl<'a> Image<'a> {
    /// The bytes at an address, to the end of their segment.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<&'a [u8]> {
        self.segments.iter().find_map(|segment| {
            let offset = usize::try_from(address.checked_sub(segment.address)?).ok()?;
            segment.bytes.get(offset..).filter(|rest| !rest.is_empty())
        })
    }

    /// Whether an address is in a segment that may be executed.
    #[must_use]
    pub fn is_code(&self, address: u64) -> bool {
        self.segments.iter().any(|segment| {
            segment.executable
                && address.checked_sub(segment.address).is_some_and(|at| at < segment.bytes.len() as u64)
        })
    }

    /// The functions that `.eh_frame_hdr` lists, in order and without overlaps. None if there is no such table, or a
    /// table in an encoding that linkers do not write.
    #[must_use]
    pub fn functions(&self) -> Vec<Range<u64>> {
        let mut functions: Vec<_> = self.frame_table().unwrap_or_default();
        functions.sort_unstable_by_key(|function| (function.start, function.end));
        let mut until = 0;
        functions.retain(|function| {
            let apart =
                function.start >= until && function.end > function.start && self.is_code(function.start);
            if apart {
                until = function.end;
            }
            apart
        });
        functions
    }

    fn frame_table(&self) -> Option<Vec<Range<u64>>> {
        /// A count of four bytes, unsigned, and entries of four bytes, signed, relative to the table's own address.
        const ENCODINGS: [u8; 2] = [0x03, 0x3b];
        let header = self.eh_frame_hdr?;
        let bytes = self.at(header)?;
        let (head, rest) = (bytes.get(..12)?, bytes.get(12..)?);
        if head[0] != 1 || head[2..4] != ENCODINGS {
            return None;
        }
        let count = word(head, 8)? as usize;
        let entries = rest.get(..count.checked_mul(8)?)?;
        Some(entries.chunks_exact(8).filter_map(|entry| self.function(header, entry)).collect())
    }

    /// An entry of the table: where a function starts, and its frame description, which has its length.
    fn function(&self, header: u64, entry: &[u8]) -> Option<Range<u64>> {
        let start = header.wrapping_add_signed(i64::from(signed(entry, 0)?));
        let description = header.wrapping_add_signed(i64::from(signed(entry, 4)?));
        let fields = self.at(description)?;
        // The description's own start proves that its pointers are relative and of four bytes, as the length is then.
        let said = description.wrapping_add(8).wrapping_add_signed(i64::from(signed(fields, 8)?));
        let end = start.saturating_add(u64::from(word(fields, 12)?));
        let begins = start + u64::from(self.is_signal_frame(description, fields));
        (said == start).then_some(begins..end)
    }

    /// Whether a description is of what returns from a signal handler. Such a description begins one byte before the code
    /// does, as unwinders look for the instruction before the one that they are told.
    fn is_signal_frame(&self, description: u64, fields: &[u8]) -> bool {
        let common = word(fields, 4).and_then(|back| (description + 4).checked_sub(u64::from(back)));
        let augmentation = common.and_then(|common| self.at(common)).and_then(|common| common.get(9..));
        augmentation.is_some_and(|rest| {
            rest.iter().take(8).take_while(|&&letter| letter != 0).any(|&letter| letter == b'S')
        })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn signed(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A program header, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub struct ProgramHeader {
    /// What it describes: one of [`LOAD`](Self::LOAD) and the like.
    pub kind: u32,
    /// The rights of its memory; bit 0 is that to be executed.
    pub flags: u32,
    /// Where it begins in the file.
    pub offset: u64,
    /// Where it begins in memory, relative to where the object is loaded.
    pub address: u64,
    /// How many bytes the file has of it.
    pub length: u64,
}

impl ProgramHeader {
    /// The kind of a segment that is loaded.
    pub const LOAD: u32 = 1;
    /// The kind of the dynamic section.
    pub const DYNAMIC: u32 = 2;
    /// The kind of what names the dynamic loader.
    pub const INTERPRETER: u32 = 3;
    /// The kind of `.eh_frame_hdr`.
    pub const EH_FRAME: u32 = 0x6474_e550;
}

/// An ELF file of this architecture, without its section headers: what a stripped program still has.
#[derive(Clone, Debug)]
pub struct Elf<'a> {
    bytes: &'a [u8],
    /// Whether it is loaded at any address (`ET_DYN`).
    pub relocatable: bool,
    /// Where it begins to be executed; 0 if nowhere.
    pub entry: u64,
    /// Its program headers.
    pub headers: Vec<ProgramHeader>,
}

impl<'a> Elf<'a> {
    /// Reads a file's headers.
    ///
    /// # Errors
    /// It is no ELF file, one of another architecture, or cut short.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ElfError> {
        const SIZE: usize = 56;
        /// 64 bits, little endian, version 1.
        const IDENTITY: [u8; 7] = [0x7f, b'E', b'L', b'F', 2, 1, 1];
        const EM_X86_64: u16 = 62;
        if !bytes.starts_with(&IDENTITY[..4]) {
            return Err(ElfError::NoElf);
        }
        let machine = half(bytes, 18).ok_or(ElfError::CutShort)?;
        if !bytes.starts_with(&IDENTITY) || machine != EM_X86_64 {
            return Err(ElfError::Machine(machine));
        }
        let kind = half(bytes, 16).ok_or(ElfError::CutShort)?;
        match kind {
            2 | 3 => {}
            1 => return Err(ElfError::Object),
            4 => return Err(ElfError::Core),
            _ => return Err(ElfError::Kind(kind)),
        }
        let table = long(bytes, 32).and_then(|at| usize::try_from(at).ok()).ok_or(ElfError::CutShort)?;
        let (size, count) = (half(bytes, 54), half(bytes, 56).map(usize::from));
        if size.map(usize::from) != Some(SIZE) {
            return Err(ElfError::CutShort);
        }
        let table = bytes.get(table..).ok_or(ElfError::CutShort)?;
        let header = |entry: &[u8]| {
            Some(ProgramHeader {
                kind: word(entry, 0)?,
                flags: word(entry, 4)?,
                offset: long(entry, 8)?,
                address: long(entry, 16)?,
                length: long(entry, 32)?,
            })
        };
        let headers: Option<Vec<_>> = table.chunks_exact(SIZE).take(count.unwrap_or(0)).map(header).collect();
        let headers = headers.filter(|headers| Some(headers.len()) == count).ok_or(ElfError::CutShort)?;
        let entry = long(bytes, 24).ok_or(ElfError::CutShort)?;
        Ok(Self { bytes, relocatable: kind == 3, entry, headers })
    }

    /// Whether the file has all that its headers speak of, and code among that: what is missing would be found to make no system call.
    ///
    /// # Errors
    /// It was cut short, or its headers are damaged.
    pub fn check(&self) -> Result<(), ElfError> {
        let has = self.bytes.len() as u64;
        let read =
            |kind| matches!(kind, ProgramHeader::LOAD | ProgramHeader::DYNAMIC | ProgramHeader::INTERPRETER);
        for header in self.headers.iter().filter(|header| read(header.kind)) {
            let ends = header.offset.saturating_add(header.length);
            if ends > has {
                return Err(ElfError::Missing { ends, has });
            }
        }
        // Nothing is read of these; but a linker puts them at the end, so that they are the first to go.
        let field = |at| half(self.bytes, at).map_or(0, u64::from);
        let (size, count) = (field(58), field(60));
        let sections = long(self.bytes, 40).unwrap_or(0);
        let ends = sections.saturating_add(size * count);
        if count > 0 && ends > has {
            return Err(ElfError::Sections { ends, has });
        }
        let image = self.image();
        if !image.segments.iter().any(|segment| segment.executable && !segment.bytes.is_empty()) {
            return Err(ElfError::NoCode);
        }
        if self.entry != 0 && !image.is_code(self.entry) {
            return Err(ElfError::Entry(self.entry));
        }
        Ok(())
    }

    /// What a header describes, as far as the file has it.
    #[must_use]
    pub fn content(&self, header: &ProgramHeader) -> &'a [u8] {
        let range = usize::try_from(header.offset).ok().zip(usize::try_from(header.length).ok());
        let range = range.and_then(|(start, length)| Some(start..start.checked_add(length)?));
        range.and_then(|range| self.bytes.get(range)).unwrap_or_default()
    }

    /// The path of the dynamic loader; none for a static program.
    #[must_use]
    pub fn interpreter(&self) -> Option<&'a str> {
        let header = self.headers.iter().find(|header| header.kind == ProgramHeader::INTERPRETER)?;
        let path = self.content(header);
        std::str::from_utf8(path.strip_suffix(&[0]).unwrap_or(path)).ok()
    }

    /// Whether it is a library: loaded at any address, and nothing that could be executed by itself.
    #[must_use]
    pub fn is_library(&self) -> bool {
        self.relocatable && self.entry == 0
    }

    /// The file as it would be loaded at address 0.
    #[must_use]
    pub fn image(&self) -> Image<'a> {
        let of = |kind| self.headers.iter().filter(move |header| header.kind == kind);
        let segments = of(ProgramHeader::LOAD)
            .map(|header| Segment {
                address: header.address,
                bytes: self.content(header),
                executable: header.flags & 1 != 0,
            })
            .collect();
        Image { segments, eh_frame_hdr: of(ProgramHeader::EH_FRAME).map(|header| header.address).next() }
    }
}

/// Why a file is no program that could be looked into.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ElfError {
    /// It has another magic number, as scripts do.
    #[error("it is no ELF file")]
    NoElf,
    /// It is for another kind of CPU, by its `e_machine`.
    #[error("it is for another architecture (machine {0}) than x86-64")]
    Machine(u16),
    /// Its headers are not whole.
    #[error("its headers are cut short, or damaged")]
    CutShort,
    /// It was compiled, and not linked.
    #[error("it is an object file, which is to be linked yet")]
    Object,
    /// It is what was left of a process.
    #[error("it is a core dump: ask about the program that left it")]
    Core,
    /// It says that it is of a kind that is none of a program or a library, by its `e_type`.
    #[error("it says that it is neither a program nor a library (type {0}): its header is damaged")]
    Kind(u16),
    /// What its program headers have loaded is not all there.
    #[error(
        "it is not whole: what is loaded of it ends at byte {ends}, and it has {has} bytes: it was cut short, or its headers are damaged"
    )]
    Missing {
        /// Where what is loaded ends in the file.
        ends: u64,
        /// Bytes of the file.
        has: u64,
    },
    /// Its section headers are not all there.
    #[error(
        "it is not whole: its section headers end at byte {ends}, and it has {has} bytes: it was cut short, or its header is damaged"
    )]
    Sections {
        /// Where they end in the file.
        ends: u64,
        /// Bytes of the file.
        has: u64,
    },
    /// No part of it is loaded to be executed.
    #[error("nothing of it is loaded to be executed: its program headers are damaged, or it is no program")]
    NoCode,
    /// It begins where it has no code.
    #[error("it is to begin at {0:#x}, where it has no code: its headers are damaged")]
    Entry(u64),
}
