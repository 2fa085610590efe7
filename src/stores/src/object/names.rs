//! The names of objects, as the crate object_store takes them.
//!
//! Servers have names with control characters, but that crate refuses them in paths, and in lists. So a path has
//! stand-ins for them: characters of a private plane of Unicode that the name doesn't contain. [`super::client`] puts the
//! control characters in their place before it sends a request, and the stand-ins into the lists that arrive.

use object_store::path::Path;

/// A name of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectName {
    pub path: Path,
    /// What stands for control characters in `path`; `None` if there are none.
    pub stand_ins: Option<StandIns>,
}

impl ObjectName {
    /// # Errors
    /// If a part of the name is empty, `.` or `..`.
    pub fn new(name: &str) -> Result<Self, object_store::path::Error> {
        let stand_ins = if name.contains(is_control) { StandIns::unlike(name) } else { None };
        let path = stand_ins.map_or_else(|| Path::parse(name), |stand_ins| Path::parse(stand_ins.hide(name)))?;
        Ok(Self { path, stand_ins })
    }
}

/// 128 characters that stand for those of ASCII with the same numbers. Only control characters are replaced. Has the
/// number of the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StandIns(u32);

/// The private plane from which the stand-ins come.
const PLANE: std::ops::Range<u32> = 0xF_0000..0xF_F000;

fn is_control(c: char) -> bool {
    c.is_ascii_control()
}

impl StandIns {
    /// Returns stand-ins that `text` doesn't contain; `None` if it contains some of all.
    pub fn unlike(text: &str) -> Option<Self> {
        let mut all = PLANE.step_by(128).map(Self);
        all.find(|stand_ins| !text.chars().any(|c| stand_ins.control(c).is_some()))
    }

    fn of(self, control: char) -> char {
        char::from_u32(self.0 + control as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
    }

    fn control(self, stand_in: char) -> Option<char> {
        let number = (stand_in as u32).checked_sub(self.0).filter(|number| *number < 128);
        number.and_then(char::from_u32)
    }

    /// Replaces control characters by their stand-ins.
    pub fn hide(self, text: &str) -> String {
        text.chars().map(|c| if is_control(c) { self.of(c) } else { c }).collect()
    }

    /// Replaces stand-ins by their control characters.
    pub fn restore(self, text: &str) -> String {
        text.chars().map(|c| self.control(c).unwrap_or(c)).collect()
    }

    /// Replaces percent-encoded stand-ins by percent-encoded control characters, and stand-ins that aren't encoded as
    /// well: in URLs, and in messages that repeat them.
    pub fn restore_encoded(self, url: &str) -> String {
        let mut restored = url.to_owned();
        for control in (0..128u8).map(char::from).filter(|c| is_control(*c)) {
            let stand_in = self.of(control);
            let encoded: String = stand_in.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect();
            let control = format!("%{:02X}", control as u32);
            restored = restored.replace(&encoded, &control).replace(stand_in, &control);
        }
        restored
    }
}

/// The elements of lists that hold names: of S3 and Google Cloud Storage, and of Azure.
const ELEMENTS: [&str; 3] = ["Key", "Prefix", "Name"];

/// Puts stand-ins for the control characters of names into a list in XML. Returns the list, and the stand-ins if there
/// are any.
pub(super) fn hide_in_list(list: &str) -> (String, Option<StandIns>) {
    let none = || (list.to_owned(), None);
    if !list.contains(|c| is_control(c) || c == '&') {
        return none();
    }
    let Some(stand_ins) = StandIns::unlike(list) else { return none() };
    let (mut rest, mut out, mut is_changed) = (list, String::with_capacity(list.len()), false);
    while let Some((begin, end)) = next_name(rest) {
        let name = &rest[begin..end];
        let hidden = stand_ins.hide(&without_references(name));
        is_changed |= hidden != name;
        out += &rest[..begin];
        out += &hidden;
        rest = &rest[end..];
    }
    if is_changed { (out + rest, Some(stand_ins)) } else { none() }
}

/// Returns where the text of the next element with a name begins and ends.
fn next_name(list: &str) -> Option<(usize, usize)> {
    let mut from = 0;
    while let Some(at) = list[from..].find('<') {
        let tag = from + at + 1;
        let close = tag + list[tag..].find('>')?;
        from = close + 1;
        if ELEMENTS.contains(&&list[tag..close]) {
            return Some((from, from + list[from..].find('<')?));
        }
    }
    None
}

/// Replaces references such as `&#9;` and `&#x9;` to control characters by the characters. Others stay.
fn without_references(text: &str) -> String {
    let (mut rest, mut out) = (text, String::with_capacity(text.len()));
    while let Some(at) = rest.find("&#") {
        let (before, reference) = rest.split_at(at);
        out += before;
        let end = reference.find(';').unwrap_or(reference.len() - 1) + 1;
        let digits = reference[2..end].trim_end_matches(';');
        let number = match digits.strip_prefix(['x', 'X']) {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => digits.parse().ok(),
        };
        match number.and_then(char::from_u32).filter(|c| is_control(*c)) {
            Some(control) => out.push(control),
            None => out += &reference[..end],
        }
        rest = &reference[end..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_controls() -> String {
        (0..128u8).map(char::from).filter(|c| is_control(*c)).collect()
    }

    #[test]
    fn control_characters_have_stand_ins() {
        let name = format!("a/{}b\u{F0001}/%09", all_controls());
        let ObjectName { path, stand_ins } = ObjectName::new(&name).unwrap();
        let stand_ins = stand_ins.unwrap();
        assert_eq!(stand_ins.restore(path.as_ref()), name, "and the private character stays what it is");
        let encoded: String = path.as_ref().bytes().map(|byte| format!("%{byte:02X}")).collect();
        let expected: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        assert_eq!(stand_ins.restore_encoded(&encoded), expected);
        assert_eq!(ObjectName::new("a/b").unwrap(), ObjectName { path: Path::from("a/b"), stand_ins: None });
        for wrong in ["a//b", "a/../b\t", "./b"] {
            assert!(ObjectName::new(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lists_have_stand_ins_in_names_alone() {
        let list = "<?xml version=\"1.0\"?>\n<R>\n <Name>b&#x1F;</Name>\t<Prefix>s/</Prefix><Contents><Key>s/a&#9;b\t&amp;&#38;\u{7f}</Key>\
                    <ETag>&quot;1&#9;&quot;</ETag></Contents><CommonPrefixes><Prefix>s/c\r\n/</Prefix></CommonPrefixes></R>";
        let (hidden, stand_ins) = hide_in_list(list);
        let stand_ins = stand_ins.unwrap();
        let expected = list.replace("b&#x1F;", "b\u{1f}").replace("s/a&#9;b", "s/a\tb");
        assert_eq!(stand_ins.restore(&hidden), expected);
        assert!(
            hidden.contains("<?xml version=\"1.0\"?>\n<R>\n <Name>") && hidden.contains("&quot;1&#9;&quot;"),
            "{hidden}"
        );
        for name in hidden.split("<Key>").nth(1).unwrap().split("</Key>").take(1) {
            assert!(!name.contains(is_control) && name.contains("&amp;&#38;"), "{name}");
        }
        for list in ["<R>\n<Key>a&amp;b</Key></R>", "<Key>a&#", "<Key", "", "<Key>a\t", "&#9;<Key></Key>"] {
            assert_eq!(hide_in_list(list), (list.to_owned(), None), "{list}");
        }
    }
}
