//! gRPC: kinds of methods, deadlines, health, broken and missing servers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use adapters::hyper::Server;
use adapters::tonic::{Channel, DeadlineLayer, serve};
use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::{AsyncReadExt, AsyncWriteExt, StreamExt};
use net::TcpStream;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower_layer::Layer;

use crate::common::{listener, status_at_the_end};
use crate::grpc_chat::Room;
use crate::grpc_chat::generated::chat_client::ChatClient;
use crate::grpc_chat::generated::chat_server::{Chat, ChatServer};
use crate::grpc_chat::generated::{Line, Name, Range};

/// An empty room.
pub fn room() -> Room {
    Room(tokio::sync::broadcast::channel(100).0)
}

fn start(chat: impl Chat) -> (Server, ChatClient<Channel>) {
    let listener = listener();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let server = serve(listener, Routes::new(ChatServer::new(chat))).start().unwrap();
    (server, ChatClient::new(Channel::new(uri.parse().unwrap()).unwrap()))
}

/// Never greets, counts as in a room, and sends the status that ends the requests of `join`.
struct Silent(UnboundedSender<Status>);

fn silent() -> (Silent, UnboundedReceiver<Status>) {
    let (ends, ended) = unbounded();
    (Silent(ends), ended)
}

#[tonic::async_trait]
impl Chat for Silent {
    async fn greet(&self, _: Request<Name>) -> Result<Response<Line>, Status> {
        std::future::pending().await
    }

    type CountStream = <Room as Chat>::CountStream;

    async fn count(&self, request: Request<Range>) -> Result<Response<Self::CountStream>, Status> {
        room().count(request).await
    }

    type JoinStream = futures_util::stream::Pending<Result<Line, Status>>;

    async fn join(&self, request: Request<Streaming<Line>>) -> Result<Response<Self::JoinStream>, Status> {
        let (mut lines, sender) = (request.into_inner(), self.0.clone());
        drop(runtime::spawn(async move {
            let status = loop {
                match lines.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => break Status::ok("the end"),
                    Err(status) => break status,
                }
            };
            sender.unbounded_send(status).unwrap();
        }));
        Ok(Response::new(futures_util::stream::pending()))
    }
}

fn line(text: &str) -> Line {
    Line { text: text.to_owned() }
}

#[runtime::test]
async fn several_kinds_of_methods_work_on_one_connection() {
    let (server, mut client) = start(room());
    let greeting = client.greet(Name { name: "reader".to_owned() }).await.unwrap();
    assert_eq!(greeting.into_inner(), line("hello reader"));
    let status = client.greet(Name::default()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "the name is empty"));

    let counted = client.count(Range { until: 5, milliseconds: 2 }).await.unwrap().into_inner();
    let counted: Vec<_> = counted.map(|line| line.unwrap().text).collect().await;
    assert_eq!(counted, ["0", "1", "2", "3", "4"]);

    // What the server answers comes back while the request's stream is open.
    let (said, saying) = unbounded();
    let mut heard = client.join(saying).await.unwrap().into_inner();
    for text in ["a", "b", "c"] {
        said.unbounded_send(line(text)).unwrap();
        assert_eq!(heard.next().await.unwrap().unwrap(), line(text));
    }
    drop((said, heard));
    assert_eq!(server.alignment().accepted, 1);
    drop(client);
    server.shutdown(Duration::from_secs(60)).await;
}

/// The lines that came before the deadline, which ends the stream, or the call where the machine
/// was paused.
async fn until_its_end(answer: Result<Response<Streaming<Line>>, Status>) -> Vec<String> {
    let mut texts = Vec::new();
    let status = match answer {
        Err(status) => status,
        Ok(lines) => {
            let mut lines = lines.into_inner();
            loop {
                match lines.next().await.expect("a status") {
                    Ok(line) => texts.push(line.text),
                    Err(status) => break status,
                }
            }
        }
    };
    assert_eq!(status.code(), Code::DeadlineExceeded);
    texts
}

#[runtime::test]
async fn a_deadline_ends_calls_and_streams_on_both_sides() {
    let (server, mut client) = start(silent().0);
    let mut request = Request::new(Name::default());
    request.set_timeout(Duration::from_millis(50));
    let begin = Instant::now();
    assert_eq!(client.greet(request).await.unwrap_err().code(), Code::DeadlineExceeded);
    assert!(begin.elapsed() >= Duration::from_millis(45), "{:?}", begin.elapsed());

    let mut request = Request::new(Range { until: 1000, milliseconds: 10 });
    request.set_timeout(Duration::from_millis(100));
    let lines = until_its_end(client.count(request).await).await;
    assert!(lines.iter().enumerate().all(|(number, line)| *line == number.to_string()), "{lines:?}");
    drop(client);
    server.shutdown(Duration::ZERO).await;
}

