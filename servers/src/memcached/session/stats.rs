//! The sections of `stats`. Each lists its names in memcached's order; what has no meaning here has
//! the value of a memcached without the feature, which stands beside the name.

use adapters::tls::ClientCertificates;

use crate::memcached::config::{Protocol, TlsConfig, VERSION};
use crate::memcached::context::ServerContext;
use crate::memcached::logging;
use crate::memcached::stats::counters::CounterTotals;
use crate::memcached::stats::policy_section::worker_lines;
use crate::memcached::store::StoreUsage;

/// Every name of memcached 1.6.45, and some of this server.
const GENERAL: &str = "\
    pid uptime time version libevent=none pointer_size rusage_user rusage_system max_connections \
    curr_connections total_connections rejected_connections connection_structures response_obj_oom \
    response_obj_count=0 response_obj_bytes=0 read_buf_count=0 read_buf_bytes=0 read_buf_bytes_free=0 \
    read_buf_oom reserved_fds=0 cmd_get cmd_set cmd_flush cmd_touch cmd_meta get_hits get_misses get_expired \
    get_flushed=0 delete_misses delete_hits incr_misses incr_hits decr_misses decr_hits cas_misses cas_hits \
    cas_badval touch_hits touch_misses store_too_large store_no_memory auth_cmds auth_errors idle_kicks \
    ssl_handshake_errors ssl_new_sessions ssl_proto_errors time_since_server_cert_refresh bytes_read \
    bytes_written limit_maxbytes accepting_conns listen_disabled_num time_in_listen_disabled_us=0 threads \
    conn_yields hash_power_level hash_bytes hash_is_expanding=0 slab_reassign_rescues=0 \
    slab_reassign_chunk_rescues=0 slab_reassign_inline_reclaim=0 slab_reassign_busy_items=0 \
    slab_reassign_busy_deletes=0 slab_reassign_busy_nomem=0 slab_reassign_last_busy_status=none \
    slab_reassign_running=0 slabs_moved=0 lru_crawler_running=0 lru_crawler_starts=0 \
    lru_maintainer_juggles=0 malloc_fails=0 log_worker_dropped=0 log_worker_written=0 log_watcher_skipped=0 \
    log_watcher_sent=0 log_watchers=0 bytes bytes_memory curr_items total_items slab_global_page_pool=0 \
    expired_unfetched evicted_unfetched evicted_active=0 evictions reclaimed crawler_reclaimed \
    crawler_items_checked lrutail_reflocked=0 moves_to_cold=0 moves_to_warm=0 moves_within_lru=0 \
    direct_reclaims=0 lru_bumps_dropped=0 unexpected_napi_ids=0 round_robin_fallback=0 items_moved";

/// All items are in slab class 1, and not counted by queue.
const ITEMS: &str = "\
    number number_hot=0 number_warm=0 number_cold age_hot=0 age_warm=0 age mem_requested evicted \
    evicted_nonzero=0 evicted_time outofmemory tailrepairs=0 reclaimed expired_unfetched evicted_unfetched \
    evicted_active=0 crawler_reclaimed crawler_items_checked lrutail_reflocked=0 moves_to_cold=0 \
    moves_to_warm=0 moves_within_lru direct_reclaims=0 hits_to_hot=0 hits_to_warm=0 hits_to_cold \
    hits_to_temp=0";

/// Segments correspond to the pages of a slab class.
const SLAB: &str = "\
    chunk_size chunks_per_page total_pages total_chunks used_chunks free_chunks=0 free_chunks_end=0 get_hits \
    cmd_set delete_hits incr_hits decr_hits cas_hits cas_badval touch_hits";

/// Every name of memcached 1.6.45.
const SETTINGS: &str = "\
    maxbytes maxconns tcpport udpport inter verbosity oldest=0 evictions domain_socket umask \
    shutdown_command growth_factor=1.25 chunk_size=48 num_threads num_threads_per_udp stat_key_prefix=: \
    detail_enabled=no reqs_per_event cas_enabled tcp_backlog binding_protocol auth_enabled_sasl \
    auth_enabled_ascii item_size_max maxconns_fast=yes hashpower_init=0 slab_reassign=no slab_automove=0 \
    slab_automove_ratio=0.80 slab_automove_window=30 slab_chunk_max lru_crawler lru_crawler_sleep=0 \
    lru_crawler_tocrawl=0 tail_repair_time=0 flush_enabled dump_enabled hash_algorithm=foldhash \
    lru_maintainer_thread=no lru_segmented=no hot_lru_pct=0 warm_lru_pct=0 hot_max_factor=0.00 \
    warm_max_factor=0.00 temp_lru=no temporary_ttl=0 idle_timeout watcher_logbuf_size=0 \
    worker_logbuf_size=0 read_buf_mem_limit=0 track_sizes=no inline_ascii_response=no drop_privileges=no \
    ssl_enabled ssl_chain_cert ssl_key ssl_verify_mode ssl_keyformat=1 ssl_ciphers=NULL ssl_ca_cert \
    ssl_wbuf_size=0 ssl_session_cache=no ssl_kernel_tls=no ssl_min_version num_napi_ids=0 \
    memory_file=(null) client_flags_size=4";

