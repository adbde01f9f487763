//! Commands that follow several publishers of the same values, of which some have damaged or other ones.

use fabricast::{Epoch, TablePublisher};
use serde_json::{Value, json};

use crate::support::{Place, damage, json as parsed};

const A: &str = "shm:a/t";
const B: &str = "shm:b/t";

fn epoch() -> Epoch {
    Epoch::new(1).unwrap()
}

#[test]
fn keys_that_are_damaged_on_one_line_are_printed_by_tail() {
    let place = Place::new();
    let nodes = ["a", "b"].map(|name| place.node(name));
    let mut tables: [TablePublisher<String, String>; 2] =
        nodes.each_ref().map(|node| node.table_publisher("t").epoch(epoch()).open().unwrap());
    for (name, table) in ["a", "b"].iter().zip(&mut tables) {
        for key in ["EUR", "GBP", "JPY", "USD"] {
            table.put(key, &format!("{key} of line {name}")).unwrap();
        }
    }
    ["GBP of line a", "JPY of line a", "USD of line a"].into_iter().for_each(damage);
    for lines in [[A, "--line", B], [B, "--line", A]] {
        let tail = place.run(&[&["tail", "--earliest"], &lines[..]].concat());
        let keys: Vec<_> =
            tail.out.lines().map(|line| line.split_whitespace().nth(2).unwrap_or(line)).collect();
        assert_eq!((tail.code, &keys[..]), (Some(0), &["EUR", "GBP", "JPY", "USD"][..]), "{tail:?}");
    }
    // The first one has it no more, and the other one has a damaged one.
    damage("USD of line b");
    for lines in [[A, "--line", B], [B, "--line", A]] {
        let tail = place.run(&[&["tail", "--earliest"], &lines[..]].concat());
        assert!(tail.code == Some(1) && tail.out.contains("JPY") && !tail.out.contains("USD"), "{tail:?}");
    }
}

#[test]
fn values_of_a_table_are_decoded_with_the_type_of_the_line_that_brought_them() {
    let place = Place::new();
    let (first, second) = (place.node("a"), place.node("b"));
    let mut numbers: TablePublisher<String, u64> = first.table_publisher("t").epoch(epoch()).open().unwrap();
    let mut rates: TablePublisher<String, f64> = second.table_publisher("t").epoch(epoch()).open().unwrap();
    numbers.put("EUR", &1).unwrap();
    rates.put("EUR", &1.0).unwrap();
    rates.put("USD", &2.0).unwrap();
    for lines in [[A, "--line", B], [B, "--line", A]] {
        let tail = place.run(&[&["tail", "--earliest", "--json"], &lines[..]].concat());
        let values: Vec<Value> = tail.out.lines().map(parsed).filter(|it| !it["value"].is_null()).collect();
        let [eur, usd] = &values[..] else { panic!("{tail:?}") };
        assert!(eur["value"] == json!(1) || eur["value"] == json!(1.0), "{tail:?}");
        assert_eq!(
            (tail.code, &usd["key"], &usd["value"]),
            (Some(0), &json!("USD"), &json!(2.0)),
            "{tail:?}"
        );
    }
}

/// The other line might have brought it until then.
#[test]
fn damaged_value_that_is_reported_late_does_not_make_later_ones_count_as_replaced() {
    let place = Place::new();
    let (first, second) = (place.node("a"), place.node("b"));
    let mut ahead = first.state_publisher::<String>("t").epoch(epoch()).open().unwrap();
    let mut behind = second.state_publisher::<String>("t").epoch(epoch()).open().unwrap();
    for number in 1..=4 {
        ahead.publish(&number.to_string()).unwrap();
        behind.publish(&number.to_string()).unwrap();
    }
    ahead.publish(&"a value that is damaged later".to_owned()).unwrap();
    damage("a value that is damaged later");
    let watch = place.start(&["watch", A, "--line", B, "--json"]);
    let value = || {
        loop {
            let line = parsed(&watch.line());
            if line.get("event").is_none() {
                return line;
            }
        }
    };
    assert_eq!(value()["sequence"], 4);
    let mut losses = Vec::new();
    for number in 6..10 {
        ahead.publish(&number.to_string()).unwrap();
        losses.extend(std::iter::from_fn(|| Some(value()).filter(|line| line["sequence"] != number)));
    }
    let is_damaged = |loss: &Value| loss["first_lost"] == 5 && loss["reason"] == "damaged";
    while !losses.iter().any(is_damaged) {
        losses.push(value());
    }
    // Those shown are none of those lost.
    let is_of_5 = |loss: &Value| loss["first_lost"] == 5 && loss["lost"] == 1;
    assert!(losses.iter().all(is_of_5), "{losses:?}");
    ahead.publish(&"10".to_owned()).unwrap();
    let line = value();
    assert_eq!(line["sequence"], 10, "{line}");
}
