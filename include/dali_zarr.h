/* The C ABI of dali-zarr, for hosts other than DALI.
 *
 * A reader is opened from a description in JSON and delivers batches of samples, one after the other, to host memory or
 * to device memory that the host lends. The library never unwinds or aborts across this boundary.
 *
 *   dali_zarr_reader *reader;
 *   dali_zarr_batch *batch;
 *   if (dali_zarr_open("{\"path\": \"era5.zarr\", \"arrays\": [\"t2m\"], \"batch_size\": 16}", &reader) != 0)
 *     fprintf(stderr, "%s\n", dali_zarr_last_error());
 *   while (dali_zarr_next_batch(reader, &batch) == 0) {
 *     const void *data;
 *     size_t bytes;
 *     dali_zarr_batch_data(batch, 0, &data, &bytes);
 *     ...
 *     dali_zarr_batch_release(batch);
 *   }
 *   dali_zarr_close(reader);
 *
 * Batches never end: after an epoch comes the next.
 *
 * Threads: a reader may be used from any thread, by one at a time. Batches are independent of each other and of their
 * reader: they may be released from any thread, also after the reader was closed.
 */
#ifndef DALI_ZARR_H_
#define DALI_ZARR_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a function returns: DALI_ZARR_OK, or what a caller can do about the error. */
enum dali_zarr_status {
  DALI_ZARR_OK = 0,
  DALI_ZARR_VALUE_ERROR = 1,  /* an argument or the store's metadata is wrong */
  DALI_ZARR_TYPE_ERROR = 2,   /* an argument has the wrong type, or a data type can't be delivered */
  DALI_ZARR_INDEX_ERROR = 3,  /* an index is outside its dimension */
  DALI_ZARR_RUNTIME_ERROR = 4, /* storage failed, data is corrupt, or a device failed */
  DALI_ZARR_MEMORY_ERROR = 5  /* the machine or the device lacks memory */
};

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
  DALI_ZARR_BFLOAT16 = 12 /* only of arrays that are stored so; not a value of "dtype" */
};

typedef struct dali_zarr_reader dali_zarr_reader;
typedef struct dali_zarr_batch dali_zarr_batch;

/* One output of every batch. The pointers belong to the reader and are good until it is closed. */
typedef struct dali_zarr_output {
  const int64_t *shape; /* the shape of one sample */
  size_t ndim;          /* 0 for scalars */
  int32_t dtype;        /* enum dali_zarr_dtype */
  size_t sample_bytes;  /* a batch has batch_size times as many, dense, in C order; of a ragged output, see below */
  const char *layout;   /* a letter per dimension, e.g. "CHW"; empty where unknown */
  const char *name;     /* what it holds: an array's name, or those of the stacked ones */
} dali_zarr_output;

/* The extent of an epoch. */
typedef struct dali_zarr_meta {
  int64_t epoch_size;        /* samples, over all shards */
  int64_t epoch_size_padded; /* the same, padded so that all shards are equal */
  int64_t number_of_shards;
  int64_t shard_id;
  int32_t pad_last_batch;
  int32_t stick_to_shard;
} dali_zarr_meta;

/* The library's version, e.g. "0.1.0". */
const char *dali_zarr_version(void);

/* The message of the last call on this thread that did not return DALI_ZARR_OK; empty if there was none. Good until
 * the next such call on this thread. An operator of DALI that fails on this thread counts as one. A NUL in a name is written as \0. */
const char *dali_zarr_last_error(void);

/* What is known of that error beside its message: a JSON object, or an empty text if there was none. Its keys:
 *
 *   "kind": "value", "type", "index", "runtime" or "memory", as the status,
 *   "message": as dali_zarr_last_error gives it, with its NULs,
 *   "store", "array": where it happened; of stores that refer to files of another one, the store itself,
 *   "chunk", "inner_chunk": the key of the chunk or shard, and the inner chunk's coordinates in the array's grid of inner chunks,
 *   "key", "range": the key of a value in the store, and the bytes that were read: the first, and the one behind the last,
 *   "tries": how often a request was sent,
 *   "name", "known": the name of an array or dimension that doesn't exist, and a list of those that do; "name" is null
 *     while one has to be given,
 *   "source": what the system, the server or the driver said,
 *   "operator": of dali_zarr_wait_opened, where in the host's program the operator was made.
 *
 * What is unknown is null. Programs should ask here instead of reading messages. Good as long as the message. */
const char *dali_zarr_last_error_details(void);

/* The status of that call. */
int32_t dali_zarr_last_error_status(void);

/* Where to look for libnvcomp.so.5 before the system's places: `count` paths of folders. Has an effect until the first
 * reader that decodes on a GPU is opened. */
int32_t dali_zarr_set_nvcomp_dirs(const char *const *dirs, size_t count);

/* Keeps a table for the arguments "starts" (DALI_ZARR_INT64: a row for each sample, a column for each of "dims") and "weights"
 * (DALI_ZARR_FLOAT64: one column): `rows` times `columns` elements, row by row, which are copied. `*name` is what the argument
 * calls it, in this process only; it is good until the next call on this thread that gives text. The table stays until
 * dali_zarr_table_release and, after that, as long as readers run that were opened with it. Tables in files (.npy) and in Zarr
 * arrays need none of this: "starts" and "weights" take their paths. */
