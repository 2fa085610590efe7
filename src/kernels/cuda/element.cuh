// Converts one element from chunk to output: decode, mask, scale, replace NaN, normalise, convert.
//
// Device and host give the same bits, so that everything here can be tested without a GPU. Rules: arithmetic is float64
// without contraction (no fused multiply-add). A conversion rounds once, to nearest even. Integers saturate. NaN
// becomes 0 in an integer. In a float, a NaN keeps its sign and the payload's high bits, as in x86 conversions.
#pragma once
#include <cmath>
#include <cstring>

#include "layout.cuh"

namespace dz {

// The value of an element. Integers up to 64 bits and every float are exact in one of the three forms.
struct Value {
  enum Form : uint32_t { kInt, kUint, kReal } form;
  union {
    int64_t i;
    uint64_t u;
    double f;
  };
};

template <class To, class From>
DZ_HD To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

DZ_HD double mul_rn(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;  // the host's compiler is told not to contract
#endif
}

DZ_HD double add_rn(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

DZ_HD double div_rn(double a, double b) {
#ifdef __CUDA_ARCH__
  return __ddiv_rn(a, b);
#else
  return a / b;
#endif
}

DZ_HD int size_of(int32_t dtype) {
  // clang-format off: a table
  switch (dtype) {
    case kBool: case kI8: case kU8: return 1;
    case kI16: case kU16: case kF16: case kBF16: return 2;
    case kI32: case kU32: case kF32: return 4;
    default: return 8;
  }
  // clang-format on
}

DZ_HD uint64_t swap_bytes(uint64_t v, int size) {
  if (size == 1) return v;
  v = ((v & 0x00ff00ff00ff00ffull) << 8) | ((v >> 8) & 0x00ff00ff00ff00ffull);
  if (size == 2) return v & 0xffff;
  v = ((v & 0x0000ffff0000ffffull) << 16) | ((v >> 16) & 0x0000ffff0000ffffull);
  if (size == 4) return v & 0xffffffff;
  return (v << 32) | (v >> 32);
}

DZ_HD double f16_to_f64(uint16_t h) {
  const uint64_t sign = uint64_t(h & 0x8000) << 48;
  const uint64_t exponent = (h >> 10) & 31, fraction = h & 0x3ff;
  if (exponent == 31) {  // infinity, NaN (made quiet)
    return bit_cast<double>(sign | 0x7ff0000000000000ull | (fraction << 42) | (fraction ? 1ull << 51 : 0));
  }
  if (exponent == 0) {  // zero, subnormal: fraction * 2^-24, exact
    const double magnitude = double(fraction) * 5.9604644775390625e-08;
    return bit_cast<double>(sign | bit_cast<uint64_t>(magnitude));
  }
  return bit_cast<double>(sign | ((exponent + 1008) << 52) | (fraction << 42));
}

DZ_HD double f32_to_f64(uint32_t bits) {
  if ((bits & 0x7fffffff) > 0x7f800000) {  // NaN: the device's own conversion would drop sign and payload
    return bit_cast<double>((uint64_t(bits & 0x80000000) << 32) | 0x7ff8000000000000ull |
                            (uint64_t(bits & 0x007fffff) << 29));
  }
  return double(bit_cast<float>(bits));
}

// Converts to a 16-bit float with FRACTION bits of fraction and an exponent with bias BIAS.
template <int FRACTION, int BIAS>
DZ_HD uint16_t f64_to_16(double v) {
  constexpr int kShift = 52 - FRACTION;
  constexpr uint16_t kInfinity = 0x7fff & ~((1 << FRACTION) - 1);
  // The midpoint between the greatest finite value and the next power of two. From it on, values round to infinity.
  constexpr uint64_t kTooGreat = (uint64_t(1023 + BIAS) << 52) | (((2ull << FRACTION) - 1) << (kShift - 1));
  const uint64_t bits = bit_cast<uint64_t>(v);
  const uint16_t sign = uint16_t((bits >> 48) & 0x8000);
  const uint64_t magnitude = bits & 0x7fffffffffffffffull;
  if (magnitude > 0x7ff0000000000000ull) {
    constexpr uint16_t kQuiet = 1 << (FRACTION - 1);
    return sign | kInfinity | kQuiet | uint16_t((magnitude >> kShift) & ((1 << FRACTION) - 1));
  }
  if (magnitude >= kTooGreat) return sign | kInfinity;
  const int exponent = int(magnitude >> 52) - 1023;
  if (exponent < -BIAS - FRACTION) return sign;  // below half of the smallest subnormal
  // The significand with its hidden bit, shifted so that the result's last bit is bit 0. A carry out of the fraction
  // goes into the exponent, which rounds up to the next power of two correctly.
  const uint64_t significand = (magnitude & 0x000fffffffffffffull) | 0x0010000000000000ull;
  const bool normal = exponent > -BIAS;
  const int shift = normal ? kShift : kShift + (1 - BIAS - exponent);
  uint64_t half = significand >> shift;
  const uint64_t rest = significand & ((1ull << shift) - 1), tie = 1ull << (shift - 1);
  half += rest > tie || (rest == tie && (half & 1));
  if (normal) half += uint64_t(exponent + BIAS - 1) << FRACTION;  // the hidden bit adds 1 to the exponent
  return sign | uint16_t(half);
}

DZ_HD uint16_t f64_to_f16(double v) { return f64_to_16<10, 15>(v); }
DZ_HD uint16_t f64_to_bf16(double v) { return f64_to_16<7, 127>(v); }

DZ_HD uint32_t f64_to_f32(double v) {
  const uint64_t bits = bit_cast<uint64_t>(v);
  if ((bits & 0x7fffffffffffffffull) > 0x7ff0000000000000ull) {
    return uint32_t((bits >> 32) & 0x80000000) | 0x7fc00000 | uint32_t((bits >> 29) & 0x007fffff);
  }
  return bit_cast<uint32_t>(float(v));
}

// Returns the value of a stored element: `bits` in native byte order, zero-extended.
DZ_HD Value value_of(uint64_t bits, int32_t dtype) {
  Value v;
  // clang-format off: a table
  switch (dtype) {
    case kBool: v.form = Value::kUint; v.u = (bits & 0xff) != 0; break;
    case kI8: v.form = Value::kInt; v.i = int8_t(bits); break;
    case kI16: v.form = Value::kInt; v.i = int16_t(bits); break;
    case kI32: v.form = Value::kInt; v.i = int32_t(bits); break;
    case kI64: v.form = Value::kInt; v.i = int64_t(bits); break;
    case kU8: v.form = Value::kUint; v.u = uint8_t(bits); break;
    case kU16: v.form = Value::kUint; v.u = uint16_t(bits); break;
    case kU32: v.form = Value::kUint; v.u = uint32_t(bits); break;
    case kU64: v.form = Value::kUint; v.u = bits; break;
    case kF16: v.form = Value::kReal; v.f = f16_to_f64(uint16_t(bits)); break;
    case kF32: v.form = Value::kReal; v.f = f32_to_f64(uint32_t(bits)); break;
    case kBF16: v.form = Value::kReal; v.f = f32_to_f64(uint32_t(bits) << 16); break;
    default: v.form = Value::kReal; v.f = bit_cast<double>(bits); break;
  }
  // clang-format on
  return v;
}

DZ_HD double to_f64(Value v) {
  return v.form == Value::kReal ? v.f : v.form == Value::kInt ? double(v.i) : double(v.u);
}

// Returns whether `a` equals the missing value `b`. Compares values as NumPy does: -0.0 equals 0.0, and NaN equals
// nothing. Integers are compared as float64, as in xarray's decoding, so those beyond 2^53 may equal their neighbours.
DZ_HD bool same(Value a, Value b) { return to_f64(a) == to_f64(b); }

// Rounds to the type that CF decoding yields, if it is narrower than float64.
DZ_HD double rounded(double x, int32_t decoded) {
  if (decoded == kF32) return f32_to_f64(f64_to_f32(x));
  if (decoded == kF16) return f16_to_f64(f64_to_f16(x));
  return x;
}

// Converts to a signed integer type with the limits lo and hi.
DZ_HD int64_t saturate_signed(Value v, int64_t lo, int64_t hi) {
  if (v.form == Value::kInt) return v.i < lo ? lo : v.i > hi ? hi : v.i;
  if (v.form == Value::kUint) return v.u > uint64_t(hi) ? hi : int64_t(v.u);
  if (v.f != v.f) return 0;
  const double r = rint(v.f);
  // Both comparisons are exact: lo is a power of two, and double(hi) rounds up to one for 64 bits.
  if (r <= double(lo)) return lo;
  if (r >= double(hi)) return hi;
  return int64_t(r);
}

DZ_HD uint64_t saturate_unsigned(Value v, uint64_t hi) {
  if (v.form == Value::kInt) return v.i < 0 ? 0 : uint64_t(v.i) > hi ? hi : uint64_t(v.i);
  if (v.form == Value::kUint) return v.u > hi ? hi : v.u;
  if (!(v.f > 0)) return 0;
  const double r = rint(v.f);
  if (r >= double(hi)) return hi;
  return uint64_t(r);
}

// Returns a whole number as float64 that gives the same result as the number when it is rounded to a narrower type. Of
// the bits below the highest 53, one that is set shows on which side of a tie the number was.
DZ_HD double whole_to_f64(Value v) {
  const bool negative = v.form == Value::kInt && v.i < 0;
  uint64_t magnitude = negative ? 0 - uint64_t(v.i) : v.u;
  if (magnitude >> 53) magnitude = (magnitude & ~0x7ffull) | ((magnitude & 0x7ff) != 0 ? 0x800 : 0);
  return negative ? -double(magnitude) : double(magnitude);
}

// Returns the bits of `v` in type `dtype`, zero-extended.
DZ_HD uint64_t bits_of(Value v, int32_t dtype) {
  switch (dtype) {
    case kBool: return v.form == Value::kReal ? v.f != 0 : v.u != 0;
    case kI8: return uint8_t(saturate_signed(v, INT8_MIN, INT8_MAX));
    case kI16: return uint16_t(saturate_signed(v, INT16_MIN, INT16_MAX));
    case kI32: return uint32_t(saturate_signed(v, INT32_MIN, INT32_MAX));
    case kI64: return uint64_t(saturate_signed(v, INT64_MIN, INT64_MAX));
    case kU8: return saturate_unsigned(v, UINT8_MAX);
    case kU16: return saturate_unsigned(v, UINT16_MAX);
    case kU32: return saturate_unsigned(v, UINT32_MAX);
    case kU64: return saturate_unsigned(v, UINT64_MAX);
    case kF16: {
      if (v.form == Value::kReal) return f64_to_f16(v.f);
      // Integers beyond float16's range become infinite. Clamping keeps that, and makes the conversion to float64
      // exact.
      const int64_t limit = 1 << 20;
      const int64_t i = v.form == Value::kInt ? (v.i < -limit  ? -limit
                                                 : v.i > limit ? limit
                                                               : v.i)
                                              : (v.u > uint64_t(limit) ? limit : int64_t(v.u));
      return f64_to_f16(double(i));
    }
    case kF32:
      if (v.form == Value::kReal) return f64_to_f32(v.f);
      return bit_cast<uint32_t>(v.form == Value::kInt ? float(v.i) : float(v.u));
    case kBF16: return f64_to_bf16(v.form == Value::kReal ? v.f : whole_to_f64(v));
    default: return bit_cast<uint64_t>(to_f64(v));
  }
}

// How NaNs are treated; a type parameter named Nans. KeepNans leaves them, for operations without `fillna`. Its code is
// compiled separately, so that it tests and counts nothing.
struct KeepNans {
  static constexpr bool kFills = false;
  DZ_HD double mean(const Op& op) const { return op.mean; }
  DZ_HD double stddev(const Op& op) const { return op.stddev; }
  DZ_HD KeepNans apart() const { return {}; }
};

// Replaces NaNs if the operation asks for it, and counts them.
struct ReplaceNans {
  static constexpr bool kFills = true;
  uint32_t replaced = 0;
  DZ_HD double mean(const Op& op) const { return op.mean; }
  DZ_HD double stddev(const Op& op) const { return op.stddev; }
  DZ_HD ReplaceNans apart() const { return {}; }
};

// As ReplaceNans, for elements that are normalised by the mean and stddev of their channel.
struct NormaliseByChannel {
  static constexpr bool kFills = true;
  uint32_t replaced = 0;
  double of_channel[2] = {0, 1};
  DZ_HD double mean(const Op&) const { return of_channel[0]; }
  DZ_HD double stddev(const Op&) const { return of_channel[1]; }
  DZ_HD NormaliseByChannel apart() const {
    NormaliseByChannel own = *this;
    own.replaced = 0;
    return own;
  }
};

template <class Nans>
DZ_HD bool decodes(const Op& op) {
  const int32_t any = op.num_missing | op.has_scale | op.has_offset | op.has_norm;
  if constexpr (Nans::kFills) return any | op.has_fillna;
  return any;
}

constexpr int32_t kInlineMissing = 2;

// Rare operations, which most code paths leave out to save registers: multiplication in int64, and long lists of
// missing values.
DZ_HD bool scales_integers(const Op& op) { return op.has_scale && op.decoded == kI64; }
DZ_HD bool is_rare(const Op& op) { return op.num_missing > kInlineMissing || scales_integers(op); }

// Converts as NumPy's astype on x86-64: fractions are cut off, and values that int64 can't hold become its smallest
// value.
DZ_HD int64_t to_i64(Value v) {
  if (v.form != Value::kReal) return v.i;  // of an unsigned value: its bits
  const double limit = 9223372036854775808.0;
  return v.f >= -limit && v.f < limit ? int64_t(v.f) : INT64_MIN;
}

// Returns whether `x` is in the list of missing values at `address`: `count` float64 in ascending order.
DZ_HD bool is_listed(double x, uint64_t address, int32_t count) {
  const double* values = reinterpret_cast<const double*>(address);
  int32_t from = 0, to = count;
  while (from < to) {
    const int32_t middle = from + (to - from) / 2;
    if (values[middle] < x) {
      from = middle + 1;
    } else {
      to = middle;
    }
  }
  return from < count && values[from] == x;
}

DZ_HD double normalised(double x, double mean, double stddev) { return div_rn(add_rn(x, -mean), stddev); }

// Converts the stored bits (in native byte order) to the output's bits. RARE is false only for operations that aren't
// rare.
template <bool RARE, class Nans>
DZ_HD uint64_t convert(uint64_t bits, const Op& op, int32_t src_dtype, int32_t dst_dtype, Nans& nans) {
  Value v = value_of(bits, src_dtype);
  const bool in_integers = RARE && scales_integers(op), fills = Nans::kFills && op.has_fillna;
  if (in_integers) {
    v.i = int64_t(uint64_t(to_i64(v)) * bit_cast<uint64_t>(op.scale));
    v.form = Value::kInt;
  }
  if (in_integers ? op.has_norm : decodes<Nans>(op)) {
    double x = to_f64(v);
    bool missing;
    if (RARE && op.num_missing > kInlineMissing) {
      missing = is_listed(x, op.missing[0], op.num_missing);
    } else {
      // Not a loop: on the device, an index into a local array would need local memory.
      missing = (op.num_missing > 0 && same(v, value_of(op.missing[0], src_dtype))) ||
                (op.num_missing > 1 && same(v, value_of(op.missing[1], src_dtype)));
    }
    if (missing) x = bit_cast<double>(0x7ff8000000000000ull);
    // Arithmetic on devices yields always the same NaN. Here, as on x86, a NaN passes through arithmetic unchanged
    // (made quiet), and a new NaN has its sign set.
    if (x != x) {
      x = bit_cast<double>(bit_cast<uint64_t>(x) | 0x0008000000000000ull);
    } else {
      if (op.has_scale && !in_integers) x = rounded(mul_rn(x, op.scale), op.decoded);
      if (op.has_offset) x = rounded(add_rn(x, op.offset), op.decoded);
      if (op.has_norm && !fills) x = normalised(x, nans.mean(op), nans.stddev(op));
      if (x != x) x = bit_cast<double>(0xfff8000000000000ull);
    }
    if constexpr (Nans::kFills) {
      if (fills && x != x) {
        x = op.fillna;
        ++nans.replaced;
      }
      if (fills && op.has_norm) x = normalised(x, nans.mean(op), nans.stddev(op));
    }
    v.form = Value::kReal;
    v.f = x;
  }
  return bits_of(v, dst_dtype);
}

// Converts by any operation. Not inlined, which keeps the rare code out of its callers.
DZ_HD_APART uint64_t convert_rare(uint64_t bits, const Op& op, KeepNans& nans) {
  return convert<true>(bits, op, op.src_dtype, op.dst_dtype, nans);
}

DZ_HD_APART uint64_t convert_rare(uint64_t bits, const Op& op, ReplaceNans& nans) {
  return convert<true>(bits, op, op.src_dtype, op.dst_dtype, nans);
}

DZ_HD_APART uint64_t convert_rare(uint64_t bits, const Op& op, NormaliseByChannel& nans) {
  return convert<true>(bits, op, op.src_dtype, op.dst_dtype, nans);
}

template <class Nans>
DZ_HD uint64_t convert_any(uint64_t bits, const Op& op, Nans& nans) {
  if (!is_rare(op)) return convert<false>(bits, op, op.src_dtype, op.dst_dtype, nans);
  // The separate count `own` goes through memory, so that the count in `nans` stays in a register.
  Nans own = nans.apart();
  bits = convert_rare(bits, op, own);
  if constexpr (Nans::kFills) nans.replaced += own.replaced;
  return bits;
}

// Returns the output's bits for all elements of a box without a chunk (fill value or padding).
template <class Nans>
DZ_HD uint64_t constant(const Op& op, uint32_t source, Nans& nans) {
  if (source == kFill) return convert_any(op.fill, op, nans);
  Value v;
  v.form = Value::kReal;
  v.f = op.pad;
  return bits_of(v, op.dst_dtype);
}

// Returns whether the operation changes at most the order of an element's bytes. Never true for bool: it is written as
// 0 or 1, whatever the chunk holds.
template <class Nans>
DZ_HD bool is_plain(const Op& op) {
  return op.src_dtype == op.dst_dtype && op.src_dtype != kBool && !decodes<Nans>(op);
}

}  // namespace dz
