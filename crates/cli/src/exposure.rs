//! Who may reach what a command listens at.
//!
//! Every command that listens says so here, of each of its endpoints, before it makes a file or opens a device: servers of a store
//! or a log, Redis clients of a gateway, Prometheus. Nothing that asks for neither a token nor a password is reached from
//! another machine, unless `--insecure` says that this is meant. `tests/waits/exposure.rs` has a table of all of them.

use std::net::IpAddr;

use remanence_remote::may_listen;

use crate::fail::Fail;

/// One address that a command listens at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    /// The address that it listens on; a loopback address is for this machine alone.
    pub(crate) at: IpAddr,
    /// What whoever reaches it could do, after "could".
    pub(crate) could: &'static str,
    /// The option that would guard it. `None`: nothing does.
    pub(crate) guard: Option<&'static str>,
    /// Whether that option was given.
    pub(crate) guarded: bool,
}

impl Endpoint {
    /// Of a server whose clients have a token.
    pub(crate) const fn server(at: IpAddr, could: &'static str, token: bool) -> Self {
        Self { at, could, guard: Some("a token (--token-file)"), guarded: token }
    }

    /// Of metrics, which nothing guards.
    pub(crate) const fn metrics(at: IpAddr) -> Self {
        Self { at, could: "read the metrics", guard: None, guarded: false }
    }
}

/// Refuses a command of which other machines could reach an endpoint that is not guarded, and nobody said that this is meant; and
/// one that says so of endpoints that all are guarded, as whoever said it expects others to come in.
pub(crate) fn check(endpoints: &[Endpoint], insecure: bool) -> Result<(), Fail> {
    let open = |endpoint: &&Endpoint| !may_listen(endpoint.at, endpoint.guarded, insecure);
    if let Some(endpoint) = endpoints.iter().find(open) {
        let guard = endpoint.guard.map(|guard| format!("give it {guard}, ")).unwrap_or_default();
        return Err(Fail::new(format!(
            "whoever reaches {} could {}: {guard}let it listen on 127.0.0.1, or say that this is meant (--insecure)",
            endpoint.at, endpoint.could
        )));
    }
    if insecure && endpoints.iter().all(|endpoint| endpoint.guarded) {
        return Err(Fail::new(
            "--insecure lets nobody in here, as who connects has to have the token or the password all the same; leave one of \
             them out",
        ));
    }
    Ok(())
}
