//! `rem kv serve --members`: one of several servers of a store.

use std::path::{Path, PathBuf};
use std::time::Duration;

use remanence_kv_live::{Member, MemberOptions, MemberStats, Role, Said};
use remanence_pmem::PersistenceDomain;
use serde_json::{Value, json};

use super::serve;
use crate::args::{self, Size, Tokens};
use crate::device;
use crate::fail::Fail;
use crate::serving::{print_line, serve_until_asked};
use crate::signals::Stop;
use crate::ui::{self, Mood};

#[derive(clap::Args, Debug)]
pub(super) struct Membership {
    /// How many members must have a change durably before it is acknowledged [default: more than half of them]
    #[arg(long, value_name = "N", requires = "members", value_parser = clap::value_parser!(u16).range(1..=16))]
    acks: Option<u16>,
    /// Take a member for dead that is silent for so many milliseconds; if it was the primary, another one takes over
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(100..=3_600_000))]
    notice: u64,
    /// Size of a new member's log [default: a fourth of the store's]
    #[arg(long, value_name = "SIZE", requires = "members")]
    log_size: Option<Size>,
    /// File with the token that members have among themselves; made if it is not there, and to be copied to all of them
    #[arg(long, value_name = "FILE", requires = "members")]
    members_token_file: Option<PathBuf>,
}

impl serve::Args {
    fn member(&self) -> Result<MemberOptions, Fail> {
        let wrong =
            |what: &str, why: &str| Err(Fail::new(format!("{what} is for a store on one server: {why}")));
        if self.mode == "erda" {
            return wrong("--mode erda", "what several members acknowledge is durable always; leave it out");
        }
        if self.configuration.is_some() {
            return wrong(
                "--configuration",
                "members make changes durable as their machines need it; leave it out",
            );
        }
        if self.inline_max.is_some() {
            return wrong("--inline-max", "members pass on what clients have written; leave it out");
        }
        let mut members = Vec::new();
        for member in &self.members {
            members.push((member.to_string(), member.resolve()?));
        }
        let mut options = MemberOptions::directory(&self.file, members)
            .clients(self.clients)
            .lease(Duration::from_millis(self.lease))
            .journal(args::Journal::or_default(self.journal))
            .notice(Duration::from_millis(self.member.notice))
            .clean_by_itself(!self.no_clean);
        if let Some(size) = self.size {
            options = options.size(size.0);
        }
        if let Some(keys) = self.keys {
            options = options.keys(keys);
        }
        if let Some(acks) = self.member.acks {
            options = options.acks(acks);
        }
        if let Some(size) = self.member.log_size {
            options = options.log(size.0);
        }
        if let Some(domain) = self.declare.as_deref().and_then(PersistenceDomain::from_name) {
            options = options.declare(domain);
        }
        let token = self.access.token()?.map(|(token, _)| token);
        if let Some(readers) = self.reader_token(token.is_some())? {
            options = options.reader_token(readers);
        }
        options = match (token, &self.member.members_token_file) {
            (Some(clients), Some(file)) => {
                let given = Tokens { token_file: Some(file.clone()), token: None };
                options.tokens(clients, args::server_token(&given, file)?)
            }
            (Some(_), None) => {
                return Err(Fail::new(
                    "members need a token among themselves, which clients do not have, as members write each other's logs; \
                     name a file for it with --members-token-file",
                ));
            }
            (None, Some(_)) => {
                return Err(Fail::new(
                    "with --members-token-file and no token for clients whoever connects could take the store over all the \
                     same; give clients one too (--token-file)",
                ));
            }
            (None, None) if self.access.is_insecure() => options.insecure(),
            (None, None) => options,
        };
        Ok(options)
    }
}

pub(super) fn run(args: &serve::Args) -> Result<(), Fail> {
    let asked = Stop::listen()?;
    let listen = args.listen.resolve()?;
    args.access.check(listen.ip(), serve::STRANGERS, args.metrics)?;
    let context = device::open_at(listen.ip())?;
    let as_json = args.json;
    let options = args.member()?.on_change(move |said| tell(said, as_json));
    let mut member = Member::bind(&context, listen.port(), options)
        .map_err(|e| Fail::new(format!("{} is not served: {e}", args.file.display())))?;
    let endpoint = args.endpoint(member.metrics().source())?;
    let metrics = endpoint.as_ref().map(|endpoint| format!("http://{}/metrics", endpoint.address()));
    let names: Vec<String> = args.members.iter().map(ToString::to_string).collect();
    if as_json {
        let ready = json!({
            "event": "ready",
            "address": member.addr().to_string(),
            "members": names,
            "metrics": metrics,
            "reader_token_file": args.reader_token_file,
            "pid": std::process::id(),
            "directory": args.file,
            "new": member.is_new(),
            "survives": member.sentence(),
        });
        print_line(&ready.to_string())?;
    } else {
        let what = if member.is_new() { "new" } else { "recovered" };
        ui::line(Mood::Good, "member", format!("{} ({what})", args.file.display()));
        ui::line(Mood::Good, "address", member.addr());
        ui::line(Mood::Good, "members", names.join(", "));
        if let Some(metrics) = &metrics {
            ui::line(Mood::Good, "metrics", metrics);
        }
        let mood = if member.metrics().read().durable { Mood::Good } else { Mood::Note };
        ui::line(mood, "durability", member.summary());
        ui::remark(format!(
            "\n  rem kv put {} KEY VALUE\n  rem kv stats {}\n",
            names.join(","),
            names.join(",")
        ));
        ui::remark("  Ctrl-C stops this member; the others go on while enough are left.");
    }
    let said = serve_until_asked(&asked, args.stop_on_eof, &args.file, as_json, |stop| member.run(stop))?;
    if as_json {
        let mut stopped = object(&said);
        stopped["event"] = "stopped".into();
        print_line(&stopped.to_string())?;
    } else {
        ui::remark("stopped");
    }
    Ok(())
}

