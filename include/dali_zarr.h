/* The C ABI of dali-zarr, for hosts other than DALI.
 *
 * A reader is opened from a description in JSON. It delivers batches of samples, one after the other, to host
 * memory, or to device memory that the host lends. No function lets an exception or a panic out, or aborts the
 * process.
 *
 *   dali_zarr_reader *reader;
 *   dali_zarr_batch *batch;
 *   if (dali_zarr_open("{\"path\": \"era5.zarr\", \"arrays\": [\"t2m\"], \"batch_size\": 16}", &reader) != 0)
 *     fprintf(stderr, "%s\n", dali_zarr_last_error());
 *   while (reader != NULL && dali_zarr_next_batch(reader, &batch) == 0) {
 *     const void *data;
 *     size_t bytes;
 *     dali_zarr_batch_data(batch, 0, &data, &bytes);
 *     ...
 *     dali_zarr_batch_release(batch);
 *   }
 *   dali_zarr_close(reader);
 *
 * There is always a next batch: after an epoch, the next epoch begins.
 *
 * Threads: a reader may be used from any thread, but only by one thread at a time. Batches are independent of each
 * other and of their reader: they may be released from any thread, also after the reader was closed.
 *
 * Processes: in a forked child, functions fail for readers that were opened before the fork. The child may read batches
 * in host memory that it got before, and may close readers and release batches, which does nothing there.
 * */
#ifndef DALI_ZARR_H_
#define DALI_ZARR_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Status that most functions return: DALI_ZARR_OK, or the kind of the error. */
enum dali_zarr_status {
  DALI_ZARR_OK = 0,
  DALI_ZARR_VALUE_ERROR = 1,   /* an argument or the store's metadata is wrong */
  DALI_ZARR_TYPE_ERROR = 2,    /* an argument has the wrong type, or a data type can't be delivered */
  DALI_ZARR_INDEX_ERROR = 3,   /* an index is outside its dimension */
  DALI_ZARR_RUNTIME_ERROR = 4, /* storage failed, data is corrupt, or a device failed */
  DALI_ZARR_MEMORY_ERROR = 5,  /* the machine or the device lacks memory */
  DALI_ZARR_FULL = -1          /* no error: only pushes return it, see dali_zarr_reader_push */
};

/* Instead of the place of a push's first sample in its epoch, see dali_zarr_reader_push. */
#define DALI_ZARR_NEXT_PLACE UINT64_MAX
#define DALI_ZARR_NO_PLACE (UINT64_MAX - 1)

/* Element types. */
enum dali_zarr_dtype {
  DALI_ZARR_BOOL = 0, /* one byte, zero or one */
  DALI_ZARR_INT8 = 1,
  DALI_ZARR_INT16 = 2,
  DALI_ZARR_INT32 = 3,
  DALI_ZARR_INT64 = 4,
  DALI_ZARR_UINT8 = 5,
  DALI_ZARR_UINT16 = 6,
  DALI_ZARR_UINT32 = 7,
  DALI_ZARR_UINT64 = 8,
  DALI_ZARR_FLOAT16 = 9,
  DALI_ZARR_FLOAT32 = 10,
  DALI_ZARR_FLOAT64 = 11,
  DALI_ZARR_BFLOAT16 = 12 /* only for arrays that are stored in this type; not a value of "dtype" */
};

typedef struct dali_zarr_reader dali_zarr_reader;
typedef struct dali_zarr_batch dali_zarr_batch;
typedef struct dali_zarr_labels dali_zarr_labels;
typedef struct dali_zarr_values dali_zarr_values;

/* One output of every batch. The pointers belong to the reader and are valid until it is closed. */
typedef struct dali_zarr_output {
  const int64_t *shape; /* the shape of one sample */
  size_t ndim;          /* number of dimensions; 0 for scalars */
  int32_t dtype;        /* enum dali_zarr_dtype */
  size_t sample_bytes;  /* bytes of one sample. A batch has batch_size times as many, dense, in C order. For ragged
                         * outputs, and for the memory to lend, see dali_zarr_describe_batch. */
  const char *layout;   /* one letter per dimension, e.g. "CHW"; empty if unknown */
  const char *name;     /* name of the array, or names of the stacked arrays */
} dali_zarr_output;

