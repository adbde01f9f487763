//! Where a command reads a topic: at a node, or in the repository file of a publisher.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fabricast::{
    AddressError, AnySubscriber, LogStart, NodeName, Raw, RepositoryFile, RepositoryFileError, Target, limits,
};

use super::failure::{Exit, Failure};
use super::output::printable;
use super::setting::{FILE, LineArguments, target};

/// A topic at a node, or in a repository file, as an argument. Sentences name it as the user did.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The topic. Of a file, the node stands for the file, and has its name if it can.
    target: Target,
    /// The file, or why it cannot be read.
    file: Option<(PathBuf, Arc<Result<RepositoryFile, RepositoryFileError>>)>,
}

/// Parses TARGET or file:PATH.
pub(crate) fn place(text: &str) -> Result<Place, AddressError> {
    let Some(path) = text.strip_prefix(FILE) else { return Ok(target(text)?.into()) };
    let path = PathBuf::from(path);
    let file = RepositoryFile::open(&path).map(|file| file.region_len_max(limits::REGION_LEN_MAX));
    let topic = file.as_ref().map_or("file", |file| file.topic().as_str());
    let target = target(&format!("{}/{topic}", node_of(&path)))?;
    Ok(Place { target, file: Some((path, Arc::new(file))) })
}

/// The name of a file, if a node can have it.
fn node_of(path: &Path) -> String {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name.parse::<NodeName>().is_ok() { name.to_owned() } else { "file".to_owned() }
}

impl Place {
    /// Whether it is in a file.
    pub(crate) fn is_file(&self) -> bool {
        self.file.is_some()
    }

    /// Refuses other lines of a file.
    pub(crate) fn check(&self, lines: &LineArguments) -> Result<(), Failure> {
        if self.is_file() && !lines.is_empty() {
            return Err(Failure::usage("a file is read by itself: omit --line, or name a topic of a node"));
        }
        Ok(())
    }

    /// What follows the advice to wait, or to look again: nothing comes to a file without a publisher.
    pub(crate) fn condition(&self) -> &'static str {
        if self.is_file() { ", if its publisher runs" } else { "" }
    }

    /// Names a topic that is at the same place: of a file, without a node.
    pub(crate) fn name(&self, topic: &Target) -> String {
        if self.is_file() { topic.topic.to_string() } else { topic.to_string() }
    }

    /// The path of the file, if it is one.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|(path, _)| path.as_path())
    }

    /// The repository file, if it is one.
    pub(crate) fn file(&self) -> Result<Option<&RepositoryFile>, Failure> {
        match self.file.as_ref().map(|(_, file)| file.as_ref()) {
            None => Ok(None),
            Some(Ok(file)) => Ok(Some(file)),
            Some(Err(error)) => Err(Failure::of(exit_of(error), error)),
        }
    }

    /// A subscriber of the topic in the file, which begins here if it is a log. `None` if it is at a node.
    pub(crate) fn subscriber(&self, start: LogStart) -> Result<Option<AnySubscriber<Raw>>, Failure> {
        let subscriber = self.file()?.map(|file| file.any_subscriber(start)).transpose();
        subscriber.map_err(|error| Failure::of(exit_of(&error), &error))
    }

    /// The file of the table of the feed whose log this is.
    pub(crate) fn table(&self) -> Option<Self> {
        let (path, _) = self.file.as_ref()?;
        place(&format!("{FILE}{}.table", path.display())).ok()
    }
}

impl From<Target> for Place {
    fn from(target: Target) -> Self {
        Self { target, file: None }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path() {
            Some(path) => write!(out, "{FILE}{}", printable(&path.display().to_string())),
            None => write!(out, "{}", self.target),
        }
    }
}

impl Deref for Place {
    type Target = Target;

    fn deref(&self) -> &Target {
        &self.target
    }
}

/// The exit code for a file that cannot be read.
fn exit_of(error: &RepositoryFileError) -> Exit {
    match error {
        RepositoryFileError::System { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Exit::Unreachable
        }
        _ => Exit::Local,
    }
}
