//! A counterexample as a time line that a person can read: as text, and as SVG with a lane for each place where data can be.

use std::fmt::{self, Write as _};

use super::machine::{Destination, Program, State};
use super::{Counterexample, Event, Fault, Level};
use crate::taxonomy::Domain;

/// Where something happens, from left to right.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Lane {
    Requester,
    Wire,
    Rnic,
    Iio,
    L3,
    Imc,
    Media,
    Cpu,
}

const LANES: [Lane; 8] =
    [Lane::Requester, Lane::Wire, Lane::Rnic, Lane::Iio, Lane::L3, Lane::Imc, Lane::Media, Lane::Cpu];

impl Lane {
    const fn of(level: Level, cpu: bool) -> Self {
        match level {
            Level::None => Self::Requester,
            Level::Wire => Self::Wire,
            Level::Rnic if cpu => Self::Cpu,
            Level::Rnic => Self::Rnic,
            Level::Iio => Self::Iio,
            Level::L3 => Self::L3,
            Level::Imc => Self::Imc,
            Level::Media | Level::Gone => Self::Media,
        }
    }

    const fn name(self, domain: Domain) -> &'static str {
        let file = matches!(domain, Domain::PageCache);
        match self {
            Self::Requester => "requester",
            Self::Wire => "wire",
            Self::Rnic => "RNIC",
            Self::Iio => "IIO",
            Self::L3 => "L3",
            Self::Imc if file => "page",
            Self::Imc => "IMC",
            Self::Media if file => "disk",
            Self::Media => "DIMM",
            Self::Cpu => "CPU",
        }
    }
}

/// One line of the story.
struct Line {
    from: Lane,
    to: Lane,
    text: String,
}

impl Counterexample {
    fn program(&self) -> Program {
        Program::new(&self.recipe, &self.machine, &self.scenario)
    }

    /// Walks the events again.
    fn replay(&self, program: &Program) -> (Vec<Line>, State) {
        let mut state = program.initial();
        let mut lines = Vec::new();
        for event in &self.events {
            let mut next = None;
            program.moves(state, |e, to| {
                if e == *event && next.is_none() {
                    next = Some(to);
                }
            });
            lines.push(self.line(program, state, *event));
            state = next.expect("a counterexample is a walk of its own machine");
        }
        (lines, state)
    }

    fn line(&self, program: &Program, state: State, event: Event) -> Line {
        match event {
            Event::Requester(n) => {
                let text = format!("requester: {}", program.rq_steps[n]);
                let before = program.acknowledged(state);
                let mut next = state;
                program.moves(state, |e, to| {
                    if e == event {
                        next = to;
                    }
                });
                let believes = program.acknowledged(next) > before;
                let text = if believes { format!("{text}; it believes the update durable") } else { text };
                Line { from: Lane::Requester, to: Lane::Requester, text }
            }
            Event::Responder(n) => {
                let text = format!("responder's CPU: {}", program.rsp_steps[n]);
                Line { from: Lane::Cpu, to: Lane::Cpu, text }
            }
            Event::Executed(op) => {
                let text = format!("the responder executes {}", program.posting_name(op));
                Line { from: Lane::Rnic, to: Lane::Rnic, text }
            }
            Event::Moved { atom, to } => {
                let cpu = program.atoms[atom].cpu;
                let (from, to) = (Lane::of(state.level(atom), cpu), Lane::of(to, cpu));
                let domain = self.machine.config.domain;
                let name = atom_name(program, atom);
                let text = match to {
                    Lane::Rnic => format!("{name} arrives in the RNIC's buffer"),
                    Lane::Iio => format!("{name} is visible, in the IIO"),
                    _ => format!("{name} goes from {} to {}", from.name(domain), to.name(domain)),
                };
                Line { from, to, text }
            }
        }
    }

