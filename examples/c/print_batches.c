/* Prints the mean of each batch of an epoch: print_batches STORE ARRAY BATCH_SIZE
 *
 * The array must be float32. Batches are read to host memory. */
#include <stdio.h>
#include <stdlib.h>

#include "dali_zarr.h"

static int fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, dali_zarr_last_error());
  return 1;
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s STORE ARRAY BATCH_SIZE\n", argv[0]);
    return 2;
  }
  /* The arguments are those of fn.zarr_reader, as JSON. Paths with quotes or backslashes need escapes, which this example leaves out. */
  char spec[4096];
  int length = snprintf(spec, sizeof spec, "{\"path\": \"%s\", \"arrays\": [\"%s\"], \"batch_size\": %s}", argv[1],
                        argv[2], argv[3]);
  if (length < 0 || (size_t)length >= sizeof spec) return 2;

  dali_zarr_reader *reader;
  if (dali_zarr_open(spec, &reader)) return fail("open");
  dali_zarr_output output;
  dali_zarr_meta meta;
  if (dali_zarr_describe_output(reader, 0, &output) || dali_zarr_describe_epoch(reader, &meta)) return fail("describe");
  if (output.dtype != DALI_ZARR_FLOAT32) {
    fprintf(stderr, "%s isn't float32\n", output.name);
    return 2;
  }
  printf("%s: %lld samples of %zu bytes\n", output.name, (long long)meta.epoch_size, output.sample_bytes);

  /* Batches never end, so the epoch's samples are counted. */
  for (long long samples = 0, size = atoll(argv[3]); samples < meta.epoch_size; samples += size) {
    dali_zarr_batch *batch;
    const void *data;
    size_t bytes;
    if (dali_zarr_next_batch(reader, &batch)) return fail("next batch");
    if (dali_zarr_batch_data(batch, 0, &data, &bytes)) return fail("batch data");
    const float *values = data;
    size_t count = bytes / sizeof *values;
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += values[i];
    printf("%.3f\n", sum / (double)count);
    dali_zarr_batch_release(batch);
  }
  dali_zarr_close(reader);
  return 0;
}
