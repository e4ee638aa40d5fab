//! Finished parts in a folder, so that a run that was interrupted goes on.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::part::Part;
use super::part_result::PartResult;

/// What the files are; another version's are measured again.
const FORMAT: &str = "lull-lab-paper-part-2";

/// The folder of finished parts.
#[derive(Debug, Clone)]
pub struct SavedParts {
    folder: PathBuf,
    /// The machine and the configuration.
    measured_with: Value,
}

#[derive(Serialize, Deserialize)]
struct SavedPart {
    format: String,
    measured_with: Value,
    result: PartResult,
}

impl SavedParts {
    /// Parts in `folder`, which is created, that were measured on the same machine with the same configuration.
    ///
    /// # Errors
    /// If the folder can't be created.
    pub fn open(folder: &Path, measured_with: Value) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self { folder: folder.to_owned(), measured_with })
    }

    /// The result of a part, if it was finished before.
    pub fn load(&self, part: Part) -> Option<PartResult> {
        let text = fs::read(self.path(part)).ok()?;
        let saved: SavedPart = serde_json::from_slice(&text).ok()?;
        (saved.format == FORMAT && saved.measured_with == self.measured_with).then_some(saved.result)
    }

    /// Keeps the result of a part, unless it is incomplete: then the next run measures it again.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn save(&self, part: Part, result: &PartResult) -> io::Result<()> {
        if result.failure.is_some() {
            return Ok(());
        }
        let saved = SavedPart {
            format: FORMAT.to_owned(),
            measured_with: self.measured_with.clone(),
            result: result.clone(),
        };
        let path = self.path(part);
        // Renamed when it is complete: a run that ends in between leaves no half of a result.
        let incomplete = path.with_extension("json.part");
        fs::write(&incomplete, serde_json::to_string_pretty(&saved)?)?;
        fs::rename(incomplete, path)
    }

    fn path(&self, part: Part) -> PathBuf {
        self.folder.join(format!("part-{part}.json"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_complete_part_is_found_again_until_the_machine_or_the_configuration_differs() {
        let folder = tempfile::tempdir().unwrap();
        let open = |with| SavedParts::open(folder.path(), json!(with)).unwrap();
        let result = PartResult { notes: vec!["one".to_owned()], ..PartResult::empty() };
        assert_eq!(open("a").load(Part::Web), None);
        let incomplete = PartResult { failure: Some("nginx exited".to_owned()), ..result.clone() };
        open("a").save(Part::Web, &incomplete).unwrap();
        assert_eq!(open("a").load(Part::Web), None);
        open("a").save(Part::Web, &result).unwrap();
        assert_eq!(open("a").load(Part::Web), Some(result));
        assert_eq!(open("a").load(Part::Policies), None);
        assert_eq!(open("b").load(Part::Web), None);
        fs::write(folder.path().join("part-web.json"), "{").unwrap();
        assert_eq!(open("a").load(Part::Web), None);
    }
}
