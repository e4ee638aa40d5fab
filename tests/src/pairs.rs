//! The order in which a test changes from each of several states to each other one.

/// Numbers below `count` in an order in which each follows each other one. It begins after 0, and ends with it.
pub fn each_after_each(count: usize) -> Vec<usize> {
    // To and fro between the first and all after it, then between the second and all after that, and so on.
    let round = |center| (center + 1..count).flat_map(move |other| [other, center]).chain([center + 1]);
    (0..count.saturating_sub(1)).flat_map(round).chain([0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_follows_each_other_one() {
        let order = each_after_each(5);
        let pairs: Vec<(usize, usize)> =
            [0].iter().chain(&order).copied().zip(order.iter().copied()).collect();
        for from in 0..5 {
            assert!((0..5).all(|to| from == to || pairs.contains(&(from, to))), "{order:?}");
        }
        assert!(pairs.iter().all(|(from, to)| from != to), "{order:?}");
        assert_eq!(order.last(), Some(&0));
    }
}
