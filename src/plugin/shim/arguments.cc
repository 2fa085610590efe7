// From DALI's OpSpec to the engine's arguments, and between the two sets of element types.

#include <charconv>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "dali/pipeline/operator/error_reporting.h"
#include "translate.h"
#include "zarr_reader.h"

namespace dali_zarr {

dali::DALIDataType ToDali(engine::DType type) {
  switch (type) {
    case engine::DType::Bool: return DALI_BOOL;
    case engine::DType::I8: return DALI_INT8;
    case engine::DType::I16: return DALI_INT16;
    case engine::DType::I32: return DALI_INT32;
    case engine::DType::I64: return DALI_INT64;
    case engine::DType::U8: return DALI_UINT8;
    case engine::DType::U16: return DALI_UINT16;
    case engine::DType::U32: return DALI_UINT32;
    case engine::DType::U64: return DALI_UINT64;
    case engine::DType::F16: return DALI_FLOAT16;
    case engine::DType::F32: return DALI_FLOAT;
    case engine::DType::F64: return DALI_FLOAT64;
  }
  throw dali::DaliRuntimeError("zarr_reader: the engine named an element type that the operator doesn't know");
}

namespace {

engine::DType FromDali(dali::DALIDataType type) {
  switch (type) {
    case DALI_BOOL: return engine::DType::Bool;
    case DALI_INT8: return engine::DType::I8;
    case DALI_INT16: return engine::DType::I16;
    case DALI_INT32: return engine::DType::I32;
    case DALI_INT64: return engine::DType::I64;
    case DALI_UINT8: return engine::DType::U8;
    case DALI_UINT16: return engine::DType::U16;
    case DALI_UINT32: return engine::DType::U32;
    case DALI_UINT64: return engine::DType::U64;
    case DALI_FLOAT16: return engine::DType::F16;
    case DALI_FLOAT: return engine::DType::F32;
    case DALI_FLOAT64: return engine::DType::F64;
    default:
      throw dali::DaliTypeError(dali::make_string(
          "zarr_reader: dtype: expected bool, a type of integers or a type of floating-point numbers, but found ",
          type));
  }
}

rust::Vec<rust::String> Strings(const dali::OpSpec &spec, const char *name) {
  rust::Vec<rust::String> result;
  for (const auto &text : spec.GetRepeatedArgument<std::string>(name)) {
    // Paths on Linux are bytes; the engine's are text.
    try {
      result.push_back(rust::String(text));
    } catch (const std::invalid_argument &) {
      throw dali::DaliValueError(dali::make_string("zarr_reader: ", name, ": \"", text, "\" isn't valid UTF-8"));
    }
  }
  return result;
}

rust::String Text(const dali::OpSpec &spec, const char *name) {
  return rust::String::lossy(spec.GetArgument<std::string>(name));
}

rust::Vec<int64_t> Integers(const dali::OpSpec &spec, const char *name) {
  rust::Vec<int64_t> result;
  for (int64_t value : spec.GetRepeatedArgument<int64_t>(name)) result.push_back(value);
  return result;
}

// The numbers of a floating-point argument with double precision, if Python gave them. DALI's own floating-point arguments
// have single precision, so the Python package gives the same numbers as text too, under the name with an underscore.
rust::Vec<double> PreciseNumbers(const dali::OpSpec &spec, const std::string &name) {
  rust::Vec<double> result;
  for (const auto &text : spec.GetRepeatedArgument<std::string>("_" + name)) {
    double value = 0;
    const auto end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, value);
    if (read.ec != std::errc() || read.ptr != end)
      throw dali::DaliValueError(dali::make_string("zarr_reader: ", name, ": \"", text, "\" isn't a number"));
    result.push_back(value);
  }
  return result;
}

rust::Vec<double> Numbers(const dali::OpSpec &spec, const char *name) {
  auto result = PreciseNumbers(spec, name);
  if (result.empty())
    for (float value : spec.GetRepeatedArgument<float>(name)) result.push_back(value);
  return result;
}

rust::Vec<double> Number(const dali::OpSpec &spec, const char *name) {
  auto result = PreciseNumbers(spec, name);
  if (result.empty()) result.push_back(spec.GetArgument<float>(name));
  return result;
}

rust::Vec<int64_t> MaybeInteger(const dali::OpSpec &spec, const char *name) {
  rust::Vec<int64_t> result;
  int64_t value = 0;
  if (spec.TryGetArgument(value, name)) result.push_back(value);
  return result;
}

rust::Vec<engine::DType> MaybeType(const dali::OpSpec &spec, const char *name) {
  rust::Vec<engine::DType> result;
  dali::DALIDataType value = DALI_NO_TYPE;
  if (spec.TryGetArgument(value, name) && value != DALI_NO_TYPE) result.push_back(FromDali(value));
  return result;
}

// The user's seed, or -1.
//
// DALI gives every operator that has an argument `seed` one of the pipeline's own where the user gave none. That one
// differs between processes, whose shards would then overlap, so it must not be taken for the user's. A spec keeps its
// arguments in the order in which they were set, and the pipeline's (`max_batch_size` is always among them) come after
// the user's.
int64_t Seed(const dali::OpSpec &spec) {
  for (const auto &argument : spec.Arguments()) {
    if (argument->get_name() == "seed") return spec.GetArgument<int64_t>("seed");
    if (argument->get_name() == "max_batch_size") break;
  }
  return -1;
}

}  // namespace

