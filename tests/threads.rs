//! What goes from thread to thread: as the documentation of each type says.

use fabricast::{
    AnySubscriber, Change, Changes, Claim, Decoded, Directory, Event, Listener, ListenerBuilder, Loan,
    LogLoan, LogPublisher, LogSubscriber, LogTopic, LogView, Node, NodeBuilder, NodeListing,
    PublisherBuilder, Raw, Sample, SampleRef, Samples, Schema, Snapshot, StatePublisher, StateSubscriber,
    StateTopic, SubscriberBuilder, SubscriberStats, TablePublisher, TableSubscriber, TableTopic, TopicReport,
};

/// Implemented twice by what is `Sync`: then a call does not say of which, and is no program.
trait Unshared<Marker> {
    fn is_unshared() {}
}

impl<T: ?Sized> Unshared<()> for T {}
impl<T: ?Sized + Sync> Unshared<u8> for T {}

fn is_sent<T: Send>() {}
fn is_shared<T: Send + Sync>() {}

#[test]
fn handles_that_publish_or_receive_are_sent_and_not_shared() {
    macro_rules! sent_alone {
        ($($handle:ty),* $(,)?) => {
            $(is_sent::<$handle>(); <$handle as Unshared<_>>::is_unshared();)*
        };
    }
    sent_alone![
        StatePublisher<Raw>,
        LogPublisher<Raw>,
        TablePublisher<u64, u64>,
        Claim<'static, [u8]>,
        Loan<'static>,
        LogLoan<'static>,
        StateSubscriber<Raw>,
        LogSubscriber<Raw>,
        LogView<'static>,
        TableSubscriber<u64, u64>,
        AnySubscriber<Raw>,
        Samples<'static, StateTopic, Raw>,
        Samples<'static, LogTopic, Raw>,
        Samples<'static, TableTopic, (u64, Option<u64>)>,
        Changes<'static, u64, u64>,
    ];
}

#[test]
fn handles_that_open_others_and_what_is_received_are_sent_and_shared() {
    is_shared::<Node>();
    is_shared::<NodeBuilder>();
    is_shared::<PublisherBuilder<'static, StateTopic, Raw>>();
    is_shared::<PublisherBuilder<'static, LogTopic, Raw>>();
    is_shared::<PublisherBuilder<'static, TableTopic, (u64, Option<u64>)>>();
    is_shared::<SubscriberBuilder<'static, StateSubscriber<Raw>>>();
    is_shared::<SubscriberBuilder<'static, LogSubscriber<Raw>>>();
    is_shared::<SubscriberBuilder<'static, TableSubscriber<u64, u64>>>();
    is_shared::<SubscriberBuilder<'static, AnySubscriber<Raw>>>();
    is_shared::<ListenerBuilder<'static, StateSubscriber<Raw>>>();
    is_shared::<ListenerBuilder<'static, LogSubscriber<Raw>>>();
    is_shared::<ListenerBuilder<'static, AnySubscriber<Raw>>>();
    is_shared::<Listener<StateSubscriber<Raw>>>();
    is_shared::<Listener<LogSubscriber<Raw>>>();
    is_shared::<Listener<TableSubscriber<u64, u64>>>();
    is_shared::<Listener<AnySubscriber<Raw>>>();
    is_shared::<SampleRef<'static, Raw>>();
    is_shared::<Sample<Decoded>>();
    is_shared::<Change<u64, u64>>();
    is_shared::<Snapshot<u64, u64>>();
    is_shared::<Schema>();
    is_shared::<SubscriberStats>();
    is_shared::<Directory>();
    is_shared::<NodeListing>();
    is_shared::<TopicReport>();
    is_shared::<Event>();
}
