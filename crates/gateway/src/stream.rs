//! TCP and unix sockets, as one.

use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use socket2::{SockRef, TcpKeepalive};

use crate::{Address, Error};

/// A socket that connections come to.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, Address),
}

/// A connection to one client.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    pub(crate) fn bind(address: &Address) -> Result<Self, Error> {
        let failed = |error| Error::Listen { address: address.to_string(), error };
        match address {
            Address::Tcp(socket) => TcpListener::bind(*socket).map(Self::Tcp).map_err(failed),
            Address::Unix(path) => {
                clear(path).map_err(failed)?;
                UnixListener::bind(path).map(|listener| Self::Unix(listener, address.clone())).map_err(failed)
            }
        }
    }

    /// Where it is, with the port that the system chose.
    pub(crate) fn address(&self) -> Address {
        match self {
            Self::Tcp(listener) => Address::Tcp(
                listener.local_addr().unwrap_or_else(|_| std::net::SocketAddr::from(([0, 0, 0, 0], 0))),
            ),
            Self::Unix(_, address) => address.clone(),
        }
    }

    /// A connection and the names of its ends, as CLIENT LIST shows them.
    pub(crate) fn accept(&self, keepalive: Option<Duration>) -> io::Result<(Stream, String, String)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                // Replies are written whole: to wait for more would only delay them. A socket that is gone already says
                // so at its first read.
                let _ = stream.set_nodelay(true);
                if let Some(time) = keepalive {
                    let probes = TcpKeepalive::new().with_time(time).with_interval(time / 3).with_retries(3);
                    let _ = SockRef::from(&stream).set_tcp_keepalive(&probes);
                }
                let local = stream.local_addr().map(|local| local.to_string()).unwrap_or_default();
                Ok((Stream::Tcp(stream), peer.to_string(), local))
            }
            Self::Unix(listener, address) => {
                let (stream, _) = listener.accept()?;
                Ok((Stream::Unix(stream), format!("{address}:0"), format!("{address}:0")))
            }
        }
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(listener) => listener,
            Self::Unix(listener, _) => listener,
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.source().register(registry, token, Interest::READABLE)
    }
}

/// Removes a unix socket that nobody listens on any more.
fn clear(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "what is there is no socket"))
        }
        Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
            Err(error) => Err(error),
            Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "somebody answers there")),
        },
    }
}

impl Stream {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.source().register(registry, token, Interest::READABLE | Interest::WRITABLE)
    }

    pub(crate) const fn is_tcp(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    pub(crate) fn deregister(&mut self, registry: &Registry) {
        // Closing the socket does the same: this only says it sooner.
        let _ = self.source().deregister(registry);
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buffer),
            Self::Unix(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
