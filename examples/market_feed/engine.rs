//! A matching engine with a book for each instrument. Orders trade at the best price first, and at one price in the order in
//! which they came.

use std::collections::btree_map::{BTreeMap, OccupiedEntry};
use std::collections::{HashMap, VecDeque};

use crate::book::{Book, Level, MarketRecord, Side};
use crate::orders::{Message, Order};

pub(crate) const INSTRUMENTS: u32 = 3000;

/// What a message has changed: at least one record, all of one instrument, and the book after it.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) symbol: String,
    pub(crate) records: Vec<MarketRecord>,
    pub(crate) book: Book,
}

#[derive(Debug, Default)]
pub(crate) struct Engine {
    instruments: HashMap<u32, Instrument>,
    /// Instrument, side and price of each order.
    orders: Vec<(u32, Side, u32)>,
}

/// The orders of an instrument, by price; no queue is empty.
#[derive(Debug, Default)]
struct Instrument {
    bids: BTreeMap<u32, VecDeque<Resting>>,
    asks: BTreeMap<u32, VecDeque<Resting>>,
}

#[derive(Debug)]
struct Resting {
    order: u32,
    qty: u32,
}

pub(crate) fn symbol(instrument: u32) -> String {
    format!("S{instrument:04}")
}

/// Every fifth order goes to the instruments in turn, so that each has some. Few have most of the others, as in real feeds.
fn instrument(order: u32) -> u32 {
    if order.is_multiple_of(5) {
        return order / 5 % INSTRUMENTS;
    }
    let hash = order.wrapping_mul(0x9E37_79B1).rotate_left(15).wrapping_mul(0x85EB_CA77) >> 8;
    let busiest = INSTRUMENTS >> (hash % 12);
    hash / 12 % busiest
}

impl Engine {
    /// Processes a message. None: it is a cancel of no order, or of one that is gone.
    pub(crate) fn process(&mut self, message: Message) -> Option<Event> {
        let (at, records) = match message {
            Message::Limit(order) => {
                let number = u32::try_from(self.orders.len()).ok()? + 1;
                let at = instrument(number);
                self.orders.push((at, order.side, order.price));
                (at, self.instruments.entry(at).or_default().limit(number, order))
            }
            Message::Cancel(number) => {
                let place = usize::try_from(number.checked_sub(1)?).ok()?;
                let (at, side, price) = *self.orders.get(place)?;
                (at, vec![self.instruments.get_mut(&at)?.cancel(number, side, price)?])
            }
        };
        let book = self.instruments.get(&at)?.book();
        if records.is_empty() { None } else { Some(Event { symbol: symbol(at), records, book }) }
    }

    /// The books that are not empty, by symbol.
    pub(crate) fn books(&self) -> BTreeMap<String, Book> {
        let books = self.instruments.iter().map(|(at, instrument)| (symbol(*at), instrument.book()));
        books.filter(|(_, book)| !book.is_empty()).collect()
    }
}

impl Instrument {
    /// Trades with the other side as far as the prices allow, and leaves the rest in the book.
    fn limit(&mut self, number: u32, order: Order) -> Vec<MarketRecord> {
        let (mut records, mut left) = (Vec::new(), order.qty);
        let side = order.side.opposite();
        while left > 0
            && let Some(mut level) = self.best(side)
            && order.side.accepts(order.price, *level.key())
        {
            let (price, queue) = (*level.key(), level.get_mut());
            let Some(oldest) = queue.front_mut() else { break };
            let qty = left.min(oldest.qty);
            left -= qty;
            oldest.qty -= qty;
            if oldest.qty == 0 {
                queue.pop_front();
            }
            if queue.is_empty() {
                level.remove();
            }
            records.push(MarketRecord::Trade { side, price, qty });
        }
        if left > 0 {
            let queue = self.levels(order.side).entry(order.price).or_default();
            queue.push_back(Resting { order: number, qty: left });
            records.push(MarketRecord::Level {
                side: order.side,
                price: order.price,
                change: i64::from(left),
            });
        }
        records
    }

