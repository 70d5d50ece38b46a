//! Random calls of several threads: what is read is what was written last, and when all is closed the files have it. The log and the memory are as small as they can be, so that all of it
//! happens while both are full.

use std::fs;
use std::io::SeekFrom;

use remanence_effort::{replay, seeds};
use remanence_nvcache::{Cache, File, OpenOptions};

use crate::support::{MEDIA, Random, World, both};

const THREADS: u64 = 4;

/// A thread with a file of its own, and what that has to be.
struct Single<'a> {
    cache: &'a Cache,
    path: std::path::PathBuf,
    /// Two descriptors of the file.
    files: Vec<File>,
    /// That of the first.
    position: usize,
    model: Vec<u8>,
    random: Random,
}

impl<'a> Single<'a> {
    fn new(cache: &'a Cache, path: std::path::PathBuf, seed: u64) -> Self {
        let mut single = Self {
            cache,
            path,
            files: Vec::new(),
            position: 0,
            model: Vec::new(),
            random: Random::new(seed),
        };
        single.open();
        single
    }

    fn open(&mut self) {
        let open = |_| self.cache.open_file(&self.path, &both()).expect("room");
        self.files = (0..2).map(open).collect();
        self.position = 0;
    }

    fn bytes(&mut self) -> Vec<u8> {
        let most = [10, 300, 5000, 40_000][self.random.below(4) as usize];
        let len = 1 + self.random.below(most);
        let first = self.random.below(256);
        (0..len).map(|n| (first + n / 7) as u8).collect()
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.model.resize(self.model.len().max(end), 0);
        self.model[at..end].copy_from_slice(bytes);
    }

    /// Does one call, and looks whether it says what it should.
    fn call(&mut self) {
        let at = self.random.below(200_000) as usize;
        match self.random.below(16) {
            0..5 => {
                let bytes = self.bytes();
                assert_eq!(self.files[0].write_at(&bytes, at as u64).expect("a disk"), bytes.len());
                self.put(at, &bytes);
            }
            5 => {
                let bytes = self.bytes();
                assert_eq!(self.files[0].write(&bytes).expect("a disk"), bytes.len());
                self.put(self.position, &bytes);
                self.position += bytes.len();
            }
            6..11 => {
                let mut into = vec![0xaa; self.bytes().len()];
                let done = self.files[1].read_at(&mut into, at as u64).expect("a disk");
                let there = &self.model[at.min(self.model.len())..(at + into.len()).min(self.model.len())];
                assert_eq!(&into[..done], there, "at {at} of {}", self.model.len());
            }
            11 => {
                let mut into = vec![0xaa; self.bytes().len()];
                let done = self.files[0].read(&mut into).expect("a disk");
                let from = self.position.min(self.model.len());
                assert_eq!(into[..done], self.model[from..(from + into.len()).min(self.model.len())]);
                self.position += done;
            }
            12 => {
                let to =
                    [SeekFrom::Start(at as u64), SeekFrom::End(-(at as i64).min(self.model.len() as i64))];
                let to = to[self.random.below(2) as usize];
                self.position = self.files[0].seek(to).expect("it is not before the begin") as usize;
            }
            13 => {
                self.files[1].set_len(at as u64).expect("a disk");
                self.model.resize(at, 0);
            }
            14 => match self.random.below(3) {
                0 => self.files[0].sync().expect("a disk"),
                1 => self.files[0].drain().expect("a disk"),
                _ => {
                    let len = self.files[0].stat().expect("it is open").len;
                    assert_eq!(len, self.model.len() as u64);
                }
            },
            _ => self.again(),
        }
    }

    /// Closes it, wholly or not, looks at the file, and opens it again in some other way.
    fn again(&mut self) {
        let append = OpenOptions::new().append(true);
        let appends = self.cache.open_file(&self.path, &append).expect("it is there");
        let bytes = self.bytes();
        assert_eq!(appends.write_at(&bytes, 3).expect("a disk"), bytes.len());
        self.put(self.model.len(), &bytes);
        appends.close().expect("a disk");
        if self.random.below(4) == 0 {
            let cut = both().truncate(true);
            drop(self.cache.open_file(&self.path, &cut).expect("it is there"));
            self.model.clear();
        }
        assert_eq!(self.cache.stat(&self.path).expect("it is there").len, self.model.len() as u64);
        if self.random.below(2) == 0 {
            return;
        }
        for file in self.files.drain(..) {
            file.close().expect("a disk");
        }
        assert!(fs::read(&self.path).expect("it is there") == self.model, "it has all of it");
        self.open();
    }
}

#[test]
fn what_each_thread_reads_is_what_it_wrote_last() {
    for seed in seeds(10) {
        println!("{}", replay(seed));
        let world = World::new(MEDIA[seed as usize % MEDIA.len()]);
        let cache = world.open();
        let models: Vec<(std::path::PathBuf, Vec<u8>)> = std::thread::scope(|scope| {
            let run = |me: u64| {
                let (cache, path) = (&cache, world.path(&format!("file-{me}")));
                scope.spawn(move || {
                    let mut single = Single::new(cache, path, seed * THREADS + me);
                    for _ in 0..250 {
                        single.call();
                    }
                    let Single { path, model, .. } = single;
                    (path, model)
                })
            };
            let threads: Vec<_> = (0..THREADS).map(run).collect();
            threads.into_iter().map(|thread| thread.join().expect("what it read is right")).collect()
        });
        // All descriptors are closed: the files have it already.
        for (path, model) in models {
            assert!(fs::read(&path).expect("it is there") == model, "{}", path.display());
        }
        let status = cache.status();
        assert!(status.waits > 0 && status.batches > 4, "the log was never full: {status:?}");
        cache.close().expect("a disk");
    }
}

