//! The connection itself: `networking.c`, and what of `acl.c` a single password needs.

use std::sync::Arc;

use super::expiry::c_string;
use super::{Call, Done, Failure, SYNTAX, Transaction, wrong_arity};
use crate::engine::{ConnectionInfo, REDIS_VERSION, Replies};
use crate::number::parse_i64;
use crate::protocol::Version;
use crate::store::Store;

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NAME_CHARACTERS: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

impl<'a, S: Store> Call<'a, S> {
    pub(super) fn ping(&mut self) -> Done {
        match self.request.len() {
            1 | 2 if self.ping_as_message() => {}
            1 => self.reply.simple("PONG"),
            2 => self.reply.bulk(self.word(1)),
            _ => return Err(wrong_arity("ping")),
        }
        Ok(())
    }

    pub(super) fn echo(&mut self) -> Done {
        self.reply.bulk(self.word(1));
        Ok(())
    }

    pub(super) fn quit(&mut self) -> Done {
        self.session.close_after_reply();
        self.reply.ok();
        Ok(())
    }

    pub(super) fn reset(&mut self) -> Done {
        self.shared.channels.leave(&self.session.peer, &mut self.session.subscriptions);
        self.deliver();
        self.session.set_space(0);
        self.session.set_version(Version::Resp2);
        self.session.peer.name().clear();
        self.session.authenticated = self.shared.config.password.is_none();
        // What was asked to come without a reply does, this being it or not.
        if self.session.replies != Replies::SkipThis {
            self.session.replies = Replies::On;
        }
        self.session.transaction = Transaction::default();
        self.reply.set_version(Version::Resp2);
        self.reply.simple("RESET");
        Ok(())
    }

    pub(super) fn auth(&mut self) -> Done {
        let (user, password): (&[u8], _) = match self.request.len() {
            2 if self.shared.config.password.is_none() => {
                return Err("ERR AUTH <password> called without any password configured for the default user. Are you \
                            sure your configuration is correct?"
                    .into());
            }
            2 => (b"default", self.word(1)),
            3 => (self.word(1), self.word(2)),
            _ => return Err(SYNTAX.into()),
        };
        self.authenticate(user, password)?;
        self.reply.ok();
        Ok(())
    }

    fn authenticate(&mut self, user: &[u8], password: &[u8]) -> Done {
        let wanted = self.shared.config.password.as_ref();
        // The password is compared whatever the user is, so that neither is told apart by time.
        let right = wanted.is_none_or(|wanted| same(wanted.as_bytes(), password));
        if !(right && user == b"default") {
            return Err(WRONG_PASSWORD.into());
        }
        self.session.authenticated = true;
        Ok(())
    }

    pub(super) fn hello(&mut self) -> Done {
        let mut version = None;
        if self.request.len() >= 2 {
            let number =
                parse_i64(self.word(1)).ok_or("ERR Protocol version is not an integer or out of range")?;
            version = Some(match number {
                2 => Version::Resp2,
                3 => Version::Resp3,
                _ => return Err("NOPROTO unsupported protocol version".into()),
            });
        }
        let mut index = 2;
        while index < self.request.len() {
            let more = self.request.len() - 1 - index;
            if self.is(index, "auth") && more >= 2 {
                self.authenticate(self.word(index + 1), self.word(index + 2))?;
                index += 2;
            } else if self.is(index, "setname") && more >= 1 {
                self.set_name(self.word(index + 1))?;
                index += 1;
            } else {
                let mut text = b"ERR Syntax error in HELLO option '".to_vec();
                text.extend(c_string(self.word(index)));
                text.push(b'\'');
                return Err(Failure::text(text));
            }
            index += 1;
        }
        if self.session.stranger(self.shared) {
            return Err("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH \
                        <user> <pass> option can be used to authenticate the client and select the RESP protocol \
                        version at the same time"
                .into());
        }
        if let Some(version) = version {
            self.deliver();
            self.session.set_version(version);
            self.reply.set_version(version);
        }
        let id = self.session.peer.id as i64;
        self.reply.map(7);
        self.reply.bulk(b"server");
        self.reply.bulk(b"redis");
        self.reply.bulk(b"version");
        self.reply.bulk(REDIS_VERSION.as_bytes());
        self.reply.bulk(b"proto");
        self.reply.integer(self.session.version.number());
        self.reply.bulk(b"id");
        self.reply.integer(id);
        self.reply.bulk(b"mode");
        self.reply.bulk(b"standalone");
        self.reply.bulk(b"role");
        self.reply.bulk(b"master");
        self.reply.bulk(b"modules");
        self.reply.array(0);
        Ok(())
    }

