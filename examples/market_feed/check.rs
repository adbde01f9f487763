//! Compares what the subscribers received with the engine.

use std::collections::{BTreeMap, BTreeSet};

use crate::publisher::Replay;
use crate::subscriber::{Counts, Numbered, Plan, Report, Subscriber};
use crate::{Outcome, say};

/// The most differences that an error lists.
const SHOWN: usize = 20;

/// Waits for the subscribers and prints what they received. An error names the differences.
pub(crate) fn check(replay: &Replay, subscribers: &[Subscriber]) -> Outcome<()> {
    let books = replay.books();
    let (messages, all) = (replay.messages, replay.published);
    let Counts { events, records, removals } = all;
    say(format_args!("\n{messages} messages: {events} events of {records} records, {removals} removals"))?;
    say(format_args!("subscriber  records  events  values  removals  losses  books compared"))?;
    let mut differences = Vec::new();
    for subscriber in subscribers {
        let (report, plan) = (subscriber.report()?, subscriber.plan);
        let mut expected = books.clone();
        expected.retain(|symbol, _| plan.wants(symbol));
        let Report { counts: Counts { events, records, removals }, values, losses, .. } = report;
        say(format_args!(
            "{:<10}  {records:>7}  {events:>6}  {values:>6}  {removals:>8}  {losses:>6}  {:>14}",
            plan.name,
            expected.len()
        ))?;
        let found = compare(&expected, &report.books).into_iter();
        let found = found.chain(miscount(plan, &expected, replay, &report));
        differences.extend(found.chain(report.wrong).map(|found| format!("\n{}: {found}", plan.name)));
    }
    if differences.is_empty() {
        say(format_args!("\nevery subscriber ended with the books of the engine"))?;
        return Ok(());
    }
    let shown: String = differences.iter().take(SHOWN).map(String::as_str).collect();
    Err(format!("{} differences, among them:{shown}", differences.len()).into())
}

/// Names the instruments whose books differ.
fn compare(expected: &BTreeMap<String, Numbered>, found: &BTreeMap<String, Numbered>) -> Vec<String> {
    let symbols: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    let books = symbols.into_iter().map(|symbol| (symbol, found.get(symbol), expected.get(symbol)));
    let differing = books.filter(|(_, found, expected)| found != expected);
    differing
        .map(|(symbol, found, expected)| {
            format!("{symbol} has {}, the engine {}", described(found), described(expected))
        })
        .collect()
}

fn described(book: Option<&Numbered>) -> String {
    book.map_or_else(|| "no book".to_owned(), |(book, number)| format!("{book} after {number} records"))
}

/// Names counts that cannot be right.
fn miscount(
    plan: &Plan,
    expected: &BTreeMap<String, Numbered>,
    replay: &Replay,
    report: &Report,
) -> Option<String> {
    let published = replay.published.records;
    let Report { counts: Counts { records, .. }, first, values, losses, .. } = *report;
    let is_right = match plan.interval {
        Some(_) => records == 0 && (values > 0 || expected.is_empty()),
        // Without losses, all records from the first one on.
        None if losses == 0 && !plan.wants_fifty => records == 0 || first + records == published + 1,
        None => true,
    };
    // A late subscriber begins with the values of these instruments.
    let has_cut = !plan.is_late || values > 0 || replay.lasting.is_empty();
    let text = || {
        format!("{records} records from {first} on, and {values} values, of a feed of {published} records")
    };
    (!is_right || !has_cut).then(text)
}

#[cfg(test)]
mod tests {
    use super::compare;
    use crate::book::{Book, Level};

    #[test]
    fn differing_missing_and_surplus_books_are_named() {
        let book = |qty| (Book { bids: vec![Level { price: 4799, qty }], asks: Vec::new() }, 1);
        let books = |list: &[(&str, u64)]| {
            list.iter().map(|(symbol, qty)| ((*symbol).to_owned(), book(*qty))).collect()
        };
        let expected = books(&[("S0001", 1), ("S0002", 2), ("S0003", 3)]);
        assert_eq!(compare(&expected, &expected), Vec::<String>::new());
        let found = compare(&expected, &books(&[("S0001", 1), ("S0002", 3), ("S0004", 4)]));
        let symbols: Vec<_> = found.iter().filter_map(|difference| difference.split(' ').next()).collect();
        assert_eq!(symbols, ["S0002", "S0003", "S0004"]);
    }
}
