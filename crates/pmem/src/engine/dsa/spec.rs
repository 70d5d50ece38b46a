//! What goes to the device and what comes back: descriptors, completion records, and their numbers.
//!
//! Read first: `linux/idxd.h` (the uapi header of the idxd driver), and for the meaning the Intel Data Streaming
//! Accelerator Architecture Specification, its chapters on descriptor formats and completion records. The layouts and
//! the numbers are held against that header, as a C compiler reads it, by the test at the end.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Operations, as far as an engine of copies has a use for them.
pub(super) const MEMMOVE: u8 = 3;

/// The completion address is valid.
pub(super) const COMPLETION_ADDRESS_VALID: u32 = 0x0004;
/// A completion record is written after success too, not only after a failure.
pub(super) const REQUEST_COMPLETION: u32 = 0x0008;
/// The bytes go to the CPU's cache, not to memory.
pub(super) const CACHE_CONTROL: u32 = 0x0100;

/// Status codes of a completion record, without the bit below.
pub(super) const NONE: u8 = 0;
pub(super) const SUCCESS: u8 = 1;
/// A page was not present, and the device was not allowed to wait for it: partial completion.
pub(super) const PAGE_FAULT: u8 = 3;
/// The access that faulted was a write.
pub(super) const STATUS_WRITE: u8 = 0x80;
pub(super) const STATUS_MASK: u8 = !STATUS_WRITE;

/// 64 bytes that ask for one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub(super) struct Descriptor {
    /// PASID (20 bits), and bit 31 for privileged; both are filled in on the way by ENQCMD, and are the work queue's own
    /// where that is dedicated.
    pub(super) pasid: u32,
    /// Flags (24 bits), and the operation above them.
    pub(super) flags: u32,
    /// Where the [`Record`] goes: a multiple of 32.
    pub(super) completion: u64,
    pub(super) source: u64,
    pub(super) target: u64,
    /// Bytes, 1 to the work queue's longest transfer.
    pub(super) len: u32,
    pub(super) interrupt: u16,
    pub(super) reserved: u16,
    pub(super) operands: [u64; 3],
}

impl Descriptor {
    /// Copies `len` bytes and then fills in the record at `completion`.
    pub(super) const fn copy(source: u64, target: u64, len: u32, flags: u32, completion: u64) -> Self {
        let flags = flags | COMPLETION_ADDRESS_VALID | REQUEST_COMPLETION;
        let flags = flags | (MEMMOVE as u32) << 24;
        Self { pasid: 0, flags, completion, source, target, len, interrupt: 0, reserved: 0, operands: [0; 3] }
    }

    /// As it lies in memory.
    pub(super) fn bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        let halves = u64::from(self.len) | u64::from(self.interrupt) << 32 | u64::from(self.reserved) << 48;
        let head = u64::from(self.pasid) | u64::from(self.flags) << 32;
        let [a, b, c] = self.operands;
        let words = [head, self.completion, self.source, self.target, halves, a, b, c];
        for (word, at) in words.into_iter().zip(bytes.chunks_exact_mut(8)) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// 32 bytes in which the device says what became of a descriptor. It writes them at any time while that is under way, hence
/// atomics; the status comes with the rest or after it.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub(super) struct Record {
    pub(super) status: AtomicU8,
    pub(super) result: AtomicU8,
    pub(super) reserved: AtomicU16,
    pub(super) completed: AtomicU32,
    pub(super) fault: AtomicU64,
    pub(super) operands: [AtomicU64; 2],
}

/// A record that the device has written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Written {
    pub(super) status: u8,
    /// Of a partial completion: bytes that were copied, from the first on.
    pub(super) completed: u32,
    /// Of a page fault: an address in the page.
    pub(super) fault: u64,
}

impl Record {
    /// Before the descriptor that names it is handed over.
    pub(super) fn clear(&self) {
        self.status.store(NONE, Ordering::Relaxed);
    }

    /// What the device wrote, if it has. Whatever it had copied before is seen by those who come after this.
    pub(super) fn written(&self) -> Option<Written> {
        let status = self.status.load(Ordering::Acquire);
        (status != NONE).then(|| Written {
            status,
            completed: self.completed.load(Ordering::Relaxed),
            fault: self.fault.load(Ordering::Relaxed),
        })
    }
}

