//! A client for programs that do not wait: futures, for any executor.
//!
//! Who moves a blob hashes and copies all of it, and reads a source that may block. That is no work for the thread of an executor, so a
//! [`Client`] that waits carries each operation out, on a thread beside.
//!
//! A client does one thing after the other: the operations of several tasks are begun in the order in which their futures were first
//! polled. Many blobs are put side by side by one [`put`](AsyncClient::put); who wants more than that at a time has several clients.
//!
//! **Nobody has to await a future.** One that is dropped before its turn never begins. Of one that has begun, what it reads and what it gets
//! ends soon, and what comes after it begins when it has ended. A put that was dropped is as one that failed: the blob may come to be
//! there, as long as nobody puts it again.
//!
//! ```no_run
//! # use remanence_pool::client::{AsyncClient, Error, Options};
//! # async fn example(options: Options, name: remanence_pool::BlobName) -> Result<(), Error> {
//! // Two of the servers have to be there.
//! let client = AsyncClient::connect_to(options, 2).await?;
//! client.put_bytes(&name, b"hello", 2).await?; // durable on two of them, at least
//! assert_eq!(client.get_bytes(&name).await?, b"hello");
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use remanence_pmem::Survives;
use remanence_service::client::{Turns, elsewhere};
use remanence_verbs::Context;

use super::{BlobReader, Client, Error, Got, Lost, Options, PutReport, ServerIndex, Source, Upload};
use crate::blob::{BlobName, Listing};
use crate::proto::PoolInfo;

/// Connections to some servers, for any number of tasks and threads. Clones are the same client.
#[derive(Clone)]
pub struct AsyncClient {
    turns: Turns<ClientSlot>,
    options: Arc<Options>,
}

impl fmt::Debug for AsyncClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncClient").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Where the client is that carries operations out.
struct ClientSlot {
    context: Context,
    options: Arc<Options>,
    /// None after one that has failed: the next operation connects again.
    client: Option<Client>,
}

/// Whether anybody waits for an operation still.
#[derive(Clone, Default)]
struct GivenUp(Arc<AtomicBool>);

/// Gives an operation up when it is dropped.
struct Waits(GivenUp);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Release);
    }
}

/// Reads for as long as anybody waits for that.
struct Watched<R> {
    reader: R,
    given_up: GivenUp,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.given_up.0.load(Ordering::Acquire) {
            return Err(io::Error::other("nobody waits for it any more"));
        }
        self.reader.read(into)
    }
}

impl AsyncClient {
    /// Connects by a device of its own, at the local address from which the first server is reached: see
    /// [`connect`](Self::connect).
    ///
    /// # Errors
    /// As [`Client::connect_to`].
    pub async fn connect_to(options: Options, need: usize) -> Result<Self, Error> {
        let connects = move || {
            let context = super::towards(&options, need)?;
            Client::connect(&context, options, need).map(|client| Self::over(client, context))
        };
        elsewhere(connects).await
    }

