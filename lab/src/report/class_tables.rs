//! Rows by class of distance between the cores: a table for each.

use loadgen::interleaved_rounds::DistanceClass;

/// Groups rows by class, in the order in which the classes come.
pub(super) fn by_class<R>(rows: &[R], class: impl Fn(&R) -> DistanceClass) -> Vec<(DistanceClass, Vec<&R>)> {
    let mut groups: Vec<(DistanceClass, Vec<&R>)> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|(of, _)| *of == class(row)) {
            Some((_, group)) => group.push(row),
            None => groups.push((class(row), vec![row])),
        }
    }
    groups
}

/// The line above a class's table; empty if there is one class.
pub(super) fn class_title(class: DistanceClass) -> String {
    match class {
        DistanceClass::Single => String::new(),
        class => format!("\nTurns with the cores {class}:\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_grouped_by_class_and_the_first_class_comes_first() {
        let rows = [(DistanceClass::Far, 1), (DistanceClass::Near, 2), (DistanceClass::Far, 3)];
        let groups = by_class(&rows, |row| row.0);
        assert_eq!(groups[0], (DistanceClass::Far, vec![&rows[0], &rows[2]]));
        assert_eq!(groups[1], (DistanceClass::Near, vec![&rows[1]]));
        assert_eq!(class_title(DistanceClass::Far), "\nTurns with the cores far:\n");
        assert_eq!(class_title(DistanceClass::Single), "");
    }
}