/// A client that only waits for the answer, so that the deadline is the server's alone.
#[runtime::test]
async fn the_servers_limit_ends_calls_and_streams_with_a_status() {
    let listener = listener();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let router = Routes::new(ChatServer::new(silent().0)).into_axum_router();
    let limited = DeadlineLayer::with_limit(Duration::from_millis(60)).layer(router);
    let server = adapters::tower::serve(listener, limited).start().unwrap();
    let mut client = ChatClient::new(Channel::new(uri.parse().unwrap()).unwrap());
    let status = client.greet(Name::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    until_its_end(client.count(Range { until: 1000, milliseconds: 10 }).await).await;
    drop(client);
    server.shutdown(Duration::ZERO).await;
}

#[runtime::test]
async fn a_server_that_is_not_there_is_unavailable_and_is_found_when_it_is() {
    let gone = listener();
    let address = gone.local_addr().unwrap();
    drop(gone);
    let mut client = ChatClient::new(Channel::new(format!("http://{address}").parse().unwrap()).unwrap());
    let status = client.greet(Name { name: "a".to_owned() }).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let listener = net::TcpListener::bind(address).unwrap();
    let server = serve(listener, Routes::new(ChatServer::new(room()))).start().unwrap();
    assert!(client.greet(Name { name: "a".to_owned() }).await.is_ok());
    drop(client);
    server.shutdown(Duration::from_secs(60)).await;
}

#[runtime::test]
async fn a_channel_takes_http_and_https_uris_only() {
    assert!(Channel::new("https://localhost:1".parse().unwrap()).is_ok());
    for uri in ["ftp://localhost:1", "/path", "localhost:1"] {
        let status = Channel::new(uri.parse().unwrap()).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(uri), "{status:?}");
    }
}

#[runtime::test]
async fn an_interceptor_adds_a_token_to_each_call_or_refuses_it() {
    let token = |request: tonic::Request<()>| match request.metadata().get("authorization") {
        Some(token) if token == "Bearer 7" => Ok(request),
        _ => Err(Status::unauthenticated("no token")),
    };
    let (listener, (_, health)) = (listener(), tonic_health::server::health_reporter());
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let checked = tonic::service::interceptor::InterceptedService::new(health, token);
    let server = serve(listener, Routes::new(checked)).start().unwrap();
    let channel = Channel::new(uri.parse().unwrap()).unwrap();
    let with_token = |mut request: tonic::Request<()>| {
        request.metadata_mut().insert("authorization", "Bearer 7".parse().unwrap());
        Ok(request)
    };
    let check = || HealthCheckRequest { service: String::new() };
    let mut with_token = HealthClient::with_interceptor(channel.clone(), with_token);
    assert_eq!(with_token.check(check()).await.unwrap().into_inner().status, 1);
    let status = HealthClient::new(channel.clone()).check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    let refuse = |_: tonic::Request<()>| Err::<tonic::Request<()>, _>(Status::cancelled("refused here"));
    let status = HealthClient::with_interceptor(channel, refuse).check(check()).await.unwrap_err();
    assert_eq!(status.message(), "refused here");
    drop(with_token);
    server.shutdown(Duration::ZERO).await;
}

#[runtime::test]
async fn the_health_service_of_tonic_tells_and_watches_states() {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<ChatServer<Room>>().await;
    let listener = listener();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let server = serve(listener, Routes::new(health)).start().unwrap();
    let mut client = HealthClient::new(Channel::new(uri.parse().unwrap()).unwrap());
    let request = || HealthCheckRequest { service: "chat.Chat".to_owned() };
    assert_eq!(client.check(request()).await.unwrap().into_inner().status, 1);
    let mut watched = client.watch(request()).await.unwrap().into_inner();
    assert_eq!(watched.next().await.unwrap().unwrap().status, 1);
    reporter.set_not_serving::<ChatServer<Room>>().await;
    assert_eq!(watched.next().await.unwrap().unwrap().status, 2);
    drop((client, watched));
    server.shutdown(Duration::ZERO).await;
}

