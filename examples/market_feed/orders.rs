//! The order messages of a file.

use std::io::Read;

use crate::Outcome;
use crate::book::Side;

const ORDERS: &[u8] = include_bytes!("../data/orders.csv.gz");

#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) side: Side,
    pub(crate) price: u32,
    pub(crate) qty: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Message {
    Limit(Order),
    /// Cancels the order of this number. Orders are counted from 1; the number may be of no order, or of one that is gone.
    Cancel(u32),
}

/// The messages of the file, or of the one that comes with the example.
pub(crate) fn read(path: Option<&str>) -> Outcome<Vec<Message>> {
    let file: Box<dyn Read> = match path {
        None => Box::new(ORDERS),
        Some(path) => Box::new(std::fs::File::open(path).map_err(|error| format!("{path}: {error}"))?),
    };
    let file: Box<dyn Read> = match path {
        Some(path) if !path.ends_with(".gz") => file,
        _ => Box::new(flate2::read::GzDecoder::new(file)),
    };
    let rows = csv::Reader::from_reader(file).into_deserialize();
    rows.map(|row| {
        let (_trader, side, price, qty): (String, Side, u32, u32) = row?;
        // A price of zero marks a cancel, whose quantity is the number of the order.
        Ok(if price == 0 { Message::Cancel(qty) } else { Message::Limit(Order { side, price, qty }) })
    })
    .collect()
}
