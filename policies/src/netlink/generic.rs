//! Generic netlink with raw attributes.

use std::fmt::Debug;
use std::io;
use std::marker::PhantomData;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLA_F_NESTED, Nla, NlaBuffer, NlasIterator, Parseable,
    ParseableParametrized,
};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::protocols::NETLINK_GENERIC;

use super::{Connection, Request};

/// What generic netlink's controller says of a command's attributes (`include/uapi/linux/genetlink.h` and
/// `netlink.h`). netlink-packet-generic knows the messages, but not all types of attributes in them (`uint`).
mod policy {
    /// `GENL_ID_CTRL`
    pub const CONTROLLER_ID: u16 = 16;
    /// `CTRL_CMD_GETPOLICY`
    pub const GET: u8 = 10;
    /// `CTRL_ATTR_FAMILY_ID`
    pub const FAMILY_ID: u16 = 1;
    /// `CTRL_ATTR_POLICY`
    pub const POLICIES: u16 = 8;
    /// `CTRL_ATTR_OP_POLICY`
    pub const OF_COMMANDS: u16 = 9;
    /// `CTRL_ATTR_OP`
    pub const COMMAND: u16 = 10;
    /// `CTRL_ATTR_POLICY_DO`
    pub const DO: u16 = 1;
    /// `NL_POLICY_TYPE_ATTR_MAX_VALUE_U`
    pub const MAX_VALUE: u16 = 5;
}

/// The family of the families.
#[derive(Debug, Clone)]
struct Controller;

impl Family for Controller {
    const NAME: &'static str = "nlctrl";
}

/// A generic netlink family.
pub trait Family: Debug + Clone + 'static {
    /// The name under which the kernel registers the family.
    const NAME: &'static str;
}

/// An attribute: its type and its value in host byte order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute(DefaultNla);

impl Attribute {
    /// A `u32` attribute.
    pub fn number(kind: u16, value: u32) -> Self {
        Self(DefaultNla::new(kind, value.to_ne_bytes().to_vec()))
    }

    /// A `u8` attribute.
    pub fn byte(kind: u16, value: u8) -> Self {
        Self(DefaultNla::new(kind, vec![value]))
    }

    /// A zero-terminated string.
    pub fn text(kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        Self(DefaultNla::new(kind, bytes))
    }

    /// A flag: true by its presence.
    pub fn flag(kind: u16) -> Self {
        Self(DefaultNla::new(kind, Vec::new()))
    }

    /// An attribute that contains attributes.
    pub fn nested(kind: u16, inner: &[Attribute]) -> Self {
        Self(DefaultNla::new(kind | NLA_F_NESTED, emit(inner)))
    }

    /// The attribute's type, without flags.
    pub fn kind(&self) -> u16 {
        self.0.kind() & !NLA_F_NESTED
    }

    /// The attributes in an attribute.
    fn inner(&self) -> Vec<Attribute> {
        let mut bytes = vec![0; self.0.value_len()];
        self.0.emit_value(&mut bytes);
        let parse = |inner: NlaBuffer<&[u8]>| DefaultNla::parse(&inner).ok().map(Attribute);
        NlasIterator::new(bytes.as_slice()).flatten().filter_map(parse).collect()
    }

    fn inner_number(&self, kind: u16) -> Option<u64> {
        self.inner().iter().find(|inner| inner.kind() == kind)?.as_number()
    }

    /// The value as an unsigned number of 1, 2, 4 or 8 bytes (netlink's `uint` has 4 or 8); `None` for other
    /// sizes.
    pub fn as_number(&self) -> Option<u64> {
        let mut bytes = vec![0; self.0.value_len()];
        self.0.emit_value(&mut bytes);
        Some(match bytes.len() {
            1 => u64::from(bytes[0]),
            2 => u64::from(u16::from_ne_bytes(bytes.try_into().ok()?)),
            4 => u64::from(u32::from_ne_bytes(bytes.try_into().ok()?)),
            8 => u64::from_ne_bytes(bytes.try_into().ok()?),
            _ => return None,
        })
    }
}

fn emit(attributes: &[Attribute]) -> Vec<u8> {
    let inner: Vec<DefaultNla> = attributes.iter().map(|attribute| attribute.0.clone()).collect();
    let inner = inner.as_slice();
    let mut bytes = vec![0; inner.buffer_len()];
    inner.emit(&mut bytes);
    bytes
}

/// A message of family `F`: a command with its attributes.
#[derive(Debug, Clone)]
pub struct Frame<F> {
    command: u8,
    attributes: Vec<Attribute>,
    family: PhantomData<F>,
}

