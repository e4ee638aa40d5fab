//! Grace times taken in turns while one server runs under one load: what differs from process to process
//! and from second to second, on a machine that is shared, cancels out.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use loadgen::rounds::{Conditions, Round, Rounds, TurnOrder};
use policies::host;
use policies::netlink::netdev::{NapiSetting, Netdev};
use serde::{Deserialize, Serialize};
use servers::memcached::Server;

/// What is to be taken in turns.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Blocks {
    /// The grace times, one after the other; `None` is the runtime's own.
    pub turns: Vec<Option<Duration>>,
    /// How often each.
    pub rounds: usize,
    /// How long one is counted.
    pub length: Duration,
    /// Time before the first, for the runtime's own search.
    pub settle: Duration,
}

/// How long a grace time is in force before it is counted.
const SETTLE: Duration = Duration::from_millis(3);

impl Blocks {
    /// All of it.
    pub fn duration(&self) -> Duration {
        self.settle
            + (SETTLE + self.length) * u32::try_from(self.turns.len() * self.rounds).unwrap_or(u32::MAX)
    }

    /// Takes the turns. For each round the requests a second in each turn; `None` where the runtime has left
    /// its own choice behind in what was to be another's turn, or nothing came. `own` is what the runtime has found so far.
    pub fn take(
        &self,
        server: &Server,
        interface: &str,
        own: impl Fn() -> Duration,
    ) -> io::Result<Vec<Round<f64>>> {
        let interface = host::interface(interface).map_err(io::Error::other)?;
        let napi = interface.queues.iter().find_map(|queue| queue.napi.as_ref());
        let napi = napi.ok_or_else(|| io::Error::other("the interface has no NAPI"))?.id;
        let mut netdev = Netdev::open()?;
        let before = netdev.napi(napi)?.gro_flush_timeout;
        let rounds = self.take_from(server, napi, &mut netdev, own);
        // The server's journal takes another value for somebody else's, and would leave it.
        if let Some(before) = before {
            netdev.set_napi(napi, NapiSetting::GroFlushTimeout, before)?;
        }
        rounds
    }

    fn take_from(
        &self,
        server: &Server,
        napi: u32,
        netdev: &mut Netdev,
        own: impl Fn() -> Duration,
    ) -> io::Result<Vec<Round<f64>>> {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        thread::sleep(self.settle);
        let mut rounds = Rounds::new(self.turns.len(), self.rounds).order(TurnOrder::RotatedPairs);
        while let Some(turn) = rounds.next_turn() {
            let fixed = self.turns[turn.contestant()];
            let time = fixed.unwrap_or_else(&own);
            netdev.set_napi(napi, NapiSetting::GroFlushTimeout, nanos(time))?;
            thread::sleep(SETTLE);
            let (start, before) = (Instant::now(), server.requests());
            thread::sleep(self.length);
            let rate = (server.requests() - before) as f64 / start.elapsed().as_secs_f64();
            let overwritten = fixed.is_some() && netdev.napi(napi)?.gro_flush_timeout != Some(nanos(time));
            // Without requests the load was over, or had not begun.
            let valid = !overwritten && rate > 0.0;
            rounds.finish_turn(turn, valid.then_some(rate), Conditions::default());
        }
        Ok(rounds.finish().rounds)
    }
}
