//! A spec as JSON text, as the C ABI takes it: an object whose keys are the operator's arguments. See
//! `include/dali_zarr.h` for what is allowed.

use dali_zarr_engine::dtype::DType;
use dali_zarr_engine::error::{Error, Result};
use dali_zarr_engine::spec::{Device, DimKey, Spec};
use serde_json::Value;

use crate::parse::{
    parse_decode_device, parse_folder, parse_io, parse_options, parse_paths, parse_picks, parse_policy, positive, size,
};

/// Reads a spec.
///
/// # Errors
/// Of kind `Value` for text that isn't a JSON object, an unknown key or a value that makes no sense; of kind `Type` for
/// a value of the wrong type.
pub fn parse_spec(text: &str) -> Result<Spec> {
    let value: Value =
        serde_json::from_str(text).map_err(|e| Error::value(format!("the spec isn't valid JSON: {e}")))?;
    let Value::Object(object) = value else {
        return Err(Error::dtype(format!("the spec: expected a JSON object, but found {}", kind(&value))));
    };
    let mut spec = Spec::default();
    let (mut gpu, mut device_id) = (false, 0);
    for (key, value) in &object {
        if value.is_null() {
            continue;
        }
        let at = Field { key, value };
        match key.as_str() {
            "path" => spec.paths = at.strings()?,
            "storage_options" => spec.storage_options = at.options()?,
            "arrays" => spec.arrays = at.strings()?,
            "stack_arrays" => spec.stack_arrays = at.bool()?,
            "pick" => spec.pick = parse_picks(&at.strings()?)?,
            "dims" => spec.dims = at.dims()?,
            "window" => spec.window = at.integers()?,
            "step" => spec.step = at.integers()?,
            "random_crop" => spec.random_crop = at.dims()?,
            "stride" => spec.stride = at.integers()?,
            "offsets" => spec.offsets = at.integers()?,
            "roi_start" => spec.roi_start = at.integers()?,
            "roi_end" => spec.roi_end = at.integers()?,
            "breaks" => spec.breaks = at.integers()?,
            "cross_stores" => spec.cross_stores = at.bool()?,
            "out_of_bounds_policy" => spec.out_of_bounds_policy = parse_policy(&at.string()?)?,
            "fill_value" => spec.fill_value = Some(at.number()?),
            "mask_and_scale" => spec.mask_and_scale = at.bool()?,
            "dtype" => spec.dtype = Some(at.dtype()?),
            "mean" => spec.mean = at.numbers()?,
            "stddev" => spec.stddev = at.numbers()?,
            "random_shuffle" => spec.random_shuffle = at.bool()?,
            "initial_fill" => spec.initial_fill = at.count()? as u64,
            "shuffle_after_epoch" => spec.shuffle_after_epoch = at.bool()?,
            "seed" => spec.seed = at.integer()?,
            "shard_id" => spec.shard_id = at.integer()?,
            "num_shards" => spec.num_shards = at.integer()?,
            "stick_to_shard" => spec.stick_to_shard = at.bool()?,
            "pad_last_batch" => spec.pad_last_batch = at.bool()?,
            "batch_size" => spec.batch_size = at.count()?,
            "prefetch_queue_depth" => spec.prefetch_queue_depth = Some(at.count()?),
            "decode_device" => spec.decode_device = parse_decode_device(&at.string()?)?,
            "device_memory_limit" => spec.device_memory_limit = Some(at.count()? as u64),
            "host_memory_limit" => spec.host_memory_limit = Some(at.count()? as u64),
            "io" => spec.io = parse_io(&at.string()?)?,
            "use_o_direct" => spec.use_o_direct = at.bool()?,
            "cache_size" => spec.cache_size = size(at.key, at.integer()?)?,
            "cache_dir" => spec.cache_dir = parse_folder(&at.string()?),
            "cache_dir_size" => spec.cache_dir_size = Some(at.count()? as u64),
            "cache_validate" => spec.cache_validate = at.bool()?,
            "io_threads" => spec.io_threads = Some(at.count()?),
            "io_concurrency" => spec.io_concurrency = Some(at.count()?),
            "decode_threads" => spec.decode_threads = Some(at.count()?),
            "return_index" => spec.return_index = at.bool()?,
            "device" => gpu = at.gpu()?,
            "device_id" => device_id = at.ordinal()?,
            _ => return Err(Error::value(format!("there is no argument {key:?}"))),
        }
    }
    spec.paths = parse_paths(spec.paths)?;
    spec.device = if gpu { Device::Gpu(device_id) } else { Device::Cpu };
    Ok(spec)
}

