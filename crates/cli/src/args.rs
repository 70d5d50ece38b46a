//! Values that several commands take: sizes, addresses, tokens.

use std::fmt;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use remanence_pmem::Journaling;
use remanence_pool::auth::Token;
use remanence_pool::proto::DEFAULT_PORT;

use crate::exposure::{self, Endpoint};
use crate::fail::{Context as _, Fail};

/// A number of bytes: `4096`, `64K`, `1G`; the units are powers of 1024.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no size; write a number and perhaps K, M, G or T, like 64K");
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match &text[digits.len()..] {
            "" | "B" => 0,
            "K" | "k" | "KiB" => 10,
            "M" | "m" | "MiB" => 20,
            "G" | "g" | "GiB" => 30,
            "T" | "t" | "TiB" => 40,
            _ => return Err(bad()),
        };
        let number: u64 = digits.parse().map_err(|_| bad())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(bad)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = [(40, "T"), (30, "G"), (20, "M"), (10, "K")]
            .into_iter()
            .find(|(shift, _)| self.0 > 0 && self.0.trailing_zeros() >= *shift);
        match unit {
            Some((shift, letter)) => write!(f, "{}{letter}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Whether a file on a disk has a journal: `64M`, or `off`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Journal(pub(crate) Journaling);

impl FromStr for Journal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self(Journaling::Off)),
            size => {
                size.parse().map(|Size(len)| Self(Journaling::Len(len))).map_err(|e| format!("{e}; or off"))
            }
        }
    }
}

impl Journal {
    /// What was said of it, if anything was.
    pub(crate) fn or_default(said: Option<Self>) -> Journaling {
        said.map_or(Journaling::IfMade, |journal| journal.0)
    }
}

/// A server: `host`, `host:port`, `[v6]:port`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Server {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl FromStr for Server {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no address; write host or host:port, like 127.0.0.1:7471");
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self { host: ip.to_string(), port: DEFAULT_PORT });
        }
        if let Ok(SocketAddr::V6(v6)) = text.parse() {
            return Ok(Self { host: v6.ip().to_string(), port: v6.port() });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| bad())?),
            None => (text, DEFAULT_PORT),
        };
        let fair = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if host.is_empty() || !host.chars().all(fair) {
            return Err(bad());
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl Server {
    /// Asks the resolver.
    pub(crate) fn resolve(&self) -> Result<SocketAddr, Fail> {
        let mut found = (self.host.as_str(), self.port).to_socket_addrs().map_err(|e| {
            Fail::new(format!(
                "the name {} cannot be resolved ({e}); check its spelling, or give an IP address",
                self.host
            ))
        })?;
        found.next().ok_or_else(|| Fail::new(format!("the name {} has no address", self.host)))
    }
}

/// The options that say which servers, and with which token.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Servers {
    /// Servers as HOST or HOST:PORT, separated by commas or given several times
    #[arg(
        short,
        long = "server",
        value_name = "HOST[:PORT]",
        value_delimiter = ',',
        env = "REM_SERVERS",
        required = true
    )]
    pub(crate) servers: Vec<Server>,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// The options that say how a server is reached.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Reach {
    #[command(flatten)]
    pub(crate) tokens: Tokens,
    /// Local address to send from [default: the one that routes to the server]
    #[arg(long, value_name = "ADDRESS", env = "REM_LOCAL")]
    pub(crate) local: Option<IpAddr>,
}

/// The options that say which token.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Tokens {
    /// File with the token that `rem serve` made; several tokens, one a line, for servers with different ones
    #[arg(long, value_name = "FILE", env = "REM_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// The token itself; safer in the environment or in a file, as arguments show in `ps`
    #[arg(
        long,
        value_name = "TOKEN",
        env = "REM_TOKEN",
        hide_env_values = true,
        conflicts_with = "token_file"
    )]
    pub(crate) token: Option<String>,
}

impl Tokens {
    /// All tokens that were given; none for servers that ask for none.
    pub(crate) fn load_any(&self) -> Result<Vec<Token>, Fail> {
        if self.token.is_none() && self.token_file.is_none() { Ok(Vec::new()) } else { self.load() }
    }

    /// All tokens that were given.
    pub(crate) fn load(&self) -> Result<Vec<Token>, Fail> {
        let text = match (&self.token, &self.token_file) {
            (Some(token), _) => token.clone(),
            (None, Some(file)) => std::fs::read_to_string(file)
                .context(|| format!("the token file {} cannot be read", file.display()))?,
            (None, None) => {
                return Err(Fail::new(
                    "no token was given; pass the file that `rem serve` named with --token-file, or set REM_TOKEN",
                ));
            }
        };
        let tokens: Result<Vec<_>, _> = text
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty() && !l.starts_with('#'))
            .map(Token::new)
            .collect();
        let tokens = tokens.map_err(|e| Fail::new(e.to_string()))?;
        if tokens.is_empty() {
            Err(Fail::new("the token file is empty; restart `rem serve` to have one made"))
        } else {
            Ok(tokens)
        }
    }
}

