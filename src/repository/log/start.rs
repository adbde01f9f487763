use crate::id::{Epoch, KindOptions, Sequence};
use crate::repository::GrantedAt;

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
    /// With the first record of this publisher. Those that were already overwritten are reported lost, but not those up to the sequence
    /// after which it continues a numbering.
    First,
    /// With the record after this one, if the topic has this epoch: records since then that were already overwritten are reported
    /// lost. Otherwise the topic is another one, and the subscription begins with sequence 1: records that were overwritten, or that an
    /// earlier publisher of that epoch had published, are reported lost.
    Resume {
        /// The epoch of the records received before.
        epoch: Epoch,
        /// The last of them.
        after: Sequence,
    },
}

impl LogStart {
    /// Returns the options of a subscription that begins here.
    pub(crate) fn options(self) -> KindOptions {
        KindOptions(match self {
            Self::Newest => [0, 0, 0],
            Self::Earliest => [1, 0, 0],
            Self::At(sequence) => [2, sequence.get(), 0],
            Self::Back(count) => [3, count, 0],
            Self::First => [4, 0, 0],
            Self::Resume { epoch, after } => [5, after.get(), epoch.get()],
        })
    }

    /// Returns where a subscription with these options begins; `None` if they are not options of a log.
    pub(crate) fn of(KindOptions([place, number, epoch]): KindOptions) -> Option<Self> {
        match place {
            0 => Some(Self::Newest),
            1 => Some(Self::Earliest),
            2 => Some(Self::At(Sequence::new(number))),
            3 => Some(Self::Back(number)),
            4 => Some(Self::First),
            5 => Some(Self::Resume { epoch: Epoch::new(epoch)?, after: Sequence::new(number) }),
            _ => None,
        }
    }

    /// Returns the equivalent start in a topic of this epoch, which held this much when it was granted.
    pub(crate) fn within(self, topic: Epoch, granted: GrantedAt) -> Self {
        match self {
            Self::Newest | Self::Back(_) => Self::At(self.record(granted.newest)),
            Self::Resume { epoch, after } if epoch == topic => Self::At(after.next()),
            Self::First => Self::At(granted.after.next()),
            // Nothing of this epoch was received, whoever has published it.
            Self::Resume { .. } => Self::At(Sequence::NONE.next()),
            Self::Earliest | Self::At(_) => self,
        }
    }

    /// Returns the first record while this one is the newest; [`Sequence::NONE`] for the oldest one.
    pub(crate) fn record(self, newest: Sequence) -> Sequence {
        match self {
            // The last two are settled by the grant.
            Self::Earliest | Self::First | Self::Resume { .. } => Sequence::NONE,
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
