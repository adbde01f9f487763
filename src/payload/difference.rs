//! The differences between two schemas, in words. One of them may be hostile: work and text are bounded.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::{self, Display, Write};

use super::Schema;
use super::format::{Field, Format, Named, Shape, Variant};

/// Differences that are named; the others are only counted.
const NAMED_MAX: usize = 6;

/// Longest text of a name or format, bytes.
const TEXT_LEN_MAX: usize = 64;

/// Pairs of types compared. A program's own types have far fewer.
const PAIRS_MAX: usize = 4096;

impl Schema {
    /// The differences of a topic's schema from this program's, as a sentence part of less than 4 KiB.
    pub(crate) fn difference(&self, here: &Self) -> String {
        let name = Short(self.type_name());
        if self.type_name() != here.type_name() || self.encoding() != here.encoding() {
            let (there, theirs) = (self.encoding(), here.encoding());
            let here = Short(here.type_name());
            return format!("the topic's values are {name} ({there}), this program's are {here} ({theirs})");
        }
        let mut walk =
            Walk { there: self, here, found: Vec::new(), seen: BTreeSet::new(), pairs: VecDeque::new() };
        walk.formats("the value", self.format(), here.format());
        while let Some((there, here)) = walk.pairs.pop_front() {
            if walk.found.len() > NAMED_MAX {
                break;
            }
            walk.types(there, here);
        }
        let mut found = walk.found;
        let more = if found.len() > NAMED_MAX { "; and more" } else { "" };
        found.truncate(NAMED_MAX);
        if found.is_empty() {
            found.push("the names of types inside it".into());
        }
        format!("the topic's {name} differs from this program's: {}{more}", found.join("; "))
    }
}

/// A comparison in progress.
struct Walk<'s> {
    there: &'s Schema,
    here: &'s Schema,
    found: Vec<String>,
    seen: BTreeSet<(&'s str, &'s str)>,
    /// Types in the same place that are yet to be compared.
    pairs: VecDeque<(&'s str, &'s str)>,
}

impl<'s> Walk<'s> {
    /// Compares the formats in one place. Schemas bound their nesting.
    fn formats(&mut self, place: &str, there: &'s Format, here: &'s Format) {
        match (there, here) {
            (Format::Type(there), Format::Type(here)) => {
                if self.seen.len() < PAIRS_MAX && self.seen.insert((there, here)) {
                    self.pairs.push_back((there, here));
                }
            }
            (Format::Option(there), Format::Option(here)) | (Format::Seq(there), Format::Seq(here)) => {
                self.formats(place, there, here);
            }
            (Format::Array { of: there, len }, Format::Array { of: here, len: same }) if len == same => {
                self.formats(place, there, here);
            }
            (Format::Map { key, value }, Format::Map { key: here_key, value: here_value }) => {
                self.formats(place, key, here_key);
                self.formats(place, value, here_value);
            }
            (Format::Tuple(there), Format::Tuple(here)) if there.len() == here.len() => {
                there.iter().zip(here).for_each(|(there, here)| self.formats(place, there, here));
            }
            _ if there == here => {}
            _ => self.found.push(format!("{place} is {} there and {} here", Short(there), Short(here))),
        }
    }

    fn types(&mut self, there_name: &'s str, here_name: &'s str) {
        let (Some(there), Some(here)) = (self.there.named(there_name), self.here.named(here_name)) else {
            return;
        };
        let of = if there_name == self.there.type_name() {
            String::new()
        } else {
            format!(" of {}", Short(there_name))
        };
        match (there, here) {
            (Named::Struct(there), Named::Struct(here)) => self.shapes(&of, there, here),
            (Named::Enum(there), Named::Enum(here)) => self.variants(&of, there, here),
            (Named::Struct(_), Named::Enum(_)) => {
                self.found.push(format!("{} is a struct there and an enum here", Short(there_name)));
            }
            (Named::Enum(_), Named::Struct(_)) => {
                self.found.push(format!("{} is an enum there and a struct here", Short(there_name)));
            }
        }
        if there_name != here_name {
            let (there, here) = (Short(there_name), Short(here_name));
            self.found.push(format!("type {there} is called {here} here"));
        }
    }

