//! The report on an experiment: one screen, and everything else in a page.

use std::collections::HashSet;

use policies::host::{IdleCores, Machine};
use policies::{Cpus, Policy};
use serde::Serialize;

use crate::cores::CoreAssignment;
use crate::experiment::{Bed, Contender, Experiment, Load, Outcome};
use crate::processes::RunningPolicy;
use crate::report::Document;
use crate::report::tables::{NONE, class_suffix, classes, is_undecided, plain_table, ratio_text, sections};
use crate::rounds::{
    DistanceClass, Figure, LEAST_ROUNDS, LoadDetail, LoadKind, LoadResult, Status, TakenTurn,
};
use crate::testbed::{CONGESTION_CONTROL, Card, CardEnd, Receiver};

/// The load is the bottleneck from this busy share on, %.
const BUSY_LOAD: f64 = 95.0;
const WIDTH: usize = 100;
const MOST_LINES: usize = 25;
/// The most lines of the verdict.
const MOST_VERDICT: usize = 10;

#[derive(Debug, Serialize)]
pub struct Comparison {
    pub machine: Machine,
    pub virtual_machine: bool,
    pub cores: CoreAssignment,
    /// The ends of the cable; `None` on a testbed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card: Option<Card>,
    pub congestion_control: &'static str,
    pub cores_awake: bool,
    /// What idle cores do where they are not kept awake.
    pub idle_cores: String,
    pub minutes: f64,
    pub experiment: Experiment,
    pub verdict: Vec<String>,
    pub notes: Vec<String>,
    /// This run over an earlier one, if one was named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub against: Vec<String>,
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Comparison {
    pub fn new(experiment: Experiment, bed: &Bed, cores_awake: bool, minutes: f64, outcome: Outcome) -> Self {
        let mut report = Self {
            machine: Machine::read(),
            virtual_machine: is_virtual(),
            idle_cores: IdleCores::read(bed.cores.server()).to_string(),
            cores: bed.cores.clone(),
            card: bed.card.clone(),
            congestion_control: CONGESTION_CONTROL,
            cores_awake,
            minutes,
            verdict: Vec::new(),
            notes: Vec::new(),
            against: Vec::new(),
            experiment,
            outcome,
        };
        report.verdict = report.verdict();
        report.notes = report.notes();
        report
    }

    /// The loads of a kind, each in the class in which it has most rounds, if the reference has as many
    /// valid turns as a verdict needs.
    fn measured(&self, kind: LoadKind) -> impl Iterator<Item = &LoadResult> {
        let has_reference = |load: &&LoadResult| {
            self.experiment.references.iter().any(|&reference| load.rows[reference].turns >= LEAST_ROUNDS)
        };
        self.outcome.results.by_load().filter(move |load| load.kind == kind).filter(has_reference)
    }

    /// The rates that the verdict is on: the lowest and the highest, or the highest alone where there
    /// are several sentences on each.
    fn verdict_rates(&self) -> Vec<f64> {
        let rate = |load: &Load| if let Load::Rate(rate) = load { Some(*rate) } else { None };
        let mut rates: Vec<f64> = self.experiment.loads.iter().filter_map(rate).collect();
        rates.sort_by(f64::total_cmp);
        rates.dedup();
        let several = subjects(&self.experiment).len() > 1;
        let low = rates.first().filter(|_| rates.len() > 1 && !several);
        low.into_iter().chain(rates.last()).copied().collect()
    }

    /// What was measured at a rate, under each receiver.
    fn at_rate(&self, rate: f64) -> Vec<(Receiver, Option<&LoadResult>)> {
        let of = |&receiver: &Receiver| {
            let mut open = self.measured(LoadKind::Open);
            (receiver, open.find(|load| load.receiver == Some(receiver) && load.at == rate))
        };
        self.experiment.receivers.iter().map(of).collect()
    }

    /// Whether the screen has loads of both distances.
    fn has_classes(&self) -> bool {
        let mut classes = self.outcome.results.by_load().map(|load| load.class);
        let first = classes.next();
        classes.any(|class| Some(class) != first)
    }

    /// ` (cores near)`, where the screen has loads of both distances.
    fn class_note(&self, load: &LoadResult) -> String {
        if self.has_classes() { format!(" (cores {})", load.class) } else { String::new() }
    }

    fn turns(&self) -> impl Iterator<Item = &TakenTurn> {
        self.outcome.results.measurements.iter().flat_map(|measured| &measured.turns)
    }

    fn verdict(&self) -> Vec<String> {
        let open: Vec<_> = self.verdict_rates().into_iter().map(|rate| self.at_rate(rate)).collect();
        if open.iter().flatten().all(|(_, load)| load.is_none())
            && self.measured(LoadKind::Closed).next().is_none()
        {
            return vec![format!("No verdict: {}.", self.why_not())];
        }
        let subjects = subjects(&self.experiment).into_iter();
        let compared = subjects.filter(|index| self.experiment.references[..] != [*index]);
        let mut verdict: Vec<String> = compared.flat_map(|index| self.verdict_on(index, &open)).collect();
        if verdict.is_empty() {
            verdict.push(format!("Nothing was compared with {}.", self.reference_name()));
        }
        verdict
    }

    /// Why nothing has as many rounds of the reference as a verdict needs.
    fn why_not(&self) -> String {
        let rounds = self.experiment.rounds;
        if rounds < LEAST_ROUNDS {
            return format!("it needs {LEAST_ROUNDS} rounds, and --rounds is {rounds}");
        }
        let lost = self.turns().filter(|turn| turn.left_out || turn.turn.invalid.is_some()).count();
        let first = self.first_invalid().map_or_else(String::new, |it| format!(", the first because {it}"));
        format!(
            "it needs {LEAST_ROUNDS} undisturbed rounds of the reference, and of {} turns {lost} were lost{first}; stop other \
             programs, or begin again when the machine is quieter",
            self.turns().count()
        )
    }

    fn verdict_on(&self, index: usize, open: &[Vec<(Receiver, Option<&LoadResult>)>]) -> Vec<String> {
        let contender = &self.experiment.contenders[index];
        let name = contender.name();
        if let Some(Some(RunningPolicy { ran, steps_down, .. })) = self.outcome.servers.get(index)
            && contender.policy().is_some_and(|(policy, _)| policy.name() != *ran)
        {
            let reasons = steps_down.join("; ");
            return vec![format!(
                "{name} could not run here ({ran} ran instead: {reasons}); the results say nothing on it."
            )];
        }
        let mut sentences = Vec::new();
        sentences.extend(open.iter().filter_map(|load| self.rate_sentence(index, &name, load)));
        if let Some(load) = self.measured(LoadKind::Closed).next() {
            let under = [(load.receiver.unwrap_or_default(), Some(load))];
            let clauses = clauses(&under, index, &[Figure::Throughput, Figure::CpuPerRequest]);
            sentences.push(format!("{name}, closed loop{}: {clauses}.", self.class_note(load)));
        }
        sentences
    }

    fn reference_name(&self) -> String {
        let Experiment { contenders, references, .. } = &self.experiment;
        match references[..] {
            [one] => contenders[one].name(),
            _ if references.iter().all(|&it| contenders[it].runs(Policy::Vanilla)) => {
                "the better vanilla".to_owned()
            }
            _ => "the best reference".to_owned(),
        }
    }

    /// The figures at the verdict's rate, each as a range over what receives.
    fn rate_sentence(
        &self,
        index: usize,
        name: &str,
        open: &[(Receiver, Option<&LoadResult>)],
    ) -> Option<String> {
        let (_, Some(first)) = open.iter().find(|(_, load)| load.is_some())? else { return None };
        let clauses = clauses(open, index, &[Figure::CpuPerRequest, Figure::P50, Figure::P99]);
        let receiver = |(receiver, load): &(Receiver, Option<&LoadResult>)| {
            format!("{receiver}{}", load.map_or_else(String::new, |load| self.class_note(load)))
        };
        let under = open.iter().map(receiver).collect::<Vec<_>>().join(" to ");
        let a_worker = if self.card.is_none() && self.cores.servers.len() > 1 { " and worker" } else { "" };
        let (rate, beside) = (grouped(first.at, 0), self.reference_name());
        Some(format!("{name} at {rate}/s{a_worker}, under {under}, beside {beside}: {clauses}."))
    }

    fn notes(&self) -> Vec<String> {
        let Outcome { results, servers } = &self.outcome;
        let mut notes = results.notes.clone();
        for (index, contender) in self.experiment.contenders.iter().enumerate() {
            let name = contender.name();
            notes.extend(servers[index].as_ref().and_then(|running| running.note(&name)));
            let turns = || results.turns_of(index);
            let most = turns().filter_map(|it| it.figures.get(&Figure::AttachCpu)).copied().reduce(f64::max);
            notes.extend(most.map(|most| {
                let core = self.cores.packing;
                format!("{name}: attaching took at most {most:.1} % of core {core}, which is not part of CPU µs/req")
            }));
            let attached = turns().filter_map(|turn| turn.detail.as_ref()?.attach.as_ref());
            let mut reasons: Vec<&String> = attached.flat_map(|attach| &attach.stepped_back).collect();
            let count = reasons.len();
            reasons.sort_unstable();
            reasons.dedup();
            notes.extend(reasons.into_iter().map(|reason| {
                format!("{name}: gave polling up for some seconds ({count} times in all): {reason}")
            }));
        }
        for load in &results.loads {
            let sum = |field: fn(&LoadDetail) -> u64| -> u64 {
                let turns = results.rounds(load).flatten().flatten();
                turns.filter_map(|turn| turn.detail.as_deref().map(field)).sum()
            };
            let (name, drops, again) = (&load.name, sum(|it| it.fleet.dropped), sum(|it| it.retransmitted));
            if drops + again > 0 {
                notes.push(format!(
                    "{name}: {drops} packets found the server's receive ring full, and its kernel sent {again} segments again"
                ));
            }
            for row in &load.rows {
                let server = &row.contender;
                if let Some(busy) = row.median(Figure::LoadBusy).filter(|busy| *busy > BUSY_LOAD) {
                    notes.push(format!(
                        "{name}, {server}: the fleet was {busy:.0} % busy, so the server may be capable of more"
                    ));
                }
                if let Status::NotComparable(reason) = &row.status {
                    notes.push(format!("{server}: not comparable: {reason}"));
                }
            }
        }
        let mut seen = HashSet::new();
        notes.retain(|note| seen.insert(note.clone()));
        notes
    }

    fn first_invalid(&self) -> Option<&str> {
        self.turns().find_map(|turn| turn.turn.invalid.as_deref())
    }

    fn left_out(&self) -> Vec<String> {
        let (results, count) =
            (&self.outcome.results, |of: fn(&&TakenTurn) -> bool| self.turns().filter(of).count());
        let kept: usize = results.loads.iter().map(|load| load.rounds * load.rows.len()).sum();
        let all = self.turns().count();
        let stolen = count(|turn| turn.left_out && turn.turn.invalid.is_none());
        let invalid = count(|turn| turn.turn.invalid.is_some());
        let others = all.saturating_sub(kept + count(|turn| turn.left_out));
        let mut sentences = vec![format!(
            "Left out of {all} turns: {stolen} with steal, {others} at another distance or in incomplete rounds, {invalid} \
             not valid{}.",
            self.first_invalid().map_or_else(String::new, |reason| format!(" ({reason})"))
        )];
        let mut contenders = 0..self.experiment.contenders.len();
        if contenders.any(|index| self.experiment.not_comparable(index, &self.cores).is_some()) {
            sentences.push("packing is not comparable: it needs a further core for each worker.".to_owned());
        }
        if classes(&results.loads).len() > 1 {
            sentences.push("Turns with the cores at the other distance are in the report.".to_owned());
        }
        sentences
    }

    /// At most 25 lines of 100 columns, always with the same rows and columns. The last one names the
    /// page with everything else. An earlier run comes after them, in lines of any length.
    pub fn screen(&self, page: &str) -> String {
        let first = format!("{} {}", self.idle_line(), self.machine_line());
        let mut lines: Vec<String> = wrap(&first).into_iter().take(2).collect();
        lines.extend([clip(&self.setup_line()), String::new()]);
        lines.extend(self.verdict.iter().flat_map(|sentence| wrap(sentence)).take(MOST_VERDICT));
        lines.push(String::new());
        let left_out: Vec<String> =
            self.left_out().iter().flat_map(|sentence| wrap(sentence)).take(2).collect();
        // With the header, an empty line, what was left out, and the page.
        let room = MOST_LINES - lines.len() - left_out.len() - 3;
        lines.extend(self.screen_table(room).lines().map(clip));
        lines.push(String::new());
        lines.extend(left_out);
        lines.push(format!("Plots and every number: {page}"));
        if !self.against.is_empty() {
            lines.push(String::new());
            // As wide as it is: its last columns are latencies.
            lines.extend(self.against.iter().cloned());
        }
        lines.join("\n") + "\n"
    }

    fn machine_line(&self) -> String {
        let Machine { cpu, cores, kernel, .. } = &self.machine;
        let kind = if self.virtual_machine { " (virtual machine)" } else { "" };
        let range = |class: DistanceClass| {
            let loads = self.outcome.results.by_load().filter(|load| load.class == class);
            let ranges = loads.filter_map(|load| load.distance);
            let (low, high) = ranges.reduce(|all, it| (all.0.min(it.0), all.1.max(it.1)))?;
            let name = if class == DistanceClass::Single { String::new() } else { format!("{class} ") };
            Some(format!("{name}{low:.0} to {high:.0} ns"))
        };
        let ranges: Vec<String> = DistanceClass::ALL.into_iter().filter_map(range).collect();
        let distance =
            if ranges.is_empty() { String::new() } else { format!("; cores {} apart", ranges.join(", ")) };
        let cpu = cpu.replace("(R)", "").replace("(TM)", "");
        let link = match &self.card {
            None => "veth".to_owned(),
            Some(card) => card.server.driver.clone().unwrap_or_else(|| "unknown driver".to_owned()),
        };
        format!("{cpu}{kind}, {cores} cores, Linux {kernel}; {link}{distance}")
    }

    fn setup_line(&self) -> String {
        let CoreAssignment { servers, clients, .. } = &self.cores;
        let Experiment { connections, rounds, ref receivers, .. } = self.experiment;
        let receivers: Vec<String> = receivers.iter().map(Receiver::to_string).collect();
        let receivers = receivers.join(", ");
        let on = |cores: &[u32]| {
            let cores: Cpus = cores.iter().copied().collect();
            format!("core{} {cores}", if cores.len() == 1 { "" } else { "s" })
        };
        if let Some(card) = &self.card {
            let (CardEnd { interface, queues, .. }, fleets) = (&card.server, card.fleet_cores().len());
            let plural = |count: usize| if count == 1 { "" } else { "s" };
            return format!(
                "Server on {interface} ({queues} queue{}), {connections} connections from {fleets} core{} of another machine; \
                 {rounds} rounds, {:.0} min.",
                plural(*queues),
                plural(fleets),
                self.minutes
            );
        }
        let server = match servers.len() {
            1 => format!("Server on {}, {connections} connections", on(servers)),
            count => format!("{count} workers on {}, each with {connections} connections", on(servers)),
        };
        format!(
            "{server} from {}; received by {receivers}; {rounds} rounds, {:.0} min.",
            on(clients),
            self.minutes
        )
    }

    pub(super) fn idle_line(&self) -> String {
        if self.cores_awake {
            "Idle cores are kept awake.".to_owned()
        } else {
            format!("Idle cores {}.", self.idle_cores)
        }
    }

    /// The columns at one of the verdict's rates: the title, the load if it was measured, and the
    /// figure.
    fn screen_columns(&self, rate: f64) -> Vec<(String, Option<&LoadResult>, Figure)> {
        let mut columns = Vec::new();
        for (receiver, load) in self.at_rate(rate) {
            columns.push((format!("{receiver}: CPU"), load, Figure::CpuPerRequest));
            columns.push(("p50 µs".to_owned(), load, Figure::P50));
            columns.push(("p99 µs".to_owned(), load, Figure::P99));
        }
        if self.experiment.loads.contains(&Load::Closed) {
            let load = self.measured(LoadKind::Closed).next();
            let class = load.filter(|_| self.has_classes()).map(|load| format!(", {}", load.class));
            let title = format!("closed/s{}", class.unwrap_or_default());
            columns.push((title, load, Figure::Throughput));
        }
        columns
    }

    /// `room`: how many rows there may be. The references and those that the verdict is on come before
    /// others, and the highest rate before the lower one. Columns that are too many are left out at
    /// the end, and a line says so.
    fn screen_table(&self, room: usize) -> String {
        let count = self.experiment.contenders.len();
        let important = |index: &usize| {
            self.experiment.references.contains(index) || subjects(&self.experiment).contains(index)
        };
        let (first, others): (Vec<usize>, Vec<usize>) = (0..count).partition(important);
        // With too many a line is left for what is not on the screen.
        let most = if count > room { room.saturating_sub(1) } else { room };
        let mut shown: Vec<usize> = first.into_iter().chain(others).take(most).collect();
        shown.sort_unstable();
        let rates = self.verdict_rates();
        let all = self.rows_at(&rates, &shown);
        // With the header.
        if all.lines().count() <= room + 1 {
            all
        } else {
            self.rows_at(&rates[rates.len().saturating_sub(1)..], &shown)
        }
    }

    /// The rows of contenders at these rates.
    fn rows_at(&self, rates: &[f64], shown: &[usize]) -> String {
        let blocks: Vec<_> = rates.iter().map(|&rate| (rate, self.screen_columns(rate))).collect();
        let Some((_, titles)) = blocks.first() else { return String::new() };
        let titles: Vec<String> = ["server", "load/s"]
            .map(str::to_owned)
            .into_iter()
            .chain(titles.iter().map(|(title, ..)| title.clone()))
            .collect();
        let row = |rate: f64, columns: &[(String, Option<&LoadResult>, Figure)], index: usize| {
            let mut load = vec![grouped(rate, 0)];
            if self.has_classes() {
                load.extend(
                    self.at_rate(rate).iter().filter_map(|(_, load)| Some((*load)?.class.to_string())),
                );
                load.dedup();
            }
            let cells = columns.iter().map(|&(_, load, figure)| match load {
                None if matches!(figure, Figure::P50 | Figure::P99) => NONE.to_owned(),
                None => "not measured".to_owned(),
                Some(load) => value_cell(load, index, figure),
            });
            [self.experiment.contenders[index].name(), load.join(", ")]
                .into_iter()
                .chain(cells)
                .collect::<Vec<_>>()
        };
        let rows = blocks.iter().flat_map(|(rate, columns)| {
            let row = &row;
            shown.iter().map(move |&index| row(*rate, columns, index))
        });
        let rows: Vec<Vec<String>> = rows.collect();
        let fits = |columns: usize| {
            let table = plain_table(&titles[..columns], rows.iter().map(|row| row[..columns].to_vec()));
            table.lines().all(|line| line.trim_end().chars().count() <= WIDTH).then_some(table)
        };
        let table = (3..=titles.len()).rev().find_map(|columns| Some((columns, fits(columns)?)));
        let Some((columns, table)) = table else { return String::new() };
        if columns == titles.len() {
            return table;
        }
        format!("{table}\nNot on this screen: {}.", titles[columns..].join(", "))
    }

    pub fn document(&self) -> Document {
        let mut sections = sections(&self.outcome.results.loads, &self.notes);
        let closed = sections.iter_mut().find(|section| section.id == "closed-loop");
        if let (Some(section), Some(load)) = (closed, self.measured(LoadKind::Closed).next()) {
            section.caption = load.name.clone() + &class_suffix(load.class);
        }
        let receivers: Vec<&str> = self.experiment.receivers.iter().map(|it| it.description()).collect();
        let receiver = receivers.join(", or ");
        Document {
            title: "Kernel polling on this machine".to_owned(),
            findings: self.verdict.clone(),
            conditions: vec![
                self.machine_line(),
                match &self.card {
                    None => format!(
                        "Two network namespaces and a veth pair, whose packets {receiver} receives in the place of an interrupt; \
                         congestion control {CONGESTION_CONTROL}."
                    ),
                    Some(Card { server, client, .. }) => format!(
                        "{} of this machine, and a fleet at {} of another: {}.",
                        server.interface, client.interface, client.machine
                    ),
                },
                self.setup_line(),
                self.idle_line(),
            ],
            sections,
        }
    }
}

/// The contenders that the verdict is on: those that are attached to, or the first one under kernel
/// polling.
fn subjects(experiment: &Experiment) -> Vec<usize> {
    let of = |is: fn(&Contender) -> bool| {
        let contenders = experiment.contenders.iter().enumerate();
        contenders.filter(move |(_, contender)| is(contender)).map(|(index, _)| index)
    };
    let attached: Vec<usize> = of(Contender::is_attached).collect();
    let polls = |it: &Contender| it.runs(Policy::KernelPolling);
    if attached.is_empty() { of(polls).take(1).collect() } else { attached }
}

fn value_cell(load: &LoadResult, contender: usize, figure: Figure) -> String {
    let row = &load.rows[contender];
    match (&row.status, figure) {
        (Status::Overloaded(_), Figure::P50) => "overloaded,".to_owned(),
        (Status::Overloaded(answered), Figure::P99) => format!("answered {answered:.0} %"),
        _ => row.median(figure).map_or_else(|| NONE.to_owned(), |it| grouped(it, figure.digits().min(1))),
    }
}

/// Figures beside the reference's, or why none is.
fn clauses(loads: &[(Receiver, Option<&LoadResult>)], contender: usize, figures: &[Figure]) -> String {
    let rows = loads.iter().filter_map(|(_, load)| Some(&(*load)?.rows[contender]));
    let has_ratio = rows.clone().any(|row| figures.iter().any(|&figure| row.ratio(figure).is_some()));
    match rows.filter_map(|row| row.status.text()).next() {
        _ if has_ratio => {
            let ranges: Vec<String> = figures.iter().map(|&figure| range(loads, contender, figure)).collect();
            ranges.join(", ")
        }
        Some(status) => status,
        None => "not compared: no round has a valid turn of it and of the reference".to_owned(),
    }
}

/// A figure beside the reference's, over what receives: the medians in the order of the receivers,
/// and how far their intervals reach together, or at different distances each with its own.
fn range(open: &[(Receiver, Option<&LoadResult>)], contender: usize, figure: Figure) -> String {
    let name = match figure {
        Figure::CpuPerRequest => "CPU",
        Figure::Throughput => "throughput",
        other => other.title().trim_end_matches(" µs"),
    };
    let (mut ratios, mut missing) = (Vec::new(), Vec::new());
    for (receiver, load) in open {
        let row = load.map(|load| &load.rows[contender]);
        let status = row.and_then(|row| row.status.text());
        match load.and_then(|load| Some((load.class, *row?.ratio(figure)?))) {
            Some(ratio) => ratios.push(ratio),
            None => {
                let reference = row.and_then(|row| row.figures.get(&figure)?.reference);
                let why = match (status, load) {
                    (Some(status), _) => status,
                    (None, Some(load)) => why_not_compared(load, reference),
                    (None, None) => "not measured".to_owned(),
                };
                missing.push(format!("{why} under {receiver}"));
            }
        }
    }
    if ratios.iter().any(|(_, ratio)| is_undecided(ratio)) {
        return format!("{name} can't tell");
    }
    let mut text = match &ratios[..] {
        [] => name.to_owned(),
        [(_, ratio)] => format!("{name} {}", ratio_text(ratio)),
        all if all.iter().any(|(class, _)| *class != all[0].0) => {
            let each: Vec<String> = all.iter().map(|(_, ratio)| ratio_text(ratio)).collect();
            format!("{name} {}", each.join(" to "))
        }
        all => {
            let medians: Vec<String> = all.iter().map(|(_, ratio)| format!("{:.2}", ratio.median)).collect();
            let low = all.iter().map(|(_, ratio)| ratio.low).fold(f64::INFINITY, f64::min);
            let high = all.iter().map(|(_, ratio)| ratio.high).fold(0.0, f64::max);
            format!("{name} {} [{low:.2}, {high:.2}]", medians.join(" to "))
        }
    };
    missing.iter().for_each(|missing| text += &format!(" ({missing})"));
    text
}

/// Why a figure has no ratio to this reference's.
fn why_not_compared(load: &LoadResult, reference: Option<usize>) -> String {
    let Some(row) = reference.map(|index| &load.rows[index]) else {
        return "not compared: no valid turn of a reference".to_owned();
    };
    match row.status {
        Status::Overloaded(_) => format!("{} is overloaded", row.contender),
        _ => format!("not compared: no round has a valid turn of {} too", row.contender),
    }
}

/// For example `97,000`.
fn grouped(value: f64, digits: usize) -> String {
    if value < 1000.0 {
        return format!("{value:.digits$}");
    }
    let digits = format!("{value:.0}");
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

fn clip(line: &str) -> String {
    line.chars().take(WIDTH).collect::<String>().trim_end().to_owned()
}

/// A sentence on as many lines as it takes, of which all but the first are indented.
fn wrap(sentence: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in sentence.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                *line += " ";
                *line += word;
            }
            Some(_) => lines.push(format!("  {word}")),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Whether the processor says that a hypervisor runs below.
pub(super) fn is_virtual() -> bool {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = flags.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::{Results, Turn, results_of};

    /// Figures of a contender under a load: throughput, p50, p99, CPU time.
    type Figures = [f64; 4];

    fn comparison(
        names: &[&str],
        ran: &str,
        of: impl Fn(&str, usize) -> Figures,
        noise: f64,
        rounds: usize,
    ) -> Comparison {
        let noise = |index, round| if index < 2 { 1.0 } else { 1.0 + noise * ((round % 5) as f64 - 2.0) };
        let turn = |load: &str, index, round| turn_of(load, of(load, index), noise(index, round));
        comparison_of(names, ran, turn, rounds)
    }

    fn turn_of(load: &str, [rate, p50, p99, cpu]: Figures, noise: f64) -> Turn {
        let mut turn = Turn::new([(Figure::P50, p50 * noise), (Figure::CpuPerRequest, cpu * noise)]);
        turn.set(Figure::P99, p99 * noise);
        match load {
            open if open.starts_with("50000/s") => turn.set(Figure::Answered, rate / 500.0),
            open if open.starts_with("90000/s") => turn.set(Figure::Answered, rate / 900.0),
            _ => turn.set(Figure::Throughput, rate * noise),
        }
        turn
    }

    fn comparison_of(
        names: &[&str],
        ran: &str,
        turn: impl Fn(&str, usize, usize) -> Turn,
        rounds: usize,
    ) -> Comparison {
        let loads = [
            ("50000/s, fifo", LoadKind::Open, 50e3),
            ("50000/s, rps", LoadKind::Open, 50e3),
            ("90000/s, fifo", LoadKind::Open, 90e3),
            ("90000/s, rps", LoadKind::Open, 90e3),
            ("closed loop", LoadKind::Closed, 64.0),
        ];
        let contenders: Vec<Contender> = names.iter().map(|name| name.parse().unwrap()).collect();
        let experiment = Experiment {
            loads: vec![Load::Rate(50e3), Load::Rate(90e3), Load::Closed],
            receivers: vec![Receiver::Fifo, Receiver::Rps],
            ..Experiment::new(contenders, true)
        };
        let titles: Vec<String> = experiment.contenders.iter().map(Contender::name).collect();
        let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
        let mut results: Results = results_of(&loads, &titles, &experiment.references, rounds, turn);
        for load in &mut results.loads {
            let is_rps = load.name.ends_with("rps");
            load.receiver = Some(if is_rps { Receiver::Rps } else { Receiver::Fifo });
        }
        let running = |(index, _): (usize, &&str)| {
            let polls = experiment.contenders[index].polls();
            let (ran, steps_down) = match polls {
                true if ran == "kernel-polling" => (ran.to_owned(), Vec::new()),
                true => (ran.to_owned(), vec!["no queue".to_owned()]),
                false => (experiment.contenders[index].policy().unwrap().0.name().to_owned(), Vec::new()),
            };
            Some(RunningPolicy { ran, steps_down })
        };
        let servers = names.iter().enumerate().map(running).collect();
        let outcome = Outcome { results, servers };
        let cores = CoreAssignment { servers: vec![0], clients: vec![1], packing: 1 };
        Comparison::new(experiment, &Bed::of_testbeds(cores), true, 4.8, outcome)
    }

    const NAMES: [&str; 4] = ["vanilla:epoll", "vanilla:uring", "suppression", "kernel-polling"];

    fn usual(load: &str, index: usize) -> Figures {
        match load {
            "50000/s, fifo" => [
                [49_900.0, 30.0, 200.0, 9.0],
                [49_950.0, 20.0, 150.0, 8.0],
                [49_990.0, 40.0, 250.0, 5.0],
                [49_990.0, 18.0, 140.0, 4.0],
            ][index],
            "50000/s, rps" => [
                [49_900.0, 30.0, 200.0, 10.0],
                [49_950.0, 20.0, 150.0, 10.0],
                [49_990.0, 40.0, 250.0, 9.0],
                [49_990.0, 20.0, 150.0, 8.0],
            ][index],
            // At 90,000/s it takes half of the CPU time more, but kernel polling the same.
            "90000/s, fifo" | "90000/s, rps" => {
                let [rate, p50, p99, cpu] = usual(&load.replace('9', "5"), index);
                [rate * 1.8, p50, p99, if index == 3 { cpu } else { cpu * 1.5 }]
            }
            _ => [
                [60e3, 400.0, 900.0, 14.0],
                [100e3, 300.0, 800.0, 10.0],
                [110e3, 300.0, 900.0, 9.0],
                [150e3, 250.0, 700.0, 6.0],
            ][index],
        }
    }

    #[test]
    fn the_screen_has_25_lines_of_a_hundred_columns_with_the_verdict_first() {
        let report = comparison(&NAMES, "kernel-polling", usual, 0.01, 12);
        let text = report.screen("lab-report/report.html");
        println!("{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() <= 25 && lines.iter().all(|line| line.chars().count() <= 100), "{text}");
        assert!(lines[0].starts_with("Idle cores are kept awake."), "{text}");
        let first = lines[..11].join(" ").replace("   ", " ");
        for part in [
            "kernel-polling, auto at 50,000/s, under fifo to rps, beside the better",
            "CPU 0.50 to 0.80 [0.49, 0.81], p50 0.90 to 0.99 [0.88, 1.01]",
            "kernel-polling, auto at 90,000/s, under fifo to rps, beside the better",
            "CPU 0.33 to 0.53 [0.33, 0.54]",
            "kernel-polling, auto, closed loop: throughput 1.49 [1.47, 1.51], CPU ",
        ] {
            assert!(first.contains(part), "no {part:?} in {text}");
        }
        let cells = |text: &str, server: &str| -> Vec<String> {
            let line = text.lines().rfind(|line| line.trim_start().starts_with(server)).unwrap();
            line.split_whitespace().skip(2).map(str::to_owned).collect()
        };
        let expected = ["90,000", "12.0", "20.0", "150", "15.0", "20.0", "150", "100,000"];
        assert_eq!(cells(&text, "vanilla, uring"), expected, "{text}");
        assert!(text.contains("vanilla, uring        50,000        8.0"), "{text}");
        assert_eq!(lines.last(), Some(&"Plots and every number: lab-report/report.html"));
        // The same rows and columns where something was not measured.
        let mut report = comparison(&NAMES, "kernel-polling", usual, 0.01, 12);
        report.outcome.results.loads.retain(|load| load.receiver != Some(Receiver::Rps));
        let text = report.screen("page");
        assert_eq!(cells(&text, "vanilla, uring")[4..8], ["not", "measured", "-", "-"], "{text}");
        assert!(
            report.verdict().join(" ").contains("CPU 0.50 [0.49, 0.51] (not measured under rps)"),
            "{text}"
        );
        let long: Vec<String> = (10..40).map(|interval| format!("kernel-polling:epoll:{interval}")).collect();
        let names: Vec<&str> = ["vanilla"].into_iter().chain(long.iter().map(String::as_str)).collect();
        let report = comparison(&names, "kernel-polling", |load, index| usual(load, index.min(3)), 0.01, 6);
        assert!(report.screen("lab-report/report.html").lines().count() <= 25);
    }

    #[test]
    fn a_rate_is_shown_at_the_distance_at_which_it_has_most_rounds() {
        let mut report = comparison(&NAMES, "kernel-polling", usual, 0.01, 12);
        for load in &mut report.outcome.results.loads {
            let is_far = load.at == 90e3 && load.receiver == Some(Receiver::Rps);
            load.class = if is_far { DistanceClass::Far } else { DistanceClass::Near };
        }
        report.verdict = report.verdict();
        let text = report.screen("page");
        let sentences = report.verdict.join(" ");
        assert!(
            sentences.contains("at 50,000/s, under fifo (cores near) to rps (cores near)"),
            "{sentences}"
        );
        assert!(
            sentences.contains(
                "under fifo (cores near) to rps (cores far), beside the better vanilla: CPU 0.33 ["
            ),
            "{sentences}"
        );
        assert!(
            sentences.contains("] to 0.53 [") && sentences.contains("closed loop (cores near): "),
            "{sentences}"
        );
        assert!(text.contains("90,000, near, far"), "{text}");
        assert!(
            text.replace("\n ", "").contains("cores near 100 to 110 ns, far 100 to 110 ns apart"),
            "{text}"
        );
        assert!(text.lines().count() <= 25, "{text}");
        assert!(!text.contains("not measured"), "{text}");
    }

    #[test]
    fn what_can_not_be_told_is_no_verdict() {
        let wide = comparison(&NAMES, "kernel-polling", usual, 0.3, 12);
        assert!(wide.verdict.last().unwrap().contains("throughput can't tell"), "{:?}", wide.verdict);
        let few = comparison(&NAMES, "kernel-polling", usual, 0.01, 5);
        assert!(few.verdict[0].starts_with("No verdict: it needs 6 undisturbed rounds"), "{:?}", few.verdict);
        let same = comparison(&NAMES, "kernel-polling", |load, index| usual(load, index.min(1)), 0.01, 12);
        assert!(same.verdict[0].contains("CPU 0.99 to 0.99 [0.98, 1.01]"), "{:?}", same.verdict);
        let none = comparison(&NAMES, "kernel-polling", usual, 0.01, 0);
        assert!(none.verdict[0].starts_with("No verdict: "), "{:?}", none.verdict);
        let blocked = comparison(&NAMES, "blocking", usual, 0.01, 12);
        let expected = "kernel-polling, auto could not run here (blocking ran instead: no queue); the results say nothing on it.";
        assert_eq!(blocked.verdict[0], expected);
    }

    #[test]
    fn an_overloaded_reference_and_packing_on_two_cores_have_no_ratio() {
        let overloaded = |load: &str, index: usize| match (load, index) {
            (open, 0 | 1) if open.contains("000/s") => [30e3, 9_000.0, 38_000.0, 9.0],
            _ => usual(load, index),
        };
        let text = comparison(&NAMES, "kernel-polling", overloaded, 0.01, 12).screen("page");
        assert!(text.contains("overloaded,  answered 33 %"), "{text}");
        let names = ["vanilla:epoll", "vanilla:uring", "packing", "kernel-polling"];
        let report = comparison(&names, "kernel-polling", usual, 0.01, 12);
        // Status is set where the experiment runs.
        assert!(report.left_out().iter().any(|line| line.starts_with("packing is not comparable")));
    }

    #[test]
    fn what_was_not_measured_in_the_same_round_is_not_equal() {
        let invalid = |name: &str, index: usize, round: usize| match (index, round) {
            (0 | 1, 0..6) | (3, 6..) => {
                Turn { invalid: Some("the fleet sent late".to_owned()), ..Turn::default() }
            }
            _ => turn_of(name, usual(name, index), 1.0),
        };
        let report = comparison_of(&NAMES, "kernel-polling", invalid, 12);
        let text = report.screen("page");
        let closed_of = |server: &str| {
            let line = text.lines().rfind(|line| line.trim_start().starts_with(server)).unwrap();
            line.split_whitespace().last().map(str::to_owned).unwrap()
        };
        assert_eq!(closed_of("vanilla, uring"), "100,000", "{text}");
        assert_eq!(closed_of("kernel-polling, auto"), "150,000", "{text}");
        let verdict = report.verdict.join(" ");
        assert!(
            verdict.contains("not compared: no round has a valid turn of it and of the reference"),
            "{verdict}"
        );
    }
}
