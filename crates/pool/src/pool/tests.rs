use super::*;
use crate::format::root;
use crate::recover;
use remanence_pmem::Region;

const SIZE: u64 = 1 << 20;

fn region() -> Region {
    Region::anonymous(SIZE).expect("a MiB of memory")
}

fn pool() -> Pool<Region> {
    Pool::create(region(), Uuid([7; 16]), 42).expect("a fair size")
}

fn name(text: &str) -> BlobName {
    BlobName::new(text).expect("a fair name")
}

fn version(counter: u64) -> Version {
    Version { counter, writer: 1 }
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|n| (seed.wrapping_mul(31).wrapping_add(n as u64 * 7) >> 2) as u8).collect()
}

/// Reserves and writes, but does not commit.
fn write(pool: &mut Pool<Region>, text: &str, data: &[u8]) -> ReservationId {
    let id = pool.reserve(name(text));
    let mut rest = data;
    for extent in pool.extend(id, data.len() as u64, 64).expect("room") {
        let (part, behind) = rest.split_at(rest.len().min((extent.blocks * BLOCK) as usize));
        pool.medium().write(pool.geometry().block(extent.start), part);
        rest = behind;
    }
    id
}

fn change(id: ReservationId, counter: u64, data: &[u8]) -> Change {
    Change::Put {
        reservation: id,
        version: version(counter),
        len: data.len() as u64,
        digest: Digest::of(data),
    }
}

fn put(pool: &mut Pool<Region>, text: &str, counter: u64, data: &[u8]) -> Result<Version, PoolError> {
    let id = write(pool, text, data);
    pool.data_durable(id).expect("reserved");
    pool.commit(&[change(id, counter, data)]).expect("memory does not fail").remove(0)
}

fn delete(pool: &mut Pool<Region>, text: &str, counter: u64) -> Result<Version, PoolError> {
    let change = Change::Delete { name: name(text), version: version(counter) };
    pool.commit(&[change]).expect("memory does not fail").remove(0)
}

fn get(pool: &Pool<Region>, text: &str) -> Option<Vec<u8>> {
    let found = pool.find(&name(text))?;
    let mut data = Vec::new();
    for extent in &found.extents {
        let mut part = vec![0; (extent.blocks * BLOCK) as usize];
        pool.medium().read(pool.geometry().block(extent.start), &mut part);
        data.extend(part);
    }
    data.truncate(found.len as usize);
    assert_eq!(found.digest, Digest::of(&data));
    Some(data)
}

fn reopen(pool: Pool<Region>) -> Pool<Region> {
    recover(pool.into_medium()).expect("a sound pool")
}

#[test]
fn what_was_committed_is_there_after_recovery_and_nothing_else() {
    let mut pool = pool();
    let (a, b) = (bytes(1, 10_000), bytes(2, 4096));
    assert_eq!(put(&mut pool, "a", 1, &a), Ok(version(1)));
    assert_eq!(put(&mut pool, "dir/b", 1, &b), Ok(version(1)));
    assert_eq!(put(&mut pool, "empty", 1, &[]), Ok(version(1)));
    let free = pool.usage().free;
    write(&mut pool, "never", &a);
    let pool = reopen(pool);
    assert_eq!((get(&pool, "a"), get(&pool, "dir/b"), get(&pool, "empty")), (Some(a), Some(b), Some(vec![])));
    assert_eq!(get(&pool, "never"), None);
    assert_eq!(pool.usage(), Usage { blobs: 3, free, ..pool.usage() });
    assert_eq!(pool.uuid(), Uuid([7; 16]));
    assert_eq!(["a", "dir/b", "empty"].map(|n| pool.verify(&name(n))), [Some(true); 3]);
}

#[test]
fn an_overwrite_shows_the_old_blob_until_it_is_durable_and_frees_it_then() {
    let mut pool = pool();
    let (old, new) = (bytes(1, 20_000), bytes(2, 9_000));
    put(&mut pool, "a", 1, &old).expect("room");
    let free = pool.usage().free;
    let id = write(&mut pool, "a", &new);
    assert_eq!(get(&pool, "a"), Some(old));
    pool.data_durable(id).expect("reserved");
    assert_eq!(pool.commit(&[change(id, 2, &new)]), Ok(vec![Ok(version(2))]));
    assert_eq!(get(&pool, "a"), Some(new.clone()));
    assert_eq!(pool.usage().free, free + 2 * BLOCK);
    let pool = reopen(pool);
    assert_eq!((get(&pool, "a"), pool.usage().free), (Some(new), free + 2 * BLOCK));
}

