use super::*;
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::ErrorKind;

fn read(text: &str) -> Spec {
    Spec::from_json(text).unwrap()
}

fn refused(text: &str) -> (ErrorKind, String) {
    let error = Spec::from_json(text).unwrap_err();
    (error.kind(), error.message().to_owned())
}

#[test]
fn every_kind_of_value_is_read() {
    let spec = read(
        r#"{"path": "/a.zarr", "arrays": ["t", "u"], "dims": ["time", 1, "-1"], "window": 3, "offsets": [0, -1],
            "random_crop": [1, "-1"], "breaks": [8, -3], "cross_stores": false, "initial_fill": 77,
            "pick": ["level=0,5", "1=2|3", {"u": ["x=4"], "t": "x=1"}], "dtype": "float16", "mean": [1, 2.5], "out_of_bounds_policy": "pad",
            "storage_options": {"aws_region": "x=y"}, "io_concurrency": 300, "cache_size": 5000000,
            "cache_dir": "/scratch", "cache_dir_size": 7, "cache_validate": false, "io": "gds",
            "decode_device": "cpu", "batch_size": 4, "device": "gpu", "device_id": 1, "io_threads": null}"#,
    );
    let Spec { source, samples, values, order, resources, batch_size, device } = spec;
    assert_eq!((source.paths, source.arrays), (vec!["/a.zarr".to_owned()], vec!["t".into(), "u".into()]));
    assert_eq!(source.storage_options, [("aws_region".to_owned(), "x=y".to_owned())]);
    assert_eq!((&source.pick[0].indices, &source.pick[1].indices), (&vec![vec![0, 5]], &vec![vec![2], vec![3]]));
    let by_output = source.pick[2..].iter().map(|pick| (pick.output.as_deref(), pick.to_string())).collect::<Vec<_>>();
    assert_eq!(by_output, [(Some("u"), "x=4".to_owned()), (Some("t"), "x=1".to_owned())]);
    assert!(source.pick[..2].iter().all(|pick| pick.output.is_none()));
    assert_eq!(samples.dims, [DimKey::Name("time".into()), DimKey::Index(1), DimKey::Index(-1)]);
    assert_eq!(samples.random_crop, [DimKey::Index(1), DimKey::Index(-1)]);
    assert_eq!((samples.window, samples.offsets, samples.breaks), (vec![3].into(), vec![0, -1], vec![8, -3].into()));
    assert_eq!((samples.cross_stores, samples.out_of_bounds_policy), (false, OutOfBounds::Pad));
    assert_eq!((values.dtype, values.mean), (PerOutput::one(DType::F16), vec![1.0, 2.5].into()));
    assert_eq!(order.initial_fill, Some(77));
    assert_eq!((resources.decode_device, resources.io), (DecodeDevice::Cpu, Io::Gds));
    assert_eq!((resources.io_concurrency, resources.io_threads), (Some(300), None));
    assert_eq!((resources.cache_size, resources.cache_dir_size), (5_000_000, Some(7)));
    assert_eq!((resources.cache_dir, resources.cache_validate), (Some("/scratch".into()), false));
    assert_eq!((batch_size, device), (4, Device::Gpu(1)));
}