    fn shapes(&mut self, of: &str, there: &'s Shape, here: &'s Shape) {
        match (there, here) {
            (Shape::Fields(there), Shape::Fields(here)) => self.fields(of, there, here),
            (Shape::Newtype(there), Shape::Newtype(here)) => {
                self.formats(&format!("what is inside{of}"), there, here)
            }
            (Shape::Tuple(there), Shape::Tuple(here)) if there.len() == here.len() => {
                for (index, (there, here)) in there.iter().zip(here).enumerate() {
                    self.formats(&format!("part {index}{of}"), there, here);
                }
            }
            (Shape::Unit, Shape::Unit) => {}
            _ => {
                self.found.push(format!("the parts{of} are {} there and {} here", parts(there), parts(here)))
            }
        }
    }

    fn fields(&mut self, of: &str, there: &'s [Field], here: &'s [Field]) {
        let compare = |this: &mut Self, there: &'s Field, here: &'s Field| {
            this.formats(&format!("field {}{of}", Short(&there.name)), &there.format, &here.format);
        };
        self.named(("field", of), (there, here), |field| &field.name, compare);
    }

    fn variants(&mut self, of: &str, there: &'s [Variant], here: &'s [Variant]) {
        let compare = |this: &mut Self, there: &'s Variant, here: &'s Variant| {
            this.shapes(&format!(" of variant {}{of}", Short(&there.name)), &there.shape, &here.shape);
        };
        self.named(("variant", of), (there, here), |variant| &variant.name, compare);
    }

    /// Compares parts by the names that `name_of` returns.
    fn named<T: Display>(
        &mut self,
        (what, of): (&str, &str),
        (there, here): (&'s [T], &'s [T]),
        name_of: fn(&T) -> &str,
        compare: impl Fn(&mut Self, &'s T, &'s T),
    ) {
        let before = self.found.len();
        for part in there {
            match here.iter().find(|other| name_of(other) == name_of(part)) {
                Some(other) => compare(self, part, other),
                None => self.found.push(format!("{what} {}{of} is missing here", Short(part))),
            }
        }
        for part in here {
            if !there.iter().any(|other| name_of(other) == name_of(part)) {
                self.found.push(format!("{what} {}{of} is missing there", Short(part)));
            }
        }
        if before == self.found.len() && !there.iter().map(name_of).eq(here.iter().map(name_of)) {
            let (there, here) = (list(there.iter().map(name_of)), list(here.iter().map(name_of)));
            self.found.push(format!("the {what}s{of} are in the order {there} there and {here} here"));
        }
    }
}

fn parts(shape: &Shape) -> String {
    let formats: Vec<String> =
        shape.parts().iter().take(NAMED_MAX).map(|part| Short(part).to_string()).collect();
    Short(format_args!("({})", formats.join(", "))).to_string()
}

fn list<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let names: Vec<String> = names.take(NAMED_MAX).map(|name| Short(name).to_string()).collect();
    Short(names.join(", ")).to_string()
}

/// The beginning of a possibly long text.
struct Short<T>(T);

impl<T: Display> Display for Short<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut beginning = Beginning { text: String::new() };
        // Fails once it has enough.
        let is_cut = write!(beginning, "{}", self.0).is_err();
        out.write_str(&beginning.text)?;
        if is_cut { out.write_str("...") } else { Ok(()) }
    }
}

struct Beginning {
    text: String,
}

impl Write for Beginning {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            if self.text.len() + letter.len_utf8() > TEXT_LEN_MAX {
                return Err(fmt::Error);
            }
            self.text.push(letter);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
