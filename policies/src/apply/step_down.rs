//! What runs instead of a policy that can't run without a step that failed.

use super::guard::Guard;
use super::undo::lock;
use crate::error::Error;
use crate::host::device::Device;
use crate::host::interface_by_index;
use crate::knob::Knob;
use crate::plan::{Plan, Settings};
use crate::policy::Policy;

impl Guard {
    /// Puts back what the policy has set, and plans vanilla instead. The steps that failed stay among the applied
    /// ones, with their reasons; the number of queues and the size of their rings stay changed.
    pub(super) fn step_down(&mut self, device: &Device) -> Result<(), Error> {
        let is_set = |knob: &Knob| self.applied.iter().any(|it| it.knob == *knob && it.outcome.is_ok());
        let mut undo = lock(&self.undo);
        if let Some(undo) = undo.as_mut() {
            undo.journal.give_up(device, is_set);
        }
        self.applied.retain(|it| !it.outcome.is_ok() || it.knob.rebuilds_queues());
        let settings = Settings { channels: None, rx_ring: None, ..self.plan.settings.clone() };
        let mut plan = Plan::new(Policy::Vanilla, &interface_by_index(self.plan.ifindex)?, &settings);
        if let Some(undo) = undo.as_mut() {
            undo.journal.policy = plan.policy;
            undo.journal.record_plan(&plan, device);
            undo.write(&self.directory)?;
        }
        let rebuilding = self.plan.steps.iter().filter(|step| step.knob.rebuilds_queues()).cloned();
        plan.steps.splice(0..0, rebuilding);
        let mut notes = std::mem::take(&mut self.plan.notes);
        notes.retain(|note| !plan.notes.contains(note));
        plan.notes.splice(0..0, notes);
        self.plan = plan;
        Ok(())
    }
}
