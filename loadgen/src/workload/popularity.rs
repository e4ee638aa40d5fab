//! How requests are spread over the records.

use std::str::FromStr;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution as _, Zipf};
use serde::{Deserialize, Serialize};

use crate::invalid_value::InvalidValue;

/// How requests are spread over the records.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Popularity {
    #[default]
    Uniform,
    /// The probability of the n-th most popular record is proportional to 1/n^s.
    Zipf(f64),
    /// The first records get a share of the requests. Within the hot set and outside of it, each
    /// record is equally likely.
    HotSet {
        /// Share of the records that are hot, 0 to 1.
        records: f64,
        /// Share of the requests that go to hot records, 0 to 1.
        requests: f64,
    },
    /// Zipf's law, with the most recently stored record as the most popular one. Stores
    /// replace the oldest record.
    Latest(f64),
    /// In order, starting over at the end.
    Sequential,
}

impl Popularity {
    /// Whether each parameter is in its range. Parsed popularities are always valid.
    pub(crate) fn is_valid(&self) -> bool {
        match *self {
            Self::Zipf(exponent) | Self::Latest(exponent) => exponent > 0.0 && exponent < 100.0,
            Self::HotSet { records, requests } => {
                [records, requests].iter().all(|share| (0.0..=1.0).contains(share))
            }
            Self::Uniform | Self::Sequential => true,
        }
    }
}

impl FromStr for Popularity {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
            match name {
                "uniform" if parameters.is_empty() => Some(Popularity::Uniform),
                "sequential" if parameters.is_empty() => Some(Popularity::Sequential),
                "zipf" => Some(Popularity::Zipf(parameters.parse().ok()?)),
                "latest" => Some(Popularity::Latest(parameters.parse().ok()?)),
                "hotset" => {
                    let (records, requests) = parameters.split_once(',')?;
                    Some(Popularity::HotSet {
                        records: records.parse().ok()?,
                        requests: requests.parse().ok()?,
                    })
                }
                _ => None,
            }
        };
        const EXPECTED: &str = "a popularity; write uniform, zipf:S (S > 0), hotset:RECORDS,REQUESTS (shares from 0 to 1), latest:S or sequential";
        parse().filter(Popularity::is_valid).ok_or_else(|| InvalidValue::new(text, EXPECTED))
    }
}

#[derive(Debug)]
pub(crate) struct Picker {
    popularity: Popularity,
    records: u64,
    zipf: Option<Zipf<f64>>,
    next: u64,
    newest: u64,
    random: SmallRng,
}

impl Picker {
    /// `step` of `steps` is the index of this picker among those of the run. Sequential pickers
    /// start evenly spaced.
    pub(crate) fn new(popularity: Popularity, records: u64, seed: u64, step: u64, steps: u64) -> Self {
        let records = records.max(1);
        let zipf = match popularity {
            // Both arguments are positive, so this can't fail.
            Popularity::Zipf(exponent) | Popularity::Latest(exponent) => {
                Zipf::new(records as f64, exponent).ok()
            }
            _ => None,
        };
        Self {
            popularity,
            records,
            zipf,
            next: (u128::from(records) * u128::from(step) / u128::from(steps.max(1))) as u64,
            newest: records - 1,
            random: SmallRng::seed_from_u64(seed),
        }
    }

    pub(crate) fn random(&mut self) -> &mut SmallRng {
        &mut self.random
    }

    pub(crate) fn pick(&mut self) -> u64 {
        match self.popularity {
            Popularity::Uniform => self.random.random_range(0..self.records),
            Popularity::Zipf(_) => self.rank(),
            Popularity::Latest(_) => {
                let back = self.rank();
                (self.newest + self.records - back) % self.records
            }
            Popularity::HotSet { records, requests } => {
                let hot = ((self.records as f64 * records) as u64).min(self.records);
                let cold = self.records - hot;
                let is_hot = self.random.random::<f64>() < requests;
                if (is_hot && hot > 0) || cold == 0 {
                    self.random.random_range(0..hot.max(1))
                } else {
                    hot + self.random.random_range(0..cold)
                }
            }
            Popularity::Sequential => {
                let record = self.next;
                self.next = (self.next + 1) % self.records;
                record
            }
        }
    }

