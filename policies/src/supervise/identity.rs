//! Recognises an interface that was taken away and given back: it has another index then, and maybe another name.

use crate::host::Interface;
use crate::netlink::route::Link;

/// What an interface has again when it comes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InterfaceIdentity {
    name: String,
    driver: Option<String>,
    /// The address that its card has by itself.
    permanent_address: Option<Vec<u8>>,
    /// Its place on a bus.
    device: Option<String>,
}

impl InterfaceIdentity {
    pub(super) fn of(link: &Link, interface: &Interface) -> Self {
        Self {
            name: interface.name.clone(),
            driver: interface.driver.clone(),
            permanent_address: link.permanent_address.clone(),
            device: interface.device.clone(),
        }
    }

    /// By the permanent address, which a card keeps in another slot; by the place of a device, as a VF may get a random address
    /// each time (igb); by the name of a virtual device. The driver as well: a netvsc and its VF have the same address.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        fn are_equal<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
            one.is_some() && one == other
        }
        let is_virtual = self.device.is_none() && other.device.is_none();
        self.driver == other.driver
            && (are_equal(self.permanent_address.as_ref(), other.permanent_address.as_ref())
                || are_equal(self.device.as_ref(), other.device.as_ref())
                || is_virtual && self.name == other.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(name: &str, driver: &str, address: Option<u8>, device: Option<&str>) -> InterfaceIdentity {
        InterfaceIdentity {
            name: name.to_owned(),
            driver: Some(driver.to_owned()),
            permanent_address: address.map(|last| vec![0, 0, 0, 0, 0, last]),
            device: device.map(str::to_owned),
        }
    }

    #[test]
    fn an_interface_is_known_by_its_address_else_its_place_else_its_name() {
        let vf = identity("enP1s1", "mlx5_core", Some(1), Some("0001:00:02.0"));
        assert!(vf.is_same(&identity("enP2s1", "mlx5_core", Some(1), Some("0002:00:02.0"))));
        assert!(vf.is_same(&identity("enP1s1", "mlx5_core", Some(2), Some("0001:00:02.0"))));
        assert!(!vf.is_same(&identity("enP1s1", "mlx5_core", Some(2), Some("0002:00:02.0"))));
        assert!(!vf.is_same(&identity("eth0", "hv_netvsc", Some(1), Some("f8615163"))), "its netvsc");
        let random = identity("eth1", "igbvf", None, Some("0000:01:10.0"));
        assert!(random.is_same(&identity("eth2", "igbvf", None, Some("0000:01:10.0"))));
        assert!(!random.is_same(&identity("eth1", "igbvf", None, Some("0000:01:10.2"))));
        let virtual_one = identity("veth0", "veth", None, None);
        assert!(virtual_one.is_same(&identity("veth0", "veth", None, None)));
        assert!(!virtual_one.is_same(&identity("veth1", "veth", None, None)));
    }
}
