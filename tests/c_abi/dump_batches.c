/* Writes batches of a reader to stdout, as a host other than DALI would take them.
 *
 *   dump_batches SPEC COUNT
 *
 * opens the reader that the JSON text SPEC describes, describes it on stderr, and writes the bytes of COUNT batches,
 * output after output. Ends with the status of the library's first error, and its message and details on stderr.
 *
 *   dump_batches --arrays SPEC
 *
 * prints the arrays of a store,
 *
 *   dump_batches --labels SPEC DIM
 *
 * prints the array of the coordinates along DIM of the first array, and its bytes, and
 *
 *   dump_batches --misuse
 *
 * calls every function in wrong ways, each of which must come back with an error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dali_zarr.h"

static int failed(int32_t status) {
  fprintf(stderr, "error %d: %s\n%s\n", status, dali_zarr_last_error(), dali_zarr_last_error_details());
  return status;
}

static int dump(const char *spec, long count) {
  dali_zarr_reader *reader;
  int32_t status = dali_zarr_open(spec, &reader);
  if (status) return failed(status);

  dali_zarr_meta meta;
  if ((status = dali_zarr_describe_epoch(reader, &meta))) return failed(status);
  fprintf(stderr, "epoch %lld padded %lld shard %lld of %lld\n", (long long)meta.epoch_size,
          (long long)meta.epoch_size_padded, (long long)meta.shard_id, (long long)meta.number_of_shards);
  size_t outputs = dali_zarr_num_outputs(reader);
  for (size_t i = 0; i < outputs; i++) {
    dali_zarr_output output;
    if ((status = dali_zarr_describe_output(reader, i, &output))) return failed(status);
    fprintf(stderr, "output %s dtype %d layout '%s' bytes %zu shape", output.name, output.dtype, output.layout,
            output.sample_bytes);
    for (size_t d = 0; d < output.ndim; d++) fprintf(stderr, " %lld", (long long)output.shape[d]);
    int32_t ragged;
    size_t bytes;
    if ((status = dali_zarr_describe_batch(reader, i, &ragged, &bytes))) return failed(status);
    if (ragged) fprintf(stderr, " ragged, a batch %zu", bytes);
    fprintf(stderr, "\n");
  }

  /* The last batch outlives its reader. */
  dali_zarr_batch *batch = NULL;
  for (long b = 0; b < count; b++) {
    dali_zarr_batch_release(batch);
    if ((status = dali_zarr_next_batch(reader, &batch))) return failed(status);
    if (b + 1 == count) dali_zarr_close(reader);
    const int64_t *lengths;
    size_t samples;
    if ((status = dali_zarr_batch_lengths(batch, &lengths, &samples))) return failed(status);
    for (size_t s = 0; s < samples; s++) fprintf(stderr, "length %lld\n", (long long)lengths[s]);
    for (size_t i = 0; i < outputs; i++) {
      const int64_t *shapes;
      size_t entries;
      if ((status = dali_zarr_batch_shapes(batch, i, &shapes, &entries))) return failed(status);
      if (entries > 0) fprintf(stderr, "shapes");
      for (size_t n = 0; n < entries; n++) fprintf(stderr, " %lld", (long long)shapes[n]);
      if (entries > 0) fprintf(stderr, "\n");
      const void *data;
      size_t bytes;
      if ((status = dali_zarr_batch_data(batch, i, &data, &bytes))) return failed(status);
      if (fwrite(data, 1, bytes, stdout) != bytes) return 100;
    }
  }
  dali_zarr_batch_release(batch);
  return 0;
}

static int wrong = 0;

/* Counts a call that gave another status than expected, or no message. */
static void expect(const char *call, int32_t found, int32_t expected) {
  if (found == expected && dali_zarr_last_error_status() == expected && strlen(dali_zarr_last_error()) > 0) return;
  fprintf(stderr, "%s: expected status %d, but found %d: %s\n", call, expected, found, dali_zarr_last_error());
  wrong++;
}

#define EXPECT(status, call) expect(#call, call, status)

