//! Versions of objects: what tells whether an object is still the one that was read before.

use std::sync::Arc;

/// The version of a value, or a demand on it. Two versions of a value are equal if nothing shows that it was replaced in
/// between.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ObjectVersion {
    /// A server's tag (ETag), with its quotes. A reference may demand a tag of a local file too.
    Tag(Arc<str>),
    /// Of a value on a server that gives no tag.
    Dated {
        /// Bytes of the value.
        size: u64,
        /// When it was changed, in seconds since 1970; 0 if the server gives no date either.
        seconds: i64,
    },
    /// A demand, which no value has: it must not have been changed after this date, in seconds since 1970. Some references
    /// give a date and no tag.
    NotAfter(i64),
    /// Of a local file. The inode's number isn't in it: file systems in user space give new ones to files that they have
    /// forgotten.
    File {
        /// Bytes of the file.
        size: u64,
        /// When it was changed, in seconds since 1970.
        seconds: i64,
        /// The nanoseconds that belong to `seconds`.
        nanoseconds: i64,
        /// When it was made, in nanoseconds since 1970; 0 if the file system doesn't know.
        born: u64,
    },
    /// Of a value that a reference or a manifest puts somewhere. Another place is another version.
    At(Arc<Placed>),
}

/// The place of a value, and the version of the object that it lies in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placed {
    /// The name of the object.
    pub object: Arc<str>,
    /// Offset and length of the value in the object, in bytes. `None`: it is the whole object.
    pub range: Option<(u64, u64)>,
    /// The version of the object. `None`: the object never changes.
    pub of_object: Option<ObjectVersion>,
}

impl Placed {
    /// Whether this is the place `object`, `range`.
    pub(crate) fn is_at(&self, object: &str, range: Option<(u64, u64)>) -> bool {
        *self.object == *object && self.range == range
    }
}

/// The first byte of each kind of version as bytes.
const TAG: u8 = b't';
const DATED: u8 = b'd';
const NOT_AFTER: u8 = b'n';
const FILE: u8 = b'f';
const WHOLE: u8 = b'w';
const RANGE: u8 = b'r';

impl ObjectVersion {
    /// Whether the version is sure to change with the value: it has a tag or a date.
    pub fn is_dated_or_tagged(&self) -> bool {
        match self {
            Self::Dated { seconds, .. } => *seconds != 0,
            Self::At(placed) => placed.of_object.as_ref().is_none_or(Self::is_dated_or_tagged),
            Self::Tag(_) | Self::NotAfter(_) | Self::File { .. } => true,
        }
    }

    /// Returns the bytes of its texts.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Self::Tag(tag) => tag.len(),
            Self::At(placed) => placed.object.len() + placed.of_object.as_ref().map_or(0, Self::text_bytes),
            Self::Dated { .. } | Self::NotAfter(_) | Self::File { .. } => 0,
        }
    }

    /// Returns it as bytes, for a cache. Different versions have different bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }

    fn append_to(&self, bytes: &mut Vec<u8>) {
        let mut with = |kind: u8, numbers: &[[u8; 8]]| {
            bytes.push(kind);
            bytes.extend(numbers.concat());
        };
        match self {
            Self::Tag(tag) => {
                with(TAG, &[]);
                bytes.extend(tag.as_bytes());
            }
            Self::Dated { size, seconds } => with(DATED, &[size.to_le_bytes(), seconds.to_le_bytes()]),
            Self::NotAfter(seconds) => with(NOT_AFTER, &[seconds.to_le_bytes()]),
            Self::File { size, seconds, nanoseconds, born } => {
                let times = [seconds.to_le_bytes(), nanoseconds.to_le_bytes()];
                with(FILE, &[size.to_le_bytes(), times[0], times[1], born.to_le_bytes()]);
            }
            Self::At(placed) => {
                let len = (placed.object.len() as u64).to_le_bytes();
                match placed.range {
                    None => with(WHOLE, &[len]),
                    Some((offset, size)) => with(RANGE, &[offset.to_le_bytes(), size.to_le_bytes(), len]),
                }
                bytes.extend(placed.object.as_bytes());
                if let Some(of_object) = &placed.of_object {
                    of_object.append_to(bytes);
                }
            }
        }
    }

    /// Returns the version that [`Self::to_bytes`] wrote; `None` if it didn't write these bytes.
    pub fn of_bytes(bytes: &[u8]) -> Option<Self> {
        // The version of an object may lie in the version of a value, and no deeper.
        Self::read(bytes, true)
    }

    fn read(bytes: &[u8], may_nest: bool) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        match kind {
            TAG => Some(Self::Tag(std::str::from_utf8(rest).ok()?.into())),
            DATED => {
                let ([size, seconds], []) = numbers(rest)? else { return None };
                Some(Self::Dated { size, seconds: seconds.cast_signed() })
            }
            NOT_AFTER => {
                let ([seconds], []) = numbers(rest)? else { return None };
                Some(Self::NotAfter(seconds.cast_signed()))
            }
            FILE => {
                let ([size, seconds, nanoseconds, born], []) = numbers(rest)? else { return None };
                let (seconds, nanoseconds) = (seconds.cast_signed(), nanoseconds.cast_signed());
                Some(Self::File { size, seconds, nanoseconds, born })
            }
            WHOLE | RANGE if may_nest => {
                let (range, len, rest) = if kind == WHOLE {
                    let ([len], rest) = numbers(rest)?;
                    (None, len, rest)
                } else {
                    let ([offset, size, len], rest) = numbers(rest)?;
                    (Some((offset, size)), len, rest)
                };
                let (object, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
                let object = std::str::from_utf8(object).ok()?.into();
                let of_object = if rest.is_empty() { None } else { Some(Self::read(rest, false)?) };
                Some(Self::At(Arc::new(Placed { object, range, of_object })))
            }
            _ => None,
        }
    }
}

