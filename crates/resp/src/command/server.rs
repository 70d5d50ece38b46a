//! The server: CLUSTER, COMMAND, CONFIG and INFO.

use super::info::{self, Section, StoreFigures};
use super::transaction::wrong_subcommand;
use super::{COMMANDS, Call, Command, Done, wrong_arity};
use crate::glob;
use crate::parts::DATABASES_MAX;
use crate::store::Store;

impl<S: Store> Call<'_, S> {
    pub(super) fn command(&mut self) -> Done {
        if self.request.len() == 1 {
            self.reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| command.describe(&mut self.reply));
            return Ok(());
        }
        let sub = self.word(1).to_ascii_lowercase();
        match &*sub {
            b"count" if self.request.len() == 2 => self.reply.integer(COMMANDS.len() as i64),
            b"count" => return Err(wrong_arity("command|count")),
            b"info" => {
                let all = self.request.len() == 2;
                let named = self.request.words(2).map(Command::find);
                let found: Vec<_> = if all { COMMANDS.iter().map(Some).collect() } else { named.collect() };
                self.reply.array(found.len());
                for command in found {
                    match command {
                        Some(command) => command.describe(&mut self.reply),
                        None => self.reply.null(),
                    }
                }
            }
            b"docs" => {
                let all = self.request.len() == 2;
                let named = self.request.words(2).filter_map(Command::find);
                let found: Vec<_> = if all { COMMANDS.iter().collect() } else { named.collect() };
                self.reply.map(found.len());
                for command in found {
                    self.reply.bulk(command.name.as_bytes());
                    self.reply.map(3);
                    for (name, text) in
                        [("summary", command.summary), ("since", command.since), ("group", command.group)]
                    {
                        self.reply.bulk(name.as_bytes());
                        self.reply.bulk(text.as_bytes());
                    }
                }
            }
            b"list" if self.request.len() == 2 => {
                self.reply.array(COMMANDS.len());
                COMMANDS.iter().for_each(|command| self.reply.bulk(command.name.as_bytes()));
            }
            b"help" if self.request.len() == 2 => self.help(
                "COMMAND",
                &[
                    "(no subcommand)",
                    "    What is known of every command.",
                    "COUNT",
                    "    How many commands there are.",
                    "DOCS [<command-name> ...]",
                    "    What commands are for.",
                    "INFO [<command-name> ...]",
                    "    What is known of commands.",
                    "LIST",
                    "    The names of the commands.",
                ],
            ),
            b"list" | b"help" => {
                return Err(wrong_arity(&format!("command|{}", String::from_utf8_lossy(&sub))));
            }
            _ => return Err(self.unknown_subcommand()),
        }
        Ok(())
    }

    /// As a Redis says that is no node of a cluster: libraries ask to find out.
    pub(super) fn cluster(&mut self) -> Done {
        let wrong = wrong_subcommand(self.command, self.request);
        Err(wrong.unwrap_or_else(|| "ERR This instance has cluster support disabled".into()))
    }

    pub(super) fn config(&mut self) -> Done {
        let sub = self.word(1).to_ascii_lowercase();
        match &*sub {
            b"get" if self.request.len() >= 3 => {
                let all = self.parameters();
                let wanted: Vec<_> = all
                    .into_iter()
                    .filter(|(name, _)| {
                        self.request.words(2).any(|pattern| glob::matches(pattern, name.as_bytes(), true))
                    })
                    .collect();
                self.reply.map(wanted.len());
                for (name, value) in wanted {
                    self.reply.bulk(name.as_bytes());
                    self.reply.bulk(value.as_bytes());
                }
            }
            b"set" if self.request.len() >= 4 => {
                return Err("ERR CONFIG SET failed - the gateway is configured when it is started".into());
            }
            b"resetstat" if self.request.len() == 2 => {
                self.shared.stats.reset();
                self.reply.ok();
            }
            b"help" if self.request.len() == 2 => self.help(
                "CONFIG",
                &[
                    "GET <pattern> [<pattern> ...]",
                    "    Parameters and their values.",
                    "RESETSTAT",
                    "    Sets counts to 0.",
                ],
            ),
            b"get" | b"set" | b"resetstat" | b"help" => {
                return Err(wrong_arity(&format!("config|{}", String::from_utf8_lossy(&sub))));
            }
            _ => return Err(self.unknown_subcommand()),
        }
        Ok(())
    }

    /// What tools ask for, by Redis' names, and what only a gateway has.
    fn parameters(&self) -> Vec<(&'static str, String)> {
        let config = &self.shared.config;
        let durable = if config.durable { ("yes", "always") } else { ("no", "no") };
        vec![
            ("appendfsync", durable.1.to_owned()),
            ("appendonly", durable.0.to_owned()),
            ("databases", config.databases.to_string()),
            ("durability", config.durability.clone()),
            ("maxclients", config.clients_max.to_string()),
            ("maxmemory", "0".to_owned()),
            ("maxmemory-policy", "noeviction".to_owned()),
            ("port", config.port.to_string()),
            ("proto-max-bulk-len", config.bulk_max.to_string()),
            ("save", String::new()),
            ("timeout", config.idle_timeout_s.to_string()),
        ]
    }

    pub(super) fn info(&mut self) -> Done {
        let mut sections = Vec::new();
        for word in self.request.words(1) {
            sections.extend(Section::named(word));
        }
        if self.request.len() == 1 {
            sections.extend(Section::named(b"default"));
        }
        let mut told = StoreFigures::default();
        if sections.contains(&Section::Store) {
            told.store = self.store.facts();
            if told.store.is_empty() {
                sections.retain(|section| *section != Section::Store);
            }
        }
        if sections.contains(&Section::Keyspace) {
            for space in 0..self.shared.config.databases.clamp(1, DATABASES_MAX) {
                // What has not been counted yet is not told.
                let count = self.store.count(space as u8)?.unwrap_or(0);
                if count > 0 {
                    told.keys.push((space, count));
                }
            }
        }
        let text = info::text(&sections, self.shared, self.moment.unix_us, &told);
        self.reply.text(text.as_bytes());
        Ok(())
    }
}
