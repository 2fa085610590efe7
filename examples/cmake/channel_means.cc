// Prints the mean of each array over the first batch: channel_means SPEC
//
// SPEC is a JSON object with the arguments of fn.zarr_reader, such as
// {"path": "era5.zarr", "arrays": ["t2m", "lsm"], "batch_size": 8, "dtype": "float32"}
#include <cstdio>
#include <memory>
#include <span>
#include <stdexcept>

#include "dali_zarr.h"

namespace {

void check(int32_t status) {
  if (status != DALI_ZARR_OK) throw std::runtime_error(dali_zarr_last_error());
}

// What the library gives is given back when it goes out of scope.
using Reader = std::unique_ptr<dali_zarr_reader, decltype(&dali_zarr_close)>;
using Batch = std::unique_ptr<dali_zarr_batch, decltype(&dali_zarr_batch_release)>;

Reader open(const char *spec) {
  dali_zarr_reader *reader;
  check(dali_zarr_open(spec, &reader));
  return {reader, dali_zarr_close};
}

Batch next(const Reader &reader) {
  dali_zarr_batch *batch;
  check(dali_zarr_next_batch(reader.get(), &batch));
  return {batch, dali_zarr_batch_release};
}

std::span<const float> values(const Batch &batch, size_t output) {
  const void *data;
  size_t bytes;
  check(dali_zarr_batch_data(batch.get(), output, &data, &bytes));
  return {static_cast<const float *>(data), bytes / sizeof(float)};
}

}  // namespace

int main(int argc, char **argv) try {
  if (argc != 2) throw std::invalid_argument("expected a JSON object");
  Reader reader = open(argv[1]);
  Batch batch = next(reader);
  for (size_t i = 0; i < dali_zarr_num_outputs(reader.get()); i++) {
    dali_zarr_output output;
    check(dali_zarr_describe_output(reader.get(), i, &output));
    if (output.dtype != DALI_ZARR_FLOAT32) throw std::invalid_argument("expected \"dtype\": \"float32\"");
    double sum = 0;
    for (float value : values(batch, i)) sum += value;
    std::printf("%s %.3f\n", output.name, sum / static_cast<double>(values(batch, i).size()));
  }
  return 0;
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
