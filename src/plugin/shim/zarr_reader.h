// The DALI operator. It decides nothing: it translates the operator's arguments to the engine's arguments, and the
// engine's batches to DALI's tensor lists.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dali-zarr/src/bridge.rs.h"
#include "dali/core/cuda_event.h"
#include "dali/pipeline/operator/checkpointing/op_checkpoint.h"
#include "dali/pipeline/operator/operator.h"

namespace dali_zarr {

/// Name of a hidden argument: a JSON object of arguments, which replace those of the same name. It holds values that
/// DALI's argument types can't hold, such as dictionaries and numbers of double precision.
inline constexpr const char *kOthers = "_arguments";

/// Returns the operator's own arguments in `spec` as a JSON object: values from the user, or else defaults of the
/// schema.
std::string UserArguments(const dali::OpSpec &spec);

/// As UserArguments, with the values from the pipeline: batch size and device.
std::string AllArguments(const dali::OpSpec &spec);

/// Returns a view of `text` for the engine, valid as long as `text` is.
inline rust::Slice<const uint8_t> Bytes(const std::string &text) {
  return {reinterpret_cast<const uint8_t *>(text.data()), text.size()};
}

/// Returns if `status` is Ok. Otherwise throws the exception that DALI turns into the right Python exception.
void Check(const engine::Status &status);

/// Throws an error that the shim found itself. Its message begins as those of the engine do, and the engine keeps it as
/// one of its own.
[[noreturn]] void Fail(const std::string &message);

/// One output of every batch, in DALI's terms.
struct OutputInfo {
  /// Shape of a sample. For a ragged output, the greatest length along each dimension.
  dali::TensorShape<> sample;
  /// Shapes of a batch of such samples.
  dali::TensorListShape<> shape;
  dali::DALIDataType type;
  dali::TensorLayout layout;
  /// Most bytes of a batch.
  size_t bytes;
  /// Whether samples differ in their shapes.
  bool ragged;
  /// Whether a batch needs other memory than a tensor list of such samples has: they differ in their shapes, or the engine
  /// keeps something behind them.
  bool is_allocated;

  /// Returns the shapes of a batch of `samples` samples. For a ragged output, `shapes` are those of the samples, one after
  /// the other, or if there are none, `lengths` are the samples' sizes along the first dimension.
  dali::TensorListShape<> ShapeOf(rust::Slice<const int64_t> lengths, rust::Slice<const int64_t> shapes,
                                  int samples) const;
};

/// Base of both backends: the reader, which is opened when the pipeline is built, and its outputs. The constructor
/// doesn't wait for the store if the host waits itself (`dali_zarr_defer_opening`).
template <typename Backend>
class ZarrReaderBase : public dali::Operator<Backend> {
 public:
  dali::ReaderMeta GetReaderMeta() const override;

  // A checkpoint holds only the number of samples handed out, so that taking one after each run costs nothing. The
  // engine's state is made when the checkpoint is written.
  void SaveState(dali::OpCheckpoint &checkpoint, dali::AccessOrder order) override;
  void RestoreState(const dali::OpCheckpoint &checkpoint) override;
  std::string SerializeCheckpoint(const dali::OpCheckpoint &checkpoint) const override;
  void DeserializeCheckpoint(dali::OpCheckpoint &checkpoint, const std::string &data) const override;

 protected:
  explicit ZarrReaderBase(const dali::OpSpec &spec);

  bool SetupImpl(std::vector<dali::OutputDesc> &, const dali::Workspace &) override {
    return false;  // outputs come with their memory
  }

  /// Fills outputs_ at the first call. Called by the first run, because the store may not be open in the constructor.
  void Describe();

  /// If the operator has an input, pushes its samples to the reader. Returns the number of samples of the batch.
  int Push(const dali::Workspace &ws);

  /// Waits for the next batch. Throws the batch's error. Called without Python's lock, so it may wait.
  rust::Box<engine::ReadyBatch> NextBatch(const dali::Workspace &ws);

  /// Sets DALI's `source_info` of each of `samples` samples in each output to the engine's name of the sample.
  void NameSamples(dali::Workspace &ws, const engine::ReadyBatch &batch, int samples);

  /// Ends the reader's threads and their work. After this nothing writes to lent memory.
  void CloseReader() { reader_ = engine::new_reader(); }

  std::vector<OutputInfo> outputs_;
  /// Whether an input says which samples come.
  bool has_input_;
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
  ~ZarrReader() override;

 protected:
  void RunImpl(dali::Workspace &ws) override;

 private:
  using DeviceList = dali::TensorList<dali::GPUBackend>;

  /// Memory for the outputs of one batch, and the event after which the engine may write it.
  struct DeviceSet {
    std::vector<DeviceList> outputs;
    /// Memory of outputs for which `OutputInfo::is_allocated` is true. Shapes of ragged ones are known only when the batch
    /// is finished.
    std::vector<std::shared_ptr<uint8_t>> allocated;
    dali::CUDAEvent ready;
  };

  /// Allocates the memory of set `id` in the order of the workspace's stream, and lends it to the engine.
  void Lend(size_t id, const dali::Workspace &ws);

  int device_id_;
  std::vector<DeviceSet> sets_;
  /// Whether a run failed after which not all sets are lent. Later runs throw.
  bool failed_ = false;
};

/// Registers `readers__Zarr` and `ZarrReader` with DALI. Does nothing if they are registered already, for example by a
/// second copy of the library. Throws nothing, because it runs inside dlopen, where an exception would abort the
/// process.
void Register() noexcept;

/// Defines the schemas. Called by Register.
void DefineSchemas();

}  // namespace dali_zarr
