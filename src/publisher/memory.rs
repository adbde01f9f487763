//! The memory of a repository: a memory file, or a repository file that outlives the publisher.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::PublisherError;
use crate::clock::{Timekeeper, boot, namespace};
use crate::id::{Epoch, Sequence, TopicName};
use crate::layout::clock::ClockLine;
use crate::layout::description::{Described, Description, file_len, offset_behind};
use crate::layout::header::{COUNTERS_LEN, COUNTERS_OFFSET, StaticHeader};
use crate::layout::{Geometry, WORD};
use crate::memory::{FileHolder, Opened, Protection, Region, RepositoryFileError, WarmFile};
use crate::payload::Schema;
use crate::repository::{Continued, Damage, Recover};

/// Where the memory of a topic is, and what its recovery has to know.
#[derive(Debug, Default)]
pub(crate) struct TopicMemory {
    pub(crate) place: Place,
    /// The topic is the first of its node, whose time stamps may continue those of its predecessor.
    pub(crate) is_first: bool,
    /// Of the log of a feed: the newest sequence of its table.
    pub(crate) until: Option<Sequence>,
}

/// Where the memory of a topic is.
#[derive(Debug, Default)]
pub(crate) enum Place {
    /// In a memory file of its own.
    #[default]
    Memory,
    /// In a repository file to be made.
    New(PathBuf),
    /// In a repository file that an earlier publisher has left.
    Kept(Box<Kept>),
}

/// The repository file of an earlier publisher, locked.
#[derive(Debug)]
pub(crate) struct Kept {
    file: WarmFile,
    described: Described,
}

/// What a publisher declares.
pub(super) struct Declared<'a> {
    pub(super) name: &'a TopicName,
    pub(super) geometry: Geometry,
    pub(super) schema: &'a Schema,
}

impl Place {
    /// Finds out whether there is a repository file at this path, and has it.
    pub(crate) fn at(path: &Path) -> Result<Self, PublisherError> {
        match WarmFile::open(path)? {
            Opened::Missing => Ok(Self::New(path.to_owned())),
            Opened::Kept(file) => Self::kept(file),
            Opened::Locked(file) => {
                let mut process = [0; WORD];
                let read = file.read(COUNTERS_OFFSET as u64, &mut process);
                let holder = FileHolder::of(read.map_or(0, |()| u64::from_le_bytes(process)));
                // The process may have ended during the last attempt.
                if matches!(holder, FileHolder::ChildOf(_))
                    && let Opened::Kept(file) = WarmFile::open(path)?
                {
                    return Self::kept(file);
                }
                Err(RepositoryFileError::InUse { path: path.to_owned(), holder }.into())
            }
        }
    }

    fn kept(file: WarmFile) -> Result<Self, PublisherError> {
        let described = Described::read(file.path(), file.len(), |offset, into| file.read(offset, into))?;
        Ok(Self::Kept(Box::new(Kept { file, described })))
    }

    /// The epoch of the repository that was found.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        match self {
            Self::Kept(kept) => Some(kept.described.header.epoch),
            Self::Memory | Self::New(_) => None,
        }
    }

    /// The sequence before that of the first value of the repository that was found.
    pub(crate) fn after(&self) -> Option<Sequence> {
        match self {
            Self::Kept(kept) => Some(kept.described.description.after),
            Self::Memory | Self::New(_) => None,
        }
    }

    /// Refuses the repository that was found unless it has this epoch.
    pub(crate) fn check_epoch(&self, expected: Option<Epoch>) -> Result<(), PublisherError> {
        match (self, expected) {
            (Self::Kept(kept), Some(expected)) if kept.described.header.epoch != expected => {
                let found = kept.described.header.epoch;
                Err(kept.differs(format!("epoch {found}"), format!("epoch {expected}")).into())
            }
            _ => Ok(()),
        }
    }

    /// Refuses the repository that was found if it ends before this sequence: what it would publish has other sequences than is declared.
    pub(crate) fn check_after(&self, expected: Sequence) -> Result<(), PublisherError> {
        let Self::Kept(kept) = self else { return Ok(()) };
        // Before the first value, some kinds have none.
        let newest = kept.newest()?.max(kept.described.description.after);
        if newest >= expected {
            return Ok(());
        }
        Err(kept.differs(format!("sequences up to {newest}"), format!("one after {expected}")).into())
    }

    /// Makes the file of this topic new if it was left before anything was published, as the only one of two.
    pub(crate) fn renewed(self, topic: &TopicName) -> Result<Self, PublisherError> {
        match self {
            Self::Kept(kept) if kept.described.description.name == *topic && kept.is_empty()? => {
                kept.file.unlink()?;
                Ok(Self::New(kept.file.path().to_owned()))
            }
            place => Ok(place),
        }
    }

    /// The path of the file, if it exists.
    pub(crate) fn found(&self) -> Option<&Path> {
        match self {
            Self::Kept(kept) => Some(kept.file.path()),
            Self::Memory | Self::New(_) => None,
        }
    }
}

