//! The primary's machine, step by step: what it waits for while a member says nothing, while a log has no room, while a member is sent an
//! image, and after somebody else has taken over.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use remanence_coord::log::format::DATA_AT;
use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::group::{Action as LogAction, Event as LogEvent};
use remanence_coord::log::proto::Request;
use remanence_coord::log::{Geometry as LogGeometry, Make, Mode, Store as Log};
use remanence_kv::replica::change::Changes;
use remanence_kv::replica::keeper::{BLOCK, LEDGER_LEN};
use remanence_kv::replica::primary::{Action, Event, Options};
use remanence_kv::replica::{ImageReply, Keeper, LeadError, Order, Primary, Sizes};
use remanence_pmem::crash_image::CrashImage;
use remanence_pmem::{Medium, PersistenceDomain};

type Image = Arc<CrashImage>;

const GRACE: Duration = Duration::from_millis(50);
/// Three blocks, the last of them shorter.
const SIZES: Sizes = Sizes { image_len: 2 * BLOCK as u64 + 8000, record_max: 2000, trim_after: 9000 };
const LOG: u64 = 12 * 4096;

fn image(len: u64) -> Image {
    Arc::new(CrashImage::new(len, PersistenceDomain::Adr))
}

fn keeper() -> Keeper<Image> {
    Keeper::create(image(SIZES.image_len), image(LEDGER_LEN)).expect("fair")
}

/// A member's disks, and what was asked of it and not answered.
struct Host {
    log: Log<Image>,
    keeper: Keeper<Image>,
    /// It answers nothing.
    is_silent: bool,
    /// Its image answers so many orders more.
    orders: usize,
    /// Its image does not follow.
    image_fails: bool,
    asked: VecDeque<Action>,
}

impl Host {
    fn new(n: u8) -> Self {
        let geometry = LogGeometry::new(DATA_AT + LOG, 4096).expect("fair");
        let make = Make { mode: Mode::Singleton, geometry, uuid: Uuid([n; 16]), salt: n.into() };
        let log = Log::create(image(geometry.size), &make).expect("fair");
        Self {
            log,
            keeper: keeper(),
            is_silent: false,
            orders: usize::MAX,
            image_fails: false,
            asked: VecDeque::new(),
        }
    }

    /// The next answer, if it gives one: of its log and its image each in their order.
    fn answer(&mut self) -> Option<Event> {
        if self.is_silent {
            return None;
        }
        let answers = |action: &Action| matches!(action, Action::Log(_)) || self.orders > 0;
        let at = self.asked.iter().position(answers)?;
        Some(match self.asked.remove(at)? {
            Action::Log(action) => Event::Log(self.does(action)),
            Action::Order { epoch, order, .. } => {
                self.orders -= 1;
                Event::Image(match self.image_fails {
                    true => ImageReply::Refused("its disk has failed".into()),
                    false => self.keeper.obey(&mut self.log, epoch, &order),
                })
            }
        })
    }

    fn does(&mut self, action: LogAction) -> LogEvent {
        let log = &mut self.log;
        let request = match action {
            LogAction::Call { request, .. } => request,
            LogAction::Read { offset, len, .. } => {
                let mut bytes = vec![0; len as usize];
                log.medium().read(offset, &mut bytes);
                return LogEvent::Data(bytes);
            }
            LogAction::Append { updates, .. } => {
                for (at, bytes) in updates.list() {
                    log.medium().write(at, bytes);
                    log.medium().persist(at..at + bytes.len() as u64).expect("memory");
                }
                return LogEvent::Durable;
            }
            LogAction::Disconnect { .. } => unreachable!("it was seen to"),
        };
        LogEvent::Reply(
            match request {
                Request::Status => log.status(),
                Request::Grant { epoch } => log.grant(epoch),
                Request::Truncate { epoch, sequence } => log.truncate(epoch, sequence),
                Request::Reset { epoch, sequence, after } => log.reset(epoch, sequence, after),
                Request::Adopt { epoch, sequence, group, members, acks } => {
                    log.adopt(epoch, sequence, group, members, acks)
                }
                Request::Trim { below } => log.trim(below),
                Request::Known { epoch, below } => log.note_known(epoch, below),
            }
            .map(Box::new),
        )
    }

    fn is_ordered(&self) -> bool {
        self.asked.iter().any(|action| matches!(action, Action::Order { .. }))
    }
}

struct World {
    hosts: Vec<Host>,
    primary: Primary,
    now: Duration,
    /// What the next change says.
    byte: u8,
}

