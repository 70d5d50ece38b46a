//! `rem get`: a blob back, and not one wrong byte of it.

use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use remanence_pool::client::{BlobReader, Client, Error, Got};
use serde_json::json;

use super::put::blob_name;
use crate::args::Servers;
use crate::device;
use crate::fail::{Context as _, Fail};
use crate::ui::{self, Bar};
use crate::whole::Whole;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem get -s 127.0.0.1 --token-file pool.token notes.txt -o notes.txt
  rem get -s a,b,c src.tar | tar x

A majority of the servers says which version is the newest, so name all that keep the blob, also those that are away.
The bytes are read from one that has it; if it fails, or what it has is not what was put, the next one is asked. A file
appears only when all of it is there and verified. With fewer servers than a majority nobody knows what was put last:
rem ends with status 1, and --any gives what is there.")]
pub(crate) struct Args {
    /// Name of the blob
    name: String,
    #[command(flatten)]
    servers: Servers,
    /// File to write; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Take what is there from fewer servers than a majority: it may be older than what was put last
    #[arg(long)]
    any: bool,
    /// Print one JSON object; on stderr if the blob goes to standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    let name = blob_name(&args.name)?;
    let mut client = device::connect(&args.servers, 1)?;
    let to_stdout = args.output.as_os_str() == "-";
    let quiet = args.json || (to_stdout && io::stdout().is_terminal());
    let bar = Bar::bytes(None, quiet);
    for lost in client.lost() {
        bar.say(format!("{lost}; asking the rest"));
    }
    let got = if to_stdout {
        // Standard output cannot be taken back, so the bytes wait in a nameless file until they are verified.
        let mut spool = tempfile::SpooledTempFile::new(64 << 20);
        let got = fetch(&mut client, &name, args.any, &bar, &mut |reader| {
            spool.set_len(0)?;
            spool.rewind()?;
            copy(reader, &mut spool, &bar)
        })?;
        bar.done();
        spool
            .rewind()
            .and_then(|()| io::copy(&mut spool, &mut io::stdout().lock()))
            .and_then(|_| io::stdout().flush())
            .context(|| "standard output cannot be written".into())?;
        got
    } else {
        let got = to_file(&mut client, &name, args.any, &args.output, &bar)?;
        bar.done();
        got
    };
    let from = client.name(got.server).to_owned();
    if !got.newest {
        anstream::eprintln!(
            "rem: \"{name}\" is what {} of {} says; it may be older than what was put last",
            got.asked,
            ui::count(args.servers.servers.len(), "server")
        );
    }
    if args.json {
        let out = json!({
            "name": name.as_str(),
            "version": got.version.counter,
            "len": got.len,
            "blake3": got.digest.to_string(),
            "server": from,
            "newest": got.newest,
            "asked": got.asked,
            "seconds": got.took.as_secs_f64(),
            "lost": got.lost.iter().chain(&client.lost()).map(ToString::to_string).collect::<Vec<_>>(),
        });
        if to_stdout { anstream::eprintln!("{out}") } else { ui::print_json(&out)? }
    } else if !to_stdout {
        ui::print(format_args!(
            "{}, {}, verified, from {from} in {} ({})",
            args.output.display(),
            ui::bytes(got.len),
            ui::time(got.took),
            ui::rate(got.len, got.took)
        ));
    }
    Ok(())
}

fn fetch(
    client: &mut Client,
    name: &remanence_pool::BlobName,
    any: bool,
    bar: &Bar,
    take: &mut dyn FnMut(&mut BlobReader<'_>) -> io::Result<()>,
) -> Result<Got, Fail> {
    let take = |reader: &mut BlobReader<'_>| {
        bar.begin(reader.len());
        take(reader)
    };
    let got = if any { client.get_any(name, take) } else { client.get(name, take) };
    let got = got.map_err(|error| match error {
        Error::NoMajority { .. } | Error::Unsettled { .. } => {
            Fail::new(format!("{error}; or take what is there with --any"))
        }
        error => Fail::new(error.to_string()),
    })?;
    for lost in &got.lost {
        bar.say(format!("{lost}; it was read from {}", client.name(got.server)));
    }
    Ok(got)
}

fn to_file(
    client: &mut Client,
    name: &remanence_pool::BlobName,
    any: bool,
    output: &Path,
    bar: &Bar,
) -> Result<Got, Fail> {
    let unwritable = || format!("{} cannot be written", output.display());
    if output.is_dir() {
        return Err(Fail::new(format!("{} is a directory; name a file in it", output.display())));
    }
    // A device or a pipe is written as it is; there is nothing to put in its place.
    if fs::metadata(output).is_ok_and(|m| !m.is_file()) {
        let mut file = File::options().write(true).open(output).context(unwritable)?;
        return fetch(client, name, any, bar, &mut |reader| copy(reader, &mut file, bar));
    }
    // It has the rights that any new file would have.
    let whole = Whole::at(output, 0o666).context(unwritable)?;
    let got = fetch(client, name, any, bar, &mut |reader| {
        let mut file = whole.file();
        file.set_len(0)?;
        file.rewind()?;
        copy(reader, &mut file, bar)
    })?;
    whole.end().context(unwritable)?;
    Ok(got)
}

pub(crate) fn copy(reader: &mut BlobReader<'_>, to: &mut impl io::Write, bar: &Bar) -> io::Result<()> {
    let mut buffer = vec![0; 128 << 10];
    loop {
        let n = reader.read(&mut buffer)?;
        if n == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..n])?;
        bar.add(n as u64);
    }
}