/// Splits the first numbers off. `None` if there are fewer.
fn numbers<const N: usize>(bytes: &[u8]) -> Option<([u64; N], &[u8])> {
    let (front, rest) = bytes.split_at_checked(8 * N)?;
    let mut all = [0; N];
    for (number, bytes) in all.iter_mut().zip(front.chunks_exact(8)) {
        *number = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    Some((all, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dali_zarr_base::random::mix;

    /// Random numbers, many of them at the ends of their range.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 += 1;
            match mix(self.0) {
                n if n % 8 == 0 => 0,
                n if n % 8 == 1 => u64::MAX,
                n if n % 8 == 2 => n >> 40,
                n => n,
            }
        }

        fn text(&mut self) -> Arc<str> {
            let letters = ['"', 'W', '/', ' ', '\n', 'é', 't', 'd', 'r', '\0', '雪', '9'];
            let len = mix(self.next()) % 9;
            (0..len).map(|_| letters[(mix(self.next()) % 12) as usize]).collect::<String>().into()
        }

        fn plain(&mut self) -> ObjectVersion {
            match mix(self.next()) % 4 {
                0 => ObjectVersion::Tag(self.text()),
                1 => ObjectVersion::Dated { size: self.next(), seconds: self.next() as i64 },
                2 => ObjectVersion::NotAfter(self.next() as i64),
                _ => {
                    let [size, seconds, nanoseconds, born] = [(); 4].map(|()| self.next());
                    ObjectVersion::File { size, seconds: seconds as i64, nanoseconds: nanoseconds as i64, born }
                }
            }
        }

        fn version(&mut self) -> ObjectVersion {
            let dice = mix(self.next());
            if dice.is_multiple_of(2) {
                return self.plain();
            }
            let range = dice.is_multiple_of(3).then(|| (self.next(), self.next()));
            let of_object = dice.is_multiple_of(5).then(|| self.plain());
            ObjectVersion::At(Arc::new(Placed { object: self.text(), range, of_object }))
        }
    }

    /// These bytes are no version, or one that has just these bytes.
    fn check(bytes: &[u8]) {
        if let Some(read) = ObjectVersion::of_bytes(bytes) {
            assert_eq!(read.to_bytes(), bytes, "{read:?}");
        }
    }

    #[test]
    fn bytes_are_read_as_they_were_written() {
        let mut random = Random(1);
        let mut all = std::collections::HashMap::new();
        for _ in 0..20_000 {
            let version = random.version();
            let bytes = version.to_bytes();
            assert_eq!(ObjectVersion::of_bytes(&bytes).as_ref(), Some(&version));
            let cut = (mix(random.next()) % (bytes.len() as u64 + 1)) as usize;
            check(&bytes[..cut]);
            check(&[&*bytes, &bytes[cut..]].concat());
            let mut changed = bytes.clone();
            changed[cut.min(bytes.len() - 1)] ^= mix(random.next()) as u8;
            check(&changed);
            let same = all.entry(bytes).or_insert_with(|| version.clone());
            assert_eq!(*same, version, "two versions have the same bytes");
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let mut random = Random(1 << 40);
        for round in 0..20_000 {
            let len = mix(random.next()) % 60;
            let kind = b"tdnfwr"[round % 6];
            let rest = (0..len).map(|_| if round % 2 == 0 { mix(random.next()) as u8 } else { 0 });
            check(&std::iter::once(kind).chain(rest).collect::<Vec<_>>());
        }
        check(&[]);
        // A length that no memory has.
        check(&[&[WHOLE][..], &[255; 8], b"a"].concat());
    }

    #[test]
    fn places_lie_in_no_places() {
        let at = |of_object| ObjectVersion::At(Arc::new(Placed { object: "a".into(), range: Some((1, 2)), of_object }));
        assert_eq!(ObjectVersion::of_bytes(&at(None).to_bytes()), Some(at(None)));
        assert_eq!(ObjectVersion::of_bytes(&at(Some(at(None))).to_bytes()), None);
    }

    #[test]
    fn versions_without_a_tag_or_a_date() {
        let file = ObjectVersion::File { size: 5, seconds: 0, nanoseconds: 0, born: 0 };
        for (version, is) in [
            (ObjectVersion::Tag("\"x\"".into()), true),
            // What servers say isn't taken for what this module writes.
            (ObjectVersion::Tag("W/dated 5 0".into()), true),
            (ObjectVersion::Dated { size: 5, seconds: 7 }, true),
            (ObjectVersion::Dated { size: 5, seconds: 0 }, false),
            (file, true),
        ] {
            assert_eq!(version.is_dated_or_tagged(), is, "{version:?}");
            let of_object = Some(version);
            let placed = Placed { object: "s3://bucket/file".into(), range: Some((0, 5)), of_object };
            assert_eq!(ObjectVersion::At(Arc::new(placed)).is_dated_or_tagged(), is, "of a virtual chunk");
        }
        let never_changes = Placed { object: "chunks/x".into(), range: Some((0, 5)), of_object: None };
        assert!(ObjectVersion::At(Arc::new(never_changes)).is_dated_or_tagged());
    }
}
