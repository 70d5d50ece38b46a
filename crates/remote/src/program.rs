//! The responder's half of a recipe, as the server carries it out: the very list of steps, cut at its messages.
//!
//! A client tells the server the responder's steps of a plan once; each message then names the plan and which message of
//! it it is. The server takes no client's word for it: [`Program::check`] refuses steps that would acknowledge what is
//! not in the domain, or give a receive buffer back before the effect of its message is durable.

use remanence_codec::{Malformed, Reader};
use remanence_persist::Config;
use remanence_persist::Recipe;
use remanence_persist::recipe::{Message, Rsp, Set, Target, Update};
use remanence_persist::taxonomy::Buffers;

/// What the responder does about one message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// What it must be.
    pub message: Message,
    /// Steps that are carried out at once.
    pub now: Vec<Rsp>,
    /// Afterwards, at leisure.
    pub later: Vec<Rsp>,
}

impl Part {
    /// Whether the requester waits for an acknowledgement of it.
    #[must_use]
    pub fn acknowledges(&self) -> bool {
        self.now.contains(&Rsp::Ack)
    }

    /// The same for a message that says by 32 bits where its update is: any other update with these steps is served alike.
    fn without_names(&self) -> (Vec<Rsp>, Vec<Rsp>) {
        let bare = |steps: &[Rsp]| {
            let same = |step: &Rsp| match step {
                Rsp::Flush(Target::Update(_)) => Rsp::Flush(Target::Update(Update(0))),
                Rsp::Copy(_) => Rsp::Copy(Update(0)),
                other => *other,
            };
            steps.iter().map(same).collect()
        };
        (bare(&self.now), bare(&self.later))
    }
}

/// The responder's steps of one recipe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    count: u8,
    ordered: bool,
    replay: bool,
    steps: Vec<Rsp>,
    deferred: Vec<Rsp>,
    parts: Vec<Part>,
}

/// Longer lists no recipe has.
const STEPS_MAX: usize = 512;