    pub(crate) fn pick_to_store(&mut self) -> u64 {
        if let Popularity::Latest(_) = self.popularity {
            self.newest = (self.newest + 1) % self.records;
            return self.newest;
        }
        self.pick()
    }

    fn rank(&mut self) -> u64 {
        let rank = self.zipf.as_ref().map_or(1.0, |zipf| zipf.sample(&mut self.random));
        (rank as u64).clamp(1, self.records) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(popularity: &str, records: u64, draws: usize) -> Vec<u64> {
        let mut picker = Picker::new(popularity.parse().unwrap(), records, 5, 0, 1);
        let mut counts = vec![0; records as usize];
        (0..draws).for_each(|_| counts[picker.pick() as usize] += 1);
        counts
    }

    /// Pearson's chi-squared statistic, in standard deviations above its mean.
    fn misfit(counts: &[u64], share: impl Fn(usize) -> f64) -> f64 {
        let draws = counts.iter().sum::<u64>() as f64;
        let statistic: f64 = counts
            .iter()
            .enumerate()
            .map(|(record, &count)| {
                let expected = share(record) * draws;
                (count as f64 - expected).powi(2) / expected
            })
            .sum();
        let freedom = (counts.len() - 1) as f64;
        (statistic - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn each_popularity_fits_its_definition() {
        let all = 200;
        let uniform = misfit(&counts("uniform", all, 200_000), |_| 1.0 / 200.0);
        assert!(uniform.abs() < 4.0, "{uniform}");
        for exponent in [0.8_f64, 0.99, 1.3] {
            let norm: f64 = (1..=all).map(|rank| (rank as f64).powf(-exponent)).sum();
            let share = |record: usize| ((record + 1) as f64).powf(-exponent) / norm;
            let zipf = misfit(&counts(&format!("zipf:{exponent}"), all, 200_000), share);
            assert!(zipf.abs() < 4.0, "zipf {exponent}: {zipf}");
            let mut latest = counts(&format!("latest:{exponent}"), all, 200_000);
            latest.reverse();
            let latest = misfit(&latest, share);
            assert!(latest.abs() < 4.0, "latest {exponent}: {latest}");
        }
        let hot = misfit(&counts("hotset:0.1,0.9", all, 200_000), |record| {
            if record < 20 { 0.9 / 20.0 } else { 0.1 / 180.0 }
        });
        assert!(hot.abs() < 4.0, "{hot}");
        assert!(counts("sequential", all, 2000).iter().all(|&count| count == 10));
    }

    #[test]
    fn the_most_recently_stored_record_is_picked_most_often() {
        let mut picker = Picker::new(Popularity::Latest(1.2), 1000, 5, 0, 1);
        (0..10).for_each(|stored| assert_eq!(picker.pick_to_store(), stored));
        let newest = (0..10_000).filter(|_| picker.pick() == 9).count();
        let older = (0..10_000).filter(|_| picker.pick() == 8).count();
        assert!(newest > older && older > 500, "{newest} {older}");
    }

    #[test]
    fn empty_and_full_hot_sets_still_pick() {
        for popularity in ["hotset:0,1", "hotset:1,0", "hotset:0.001,0.5"] {
            assert_eq!(counts(popularity, 3, 100).iter().sum::<u64>(), 100);
        }
    }

    #[test]
    fn invalid_popularities_are_rejected() {
        for text in ["", "zipf", "zipf:0", "zipf:-1", "zipf:nan", "hotset:1", "hotset:2,1", "uniform:3", "x"]
        {
            assert!(text.parse::<Popularity>().unwrap_err().to_string().contains("hotset"), "{text}");
        }
    }
}