/* The size of an epoch, and arguments that divide it. */
typedef struct dali_zarr_meta {
  int64_t epoch_size;        /* samples of all shards */
  int64_t epoch_size_padded; /* the same; with pad_last_batch, padded so that all shards are equal */
  int64_t number_of_shards;
  int64_t shard_id;
  int32_t pad_last_batch;
  int32_t stick_to_shard;
} dali_zarr_meta;

/* Returns the library's version, e.g. "0.1.0". */
const char *dali_zarr_version(void);

/* Returns the message of the last error on this thread: of a call that did not return DALI_ZARR_OK, or of a DALI
 * operator that failed on this thread. Empty if there was no error. Valid until the next error on this thread. A NUL
 * in a name is written as \0 in the message. */
const char *dali_zarr_last_error(void);

/* Returns the details of the last error on this thread as a JSON object; an empty text if there was no error. Its
 * keys:
 *
 *   "kind": "value", "type", "index", "runtime" or "memory", as the status,
 *   "code": what went wrong: "invalid", "wrong_type", "out_of_range", "out_of_memory", "not_found",
 *     "permission_denied", "unavailable", "replaced", "damaged", "unsupported", "interrupted", "device_failed",
 *     "internal" or "failed". No name is ever changed or removed, and there may be new ones,
 *   "message": the text of dali_zarr_last_error, but with its NULs,
 *   "store", "array": where the error happened. For a store that refers to files of another store, the first one,
 *   "chunk", "inner_chunk": the key of the chunk or shard; the inner chunk's coordinates in the array's grid of
 *     inner chunks,
 *   "key", "range": the key of a value in the store; the bytes that were read: [first, last + 1],
 *   "tries": how often the request was sent,
 *   "name", "known": the name of an array, a dimension or a storage option that doesn't exist; a list of the names
 *     that exist. "name" is null if a required name was not given,
 *   "source": the message of the system, the server or the driver,
 *   "operator": only from dali_zarr_wait_opened: where in the host's program the operator was made.
 *
 * Unknown values are null. Programs should use these details instead of parsing messages. Valid as long as the
 * message. */
const char *dali_zarr_last_error_details(void);

/* Sets `*details` to the details of the error of a DALI operator, as those of dali_zarr_last_error_details; an empty
 * text if there is none. `text` is the text of the exception that DALI raised on any thread: it contains the operator's
 * message. The last 64 errors of this process's operators are kept. The text is valid until the next call on this
 * thread that returns a text. */
int32_t dali_zarr_operator_error(const char *text, const char **details);

/* Returns the status of the last error on this thread; DALI_ZARR_OK if there was no error. */
int32_t dali_zarr_last_error_status(void);

/* Keeps a copy of a table of `rows` times `columns` elements, stored row by row. For "starts" it has the type
 * DALI_ZARR_INT64, a row for each sample and a column for each of "dims". For "weights" it has the type
 * DALI_ZARR_FLOAT64 and one column.
 *
 * `*name` is the value to give as "starts" or "weights", in this process only. The text is valid until the next call
 * on this thread that returns a text. The table is kept until dali_zarr_table_release, and after that as long as
 * readers that were opened with it run. Tables in files (.npy) and in Zarr arrays needn't be kept: "starts" and
 * "weights" take their paths. */
int32_t dali_zarr_table_keep(const void *data, size_t rows, size_t columns, int32_t dtype, const char **name);

/* Releases a table. Does nothing if there is no table of this name. */
int32_t dali_zarr_table_release(const char *name);

/* Keeps credentials of remote stores, which arguments can't have: `json` is an object of secret options of the crate
 * object_store, such as "aws_access_key_id", "aws_secret_access_key" and "aws_session_token". `*name` is the value of the
 * entry "_credentials" of "storage_options", in this process only. All remote stores of a reader use those that their
 * kind knows, and none of the environment's. The text is valid until the next call on this thread that returns a text. */
