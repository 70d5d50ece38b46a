//! Where what is kept in memory has its names: in a directory of its user's own, in which nobody else makes any.
//!
//! In `/dev/shm` anybody may take a name that somebody else needs, and keep it. So the directory has a name that can be guessed only where that is free; else it has one at
//! random, and is found again by whose it is. Nobody can take it away then, as the place is sticky.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

const PLACE: &str = "/dev/shm";

/// The directory of this process' user, which is made if it is not there.
///
/// # Errors
/// There is no such place, or it is full.
pub fn own() -> io::Result<PathBuf> {
    own_in(Path::new(PLACE), geteuid().as_raw())
}

/// That of a user, if it is there.
pub(crate) fn of(user: u32) -> Option<PathBuf> {
    found(Path::new(PLACE), user).ok().flatten()
}

fn name_of(user: u32) -> String {
    format!("remanence-cache-{user}")
}

/// A link that leads to a directory is none.
fn is_of(found: &Metadata, user: u32) -> bool {
    found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0
}

fn found(place: &Path, user: u32) -> io::Result<Option<PathBuf>> {
    let name = name_of(user);
    let first = place.join(&name);
    if fs::symlink_metadata(&first).is_ok_and(|found| is_of(&found, user)) {
        return Ok(Some(first));
    }
    let begins = format!("{name}-");
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        let is_named_so = entry.file_name().to_str().is_some_and(|name| name.starts_with(&begins));
        if is_named_so && entry.metadata().is_ok_and(|found| is_of(&found, user)) {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

fn own_in(place: &Path, user: u32) -> io::Result<PathBuf> {
    /// So many names at random were others' before.
    const TRIES: u32 = 16;
    for turn in 0..=TRIES {
        if let Some(found) = found(place, user)? {
            return Ok(found);
        }
        let name = match turn {
            0 => name_of(user),
            _ => format!("{}-{:016x}", name_of(user), random()?),
        };
        match DirBuilder::new().mode(0o700).create(place.join(name)) {
            // Another process of ours may have been quicker.
            Ok(()) => {}
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {}
            Err(why) => return Err(why),
        }
    }
    found(place, user)?.ok_or_else(|| io::ErrorKind::AlreadyExists.into())
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    #[test]
    fn who_takes_the_name_that_can_be_guessed_keeps_nobody_from_a_directory() {
        let place = std::env::temp_dir().join(format!("remanence-memory-{}", std::process::id()));
        let user = geteuid().as_raw();
        let first = place.join(name_of(user));
        let own = || own_in(&place, user).expect("room");
        let theirs: [(&str, &dyn Fn()); 3] = [
            ("file", &|| fs::write(&first, "theirs").expect("room")),
            ("link", &|| {
                DirBuilder::new().mode(0o700).create(place.join("elsewhere")).expect("room");
                symlink(place.join("elsewhere"), &first).expect("room");
            }),
            ("directory", &|| {
                DirBuilder::new().mode(0o700).create(&first).expect("room");
                if chown(&first, Some(65_534), None).is_err() {
                    // Only root can give one away; one that others may write to is as good as theirs.
                    fs::set_permissions(&first, std::os::unix::fs::PermissionsExt::from_mode(0o777))
                        .expect("its owner may");
                }
            }),
        ];
        for (what, take) in theirs {
            let _ = fs::remove_dir_all(&place);
            fs::create_dir(&place).expect("room");
            take();
            let found = own();
            assert_ne!(found, first, "{what}");
            assert_eq!(found.metadata().expect("it is there").mode() & 0o777, 0o700);
            assert_eq!(own(), found, "{what}: it is found again");
            let _ = fs::remove_file(&first).or_else(|_| fs::remove_dir(&first));
            assert_eq!(own(), found, "{what}: also when the name is free");
        }
        fs::remove_dir_all(&place).expect("it is there");
        fs::create_dir(&place).expect("room");
        assert_eq!([own(), own()], [first.clone(), first.clone()], "nobody has taken it");
        fs::remove_dir_all(&place).expect("it is there");
    }
}