fn primary(writer: u32, members: usize, own: usize) -> Primary {
    let names: Vec<String> = (0..members).map(|n| format!("m{n}")).collect();
    let options = Options::new(writer, Uuid([9; 16])).acks(Some(2)).grace(GRACE).patience(Duration::MAX);
    Primary::new(&names, &names[own], &options, SIZES).expect("it is a member")
}

impl World {
    /// The first member leads, and the images have all there is.
    fn led(members: usize) -> Self {
        let hosts = (0..members).map(|n| Host::new(n as u8 + 1)).collect();
        let mut world = Self { hosts, primary: primary(1, members, 0), now: Duration::ZERO, byte: 0 };
        world.connect_all();
        assert!(world.primary.is_leading());
        world
    }

    fn connect_all(&mut self) {
        (0..self.hosts.len()).for_each(|n| self.connect(n));
    }

    fn connect(&mut self, n: usize) {
        self.hosts[n].asked.clear();
        self.primary.connected(self.now, n);
        self.run();
    }

    fn lose(&mut self, n: usize) {
        self.hosts[n].asked.clear();
        self.primary.handle(self.now, n, Event::Log(LogEvent::Lost("the cable was pulled".into())));
        self.run();
    }

    /// All that is to be done, and all that is answered.
    fn run(&mut self) {
        loop {
            while let Some(action) = self.primary.poll_action() {
                let host = &mut self.hosts[action.member()];
                match action {
                    Action::Log(LogAction::Disconnect { .. }) => host.asked.clear(),
                    action => host.asked.push_back(action),
                }
            }
            let mut hosts = self.hosts.iter_mut().enumerate();
            let Some((n, event)) = hosts.find_map(|(n, host)| Some((n, host.answer()?))) else { return };
            self.primary.handle(self.now, n, event);
        }
    }

    fn passes(&mut self, time: Duration) {
        self.now += time;
        self.primary.timeout(self.now);
        self.run();
    }

    fn ship(&mut self) {
        assert!(self.primary.is_shipped(), "one after the other");
        self.byte = self.byte.wrapping_add(1).max(1);
        let mut changes = Changes::default();
        changes.push(8192 + u64::from(self.byte) * 64, &[self.byte; 1500]);
        self.primary.ship(self.now, &changes).expect("it is the primary");
        self.run();
    }

    /// Ships so many bytes as are in some logs, or until something is waited for. Whether nothing was.
    fn ships(&mut self, logs: u64) -> bool {
        (0..logs * LOG / 1500).all(|_| {
            self.ship();
            self.primary.is_shipped()
        })
    }

    /// A member has another disk for its image, which is empty, and there is no record for it any more.
    fn loses_image(&mut self, n: usize) {
        while self.primary.trimmed() == 0 {
            self.ship();
        }
        self.hosts[n].keeper = keeper();
        self.primary.follow(self.now);
        self.run();
        assert_eq!(self.primary.needs_image(), Some(&format!("m{n}")[..]));
    }

    fn assert_equal_images(&mut self) {
        self.primary.follow(self.now);
        self.run();
        let first = self.hosts[0].keeper.image().bytes();
        for (n, host) in self.hosts.iter().enumerate() {
            let at = host.keeper.image().bytes().iter().zip(&first).position(|(a, b)| a != b);
            assert_eq!(at, None, "m{n} has another image at {:?}", host.keeper.ledger());
        }
    }
}

#[test]
fn what_is_shipped_is_waited_for_until_enough_have_it_and_images_are_told_nothing_meanwhile() {
    let mut world = World::led(3);
    world.ship();
    (world.hosts[1].is_silent, world.hosts[2].is_silent) = (true, true);
    let (applied, below) = (world.hosts[0].keeper.ledger().applied, world.primary.acknowledged());
    assert!(applied < below);
    world.ship();
    world.primary.follow(world.now);
    world.run();
    assert!(!world.primary.is_shipped(), "one of three has it, and two acknowledge");
    assert_eq!(world.primary.check(), Ok(()));
    assert_eq!(world.hosts[0].keeper.ledger().applied, applied, "a client waits");
    assert!(!world.hosts[1].is_ordered() && !world.hosts[2].is_ordered());
    world.hosts[1].is_silent = false;
    world.run();
    assert!(world.primary.is_shipped());
    assert_eq!(world.hosts[0].keeper.ledger().applied, below);
    assert!(world.hosts[2].is_ordered(), "it has one order, and nobody waits for it");
}

#[test]
fn a_member_that_has_stopped_costs_its_vote_and_no_time() {
    let mut world = World::led(3);
    world.hosts[2].is_silent = true;
    assert!(world.ships(4), "two others are enough, for room as well");
    assert_eq!(world.primary.check(), Ok(()));
}

