//! What a fleet says of servers that fail.

use std::io::Read;
use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::thread;
use std::time::Duration;

use lab::Error;
use lab::fleet::{Fleet, FleetLoad, FleetMeasurement, FleetPacing};
use lab::testbed::{SERVER_ADDRESS, Testbed};
use serial_test::serial;
use socket2::{Domain, SockRef, Socket, Type};
use tests::isolated;

use super::server::{fleet_config, on_client_side};

const LOAD: FleetLoad = FleetLoad { pacing: FleetPacing::Open { rate: 500.0 }, warm_up: 0.0, duration: 0.3 };
const CONNECTIONS: usize = 8;

fn listener(testbed: &Testbed) -> (TcpListener, SocketAddrV4) {
    let listener = testbed.server.run(|| TcpListener::bind((SERVER_ADDRESS, 0))).unwrap();
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else { panic!("an IPv4 address") };
    (listener, address)
}

/// Loads a server that ends each connection of the fleet with its first request, and says that it
/// goes on if it has one that polls the queue alone.
fn run_against_a_server_that_hangs_up(reset: bool) -> Result<FleetMeasurement, Error> {
    let testbed = Testbed::new(1).unwrap();
    let (listener, address) = listener(&testbed);
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            thread::spawn(move || {
                // Ends the connection that polls the queue, which is silent, when the fleet closes
                // it.
                let _ = stream.read(&mut [0; 4096]);
                if reset {
                    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                }
            });
        }
    });
    on_client_side(&testbed, || Fleet::connect(fleet_config(address, CONNECTIONS))?.run(&LOAD))
}

#[test]
#[isolated(root)]
#[serial]
fn a_server_that_closes_or_resets_connections_makes_the_run_an_error_that_counts_them() {
    for reset in [false, true] {
        let error = run_against_a_server_that_hangs_up(reset).unwrap_err();
        assert_eq!(error.to_string(), format!("the server closed {CONNECTIONS} connections"));
    }
}

#[test]
#[isolated(root)]
#[serial]
fn a_server_that_resets_the_connection_that_polls_the_queue_is_named_too() {
    let testbed = Testbed::new(1).unwrap();
    let (listener, address) = listener(&testbed);
    let error = on_client_side(&testbed, || {
        let mut fleet = Fleet::connect(fleet_config(address, CONNECTIONS)).unwrap();
        for _ in 0..=CONNECTIONS {
            let (stream, _) = listener.accept().unwrap();
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
        fleet.run(&LOAD).unwrap_err()
    });
    assert!(error.to_string().starts_with("the server closed "), "{error}");
}

#[test]
#[isolated(root)]
#[serial]
fn without_a_server_the_error_names_the_address_and_what_the_kernel_said() {
    let testbed = Testbed::new(1).unwrap();
    let address = SocketAddrV4::new(SERVER_ADDRESS, 9);
    let error = on_client_side(&testbed, || Fleet::connect(fleet_config(address, 4)).unwrap_err());
    let text = error.to_string();
    assert!(text.starts_with("no connection to the server at 198.18.0.1:9: Connection refused"), "{text}");
}

#[test]
#[isolated(root)]
#[serial]
fn a_server_that_accepts_nothing_leaves_the_connections_unestablished() {
    let testbed = Testbed::new(1).unwrap();
    let listen = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((SERVER_ADDRESS, 0)).into())?;
        // The connection that polls the queue is the only one that fits.
        socket.listen(0)?;
        Ok(socket)
    };
    let socket = testbed.server.run(listen).unwrap();
    let port = socket.local_addr().unwrap().as_socket().unwrap().port();
    let address = SocketAddrV4::new(SERVER_ADDRESS, port);
    let error = on_client_side(&testbed, || Fleet::connect(fleet_config(address, 4)).unwrap_err());
    assert!(error.to_string().starts_with("4 of 4 connections were not established"), "{error}");
}
