//! How many of an upstream's connections one client may hold.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;

use hashbrown::HashMap;

/// The connections to an upstream that clients of this worker hold.
///
/// A client may hold no more than others have left: alone it gets half of them, two clients get a
/// third each, and so on. So there is always one for a client that has none.
#[derive(Debug, Default)]
pub(super) struct ClientShares(RefCell<HashMap<IpAddr, usize, foldhash::fast::RandomState>>);

/// A connection that a client holds, until this is dropped.
#[derive(Debug)]
pub(super) struct ClientShare {
    shares: Rc<ClientShares>,
    client: Option<IpAddr>,
}

/// A client of IPv6 has all addresses of its /64, mostly.
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
        address => address,
    }
}

impl ClientShares {
    /// Counts a connection as a client's. `free`: how many nobody holds. `None` if the client holds
    /// more than that. Clients without an address, of a Unix domain socket, are not limited.
    pub(super) fn take(self: &Rc<Self>, address: Option<IpAddr>, free: usize) -> Option<ClientShare> {
        let client = address.map(client_of);
        if let Some(client) = client {
            let mut held = self.0.borrow_mut();
            let held = held.entry(client).or_default();
            if *held > free {
                return None;
            }
            *held += 1;
        }
        Some(ClientShare { shares: Rc::clone(self), client })
    }
}

impl Drop for ClientShare {
    fn drop(&mut self) {
        let Some(client) = self.client else { return };
        let mut held = self.shares.0.borrow_mut();
        if let Some(count) = held.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                held.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `max` connections a client gets, after others hold some.
    fn taken(shares: &Rc<ClientShares>, address: &str, max: usize, held: &mut Vec<ClientShare>) -> usize {
        let before = held.len();
        while held.len() < max
            && let Some(share) = shares.take(Some(address.parse().unwrap()), max - held.len())
        {
            held.push(share);
        }
        held.len() - before
    }

    #[test]
    fn a_client_takes_no_more_than_it_leaves_to_others() {
        let (shares, mut held) = (Rc::new(ClientShares::default()), Vec::new());
        assert_eq!(taken(&shares, "10.0.0.1", 1000, &mut held), 501);
        assert_eq!(taken(&shares, "::ffff:10.0.0.1", 1000, &mut held), 0, "it is the same");
        assert_eq!(taken(&shares, "2001:db8::1", 1000, &mut held), 250);
        assert_eq!(taken(&shares, "2001:db8::2", 1000, &mut held), 0, "it is in the same network");
        assert!(taken(&shares, "10.0.0.2", 1000, &mut held) > 100);
        drop(held);
        assert!(shares.0.borrow().is_empty());
        assert_eq!(taken(&shares, "10.0.0.3", 1, &mut Vec::new()), 1);
    }
}
