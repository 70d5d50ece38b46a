//! A file that gets its name when all of it is there, so that who is killed while he makes it leaves nothing that looks like one.
//!
//! It has no name before (`O_TMPFILE`), and goes with its maker. Where the file system knows no such thing it has one that ends in
//! `.making`, until then; what a killed maker left under that name is taken away by the next.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::lock::OwnFile;
use crate::{Error, map};

#[derive(Debug)]
pub(crate) struct Unnamed {
    file: File,
    making: Option<PathBuf>,
}

pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Unnamed {
    /// In the directory of a path, which it is to have. `named`: under a name that says so in any case.
    pub(crate) fn beside(path: &Path, named: bool) -> Result<Self, Error> {
        let failed = |e| Error::os(format!("creating {}", path.display()), e);
        if !named {
            match map::unnamed_file(directory_of(path)) {
                Ok(file) => return Ok(Self { file, making: None }),
                // Not known to the file system, or to the kernel.
                Err(e)
                    if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {}
                Err(e) => return Err(failed(e)),
            }
        }
        let mut making = path.as_os_str().to_owned();
        making.push(".making");
        let making = PathBuf::from(making);
        // What is in it is for who made it, as the token that guards it on the network is.
        let mut options = File::options();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&making).or_else(|e| {
            if e.kind() != io::ErrorKind::AlreadyExists {
                return Err(failed(e));
            }
            let mut left = OwnFile::from(File::open(&making).map_err(failed)?);
            left.lock().map_err(|_| Error::InUse { path: making.clone(), holder: None })?;
            if is_of(&left, &making) {
                fs::remove_file(&making).map_err(failed)?;
            }
            options.open(&making).map_err(failed)
        })?;
        Ok(Self { file, making: Some(making) })
    }

    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// Gives it its name, which nobody may have.
    pub(crate) fn name(self, path: &Path) -> io::Result<()> {
        match &self.making {
            Some(making) if is_of(&self.file, making) => fs::hard_link(making, path),
            Some(_) => Err(io::ErrorKind::NotFound.into()),
            None => map::name_file(&self.file, path),
        }
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        if let Some(making) = self.making.as_ref().filter(|making| is_of(&self.file, making)) {
            let _ = fs::remove_file(making);
        }
    }
}

fn is_of(file: &File, path: &Path) -> bool {
    let (Ok(file), Ok(there)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    (file.dev(), file.ino()) == (there.dev(), there.ino())
}
