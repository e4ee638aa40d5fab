//! Servers as processes that a test starts.

mod kill_on_drop;
pub mod memcached;
mod server_log;

use std::path::Path;
use std::process::Command;

pub use self::kill_on_drop::KillOnDrop;

/// A command by which `python` passes a listening socket as descriptor 3 to a program. Arguments
/// that are added to it are the program's.
pub fn with_inherited_socket(python: &Path, program: &Path, port: u16) -> Command {
    let pass = "import os, socket, sys\n\
        listener = socket.create_server(('127.0.0.1', int(sys.argv[2])))\n\
        os.dup2(listener.fileno(), 3)\n\
        os.set_inheritable(3, True)\n\
        os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))\n\
        os.execv(sys.argv[1], [sys.argv[1], *sys.argv[3:]])";
    let mut command = Command::new(python);
    command.args(["-c", pass]).arg(program).arg(port.to_string());
    command
}
