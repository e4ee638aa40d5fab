//! Clients that ask for too much or send too slowly: the others are served, and memory stays
//! bounded.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loadgen::medians::percentile;
use serial_test::{parallel, serial};
use tests::memcached::{Memcached, expect, read_some, wait_until};

/// Within 5 % of the limit, whatever the sizes and however they change, in addition to the memory
/// of a server without items.
#[test]
#[serial]
fn the_memory_limit_holds_in_resident_memory() {
    const LIMIT_MIB: u64 = 64;
    let server = Memcached::start(&["-m", "64"]);
    let mut stream = server.connect();
    let before = server.resident_kib();
    for size in [100usize, 1000, 1, 30_000, 300_000, 5000] {
        let mut batch = Vec::new();
        for index in 0..(96 << 20) / (size + 100) {
            batch.extend_from_slice(format!("set key-{size}-{index} 0 0 {size} noreply\r\n").as_bytes());
            batch.resize(batch.len() + size, b'v');
            batch.extend_from_slice(b"\r\n");
            if batch.len() > 1 << 20 {
                stream.write_all(&batch).unwrap();
                batch.clear();
            }
        }
        batch.extend_from_slice(b"mn\r\n");
        stream.write_all(&batch).unwrap();
        expect(&mut stream, b"MN\r\n").unwrap();
        let grown = server.resident_kib() - before;
        assert!(grown <= LIMIT_MIB * 1024 * 105 / 100, "{grown} KiB with values of {size} bytes");
        // The memory is used, too: pages are touched only when they are needed.
        assert!(grown >= LIMIT_MIB * 1024 * 85 / 100, "{grown} KiB with values of {size} bytes");
    }
    assert!(server.stat("evictions") > 0 && server.stat("bytes") <= LIMIT_MIB << 20);
}

