// Translates DALI's OpSpec to the engine's arguments, element types in both directions, and the engine's errors to
// exceptions.

#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <limits>
#include <locale>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
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
  Fail("the engine named an element type that the operator doesn't know");
}

namespace {

std::string ToJson(std::string_view text) {
  std::string json = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      json += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[7];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      json += escaped;
    } else {
      json += c;
    }
  }
  return json + '"';
}

std::string ToJson(const std::string &text) { return ToJson(std::string_view(text)); }
std::string ToJson(bool value) { return value ? "true" : "false"; }
std::string ToJson(int64_t value) { return std::to_string(value); }

// A JSON string, because JSON has no numbers for nan and the infinities. std::to_chars isn't used: libstdc++ has it for
// floats only since GCC 11.
std::string ToJson(float value) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << std::setprecision(std::numeric_limits<double>::max_digits10) << static_cast<double>(value);
  return ToJson(text.str());
}

std::string ToJson(dali::DALIDataType type) {
  switch (type) {
    case DALI_NO_TYPE: return "null";
    case DALI_FLOAT: return ToJson(std::string_view("float32"));
    case DALI_FLOAT64: return ToJson(std::string_view("float64"));
    default: return ToJson(dali::make_string(type));  // all other types have the same names in DALI and the engine
  }
}

template <typename T>
std::string One(const dali::OpSpec &spec, const std::string &name) {
  return ToJson(spec.GetArgument<T>(name));
}

template <typename T>
std::string List(const dali::OpSpec &spec, const std::string &name) {
  std::string json;
  for (const T &value : spec.GetRepeatedArgument<T>(name)) {
    if constexpr (std::is_integral_v<T>) json += (json.empty() ? "" : ",") + ToJson(int64_t{value});
    else json += (json.empty() ? "" : ",") + ToJson(value);
  }
  return '[' + json + ']';
}

std::string Value(const dali::OpSpec &spec, const std::string &name, dali::DALIDataType type) {
  switch (type) {
    case DALI_BOOL: return One<bool>(spec, name);
    case DALI_INT64: return One<int64_t>(spec, name);
    case DALI_FLOAT: return One<float>(spec, name);
    case DALI_STRING: return One<std::string>(spec, name);
    case DALI_DATA_TYPE: return One<dali::DALIDataType>(spec, name);
    case kIntegers: return List<Integer>(spec, name);
    case DALI_FLOAT_VEC: return List<float>(spec, name);
    case DALI_STRING_VEC: return List<std::string>(spec, name);
    default:
      Fail(dali::make_string("internal error: ", name, " is of the type ", type,
                             ", which the operator can't hand to the engine"));
  }
}

// Returns whether the user gave a seed.
//
// If the user gave none, DALI sets the argument `seed` of every operator to a seed of the pipeline. This seed differs
// between processes, so their shards would overlap. It must not be taken for the user's. A spec keeps its arguments in
// the order in which they were set: first the user's, then the pipeline's, which always include `max_batch_size`.
bool HasSeed(const dali::OpSpec &spec) {
  for (const auto &argument : spec.Arguments()) {
    if (argument->get_name() == "seed") return true;
    if (argument->get_name() == "max_batch_size") break;
  }
  return false;
}

// Returns the operator's own arguments as members of a JSON object, without braces.
std::string Members(const dali::OpSpec &spec) {
  const auto &schema = dali::SchemaRegistry::GetSchema("readers__Zarr");
  std::string json;
  for (const auto &name : schema.GetArgumentNames()) {
    // Skips the arguments that all operators of DALI have.
    if (schema.GetArgument(name).defined_in != &schema || (name == "seed" && !HasSeed(spec))) continue;
    if (!spec.HasArgument(name) && !schema.HasArgumentDefaultValue(name)) continue;
    json += (json.empty() ? "" : ",") + ToJson(name) + ':' + Value(spec, name, schema.GetArgumentType(name));
  }
  // The value is a JSON object already, so it isn't quoted.
  if (spec.HasArgument(kOthers)) json += ",\"" + std::string(kOthers) + "\":" + spec.GetArgument<std::string>(kOthers);
  return json;
}

}  // namespace

std::string UserArguments(const dali::OpSpec &spec) { return '{' + Members(spec) + '}'; }

std::string AllArguments(const dali::OpSpec &spec) {
  // An input says which samples come, so the order isn't the reader's own.
  const std::string order = spec.NumRegularInput() > 0 ? ",\"order\":\"pushed\"" : "";
  return '{' + Members(spec) + order + ",\"batch_size\":" + ToJson(int64_t{spec.GetArgument<int>("max_batch_size")}) +
         ",\"device\":" + ToJson(spec.GetArgument<std::string>("device")) +
         ",\"device_id\":" + ToJson(int64_t{std::max(spec.GetArgument<int>("device_id"), 0)}) + '}';
}

void Check(const engine::Status &status) {
  const std::string message(status.message);
  switch (status.kind) {
    case engine::Kind::Ok: return;
    case engine::Kind::Value: throw dali::DaliValueError(message);
    case engine::Kind::Type: throw dali::DaliTypeError(message);
    case engine::Kind::Index: throw dali::DaliIndexError(message);
    case engine::Kind::Runtime: break;
    case engine::Kind::Memory: break;  // the Python package turns it into a MemoryError
  }
  throw dali::DaliRuntimeError(message);
}

void Fail(const std::string &message) {
  const auto status = engine::shim_error(Bytes(message));
  throw dali::DaliRuntimeError(std::string(status.message));
}

}  // namespace dali_zarr
