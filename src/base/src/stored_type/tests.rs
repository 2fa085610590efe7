//! Parsing of data types and fill values in metadata, and their errors.

use serde_json::json;

use super::*;
use crate::error::ErrorKind;

fn v3(name: &str) -> Stored {
    parse_v3(&json!(name)).unwrap()
}

#[test]
fn types() {
    assert_eq!(parse_v2(&json!(">f4")).unwrap(), Stored { big_endian: true, ..Stored::plain(DType::F32) });
    let time = parse_v2(&json!("<M8[ns]")).unwrap();
    assert_eq!((time.dtype, time.to_string().as_str()), (DType::I64, "datetime64[ns]"));
    let complex = parse_v2(&json!(">c16")).unwrap();
    assert_eq!(complex, Stored { big_endian: true, ..Stored::complex(DType::F64) });
    for (text, name) in
        [(json!("<m8[25us]"), "timedelta64[25us]"), (json!("<M8"), "datetime64"), (json!("<c8"), "complex64")]
    {
        assert_eq!(parse_v2(&text).unwrap().to_string(), name);
    }
    let of_numpy = |unit: Value, scale| json!({"name": "numpy.timedelta64", "configuration": {"unit": unit, "scale_factor": scale}});
    for (value, name) in [
        (of_numpy(json!("s"), 10), "timedelta64[10s]"),
        (of_numpy(json!("generic"), 1), "timedelta64"),
        (json!({"name": "numpy.datetime64", "configuration": {"unit": "D"}}), "datetime64[D]"),
        (json!("datetime64[ms]"), "datetime64[ms]"),
        (json!("complex_float32"), "complex64"),
        (json!("complex_bfloat16"), "complex_bfloat16"),
        (json!("bfloat16"), "bfloat16"),
    ] {
        assert_eq!(parse_v3(&value).unwrap().to_string(), name);
    }
    for wrong in [
        of_numpy(json!("fortnight"), 1),
        of_numpy(json!("s"), 0),
        of_numpy(json!("s"), 1i64 << 40),
        of_numpy(json!(["s"]), 1),
        json!("datetime64[ns"),
        json!("datetime64s"),
        json!("numpy.datetime64[99999999999999999999s]"),
        json!("complex_int8"),
        json!("complex"),
    ] {
        assert_eq!(parse_v3(&wrong).unwrap_err().kind(), ErrorKind::Type, "{wrong}");
    }
    for dtype in DType::ALL {
        assert_eq!(v3(dtype.name()).dtype, dtype);
    }
}

#[test]
fn refused_types_name_the_way_out() {
    for (value, way_out) in [
        (json!("complex_float8_e4m3"), "write it as complex64"),
        (json!({"name": "numpy.datetime64", "configuration": {"unit": "year"}}), "datetime64[ns]"),
        (json!("float8_e4m3"), "float32"),
        (json!("string"), "write it as numbers"),
        (json!({"name": "fixed_length_utf32", "configuration": {"length_bytes": 8}}), "write it as numbers"),
        (json!("r16"), "leave the array out"),
    ] {
        let error = parse_v3(&value).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Type);
        assert!(error.message().contains(way_out), "{error}");
    }
    for value in [
        json!("<c32"),
        json!("<M4[s]"),
        json!("<M8[]s"),
        json!("|S5"),
        json!("<U3"),
        json!("|V8"),
        json!("|O"),
        json!([["a", "<f4"]]),
        json!(""),
    ] {
        assert_eq!(parse_v2(&value).unwrap_err().kind(), ErrorKind::Type, "{value}");
    }
}