#[test]
fn a_deletion_is_remembered_so_that_an_old_copy_cannot_come_back() {
    let mut pool = pool();
    let data = bytes(1, 5000);
    put(&mut pool, "a", 1, &data).expect("room");
    assert_eq!(delete(&mut pool, "a", 2), Ok(version(2)));
    assert_eq!(delete(&mut pool, "a", 2), Err(PoolError::Superseded { current: version(2) }));
    // A server that missed the blob learns of its end all the same: its word counts where others missed the deletion.
    assert_eq!(delete(&mut pool, "never here", 7), Ok(version(7)));
    let mut pool = reopen(pool);
    assert_eq!((get(&pool, "a"), pool.version(&name("a")), pool.usage().blobs), (None, version(2), 0));
    assert_eq!(pool.version(&name("never here")), version(7));
    assert_eq!(put(&mut pool, "a", 2, &data), Err(PoolError::Superseded { current: version(2) }));
    assert_eq!(put(&mut pool, "a", 3, &data), Ok(version(3)));
    assert_eq!(get(&pool, "a"), Some(data));
}

#[test]
fn nothing_is_committed_that_was_not_made_durable_reserved_or_newer() {
    let mut pool = pool();
    let data = bytes(1, 5000);
    let id = write(&mut pool, "a", &data);
    assert_eq!(pool.commit(&[change(id, 1, &data)]), Ok(vec![Err(PoolError::NotDurable)]));
    pool.data_durable(id).expect("reserved");
    pool.extend(id, 1, 64).expect("room");
    assert_eq!(
        pool.commit(&[change(id, 1, &data)]),
        Ok(vec![Err(PoolError::NotDurable)]),
        "new room is not written"
    );
    pool.data_durable(id).expect("reserved");
    let long =
        Change::Put { reservation: id, version: version(1), len: 3 * BLOCK + 1, digest: Digest::of(b"") };
    assert_eq!(pool.commit(&[long]), Ok(vec![Err(PoolError::TooLong { len: 12289, reserved: 12288 })]));
    let twice = [change(id, 1, &data), change(id, 2, &data)];
    assert_eq!(pool.commit(&twice), Ok(vec![Ok(version(1)), Err(PoolError::NoSuchReservation)]));
    assert_eq!(pool.abandon(id), Err(PoolError::NoSuchReservation));
    assert_eq!(put(&mut pool, "a", 1, &data), Err(PoolError::Superseded { current: version(1) }));
    assert_eq!(get(&reopen(pool), "a"), Some(data));
}

#[test]
fn a_batch_is_judged_one_by_one_and_the_last_of_a_name_wins() {
    let mut pool = pool();
    let data: Vec<_> = (0..4).map(|n| bytes(n, 3000)).collect();
    let ids: Vec<_> = data.iter().map(|d| write(&mut pool, "a", d)).collect();
    ids.iter().for_each(|id| pool.data_durable(*id).expect("reserved"));
    let before = pool.usage().sequence;
    let batch = [
        change(ids[0], 1, &data[0]),
        change(ids[1], 3, &data[1]),
        change(ids[2], 2, &data[2]),
        Change::Delete { name: name("a"), version: version(4) },
        Change::Delete { name: name("a"), version: version(5) },
        change(ids[3], 6, &data[3]),
    ];
    let verdicts = pool.commit(&batch).expect("memory does not fail");
    let superseded = Err(PoolError::Superseded { current: version(3) });
    assert_eq!(
        verdicts,
        [Ok(version(1)), Ok(version(3)), superseded, Ok(version(4)), Ok(version(5)), Ok(version(6))]
    );
    assert_eq!(pool.usage().sequence, before + 1, "one frame for all");
    pool.abandon(ids[2]).expect("it was refused, so it is still there");
    let free = pool.usage().free;
    let pool = reopen(pool);
    assert_eq!((get(&pool, "a"), pool.usage().free), (Some(data[3].clone()), free));
}