int32_t dali_zarr_credentials_keep(const char *json, const char **name);

/* Releases credentials. Does nothing if there are none of this name. Readers that are open keep theirs. */
int32_t dali_zarr_credentials_release(const char *name);

/* Makes a name for the key "_opening" of `spec`, in this process only. The first reader or explanation with it keeps which
 * samples it found. All later ones with the same name and arguments have these samples, although the stores have grown
 * since: arrays may be longer, and repositories have later snapshots. If an array is shorter, opening fails. Chunks are
 * read as they are. The text is valid until the next call on this thread that returns a text. */
int32_t dali_zarr_opening_keep(const char **name);

/* Releases what is kept under a name. Does nothing if there is none. */
int32_t dali_zarr_opening_release(const char *name);

/* Opens a reader from `spec`, a JSON object in UTF-8. Its keys are the arguments of this library's DALI operator,
 * with the same meanings and defaults, and three more that a DALI pipeline would give:
 *
 *   "batch_size": samples per batch (default 1),
 *   "device": where batches are delivered, "cpu" (default) or "gpu",
 *   "device_id": the number of the CUDA device (default 0).
 *
 * "storage_options" is an object of strings, or a list of "NAME=VALUE". "dtype" is a name such as "float32". Where a
 * list is expected, a single value means a list with this value. null means the default. Whole numbers have 64 bits.
 * "fill_value", "fillna", "mean" and "stddev" have double precision; they may be given as text, and "nan", "inf" and
 * "-inf" must be. Unknown keys are errors. Relative paths become absolute.
 *
 * On success the host must close `*reader` with dali_zarr_close. Otherwise it is NULL. */
int32_t dali_zarr_open(const char *spec, dali_zarr_reader **reader);

/* Pushes the samples of the next batch to a reader in the caller's order: one whose `spec` has "order": "pushed". Such a
 * reader delivers the batches that are pushed, in this order. While the caller pushes ahead, it prepares batches ahead,
 * and reads a chunk once for all the batches that it knows. It has no order of its own, so these keys must have their
 * defaults: "random_shuffle", "shuffle_after_epoch", "initial_fill", "weights", "num_shards", "shard_id",
 * "stick_to_shard" and "pad_last_batch".
 *
 * `samples` has `count` numbers of samples, from 1 to "batch_size" of them, each from 0 to the epoch's size - 1, in any
 * order and as often as the caller likes. A batch with fewer samples is filled up with copies of the last one;
 * dali_zarr_batch_samples tells how many count.
 *
 * Where samples have windows at random places ("random_crop"), a place depends on the seed, `epoch`, the sample, and the
 * sample's place in its epoch: `place` for the first sample of the batch, less than 2^62. DALI_ZARR_NEXT_PLACE: it
 * follows the last batch, or is 0 in another epoch than that of the last batch. DALI_ZARR_NO_PLACE: the place in the epoch
 * doesn't matter. Otherwise `epoch` and `place` have no effect.
 *
 * The call never waits. It may be made while another thread waits in dali_zarr_next_batch, which then waits for a push
 * too. Returns DALI_ZARR_FULL, and changes nothing, if 1024 batches or 131072 samples wait already that the reader has
 * not begun with: take a batch, or wait, and push again. Returns DALI_ZARR_INDEX_ERROR if there is no sample with a number,
 * and DALI_ZARR_VALUE_ERROR if `count` is wrong or the reader's order is its own; then nothing is pushed. */
int32_t dali_zarr_reader_push(const dali_zarr_reader *reader, const int64_t *samples, size_t count, uint64_t epoch,
                              uint64_t place);

/* As dali_zarr_reader_push, for several batches of one epoch: batch `i` has `counts[i]` samples, which follow those of the
 * batches before it in `samples`, and `places[i]` is the place of its first one. Pushes the batches in their order as long as
 * there is room and no error; returns what dali_zarr_reader_push returns for the first batch that isn't pushed, else
 * DALI_ZARR_OK. Writes to `*pushed` how many were pushed. One call for many small batches takes less time. */
