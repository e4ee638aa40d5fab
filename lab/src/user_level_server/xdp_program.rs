//! The XDP program that gives the packets of one TCP port to an AF_XDP socket, and leaves all others to the kernel (bpf(2)).
//! Everything unsafe about it is in this file.
//!
//! Assembled by hand: it is a score of instructions, and a loader of compiled programs would be a large dependency.

#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

// Commands, types and flags of `linux/bpf.h` and `linux/if_link.h`, which `libc` doesn't have.
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
/// Native mode, in which the driver runs the program.
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
const XDP_PASS: i32 = 2;
const BPF_FUNC_REDIRECT_MAP: i32 = 51;
/// In the source register of an instruction that loads a map.
const BPF_PSEUDO_MAP_FD: u8 = 1;

/// Offsets in a frame with an IPv4 header without options.
const ETHER_TYPE: i16 = 12;
const IP_VERSION_AND_LENGTH: i16 = 14;
const IP_PROTOCOL: i16 = 23;
const DESTINATION_PORT: i16 = 36;
/// Bytes of the Ethernet, IPv4 and TCP headers.
const HEADERS: i32 = 14 + 20 + 20;

/// What could not be done, and what would mend it.
#[derive(Debug)]
pub(super) struct XdpError {
    pub(super) step: &'static str,
    pub(super) needs: &'static str,
    pub(super) source: io::Error,
}

/// A program that is attached to an interface. Dropping it detaches it; so does the end of the process.
#[derive(Debug)]
pub(super) struct XdpProgram {
    _link: OwnedFd,
    _program: OwnedFd,
    _sockets: OwnedFd,
}

impl XdpProgram {
    /// Attaches the program to `interface` in native mode, with `socket` for what queue 0 receives for `port`.
    pub(super) fn attach(interface: u32, port: u16, socket: RawFd) -> Result<Self, XdpError> {
        let step = |step, needs| move |source| XdpError { step, needs, source };
        const KERNEL: &str =
            "root (CAP_BPF and CAP_NET_ADMIN), and a kernel with CONFIG_BPF_SYSCALL and CONFIG_XDP_SOCKETS";
        const NATIVE: &str =
            "a driver that runs XDP programs itself (native mode), and an interface without another one";
        let sockets = create_socket_map().map_err(step("create a map of AF_XDP sockets", KERNEL))?;
        let program =
            load(&program(sockets.as_raw_fd(), port)).map_err(step("load the XDP program", KERNEL))?;
        let link =
            attach(&program, interface).map_err(step("attach the XDP program in native mode", NATIVE))?;
        insert(&sockets, socket).map_err(step("put the AF_XDP socket into its map", KERNEL))?;
        Ok(Self { _link: link, _program: program, _sockets: sockets })
    }
}

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    code: u8,
    /// The destination register, and the source register in the upper half.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    // The kernel declares two bit fields of four bits, the first of which little-endian machines have in the lower half.
    let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
    Instruction { code, registers, offset, immediate }
}

/// Loads 1, 2 or 4 bytes: `to = *(from + offset)`.
const fn load_byte(to: u8, from: u8, offset: i16) -> Instruction {
    instruction(0x71, to, from, offset, 0)
}
const fn load_half(to: u8, from: u8, offset: i16) -> Instruction {
    instruction(0x69, to, from, offset, 0)
}
const fn load_word(to: u8, from: u8, offset: i16) -> Instruction {
    instruction(0x61, to, from, offset, 0)
}
const fn set(to: u8, value: i32) -> Instruction {
    instruction(0xb7, to, 0, 0, value)
}
const fn copy(to: u8, from: u8) -> Instruction {
    instruction(0xbf, to, from, 0, 0)
}
const fn add(to: u8, value: i32) -> Instruction {
    instruction(0x07, to, 0, 0, value)
}
/// Skips `over` instructions.
const fn skip_unless_equal(register: u8, value: i32, over: i16) -> Instruction {
    instruction(0x55, register, 0, over, value)
}
const fn skip_if_greater(register: u8, than: u8, over: i16) -> Instruction {
    instruction(0x2d, register, than, over, 0)
}
const fn call(function: i32) -> Instruction {
    instruction(0x85, 0, 0, 0, function)
}
const EXIT: Instruction = instruction(0x95, 0, 0, 0, 0);