impl<F> Frame<F> {
    /// The first attribute of a type, as a number.
    pub fn number(&self, kind: u16) -> Option<u64> {
        self.attributes.iter().find(|attribute| attribute.kind() == kind)?.as_number()
    }
}

impl<F: Family> GenlFamily for Frame<F> {
    fn family_name() -> &'static str {
        F::NAME
    }

    fn command(&self) -> u8 {
        self.command
    }

    fn version(&self) -> u8 {
        1
    }
}

impl<F> Emitable for Frame<F> {
    fn buffer_len(&self) -> usize {
        self.attributes.iter().map(|attribute| attribute.0.buffer_len()).sum()
    }

    fn emit(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&emit(&self.attributes));
    }
}

impl<F> ParseableParametrized<[u8], GenlHeader> for Frame<F> {
    fn parse_with_param(buffer: &[u8], header: GenlHeader) -> Result<Self, DecodeError> {
        let mut attributes = Vec::new();
        for attribute in NlasIterator::new(buffer) {
            let attribute: NlaBuffer<&[u8]> = attribute?;
            attributes.push(Attribute(DefaultNla::parse(&attribute)?));
        }
        Ok(Self { command: header.cmd, attributes, family: PhantomData })
    }
}

/// A connection to one generic netlink family.
#[derive(Debug)]
pub struct GenericConnection<F> {
    connection: Connection,
    family_id: u16,
    family: PhantomData<F>,
}

impl<F: Family> GenericConnection<F> {
    /// Opens a socket and resolves the family's id.
    ///
    /// # Errors
    /// `NotFound` if the kernel has no such family; otherwise the error of opening the socket.
    pub fn open() -> io::Result<Self> {
        let mut connection = Connection::open(NETLINK_GENERIC)?;
        let query = GenlCtrl {
            cmd: GenlCtrlCmd::GetFamily,
            nlas: vec![GenlCtrlAttrs::FamilyName(F::NAME.to_owned())],
        };
        let replies = connection
            .request(GenlMessage::from_payload(query), Request::Acknowledged(0))
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("this kernel has no generic netlink family {:?}", F::NAME),
                ),
                _ => error,
            })?;
        let family_id = replies
            .iter()
            .flat_map(|reply| &reply.payload.nlas)
            .find_map(|attribute| match attribute {
                GenlCtrlAttrs::FamilyId(id) => Some(*id),
                _ => None,
            })
            .ok_or_else(|| io::Error::other(format!("the kernel returned no id for {:?}", F::NAME)))?;
        Ok(Self { connection, family_id, family: PhantomData })
    }

    /// The largest value that the kernel accepts for an attribute of a command (`CTRL_CMD_GETPOLICY`, Linux
    /// 5.10); `None` if the command has no such attribute, or no limit for it.
    ///
    /// # Errors
    /// As [`Connection::request`].
    pub fn limit(&mut self, command: u8, attribute: u16) -> io::Result<Option<u64>> {
        let query = vec![
            Attribute(DefaultNla::new(policy::FAMILY_ID, self.family_id.to_ne_bytes().to_vec())),
            Attribute::number(policy::COMMAND, command.into()),
        ];
        let frame = Frame::<Controller> { command: policy::GET, attributes: query, family: PhantomData };
        let mut message = GenlMessage::from_payload(frame);
        message.set_resolved_family_id(policy::CONTROLLER_ID);
        let replies = self.connection.request(message, Request::Dump)?;
        let parts: Vec<&Attribute> = replies.iter().flat_map(|reply| &reply.payload.attributes).collect();
        // First the index of the command's policy, then that policy, an attribute a message.
        let inner =
            |kind: u16| parts.iter().filter(move |part| part.kind() == kind).flat_map(|part| part.inner());
        let of_command = inner(policy::OF_COMMANDS).find(|of| of.kind() == u16::from(command));
        let index = of_command.and_then(|of| of.inner_number(policy::DO));
        let found = inner(policy::POLICIES)
            .filter(|policy| Some(u64::from(policy.kind())) == index)
            .flat_map(|policy| policy.inner())
            .find(|found| found.kind() == attribute);
        Ok(found.and_then(|found| found.inner_number(policy::MAX_VALUE)))
    }

    /// Sends one command and returns its replies.
    ///
    /// # Errors
    /// As [`Connection::request`].
    pub fn request(
        &mut self,
        command: u8,
        attributes: Vec<Attribute>,
        request: Request,
    ) -> io::Result<Vec<Frame<F>>> {
        let mut message = GenlMessage::from_payload(Frame::<F> { command, attributes, family: PhantomData });
        message.set_resolved_family_id(self.family_id);
        let replies = self.connection.request(message, request)?;
        Ok(replies.into_iter().map(|reply| reply.payload).collect())
    }
}
