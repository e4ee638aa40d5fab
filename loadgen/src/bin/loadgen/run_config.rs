//! Converts flags to the configuration of a run.

use std::path::Path;
use std::time::Duration;

use loadgen::{
    Arrival, Assign, Config, Credentials, Distribution, Loop, MeasurementOverrides, Mix, Protocol, TlsFiles,
    Workload,
};
use policies::Cpus;
use runtime::{Builder, WaitStrategy};

use crate::flags::Flags;

impl Flags {
    /// The configuration of a run. Reads the files that it needs.
    pub fn config(&self) -> Result<Config, String> {
        let (key, value, arrival) = if self.etc {
            (Distribution::EtcKey, Distribution::EtcValue, Arrival::etc())
        } else {
            (self.keysize, self.valuesize, self.iadist)
        };
        let credentials = self.username.clone().map(|user| {
            let password = match &self.password_file {
                Some(path) => first_line(path)?,
                None => self.password.clone().unwrap_or_default(),
            };
            Ok::<_, String>(Credentials { user, password })
        });
        // Without a measurement the duration doesn't matter, but it must be valid.
        let time = if self.loadonly { self.time.max(1.0) } else { self.time };
        Ok(Config {
            servers: self.servers.clone(),
            protocol: match (self.binary, self.udp) {
                _ if self.resp => Protocol::Resp,
                (true, _) => Protocol::Binary,
                (_, true) => Protocol::Udp,
                _ => Protocol::Text,
            },
            credentials: credentials.transpose()?,
            tls: self.tls.then(|| TlsFiles {
                ca_certificates: self.cacert.clone(),
                certificate: self.cert.clone(),
                key: self.key.clone(),
                server_name: self.sni.clone(),
                skip_verification: self.tls_skip_verify,
            }),
            connections: self.connections as usize,
            round_robin: self.roundrobin,
            depth: self.depth as usize,
            pacing: match self.qps {
                // Search and scan use only the gaps, and set the rate themselves.
                _ if self.search.is_some() || self.scan.is_some() => Loop::Open { rate: 1.0, arrival },
                0.0 => Loop::Closed,
                rate => Loop::Open { rate, arrival },
            },
            assign: self.assign,
            skip: self.skip,
            moderate: self.moderate,
            think: self.think,
            churn: self.churn,
            nodelay: !self.no_nodelay,
            workload: Workload {
                key,
                value,
                records: (self.records / self.servers.len() as u64).max(1),
                popularity: self.popularity,
                mix: self.mix.clone().unwrap_or_else(|| Mix::updates(self.update)),
                multiget: self.multiget,
                ttl: Duration::from_secs(self.ttl),
                verify: self.verify,
                fill: self.fill,
            },
            workers_spin: matches!(self.wait, Some(WaitStrategy::Spin | WaitStrategy::Adaptive)),
            warm_up: self.warmup,
            duration: Duration::from_secs_f64(time),
            target_precision: self.until_ci,
            seed: self.seed,
            sample_file: self.save.clone(),
            measurement_overrides: MeasurementOverrides {
                connections: self.measure_connections.map(|connections| connections as usize),
                depth: self.measure_depth.map(|depth| depth as usize),
                rate: self.measure_qps,
            },
        })
    }

    /// The message for a flag whose feature this build lacks.
    pub fn missing_feature(&self) -> Option<&'static str> {
        if !cfg!(feature = "agents")
            && (self.agent_mode || !self.agents.is_empty() || self.new_identity.is_some())
        {
            return Some("agents are not available: loadgen was built without the `agents` feature");
        }
        if !cfg!(feature = "tls") && self.tls {
            return Some("--tls is not available: loadgen was built without the `tls` feature");
        }
        None
    }

    /// The message for flags that can't be combined, as far as clap doesn't check that.
    pub fn conflict(&self) -> Option<&'static str> {
        if self.loadonly && (self.search.is_some() || self.scan.is_some()) {
            return Some("--loadonly can't be combined with --search and --scan");
        }
        if self.time <= 0.0 && !self.loadonly {
            return Some("the duration of the measurement (-t) is 0");
        }
        let open =
            self.qps > 0.0 || self.search.is_some() || self.scan.is_some() || self.measure_qps.is_some();
        if (self.skip || self.moderate || self.assign != Assign::default()) && !open {
            return Some("--skip, --moderate and --assign apply to the open loop only; use -q");
        }
        if self.tls && self.cacert.is_none() && !self.tls_skip_verify {
            return Some("--tls needs --cacert FILE, or --tls-skip-verify to accept any certificate");
        }
        None
    }

    pub fn builder(&self) -> std::io::Result<Builder> {
        let mut builder = Builder::new().workers(self.threads.into());
        if let Some(policy) = self.policy {
            builder = builder.policy(policy);
        }
        if let Some(name) = &self.interface {
            builder = builder.interface(name);
        }
        if let Some(wait) = self.wait {
            builder = builder.wait(wait);
        }
        if let Some(driver) = self.driver {
            builder = builder.driver(driver);
        }
        let all = if self.affinity { Some(Cpus::allowed()?) } else { None };
        if let Some(cores) = self.cores.clone().or(all) {
            builder = builder.cores(cores);
        }
        Ok(builder)
    }
}