    /// Connects to all servers of `options`, at least `need` of which must be there.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect(context: &Context, options: Options, need: usize) -> Result<Self, Error> {
        let context = context.clone();
        let connects =
            move || Client::connect(&context, options, need).map(|client| Self::over(client, context));
        elsewhere(connects).await
    }

    fn over(client: Client, context: Context) -> Self {
        let options = Arc::new(client.options.clone());
        let slot = ClientSlot { context, options: Arc::clone(&options), client: Some(client) };
        Self { turns: Turns::new(slot), options }
    }

    /// Does something with the client when its turn has come, beside. It is done to its end also where nobody waits for it any more, and
    /// the next turn comes after that.
    async fn beside<const IS_PUT: bool, T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Client, GivenUp) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let mut turn = self.turns.turn().await;
        let given_up = GivenUp::default();
        let _waits = Waits(given_up.clone());
        elsewhere(move || {
            let mut client = match turn.client.take() {
                Some(client) => client,
                // How many servers are needed the operation says.
                None => Client::connect(&turn.context, Options::clone(&turn.options), 0)?,
            };
            let done = act(&mut client, given_up);
            // What a put that failed had reserved is given back when its connections are gone.
            let is_whole = done.is_ok() || !IS_PUT;
            turn.client = is_whole.then_some(client);
            done
        })
        .await
    }

    /// Puts blobs, side by side. When the future ends all of them are durable on as many servers as the quorum asks.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn put(&self, sources: Vec<Source<'static>>, upload: Upload) -> Result<PutReport, Error> {
        self.beside::<true, _>(move |client, given_up| {
            let watched = sources.into_iter().map(|source| {
                let reader = Watched { reader: source.reader, given_up: given_up.clone() };
                Ok(Source { reader: Box::new(reader), ..source })
            });
            client.put(watched, &upload, &mut |_| ())
        })
        .await
    }

    /// Puts one blob that is in memory. It is durable on `quorum` servers at least when the future ends.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn put_bytes(
        &self,
        name: &BlobName,
        bytes: impl Into<Vec<u8>>,
        quorum: usize,
    ) -> Result<PutReport, Error> {
        let bytes = bytes.into();
        let (len, reader) = (Some(bytes.len() as u64), Box::new(io::Cursor::new(bytes)));
        let source = Source { name: name.clone(), len, reader, version: None };
        self.put(vec![source], Upload { quorum, servers: None }).await
    }

    /// Gets the newest version of a blob. `take` consumes the stream, on another thread, and is called again from the beginning when a
    /// server fails.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get(
        &self,
        name: &BlobName,
        take: impl FnMut(&mut BlobReader<'_>) -> io::Result<()> + Send + 'static,
    ) -> Result<Got, Error> {
        let name = name.clone();
        self.beside::<false, _>(move |client, _| client.get(&name, take)).await
    }

    /// Gets the newest version of a blob, into memory.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get_bytes(&self, name: &BlobName) -> Result<Vec<u8>, Error> {
        let name = name.clone();
        self.beside::<false, _>(move |client, given_up| {
            let mut bytes = Vec::new();
            client.get(&name, |reader| {
                bytes.clear();
                Watched { reader, given_up: given_up.clone() }.read_to_end(&mut bytes).map(drop)
            })?;
            Ok(bytes)
        })
        .await
    }

    /// Deletes a blob on all live servers; on how many it is durably gone.
    ///
    /// # Errors
    /// As [`Client::delete`].
    pub async fn delete(&self, name: &BlobName, need: usize) -> Result<usize, Error> {
        let name = name.clone();
        self.beside::<false, _>(move |client, _| client.delete(&name, need)).await
    }

    /// The whole catalogue of a server, deletions included.
    ///
    /// # Errors
    /// It is lost.
    pub async fn list(&self, server: ServerIndex) -> Result<Vec<Listing>, Error> {
        self.beside::<false, _>(move |client, _| client.list(server).map_err(gone)).await
    }

    /// Asks a server how full its pool is.
    ///
    /// # Errors
    /// It is lost.
    pub async fn stat(&self, server: ServerIndex) -> Result<PoolInfo, Error> {
        self.beside::<false, _>(move |client, _| client.stat(server).map_err(gone)).await
    }

    /// Which failures data survives that was made durable on all live servers: see [`Client::survives`].
    ///
    /// # Errors
    /// There is no client any more, and the device refuses another one.
    pub async fn survives(&self) -> Result<Option<Survives>, Error> {
        self.beside::<false, _>(|client, _| Ok(client.survives())).await
    }

    /// Servers that cannot be used, and why.
    ///
    /// # Errors
    /// There is no client any more, and the device refuses another one.
    pub async fn lost(&self) -> Result<Vec<Lost>, Error> {
        self.beside::<false, _>(|client, _| Ok(client.lost())).await
    }

    /// A server's name, as the user gave it.
    #[must_use]
    pub fn name(&self, server: ServerIndex) -> &str {
        &self.options.servers[server].0
    }
}

fn gone(lost: Lost) -> Error {
    Error::TooFew { have: 0, need: 1, lost: vec![lost] }
}