/// What a status means.
pub(super) const fn words(status: u8) -> &'static str {
    match status & STATUS_MASK {
        0x00 => "not completed",
        0x01 | 0x02 => "success",
        0x03 => "a page that is not present",
        0x04 => "a page that the system would not make present",
        0x05 | 0x06 => "a batch that failed",
        0x10 => "an operation that the queue does not allow",
        0x11 => "flags that the device does not know",
        0x12 => "a reserved field that is not zero",
        0x13 => "a transfer that is longer than the queue allows",
        0x16 => "source and target overlap",
        0x1a => "the address of the completion record cannot be reached",
        0x1b => "a completion record that is not aligned",
        0x1c => "an address that is not aligned",
        0x1d => "no right to be privileged",
        0x1e => "a traffic class that is not configured",
        0x1f..=0x21 => "an error of the hardware",
        0x22 => "an address that cannot be translated",
        _ => "no status that is known",
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{align_of, offset_of, size_of};
    use std::process::Command;

    use super::*;

    /// What a C compiler makes of the header: names and numbers, then a descriptor's bytes.
    const PROGRAM: &str = r#"
        #include <stddef.h>
        #include <stdio.h>
        #include <string.h>
        #include <linux/idxd.h>
        #define N(x) printf("%s %llu\n", #x, (unsigned long long)(x))
        int main(void) {
            N(sizeof(struct dsa_hw_desc)); N(sizeof(struct dsa_completion_record));
            N(offsetof(struct dsa_hw_desc, completion_addr)); N(offsetof(struct dsa_hw_desc, src_addr));
            N(offsetof(struct dsa_hw_desc, dst_addr)); N(offsetof(struct dsa_hw_desc, xfer_size));
            N(offsetof(struct dsa_hw_desc, int_handle)); N(offsetof(struct dsa_hw_desc, rsvd1));
            N(offsetof(struct dsa_hw_desc, op_specific));
            N(offsetof(struct dsa_completion_record, status)); N(offsetof(struct dsa_completion_record, result));
            N(offsetof(struct dsa_completion_record, rsvd));
            N(offsetof(struct dsa_completion_record, bytes_completed));
            N(offsetof(struct dsa_completion_record, fault_addr));
            N(offsetof(struct dsa_completion_record, op_specific));
            N(DSA_OPCODE_MEMMOVE); N(IDXD_OP_FLAG_CRAV); N(IDXD_OP_FLAG_RCR); N(IDXD_OP_FLAG_CC);
            N(DSA_COMP_NONE); N(DSA_COMP_SUCCESS); N(DSA_COMP_PAGE_FAULT_NOBOF);
            N(DSA_COMP_STATUS_MASK); N(DSA_COMP_STATUS_WRITE);
            N(DSA_COMP_BAD_OPCODE); N(DSA_COMP_INVALID_FLAGS); N(DSA_COMP_NOZERO_RESERVE); N(DSA_COMP_XFER_ERANGE);
            N(DSA_COMP_OVERLAP_BUFFERS); N(DSA_COMP_CRA_XLAT); N(DSA_COMP_CRA_ALIGN); N(DSA_COMP_ADDR_ALIGN);
            N(DSA_COMP_PRIV_BAD); N(DSA_COMP_TRAFFIC_CLASS_CONF); N(DSA_COMP_HW_ERR1); N(DSA_COMP_TRANSLATION_FAIL);
            struct dsa_hw_desc desc;
            memset(&desc, 0, sizeof desc);
            desc.opcode = DSA_OPCODE_MEMMOVE;
            desc.flags = IDXD_OP_FLAG_CRAV | IDXD_OP_FLAG_RCR | IDXD_OP_FLAG_CC;
            desc.completion_addr = 0x1122334455667780;
            desc.src_addr = 0x0102030405060708;
            desc.dst_addr = 0x7172737475767778;
            desc.xfer_size = 0xa1a2a3a4;
            for (size_t i = 0; i < sizeof desc; i++) printf("%02x", ((unsigned char *)&desc)[i]);
            printf("\n");
        }"#;

    fn header() -> String {
        let dir = std::env::temp_dir().join(format!("remanence-idxd-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (source, program) = (dir.join("main.c"), dir.join("main"));
        std::fs::write(&source, PROGRAM).unwrap();
        let status = Command::new("cc").arg("-o").arg(&program).arg(&source).status();
        let status = status.expect("a C compiler: apt install gcc");
        assert!(status.success(), "no linux/idxd.h: apt install linux-libc-dev");
        let output = Command::new(&program).output().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn layouts_and_numbers_are_those_of_the_kernels_header() {
        let said = header();
        let mut lines = said.lines().rev();
        let bytes = lines.next().unwrap();
        let number = |name: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("no {name} in {said}")).parse::<usize>().unwrap()
        };
        let (desc, record) = ("struct dsa_hw_desc", "struct dsa_completion_record");
        for (name, ours) in [
            (format!("sizeof({desc})"), size_of::<Descriptor>()),
            (format!("sizeof({record})"), size_of::<Record>()),
            (format!("offsetof({desc}, completion_addr)"), offset_of!(Descriptor, completion)),
            (format!("offsetof({desc}, src_addr)"), offset_of!(Descriptor, source)),
            (format!("offsetof({desc}, dst_addr)"), offset_of!(Descriptor, target)),
            (format!("offsetof({desc}, xfer_size)"), offset_of!(Descriptor, len)),
            (format!("offsetof({desc}, int_handle)"), offset_of!(Descriptor, interrupt)),
            (format!("offsetof({desc}, rsvd1)"), offset_of!(Descriptor, reserved)),
            (format!("offsetof({desc}, op_specific)"), offset_of!(Descriptor, operands)),
            (format!("offsetof({record}, status)"), offset_of!(Record, status)),
            (format!("offsetof({record}, result)"), offset_of!(Record, result)),
            (format!("offsetof({record}, rsvd)"), offset_of!(Record, reserved)),
            (format!("offsetof({record}, bytes_completed)"), offset_of!(Record, completed)),
            (format!("offsetof({record}, fault_addr)"), offset_of!(Record, fault)),
            (format!("offsetof({record}, op_specific)"), offset_of!(Record, operands)),
            ("DSA_OPCODE_MEMMOVE".into(), MEMMOVE.into()),
            ("IDXD_OP_FLAG_CRAV".into(), COMPLETION_ADDRESS_VALID as usize),
            ("IDXD_OP_FLAG_RCR".into(), REQUEST_COMPLETION as usize),
            ("IDXD_OP_FLAG_CC".into(), CACHE_CONTROL as usize),
            ("DSA_COMP_NONE".into(), NONE.into()),
            ("DSA_COMP_SUCCESS".into(), SUCCESS.into()),
            ("DSA_COMP_PAGE_FAULT_NOBOF".into(), PAGE_FAULT.into()),
            ("DSA_COMP_STATUS_MASK".into(), STATUS_MASK.into()),
            ("DSA_COMP_STATUS_WRITE".into(), STATUS_WRITE.into()),
        ] {
            assert_eq!(ours, number(&name), "{name}");
        }
        // Hardware asks for more than C does.
        assert_eq!((align_of::<Descriptor>(), align_of::<Record>()), (64, 32));
        for (name, says) in [
            ("DSA_COMP_BAD_OPCODE", "an operation that the queue does not allow"),
            ("DSA_COMP_INVALID_FLAGS", "flags that the device does not know"),
            ("DSA_COMP_NOZERO_RESERVE", "a reserved field that is not zero"),
            ("DSA_COMP_XFER_ERANGE", "a transfer that is longer than the queue allows"),
            ("DSA_COMP_OVERLAP_BUFFERS", "source and target overlap"),
            ("DSA_COMP_CRA_XLAT", "the address of the completion record cannot be reached"),
            ("DSA_COMP_CRA_ALIGN", "a completion record that is not aligned"),
            ("DSA_COMP_ADDR_ALIGN", "an address that is not aligned"),
            ("DSA_COMP_PRIV_BAD", "no right to be privileged"),
            ("DSA_COMP_TRAFFIC_CLASS_CONF", "a traffic class that is not configured"),
            ("DSA_COMP_HW_ERR1", "an error of the hardware"),
            ("DSA_COMP_TRANSLATION_FAIL", "an address that cannot be translated"),
        ] {
            assert_eq!(words(number(name) as u8), says, "{name}");
        }
        let copy = Descriptor::copy(
            0x0102_0304_0506_0708,
            0x7172_7374_7576_7778,
            0xa1a2_a3a4,
            CACHE_CONTROL,
            0x1122_3344_5566_7780,
        );
        let ours: String = copy.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(ours, bytes, "the bit fields of a descriptor");
    }

    #[test]
    fn a_record_says_nothing_before_its_status_is_there() {
        let record = Record::default();
        record.completed.store(77, Ordering::Relaxed);
        record.fault.store(4096, Ordering::Relaxed);
        assert_eq!(record.written(), None);
        record.status.store(PAGE_FAULT | STATUS_WRITE, Ordering::Release);
        assert_eq!(record.written(), Some(Written { status: 0x83, completed: 77, fault: 4096 }));
        record.clear();
        assert_eq!(record.written(), None);
    }
}
