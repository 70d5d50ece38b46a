//! How a descriptor gets to the device.
//!
//! Three ways, of which the kernel and the queue leave one. A dedicated queue takes MOVDIR64B, one store of 64 bytes
//! that cannot be torn; it says nothing back, and what it has no room for is dropped. A shared queue takes ENQCMD, which
//! adds the process's PASID and says whether there was room. Both go to a page of the queue's character device, the
//! portal. Kernels from 6.10 on let only programs with CAP_SYS_RAWIO map the portal of the devices of Intel advisory
//! INTEL-SA-01084 (all of the first generation): anybody else writes descriptors to the character device, and the kernel
//! hands them over (and takes no batches then, which is one reason why this engine has none).
//!
//! The promise of this room: the two instructions are executed only where the CPU has them, and store to nothing but
//! the mapped portal of a live file; [`Portal::submit`] passes its own promise on to its caller. None of it has been
//! executed on hardware yet: the encodings are held against the manual's (`the_instructions_are_those_of_the_manual`).
#![expect(unsafe_code, reason = "instructions that have no safe form, and a mapping of a device")]

use std::fs::File;
use std::io::{self, Write as _};

use super::spec::Descriptor;
use super::{Unusable, WorkQueue};

/// What became of a descriptor that was to be handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Handed {
    /// The device has it. (A dedicated queue has it if there was room.)
    Over,
    /// The queue has no room now.
    Full,
}

/// The way to a device.
pub(super) trait Portal: Send {
    /// Hands a descriptor over. Whatever the CPU stored before is there for the device.
    ///
    /// # Errors
    /// The kernel refuses.
    ///
    /// # Safety
    /// Until the completion record has been written, the record, the source and the target stay mapped and nobody else's,
    /// no reference says that nobody writes to the target or to the record, and none that anybody but the device does.
    unsafe fn submit(&mut self, descriptor: &Descriptor) -> io::Result<Handed>;

    /// In a child that was forked: the portal is not mapped here, nor is the device's PASID this process's.
    fn abandon(&mut self) {}
}

/// Opens a queue that [`detect`](super::detect) found usable.
pub(super) fn open(queue: &WorkQueue) -> Result<Box<dyn Portal>, Unusable> {
    let path = queue.device.clone().ok_or_else(|| Unusable::Absent(format!("{} is missing", queue.name)))?;
    let os = |doing| {
        let path = path.clone();
        move |source| Unusable::Os { doing, path, source }
    };
    let file = File::options().read(true).write(true).open(&path).map_err(os("opening"))?;
    match mapped::Mapped::new(&file, queue.shared)? {
        Ok(portal) => Ok(Box::new(portal)),
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => Ok(Box::new(ByKernel(file))),
        Err(e) => Err(os("mapping the portal of")(e)),
    }
}

/// The kernel hands descriptors over.
struct ByKernel(File);