/// With a high limit the store copies such values into replies, and receives them into buffers.
#[test]
#[serial]
fn values_that_are_not_read_or_half_sent_do_not_exceed_the_memory_limit() {
    const LIMIT_MIB: u64 = 512;
    const VALUE: usize = 250_000;
    const CLIENTS: usize = 500;
    let server = Memcached::start(&["-m", "512", "-c", "4000"]);
    let mut stream = server.connect();
    let before = server.resident_kib();
    let value = vec![b'v'; VALUE];
    for index in 0..2400 {
        let set = format!("set {index} 0 0 {VALUE} noreply\r\n");
        stream.write_all(&[set.as_bytes(), &value, b"\r\n"].concat()).unwrap();
    }
    stream.write_all(b"mn\r\n").unwrap();
    expect(&mut stream, b"MN\r\n").unwrap();
    assert!(server.resident_kib() - before > LIMIT_MIB * 1024 * 9 / 10);
    let connect = |request: &[u8]| {
        let mut client = server.connect_with_small_buffer(64 << 10);
        client.write_all(request).unwrap();
        client
    };
    let mut greedy: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(&b"get 2399\r\n".repeat(20))).collect();
    let half = [format!("set half 0 0 {VALUE}\r\n").as_bytes(), &value[..VALUE / 2]].concat();
    let halves: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(&half)).collect();
    // A thirty-second of the limit is free. The ring holds up to 64 KiB that are not sent for each
    // who does not read.
    let most = LIMIT_MIB * 1024 * 33 / 32 + CLIENTS as u64 * 64 + (16 << 10);
    let connected = 2 * CLIENTS as u64;
    let mut peak = 0;
    wait_until("all are served, and the store gives up memory for them", || {
        let resident = server.resident_kib() - before;
        peak = peak.max(resident);
        server.stat("curr_connections") > connected && resident < most
    });
    // Memory is given up while the requests come, hardly later.
    assert!(peak < most + LIMIT_MIB * 1024 / 20, "{peak} KiB, {most} KiB in the end");
    assert_eq!((server.stat("response_obj_oom"), server.stat("store_no_memory")), (0, 0));
    drop(halves);
    let (mut hits, mut looks) = (0, 0);
    wait_until("each client's replies wait for it", || {
        std::thread::sleep(Duration::from_millis(100));
        let before = std::mem::replace(&mut hits, server.stat("get_hits"));
        // A worker whose core is taken by other programs serves nobody for a while.
        looks = if hits == before { looks + 1 } else { 0 };
        looks == 10
    });
    // Who reads after all gets it all.
    let reply = [format!("VALUE 2399 0 {VALUE}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat();
    expect(&mut greedy[7], &reply.repeat(20)).unwrap();
    // They hold more than half of a lower limit. The next one is disconnected.
    assert_eq!(server.talk(b"cache_memlimit 128\r\n"), b"OK\r\n");
    let mut refused = connect(&b"get 2399\r\n".repeat(20));
    wait_until("it is disconnected", || server.stat("response_obj_oom") == 1);
    let taken = std::io::copy(&mut refused, &mut std::io::sink());
    assert!(taken.is_err() || taken.is_ok_and(|bytes| bytes < 20 * VALUE as u64));
    drop(greedy);
    wait_until("memory is within the lower limit", || server.stat("bytes_memory") <= 128 << 20);
}

/// Whatever is copied for clients that don't read counts against the limit, but for 32 KiB of each.
#[test]
#[serial]
fn a_thousand_clients_that_read_nothing_take_little_more_than_the_limit_whatever_the_size() {
    const LIMIT_MIB: u64 = 64;
    const CLIENTS: usize = 1000;
    let Some(()) = tests::descriptors(4000) else { return };
    let mut worst = 0;
    for driver in tests::drivers(["uring", "epoll"]) {
        for size in [5000usize, 32_000] {
            let server = Memcached::start(&["-m", "64", "-c", "4000", "--driver", driver]);
            let mut stream = server.connect();
            let before = server.resident_kib();
            let mut keys = 0;
            while server.stat("evictions") == 0 {
                for _ in 0..(8 << 20) / size {
                    let set = format!("set {keys} 0 0 {size} noreply\r\n");
                    stream.write_all(&[set.as_bytes(), &vec![b'v'; size], b"\r\n"].concat()).unwrap();
                    keys += 1;
                }
                stream.write_all(b"mn\r\n").unwrap();
                expect(&mut stream, b"MN\r\n").unwrap();
            }
            let request = format!("get {}\r\n", keys - 1).repeat((8_000_000 / size).min(3000));
            let mut peak = 0;
            let mut clients = Vec::new();
            for _ in 0..CLIENTS {
                let mut client = server.connect_with_small_buffer(16 << 10);
                client.write_all(request.as_bytes()).unwrap();
                clients.push(client);
                peak = peak.max(server.resident_kib() - before);
            }
            let (mut hits, mut refused) = (u64::MAX, 0);
            wait_until("nothing changes any more", || {
                std::thread::sleep(Duration::from_millis(50));
                peak = peak.max(server.resident_kib() - before);
                refused = server.stat("response_obj_oom");
                std::mem::replace(&mut hits, server.stat("get_hits")) == hits
            });
            println!("{driver}, {size} bytes: {} MiB at most, {refused} disconnected", peak >> 10);
            worst = worst.max(peak);
            // The others are served.
            stream.write_all(b"set new 0 0 3\r\nnew\r\nget new\r\n").unwrap();
            expect(&mut stream, b"STORED\r\nVALUE new 0 3\r\nnew\r\nEND\r\n").unwrap();
        }
    }
    assert!(worst < (LIMIT_MIB + 32) << 10, "{worst} KiB");
}

#[test]
#[serial]
fn long_lines_without_an_end_do_not_exceed_the_memory_limit() {
    let server = Memcached::start(&["-m", "8"]);
    let before = server.resident_kib();
    let line = [&b"get"[..], &b" key".repeat(225_000)].concat();
    let mut clients: Vec<TcpStream> = (0..64).map(|_| server.connect()).collect();
    for client in &mut clients {
        // Fails where the server has closed the connection.
        let _ = client.write_all(&line);
    }
    wait_until("some are disconnected", || server.stat("read_buf_oom") > 0);
    let grown = server.resident_kib().saturating_sub(before);
    println!("{grown} KiB for long lines");
    assert!(grown < 30 << 10, "{grown} KiB");
    assert_eq!(server.talk(b"set k 0 0 1\r\nx\r\n"), b"STORED\r\n");
}

#[test]
#[parallel]
fn a_connection_above_the_limit_gets_an_error_and_there_is_room_again_later() {
    let server = Memcached::start(&["-c", "3"]);
    // An earlier connection may count for a moment after its end.
    let three_are_served = || {
        let mut held: Vec<TcpStream> = (0..3).map(|_| server.connect()).collect();
        held.iter_mut().all(is_served).then_some(held)
    };
    let mut held = None;
    wait_until("three are served", || {
        held = three_are_served();
        held.is_some()
    });
    let mut refused = server.connect();
    let mut answer = Vec::new();
    let _ = refused.read_to_end(&mut answer);
    assert_eq!(answer, b"ERROR Too many open connections\r\n");
    drop(held);
    wait_until("there is room for as many", || three_are_served().is_some());
}

fn is_served(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 64];
    let is_answered = stream.write_all(b"version\r\n").is_ok() && read_some(stream, &mut buffer).is_ok();
    is_answered && buffer.starts_with(b"VERSION")
}