int32_t dali_zarr_table_keep(const void *data, size_t rows, size_t columns, int32_t dtype, const char **name);

/* Forgets a table. Nothing happens if there is none of this name. */
int32_t dali_zarr_table_release(const char *name);

/* Opens a reader from `spec`, a JSON object in UTF-8. Its keys are the arguments of DALI's operator of this library,
 * with the same meanings and defaults, and three more that DALI's pipeline would give:
 *
 *   "batch_size": samples per batch (default 1),
 *   "device": "cpu" (default) or "gpu", where batches are delivered,
 *   "device_id": the CUDA device's number (default 0).
 *
 * "storage_options" is an object of strings, or a list of "NAME=VALUE". "dtype" is a name such as "float32". Where a
 * list is expected, a single value stands for a list of one. null stands for the default. Whole numbers have 64 bits.
 * "fill_value", "fillna", "mean" and "stddev" have double precision; these numbers may be text, as "nan", "inf" and "-inf" must be.
 * Unknown keys are errors. On success `*reader` is to be closed with dali_zarr_close, else it is NULL. */
int32_t dali_zarr_open(const char *spec, dali_zarr_reader **reader);

/* Opens a reader that goes on where `state` was taken by dali_zarr_state: its first batch is the one after the last that
 * was handed out. `spec` and the data set must be those of that reader. What may differ: where the stores lie, the device,
 * threads and memory, "shard_id" (all shards deliver in lockstep, so the state of one is that of all), and also
 * "num_shards", "batch_size", "pad_last_batch" and "stick_to_shard": what was left of the epoch is then divided
 * anew. DALI_ZARR_VALUE_ERROR if the state doesn't fit; the message says what differs. */
int32_t dali_zarr_resume(const char *spec, const char *state, dali_zarr_reader **reader);

/* Gives the reader's state after the last batch that was handed out (batches that ended in errors count): JSON text of a few
 * kilobytes, to be kept as it is. Nothing waits for it. `*state` belongs to the reader and is good until the next call of
 * this function for it, or until it is closed. */
int32_t dali_zarr_state(dali_zarr_reader *reader, const char **state);

/* Ends the reader's threads and frees its memory, apart from that of batches that were not released. Lent device memory
 * is not written to any more when this returns. NULL is allowed. */
void dali_zarr_close(dali_zarr_reader *reader);

/* The number of outputs of every batch; 0 if `reader` is NULL. */
size_t dali_zarr_num_outputs(const dali_zarr_reader *reader);

/* Describes output `index` (from 0). */
int32_t dali_zarr_describe_output(const dali_zarr_reader *reader, size_t index, dali_zarr_output *output);

/* Tells whether output `index` is ragged, and the bytes that a batch takes of it, at most: the memory to lend for it.
 *
 * The samples of a ragged output (arguments "ragged", "ragged_ends") differ in the first dimension. dali_zarr_describe_output tells the
 * shape and the bytes of the longest. A batch has its samples one after the other without gaps; dali_zarr_batch_lengths tells their
 * lengths. Of other outputs `*bytes` is batch_size * sample_bytes, which each batch has. */
int32_t dali_zarr_describe_batch(const dali_zarr_reader *reader, size_t index, int32_t *ragged, size_t *bytes);

/* Describes an epoch. */
int32_t dali_zarr_describe_epoch(const dali_zarr_reader *reader, dali_zarr_meta *meta);

/* Says what a reader of `spec` would do, as a JSON object: samples, outputs, how arrays are stored and whether their
 * attributes are applied ("mask_and_scale", also where `spec` leaves that out), how often chunks are read and where they are
 * decoded, memory, advice. Reads metadata only and needs no GPU. `*json` is good until the next call
 * on this thread that gives a text. Fails as dali_zarr_open does, but for memory limits that are too small
 * and memory that the machine lacks. */
int32_t dali_zarr_explain(const char *spec, const char **json);

/* Gives the entry of "pick" that takes the elements along `dim` with these coordinates, in their order: indices for all
 * stores ("level=2,5"), or a list for each where they differ ("level=2,5|1,4"). `dim` is a name, or a position as text. The
 * coordinates are the array of the dimension's name in the group of "arrays" or the nearest group around it, decoded by its
 * attributes as "mask_and_scale" decodes. Of `spec`, "path", "arrays", "dims" and "storage_options" count. `*pick` is good
 * until the next call on this thread that gives a text. DALI_ZARR_VALUE_ERROR if a label isn't the coordinate of exactly one
 * element in each store, or, along the dimension by which stores are joined, in all of them together. */
int32_t dali_zarr_pick_labels(const char *spec, const char *dim, const double *labels, size_t count, const char **pick);

/* The counters of a reader up to now, as a JSON object; `*json` as above. Once nothing is in flight, "chunks_read" is the
 * sum of "chunks_decoded_gpu", "chunks_decoded_cpu", "chunks_uncompressed" and "chunks_failed". May be called while another
 * thread uses the reader. */