int32_t dali_zarr_reader_push_batches(const dali_zarr_reader *reader, const int64_t *samples, const size_t *counts,
                                      const uint64_t *places, size_t batches, uint64_t epoch, size_t *pushed);

/* Finds samples of a reader in the caller's order by their rows in the output of "return_index" (whether or not the reader
 * has this output): the number of the store and of the segment where the index has them, and the start along each of "dims".
 * `rows` has `count` rows of `columns` numbers. Writes the numbers of the samples to `samples`, which has room for `count`.
 * With "out_of_bounds_policy" "pad" or "edge" a row may lie outside of the region. Its number is 2^62 or more then, and can be
 * pushed like others.
 *
 * Returns DALI_ZARR_INDEX_ERROR if there is no sample with a row, and DALI_ZARR_VALUE_ERROR if the index has another number
 * of columns, or if starts are drawn at random. */
int32_t dali_zarr_reader_find(const dali_zarr_reader *reader, const int64_t *rows, size_t count, size_t columns,
                              int64_t *samples);

/* As dali_zarr_reader_push, dali_zarr_reader_push_batches and dali_zarr_reader_find, for the reader with a number ("reader"
 * in the counters), which may belong to a DALI operator. Its batches must be pushed before DALI runs the operator, which
 * waits for them. */
int32_t dali_zarr_push(uint64_t reader, const int64_t *samples, size_t count, uint64_t epoch, uint64_t place);
int32_t dali_zarr_push_batches(uint64_t reader, const int64_t *samples, const size_t *counts, const uint64_t *places,
                               size_t batches, uint64_t epoch, size_t *pushed);
int32_t dali_zarr_find(uint64_t reader, const int64_t *rows, size_t count, size_t columns, int64_t *samples);

/* Opens a reader that continues from `state`, a text of dali_zarr_state: its first batch is the one after the last
 * batch that was handed out. `spec` and the data set must be those of the first reader, with these exceptions:
 *
 *   - The location of the stores, the device, and settings of threads and memory may differ.
 *   - "shard_id" may differ: all shards deliver in lockstep, so the state of one is the state of all.
 *   - "num_shards", "batch_size", "pad_last_batch" and "stick_to_shard" may differ: the rest of the epoch is then
 *     divided again.
 *
 * Returns DALI_ZARR_VALUE_ERROR if the state doesn't fit; the message says what differs. */
int32_t dali_zarr_resume(const char *spec, const char *state, dali_zarr_reader **reader);

/* Returns the reader's state after the last batch that was handed out (batches that ended in errors count): JSON
 * text of a few kilobytes. Keep it unchanged. The call doesn't wait. `*state` belongs to the reader. It is valid
 * until the next call of this function for the same reader, or until the reader is closed. */
int32_t dali_zarr_state(dali_zarr_reader *reader, const char **state);

/* Ends the reader's threads and frees its memory, except the memory of batches that were not released. After it
 * returns, lent device memory is not written to any more. NULL is allowed. */
void dali_zarr_close(dali_zarr_reader *reader);

/* Returns the number of outputs of every batch; 0 if `reader` is NULL. */
size_t dali_zarr_num_outputs(const dali_zarr_reader *reader);

/* Describes output `index` (from 0). */
int32_t dali_zarr_describe_output(const dali_zarr_reader *reader, size_t index, dali_zarr_output *output);

/* Tells whether output `index` is ragged (`*ragged` is 1, else 0), and the most bytes that it takes in a batch: the
 * memory to lend.
 *
 * The samples of a ragged output differ in the first dimension (arguments "ragged", "ragged_ends"), or in some dimensions
 * (arguments "groups", "concat"). dali_zarr_describe_output tells the greatest length along each dimension, and the bytes of
 * a sample with these lengths. In a batch, the samples lie one after the other without gaps; dali_zarr_batch_lengths or
 * dali_zarr_batch_shapes tells their lengths. For other outputs the samples take batch_size * sample_bytes in every
 * batch, and `*bytes` is more only if values are interpolated: the elements between which they lie are kept behind
 * the samples. */
