//! Memory that its owner lends, and takes away when it likes. Alone in its program, as it unmaps memory, and forks.
#![expect(unsafe_code, reason = "maps and unmaps memory under a region")]

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use remanence_pmem::{Fault, Region};

const PAGE: usize = 4096;

/// Pages of this process, mapped as `prot` says.
struct Pages {
    base: *mut u8,
    len: usize,
}

impl Pages {
    fn new(pages: usize) -> Self {
        // Where the kernel puts nothing by itself: it takes the highest gap that is large enough, and a hole that a test
        // makes beside other threads' memory would soon be one of theirs.
        static NEXT: AtomicUsize = AtomicUsize::new(0x10_0000_0000);
        let at = NEXT.fetch_add(1 << 28, Ordering::Relaxed);
        let len = pages * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel refuses a range that somebody uses.
        let base = unsafe { libc::mmap(ptr::without_provenance_mut(at), len, prot, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Self { base: base.cast(), len }
    }

    fn protect(&self, page: usize, pages: usize, prot: i32) {
        // SAFETY: pages of ours.
        assert_eq!(unsafe { libc::mprotect(self.base.add(page * PAGE).cast(), pages * PAGE, prot) }, 0);
    }

    fn unmap(&self, page: usize, pages: usize) {
        // SAFETY: pages of ours, which nobody refers to.
        assert_eq!(unsafe { libc::munmap(self.base.add(page * PAGE).cast(), pages * PAGE) }, 0);
    }

    fn lend(&self, offset: usize, len: usize) -> Region {
        assert!(offset + len <= self.len);
        // SAFETY: nobody refers to the pages.
        unsafe { Region::borrowed(self.base.add(offset), len as u64).unwrap() }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: as `unmap`; a page that is not there any more does not matter.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

fn errno(result: std::io::Result<()>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

#[test]
fn any_alignment_will_do_and_the_neighbours_are_left_alone() {
    let pages = Pages::new(3);
    for skew in [0, 1, 3, 7, 8, 4095] {
        let region = pages.lend(skew + 1, PAGE + 5);
        region.try_write(0, &[7; PAGE + 5]).unwrap();
        let mut back = [0; PAGE + 5];
        region.try_read(0, &mut back).unwrap();
        assert_eq!(back, [7; PAGE + 5]);
        let all = pages.lend(0, 3 * PAGE);
        let mut around = [1; 2];
        all.try_read(skew as u64, &mut around[..1]).unwrap();
        all.try_read((skew + PAGE + 6) as u64, &mut around[1..]).unwrap();
        assert_eq!(around, [0, 0]);
        region.try_write(0, &[0; PAGE + 5]).unwrap();
    }
}

#[test]
fn atomics_ask_for_an_aligned_address_and_not_for_an_aligned_offset() {
    let pages = Pages::new(1);
    let region = pages.lend(3, 100);
    region.try_store_u64(5, 40).unwrap();
    assert_eq!(region.try_fetch_add(5, 2), Ok(40));
    assert_eq!(region.try_compare_and_swap(5, 1, 9), Ok(42), "no match: nothing happens");
    assert_eq!(region.try_compare_and_swap(5, 42, u64::MAX), Ok(42));
    assert_eq!(region.load_u64(5), u64::MAX);
    assert_eq!(region.try_fetch_add(5, 1), Ok(u64::MAX));
    assert_eq!(region.load_u64(5), 0, "addition wraps");
    assert_eq!(region.try_fetch_add(8, 1), Err(Fault));
    assert_eq!(region.try_store_u64(0, 1), Err(Fault));
    assert!(region.failure().is_ok(), "who was told needs no telling");
}

#[test]
fn memory_that_was_unmapped_fails_the_access_and_not_the_process() {
    let pages = Pages::new(4);
    let region = pages.lend(10, 4 * PAGE - 10);
    let far = (2 * PAGE) as u64;
    region.try_write(far, b"before").unwrap();
    pages.unmap(2, 1);
    assert_eq!(region.try_write(far, b"after"), Err(Fault));
    assert_eq!(region.try_read(far, &mut [0; 3000]), Err(Fault));
    assert_eq!(region.try_fetch_add(far + 6, 1), Err(Fault));
    assert_eq!(region.try_compare_and_swap(far + 6, 1, 1), Err(Fault));
    assert_eq!(region.try_store_u64(far + 6, 1), Err(Fault));
    // A copy that begins well and ends badly is a bad one.
    assert_eq!(region.try_write(PAGE as u64, &[1; 2 * PAGE]), Err(Fault));
    region.try_write(0, b"the rest is still there").unwrap();
    assert!(region.failure().is_ok());

    let mut zeros = [1; 8];
    region.read(far, &mut zeros);
    assert_eq!(zeros, [0; 8]);
    assert!(region.failure().unwrap_err().to_string().contains("unmapped"));
    assert!(region.psync().is_err(), "nothing of it is durable");
}

#[test]
fn memory_may_be_readable_only() {
    let pages = Pages::new(1);
    pages.protect(0, 1, libc::PROT_READ);
    let region = pages.lend(0, PAGE);
    region.try_read(0, &mut [0; 64]).unwrap();
    assert_eq!(region.try_write(0, &[1; 64]), Err(Fault));
    region.check_present(0, PAGE as u64, false).unwrap();
    assert_eq!(errno(region.check_present(0, PAGE as u64, true)), Some(libc::EFAULT));
}

#[test]
fn a_hole_is_found_before_it_is_used() {
    let pages = Pages::new(5);
    pages.unmap(2, 1);
    let region = pages.lend(100, 5 * PAGE - 100);
    let page = PAGE as u64;
    for write in [false, true] {
        region.check_present(0, page, write).unwrap();
        region.check_present(3 * page, page, write).unwrap();
        region.check_present(0, 0, write).unwrap();
        assert_eq!(errno(region.check_present(0, 5 * page - 100, write)), Some(libc::EFAULT));
        assert_eq!(errno(region.check_present(2 * page - 101, 2, write)), Some(libc::EFAULT));
    }
    pages.protect(3, 1, libc::PROT_NONE);
    assert_eq!(errno(region.check_present(3 * page, 1, false)), Some(libc::EFAULT));
}

#[test]
fn a_file_cut_short_under_its_owner_is_memory_that_vanished() {
    let path = std::env::temp_dir().join(format!("remanence-borrowed-{}", std::process::id()));
    let file =
        std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    file.set_len(2 * PAGE as u64).unwrap();
    let mapped = {
        use std::os::fd::AsRawFd;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses a range that nobody uses.
        unsafe { libc::mmap(ptr::null_mut(), 2 * PAGE, prot, libc::MAP_SHARED, file.as_raw_fd(), 0) }
    };
    assert_ne!(mapped, libc::MAP_FAILED);
    let pages = Pages { base: mapped.cast(), len: 2 * PAGE };
    let region = pages.lend(0, 2 * PAGE);
    region.try_write(PAGE as u64, b"there").unwrap();
    file.set_len(PAGE as u64).unwrap();
    assert_eq!(region.try_write(PAGE as u64, b"gone"), Err(Fault));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn the_whole_address_space_and_nothing_at_all_can_be_borrowed() {
    let pages = Pages::new(1);
    // SAFETY: only the pages above are reached, which nobody refers to.
    let all = unsafe { Region::borrowed(ptr::null_mut(), u64::MAX).unwrap() };
    all.try_write(pages.base.addr() as u64, b"by address").unwrap();
    let mut back = [0; 10];
    pages.lend(0, 10).try_read(0, &mut back).unwrap();
    assert_eq!(&back, b"by address");
    assert_eq!(all.try_read(8, &mut back), Err(Fault));
    // Not even an address: the CPU refuses it in another way.
    assert_eq!(all.try_read(1 << 63, &mut back), Err(Fault));
    // SAFETY: there is nothing to reach.
    let nothing = unsafe { Region::borrowed(pages.base, 0).unwrap() };
    nothing.try_write(0, &[]).unwrap();
    nothing.check_present(0, 0, true).unwrap();
    // SAFETY: as above.
    assert!(unsafe { Region::borrowed(pages.base, u64::MAX) }.is_err());
}

/// The handler must not hide other people's mistakes.
#[test]
fn a_fault_elsewhere_still_kills() {
    drop(Pages::new(1).lend(0, 1));
    // SAFETY: the child makes one access and ends, one way or the other.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: it is not, which is the point.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
            ptr::without_provenance_mut::<u8>(std::hint::black_box(64)).write_volatile(1);
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: waits for a child of ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
}