    /// What the failure takes and leaves, and what recovery makes of it.
    fn ending(&self, program: &Program, state: State) -> Vec<String> {
        if self.fault == Fault::Stuck {
            let waits = |name: &str, step: Option<String>| {
                step.map_or_else(
                    || format!("the {name} is at its end"),
                    |s| format!("the {name} waits at {s}"),
                )
            };
            let rq = waits("requester", program.rq_steps.get(state.rq()).map(|s| s.to_string()));
            let rsp = waits("responder", program.rsp_steps.get(state.rsp()).map(|s| s.to_string()));
            return vec![format!("nothing can happen any more: {rq}, {rsp}"), self.fault.to_string()];
        }
        let mut kept = Vec::new();
        let mut lost = Vec::new();
        for n in 0..program.atoms.len() {
            let level = state.level(n);
            if level == Level::None || level == Level::Gone {
                continue;
            }
            let place = Lane::of(level, program.atoms[n].cpu).name(self.machine.config.domain);
            let place = match level {
                Level::Wire => "on the wire".to_owned(),
                Level::Rnic => format!("{place} buffer"),
                _ => place.to_owned(),
            };
            if program.survives(state, n) {
                kept.push(atom_name(program, n));
            } else {
                lost.push(format!("{} ({place})", atom_name(program, n)));
            }
        }
        let list = |all: &[String]| if all.is_empty() { "nothing".into() } else { all.join(", ") };
        let what = match self.machine.config.domain {
            Domain::Process => "the process dies",
            Domain::Dmp | Domain::Mhp | Domain::Wsp | Domain::PageCache => "the power goes",
        };
        vec![
            format!("CRASH: {what}. Kept: {}. Lost: {}", list(&kept), list(&lost)),
            format!("RECOVERY: {}", self.fault),
        ]
    }

    /// The time line as SVG.
    #[must_use]
    pub fn svg(&self, title: &str) -> String {
        const LEFT: usize = 60;
        const STEP: usize = 86;
        const TOP: usize = 74;
        const ROW: usize = 26;
        let program = self.program();
        let (lines, state) = self.replay(&program);
        let ending = self.ending(&program, state);
        let x = |lane: Lane| LEFT + STEP * LANES.iter().position(|l| *l == lane).unwrap_or(0);
        let text_x = x(Lane::Cpu) + 50;
        let bottom = TOP + ROW * (lines.len() + ending.len()) + 10;
        let legend: Vec<&str> =
            std::iter::once("green: the persistence domain, which keeps what it has; grey: it does not")
                .chain(LEGEND.split("; "))
                .collect();
        let longest =
            lines.iter().map(|l| l.text.len()).chain(ending.iter().map(String::len)).max().unwrap_or(0);
        let width = (text_x + 7 * longest.max(40) + 20).max(16 + 6 * LEGEND.len() / 2);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"16\" y=\"22\" font-size=\"14\" font-weight=\"bold\">{}</text>\n\
             <text x=\"16\" y=\"40\" fill=\"#666\">{}</text>\n",
            bottom + 10 + 16 * legend.len(),
            escape(title),
            escape(&format!("{} on {}, {}", self.recipe, self.machine.config, self.scenario.name)),
        );
        let domain = self.machine.config.domain;
        for lane in LANES {
            let (x, durable) = (x(lane), self.is_durable(lane));
            let colour = if durable { "#2a7" } else { "#bbb" };
            let _ = writeln!(
                svg,
                "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" fill=\"{}\">{}</text>\n\
                 <line x1=\"{x}\" y1=\"{TOP}\" x2=\"{x}\" y2=\"{bottom}\" stroke=\"{colour}\" stroke-width=\"{}\"/>",
                TOP - 10,
                if durable { "#185" } else { "#444" },
                lane.name(domain),
                if durable { 2 } else { 1 },
            );
        }
        for (n, line) in lines.iter().enumerate() {
            let y = TOP + ROW * n + ROW / 2 + 4;
            let (from, to) = (x(line.from), x(line.to));
            if from == to {
                let _ = writeln!(svg, "<circle cx=\"{from}\" cy=\"{y}\" r=\"5\" fill=\"#258\"/>");
            } else {
                let tip = if to > from { to - 7 } else { to + 7 };
                let _ = writeln!(
                    svg,
                    "<line x1=\"{from}\" y1=\"{y}\" x2=\"{to}\" y2=\"{y}\" stroke=\"#258\" stroke-width=\"1.6\"/>\
                     <path d=\"M{to},{y} L{tip},{} L{tip},{} z\" fill=\"#258\"/>",
                    y - 4,
                    y + 4,
                );
            }
            let _ = writeln!(
                svg,
                "<text x=\"{text_x}\" y=\"{}\">{}. {}</text>",
                y + 4,
                n + 1,
                escape(&line.text)
            );
        }
        for (n, text) in ending.iter().enumerate() {
            let y = TOP + ROW * (lines.len() + n) + ROW / 2 + 4;
            if n == 0 {
                let end = x(Lane::Cpu) + 30;
                let _ = writeln!(
                    svg,
                    "<line x1=\"20\" y1=\"{y}\" x2=\"{end}\" y2=\"{y}\" stroke=\"#c22\" stroke-width=\"2\" \
                     stroke-dasharray=\"6 3\"/>"
                );
            }
            let _ = writeln!(
                svg,
                "<text x=\"{text_x}\" y=\"{}\" fill=\"#c22\" font-weight=\"bold\">{}</text>",
                y + 4,
                escape(text)
            );
        }
        for (n, text) in legend.iter().enumerate() {
            let y = bottom + 16 * (n + 1);
            let _ = writeln!(
                svg,
                "<text x=\"16\" y=\"{y}\" font-size=\"11\" fill=\"#666\">{}</text>",
                escape(text)
            );
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn is_durable(&self, lane: Lane) -> bool {
        let from = Lane::of(self.machine.durable_from(), false);
        lane >= from && lane < Lane::Cpu
    }
}

/// What the names in a time line are.
pub const LEGEND: &str = "a[0] is the first aligned word of 8 bytes of update a, a' is a when the recipe is carried out again; what is \
     written goes from the wire to the RNIC's buffer, the IIO (PCIe's write buffer, where it is visible), the L3 cache \
     (DDIO) or past it, the IMC (memory controller) and the DIMM";

/// The time line as text: numbered events, the crash, what recovery finds.
impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = self.program();
        let (lines, state) = self.replay(&program);
        for (n, line) in lines.iter().enumerate() {
            writeln!(f, "{:>4}  {}", n + 1, line.text)?;
        }
        for text in self.ending(&program, state) {
            writeln!(f, "      {text}")?;
        }
        Ok(())
    }
}

