//! Events that a device reports by itself, and what fails because of them. Some faults are reported only so: an overrun completion queue
//! has no more completions that could fail, and a device that broke has none at all.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// The name of the event of a device that was removed.
const REMOVAL: &str = "device removal";

/// An asynchronous event of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) struct AsyncEvent {
    /// The library's name for it, such as `CQ error`.
    pub(in crate::fabric::verbs) name: &'static str,
    /// What it concerns.
    pub(in crate::fabric::verbs) concern: Concern,
    /// Whether that is unusable now.
    pub(in crate::fabric::verbs) is_fault: bool,
}

/// What an asynchronous event concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) enum Concern {
    /// The queue pair with this number.
    QueuePair(u32),
    /// The completion queue whose [`CompletionQueue::id`](super::completion::CompletionQueue::id) this is.
    CompletionQueue(usize),
    /// The port with this number.
    Port(u8),
    /// The device, or something that no module here uses.
    Device,
}

/// What of a device can fail.
pub(in crate::fabric::verbs) trait DeviceUser:
    std::fmt::Debug + Send + Sync
{
    /// Whether it uses what the event concerns.
    fn is_concerned(&self, concern: &Concern) -> bool;

    /// Makes it fail, because of an event with this name. Returns whether it had not failed before.
    fn fail(&self, event: &'static str) -> bool;

    /// Makes it fail, because the device was removed, and releases what it can.
    fn lose_device(&self) {
        self.fail(REMOVAL);
    }
}

/// An event, and the users that must fail because of it.
pub(in crate::fabric::verbs) type TakenEvent = (AsyncEvent, Vec<Arc<dyn DeviceUser>>);

/// The users of one device in this process, whose fabrics all share it: an event is delivered to one fabric only.
#[derive(Debug, Default)]
pub(in crate::fabric::verbs) struct DeviceUsers {
    all: Mutex<Vec<Weak<dyn DeviceUser>>>,
}

impl DeviceUsers {
    /// Adds one. It is forgotten once it is dropped.
    pub(in crate::fabric::verbs) fn add<U: DeviceUser + 'static>(&self, user: &Arc<U>) {
        let user: Weak<U> = Arc::downgrade(user);
        let mut all = self.all.lock();
        if all.len() == all.capacity() {
            all.retain(|user| user.strong_count() > 0);
            // Before the next sweep as many are added as are left now, so adding takes constant time on average.
            let left = all.len();
            all.reserve(left.max(1));
        }
        all.push(user);
    }

    /// All users.
    pub(in crate::fabric::verbs) fn all(&self) -> Vec<Arc<dyn DeviceUser>> {
        self.all.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// The users that this event concerns, if it is a fault.
    pub(in crate::fabric::verbs) fn concerned_by(&self, event: &AsyncEvent) -> Vec<Arc<dyn DeviceUser>> {
        if !event.is_fault {
            return Vec::new();
        }
        // Those that are not concerned are dropped after the lock.
        let mut users = self.all();
        users.retain(|user| user.is_concerned(&event.concern));
        users
    }
}

/// Makes these users of a device fail. Returns how many had not failed before.
pub(in crate::fabric::verbs) fn fail_all(users: &[Arc<dyn DeviceUser>], event: &AsyncEvent) -> usize {
    users.iter().filter(|user| user.fail(event.name)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::atomic::{AtomicU32, Ordering};

    #[derive(Debug)]
    struct User {
        number: u32,
        failures: AtomicU32,
    }

    impl DeviceUser for User {
        fn is_concerned(&self, concern: &Concern) -> bool {
            matches!(concern, Concern::Device) || *concern == Concern::QueuePair(self.number)
        }

        fn fail(&self, event: &'static str) -> bool {
            assert_eq!(event, "a fault");
            self.failures.fetch_add(1, Ordering::Relaxed) == 0
        }
    }

    fn fail_those_of(users: &DeviceUsers, event: &AsyncEvent) -> usize {
        fail_all(&users.concerned_by(event), event)
    }

    #[test]
    fn only_faults_reach_the_users_that_they_concern() {
        let users = DeviceUsers::default();
        let [first, second] = [1, 2].map(|number| Arc::new(User { number, failures: AtomicU32::new(0) }));
        for user in [&first, &second] {
            users.add(user);
        }
        let event = |concern, is_fault| AsyncEvent { name: "a fault", concern, is_fault };
        assert_eq!(fail_those_of(&users, &event(Concern::QueuePair(2), true)), 1);
        assert_eq!(fail_those_of(&users, &event(Concern::QueuePair(3), true)), 0);
        assert_eq!(fail_those_of(&users, &event(Concern::QueuePair(1), false)), 0);
        assert_eq!(fail_those_of(&users, &event(Concern::Port(1), true)), 0);
        let counts = || [&first, &second].map(|user| user.failures.load(Ordering::Relaxed));
        assert_eq!(counts(), [0, 1]);
        // The second had failed before.
        assert_eq!(fail_those_of(&users, &event(Concern::Device, true)), 1);
        assert_eq!(counts(), [1, 2]);
    }

    #[test]
    fn users_that_are_gone_are_forgotten() {
        let users = DeviceUsers::default();
        let kept = Arc::new(User { number: 0, failures: AtomicU32::new(0) });
        users.add(&kept);
        for number in 1..10_000 {
            users.add(&Arc::new(User { number, failures: AtomicU32::new(0) }));
        }
        assert!(users.all.lock().len() < 100);
        let event = AsyncEvent { name: "a fault", concern: Concern::Device, is_fault: true };
        assert_eq!(fail_those_of(&users, &event), 1);
    }
}