/// Redirects a TCP packet for `port` to the socket of its queue in `map`, and passes any other to the kernel.
fn program(map: RawFd, port: u16) -> [Instruction; 21] {
    // As a load of two bytes finds them in a packet.
    let wire = |value: u16| i32::from(u16::from_ne_bytes(value.to_be_bytes()));
    // `struct xdp_md`: data, data_end, and rx_queue_index.
    let (data, end, queue) = (0, 4, 16);
    [
        load_word(2, 1, data),
        load_word(3, 1, end),
        copy(4, 2),
        add(4, HEADERS),
        skip_if_greater(4, 3, 14),
        load_half(4, 2, ETHER_TYPE),
        skip_unless_equal(4, wire(0x0800), 12),
        load_byte(4, 2, IP_VERSION_AND_LENGTH),
        skip_unless_equal(4, 0x45, 10),
        load_byte(4, 2, IP_PROTOCOL),
        skip_unless_equal(4, libc::IPPROTO_TCP, 8),
        load_half(4, 2, DESTINATION_PORT),
        skip_unless_equal(4, wire(port), 6),
        load_word(2, 1, queue),
        // A load of 64 bits takes two instructions.
        instruction(0x18, 1, BPF_PSEUDO_MAP_FD, 0, map),
        instruction(0, 0, 0, 0, 0),
        // What becomes of the packet if the queue has no socket.
        set(3, XDP_PASS),
        call(BPF_FUNC_REDIRECT_MAP),
        EXIT,
        set(0, XDP_PASS),
        EXIT,
    ]
}

/// Calls bpf(2), with the part of `union bpf_attr` that a command uses.
fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_long> {
    // SAFETY: the pointer is to a live value of `size_of::<T>()` bytes, which the kernel only reads; bytes of the union beyond
    // them count as 0. Each caller passes the structure of its command, whose addresses are those of values that live until
    // the call has returned, and with their lengths.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>() as libc::c_uint)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The descriptor that a command has returned.
fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened `fd` for the command, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn create_socket_map() -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        kind: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
    }
    descriptor(bpf(
        BPF_MAP_CREATE,
        &Attributes { kind: BPF_MAP_TYPE_XSKMAP, key_size: 4, value_size: 4, max_entries: 1 },
    )?)
}

fn load(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
    }
    let license = c"Dual MIT/GPL";
    descriptor(bpf(
        BPF_PROG_LOAD,
        &Attributes {
            kind: BPF_PROG_TYPE_XDP,
            count: instructions.len() as u32,
            instructions: instructions.as_ptr() as u64,
            license: license.as_ptr() as u64,
        },
    )?)
}

fn attach(program: &OwnedFd, interface: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        program: u32,
        interface: u32,
        attach_type: u32,
        flags: u32,
    }
    descriptor(bpf(
        BPF_LINK_CREATE,
        &Attributes {
            program: program.as_raw_fd() as u32,
            interface,
            attach_type: BPF_XDP,
            flags: XDP_FLAGS_DRV_MODE,
        },
    )?)
}

/// Makes `socket` the one of queue 0.
fn insert(map: &OwnedFd, socket: RawFd) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        map: u32,
        padding: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let (queue, socket) = (0u32, socket);
    bpf(
        BPF_MAP_UPDATE_ELEM,
        &Attributes {
            map: map.as_raw_fd() as u32,
            padding: 0,
            key: (&raw const queue) as u64,
            value: (&raw const socket) as u64,
            flags: 0,
        },
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The registers after each jump that is taken: all lead to the two instructions that pass the packet.
    #[test]
    fn every_jump_leads_to_passing_the_packet() {
        let program = program(3, 11211);
        let jumps: Vec<usize> = program
            .iter()
            .enumerate()
            .filter(|(_, it)| matches!(it.code, 0x2d | 0x55))
            .map(|(at, it)| at + 1 + it.offset as usize)
            .collect();
        assert_eq!(jumps, [19; 5]);
        assert_eq!(program[19..], [set(0, XDP_PASS), EXIT]);
    }
}
