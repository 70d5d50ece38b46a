//! Which services of a device are taken, where the device has its addresses to itself: where processes share the port, the
//! host's book of services says it (`remanence_link::host`).

use std::sync::{Arc, Mutex, PoisonError};

use remanence_wire::Gid;
use remanence_wire::cm::ServiceId;

type Taken = (ServiceId, Gid);

/// The book of one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims(Arc<Mutex<Vec<Taken>>>);

impl Claims {
    /// Enters a service at these addresses; `None` if it is taken at one of them.
    pub(crate) fn enter(&self, service: ServiceId, gids: &[Gid]) -> Option<Entry> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if gids.iter().any(|&gid| taken.contains(&(service, gid))) {
            return None;
        }
        taken.extend(gids.iter().map(|&gid| (service, gid)));
        Some(Entry { book: self.clone(), service, gids: gids.into() })
    }
}

/// In the book until it is dropped.
#[derive(Debug)]
pub(crate) struct Entry {
    book: Claims,
    service: ServiceId,
    gids: Box<[Gid]>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut taken = self.book.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|(service, gid)| *service != self.service || !self.gids.contains(gid));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_service_is_taken_once_at_each_address_until_it_is_given_up() {
        let book = Claims::default();
        let [a, b] = [1, 2].map(|n| Gid::from(Ipv4Addr::new(10, 0, 0, n)));
        let at_a = book.enter(ServiceId(7), &[a]).unwrap();
        assert!(book.enter(ServiceId(7), &[a, b]).is_none());
        let at_b = book.enter(ServiceId(7), &[b]).unwrap();
        let other = book.enter(ServiceId(8), &[a, b]).unwrap();
        drop(at_a);
        assert!(book.enter(ServiceId(7), &[a, b]).is_none());
        drop(at_b);
        assert!(book.enter(ServiceId(7), &[a, b]).is_some());
        assert!(book.enter(ServiceId(8), &[a]).is_none());
        drop(other);
    }
}
