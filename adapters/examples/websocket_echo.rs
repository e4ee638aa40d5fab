//! A WebSocket server that echoes, and says why it closes: with the code that the client's mistake
//! calls for. `cargo run -p lull-adapters --example websocket_echo`
//!
//! With an address as its argument it listens there until SIGINT or SIGTERM, for clients of other
//! projects (`tests/clients/websocket.py`).

use std::error::Error;
use std::time::Duration;

use adapters::Io;
use adapters::axum::ws::{self, CloseFrame, Message, WebSocket, WebSocketUpgrade};
use adapters::hyper::Server;
use axum::Router;
use axum::response::Response;
use axum::routing::any;
use futures_util::{SinkExt, StreamExt};
use net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

async fn open(upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(echo)
}

async fn echo(mut socket: WebSocket) {
    while let Some(received) = socket.next().await {
        let answer = match received {
            Ok(message @ (Message::Text(_) | Message::Binary(_))) => message,
            // Pings and closes are answered by tungstenite, while the socket is read.
            Ok(_) => continue,
            Err(error) => {
                let Some(code) = close_code(&error) else { break };
                Message::Close(Some(CloseFrame { code, reason: "".into() }))
            }
        };
        if socket.send(answer).await.is_err() {
            break;
        }
    }
}

/// What a peer is told that has broken the protocol (RFC 6455, section 7.4.1). `None` if the
/// connection is lost.
fn close_code(error: &ws::Error) -> Option<CloseCode> {
    match error {
        ws::Error::Protocol(_) => Some(CloseCode::Protocol),
        ws::Error::Utf8(_) => Some(CloseCode::Invalid),
        ws::Error::Capacity(_) => Some(CloseCode::Size),
        _ => None,
    }
}

fn start(listener: TcpListener) -> std::io::Result<Server> {
    adapters::axum::serve(listener, Router::new().route("/echo", any(open))).start()
}

#[runtime::main]
async fn main() -> Result<(), Box<dyn Error>> {
    if let Some(address) = std::env::args().nth(1) {
        let server = start(TcpListener::bind(address)?)?;
        runtime::signal::terminated().await?;
        server.shutdown(Duration::from_secs(1)).await;
        return Ok(());
    }

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = start(listener)?;
    let stream = Io::new(TcpStream::connect(address).await?);
    let (mut client, _) = tokio_tungstenite::client_async(format!("ws://{address}/echo"), stream).await?;
    client.send(Message::text("hello")).await?;
    while let Some(received) = client.next().await {
        match received? {
            Message::Close(close) => println!("the server closes: {:?}", close.map(|close| close.code)),
            message => {
                println!("the server answers {:?}", message.into_text()?.as_str());
                client.close(Some(CloseFrame { code: CloseCode::Away, reason: "".into() })).await?;
            }
        }
    }
    server.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
