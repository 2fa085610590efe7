//! xarray's rules, case by case. `tests/test_cf_attributes.py` compares random attributes with xarray itself.

use serde_json::json;

use super::*;

fn cf(version: u8, dtype: DType, own: Option<u64>, attrs: Value) -> Result<Cf> {
    decode(version, Stored::plain(dtype), own.map(Into::into), attrs.as_object().unwrap())
}

#[test]
fn packed_integers() {
    let packed =
        cf(3, DType::I16, None, json!({"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768})).unwrap();
    assert_eq!(
        packed,
        Cf {
            missing: vec![0x8000],
            scale: Some(0.01),
            int_scale: None,
            offset: Some(273.15),
            src_dtype: DType::I16,
            decoded: DType::F64
        }
    );
    assert_eq!(cf(3, DType::I16, None, json!({"_FillValue": -1})).unwrap().decoded, DType::F32);
    assert_eq!(cf(3, DType::I32, None, json!({"missing_value": -1})).unwrap().decoded, DType::F64);
    assert!(cf(3, DType::I16, None, json!({"scale_factor": 2, "_FillValue": 0})).is_err());
    assert!(cf(3, DType::I16, None, json!({"scale_factor": [0.5]})).is_err());
    assert_eq!(cf(3, DType::I16, None, json!({"scale_factor": [0.5], "add_offset": [1]})).unwrap().decoded, DType::F64);
}

#[test]
fn an_integer_scale_alone_multiplies_in_int64() {
    for dtype in [DType::Bool, DType::I16, DType::I64, DType::U64, DType::F32, DType::F64] {
        let c = cf(3, dtype, None, json!({"scale_factor": -2})).unwrap();
        assert_eq!((c.int_scale, c.scale, c.src_dtype, c.decoded), (Some(-2), None, dtype, DType::I64));
        assert!(!c.is_identity());
    }
    let c = cf(3, DType::I64, None, json!({"scale_factor": i64::MIN})).unwrap();
    assert_eq!(c.int_scale, Some(i64::MIN));
    let e = cf(3, DType::U64, None, json!({"scale_factor": i64::MAX as u64 + 1})).unwrap_err();
    assert!(e.message().contains("int64 can't hold"), "{e}");
    // With an `add_offset`, or with the fill value NaN, xarray computes in floats.
    let c = cf(3, DType::F32, None, json!({"scale_factor": 2, "add_offset": 1})).unwrap();
    assert_eq!((c.int_scale, c.scale, c.decoded), (None, Some(2.0), DType::F64));
    let nan = u64::from(f32::NAN.to_bits());
    let c = cf(2, DType::F32, Some(nan), json!({"scale_factor": 2})).unwrap();
    assert_eq!((c.int_scale, c.scale, c.decoded), (None, Some(2.0), DType::F32));
}

#[test]
fn own_fill_values_mean_missing_in_v2_only() {
    assert_eq!(cf(2, DType::F32, Some(0), json!({})).unwrap().missing, [0]);
    assert!(cf(3, DType::F32, None, json!({})).unwrap().is_identity());
    let nan = u64::from(f32::NAN.to_bits());
    let scaled = cf(2, DType::F32, Some(nan), json!({"scale_factor": 0.1})).unwrap();
    assert_eq!((scaled.decoded, scaled.missing.len()), (DType::F32, 0), "float32 stays float32");
    assert_eq!(cf(2, DType::F32, None, json!({"scale_factor": 0.1})).unwrap().decoded, DType::F64);
    assert!(cf(2, DType::Bool, Some(0), json!({})).is_err());
}

#[test]
fn unsigned_bytes() {
    let c = cf(3, DType::I8, None, json!({"_Unsigned": "true", "_FillValue": -1})).unwrap();
    assert_eq!((c.src_dtype, c.missing, c.decoded), (DType::U8, vec![255], DType::F32));
    assert!(cf(3, DType::I8, None, json!({"_Unsigned": "true", "_FillValue": 255})).is_err());
    let c = cf(2, DType::U8, Some(255), json!({"_Unsigned": "false"})).unwrap();
    assert_eq!((c.src_dtype, c.missing), (DType::I8, vec![255]));
    assert!(cf(3, DType::U8, None, json!({"_Unsigned": "false", "_FillValue": 255})).is_err());
}

#[test]
fn float_fill_values_in_v3_are_base64() {
    // The base64 of Python's `struct.pack("<d", -9999.0)`.
    let c = cf(3, DType::F32, None, json!({"_FillValue": "AAAAAICHw8A="})).unwrap();
    assert_eq!((c.missing, c.decoded), (vec![u64::from((-9999f32).to_bits())], DType::F32));
    assert!(cf(3, DType::F32, None, json!({"_FillValue": -9999.0})).is_err());
    for no_float64 in ["AAA=", "AAAAAICHw8AAAA==", "AAAAAICHw8A", ""] {
        assert!(cf(3, DType::F32, None, json!({"_FillValue": no_float64})).is_err(), "{no_float64}");
    }
}

#[test]
fn missing_values_that_nothing_equals_still_promote() {
    let c = cf(3, DType::F32, None, json!({"missing_value": 0.1})).unwrap();
    assert!(c.missing.is_empty(), "0.1 is no float32");
    let c = cf(3, DType::U8, None, json!({"missing_value": [300, -1]})).unwrap();
    assert_eq!((c.missing.len(), c.decoded), (0, DType::F32));
    let c = cf(3, DType::U8, None, json!({"missing_value": [1, 2, [300, 3]], "_FillValue": 2})).unwrap();
    assert_eq!(c.missing, [1, 2, 3]);
    let many: Vec<u32> = (0..5000).collect();
    let e = cf(3, DType::U16, None, json!({"missing_value": many})).unwrap_err();
    assert!(e.message().contains("5000 numbers in missing_value"), "{e}");
    assert_eq!(cf(3, DType::U16, None, json!({"missing_value": many[..4096]})).unwrap().missing.len(), 4096);
    let c = cf(2, DType::I32, None, json!({"missing_value": "\u{0}NaN"})).unwrap();
    assert!(c.is_identity(), "NaN means nothing for integers");
    let c = cf(3, DType::U64, None, json!({"missing_value": 18446744073709551616.0})).unwrap();
    assert_eq!(c.missing, [u64::MAX], "as a float the largest value is 2^64");
}

#[test]
fn own_fill_values_are_named_unless_they_are_what_writers_put_there_anyway() {
    let named = |dtype, own: Option<u64>, attrs: Value| {
        named_missing(2, Stored::plain(dtype), own.map(Into::into), attrs.as_object().unwrap())
    };
    let (nan, low) = (u64::from(f32::NAN.to_bits()), u64::from((-999.0f32).to_bits()));
    for nothing in [None, Some(0), Some(u64::from((-0.0f32).to_bits())), Some(nan)] {
        assert_eq!(named(DType::F32, nothing, json!({})), None);
    }
    let text = named(DType::F32, Some(low), json!({})).unwrap();
    assert_eq!(text, "its fill_value, in Zarr v2, means missing values (-999.0)");
    assert!(named(DType::U8, Some(255), json!({})).unwrap().ends_with("(255)"));
    let text = named(DType::F32, Some(low), json!({"missing_value": 7})).unwrap();
    assert_eq!(text, "its attributes name missing values (7.0, -999.0)");
    assert_eq!(named(DType::Bool, Some(1), json!({})), None, "xarray makes objects of these");
}

#[test]
fn what_differs_is_seen_in_a_message() {
    let shown = |attrs: Value| cf(3, DType::I16, None, attrs).unwrap().to_string();
    assert_eq!(
        shown(json!({"scale_factor": 3})),
        "int16 to int64, scale_factor 3 (integer), add_offset none, missing []"
    );
    assert_ne!(shown(json!({"scale_factor": 3})), shown(json!({"scale_factor": 2})));
    assert_ne!(shown(json!({"scale_factor": 3})), shown(json!({"scale_factor": 3.0})));
    let many: Vec<i16> = (0..12).collect();
    let many = shown(json!({"missing_value": many}));
    assert!(many.ends_with("missing [0, 1, 2, 3, 4, 5, 6, 7, and 4 more]"), "{many}");
}