    fn cancel(&mut self, number: u32, side: Side, price: u32) -> Option<MarketRecord> {
        let levels = self.levels(side);
        let queue = levels.get_mut(&price)?;
        let place = queue.iter().position(|resting| resting.order == number)?;
        let change = -i64::from(queue.remove(place)?.qty);
        if queue.is_empty() {
            levels.remove(&price);
        }
        Some(MarketRecord::Level { side, price, change })
    }

    fn levels(&mut self, side: Side) -> &mut BTreeMap<u32, VecDeque<Resting>> {
        match side {
            Side::Bid => &mut self.bids,
            Side::Ask => &mut self.asks,
        }
    }

    fn best(&mut self, side: Side) -> Option<OccupiedEntry<'_, u32, VecDeque<Resting>>> {
        match side {
            Side::Bid => self.bids.last_entry(),
            Side::Ask => self.asks.first_entry(),
        }
    }

    /// Made from the orders, not from the records, so that comparing the two proves something.
    fn book(&self) -> Book {
        let level = |(price, queue): (&u32, &VecDeque<Resting>)| Level {
            price: *price,
            qty: queue.iter().map(|resting| u64::from(resting.qty)).sum(),
        };
        Book {
            bids: self.bids.iter().rev().map(level).collect(),
            asks: self.asks.iter().map(level).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Engine, Instrument, instrument};
    use crate::book::{Book, MarketRecord, Side};
    use crate::orders::{Message, Order, read};

    fn order(side: Side, price: u32, qty: u32) -> Order {
        Order { side, price, qty }
    }

    #[test]
    fn orders_trade_at_the_best_price_first_and_then_in_order_of_time() {
        let mut instrument = Instrument::default();
        for (number, price, qty) in [(1, 4801, 10), (2, 4800, 20), (3, 4800, 30), (4, 4802, 40)] {
            instrument.limit(number, order(Side::Ask, price, qty));
        }
        let trade = |price, qty| MarketRecord::Trade { side: Side::Ask, price, qty };
        assert_eq!(instrument.limit(5, order(Side::Bid, 4800, 25)), [trade(4800, 20), trade(4800, 5)]);
        // Order 2 is gone, 5 have been taken from order 3.
        assert_eq!(instrument.cancel(2, Side::Ask, 4800), None);
        let rest = MarketRecord::Level { side: Side::Bid, price: 4801, change: 5 };
        let records = instrument.limit(6, order(Side::Bid, 4801, 40));
        assert_eq!(records, [trade(4800, 25), trade(4801, 10), rest]);
        let gone = MarketRecord::Level { side: Side::Bid, price: 4801, change: -5 };
        assert_eq!(instrument.cancel(6, Side::Bid, 4801), Some(gone));
        assert_eq!(instrument.cancel(6, Side::Bid, 4801), None);
        let book = instrument.book();
        assert_eq!((book.bids.len(), book.asks.len()), (0, 1));
    }

    #[test]
    fn records_of_the_file_make_the_books_of_the_engine() {
        let (mut engine, mut events, mut books) = (Engine::default(), 0, BTreeMap::new());
        let messages = read(None).expect("the messages");
        for event in messages.iter().filter_map(|message| engine.process(*message)) {
            events += 1;
            let book: &mut Book = books.entry(event.symbol).or_default();
            assert!(event.records.iter().all(|record| book.apply(record)));
            assert_eq!(*book, event.book);
        }
        books.retain(|_, book| !book.is_empty());
        assert_eq!(books, engine.books());
        assert_eq!((messages.len(), events, books.len()), (35_759, 21_057, 2546));
        let cancels = messages.iter().filter(|message| matches!(message, Message::Cancel(_))).count();
        assert_eq!(cancels, 17_865);
    }

    #[test]
    fn few_instruments_have_most_orders_and_each_has_some() {
        let mut orders = vec![0_u32; 3000];
        (1..=17_894).for_each(|number| orders[instrument(number) as usize] += 1);
        let of_first = |len| orders.iter().take(len).sum::<u32>();
        assert_eq!(of_first(3000), 17_894);
        assert!(orders.iter().all(|count| *count > 0));
        assert!(
            of_first(1) > 17_894 / 8 && of_first(30) > 17_894 * 2 / 5,
            "{} {}",
            of_first(1),
            of_first(30)
        );
    }
}