/// The 99th percentile of a client's requests, while others misbehave.
fn p99_while(server: &Memcached, misbehave: impl FnOnce() + Send) -> Duration {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut stream = server.connect();
            stream.set_nodelay(true).unwrap();
            let mut times = Vec::new();
            while !over.load(Ordering::Relaxed) || times.len() < 200 {
                let start = Instant::now();
                stream.write_all(b"get other\r\n").unwrap();
                expect(&mut stream, b"VALUE other 0 5\r\nvalue\r\nEND\r\n").unwrap();
                times.push(start.elapsed());
                std::thread::sleep(Duration::from_micros(200));
            }
            percentile(&mut times, 99).unwrap()
        });
        misbehave();
        over.store(true, Ordering::Relaxed);
        asking.join().unwrap()
    })
}

/// A p99 above this means that the client was not served along with the others. Shorter delays come
/// from the hypervisor, which takes the core away at times.
const SERVED_WITHIN: Duration = Duration::from_millis(250);

fn with_other_item() -> Memcached {
    let server = Memcached::start(&["-c", "12000", "-m", "64"]);
    assert_eq!(server.talk(b"set other 0 0 5\r\nvalue\r\n"), b"STORED\r\n");
    server
}

/// Returns the 99th percentile of another client meanwhile.
fn slow_clients() -> Duration {
    let server = with_other_item();
    let p99 = p99_while(&server, || {
        let mut slow: Vec<TcpStream> = (0..50).map(|_| server.connect()).collect();
        let mut halves: Vec<TcpStream> = (0..50).map(|_| server.connect()).collect();
        for half in &mut halves {
            half.write_all(b"set half 0 0 900000\r\n").unwrap();
            half.write_all(&[b'h'; 1000]).unwrap();
        }
        let request = b"set slow 0 0 4\r\nslow\r\nget slow\r\n";
        for byte in request {
            slow.iter_mut().for_each(|stream| stream.write_all(&[*byte]).unwrap());
        }
        for mut stream in slow {
            expect(&mut stream, b"STORED\r\nVALUE slow 0 4\r\nslow\r\nEND\r\n").unwrap();
        }
    });
    println!("p99 with slow clients: {p99:?}");
    assert_eq!(server.talk(b"get half\r\n"), b"END\r\n");
    wait_until("the memory of half values is freed", || server.stat("bytes") < 1 << 20);
    assert!(server.resident_kib() < 100 << 10);
    p99
}

#[test]
#[serial]
fn clients_that_send_byte_by_byte_or_half_a_value_do_not_keep_others_waiting() {
    slow_clients();
}

/// Returns the 99th percentile of another client meanwhile.
fn idle_clients() -> Option<Duration> {
    let server = with_other_item();
    tests::descriptors(11_000)?;
    let before = server.resident_kib();
    let p99 = p99_while(&server, || {
        let mut idle: Vec<TcpStream> = Vec::new();
        for _ in 0..10_000 {
            let mut stream = server.connect();
            stream.write_all(b"get nosuch\r\n").unwrap();
            idle.push(stream);
        }
        for stream in &mut idle {
            expect(stream, b"END\r\n").unwrap();
        }
        let each = (server.resident_kib() - before) * 1024 / 10_000;
        println!("{each} bytes an idle connection");
        assert!(each < 1350, "{each} bytes each");
    });
    println!("p99 with 10,000 idle connections: {p99:?}");
    wait_until("all connections are closed", || server.stat("curr_connections") <= 1);
    Some(p99)
}

#[test]
#[serial]
fn with_ten_thousand_idle_connections_others_are_served_and_memory_is_bounded() {
    idle_clients();
}

