use super::{SEND_AT, Session, SessionStep, stats};
use crate::memcached::config::{Config, Protocol, VERSION};
use crate::memcached::context::ServerContext;
use crate::memcached::stats::connections::ListedConnection;
use crate::memcached::stats::counters::CounterTotals;

fn context(config: &Config) -> ServerContext {
    ServerContext::open(config, 1).unwrap()
}

fn small_context() -> ServerContext {
    context(&Config { memory: 8 << 20, ..Config::default() })
}

/// Feeds the input in chunks. Returns the replies, and whether the connection stays open.
fn converse(context: &ServerContext, input: &[u8], chunk_size: usize) -> (Vec<u8>, bool) {
    let mut session = Session::new(context, context.counters.worker(0));
    let (mut unread, mut replies) = (Vec::new(), Vec::new());
    for chunk in input.chunks(chunk_size) {
        unread.extend_from_slice(chunk);
        loop {
            let (used, step) = session.feed(&unread);
            unread.drain(..used);
            while session.has_replies() {
                replies.append(&mut session.take_buffer());
                session.take_large_value().iter().for_each(|large| replies.extend_from_slice(large.bytes()));
            }
            match step {
                SessionStep::NeedInput => break,
                SessionStep::Send | SessionStep::Yield => {}
                SessionStep::Close => return (replies, false),
            }
        }
    }
    (replies, true)
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn replies_do_not_depend_on_how_the_input_is_split() {
    let text: &[u8] = b"set a 5 0 3\r\nabc\r\nget a\r\nset b 0 0 0 noreply\r\n\r\ngets b a x\r\nappend a 0 0 2\r\nde\r\nget a b\r\nbogus\r\nset a 0 0 1\r\ntoolong\r\nincr a 1\r\nms m 2 c k O7\r\nhi\r\nmg m v s q\r\nms m 2 Tx\r\nhi\r\nmd m\r\nma c N0 J7 v\r\nmn\r\ndelete a\r\nquit\r\n";
    let large = [&b"set l 0 0 40000\r\n"[..], &[b'v'; 40_000], b"\r\nget l l\r\nquit\r\n"].concat();
    let mut binary = Vec::new();
    for (code, extras, key, value) in [
        (0x01, &[0u8; 8][..], &b"k"[..], &b"value"[..]),
        (0x00, &[], b"k", b""),
        (0x0d, &[], b"nosuch", b""),
        (0x05, &[0; 20], b"n", b""),
        (0x0e, &[], b"k", b"+"),
        (0x0c, &[], b"k", b""),
        (0x1b, &[], b"", b""),
        (0x07, &[], b"", b""),
    ] {
        binary.extend_from_slice(&[0x80, code, 0, key.len() as u8, extras.len() as u8, 0, 0, 0, 0, 0, 0]);
        binary.push((extras.len() + key.len() + value.len()) as u8);
        binary.extend_from_slice(&[1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
        binary.extend_from_slice(&[extras, key, value].concat());
    }
    for input in [text, &binary] {
        let whole = converse(&small_context(), input, input.len());
        assert!(!whole.1);
        for chunk_size in 1..input.len() {
            let cut = converse(&small_context(), input, chunk_size);
            assert_eq!((shown(&cut.0), cut.1), (shown(&whole.0), whole.1), "in chunks of {chunk_size}");
        }
    }
    let whole = converse(&small_context(), &large, large.len());
    assert_eq!(whole.0.len(), b"STORED\r\n".len() + 2 * (40_000 + b"VALUE l 0 40000\r\n\r\n".len()) + 5);
    for chunk_size in [1, 17, 4096, 39_999] {
        assert_eq!(converse(&small_context(), &large, chunk_size), whole, "in chunks of {chunk_size}");
    }
}

#[test]
fn a_long_get_neither_skips_nor_repeats_keys_when_the_buffer_is_full() {
    let context = small_context();
    let value = vec![b'v'; 50_000];
    let set = [b"set k 0 0 50000\r\n".to_vec(), value, b"\r\n".to_vec()].concat();
    assert_eq!(converse(&context, &set, 4096).0, b"STORED\r\n");
    let (replies, open) = converse(&context, b"get k k k k k\r\nget k\r\nmg k v\r\nget nosuch\r\n", 1024);
    assert!(open);
    assert_eq!(replies.windows(7).filter(|window| window == b"VALUE k").count(), 6);
    assert_eq!(replies.windows(5).filter(|window| window == b"END\r\n").count(), 3);
    assert!(replies.ends_with(b"v\r\nEND\r\n"));
}

#[test]
fn a_line_that_is_too_long_closes_the_connection() {
    assert!(!converse(&small_context(), &vec![b'x'; 20_000], 100).1);
    assert!(!converse(&small_context(), &[b"get ".to_vec(), vec![b'x'; 2 << 20]].concat(), 8192).1);
    assert!(converse(&small_context(), &[b"get ".to_vec(), b"key ".repeat(25_000)].concat(), 8192).1);
}

#[test]
fn a_long_get_of_any_verb_may_come_in_pieces() {
    let keys = b" key".repeat(25_000);
    for verb in ["get", "gets", "gat 0", "gats 0"] {
        let line = [verb.as_bytes(), &keys, b"\r\n"].concat();
        assert_eq!(converse(&small_context(), &line, 1448), (b"END\r\n".to_vec(), true), "{verb}");
        assert!(!converse(&small_context(), &[verb.as_bytes(), &vec![b' '; 2 << 20]].concat(), 8192).1);
    }
}

#[test]
fn the_keys_of_a_get_count_towards_the_turn_whether_they_are_found_or_not() {
    const KEYS: usize = 100_000;
    let context = small_context();
    converse(&context, b"set found 0 0 1\r\nx\r\n", 100);
    for verb in ["get", "gat 100"] {
        let line = [verb.as_bytes(), &b" missing".repeat(KEYS), b" found\r\n"].concat();
        let mut session = Session::new(&context, context.counters.worker(0));
        let before = context.counters.totals();
        let (mut used, mut turns) = (0, 1);
        while used < line.len() {
            let (more, step) = session.feed(&line[used..]);
            used += more;
            assert_eq!(step, if used < line.len() { SessionStep::Yield } else { SessionStep::NeedInput });
            turns += usize::from(step == SessionStep::Yield);
        }
        let after = context.counters.totals();
        let looked_up = |totals: &CounterTotals| {
            totals.get_misses + totals.get_hits + totals.touch_misses + totals.touch_hits
        };
        // None is skipped or looked up twice. Fifty of them are as much as one of the twenty
        // requests of a turn.
        assert_eq!(looked_up(&after) - looked_up(&before), KEYS as u64 + 1, "{verb}");
        assert!(turns.abs_diff(KEYS / 1000) <= 3, "{turns} turns for {verb}");
        assert_eq!(shown(&session.take_buffer()), "VALUE found 0 1\r\nx\r\nEND\r\n");
    }
}

#[test]
fn connections_come_and_go_while_they_are_listed() {
    let context = small_context();
    let add = || ListedConnection::add(&context.connections, Default::default());
    let _listed = [add(), add()];
    let mut listed = 0;
    std::thread::scope(|scope| {
        stats::write_section(&context, b"conns", &mut 0, &mut |_, _| {
            listed += 1;
            let (done, is_done) = std::sync::mpsc::channel();
            scope.spawn(move || {
                drop(add());
                done.send(())
            });
            let waited = is_done.recv_timeout(std::time::Duration::from_secs(30));
            assert!(waited.is_ok(), "a connection waits for the list");
        });
    });
    assert_eq!(listed, 8);
}

#[test]
fn a_long_list_of_connections_is_written_in_turns() {
    for (protocol, request) in [
        (Protocol::Ascii, b"stats conns\r\n".to_vec()),
        (Protocol::Binary, [&[0x80, 0x10, 0, 5][..], &[0; 7], &[5], &[0; 12], b"conns"].concat()),
    ] {
        let context = context(&Config { protocol, ..Config::default() });
        let listed: Vec<_> =
            (0..1500).map(|_| ListedConnection::add(&context.connections, Default::default())).collect();
        let mut session = Session::new(&context, context.counters.worker(0));
        let (mut replies, mut turns, mut unread) = (Vec::new(), 0, &request[..]);
        while let (used, SessionStep::Send | SessionStep::Yield) = session.feed(unread) {
            unread = &unread[used..];
            let part = session.take_buffer();
            assert!(
                shown(&part).matches(":state").count() <= 200,
                "{protocol:?}: one turn has written too many"
            );
            replies.extend(part);
            turns += 1;
        }
        replies.extend(session.take_buffer());
        let replies = shown(&replies);
        assert_eq!((replies.matches(":state").count(), turns), (1500, 7), "{protocol:?}");
        for number in [0, 199, 200, 1499] {
            assert!(replies.contains(&format!("{number}:secs_since_last_cmd")), "{protocol:?}: {number}");
        }
        drop(listed);
    }
}

#[test]
fn items_have_ages() {
    let context = Config { memory: 4 << 20, ..Config::default() };
    let context = self::context(&context);
    let age = |name: &str| {
        let (replies, _) = converse(&context, b"stats items\r\n", 100);
        let prefix = format!("STAT items:1:{name} ");
        shown(&replies).lines().find_map(|line| line.strip_prefix(&prefix)?.parse::<u32>().ok()).unwrap()
    };
    let fill = |keys: std::ops::Range<u32>| {
        for key in keys {
            let request = format!("set key-{key} 0 0 100\r\n{}\r\n", "v".repeat(100));
            assert_eq!(converse(&context, request.as_bytes(), 1000).0, b"STORED\r\n");
        }
    };
    converse(&context, b"set first 0 0 1\r\nv\r\n", 100);
    context.store.clock.advance(7);
    assert_eq!((age("age"), age("evicted_time")), (7, 0));
    fill(0..40_000);
    context.store.clock.advance(5);
    fill(40_000..50_000);
    assert_eq!((age("age"), age("evicted_time")), (5, 5));
}

#[test]
fn a_value_that_is_too_large_is_discarded_and_the_old_one_removed() {
    let context = context(&Config { max_item: 2048, ..Config::default() });
    let large = [b"set k 0 0 3000\r\n".to_vec(), vec![b'x'; 3000], b"\r\nget k\r\n".to_vec()].concat();
    let input = [b"set k 0 0 1\r\nx\r\n".to_vec(), large].concat();
    let (replies, open) = converse(&context, &input, 500);
    assert!(open);
    assert_eq!(shown(&replies), "STORED\r\nSERVER_ERROR object too large for cache\r\nEND\r\n");
}

/// As a ring brings a line that goes over the end of a buffer.
#[test]
fn a_long_line_is_answered_however_many_reads_it_takes() {
    let context = context(&Config::default());
    let key = "k".repeat(8000);
    for line in
        [format!("delete {key}"), format!("mg {key}"), format!("incr {key} 1"), format!("touch {key} 1")]
    {
        for piece in [700, 3000, 9000] {
            let (replies, open) = converse(&context, format!("{line}\r\nversion\r\n").as_bytes(), piece);
            let replies = shown(&replies);
            assert!(open && replies.starts_with("CLIENT_ERROR"), "{piece}: {replies}");
            assert!(replies.ends_with(&format!("\r\nVERSION {VERSION}\r\n")), "{piece}: {replies}");
        }
    }
}

/// With 1.6.45, too: no item is older than the server.
#[test]
fn a_flush_with_a_time_before_the_start_leaves_the_items() {
    let context = context(&Config::default());
    let flushed = |at: u32| {
        let text = format!("set f 0 0 1\r\n1\r\nflush_all {at}\r\nget f\r\n");
        shown(&converse(&context, text.as_bytes(), 500).0)
    };
    assert_eq!(flushed(1_700_000_000), "STORED\r\nOK\r\nVALUE f 0 1\r\n1\r\nEND\r\n");
    assert_eq!(flushed(0), "STORED\r\nOK\r\nEND\r\n");
}

/// Measured with memcached 1.6.45: the largest value with a key of one byte.
#[test]
fn the_largest_value_is_that_of_memcached() {
    for (cas, flags, max_item, most) in [
        (true, 0, 1 << 20, 1_048_516),
        (true, 7, 1 << 20, 1_048_512),
        (true, 0, 2 << 20, 2_097_092),
        (false, 0, 1 << 20, 1_048_524),
    ] {
        let context = context(&Config { cas, max_item, ..Config::default() });
        for (length, reply) in
            [(most, "STORED\r\n"), (most + 1, "SERVER_ERROR object too large for cache\r\n")]
        {
            let set =
                [format!("set k {flags} 0 {length}\r\n").as_bytes(), &vec![b'x'; length], b"\r\n"].concat();
            assert_eq!(shown(&converse(&context, &set, 1 << 22).0), reply, "{length} of {max_item}");
        }
    }
}

#[test]
fn a_value_that_is_being_sent_stays_intact_when_it_is_replaced() {
    let context = small_context();
    let set = |byte: u8| [&b"set k 0 0 100000\r\n"[..], &vec![byte; 100_000], b"\r\n"].concat();
    converse(&context, &set(b'a'), 1 << 20);
    let mut session = Session::new(&context, context.counters.worker(0));
    assert_eq!(session.feed(b"get k\r\n").1, SessionStep::Send);
    session.take_buffer();
    let large = session.take_large_value().unwrap();
    converse(&context, &set(b'b'), 1 << 20);
    converse(&context, b"delete k\r\n", 100);
    assert_eq!(large.bytes(), [b'a'; 100_000]);
    let before = context.store.usage().memory;
    drop(large);
    assert!(context.store.usage().memory + 100_000 <= before);
}

#[test]
fn a_session_yields_after_its_requests_per_turn() {
    let context = context(&Config { requests_per_turn: 3, ..Config::default() });
    let mut session = Session::new(&context, context.counters.worker(0));
    let input = b"mn\r\n".repeat(7);
    let mut used = 0;
    for _ in 0..2 {
        let (more, step) = session.feed(&input[used..]);
        assert_eq!((more, step), (12, SessionStep::Yield));
        used += more;
    }
    assert_eq!(session.feed(&input[used..]), (4, SessionStep::NeedInput));
}

#[test]
fn commands_are_refused_until_the_client_authenticates() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "ann:secret\n").unwrap();
    let text = Config { users_file: Some(users.clone()), protocol: Protocol::Ascii, ..Config::default() };
    let text_context = context(&text);
    let (replies, open) = converse(
        &text_context,
        b"get somekey\r\nset x 0 0 10\r\nann:secret\r\nset x 0 0 10\r\nann Secret\r\nset x 0 0 10\r\nann secret\r\nget x\r\n",
        7,
    );
    assert!(open);
    assert_eq!(
        shown(&replies),
        "CLIENT_ERROR unauthenticated\r\nCLIENT_ERROR bad authentication token format\r\nCLIENT_ERROR authentication failure\r\nSTORED\r\nEND\r\n"
    );
    assert!(!converse(&text_context, &[b'x'; 4000], 100).1);
    let binary = Config { sasl: true, protocol: Protocol::Binary, ..text };
    let binary_context = context(&binary);
    let packet = |code: u8, key: &[u8], value: &[u8]| {
        let mut packet =
            vec![0x80, code, 0, key.len() as u8, 0, 0, 0, 0, 0, 0, 0, (key.len() + value.len()) as u8];
        packet.extend_from_slice(&[0; 12]);
        packet.extend_from_slice(key);
        packet.extend_from_slice(value);
        packet
    };
    let (replies, open) = converse(&binary_context, &packet(0x00, b"k", b""), 5);
    assert!(!open && replies[7] == 0x20);
    let wrong = packet(0x21, b"PLAIN", b"\0ann\0Secret");
    let right = packet(0x21, b"PLAIN", b"\0ann\0secret");
    let input = [wrong, right, packet(0x00, b"k", b"")].concat();
    let (replies, open) = converse(&binary_context, &input, 5);
    let statuses: Vec<u8> = {
        let (mut at, mut found) = (0, Vec::new());
        while at < replies.len() {
            found.push(replies[at + 7]);
            at += 24 + usize::from(replies[at + 11]);
        }
        found
    };
    assert!(open);
    assert_eq!(statuses, [0x20, 0, 1]);
}

#[test]
fn a_dump_lists_every_key_once() {
    let context = small_context();
    for index in 0..5000 {
        converse(&context, format!("set key-{index} 0 0 1 noreply\r\nx\r\n").as_bytes(), 100);
    }
    for (command, first, end) in [
        ("lru_crawler metadump all", "key=key-", "END"),
        ("lru_crawler mgdump all", "mg key-", "EN"),
        ("stats cachedump 1 0", "ITEM key-", "END"),
    ] {
        let (replies, _) = converse(&context, format!("{command}\r\n").as_bytes(), 100);
        let text = shown(&replies);
        let mut lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.pop(), Some(end));
        if command.starts_with("lru_crawler") {
            assert_eq!(lines.remove(0), "OK");
        }
        let mut keys: Vec<&str> =
            lines.iter().map(|line| line.strip_prefix(first).unwrap().split(' ').next().unwrap()).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 5000);
    }
}