/// One key with its value.
struct Field<'a> {
    key: &'a str,
    value: &'a Value,
}

impl Field<'_> {
    fn wrong(&self, expected: &str) -> Error {
        Error::dtype(format!("{}: expected {expected}, but found {}", self.key, kind(self.value)))
    }

    fn bool(&self) -> Result<bool> {
        self.value.as_bool().ok_or_else(|| self.wrong("true or false"))
    }

    fn integer(&self) -> Result<i64> {
        self.value.as_i64().ok_or_else(|| self.wrong("a whole number"))
    }

    fn count(&self) -> Result<usize> {
        positive(self.key, self.integer()?)
    }

    fn number(&self) -> Result<f64> {
        // JSON has no numbers for these.
        let named = |text: &str| text.parse().ok().filter(|n: &f64| !n.is_finite());
        self.value
            .as_f64()
            .or_else(|| self.value.as_str().and_then(named))
            .ok_or_else(|| self.wrong("a number, \"nan\", \"inf\" or \"-inf\""))
    }

    fn string(&self) -> Result<String> {
        self.value.as_str().map(str::to_owned).ok_or_else(|| self.wrong("a string"))
    }

    fn dtype(&self) -> Result<DType> {
        let name = self.string()?;
        DType::from_name(&name).ok_or_else(|| {
            let known: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
            Error::dtype(format!("dtype: expected one of {}, but found {name:?}", known.join(", ")))
        })
    }

    fn gpu(&self) -> Result<bool> {
        match self.string()?.as_str() {
            "cpu" => Ok(false),
            "gpu" => Ok(true),
            other => Err(Error::value(format!("device: expected \"cpu\" or \"gpu\", but found {other:?}"))),
        }
    }

    fn ordinal(&self) -> Result<i32> {
        let value = self.integer()?;
        i32::try_from(value)
            .ok()
            .filter(|&v| v >= 0)
            .ok_or_else(|| Error::value(format!("device_id: expected the number of a CUDA device, but found {value}")))
    }

    /// Each element as a field of its own; a single value stands for a list of one.
    fn each<T>(&self, read: impl Fn(&Field) -> Result<T>) -> Result<Vec<T>> {
        let list = self.value.as_array().map_or(std::slice::from_ref(self.value), Vec::as_slice);
        list.iter().map(|value| read(&Field { key: self.key, value })).collect()
    }

    fn strings(&self) -> Result<Vec<String>> {
        self.each(|at| at.string())
    }

    /// An object of strings, or a list of `"NAME=VALUE"`.
    fn options(&self) -> Result<Vec<(String, String)>> {
        let Value::Object(object) = self.value else { return parse_options(&self.strings()?) };
        object.iter().map(|(name, value)| Ok((name.clone(), Field { key: self.key, value }.string()?))).collect()
    }

    fn integers(&self) -> Result<Vec<i64>> {
        self.each(|at| at.integer())
    }

    fn numbers(&self) -> Result<Vec<f64>> {
        self.each(|at| at.number())
    }

    fn dims(&self) -> Result<Vec<DimKey>> {
        self.each(|at| match at.value.as_i64() {
            Some(index) => Ok(DimKey::Index(index)),
            None => Ok(DimKey::parse(&at.string()?)),
        })
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(n) if n.is_i64() => "a whole number",
        Value::Number(_) => "a number that isn't whole or is too large",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dali_zarr_engine::error::ErrorKind;
    use dali_zarr_engine::spec::{DecodeDevice, OutOfBounds};

    fn message(text: &str) -> (ErrorKind, String) {
        let error = parse_spec(text).unwrap_err();
        (error.kind(), error.message().to_owned())
    }

    #[test]
    fn reads_every_kind_of_value() {
        let spec = parse_spec(
            r#"{"path": "a.zarr", "arrays": ["t", "u"], "dims": ["time", 1, "-1"], "window": 3, "offsets": [0, -1],
                "random_crop": [1, "-1"], "breaks": [8, -3], "cross_stores": false, "initial_fill": 77,
                "pick": ["level=0,5", "1=2|3"], "dtype": "float16", "mean": [1, 2.5], "out_of_bounds_policy": "pad",
                "storage_options": {"aws_region": "x=y"}, "io_concurrency": 300, "cache_size": 5000000,
                "cache_dir": "/scratch", "cache_dir_size": 7, "cache_validate": false,
                "decode_device": "cpu", "batch_size": 4, "device": "gpu", "device_id": 1, "io_threads": null}"#,
        )
        .unwrap();
        assert_eq!(spec.paths, ["a.zarr"]);
        assert_eq!(spec.arrays, ["t", "u"]);
        assert_eq!(spec.dims, [DimKey::Name("time".into()), DimKey::Index(1), DimKey::Index(-1)]);
        assert_eq!(spec.window, [3]);
        assert_eq!(spec.random_crop, [DimKey::Index(1), DimKey::Index(-1)]);
        assert_eq!((spec.breaks, spec.cross_stores, spec.initial_fill), (vec![8, -3], false, 77));
        assert_eq!(spec.offsets, [0, -1]);
        assert_eq!(spec.pick[0].indices, [[0, 5]]);
        assert_eq!(spec.pick[1].indices, [[2], [3]]);
        assert_eq!(spec.dtype, Some(DType::F16));
        assert_eq!(spec.mean, [1.0, 2.5]);
        assert_eq!(spec.out_of_bounds_policy, OutOfBounds::Pad);
        assert_eq!(spec.decode_device, DecodeDevice::Cpu);
        assert_eq!(spec.storage_options, [("aws_region".to_owned(), "x=y".to_owned())]);
        assert_eq!(spec.io_concurrency, Some(300));
        assert_eq!((spec.cache_size, spec.cache_dir_size, spec.cache_validate), (5_000_000, Some(7), false));
        assert_eq!(spec.cache_dir, Some("/scratch".into()));
        assert_eq!(spec.batch_size, 4);
        assert_eq!(spec.device, Device::Gpu(1));
        assert_eq!(spec.io_threads, None);
    }

    #[test]
    fn says_what_was_expected_and_found() {
        let cases = [
            ("{", ErrorKind::Value, "isn't valid JSON"),
            ("[]", ErrorKind::Type, "expected a JSON object, but found a list"),
            ("{}", ErrorKind::Value, "path: expected at least one store"),
            (r#"{"path": "a", "windows": 1}"#, ErrorKind::Value, "no argument \"windows\""),
            (r#"{"path": 1}"#, ErrorKind::Type, "path: expected a string, but found a whole number"),
            (r#"{"path": "a", "window": 1.5}"#, ErrorKind::Type, "window: expected a whole number"),
            (
                r#"{"path": "a", "batch_size": 0}"#,
                ErrorKind::Value,
                "batch_size: expected a whole number of at least 1",
            ),
            (r#"{"path": "a", "storage_options": ["region"]}"#, ErrorKind::Value, "expected \"NAME=VALUE\""),
            (r#"{"path": "a", "cache_size": -1}"#, ErrorKind::Value, "cache_size: expected a number of bytes, or 0"),
            (r#"{"path": "a", "dtype": "complex64"}"#, ErrorKind::Type, "but found \"complex64\""),
            (r#"{"path": "a", "device_id": 99999999999}"#, ErrorKind::Value, "number of a CUDA device"),
            (r#"{"path": "a", "seed": 99999999999999999999}"#, ErrorKind::Type, "seed: expected a whole number"),
        ];
        for (text, kind, part) in cases {
            let (found, text_found) = message(text);
            assert_eq!(found, kind, "{text}");
            assert!(text_found.contains(part), "{text}: {text_found}");
        }
    }

    #[test]
    fn deep_nesting_is_an_error() {
        assert_eq!(message(&"[".repeat(100_000)).0, ErrorKind::Value);
    }
}