/// The directory of a member, if this is one or a file in it.
pub(super) fn directory_of(path: &Path) -> Option<&Path> {
    const FILES: [&str; 3] = ["image", "log", "ledger"];
    let dir = match path.file_name() {
        Some(name) if !path.is_dir() && FILES.iter().any(|file| name == *file) => path.parent()?,
        _ => path,
    };
    FILES.iter().all(|file| dir.join(file).is_file()).then_some(dir)
}

/// What a member has is changed by the primary's records alone, or it would be another store's.
pub(super) fn refuse(path: &Path) -> Result<(), Fail> {
    match directory_of(path) {
        Some(dir) => Err(Fail::new(format!(
            "{} is what a member has of a store on several; serve the directory {} with the --members that it was started \
             with, and ask the store through them",
            path.display(),
            dir.display()
        ))),
        None => Ok(()),
    }
}

/// Something has changed.
fn tell(said: &MemberStats, as_json: bool) {
    if as_json {
        let mut changed = object(said);
        changed["event"] = "changed".into();
        let _ = print_line(&changed.to_string());
        return;
    }
    // Why it ends is what its command ends with.
    if said.failed {
        return;
    }
    let mood = match said.role {
        Role::Follower if !said.why.is_empty() => Mood::Bad,
        Role::Primary | Role::Follower => Mood::Good,
        Role::Waiting | Role::TakingOver => Mood::Note,
    };
    let text = match (said.role, said.why.is_empty()) {
        (Role::Primary, _) => format!("primary, epoch {}", said.epoch),
        (role, true) => role.name().to_owned(),
        (role, false) => format!("{}: {}", role.name(), said.why),
    };
    ui::line(mood, "role", text);
}

/// What a member says of itself, for programs.
pub(super) fn object(said: &MemberStats) -> Value {
    json!({
        "role": said.role.name(),
        "epoch": said.epoch.to_string(),
        "members": said.members,
        "name": said.members.get(usize::from(said.who)),
        "acks": said.acks,
        "group": said.group.to_string(),
        "records": { "first": said.first, "next": said.next, "applied": said.applied },
        "image": { "complete": said.complete, "bytes": said.image },
        "lost": said.lost,
        "behind": said.behind,
        "stalled_ms": said.stalled,
        "failed": said.failed,
        "rebuilding": if said.of > 0 {
            json!({ "member": said.rebuilding, "sent": said.sent, "of": said.of })
        } else {
            Value::Null
        },
        "why": said.why,
        "survives": said.survives,
    })
}

/// Lines for a person: who is the primary, who follows, who is rebuilt.
pub(super) fn show(members: &[(String, Said)]) {
    let primary =
        members.iter().filter_map(|(_, said)| said.as_ref().ok()).find(|said| said.role == Role::Primary);
    for (name, said) in members {
        let said = match said {
            Ok(said) => said,
            Err(why) => {
                ui::line(Mood::Bad, "member", format!("{name}: {why}"));
                continue;
            }
        };
        let lost = primary.is_some_and(|primary| primary.lost.contains(name));
        let rebuilt = primary.filter(|primary| primary.of > 0 && primary.rebuilding == *name);
        let text = match (said.role, rebuilt) {
            _ if said.failed => format!("ends: {}", said.why),
            (_, Some(primary)) => {
                format!("being rebuilt: {} of {}", ui::bytes(primary.sent), ui::bytes(primary.of))
            }
            (Role::Primary, _) => {
                let without = said.lost.iter().map(|name| format!("; does without {name}"));
                let itself = if lost {
                    ", which is itself: its own disk takes nothing more, or is being given what it lacks"
                } else {
                    ""
                };
                format!(
                    "primary, epoch {}; {} acknowledge{}{itself}",
                    said.epoch,
                    said.acks,
                    without.collect::<String>()
                )
            }
            (Role::Follower, _) if lost => {
                let behind = primary.iter().flat_map(|primary| &primary.behind);
                let mut why = behind.filter_map(|behind| behind.strip_prefix(name)?.strip_prefix(": "));
                match why.next() {
                    Some(why) => format!("there, and not taken in by the primary: {why}"),
                    None => "there, and not yet taken in by the primary".to_owned(),
                }
            }
            (Role::Follower, _) if !said.why.is_empty() => format!("follower: {}", said.why),
            (Role::Follower, _) => format!("follower, image at record {} of {}", said.applied, said.next),
            (role, _) if said.why.is_empty() => role.name().to_owned(),
            (role, _) => format!("{}: {}", role.name(), said.why),
        };
        let mood = match said.role {
            _ if said.failed => Mood::Bad,
            Role::Primary if lost => Mood::Bad,
            Role::Primary if !said.lost.is_empty() => Mood::Note,
            Role::Primary => Mood::Good,
            Role::Follower if !said.why.is_empty() => Mood::Bad,
            Role::Follower if !lost && rebuilt.is_none() => Mood::Good,
            _ => Mood::Note,
        };
        ui::line(mood, "member", format!("{name}: {text}"));
    }
}
