//! What the passes of a trace have shown, and where the next one goes.

use std::collections::{BTreeMap, BTreeSet};

use super::super::format::{Format, Named, Shape, Variant};
use super::leaves::Leaves;
use crate::limits;

/// The result of all passes over a type.
#[derive(Debug)]
pub(in super::super) struct Traced<T> {
    pub(in super::super) format: Format,
    pub(in super::super) types: BTreeMap<String, Named>,
    /// A value of each finished pass. Together they show every variant, and special values: none, zero, empty.
    pub(in super::super) samples: Vec<T>,
}

/// The compiler's name of a type, without modules, cut to the limit of a schema.
pub(in super::super) fn short_name(path: &str) -> String {
    let mut name = String::new();
    let mut segment = 0;
    let mut rest = path;
    while let Some(letter) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("::") {
            name.truncate(segment);
            rest = after;
            continue;
        }
        name.push(letter);
        if !(letter.is_alphanumeric() || matches!(letter, '_' | '{' | '}' | '#')) {
            segment = name.len();
        }
        rest = rest.get(letter.len_utf8()..).unwrap_or_default();
    }
    // Leaves space for a number that distinguishes types of one name.
    while name.len() > limits::TYPE_NAME_LEN_MAX - 8 {
        name.pop();
    }
    name
}

/// What the passes so far have shown.
#[derive(Debug, Default)]
pub(super) struct Tracer {
    pub(super) leaves: Leaves,
    pub(super) types: BTreeMap<String, TypeState>,
    /// The name in the schema of a type.
    names: BTreeMap<TypeKey, String>,
    /// Grows with every discovery.
    pub(super) progress: usize,
    /// Places that all passes have visited.
    pub(super) places: usize,
    /// This pass gave up: it needed a value of a type that has none yet.
    pub(super) blocked: bool,
    /// The variants being shown, outermost first.
    showing: Vec<(String, usize)>,
}

/// Distinguishes types: the full name, serde's name, and the names of fields or variants, because two versions of a crate have
/// types of one full name.
type TypeKey = (&'static str, &'static str, &'static [&'static str]);

#[derive(Debug, Default)]
pub(super) struct TypeState {
    /// How many values of this type are being deserialized, one inside another.
    busy: usize,
    /// Whether it is an enum; any other type has one nameless variant.
    is_enum: bool,
    pub(super) variants: Vec<VariantState>,
    /// The variant of the shortest value so far. Its content is shorter, and finished before.
    closing: Option<Shortest>,
}

#[derive(Clone, Copy, Debug)]
struct Shortest {
    index: usize,
    /// Places inside the value.
    places: usize,
}

#[derive(Debug)]
pub(super) struct VariantState {
    name: &'static str,
    shape: Option<Shape>,
    /// How often since the last progress it could not be shown, for lack of a value of some type inside: first in full, then with
    /// everything inside cut short.
    blocked: u8,
}

/// The variant of an enum chosen in this place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) index: usize,
    /// Everything inside is to be as short as possible.
    pub(super) closing: bool,
    /// Places that all passes had visited when it began.
    places_before: usize,
}

impl Tracer {
    pub(super) fn new(named: &[String]) -> Self {
        Self { leaves: Leaves::new(named), ..Self::default() }
    }

    pub(super) fn begin_pass(&mut self) {
        self.blocked = false;
        self.leaves.begin_pass();
        self.showing.clear();
        self.types.values_mut().for_each(|state| state.busy = 0);
    }

    /// Puts off the variant shown last. Fails if there is none to put off.
    pub(super) fn give_up_variant(&mut self, progress_before: usize) -> Result<(), String> {
        if self.progress > progress_before {
            self.unblock();
        }
        let (name, index) = self.showing.pop().ok_or_else(|| ENDLESS.to_owned())?;
        if let Some(variant) = self.types.get_mut(&name).and_then(|state| state.variants.get_mut(index)) {
            variant.blocked = variant.blocked.saturating_add(1);
        }
        Ok(())
    }

    pub(super) fn unblock(&mut self) {
        let variants = self.types.values_mut().flat_map(|state| state.variants.iter_mut());
        variants.for_each(|variant| variant.blocked = 0);
    }

    pub(super) fn finish<T>(self, format: Format, samples: Vec<T>) -> Result<Traced<T>, String> {
        let mut types = BTreeMap::new();
        for (name, state) in self.types {
            let is_enum = state.is_enum;
            let variants = state
                .variants
                .into_iter()
                .map(|variant| Some(Variant { name: variant.name.to_owned(), shape: variant.shape? }));
            let mut variants = variants.collect::<Option<Vec<Variant>>>().ok_or(STUCK)?;
            let named = match variants.pop() {
                Some(only) if !is_enum => Named::Struct(only.shape),
                last => {
                    variants.extend(last);
                    Named::Enum(variants)
                }
            };
            types.insert(name, named);
        }
        Ok(Traced { format, types, samples })
    }