/// Returns the 99th percentile of another client meanwhile.
fn garbage() -> Duration {
    let server = with_other_item();
    let p99 = p99_while(&server, || {
        // A line without an end closes the connection; an oversized value is read and refused.
        let mut endless = server.connect();
        let garbage = vec![b'g'; 1 << 20];
        let mut sent = 0u64;
        while sent < 1 << 30 && endless.write_all(&garbage).is_ok() {
            sent += garbage.len() as u64;
        }
        assert!(sent < 1 << 26, "{sent} bytes without an end of line were taken");
        let mut swallowed = server.connect();
        swallowed.write_all(b"set large 0 0 1000000000\r\n").unwrap();
        for _ in 0..(1_000_000_002 / garbage.len()) {
            swallowed.write_all(&garbage).unwrap();
        }
        let rest = 1_000_000_002 % garbage.len();
        swallowed.write_all(&[&garbage[..rest], b"mn\r\n"].concat()).unwrap();
        expect(&mut swallowed, b"SERVER_ERROR object too large for cache\r\nMN\r\n").unwrap();
    });
    println!("p99 with a gigabyte of garbage: {p99:?}");
    let resident = server.resident_kib();
    assert!(resident < 100 << 10, "{resident} KiB");
    p99
}

#[test]
#[serial]
fn a_gigabyte_of_garbage_is_refused_and_others_are_served() {
    garbage();
}

#[test]
#[serial]
fn many_clients_that_announce_large_values_do_not_exhaust_memory() {
    let server = with_other_item();
    let mut halves: Vec<TcpStream> = (0..200).map(|_| server.connect()).collect();
    for half in &mut halves {
        half.write_all(b"set half 0 0 1000000\r\n").unwrap();
    }
    // They announced two hundred megabytes, and the limit is 64: some are refused, at once.
    halves.iter().for_each(|half| half.set_nonblocking(true).unwrap());
    let mut refused = 0;
    wait_until("a hundred are refused", || {
        halves.retain_mut(|half| {
            let is_refused = expect(half, b"SERVER_ERROR out of memory storing object\r\n").is_ok();
            refused += u32::from(is_refused);
            !is_refused
        });
        refused >= 100
    });
    assert_eq!(
        server.talk(b"set new 0 0 3\r\nnew\r\nget new\r\n"),
        b"STORED\r\nVALUE new 0 3\r\nnew\r\nEND\r\n"
    );
    let resident = server.resident_kib();
    assert!(resident < 100 << 10, "{resident} KiB");
}

/// Returns the 99th percentile of another client meanwhile.
fn listing() -> Duration {
    let server = with_other_item();
    let mut stream = server.connect();
    let keys = 200_000;
    for start in (0..keys).step_by(10_000) {
        let mut batch = String::new();
        for key in start..start + 10_000 {
            batch.push_str(&format!("set key-{key} 0 0 1 noreply\r\nv\r\n"));
        }
        stream.write_all((batch + "mn\r\n").as_bytes()).unwrap();
        expect(&mut stream, b"MN\r\n").unwrap();
    }
    let before = server.resident_kib();
    let mut stalled = server.connect();
    stalled.write_all(b"lru_crawler metadump all\r\n").unwrap();
    let mut byte = [0; 1];
    stalled.read_exact(&mut byte).unwrap();
    assert_eq!(server.talk(b"lru_crawler mgdump all\r\n"), b"BUSY currently processing crawler request\r\n");
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 4 << 10, "{grown} KiB for a list that is not read");
    let mut list = String::new();
    let p99 = p99_while(&server, || {
        let mut buffer = vec![0; 1 << 16];
        while !list.ends_with("END\r\n") {
            let length = read_some(&mut stalled, &mut buffer).unwrap();
            assert!(length > 0);
            list.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
        }
    });
    println!("p99 while all keys are listed: {p99:?}");
    assert_eq!(list.lines().filter(|line| line.contains("ey=key-")).count(), keys);
    assert!(server.talk(b"lru_crawler mgdump all\r\n").ends_with(b"EN\r\n"), "it is not freed");
    p99
}

#[test]
#[serial]
fn a_list_of_all_keys_is_sent_in_parts_to_one_client_at_a_time() {
    listing();
}

#[test]
#[ignore = "timing"]
#[serial]
fn no_misbehaviour_delays_others_for_long() {
    for p99 in [Some(slow_clients()), idle_clients(), Some(garbage()), Some(listing())].into_iter().flatten()
    {
        assert!(p99 < SERVED_WITHIN, "{p99:?}");
    }
}
