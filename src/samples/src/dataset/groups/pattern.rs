//! Patterns of the paths of groups: `*` stands for any characters of a name, `?` for one. And the order of names.

use std::cmp::Ordering;
use std::fmt;

use dali_zarr_base::error::{Error, Result};

/// A path of names and patterns of names.
pub struct Pattern(Vec<Segment>);

/// A name, or a pattern of names.
pub struct Segment(String);

impl Pattern {
    /// Reads a pattern, such as `run_*` or `*/*/*`.
    ///
    /// # Errors
    /// If it can't be the path of a group below the root.
    pub fn new(text: &str) -> Result<Self> {
        let path = text.trim_matches('/');
        if path.split('/').any(|name| matches!(name, "" | "." | "..")) {
            return Err(Error::value(format!(
                "groups: expected names of groups below the root of the store, or patterns such as \"run_*\", but found {text:?}"
            )));
        }
        Ok(Self(path.split('/').map(|name| Segment(name.to_owned())).collect()))
    }

    /// Returns its segments, the highest group first.
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// Whether it is the path of one group.
    pub fn is_name(&self) -> bool {
        self.0.iter().all(Segment::is_name)
    }

    /// Returns its text.
    pub fn name(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, segment) in self.0.iter().enumerate() {
            write!(f, "{}{segment}", if i > 0 { "/" } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Segment {
    /// Whether it is a name, which stands for itself.
    pub fn is_name(&self) -> bool {
        !self.0.contains(['*', '?'])
    }

    /// Whether a name matches it.
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name): (Vec<char>, Vec<char>) = (self.0.chars().collect(), name.chars().collect());
        let (mut p, mut n) = (0, 0);
        // The last `*`, and the characters of the name before what follows it.
        let mut star: Option<(usize, usize)> = None;
        while n < name.len() {
            match pattern.get(p) {
                Some('*') => {
                    star = Some((p, n));
                    p += 1;
                }
                Some(&c) if c == '?' || c == name[n] => (p, n) = (p + 1, n + 1),
                _ => {
                    let Some((at, taken)) = star else { return false };
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
            }
        }
        pattern[p..].iter().all(|&c| c == '*')
    }
}

/// Compares paths name by name. Whole numbers in names are compared as numbers: `run_2` comes before `run_10`.
pub fn natural(a: &str, b: &str) -> Ordering {
    let by_name = || a.split('/').map(pieces).cmp(b.split('/').map(pieces));
    by_name().then_with(|| a.cmp(b))
}

/// Part of a name: numbers come before text.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Piece<'a> {
    /// The digits of a whole number without leading zeros, the number of digits first.
    Number(usize, &'a str),
    Text(&'a str),
}

fn pieces(name: &str) -> Vec<Piece<'_>> {
    let mut all = Vec::new();
    let mut rest = name;
    while let Some(first) = rest.bytes().next() {
        let is_number = first.is_ascii_digit();
        let end = rest.bytes().position(|b| b.is_ascii_digit() != is_number).unwrap_or(rest.len());
        let (piece, after) = rest.split_at(end);
        let digits = piece.trim_start_matches('0');
        all.push(if is_number { Piece::Number(digits.len(), digits) } else { Piece::Text(piece) });
        rest = after;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_patterns() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", "run", true),
            ("run_*", "run_1", true),
            ("run_*", "run", false),
            ("*.zarr", "a.zarr", true),
            ("*.zarr", "a.zarr.zip", false),
            ("?", "é", true),
            ("?", "", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("**a", "ba", true),
            ("run_?0", "run_10", true),
            ("run_?0", "run_100", false),
        ] {
            assert_eq!(Segment(pattern.into()).matches(name), expected, "{pattern} {name}");
        }
        let (long, name) = ("*a".repeat(2000), "a".repeat(1999));
        assert!(!Segment(long).matches(&name), "takes the product of both lengths, not more");
        for wrong in ["", "/", "a//b", "..", "a/../b", "./a", "."] {
            assert!(Pattern::new(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Pattern::new("/A/*/0/").unwrap().to_string(), "A/*/0");
    }

    #[test]
    fn numbers_in_names_are_numbers() {
        let mut names = ["run_10", "run_9", "run_1", "run_01", "B/2", "A/10", "A/9", "é2", "10", "9", "run", "run_1a"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(
            names,
            ["9", "10", "A/9", "A/10", "B/2", "run", "run_01", "run_1", "run_1a", "run_9", "run_10", "é2"]
        );
    }
}
