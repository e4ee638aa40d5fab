//! A small Redis: GET, SET with EX, DEL, INCRBY, PUBLISH and SUBSCRIBE.
//! `cargo run -p lull-adapters --example mini_redis`
//!
//! The crate `redis` is its client.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use adapters::Io;
use net::{TcpListener, TcpStream};
use redis::Commands;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::broadcast;

/// The most arguments of a command, and the most bytes of one.
const LIMITS: (usize, usize) = (1024, 1 << 20);

#[derive(Default)]
struct Database {
    /// Values, and when they expire.
    values: Mutex<HashMap<String, (String, Option<Instant>)>>,
    channels: Mutex<HashMap<String, broadcast::Sender<String>>>,
}

impl Database {
    fn with<T>(&self, change: impl FnOnce(&mut HashMap<String, (String, Option<Instant>)>) -> T) -> T {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        values.retain(|_, (_, expires)| expires.is_none_or(|expires| now < expires));
        change(&mut values)
    }

    fn channel(&self, name: &str) -> broadcast::Sender<String> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.entry(name.to_owned()).or_insert_with(|| broadcast::channel(100).0).clone()
    }

    /// The reply to a command.
    fn execute(&self, command: &[String]) -> String {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let name = words.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
        match (&*name, words.get(1..).unwrap_or_default()) {
            ("PING", []) => "+PONG\r\n".to_owned(),
            ("CLIENT" | "HELLO", _) => "+OK\r\n".to_owned(),
            ("GET", [key]) => match self.with(|values| values.get(*key).cloned()) {
                Some((value, _)) => bulk(&value),
                None => "$-1\r\n".to_owned(),
            },
            ("SET", [key, value, rest @ ..]) => {
                let expires = match rest {
                    [] => None,
                    [option, seconds] if option.eq_ignore_ascii_case("EX") => match seconds.parse() {
                        Ok(seconds) => Some(Instant::now() + Duration::from_secs(seconds)),
                        Err(_) => return "-ERR the time is no number of seconds\r\n".to_owned(),
                    },
                    _ => return "-ERR syntax error\r\n".to_owned(),
                };
                self.with(|values| values.insert((*key).to_owned(), ((*value).to_owned(), expires)));
                "+OK\r\n".to_owned()
            }
            ("DEL", [key]) => format!(":{}\r\n", self.with(|values| values.remove(*key).map_or(0, |_| 1))),
            ("INCRBY", [key, amount]) => self.with(|values| {
                let (value, _) = values.entry((*key).to_owned()).or_insert_with(|| ("0".to_owned(), None));
                let amount = amount.parse().ok();
                match amount
                    .zip(value.parse().ok())
                    .and_then(|(by, number): (i64, i64)| number.checked_add(by))
                {
                    Some(number) => {
                        *value = number.to_string();
                        format!(":{number}\r\n")
                    }
                    None => "-ERR the value is no number\r\n".to_owned(),
                }
            }),
            ("PUBLISH", [channel, message]) => {
                format!(":{}\r\n", self.channel(channel).send((*message).to_owned()).unwrap_or(0))
            }
            _ => format!("-ERR unknown command '{name}', or a wrong number of arguments\r\n"),
        }
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn invalid(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

/// A line `*3` or `$5`: its number. `None` at the end of the stream.
async fn length(
    reader: &mut (impl AsyncBufRead + Unpin),
    kind: u8,
    most: usize,
) -> io::Result<Option<usize>> {
    let mut line = Vec::new();
    if reader.take(32).read_until(b'\n', &mut line).await? == 0 {
        return Ok(None);
    }
    let number =
        line.strip_prefix(&[kind]).and_then(|rest| std::str::from_utf8(rest).ok()?.trim_end().parse().ok());
    number.filter(|number| *number <= most).map(Some).ok_or_else(|| invalid("that is no command"))
}

/// An array of bulk strings, as clients send.
async fn read_command(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Vec<String>>> {
    let Some(count) = length(reader, b'*', LIMITS.0).await? else { return Ok(None) };
    let mut command = Vec::new();
    for _ in 0..count {
        let length = length(reader, b'$', LIMITS.1).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut bytes = vec![0; length + 2];
        reader.read_exact(&mut bytes).await?;
        bytes.truncate(length);
        command.push(String::from_utf8(bytes).map_err(|_| invalid("an argument is not UTF-8"))?);
    }
    Ok(Some(command))
}

async fn serve(
    database: &Database,
    mut reader: impl AsyncBufRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    while let Some(command) = read_command(&mut reader).await? {
        match &*command {
            [name, channel] if name.eq_ignore_ascii_case("SUBSCRIBE") => {
                let mut messages = database.channel(channel).subscribe();
                writer
                    .write_all(format!("*3\r\n{}{}:1\r\n", bulk("subscribe"), bulk(channel)).as_bytes())
                    .await?;
                writer.flush().await?;
                while let Ok(message) = runtime::cooperative(messages.recv()).await {
                    let push = format!("*3\r\n{}{}{}", bulk("message"), bulk(channel), bulk(&message));
                    writer.write_all(push.as_bytes()).await?;
                }
                return Ok(());
            }
            command => writer.write_all(database.execute(command).as_bytes()).await?,
        }
        writer.flush().await?;
    }
    Ok(())
}

async fn handle(database: Arc<Database>, stream: TcpStream) {
    let (reader, writer) = stream.into_split();
    let (reader, writer) = (Io::new(reader), Io::new(writer));
    if let Err(error) = serve(&database, reader, writer).await {
        eprintln!("a connection has failed: {error}");
    }
}

#[runtime::main(workers = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let database = Arc::<Database>::default();
    let serving = listener.serve(move |stream| handle(database.clone(), stream))?;
    let asked = runtime::spawn_blocking(move || ask(address).map_err(|error| error.to_string()));
    println!("{}", asked.await??);
    serving.shutdown(Duration::from_millis(10)).await;
    Ok(())
}

fn ask(address: SocketAddr) -> redis::RedisResult<String> {
    let client = redis::Client::open(format!("redis://{address}"))?;
    let mut connection = client.get_connection()?;
    let _: () = connection.set("key", "value")?;
    let _: () = redis::cmd("SET").arg("short").arg("value").arg("EX").arg(0).query(&mut connection)?;
    let found: (Option<String>, Option<String>) = (connection.get("key")?, connection.get("short")?);
    let counted: Vec<i64> = (0..3).map(|_| connection.incr("count", 1)).collect::<Result<_, _>>()?;
    let error = connection.incr::<_, _, i64>("key", 1).err().map(|error| error.kind());
    let mut listening = BufReader::new(std::net::TcpStream::connect(address)?);
    listening.get_mut().write_all(b"*2\r\n$9\r\nSUBSCRIBE\r\n$4\r\nnews\r\n")?;
    let mut replies = String::new();
    // Six lines say that it has subscribed; seven are the message.
    (0..6).try_for_each(|_| listening.read_line(&mut replies).map(drop))?;
    let heard: i64 = connection.publish("news", "hello")?;
    (0..7).try_for_each(|_| listening.read_line(&mut replies).map(drop))?;
    let message = replies.lines().last().unwrap_or_default().to_owned();
    Ok(format!("{found:?}, counted {counted:?}, {error:?}; {heard} has heard {message:?}"))
}