/// The options that say whom a server lets in that need not have a token.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AccessOptions {
    #[command(flatten)]
    tokens: Tokens,
    /// Let other machines in where no token is asked for: without one they may read and write everything, and metrics ask
    /// for none
    #[arg(long)]
    insecure: bool,
}

impl AccessOptions {
    /// Everybody may come.
    pub(crate) const fn is_insecure(&self) -> bool {
        self.insecure
    }

    /// Refuses endpoints that other machines could reach, unless these are asked for a token or that is meant: before anything
    /// is made. `could` says what they could do.
    pub(crate) fn check(
        &self,
        at: IpAddr,
        could: &'static str,
        metrics: Option<SocketAddr>,
    ) -> Result<(), Fail> {
        let token = self.tokens.token.is_some() || self.tokens.token_file.is_some();
        let server = [Endpoint::server(at, could, token)];
        let all: Vec<_> = server.into_iter().chain(metrics.map(|at| Endpoint::metrics(at.ip()))).collect();
        exposure::check(&all, self.insecure)
    }

    /// The token, and the file that it is in. `None` if none was asked for: then this machine may come, or everybody if that
    /// was said.
    pub(crate) fn token(&self) -> Result<Option<(Token, Option<&Path>)>, Fail> {
        match (&self.tokens.token, self.tokens.token_file.as_deref()) {
            (None, None) => Ok(None),
            (Some(_), _) => Ok(Some((server_token(&self.tokens, Path::new(""))?, None))),
            (None, Some(file)) => Ok(Some((server_token(&self.tokens, file)?, Some(file)))),
        }
    }

    /// Options of a server of [`remanence_remote`], with what was said here.
    pub(crate) fn guard(
        &self,
        options: remanence_remote::ServerOptions,
        token: Option<&Token>,
    ) -> remanence_remote::ServerOptions {
        match token {
            Some(token) => options.token(token.clone()),
            None if self.insecure => options.insecure(),
            None => options,
        }
    }
}

/// The token of a server: the one given, or the one in `file`, which is made if it is not there.
pub(crate) fn server_token(given: &Tokens, file: &Path) -> Result<Token, Fail> {
    if given.token.is_some() || given.token_file.as_ref().is_some_and(|f| f.exists()) {
        if let (None, Some(file)) = (&given.token, &given.token_file) {
            refuse_shared(file)?;
        }
        let mut tokens = given.load()?;
        return if tokens.len() == 1 {
            Ok(tokens.remove(0))
        } else {
            Err(Fail::new(
                "a server has one token, and the token file holds several; give it a file of its own with --token-file (clients take \
                 theirs from REM_TOKEN_FILE too, which may be where this one came from)",
            ))
        };
    }
    token_in(given.token_file.as_deref().unwrap_or(file))
}

/// The token in a file of a server's own, which is made if it is not there.
pub(crate) fn token_in(file: &Path) -> Result<Token, Fail> {
    let token = match std::fs::read_to_string(file) {
        Ok(text) => Token::new(&text).map_err(|e| Fail::new(format!("{}: {e}", file.display())))?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let token = random_token()?;
            let mut out = std::fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(file)
                .context(|| format!("the token file {} cannot be made", file.display()))?;
            writeln!(out, "{}", token.secret())
                .and_then(|()| out.sync_all())
                .context(|| format!("the token file {} cannot be written", file.display()))?;
            token
        }
        Err(e) => return Err(e).context(|| format!("the token file {} cannot be read", file.display())),
    };
    refuse_shared(file)?;
    Ok(token)
}

/// A server takes no token that others may read.
fn refuse_shared(file: &Path) -> Result<(), Fail> {
    let mode = std::fs::metadata(file).map_or(0, |m| m.permissions().mode());
    if mode & 0o077 != 0 {
        return Err(Fail::new(format!(
            "others may read the token file {0}; run `chmod 600 {0}` first",
            file.display()
        )));
    }
    Ok(())
}

/// A new token.
pub(crate) fn random_token() -> Result<Token, Fail> {
    let mut random = [0; 20];
    getrandom::fill(&mut random).map_err(|e| Fail::new(format!("the system gives no random bytes: {e}")))?;
    Ok(Token::from_random(random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_printed() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("64K", 65536), ("1G", 1 << 30), ("3MiB", 3 << 20), ("16T", 1 << 44)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "K", "-1", "1.5G", "1X", "99999999999T", "1 G"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        assert_eq!([0, 65536, 1 << 30, 1000].map(|n| Size(n).to_string()), ["0", "64K", "1G", "1000"]);
    }

    #[test]
    fn addresses_have_a_port_or_get_one() {
        let server = |text: &str| text.parse::<Server>().map(|s| s.to_string());
        assert_eq!(server("127.0.0.1"), Ok("127.0.0.1:7471".into()));
        assert_eq!(server("node-3.lan:99"), Ok("node-3.lan:99".into()));
        assert_eq!(server("::1"), Ok("[::1]:7471".into()));
        assert_eq!(server("[::1]:99"), Ok("[::1]:99".into()));
        for text in ["", ":7471", "a:b", "a:70000", "a b", "http://a"] {
            assert!(server(text).is_err(), "{text}");
        }
    }
}
