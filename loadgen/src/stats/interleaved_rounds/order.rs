//! The order of turns within a round.

/// The order of turns within a round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TurnOrder {
    /// The same order in every round.
    Fixed,
    /// Each round starts with the next contestant.
    Rotated,
    /// Every second round runs backwards.
    Alternating,
    /// Rounds form pairs, one forwards and one backwards; each pair starts with the next contestant.
    RotatedPairs,
    /// A Williams design: each contestant has each place equally often, and follows each other one equally often.
    /// Balanced after as many rounds as there are contestants if their number is even, or twice as many if it is odd.
    #[default]
    Williams,
}

impl TurnOrder {
    /// The contestant at a position of a round.
    pub(super) fn contestant(self, round: usize, position: usize, contestants: usize) -> usize {
        let reversed = contestants - 1 - position;
        match self {
            Self::Fixed => position,
            Self::Rotated => (position + round) % contestants,
            Self::Alternating if round.is_multiple_of(2) => position,
            Self::Alternating => reversed,
            Self::RotatedPairs => {
                let place = if round.is_multiple_of(2) { position } else { reversed };
                (place + round / 2) % contestants
            }
            Self::Williams if contestants.is_multiple_of(2) => {
                (zigzag(position, contestants) + round) % contestants
            }
            // With an odd number the neighbours of a row are balanced only together with those of its mirror image.
            Self::Williams => {
                let place = if round.is_multiple_of(2) { position } else { reversed };
                (zigzag(place, contestants) + round / 2) % contestants
            }
        }
    }
}

/// The first row of a Williams square, 0, 1, n-1, 2, n-2 and so on: each difference between neighbours occurs once.
fn zigzag(position: usize, contestants: usize) -> usize {
    if position.is_multiple_of(2) { (contestants - position / 2) % contestants } else { position.div_ceil(2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(order: TurnOrder, contestants: usize, count: usize) -> Vec<Vec<usize>> {
        let round =
            |round| (0..contestants).map(|position| order.contestant(round, position, contestants)).collect();
        (0..count).map(round).collect()
    }

    #[test]
    fn each_order_gives_every_contestant_one_turn_a_round() {
        assert_eq!(rounds(TurnOrder::Fixed, 3, 2), [[0, 1, 2], [0, 1, 2]]);
        assert_eq!(rounds(TurnOrder::Rotated, 3, 3), [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
        assert_eq!(rounds(TurnOrder::Alternating, 3, 3), [[0, 1, 2], [2, 1, 0], [0, 1, 2]]);
        assert_eq!(rounds(TurnOrder::RotatedPairs, 3, 4), [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]]);
        assert_eq!(rounds(TurnOrder::Williams, 2, 2), [[0, 1], [1, 0]]);
        assert_eq!(rounds(TurnOrder::Williams, 1, 2), [[0], [0]]);
    }

    #[test]
    fn in_a_williams_design_everyone_follows_everyone_else_equally_often() {
        for contestants in 2..=7 {
            let count = if contestants % 2 == 0 { contestants } else { 2 * contestants };
            let (mut follows, mut places) =
                (vec![0; contestants * contestants], vec![0; contestants * contestants]);
            for round in rounds(TurnOrder::Williams, contestants, count) {
                for pair in round.windows(2) {
                    follows[pair[0] * contestants + pair[1]] += 1;
                }
                for (place, contestant) in round.iter().enumerate() {
                    places[place * contestants + contestant] += 1;
                }
            }
            let each = count / contestants;
            for (index, &times) in follows.iter().enumerate() {
                let itself = index / contestants == index % contestants;
                assert_eq!(times, if itself { 0 } else { each }, "{contestants} contestants, pair {index}");
            }
            assert!(places.iter().all(|&times| times == each), "{contestants} contestants: {places:?}");
        }
    }
}
