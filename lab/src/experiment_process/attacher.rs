//! What attaches to another process's server, as `policies attach` does.

use std::fmt::Write;
use std::io::{self, BufRead};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use policies::attach::{AttachConfig, AttachEvent, Attachment, Target, observe};
use policies::explain::Severity;
use policies::{Cpus, JournalDir};

use super::messages::{AttachProgress, AttachSpec, send};
use crate::Error;

/// How long attaching may take: looking takes half a second, and two scans have to agree.
const ATTACHES_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct Reported {
    attached: bool,
    /// Why an instance was left alone, or a queue refused.
    refusals: Vec<String>,
    stepped_back: Vec<String>,
    changes: Vec<String>,
}

impl Reported {
    fn take_in(&mut self, event: &AttachEvent) {
        match event {
            AttachEvent::Attached { .. } => self.attached = true,
            AttachEvent::LeftAlone { .. } | AttachEvent::QueueRefused { .. } => {
                self.refusals.push(event.to_string());
            }
            AttachEvent::SteppedBack { reason, .. } => self.stepped_back.push(reason.clone()),
            AttachEvent::Queue { change, .. } => self.changes.push(change.to_string()),
            _ => {}
        }
    }
}

/// Attaches to the server, and says what it did at each command, until the lab closes this
/// process's standard input.
pub(super) fn run(spec: &AttachSpec) -> Result<(), Error> {
    Cpus::one(spec.core).pin(None)?;
    let target = Target::Process(spec.pid);
    if let Some(reason) = prevented(&target, &spec.interface)? {
        return Ok(send(&Err::<(), _>(reason))?);
    }
    let reported = Arc::new(Mutex::new(Reported::default()));
    let seen = Arc::clone(&reported);
    let config = AttachConfig {
        interface: Some(spec.interface.clone()),
        latency_budget: spec.latency_budget,
        ..AttachConfig::new(target)
    };
    let on_event =
        move |event: &AttachEvent| seen.lock().unwrap_or_else(PoisonError::into_inner).take_in(event);
    let attachment = Attachment::start(config, on_event)?;
    let reported = || reported.lock().unwrap_or_else(PoisonError::into_inner);
    let deadline = Instant::now() + ATTACHES_WITHIN;
    while !reported().attached {
        if Instant::now() > deadline {
            let seconds = ATTACHES_WITHIN.as_secs();
            let mut reason = format!("nothing was attached within {seconds} s");
            reported().refusals.iter().for_each(|refusal| {
                let _ = write!(reason, "; {refusal}");
            });
            return Ok(send(&Err::<(), _>(reason))?);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    send(&Ok::<_, String>(()))?;
    for command in io::stdin().lock().lines() {
        command?;
        let instances = attachment.status().queues.iter().map(|queue| queue.instances.len()).sum();
        let stepped_back = std::mem::take(&mut reported().stepped_back);
        let changes = std::mem::take(&mut reported().changes);
        send(&Ok::<_, String>(AttachProgress { instances, stepped_back, changes }))?;
    }
    attachment.detach();
    Ok(())
}

/// What prevents attaching, with what to do about it. `None` if nothing does.
fn prevented(target: &Target, interface: &str) -> Result<Option<String>, Error> {
    let observation = observe(target, Some(interface), &JournalDir::default())?;
    if !observation.is_prevented() {
        return Ok(None);
    }
    let mut text = observation.verdict();
    for finding in observation.findings.iter().filter(|finding| finding.severity == Severity::Prevents) {
        let _ = write!(text, " {}", finding.summary);
        if let Some(remedy) = &finding.remedy {
            let _ = write!(text, " To do: {remedy}.");
        }
    }
    Ok(Some(text))
}
