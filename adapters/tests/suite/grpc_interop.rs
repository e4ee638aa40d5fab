//! gRPC's interoperability cases (`doc/interop-test-descriptions.md` of grpc/grpc): the server on
//! Lull with tonic's client on tokio, and the client on Lull with tonic's server on tokio. Those of
//! compression and of Google's credentials are left out, and those whose status tonic doesn't have:
//! it gives no status to a call that its caller cancels, and CANCELLED to one whose time is over.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use adapters::hyper::Server;
use futures_util::{Stream, StreamExt, stream};
use http_body_util::BodyExt;
use hyper::body::Frame;
use prost::Message;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::codegen::http::HeaderName;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{BoxFuture, Bytes, StdError, http};
use tonic::metadata::MetadataValue;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;
use tower_service::Service;

use crate::common::listener;

/// Of `grpc/testing/messages.proto`, the fields that these cases use.
#[derive(Clone, PartialEq, Message)]
struct Empty {}

#[derive(Clone, PartialEq, Message)]
struct Payload {
    #[prost(bytes = "vec", tag = "2")]
    body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct EchoStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

#[derive(Clone, PartialEq, Message)]
struct SimpleRequest {
    #[prost(int32, tag = "2")]
    response_size: i32,
    #[prost(message, tag = "3")]
    payload: Option<Payload>,
    #[prost(message, tag = "7")]
    response_status: Option<EchoStatus>,
}

/// Also `StreamingInputCallRequest` and `StreamingOutputCallResponse`.
#[derive(Clone, PartialEq, Message)]
struct SimpleResponse {
    #[prost(message, tag = "1")]
    payload: Option<Payload>,
}

#[derive(Clone, PartialEq, Message)]
struct Aggregated {
    #[prost(int32, tag = "1")]
    payload_size: i32,
}

#[derive(Clone, PartialEq, Message)]
struct ResponseParameters {
    #[prost(int32, tag = "1")]
    size: i32,
}

#[derive(Clone, PartialEq, Message)]
struct OutputRequest {
    #[prost(message, repeated, tag = "2")]
    parameters: Vec<ResponseParameters>,
    #[prost(message, tag = "3")]
    payload: Option<Payload>,
    #[prost(message, tag = "7")]
    response_status: Option<EchoStatus>,
}

fn zeros(size: usize) -> Option<Payload> {
    Some(Payload { body: vec![0; size] })
}

fn answer(size: i32) -> SimpleResponse {
    SimpleResponse { payload: zeros(size.try_into().unwrap()) }
}

fn check(wanted: Option<EchoStatus>) -> Result<(), Status> {
    wanted.map_or(Ok(()), |wanted| Err(Status::new(wanted.code.into(), wanted.message)))
}

async fn empty_call(_: Request<Empty>) -> Result<Response<Empty>, Status> {
    Ok(Response::new(Empty {}))
}

async fn unary_call(request: Request<SimpleRequest>) -> Result<Response<SimpleResponse>, Status> {
    let request = request.into_inner();
    check(request.response_status)?;
    Ok(Response::new(answer(request.response_size)))
}

async fn input_call(requests: Request<Streaming<SimpleResponse>>) -> Result<Response<Aggregated>, Status> {
    let mut requests = requests.into_inner();
    let mut payload_size = 0;
    while let Some(request) = requests.message().await? {
        payload_size += i32::try_from(request.payload.unwrap().body.len()).unwrap();
    }
    Ok(Response::new(Aggregated { payload_size }))
}

type Outputs = stream::BoxStream<'static, Result<SimpleResponse, Status>>;

fn outputs(request: Result<OutputRequest, Status>) -> Outputs {
    match request.and_then(|request| check(request.response_status).map(|()| request.parameters)) {
        Ok(parameters) => stream::iter(parameters).map(|parameters| Ok(answer(parameters.size))).boxed(),
        Err(status) => stream::iter([Err(status)]).boxed(),
    }
}

async fn output_call(request: Request<OutputRequest>) -> Result<Response<Outputs>, Status> {
    Ok(Response::new(outputs(Ok(request.into_inner()))))
}

async fn full_duplex_call(requests: Request<Streaming<OutputRequest>>) -> Result<Response<Outputs>, Status> {
    Ok(Response::new(requests.into_inner().flat_map(outputs).boxed()))
}

const ECHO_INITIAL: &str = "x-grpc-test-echo-initial";
const ECHO_TRAILING: &str = "x-grpc-test-echo-trailing-bin";

#[derive(Clone)]
struct TestService;

impl NamedService for TestService {
    const NAME: &'static str = "grpc.testing.TestService";
}

impl Service<http::Request<Body>> for TestService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let [initial, trailing] =
                [ECHO_INITIAL, ECHO_TRAILING].map(|name| request.headers().get(name).cloned());
            let mut response = match request.uri().path().rsplit('/').next() {
                Some("EmptyCall") => grpc().unary(service_fn(empty_call), request).await,
                Some("UnaryCall") => grpc().unary(service_fn(unary_call), request).await,
                Some("StreamingInputCall") => grpc().client_streaming(service_fn(input_call), request).await,
                Some("StreamingOutputCall") => {
                    grpc().server_streaming(service_fn(output_call), request).await
                }
                Some("FullDuplexCall") => grpc().streaming(service_fn(full_duplex_call), request).await,
                _ => Status::unimplemented("no such method").into_http(),
            };
            response
                .headers_mut()
                .extend(initial.map(|value| (HeaderName::from_static(ECHO_INITIAL), value)));
            // tonic's handlers can't set trailers.
            Ok(response.map(|body| {
                Body::new(body.map_frame(move |frame| match frame.into_trailers() {
                    Ok(mut trailers) => {
                        let trailing = trailing.clone();
                        trailers
                            .extend(trailing.map(|value| (HeaderName::from_static(ECHO_TRAILING), value)));
                        Frame::trailers(trailers)
                    }
                    Err(frame) => frame,
                }))
            }))
        })
    }
}

