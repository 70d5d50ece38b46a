//! What programs read below `/sys` through the library.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use once_cell::race::OnceBox;

use crate::errno;

/// Where sysfs is: `SYSFS_PATH` if the user says so, and is who it seems.
fn sysfs_path() -> &'static CStr {
    static PATH: OnceBox<CString> = OnceBox::new();
    PATH.get_or_init(|| {
        // SAFETY: these calls cannot fail and touch no memory.
        let honest = unsafe { libc::getuid() == libc::geteuid() };
        let named = if honest { std::env::var("SYSFS_PATH").ok() } else { None };
        let path =
            named.map(|path| path.trim_end_matches('/').to_owned()).unwrap_or_else(|| "/sys".to_owned());
        Box::new(CString::new(path).expect("an environment variable holds no NUL"))
    })
}

/// As [`ibv_get_sysfs_path`], for ourselves.
pub(crate) fn path() -> &'static str {
    sysfs_path().to_str().expect("checked when it was read")
}

/// Reads a small file, without the newline at its end; at most `size` bytes of it.
fn read(path: &Path, size: usize) -> Result<Vec<u8>, c_int> {
    let file = File::open(path).map_err(|e| errno::of_io(&e))?;
    let mut bytes = Vec::new();
    file.take(size as u64).read_to_end(&mut bytes).map_err(|e| errno::of_io(&e))?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    Ok(bytes)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    sysfs_path().as_ptr()
}

/// # Safety
/// As of the C function: two strings, and `size` bytes of room at `buf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: two strings of the caller.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    let path = [dir.to_bytes(), b"/", file.to_bytes()].concat();
    let bytes = match read(Path::new(OsStr::from_bytes(&path)), size) {
        Ok(bytes) => bytes,
        Err(e) => return errno::minus_one_with(e),
    };
    // A text that fills the room leaves none for its end.
    if bytes.len() >= size && size > 0 {
        return errno::minus_one_with(libc::ENAMETOOLONG);
    }
    if !bytes.is_empty() {
        // SAFETY: room for `size` bytes, and there are fewer.
        unsafe {
            libc::memcpy(buf.cast::<c_void>(), bytes.as_ptr().cast(), bytes.len());
            *buf.add(bytes.len()) = 0;
        }
    }
    c_int::try_from(bytes.len()).unwrap_or(c_int::MAX)
}
