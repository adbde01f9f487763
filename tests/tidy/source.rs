//! Reads Rust source as far as the rules of `tidy` need: which bytes are code, which items are test code, which paths a file
//! names, where its functions begin and end. It is not a parser: it relies on the compiler having accepted the file.

use std::ops::Range;

/// One file of the repository.
#[derive(Debug)]
pub(crate) struct Source {
    /// Path from the root of the repository, with `/`.
    pub(crate) path: String,
    /// The file, unchanged.
    pub(crate) text: String,
    /// The file with comments and literals blanked; every byte keeps its place.
    pub(crate) code: String,
    /// The words and signs of `code`.
    tokens: Vec<Token>,
    /// Byte ranges of the items that only tests compile.
    test_items: Vec<Range<usize>>,
    /// Whether the whole file is test code, by the declaration of its module.
    pub(crate) only_for_tests: bool,
}

/// A path that a file names, such as `crate::fabric::Endpoint`; the paths of one `use` tree come one by one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NamedPath {
    pub(crate) segments: Vec<String>,
    /// Whether it begins with `::`, so that it names another crate.
    pub(crate) is_absolute: bool,
    /// The name that a `use` gives to it in this file.
    pub(crate) name: Option<String>,
    /// Whether that `use` re-exports it: `pub use`.
    pub(crate) is_handed_on: bool,
    /// Where it stands in the file.
    pub(crate) at: usize,
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The line of `fn`, from 1.
    pub(crate) line: usize,
    /// Lines from `fn` to the closing brace.
    pub(crate) len: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    text: String,
    at: usize,
}