#[test]
fn stats_cachedump_is_sent_in_parts_to_one_client_at_a_time_up_to_its_limits() {
    let context = small_context();
    let key = "k".repeat(200);
    for index in 0..12_000 {
        converse(&context, format!("set {key}-{index} 0 0 1 noreply\r\nx\r\n").as_bytes(), 1000);
    }
    let mut session = Session::new(&context, context.counters.worker(0));
    let request = b"stats cachedump 1 0\r\n";
    let (mut parts, mut length, mut last) = (0, 0, Vec::new());
    loop {
        let (used, step) = session.feed(request);
        let part = session.take_buffer();
        assert!(part.len() < SEND_AT + 1000, "{} bytes at once", part.len());
        (parts, length) = (parts + 1, length + part.len());
        last.extend_from_slice(&part[part.len().saturating_sub(5)..]);
        if used == request.len() {
            assert_eq!(step, SessionStep::NeedInput);
            break;
        }
        assert_eq!(step, SessionStep::Send);
        let (busy, _) = converse(&context, request, 100);
        assert!(busy.starts_with(b"SERVER_ERROR busy"), "{}", shown(&busy));
    }
    assert!(parts > 30 && last.ends_with(b"END\r\n"), "{parts} parts");
    // memcached's limit of 2 MiB.
    assert!((2 << 20..(2 << 20) + 1000).contains(&length), "{length} bytes");
    let (replies, _) = converse(&context, b"stats cachedump 1 7\r\nstats cachedump 2 0\r\n", 100);
    assert_eq!(shown(&replies).matches("ITEM ").count(), 7);
    assert!(replies.ends_with(b"END\r\nEND\r\n"));
}

#[test]
fn the_buffer_for_a_value_that_is_not_copied_is_small() {
    let context = small_context();
    let set = [&b"set k 0 0 400000\r\n"[..], &[b'v'; 400_000], b"\r\n"].concat();
    assert_eq!(converse(&context, &set, set.len()).0, b"STORED\r\n");
    let mut session = Session::new(&context, context.counters.worker(0));
    for request in [&b"get k\r\n"[..], b"mg k v\r\n"] {
        session.feed(request);
        let buffer = session.take_buffer();
        assert!(!buffer.is_empty() && buffer.capacity() < 1000, "{} bytes", buffer.capacity());
        assert_eq!(session.take_large_value().unwrap().bytes().len(), 400_000);
        session.feed(request);
        session.take_buffer();
    }
}
