//! A chat by gRPC: each client sends lines and reads those of all, whichever workers serve them.
//! `cargo run -p lull-adapters --example grpc_chat`

#[path = "../tests/chat/mod.rs"]
mod chat;

use std::error::Error;
use std::time::Duration;

use adapters::tonic::{Channel, serve};
use futures_util::StreamExt;
use net::TcpListener;
use tonic::service::Routes;

use crate::chat::{ChatClient, ChatServer, Line, Name, Room};

#[runtime::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<ChatServer<Room>>().await;
    let routes = Routes::new(ChatServer::new(Room::new())).add_service(health);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = serve(listener, routes).start()?;

    let mut client = ChatClient::new(Channel::new(format!("http://{address}").parse()?)?);
    let greeting = client.greet(Name { name: "reader".to_owned() }).await?.into_inner();
    println!("{}", greeting.text);

    // Two clients in the room; the first one speaks.
    let (first, saying) = futures_channel::mpsc::unbounded();
    let mut first_hears = client.join(saying).await?.into_inner();
    let (second, saying) = futures_channel::mpsc::unbounded::<Line>();
    let mut second_hears = client.join(saying).await?.into_inner();
    first.unbounded_send(Line { text: "hello everybody".to_owned() })?;
    for heard in [&mut first_hears, &mut second_hears] {
        let line = heard.next().await.ok_or("the server has closed the stream")??;
        println!("a client reads {:?}", line.text);
    }

    drop((first, second, first_hears, second_hears, client));
    server.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