#[test]
fn a_reader_keeps_the_blocks_of_what_it_reads() {
    let mut pool = pool();
    put(&mut pool, "a", 1, &bytes(1, 5000)).expect("room");
    let (lease, found) = pool.lease(&name("a")).expect("there");
    let (second, _) = pool.lease(&name("a")).expect("there");
    let free = pool.usage().free;
    delete(&mut pool, "a", 2).expect("there");
    assert_eq!(pool.usage().free, free);
    let mut first = vec![0; 4096];
    pool.medium().read(pool.geometry().block(found.extents[0].start), &mut first);
    assert_eq!(first, bytes(1, 4096));
    pool.release(lease).expect("leased");
    assert_eq!(pool.usage().free, free);
    pool.release(second).expect("leased");
    assert_eq!(pool.usage().free, free + 2 * BLOCK);
    assert_eq!(pool.release(second), Err(PoolError::NoSuchLease));
}

#[test]
fn a_full_pool_says_so_and_has_lost_nothing() {
    let mut pool = pool();
    let capacity = pool.usage().capacity;
    let id = pool.reserve(name("big"));
    pool.extend(id, capacity - BLOCK, 64).expect("room");
    assert_eq!(pool.extend(id, 2 * BLOCK, 64), Err(PoolError::Full { wanted: 2 * BLOCK, free: BLOCK }));
    pool.extend(id, BLOCK, 64).expect("room");
    assert_eq!(pool.usage().free, 0);
    pool.abandon(id).expect("reserved");
    assert_eq!(pool.usage().free, capacity);
}

#[test]
fn a_full_catalogue_says_so_and_deletions_still_work() {
    let mut pool = pool();
    let long = |n: u32| format!("{n:04}{}", "x".repeat(1000));
    let full =
        (0..).find(|n| put(&mut pool, &long(*n), 1, &[]) == Err(PoolError::CatalogueFull)).expect("finite");
    assert!(full > 30, "{full} blobs");
    for n in 0..full {
        assert_eq!(delete(&mut pool, &long(n), 2), Ok(version(2)));
    }
    let pool = reopen(pool);
    assert_eq!((pool.usage().blobs, pool.version(&name(&long(full - 1)))), (0, version(2)));
}

#[test]
fn the_catalogue_moves_from_half_to_half_and_nothing_is_lost() {
    let mut pool = pool();
    let mut halves = std::collections::BTreeSet::new();
    for round in 1..=2000_u64 {
        let text = format!("{}{}", round % 7, "y".repeat(500));
        put(&mut pool, &text, round, &bytes(round, 100)).expect("room");
        halves.insert(pool.root.generation);
        if round % 97 == 0 {
            pool = reopen(pool);
        }
    }
    assert!(halves.len() > 4, "moved {} times", halves.len());
    let free = pool.usage().free;
    let pool = reopen(pool);
    for round in 1994..=2000 {
        assert_eq!(get(&pool, &format!("{}{}", round % 7, "y".repeat(500))), Some(bytes(round, 100)));
    }
    assert_eq!((pool.usage().blobs, pool.usage().free), (7, free));
}

/// A move of several frames that a crash cut off before the root said so: its last frame fits exactly behind the
/// next move's, by place and by sequence number, and only its generation tells that it never counted.
#[test]
fn a_move_that_a_crash_cut_off_does_not_count_behind_the_next_one() {
    let medium = Region::anonymous(256 << 20).expect("memory");
    let mut pool = Pool::create(medium, Uuid([7; 16]), 42).expect("a fair size");
    let long = |n: usize| format!("{n:04}{}", "x".repeat(996));
    let record = |n: usize, counter| Record::Put {
        name: name(&long(n)),
        version: version(counter),
        len: 0,
        digest: Digest::of(&[]),
        extents: Vec::new(),
    };
    let frame = SNAPSHOT_CUT.div_ceil(record(0, 1).encoded_len());
    (0..2 * frame).for_each(|n| put(&mut pool, &long(n), 1, &[]).map(drop).expect("room"));
    pool.close().expect("memory does not fail");

    let mut roots = [[0; 32]; 2];
    (0..2).for_each(|n| pool.medium.read(root::COPIES[n], &mut roots[n]));
    let sequence = pool.sequence;
    pool.move_to_other_half(&[record(9999, 1)]).expect("memory does not fail");
    assert_eq!(pool.sequence, sequence + 3, "three frames");
    (0..2).for_each(|n| pool.medium.write(root::COPIES[n], &roots[n]));

    let mut pool = reopen(pool);
    assert_eq!((pool.sequence, pool.version(&name(&long(9999)))), (sequence, Version::NONE));
    pool.move_to_other_half(&[record(2 * frame - 1, 2)]).expect("memory does not fail");
    assert_eq!(pool.sequence, sequence + 2, "two frames");
    let pool = reopen(pool);
    assert_eq!((pool.sequence, pool.version(&name(&long(9999)))), (sequence + 2, Version::NONE));
    assert_eq!(pool.version(&name(&long(2 * frame - 1))), version(2));
}

