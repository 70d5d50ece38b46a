//! A second opinion: a model of the machine in Promela (`machine.pml`), written from the paper and told in another way,
//! explored by spin. It must agree with our checker about recipes, mutants of them, and recipes in the wrong place.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use remanence_persist::Config;
use remanence_persist::check::{Machine, Scenario, check_in, single_mutants};
use remanence_persist::recipe::{A, B, Message, Op, Recipe, Rq, Rsp, Set, Shape, Target, build};
use remanence_persist::taxonomy::{Buffers, Domain, Transport};

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
    let rq = recipe.requester().map(|step| match step {
        Rq::Write(u) => format!("Write_{}()", name(u)),
        Rq::AtomicWrite(u) => format!("AtomicWrite_{}()", name(u)),
        Rq::Send(m) => format!("Send_{}()", message(m)),
        Rq::Flush(_) => "Flush()".into(),
        Rq::Comp => "Comp()".into(),
        Rq::Receive => "Receive_ack()".into(),
        Rq::WriteImm(_) | Rq::FencedWrite(_) => panic!("the model has no {step}"),
    });
    let all = recipe.responder().chain(recipe.deferred.iter().copied());
    let rsp = all.filter(|step| *step != Rsp::Repost).map(|step| match step {
        Rsp::Receive(m) => format!("Receive_{}()", message(m)),
        Rsp::Copy(u) => format!("copy_{}()", name(u)),
        Rsp::Flush(Target::Update(u)) => format!("flush_at_{}()", name(u)),
        Rsp::Flush(Target::Buffer) => "flush_buffer()".into(),
        Rsp::Ack => "Ack()".into(),
        Rsp::Repost => unreachable!("filtered"),
    });
    let join = |steps: Vec<String>| if steps.is_empty() { "skip".into() } else { steps.join("; ") };
    (join(rq.collect()), join(rsp.collect()))
}

/// Whether spin finds no error.
fn spin_says(dir: &Path, recipe: &Recipe, config: &Config) -> bool {
    let bit = |yes: bool| u8::from(yes);
    let (rq, rsp) = programs(recipe);
    let mut model = String::new();
    let defines = [
        ("MHP", bit(config.domain == Domain::Mhp)),
        ("WSP", bit(config.domain == Domain::Wsp)),
        ("DDIO", bit(config.ddio)),
        ("PM", bit(config.buffers == Buffers::Pm)),
        ("IWARP", bit(config.transport == Transport::Iwarp)),
        ("REPLAY", bit(recipe.replay)),
        ("COMPOUND", bit(recipe.shape == Shape::COMPOUND)),
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

#[test]
fn spin_agrees_about_recipes_mutants_and_misuse() {
    let dir = std::env::temp_dir().join(format!("remanence-spin-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a directory");
    let mut disagree = Vec::new();
    let (mut asked, mut failing) = (0, 0);
    let mut ask = |recipe: &Recipe, config: &Config, what: &str| {
        let ours = check_in(recipe, &Machine::new(*config), &Scenario::ALONE);
        let spins = spin_says(&dir, recipe, config);
        asked += 1;
        failing += usize::from(!spins);
        if ours.holds() != spins {
            disagree.push(format!("{what} on {config}: ours {}, spin's {spins}: {recipe}", ours.word()));
        }
    };
    let cells = [
        ("DMP+DDIO+DRAM", Op::Write, Shape::SINGLETON),
        ("DMP+no-DDIO+DRAM", Op::Write, Shape::COMPOUND),
        ("MHP+DDIO+DRAM", Op::Write, Shape::COMPOUND),
        ("WSP+DDIO+DRAM+iwarp", Op::Write, Shape::SINGLETON),
        ("DMP+DDIO+DRAM", Op::Send, Shape::COMPOUND),
        ("DMP+no-DDIO+PM", Op::Send, Shape::SINGLETON),
        ("WSP+no-DDIO+PM", Op::Send, Shape::COMPOUND),
    ];
    for (n, (name, op, shape)) in cells.into_iter().enumerate() {
        let config = config(name);
        let recipe = build(&config, op, shape);
        ask(&recipe, &config, "the recipe");
        // A few of each cell's mutants, other ones in each cell: a run of spin takes a second.
        let mutants = single_mutants(&recipe);
        for (mutation, mutant) in mutants.iter().skip(n % 2).step_by(4) {
            ask(mutant, &config, &mutation.to_string());
        }
    }
    for (of, op, shape, on) in [
        ("MHP+DDIO+DRAM", Op::Write, Shape::COMPOUND, "DMP+no-DDIO+DRAM"),
        ("DMP+no-DDIO+DRAM", Op::Write, Shape::SINGLETON, "DMP+DDIO+DRAM"),
        ("WSP+DDIO+DRAM", Op::Write, Shape::COMPOUND, "WSP+DDIO+DRAM+iwarp"),
        ("DMP+DDIO+DRAM", Op::Write, Shape::SINGLETON, "WSP+no-DDIO+DRAM"),
    ] {
        ask(&build(&config(of), op, shape), &config(on), &format!("the recipe of {of}"));
    }
    let _ = fs::remove_dir_all(&dir);
    println!("spin was asked {asked} times and found {failing} errors");
    assert!(disagree.is_empty(), "{}", disagree.join("\n"));
    assert!(failing > 10 && asked - failing > 7, "both answers are given: {failing} of {asked}");
}
