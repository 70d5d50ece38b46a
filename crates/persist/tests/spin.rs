//! A second opinion: a model of the machine in Promela (`machine.pml`), written from the paper and told in another way,
//! explored by spin. It must agree with our checker about recipes, mutants of them, and recipes in the wrong place.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use remanence_persist::Config;
use remanence_persist::check::{Machine, Scenario, check_in, single_mutants};
use remanence_persist::recipe::{A, B, Flush, Message, Op, Recipe, Rq, Rsp, Set, Shape, Step, Target, build};
use remanence_persist::taxonomy::{Buffers, Domain, Order, Transport};

fn config(name: &str) -> Config {
    name.parse().expect("a configuration")
}

fn message(m: Message) -> &'static str {
    match (m.notice, m.data) {
        (Set::NONE, d) if d == Set::one(A) => "a",
        (Set::NONE, d) if d == Set::first(2) => "ab",
        (n, Set::NONE) if n == Set::one(A) => "at_a",
        (n, Set::NONE) if n == Set::one(B) => "at_b",
        _ => panic!("the model has no message {m}"),
    }
}

/// The steps of both sides in the model's words.
fn programs(recipe: &Recipe) -> (String, String) {
    let name = |u| if u == A { "a" } else { "b" };
    let with_immediate = |u| recipe.requester().any(|step| step == Rq::WriteImm(u));
    let notice_of = |m: Message| m.notice.iter().next().filter(|_| m.data == Set::NONE);
    let rq = recipe.requester().map(|step| match step {
        Rq::Write(u) => format!("Write_{}()", name(u)),
        Rq::WriteImm(u) => format!("WriteImm_{}()", name(u)),
        Rq::AtomicWrite(u) => format!("AtomicWrite_{}()", name(u)),
        Rq::FencedWrite(B) => "FencedWrite_b()".into(),
        Rq::FencedWrite(_) => panic!("the model has no {step}"),
        Rq::Send(m) => format!("Send_{}()", message(m)),
        Rq::Flush(Flush::Persistent) => "FlushP()".into(),
        Rq::Flush(_) => "Flush()".into(),
        Rq::Comp => "Comp()".into(),
        Rq::Receive => "Receive_ack()".into(),
    });
    let rsp = responder(recipe).filter(|step| *step != Rsp::Repost).map(|step| match step {
        // A message that was sent or an immediate: whose is known by what the requester posts.
        Rsp::Receive(m) if notice_of(m).is_some_and(with_immediate) || only_writes(recipe) => {
            format!("Receive_imm_{}()", name(notice_of(m).expect("of a WRITE")))
        }
        Rsp::Receive(m) => format!("Receive_{}()", message(m)),
        Rsp::Copy(u) => format!("copy_{}()", name(u)),
        Rsp::Flush(Target::Update(u)) => format!("flush_at_{}()", name(u)),
        Rsp::Flush(Target::Buffer) => "flush_buffer()".into(),
        Rsp::Ack => "Ack()".into(),
        Rsp::Repost => unreachable!("filtered"),
    });
    (join(rq.collect()), join(rsp.collect()))
}

fn responder(recipe: &Recipe) -> impl Iterator<Item = Rsp> {
    recipe.responder().chain(recipe.deferred.iter().copied())
}

/// No SEND is in it: what it receives are immediates, also of a WRITE that a mutant lacks.
fn only_writes(recipe: &Recipe) -> bool {
    recipe.requester().any(|step| matches!(step, Rq::WriteImm(_)))
}

fn join(steps: Vec<String>) -> String {
    if steps.is_empty() { "skip".into() } else { steps.join("; ") }
}

/// The same for a recipe of one SEND that is carried out twice, with one receive buffer.
fn programs_twice(recipe: &Recipe) -> (String, String) {
    let (mut rq, mut rsp) = (Vec::new(), Vec::new());
    for (round, believed) in [("first", "believed_first = true"), ("second", "skip")] {
        rq.extend(recipe.requester().map(|step| match step {
            Rq::Send(_) => format!("Send_{round}()"),
            Rq::Flush(Flush::Persistent) => "FlushP()".into(),
            Rq::Flush(_) => "Flush()".into(),
            Rq::Comp => "Comp()".into(),
            Rq::Receive => "Receive_ack()".into(),
            _ => panic!("not twice: {step}"),
        }));
        rq.push(believed.into());
        rsp.extend(responder(recipe).map(|step| match step {
            Rsp::Receive(_) => format!("Receive_{round}()"),
            Rsp::Copy(_) => format!("copy_{round}()"),
            Rsp::Flush(Target::Update(_)) => format!("flush_at_{round}()"),
            Rsp::Flush(Target::Buffer) => format!("flush_buffer_{round}()"),
            Rsp::Ack => "Ack()".into(),
            Rsp::Repost => "Repost()".into(),
        }));
    }
    (join(rq), join(rsp))
}