fn grpc<M1, M2>() -> tonic::server::Grpc<ProstCodec<M1, M2>>
where
    M1: Message + Send + Sync + 'static,
    M2: Message + Default + Send + Sync + 'static,
{
    tonic::server::Grpc::new(ProstCodec::default())
}

/// Either side's channel.
trait Channel:
    GrpcService<
        Body,
        Error: Into<StdError>,
        ResponseBody: hyper::body::Body<Data = Bytes, Error: Into<StdError> + Send> + Send + 'static,
    >
{
}

impl Channel for adapters::tonic::Channel {}
impl Channel for tonic::transport::Channel {}

/// A call of one message.
async fn call<M1, M2>(
    client: &mut Grpc<impl Channel>,
    method: &'static str,
    request: Request<M1>,
) -> Result<Response<M2>, Status>
where
    M1: Message + Send + Sync + 'static,
    M2: Message + Default + Send + Sync + 'static,
{
    client.ready().await.map_err(|error| Status::from_error(error.into()))?;
    client.unary(request, PathAndQuery::from_static(method), ProstCodec::default()).await
}

const UNARY_CALL: &str = "/grpc.testing.TestService/UnaryCall";

async fn full_duplex(
    client: &mut Grpc<impl Channel>,
    requests: Request<impl Stream<Item = OutputRequest> + Send + 'static>,
) -> Result<Response<Streaming<SimpleResponse>>, Status> {
    let path = PathAndQuery::from_static("/grpc.testing.TestService/FullDuplexCall");
    client.ready().await.map_err(|error| Status::from_error(error.into()))?;
    client.streaming(requests, path, ProstCodec::default()).await
}

fn large() -> SimpleRequest {
    SimpleRequest { response_size: 314_159, payload: zeros(271_828), response_status: None }
}

