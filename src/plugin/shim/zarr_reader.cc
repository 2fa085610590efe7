// The operator's work: open the reader when the pipeline is built, then hand over one finished batch at each run.

#include "zarr_reader.h"

#include <algorithm>
#include <cctype>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dali/pipeline/operator/error_reporting.h"
#include "dali/pipeline/operator/name_utils.h"
#include "translate.h"

namespace dali_zarr {

namespace {

// What a checkpoint of DALI holds of this operator: how many samples were handed out, or, if it was read from outside, the
// text that an engine wrote.
struct State {
  uint64_t delivered = 0;
  std::optional<std::string> text;
};

// Where the user's program made the operator, in the words in which DALI tells it of an operator whose constructor throws.
std::string Place(const dali::OpSpec &spec) {
  std::string device = spec.GetArgument<std::string>("device");
  std::transform(device.begin(), device.end(), device.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string text = "Error in " + device + " operator `" + dali::GetOpDisplayName(spec, true) + "`";
  const auto stack = dali::GetOperatorOriginInfo(spec);
  if (stack.empty()) return text + ".";
  return text + ",\nwhich was used in the pipeline definition with the following traceback:\n\n" + dali::FormatStack(stack, true);
}

}  // namespace

dali::TensorListShape<> OutputInfo::ShapeOf(const dali_zarr_operator_batch_info &batch) const {
  if (!ragged) return shape;
  dali::TensorListShape<> found(static_cast<int>(batch.num_lengths), sample.size());
  auto one = sample;
  for (size_t i = 0; i < batch.num_lengths; i++) {
    one[0] = batch.lengths[i];
    found.set_tensor_shape(static_cast<int>(i), one);
  }
  return found;
}

template <typename Backend>
ZarrReaderBase<Backend>::ZarrReaderBase(const dali::OpSpec &spec)
    : dali::Operator<Backend>(spec), reader_(dali_zarr_operator_new()) {
  // With checkpoints a state may follow, so the reader must not run ahead yet.
  const auto arguments = AllArguments(spec);
  const auto place = Place(spec);
  Check(dali_zarr_operator_open(reader_.get(), arguments.data(), arguments.size(), /*wait=*/spec.GetArgument<bool>("checkpointing"),
                                spec.GetSchema().CalculateOutputs(spec), place.data(), place.size()));
}

template <typename Backend>
void ZarrReaderBase<Backend>::Describe() {
  if (!outputs_.empty()) return;
  size_t count;
  Check(dali_zarr_operator_outputs(reader_.get(), &count));
  for (size_t i = 0; i < count; i++) {
    dali_zarr_operator_output output;
    Check(dali_zarr_operator_describe(reader_.get(), i, &output));
    OutputInfo info;
    info.sample.resize(static_cast<int>(output.ndim));
    for (size_t d = 0; d < output.ndim; d++) info.sample[d] = output.shape[d];
    info.ragged = output.ragged;
    info.shape = dali::uniform_list_shape(this->max_batch_size_, info.sample);
    info.type = ToDali(output.dtype);
    info.layout = dali::TensorLayout(std::string(output.layout));
    info.bytes = output.bytes;
    outputs_.push_back(std::move(info));
  }
}

template <typename Backend>
dali::ReaderMeta ZarrReaderBase<Backend>::GetReaderMeta() const {
  dali::ReaderMeta result;  // of -1, which DALI takes for "not a reader"
  dali_zarr_meta meta;
  if (dali_zarr_operator_meta(reader_.get(), &meta) != DALI_ZARR_OK) return result;
  result.epoch_size = meta.epoch_size;
  result.epoch_size_padded = meta.epoch_size_padded;
  result.number_of_shards = static_cast<int>(meta.number_of_shards);
  result.shard_id = static_cast<int>(meta.shard_id);
  result.pad_last_batch = meta.pad_last_batch;
  result.stick_to_shard = meta.stick_to_shard;
  return result;
}

template <typename Backend>
void ZarrReaderBase<Backend>::NameSamples(dali::Workspace &ws, const dali_zarr_operator_batch_info &batch) {
  std::string name;
  size_t begin = 0;
  for (size_t sample = 0; sample < batch.num_names; sample++) {
    const size_t end = batch.name_ends[sample];
    name.assign(batch.names + begin, end - begin);
    begin = end;
    for (size_t i = 0; i < outputs_.size(); i++) {
      ws.Output<Backend>(i).SetSourceInfo(static_cast<int>(sample), name);
    }
  }
}

template <typename Backend>
void ZarrReaderBase<Backend>::SaveState(dali::OpCheckpoint &checkpoint, dali::AccessOrder) {
  // Nothing of it lies on a device, so there is no order to keep.
  checkpoint.MutableCheckpointState() = State{dali_zarr_operator_delivered(reader_.get()), std::nullopt};
}

template <typename Backend>
std::string ZarrReaderBase<Backend>::SerializeCheckpoint(const dali::OpCheckpoint &checkpoint) const {
  const auto &state = checkpoint.CheckpointState<State>();
  if (state.text) return *state.text;
  const char *text;
  Check(dali_zarr_operator_state(reader_.get(), state.delivered, &text));
  return text;
}

template <typename Backend>
void ZarrReaderBase<Backend>::DeserializeCheckpoint(dali::OpCheckpoint &checkpoint, const std::string &data) const {
  checkpoint.MutableCheckpointState() = State{0, data};
}

template <typename Backend>
void ZarrReaderBase<Backend>::RestoreState(const dali::OpCheckpoint &checkpoint) {
  const auto text = SerializeCheckpoint(checkpoint);
  Check(dali_zarr_operator_restore(reader_.get(), text.data(), text.size()));
}

template <typename Backend>
Batch ZarrReaderBase<Backend>::NextBatch(const dali::Workspace &ws) {
  const int asked = ws.NumOutput() > 0 ? ws.GetRequestedBatchSize(0) : this->max_batch_size_;
  if (asked != this->max_batch_size_)
    throw dali::DaliRuntimeError(dali::make_string("zarr_reader: expected to be asked for whole batches of ",
                                                   this->max_batch_size_, " samples, but was asked for ", asked));
  dali_zarr_operator_batch *handle;
  Batch batch;
  Check(dali_zarr_operator_next_batch(reader_.get(), &handle, &batch.info));
  batch.handle.reset(handle);
  return batch;
}

void ZarrReader<dali::CPUBackend>::RunImpl(dali::Workspace &ws) {
  Describe();
  auto batch = NextBatch(ws);
  for (size_t i = 0; i < outputs_.size(); i++) {
    const auto &info = outputs_[i];
    dali_zarr_operator_memory memory;
    Check(dali_zarr_operator_take(batch.handle.get(), i, &memory));
    const std::shared_ptr<void> data(const_cast<void *>(memory.data),
                                     [owner = memory.owner](void *) { dali_zarr_operator_memory_free(owner); });
    const auto shape = info.ShapeOf(batch.info);
    const size_t bytes = shape.num_elements() * dali::TypeTable::GetTypeInfo(info.type).size();
    if (memory.bytes < bytes)
      throw dali::DaliRuntimeError(dali::make_string("zarr_reader: internal error: output ", i, " takes ", bytes,
                                                     " bytes, but the engine gave ", memory.bytes));
    // The memory goes back to the engine's pool when the last of DALI and its consumers lets go of it.
    ws.Output<dali::CPUBackend>(i).ShareData(data, bytes,
                                             /*pinned=*/false, shape, info.type, dali::CPU_ONLY_DEVICE_ID,
                                             dali::AccessOrder::host(), info.layout);
  }
  NameSamples(ws, batch.info);
}

ZarrReader<dali::GPUBackend>::ZarrReader(const dali::OpSpec &spec)
    : ZarrReaderBase<dali::GPUBackend>(spec), device_id_(spec.GetArgument<int>("device_id")) {}

void ZarrReader<dali::GPUBackend>::Lend(size_t id, const dali::Workspace &ws) {
  auto &set = sets_[id];
  std::vector<uint64_t> addresses;
  for (size_t i = 0; i < outputs_.size(); i++) {
    const auto &info = outputs_[i];
    if (info.ragged) {
      // All bytes that a batch may have. What an earlier batch had is freed when its consumers are done.
      set.ragged[i] = dali::AllocBuffer<dali::GPUBackend>(std::max<size_t>(info.bytes, 1), /*pinned=*/false, device_id_, ws.output_order());
      addresses.push_back(reinterpret_cast<uint64_t>(set.ragged[i].get()));
      continue;
    }
    auto &list = set.outputs[i];
    list.Reset();
    list.set_device_id(device_id_);
    list.set_order(ws.output_order());
    list.Resize(info.shape, info.type, dali::BatchContiguity::Contiguous);
    list.SetLayout(info.layout);
    addresses.push_back(reinterpret_cast<uint64_t>(list.num_samples() ? list.raw_mutable_tensor(0) : nullptr));
  }
  // The memory may still be in use by work that stands before this point in the stream: the engine waits for it.
  Check(dali_zarr_operator_record_event(reinterpret_cast<uintptr_t>(set.ready.get()), reinterpret_cast<uintptr_t>(ws.stream())));
  Check(dali_zarr_operator_lend(reader_.get(), id, addresses.data(), addresses.size(), reinterpret_cast<uint64_t>(set.ready.get())));
}

void ZarrReader<dali::GPUBackend>::RunImpl(dali::Workspace &ws) {
  // DALI may run the operator again after an error, before it stops. The engine would wait for memory that never comes.
  if (failed_) throw dali::DaliRuntimeError("zarr_reader: an earlier batch found no memory for its outputs; build the pipeline anew");
  Describe();
  failed_ = true;
  if (sets_.empty()) {
    // Here and not in the constructor, because DALI's stream is known only now.
    size_t wanted;
    Check(dali_zarr_operator_buffers_wanted(reader_.get(), &wanted));
    sets_.resize(wanted);
    for (size_t id = 0; id < sets_.size(); id++) {
      sets_[id].outputs.resize(outputs_.size());
      sets_[id].ragged.resize(outputs_.size());
      sets_[id].ready = dali::CUDAEvent::Create(device_id_);
      Lend(id, ws);
    }
  }
  // An error of this batch alone leaves all sets lent.
  failed_ = false;
  auto batch = NextBatch(ws);
  failed_ = true;
  const uint64_t id = batch.info.set;
  if (id >= sets_.size())
    throw dali::DaliRuntimeError(dali::make_string("zarr_reader: internal error: the engine filled set ", id,
                                                   ", but was lent ", sets_.size()));
  // The engine gives a batch only when it is complete in memory, so no event of its own is waited for here.
  for (size_t i = 0; i < outputs_.size(); i++) {
    if (outputs_[i].ragged) {
      const auto &info = outputs_[i];
      auto &memory = sets_[id].ragged[i];
      const auto shape = info.ShapeOf(batch.info);
      const size_t bytes = shape.num_elements() * dali::TypeTable::GetTypeInfo(info.type).size();
      if (bytes > info.bytes)
        throw dali::DaliRuntimeError(dali::make_string("zarr_reader: internal error: output ", i, " takes ", bytes,
                                                       " bytes, but ", info.bytes, " were lent"));
      dali::set_deletion_order(memory, ws.output_order());
      auto &output = ws.Output<dali::GPUBackend>(i);
      output.Reset();
      output.ShareData(std::move(memory), bytes, /*pinned=*/false, shape, info.type, device_id_, ws.output_order(), info.layout);
      continue;
    }
    auto &list = sets_[id].outputs[i];
    list.set_order(ws.output_order());
    std::swap(ws.Output<dali::GPUBackend>(i), list);
  }
  NameSamples(ws, batch.info);
  Lend(id, ws);
  failed_ = false;
}

template class ZarrReaderBase<dali::CPUBackend>;
template class ZarrReaderBase<dali::GPUBackend>;

}  // namespace dali_zarr
