//! What a member's image is when its member is opened: the store that it was, one that is being made, damaged, or something else. No crash
//! may look like damage.

use std::sync::Arc;

use remanence_coord::log::format::DATA_AT;
use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::{
    Epoch, Geometry as LogGeometry, Make, Mode as LogMode, Status, Store as Log, Writer,
};
use remanence_kv::format::superblock::{COPIES, FORMAT, SUPERBLOCK_LEN};
use remanence_kv::format::{Superblock, SuperblockError};
use remanence_kv::replica::change::Changes;
use remanence_kv::replica::keeper::{KeeperError, LEDGER_LEN, Unfit};
use remanence_kv::replica::{ImageReply, Keeper, Order};
use remanence_pmem::crash_image::CrashImage;
use remanence_pmem::{Medium, PersistenceDomain};

use crate::common::{SALT, SMALL};

type Image = Arc<CrashImage>;

const EPOCH: Epoch = Epoch::new(4, 1);

fn blank(len: u64) -> Image {
    Arc::new(CrashImage::new(len, PersistenceDomain::Adr))
}

/// The bytes of a store that was made, by steps of its making: each is durable before the next.
fn steps() -> Vec<Vec<(u64, Vec<u8>)>> {
    let superblock = Superblock { geometry: SMALL, salt: SALT, uuid: [7; 16] }.emit();
    let making = FORMAT.signature.making.expect("a mark");
    vec![
        vec![(making.at, making.mark.to_vec())],
        vec![(12288, vec![5; 100]), (4096, vec![6; 100])],
        vec![(COPIES[1] + 8, superblock[8..].to_vec())],
        vec![(COPIES[1], superblock[..8].to_vec())],
        vec![(8, superblock[8..].to_vec())],
        vec![(0, superblock[..8].to_vec())],
    ]
}

struct Member {
    log: Log<Image>,
    status: Status,
    image: Image,
    ledger: Image,
}

impl Member {
    /// A member whose log has these records, and whose image has the first so many.
    fn new(records: &[Vec<(u64, Vec<u8>)>], applied: u64) -> Self {
        let geometry = LogGeometry::new(DATA_AT + 12 * 4096, 4096).expect("fair");
        let make = Make { mode: LogMode::Singleton, geometry, uuid: Uuid([3; 16]), salt: 3 };
        let mut log = Log::create(blank(geometry.size), &make).expect("fair");
        let status = log.grant(EPOCH).expect("it is the first");
        let (image, ledger) = (blank(SMALL.size), blank(LEDGER_LEN));
        let mut keeper = Keeper::create(image.clone(), ledger.clone()).expect("fair");
        let mut writer = Writer::new(status.writer_grant(), EPOCH);
        for record in records {
            let mut changes = Changes::default();
            record.iter().for_each(|(at, bytes)| changes.push(*at, bytes));
            let record = changes.records(4000);
            for (at, bytes) in writer.append(&record[0]).expect("room").list() {
                log.medium().write(at, bytes);
                log.medium().persist(at..at + bytes.len() as u64).expect("memory does not fail");
            }
        }
        let told = keeper.obey(&mut log, EPOCH, &Order::Apply { below: applied });
        assert_eq!(told, ImageReply::Applied(applied));
        Self { log, status, image, ledger }
    }

    /// With a store that was made, and followed.
    fn made() -> Self {
        let steps = steps();
        Self::new(&steps, steps.len() as u64)
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.image.write(at, bytes);
        self.image.persist(at..at + bytes.len() as u64).expect("memory does not fail");
    }

    fn open(&mut self) -> Result<Keeper<Image>, KeeperError> {
        Keeper::open(self.image.clone(), self.ledger.clone(), &mut self.log)
    }

    /// Why the image is none.
    fn damage(&mut self) -> Option<String> {
        let keeper = self.open().expect("an image, or a damaged one");
        assert_eq!(keeper.ledger().complete, keeper.damage().is_none());
        keeper.damage()
    }
}

#[test]
fn an_image_whose_superblocks_are_damaged_is_none_until_another_is_sent() {
    let zeros: &[u8] = &[0; 512];
    let rot = [zeros, &[0xA5; 512], &[0xA5; 9]];
    for at in COPIES {
        let mut member = Member::made();
        member.write(at, zeros);
        assert_eq!(member.damage(), None, "the copy at {at} is enough");
    }
    for rot in rot {
        let mut member = Member::made();
        COPIES.iter().for_each(|at| member.write(*at + if rot.len() == 9 { 30 } else { 0 }, rot));
        let why = member.damage().expect("nothing says what it is");
        assert!(why.starts_with("its image is damaged"), "{why}");
        let mut keeper = member.open().expect("damaged");
        let below = steps().len() as u64;
        let mut obey = |order| keeper.obey(&mut member.log, EPOCH, &order);
        assert_eq!(obey(Order::Apply { below }), ImageReply::NeedsImage);
        assert!(matches!(obey(Order::Read { at: 0, len: 64 }), ImageReply::Bytes(_)), "for values beside it");
        assert_eq!(obey(Order::Begin), ImageReply::Ok);
        for (at, bytes) in steps().concat() {
            let len = bytes.len() as u32;
            assert_eq!(obey(Order::Block { at, bytes, len }), ImageReply::Ok);
        }
        assert_eq!(obey(Order::End { applied: below }), ImageReply::Ok);
        assert_eq!(obey(Order::Apply { below }), ImageReply::Applied(below));
        assert_eq!((keeper.damage(), member.damage()), (None, None), "it is whole");
    }
}

