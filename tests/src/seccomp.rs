//! Commands under a seccomp filter: calls that fail, or that a tracer sees.

/// Installs the filter whose instructions are the arguments before `--`, and becomes the command
/// after it.
const INSTALL: &str = r#"
import ctypes, os, struct, sys
end = sys.argv.index("--")
code = b"".join(struct.pack("=HBBI", *map(int, line.split(","))) for line in sys.argv[1:end])
code = ctypes.create_string_buffer(code, len(code))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
program = Program(len(code) // 8, ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
    sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[end + 1], sys.argv[end + 1:])
"#;

/// `BPF_LD | BPF_W | BPF_ABS`, `BPF_JMP | BPF_JEQ | BPF_K` and `BPF_RET | BPF_K` of
/// `linux/bpf_common.h`.
const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// Offsets in `struct seccomp_data`: the number of the call, and its second argument's lower half
/// (little endian).
const NUMBER: u32 = 0;
const SECOND_ARGUMENT: u32 = 24;
/// `SECCOMP_RET_ALLOW`, `SECCOMP_RET_ERRNO` and `SECCOMP_RET_TRACE` of `linux/seccomp.h`.
const ALLOW: u32 = 0x7fff_0000;
const FAIL: u32 = 0x0005_0000;
const TRACE: u32 = 0x7ff0_0000;

/// Instruction: code, jump if true, jump if false, and operand.
type Instruction = (u16, u8, u8, u32);

/// The beginning of a command line under a filter; the command follows. It needs root, and python3.
fn under(filter: &[Instruction]) -> Vec<String> {
    let line = |(code, yes, no, operand): &Instruction| format!("{code},{yes},{no},{operand}");
    let start = ["python3", "-c", INSTALL].map(str::to_owned);
    start.into_iter().chain(filter.iter().map(line)).chain(["--".to_owned()]).collect()
}

/// Under this filter a call fails with `errno` where its second argument is one of these.
pub fn failing(number: i64, second_arguments: &[u32], errno: u16) -> Vec<String> {
    let number = u32::try_from(number).expect("a system call");
    let count = u8::try_from(second_arguments.len()).expect("few arguments");
    let mut filter = vec![
        (LOAD, 0, 0, NUMBER),
        // Another call is allowed.
        (JUMP_IF_EQUAL, 0, count + 1, number),
        (LOAD, 0, 0, SECOND_ARGUMENT),
    ];
    for (argument, left) in second_arguments.iter().zip((1..=count).rev()) {
        filter.push((JUMP_IF_EQUAL, left, 0, *argument));
    }
    filter.extend([(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, FAIL | u32::from(errno))]);
    under(&filter)
}

/// What the default profile of containers (moby's `profiles/seccomp`, version 25 and later) forbids
/// of what a server might call, to a container without additional capabilities. The error is EPERM.
const FORBIDDEN_IN_CONTAINERS: [i64; 27] = [
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_process_madvise,
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    libc::SYS_mbind,
    libc::SYS_move_pages,
    libc::SYS_userfaultfd,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
];

/// Under this filter a command may call what it may in a container, but for these.
pub fn of_containers(and_forbidden: &[i64]) -> Vec<String> {
    let mut filter = vec![(LOAD, 0, 0, NUMBER)];
    let number = |number: i64| u32::try_from(number).expect("a system call");
    for call in FORBIDDEN_IN_CONTAINERS.into_iter().chain(and_forbidden.iter().copied()) {
        filter.extend([(JUMP_IF_EQUAL, 0, 1, number(call)), (RETURN, 0, 0, FAIL | libc::EPERM as u32)]);
    }
    // Whose flags a filter can't read: glibc then calls clone.
    filter.extend([
        (JUMP_IF_EQUAL, 0, 1, number(libc::SYS_clone3)),
        (RETURN, 0, 0, FAIL | libc::ENOSYS as u32),
        (RETURN, 0, 0, ALLOW),
    ]);
    under(&filter)
}

/// Under this filter a tracer with `PTRACE_O_TRACESECCOMP` sees these calls. Without one they fail.
pub fn traced(numbers: &[i64]) -> Vec<String> {
    let count = u8::try_from(numbers.len()).expect("few calls");
    let mut filter = vec![(LOAD, 0, 0, NUMBER)];
    for (number, left) in numbers.iter().zip((1..=count).rev()) {
        filter.push((JUMP_IF_EQUAL, left, 0, u32::try_from(*number).expect("a system call")));
    }
    filter.extend([(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, TRACE)]);
    under(&filter)
}