static int misuse(void) {
  dali_zarr_reader *reader = (dali_zarr_reader *)&wrong;
  dali_zarr_batch *batch;
  dali_zarr_output output;
  dali_zarr_meta meta;
  const void *data;
  size_t bytes;
  uint64_t id;
  const int64_t *lengths;
  const char *text = "";

  if (strlen(dali_zarr_last_error()) != 0 || dali_zarr_last_error_status() != 0) return 101;
  if (strlen(dali_zarr_last_error_details()) != 0) return 101;
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_open(NULL, &reader));
  if (reader) return 102; /* set to NULL by a failed open */
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_open("{}", NULL));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_open("{", &reader));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_open("{\"path\": \"\xff\"}", &reader));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_open("{\"path\": \"/nonexistent/store.zarr\"}", &reader));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_open("{\"path\": \"a\", \"unknown\": 1}", &reader));
  EXPECT(DALI_ZARR_TYPE_ERROR, dali_zarr_open("{\"path\": 1}", &reader));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_describe_output(NULL, 0, &output));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_describe_epoch(NULL, &meta));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_next_batch(NULL, &batch));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_next_batch(NULL, NULL));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_batch_data(NULL, 0, &data, &bytes));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_batch_buffers(NULL, &id));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_batch_lengths(NULL, &lengths, &bytes));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_batch_shapes(NULL, 0, &lengths, &bytes));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_describe_batch(NULL, 0, NULL, &bytes));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_lend(NULL, 0, &id, 1, 0));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_operator_error(NULL, &text));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_operator_error("\xff", NULL));
  if (dali_zarr_operator_error("\xff", &text) != DALI_ZARR_OK || strlen(text) != 0) return 106;
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_explain(NULL, &text));
  if (text) return 104; /* set to NULL by a failed call */
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_explain("{}", NULL));
  text = "";
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_arrays(NULL, &text));
  if (text) return 104;
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_arrays("{}", &text));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_arrays("{}", NULL));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_arrays("{\"path\": \"/nonexistent/store.zarr\"}", &text));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_explain("{\"path\": \"/nonexistent/store.zarr\"}", &text));
  const double label = 1;
  text = "";
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_pick_labels(NULL, "x", &label, 1, &text));
  if (text) return 104;
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_pick_labels("{\"path\": \"a\"}", NULL, &label, 1, &text));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_pick_labels("{\"path\": \"a\"}", "x", NULL, 1, &text));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_pick_labels("{\"path\": \"a\"}", "x", &label, 0, &text));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_pick_labels("{\"path\": \"a\"}", "x", &label, 1, NULL));
  dali_zarr_labels *labels = (dali_zarr_labels *)&id;
  dali_zarr_values *values = (dali_zarr_values *)&id;
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_labels_open(NULL, &labels));
  if (labels) return 102;
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_labels_open("{}", &labels));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_labels_open("{\"path\": \"a\"}", NULL));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_labels_find(NULL, 0, 0, "x", 1, &text));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_labels_attributes(NULL, 0, 0, &text));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_labels_read(NULL, 0, 0, "x", &values));
  if (values) return 102;
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_values_data(NULL, &data, &bytes, &lengths, &bytes));
  dali_zarr_labels_close(NULL);
  dali_zarr_values_release(NULL);
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_stats(NULL, &text));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_all_stats(NULL));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_bad_chunks(0, &text));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_log_level(5));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_log_level(-1));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_take_log(NULL));
  int32_t opened = 2;
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_wait_opened(0, NULL));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_operators(NULL, NULL));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_wait_runs(0, 1, 0, NULL));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_set_python(NULL));
  EXPECT(DALI_ZARR_VALUE_ERROR, dali_zarr_take_raised(NULL));
  /* Without operators there is nothing to wait for, nor to interrupt. */
  if (dali_zarr_defer_opening(1) != 0 || dali_zarr_wait_opened(1000000, &opened) != 0 || opened != 1) return 106;
  if (dali_zarr_defer_opening(0) != 0 || dali_zarr_watch_signals(0) != 0 || dali_zarr_interrupt() != 0) return 106;
  if (dali_zarr_all_stats(&text) != 0 || strcmp(text, "[]") != 0 || dali_zarr_take_described() != 0) return 105;
  if (dali_zarr_num_outputs(NULL) != 0 || dali_zarr_buffers_wanted(NULL) != 0) return 103;
  dali_zarr_close(NULL);
  dali_zarr_batch_release(NULL);
  return wrong;
}

/* Prints the description of the coordinates along `dim` of the first array, and their bytes. */
static int labels_along(const char *spec, const char *dim) {
  dali_zarr_labels *labels;
  dali_zarr_values *values = NULL;
  const char *json;
  const void *data;
  const int64_t *ends;
  size_t bytes, count;
  int32_t status = dali_zarr_labels_open(spec, &labels);
  if (status == 0) status = dali_zarr_labels_find(labels, 0, 0, dim, 10, &json);
  if (status == 0 && puts(json) < 0) return 1;
  if (status == 0) status = dali_zarr_labels_read(labels, 0, 0, dim, &values);
  if (status == 0) status = dali_zarr_values_data(values, &data, &bytes, &ends, &count);
  if (status != 0) {
    const int code = failed(status);
    dali_zarr_labels_close(labels);
    return code;
  }
  const int wrong = fwrite(data, 1, bytes, stdout) != bytes || ends != NULL || count != 0;
  dali_zarr_values_release(values);
  dali_zarr_labels_close(labels);
  return wrong;
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "--misuse") == 0) return misuse();
  if (argc == 3 && strcmp(argv[1], "--arrays") == 0) {
    const char *json;
    const int32_t status = dali_zarr_arrays(argv[2], &json);
    return status == 0 ? puts(json) < 0 : failed(status);
  }
  if (argc == 4 && strcmp(argv[1], "--labels") == 0) return labels_along(argv[2], argv[3]);
  if (argc == 2 && strcmp(argv[1], "--version") == 0) return puts(dali_zarr_version()) < 0;
  if (argc != 3) return 99;
  return dump(argv[1], strtol(argv[2], NULL, 10));
}
