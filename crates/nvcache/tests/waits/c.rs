//! A program in C, compiled against the header and the library, does what the header says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::{MEDIA, World};

const HEADER: &str = include_str!("../../include/nvcache.h");
const PROGRAM: &str = include_str!("../c/app.c");

/// The directory with the library, as this test's sources make it.
fn built() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        remanence_effort::built(env!("CARGO_TARGET_TMPDIR"), &["-p", "remanence-nvcache", "--lib"])
    })
}

fn compiled(world: &World, source: &Path) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = world.path("app");
    let status = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-I")
        .arg(here.join("include"))
        .arg(built().join("libremanence_nvcache.a"))
        .args(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"])
        .status();
    assert!(status.expect("a C compiler: apt install gcc").success(), "it does not compile");
    program
}

/// The functions that the header declares.
fn declared() -> Vec<&'static str> {
    let ends = |line: &'static str| line.split_once('(').map(|(before, _)| before);
    let names = HEADER.lines().filter(|line| line.ends_with(");")).filter_map(ends);
    names.filter_map(|before| before.rsplit([' ', '*']).next()).collect()
}

#[test]
fn a_program_in_c_uses_each_function_of_the_header() {
    let names = declared();
    assert!(names.len() >= 16, "{names:?}");
    let unused: Vec<_> = names.iter().filter(|name| !PROGRAM.contains(&format!("{name}("))).collect();
    assert!(unused.is_empty(), "{unused:?}");
    for medium in MEDIA {
        let world = World::new(medium);
        let program = compiled(&world, &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/app.c"));
        let output = Command::new("timeout")
            .arg("120")
            .arg(program)
            .args([world.log.as_path(), world.directory.path()])
            .output()
            .expect("it runs");
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{medium:?}: {why}");
        let bytes = fs::read(world.path("file")).expect("it is there");
        assert_eq!(bytes, [&b"hello"[..], &[0; 4091], b"world, appended"].concat());
        let all = fs::read(world.path("threads")).expect("it is there");
        let long = fs::read(world.path("long")).expect("it is there");
        assert!(long.starts_with(b"child") && long[5..].iter().all(|byte| *byte == 0), "what it had then");
        assert!(all.len() == 4 * 64 * 512 && all.iter().all(|byte| *byte == b'x'), "{} bytes", all.len());
    }
}

#[test]
fn the_examples_of_the_documentation_are_whole() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cache.md");
    let page = fs::read_to_string(page).expect("it is there");
    let block = |language: &str| {
        let (_, rest) = page.split_once("## The library").expect("a section");
        let (_, rest) = rest.split_once(&format!("```{language}\n")).expect("an example");
        rest.split_once("```").expect("its end").0.to_owned()
    };
    let example = include_str!("../../examples/library.rs");
    assert!(example.ends_with(&block("rust")), "docs/cache.md and examples/library.rs differ");
    let world = World::new(MEDIA[1]);
    fs::write(world.path("app.c"), block("c")).expect("room");
    let program = compiled(&world, &world.path("app.c"));
    let output = Command::new(program).current_dir(world.directory.path()).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read(world.path("app.db")).expect("it is there").ends_with(b"a row"));
}

#[test]
fn the_shared_library_has_each_function_of_the_header() {
    let library = built().join("libremanence_nvcache.so");
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output();
    let output = output.expect("nm: apt install binutils");
    let symbols = String::from_utf8_lossy(&output.stdout).into_owned();
    for name in declared() {
        assert!(symbols.lines().any(|line| line.ends_with(&format!(" {name}"))), "{name}");
    }
}
