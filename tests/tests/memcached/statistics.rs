//! What `stats` reports, to people, exporters and tests of clients.

use std::collections::HashMap;

use serial_test::parallel;
use tests::memcached::{Memcached, command, free_port};

/// The names of memcached 1.6.45 in `stats`, as it is configured by default. Exporters, for example
/// that of Prometheus, read a part of them.
const GENERAL: &str = "\
    pid uptime time version libevent pointer_size rusage_user rusage_system max_connections curr_connections \
    total_connections rejected_connections connection_structures response_obj_oom response_obj_count \
    response_obj_bytes read_buf_count read_buf_bytes read_buf_bytes_free read_buf_oom reserved_fds cmd_get \
    cmd_set cmd_flush cmd_touch cmd_meta get_hits get_misses get_expired get_flushed delete_misses delete_hits \
    incr_misses incr_hits decr_misses decr_hits cas_misses cas_hits cas_badval touch_hits touch_misses \
    store_too_large store_no_memory auth_cmds auth_errors bytes_read bytes_written limit_maxbytes \
    accepting_conns listen_disabled_num time_in_listen_disabled_us threads conn_yields hash_power_level \
    hash_bytes hash_is_expanding slab_reassign_rescues slab_reassign_chunk_rescues slab_reassign_inline_reclaim \
    slab_reassign_busy_items slab_reassign_busy_deletes slab_reassign_busy_nomem slab_reassign_last_busy_status \
    slab_reassign_running slabs_moved lru_crawler_running lru_crawler_starts lru_maintainer_juggles malloc_fails \
    log_worker_dropped log_worker_written log_watcher_skipped log_watcher_sent log_watchers unexpected_napi_ids \
    round_robin_fallback bytes curr_items total_items slab_global_page_pool expired_unfetched evicted_unfetched \
    evicted_active evictions reclaimed crawler_reclaimed crawler_items_checked lrutail_reflocked moves_to_cold \
    moves_to_warm moves_within_lru direct_reclaims lru_bumps_dropped";

/// The names of memcached 1.6.45 in `stats settings`, built with TLS.
const SETTINGS: &str = "\
    maxbytes maxconns tcpport udpport inter verbosity oldest evictions domain_socket umask shutdown_command \
    growth_factor chunk_size num_threads num_threads_per_udp stat_key_prefix detail_enabled reqs_per_event \
    cas_enabled tcp_backlog binding_protocol auth_enabled_sasl auth_enabled_ascii item_size_max maxconns_fast \
    hashpower_init slab_reassign slab_automove slab_automove_ratio slab_automove_window slab_chunk_max \
    lru_crawler lru_crawler_sleep lru_crawler_tocrawl tail_repair_time flush_enabled dump_enabled hash_algorithm \
    lru_maintainer_thread lru_segmented hot_lru_pct warm_lru_pct hot_max_factor warm_max_factor temp_lru \
    temporary_ttl idle_timeout watcher_logbuf_size worker_logbuf_size read_buf_mem_limit track_sizes \
    inline_ascii_response drop_privileges ssl_enabled ssl_chain_cert ssl_key ssl_verify_mode ssl_keyformat \
    ssl_ciphers ssl_ca_cert ssl_wbuf_size ssl_session_cache ssl_kernel_tls ssl_min_version num_napi_ids \
    memory_file client_flags_size";

