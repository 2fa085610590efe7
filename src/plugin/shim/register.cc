// Makes the operator known to DALI when the library is loaded.
//
// DALI's own macros throw when a name is taken, and they do it inside dlopen, where that ends the process. A second
// copy of this library is no reason for that, so everything is asked before it is done.

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
  registry.template Register<Backend>(
      name, [](const dali::OpSpec &spec) -> std::unique_ptr<dali::OperatorBase> {
        return std::make_unique<ZarrReader<Backend>>(spec);
      });
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
    // There is no caller to tell; the missing operator would otherwise be a riddle.
    std::fprintf(stderr, "dali_zarr: the operator could not be registered with DALI: %s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "dali_zarr: the operator could not be registered with DALI\n");
  }
}

namespace {
[[maybe_unused]] const bool registered = (Register(), true);
}  // namespace

}  // namespace dali_zarr
