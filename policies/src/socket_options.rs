//! Socket options: which NAPI a socket's packets come from (`SO_INCOMING_NAPI_ID`), which listener
//! of a reuseport group gets a queue's connections, and who is at the other end of a Unix
//! socket.

#![expect(unsafe_code, reason = "neither rustix nor std has these socket options")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

const SO_ATTACH_REUSEPORT_CBPF: libc::c_int = 51;
const SO_INCOMING_NAPI_ID: libc::c_int = 56;
const SO_DETACH_REUSEPORT_BPF: libc::c_int = 68;

/// The id of the NAPI that a socket's packets come from; 0 if it has none (loopback, Unix sockets,
/// listeners, kernels without busy polling, descriptors that are no sockets).
#[doc(alias = "SO_INCOMING_NAPI_ID")]
pub fn incoming_napi_id(socket: &impl AsFd) -> u32 {
    let mut id: libc::c_uint = 0;
    let mut length = size_of::<libc::c_uint>() as libc::socklen_t;
    // SAFETY: the option's value is one `unsigned int`; both pointers are to live values, and
    // `length` holds the size of the first.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_INCOMING_NAPI_ID,
            (&raw mut id).cast(),
            &raw mut length,
        )
    };
    if result == 0 { id } else { 0 }
}

/// Who is at the other end of a Unix stream socket: the process that connected or listened, with the
/// effective ids that it had then. Its process id is 0 if it is of another PID namespace, for which
/// rustix's type has no value.
#[doc(alias = "SO_PEERCRED")]
pub fn peer_credentials(socket: &impl AsFd) -> io::Result<libc::ucred> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option's value is one `ucred`; both pointers are to live values, and `length`
    // holds the size of the first.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(found) } else { Err(io::Error::last_os_error()) }
}

/// The most entries of a steering table: a program has at most 4096 instructions
/// (`linux/bpf_common.h`, BPF_MAXINSNS).
const MAX_STEERED: usize = 2000;

/// Makes a reuseport group choose the listener by what the packet has as its receive queue: by the
/// table of such numbers and the positions of listeners, in the order in which they joined the
/// group. A number that is not in the table gives listener `number % listeners`. What comes by
/// loopback, which has no queues, has number 0; with `hashes_loopback` the kernel chooses for it by
/// hash, as without a program.
///
/// # Errors
/// `InvalidInput` for a table of more than 2000 entries, or the error of the system call: `EINVAL`
/// if the socket is not in a reuseport group.
#[doc(alias = "SO_ATTACH_REUSEPORT_CBPF")]
pub fn steer_by_queue(
    socket: &impl AsFd,
    table: &[(u32, u32)],
    listeners: u32,
    hashes_loopback: bool,
) -> io::Result<()> {
    // Classic BPF (`linux/filter.h`). An absolute load from SKF_AD_OFF + SKF_AD_QUEUE gives the
    // packet's queue. On hardware and tun that is the queue plus one, on veth the queue.
    // SKF_AD_OFF + SKF_AD_HATYPE gives the type of its interface.
    const LOAD_ABSOLUTE: u16 = 0x20;
    const MODULO: u16 = 0x94;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const RETURN_A: u16 = 0x16;
    const QUEUE: u32 = 0xffff_f000 + 24;
    const INTERFACE_TYPE: u32 = 0xffff_f000 + 28;
    if table.len() > MAX_STEERED {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let instruction = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut program = Vec::new();
    if hashes_loopback {
        program.extend([
            instruction(LOAD_ABSOLUTE, 0, INTERFACE_TYPE),
            instruction(JUMP_IF_EQUAL, 1, libc::ARPHRD_LOOPBACK.into()),
            // Out of the group's range (`net/core/sock_reuseport.c`, `run_bpf_filter`).
            instruction(RETURN, 0, u32::MAX),
        ]);
    }
    program.push(instruction(LOAD_ABSOLUTE, 0, QUEUE));
    for &(queue, listener) in table {
        program.extend([instruction(JUMP_IF_EQUAL, 1, queue), instruction(RETURN, 0, listener)]);
    }
    program.extend([instruction(MODULO, 0, listeners.max(1)), instruction(RETURN_A, 0, 0)]);
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the pointer and the length describe one live `sock_fprog` whose `filter` points to
    // `len` instructions that live in this frame, and which the kernel copies during the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Removes a reuseport group's program: it chooses the listener by the connection's hash again.
///
/// # Errors
/// `ENOENT` if the group has no program, `EINVAL` if the socket is in no group.
#[doc(alias = "SO_DETACH_REUSEPORT_BPF")]
pub fn stop_steering(socket: &impl AsFd) -> io::Result<()> {
    let unused: libc::c_int = 0;
    // SAFETY: the pointer and the length describe one live `int`, which the kernel requires and
    // ignores.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_DETACH_REUSEPORT_BPF,
            (&raw const unused).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
