//! Values of the predictors. `tests/test_images.py` compares them with imagecodecs.

use serde_json::{Value, json};

use crate::{ChunkFormat, CodecList, V2Codecs};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::Result;

fn v2(filter: Value, dtype: DType, shape: &[u64]) -> Result<ChunkFormat> {
    let (filters, compressor) = (vec![filter], None);
    V2Codecs { fortran: false, kept_dims: 0, big_endian: false, filters, compressor }.format(dtype, 0, shape)
}

fn v3(filter: Value, dtype: DType, shape: &[u64]) -> Result<ChunkFormat> {
    CodecList::parse(&json!([filter, "bytes"]))?.format(dtype, 0, shape)
}

fn decode(format: &ChunkFormat, encoded: &[u8], shape: &[u64]) -> Vec<u8> {
    let mut out = vec![0xaa; format.decoded_bytes(shape).unwrap()];
    format.decode(encoded, shape, &mut out).unwrap();
    out
}

#[test]
fn differences_along_each_axis() {
    let encoded = [250, 10, 3, 4, 5, 6, 7, 8];
    for (axis, expected) in [
        (-1, [250, 4, 3, 7, 5, 11, 7, 15]),
        (1, [250, 10, 253, 14, 5, 6, 12, 14]),
        (0, [250, 10, 3, 4, 255, 16, 10, 12]),
    ] {
        let given = json!({"id": "imagecodecs_delta", "shape": [2, 2, 2], "dtype": "|u1", "axis": axis});
        assert_eq!(decode(&v2(given, DType::U8, &[2, 2, 2]).unwrap(), &encoded, &[2, 2, 2]), expected);
        let given = json!({"name": "imagecodecs_delta", "configuration": {"axis": axis, "dist": 1}});
        assert_eq!(decode(&v3(given, DType::U8, &[2, 2, 2]).unwrap(), &encoded, &[2, 2, 2]), expected);
    }
    // Big-endian elements in v2, and bytes without a type.
    let given = json!({"id": "imagecodecs_delta", "shape": [2], "dtype": ">u2"});
    assert_eq!(decode(&v2(given, DType::U16, &[2]).unwrap(), &[0, 200, 0, 100], &[2]), [0, 200, 1, 44]);
    let given = json!({"id": "imagecodecs_delta"});
    assert_eq!(decode(&v2(given, DType::U16, &[2]).unwrap(), &[1, 200, 1, 100], &[2]), [1, 201, 202, 46]);
    let given = json!("HorizontalDeltaCodec");
    assert_eq!(decode(&v3(given, DType::U16, &[1, 2]).unwrap(), &[200, 0, 100, 0], &[1, 2]), [200, 0, 44, 1]);
}

#[test]
fn planes_of_bytes() {
    // Two elements of 4 bytes: 0x01020304 and 0x05060708, whose most significant bytes stand first.
    let planes = [1u8, 5, 2, 6, 3, 7, 4, 8];
    let differences = |dist: usize| {
        let mut out = planes;
        for at in (dist..8).rev() {
            out[at] = out[at].wrapping_sub(out[at - dist]);
        }
        out
    };
    for (dist, shape, axis) in
        [(1, json!([2]), -1), (1, json!([1, 2]), 1), (2, json!([2]), 0), (2, json!([1, 1, 2]), -2)]
    {
        for (dtype, expected) in [("<f4", [4, 3, 2, 1, 8, 7, 6, 5]), (">f4", [1, 2, 3, 4, 5, 6, 7, 8])] {
            let own = if shape == json!([1, 1, 2]) { 1 } else { dist };
            let given =
                json!({"id": "imagecodecs_floatpred", "shape": shape, "dtype": dtype, "axis": axis, "dist": own});
            let format = v2(given, DType::F32, &[2]).unwrap();
            assert_eq!(decode(&format, &differences(dist), &[2]), expected, "{dist} {shape} {dtype}");
        }
    }
    let given = json!({"name": "imagecodecs_floatpred", "configuration": {"axis": -2, "dist": 1}});
    let format = v3(given, DType::F32, &[1, 1, 2]).unwrap();
    assert_eq!(decode(&format, &differences(2), &[1, 1, 2]), [4, 3, 2, 1, 8, 7, 6, 5]);
}

#[test]
fn what_is_refused() {
    for (given, expected) in [
        (json!({"id": "imagecodecs_delta", "shape": [4], "dtype": "|u1", "dist": 2}), "dist"),
        (json!({"id": "imagecodecs_delta", "shape": [4], "dtype": "|u1", "axis": 1}), "axis"),
        (json!({"id": "imagecodecs_delta", "shape": [3], "dtype": "|u1"}), "isn't that of 4 elements"),
        (json!({"id": "imagecodecs_delta", "shape": [4], "dtype": "|u1", "order": 2}), "order"),
        (json!({"id": "imagecodecs_delta", "shape": 4, "dtype": "|u1"}), "shape"),
        (json!({"id": "imagecodecs_floatpred", "shape": [4]}), "dtype"),
        (json!({"id": "imagecodecs_floatpred", "shape": [4], "dtype": "|u1"}), "dtype"),
        (json!({"id": "imagecodecs_floatpred", "shape": [1], "dtype": "<f4", "dist": 3}), "dist"),
        (json!({"id": "imagecodecs_floatpred", "shape": [1, 1, 1], "dtype": "<f4", "axis": 0}), "axis"),
    ] {
        let error = v2(given.clone(), DType::U8, &[4]).unwrap_err();
        assert!(error.message().contains(expected), "{given}: {error}");
    }
    let codecs = json!(["imagecodecs_floatpred", {"name": "bytes", "configuration": {"endian": "big"}}]);
    let error = CodecList::parse(&codecs).unwrap().format(DType::F32, 0, &[2, 2]).unwrap_err();
    assert!(error.message().contains("order of their own"), "{error}");
    let format = v2(json!({"id": "imagecodecs_floatpred", "shape": [3], "dtype": "<f4", "dist": 2}), DType::F32, &[3]);
    let error = format.unwrap().decode(&[0; 12], &[3], &mut [0; 12]).unwrap_err();
    assert!(error.message().contains("multiple of 2"), "{error}");
}
