//! A file behind a log, as `docs/cache.md` has it: `cargo run -p remanence-nvcache --example library`.

use remanence_nvcache::{Cache, OpenOptions, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cache = Cache::open(&Options::new("app.log").size(256 << 20))?; // recovers what a crash has left
    let file = cache.open_file("app.db", &OpenOptions::new().read(true).write(true).create(true))?;
    file.write_at(b"a row", 4096)?;
    file.sync()?; // in a log on a disk, it is durable from here on
    file.close()?; // and in app.db
    Ok(cache.close()?)
}