engine::Arguments ReadArguments(const dali::OpSpec &spec) {
  engine::Arguments a;
  a.paths = Strings(spec, "path");
  a.storage_options = Strings(spec, "storage_options");
  a.arrays = Strings(spec, "arrays");
  a.stack_arrays = spec.GetArgument<bool>("stack_arrays");
  a.pick = Strings(spec, "pick");
  a.dims = Strings(spec, "dims");
  a.window = Integers(spec, "window");
  a.step = Integers(spec, "step");
  a.random_crop = Strings(spec, "random_crop");
  a.stride = Integers(spec, "stride");
  a.offsets = Integers(spec, "offsets");
  a.roi_start = Integers(spec, "roi_start");
  a.roi_end = Integers(spec, "roi_end");
  a.breaks = Integers(spec, "breaks");
  a.cross_stores = spec.GetArgument<bool>("cross_stores");
  a.out_of_bounds_policy = Text(spec, "out_of_bounds_policy");
  a.maybe_fill_value = Number(spec, "fill_value");
  a.mask_and_scale = spec.GetArgument<bool>("mask_and_scale");
  a.maybe_dtype = MaybeType(spec, "dtype");
  a.mean = Numbers(spec, "mean");
  a.stddev = Numbers(spec, "stddev");
  a.random_shuffle = spec.GetArgument<bool>("random_shuffle");
  a.initial_fill = spec.GetArgument<int64_t>("initial_fill");
  a.shuffle_after_epoch = spec.GetArgument<bool>("shuffle_after_epoch");
  a.seed = Seed(spec);
  a.shard_id = spec.GetArgument<int64_t>("shard_id");
  a.num_shards = spec.GetArgument<int64_t>("num_shards");
  a.stick_to_shard = spec.GetArgument<bool>("stick_to_shard");
  a.pad_last_batch = spec.GetArgument<bool>("pad_last_batch");
  a.batch_size = spec.GetArgument<int>("max_batch_size");
  a.maybe_prefetch_queue_depth = MaybeInteger(spec, "prefetch_queue_depth");
  a.gpu = spec.GetArgument<std::string>("device") == "gpu" ? spec.GetArgument<int>("device_id") : -1;
  a.decode_device = Text(spec, "decode_device");
  a.maybe_device_memory_limit = MaybeInteger(spec, "device_memory_limit");
  a.maybe_host_memory_limit = MaybeInteger(spec, "host_memory_limit");
  a.io = Text(spec, "io");
  a.use_o_direct = spec.GetArgument<bool>("use_o_direct");
  a.cache_size = spec.GetArgument<int64_t>("cache_size");
  a.cache_dir = Text(spec, "cache_dir");
  a.maybe_cache_dir_size = MaybeInteger(spec, "cache_dir_size");
  a.cache_validate = spec.GetArgument<bool>("cache_validate");
  a.maybe_io_threads = MaybeInteger(spec, "io_threads");
  a.maybe_io_concurrency = MaybeInteger(spec, "io_concurrency");
  a.maybe_decode_threads = MaybeInteger(spec, "decode_threads");
  a.return_index = spec.GetArgument<bool>("return_index");
  return a;
}

void Check(const engine::Status &status) {
  const std::string message(status.message);
  switch (status.kind) {
    case engine::Kind::Ok: return;
    case engine::Kind::Value: throw dali::DaliValueError(message);
    case engine::Kind::Type: throw dali::DaliTypeError(message);
    case engine::Kind::Index: throw dali::DaliIndexError(message);
    case engine::Kind::Runtime: break;
    case engine::Kind::Memory: break;  // the Python package makes a MemoryError of it
  }
  throw dali::DaliRuntimeError(message);
}

}  // namespace dali_zarr