    /// Enters a type: returns its name in the schema, and its initial state.
    pub(super) fn enter<T: ?Sized>(
        &mut self,
        serde_name: &'static str,
        labels: &'static [&'static str],
        is_enum: bool,
    ) -> String {
        let path = std::any::type_name::<T>();
        let key = (path, serde_name, labels);
        if let Some(name) = self.names.get(&key) {
            return name.clone();
        }
        // The compiler's name has the generic arguments, but differs if the type was renamed or is read by way of another (a
        // range is read as a tuple).
        let short = short_name(path);
        let is_same = short.split('<').next() == Some(serde_name);
        let base = if is_same { short } else { short_name(serde_name) };
        let mut name = base.clone();
        let mut number = 1;
        while self.types.contains_key(&name) {
            number += 1;
            name = format!("{base}#{number}");
        }
        let unknown = |name: &&'static str| VariantState { name, shape: None, blocked: 0 };
        let state = TypeState {
            is_enum,
            variants: if is_enum { labels } else { &[""] }.iter().map(unknown).collect(),
            ..TypeState::default()
        };
        self.types.insert(name.clone(), state);
        self.names.insert(key, name.clone());
        name
    }

    fn state(&mut self, name: &str) -> &mut TypeState {
        self.types.entry(name.to_owned()).or_default()
    }

    /// Begins a value of this type. `None` if there can be none yet: the pass has to give up.
    pub(super) fn begin(&mut self, name: &str, closing: bool) -> Option<Choice> {
        let choice =
            if self.leaves.is_varying() { self.alternate(name, closing) } else { self.choose(name, closing) };
        self.blocked |= choice.is_none();
        let choice = choice?;
        self.state(name).busy += 1;
        let shape = self.shape(name, choice.index);
        if shape.is_none() && self.state(name).is_enum {
            self.showing.push((name.to_owned(), choice.index));
        }
        Some(choice)
    }

    /// Ends a value of this type; `shape` is `None` if parts of it were cut short.
    pub(super) fn end(&mut self, name: &str, choice: Choice, shape: Option<Shape>) {
        let Choice { index, places_before, .. } = choice;
        let places = self.places - places_before;
        if self.showing.last().is_some_and(|(shown, at)| shown == name && *at == index) {
            self.showing.pop();
        }
        let state = self.state(name);
        state.busy = state.busy.saturating_sub(1);
        let mut progress = usize::from(state.closing.is_none());
        if state.closing.is_none_or(|shortest| places < shortest.places) {
            state.closing = Some(Shortest { index, places });
        }
        if let Some(variant) = state.variants.get_mut(index)
            && variant.shape.is_none()
            && shape.is_some()
        {
            variant.shape = shape;
            progress += 1;
        }
        self.progress += progress;
    }

    fn shape(&self, name: &str, index: usize) -> Option<&Shape> {
        self.types.get(name)?.variants.get(index)?.shape.as_ref()
    }

    /// The variant for this pass, once all are known.
    fn alternate(&mut self, name: &str, closing: bool) -> Option<Choice> {
        let state = self.types.get(name)?;
        let closing = closing || state.busy > 0 || self.leaves.is_spent();
        let index = if closing { state.closing?.index } else { self.leaves.turn(name, state.variants.len()) };
        Some(self.choice(index, closing))
    }

    fn choice(&self, index: usize, closing: bool) -> Choice {
        Choice { index, closing, places_before: self.places }
    }

    fn choose(&self, name: &str, closing: bool) -> Option<Choice> {
        let state = self.types.get(name)?;
        if !state.is_enum {
            let known = self.shape(name, 0).is_some_and(|shape| !self.shape_leads_on(name, shape));
            return Some(self.choice(0, closing || state.busy > 0 || known));
        }
        if closing || state.busy > 0 {
            if let Some(shortest) = state.closing {
                return Some(self.choice(shortest.index, true));
            }
            if state.busy > 0 {
                return None;
            }
        }
        let find = |wanted: &dyn Fn(&VariantState) -> bool| state.variants.iter().position(wanted);
        if let Some(index) = find(&|variant| variant.shape.is_none() && variant.blocked == 0) {
            return Some(self.choice(index, closing));
        }
        let leads_on = |shape: &Shape| self.shape_leads_on(name, shape);
        let leading = find(&|variant| variant.shape.as_ref().is_some_and(leads_on));
        if let (Some(index), false) = (leading, closing) {
            return Some(self.choice(index, closing));
        }
        let shortest = state.closing.map(|shortest| shortest.index);
        let short = shortest.or_else(|| find(&|variant| variant.blocked == 1));
        short.map(|index| self.choice(index, true))
    }

    /// Whether this shape of the named type has something left to show.
    fn shape_leads_on(&self, name: &str, shape: &Shape) -> bool {
        self.any_leads_on(shape.parts(), Some(name))
    }

    pub(super) fn leads_on(&self, format: &Format) -> bool {
        self.any_leads_on(vec![format], None)
    }

    /// Whether a type that is not fully known can be reached from here, without passing through a type being deserialized, or
    /// through `except`.
    fn any_leads_on<'f>(&'f self, mut formats: Vec<&'f Format>, except: Option<&'f str>) -> bool {
        let mut seen: BTreeSet<&str> = except.into_iter().collect();
        while let Some(format) = formats.pop() {
            formats.extend(format.parts());
            let Format::Type(name) = format else { continue };
            let Some(state) = self.types.get(name) else { return true };
            if state.busy > 0 || !seen.insert(name) {
                continue;
            }
            for variant in &state.variants {
                match &variant.shape {
                    Some(shape) => formats.extend(shape.parts()),
                    None => return true,
                }
            }
        }
        false
    }
}

const ENDLESS: &str = "its values are infinite; put an option, a sequence or an enum where it holds itself";

pub(super) const STUCK: &str = "its Deserialize does not read all that it announces (serde's alias does that): remove \
     the attribute";
