//! Roles: what the processes of a bench are.
//!
//! A role is a process that is started as `rem bench-agent ROLE`, keeps to the cores of its [`End`], and does what its controller says
//! on standard input: a line of JSON for each request, and one for each reply. It waits in a blocking read between two of them, which costs
//! nothing. So what a server or a client costs is what its process costs.
//!
//! | request | what a role does |
//! |---|---|
//! | open | becomes what its specification says; a [resident](Role::RESIDENT) role serves from here on |
//! | connect | is told where its peer is |
//! | serve, stop | serves a burst of its peer's, in a thread; says what became of it, and its [`Causes`] |
//! | run | runs a burst, and says what it found, and its causes |
//! | cost | says what it has counted since it began, resident or not |
//! | close | is nothing any more; what became of its service |
//!
//! What is a role's own is its implementation of [`Role`]; all the rest is in one place: `agent` is the process' side, `control` the
//! controller's, `causes` what is counted over each burst. A role that fails in any way, dies or [hangs](PATIENCE) is an error of the burst that
//! says what *both* ends have to say; both are started anew for the next one, and who controls them [lists](Lost) what was lost.

mod agent;
mod causes;
mod control;

use std::process::ExitCode;

use remanence_remote::Stop;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use self::agent::serve_controller;
pub(crate) use self::causes::of_children;
pub use self::causes::{Causes, Counters};
pub(crate) use self::control::Agent;
pub use self::control::{Launcher, Lost, PATIENCE, Pair, Ran, notice_waits};

use crate::machine;

/// What one process of a bench is.
pub trait Role: Send + Sized + 'static {
    /// The word that starts it.
    const WORD: &'static str;
    /// It serves whoever comes from when it is open until it is closed, and not a burst at a time.
    const RESIDENT: bool = false;
    /// What it shall be.
    type Spec: Clone + Serialize + DeserializeOwned;
    /// What its peer is told of it.
    type Here: Clone + Serialize + DeserializeOwned;
    /// What it is told of its peer.
    type Peer: Clone + Serialize + DeserializeOwned;
    /// What it runs, or what it serves while its peer runs something.
    type Burst: Clone + Send + Serialize + DeserializeOwned;
    /// What a burst that it ran yields.
    type Values: Serialize + DeserializeOwned;

    /// Becomes what the specification says.
    ///
    /// # Errors
    /// One sentence that says what failed.
    fn open(spec: Self::Spec) -> Result<(Self, Self::Here), String>;

    /// Is told where its peer is.
    ///
    /// # Errors
    /// One sentence that says what failed.
    fn connect(&mut self, _peer: Self::Peer) -> Result<(), String> {
        Ok(())
    }

    /// Makes ready for a burst that it shall serve, before its peer begins.
    ///
    /// # Errors
    /// One sentence that says what failed.
    fn prepare(&mut self, _burst: &Self::Burst) -> Result<(), String> {
        Ok(())
    }

    /// Serves a burst of its peer's until it is asked to stop.
    ///
    /// # Errors
    /// One sentence that says what failed.
    fn serve(&mut self, _burst: Self::Burst, _stop: &Stop) -> Result<(), String> {
        Err("this role serves no bursts".into())
    }

    /// Serves whoever comes until it is asked to stop, if it is a resident.
    ///
    /// # Errors
    /// One sentence that says what failed.
    fn reside(&mut self, _stop: &Stop) -> Result<(), String> {
        Err("this role is no resident".into())
    }

    /// Runs a burst.
    ///
    /// # Errors
    /// One sentence that says what failed.
    fn run(&mut self, _burst: Self::Burst) -> Result<Self::Values, String> {
        Err("this role runs nothing".into())
    }

    /// What counts for it, whoever has the role itself meanwhile.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// Adds what only the role itself can count.
    fn count(&self, _causes: &mut Causes) {}
}

/// Which side of a bench a process is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// It is the end that answers.
    Server,
    /// It is the end that asks.
    Client,
}

impl End {
    /// The cores that it keeps to, of those that there are: every other one, so that no core has both. A single one is shared.
    #[must_use]
    pub fn cores(self, allowed: &[usize]) -> Vec<usize> {
        let first = usize::from(allowed.len() > 1 && self == Self::Client);
        allowed.iter().copied().skip(first).step_by(2).collect()
    }

    /// Pins the calling thread to them.
    pub(crate) fn keep(self) {
        machine::pin_to(self.cores(&machine::allowed()));
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Server => "the server",
            Self::Client => "the client",
        }
    }
}

/// How processes are pinned here, for a report's parameters.
#[must_use]
pub fn pinned() -> serde_json::Value {
    let allowed = machine::allowed();
    serde_json::json!({ "server": End::Server.cores(&allowed), "client": End::Client.cores(&allowed) })
}

/// A role's word, and what a process that is started with it does.
type Known = (&'static str, fn() -> ExitCode);

/// Every role, by its word.
const ROLES: [Known; 17] = [
    role::<crate::transport::agent::Transport>(),
    role::<crate::erda::server::Server>(),
    role::<crate::erda::client::Clients>(),
    role::<crate::remotelog::ends::Responder>(),
    role::<crate::remotelog::ends::Appender>(),
    role::<crate::rpc::server::Server>(),
    role::<crate::rpc::client::Client>(),
    role::<crate::programs::Programs>(),
    role::<crate::gateway::Clients>(),
    role::<crate::quorum::Writer>(),
    role::<crate::failover::Writer>(),
    role::<crate::kv_size::Core>(),
    role::<crate::load_latency::ends::Server>(),
    role::<crate::load_latency::ends::Clients>(),
    role::<crate::nvcache::ends::Daemon>(),
    role::<crate::nvcache::ends::Writer>(),
    role::<crate::nvpages::program::Program>(),
];

const fn role<R: Role>() -> Known {
    (R::WORD, serve_controller::<R>)
}

/// The words of all roles.
pub fn words() -> impl Iterator<Item = &'static str> {
    ROLES.iter().map(|(word, _)| *word)
}

/// Is a role for the controller on standard input and output, until that closes them.
///
/// # Errors
/// There is no such role.
pub fn main(word: &str) -> Result<ExitCode, String> {
    let (_, main) =
        ROLES.iter().find(|(known, _)| *known == word).ok_or(format!("there is no role {word}"))?;
    Ok(main())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_core_has_both_ends_but_where_there_is_one_only() {
        let cores = |allowed: &[usize]| [End::Server, End::Client].map(|end| end.cores(allowed));
        assert_eq!(cores(&[3]), [[3], [3]]);
        assert_eq!(cores(&[0, 1]), [[0], [1]]);
        assert_eq!(cores(&[2, 5, 7]), [vec![2, 7], vec![5]]);
        assert_eq!(cores(&[0, 1, 2, 3]), [[0, 2], [1, 3]]);
    }

    #[test]
    fn each_role_has_a_word_of_its_own() {
        let mut all: Vec<&str> = words().collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), ROLES.len());
        assert!(main("nobody").is_err());
    }
}