fn stats(server: &Memcached, section: &str) -> HashMap<String, String> {
    let answer = String::from_utf8(server.talk(format!("stats{section}\r\n").as_bytes())).unwrap();
    let lines = answer.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
    lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
#[parallel]
fn stats_and_settings_have_every_name_of_memcached() {
    let port = free_port();
    let server = Memcached::start(&["-U", &port.to_string(), "-C", "-o", "idle_timeout=1000"]);
    for (section, names) in [("", GENERAL), (" settings", SETTINGS)] {
        let found = stats(&server, section);
        let missing: Vec<&str> = names.split_whitespace().filter(|name| !found.contains_key(*name)).collect();
        assert!(missing.is_empty(), "stats{section} has no {missing:?}");
    }
    let settings = stats(&server, " settings");
    assert_eq!(settings["udpport"], port.to_string());
    assert_eq!(settings["tcpport"], server.address.port().to_string());
    assert_eq!((&*settings["cas_enabled"], &*settings["detail_enabled"]), ("no", "no"));
}

/// As memcached has it: `ITEM_get_cas` is 0, and `cas` finds nothing that matches.
#[test]
#[parallel]
fn without_cas_every_number_is_zero_and_cas_replaces_nothing() {
    let server = Memcached::start(&["-C"]);
    let requests =
        b"set k 0 0 1\r\nx\r\ngets k\r\ncas k 0 0 1 0\r\ny\r\ncas k 0 0 1 1\r\ny\r\ncas n 0 0 1 1\r\ny\r\n\
        mg k c\r\nms k 1 E9\r\nz\r\nmg k c v\r\nappend k 0 0 1\r\n!\r\nget k\r\n";
    let answers = b"STORED\r\nVALUE k 0 1 0\r\nx\r\nEND\r\nEXISTS\r\nEXISTS\r\nNOT_FOUND\r\n\
        HD c0\r\nHD\r\nVA 1 c0\r\nz\r\nSTORED\r\nVALUE k 0 2\r\nz!\r\nEND\r\n";
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(shown(&server.talk(requests)), shown(answers));
}

#[test]
#[parallel]
fn a_udp_port_alone_names_the_tcp_port_and_minus_one_is_any() {
    let port = free_port();
    let server = Memcached::run(command().args(["-U", &port.to_string()]), port);
    assert_eq!(stats(&server, " settings")["udpport"], port.to_string());
    let folder = tempfile::tempdir().unwrap();
    let ports = folder.path().join("ports");
    let child =
        command().args(["-p", "-1", "-U", "-1"]).env("MEMCACHED_PORT_FILENAME", &ports).spawn().unwrap();
    let _server = tests::KillOnDrop::from(child);
    tests::memcached::wait_until("the ports are written", || ports.exists());
    let written = std::fs::read_to_string(&ports).unwrap();
    let numbers = |line: &str| line.rsplit(' ').next().unwrap().parse::<u16>().unwrap();
    let lines: Vec<&str> = written.lines().collect();
    assert!(
        lines.len() == 2 && lines[0].starts_with("TCP INET: ") && lines[1].starts_with("UDP INET: "),
        "{written}"
    );
    assert!(lines.iter().all(|line| numbers(line) > 0), "{written}");
}

#[test]
#[parallel]
fn stats_have_what_monitoring_reads_and_what_each_worker_runs() {
    let server = Memcached::start(&[]);
    assert_eq!(server.talk(b"set k 0 0 5\r\nvalue\r\nget k\r\nget nosuch\r\n").len(), 38);
    for (name, value) in
        [("get_hits", 1), ("get_misses", 1), ("cmd_set", 1), ("curr_items", 1), ("threads", 2)]
    {
        assert_eq!(server.stat(name), value, "{name}");
    }
    let policy = String::from_utf8_lossy(&server.talk(b"stats policy\r\n")).into_owned();
    let workers: Vec<&str> = policy.lines().filter(|line| line.starts_with("STAT worker:")).collect();
    assert_eq!(workers.len(), 2, "{policy}");
    for field in
        ["policy=vanilla", "driver=", "napi=0", "aligned=", "running_us=", "polling_us=", "parked_us="]
    {
        assert!(workers.iter().all(|line| line.contains(field)), "{field} in {policy}");
    }
    let slabs = String::from_utf8_lossy(&server.talk(b"stats slabs\r\nstats items\r\n")).into_owned();
    assert!(slabs.contains("STAT 1:chunk_size ") && slabs.contains("STAT items:1:number 1"), "{slabs}");
    let connections = String::from_utf8_lossy(&server.talk(b"stats conns\r\n")).into_owned();
    assert!(connections.contains(":state conn_listening") && connections.contains(":addr tcp:127.0.0.1:"));
}
