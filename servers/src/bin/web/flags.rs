//! The command line.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::{ArgAction, Parser};
use servers::web::{Config, FilesConfig, ProxyConfig, TlsConfig};

use crate::shared::network_flags::NetworkFlags;

/// A web server for files and a reverse proxy, which reduces the network card's interrupts under
/// load
#[derive(Debug, Parser)]
#[command(name = "web", version, after_help = AFTER_HELP)]
pub struct Flags {
    /// Folder with the files to serve
    root: Option<PathBuf>,
    /// Address to serve HTTP on, as 8080, 127.0.0.1:8081 or 0.0.0.0:80; may be repeated [default:
    /// 127.0.0.1:8080]
    #[arg(short, long, value_name = "ADDR", value_parser = parse_address)]
    listen: Vec<SocketAddr>,
    /// Address to serve HTTPS on, as 8443 (on 127.0.0.1) or 0.0.0.0:443; needs --certificate and
    /// --key; may be repeated
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    tls_listen: Vec<SocketAddr>,
    /// Certificate chain, a PEM file
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// Private key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// Forward requests below a path, as /api=http://127.0.0.1:9000, or all of them, as
    /// /=http://127.0.0.1:9000; several servers are separated by commas; may be repeated
    #[arg(short, long, value_name = "PATH=URL", value_parser = parse_proxy)]
    proxy: Vec<ProxyConfig>,
    /// Serve files and folders whose names begin with a dot, too
    #[arg(long)]
    dotfiles: bool,
    /// Write one line per request to a file; - is the standard output
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,
    /// Serve counters for Prometheus at a path, as /metrics; everybody who reaches the server can
    /// read them
    #[arg(long, value_name = "PATH")]
    stats: Option<String>,
    /// Read the configuration from a TOML file; flags override it
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration, as the user of --user if started as root, and end
    #[arg(long)]
    pub check: bool,
    /// Number of workers; by default one per receive queue of the interface, or per core without an
    /// interface
    #[arg(short = 't', long, value_name = "NUM", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub workers: Option<u16>,
    /// User to switch to after start; required if started as root (-u root stays root), else
    /// ignored
    #[arg(short, long, value_name = "USER", overrides_with = "user")]
    pub user: Option<String>,
    /// File to write the process ID to
    #[arg(short = 'P', long, value_name = "FILE")]
    pub pidfile: Option<PathBuf>,
    /// Log more: -v policies and health checks, -vv failed connections, -vvv everything
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
    #[command(flatten)]
    pub network: NetworkFlags,
}

const AFTER_HELP: &str = "\
Signals:
  TERM, INT  accept no more, answer the requests in progress, and end
  HUP        read the configuration and the certificates again, and open the access log again
  USR1       open the access log again

Example: web /srv/www --user www-data --listen 0.0.0.0:80 --proxy /api=http://127.0.0.1:9000 --access-log access.log";

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(port) = text.parse() {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    match text.parse::<IpAddr>() {
        Ok(_) => Err(format!("the port is missing, as in {text}:8080 ([::1]:8080 for IPv6)")),
        Err(_) => {
            Err("expected an address with a port, as 127.0.0.1:8080 or [::1]:8080, or a port".to_owned())
        }
    }
}

fn parse_proxy(text: &str) -> Result<ProxyConfig, String> {
    let (path, upstreams) = text.split_once('=').ok_or("expected PATH=URL, as /api=http://127.0.0.1:9000")?;
    let mut config = ProxyConfig::new(path, "");
    config.upstreams = upstreams.split(',').map(str::to_owned).collect();
    Ok(config)
}

