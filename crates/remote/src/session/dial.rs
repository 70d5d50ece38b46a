//! How a client connects: who it is, whether the server is who it should be, and what they say to each other first.

use std::net::SocketAddr;
use std::time::Instant;

use remanence_auth::Nonce;
use remanence_rnic::{Access, QpCaps};
use remanence_service::client::{Endpoint, Reactor};
use remanence_verbs::{ConnectAttr, Connection, Pd};

use super::{Options, RQ_DEPTH, SQ_DEPTH};
use crate::admission::{Ends, Transcript};
use crate::error::Error;
use crate::hello::{Credentials, Hello, Rejection, Stranger, Welcome};

/// How a server is talked into a session.
pub(super) struct Dial<'a> {
    pub(super) reactor: &'a Reactor,
    pub(super) pd: &'a Pd,
    pub(super) to: SocketAddr,
    pub(super) options: &'a Options,
}

impl Dial<'_> {
    pub(super) fn dial(&self) -> Result<(Connection, Endpoint, Welcome), Error> {
        let to = self.to;
        let hello = Hello { declared: self.options.declared, credentials: Credentials::None };
        if self.options.tokens.is_empty() {
            let (connection, endpoint, rejection) = self.knock(|_| hello)?;
            return match rejection {
                None => self.welcome(connection, endpoint),
                Some(rejection) => Err(self.refusal(rejection)),
            };
        }
        for token in &self.options.tokens {
            let mut nonce: Nonce = [0; 32];
            getrandom::fill(&mut nonce).expect("the kernel gives random bytes");
            let asking = Hello { credentials: Credentials::Nonce(nonce), ..hello };
            let (connection, endpoint, rejection) = self.knock(|_| asking)?;
            let challenge = match rejection {
                Some(Rejection::Challenge(challenge)) => challenge,
                Some(rejection) => return Err(self.refusal(rejection)),
                // Whoever welcomes us without a proof of ours has none of its own.
                None => return Err(Error::Unproven(to)),
            };
            let client = connection.local();
            drop((connection, endpoint));
            let mut bond = None;
            let (connection, endpoint, rejection) = self.knock(|qpn| {
                let ends = Ends { client, qpn, server: to };
                bond.insert(Transcript::new(token.clone(), nonce, challenge, ends)).answer(&hello)
            })?;
            match rejection {
                None if bond.is_some_and(|bond| bond.is_sealed(&connection.private_data())) => {
                    return self.welcome(connection, endpoint);
                }
                None => return Err(Error::Unproven(to)),
                Some(Rejection::WrongToken) => {}
                Some(rejection) => return Err(self.refusal(rejection)),
            }
        }
        Err(Error::WrongToken(to))
    }

    /// Asks for a connection once, with a new QP: it is there, or this is why not.
    fn knock(
        &self,
        hello: impl FnOnce(u32) -> Hello,
    ) -> Result<(Connection, Endpoint, Option<Rejection>), Error> {
        let caps = QpCaps {
            max_send_wr: SQ_DEPTH,
            max_recv_wr: RQ_DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let endpoint = self.reactor.endpoint(self.pd, caps)?;
        let qp = endpoint.qp();
        let attr = ConnectAttr { access: Access::empty(), ..ConnectAttr::default() };
        let hello = hello(qp.qpn().value()).emit();
        let connection = Connection::start(qp, self.to, &attr, &hello)?;
        match self.established(&connection)? {
            Ok(true) => Ok((connection, endpoint, None)),
            Ok(false) => Err(remanence_verbs::Error::NoAnswer(self.to).into()),
            Err(remanence_verbs::Error::Rejected { private_data, .. })
                if private_data.iter().any(|b| *b != 0) =>
            {
                Ok((connection, endpoint, Some(Rejection::parse(&private_data))))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Waits for the server's answer, as long as that is of use.
    fn established(&self, connection: &Connection) -> Result<Result<bool, remanence_verbs::Error>, Error> {
        let begin = Instant::now();
        loop {
            let left = self.options.patience.saturating_sub(begin.elapsed());
            let limit = self.options.watch.as_ref().map_or(left, |watch| watch.every.min(left));
            match connection.wait_established(Some(limit)) {
                Ok(false) if begin.elapsed() < self.options.patience => {}
                answer => return Ok(answer),
            }
            if self.options.watch.as_ref().is_some_and(|watch| (watch.is_over)(begin.elapsed())) {
                return Err(Error::GivenUp(self.to));
            }
        }
    }

    fn welcome(
        &self,
        connection: Connection,
        endpoint: Endpoint,
    ) -> Result<(Connection, Endpoint, Welcome), Error> {
        let welcome = Welcome::parse(&connection.private_data()).map_err(|stranger| match stranger {
            Stranger::Other => Error::Stranger(self.to),
            Stranger::Version(theirs) => Error::OtherVersion { peer: self.to, theirs },
        })?;
        Ok((connection, endpoint, welcome))
    }

    fn refusal(&self, rejection: Rejection) -> Error {
        match rejection {
            Rejection::Sentence(why) => Error::Refused { peer: self.to, why },
            Rejection::TokenNeeded => Error::TokenNeeded(self.to),
            Rejection::WrongToken => Error::WrongToken(self.to),
            Rejection::Open => Error::Unproven(self.to),
            // Nobody asked for one.
            Rejection::Challenge(_) => Error::Stranger(self.to),
        }
    }
}