int32_t dali_zarr_describe_batch(const dali_zarr_reader *reader, size_t index, int32_t *ragged, size_t *bytes);

/* Describes an epoch. */
int32_t dali_zarr_describe_epoch(const dali_zarr_reader *reader, dali_zarr_meta *meta);

/* Describes what a reader with `spec` would do, as a JSON object: samples, outputs, how arrays are stored and
 * whether their attributes are applied ("mask_and_scale", also if `spec` leaves it out), how often chunks are read
 * and where they are decoded, memory, advice. Reads only metadata and needs no GPU. `*json` is valid until the next
 * call on this thread that returns a text. Fails as dali_zarr_open does, but not if memory limits are too small or
 * the machine lacks memory. */
int32_t dali_zarr_explain(const char *spec, const char **json);

/* Lists the arrays of a store as a JSON object. Reads only metadata. Its keys:
 *
 *   "store": the location; null if every array has its own,
 *   "arrays": the arrays, sorted by name, or in the order of "arrays" in `spec`,
 *   "is_cut": true if there are more arrays than the list holds: 10000 arrays (1000 if metadata isn't consolidated),
 *     and 64 MiB of text.
 *
 * Only these keys of `spec` are used: "path" (one store), "storage_options", "arrays" (names or locations; default:
 * all), "device" and "decode_device". Each array has:
 *
 *   "name": the name for "arrays" of a reader; "is_root": whether the store itself is the array, which is read
 *     without a name,
 *   "refused": the reason why readers can't read the array, or null; "is_sound": whether its metadata has no errors.
 *     An array without elements, or with a type that readers don't have, is sound but refused,
 *   "packing": its attributes scale_factor, add_offset, _FillValue, missing_value and _Unsigned, as stored,
 *
 * and, if its metadata can be understood:
 *
 *   "dims": names of its dimensions; "shape"; "chunks": shape of what is decoded at once (for shards, the inner
 *     chunks); "shards": shape of the shards, or null,
 *   "path": the array's path in its store; "first_key": the key of the first chunk, or of the first shard, which begins
 *     with the path; "objects": the number of chunks, or of shards, along each dimension that keys have,
 *   "dtype": the type in which elements are read; "stored": the stored type in NumPy's notation; "units", or null,
 *   "codecs": names, separated by commas; "chunk_bytes": decoded bytes of the largest chunk,
 *   "decoded_on": "gpu", "cpu" or "nowhere" (not compressed), and "why"; not for arrays that are refused.
 *
 * An array with damaged metadata doesn't hide the others. Fails if the store can't be opened or listed, or if it
 * lacks an array that `spec` names. `*json` is valid until the next call on this thread that returns a text. */
int32_t dali_zarr_arrays(const char *spec, const char **json);

/* Looks up coordinates: returns the entry for "pick" that selects the elements along `dim` with these labels, in
 * their order. The entry has indices for all stores ("level=2,5"), or a list for each store if they differ
 * ("level=2,5|1,4").
 *
 * `dim` is a name, or a position as text. The coordinates are the array with the dimension's name, in the group of
 * "arrays" or the nearest group around it. They are decoded by their attributes as with "mask_and_scale". Only these
 * keys of `spec` are used: "path", "arrays", "dims" and "storage_options". `*pick` is valid until the next call on
 * this thread that returns a text.
 *
 * Returns DALI_ZARR_VALUE_ERROR if a label isn't the coordinate of exactly one element in each store. Along the
 * dimension by which stores are joined, it must be the coordinate of exactly one element of all stores together. */
int32_t dali_zarr_pick_labels(const char *spec, const char *dim, const double *labels, size_t count, const char **pick);

