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
