// Registers the operator with DALI when the library is loaded.
//
// DALI's own macros throw if a name is taken. Inside dlopen this would end the process, for example when a second copy
// of this library is loaded. So this code checks each name before it registers it.

#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include "dali/pipeline/operator/operator_factory.h"
#include "zarr_reader.h"

namespace dali_zarr {
namespace {

template <typename Backend, typename Registry>
void RegisterBackend(Registry &registry, const char *name) {
  if (registry.IsRegistered(name)) return;
  const auto creator = [](const dali::OpSpec &spec) -> std::unique_ptr<dali::OperatorBase> {
    return std::make_unique<ZarrReader<Backend>>(spec);
  };
#if DALI_ZARR_DALI >= 202
  registry.template Register<Backend>(name, creator);
#else
  registry.Register(name, creator);
#endif
}

}  // namespace

void Register() noexcept {
  try {
    if (dali::SchemaRegistry::TryGetSchema("readers__Zarr")) return;
    DefineSchemas();
    for (const char *name : {"readers__Zarr", "ZarrReader"}) {
      RegisterBackend<dali::CPUBackend>(dali::CPUOperatorRegistry::Registry(), name);
      RegisterBackend<dali::GPUBackend>(dali::GPUOperatorRegistry::Registry(), name);
    }
  } catch (const std::exception &error) {
    // No caller can take the error. Without this message, nobody would know why the operator is missing.
    std::fprintf(stderr, "dali_zarr: the operator could not be registered with DALI: %s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "dali_zarr: the operator could not be registered with DALI\n");
  }
}

namespace {
[[maybe_unused]] const bool registered = (Register(), true);
}  // namespace

}  // namespace dali_zarr
