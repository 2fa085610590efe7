//! The stores and arrays to read.

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::read;
use dali_zarr_base::error::{Error, Result};

/// The arguments for the stores and arrays to read.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default)]
pub struct SourceArguments {
    /// The locations of stores. [`super::Concat`] says how several are combined.
    #[serde(rename = "path")]
    pub paths: Vec<String>,
    /// Options of remote stores: names and values. They contain no secrets.
    #[serde(deserialize_with = "options")]
    pub storage_options: Vec<(String, String)>,
    /// The arrays, one for each output. Empty: the store's only array.
    #[serde(deserialize_with = "arrays")]
    pub arrays: Vec<ArrayArgument>,
    /// The groups of each store from which samples are cut, as names or as patterns with `*` and `?`: each group is
    /// like a store of its own. Empty: the stores themselves.
    pub groups: Vec<String>,
    /// The groups that were found, in their order; then `paths` has the location of each. Users can't give this: see
    /// [`crate::dataset::resolved`].
    #[serde(skip)]
    pub members: Vec<Member>,
    /// The indices to read along dimensions.
    #[serde(deserialize_with = "picks")]
    pub pick: Vec<Pick>,
    /// The arrays whose elements belong to those of the other arrays by an alignment, by output. Users can't give this
    /// argument: it is what `align` of the Python package comes to, since labels are looked up there.
    #[serde(rename = "_align", deserialize_with = "aligned")]
    pub align: Vec<Aligned>,
    /// The name of the first opening of a reader that is opened again, see `reader/openings.rs`. Users can't give this
    /// argument.
    #[serde(rename = "_opening")]
    pub opening: Option<String>,
}

/// A group from which samples are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The location of its store.
    pub store: String,
    /// Its path in the store.
    pub group: String,
}

/// An array and the name of its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayArgument {
    /// The output's name. It is the array's name if no other was given.
    pub output: String,
    /// The array's name relative to the root of the stores, or the location of its own store.
    pub array: String,
}

impl ArrayArgument {
    /// Whether the array has its own store: see [`is_location`].
    pub fn is_own(&self) -> bool {
        is_location(&self.array)
    }
}

/// Whether an array's name is the location of its own store: a URL, an absolute path, or a path that begins with `./`
/// or `../`. Other names are relative to the stores of `path`.
pub fn is_location(array: &str) -> bool {
    ["/", "./", "../"].iter().any(|start| array.starts_with(start)) || array.contains("://")
}

impl SourceArguments {
    /// Whether samples are cut from groups.
    pub fn is_grouped(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Returns the location of the first store of `path`; `None` if there is none.
    pub fn first_store(&self) -> Option<&String> {
        self.members.first().map(|member| &member.store).or(self.paths.first())
    }

    /// Returns the locations of all stores: those of `path`, then those of arrays with their own stores, each once.
    pub fn locations(&self) -> Vec<String> {
        let mut all = self.paths.clone();
        for own in self.own() {
            if !all[self.paths.len()..].contains(&own.array) {
                all.push(own.array.clone());
            }
        }
        all
    }

    /// Whether the array of this output is aligned to the others along the first of `dims`.
    pub fn follows(&self, output: &str) -> bool {
        self.align.iter().any(|of| of.output == output && !of.is_own)
    }

    /// Returns the arrays that have their own stores.
    pub fn own(&self) -> impl Iterator<Item = &ArrayArgument> {
        self.arrays.iter().filter(|array| array.is_own())
    }

    /// Checks that `path` is given if it is needed, and only then.
    ///
    /// # Errors
    /// If `path` is missing or superfluous.
    pub fn check(&self) -> Result<()> {
        let own = self.own().count();
        let is_alone = own > 0 && own == self.arrays.len();
        match self.paths.len() {
            0 if !is_alone => Err(Error::value(match self.arrays.iter().find(|array| !array.is_own()) {
                Some(ArrayArgument { array, .. }) => format!(
                    "path: expected at least one store, since the array '{array}' is relative to it, but found none; give path, or \
                     ./{array} if that is where the array is"
                ),
                None => "path: expected at least one store, but found none".to_owned(),
            })),
            1.. if is_alone => Err(Error::value(
                "path: expected none, since every array of arrays has a location of its own; leave path out, or give names relative \
                 to it",
            )),
            _ if self.is_grouped() && own > 0 => Err(Error::value(
                "arrays: expected names relative to each group with groups, but found an array with a store of its own; leave it out",
            )),
            _ if self.is_grouped() && self.arrays.is_empty() => Err(Error::value(
                "arrays: expected the names of arrays in each group with groups, but found none; give arrays",
            )),
            _ => Ok(()),
        }
    }
}

impl From<&str> for ArrayArgument {
    fn from(name: &str) -> Self {
        Self { output: name.to_owned(), array: name.to_owned() }
    }
}

/// Reads `arrays`: a name, a list of names, or an object with names by output.
fn arrays<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<ArrayArgument>, D::Error> {
    let wrong =
        |found: &Value| serde::de::Error::invalid_type(serde::de::Unexpected::Other(read::kind(found)), &"a string");
    let name = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| wrong(value));
    match Value::deserialize(value)? {
        Value::Object(arrays) => {
            arrays.into_iter().map(|(output, value)| Ok(ArrayArgument { output, array: name(&value)? })).collect()
        }
        Value::Array(names) => names.iter().map(|value| name(value).map(|name| (&*name).into())).collect(),
        single => Ok(vec![(&*name(&single)?).into()]),
    }
}

