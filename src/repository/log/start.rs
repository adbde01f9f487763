use crate::id::{KindOptions, Sequence};

/// Where a log subscription begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogStart {
    /// With the oldest record held.
    Earliest,
    /// With the next record published.
    #[default]
    Newest,
    /// With this record. Records from it on that were already overwritten are reported lost.
    At(Sequence),
    /// This many records before the next one, or with the oldest available.
    Back(u64),
}

impl LogStart {
    /// Returns the options of a subscription that begins here.
    pub(crate) fn options(self) -> KindOptions {
        KindOptions(match self {
            Self::Newest => [0, 0],
            Self::Earliest => [1, 0],
            Self::At(sequence) => [2, sequence.get()],
            Self::Back(count) => [3, count],
        })
    }

    /// Returns where a subscription with these options begins; `None` if they are not options of a log.
    pub(crate) fn of(KindOptions([place, number]): KindOptions) -> Option<Self> {
        match place {
            0 => Some(Self::Newest),
            1 => Some(Self::Earliest),
            2 => Some(Self::At(Sequence::new(number))),
            3 => Some(Self::Back(number)),
            _ => None,
        }
    }

    /// Returns the equivalent start for a reader that arrives after this record was the newest.
    pub(crate) fn settled(self, newest: Sequence) -> Self {
        match self {
            Self::Newest | Self::Back(_) => Self::At(self.record(newest)),
            Self::Earliest | Self::At(_) => self,
        }
    }

    /// Returns the first record while this one is the newest; [`Sequence::NONE`] for the oldest one.
    pub(crate) fn record(self, newest: Sequence) -> Sequence {
        match self {
            Self::Earliest => Sequence::NONE,
            Self::Newest => newest.next(),
            Self::At(sequence) => sequence,
            Self::Back(count) => Sequence::new(newest.get().saturating_sub(count)).next(),
        }
    }
}

impl From<LogStart> for KindOptions {
    fn from(start: LogStart) -> Self {
        start.options()
    }
}