const REQUESTS: [usize; 4] = [27_182, 8, 1828, 45_904];
const ANSWERS: [i32; 4] = [31_415, 9, 2653, 58_979];

fn parameters(sizes: &[i32]) -> Vec<ResponseParameters> {
    sizes.iter().map(|&size| ResponseParameters { size }).collect()
}

async fn empty_unary(mut client: Grpc<impl Channel>) {
    let method = "/grpc.testing.TestService/EmptyCall";
    let response: Response<Empty> = call(&mut client, method, Request::new(Empty {})).await.unwrap();
    assert_eq!(response.into_inner(), Empty {});
}

async fn large_unary(mut client: Grpc<impl Channel>) {
    let response: Response<SimpleResponse> =
        call(&mut client, UNARY_CALL, Request::new(large())).await.unwrap();
    assert_eq!(response.into_inner(), answer(314_159));
}

async fn client_streaming(mut client: Grpc<impl Channel>) {
    let path = PathAndQuery::from_static("/grpc.testing.TestService/StreamingInputCall");
    let requests = stream::iter(REQUESTS).map(|size| SimpleResponse { payload: zeros(size) });
    client.ready().await.map_err(Into::into).unwrap();
    let codec = ProstCodec::<_, Aggregated>::default();
    let response = client.client_streaming(Request::new(requests), path, codec).await.unwrap();
    assert_eq!(response.into_inner().payload_size, 74_922);
}

async fn server_streaming(mut client: Grpc<impl Channel>) {
    let path = PathAndQuery::from_static("/grpc.testing.TestService/StreamingOutputCall");
    let request = OutputRequest { parameters: parameters(&ANSWERS), ..OutputRequest::default() };
    client.ready().await.map_err(Into::into).unwrap();
    let answers = client.server_streaming(Request::new(request), path, ProstCodec::default()).await;
    let answers: Vec<SimpleResponse> = answers.unwrap().into_inner().map(Result::unwrap).collect().await;
    assert_eq!(answers, ANSWERS.map(answer));
}

async fn ping_pong(mut client: Grpc<impl Channel>) {
    let (sender, requests) = futures_channel::mpsc::unbounded();
    let mut answers = full_duplex(&mut client, Request::new(requests)).await.unwrap().into_inner();
    for (sent, wanted) in REQUESTS.into_iter().zip(ANSWERS) {
        let parameters = parameters(&[wanted]);
        let request = OutputRequest { parameters, payload: zeros(sent), response_status: None };
        sender.unbounded_send(request).unwrap();
        assert_eq!(answers.message().await.unwrap(), Some(answer(wanted)));
    }
    drop(sender);
    assert_eq!(answers.message().await.unwrap(), None);
}

async fn empty_stream(mut client: Grpc<impl Channel>) {
    let mut answers = full_duplex(&mut client, Request::new(stream::empty())).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap(), None);
}

/// The first error of a stream: tonic gives it in place of the answers if nothing comes before it.
async fn error_of(answers: Result<Response<Streaming<SimpleResponse>>, Status>) -> Status {
    match answers {
        Ok(answers) => answers.into_inner().message().await.unwrap_err(),
        Err(status) => status,
    }
}

async fn unary_status(client: &mut Grpc<impl Channel>, wanted: &EchoStatus) {
    let request = SimpleRequest { response_status: Some(wanted.clone()), ..SimpleRequest::default() };
    let status = call::<_, SimpleResponse>(client, UNARY_CALL, Request::new(request)).await.unwrap_err();
    assert_eq!((status.code() as i32, status.message()), (wanted.code, &*wanted.message));
}

async fn status_code_and_message(mut client: Grpc<impl Channel>) {
    let wanted = EchoStatus { code: 2, message: "test status message".to_owned() };
    unary_status(&mut client, &wanted).await;
    let request = OutputRequest { response_status: Some(wanted.clone()), ..OutputRequest::default() };
    let answers = full_duplex(&mut client, Request::new(stream::iter([request]))).await;
    let status = error_of(answers).await;
    assert_eq!((status.code() as i32, status.message()), (wanted.code, &*wanted.message));
}

