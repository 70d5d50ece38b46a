//! What is known of the servers of a group, by their places or their names: who is there, who takes part, and who lacks what.

use super::{Machine, Opened, Server, Status};

impl Machine {
    /// What opening has done so far.
    #[must_use]
    pub fn opened(&self) -> Opened {
        let counted = |count: fn(&Server) -> u64| {
            let some = self.servers.iter().filter(move |server| count(server) > 0);
            some.map(|server| (server.name.clone(), count(server))).collect()
        };
        Opened {
            copied: counted(|server| server.copied),
            cut: counted(|server| server.cut),
            lost: self.lost(),
        }
    }

    /// Servers that are not there, and why.
    #[must_use]
    pub fn lost(&self) -> Vec<(String, String)> {
        let lost = self.servers.iter().filter(|server| !server.is_up());
        lost.map(|server| (server.name.clone(), server.why.clone())).collect()
    }

    /// Servers that take part and have not got all records yet.
    #[must_use]
    pub fn behind(&self) -> Vec<&str> {
        (0..self.servers.len()).filter(|n| self.is_behind(*n)).map(|n| self.name(n)).collect()
    }

    /// Whether a server is there and has not got all records yet.
    #[must_use]
    pub fn is_behind(&self, server: usize) -> bool {
        let server = &self.servers[server];
        server.is_up() && server.has() < self.acknowledged
    }

    /// The name of a server.
    #[must_use]
    pub fn name(&self, server: usize) -> &str {
        &self.servers[server].name
    }

    /// Whether there is a connection to a server.
    #[must_use]
    pub fn is_there(&self, server: usize) -> bool {
        self.servers[server].is_up()
    }

    /// Whether a server takes part: it has adopted the epoch, and is there.
    #[must_use]
    pub fn takes_part(&self, server: usize) -> bool {
        self.servers[server].takes_part()
    }

    /// How many servers there is a connection to, and how many take part.
    #[must_use]
    pub fn present(&self) -> (usize, usize) {
        let count = |counts: fn(&Server) -> bool| self.servers.iter().filter(|server| counts(server)).count();
        (count(Server::is_up), count(Server::takes_part))
    }

    /// What a server said last of its log, whether it takes part or not.
    #[must_use]
    pub fn status(&self, server: usize) -> Option<&Status> {
        self.servers[server].status.as_ref()
    }
}