/// A dimension by its name (`dimension_names`, `_ARRAY_DIMENSIONS`) or its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DimKey {
    /// By name.
    Name(String),
    /// By position. Negative: from the end.
    Index(i64),
}

impl DimKey {
    /// Reads a dimension: `"0"` and `"-1"` are positions, other text such as `"time"` is a name.
    pub fn parse(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Index)
    }
}

impl std::fmt::Display for DimKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(n) => write!(f, "\"{n}\""),
            Self::Index(i) => write!(f, "{i}"),
        }
    }
}

impl<'de> Deserialize<'de> for DimKey {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        struct NameOrPosition;

        impl Visitor<'_> for NameOrPosition {
            type Value = DimKey;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the name or the position of a dimension")
            }

            fn visit_i64<E>(self, index: i64) -> Result<DimKey, E> {
                Ok(DimKey::Index(index))
            }

            fn visit_str<E>(self, text: &str) -> Result<DimKey, E> {
                Ok(DimKey::parse(text))
            }
        }

        value.deserialize_any(NameOrPosition)
    }
}

/// Which element of an array belongs to each element along the first of `dims`, or between which two its value lies.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
pub struct Aligned {
    /// The array's output.
    #[serde(default)]
    pub output: String,
    /// The array's dimension that takes the place of the first of `dims`.
    pub dim: String,
    /// An element of that dimension for each element of the first of `dims`, before `pick`. -1: none belongs to it.
    pub elements: Vec<i64>,
    /// The other element for each, which is read where its weight isn't 0. Empty: there are none.
    #[serde(default)]
    pub others: Vec<i64>,
    /// The weights of the other elements, from 0 to 1. Empty: there are none.
    #[serde(default)]
    pub weights: Vec<f64>,
    /// Whether the first of `dims` is the array's own dimension, with labels that the store lacks put in between.
    #[serde(default)]
    pub is_own: bool,
}

/// Reads `_align`: an object by output.
fn aligned<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<Aligned>, D::Error> {
    let by_output = std::collections::BTreeMap::<String, Aligned>::deserialize(value)?;
    Ok(by_output.into_iter().map(|(output, of)| Aligned { output, ..of }).collect())
}

/// The indices to read along one dimension, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The output whose array it is for. `None`: all arrays that have the dimension.
    pub output: Option<String>,
    /// The dimension.
    pub dim: DimKey,
    /// Lists of indices: one for all stores, or one of the same length for each store. Negative: from the end.
    pub indices: Vec<Vec<i64>>,
}