async fn special_status_message(mut client: Grpc<impl Channel>) {
    let message = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n".to_owned();
    unary_status(&mut client, &EchoStatus { code: 2, message }).await;
}

async fn unimplemented_method(mut client: Grpc<impl Channel>) {
    let method = "/grpc.testing.TestService/UnimplementedCall";
    let status = call::<_, Empty>(&mut client, method, Request::new(Empty {})).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
}

async fn unimplemented_service(mut client: Grpc<impl Channel>) {
    let method = "/grpc.testing.UnimplementedService/UnimplementedCall";
    let status = call::<_, Empty>(&mut client, method, Request::new(Empty {})).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
}

async fn custom_metadata(mut client: Grpc<impl Channel>) {
    const INITIAL: &str = "test_initial_metadata_value";
    let trailing = MetadataValue::from_bytes(&[0xab; 3]);
    fn with_metadata<M>(message: M) -> Request<M> {
        let mut request = Request::new(message);
        request.metadata_mut().insert(ECHO_INITIAL, INITIAL.parse().unwrap());
        request.metadata_mut().insert_bin(ECHO_TRAILING, MetadataValue::from_bytes(&[0xab; 3]));
        request
    }
    let response: Response<SimpleResponse> =
        call(&mut client, UNARY_CALL, with_metadata(large())).await.unwrap();
    assert_eq!(response.metadata().get(ECHO_INITIAL).unwrap(), INITIAL);
    // tonic merges the trailers of a unary response into its metadata.
    assert_eq!(response.metadata().get_bin(ECHO_TRAILING), Some(&trailing));

    let request =
        OutputRequest { parameters: parameters(&[314_159]), payload: zeros(271_828), response_status: None };
    let response = full_duplex(&mut client, with_metadata(stream::iter([request]))).await.unwrap();
    assert_eq!(response.metadata().get(ECHO_INITIAL).unwrap(), INITIAL);
    let mut answers = response.into_inner();
    assert_eq!(answers.message().await.unwrap(), Some(answer(314_159)));
    assert_eq!(answers.trailers().await.unwrap().unwrap().get_bin(ECHO_TRAILING), Some(&trailing));
}

fn server_on_lull() -> (Server, SocketAddr) {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    (adapters::tonic::serve(listener, Routes::new(TestService)).start().unwrap(), address)
}

fn tokio() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn server_on_tokio() -> (tokio::runtime::Runtime, SocketAddr) {
    let tokio = tokio();
    let entered = tokio.enter();
    let incoming = tonic::transport::server::TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    let mut server = tonic::transport::Server::builder();
    tokio.spawn(server.add_routes(Routes::new(TestService)).serve_with_incoming(incoming));
    drop(entered);
    (tokio, address)
}

/// Two tests of each case.
macro_rules! cases {
    ($($case:ident)*) => {$(
        mod $case {
            use super::*;

            #[runtime::test]
            async fn the_server_answers_tokios_client() {
                let (server, address) = server_on_lull();
                let client = runtime::spawn_blocking(move || {
                    tokio().block_on(async {
                        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
                        super::$case(Grpc::new(endpoint.unwrap().connect().await.unwrap())).await
                    });
                });
                client.await.unwrap();
                server.shutdown(Duration::from_secs(30)).await;
            }

            #[runtime::test]
            async fn the_client_is_answered_by_tokios_server() {
                let (tokio, address) = server_on_tokio();
                let channel = adapters::tonic::Channel::new(format!("http://{address}").parse().unwrap());
                super::$case(Grpc::new(channel.unwrap())).await;
                tokio.shutdown_background();
            }
        }
    )*};
}

cases! {
    empty_unary large_unary client_streaming server_streaming ping_pong empty_stream status_code_and_message
    special_status_message unimplemented_method unimplemented_service custom_metadata
}