#[test]
fn the_list_goes_on_where_it_stopped() {
    let mut pool = pool();
    ["c", "a", "b"].into_iter().for_each(|n| put(&mut pool, n, 1, n.as_bytes()).map(drop).expect("room"));
    delete(&mut pool, "b", 2).expect("there");
    let names = |after: Option<&BlobName>| pool.list(after).map(|l| l.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(None), ["a", "b", "c"]);
    assert_eq!(names(Some(&name("a"))), ["b", "c"]);
    assert_eq!(names(Some(&name("c"))), [""; 0]);
    assert_eq!(pool.list(None).nth(1).map(|l| l.state), Some(State::Deleted));
}

// ---- damage ----

#[test]
fn damage_of_the_catalogue_is_told_from_a_torn_frame() {
    let mut pool = pool();
    for n in 1..=5 {
        put(&mut pool, &format!("blob-{n}"), 1, &bytes(n, 100)).expect("room");
    }
    let (catalogue, end) = (pool.geometry().half(Half::First), pool.log_end);
    let frame = end / 5;
    let medium = pool.into_medium();
    let damaged = |at: u64| {
        let copy = region();
        let mut whole = vec![0; SIZE as usize];
        medium.read(0, &mut whole);
        whole[at as usize] ^= 1;
        copy.write(0, &whole);
        recover(copy)
    };
    // The last frame cannot be told from one that a crash tore: what was committed before it is there.
    let torn = damaged(catalogue + 4 * frame + 40).expect("a sound pool with one commit less");
    assert_eq!(
        (torn.usage().blobs, get(&torn, "blob-5"), get(&torn, "blob-4")),
        (4, None, Some(bytes(4, 100)))
    );
    for n in 0..4 {
        let what = damaged(catalogue + n * frame + 40).expect_err("damaged");
        assert_eq!(what, OpenError::catalogue(format!("frame {} is unreadable, later ones are not", n + 1)));
    }
    assert_eq!(damaged(8).expect_err("damaged"), OpenError::OtherVersion { found: 0 });
    assert_eq!(damaged(20).expect_err("damaged"), OpenError::SuperblockDamaged);
    assert_eq!(damaged(BLOCK + 9).expect("the other copy is whole").usage().blobs, 5);
}

#[test]
fn after_a_clean_end_even_the_last_frame_may_not_be_missing() {
    let mut pool = pool();
    put(&mut pool, "a", 1, b"x").expect("room");
    put(&mut pool, "b", 1, b"y").expect("room");
    pool.close().expect("memory does not fail");
    let last = pool.geometry().half(Half::First) + pool.log_end / 2;
    let medium = pool.into_medium();
    assert_eq!(recover(medium.clone()).expect("sound").usage().blobs, 2);
    medium.write(last + 30, &[0xFF]);
    let what = recover(medium).expect_err("damaged");
    assert_eq!(what, OpenError::catalogue("it ends at frame 1 and once reached frame 2"));
}

#[test]
fn both_roots_damaged_is_an_error_and_not_an_empty_pool() {
    let medium = pool().into_medium();
    root::COPIES.iter().for_each(|at| medium.write(*at + 9, &[1]));
    assert_eq!(recover(medium).expect_err("damaged"), OpenError::RootDamaged);
}

#[test]
fn a_generation_that_nobody_reached_is_damage() {
    let pool = pool();
    let (root, salt) = (root::Root { generation: u64::MAX, ..pool.root }, pool.superblock.salt);
    let medium = pool.into_medium();
    root.store(&medium, salt).expect("memory does not fail");
    assert_eq!(recover(medium).expect_err("damaged"), OpenError::RootDamaged);
}

#[test]
fn a_frame_that_nobody_reached_is_damage() {
    for sequence in [1 << 63, u64::MAX - 1, u64::MAX] {
        let pool = pool();
        let begins = pool.superblock.geometry.half(pool.root.half);
        let frame = frame::emit(pool.superblock.salt, pool.root.generation, sequence, &[]);
        let medium = pool.into_medium();
        medium.write(begins, &frame);
        let refused = recover(medium).expect_err("damaged");
        assert!(matches!(refused, OpenError::CatalogueDamaged { .. }), "{sequence:#x}: {refused:?}");
    }
}

