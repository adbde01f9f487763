//! Blocks of a page that the tool writes, between a line `<!-- figure: NAME -->` and a line `<!-- end -->`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Outcome;
use super::data::Data;
use super::plot::Plot;
use super::units::count;

/// The longest line of a caption.
const LINE_LEN_MAX: usize = 130;
const END: &str = "<!-- end -->\n";

/// What a figure shows at one place of a page: tables, and plots.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) name: &'static str,
    pub(crate) tables: Vec<Table>,
    pub(crate) plots: Vec<Plot>,
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str], rows: Vec<Vec<String>>) -> Self {
        Self { head: head.iter().map(|cell| (*cell).to_owned()).collect(), rows }
    }

    fn emit(&self) -> String {
        let mut text = row(&self.head) + &row(&vec!["---".to_owned(); self.head.len()]);
        self.rows.iter().for_each(|cells| text.push_str(&row(cells)));
        text
    }
}

fn row(cells: &[String]) -> String {
    let filled = cells.iter().fold("|".to_owned(), |text, cell| {
        if cell.is_empty() { text + " |" } else { text + " " + cell + " |" }
    });
    filled + "\n"
}

impl Block {
    /// What stands between the marks.
    pub(crate) fn emit(&self, data: &Data) -> String {
        let mut parts: Vec<String> = self.tables.iter().map(Table::emit).collect();
        parts.extend(self.plots.iter().map(|plot| format!("![{}](figures/{}.svg)\n", plot.title, plot.name)));
        parts.push(wrapped(&caption(data)));
        parts.join("\n")
    }
}

/// Machine, placement and commit, what was run, and what was not measured often enough.
fn caption(data: &Data) -> String {
    let mut text = provenance(data).join(" ");
    let (rounds, lacking) = rounds(data);
    let commands: Vec<String> = data.commands.iter().map(|command| format!("`{command}`")).collect();
    _ = write!(text, " {rounds} of {}.{lacking}", commands.join(", "));
    text
}

/// How many rounds the medians are of, and which cells of the table have fewer.
fn rounds(data: &Data) -> (String, String) {
    let (cells, wanted) = (data.rounds_of_cells(), data.rounds as usize);
    let fewer: Vec<_> = cells.iter().filter(|(_, rounds)| **rounds < wanted).collect();
    let least = fewer.iter().map(|(_, rounds)| **rounds).min();
    let medians = match (least, wanted) {
        (None, 1) => "One round".to_owned(),
        (None, _) => format!("Medians of {wanted} rounds"),
        (Some(least), _) => format!("Medians of {least} to {wanted} rounds"),
    };
    if fewer.is_empty() {
        return (medians, String::new());
    }
    // The places of each series, and those of a floor only if they differ from the series that it belongs to.
    let mut places: BTreeMap<(&str, usize), Vec<String>> = BTreeMap::new();
    for ((series, x), rounds) in fewer {
        let own = series.rsplit_once('-').and_then(|(own, _)| cells.get(&(own, *x)));
        if own != Some(rounds) {
            places.entry((series, *rounds)).or_default().push(count(*x));
        }
    }
    let named =
        places.iter().map(|((series, rounds), at)| format!("{series} at {} ({rounds})", at.join(" and ")));
    let named: Vec<String> = named.collect();
    (medians, format!(" Measured in fewer rounds: {}.", named.join(", ")))
}

/// A sentence each for machine, device, placement, and commit.
pub(crate) fn provenance(data: &Data) -> Vec<String> {
    let (placed, counted) = data.placed();
    let placement = match data.placement() {
        None => "",
        Some("near") => ", near: they share a cache",
        Some("far") => ", far: they share no cache",
        Some(_) => ", mixed: they moved",
    };
    let share = if counted < placed {
        format!(" ({counted} samples; {} of other placements are not used)", placed - counted)
    } else {
        String::new()
    };
    let mut sentences = vec![format!("Machine: {}.", data.machine)];
    if !data.device.is_empty() {
        sentences.push(format!("Device: {}.", data.device));
    }
    sentences.push(format!("Placement: {}{placement}{share}.", data.processors));
    sentences.push(format!("Commit {}.", data.commit));
    sentences
}

/// Lines of a paragraph. What stands between backquotes is not broken.
pub(crate) fn wrapped(text: &str) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for word in words(text) {
        if !line.is_empty() && line.len() + 1 + word.len() > LINE_LEN_MAX {
            lines.push_str(&std::mem::take(&mut line));
            lines.push('\n');
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines + &line + "\n"
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    text.split(move |char| {
        is_quoted ^= char == '`';
        char == ' ' && !is_quoted
    })
}

/// The page with this block in place of the one that it has.
pub(crate) fn replaced(page: &str, name: &str, content: &str) -> Outcome<String> {
    let (before, rest) = split(page, name)?;
    let (_, after) = rest
        .split_once(END)
        .ok_or_else(|| format!("the block {name} of the page has no end: add a line {END}"))?;
    Ok(format!("{before}{}{content}{END}{after}", mark(name)))
}

/// What this block contains.
pub(crate) fn content<'a>(page: &'a str, name: &str) -> Outcome<&'a str> {
    let (_, rest) = split(page, name)?;
    Ok(rest.split_once(END).map_or(rest, |(content, _)| content))
}

/// The names of a page's blocks.
pub(crate) fn names(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter_map(|line| line.strip_prefix("<!-- figure: ")?.strip_suffix(" -->"))
}

fn mark(name: &str) -> String {
    format!("<!-- figure: {name} -->\n")
}

/// The page before and after the mark, without it.
fn split<'a>(page: &'a str, name: &str) -> Outcome<(&'a str, &'a str)> {
    let mark = mark(name);
    if page.matches(&mark).count() > 1 {
        return Err(format!("the page has two blocks {name}: remove one").into());
    }
    page.split_once(&mark)
        .ok_or_else(|| format!("the page has no block {name}: add a line {mark}and a line {END}").into())
}
