//! The gRPC service of `chat.proto`, for tests and examples: generated code, and an implementation.
//!
//! `generated.rs` is what `tonic_prost_build` makes of `chat.proto` with `build_transport(false)`,
//! in a project's `build.rs`.

#[allow(missing_docs, reason = "generated")]
mod generated;

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use tokio::sync::broadcast;
use tonic::{Request, Response, Status, Streaming};

pub use self::generated::chat_client::ChatClient;
pub use self::generated::chat_server::{Chat, ChatServer};
pub use self::generated::{Line, Name, Range};

type Lines = Pin<Box<dyn Stream<Item = Result<Line, Status>> + Send>>;

/// The status that ends a stream of lines.
///
/// # Panics
/// If the stream ends without one, or not within 60 s.
#[allow(dead_code, reason = "not every user of this module breaks streams")]
pub async fn status_at_the_end(lines: &mut Streaming<Line>) -> Status {
    loop {
        match runtime::timeout(Duration::from_secs(60), lines.next()).await.unwrap().unwrap() {
            Ok(_) => {}
            Err(status) => return status,
        }
    }
}

/// A room, which all workers share.
#[derive(Debug, Clone)]
pub struct Room(broadcast::Sender<Line>);

impl Room {
    /// An empty room.
    pub fn new() -> Self {
        Self(broadcast::channel(100).0)
    }
}

#[tonic::async_trait]
impl Chat for Room {
    async fn greet(&self, request: Request<Name>) -> Result<Response<Line>, Status> {
        match request.into_inner().name.as_str() {
            "" => Err(Status::invalid_argument("the name is empty")),
            "nobody" => std::future::pending().await,
            name => Ok(Response::new(Line { text: format!("hello {name}") })),
        }
    }

    type CountStream = Lines;

    async fn count(&self, request: Request<Range>) -> Result<Response<Lines>, Status> {
        let Range { until, milliseconds } = request.into_inner();
        // The task sends the lines; the response's stream is the channel's receiver.
        let (mut sender, receiver) = futures_channel::mpsc::channel(1);
        drop(runtime::spawn(async move {
            for number in 0..until {
                runtime::sleep(Duration::from_millis(milliseconds.into())).await;
                let line = Ok(Line { text: number.to_string() });
                // Fails if the client has gone.
                if futures_util::SinkExt::send(&mut sender, line).await.is_err() {
                    break;
                }
            }
        }));
        Ok(Response::new(Box::pin(receiver)))
    }

    type JoinStream = Lines;

    async fn join(&self, request: Request<Streaming<Line>>) -> Result<Response<Lines>, Status> {
        let mut said = request.into_inner();
        let room = self.0.clone();
        let heard = room.subscribe();
        drop(runtime::spawn(async move {
            while let Ok(Some(line)) = said.message().await {
                // Fails if everybody has gone.
                let _ = room.send(line);
            }
        }));
        let lines = futures_util::stream::unfold(heard, async |mut heard| {
            loop {
                match heard.recv().await {
                    Ok(line) => break Some((Ok(line), heard)),
                    // A client that reads too slowly misses lines.
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => break None,
                }
            }
        });
        Ok(Response::new(lines.boxed()))
    }
}
