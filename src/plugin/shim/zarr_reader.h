// The DALI operator as DALI sees it. It decides nothing: it translates the operator's arguments to the engine's, and
// the engine's batches to DALI's tensor lists.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dali/core/cuda_event.h"
#include "dali/pipeline/operator/checkpointing/op_checkpoint.h"
#include "dali/pipeline/operator/operator.h"

#include "dali-zarr/src/bridge.rs.h"

namespace dali_zarr {

/// The hidden argument with what the types of DALI's arguments can't say, such as dictionaries and numbers of double precision: a
/// JSON object of arguments, which take the place of those beside them.
inline constexpr const char *kOthers = "_arguments";

/// The operator's own arguments in `spec`, whether the user gave them or the schema did, as a JSON object.
///
/// All that the schema defines are in it.
std::string UserArguments(const dali::OpSpec &spec);

/// The same with what the pipeline gives: the batch size and the device.
std::string AllArguments(const dali::OpSpec &spec);

/// Text as the engine takes it, which is good while `text` is.
inline rust::Slice<const uint8_t> Bytes(const std::string &text) {
  return {reinterpret_cast<const uint8_t *>(text.data()), text.size()};
}

/// Returns if `status` is good, else throws the exception that DALI turns into the Python exception of its kind.
void Check(const engine::Status &status);

/// One output of every batch, in DALI's terms.
struct OutputInfo {
  /// Of one sample; of the longest, if the output is ragged.
  dali::TensorShape<> sample;
  dali::TensorListShape<> shape;
  dali::DALIDataType type;
  dali::TensorLayout layout;
  /// Of a batch, at most.
  size_t bytes;
  /// Whether samples differ in the first dimension.
  bool ragged;

  /// The shapes of a batch whose samples have these elements along the first dimension, where they differ.
  dali::TensorListShape<> ShapeOf(rust::Slice<const int64_t> lengths) const;
};

/// What both backends share: the reader, opened when the pipeline is built, and what it delivers. The constructor doesn't wait for
/// the store if the host has said that it waits itself (`dali_zarr_defer_opening`).
template <typename Backend>
class ZarrReaderBase : public dali::Operator<Backend> {
 public:
  dali::ReaderMeta GetReaderMeta() const override;

  // A checkpoint holds how many samples were handed out, which costs nothing to take after each run; it becomes the
  // engine's text when it is written.
  void SaveState(dali::OpCheckpoint &checkpoint, dali::AccessOrder order) override;
  void RestoreState(const dali::OpCheckpoint &checkpoint) override;
  std::string SerializeCheckpoint(const dali::OpCheckpoint &checkpoint) const override;
  void DeserializeCheckpoint(dali::OpCheckpoint &checkpoint, const std::string &data) const override;

 protected:
  explicit ZarrReaderBase(const dali::OpSpec &spec);

  bool SetupImpl(std::vector<dali::OutputDesc> &, const dali::Workspace &) override {
    return false;  // outputs come with their memory
  }

  /// Asks once what each batch holds: before the first run, since the store may not be open in the constructor.
  void Describe();

  /// The next batch; throws what went wrong in it. Called without Python's lock, so it may wait.
  rust::Box<engine::ReadyBatch> NextBatch(const dali::Workspace &ws);

  /// Gives each sample of each output the name that the engine gives it: DALI's `source_info`.
  void NameSamples(dali::Workspace &ws, const engine::ReadyBatch &batch);

  /// Ends the reader's threads and all that they have under way. After this nothing writes to lent memory.
  void CloseReader() { reader_ = engine::new_reader(); }

  std::vector<OutputInfo> outputs_;
  rust::Box<engine::ZarrReader> reader_;
};

template <typename Backend>
class ZarrReader;

/// Hands out the engine's host memory without a copy; DALI and its consumers keep it alive.
template <>
class ZarrReader<dali::CPUBackend> : public ZarrReaderBase<dali::CPUBackend> {
 public:
  explicit ZarrReader(const dali::OpSpec &spec) : ZarrReaderBase<dali::CPUBackend>(spec) {}

 protected:
  using dali::Operator<dali::CPUBackend>::RunImpl;
  void RunImpl(dali::Workspace &ws) override;
};

/// Lends sets of DALI's own device memory to the engine, and hands out the set that a batch was written to.
template <>
class ZarrReader<dali::GPUBackend> : public ZarrReaderBase<dali::GPUBackend> {
 public:
  explicit ZarrReader(const dali::OpSpec &spec);
  // The engine writes to the sets until it is closed.
  ~ZarrReader() override { CloseReader(); }

 protected:
  void RunImpl(dali::Workspace &ws) override;

 private:
  using DeviceList = dali::TensorList<dali::GPUBackend>;

  /// The outputs of one batch, and the event after which the engine may write them.
  struct DeviceSet {
    std::vector<DeviceList> outputs;
    /// The memory of ragged outputs, whose lists get their shapes with the batch.
    std::vector<std::shared_ptr<uint8_t>> ragged;
    dali::CUDAEvent ready;
  };

  /// Allocates the set's memory in the order of the workspace's stream and lends it to the engine.
  void Lend(size_t id, const dali::Workspace &ws);

  int device_id_;
  std::vector<DeviceSet> sets_;
  /// Whether a set could not be lent.
  bool failed_ = false;
};

/// Makes `readers__Zarr` and `ZarrReader` known to DALI. Harmless when called again, also by a second copy of the
/// library. Runs inside dlopen, where an exception would abort the process: it lets none out.
void Register() noexcept;

/// Defines the schemas; part of Register.
void DefineSchemas();

}  // namespace dali_zarr
