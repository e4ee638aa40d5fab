//! Recognises an interface that was taken away and given back: it has another index then, and maybe
//! another name.

use std::fs;

use crate::host::Interface;
use crate::host::sysfs;
use crate::netlink::route::Link;

/// What an interface has again when it comes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InterfaceIdentity {
    name: String,
    driver: Option<String>,
    permanent_address: Option<Vec<u8>>,
    device: Option<String>,
    /// Which of several interfaces of that place it is: the port's number and its name.
    port: (Option<String>, Option<String>),
}

impl InterfaceIdentity {
    pub(super) fn of(link: &Link, interface: &Interface) -> Self {
        let port = fs::read_to_string(sysfs::class_net(&interface.name).join("dev_port")).ok();
        Self {
            name: interface.name.clone(),
            driver: interface.driver.clone(),
            permanent_address: link.permanent_address.clone(),
            device: interface.device.clone(),
            port: (port, link.port_name.clone()),
        }
    }

    /// Takes over a later reading. Not without the driver: the kernel unlinks that from a device
    /// before its interface goes.
    pub(super) fn update(&mut self, later: Self) {
        if later.driver.is_some() || self.driver.is_none() {
            *self = later;
        }
    }

    /// By the permanent address, which a card keeps in another slot, or by the port of a device, as
    /// a VF may get a random address each time (igb). By the name of a virtual device. The driver
    /// as well: a netvsc and its VF have the same address.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let is_there = match (&self.device, &other.device) {
            (None, None) => self.name == other.name,
            _ => {
                let address = &self.permanent_address;
                let has_address = address.is_some() && *address == other.permanent_address;
                has_address || (self.device == other.device && self.port == other.port)
            }
        };
        self.driver == other.driver && is_there
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
            port: (Some("0".to_owned()), None),
        }
    }

    #[test]
    fn an_interface_is_known_by_its_address_else_its_place_else_its_name() {
        let vf = identity("enP1s1", "mlx5_core", Some(1), Some("0001:00:02.0"));
        assert!(vf.is_same(&identity("enP2s1", "mlx5_core", Some(1), Some("0002:00:02.0"))));
        assert!(
            vf.is_same(&identity("enP1s1", "mlx5_core", Some(2), Some("0001:00:02.0"))),
            "a random address"
        );
        assert!(!vf.is_same(&identity("enP1s1", "mlx5_core", Some(2), Some("0002:00:02.0"))));
        assert!(!vf.is_same(&identity("eth0", "hv_netvsc", Some(1), Some("f8615163"))), "its netvsc");
        let random = identity("eth1", "igbvf", None, Some("0000:01:10.0"));
        assert!(random.is_same(&identity("eth2", "igbvf", None, Some("0000:01:10.0"))));
        assert!(!random.is_same(&identity("eth1", "igbvf", None, Some("0000:01:10.2"))));
        let virtual_one = identity("veth0", "veth", None, None);
        assert!(virtual_one.is_same(&identity("veth0", "veth", None, None)));
        assert!(!virtual_one.is_same(&identity("veth1", "veth", None, None)));
    }

    #[test]
    fn interfaces_of_one_device_are_told_apart_by_their_ports() {
        let first = identity("eth1", "mlx4_en", None, Some("0000:01:00.0"));
        let second = InterfaceIdentity { port: (Some("1".to_owned()), None), ..first.clone() };
        assert!(first.is_same(&first) && !first.is_same(&second));
        let named =
            InterfaceIdentity { port: (Some("0".to_owned()), Some("pf0vf1".to_owned())), ..first.clone() };
        assert!(!first.is_same(&named), "a representor");
    }

    #[test]
    fn a_card_whose_driver_is_being_unlinked_stays_known() {
        let whole = identity("eth1", "mlx5_core", None, Some("0000:01:00.0"));
        let mut known = whole.clone();
        known.update(InterfaceIdentity { driver: None, ..whole.clone() });
        assert_eq!(known, whole);
        let renamed = InterfaceIdentity { name: "eth2".to_owned(), ..whole };
        known.update(renamed.clone());
        assert_eq!(known, renamed);
    }
}
