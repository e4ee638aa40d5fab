//! The kernel's dynamic interrupt moderation (`lib/dim/net_dim.c`), with the grace time in the place of `rx-usecs`.

use super::{Drive, FinishedWait, Rule};

/// The default profile of `NET_DIM_RX_EQE_PROFILES`, in µs. The first is interrupt-first mode: no timer is as short.
pub(in crate::simulator) const LADDER: [u64; 5] = [1, 8, 64, 128, 256];
/// `DIM_NEVENTS`.
const EVENTS: u64 = 64;
/// A difference below this is none (`IS_SIGNIFICANT_DIFF`).
const SIGNIFICANT: f64 = 0.1;
/// After how many steps it parks.
const TIRED: u32 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    ParkingOnTop,
    ParkingTired,
    GoingRight,
    GoingLeft,
}

/// Of one measurement, per millisecond.
#[derive(Debug, Clone, Copy, Default)]
struct Rates {
    packets: f64,
    events: f64,
}

impl Rates {
    /// Whether they are better (`Some(true)`), worse, or the same.
    fn compared_with(&self, before: &Rates) -> Option<bool> {
        let differ = |now: f64, then: f64| (now - then).abs() > SIGNIFICANT * then;
        if differ(self.packets, before.packets) {
            return Some(self.packets > before.packets);
        }
        differ(self.events, before.events).then_some(self.events < before.events)
    }
}

/// Climbs the ladder while the packet rate rises, or the rate of waits falls.
pub(in crate::simulator) struct NetDim {
    rung: usize,
    state: State,
    previous: Rates,
    steps_left: u32,
    steps_right: u32,
    tired: u32,
    started: u64,
    packets: u64,
    events: u64,
}

impl Default for NetDim {
    fn default() -> Self {
        Self {
            rung: 0,
            state: State::GoingRight,
            previous: Rates::default(),
            steps_left: 0,
            steps_right: 0,
            tired: 0,
            started: 0,
            packets: 0,
            events: 0,
        }
    }
}

impl NetDim {
    fn decide(&mut self, now: Rates) {
        let before = self.state;
        let better = now.compared_with(&self.previous);
        match self.state {
            State::ParkingOnTop if better.is_some() => self.exit_parking(),
            State::ParkingOnTop => {}
            State::ParkingTired => {
                self.tired -= 1;
                if self.tired == 0 {
                    self.exit_parking();
                }
            }
            State::GoingRight | State::GoingLeft => {
                if better != Some(true) {
                    self.turn();
                }
                if self.is_on_top() {
                    self.park_on_top();
                } else {
                    self.step();
                }
            }
        }
        if (before, self.state) != (State::ParkingOnTop, State::ParkingOnTop) {
            self.previous = now;
        }
    }

    fn turn(&mut self) {
        if self.state == State::GoingRight {
            (self.state, self.steps_left) = (State::GoingLeft, 0);
        } else {
            (self.state, self.steps_right) = (State::GoingRight, 0);
        }
    }

    fn is_on_top(&self) -> bool {
        match self.state {
            State::GoingRight => self.steps_left > 1 && self.steps_right == 1,
            State::GoingLeft => self.steps_right > 1 && self.steps_left == 1,
            _ => true,
        }
    }

    fn step(&mut self) {
        if self.tired == TIRED {
            (self.state, self.steps_left, self.steps_right) = (State::ParkingTired, 0, 0);
            return;
        }
        match self.state {
            State::GoingRight if self.rung + 1 < LADDER.len() => {
                self.rung += 1;
                self.steps_right += 1;
            }
            State::GoingLeft if self.rung > 0 => {
                self.rung -= 1;
                self.steps_left += 1;
            }
            // At an end of the ladder.
            _ => return self.park_on_top(),
        }
        self.tired += 1;
    }

    fn park_on_top(&mut self) {
        (self.state, self.steps_left, self.steps_right, self.tired) = (State::ParkingOnTop, 0, 0, 0);
    }

    fn exit_parking(&mut self) {
        self.state = if self.rung > 0 { State::GoingLeft } else { State::GoingRight };
        self.step();
    }
}

impl Rule for NetDim {
    fn drive(&self) -> Drive {
        match self.rung {
            0 => Drive::interrupt_first(0),
            rung => Drive::grace(LADDER[rung] * 1_000),
        }
    }

    fn waited(&mut self, wait: &FinishedWait) {
        self.packets += wait.events;
        self.events += 1;
        if self.events < EVENTS {
            return;
        }
        let millis = (wait.ended - self.started).max(1) as f64 / 1e6;
        self.decide(Rates { packets: self.packets as f64 / millis, events: self.events as f64 / millis });
        (self.started, self.packets, self.events) = (wait.ended, 0, 0);
    }
}
