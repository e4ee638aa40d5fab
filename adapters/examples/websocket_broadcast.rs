//! A chat room over WebSockets: what one client sends, all get, whichever workers serve them.
//! `cargo run -p lull-adapters --example websocket_broadcast`

use std::error::Error;

use adapters::Io;
use adapters::axum::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::any;
use futures_util::{FutureExt, SinkExt, StreamExt, select};
use net::{TcpListener, TcpStream};
use tokio::sync::broadcast;

/// tokio's channels need no runtime: they cross workers here.
type Room = broadcast::Sender<String>;

async fn join(upgrade: WebSocketUpgrade, State(room): State<Room>) -> Response {
    // Before the client hears of the upgrade: it misses nothing that is said after that.
    let messages = room.subscribe();
    upgrade.on_upgrade(move |socket| chat(socket, room, messages))
}

async fn chat(socket: WebSocket, room: Room, mut messages: broadcast::Receiver<String>) {
    let (mut sender, mut receiver) = socket.split();
    loop {
        select! {
            said = receiver.next().fuse() => match said {
                // Fails if nobody is in the room, but this client is.
                Some(Ok(Message::Text(text))) => drop(room.send(text.to_string())),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => break,
            },
            message = messages.recv().fuse() => match message {
                Ok(text) => if sender.send(Message::text(text)).await.is_err() { break },
                // A client that reads too slowly misses messages.
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => break,
            },
        }
    }
}

#[runtime::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = Router::new().route("/room", any(join)).with_state(Room::new(100));
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = adapters::axum::serve(listener, app).start()?;

    let mut clients = Vec::new();
    for _ in 0..3 {
        let stream = Io::new(TcpStream::connect(address).await?);
        clients.push(tokio_tungstenite::client_async(format!("ws://{address}/room"), stream).await?.0);
    }
    clients[0].send(Message::text("hello everybody")).await?;
    for (number, client) in clients.iter_mut().enumerate() {
        let message = client.next().await.ok_or("the server has closed the connection")??;
        println!("client {number} reads {:?}", message.into_text()?.as_str());
    }
    for mut client in clients {
        client.close(None).await?;
    }
    let report = server.shutdown(std::time::Duration::from_secs(1)).await;
    println!("shut down; {} connections aborted", report.aborted);
    Ok(())
}
