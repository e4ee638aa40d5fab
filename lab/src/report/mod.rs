//! Results for people (tables and sentences) and for programs (JSON).

mod class_tables;
mod fleet_report;
mod generator_report;
mod kernel_client_report;
mod load_steps_report;
mod machine_check_report;
mod memcached_cpu_report;
mod model_report;
mod notes;
mod numa_report;
mod paper_report;
mod peer_report;
mod policy_table;
mod report_diff;
#[cfg(test)]
mod sample_results;
mod self_test_report;
mod table;
mod waiting_report;

pub use fleet_report::FleetReport;
pub use generator_report::GeneratorReport;
pub use kernel_client_report::KernelClientReport;
pub use load_steps_report::LoadStepsReport;
pub use machine_check_report::MachineCheckReport;
pub use memcached_cpu_report::memcached_cpu_line;
pub use model_report::ModelReport;
pub use numa_report::NumaReport;
pub use paper_report::PaperReport;
pub use peer_report::PeerReport;
pub use policies::host::Machine;
pub use report_diff::ReportDiff;
pub use self_test_report::SelfTestReport;
pub use waiting_report::WaitingReport;