#[test]
fn room_in_the_log_is_waited_for_until_enough_images_have_followed() {
    let mut world = World::led(3);
    (world.hosts[1].orders, world.hosts[2].orders) = (0, 0);
    assert!(!world.ships(1), "the log can be trimmed behind two images only");
    let half = world.primary.acknowledged() * 1500;
    assert!(half > LOG / 3 && half < 2 * LOG / 3, "half of it stays free: {half}");
    assert_eq!((world.primary.trimmed(), world.primary.check()), (0, Ok(())));
    world.passes(100 * GRACE);
    assert!(!world.primary.is_shipped(), "no image is given up");
    world.hosts[1].orders = usize::MAX;
    world.run();
    assert!(world.primary.is_shipped() && world.primary.trimmed() > 0);
    assert!(world.ships(4), "the third is not waited for");
}

/// Else the log is filled, and a member that lost its disk then has no room for it: of two that both have to acknowledge, none does any more.
#[test]
fn where_too_few_images_follow_no_change_is_taken_from_half_of_the_log_on() {
    let mut world = World::led(2);
    world.hosts[1].image_fails = true;
    while !world.primary.is_short_of_room() {
        world.ship();
        assert!(world.primary.is_shipped() && world.primary.acknowledged() * 1500 < 2 * LOG / 3);
    }
    assert_eq!(world.primary.trimmed(), 0);
    // Whatever is shipped all the same is not held up.
    world.ship();
    assert!(world.primary.is_shipped());
    world.hosts[1].image_fails = false;
    world.primary.follow(world.now);
    world.run();
    assert!(!world.primary.is_short_of_room(), "it follows again");
    assert!(world.ships(4) && world.primary.trimmed() > 0);
}

#[test]
fn a_member_that_stops_within_its_rebuilding_holds_nobody_up_for_longer_than_grace() {
    let mut world = World::led(3);
    world.loses_image(2);
    // It takes the begin of an image and one block, and then nothing more.
    world.hosts[2].orders = 2;
    world.primary.begin_rebuild(world.now);
    world.run();
    assert_eq!(world.primary.rebuilding().map(|rebuilding| rebuilding.sent), Some(BLOCK as u64));
    let stopped = world.now;
    world.now += GRACE / 2;
    assert!(!world.ships(1), "the log keeps what its image lacks");
    assert_eq!(world.primary.deadline(), Some(stopped + GRACE));
    world.passes(GRACE / 2 - Duration::from_nanos(1));
    assert!(!world.primary.is_shipped());
    world.passes(Duration::from_nanos(1));
    assert!(world.primary.is_shipped(), "two others are enough");
    assert_eq!((world.primary.rebuilding(), world.primary.needs_image()), (None, None));
    assert_eq!(world.primary.behind().len(), 1, "it is named");
    assert!(world.ships(4), "and costs nothing more");
    assert!(world.primary.lost().is_empty(), "its log has its vote");
    // What it says to the block in the end counts for nothing: all of an image is sent to it.
    world.hosts[2].orders = usize::MAX;
    world.run();
    assert_eq!((world.primary.needs_image(), world.primary.behind()), (Some("m2"), Vec::new()));
    world.primary.begin_rebuild(world.now);
    world.run();
    assert_eq!(world.primary.rebuilding(), None);
    world.assert_equal_images();
}

#[test]
fn a_rebuilding_is_waited_for_as_long_as_it_goes_on() {
    let mut world = World::led(3);
    world.loses_image(2);
    world.hosts[2].orders = 0;
    world.primary.begin_rebuild(world.now);
    world.run();
    assert!(!world.ships(1));
    // A begin, three blocks, an end.
    for _ in 0..5 {
        assert!(world.primary.rebuilding().is_some() && !world.primary.is_shipped());
        world.passes(GRACE - Duration::from_nanos(1));
        world.hosts[2].orders += 1;
        world.run();
    }
    assert!(world.primary.rebuilding().is_none() && world.primary.behind().is_empty());
    assert!(world.primary.is_shipped());
    world.hosts[2].orders = usize::MAX;
    world.run();
    world.assert_equal_images();
}

#[test]
fn a_rebuilding_without_which_there_is_no_room_is_not_given_up() {
    let mut world = World::led(3);
    world.loses_image(2);
    world.hosts[1].orders = 0;
    world.hosts[2].orders = 1;
    world.primary.begin_rebuild(world.now);
    world.run();
    assert!(!world.ships(1));
    world.passes(100 * GRACE);
    assert!(world.primary.rebuilding().is_some() && !world.primary.is_shipped());
    world.hosts[2].orders = usize::MAX;
    world.run();
    assert!(world.primary.is_shipped(), "two of three images have followed");
}