/* Opens the stores of a reader's arrays for their labels: coordinates and attributes. Only these keys of `spec` are
 * used: "path", "arrays", "dims", "storage_options", "cache_dir" and "cache_dir_size". What is read is what a reader of
 * `spec` would read: the same stores, options and documents. Labels are used by one thread at a time. */
int32_t dali_zarr_labels_open(const char *spec, dali_zarr_labels **labels);

/* Closes labels. NULL is allowed. */
void dali_zarr_labels_close(dali_zarr_labels *labels);

/* Finds the array with the coordinates along `dim` of array number `array` of "arrays" in store number `store` of "path",
 * which has `len` elements along it. It is the array with the dimension's name, in the array's group or the nearest
 * group around it; in stores of anemoi-datasets also "dates" or "base_dates" for "time", and "steps" for "step". For
 * an array with a store of its own, the group is the location around it. With `dim` NULL the array itself is found.
 *
 * Returns "null" if there is none, else a JSON object with "name", "shape", "kind" ("numbers", "text" or "bytes"),
 * "dtype" (NumPy's name of the type, "str" or "bytes" for elements of any length), "zarr_format", "attributes" and
 * "fill_value": null if it is undefined, else the text, the bytes as a list of integers, or for numbers a list of the
 * bits of the value, and of the imaginary part of complex numbers. If the array has another number of dimensions than
 * one, "kind" is null, and there are no other keys than "name" and "shape". NaN and Infinity may stand in attributes
 * without quotes. `*json` is valid until the next call on this thread that returns a text. */
int32_t dali_zarr_labels_find(const dali_zarr_labels *labels, size_t array, size_t store, const char *dim, uint64_t len,
                              const char **json);

/* Returns the attributes of the group of array number `array` in store number `store`, as a JSON object. `*json` is
 * valid until the next call on this thread that returns a text. */
int32_t dali_zarr_labels_attributes(const dali_zarr_labels *labels, size_t array, size_t store, const char **json);

/* Reads the elements of the array `name`, which dali_zarr_labels_find told for the same `array` and `store`, as they are
 * stored: attributes don't decode them. At most 2^26 elements and 512 MiB of text are read. */
int32_t dali_zarr_labels_read(const dali_zarr_labels *labels, size_t array, size_t store, const char *name,
                              dali_zarr_values **values);

/* Returns the elements of an array. Numbers are in native byte order (bfloat16 as float32; times as int64; complex
 * numbers as two numbers), and `*count` is 0. For text and bytes `*data` has all elements one after the other, text in
 * UTF-8, and `*ends` has the end of each of the `*count` elements in them. The pointers are valid until `values` is
 * released. */
int32_t dali_zarr_values_data(const dali_zarr_values *values, const void **data, size_t *bytes, const int64_t **ends,
                              size_t *count);

/* Gives the elements of an array back. NULL is allowed. */
void dali_zarr_values_release(dali_zarr_values *values);

/* Returns the counters of a reader up to now as a JSON object. `*json` is valid until the next call on this thread
 * that returns a text. When nothing is in flight, "chunks_read" is the sum of "chunks_decoded_gpu",
 * "chunks_decoded_cpu", "chunks_uncompressed" and "chunks_failed". May be called while another thread uses the
 * reader. */
int32_t dali_zarr_stats(const dali_zarr_reader *reader, const char **json);

/* Returns the counters of all readers that are open in this process, also DALI's, as a JSON array of the objects of
 * dali_zarr_stats. "reader" is a number that no other reader of the process has or had. `*json` is valid until the
 * next call on this thread that returns a text. */
int32_t dali_zarr_all_stats(const char **json);

/* Returns the chunks whose bytes the reader with this number ("reader" in its counters) could not decode, and without
 * which it goes on ("on_bad_chunk"), as a JSON array of objects in the order in which they were found: "store", "array",
 * "key" of the chunk or shard, "inner_chunk" (its coordinates in the grid of inner chunks; null for the value of a key,
 * and for a shard whose index is damaged) and "reason". The first 131072 are listed. `*json` is valid until the next call
 * on this thread that returns a text. */
