//! A line server with a thread for each connection: ordinary blocking code, on connections that the workers receive for.

use std::io::{self, BufRead, BufReader, Write};
use std::time::Duration;

use dispatcher::BlockingStream;
use net::{TcpListener, TcpStream};

#[runtime::main]
async fn main() -> io::Result<()> {
    let dispatcher = dispatcher::Builder::new().max_threads(1000).thread_name("session").build();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let sessions = dispatcher.clone();
    let serving = listener.serve(move |stream: TcpStream| {
        let running = sessions.run(stream, session);
        async move {
            match running.await {
                Ok(Ok(lines)) => println!("a session of {lines} lines"),
                Ok(Err(error)) => println!("a session broke off: {error}"),
                Err(error) => println!("no thread for a session: {error}"),
            }
        }
    })?;
    println!("listening on {address}");

    // A client that knows nothing of Lull.
    let client = runtime::spawn_blocking(move || -> io::Result<String> {
        let mut stream = std::net::TcpStream::connect(address)?;
        stream.write_all(b"add 2\nadd 40\n")?;
        stream.shutdown(std::net::Shutdown::Write)?;
        BufReader::new(stream).lines().last().unwrap_or_else(|| Ok("nothing".to_owned()))
    });
    println!("the client was told {:?}", client.await.map_err(io::Error::other)??);
    serving.shutdown(Duration::from_secs(1)).await;
    let metrics = dispatcher.metrics();
    println!("threads started: {}, wakes: {}", metrics.started, metrics.wakes);
    Ok(())
}

/// Adds numbers for one client. Returns how many lines it has sent.
fn session(mut stream: BlockingStream) -> io::Result<u64> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let (mut line, mut lines, mut sum) = (String::new(), 0, 0_i64);
    while stream.read_line(&mut line)? > 0 {
        lines += 1;
        match line.trim_end().strip_prefix("add ").map(str::parse::<i64>) {
            Some(Ok(number)) => {
                sum += number;
                writeln!(stream, "{sum}")?;
            }
            _ => writeln!(stream, "error: say add NUMBER")?,
        }
        line.clear();
    }
    Ok(lines)
}
