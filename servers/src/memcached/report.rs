//! The answer to `stats`.

use std::fmt::Display;

use super::server::Shared;
use super::{VERSION, command};

/// Appends the answer to `stats` or `stats <section>`.
pub fn stats(shared: &Shared, section: &[u8], out: &mut Vec<u8>) {
    match section {
        b"" => general(shared, out),
        b"settings" => settings(shared, out),
        b"reset" => {
            shared.stats.reset();
            out.extend_from_slice(b"RESET\r\n");
            return;
        }
        // A server without slabs has nothing to list in these.
        b"items" | b"slabs" | b"sizes" | b"conns" => {}
        _ => {
            out.extend_from_slice(command::ERROR);
            return;
        }
    }
    out.extend_from_slice(b"END\r\n");
}

fn line(out: &mut Vec<u8>, name: &str, value: impl Display) {
    out.extend_from_slice(format!("STAT {name} {value}\r\n").as_bytes());
}

fn general(shared: &Shared, out: &mut Vec<u8>) {
    let (store, totals) = (&shared.store, shared.stats.totals());
    let mut put = |name: &str, value: u64| line(out, name, value);
    put("pid", u64::from(std::process::id()));
    put("uptime", u64::from(store.clock().now()));
    put("time", store.clock().unix().unsigned_abs());
    line(out, "version", VERSION);
    let mut put = |name: &str, value: u64| line(out, name, value);
    put("pointer_size", u64::from(usize::BITS));
    put("max_connections", shared.max_connections as u64);
    put("curr_connections", shared.open() as u64);
    put("total_connections", totals.total_connections);
    put("rejected_connections", totals.rejected_connections);
    put("cmd_get", totals.cmd_get);
    put("cmd_set", totals.cmd_set);
    put("cmd_flush", totals.cmd_flush);
    put("cmd_touch", totals.cmd_touch);
    put("get_hits", totals.get_hits);
    put("get_misses", totals.get_misses);
    put("delete_misses", totals.delete_misses);
    put("delete_hits", totals.delete_hits);
    put("incr_misses", totals.incr_misses);
    put("incr_hits", totals.incr_hits);
    put("decr_misses", totals.decr_misses);
    put("decr_hits", totals.decr_hits);
    put("cas_misses", totals.cas_misses);
    put("cas_hits", totals.cas_hits);
    put("cas_badval", totals.cas_badval);
    put("touch_hits", totals.touch_hits);
    put("touch_misses", totals.touch_misses);
    put("bytes_read", totals.bytes_read);
    put("bytes_written", totals.bytes_written);
    put("limit_maxbytes", store.limit());
    put("threads", shared.stats.workers() as u64);
    put("bytes", store.bytes());
    put("curr_items", store.items() as u64);
    put("total_items", totals.cmd_set);
    put("evictions", store.evictions());
}

fn settings(shared: &Shared, out: &mut Vec<u8>) {
    line(out, "maxbytes", shared.store.limit());
    line(out, "maxconns", shared.max_connections);
    line(out, "num_threads", shared.stats.workers());
    line(out, "item_size_max", shared.store.largest());
    line(out, "evictions", "on");
    line(out, "cas_enabled", "yes");
    line(out, "binding_protocol", "ascii");
    line(out, "udpport", 0);
}
