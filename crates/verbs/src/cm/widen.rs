//! Listeners at every address, of a device whose addresses change: they listen at those that come later as well.
//!
//! A claim is one of an address, as in the host's book of services. So a listener at every address is one listener for each,
//! and the one that [`Cm::widen`] was asked for has the later ones with it: they hear what it hears, and go when it goes.

use remanence_link::host::Seat;
use remanence_rnic::cm::{self, ListenId, Manager};
use remanence_wire::Gid;

use super::{Claim, Cm, Connections, Service, claim_at};
use crate::claims::Claims;

/// The listeners at addresses that came later than the one that they are with.
#[derive(Debug)]
pub(super) struct Wide {
    listen: cm::Listen,
    v4: bool,
    v6: bool,
    pub(super) others: Vec<(Gid, ListenId)>,
}

impl Wide {
    fn includes(&self, gid: Gid) -> bool {
        if gid.to_ip().is_ipv4() { self.v4 } else { self.v6 }
    }
}

impl Cm<'_> {
    /// From now on, who listens at one address listens at all those of the IP versions that come later, too. `listen` is what
    /// [`listen`](Self::listen) was called with. An address at which another process has the service is left out.
    pub fn widen(self, id: ListenId, listen: &cm::Listen, v4: bool, v6: bool) {
        let mut turn = self.handle.turn();
        if let Some(service) = turn.cm.listeners.get_mut(&id) {
            service.wide = Some(Wide { listen: *listen, v4, v6, others: Vec::new() });
        }
        // One may have come since the addresses were asked for.
        let over =
            turn.cm.readdressed(&self.handle.port().gids, self.handle.seat.as_ref(), &self.handle.claims);
        drop(turn);
        drop(over);
    }
}

impl Connections {
    /// The device has these addresses from now on. What is over comes back: it is best dropped when the device lock is not
    /// held any more.
    #[must_use]
    pub(crate) fn readdressed(&mut self, gids: &[Gid], seat: Option<&Seat>, claims: &Claims) -> Vec<Claim> {
        let mut over = Vec::new();
        let wide: Vec<ListenId> =
            self.listeners.iter().filter(|(_, s)| s.wide.is_some()).map(|(&id, _)| id).collect();
        for id in wide {
            let Some(service) = self.listeners.get_mut(&id) else { continue };
            let route = service.route.clone();
            let Some(mut wide) = service.wide.take() else { continue };
            wide.others.retain(|&(gid, other)| {
                let stays = gids.contains(&gid);
                if !stays {
                    over.extend(forget(&mut self.manager, &mut self.listeners, other));
                }
                stays
            });
            for &gid in gids {
                let is_known = wide.others.iter().any(|&(known, _)| known == gid);
                if gid == Gid::default() || is_known || !wide.includes(gid) {
                    continue;
                }
                // Refused where the same consumer has listened from the beginning, too.
                let Ok(claim) = claim_at(seat, claims, wide.listen.service_id, &[gid]) else { continue };
                let Ok(other) = self.manager.listen(&cm::Listen { local: Some(gid), ..wide.listen }) else {
                    continue;
                };
                let service = Service { route: route.clone(), claim, wide: None };
                self.listeners.insert(other, service);
                wide.others.push((gid, other));
            }
            if let Some(service) = self.listeners.get_mut(&id) {
                service.wide = Some(wide);
            }
        }
        over
    }

    /// Ends a listener, and those that are with it.
    pub(super) fn unlisten(&mut self, id: ListenId) -> Vec<Claim> {
        let Some(service) = self.listeners.remove(&id) else { return Vec::new() };
        self.manager.unlisten(id);
        let mut over = vec![service.claim];
        for (_, other) in service.wide.map(|wide| wide.others).unwrap_or_default() {
            over.extend(forget(&mut self.manager, &mut self.listeners, other));
        }
        over
    }
}

fn forget(
    manager: &mut Manager,
    listeners: &mut std::collections::HashMap<ListenId, Service>,
    id: ListenId,
) -> Option<Claim> {
    manager.unlisten(id);
    listeners.remove(&id).map(|service| service.claim)
}