type Write<'a> = dyn FnMut(&str, &str) + 'a;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    All,
    /// The rest follows when others have run.
    Part,
    /// The section is unknown.
    Nothing,
}

/// Calls `write` with each name and value of a section. The empty section is the general one.
/// `conns_done`: how much of `conns` was written by the calls before.
pub fn write_section(
    context: &ServerContext,
    section: &[u8],
    conns_done: &mut usize,
    write: &mut Write<'_>,
) -> Written {
    match section {
        b"" => {
            let figures = Figures::of(context);
            write_names("", GENERAL, write, |name| figures.value(name));
        }
        b"settings" => write_names("", SETTINGS, write, |name| Some(setting(context, name))),
        b"reset" => context.counters.reset(),
        b"items" | b"slabs" => {
            let (figures, is_slabs) = (Figures::of(context), section == b"slabs");
            let has_items = figures.usage.items > 0;
            if has_items {
                let (prefix, names) = if is_slabs { ("1:", SLAB) } else { ("items:1:", ITEMS) };
                write_names(prefix, names, write, |name| figures.value(name));
            }
            if is_slabs {
                write("active_slabs", if has_items { "1" } else { "0" });
                write("total_malloced", &figures.usage.memory.to_string());
            }
        }
        // There is none, as in a memcached that was not given any.
        b"extstore" => {}
        b"sizes" => write("sizes_status", "disabled"),
        b"conns" => return connections(context, conns_done, write),
        // Lull's own section.
        b"policy" => {
            worker_lines(&context.counters).for_each(|(name, value)| write(&name, &value));
            write("busy_poll_share", &context.busy_poll_share.latest());
        }
        _ => return Written::Nothing,
    }
    Written::All
}

/// Writes what a list names: `name=value`, or a name whose `value` is looked up, if it has one.
fn write_names(prefix: &str, names: &str, write: &mut Write<'_>, value: impl Fn(&str) -> Option<String>) {
    for word in names.split_whitespace() {
        let (name, found) = match word.split_once('=') {
            Some((name, constant)) => (name, Some(constant.to_owned())),
            None => (word, value(word)),
        };
        if let Some(found) = found {
            write(&format!("{prefix}{name}"), &found);
        }
    }
}

/// The connections of `stats conns` that are listed before others run.
const CONNS_PER_TURN: usize = 200;

/// The numbers of connections begin after those of the listening addresses.
fn connections(context: &ServerContext, done: &mut usize, write: &mut Write<'_>) -> Written {
    let now = context.store.clock.now();
    let listening = context.listen_addresses().clone();
    for (number, address) in listening.iter().enumerate().skip(*done) {
        write(&format!("{number}:addr"), address);
        write(&format!("{number}:state"), "conn_listening");
    }
    let from = std::mem::take(done).saturating_sub(listening.len());
    let part = context.connections.some_from(from, CONNS_PER_TURN);
    if part.len() == CONNS_PER_TURN {
        *done = listening.len() + part.last().map_or(0, |(number, _)| number + 1);
    }
    for (number, connection) in part {
        let number = number + listening.len();
        let since = now.saturating_sub(connection.last_request.load());
        write(&format!("{number}:addr"), &connection.peer);
        write(&format!("{number}:listen_addr"), &connection.local);
        write(&format!("{number}:state"), connection.state());
        write(&format!("{number}:secs_since_last_cmd"), &since.to_string());
    }
    if *done > 0 { Written::Part } else { Written::All }
}

/// What the sections on items and requests are made of.
struct Figures<'a> {
    context: &'a ServerContext,
    totals: CounterTotals,
    usage: StoreUsage,
}

impl<'a> Figures<'a> {
    fn of(context: &'a ServerContext) -> Self {
        Self { context, totals: context.counters.totals(), usage: context.store.usage() }
    }