#[test]
fn values_are_given_by_name() {
    let spec = read(
        r#"{"path": "a", "arrays": {"z": "x/z", "a": "y"}, "window": {"t": 2, "-1": 0}, "stride": {"z": {"t": 3}, "a": [1, 2]},
            "mean": {"z": [1, "inf"], "a": 2}, "dtype": {"z": "int8"}, "mask_and_scale": {"a": false},
            "path": "b", "_arguments": {"path": "/c", "fill_value": {"a": "nan"}}}"#,
    );
    let array = |output: &str, array: &str| ArrayArgument { output: output.into(), array: array.into() };
    assert_eq!(spec.source.arrays, [array("z", "x/z"), array("a", "y")], "outputs keep their order");
    assert_eq!(spec.source.paths, ["/c"]);
    assert_eq!(spec.samples.window, PerDim::ByDim(vec![(DimKey::Name("t".into()), 2), (DimKey::Index(-1), 0)]));
    let by_dim = PerDim::ByDim(vec![(DimKey::Name("t".into()), 3)]);
    let by_output = vec![("z".to_owned(), by_dim), ("a".to_owned(), vec![1, 2].into())];
    assert_eq!(spec.samples.stride, PerDim::ByOutput(by_output));
    assert_eq!(
        spec.values.mean,
        PerOutput::ByOutput(vec![("z".into(), vec![1.0, f64::INFINITY]), ("a".into(), vec![2.0])])
    );
    assert_eq!((spec.values.dtype.of("z", 0), spec.values.dtype.of("a", 1)), (Some(DType::I8), None));
    let channels = |text: &str| read(&format!(r#"{{"path": "a", "channels": {text}}}"#)).values.channels;
    let (c, last) = (DimKey::Name("c".into()), DimKey::Index(-1));
    assert_eq!(channels(r#"["c", -1]"#), OutputDims::All(vec![c.clone(), last.clone()]));
    assert_eq!(
        channels(r#"{"a": "c", "b": ["-1"]}"#),
        OutputDims::ByOutput(vec![("a".into(), vec![c]), ("b".into(), vec![last])])
    );
    assert_eq!(channels("null"), OutputDims::default());
    assert_eq!((spec.values.mask_and_scale.of("z", 0), spec.values.mask_and_scale.of("a", 1)), (None, Some(false)));
    assert!(spec.samples.fill_value.of("a", 1).is_some_and(f64::is_nan));
}

#[test]
fn what_is_not_given_has_its_default() {
    let nothing = ["storage_options", "window", "fill_value", "dtype", "seed", "cache_dir", "batch_size", "device"];
    let nothing: Vec<_> = nothing.iter().map(|name| format!("\"{name}\": null")).collect();
    for spec in [read(r#"{"path": "/a"}"#), read(&format!("{{\"path\": \"/a\", {}}}", nothing.join(", ")))] {
        let default = Spec::default().with(|s| s.source.paths = vec!["/a".into()]);
        assert_eq!(format!("{spec:?}"), format!("{default:?}"));
    }
    assert_eq!(read(r#"{"path": "a", "cache_dir": ""}"#).resources.cache_dir, None);
}

#[test]
fn numbers_keep_all_their_bits() {
    let spec = read(
        r#"{"path": "a", "seed": -9223372036854775807, "initial_fill": 9223372036854775807, "fill_value": "nan",
            "mean": [0.1, "0.30000000000000004", 1e308, 5e-324, "inf", 9007199254740993], "stddev": "-inf"}"#,
    );
    assert_eq!((spec.order.seed, spec.order.initial_fill), (i64::MIN + 1, Some(i64::MAX as u64)));
    assert!(spec.samples.fill_value.of("a", 0).is_some_and(f64::is_nan));
    let mean = vec![0.1, 0.1 + 0.2, 1e308, 5e-324, f64::INFINITY, 9_007_199_254_740_992.0];
    assert_eq!(spec.values.mean, mean.into());
    assert_eq!(spec.values.stddev, PerOutput::one(f64::NEG_INFINITY));
}

#[test]
fn options_are_an_object_or_a_list() {
    for options in [r#"{"a": "1", "b": "x=y"}"#, r#"["a=1", " b =x=y"]"#] {
        let spec = read(&format!(r#"{{"path": "p", "storage_options": {options}}}"#));
        let of = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(spec.source.storage_options, [of("a", "1"), of("b", "x=y")]);
    }
    assert_eq!(read(r#"{"path": "p", "storage_options": "a=1"}"#).source.storage_options.len(), 1);
}

#[test]
fn errors_say_what_was_expected_and_found() {
    let dtypes = "dtype: expected one of bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, float32, \
                  float64, bfloat16, but found \"complex64\"";
    let number = "a number, \"nan\", \"inf\" or \"-inf\"";
    let (value, wrong_type) = (ErrorKind::Value, ErrorKind::Type);
    for (argument, kind, message) in [
        (r#""windows": 1"#, value, "there is no argument \"windows\""),
        (r#""path": 1"#, wrong_type, "path: expected a string, but found a whole number"),
        (r#""path": ["a", {}]"#, wrong_type, "path: expected a string, but found an object"),
        (r#""arrays": true"#, wrong_type, "arrays: expected a string, but found true or false"),
        (
            r#""storage_options": ["secret"]"#,
            value,
            "storage_options: expected \"NAME=VALUE\", but found an entry without a name or \"=\"",
        ),
        (r#""storage_options": {"a": 1}"#, wrong_type, "storage_options: expected a string, but found a whole number"),
        (
            r#""storage_options": 1"#,
            wrong_type,
            "storage_options: expected an object of strings, or a list of \"NAME=VALUE\", but found a whole number",
        ),
        (
            r#""pick": "level=a""#,
            value,
            "pick: expected \"DIMENSION=INDEX,INDEX,…\" with whole numbers, e.g. \"level=0,5,-1\", or such a list for each \
             store with \"|\" between them, but found \"level=a\"",
        ),
        (
            r#""dims": [1.5]"#,
            wrong_type,
            "dims: expected the name or the position of a dimension, but found a number that isn't whole or is too large",
        ),
        (
            r#""window": 1.5"#,
            wrong_type,
            "window: expected a whole number, but found a number that isn't whole or is too large",
        ),
        (r#""window": [1, null]"#, wrong_type, "window: expected a whole number, but found null"),
        (r#""window": {"t": "2"}"#, wrong_type, "window: expected a whole number, but found a string"),
        (r#""window": {"a": {"b": {"t": 2}}}"#, wrong_type, "window: expected a whole number, but found an object"),
        (r#""arrays": {"a": 1}"#, wrong_type, "arrays: expected a string, but found a whole number"),
        (r#""mean": {"a": "much"}"#, wrong_type, &format!("mean: expected {number}, but found a string")),
        (
            r#""mask_and_scale": {"a": 1}"#,
            wrong_type,
            "mask_and_scale: expected true or false, but found a whole number",
        ),
        (r#""stride": [[1]]"#, wrong_type, "stride: expected a whole number, but found a list"),
        (r#""cross_stores": 1"#, wrong_type, "cross_stores: expected true or false, but found a whole number"),
        (
            r#""out_of_bounds_policy": "wrap""#,
            value,
            "out_of_bounds_policy: expected \"error\", \"drop\", \"pad\" or \"edge\", but found \"wrap\"",
        ),
        (
            r#""out_of_bounds_policy": 1"#,
            wrong_type,
            "out_of_bounds_policy: expected a string, but found a whole number",
        ),
        (r#""fill_value": [[1]]"#, wrong_type, &format!("fill_value: expected {number}, but found a list")),
        (r#""mean": ["much"]"#, wrong_type, &format!("mean: expected {number}, but found a string")),
        (r#""dtype": "complex64""#, wrong_type, dtypes),
        (
            r#""seed": 99999999999999999999"#,
            wrong_type,
            "seed: expected a whole number, but found a number that isn't whole or is too large",
        ),
        (r#""initial_fill": 0"#, value, "initial_fill: expected a whole number of at least 1, but found 0"),
        (r#""io_threads": -3"#, value, "io_threads: expected a whole number of at least 1, but found -3"),
        (r#""host_memory_limit": "1GB""#, wrong_type, "host_memory_limit: expected a whole number, but found a string"),
        (r#""cache_size": -1"#, value, "cache_size: expected a number of bytes, or 0, but found -1"),
        (r#""decode_device": "tpu""#, value, "decode_device: expected \"auto\", \"gpu\" or \"cpu\", but found \"tpu\""),
        (r#""io": "uring""#, value, "io: expected \"posix\" or \"gds\", but found \"uring\""),
        (r#""batch_size": 0"#, value, "batch_size: expected a whole number of at least 1, but found 0"),
        (r#""device": "tpu""#, value, "device: expected \"cpu\" or \"gpu\", but found \"tpu\""),
        (
            r#""device_id": 99999999999"#,
            value,
            "device_id: expected the number of a CUDA device, but found 99999999999",
        ),
        (r#""device_id": -1"#, value, "device_id: expected the number of a CUDA device, but found -1"),
    ] {
        assert_eq!(refused(&format!("{{\"path\": \"a\", {argument}}}")), (kind, message.to_owned()), "{argument}");
    }
}

#[test]
fn only_objects_with_a_store_are_specs() {
    assert_eq!(refused("{}"), (ErrorKind::Value, "path: expected at least one store, but found none".into()));
    let (_, message) = refused(r#"{"arrays": ["/a.zarr/x", "b.zarr/x"]}"#);
    assert!(message.contains("'b.zarr/x' is relative to it") && message.contains("./b.zarr/x if"), "{message}");
    assert_eq!(refused("[]"), (ErrorKind::Type, "the spec: expected a JSON object, but found a list".into()));
    for text in ["", "{", "{\"path\": \"a\"} x", &"[".repeat(100_000)] {
        let (kind, message) = refused(text);
        assert!(kind == ErrorKind::Value && message.starts_with("the spec isn't valid JSON: "), "{message}");
    }
    let not_utf8 = Spec::from_json(b"{\"path\": \"/data/\x80\"}").unwrap_err();
    assert!(not_utf8.message().starts_with("the spec isn't valid JSON: "), "{not_utf8}");
}

#[test]
fn outputs_are_counted_whatever_else_is_wrong() {
    for (arguments, count) in [
        ("{}", 1),
        (r#"{"arrays": "a", "window": "x", "unknown": 1}"#, 1),
        (r#"{"arrays": ["a", "b"], "offsets": [0, 1, 3]}"#, 6),
        (r#"{"arrays": ["a", "b"], "offsets": [0, 1], "stack_arrays": true, "return_index": true}"#, 3),
    ] {
        assert_eq!(Spec::num_outputs(arguments).unwrap(), count, "{arguments}");
    }
    assert!(Spec::num_outputs(br#"{"offsets": "x"}"#).is_err());
}

#[test]
fn processes_share_processors() {
    for (available, allowed, online, processes, share) in [
        (64, 64, 64, 1, 64),
        (64, 64, 64, 4, 16),
        // The process is bound to its own cores.
        (16, 16, 64, 4, 16),
        (8, 8, 64, 4, 8),
        // A container limits CPU time.
        (12, 64, 64, 4, 3),
        (2, 2, 2, 8, 1),
        (4, 0, 0, 2, 2),
        (4, 4, 4, 0, 4),
    ] {
        assert_eq!(
            super::share(available, allowed, online, processes),
            share,
            "{available} {allowed} {online} {processes}"
        );
    }
    assert_eq!((super::listed("\t0-3,8, 10-11\n"), super::listed(""), super::listed("3-1,x,-")), (7, 0, 0));
}