int32_t dali_zarr_bad_chunks(uint64_t reader, const char **json);

/* Sets how much the library logs: 0 nothing, 1 errors, 2 also warnings (the default), 3 also information, 4 also
 * details that help to find faults, such as each request that is sent again. Records go to stderr, unless they are
 * kept for the host. */
int32_t dali_zarr_log_level(int32_t level);

/* With `kept` not 0: keeps log records for dali_zarr_take_log, at most 1000. With 0: writes further records to
 * stderr again, and drops those that were kept and not taken. A forked child process starts with stderr. */
int32_t dali_zarr_keep_log(int32_t kept);

/* Waits for a log record. Returns 1 if there is one. Returns 0 after `timeout_ms` milliseconds, or at once if
 * records aren't kept. The library never calls the host for a record. So a thread of the host can wait here without
 * holding a lock. */
int32_t dali_zarr_wait_log(uint32_t timeout_ms);

/* Takes the kept log records, the oldest first, as a JSON array of objects with "level" ("error", "warning", "info"
 * or "debug"), "target" (the module) and "message". Each record is returned once. `*json` is valid until the next
 * call on this thread that returns a text. */
int32_t dali_zarr_take_log(const char **json);

/* Takes the number of the last reader that DALI asked on this thread to describe its epoch: its "reader" in the
 * counters; 0 if there is none. To find the reader of a built pipeline: call this function, have DALI ask
 * (`reader_meta`), and call it again. */
uint64_t dali_zarr_take_described(void);

/* For hosts that hold a lock of their own while they build a DALI pipeline, as Python does.
 *
 * With `deferred` not 0: from now on, operators that are made on this thread return at once, and open their stores
 * on threads of the library, one after the other. Before the host uses the pipeline, it waits for them with
 * dali_zarr_wait_opened, without its lock. An operator that is used earlier waits itself. With 0: ends this, and
 * forgets operators that were not waited for. */
int32_t dali_zarr_defer_opening(int32_t deferred);

/* Waits until all of this thread's operators since dali_zarr_defer_opening are open, for at most `timeout_ms`
 * milliseconds. `*opened` is 1 if all are open, else 0. If an operator can't be opened, fails as its constructor
 * would have; with several, it is the first one's error.
 *
 * To give up, just stop calling. After the pipeline was destroyed, work under way ends by itself, when the store
 * answers or after its timeouts. */
int32_t dali_zarr_wait_opened(uint32_t timeout_ms, int32_t *opened);

/* The next functions are for hosts that run signal handlers only in their own code, as Python does. Such a host doesn't
 * wait in DALI: it waits for the operators of the pipeline here, for a short time again and again, and then takes the
 * batch from DALI. */

/* Writes the numbers of this thread's operators since dali_zarr_defer_opening to `numbers`, which has room for `*count`.
 * `*count` becomes the number of operators, which may be more. */
int32_t dali_zarr_operators(uint64_t *numbers, size_t *count);

/* Waits until an operator has ended `ended` runs since it was made, with a batch or an error, for at most `timeout_ms`
 * milliseconds. `*outlook` is 0 if it has, or is gone; 1 if it waits for a batch; 2 if it doesn't run: DALI may run it
 * soon, or it or another operator failed. */
int32_t dali_zarr_wait_runs(uint64_t operator_number, uint64_t ended, uint32_t timeout_ms, int32_t *outlook);

/* Ends the waits of an operator, and those of its later runs, within a tenth of a second. To be called before its
 * pipeline is destroyed, which would otherwise wait for a batch that nobody takes. */
int32_t dali_zarr_end_waits(uint64_t operator_number);

/* Functions of Python's C API. */
typedef struct dali_zarr_python {
  int (*ensure)(void);                                        /* PyGILState_Ensure */
  void (*release)(int);                                       /* PyGILState_Release */
  int (*check_signals)(void);                                 /* PyErr_CheckSignals */
  void (*fetch)(void **type, void **value, void **traceback); /* PyErr_Fetch */
} dali_zarr_python;