    fn value(&self, name: &str) -> Option<String> {
        let Self { context, totals, usage } = self;
        let (config, store, counted) = (&context.config, &context.store, &usage.counters);
        let mean = usage.bytes.checked_div(usage.items).unwrap_or(0);
        let number = match name {
            "pid" => std::process::id().into(),
            "uptime" => store.clock.now().into(),
            "time" => store.clock.unix().unsigned_abs(),
            "version" => return Some(VERSION.to_owned()),
            "pointer_size" => usize::BITS.into(),
            "rusage_user" | "rusage_system" => {
                let stat = procfs::process::Process::myself().and_then(|process| process.stat()).ok()?;
                let ticks = if name == "rusage_user" { stat.utime } else { stat.stime };
                return Some(format!("{:.6}", ticks as f64 / procfs::ticks_per_second() as f64));
            }
            "max_connections" => config.max_connections as u64,
            "curr_connections" | "connection_structures" => {
                (config.max_connections - context.connection_permits.available_permits()) as u64
            }
            "accepting_conns" => u64::from(context.connection_permits.available_permits() > 0),
            "listen_disabled_num" => totals.rejected_connections,
            "response_obj_oom" => totals.reply_no_memory,
            "read_buf_oom" => totals.read_no_memory,
            "cmd_get" => totals.get_hits + totals.get_misses,
            "cmd_touch" => totals.touch_hits + totals.touch_misses,
            "idle_kicks" if config.idle_timeout.is_none() => return None,
            "ssl_handshake_errors" if config.tls.is_some() => totals.handshake_errors,
            "ssl_new_sessions" | "ssl_proto_errors" | "time_since_server_cert_refresh"
                if config.tls.is_some() =>
            {
                0
            }
            "limit_maxbytes" => store.limit(),
            "threads" => context.counters.workers() as u64,
            "hash_power_level" => usage.items.max(1).ilog2().into(),
            "hash_bytes" => usage.tables,
            "bytes" | "mem_requested" => usage.bytes,
            "bytes_memory" => usage.memory,
            "curr_items" | "number" | "number_cold" | "total_chunks" | "used_chunks" => usage.items,
            "get_expired" => counted.found_expired,
            "expired_unfetched" => counted.expired_unfetched,
            "evicted_unfetched" => counted.evicted_unfetched,
            "evictions" | "evicted" => counted.evictions,
            "evicted_time" => counted.evicted_after.into(),
            "age" => usage.oldest.map_or(0, |oldest| store.clock.now().saturating_sub(oldest)).into(),
            "reclaimed" => counted.expired,
            "crawler_reclaimed" => counted.expired - counted.found_expired,
            "crawler_items_checked" => counted.crawled,
            "items_moved" | "moves_within_lru" => counted.moved,
            "outofmemory" => totals.store_no_memory,
            "hits_to_cold" => totals.get_hits,
            "chunk_size" => mean,
            "chunks_per_page" => store.shards.segment_size as u64 / mean.max(1),
            "total_pages" => usage.segments,
            _ => totals.named(name)?,
        };
        Some(number.to_string())
    }
}

/// A setting's value, as memcached shows it.
fn setting(context: &ServerContext, name: &str) -> String {
    let config = &context.config;
    let tls = config.tls.as_ref();
    let yes_or_no = |value| if value { "yes" } else { "no" };
    // As in memcached, 0 is none and -1 any.
    let port = |port: Option<u16>| match port {
        None => "0".to_owned(),
        Some(0) => "-1".to_owned(),
        Some(port) => port.to_string(),
    };
    let path = |path: Option<&std::path::PathBuf>, none: &str| {
        path.map_or(none.to_owned(), |path| path.display().to_string())
    };
    let text = match name {
        "maxbytes" => return context.store.limit().to_string(),
        "maxconns" => return config.max_connections.to_string(),
        "tcpport" => return port(config.port),
        "udpport" => return port(config.udp_port),
        "inter" => {
            let listen: Vec<String> = config.listen.iter().map(|(ip, _)| ip.to_string()).collect();
            return listen.join(",");
        }
        "verbosity" => return logging::verbosity().to_string(),
        "evictions" if config.evict => "on",
        "evictions" => "off",
        "domain_socket" => return path(config.unix_socket.as_ref(), "NULL"),
        "umask" => return format!("{:o}", config.unix_mode),
        "shutdown_command" => yes_or_no(config.shutdown_allowed),
        "num_threads" => return context.counters.workers().to_string(),
        "num_threads_per_udp" => return u8::from(config.udp_port.is_some()).to_string(),
        "reqs_per_event" => return config.requests_per_turn.to_string(),
        "cas_enabled" => yes_or_no(config.cas),
        "tcp_backlog" => return config.backlog.unsigned_abs().to_string(),
        "binding_protocol" => match config.protocol {
            Protocol::Auto => "auto-negotiate",
            Protocol::Ascii => "ascii",
            Protocol::Binary => "binary",
        },
        "auth_enabled_sasl" => yes_or_no(config.sasl),
        "auth_enabled_ascii" => return path(config.users_file.as_ref().filter(|_| !config.sasl), "no"),
        "item_size_max" => return config.max_item.to_string(),
        "slab_chunk_max" => return context.store.shards.segment_size.to_string(),
        "lru_crawler" => yes_or_no(!context.crawler_disabled.load()),
        "flush_enabled" => yes_or_no(config.flush_allowed),
        "dump_enabled" => yes_or_no(config.dump_allowed),
        "idle_timeout" => return config.idle_timeout.map_or(0, |timeout| timeout.as_secs()).to_string(),
        "ssl_enabled" => yes_or_no(tls.is_some()),
        "ssl_chain_cert" => return path(tls.map(|tls| &tls.certificates), "NULL"),
        "ssl_key" => return path(tls.map(|tls| &tls.key), "NULL"),
        "ssl_ca_cert" => return path(tls.and_then(|tls| tls.authorities.as_ref()), "NULL"),
        "ssl_verify_mode" => match tls.and_then(|tls| tls.client_certificates) {
            None => "0",
            Some(ClientCertificates::Optional) => "1",
            Some(ClientCertificates::Required) => "2",
        },
        "ssl_min_version" if tls.is_some_and(|tls: &TlsConfig| tls.require_tls13) => "tlsv1.3",
        "ssl_min_version" => "tlsv1.2",
        _ => "",
    };
    text.to_owned()
}