#[test]
fn an_image_that_has_to_be_sent_at_once_is_put_right_first() {
    let mut world = World::led(2);
    world.loses_image(1);
    assert!(!world.ships(1), "the log cannot be trimmed any more");
    assert!(world.primary.wants_image_right() && world.primary.rebuilding().is_none());
    assert_eq!(world.hosts[0].keeper.ledger().applied, world.primary.acknowledged(), "nothing comes into it");
    world.primary.image_is_right(world.now);
    world.run();
    assert!(world.primary.is_shipped() && !world.primary.wants_image_right());
    world.assert_equal_images();
}

/// Else an answer to an order of before is taken for one to the next.
#[test]
fn an_order_is_under_way_until_it_is_answered_whatever_becomes_of_the_member_meanwhile() {
    let mut world = World::led(3);
    world.ship();
    world.hosts[2].orders = 0;
    world.primary.follow(world.now);
    world.run();
    let orders = |world: &World| {
        let orders = world.hosts[2].asked.iter().filter(|action| matches!(action, Action::Order { .. }));
        orders.count()
    };
    assert_eq!(orders(&world), 1);
    for _ in 0..3 {
        world.ship();
        world.primary.follow(world.now);
        world.run();
        assert_eq!(orders(&world), 1);
    }
    world.lose(2);
    world.connect(2);
    assert_eq!(orders(&world), 1, "another connection, another order");
    world.hosts[2].orders = usize::MAX;
    world.run();
    world.assert_equal_images();
}

#[test]
fn too_few_members_end_what_is_shipped_and_nothing_before() {
    let mut world = World::led(3);
    world.ship();
    world.lose(1);
    world.lose(2);
    assert_eq!(world.primary.check(), Ok(()), "nothing is under way");
    let mut changes = Changes::default();
    changes.push(0, &[7; 100]);
    let shipped = world.primary.ship(world.now, &changes).and_then(|()| {
        world.run();
        world.primary.check()
    });
    assert!(matches!(shipped, Err(LeadError::Group(_))), "{shipped:?}");
    assert!(!world.primary.is_shipped());
}

#[test]
fn a_primary_opens_its_log_again_unless_somebody_has_shipped_meanwhile() {
    let mut world = World::led(3);
    world.ship();
    let epoch = world.primary.epoch();
    world.primary.reopen().expect("it leads");
    assert!(!world.primary.is_leading());
    world.connect_all();
    assert!(world.primary.is_leading() && world.primary.epoch() > epoch);
    world.ship();
    assert!(world.primary.is_shipped());
    // Another one takes over, and ships.
    let first = std::mem::replace(&mut world.primary, primary(2, 3, 1));
    world.connect_all();
    assert!(world.primary.is_leading());
    world.ship();
    world.primary = first;
    let epoch = world.primary.epoch();
    world.primary.reopen().expect("it does not know");
    world.connect_all();
    assert_eq!(world.primary.check(), Err(LeadError::Deposed));
    assert_eq!(world.primary.epoch(), epoch, "its epoch is not the one that members have promised now");
    assert!(!world.primary.is_leading() && world.primary.deadline().is_none());
}

/// Found by the simulation: its own log was trimmed to where the others' begin before its image had taken what it lacked.
#[test]
fn who_takes_over_has_what_its_image_lacks_wherever_the_logs_of_others_begin() {
    let mut world = World::led(3);
    world.hosts[2].orders = 0;
    while world.primary.trimmed() == 0 {
        world.ship();
    }
    let begins = |world: &World, n: usize| world.hosts[n].log.state().head.sequence;
    assert!(begins(&world, 2) == 0 && begins(&world, 0) > 0 && begins(&world, 1) > 0);
    world.hosts[2].orders = usize::MAX;
    world.primary = primary(2, 3, 2);
    world.connect_all();
    assert_eq!(world.primary.check(), Ok(()));
    assert!(world.primary.is_leading());
    world.assert_equal_images();
}

#[test]
fn who_has_no_image_does_not_lead() {
    let mut world = World::led(3);
    world.loses_image(2);
    let keeper = &world.hosts[2].keeper;
    assert!(keeper.ledger().applied < world.hosts[2].log.state().head.sequence);
    world.primary = primary(2, 3, 2);
    world.connect_all();
    assert!(matches!(world.primary.check(), Err(LeadError::NoImage(_))));
    assert!(!world.hosts.iter().any(|host| {
        host.asked.iter().any(|action| matches!(action, Action::Order { order: Order::Begin, .. }))
    }));
}