impl Program {
    /// The responder's half of a recipe.
    ///
    /// # Errors
    /// A step belongs to no message: the recipe is none.
    pub fn compile(recipe: &Recipe) -> Result<Self, &'static str> {
        let steps: Vec<Rsp> = recipe.responder().collect();
        Self::of(recipe.shape.count, recipe.shape.ordered, recipe.replay, steps, recipe.deferred.clone())
    }

    fn of(
        count: u8,
        ordered: bool,
        replay: bool,
        steps: Vec<Rsp>,
        deferred: Vec<Rsp>,
    ) -> Result<Self, &'static str> {
        let mut parts: Vec<Part> = Vec::new();
        for step in &steps {
            match (step, parts.last_mut()) {
                (Rsp::Receive(message), _) => parts.push(Part { message: *message, ..Part::default() }),
                (_, None) => return Err("a step of the responder stands before its first message"),
                (step, Some(part)) => part.now.push(*step),
            }
        }
        let mut reposted = 0;
        for step in &deferred {
            let part = match step {
                Rsp::Receive(message) => {
                    parts.push(Part { message: *message, ..Part::default() });
                    continue;
                }
                Rsp::Copy(u) => parts.iter_mut().rev().find(|p| p.message.data.has(*u)),
                Rsp::Flush(Target::Update(u)) => {
                    parts.iter_mut().rev().find(|p| p.message.data.has(*u) || p.message.notice.has(*u))
                }
                Rsp::Flush(Target::Buffer) => parts.last_mut(),
                Rsp::Ack => return Err("an acknowledgement is put off"),
                Rsp::Repost => {
                    reposted += 1;
                    parts.get_mut(reposted - 1)
                }
            };
            part.ok_or("a step of the responder belongs to no message")?.later.push(*step);
        }
        if steps.len() + deferred.len() > STEPS_MAX || parts.len() > 64 {
            return Err("a plan has more steps than any recipe");
        }
        Ok(Self { count, ordered, replay, steps, deferred, parts })
    }

    /// What is done about each message, in the order in which they are sent.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Recovery must apply its messages.
    #[must_use]
    pub fn replay(&self) -> bool {
        self.replay
    }

    /// Each update must be durable before the next one is.
    #[must_use]
    pub fn ordered(&self) -> bool {
        self.ordered
    }

    /// Whether a server of that configuration serves it without breaking its own promises, whoever wrote it.
    ///
    /// # Errors
    /// What is wrong with it, in a sentence.
    pub fn check(&self, config: &Config) -> Result<(), &'static str> {
        let keeps = config.domain.keeps_caches();
        let finds = self.replay && config.buffers == Buffers::Pm;
        if self.replay && !finds {
            return Err(
                "recovery would have to apply messages, and the receive buffers are not in persistent memory",
            );
        }
        if self.count == 0 || self.count > 64 {
            return Err("a plan is for 1 to 64 updates");
        }
        for part in &self.parts {
            let Message { notice, data } = part.message;
            if (notice.0 | data.0) & !Set::first(self.count).0 != 0 || notice.0 & data.0 != 0 {
                return Err("a message names an update that the plan does not have");
            }
            let (mut copied, mut durable, mut buffer, mut reposted) = (Set::NONE, Set::NONE, false, false);
            for step in part.now.iter().chain(&part.later) {
                if reposted {
                    return Err("a step follows after the receive buffer was given back");
                }
                match step {
                    Rsp::Receive(_) => return Err("a message is received twice"),
                    Rsp::Copy(u) if data.has(*u) => {
                        copied.0 |= Set::one(*u).0;
                        durable.0 &= !Set::one(*u).0;
                        if keeps {
                            durable.0 |= Set::one(*u).0;
                        }
                    }
                    Rsp::Copy(_) => return Err("an update is copied that the message does not bring"),
                    Rsp::Flush(Target::Update(u)) => durable.0 |= copied.0 & Set::one(*u).0,
                    Rsp::Flush(Target::Buffer) => buffer = true,
                    // What is brought and neither in its place nor in a buffer that recovery looks at would be lost.
                    Rsp::Ack => {
                        if data.0 & !durable.0 != 0 && !(finds && (buffer || keeps)) {
                            return Err("it acknowledges an update that is not in the persistence domain");
                        }
                    }
                    Rsp::Repost => {
                        if data.0 & !durable.0 != 0 {
                            return Err(
                                "it gives a receive buffer back before the effect of its message is durable",
                            );
                        }
                        reposted = true;
                    }
                }
            }
            if !reposted {
                return Err("it never gives a receive buffer back");
            }
            let silent = !part.acknowledges();
            if silent && !data.is_empty() && !finds {
                return Err("nobody would learn whether what a message brings is durable");
            }
        }
        Ok(())
    }

    /// The bytes that a client registers it by.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut b = vec![self.count, u8::from(self.ordered), u8::from(self.replay), 0];
        for list in [&self.steps, &self.deferred] {
            b.extend_from_slice(&(list.len() as u16).to_be_bytes());
            for step in list {
                match step {
                    Rsp::Receive(message) => {
                        b.push(1);
                        b.extend_from_slice(&message.notice.0.to_be_bytes());
                        b.extend_from_slice(&message.data.0.to_be_bytes());
                    }
                    Rsp::Copy(u) => b.extend_from_slice(&[2, u.0]),
                    Rsp::Flush(Target::Update(u)) => b.extend_from_slice(&[3, u.0]),
                    Rsp::Flush(Target::Buffer) => b.push(4),
                    Rsp::Ack => b.push(5),
                    Rsp::Repost => b.push(6),
                }
            }
        }
        b
    }

    /// Reads what [`emit`](Self::emit) wrote, and hands back what is behind it.
    ///
    /// # Errors
    /// It is no list of steps.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut r = Reader::new(bytes);
        let [count, ordered, replay, 0] = r.array::<4>()? else { return r.fail() };
        if ordered > 1 || replay > 1 {
            return r.fail();
        }
        let mut lists = [Vec::new(), Vec::new()];
        for list in &mut lists {
            let len = r.u16_be()?;
            for _ in 0..len {
                let update = |r: &mut Reader<'_>| match r.u8()? {
                    n @ 0..64 => Ok(Update(n)),
                    _ => r.fail(),
                };
                list.push(match r.u8()? {
                    1 => Rsp::Receive(Message { notice: Set(r.u64_be()?), data: Set(r.u64_be()?) }),
                    2 => Rsp::Copy(update(&mut r)?),
                    3 => Rsp::Flush(Target::Update(update(&mut r)?)),
                    4 => Rsp::Flush(Target::Buffer),
                    5 => Rsp::Ack,
                    6 => Rsp::Repost,
                    _ => return r.fail(),
                });
            }
        }
        let [steps, deferred] = lists;
        let program =
            Self::of(count, ordered == 1, replay == 1, steps, deferred).map_err(|_| r.malformed())?;
        Ok((program, r.rest()))
    }
}

/// Numbers for the parts of WRITE_IMM recipes: 32 bits have room for a number of 4 bits and a place, and none for a plan.
#[derive(Clone, Debug, Default)]
pub struct Classes(Vec<(Vec<Rsp>, Vec<Rsp>)>);

/// Bits of an immediate that say where the update begins, in units of the session's granule.
pub const PLACE_BITS: u32 = 28;

impl Classes {
    /// The number of each part, making new ones as needed; `None` when there are too many.
    pub fn enter(&mut self, program: &Program) -> Option<Vec<u8>> {
        let mut all = self.0.clone();
        let numbers = program.parts().iter().map(|part| {
            let bare = part.without_names();
            let n = all.iter().position(|known| *known == bare).unwrap_or_else(|| {
                all.push(bare);
                all.len() - 1
            });
            (n < 16).then_some(n as u8)
        });
        let numbers: Option<Vec<u8>> = numbers.collect();
        if numbers.is_some() {
            self.0 = all;
        }
        numbers
    }
}