/* Stores Python's functions for dali_zarr_watch_signals. Only the first call counts. */
int32_t dali_zarr_set_python(const dali_zarr_python *python);

/* With `watched` not 0: while one of DALI's operators waits for a batch on this thread, which must be Python's main
 * thread, Python runs its handlers of signals, at least ten times a second. If a handler raises an exception, the
 * operator fails, and its batch is skipped, so that the operators of one pipeline stay in step. With 0: ends this.
 * Returns what was set before. */
int32_t dali_zarr_watch_signals(int32_t watched);

/* Takes the exception that a handler raised in a wait of this thread: writes its type, value and traceback, each a new
 * reference or NULL, to `exception`. All are NULL if there is none. */
int32_t dali_zarr_take_raised(void *exception[3]);

/* Ends all waits of DALI's operators for batches from now on. For hosts that end, together with their pipelines. */
int32_t dali_zarr_interrupt(void);

/* Waits for the next batch. After an error, the next call returns the batch after it. On success the host must
 * release `*batch` with dali_zarr_batch_release. Otherwise it is NULL. */
int32_t dali_zarr_next_batch(dali_zarr_reader *reader, dali_zarr_batch **batch);

/* Returns the host memory of one output, for readers that deliver to the CPU. It is valid until the batch is
 * released, and must not be written. */
int32_t dali_zarr_batch_data(const dali_zarr_batch *batch, size_t output, const void **data, size_t *bytes);

/* Returns the number of samples of a batch: "batch_size", or as many as were pushed. Those that fill up the batch don't
 * count. */
int32_t dali_zarr_batch_samples(const dali_zarr_batch *batch, size_t *count);

/* For readers with ragged outputs: returns the length of each sample along the first dimension of the ragged
 * outputs. All ragged outputs have the same lengths. `*count` is the number of samples; 0 if samples aren't rows
 * ("ragged", "ragged_ends").
 * Valid until the batch is released. */
int32_t dali_zarr_batch_lengths(const dali_zarr_batch *batch, const int64_t **lengths, size_t *count);

/* For readers whose samples have the shapes of their stores or groups ("concat", "groups"): returns the shapes of the
 * samples of ragged output `output`, one after the other, each with an entry for each dimension. `*count` is the number of
 * all entries; 0 if the output isn't ragged, or if its samples are rows, whose lengths dali_zarr_batch_lengths returns.
 * The samples of a ragged output lie one after the other without gaps. Valid until the batch is released. */
int32_t dali_zarr_batch_shapes(const dali_zarr_batch *batch, size_t output, const int64_t **shapes, size_t *count);

/* For readers that deliver to a GPU: returns the id of the lent set that holds the batch. The data is complete in
 * memory, and the set belongs to the host again. */
int32_t dali_zarr_batch_buffers(const dali_zarr_batch *batch, uint64_t *id);

/* Releases a batch. NULL is allowed. */
void dali_zarr_batch_release(dali_zarr_batch *batch);

/* For readers that deliver to a GPU: returns how many sets of device buffers to lend before the first batch. After
 * that, lend one set for each batch. Returns 0 for readers that deliver to the CPU. */
size_t dali_zarr_buffers_wanted(const dali_zarr_reader *reader);

/* Lends a set of device memory for one batch. `outputs` has the device address of each output's memory: contiguous
 * bytes, as many as dali_zarr_describe_batch tells, aligned to 8 bytes. The address may be 0 if there are 0 bytes.
 * `count` is the number of outputs. `id` comes back with the batch (dali_zarr_batch_buffers). `ready` is a CUevent
 * after which the memory may be written; 0: at once. Event and memory must stay alive until the set comes back or
 * the reader is closed. */
int32_t dali_zarr_lend(dali_zarr_reader *reader, uint64_t id, const uint64_t *outputs, size_t count, uint64_t ready);

#ifdef __cplusplus
}
#endif

#endif /* DALI_ZARR_H_ */
