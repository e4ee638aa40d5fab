//! Keeps interrupts banned from irqbalance, which has its list in memory only and loses it when it
//! is restarted.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use crate::apply::Applied;
use crate::host::irqbalance::Irqbalance;
use crate::knob::{Knob, Value};

/// How often irqbalance is looked for, which reads all of `/proc`, and its list is read. It moves
/// interrupts as often.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// What a check of irqbalance's ban list found, and what came of asking again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BanOutcome {
    Kept,
    /// irqbalance had lost the bans, was asked again, and has them.
    AskedAgain {
        pid: i32,
    },
    /// It could not be asked. The next check tries again.
    Failed {
        pid: i32,
        reason: String,
    },
}

#[derive(Debug)]
pub(super) struct IrqbalanceBans {
    irqs: BTreeSet<u32>,
    next_check: Instant,
}

impl IrqbalanceBans {
    pub(super) fn new(applied: &[Applied], now: Instant) -> Self {
        let is_set = |step: &&Applied| step.target == Value::Number(1) && step.outcome.is_ok();
        let irqs = applied.iter().filter(is_set).filter_map(|step| match step.knob {
            Knob::IrqbalanceBan { irq } => Some(irq),
            _ => None,
        });
        Self { irqs: irqs.collect(), next_check: now + CHECK_INTERVAL }
    }

    /// Asks irqbalance to leave the interrupts alone if it has lost them. Looks for it with `find`,
    /// if that is due.
    pub(super) fn renew(
        &mut self,
        now: Instant,
        find: impl FnOnce() -> Option<Irqbalance>,
    ) -> Option<BanOutcome> {
        if self.irqs.is_empty() || now < self.next_check {
            return None;
        }
        self.next_check = now + CHECK_INTERVAL;
        let running = find()?;
        let pid = running.pid;
        match self.ask(&running) {
            Ok(false) => Some(BanOutcome::Kept),
            Ok(true) => Some(BanOutcome::AskedAgain { pid }),
            Err(error) => Some(BanOutcome::Failed { pid, reason: error.to_string() }),
        }
    }

    fn ask(&self, irqbalance: &Irqbalance) -> io::Result<bool> {
        let mut banned: BTreeSet<u32> = irqbalance.banned()?.into_iter().collect();
        if self.irqs.is_subset(&banned) {
            return Ok(false);
        }
        // A request replaces the list.
        banned.extend(&self.irqs);
        irqbalance.ban(&banned.into_iter().collect::<Vec<_>>())?;
        let banned = irqbalance.banned()?;
        match self.irqs.iter().find(|irq| !banned.contains(irq)) {
            None => Ok(true),
            Some(irq) => Err(io::Error::other(format!("it still does not list irq {irq} as banned"))),
        }
    }

    pub(super) fn irqs(&self) -> String {
        self.irqs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::Outcome;
    use crate::host::irqbalance::tests::FakeIrqbalance;

    fn banned(irq: u32, outcome: Outcome) -> Applied {
        Applied::of(Knob::IrqbalanceBan { irq }, Value::Number(1), outcome)
    }

    #[test]
    fn a_restarted_irqbalance_is_asked_again_and_keeps_the_bans_of_others() {
        let start = Instant::now();
        let check = |number| start + CHECK_INTERVAL * number;
        let first = FakeIrqbalance::start(&[7, 31, 32]);
        let refused = Outcome::Failed { reason: "refused".to_owned() };
        let applied = [banned(31, Outcome::Set), banned(32, Outcome::Already), banned(40, refused)];
        let mut bans = IrqbalanceBans::new(&applied, start);
        assert_eq!(bans.renew(start, || panic!("not yet")), None);
        assert_eq!(bans.renew(check(1), || Some(first.handle())), Some(BanOutcome::Kept));
        assert_eq!(first.replacements(), 0, "it has them");
        drop(first);
        assert_eq!(bans.renew(check(2), || None), None);
        // It has started, and has bans of somebody else.
        let second = FakeIrqbalance::start(&[9]);
        let asked = Some(BanOutcome::AskedAgain { pid: second.handle().pid });
        assert_eq!(bans.renew(check(3), || Some(second.handle())), asked);
        assert_eq!(second.banned(), [9, 31, 32]);
        assert_eq!(bans.renew(check(4), || Some(second.handle())), Some(BanOutcome::Kept));
        assert_eq!(second.replacements(), 1);
        // Somebody else has replaced its list.
        second.handle().ban(&[9]).unwrap();
        assert_eq!(bans.renew(check(5), || Some(second.handle())), asked);
        assert_eq!(second.banned(), [9, 31, 32]);
        assert_eq!(bans.irqs(), "31, 32");
    }

    #[test]
    fn an_irqbalance_that_does_not_listen_yet_is_asked_at_the_next_check() {
        let start = Instant::now();
        let mut bans = IrqbalanceBans::new(&[banned(31, Outcome::Set)], start);
        let starting = FakeIrqbalance::unused();
        let failed = bans.renew(start + CHECK_INTERVAL, || Some(starting.clone()));
        assert!(matches!(&failed, Some(BanOutcome::Failed { .. })), "{failed:?}");
        let running = FakeIrqbalance::start_as(starting, &[]);
        let asked = bans.renew(start + 2 * CHECK_INTERVAL, || Some(running.handle()));
        assert_eq!(asked, Some(BanOutcome::AskedAgain { pid: running.handle().pid }));
        assert_eq!(running.banned(), [31]);
    }

    #[test]
    fn an_irqbalance_that_ignores_or_refuses_requests_is_reported() {
        let start = Instant::now();
        let ignores = FakeIrqbalance::start(&[]).that_ignores_bans();
        let refuses = FakeIrqbalance::start(&[31]).that_refuses();
        for (running, expected) in [(ignores, "irq 31"), (refuses, "root only")] {
            let mut bans = IrqbalanceBans::new(&[banned(31, Outcome::Set)], start);
            let outcome = bans.renew(start + CHECK_INTERVAL, || Some(running.handle()));
            let Some(BanOutcome::Failed { reason, .. }) = outcome else { panic!("{outcome:?}") };
            assert!(reason.contains(expected), "{reason}");
        }
    }

    #[test]
    fn a_policy_without_bans_never_looks_for_irqbalance() {
        let mut bans = IrqbalanceBans::new(&[], Instant::now());
        assert_eq!(bans.renew(Instant::now() + 10 * CHECK_INTERVAL, || panic!("it looked")), None);
    }
}