fn first_line(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    match text.lines().next().map(str::trim) {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(format!("{}: the first line is empty", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use loadgen::WarmUp;

    use super::*;

    #[test]
    fn a_command_line_of_mutilate_keeps_its_meaning() {
        let line = "loadgen -s 127.0.0.1 -s 127.0.0.2:7 -q 5000 -t 10 -K fb_key -V fb_value -r 1000 -u 0.1 \
                    -T 4 --affinity -c 8 -d 2 -R -i fb_ia -S --moderate --noload -B --no_nodelay -w 2 -W 0 \
                    -a 127.0.0.1 -a 127.0.0.1:7 -p 5557 -l 2 -C 1 -Q 1000 -D 1 --binary -U me -P it --save /tmp/x";
        let flags = Flags::try_parse_from(line.split_whitespace()).unwrap();
        assert!(flags.conflict().is_none() && flags.affinity && flags.noload && flags.blocking);
        let config = flags.config().unwrap();
        assert_eq!(config.servers[0].to_string(), "127.0.0.1:11211");
        assert_eq!((config.connections, config.depth, config.workload.records), (8, 2, 500));
        assert_eq!(config.pacing, Loop::Open { rate: 5000.0, arrival: Arrival::etc() });
        assert_eq!(config.warm_up, WarmUp::Fixed(Duration::from_secs(2)));
        assert_eq!((flags.agents.len(), flags.agent_port, flags.lambda_mul), (2, 5557, 2));
        assert_eq!(
            config.measurement_overrides,
            MeasurementOverrides { connections: Some(1), depth: Some(1), rate: Some(1000.0) }
        );
        assert_eq!(
            (config.protocol, config.credentials.unwrap().password),
            (Protocol::Binary, "it".to_owned())
        );
        assert!(config.round_robin && config.skip && config.moderate && !config.nodelay);
        assert_eq!(config.workload.mix, Mix::updates(0.1));
        assert_eq!(
            (config.workload.key, config.workload.value),
            (Distribution::EtcKey, Distribution::EtcValue)
        );
        let plain = Flags::try_parse_from(["loadgen"]).unwrap().config().unwrap();
        assert_eq!((plain.connections, plain.depth, plain.pacing), (1, 1, Loop::Closed));
    }

    #[test]
    fn invalid_flags_are_rejected_with_a_reason() {
        for line in [
            "-q -1",
            "-q x",
            "-q 1e-20",
            "-i fixed:0",
            "-w soon",
            "-u 2",
            "--mix get",
            "--popularity zipf",
            "-K x",
            "-s nobody:x",
            "--mix get=1 -u 0.5",
            "--noload --loadonly",
            "-c 0",
            "--multiget 0",
            "--search 99",
            "--scan 5:1:1",
            "--scan 1:5",
            "--scan 1:5:0",
            "--until-ci 0",
            "--search 99:5 -q 5",
            "--churn -1",
            "-P secret",
            "--cacert x",
            "--binary --udp",
            "-A -a host",
            "-C 4",
        ] {
            let arguments = std::iter::once("loadgen").chain(line.split(' '));
            let error = Flags::try_parse_from(arguments).err().expect(line).to_string();
            assert!(error.contains("error:"), "{line}: {error}");
        }
        for (line, word) in [
            ("-t 0", "-t"),
            ("--skip", "-q"),
            ("--loadonly --search 9:9", "--loadonly"),
            ("--tls", "--cacert"),
        ] {
            let arguments = std::iter::once("loadgen").chain(line.split(' '));
            let flags = Flags::try_parse_from(arguments).unwrap();
            assert!(flags.conflict().unwrap().contains(word), "{line}");
        }
    }
}
