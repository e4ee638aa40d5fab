//! The options behind `-o`.

use std::path::PathBuf;

/// What they say.
#[derive(Debug)]
pub struct Extended {
    pub maxconns_fast: bool,
    /// In seconds.
    pub idle_timeout: Option<u64>,
    pub chain: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub authorities: Option<PathBuf>,
    /// memcached's numbers: 0 is no certificate of clients, 1 if they have one, 2 and 3 always.
    pub verify_mode: u8,
    pub only_1_3: bool,
    /// The first option that is about TLS.
    pub tls_option: Option<String>,
}

/// Options that change nothing here, with or without `no_`.
const WITHOUT_EFFECT: [&str; 31] = [
    "hashpower",
    "hash_algorithm",
    "tail_repair_time",
    "lru_crawler",
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "lru_maintainer",
    "hot_lru_pct",
    "warm_lru_pct",
    "hot_max_factor",
    "warm_max_factor",
    "temporary_ttl",
    "slab_reassign",
    "slab_automove",
    "slab_automove_ratio",
    "slab_automove_window",
    "slab_automove_freeratio",
    "slab_chunk_max",
    "track_sizes",
    "modern",
    "hashexpand",
    "read_buf_mem_limit",
    "resp_obj_mem_limit",
    "watcher_logbuf_size",
    "worker_logbuf_size",
    "ssl_wbuf_size",
    "ssl_session_cache",
    "ssl_kernel_tls",
    "inline_ascii_resp",
    "drop_privileges",
    "lru_segmented",
];

fn name(option: &str) -> &str {
    option.split_once('=').map_or(option, |(name, _)| name)
}

fn has_no_effect(option: &str) -> bool {
    let name = name(option);
    WITHOUT_EFFECT.contains(&name.strip_prefix("no_").unwrap_or(name))
}

/// What there is to say of an option that has no effect.
pub fn note(option: &str) -> Option<String> {
    has_no_effect(option).then(|| format!("-o {} has no effect here", name(option)))
}

impl Extended {
    /// Reads the options.
    pub fn parse(options: &[String]) -> Result<Self, String> {
        let mut all = Self {
            maxconns_fast: true,
            idle_timeout: None,
            chain: None,
            key: None,
            authorities: None,
            verify_mode: 0,
            only_1_3: false,
            tls_option: None,
        };
        options.iter().filter(|option| !option.is_empty()).try_for_each(|option| all.read(option))?;
        Ok(all)
    }

    fn read(&mut self, option: &str) -> Result<(), String> {
        let value = option.split_once('=').map(|(_, value)| value).filter(|value| !value.is_empty());
        let needed = || value.ok_or_else(|| format!("-o {option}: write {}=VALUE", name(option)));
        let name = name(option);
        if name.starts_with("ssl_") && !has_no_effect(option) {
            self.tls_option.get_or_insert_with(|| name.to_owned());
        }
        match name {
            "maxconns_fast" => self.maxconns_fast = true,
            "no_maxconns_fast" => self.maxconns_fast = false,
            "idle_timeout" => {
                let seconds = needed()?.parse::<u64>().ok();
                let seconds = seconds.ok_or_else(|| format!("-o {option}: write a number of seconds"))?;
                self.idle_timeout = (seconds > 0).then_some(seconds);
            }
            "ssl_chain_cert" => self.chain = Some(needed()?.into()),
            "ssl_key" => self.key = Some(needed()?.into()),
            "ssl_ca_cert" => self.authorities = Some(needed()?.into()),
            "ssl_verify_mode" => {
                let mode = needed()?.parse::<u8>().ok().filter(|mode| *mode <= 3);
                self.verify_mode = mode.ok_or_else(|| format!("-o {option}: write 0, 1, 2 or 3"))?;
            }
            "ssl_min_version" => match needed()? {
                "tlsv1.2" => self.only_1_3 = false,
                "tlsv1.3" => self.only_1_3 = true,
                "tlsv1.0" | "tlsv1.1" => {
                    return Err(format!("-o {option} is refused: versions before TLS 1.2 are not safe"));
                }
                _ => return Err(format!("-o {option}: write tlsv1.2 or tlsv1.3")),
            },
            "ssl_keyformat" if needed()?.eq_ignore_ascii_case("PEM") => {}
            "ssl_keyformat" => return Err(format!("-o {option} is refused: keys are read in PEM")),
            "ssl_ciphers" => {
                return Err(
                    "-o ssl_ciphers is refused: only suites without known faults are offered".to_owned()
                );
            }
            "sock_cookie_id" => {
                return Err(
                    "-o sock_cookie_id is refused: sockets are not marked, so a filter would fail".to_owned()
                );
            }
            _ if name.starts_with("ext_") => {
                return Err(format!("-o {name} is refused: there is no storage but memory"));
            }
            _ if has_no_effect(option) => {}
            _ => return Err(format!("-o {option}: there is no such option; see --help")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[&str]) -> Result<Extended, String> {
        Extended::parse(&options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_honoured_taken_or_refused() {
        let all = parse(&["no_maxconns_fast", "idle_timeout=30", "hashpower=20", "no_lru_crawler"]).unwrap();
        assert!(!all.maxconns_fast && all.idle_timeout == Some(30));
        assert_eq!(parse(&["idle_timeout=0"]).unwrap().idle_timeout, None);
        assert!(note("no_lru_crawler").is_some() && note("idle_timeout=3").is_none());
        for wrong in [
            "idle_timeout",
            "idle_timeout=x",
            "ext_path=/tmp/x:1G",
            "bogus",
            "ssl_min_version=tlsv1.0",
            "ssl_ciphers=x",
        ] {
            let error = parse(&[wrong]).unwrap_err();
            assert!(error.contains(name(wrong)), "{error}");
        }
    }
}