#[test]
fn what_rots_beside_a_member_that_runs_is_seen_before_it_serves() {
    let mut member = Member::made();
    let mut keeper = member.open().expect("an image");
    assert_eq!(keeper.check(), Ok(()));
    // The mark is there still: a store would be made in the place of this one.
    COPIES.iter().for_each(|at| member.write(*at, &[0; SUPERBLOCK_LEN]));
    let why = keeper.check().expect_err("nothing says what it is");
    assert!(why.contains("its superblock is gone"), "{why}");
    assert!(!keeper.ledger().complete, "it takes over no more");
}

#[test]
fn an_image_of_a_later_release_is_refused_and_a_damaged_number_is_not_taken_for_one() {
    let number = |number: u32| {
        let mut member = Member::made();
        COPIES.iter().for_each(|at| member.write(*at + 8, &number.to_le_bytes()));
        // Its checksum lies elsewhere.
        COPIES.iter().for_each(|at| member.write(*at + 60, &[number as u8; 12]));
        member.open().map(|keeper| keeper.damage().is_some())
    };
    let Err(KeeperError::NewerImage { found: 4 }) = number(4) else { panic!("the next version") };
    assert!(number(0).expect("no release had that"));
    let mut member = Member::made();
    COPIES.iter().for_each(|at| member.write(*at + 8, &9_u32.to_le_bytes()));
    assert!(member.damage().is_some(), "by its checksum it is a known one");
}

#[test]
fn what_is_no_image_of_this_member_is_refused_with_what_it_is() {
    let refused = |bytes: &[u8]| {
        let mut member = Member::made();
        member.write(0, bytes);
        let Err(KeeperError::OtherImage(unfit)) = member.open() else { panic!("it is something else") };
        assert!(!unfit.to_string().contains("rem kv salvage"), "{unfit}");
        (unfit.clone(), KeeperError::OtherImage(unfit).to_string())
    };
    let (_, sentence) = refused(&[0; SMALL.size as usize]);
    assert!(sentence.contains("it is blank") && sentence.contains("take the directory"), "{sentence}");
    let (_, sentence) = refused(&[0x5A; SMALL.size as usize]);
    assert!(sentence.contains("those of something else"), "{sentence}");
    let other = Superblock { geometry: SMALL, salt: SALT, uuid: [8; 16] }.emit();
    let both = [&other[..], &vec![0; COPIES[1] as usize - other.len()], &other].concat();
    assert_eq!(refused(&both).0, Unfit::Another);
}

/// No crash makes a file shorter, also where its log has more to be applied that says what the image is.
#[test]
fn an_image_that_was_cut_is_refused() {
    let steps = steps();
    for applied in [steps.len() as u64, steps.len() as u64 - 1] {
        let mut member = Member::new(&steps, applied);
        let half = member.image.bytes()[..SMALL.size as usize / 2].to_vec();
        member.image = Arc::new(CrashImage::from_bytes(half, PersistenceDomain::Adr));
        let Err(KeeperError::OtherImage(unfit)) = member.open() else { panic!("{applied}: it was cut") };
        assert!(matches!(unfit, Unfit::Superblock(SuperblockError::CutOff { .. })), "{applied}: {unfit}");
    }
}

/// Of each record that is being applied a crash leaves any part: here its first words, or its last ones.
#[test]
fn no_crash_while_a_store_is_made_or_its_superblock_is_replaced_is_taken_for_damage() {
    let replaced = Superblock { geometry: SMALL, salt: SALT + 1, uuid: [7; 16] }.emit();
    let replace = COPIES.iter().rev().map(|at| vec![(*at, replaced.clone())]);
    let records: Vec<_> = steps().into_iter().chain(replace).collect();
    for applied in 0..=records.len() {
        // What was being applied is any number of records; the order in which parts of them become durable is the medium's.
        for being_applied in applied..=records.len() {
            for cut in 0..4 {
                let mut member = Member::new(&records, applied as u64);
                for (n, (at, bytes)) in records[applied..being_applied].concat().into_iter().enumerate() {
                    let len = bytes.len().min(8 * (1 + (n + cut) % 3));
                    match (n + cut) % 4 {
                        0 => {}
                        1 => member.write(at, &bytes[..len]),
                        2 => member.write(at + (bytes.len() - len) as u64, &bytes[bytes.len() - len..]),
                        _ => member.write(at, &bytes),
                    }
                }
                let what = format!("{applied} of {being_applied}, {cut}");
                assert_eq!(member.damage(), None, "{what}");
                let mut keeper = member.open().expect("an image");
                let below = records.len() as u64;
                let told = keeper.obey(&mut member.log, EPOCH, &Order::Apply { below });
                assert_eq!(told, ImageReply::Applied(below), "{what}");
                assert_eq!(keeper.check(), Ok(()), "{what}");
            }
        }
    }
    assert_eq!(member_tag(&mut Member::made()), Some([7; 6]));
}