    fn set_name(&self, name: &[u8]) -> Done {
        if !name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
            return Err(NAME_CHARACTERS.into());
        }
        name.clone_into(&mut self.session.peer.name());
        Ok(())
    }

    pub(super) fn client(&mut self) -> Done {
        let words = self.request.len();
        let sub = self.word(1).to_ascii_lowercase();
        let arity = |exact: &[usize]| {
            let name = String::from_utf8_lossy(&sub).into_owned();
            if exact.contains(&words) { Ok(()) } else { Err(wrong_arity(&format!("client|{name}"))) }
        };
        match &*sub {
            b"id" => {
                arity(&[2])?;
                let id = self.session.peer.id as i64;
                self.reply.integer(id);
            }
            b"getname" => {
                arity(&[2])?;
                let name = self.session.peer.name().clone();
                if name.is_empty() { self.reply.null() } else { self.reply.bulk(&name) }
            }
            b"setname" => {
                arity(&[3])?;
                self.set_name(self.word(2))?;
                self.reply.ok();
            }
            // Of Redis 7.2; client libraries say their names with it and expect no error.
            b"setinfo" => {
                arity(&[4])?;
                if !self.is(2, "lib-name") && !self.is(2, "lib-ver") {
                    let mut text = b"ERR Unrecognized option '".to_vec();
                    text.extend(c_string(self.word(2)));
                    text.push(b'\'');
                    return Err(Failure::text(text));
                }
                self.reply.ok();
            }
            b"info" => {
                arity(&[2])?;
                let line = self.session.peer.line(self.moment.unix_us);
                self.reply.text(&line);
            }
            b"list" => self.client_list()?,
            b"kill" if words < 3 => return Err(wrong_arity("client|kill")),
            b"kill" => self.client_kill()?,
            b"reply" => {
                arity(&[3])?;
                self.client_reply()?;
            }
            b"no-evict" | b"no-touch" => {
                arity(&[3])?;
                self.switch(2)?;
                self.reply.ok();
            }
            b"help" => {
                arity(&[2])?;
                self.help("CLIENT", CLIENT_HELP);
            }
            _ => return Err(self.unknown_subcommand()),
        }
        Ok(())
    }

    fn switch(&self, index: usize) -> Done<bool> {
        if self.is(index, "on") {
            Ok(true)
        } else if self.is(index, "off") {
            Ok(false)
        } else {
            Err(SYNTAX.into())
        }
    }

    fn client_reply(&mut self) -> Done {
        if self.is(2, "skip") {
            if self.session.replies != Replies::Off {
                self.session.replies = Replies::SkipNext;
            }
        } else if self.switch(2)? {
            self.session.replies = Replies::On;
            self.reply.ok();
        } else {
            self.session.replies = Replies::Off;
        }
        Ok(())
    }

    fn client_list(&mut self) -> Done {
        let now = self.moment.unix_us;
        let mut lines = Vec::new();
        if self.request.len() == 4 && self.is(2, "type") {
            let kind = self.client_type(3)?;
            let peers = self.shared.peers();
            peers.values().filter(|peer| kind.is(peer)).for_each(|peer| lines.extend(peer.line(now)));
        } else if self.request.len() > 3 && self.is(2, "id") {
            for word in self.request.words(3) {
                let id = parse_i64(word).ok_or("ERR Invalid client ID")?;
                let peer = u64::try_from(id).ok().and_then(|id| self.shared.peers().get(&id).cloned());
                lines.extend(peer.map(|peer| peer.line(now)).unwrap_or_default());
            }
        } else if self.request.len() == 2 {
            self.shared.peers().values().for_each(|peer| lines.extend(peer.line(now)));
        } else {
            return Err(SYNTAX.into());
        }
        self.reply.text(&lines);
        Ok(())
    }

    /// The named type of clients.
    fn client_type(&self, index: usize) -> Done<ClientType> {
        if self.is(index, "normal") {
            return Ok(ClientType::Normal);
        }
        if self.is(index, "pubsub") {
            return Ok(ClientType::Listens);
        }
        if ["master", "slave", "replica"].iter().any(|kind| self.is(index, kind)) {
            return Ok(ClientType::Server);
        }
        let mut text = b"ERR Unknown client type '".to_vec();
        text.extend(c_string(self.word(index)));
        text.push(b'\'');
        Err(Failure::text(text))
    }

    fn client_kill(&mut self) -> Done {
        let words = self.request.len();
        let mut filter = Filter { skip_me: words != 3, ..Filter::default() };
        match words {
            3 => filter.address = Some(self.word(2)),
            4.. => {
                for index in (2..words).step_by(2) {
                    if index + 1 == words {
                        return Err(SYNTAX.into());
                    }
                    self.kill_option(index, &mut filter)?;
                }
            }
            _ => return Err(SYNTAX.into()),
        }
        let me = self.session.peer.id;
        let mut killed = 0;
        let peers: Vec<Arc<ConnectionInfo>> = self.shared.peers().values().cloned().collect();
        for peer in peers.iter().filter(|peer| filter.takes(peer, me)) {
            // Who has been told to go, and has not gone yet, is no client any more.
            if peer.id == me {
                self.session.close_after_reply();
                killed += 1;
            } else if peer.kill() {
                killed += 1;
            }
        }
        match (words, killed) {
            (3, 0) => return Err("ERR No such client".into()),
            (3, _) => self.reply.ok(),
            _ => self.reply.integer(killed),
        }
        Ok(())
    }

    fn kill_option(&self, index: usize, filter: &mut Filter<'a>) -> Done {
        let value = self.word(index + 1);
        if self.is(index, "id") {
            let id = parse_i64(value).and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0);
            filter.id = Some(id.ok_or("ERR client-id should be greater than 0")?);
        } else if self.is(index, "addr") {
            filter.address = Some(value);
        } else if self.is(index, "laddr") {
            filter.local = Some(value);
        } else if self.is(index, "type") {
            filter.kind = Some(self.client_type(index + 1)?);
        } else if self.is(index, "user") {
            if value != b"default" {
                let mut text = b"ERR No such user '".to_vec();
                text.extend(c_string(value));
                text.push(b'\'');
                return Err(Failure::text(text));
            }
        } else if self.is(index, "skipme") && self.is(index + 1, "yes") {
            filter.skip_me = true;
        } else if self.is(index, "skipme") && self.is(index + 1, "no") {
            filter.skip_me = false;
        } else {
            return Err(SYNTAX.into());
        }
        Ok(())
    }

    /// A container's word that names nothing of ours.
    pub(super) fn unknown_subcommand(&self) -> Failure {
        super::unknown_subcommand(self.command, self.request)
    }

    /// A container's help, with the two lines that every one ends with.
    pub(super) fn help(&mut self, container: &str, lines: &[&str]) {
        self.reply.array(lines.len() + 3);
        self.reply.simple(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
        for line in lines {
            self.reply.simple(line);
        }
        self.reply.simple("HELP");
        self.reply.simple("    Print this help.");
    }

    pub(super) fn time(&mut self) -> Done {
        let now = self.moment.unix_us;
        self.reply.array(2);
        self.reply.bulk_integer(now.div_euclid(1_000_000));
        self.reply.bulk_integer(now.rem_euclid(1_000_000));
        Ok(())
    }
}