impl Flags {
    /// The configuration: the file's, if there is one, with what the flags say.
    pub fn config(&self) -> Result<Config, String> {
        let mut config = match &self.config {
            Some(path) => Config::read(path).map_err(|error| error.to_string())?,
            None => Config::default(),
        };
        if let Some(root) = &self.root {
            match &mut config.files {
                Some(files) => files.root.clone_from(root),
                None => config.files = Some(FilesConfig::new(root)),
            }
        }
        if self.dotfiles {
            match &mut config.files {
                Some(files) => files.dotfiles = true,
                None => return Err("--dotfiles is for files: give a folder to serve".to_owned()),
            }
        }
        config.proxy.extend(self.proxy.iter().cloned());
        self.configure_tls(&mut config)?;
        if !self.listen.is_empty() {
            config.listen.clone_from(&self.listen);
        } else if self.config.is_none() && !self.tls_listen.is_empty() {
            // HTTPS alone was asked for.
            config.listen.clear();
        }
        if let Some(path) = &self.access_log {
            config.access_log = Some(path.clone());
        }
        if let Some(path) = &self.stats {
            config.stats = Some(path.clone());
        }
        config.check().map_err(|error| match &self.config {
            Some(path) => format!("{}: {error}", path.display()),
            None => error.to_string(),
        })?;
        Ok(config)
    }

    fn configure_tls(&self, config: &mut Config) -> Result<(), String> {
        let given = self.certificate.clone().zip(self.key.clone());
        match (&mut config.tls, given) {
            (Some(tls), Some((certificate, key))) => (tls.certificate, tls.key) = (certificate, key),
            (None, Some((certificate, key))) => {
                let (listen, names) = (Vec::new(), Vec::new());
                let (require_tls13, http3) = (false, false);
                config.tls = Some(TlsConfig { listen, certificate, key, names, require_tls13, http3 });
            }
            (_, None) => {}
        }
        match &mut config.tls {
            Some(tls) if !self.tls_listen.is_empty() => tls.listen.clone_from(&self.tls_listen),
            None if !self.tls_listen.is_empty() => {
                return Err("--tls-listen needs --certificate and --key".to_owned());
            }
            Some(tls) if tls.listen.is_empty() => {
                return Err("--certificate and --key need an address for HTTPS: give --tls-listen".to_owned());
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(arguments: &[&str]) -> Result<Config, String> {
        let parsed = Flags::try_parse_from([&["web"], arguments].concat());
        parsed.map_err(|error| error.to_string())?.config()
    }

    #[test]
    fn flags_make_a_configuration() {
        let made = config(&["/srv", "-l", "8081", "-p", "/api=http://a:1,http://b:2", "--dotfiles"]).unwrap();
        assert_eq!(made.listen, ["127.0.0.1:8081".parse().unwrap()]);
        assert_eq!(made.proxy[0].path, "/api");
        assert_eq!(made.proxy[0].upstreams, ["http://a:1", "http://b:2"]);
        assert!(made.files.unwrap().dotfiles);
        let secure =
            config(&["/srv", "--tls-listen", "[::]:443", "--certificate", "c", "--key", "k"]).unwrap();
        assert!(secure.listen.is_empty());
        assert_eq!(secure.tls.unwrap().listen, ["[::]:443".parse().unwrap()]);
    }

    #[test]
    fn flags_complete_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[limits]\nconnections = 5").unwrap();
        let path = file.path().to_str().unwrap();
        let made = config(&["/srv", "-c", path]).unwrap();
        assert_eq!((made.files.unwrap().root, made.limits.connections), ("/srv".into(), 5));
        let error = config(&["-c", path]).unwrap_err();
        assert!(error.contains(path) && error.contains("nothing to serve"), "{error}");
    }

    #[test]
    fn what_is_missing_is_named() {
        for (arguments, named) in [
            (&[][..], "nothing to serve"),
            (&["/srv", "-l", "127.0.0.1"], "port is missing"),
            (&["/srv", "-l", "here"], "expected an address"),
            (&["/srv", "-p", "http://a"], "PATH=URL"),
            (&["-p", "/=http://a", "--dotfiles"], "give a folder"),
            (&["/srv", "--tls-listen", "443"], "--certificate"),
            (&["/srv", "--certificate", "c"], "--key"),
            (&["/srv", "--certificate", "c", "--key", "k"], "--tls-listen"),
            (&["/srv", "-c", "/nonexistent.toml"], "/nonexistent.toml"),
            (&["/srv", "--stats", "metrics"], "stats"),
        ] {
            let error = config(arguments).unwrap_err();
            assert!(error.contains(named), "{arguments:?}: {error}");
        }
    }
}