/// The unit in which an immediate says where an update begins: a power of two, 64 bytes at least.
#[must_use]
pub fn granule_shift(len: u64) -> u32 {
    let needed = 64 - (len.max(1) - 1).leading_zeros();
    needed.saturating_sub(PLACE_BITS).max(6)
}

#[cfg(test)]
mod tests {
    use remanence_persist::recipe::{Op, Shape, Step, build, variants};

    use super::*;

    fn everything() -> Vec<(Config, Recipe)> {
        let shapes = [
            Shape::SINGLETON,
            Shape::COMPOUND,
            Shape::COMPOUND_LONG,
            Shape::batch(5),
            Shape::list(4),
            Shape::batch(64),
        ];
        let mut all = Vec::new();
        for config in Config::all() {
            for shape in shapes {
                all.extend(Op::ALL.into_iter().map(|op| (config, build(&config, op, shape))));
                all.extend(variants(&config, shape).into_iter().map(|(_, recipe)| (config, recipe)));
            }
        }
        all
    }

    #[test]
    fn every_recipe_is_a_program_that_its_server_takes_and_that_comes_through_the_wire() {
        for (config, recipe) in everything() {
            let program = Program::compile(&recipe).expect("a recipe");
            assert_eq!(program.parts().len(), recipe.messages(), "{recipe}");
            assert_eq!(program.check(&config), Ok(()), "{config}: {recipe}");
            let bytes = program.emit();
            assert!(bytes.len() < 4096 - crate::message::HEADER - 64, "{} bytes", bytes.len());
            assert_eq!(Program::parse(&bytes), Ok((program, &[][..])));
        }
    }

    #[test]
    fn a_buffer_is_never_given_back_before_the_effect_is_durable() {
        let config: Config = "DMP+no-DDIO+PM".parse().expect("a configuration");
        let recipe = build(&config, Op::Send, Shape::COMPOUND);
        for n in 0..recipe.deferred.len() {
            let mut early = recipe.clone();
            let step = early.deferred.remove(n);
            if !matches!(step, Rsp::Receive(_)) {
                let program = Program::compile(&early).expect("a list of steps");
                assert!(program.check(&config).is_err(), "without {step}");
            }
        }
        let mut swapped = recipe;
        let last = swapped.deferred.pop().expect("the repost");
        swapped.deferred.insert(1, last);
        let why = Program::compile(&swapped).expect("a list of steps").check(&config).expect_err("too early");
        assert!(
            why.contains("after the receive buffer was given back") || why.contains("before the effect"),
            "{why}"
        );
    }

    #[test]
    fn what_is_acknowledged_is_durable_or_found_by_recovery() {
        let config: Config = "DMP+DDIO+DRAM".parse().expect("a configuration");
        let mut recipe = build(&config, Op::Send, Shape::SINGLETON);
        recipe.steps.retain(|step| !matches!(step, Step::Rsp(Rsp::Flush(_))));
        let why = Program::compile(&recipe).expect("a list").check(&config).expect_err("not durable");
        assert!(why.contains("acknowledges"), "{why}");
        // A recipe that leaves its message to recovery, on a server that does not look.
        let pm: Config = "DMP+no-DDIO+PM".parse().expect("a configuration");
        let recipe = build(&pm, Op::Send, Shape::SINGLETON);
        assert!(Program::compile(&recipe).expect("a list").check(&config).is_err());
    }

    #[test]
    fn immediates_have_room_for_every_recipe_of_a_server_and_for_large_regions() {
        for config in Config::all() {
            let mut classes = Classes::default();
            for shape in
                [Shape::SINGLETON, Shape::COMPOUND, Shape::batch(64), Shape::list(9), Shape::batch(2)]
            {
                let program = Program::compile(&build(&config, Op::WriteImm, shape)).expect("a recipe");
                assert!(classes.enter(&program).is_some());
            }
        }
        assert_eq!(granule_shift(1 << 34), 6);
        assert_eq!(granule_shift((1 << 34) + 1), 7);
        assert_eq!(granule_shift(u64::MAX), 36);
    }

    #[test]
    fn any_bytes_are_a_program_or_none() {
        let good =
            Program::compile(&build(&Config::SAFE, Op::Send, Shape::COMPOUND)).expect("a recipe").emit();
        for cut in 0..good.len() {
            assert!(Program::parse(&good[..cut]).is_err());
        }
        for n in 0..good.len() {
            for value in [0, 1, 7, 64, 255] {
                let mut bad = good.clone();
                bad[n] = value;
                if let Ok((program, _)) = Program::parse(&bad) {
                    let _ = program.check(&Config::SAFE);
                }
            }
        }
    }
}
