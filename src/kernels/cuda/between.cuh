// The value between two decoded elements, by a weight, and what follows it: replace NaN, normalise, convert.
//
// Everything here also runs on the host, for tests.
#pragma once
#include "box.cuh"
#include "channels.cuh"
#include "element.cuh"

namespace dz {

// How a job of kBetween finds the other element of each, and its weight. Job::set_between in src/lib.rs sets it.
struct Pair {
  int64_t apart;  // elements from one to the other
  double weight;  // that of the other one
};

DZ_HD Pair pair_of(const Job& job) {
  return {job.src_stride[kMaxDims - 2], bit_cast<double>(job.dst_stride[kMaxDims - 2])};
}

// Neither b nor a difference of infinities counts if the weight is 0.
DZ_HD double between(double a, double b, double weight) {
  return weight == 0 ? a : add_rn(a, mul_rn(weight, add_rn(b, -a)));
}

// Returns the output's bits of a decoded value, by an operation that replaces NaNs and normalises as it says.
DZ_HD uint64_t finish(double x, const Op& op, int32_t dst_dtype, NormaliseByChannel& nans) {
  if (x != x) {
    x = bit_cast<double>(0x7ff8000000000000ull);
    if (op.has_fillna) {
      x = op.fillna;
      ++nans.replaced;
    }
  }
  if (op.has_norm && x == x) x = normalised(x, nans.mean(op), nans.stddev(op));
  Value v;
  v.form = Value::kReal;
  v.f = x;
  return bits_of(v, dst_dtype);
}

// Makes the box that a job of kBetween walks. Only operations with a table have channels in it.
DZ_HD void open_between(const Job& job, const Op& op, ChannelBox& to) {
  if (op.has_norm == kNormTable) {
    open_channels(job, op, to);
  } else {
    merge(job, to.box);
  }
}

// Finds where element `index` of the box lies, and makes `nans` normalise it.
DZ_HD void locate_between(const ChannelBox& box, const Op& op, uint64_t index, int64_t& from, int64_t& to,
                          NormaliseByChannel& nans) {
  if (op.has_norm == kNormTable) {
    take(locate_channel(box, index, from, to), nans);
  } else {
    locate(box.box, index, from, to);
  }
}

}  // namespace dz
