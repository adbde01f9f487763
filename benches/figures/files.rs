//! The files of the pages: the samples of each figure, its plots, and its blocks of the page.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::Outcome;
use super::data::Data;
use super::list::{FIGURES, Figure};
use super::page::{self, Block, provenance};

const PAGE: &str = "performance.md";
const FOLDER: &str = "figures";

/// The folder `docs`, or one like it.
#[derive(Debug)]
pub(crate) struct Files {
    docs: PathBuf,
}

impl Files {
    pub(crate) fn new(docs: &Path) -> Self {
        Self { docs: docs.to_owned() }
    }

    /// The page, in a folder of its own.
    pub(crate) fn copied_to(&self, folder: &Path) -> Outcome<Self> {
        fs::create_dir(folder.join(FOLDER))?;
        fs::copy(self.docs.join(PAGE), folder.join(PAGE))?;
        Ok(Self { docs: folder.to_owned() })
    }

    /// Writes the samples of a figure, and what the page shows of them. The samples come first: if the tool is killed in between,
    /// nothing measured is lost, `--check` reports that page or plots differ, and `--render` writes them.
    pub(crate) fn keep(&self, figure: &Figure, data: &Data) -> Outcome<()> {
        let text = data.emit()?;
        // What is written is what a later run reads.
        let data = Data::parse(&text)?;
        fs::create_dir_all(self.docs.join(FOLDER))?;
        write(&self.in_folder(figure.name, "json"), &text)?;
        self.render(figure, &data)
    }

    pub(crate) fn samples(&self, figure: &Figure) -> Outcome<Data> {
        let path = self.in_folder(figure.name, "json");
        if !path.exists() {
            return Err(format!("{} is missing: tools/bench --only {}", path.display(), figure.name).into());
        }
        read(&path)
    }

    /// Writes what the page shows of the samples.
    pub(crate) fn render(&self, figure: &Figure, data: &Data) -> Outcome<()> {
        let path = self.docs.join(PAGE);
        let mut page = text_of(&path)?;
        for block in (figure.show)(data) {
            for (name, svg) in drawn(&block, data)? {
                write(&self.in_folder(name, "svg"), &svg)?;
            }
            page = page::replaced(&page, block.name, &block.emit(data))?;
        }
        write(&path, &page)
    }

    fn in_folder(&self, name: &str, ending: &str) -> PathBuf {
        self.docs.join(FOLDER).join(format!("{name}.{ending}"))
    }

    /// What of a figure differs from its samples. Adds its blocks and files to those that are known.
    fn differences(&self, figure: &Figure, page: &str, known: &mut BTreeSet<String>) -> Outcome<Vec<String>> {
        let data = self.samples(figure)?;
        let (name, mut problems) = (figure.name, Vec::new());
        known.insert(format!("{name}.json"));
        for block in (figure.show)(&data) {
            known.insert(block.name.to_owned());
            if page::content(page, block.name)? != block.emit(&data) {
                problems.push(format!(
                    "the block {} of {} is not what {name}.json shows",
                    block.name,
                    self.docs.join(PAGE).display()
                ));
            }
            for (plot, svg) in drawn(&block, &data)? {
                known.insert(format!("{plot}.svg"));
                if fs::read_to_string(self.in_folder(plot, "svg")).ok() != Some(svg) {
                    problems.push(format!("{plot}.svg is not what {name}.json shows"));
                }
            }
        }
        Ok(problems)
    }
}

/// The plots of a block with their names.
fn drawn(block: &Block, data: &Data) -> Outcome<Vec<(&'static str, String)>> {
    block.plots.iter().map(|plot| Ok((plot.name, plot.draw(&provenance(data))?))).collect()
}

/// What differs between the samples and what the page shows, and what belongs to no figure.
pub(crate) fn problems(root: &Path) -> Outcome<Vec<String>> {
    let files = Files::new(&root.join("docs"));
    let page = text_of(&files.docs.join(PAGE))?;
    let (mut problems, mut known) = (Vec::new(), BTreeSet::new());
    for figure in FIGURES {
        match files.differences(figure, &page, &mut known) {
            Ok(found) => problems.extend(found),
            Err(error) => problems.push(error.to_string()),
        }
    }
    if !problems.is_empty() {
        problems.push("tools/bench --render writes page and plots from the samples".to_owned());
        return Ok(problems);
    }
    for entry in fs::read_dir(files.docs.join(FOLDER))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !known.contains(&name) {
            problems.push(format!("no figure has the file {name}: remove it"));
        }
    }
    let unknown = page::names(&page).filter(|name| !known.contains(*name));
    problems.extend(unknown.map(|name| format!("no figure has the block {name} of the page: remove it")));
    Ok(problems)
}

/// The samples in a file.
pub(crate) fn read(path: &Path) -> Outcome<Data> {
    Data::parse(&text_of(path)?).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn text_of(path: &Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()).into())
}

/// Writes a file as a whole: a run that ends early leaves the earlier one.
pub(crate) fn write(path: &Path, text: &str) -> Outcome<()> {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let new = path.with_file_name(format!(".{file}.new"));
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
    written.map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}
