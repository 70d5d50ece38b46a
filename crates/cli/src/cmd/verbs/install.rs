//! The drop-in libraries for good: below a prefix, and what to do so that programs find them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::library;
use crate::fail::{Context as _, Fail};
use crate::ui;

/// Sets the library path in a shell.
const ENVIRONMENT: &str = "remanence.env";
/// For who builds a program that shall always have our libraries.
const PKG_CONFIG: &str = "remanence-verbs.pc";

pub(super) fn install(prefix: &Path) -> Result<(), Fail> {
    let from = library::find()?;
    let prefix =
        std::path::absolute(prefix).context(|| format!("{} is no place to install to", prefix.display()))?;
    let to = directory(&prefix);
    put(&from, &prefix).context(|| format!("the libraries cannot be installed in {}", to.display()))?;
    let (to, prefix) = (to.display(), prefix.display());
    ui::print(format_args!(
        "\
The libraries are in {to}. What may follow:

  one program      LD_LIBRARY_PATH={to} ibv_devinfo
                   rem verbs -- ibv_devinfo       (with the view of /sys and /dev that UCX and NCCL look for)
  one shell        . {to}/{ENVIRONMENT}
  every program    echo {to} > /etc/ld.so.conf.d/00-remanence.conf && ldconfig     (as root)
  a build          pkg-config --libs {prefix}/lib/pkgconfig/{PKG_CONFIG}

`rem verbs --uninstall {prefix}` removes them; undo the line for every program first, if you chose it."
    ));
    Ok(())
}

pub(super) fn uninstall(prefix: &Path) -> Result<(), Fail> {
    let prefix =
        std::path::absolute(prefix).context(|| format!("{} is no place to look at", prefix.display()))?;
    let directory = directory(&prefix);
    if !directory.join(library::FILES[0]).exists() {
        return Err(Fail::new(format!("nothing of ours is in {}; check the prefix", directory.display())));
    }
    for file in files(&prefix) {
        match fs::remove_file(&file) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => {
                return Err(Fail::new(format!("{} cannot be removed ({why})", file.display())));
            }
            _ => {}
        }
    }
    // What is not empty has something of others in it, and stays.
    for directory in [directory.as_path(), &prefix.join("lib/pkgconfig"), &prefix.join("lib"), &prefix] {
        let _ = fs::remove_dir(directory);
    }
    ui::print(format_args!("The libraries are no longer in {}.", directory.display()));
    let loader = Path::new("/etc/ld.so.conf.d/00-remanence.conf");
    if loader.exists() {
        ui::print(format_args!("Next, as root: rm {} && ldconfig", loader.display()));
    }
    Ok(())
}

fn directory(prefix: &Path) -> PathBuf {
    prefix.join("lib/remanence")
}

/// All that an installation consists of.
fn files(prefix: &Path) -> Vec<PathBuf> {
    let directory = directory(prefix);
    let mut files: Vec<PathBuf> = library::FILES.iter().map(|name| directory.join(name)).collect();
    files.push(directory.join(ENVIRONMENT));
    files.push(prefix.join("lib/pkgconfig").join(PKG_CONFIG));
    files
}

fn put(from: &Path, prefix: &Path) -> io::Result<()> {
    let to = directory(prefix);
    fs::create_dir_all(&to)?;
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        replace(&to.join(name), |new| fs::copy(from.join(name), new).map(drop))?;
    }
    for (name, target) in [("libibverbs.so", "libibverbs.so.1"), ("librdmacm.so", "librdmacm.so.1")] {
        replace(&to.join(name), |new| std::os::unix::fs::symlink(target, new))?;
    }
    let path = to.display();
    let environment = format!(
        "# Verbs programs that start in this shell run on Remanence's RNIC.\n\
         export LD_LIBRARY_PATH=\"{path}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\"\n"
    );
    replace(&to.join(ENVIRONMENT), |new| fs::write(new, &environment))?;
    fs::create_dir_all(prefix.join("lib/pkgconfig"))?;
    let description = format!(
        "Name: remanence-verbs\n\
         Description: libibverbs and librdmacm on a software RNIC in userspace\n\
         Version: {}\n\
         Libs: -L{path} -Wl,-rpath,{path} -lrdmacm -libverbs\n",
        env!("CARGO_PKG_VERSION")
    );
    replace(&prefix.join("lib/pkgconfig").join(PKG_CONFIG), |new| fs::write(new, &description))
}

/// Programs may have the old file mapped: a new one takes its name, and the old one stays whole for them.
fn replace(file: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut new = file.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let _ = fs::remove_file(&new);
    make(&new).and_then(|()| fs::rename(&new, file)).inspect_err(|_| drop(fs::remove_file(&new)))
}