#[test]
fn blobs_that_share_blocks_are_damage() {
    let mut pool = pool();
    put(&mut pool, "a", 1, &bytes(1, 5000)).expect("room");
    let (name, Entry::Live { body, .. }) = pool.catalogue.iter().next().expect("one") else { panic!("live") };
    let extents = pool.bodies[body].extents.clone();
    let name = BlobName::new(&format!("{name}2")).expect("fair");
    let record = Record::Put { name, version: version(1), len: 5000, digest: Digest::of(b""), extents };
    pool.append(&[record]).expect("memory does not fail");
    let what = recover(pool.into_medium()).expect_err("damaged");
    assert_eq!(what, OpenError::catalogue("blob \"a2\" claims blocks that are not free"));
}

#[test]
fn sizes_that_no_pool_can_have_are_refused() {
    let small = Region::anonymous(BLOCK).expect("memory");
    assert_eq!(Pool::create(small.clone(), Uuid([0; 16]), 1).expect_err("small"), OpenError::BadSize(BLOCK));
    assert_eq!(recover(small).expect_err("blank"), OpenError::Blank);
    assert_eq!(
        recover(Region::anonymous(100).expect("memory")).expect_err("short"),
        OpenError::TooShort { file: 100 }
    );
}

#[test]
fn a_blob_that_rotted_is_found() {
    let mut pool = pool();
    put(&mut pool, "a", 1, &bytes(1, 300_000)).expect("room");
    assert_eq!(pool.verify(&name("a")), Some(true));
    let found = pool.find(&name("a")).expect("there");
    pool.medium().write(pool.geometry().block(found.extents[0].start) + 299_999, &[0x77]);
    assert_eq!(pool.verify(&name("a")), Some(false));
    assert_eq!(pool.verify(&name("b")), None);
}

#[test]
fn version_numbers_are_never_given_twice_and_lie_above_every_version() {
    let mut pool = pool();
    assert_eq!((pool.ticket(), pool.ticket()), (Ok(1), Ok(2)));
    assert_eq!(pool.promise(1), Ok(2), "left behind already");
    assert_eq!((pool.promise(10), pool.ticket()), (Ok(10), Ok(11)));
    put(&mut pool, "a", 5000, &bytes(1, 100)).expect("room");
    assert_eq!(pool.ticket(), Ok(5001));
    // After a crash it goes on above the ceiling; after a stop in peace with the next one.
    let mut pool = reopen(pool);
    assert_eq!(pool.ticket(), Ok(5001 + crate::promise::AHEAD + 1));
    pool.close().expect("memory does not fail");
    let mut pool = reopen(pool);
    assert_eq!(pool.ticket(), Ok(5001 + crate::promise::AHEAD + 2));
}

/// Earlier releases knew no ceiling; where it lies they left zeros.
#[test]
fn a_pool_of_an_earlier_release_gives_numbers_that_no_server_of_its_time_can_have_used() {
    let mut pool = pool();
    put(&mut pool, "a", 3, &bytes(1, 100)).expect("room");
    let earlier = |pool: Pool<Region>| {
        let medium = pool.into_medium();
        for copy in crate::format::ceiling::COPIES {
            medium.write(copy, &[0; crate::format::ceiling::LEN]);
        }
        recover(medium).expect("a sound pool")
    };
    let mut pool = earlier(pool);
    assert_eq!(get(&pool, "a"), Some(bytes(1, 100)));
    assert_eq!(pool.ticket(), Ok(3 + crate::promise::GAP + 1));
    // One rotten copy does no harm.
    let medium = pool.into_medium();
    medium.write(crate::format::ceiling::COPIES[0], b"rot");
    let next = recover(medium).expect("a sound pool").ticket().expect("there are many");
    assert_eq!(next, 3 + crate::promise::GAP + 1 + crate::promise::AHEAD + 1);
}

#[test]
fn a_pool_whose_ceiling_is_damaged_in_both_copies_is_not_taken_for_one_of_an_earlier_release() {
    let mut pool = pool();
    pool.promise(1 << 40).expect("memory does not fail");
    let medium = pool.into_medium();
    let copies = crate::format::ceiling::COPIES;
    medium.write(copies[0] + 8, b"rot");
    assert!(recover(medium.clone()).expect("one is whole").promise(0).expect("memory") >= 1 << 40);
    copies.iter().for_each(|copy| medium.write(*copy + 8, b"rot"));
    assert_eq!(recover(medium).expect_err("it would promise numbers again"), OpenError::CeilingDamaged);
}
