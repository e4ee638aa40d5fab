//! What is seen, in pieces of a tenth of a second: workers count, and whoever runs them puts it together.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::measures::{Counts, Measure};
use crate::sparse::Sparse;

/// How long a piece is in a run of up to ten minutes, and how often workers hand over what they have.
pub(crate) const LONGEST_PIECE: Duration = Duration::from_millis(100);

/// A short run is cut into shorter ones, so that there are enough to tell something from: so many, but none
/// shorter than this.
const FEW: u128 = 20;
const SHORTEST_PIECE: Duration = Duration::from_millis(5);

/// A run of hours is cut into longer ones: memory must not grow with its length.
const MANY: u128 = 6000;

/// The piece of all that comes before the time that is measured.
pub(crate) const BEFORE: u32 = u32::MAX;

/// How the time that is measured is cut into pieces, all of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cut {
    pub(crate) piece: Duration,
    pub(crate) pieces: u32,
}

impl Cut {
    pub(crate) fn of(time: Duration) -> Self {
        let long = time.as_nanos().div_ceil(LONGEST_PIECE.as_nanos()).min(MANY);
        let short = time.as_nanos() / SHORTEST_PIECE.as_nanos();
        let pieces = long.max(short.min(FEW)).clamp(1, BEFORE.into()) as u32;
        Self { piece: (time / pieces).max(Duration::from_nanos(1)), pieces }
    }

    /// How many pieces are over after so much of the time.
    pub(crate) fn whole(self, time: Duration) -> u32 {
        u32::try_from(time.as_nanos() / self.piece.as_nanos()).unwrap_or(u32::MAX).min(self.pieces)
    }
}

/// Latencies are told apart to 0.1 %, up to an hour.
const LONGEST: u64 = 3_600_000_000_000;

fn histogram() -> Histogram<u64> {
    // Both arguments are constants that the crate takes (at least 2, at most 5 digits).
    Histogram::new_with_bounds(1, LONGEST, 3).unwrap_or_else(|_| Histogram::new(3).expect("3 digits"))
}

/// What was seen in one piece.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Samples {
    pub(crate) counts: Counts,
    measures: [Sparse; Measure::COUNT],
}

impl Samples {
    fn add(&mut self, other: Self) {
        self.counts.add(&other.counts);
        for (mine, theirs) in self.measures.iter_mut().zip(other.measures) {
            mine.add(theirs);
        }
    }

    /// The latencies of all requests.
    pub(crate) fn latency(&self) -> Sparse {
        let mut all = self.measures[0].clone();
        self.measures[1..3].iter().for_each(|other| all.add(other.clone()));
        all
    }

    /// The mean latency of all requests, in nanoseconds.
    pub(crate) fn mean_latency(&self) -> f64 {
        self.measures[..3].iter().map(Sparse::sum).sum::<f64>() / self.requests().max(1) as f64
    }

    /// Requests that were answered.
    pub(crate) fn answered(&self) -> u64 {
        self.requests().saturating_sub(self.counts.unanswered)
    }

    /// Requests whose latency was noted.
    pub(crate) fn requests(&self) -> u64 {
        self.measures[..3].iter().map(Sparse::count).sum()
    }
}

/// What one worker is counting.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Where the time that is measured begins.
    origin: Instant,
    piece_nanos: u64,
    /// The piece that is being filled, mostly; requests of an open loop belong to when they were due, which
    /// may be some pieces ago.
    live: Vec<Live>,
    spare: Vec<Live>,
    /// The time of one of the live pieces, and its place.
    recent: Option<(Range<Instant>, usize)>,
    /// What belongs to times that are long over: after a stall that may be many pieces, with little in each.
    late: BTreeMap<u32, Late>,
    /// Each latency, where they are kept one by one.
    samples: Option<Vec<Sample>>,
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// When it counts, since the beginning of the time that is measured.
    pub(crate) at: Duration,
    pub(crate) latency: Duration,
}

/// What comes late, one by one.
#[derive(Debug, Default)]
struct Late {
    counts: Counts,
    values: Vec<(usize, u64)>,
}

/// What a worker hands over.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    live: Vec<Live>,
    late: BTreeMap<u32, Late>,
    pub(crate) samples: Vec<Sample>,
}

/// A piece as it is counted: fast to add to, and large.
#[derive(Debug)]
pub(crate) struct Live {
    piece: u32,
    counts: Counts,
    measures: [Histogram<u64>; Measure::COUNT],
}