impl TopicMemory {
    /// Whether a repository file has to be made.
    pub(super) fn is_new(&self) -> bool {
        matches!(self.place, Place::New(_))
    }

    /// Makes the memory of a repository with this header, or takes it over, and makes its writer.
    pub(super) fn open<W: Recover>(
        self,
        declared: &Declared<'_>,
        (geometry, header): (W::Geometry, &StaticHeader),
        after: Sequence,
        time: &Timekeeper,
    ) -> Result<(Arc<Region>, W), PublisherError> {
        let len = declared.geometry.region_len();
        let (region, damaged) = match self.place {
            Place::Memory => (Region::allocate(len, Protection::PeersRead)?, None),
            Place::New(path) => (create(&path, declared, after)?, None),
            Place::Kept(kept) => {
                kept.check(declared)?;
                let Kept { file, described } = *kept;
                // Somebody may have made holes in it.
                file.reserve()?;
                let damaged = damaged(file.path());
                let region = Region::keep(file, len)?;
                if self.is_first && described.description.boot == boot() {
                    adopt_clock(&region, time);
                }
                (region, Some(damaged))
            }
        };
        let region = Arc::new(region);
        let Some(damaged) = damaged else {
            let mut writer = W::new(Arc::clone(&region), geometry, header);
            if after > Sequence::NONE {
                writer.begin_after(after);
            }
            return Ok((region, writer));
        };
        let continued = Continued { after, until: self.until };
        let writer = W::recover(Arc::clone(&region), geometry, header, &continued).map_err(damaged)?;
        // They are those of an incarnation.
        (COUNTERS_OFFSET..COUNTERS_OFFSET + COUNTERS_LEN)
            .step_by(WORD)
            .for_each(|word| region.store(word, 0));
        Ok((region, writer))
    }
}

impl Kept {
    /// Whether nothing was published.
    fn is_empty(&self) -> Result<bool, PublisherError> {
        Ok(self.newest()? <= self.described.description.after)
    }

    /// The newest sequence.
    fn newest(&self) -> Result<Sequence, PublisherError> {
        let mut newest = [0; WORD];
        self.file.read(crate::layout::header::HOT_SEQUENCE as u64, &mut newest)?;
        Ok(Sequence::new(u64::from_le_bytes(newest)))
    }

    /// Refuses a repository of another topic, kind, type or size.
    fn check(&self, declared: &Declared<'_>) -> Result<(), RepositoryFileError> {
        let Described { geometry, description: Description { name, .. }, schema, .. } = &self.described;
        let Declared { name: own_name, geometry: own, schema: own_schema } = declared;
        if name != *own_name {
            return Err(self.differs(format!("the topic {name}"), format!("the topic {own_name}")));
        }
        if geometry.kind() != own.kind() {
            return Err(self.differs(format!("a {}", geometry.kind()), format!("a {}", own.kind())));
        }
        if schema.hash() != own_schema.hash() {
            let found = format!("values of another type ({})", schema.difference(own_schema));
            return Err(self.differs(found, format!("the type {}", own_schema.type_name())));
        }
        if geometry != own {
            return Err(self.differs(sizes(geometry), sizes(own)));
        }
        Ok(())
    }

    fn differs(&self, found: String, expected: String) -> RepositoryFileError {
        RepositoryFileError::Differs { path: self.file.path().to_owned(), found, expected }
    }
}

/// The sizes of a repository, in words.
fn sizes(geometry: &Geometry) -> String {
    let facts = geometry.facts().into_iter().map(|fact| format!("{} {}", fact.name, fact.value));
    let sizes: Vec<_> = facts.chain([format!("payload_len_max {}", geometry.payload_len_max())]).collect();
    sizes.join(", ")
}

/// Makes a repository file, which gets its name once its repository is complete.
fn create(path: &Path, declared: &Declared<'_>, after: Sequence) -> Result<Region, PublisherError> {
    let (name, schema) = (declared.name.clone(), declared.schema.to_json());
    let description = Description { name, schema, after, boot: boot() }.emit();
    let len = declared.geometry.region_len();
    let file = WarmFile::create(path, file_len(len, description.len()))?;
    file.write(offset_behind(len), &description)?;
    Ok(Region::keep(file, len)?)
}

fn damaged(path: &Path) -> impl FnOnce(Damage) -> RepositoryFileError + use<> {
    let path = path.to_owned();
    |Damage { what, offset }| RepositoryFileError::Damaged { path, what, offset }
}

/// Continues the time stamps of the earlier publisher, if its monotonic clock was the same: the ages of its values stay right.
fn adopt_clock(region: &Region, time: &Timekeeper) {
    if let Some(line) = ClockLine::read(region)
        && line.namespace == namespace()
        && line.namespace != 0
    {
        time.adopt(line.timeline);
    }
}
