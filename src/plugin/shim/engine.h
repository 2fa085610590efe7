// What the operator asks of the engine, libdali_zarr.so: declared in C and wrapped for C++. src/operator_abi.rs defines it.
//
// A function that returns int32_t gives a dali_zarr_status; behind one that isn't DALI_ZARR_OK, dali_zarr_last_error has the message.
// Unless it is said otherwise, a call may wait for a store that is still being opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "dali_zarr.h"

extern "C" {

struct dali_zarr_operator;
struct dali_zarr_operator_batch;
struct dali_zarr_operator_host;

// One output of every batch. The samples of a ragged one differ in the first dimension, of which `shape` has the longest.
struct dali_zarr_operator_output {
  const int64_t *shape;  // of a sample; the reader's
  size_t ndim;
  int32_t dtype;  // enum dali_zarr_dtype
  int32_t ragged;
  size_t bytes;        // of a batch, at most
  const char *layout;  // good until the next call on this thread that gives text
};

// What is in a batch. The pointers are the batch's.
struct dali_zarr_operator_batch_info {
  uint64_t set;            // the lent set that was filled
  const int64_t *lengths;  // with ragged outputs: for each sample its elements along their first dimension
  size_t num_lengths;      // 0 without
  const char *names;       // of the samples, one after the other, and where each ends
  const uint32_t *name_ends;
  size_t num_names;
};

// Host memory of an output, which belongs to whoever took it.
struct dali_zarr_operator_memory {
  dali_zarr_operator_host *owner;
  const void *data;
  size_t bytes;
};

// How many outputs the arguments in a JSON object give; asked when the graph is drawn, before anything is opened.
int32_t dali_zarr_operator_num_outputs(const char *arguments, size_t len);

// A reader that isn't open yet.
dali_zarr_operator *dali_zarr_operator_new();
void dali_zarr_operator_free(dali_zarr_operator *);

// Opens the store and starts the threads. Batches are prepared at once, or, if it shall `wait`, from the first
// dali_zarr_operator_next_batch or a dali_zarr_operator_restore on. If the host has asked for it (dali_zarr_defer_opening), this
// returns before the store is open. `num_outputs` are what the schema declares, and `place` says where in the host's program the
// operator was made.
int32_t dali_zarr_operator_open(dali_zarr_operator *, const char *arguments, size_t arguments_len, int32_t wait, size_t num_outputs,
                                const char *place, size_t place_len);
int32_t dali_zarr_operator_outputs(const dali_zarr_operator *, size_t *count);
int32_t dali_zarr_operator_describe(const dali_zarr_operator *, size_t index, dali_zarr_operator_output *);
int32_t dali_zarr_operator_meta(const dali_zarr_operator *, dali_zarr_meta *);
int32_t dali_zarr_operator_buffers_wanted(const dali_zarr_operator *, size_t *count);
int32_t dali_zarr_operator_lend(const dali_zarr_operator *, uint64_t id, const uint64_t *addresses, size_t count, uint64_t ready);
int32_t dali_zarr_operator_next_batch(const dali_zarr_operator *, dali_zarr_operator_batch **, dali_zarr_operator_batch_info *);
void dali_zarr_operator_batch_free(dali_zarr_operator_batch *);
int32_t dali_zarr_operator_take(dali_zarr_operator_batch *, size_t output, dali_zarr_operator_memory *);
void dali_zarr_operator_memory_free(dali_zarr_operator_host *);

// How many samples were handed out: all that a checkpoint has to remember until it is written. Never waits.
uint64_t dali_zarr_operator_delivered(const dali_zarr_operator *);
// The state after so many samples; good until the next call on this thread that gives text.
int32_t dali_zarr_operator_state(const dali_zarr_operator *, uint64_t delivered, const char **state);
// Goes on where `state` was written; before the first batch only.
int32_t dali_zarr_operator_restore(dali_zarr_operator *, const char *state, size_t len);

// Records `event` on `stream`, both handles of the CUDA driver.
int32_t dali_zarr_operator_record_event(uintptr_t event, uintptr_t stream);

}  // extern "C"

namespace dali_zarr {

struct Free {
  void operator()(dali_zarr_operator *reader) const { dali_zarr_operator_free(reader); }
  void operator()(dali_zarr_operator_batch *batch) const { dali_zarr_operator_batch_free(batch); }
};

using Reader = std::unique_ptr<dali_zarr_operator, Free>;

/// A batch that was taken, and what is in it.
struct Batch {
  std::unique_ptr<dali_zarr_operator_batch, Free> handle;
  dali_zarr_operator_batch_info info;
};

}  // namespace dali_zarr