impl Tally {
    /// Memory for a tally, made before a run: a megabyte of fresh memory in its middle is a delay.
    pub(crate) fn spare() -> Vec<Live> {
        (0..SPARE).map(|_| Live::new()).collect()
    }

    pub(crate) fn new(origin: Instant, cut: Cut, spare: Vec<Live>) -> Self {
        let piece_nanos = u64::try_from(cut.piece.as_nanos()).unwrap_or(u64::MAX);
        Self {
            origin,
            piece_nanos,
            live: Vec::new(),
            spare,
            recent: None,
            late: BTreeMap::new(),
            samples: None,
        }
    }

    /// Keeps each latency, too.
    pub(crate) fn keep_samples(&mut self) {
        self.samples = Some(Vec::new());
    }

    /// Which of the live pieces a moment belongs to; `Err` is the piece of what comes late.
    fn place(&mut self, moment: Instant) -> Result<usize, u32> {
        // Mostly the same as the last time, and this is done several times a request.
        match &self.recent {
            Some((time, index)) if time.contains(&moment) => Ok(*index),
            _ => self.find(moment),
        }
    }

    fn find(&mut self, moment: Instant) -> Result<usize, u32> {
        let piece = match moment.checked_duration_since(self.origin) {
            Some(since) => u32::try_from(since.as_nanos() as u64 / self.piece_nanos).unwrap_or(BEFORE),
            None => BEFORE,
        };
        // The newest is at the end, and nearly always it.
        let found = self.live.iter().rposition(|live| live.piece == piece);
        // Before the time that is measured there is only one piece; after it the newest are few.
        if found.is_none() && self.live.len() >= AT_ONCE {
            return Err(piece);
        }
        let index = found.unwrap_or_else(|| {
            let mut fresh = self.spare.pop().unwrap_or_else(Live::new);
            fresh.piece = piece;
            self.live.push(fresh);
            self.live.len() - 1
        });
        if piece != BEFORE {
            let start = self.origin + Duration::from_nanos(self.piece_nanos * u64::from(piece));
            self.recent = Some((start..start + Duration::from_nanos(self.piece_nanos), index));
        }
        Ok(index)
    }

    /// What is counted at a moment.
    pub(crate) fn counts(&mut self, moment: Instant) -> &mut Counts {
        match self.place(moment) {
            Ok(index) => &mut self.live[index].counts,
            Err(piece) => &mut self.late.entry(piece).or_default().counts,
        }
    }

    fn note(&mut self, moment: Instant, measure: usize, value: u64) {
        match self.place(moment) {
            Ok(index) => self.live[index].measures[measure].saturating_record(value),
            Err(piece) => {
                // As the histogram would have it: what is put together later must be the same.
                let value = self.live[0].measures[0].highest_equivalent(value.min(LONGEST));
                self.late.entry(piece).or_default().values.push((measure, value));
            }
        }
    }

    pub(crate) fn record(&mut self, moment: Instant, measure: Measure, value: Duration) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX).max(1);
        if let (Some(samples), Measure::Latency(_)) = (&mut self.samples, measure)
            && let Some(at) = moment.checked_duration_since(self.origin)
        {
            samples.push(Sample { at, latency: value });
        }
        self.note(moment, measure.index(), nanos);
    }

    pub(crate) fn record_queue(&mut self, moment: Instant, length: usize) {
        self.note(moment, Measure::Queue.index(), length as u64);
    }

    /// What was counted since it was taken last. Nothing is done with it here: this is the thread whose
    /// delays would show.
    pub(crate) fn take(&mut self) -> Taken {
        self.recent = None;
        Taken {
            live: std::mem::take(&mut self.live),
            late: std::mem::take(&mut self.late),
            samples: self.samples.as_mut().map(std::mem::take).unwrap_or_default(),
        }
    }

    /// Takes emptied ones back.
    pub(crate) fn give_back(&mut self, emptied: Vec<Live>) {
        self.spare.extend(emptied);
    }
}

/// How many pieces are ready to be filled: those that are, and those that are being looked through.
const SPARE: usize = 6;
/// How many are filled at once, before what belongs to others counts as late.
const AT_ONCE: usize = 3;

impl Late {
    fn into_samples(mut self) -> Samples {
        let mut samples = Samples { counts: self.counts, ..Samples::default() };
        self.values.sort_unstable();
        for (measure, value) in self.values {
            samples.measures[measure].push(value);
        }
        samples
    }
}