impl Token {
    fn is_word(&self) -> bool {
        self.text.starts_with(is_word_char)
    }
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let code = blanked(text);
        let tokens = tokens(&code);
        let mut source = Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code,
            tokens,
            test_items: Vec::new(),
            only_for_tests: false,
        };
        source.test_items = source.find_test_items();
        source.only_for_tests =
            path.starts_with("src/") && (path.ends_with("/tests.rs") || path.contains("/tests/"));
        source
    }

    /// The line of a byte, from 1.
    pub(crate) fn line(&self, at: usize) -> usize {
        self.text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
    }

    /// `path:line: message`.
    pub(crate) fn failure(&self, at: usize, message: &str) -> String {
        format!("{}:{}: {message}", self.path, self.line(at))
    }

    /// Whether only tests compile this byte.
    pub(crate) fn is_test(&self, at: usize) -> bool {
        self.only_for_tests || self.test_items.iter().any(|item| item.contains(&at))
    }

    /// Lines of the file without the test item that ends it.
    pub(crate) fn len_without_tests(&self) -> usize {
        let end = self.code.trim_end().len();
        let tail = self.test_items.iter().find(|item| item.end >= end);
        tail.map_or_else(|| self.text.lines().count(), |item| self.line(item.start) - 1)
    }

    /// Where this word stands in the code.
    pub(crate) fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.tokens.iter().filter(move |token| token.text == word).map(|token| token.at)
    }

    /// The words and signs from this byte on.
    pub(crate) fn words_from(&self, at: usize) -> impl Iterator<Item = &str> {
        let first = self.tokens.partition_point(|token| token.at < at);
        self.tokens.iter().skip(first).map(|token| token.text.as_str())
    }

    /// The word or sign before the one at this byte.
    pub(crate) fn word_before(&self, at: usize) -> Option<&str> {
        let first = self.tokens.partition_point(|token| token.at < at);
        self.word(first.checked_sub(1)?)
    }

    /// The modules that this byte stands in, from the crate's root.
    pub(crate) fn module(&self, at: usize) -> Vec<String> {
        let inside = self.path.strip_prefix("src/").unwrap_or(&self.path);
        let inside = inside.strip_suffix(".rs").unwrap_or(inside);
        let mut module: Vec<String> = inside.split('/').map(str::to_owned).collect();
        if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
            module.pop();
        }
        for index in 0..self.tokens.len() {
            let Some(token) = self.tokens.get(index).filter(|token| token.at < at) else { break };
            if token.text == "mod" && self.word(index + 2) == Some("{") && self.closing(index + 2) > at {
                module.extend(self.word(index + 1).map(str::to_owned));
            }
        }
        module
    }

    /// A path from the crate's root, or `None` where it names something local or of another crate.
    pub(crate) fn resolved(&self, path: &NamedPath) -> Option<Vec<String>> {
        let mut segments = path.segments.iter().peekable();
        let mut module = match segments.peek().map(|segment| segment.as_str()) {
            // The program is a crate of its own.
            Some("crate") if self.path.starts_with("src/bin/") => {
                self.module(path.at).into_iter().take(2).collect()
            }
            Some("crate") => Vec::new(),
            Some("self" | "super") => self.module(path.at),
            _ => return None,
        };
        while let Some(segment) =
            segments.next_if(|segment| matches!(segment.as_str(), "crate" | "self" | "super"))
        {
            if segment == "super" {
                module.pop();
            }
        }
        module.extend(segments.cloned());
        Some(module)
    }

    /// Every path of more than one segment, and every path of a `use`.
    pub(crate) fn paths(&self) -> Vec<NamedPath> {
        let mut paths = Vec::new();
        let mut index = 0;
        while let Some(token) = self.tokens.get(index) {
            index = if token.text == "use" && self.word(index + 1) != Some("<") {
                let first = paths.len();
                let after = self.use_tree(index + 1, &[], &mut paths);
                let before = index.checked_sub(1).and_then(|before| self.word(before));
                // The parenthesis is that of `pub(crate)`.
                let is_handed_on = matches!(before, Some("pub" | ")"));
                paths.iter_mut().skip(first).for_each(|path| path.is_handed_on = is_handed_on);
                after
            } else if token.is_word() && !self.continues_path(index) {
                let (path, after) = self.plain_path(index);
                if path.segments.len() > 1 {
                    paths.push(path);
                }
                after
            } else {
                index + 1
            };
        }
        paths
    }

    /// Whether code of this file that is not for tests says this name anywhere but in a `use` or the declaration of a module.
    pub(crate) fn says(&self, name: &str) -> bool {
        let mut in_use = false;
        self.tokens.iter().any(|token| {
            in_use = token.text == "use" || (in_use && token.text != ";");
            let is_said = token.text == name && !in_use && !self.is_test(token.at);
            is_said && self.word_before(token.at) != Some("mod")
        })
    }

    /// Whether the name stands for a module of this crate in this file: it is declared or imported here.
    pub(crate) fn is_local(&self, name: &str) -> bool {
        let is_declared = self.words(name).any(|at| self.word_before(at) == Some("mod"));
        let is_it = |path: &NamedPath| path.segments.last().is_some_and(|last| last == name);
        is_declared || self.paths().iter().any(|path| is_it(path) && self.resolved(path).is_some())
    }

    /// The functions of this file that have bodies, functions inside functions included.
    pub(crate) fn functions(&self) -> Vec<Function> {
        let mut functions = Vec::new();
        for (index, token) in self.tokens.iter().enumerate() {
            let name = self.tokens.get(index + 1).filter(|name| token.text == "fn" && name.is_word());
            let Some(name) = name else { continue };
            let Some(open) = self.end_of_item(index).filter(|end| self.word(*end) == Some("{")) else {
                continue;
            };
            let line = self.line(token.at);
            let len = self.line(self.closing(open)) - line + 1;
            functions.push(Function { name: name.text.clone(), line, len });
        }
        functions
    }

    /// The modules that this file declares for tests only, as the path that their files begin with.
    pub(crate) fn test_modules(&self) -> Vec<String> {
        let folder = self.path.strip_suffix("/mod.rs").or_else(|| self.path.strip_suffix("/lib.rs"));
        let folder = folder.or_else(|| self.path.strip_suffix(".rs")).unwrap_or(&self.path);
        let declared = self.tokens.iter().enumerate().filter(|(index, token)| {
            token.text == "mod" && self.word(index + 2) == Some(";") && self.is_test(token.at)
        });
        declared.filter_map(|(index, _)| Some(format!("{folder}/{}", self.word(index + 1)?))).collect()
    }

    fn word(&self, index: usize) -> Option<&str> {
        self.tokens.get(index).map(|token| token.text.as_str())
    }

    /// Whether the word is not the first segment of its path.
    fn continues_path(&self, index: usize) -> bool {
        let before = |back: usize| index.checked_sub(back).and_then(|index| self.tokens.get(index));
        before(1).is_some_and(|token| token.text == "::")
            && before(2).is_some_and(|token| token.is_word() || token.text == ">")
    }

    fn plain_path(&self, index: usize) -> (NamedPath, usize) {
        let is_absolute = index.checked_sub(1).and_then(|before| self.word(before)) == Some("::");
        let (segments, at) = (Vec::new(), self.at(index));
        let mut path = NamedPath { segments, is_absolute, name: None, is_handed_on: false, at };
        let mut index = index;
        while let Some(token) = self.tokens.get(index).filter(|token| token.is_word()) {
            path.segments.push(token.text.clone());
            index += 1;
            if self.word(index) != Some("::") {
                break;
            }
            index += 1;
        }
        (path, index)
    }

    /// Takes in one branch of a `use` tree and returns the token after it.
    fn use_tree(&self, index: usize, stem: &[String], paths: &mut Vec<NamedPath>) -> usize {
        let start = if self.word(index) == Some("::") { index + 1 } else { index };
        let (path, mut index) = self.plain_path(start);
        let mut name = None;
        let mut segments = stem.to_vec();
        segments.extend(path.segments);
        match self.word(index) {
            Some("{") => {
                index += 1;
                while self.word(index).is_some_and(|word| word != "}") {
                    index = self.use_tree(index, &segments, paths).max(index + 1);
                    if self.word(index) == Some(",") {
                        index += 1;
                    }
                }
                return index + 1;
            }
            Some("*") => {
                segments.push("*".to_owned());
                index += 1;
            }
            Some("as") => {
                name = self.word(index + 1).map(str::to_owned);
                index += 2;
            }
            _ => {}
        }
        if segments.len() > 1 {
            // `a::{self}` is `a`.
            segments.pop_if(|segment| segment == "self");
        }
        let name = name.or_else(|| segments.last().cloned());
        let is_absolute = path.is_absolute && stem.is_empty();
        paths.push(NamedPath { segments, is_absolute, name, is_handed_on: false, at: path.at });
        index
    }

    /// The byte of the brace that closes the one at this token, or the end of the file.
    fn closing(&self, open: usize) -> usize {
        let mut depth = 0_usize;
        for token in self.tokens.iter().skip(open) {
            match token.text.as_str() {
                "{" => depth += 1,
                "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return token.at;
            }
        }
        self.code.len()
    }

    /// The token that ends the item's head: its `;` or the brace that opens its body.
    fn end_of_item(&self, index: usize) -> Option<usize> {
        let mut depth = 0_usize;
        for (index, token) in self.tokens.iter().enumerate().skip(index) {
            match token.text.as_str() {
                "(" | "[" => depth += 1,
                ")" | "]" => depth = depth.saturating_sub(1),
                ";" | "{" | "}" if depth == 0 => return Some(index),
                _ => {}
            }
        }
        None
    }

    fn find_test_items(&self) -> Vec<Range<usize>> {
        let mut items = Vec::new();
        for (index, token) in self.tokens.iter().enumerate().filter(|(_, token)| token.text == "#") {
            let inner = self.word(index + 1) == Some("!");
            let open = if inner { index + 2 } else { index + 1 };
            if self.word(open) != Some("[") || self.word(open + 1) != Some("cfg") {
                continue;
            }
            let Some((close, end)) = self.attribute_end(open) else { continue };
            if !self.text.get(token.at..end).is_some_and(is_test_condition) {
                continue;
            }
            if inner {
                items.push(0..self.code.len());
            } else if let Some(last) = self.end_of_item(self.after_attributes(close + 1)) {
                let end =
                    if self.word(last) == Some("{") { self.closing(last) + 1 } else { self.at(last) + 1 };
                items.push(token.at..end);
            }
        }
        items
    }

    /// The token and the byte of the bracket that closes an attribute.
    fn attribute_end(&self, open: usize) -> Option<(usize, usize)> {
        let mut depth = 0_usize;
        for (index, token) in self.tokens.iter().enumerate().skip(open) {
            match token.text.as_str() {
                "[" => depth += 1,
                "]" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return Some((index, token.at));
            }
        }
        None
    }

    fn after_attributes(&self, index: usize) -> usize {
        let mut index = index;
        while self.word(index) == Some("#") {
            let Some((close, _)) = self.attribute_end(index + 1) else { break };
            index = close + 1;
        }
        index
    }

    fn at(&self, index: usize) -> usize {
        self.tokens.get(index).map_or(self.code.len(), |token| token.at)
    }
}