int32_t dali_zarr_stats(const dali_zarr_reader *reader, const char **json);

/* The same of all readers that are open in this process, DALI's included, as a JSON array; `*json` as above. "reader" is a
 * number that no other reader of the process has or had. */
int32_t dali_zarr_all_stats(const char **json);

/* How much the library logs: 0 nothing, 1 errors, 2 warnings too (the default), 3 information too, 4 also what helps to find
 * faults, such as each request that is sent again. Records go to stderr, unless they are kept for the host. */
int32_t dali_zarr_log_level(int32_t level);

/* Keeps the records of the log for dali_zarr_take_log (`kept` is not 0), at most 1000 of them, or writes them to stderr again,
 * without those that nobody took. A child that was forked begins with stderr. */
int32_t dali_zarr_keep_log(int32_t kept);

/* Waits for a record, and returns 1 if there is one; 0 when the time is over, or while records aren't kept. The library never
 * calls the host for a record: so a thread of the host's may wait here without a lock of its own. */
int32_t dali_zarr_wait_log(uint32_t timeout_ms);

/* The records that were kept, the oldest first, as a JSON array of objects with "level" ("error", "warning", "info" or "debug"),
 * "target" (the module) and "message". Each is given once. `*json` as above. */
int32_t dali_zarr_take_log(const char **json);

/* The "reader" of the operator that DALI asked last on this thread to describe its epoch, and forgets it; 0 if there is
 * none. Tells which of all readers a built pipeline's is: take, have DALI ask (`reader_meta`), take. */
uint64_t dali_zarr_take_described(void);

/* For hosts that hold a lock of their own while they build a pipeline of DALI, as Python does. From here on (`deferred` is not 0) the
 * operators that are made on this thread return at once, and open their stores on threads of the library, one after the other. The host
 * waits for them by dali_zarr_wait_opened, without its lock, before it hands the pipeline out; an operator that is used earlier
 * waits itself. 0 ends this, and forgets what was not waited for. */
int32_t dali_zarr_defer_opening(int32_t deferred);

/* Waits for the stores that this thread's operators open since dali_zarr_defer_opening, for so long at most: `*opened` is 1 if all are
 * open, else 0. Fails as the operator's constructor would have, for the first operator that can't be opened. To give up, call no more:
 * once the pipeline is gone, what is under way ends by itself when the store answers, or after its timeouts. */
int32_t dali_zarr_wait_opened(uint32_t timeout_ms, int32_t *opened);

/* Has SIGINT end waits of DALI's operators for batches (`watched` is not 0): for a host whose thread waits in DALI, and whose handler of the
 * signal only leaves it a note. A handler of the library stands before the host's, and calls it, until this was called with 0 as often
 * as otherwise. Without a handler of the host's nothing changes. A wait that ends gives DALI an error within a fifth of a second. So does
 * each later one, until this is called again. The batches are left out, so that operators of one pipeline stay in step. */
int32_t dali_zarr_watch_interrupts(int32_t watched);

/* Ends waits of DALI's operators for batches, as the signal does. For hosts that end, and whose pipelines end with them. */
int32_t dali_zarr_interrupt(void);

/* Waits for the next batch. After an error the next call gives the batch that follows. On success `*batch` is to be
 * released with dali_zarr_batch_release, else it is NULL. */
int32_t dali_zarr_next_batch(dali_zarr_reader *reader, dali_zarr_batch **batch);

/* The host memory of one output, for readers that deliver to the CPU; good until the batch is released. It may be
 * shared with nobody else, and is not to be written. */
int32_t dali_zarr_batch_data(const dali_zarr_batch *batch, size_t output, const void **data, size_t *bytes);

/* For readers with ragged outputs: for each sample its length along their first dimension, the same in all ragged outputs. `*count`
 * is the number of samples, and 0 if no output is ragged. Good until the batch is released. */
int32_t dali_zarr_batch_lengths(const dali_zarr_batch *batch, const int64_t **lengths, size_t *count);

/* The id of the lent set that holds the batch, for readers that deliver to a GPU. The data is complete in memory; the
 * set belongs to the host again. */
int32_t dali_zarr_batch_buffers(const dali_zarr_batch *batch, uint64_t *id);

/* Gives the batch back. NULL is allowed. */
void dali_zarr_batch_release(dali_zarr_batch *batch);

/* For readers that deliver to a GPU: how many sets of device buffers to lend before the first batch. After that, lend
 * one for each batch. 0 for readers that deliver to the CPU. */
size_t dali_zarr_buffers_wanted(const dali_zarr_reader *reader);

/* Lends device memory for one batch: for each output the device address of as many contiguous bytes as
 * dali_zarr_describe_batch tells (may be 0 where that is 0), aligned to 8 bytes. `id` comes back with the batch. `ready` is a CUevent after which the memory may be written (0: at
 * once); it and the memory must stay alive until the set comes back or the reader is closed. */
int32_t dali_zarr_lend(dali_zarr_reader *reader, uint64_t id, const uint64_t *outputs, size_t count, uint64_t ready);

#ifdef __cplusplus
}
#endif

#endif /* DALI_ZARR_H_ */
