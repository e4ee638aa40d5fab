//! A line for each request.

mod line;
mod writer;

pub use self::line::LogLine;
pub use self::writer::AccessLog;
