//! A chat over TCP with all of tokio's channels, which need no runtime.
//! `cargo run -p lull-adapters --example chat`
//!
//! What one client says in a line, all read. `/topic …` changes the topic, `/count` asks how many
//! lines were said.

use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use adapters::Io;
use net::{TcpListener, TcpStream};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::sync::{Notify, Semaphore, broadcast, mpsc, oneshot, watch};

/// What the historian is told, or asked.
enum Note {
    Said(String),
    Count(oneshot::Sender<usize>),
}

/// What all connections share.
struct Room {
    lines: broadcast::Sender<String>,
    topic: watch::Sender<String>,
    notes: mpsc::Sender<Note>,
    seats: Arc<Semaphore>,
    visits: AtomicU32,
    empty: Notify,
}

async fn keep_history(mut notes: mpsc::Receiver<Note>) {
    let mut history = Vec::new();
    while let Some(note) = runtime::cooperative(notes.recv()).await {
        match note {
            Note::Said(line) => history.push(line),
            // Fails if the client has gone.
            Note::Count(answer) => drop(answer.send(history.len())),
        }
    }
}

async fn handle(room: Arc<Room>, stream: TcpStream) {
    let Ok(_seat) = room.seats.clone().try_acquire_owned() else { return };
    room.visits.fetch_add(1, Ordering::Relaxed);
    // Fails if the client breaks the connection, which ends it anyway.
    let _ = chat(&room, stream).await;
    if room.visits.fetch_sub(1, Ordering::Relaxed) == 1 {
        room.empty.notify_one();
    }
}

async fn chat(room: &Room, stream: TcpStream) -> io::Result<()> {
    let (reader, writer) = stream.into_split();
    let (mut said, mut writer) = (Io::new(reader).lines(), Io::new(writer));
    let (mut lines, mut topic) = (room.lines.subscribe(), room.topic.subscribe());
    writer.write_all(b"welcome\n").await?;
    loop {
        let line = tokio::select! {
            line = said.next_line() => {
                let Some(line) = line? else { return Ok(()) };
                if let Some(topic) = line.strip_prefix("/topic ") {
                    room.topic.send_replace(topic.to_owned());
                } else if line == "/count" {
                    let (answer, count) = oneshot::channel();
                    let _ = room.notes.send(Note::Count(answer)).await;
                    writer.write_all(format!("{} lines\n", count.await.unwrap_or(0)).as_bytes()).await?;
                } else {
                    let _ = room.notes.send(Note::Said(line.clone())).await;
                    let _ = room.lines.send(line);
                }
                continue;
            }
            line = runtime::cooperative(lines.recv()) => match line {
                Ok(line) => line,
                // A client that reads too slowly misses lines.
                Err(broadcast::error::RecvError::Lagged(missed)) => format!("… {missed} lines"),
                Err(broadcast::error::RecvError::Closed) => return Ok(()),
            },
            _ = topic.changed() => format!("the topic is {}", topic.borrow_and_update().clone()),
        };
        writer.write_all(format!("{line}\n").as_bytes()).await?;
    }
}

#[runtime::main(workers = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (notes, noted) = mpsc::channel(100);
    let historian = runtime::spawn(keep_history(noted));
    let room = Arc::new(Room {
        lines: broadcast::channel(100).0,
        topic: watch::channel(String::new()).0,
        notes,
        seats: Arc::new(Semaphore::new(10)),
        visits: AtomicU32::new(0),
        empty: Notify::new(),
    });
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let shared = room.clone();
    let serving = listener.serve(move |stream| handle(shared.clone(), stream))?;
    let asked = runtime::spawn_blocking(move || visit(address));
    asked.await??.iter().for_each(|line| println!("{line}"));
    room.empty.notified().await;
    serving.shutdown(std::time::Duration::from_secs(1)).await;
    // With the last sender its loop ends.
    drop(room);
    historian.await?;
    Ok(())
}

/// Three clients; the first one speaks. Returns what they read.
fn visit(address: SocketAddr) -> io::Result<Vec<String>> {
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = BufReader::new(std::net::TcpStream::connect(address)?);
        assert_eq!(read(&mut client)?, "welcome");
        clients.push(client);
    }
    let mut heard = Vec::new();
    for said in ["/topic channels", "hello everybody"] {
        writeln!(clients[0].get_mut(), "{said}")?;
        for client in &mut clients {
            heard.push(read(client)?);
        }
    }
    writeln!(clients[1].get_mut(), "/count")?;
    heard.push(read(&mut clients[1])?);
    Ok(heard)
}

fn read(client: &mut BufReader<std::net::TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    client.read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}