/// Whether `#[cfg(...)]` holds in test builds only. The feature `testkit` is one of those.
fn is_test_condition(attribute: &str) -> bool {
    let condition: String = attribute.chars().filter(|char| !char.is_whitespace()).collect();
    let condition = condition.trim_start_matches("#!").trim_start_matches('#').trim_start_matches("[cfg(");
    let words: Vec<&str> =
        condition.split(|char| !is_word_char(char)).filter(|word| !word.is_empty()).collect();
    if words.contains(&"not") {
        return false;
    }
    let for_tests = |word: &&str| matches!(*word, "test" | "testkit" | "fuzzing");
    match words.first() {
        Some(&"all") => words.iter().any(for_tests) && !words.contains(&"any"),
        _ => {
            words.iter().any(for_tests)
                && words.iter().all(|word| matches!(*word, "any" | "feature") || for_tests(word))
        }
    }
}

pub(crate) fn is_word_char(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

fn tokens(code: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let len = if is_word_char(first) {
            rest.find(|char| !is_word_char(char)).unwrap_or(rest.len())
        } else if rest.starts_with("::") || rest.starts_with("=>") || rest.starts_with("->") {
            2
        } else {
            first.len_utf8()
        };
        let (text, after) = rest.split_at(len);
        if !first.is_whitespace() {
            tokens.push(Token { text: text.to_owned(), at: code.len() - rest.len() });
        }
        rest = after;
    }
    tokens
}

