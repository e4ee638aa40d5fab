//! Grace times in turns while one server runs under one load, so that differences between processes and drift of a
//! shared machine cancel out.

use std::thread;
use std::time::{Duration, Instant};

use loadgen::interleaved_rounds::{Conditions, Round, Rounds, TurnOrder};
use policies::host;
use policies::netlink::netdev::{NapiSetting, Netdev};
use serde::{Deserialize, Serialize};
use servers::memcached::Server;

use crate::Error;

/// Which grace times take turns, and for how long.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GraceTimeTurns {
    /// The grace times.
    pub grace_times: Vec<Duration>,
    /// The number of rounds.
    pub rounds: usize,
    /// How long requests are counted in each turn.
    pub duration: Duration,
}

/// How long a grace time is in force before requests are counted.
const SETTLE: Duration = Duration::from_millis(3);

impl GraceTimeTurns {
    /// The time that all rounds take.
    pub fn total_duration(&self) -> Duration {
        let turns = u32::try_from(self.grace_times.len() * self.rounds).unwrap_or(u32::MAX);
        (SETTLE + self.duration) * turns
    }

    /// Measures the server's requests a second under each grace time. A turn has no value if somebody overwrote its
    /// grace time meanwhile, or if no requests came.
    ///
    /// # Errors
    /// If the interface has no NAPI, or if its settings can't be read or written.
    pub fn measure(&self, server: &Server, interface: &str) -> Result<Vec<Round<f64>>, Error> {
        let queues = host::interface(interface)?.queues;
        let napi = queues.iter().find_map(|queue| queue.napi.as_ref());
        let napi = napi.ok_or_else(|| Error::NoNapi(interface.to_owned()))?.id;
        let mut netdev = Netdev::open()?;
        let before = netdev.napi(napi)?.gro_flush_timeout;
        let rounds = self.measure_napi(server, napi, &mut netdev);
        // On restore the server's journal would take another value for somebody else's, and leave it.
        if let Some(before) = before {
            netdev.set_napi(napi, NapiSetting::GroFlushTimeout, before)?;
        }
        rounds
    }

    fn measure_napi(
        &self,
        server: &Server,
        napi: u32,
        netdev: &mut Netdev,
    ) -> Result<Vec<Round<f64>>, Error> {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut rounds = Rounds::new(self.grace_times.len(), self.rounds).order(TurnOrder::RotatedPairs);
        while let Some(turn) = rounds.next_turn() {
            let time = self.grace_times[turn.contestant()];
            netdev.set_napi(napi, NapiSetting::GroFlushTimeout, nanos(time))?;
            thread::sleep(SETTLE);
            let (start, before) = (Instant::now(), server.requests());
            thread::sleep(self.duration);
            let rate = (server.requests() - before) as f64 / start.elapsed().as_secs_f64();
            let overwritten = netdev.napi(napi)?.gro_flush_timeout != Some(nanos(time));
            // Without requests the load had not begun, or had ended.
            let valid = !overwritten && rate > 0.0;
            // The load runs without a pause, so the distance of the cores can't be measured here; see the caller.
            rounds.finish_turn(turn, valid.then_some(rate), Conditions::default());
        }
        Ok(rounds.finish().into_leading().rounds)
    }
}