#[runtime::test]
async fn calls_that_are_given_up_leave_the_others_whole() {
    let (server, client) = start(room());
    let calls = (0..300).map(|number| {
        let mut client = client.clone();
        async move {
            let limit = Duration::from_micros(number * 37 % 3000);
            let call = async {
                let lines = client.count(Range { until: 20, milliseconds: 0 }).await.unwrap().into_inner();
                lines.map(|line| line.unwrap().text.parse::<u32>().unwrap()).collect::<Vec<u32>>().await
            };
            // Two of three are given up somewhere.
            match number % 3 {
                0 => Some(call.await),
                _ => runtime::timeout(limit, call).await.ok(),
            }
        }
    });
    // h2 closes a connection with more than 20 unaccepted streams that were reset: a few at a time.
    let answers: Vec<_> = futures_util::stream::iter(calls).buffer_unordered(12).collect().await;
    let whole = answers.iter().flatten().count();
    assert!(whole >= 100, "{whole}");
    assert!(answers.iter().flatten().all(|numbers| numbers.iter().copied().eq(0..20)));
    drop(client);
    server.shutdown(Duration::ZERO).await;
}

/// The status of a call to a server that fails. A test that hangs says where.
async fn failure(address: SocketAddr) -> Status {
    let channel = Channel::new(format!("http://{address}").parse().unwrap()).unwrap();
    let mut client = ChatClient::new(channel);
    let call = client.greet(Name { name: "a".to_owned() });
    runtime::timeout(Duration::from_secs(60), call).await.unwrap().unwrap_err()
}

/// Sends bytes to whoever has sent some, and reads until the end.
async fn answer(mut stream: TcpStream, bytes: &[u8]) {
    let _ = stream.read(&mut [0; 1024]).await;
    let _ = stream.write_all(bytes).await;
    let _ = stream.flush().await;
    while let Ok(1..) = stream.read(&mut [0; 1024]).await {}
}

#[runtime::test]
async fn connections_that_end_before_the_answer_are_unavailable() {
    let closing = listener();
    let address = closing.local_addr().unwrap();
    let _serving = closing
        .serve(async |mut stream: TcpStream| {
            let _ = stream.read(&mut [0; 1024]).await;
        })
        .unwrap();
    let status = failure(address).await;
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");

    let resetting = listener();
    let address = resetting.local_addr().unwrap();
    let _serving = resetting
        .serve(async |mut stream: TcpStream| {
            let _ = stream.read(&mut [0; 1024]).await;
            stream.abort().unwrap();
        })
        .unwrap();
    let status = failure(address).await;
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
}

/// `NO_ERROR`, as of a server that shuts down, and `ENHANCE_YOUR_CALM`, as of one that has too many
/// pings. The call has not been begun: the last stream is 0.
#[runtime::test]
async fn a_goaway_is_unavailable_whatever_its_code() {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    for code in [0, 11] {
        let goaway =
            [0, 0, 8, 7, 0, 0, 0, 0, 0, /* last stream */ 0, 0, 0, 0, /* code */ 0, 0, 0, code];
        let bytes = [&SETTINGS[..], &goaway].concat();
        let leaving = listener();
        let address = leaving.local_addr().unwrap();
        let _serving = leaving
            .serve(move |stream| {
                let bytes = bytes.clone();
                async move { answer(stream, &bytes).await }
            })
            .unwrap();
        let status = failure(address).await;
        assert_eq!(status.code(), Code::Unavailable, "{code}: {status:?}");
    }
}

#[runtime::test]
async fn a_stream_whose_connection_breaks_ends_with_unavailable() {
    let (server, mut client) = start(room());
    let mut lines = client.count(Range { until: 10_000, milliseconds: 5 }).await.unwrap().into_inner();
    assert_eq!(lines.next().await.unwrap().unwrap(), line("0"));
    // Drops the connection.
    server.shutdown(Duration::ZERO).await;
    let status = status_at_the_end(&mut lines).await;
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
}

#[runtime::test]
async fn a_handler_does_not_take_requests_that_break_off_for_all() {
    let (silent, mut ends) = silent();
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let server = serve(listener, Routes::new(ChatServer::new(silent))).start().unwrap();
    let join = async |address: SocketAddr| {
        let mut client = ChatClient::new(Channel::new(format!("http://{address}").parse().unwrap()).unwrap());
        let lines = futures_util::stream::once(async { Line { text: "x".to_owned() } });
        let answers = client.join(lines.chain(futures_util::stream::pending())).await.unwrap();
        (client, answers)
    };
    let between = net::TcpListener::bind("127.0.0.1:0").unwrap();
    let through = between.local_addr().unwrap();
    let relay = runtime::spawn(async move {
        let (mut client, _) = between.accept().await.unwrap();
        let mut upstream = TcpStream::connect(address).await.unwrap();
        let _ = net::copy_bidirectional(&mut client, &mut upstream).await;
    });
    let _joined = join(through).await;
    relay.abort();
    let status = runtime::timeout(Duration::from_secs(60), ends.next()).await.unwrap().unwrap();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    server.shutdown(Duration::ZERO).await;
}