/// The text with every byte of comments and literals replaced by a space, line ends kept.
fn blanked(text: &str) -> String {
    let mut code = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    let mut in_word = false;
    while let Some(byte) = rest.first() {
        let skipped = if in_word { 0 } else { comment_len(rest).max(literal_len(rest)) };
        let (taken, after) = rest.split_at(skipped.clamp(1, rest.len()));
        let blank = |byte: &u8| if *byte == b'\n' { b'\n' } else { b' ' };
        match skipped {
            0 => code.push(*byte),
            _ => code.extend(taken.iter().map(blank)),
        }
        in_word = skipped == 0 && (byte.is_ascii_alphanumeric() || *byte == b'_' || !byte.is_ascii());
        // A quote or a slash right after a word still begins a literal or a comment; only prefixes and lifetimes do not.
        in_word &= !matches!(after.first(), Some(b'"' | b'/' | b'\''));
        rest = after;
    }
    String::from_utf8(code).expect("only whole literals and comments were blanked")
}

fn comment_len(rest: &[u8]) -> usize {
    if rest.starts_with(b"//") {
        return rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    }
    if !rest.starts_with(b"/*") {
        return 0;
    }
    let mut depth = 0_usize;
    let mut len = 0;
    while let Some(tail) = rest.get(len..).filter(|tail| !tail.is_empty()) {
        match tail {
            [b'/', b'*', ..] => (depth, len) = (depth + 1, len + 2),
            [b'*', b'/', ..] => (depth, len) = (depth.saturating_sub(1), len + 2),
            _ => len += 1,
        }
        if depth == 0 {
            break;
        }
    }
    len
}

/// The length of the string, byte string or character that starts here; 0 where none does.
fn literal_len(rest: &[u8]) -> usize {
    let (prefix, body) = match rest {
        [b'b' | b'c', b'r', body @ ..] => (2, body),
        [b'r' | b'b' | b'c', body @ ..] => (1, body),
        body => (0, body),
    };
    let raw = rest.get(..prefix).is_some_and(|prefix| prefix.ends_with(b"r"));
    let hashes = body.iter().take_while(|byte| **byte == b'#').count();
    match (raw, body.get(hashes), hashes) {
        (true, Some(b'"'), _) => prefix + raw_len(body, hashes),
        (false, Some(b'"'), 0) => prefix + quoted_len(body, b'"'),
        (false, Some(b'\''), 0) if is_char(body) => prefix + quoted_len(body, b'\''),
        _ => 0,
    }
}

fn raw_len(body: &[u8], hashes: usize) -> usize {
    let content = hashes + 1;
    let is_end = |tail: &[u8]| {
        tail.starts_with(b"\"") && tail.iter().skip(1).take_while(|b| **b == b'#').count() >= hashes
    };
    let end = (content..body.len()).find(|at| body.get(*at..).is_some_and(is_end));
    end.map_or(body.len(), |at| at + 1 + hashes)
}

fn quoted_len(body: &[u8], quote: u8) -> usize {
    let mut len = 1;
    while let Some(byte) = body.get(len) {
        match byte {
            b'\\' => len += 2,
            byte if *byte == quote => return len + 1,
            _ => len += 1,
        }
    }
    body.len()
}

/// Whether the quote begins a character and not a lifetime.
fn is_char(body: &[u8]) -> bool {
    match body.get(1) {
        None => false,
        Some(b'\\') => true,
        Some(first) => {
            let len = match first {
                0..0x80 => 1,
                0x80..0xE0 => 2,
                0xE0..0xF0 => 3,
                _ => 4,
            };
            body.get(1 + len) == Some(&b'\'')
        }
    }
}
