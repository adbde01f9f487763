//! Programs of one queue pair beside those of perftest and libibverbs, as `tools/perf-programs` prints them.

use std::process::Command;

use serde_json::Value;

use super::Outcome;
use super::aims::{Bound, verdict};
use super::data::{Data, Key};
use super::lab::Lab;
use super::page::{Block, Table};
use super::units::{count, per_cent, ratio, throughput, time};

/// What stands between two programs in the name of a series.
const BESIDE: &str = " beside ";
/// A unit of the tool, the name of its value, and how that is written.
#[derive(Debug)]
struct Unit {
    name: &'static str,
    value: &'static str,
    text: fn(f64) -> String,
}

const UNITS: [Unit; 3] = [
    Unit { name: "ns", value: "ns", text: time },
    Unit { name: "GB/s", value: "gb_per_s", text: throughput },
    Unit { name: "%", value: "percent", text: per_cent },
];

pub(super) fn measure(lab: &mut Lab) -> Outcome<()> {
    lab.note("tools/perf-programs --json".to_owned());
    lab.data.processors = "processes not pinned".to_owned();
    let mut command = Command::new("tools/perf-programs");
    command.arg("--json").env("ROUNDS", "1").env("FABRICAST_PROGRAM", lab.programs.path("fabricast")?);
    if lab.is_quick {
        command.env("ITERATIONS", "100").env("BLAST_ITERATIONS", "100");
    }
    let text = lab.run_command(&mut command)?;
    let rows: Vec<Row> = text.lines().map(Row::parse).collect::<Outcome<_>>()?;
    if rows.is_empty() {
        return Err("tools/perf-programs printed no rows".into());
    }
    for Row { series, x, values } in rows {
        let values: Vec<(&str, f64)> = values.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        lab.add((&series, x), None, &values);
    }
    Ok(())
}

/// A line of `tools/perf-programs --json`: a program and what it is compared with, or a program only.
#[derive(Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) series: String,
    pub(crate) x: u64,
    pub(crate) values: Vec<(String, f64)>,
}

impl Row {
    pub(crate) fn parse(line: &str) -> Outcome<Self> {
        let row: Value = serde_json::from_str(line)?;
        let text = |name: &str| row.get(name).and_then(Value::as_str);
        let number = |name: &str| row.get(name).and_then(Value::as_f64);
        let missing = |name: &str| format!("tools/perf-programs printed a line without {name}: {line}");
        // The size is the last word.
        let (program, size) =
            text("program").and_then(|it| it.rsplit_once(' ')).ok_or_else(|| missing("program"))?;
        let unit = text("unit").ok_or_else(|| missing("unit"))?;
        let unit = UNITS.iter().find(|it| it.name == unit).map(|it| it.value);
        let unit = unit.ok_or_else(|| missing("a unit that is known"))?;
        let mut values = vec![(unit.to_owned(), number("figure").ok_or_else(|| missing("figure"))?)];
        let mut series = program.to_owned();
        if let Some((beside, _)) = text("beside").and_then(|it| it.rsplit_once(' ')) {
            series = format!("{program}{BESIDE}{beside}");
            values
                .push((format!("beside_{unit}"), number("its_figure").ok_or_else(|| missing("its_figure"))?));
            let bound = text("bound").ok_or_else(|| missing("bound"))?;
            let bound = if bound == "at least" { "at_least" } else { "at_most" };
            values.push((bound.to_owned(), number("limit").ok_or_else(|| missing("limit"))?));
        }
        Ok(Self { series, x: size.parse()?, values })
    }
}

pub(crate) fn show(data: &Data) -> Vec<Block> {
    // In the order of the tool.
    let mut cells: Vec<(&str, u64)> = Vec::new();
    for sample in &data.samples {
        if !cells.contains(&(&sample.series, sample.x)) {
            cells.push((&sample.series, sample.x));
        }
    }
    let head = ["program", "bytes", "figure", "beside", "its figure", "ratio", "aim"];
    let compared = Table::new(&head, cells.iter().filter_map(|cell| compared(data, *cell)).collect());
    let alone = cells.iter().filter(|(series, _)| !series.contains(BESIDE));
    let alone = alone.map(|(series, x)| {
        let value = unit_of(data, (series, *x)).and_then(|unit| unit.shown(data, (series, *x, unit.value)));
        vec![named(series.trim_end_matches("-agent-cpu")), count(*x), value.unwrap_or_default()]
    });
    let alone = Table::new(&["agent that sleeps", "bytes", "share of a processor"], alone.collect());
    vec![Block { name: "verbs-programs", tables: vec![compared, alone], plots: vec![] }]
}

/// The row of a program beside another one.
fn compared(data: &Data, (series, x): (&str, u64)) -> Option<Vec<String>> {
    let (program, beside) = series.split_once(BESIDE)?;
    let unit = unit_of(data, (series, x))?;
    let its = format!("beside_{}", unit.value);
    let found = data.ratio((series, x, unit.value), (series, x, &its));
    let least = data.median((series, x, "at_least")).map(Bound::AtLeast);
    let bound = least.or_else(|| data.median((series, x, "at_most")).map(Bound::AtMost))?;
    Some(vec![
        named(program),
        count(x),
        unit.shown(data, (series, x, unit.value))?,
        format!("`{beside}`"),
        unit.shown(data, (series, x, &its))?,
        ratio(found.as_ref()),
        format!("{bound}: {}", verdict(bound, found.as_ref())),
    ])
}

/// A program as the page names it: figures are medians unless the tool says otherwise.
fn named(program: &str) -> String {
    program
        .strip_suffix("-mean")
        .map_or_else(|| format!("`{program}`"), |program| format!("`{program}`, mean"))
}

impl Unit {
    fn shown(&self, data: &Data, key: Key<'_>) -> Option<String> {
        data.median(key).map(self.text)
    }
}

/// The unit of what was measured of a cell.
fn unit_of(data: &Data, (series, x): (&str, u64)) -> Option<&'static Unit> {
    UNITS.iter().find(|unit| data.median((series, x, unit.value)).is_some())
}