fn atom_name(program: &Program, n: usize) -> String {
    let nth = |round: u8| if round == 0 { "" } else { "'" };
    match program.atoms[n].place {
        Destination::Update { update, round, word } => format!("{update}{}[{word}]", nth(round)),
        Destination::Buffer { word, .. } => format!("message {}[{word}]", program.message_number(n)),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::{Machine, check};
    use crate::recipe::{Op, Shape, Step, build};
    use crate::taxonomy::{Buffers, Config, Domain};

    fn counterexample() -> Box<super::Counterexample> {
        let config = Config::paper(Domain::Dmp, true, Buffers::Dram);
        let mut recipe = build(&config, Op::WriteImm, Shape::SINGLETON);
        recipe.steps.retain(|s| !matches!(s, Step::Rsp(crate::recipe::Rsp::Flush(_))));
        check(&recipe, &Machine::new(config)).fault.expect("the flush is needed")
    }

    #[test]
    fn a_counterexample_reads_as_a_story() {
        let text = counterexample().to_string();
        assert_eq!(
            text,
            "   1  requester: WriteImm(a)\n\
             \x20  2  a[0] arrives in the RNIC's buffer\n\
             \x20  3  a[0] is visible, in the IIO\n\
             \x20  4  a[1] arrives in the RNIC's buffer\n\
             \x20  5  a[1] is visible, in the IIO\n\
             \x20  6  responder's CPU: Receive(&a)\n\
             \x20  7  responder's CPU: Send(ack)\n\
             \x20  8  requester: Receive(ack); it believes the update durable\n\
             \x20     CRASH: the power goes. Kept: nothing. Lost: a[0] (IIO), a[1] (IIO)\n\
             \x20     RECOVERY: a is believed durable, and is not recovered\n"
        );
    }

    #[test]
    fn its_picture_is_well_formed_and_marks_the_domain() {
        let svg = counterexample().svg("a < b & c");
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a &lt; b &amp; c") && svg.contains("Receive(&amp;a)"));
        assert_eq!(svg.matches("#2a7").count(), 2, "IMC and DIMM are the domain");
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }
}