impl Portal for ByKernel {
    unsafe fn submit(&mut self, descriptor: &Descriptor) -> io::Result<Handed> {
        crate::flush::fence();
        match self.0.write(&descriptor.bytes()) {
            Ok(64) => Ok(Handed::Over),
            Ok(_) => Err(io::Error::other("the driver took part of a descriptor")),
            // A shared queue without room; a call that a signal came before.
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(Handed::Full)
            }
            Err(e) => Err(e),
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod mapped {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd as _;
    use std::ptr;

    use super::{Descriptor, Handed, Portal, Unusable};
    use crate::flush;

    /// Bytes of a portal, whatever the size of a page.
    const PORTAL: usize = 4096;

    /// Leaf 7, ECX bit 28: MOVDIR64B; bit 29: ENQCMD.
    fn has(bit: u32) -> bool {
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx & 1 << bit != 0
    }

    // One text for the code and for the test of its encoding.
    macro_rules! movdir64b {
        ($to:literal, $from:literal) => {
            concat!("movdir64b ", $to, ", [", $from, "]")
        };
    }
    macro_rules! enqcmd {
        ($to:literal, $from:literal) => {
            concat!("enqcmd ", $to, ", [", $from, "]")
        };
    }

    /// A portal in this process's memory.
    pub(super) struct Mapped {
        page: *mut u8,
        shared: bool,
        /// Where in the page the next descriptor goes: any multiple of 64 will do, and neighbours do not wait for each other.
        at: usize,
    }

    // SAFETY: a mapping is the process's, not a thread's.
    unsafe impl Send for Mapped {}

    impl Mapped {
        /// Maps the portal: the outer error is the CPU's, the inner one the kernel's.
        pub(super) fn new(file: &File, shared: bool) -> Result<io::Result<Self>, Unusable> {
            let (bit, instruction) = if shared { (29, "ENQCMD") } else { (28, "MOVDIR64B") };
            if !has(bit) {
                return Err(Unusable::Cpu(instruction));
            }
            let flags = libc::MAP_SHARED;
            // SAFETY: the kernel chooses an address range that nobody uses. The mapping keeps the file open.
            let page =
                unsafe { libc::mmap(ptr::null_mut(), PORTAL, libc::PROT_WRITE, flags, file.as_raw_fd(), 0) };
            if page == libc::MAP_FAILED {
                return Ok(Err(io::Error::last_os_error()));
            }
            Ok(Ok(Self { page: page.cast(), shared, at: 0 }))
        }
    }

    impl Portal for Mapped {
        unsafe fn submit(&mut self, descriptor: &Descriptor) -> io::Result<Handed> {
            let to = self.page.wrapping_add(self.at);
            self.at = (self.at + 64) % PORTAL;
            let from = ptr::from_ref(descriptor);
            // Neither instruction waits for earlier stores to be visible.
            flush::fence();
            if self.shared {
                let full: u8;
                // SAFETY: `new` found the instruction, which reads the descriptor and writes to the portal only.
                unsafe {
                    asm!(
                        enqcmd!("{to}", "{from}"), "setz {full}",
                        to = in(reg) to, from = in(reg) from, full = out(reg_byte) full, options(nostack)
                    );
                }
                return Ok(if full == 0 { Handed::Over } else { Handed::Full });
            }
            // SAFETY: as above.
            unsafe {
                asm!(
                    movdir64b!("{to}", "{from}"),
                    to = in(reg) to, from = in(reg) from, options(nostack, preserves_flags)
                );
            }
            Ok(Handed::Over)
        }

        fn abandon(&mut self) {
            self.page = ptr::null_mut();
        }
    }

    impl Drop for Mapped {
        fn drop(&mut self) {
            if !self.page.is_null() {
                // SAFETY: the page is ours, and this is the last use of it.
                unsafe { libc::munmap(self.page.cast(), PORTAL) };
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use std::arch::global_asm;

        use super::*;

        global_asm!(
            ".pushsection .rodata",
            ".globl remanence_dsa_encodings",
            ".hidden remanence_dsa_encodings",
            "remanence_dsa_encodings:",
            movdir64b!("rax", "rdx"),
            enqcmd!("rax", "rdx"),
            ".popsection",
        );

        unsafe extern "C" {
            static remanence_dsa_encodings: [u8; 10];
        }

        #[test]
        fn the_instructions_are_those_of_the_manual() {
            // SAFETY: ten bytes, which the assembler wrote above.
            let bytes = unsafe { remanence_dsa_encodings };
            // Intel SDM volume 2: 66 0F 38 F8 /r and F2 0F 38 F8 /r, as the kernel spells them.
            assert_eq!(bytes, [0x66, 0x0f, 0x38, 0xf8, 0x02, 0xf2, 0x0f, 0x38, 0xf8, 0x02]);
        }

        #[test]
        fn a_cpu_without_the_instruction_is_told_from_a_kernel_that_refuses() {
            // A file is no portal, and can be mapped all the same: nothing is written to it here.
            let path = std::env::temp_dir().join(format!("remanence-portal-{}", std::process::id()));
            std::fs::write(&path, [0; PORTAL]).unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            for (shared, bit, instruction) in [(false, 28, "MOVDIR64B"), (true, 29, "ENQCMD")] {
                match Mapped::new(&file, shared) {
                    Err(Unusable::Cpu(missing)) => assert_eq!((missing, has(bit)), (instruction, false)),
                    Err(other) => panic!("{other}"),
                    Ok(mapped) => assert!(has(bit) && mapped.is_ok()),
                }
            }
            std::fs::remove_file(path).unwrap();
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod mapped {
    use std::fs::File;
    use std::io;

    use super::{Descriptor, Handed, Portal, Unusable};

    /// There is no such device beside another CPU.
    pub(super) enum Mapped {}

    impl Mapped {
        pub(super) fn new(_: &File, _: bool) -> Result<io::Result<Self>, Unusable> {
            Err(Unusable::Cpu("MOVDIR64B"))
        }
    }

    impl Portal for Mapped {
        unsafe fn submit(&mut self, _: &Descriptor) -> io::Result<Handed> {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn by_the_kernel_a_descriptor_is_one_write_and_a_full_queue_is_not_an_error() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut portal = ByKernel(File::from(OwnedFd::from(ours)));
        let descriptor = Descriptor::copy(1, 2, 3, 0, 64);
        // SAFETY: nobody carries it out.
        let mut submit = || unsafe { portal.submit(&descriptor) };
        assert_eq!(submit().unwrap(), Handed::Over);
        let mut came = [0; 100];
        assert_eq!(theirs.recv(&mut came).unwrap(), 64);
        assert_eq!(came[..64], descriptor.bytes());
        let full = (0..100_000).find(|_| submit().unwrap() == Handed::Full);
        assert!(full.is_some(), "a socket has an end");
        // Closing alone would leave it to whom another test has just forked.
        theirs.set_nonblocking(true).unwrap();
        while theirs.recv(&mut came).is_ok() {}
        theirs.shutdown(Shutdown::Both).unwrap();
        assert!(submit().is_err(), "and what is gone is an error");
    }
}
