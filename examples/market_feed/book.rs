//! What the feed carries: records of trades and of changed price levels, and the book of each instrument.

use std::cmp::{Ordering, Reverse};
use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Side {
    Bid,
    Ask,
}

/// A part of an event. Prices are in cents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MarketRecord {
    /// A trade takes this quantity from a level; `side` is that of the resting order.
    Trade { side: Side, price: u32, qty: u32 },
    /// An order joined a level, or left it by a cancel.
    Level { side: Side, price: u32, change: i64 },
}

/// The quantity of all orders of one side and price.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Level {
    pub(crate) price: u32,
    pub(crate) qty: u64,
}

/// The book of an instrument, best prices first: the first level of each side is the top of the book.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Book {
    pub(crate) bids: Vec<Level>,
    pub(crate) asks: Vec<Level>,
}

impl Side {
    pub(crate) fn opposite(self) -> Self {
        match self {
            Self::Bid => Self::Ask,
            Self::Ask => Self::Bid,
        }
    }

    /// `Less` if the first price is the better one: a higher bid, a lower ask.
    fn order(self, one: u32, other: u32) -> Ordering {
        match self {
            Self::Bid => Reverse(one).cmp(&Reverse(other)),
            Self::Ask => one.cmp(&other),
        }
    }

    /// Whether an order of this side and price may trade at the other side's price.
    pub(crate) fn accepts(self, price: u32, other: u32) -> bool {
        self.order(price, other) != Ordering::Greater
    }
}

impl Book {
    pub(crate) fn is_empty(&self) -> bool {
        self.bids.is_empty() && self.asks.is_empty()
    }

    /// Applies a record. Returns false and changes nothing if it takes more from a level than rests there.
    pub(crate) fn apply(&mut self, record: &MarketRecord) -> bool {
        let (side, price, change) = match *record {
            MarketRecord::Trade { side, price, qty } => (side, price, -i64::from(qty)),
            MarketRecord::Level { side, price, change } => (side, price, change),
        };
        let levels = match side {
            Side::Bid => &mut self.bids,
            Side::Ask => &mut self.asks,
        };
        let place = levels.partition_point(|level| side.order(level.price, price).is_lt());
        let level = levels.get_mut(place).filter(|level| level.price == price);
        let before = level.as_ref().map_or(0, |level| level.qty);
        match (before.checked_add_signed(change), level) {
            (None, _) => return false,
            (Some(0), None) => {}
            (Some(0), Some(_)) => _ = levels.remove(place),
            (Some(qty), Some(level)) => level.qty = qty,
            (Some(qty), None) => levels.insert(place, Level { price, qty }),
        }
        true
    }
}

/// Quantities and prices of both sides: `bids 10x4799, asks none`.
impl fmt::Display for Book {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, levels) in [("bids", &self.bids), (", asks", &self.asks)] {
            out.write_str(name)?;
            if levels.is_empty() {
                out.write_str(" none")?;
            }
            levels.iter().try_for_each(|Level { price, qty }| write!(out, " {qty}x{price}"))?;
        }
        Ok(())
    }
}