#[test]
fn fill_values_keep_their_bits() {
    let fill = |value: Value, name| fill_value(&value, v3(name)).unwrap().unwrap().bits;
    assert_eq!(fill(json!("0x7fc00001"), "float32"), 0x7fc0_0001);
    assert_eq!(fill(json!("0xfff8000000000123"), "float64"), 0xfff8_0000_0000_0123);
    assert_eq!(fill(json!("NaN"), "float32"), 0x7fc0_0000);
    assert_eq!(fill(json!("NaN"), "float16"), 0x7e00);
    assert_eq!(fill(json!(-0.0), "float32"), 0x8000_0000);
    assert_eq!(fill(json!(0.1), "float32"), u64::from(0.1f32.to_bits()));
    assert_eq!(fill(json!(-1), "int16"), 0xffff);
    assert_eq!(fill(json!(u64::MAX), "uint64"), u64::MAX);
    assert_eq!(fill(json!(3.0), "int8"), 3);
    assert_eq!(fill(json!(true), "bool"), 1);
    assert_eq!(fill(json!(2), "bool"), 1);
    assert_eq!(fill(json!(i64::MIN), "int64"), 1 << 63);
    for (text, name) in
        [("-9223372036854775809", "int64"), ("9223372036854775808", "int64"), ("18446744073709551616", "uint64")]
    {
        assert!(fill_value(&serde_json::from_str(text).unwrap(), v3(name)).is_err(), "{text}");
    }
    assert_eq!(fill(json!("0x3c00"), "float32"), u64::from(1f32.to_bits()));
    let time = v3("datetime64[s]");
    assert_eq!(fill_value(&json!("NaT"), time).unwrap(), Some((1 << 63).into()));
    assert_eq!(fill_value(&Value::Null, time).unwrap(), None);
    assert_eq!(fill(json!(1.5), "bfloat16"), 0x3fc0);
    assert_eq!(fill(json!("NaN"), "bfloat16"), 0x7fc0);
    assert_eq!(fill(json!("0x7f81"), "bfloat16"), 0x7f81);
    let complex = |value: Value| fill_value(&value, v3("complex64")).map(|fill| fill.map(|f| (f.bits, f.imaginary)));
    assert_eq!(complex(json!(["NaN", 1.5])).unwrap(), Some((0x7fc0_0000, 0x3fc0_0000)));
    assert_eq!(complex(json!(["0x7fc00001", "-Infinity"])).unwrap(), Some((0x7fc0_0001, 0xff80_0000)));
    assert_eq!(complex(json!(0)).unwrap(), Some((0, 0)));
    assert_eq!(complex(json!(2)).unwrap(), Some((0x4000_0000, 0)));
    for wrong in [json!([1]), json!([1, 2, 3]), json!([1, null]), json!({"real": 1}), json!([[0, 0], 1])] {
        assert!(complex(wrong.clone()).unwrap_err().message().contains("a value of complex64"), "{wrong}");
    }
    let cases = [
        (json!("0"), "int32", 0),
        (json!("-7"), "int16", 0xfff9),
        (json!("0.0"), "uint8", 0),
        (json!("18446744073709551615"), "uint64", u64::MAX),
        (json!(true), "int8", 1),
        (json!(true), "float32", u64::from(1f32.to_bits())),
        (json!(false), "float64", 0),
        (json!("1.5"), "float32", u64::from(1.5f32.to_bits())),
        (json!("nan"), "float32", 0x7fc0_0000),
        (json!("-inf"), "float16", 0xfc00),
        (json!("1e400"), "float64", f64::INFINITY.to_bits()),
        (json!("True"), "bool", 1),
        (json!("1"), "bool", 1),
    ];
    for (value, name, bits) in cases {
        assert_eq!(fill(value.clone(), name), bits, "{value} {name}");
    }
    for (value, name) in [
        (json!(256), "uint8"),
        (json!(-1), "uint64"),
        (json!(0.5), "int32"),
        (json!("0x7fc"), "float32"),
        (json!("0x+fc00001"), "float32"),
        (json!([1]), "int8"),
        (json!([1]), "float32"),
        (json!("256"), "uint8"),
        (json!("1.5"), "int16"),
        (json!("nan"), "int32"),
        (json!("inf"), "int32"),
        (json!("many"), "float64"),
        (json!(""), "float64"),
        // zarr-python reads these as True.
        (json!("false"), "bool"),
        (json!("0"), "bool"),
        (json!(""), "bool"),
    ] {
        assert!(fill_value(&value, v3(name)).is_err(), "{value} {name}");
    }
}