/// Whether spin finds no error.
fn spin_says(dir: &Path, recipe: &Recipe, config: &Config, twice: bool) -> bool {
    let bit = |yes: bool| u8::from(yes);
    let (rq, rsp) = if twice { programs_twice(recipe) } else { programs(recipe) };
    let mut model = String::new();
    let defines = [
        ("MHP", bit(config.domain == Domain::Mhp)),
        ("WSP", bit(config.domain == Domain::Wsp)),
        ("DDIO", bit(config.ddio)),
        ("PM", bit(config.buffers == Buffers::Pm)),
        ("IWARP", bit(config.transport == Transport::Iwarp)),
        ("RELAXED", bit(config.order == Order::Relaxed)),
        ("REPLAY", bit(recipe.replay)),
        ("COMPOUND", bit(recipe.shape == Shape::COMPOUND)),
        ("TWICE", bit(twice)),
    ];
    for (name, value) in defines {
        let _ = writeln!(model, "#define {name} {value}");
    }
    let _ =
        writeln!(model, "#define REQUESTER {rq}\n#define RESPONDER {rsp}\n{}", include_str!("machine.pml"));
    fs::write(dir.join("cell.pml"), model).expect("the model is written");
    let run = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).current_dir(dir).output();
        let output = output.unwrap_or_else(|e| panic!("{program} does not run ({e}); make test installs it"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{program}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    run("spin", &["-a", "cell.pml"]);
    run("cc", &["-w", "-O0", "-DSAFETY", "-DMEMLIM=512", "-o", "pan", "pan.c"]);
    let text = run("./pan", &["-m100000"]);
    assert!(!text.contains("max search depth"), "{text}");
    text.contains("errors: 0")
}

/// Asks both, and notes where they differ.
struct Asked {
    dir: PathBuf,
    asked: usize,
    failing: usize,
    disagree: Vec<String>,
}

impl Asked {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("remanence-spin-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        Self { dir, asked: 0, failing: 0, disagree: Vec::new() }
    }

    fn ask(&mut self, recipe: &Recipe, config: &Config, scenario: &Scenario, what: &str) {
        let ours = check_in(recipe, &Machine::new(*config), scenario);
        let spins = spin_says(&self.dir, recipe, config, *scenario == Scenario::TWICE);
        self.asked += 1;
        self.failing += usize::from(!spins);
        if ours.holds() != spins {
            let text = format!("{what} on {config}: ours {}, spin's {spins}: {recipe}", ours.word());
            self.disagree.push(text);
        }
    }

    /// A recipe, and of its mutants those of these numbers.
    fn ask_with_mutants(&mut self, of: (&str, Op, Shape), mutants: impl Iterator<Item = usize>) {
        let (name, op, shape) = of;
        let config = config(name);
        let recipe = build(&config, op, shape);
        self.ask(&recipe, &config, &Scenario::ALONE, "the recipe");
        let all = single_mutants(&recipe);
        for (mutation, mutant) in mutants.map_while(|n| all.get(n)) {
            self.ask(mutant, &config, &Scenario::ALONE, &mutation.to_string());
        }
    }

    /// Both answers were given, so often at least, and they are the same.
    fn agree(&self, failing: usize, holding: usize) {
        println!("spin was asked {} times and found {} errors", self.asked, self.failing);
        assert!(self.disagree.is_empty(), "{}", self.disagree.join("\n"));
        let (found, asked) = (self.failing, self.asked);
        assert!(found >= failing && asked - found >= holding, "both answers are given: {found} of {asked}");
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn spin_agrees_about_immediates_fences_persistence_and_buffers_given_back() {
    let mut spin = Asked::new("further");
    let (single, both) = (Shape::SINGLETON, Shape::COMPOUND);
    spin.ask_with_mutants(("DMP+DDIO+DRAM", Op::WriteImm, single), (0..).step_by(4));
    spin.ask_with_mutants(("MHP+DDIO+DRAM", Op::WriteImm, both), (1..).step_by(4));
    spin.ask_with_mutants(("DMP+no-DDIO+DRAM+fenced", Op::Write, both), (2..).step_by(2));
    spin.ask_with_mutants(("DMP+DDIO+DRAM+persistent", Op::Write, single), 0..2);
    spin.ask_with_mutants(("DMP+DDIO+PM+persistent", Op::Send, single), 1..2);
    spin.ask_with_mutants(("DMP+DDIO+DRAM+persistent", Op::Write, both), (2..).step_by(4));
    // A FLUSH to visibility is not enough where the cache is not in the domain.
    let visibly = build(&config("DMP+no-DDIO+DRAM"), Op::Write, single);
    spin.ask(&visibly, &config("DMP+DDIO+DRAM+persistent"), &Scenario::ALONE, "the recipe of no DDIO");
    // Twice in a row with one receive buffer, which is given back at each earlier place too.
    for (name, op) in [("DMP+no-DDIO+PM", Op::Send), ("MHP+DDIO+PM", Op::Send), ("DMP+DDIO+DRAM", Op::Send)] {
        let config = config(name);
        let recipe = build(&config, op, single);
        spin.ask(&recipe, &config, &Scenario::TWICE, "the recipe");
        let kept = Recipe { deferred: without(&recipe.deferred, Rsp::Repost), ..recipe.clone() };
        let at = if recipe.deferred.len() > 1 { 1..recipe.deferred.len() - 1 } else { 0..0 };
        for at in at {
            let mut early = kept.clone();
            early.deferred.insert(at, Rsp::Repost);
            spin.ask(&early, &config, &Scenario::TWICE, &format!("repost before {}", kept.deferred[at]));
        }
        if recipe.deferred.len() == 1 {
            // The buffer is read after it was given back, as is seen where a second SEND waits for no acknowledgement.
            let mut early = kept.clone();
            early.steps.insert(2, Step::Rsp(Rsp::Repost));
            spin.ask(&early, &config, &Scenario::TWICE, "repost before the copy");
            early.steps.retain(|step| *step != Step::Rq(Rq::Receive));
            spin.ask(&early, &config, &Scenario::TWICE, "repost before the copy, and no wait");
        }
    }
    spin.agree(12, 7);
}

fn without(steps: &[Rsp], one: Rsp) -> Vec<Rsp> {
    steps.iter().copied().filter(|step| *step != one).collect()
}

#[test]
fn spin_agrees_about_recipes_mutants_and_misuse() {
    let mut spin = Asked::new("cells");
    let cells = [
        ("DMP+DDIO+DRAM", Op::Write, Shape::SINGLETON),
        ("DMP+no-DDIO+DRAM", Op::Write, Shape::COMPOUND),
        ("MHP+DDIO+DRAM", Op::Write, Shape::COMPOUND),
        ("WSP+DDIO+DRAM+iwarp", Op::Write, Shape::SINGLETON),
        ("DMP+DDIO+DRAM", Op::Send, Shape::COMPOUND),
        ("DMP+no-DDIO+PM", Op::Send, Shape::SINGLETON),
        ("WSP+no-DDIO+PM", Op::Send, Shape::COMPOUND),
        ("MHP+DDIO+DRAM+relaxed", Op::Write, Shape::COMPOUND),
        ("WSP+DDIO+DRAM+relaxed", Op::Write, Shape::COMPOUND),
    ];
    for (n, cell) in cells.into_iter().enumerate() {
        // A few of each cell's mutants, other ones in each cell: a run of spin takes a second.
        spin.ask_with_mutants(cell, (n % 3..).step_by(7));
    }
    for (of, op, shape, on) in [
        ("MHP+DDIO+DRAM", Op::Write, Shape::COMPOUND, "DMP+no-DDIO+DRAM"),
        ("DMP+no-DDIO+DRAM", Op::Write, Shape::SINGLETON, "DMP+DDIO+DRAM"),
        ("WSP+DDIO+DRAM", Op::Write, Shape::COMPOUND, "WSP+DDIO+DRAM+iwarp"),
        ("DMP+DDIO+DRAM", Op::Write, Shape::SINGLETON, "WSP+no-DDIO+DRAM"),
        ("MHP+DDIO+DRAM", Op::Write, Shape::COMPOUND, "MHP+DDIO+DRAM+relaxed"),
        // An ATOMIC WRITE that has arrived early counts in WSP.
        ("MHP+DDIO+DRAM+relaxed", Op::Write, Shape::COMPOUND, "WSP+DDIO+DRAM+relaxed"),
    ] {
        let what = format!("the recipe of {of}");
        spin.ask(&build(&config(of), op, shape), &config(on), &Scenario::ALONE, &what);
    }
    spin.agree(8, 8);
}
