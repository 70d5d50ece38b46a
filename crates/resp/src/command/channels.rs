//! SUBSCRIBE, PSUBSCRIBE, UNSUBSCRIBE, PUNSUBSCRIBE, PUBLISH and PUBSUB.

use super::expiry::c_string;
use super::transaction::wrong_subcommand;
use super::{Call, Command, Done, Failure, Id};
use crate::channels::Kind;
use crate::engine::Session;
use crate::protocol::{Request, Version};
use crate::store::{OPERATION, Store};

/// What is wrong with a command of a connection that has subscribed to something: with RESP2 it cannot tell replies from messages.
pub(super) fn refused(session: &Session, command: &Command, request: &Request<'_>) -> Option<Failure> {
    let allowed = matches!(
        command.id,
        Id::Subscribe | Id::Unsubscribe | Id::PSubscribe | Id::PUnsubscribe | Id::Ping | Id::Quit | Id::Reset
    );
    if allowed || !session.only_listens() {
        return None;
    }
    if let Some(wrong) = wrong_subcommand(command, request) {
        return Some(wrong);
    }
    let name = match super::transaction::subcommand(command, request) {
        Some(word) => format!("{}|{word}", command.name),
        None => command.name.to_owned(),
    };
    let text = format!(
        "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
    );
    Some(Failure::text(text.into_bytes()))
}

impl<S: Store> Call<'_, S> {
    /// Appends the messages that have come by now, so that they stand before the reply that is about to be written. Within EXEC, whose
    /// replies stand in an array, they wait until after it; with RESP2 those are of subscriptions that began in it and have ended, and
    /// as nothing comes between its commands, there are none.
    pub(super) fn deliver(&mut self) {
        if !self.session.in_exec {
            let mail = self.session.mail.take(self.shared);
            self.reply.written(&mail);
        } else if self.reply.version() == Version::Resp2 && self.session.subscriptions.count() == 0 {
            drop(self.session.mail.take(self.shared));
        }
    }

    /// One message about a subscription.
    fn tell(&mut self, what: &str, name: Option<&[u8]>) {
        self.reply.push(3);
        self.reply.bulk(what.as_bytes());
        match name {
            Some(name) => self.reply.bulk(name),
            None => self.reply.null(),
        }
        self.reply.integer(self.session.subscriptions.count() as i64);
    }

    pub(super) fn subscribe(&mut self, kind: Kind) -> Done {
        let what = match kind {
            Kind::Channel => "subscribe",
            Kind::Pattern => "psubscribe",
        };
        // All of them or none: the replies to some would be taken for what an error is the reply to.
        if kind == Kind::Pattern {
            let own = &self.session.subscriptions;
            let admitted = self.shared.channels.admits(own, self.request.words(1));
            admitted.map_err(|why| Failure::text(why.into_bytes()))?;
        }
        for name in self.request.words(1) {
            let own = (&self.session.mail, &self.session.peer);
            self.shared.channels.subscribe(own, &mut self.session.subscriptions, kind, name);
            self.tell(what, Some(name));
        }
        self.session.pushed = true;
        Ok(())
    }

    pub(super) fn unsubscribe(&mut self, kind: Kind) -> Done {
        let what = match kind {
            Kind::Channel => "unsubscribe",
            Kind::Pattern => "punsubscribe",
        };
        let names: Vec<Vec<u8>> = match self.request.len() {
            1 => self.session.subscriptions.of(kind).iter().cloned().collect(),
            _ => self.request.words(1).map(<[u8]>::to_vec).collect(),
        };
        for name in &names {
            self.shared.channels.unsubscribe(&self.session.peer, &mut self.session.subscriptions, kind, name);
            self.deliver();
            self.tell(what, Some(name));
        }
        if names.is_empty() {
            self.tell(what, None);
        }
        self.session.pushed = true;
        Ok(())
    }

    pub(super) fn publish(&mut self) -> Done {
        let count = self.shared.channels.publish(self.shared, self.word(1), self.word(2));
        // Each of them has a copy of its own.
        self.session.worked(count.saturating_mul(OPERATION + self.word(2).len()));
        self.reply.integer(count as i64);
        Ok(())
    }

    pub(super) fn pubsub(&mut self) -> Done {
        if let Some(wrong) = wrong_subcommand(self.command, self.request) {
            return Err(wrong);
        }
        let channels = &self.shared.channels;
        match &*self.word(1).to_ascii_lowercase() {
            b"channels" if self.request.len() > 3 => {
                let mut text = b"ERR unknown subcommand or wrong number of arguments for '".to_vec();
                text.extend(c_string(self.word(1)).take(128));
                text.extend_from_slice(b"'. Try PUBSUB HELP.");
                return Err(Failure::text(text));
            }
            b"channels" => {
                let names = channels.names((self.request.len() > 2).then(|| self.word(2)));
                self.reply.array(names.len());
                names.iter().for_each(|name| self.reply.bulk(name));
            }
            b"numsub" => {
                // As pairs, with RESP3 as well.
                self.reply.array(2 * (self.request.len() - 2));
                for name in self.request.words(2) {
                    self.reply.bulk(name);
                    self.reply.integer(channels.receivers(name) as i64);
                }
            }
            b"numpat" => self.reply.integer(channels.counts().1 as i64),
            _ => self.help(
                "PUBSUB",
                &[
                    "CHANNELS [<pattern>]",
                    "    Channels that somebody has subscribed to.",
                    "NUMPAT",
                    "    How many patterns are subscribed to.",
                    "NUMSUB [<channel> ...]",
                    "    How many have subscribed to each channel.",
                ],
            ),
        }
        Ok(())
    }

    /// PING of a connection that can only be sent messages.
    pub(super) fn ping_as_message(&mut self) -> bool {
        if !self.session.only_listens() || self.reply.version() != Version::Resp2 {
            return false;
        }
        self.reply.array(2);
        self.reply.bulk(b"pong");
        self.reply.bulk(if self.request.len() > 1 { self.word(1) } else { b"" });
        true
    }
}
