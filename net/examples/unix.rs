//! A server and a client on a Unix domain socket.

use futures_util::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use net::{BindOptions, UnixListener, UnixStream};

#[runtime::main]
async fn main() -> std::io::Result<()> {
    let path = std::env::temp_dir().join(format!("lull-example-{}", std::process::id()));
    // Only this user may connect: the path has its mode before the socket listens.
    let listener = UnixListener::bind_with(&path, &BindOptions::new().mode(0o600))?;
    let _serving = listener.serve(|mut stream: UnixStream| async move {
        let mut line = String::new();
        if stream.read_line(&mut line).await.is_ok() {
            // Fails if the client is gone, and then nobody waits for it.
            let _ = stream.write_all(line.to_uppercase().as_bytes()).await;
        }
    })?;

    let mut client = UnixStream::connect(&path).await?;
    client.write_all(b"hello\n").await?;
    let mut response = String::new();
    client.read_to_string(&mut response).await?;
    print!("{}: {response}", path.display());
    // As with any listener on a Unix domain socket, the path stays until somebody removes it.
    std::fs::remove_file(&path)
}
