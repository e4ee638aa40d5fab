//! A chat by gRPC over TLS: each client sends lines and reads those of all, whichever workers serve
//! them. `cargo run -p lull-adapters --example grpc_chat`

// What tonic_prost_build makes of chat.proto with build_transport(false), in a project's build.rs.
#[allow(missing_docs, reason = "generated")]
#[path = "grpc_chat/generated.rs"]
pub mod generated;

use std::error::Error;
use std::pin::Pin;
use std::time::Duration;

use adapters::hyper::Connector;
use adapters::tls::{Acceptor, Certificates, Connector as TlsConnector};
use adapters::tonic::{Channel, serve};
use futures_util::{SinkExt, Stream, StreamExt};
use net::TcpListener;
use tokio::sync::broadcast;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use self::generated::chat_client::ChatClient;
use self::generated::chat_server::{Chat, ChatServer};
use self::generated::{Line, Name, Range};

/// A room, which all workers share.
pub struct Room(pub broadcast::Sender<Line>);

type Lines = Pin<Box<dyn Stream<Item = Result<Line, Status>> + Send>>;

#[tonic::async_trait]
impl Chat for Room {
    async fn greet(&self, request: Request<Name>) -> Result<Response<Line>, Status> {
        match request.into_inner().name.as_str() {
            "" => Err(Status::invalid_argument("the name is empty")),
            name => Ok(Response::new(Line { text: format!("hello {name}") })),
        }
    }

    type CountStream = Lines;

    async fn count(&self, request: Request<Range>) -> Result<Response<Lines>, Status> {
        let Range { until, milliseconds } = request.into_inner();
        // The task sends the lines; the response's stream is the channel's receiver.
        let (mut sender, receiver) = futures_channel::mpsc::channel(1);
        runtime::spawn(async move {
            for number in 0..until {
                runtime::sleep(Duration::from_millis(milliseconds.into())).await;
                // Fails if the client has gone.
                if sender.send(Ok(Line { text: number.to_string() })).await.is_err() {
                    break;
                }
            }
        });
        Ok(Response::new(receiver.boxed()))
    }

    type JoinStream = Lines;

    async fn join(&self, request: Request<Streaming<Line>>) -> Result<Response<Lines>, Status> {
        let (mut said, room) = (request.into_inner(), self.0.clone());
        let heard = room.subscribe();
        runtime::spawn(async move {
            while let Ok(Some(line)) = said.message().await {
                // Fails if everybody has gone.
                let _ = room.send(line);
            }
        });
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

#[runtime::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let folder = tempfile::tempdir()?;
    let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
    std::fs::write(&chain, identity.cert.pem())?;
    std::fs::write(&key, identity.signing_key.serialize_pem())?;

    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<ChatServer<Room>>().await;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let uri = format!("https://localhost:{}", listener.local_addr()?.port());
    let acceptor = Acceptor::builder(Certificates::new(&chain, key)).alpn(["h2"]).open()?;
    let routes = Routes::new(ChatServer::new(Room(broadcast::channel(100).0))).add_service(health);
    let server = serve(listener, routes).tls(acceptor).start()?;

    let trusted = TlsConnector::builder().authorities(chain).open()?;
    let channel = Channel::with_connector(uri.parse()?, Connector::new().tls(trusted))?;
    let mut client = ChatClient::new(channel);
    let greeting = client.greet(Name { name: "reader".to_owned() }).await?.into_inner();
    println!("{}", greeting.text);
    let refused = client.greet(Name::default()).await.err().map(|status| status.code());
    println!("without a name: {refused:?}");
    let counted = client.count(Range { until: 3, milliseconds: 1 }).await?.into_inner();
    let counted: Vec<String> = counted.filter_map(async |line| Some(line.ok()?.text)).collect().await;
    println!("a stream of {counted:?}");

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