impl Pick {
    /// Reads `"level=0,5,-1"`, or with a list for each store `"level=0,5,-1|1,4,0"`.
    ///
    /// # Errors
    /// If the text has another form.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::value(format!(
                "expected \"DIMENSION=INDEX,INDEX,…\" with whole numbers, e.g. \"level=0,5,-1\", or such a list for \
                 each store with \"|\" between them, but found {text:?}"
            ))
        };
        let (dim, lists) = text.rsplit_once('=').ok_or_else(wrong)?;
        let list = |list: &str| list.split(',').map(|i| i.trim().parse().map_err(|_| wrong())).collect();
        let indices: Vec<Vec<i64>> = lists.split('|').map(list).collect::<Result<_>>()?;
        Ok(Self { output: None, dim: DimKey::parse(dim.trim()), indices })
    }
}

/// Writes the form that [`Pick::parse`] reads, without the output.
impl std::fmt::Display for Pick {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |list: &Vec<i64>| list.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        let lists = self.indices.iter().map(list).collect::<Vec<_>>().join("|");
        match &self.dim {
            DimKey::Name(name) => write!(f, "{name}={lists}"),
            DimKey::Index(i) => write!(f, "{i}={lists}"),
        }
    }
}

/// Reads `pick`: one text, or a list of texts and of objects with texts by output.
fn picks<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<Pick>, D::Error> {
    fn add<E: serde::de::Error>(all: &mut Vec<Pick>, output: Option<&String>, value: &Value) -> Result<(), E> {
        match (value, output) {
            (Value::Array(items), Some(output)) if items.is_empty() => Err(E::custom(format!(
                "expected indices of output '{output}', but found none; leave it out, or give \"DIMENSION=INDICES\""
            ))),
            (Value::Array(items), _) => items.iter().try_for_each(|item| add(all, output, item)),
            (Value::Object(by_output), None) => by_output.iter().try_for_each(|(name, of)| add(all, Some(name), of)),
            (Value::String(text), _) => {
                all.push(Pick { output: output.cloned(), ..Pick::parse(text).map_err(E::custom)? });
                Ok(())
            }
            _ => Err(E::invalid_type(serde::de::Unexpected::Other(read::kind(value)), &"a string")),
        }
    }
    let mut all = Vec::new();
    add(&mut all, None, &Value::deserialize(value)?)?;
    Ok(all)
}

/// Reads `storage_options`: an object of strings, or a list of `"NAME=VALUE"`.
fn options<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<(String, String)>, D::Error> {
    #[derive(Clone, Copy)]
    struct Options;

    impl<'de> Visitor<'de> for Options {
        type Value = Vec<(String, String)>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object of strings, or a list of \"NAME=VALUE\"")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            std::iter::from_fn(|| map.next_entry().transpose()).collect()
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
            match text.split_once('=') {
                Some((name, value)) if !name.trim().is_empty() => Ok(vec![(name.trim().to_owned(), value.to_owned())]),
                // The message doesn't contain the text, because it may be a secret.
                _ => Err(read::wrong_value("\"NAME=VALUE\"", "an entry without a name or \"=\"")),
            }
        }

        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut options = Vec::new();
            while let Some(text) = list.next_element::<String>()? {
                options.extend(self.visit_str(&text)?);
            }
            Ok(options)
        }
    }

    value.deserialize_any(Options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_are_read_and_written() {
        for (text, dim, indices) in [
            ("level=0,5,-1", DimKey::Name("level".into()), vec![vec![0, 5, -1]]),
            ("level=2,5|1,4", DimKey::Name("level".into()), vec![vec![2, 5], vec![1, 4]]),
            ("-1=3|3|-1", DimKey::Index(-1), vec![vec![3], vec![3], vec![-1]]),
            ("a|b=c=7", DimKey::Name("a|b=c".into()), vec![vec![7]]),
        ] {
            let pick = Pick { output: None, dim, indices };
            assert_eq!((Pick::parse(text).unwrap(), pick.to_string().as_str()), (pick.clone(), text));
        }
        assert_eq!(Pick::parse(" x = 1 , 2 | 3,4 ").unwrap().to_string(), "x=1,2|3,4");
        for text in
            ["level", "level=", "level=1|", "level=|1", "level=1,|2,3", "level=1.0", "level=1;2", "=", "level=1||2"]
        {
            assert!(Pick::parse(text).unwrap_err().message().starts_with("expected \"DIMENSION="), "{text}");
        }
    }
}