/// The medium of an image has failed, the others went on, and the log was trimmed: what was applied is there in part, or not at all.
#[test]
fn an_image_that_its_log_has_left_behind_is_sent_anew_and_no_crash_of_its_member_is_damage() {
    let replaced = Superblock { geometry: SMALL, salt: SALT + 1, uuid: [7; 16] }.emit();
    let replace = COPIES.iter().rev().map(|at| vec![(*at, replaced.clone())]);
    let records: Vec<_> = steps().into_iter().chain(replace).collect();
    let below = records.len() as u64;
    for applied in 0..records.len() {
        for being_applied in applied + 1..=records.len() {
            for (cut, word) in (0..3).flat_map(|cut| [8, 16, 24].map(|word| (cut, word))) {
                let mut member = Member::new(&records, applied as u64);
                for (n, (at, bytes)) in records[applied..being_applied].concat().into_iter().enumerate() {
                    let len = bytes.len().min(word);
                    match (n + cut) % 3 {
                        0 => {}
                        1 => member.write(at, &bytes[..len]),
                        _ => member.write(at + (bytes.len() - len) as u64, &bytes[bytes.len() - len..]),
                    }
                }
                member.log.trim(below).expect("the others have it");
                let what = format!("{applied} of {being_applied}, {cut}, {word}");
                assert_eq!(member.damage(), None, "{what}");
                let mut keeper = member.open().expect("an image");
                let told = keeper.obey(&mut member.log, EPOCH, &Order::Apply { below });
                assert_eq!(told, ImageReply::NeedsImage, "{what}");
            }
        }
    }
    // What no crash leaves there is still refused.
    let mut member = Member::new(&records, below - 1);
    member.log.trim(below).expect("the others have it");
    member.write(0, &[0x5A; SMALL.size as usize]);
    assert!(matches!(member.open(), Err(KeeperError::OtherImage(_))), "it is something else");
}

/// Either record of the ledger may be found later. If it is the new one, what an image says that takes records again, from where it was before,
/// is not what it has.
#[test]
fn an_image_whose_ledger_could_not_be_written_stays_as_it_is_until_its_member_is_started_again() {
    let steps = steps();
    let below = steps.len() as u64;
    let mut member = Member::new(&steps, 1);
    let mut keeper = member.open().expect("an image");
    member.ledger.fail_after_psyncs(0);
    let mut obey = |order: &Order| keeper.obey(&mut member.log, EPOCH, order);
    assert!(matches!(obey(&Order::Apply { below }), ImageReply::Refused(_)));
    assert!(keeper.failure().is_some(), "it is not to lead");
    let mut obey = |order: &Order| keeper.obey(&mut member.log, EPOCH, order);
    // Where the next record writes.
    member.image.write(12288, &[9; 100]);
    let block = Order::Block { at: 12288, bytes: vec![1; 8], len: 8 };
    for order in [Order::Apply { below }, Order::Begin, block, Order::End { applied: below }] {
        assert!(matches!(obey(&order), ImageReply::Refused(_)), "{order:?}");
    }
    let read = obey(&Order::Read { at: 12288, len: 100 });
    assert_eq!(read, ImageReply::Bytes(vec![9; 100]), "nothing was written, and it can be read");
}

fn member_tag(member: &mut Member) -> Option<[u8; 6]> {
    member.open().expect("an image").ledger().store
}

#[test]
fn the_ledger_of_an_earlier_release_comes_to_know_its_store() {
    let mut member = Member::made();
    // As an earlier release leaves it, which knows of no store.
    let mut keeper = member.open().expect("an image");
    for order in [Order::Begin, Order::End { applied: 3 }] {
        COPIES.iter().for_each(|at| member.write(*at, &[0; SUPERBLOCK_LEN]));
        assert_eq!(keeper.obey(&mut member.log, EPOCH, &order), ImageReply::Ok);
    }
    drop(keeper);
    assert_eq!(
        (member_tag(&mut member), member.damage()),
        (None, None),
        "it is being made, as far as is known"
    );
    let below = steps().len() as u64;
    let mut keeper = member.open().expect("an image");
    assert_eq!(keeper.obey(&mut member.log, EPOCH, &Order::Apply { below }), ImageReply::Applied(below));
    drop(keeper);
    assert_eq!(member_tag(&mut member), Some([7; 6]));
    assert_eq!(member.status.state.promised, EPOCH, "nobody else was promised anything");
}
