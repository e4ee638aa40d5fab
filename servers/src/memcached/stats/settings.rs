//! The section `settings` of `stats`.

use super::stat_writer::StatWriter;
use crate::memcached::config::Protocol;
use crate::memcached::context::ServerContext;
use crate::memcached::tls::ClientCertificates;

fn yes_or_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// Writes the section `settings`: every name of memcached 1.6.45. What has no meaning here has the value of memcached
/// without the feature.
pub fn write(context: &ServerContext, put: &mut StatWriter<'_>) {
    let config = &context.config;
    // As in memcached, 0 is none and -1 any.
    let port = |port: Option<u16>| match port {
        None => "0".to_owned(),
        Some(0) => "-1".to_owned(),
        Some(port) => port.to_string(),
    };
    put.number("maxbytes", context.store.limit());
    put.number("maxconns", config.max_connections as u64);
    put.text("tcpport", &port(config.port));
    put.text("udpport", &port(config.udp_port));
    let listen: Vec<String> = config.listen.iter().map(|(ip, _)| ip.to_string()).collect();
    put.text("inter", &listen.join(","));
    put.number("verbosity", context.verbosity().into());
    put.number("oldest", 0);
    put.text("evictions", if config.evict { "on" } else { "off" });
    let path = config.unix_socket.as_ref().map(|path| path.display().to_string());
    put.text("domain_socket", path.as_deref().unwrap_or("NULL"));
    put.text("umask", &format!("{:o}", config.unix_mode));
    put.text("shutdown_command", yes_or_no(config.shutdown_allowed));
    put.text("growth_factor", "1.25");
    put.number("chunk_size", 48);
    put.number("num_threads", context.counters.workers() as u64);
    put.number("num_threads_per_udp", u64::from(config.udp_port.is_some()));
    put.text("stat_key_prefix", &char::from(context.prefix_counts.delimiter()).to_string());
    put.text("detail_enabled", yes_or_no(context.prefix_counts.is_enabled()));
    put.number("reqs_per_event", config.requests_per_turn.into());
    put.text("cas_enabled", yes_or_no(config.cas));
    put.number("tcp_backlog", u64::from(config.backlog.unsigned_abs()));
    put.text(
        "binding_protocol",
        match config.protocol {
            None => "auto-negotiate",
            Some(Protocol::Ascii) => "ascii",
            Some(Protocol::Binary) => "binary",
        },
    );
    put.text("auth_enabled_sasl", yes_or_no(config.sasl));
    let users = config.users_file.as_ref().filter(|_| !config.sasl).map(|path| path.display().to_string());
    put.text("auth_enabled_ascii", users.as_deref().unwrap_or("no"));
    put.number("item_size_max", config.max_item as u64);
    put.text("maxconns_fast", yes_or_no(config.refuse_when_full));
    put.number("hashpower_init", 0);
    put.text("slab_reassign", "no");
    put.number("slab_automove", 0);
    put.text("slab_automove_ratio", "0.80");
    put.number("slab_automove_window", 30);
    put.number("slab_chunk_max", context.store.segment_size() as u64);
    put.text("lru_crawler", "yes");
    put.neutral(&["lru_crawler_sleep", "lru_crawler_tocrawl", "tail_repair_time"], "0");
    put.text("flush_enabled", yes_or_no(config.flush_allowed));
    put.text("dump_enabled", yes_or_no(config.dump_allowed));
    put.text("hash_algorithm", "foldhash");
    put.text("lru_maintainer_thread", "no");
    put.text("lru_segmented", "no");
    put.neutral(&["hot_lru_pct", "warm_lru_pct"], "0");
    put.neutral(&["hot_max_factor", "warm_max_factor"], "0.00");
    put.text("temp_lru", "no");
    put.number("temporary_ttl", 0);
    put.number("idle_timeout", config.idle_timeout.map_or(0, |timeout| timeout.as_secs()));
    put.neutral(&["watcher_logbuf_size", "worker_logbuf_size", "read_buf_mem_limit"], "0");
    put.text("track_sizes", "no");
    put.neutral(&["inline_ascii_response", "drop_privileges"], "no");
    put.text("ssl_enabled", yes_or_no(config.tls.is_some()));
    tls(context, put);
    put.number("num_napi_ids", 0);
    put.text("memory_file", "(null)");
    put.number("client_flags_size", 4);
}

fn tls(context: &ServerContext, put: &mut StatWriter<'_>) {
    let tls = context.config.tls.as_ref();
    let path =
        |path: Option<&std::path::PathBuf>| path.map_or("NULL".to_owned(), |path| path.display().to_string());
    put.text("ssl_chain_cert", &path(tls.map(|tls| &tls.certificates)));
    put.text("ssl_key", &path(tls.map(|tls| &tls.key)));
    let verify = tls.map_or(0, |tls| match tls.client_certificates {
        ClientCertificates::Ignored => 0,
        ClientCertificates::Optional => 1,
        ClientCertificates::Required => 2,
    });
    put.number("ssl_verify_mode", verify);
    // PEM, in OpenSSL's numbers.
    put.number("ssl_keyformat", 1);
    put.text("ssl_ciphers", "NULL");
    put.text("ssl_ca_cert", &path(tls.and_then(|tls| tls.authorities.as_ref())));
    put.number("ssl_wbuf_size", 0);
    put.neutral(&["ssl_session_cache", "ssl_kernel_tls"], "no");
    put.text("ssl_min_version", if tls.is_some_and(|tls| tls.require_tls13) { "tlsv1.3" } else { "tlsv1.2" });
}