#[derive(Default)]
struct Filter<'a> {
    id: Option<u64>,
    address: Option<&'a [u8]>,
    local: Option<&'a [u8]>,
    skip_me: bool,
    kind: Option<ClientType>,
}

impl Filter<'_> {
    fn takes(&self, peer: &ConnectionInfo, me: u64) -> bool {
        self.kind.is_none_or(|kind| kind.is(peer))
            && self.id.is_none_or(|id| id == peer.id)
            && self.address.is_none_or(|address| address == peer.address.as_bytes())
            && self.local.is_none_or(|local| local == peer.local.as_bytes())
            && !(self.skip_me && peer.id == me)
    }
}

/// What CLIENT calls a type.
#[derive(Clone, Copy)]
enum ClientType {
    Normal,
    /// It has subscribed to something.
    Listens,
    /// Other servers, of which there are none.
    Server,
}

impl ClientType {
    fn is(self, peer: &ConnectionInfo) -> bool {
        match self {
            Self::Normal => !peer.listens(),
            Self::Listens => peer.listens(),
            Self::Server => false,
        }
    }
}

/// Compares without saying by its time where the first difference is.
fn same(secret: &[u8], given: &[u8]) -> bool {
    let mut differences = secret.len() ^ given.len();
    for (index, &byte) in given.iter().enumerate() {
        let wanted = secret.get(index % secret.len().max(1)).copied().unwrap_or(0);
        differences |= usize::from(byte ^ wanted);
    }
    std::hint::black_box(differences) == 0
}

const CLIENT_HELP: &[&str] = &[
    "GETNAME",
    "    The connection's name.",
    "ID",
    "    The connection's number.",
    "INFO",
    "    What is known of the connection.",
    "KILL <ip:port>",
    "    Closes the connection from there.",
    "KILL <option> <value> [<option> <value> [...]]",
    "    Closes connections: ID, ADDR, LADDR, TYPE, USER, SKIPME.",
    "LIST [TYPE <type> | ID <id> [<id> ...]]",
    "    What is known of the connections.",
    "REPLY (ON|OFF|SKIP)",
    "    Whether the connection wants replies.",
    "SETNAME <name>",
    "    Names the connection.",
];