impl Live {
    fn new() -> Self {
        Self { piece: 0, counts: Counts::default(), measures: std::array::from_fn(|_| histogram()) }
    }

    /// What it has, which it then hasn't any more.
    fn empty(&mut self) -> Samples {
        let measures = std::array::from_fn(|index| Sparse::of(&self.measures[index]));
        for measure in self.measures.iter_mut().filter(|measure| !measure.is_empty()) {
            measure.reset();
        }
        Samples { counts: std::mem::take(&mut self.counts), measures }
    }
}

/// All pieces of a run, by number.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Timeline {
    pieces: BTreeMap<u32, Samples>,
    requests: u64,
    errors: u64,
    wrong: u64,
}

impl Timeline {
    /// Adds what was taken, and returns the memory of it.
    pub(crate) fn add(&mut self, taken: Taken) -> Vec<Live> {
        let Taken { mut live, late, .. } = taken;
        for live in &mut live {
            let (piece, samples) = (live.piece, live.empty());
            self.add_piece(piece, samples);
        }
        for (piece, late) in late {
            self.add_piece(piece, late.into_samples());
        }
        live
    }

    /// Adds what another generator counted over the same time.
    pub(crate) fn merge(&mut self, other: Self) {
        for (piece, samples) in other.pieces {
            self.add_piece(piece, samples);
        }
    }

    fn add_piece(&mut self, piece: u32, samples: Samples) {
        self.requests += samples.requests();
        self.errors += samples.counts.errors;
        self.wrong += samples.counts.wrong;
        self.pieces.entry(piece).or_default().add(samples);
    }

    pub(crate) fn piece(&self, piece: u32) -> Option<&Samples> {
        self.pieces.get(&piece)
    }

    /// All that was seen so far, before the time that is measured and in it.
    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// Requests that were answered with an error so far, whenever that was.
    pub(crate) fn errors(&self) -> u64 {
        self.errors
    }

    /// Wrong values so far, whenever they came.
    pub(crate) fn wrong(&self) -> u64 {
        self.wrong
    }

    /// The latencies of some pieces.
    pub(crate) fn latency(&self, pieces: Range<u32>) -> Sparse {
        let mut all = Sparse::default();
        self.pieces.range(pieces).for_each(|(_, samples)| all.add(samples.latency()));
        all
    }

    /// Some pieces together.
    pub(crate) fn total(&self, pieces: Range<u32>) -> Total {
        let mut total = Total { counts: Counts::default(), measures: std::array::from_fn(|_| histogram()) };
        for (_, samples) in self.pieces.range(pieces) {
            total.counts.add(&samples.counts);
            for (measure, sparse) in total.measures.iter_mut().zip(&samples.measures) {
                sparse.add_to(measure);
            }
        }
        total
    }
}

/// What was seen in some time.
#[derive(Debug, Clone)]
pub(crate) struct Total {
    pub(crate) counts: Counts,
    measures: [Histogram<u64>; Measure::COUNT],
}

impl Total {
    pub(crate) fn measure(&self, measure: Measure) -> &Histogram<u64> {
        &self.measures[measure.index()]
    }