#[test]
fn threads_that_share_pages_of_one_file_take_nothing_from_each_other() {
    /// Bytes that are one thread's: pages are of several.
    const BLOCK: u64 = 900;
    const BLOCKS: u64 = 160;
    for seed in seeds(10) {
        println!("{}", replay(seed));
        let world = World::new(MEDIA[seed as usize % MEDIA.len()]);
        let cache = world.open();
        let path = world.path("shared");
        std::thread::scope(|scope| {
            for me in 0..THREADS {
                let (cache, path) = (&cache, &path);
                scope.spawn(move || {
                    let file = cache.open_file(path, &both()).expect("room");
                    let mut random = Random::new(seed * THREADS + me);
                    let mut model = [0_u8; (BLOCKS / THREADS) as usize];
                    for n in 0..600_u64 {
                        let block = random.below(BLOCKS / THREADS);
                        let at = (block * THREADS + me) * BLOCK;
                        let mut into = [0xaa; BLOCK as usize];
                        let done = file.read_at(&mut into, at).expect("a disk");
                        let has = model[block as usize];
                        assert!(
                            into[..done].iter().all(|byte| *byte == has),
                            "block {block} of {me} in turn {n}"
                        );
                        assert!(done == into.len() || has == 0);
                        model[block as usize] = n as u8 | 1;
                        file.write_at(&[n as u8 | 1; BLOCK as usize], at).expect("a disk");
                        if n % 90 == me {
                            file.sync().expect("a disk");
                        }
                    }
                    file.drain().expect("a disk");
                    for (block, byte) in model.into_iter().enumerate() {
                        let at = (block as u64 * THREADS + me) * BLOCK;
                        let mut into = [0; BLOCK as usize];
                        file.read_at(&mut into, at).expect("a disk");
                        assert!(into.iter().all(|found| *found == byte));
                    }
                });
            }
        });
        cache.close().expect("all descriptors are closed");
        let bytes = fs::read(&path).expect("it is there");
        for block in bytes.chunks(BLOCK as usize) {
            assert!(block.iter().all(|byte| *byte == block[0]), "a block of two writes");
        }
    }
}

#[test]
fn changes_that_overlap_have_one_order_in_memory_and_in_the_file() {
    for medium in MEDIA {
        let world = World::new(medium);
        let cache = world.open();
        let path = world.path("overlapping");
        let file = cache.open_file(&path, &both()).expect("room");
        for round in 0..30 {
            std::thread::scope(|scope| {
                for me in 0..THREADS {
                    let file = &file;
                    scope.spawn(move || {
                        let mut random = Random::new(round * THREADS + me);
                        for n in 0..40_u64 {
                            let (at, len) = (random.below(20_000), 1 + random.below(9000));
                            match random.below(8) {
                                0 => file.set_len(at).expect("a disk"),
                                1 | 2 => drop(file.read_at(&mut vec![0; len as usize], at).expect("a disk")),
                                _ => {
                                    let bytes = vec![(me * 64 + n % 60) as u8 + 1; len as usize];
                                    assert_eq!(file.write_at(&bytes, at).expect("a disk"), bytes.len());
                                }
                            }
                        }
                    });
                }
            });
            let mut cached = vec![0; 40_000];
            let len = file.read_at(&mut cached, 0).expect("a disk");
            file.drain().expect("a disk");
            let there = fs::read(&path).expect("it is there");
            assert_eq!((len as u64, there.len() as u64), (file.len(), file.len()));
            let differs = (0..len).find(|at| cached[*at] != there[*at]);
            assert_eq!(differs, None, "{medium:?}, round {round}");
        }
    }
}

#[test]
fn what_several_threads_append_is_there_once_and_whole() {
    const EACH: u64 = 300;
    const RECORD: usize = 700;
    for medium in MEDIA {
        let world = World::new(medium);
        let cache = world.open();
        let path = world.path("appended");
        std::thread::scope(|scope| {
            for me in 0..THREADS {
                let (cache, path) = (&cache, &path);
                scope.spawn(move || {
                    let append = OpenOptions::new().append(true).create(true);
                    let file = cache.open_file(path, &append).expect("room");
                    for n in 0..EACH {
                        let record =
                            [&me.to_le_bytes()[..], &n.to_le_bytes()].concat().repeat(RECORD / 16 + 1);
                        assert_eq!(file.write(&record[..RECORD]).expect("a disk"), RECORD);
                    }
                });
            }
        });
        cache.close().expect("all descriptors are closed");
        let bytes = fs::read(&path).expect("it is there");
        assert_eq!(bytes.len() as u64, THREADS * EACH * RECORD as u64);
        let mut next = [0; THREADS as usize];
        for record in bytes.chunks(RECORD) {
            let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes"));
            let (me, n) = (word(0) as usize, word(8));
            assert_eq!(n, next[me], "the order of thread {me}");
            next[me] += 1;
            assert!(record.chunks(16).all(|part| part == &record[..part.len()]), "a record of two writes");
        }
        assert_eq!(next, [EACH; THREADS as usize]);
    }
}
