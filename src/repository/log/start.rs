use crate::id::{KindOptions, Sequence};

/// Where a reader of a log begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogStart {
    /// With the oldest record that is left.
    Earliest,
    /// With the next record that is published.
    #[default]
    Newest,
    /// With this record. Those that are given up already count as lost.
    At(Sequence),
    /// So many records before the next one, or as many as are left.
    Back(u64),
}

impl LogStart {
    /// What a subscription that begins here asks for.
    pub(crate) fn options(self) -> KindOptions {
        KindOptions(match self {
            Self::Newest => [0, 0],
            Self::Earliest => [1, 0],
            Self::At(sequence) => [2, sequence.get()],
            Self::Back(count) => [3, count],
        })
    }

    /// Where a subscription with these options begins; `None` when they are not those of a log.
    pub(crate) fn of(KindOptions([place, number]): KindOptions) -> Option<Self> {
        match place {
            0 => Some(Self::Newest),
            1 => Some(Self::Earliest),
            2 => Some(Self::At(Sequence::new(number))),
            3 => Some(Self::Back(number)),
            _ => None,
        }
    }

    /// The same for whoever looks later than this record was the newest.
    pub(crate) fn settled(self, newest: Sequence) -> Self {
        match self {
            Self::Newest | Self::Back(_) => Self::At(self.record(newest)),
            Self::Earliest | Self::At(_) => self,
        }
    }

    /// The record that it means while this one is the newest; [`Sequence::NONE`] for whichever is the oldest.
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