    /// The latencies of all requests.
    pub(crate) fn latency(&self) -> Histogram<u64> {
        let mut all = self.measures[0].clone();
        for other in &self.measures[1..3] {
            // All are made with the same bounds, so every value of one fits the other.
            all.add(other).expect("histograms of the same bounds");
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measures::Class;

    const READ: Measure = Measure::Latency(Class::Read);

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn what_three_workers_saw_put_together_is_what_one_would_have_seen() {
        let origin = Instant::now();
        let cut = Cut::of(Duration::from_secs(2));
        let (mut one, mut apart) =
            (Tally::new(origin, cut, Vec::new()), [0; 3].map(|_| Tally::new(origin, cut, Vec::new())));
        let mut direct = histogram();
        let mut timeline = Timeline::default();
        for step in 0..30_000_u64 {
            let moment = origin + micros(step * 37);
            let value = Duration::from_nanos(1 + step * step * 7919 % 1_000_000_007);
            one.record(moment, READ, value);
            apart[(step % 3) as usize].record(moment, READ, value);
            direct.record(value.as_nanos() as u64).unwrap();
            if step % 1000 == 999 {
                for tally in &mut apart {
                    let emptied = timeline.add(tally.take());
                    tally.give_back(emptied);
                }
            }
        }
        apart.iter_mut().for_each(|tally| drop(timeline.add(tally.take())));
        let mut whole = Timeline::default();
        whole.add(one.take());
        assert_eq!(timeline.total(0..u32::MAX).measure(READ), &direct);
        assert_eq!(whole.total(0..u32::MAX).measure(READ), &direct);
        assert_eq!(whole.pieces, timeline.pieces);
    }

    #[test]
    fn what_three_agents_send_put_together_is_the_histogram_of_all_samples() {
        let origin = Instant::now();
        let cut = Cut::of(Duration::from_secs(2));
        let mut agents = [0; 3].map(|_| (Tally::new(origin, cut, Vec::new()), Timeline::default()));
        let mut direct = histogram();
        for step in 0..20_000_u64 {
            let value = 1 + step * step * 104_729 % 5_000_000_011;
            let (tally, timeline) = &mut agents[(step % 7 % 3) as usize];
            tally.record(origin + micros(step * 90), READ, Duration::from_nanos(value));
            direct.record(value).unwrap();
            if step % 900 == 0 {
                let emptied = timeline.add(tally.take());
                tally.give_back(emptied);
            }
        }
        let mut together = Timeline::default();
        for (mut tally, mut timeline) in agents {
            timeline.add(tally.take());
            let sent = serde_json::to_string(&timeline).unwrap();
            together.merge(serde_json::from_str(&sent).unwrap());
        }
        assert_eq!(together.total(0..u32::MAX).measure(READ), &direct);
        assert_eq!(together.requests(), 20_000);
    }

    #[test]
    fn a_sample_belongs_to_its_own_time_however_late_it_comes() {
        let origin = Instant::now();
        let mut tally = Tally::new(origin, Cut::of(Duration::from_secs(2)), Vec::new());
        let mut timeline = Timeline::default();
        tally.record(origin + micros(50), READ, micros(10));
        tally.counts(origin + micros(150_000)).hits += 1;
        timeline.add(tally.take());
        tally.record(origin + micros(60), READ, micros(900_000));
        timeline.add(tally.take());
        assert_eq!(timeline.piece(0).unwrap().requests(), 2);
        assert_eq!(timeline.piece(1).unwrap().counts.hits, 1);
        assert_eq!(timeline.total(1..2).latency().len(), 0);
    }

    #[test]
    fn a_stall_of_minutes_takes_no_memory_for_each_of_its_pieces_and_loses_nothing() {
        let origin = Instant::now();
        let mut tally = Tally::new(origin, Cut::of(Duration::from_secs(600)), Vec::new());
        let mut direct = histogram();
        for step in 0..6000 {
            let waited = micros(600_000_000 - step * 100_000);
            tally.counts(origin + micros(step * 100_000)).unanswered += 1;
            tally.record(origin + micros(step * 100_000), READ, waited);
            direct.record(waited.as_nanos() as u64).unwrap();
        }
        assert!(tally.live.len() <= AT_ONCE);
        let mut timeline = Timeline::default();
        timeline.add(tally.take());
        let total = timeline.total(0..6000);
        assert_eq!((total.measure(READ), total.counts.unanswered), (&direct, 6000));
    }

    #[test]
    fn what_lies_before_the_time_that_is_measured_is_apart() {
        let origin = Instant::now() + micros(1000);
        let mut tally = Tally::new(origin, Cut::of(micros(1000)), Vec::new());
        tally.record(origin - micros(500), READ, Duration::ZERO);
        let mut timeline = Timeline::default();
        timeline.add(tally.take());
        assert_eq!((timeline.requests(), timeline.total(0..BEFORE).latency().len()), (1, 0));
    }

    #[test]
    fn time_is_cut_into_whole_pieces_that_are_neither_long_nor_few() {
        let cut = |micros: u64| {
            let Cut { piece, pieces } = Cut::of(Duration::from_micros(micros));
            (piece.as_micros(), pieces)
        };
        assert_eq!(cut(5_000_000), (100_000, 50));
        assert_eq!(cut(2_050_000), (97_619, 21));
        assert_eq!(cut(500_000), (25_000, 20));
        assert_eq!(cut(50_000), (5_000, 10));
        assert_eq!(cut(4_000), (4_000, 1));
        assert_eq!(cut(86_400_000_000), (14_400_000, 6000));
        assert_eq!(Cut::of(Duration::ZERO).pieces, 1);
    }
}
