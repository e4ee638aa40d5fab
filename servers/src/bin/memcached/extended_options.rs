//! memcached's extended options, `-o`.

use std::path::PathBuf;

use servers::memcached::ClientCertificates;

#[derive(Debug)]
pub struct ExtendedOptions {
    pub maxconns_fast: bool,
    /// In seconds.
    pub idle_timeout: Option<u64>,
    pub tls_chain: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub tls_authorities: Option<PathBuf>,
    pub client_certificates: ClientCertificates,
    pub require_tls13: bool,
    pub tls_option: Option<String>,
}

/// Options that are accepted without effect, also with the prefix `no_`.
const IGNORED: [&str; 30] = [
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
    "lru_segmented",
];

fn name(option: &str) -> &str {
    option.split_once('=').map_or(option, |(name, _)| name)
}

fn is_ignored(option: &str) -> bool {
    let name = name(option);
    IGNORED.contains(&name.strip_prefix("no_").unwrap_or(name))
}

pub fn ignored_warning(option: &str) -> Option<String> {
    is_ignored(option).then(|| format!("-o {} has no effect in this server", name(option)))
}

impl ExtendedOptions {
    /// Parses the values of all `-o` flags.
    pub fn parse(options: &[String]) -> Result<Self, String> {
        let mut parsed = Self {
            maxconns_fast: true,
            idle_timeout: None,
            tls_chain: None,
            tls_key: None,
            tls_authorities: None,
            client_certificates: ClientCertificates::Ignored,
            require_tls13: false,
            tls_option: None,
        };
        options.iter().filter(|option| !option.is_empty()).try_for_each(|option| parsed.set(option))?;
        Ok(parsed)
    }

    fn set(&mut self, option: &str) -> Result<(), String> {
        let value = option.split_once('=').map(|(_, value)| value).filter(|value| !value.is_empty());
        let required = || value.ok_or_else(|| format!("-o {option}: expected {}=VALUE", name(option)));
        let name = name(option);
        if name.starts_with("ssl_") && !is_ignored(option) {
            self.tls_option.get_or_insert_with(|| name.to_owned());
        }
        match name {
            "maxconns_fast" => self.maxconns_fast = true,
            "no_maxconns_fast" => self.maxconns_fast = false,
            "idle_timeout" => {
                let seconds = required()?.parse::<u64>().ok();
                let seconds = seconds.ok_or_else(|| format!("-o {option}: expected a number of seconds"))?;
                self.idle_timeout = (seconds > 0).then_some(seconds);
            }
            "ssl_chain_cert" => self.tls_chain = Some(required()?.into()),
            "ssl_key" => self.tls_key = Some(required()?.into()),
            "ssl_ca_cert" => self.tls_authorities = Some(required()?.into()),
            "ssl_verify_mode" => {
                self.client_certificates = match required()?.parse::<u8>() {
                    Ok(0) => ClientCertificates::Ignored,
                    Ok(1) => ClientCertificates::Optional,
                    Ok(2 | 3) => ClientCertificates::Required,
                    _ => return Err(format!("-o {option}: expected 0, 1, 2 or 3")),
                };
            }
            "ssl_min_version" => match required()? {
                "tlsv1.2" => self.require_tls13 = false,
                "tlsv1.3" => self.require_tls13 = true,
                "tlsv1.0" | "tlsv1.1" => {
                    return Err(format!("-o {option} is refused: versions before TLS 1.2 are not secure"));
                }
                _ => return Err(format!("-o {option}: expected tlsv1.2 or tlsv1.3")),
            },
            "ssl_keyformat" if required()?.eq_ignore_ascii_case("PEM") => {}
            "ssl_keyformat" => return Err(format!("-o {option} is refused: only PEM keys are supported")),
            "ssl_ciphers" => {
                return Err(
                    "-o ssl_ciphers is refused: the cipher suites are fixed, and all of them are secure"
                        .to_owned(),
                );
            }
            "drop_privileges" => {
                return Err(
                    "-o drop_privileges is refused: there is no seccomp filter; -u USER gives up root"
                        .to_owned(),
                );
            }
            "no_drop_privileges" => {}
            "sock_cookie_id" => {
                return Err(
                    "-o sock_cookie_id is refused: sockets are not marked, so a packet filter would not match".to_owned()
                );
            }
            _ if name.starts_with("ext_") => {
                return Err(format!("-o {name} is refused: there is no storage but memory"));
            }
            _ if is_ignored(option) => {}
            _ => return Err(format!("-o {option}: no such option; see --help")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[&str]) -> Result<ExtendedOptions, String> {
        ExtendedOptions::parse(&options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_applied_ignored_or_refused() {
        let options =
            parse(&["no_maxconns_fast", "idle_timeout=30", "hashpower=20", "no_lru_crawler"]).unwrap();
        assert!(!options.maxconns_fast && options.idle_timeout == Some(30));
        parse(&["no_drop_privileges"]).unwrap();
        assert_eq!(parse(&["idle_timeout=0"]).unwrap().idle_timeout, None);
        assert!(ignored_warning("no_lru_crawler").is_some() && ignored_warning("idle_timeout=3").is_none());
        for wrong in [
            "idle_timeout",
            "idle_timeout=x",
            "ext_path=/tmp/x:1G",
            "bogus",
            "ssl_min_version=tlsv1.0",
            "ssl_ciphers=x",
            "drop_privileges",
        ] {
            let error = parse(&[wrong]).unwrap_err();
            assert!(error.contains(name(wrong)), "{error}");
        }
    }
}
