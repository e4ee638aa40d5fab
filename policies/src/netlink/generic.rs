//! Generic netlink: families with commands (`include/uapi/linux/genetlink.h`).

use std::io;

use netlink_sys::protocols::NETLINK_GENERIC;

use super::message::{Attribute, attributes, emit};
use super::{Connection, Request};

/// The family of the families.
mod controller {
    /// `GENL_ID_CTRL`
    pub const ID: u16 = 16;
    /// `CTRL_CMD_GETFAMILY`
    pub const GET_FAMILY: u8 = 3;
    /// `CTRL_ATTR_FAMILY_ID`
    pub const FAMILY_ID: u16 = 1;
    /// `CTRL_ATTR_FAMILY_NAME`
    pub const FAMILY_NAME: u16 = 2;
}

/// `struct genlmsghdr`: command, version, two reserved bytes.
const HEADER: usize = 4;

/// A reply of a family: its attributes.
#[derive(Debug, Clone)]
pub struct Frame(Vec<Attribute>);

impl Frame {
    pub fn number(&self, kind: u16) -> Option<u64> {
        number_in(&self.0, kind)
    }

    /// The attributes in the first one of a type; empty if there is none.
    pub fn inner(&self, kind: u16) -> Vec<Attribute> {
        let found = self.0.iter().find(|attribute| attribute.kind() == kind);
        found.map(Attribute::inner).unwrap_or_default()
    }
}

fn number_in(attributes: &[Attribute], kind: u16) -> Option<u64> {
    attributes.iter().find(|attribute| attribute.kind() == kind)?.as_number()
}

/// A connection to one family.
#[derive(Debug)]
pub struct GenericConnection {
    connection: Connection,
    family_id: u16,
}

impl GenericConnection {
    /// Opens a socket and resolves the id of the family that the kernel knows by this name.
    ///
    /// # Errors
    /// `NotFound` if the kernel has no such family; otherwise the error of opening the socket.
    pub fn open(family: &str) -> io::Result<Self> {
        let mut connection = Connection::open(NETLINK_GENERIC)?;
        let query = [Attribute::text(controller::FAMILY_NAME, family)];
        let replies =
            send(&mut connection, controller::ID, controller::GET_FAMILY, &query, Request::Acknowledged(0))
                .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("this kernel has no generic netlink family {family:?}"),
                ),
                _ => error,
            })?;
        let family_id = replies
            .iter()
            .find_map(|reply| u16::try_from(number_in(reply, controller::FAMILY_ID)?).ok())
            .ok_or_else(|| io::Error::other(format!("the kernel returned no id for {family:?}")))?;
        Ok(Self { connection, family_id })
    }

    pub fn request(
        &mut self,
        command: u8,
        attributes: &[Attribute],
        request: Request,
    ) -> io::Result<Vec<Frame>> {
        let replies = send(&mut self.connection, self.family_id, command, attributes, request)?;
        Ok(replies.into_iter().map(Frame).collect())
    }
}

/// Sends a command to a family, and returns the attributes of each reply.
fn send(
    connection: &mut Connection,
    family: u16,
    command: u8,
    query: &[Attribute],
    request: Request,
) -> io::Result<Vec<Vec<Attribute>>> {
    const VERSION: u8 = 1;
    let mut body = vec![command, VERSION, 0, 0];
    body.extend(emit(query));
    let replies = connection.request(family, &body, request)?;
    Ok(replies.iter().map(|reply| attributes(reply.body.get(HEADER..).unwrap_or_default())).collect())
}
