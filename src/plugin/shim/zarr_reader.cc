// The operator opens the reader when the pipeline is built, and hands over one finished batch in each run.

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

// This operator's part of a DALI checkpoint: the number of samples handed out. A checkpoint that was read from outside
// has the text that an engine wrote instead.
struct State {
  uint64_t delivered = 0;
  std::optional<std::string> text;
};

// Returns where the user's program made the operator, in the words that DALI uses if an operator's constructor throws.
std::string Place(const dali::OpSpec &spec) {
  std::string device = spec.GetArgument<std::string>("device");
  std::transform(device.begin(), device.end(), device.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string text = "Error in " + device + " operator `" + dali::GetOpDisplayName(spec, true) + "`";
  const auto stack = dali::GetOperatorOriginInfo(spec);
  if (stack.empty()) return text + ".";
  return text + ",\nwhich was used in the pipeline definition with the following traceback:\n\n" +
         dali::FormatStack(stack, true);
}

}  // namespace

dali::TensorListShape<> OutputInfo::ShapeOf(rust::Slice<const int64_t> lengths, rust::Slice<const int64_t> shapes,
                                            int samples) const {
  if (!ragged) return samples == shape.num_samples() ? shape : dali::uniform_list_shape(samples, sample);
  const int dims = sample.size();
  const size_t needed = static_cast<size_t>(samples);
  if (shapes.empty() ? lengths.size() < needed : shapes.size() < needed * dims)
    Fail("internal error: the engine gave too few lengths");
  dali::TensorListShape<> found(samples, dims);
  auto one = sample;
  for (int i = 0; i < samples; i++) {
    if (shapes.empty()) {
      one[0] = lengths[i];
    } else {
      for (int d = 0; d < dims; d++) one[d] = shapes[static_cast<size_t>(i) * dims + d];
    }
    found.set_tensor_shape(i, one);
  }
  return found;
}

template <typename Backend>
ZarrReaderBase<Backend>::ZarrReaderBase(const dali::OpSpec &spec)
    : dali::Operator<Backend>(spec), has_input_(spec.NumRegularInput() > 0), reader_(engine::new_reader()) {
  // With checkpoints, RestoreState may follow, so the reader must not prepare batches yet.
  Check(reader_->open(Bytes(AllArguments(spec)), /*wait=*/spec.GetArgument<bool>("checkpointing"),
                      spec.GetSchema().CalculateOutputs(spec), Place(spec)));
}

template <typename Backend>
void ZarrReaderBase<Backend>::Describe() {
  if (!outputs_.empty()) return;
  Check(reader_->opened());
  for (const auto &output : reader_->outputs()) {
    OutputInfo info;
    info.sample.resize(static_cast<int>(output.shape.size()));
    for (size_t d = 0; d < output.shape.size(); d++) info.sample[d] = output.shape[d];
    info.ragged = output.ragged;
    info.shape = dali::uniform_list_shape(this->max_batch_size_, info.sample);
    info.type = ToDali(output.dtype);
    info.layout = dali::TensorLayout(std::string(output.layout));
    info.bytes = output.bytes;
    const size_t uniform = info.shape.num_elements() * dali::TypeTable::GetTypeInfo(info.type).size();
    info.is_allocated = info.ragged || info.bytes > uniform;
    outputs_.push_back(std::move(info));
  }
}

template <typename Backend>
dali::ReaderMeta ZarrReaderBase<Backend>::GetReaderMeta() const {
  const auto meta = reader_->meta();
  dali::ReaderMeta result;
  result.epoch_size = meta.epoch_size;
  result.epoch_size_padded = meta.epoch_size_padded;
  result.number_of_shards = static_cast<int>(meta.number_of_shards);
  result.shard_id = static_cast<int>(meta.shard_id);
  result.pad_last_batch = meta.pad_last_batch;
  result.stick_to_shard = meta.stick_to_shard;
  return result;
}

template <typename Backend>
void ZarrReaderBase<Backend>::NameSamples(dali::Workspace &ws, const engine::ReadyBatch &batch, int samples) {
  const auto text = batch.source_text();
  const auto ends = batch.source_ends();
  std::string name;
  size_t begin = 0;
  for (size_t sample = 0; sample < std::min(ends.size(), static_cast<size_t>(samples)); sample++) {
    name.assign(text.data() + begin, ends[sample] - begin);
    begin = ends[sample];
    for (size_t i = 0; i < outputs_.size(); i++) {
      ws.Output<Backend>(i).SetSourceInfo(static_cast<int>(sample), name);
    }
  }
}

template <typename Backend>
void ZarrReaderBase<Backend>::SaveState(dali::OpCheckpoint &checkpoint, dali::AccessOrder) {
  // The state isn't on a device, so the access order doesn't matter.
  checkpoint.MutableCheckpointState() = State{reader_->delivered(), std::nullopt};
}

template <typename Backend>
std::string ZarrReaderBase<Backend>::SerializeCheckpoint(const dali::OpCheckpoint &checkpoint) const {
  const auto &state = checkpoint.CheckpointState<State>();
  if (state.text) return *state.text;
  rust::String text;
  Check(reader_->state_at(state.delivered, text));
  return std::string(text);
}

template <typename Backend>
void ZarrReaderBase<Backend>::DeserializeCheckpoint(dali::OpCheckpoint &checkpoint, const std::string &data) const {
  checkpoint.MutableCheckpointState() = State{0, data};
}

template <typename Backend>
void ZarrReaderBase<Backend>::RestoreState(const dali::OpCheckpoint &checkpoint) {
  const auto text = SerializeCheckpoint(checkpoint);
  Check(reader_->restore(Bytes(text)));
}

template <typename Backend>
int ZarrReaderBase<Backend>::Push(const dali::Workspace &ws) {
  if (!has_input_) return this->max_batch_size_;
  const auto &input = ws.Input<dali::CPUBackend>(0);
  const auto &shape = input.shape();
  const int samples = shape.num_samples();
  // A scalar is the number of a sample. A list is its row in the index output.
  const int64_t columns = shape.sample_dim() == 0 || samples == 0 ? 0 : shape[0][0];
  bool is_even = shape.sample_dim() <= 1;
  for (int i = 0; is_even && shape.sample_dim() == 1 && i < samples; i++)
    is_even = shape[i][0] == columns && columns > 0;
  const bool is_wide = input.type() == DALI_INT64;
  if (!is_even || !(is_wide || input.type() == DALI_INT32))
    Fail(
        "the input: expected for each sample its number, a scalar of int64 or int32, or a list with its row of "
        "return_index");
  std::vector<int64_t> values;
  for (int i = 0; i < samples; i++) {
    for (int64_t k = 0; k < std::max<int64_t>(columns, 1); k++)
      values.push_back(is_wide ? input.tensor<int64_t>(i)[k] : input.tensor<int32_t>(i)[k]);
  }
  Check(reader_->push(rust::Slice<const int64_t>(values.data(), values.size()), static_cast<size_t>(columns)));
  return samples;
}

template <typename Backend>
rust::Box<engine::ReadyBatch> ZarrReaderBase<Backend>::NextBatch(const dali::Workspace &ws) {
  const int asked = ws.NumOutput() > 0 ? ws.GetRequestedBatchSize(0) : this->max_batch_size_;
  if (!has_input_ && asked != this->max_batch_size_)
    Fail(dali::make_string("expected to be asked for whole batches of ", this->max_batch_size_,
                           " samples, but was asked for ", asked));
  auto batch = reader_->next_batch();
  Check(batch->status());
  return batch;
}

void ZarrReader<dali::CPUBackend>::RunImpl(dali::Workspace &ws) {
  Describe();
  const int samples = Push(ws);
  auto batch = NextBatch(ws);
  for (size_t i = 0; i < outputs_.size(); i++) {
    const auto &info = outputs_[i];
    auto memory = std::make_shared<rust::Box<engine::HostMemory>>(batch->take_host(i));
    auto *data = reinterpret_cast<void *>((*memory)->data());
    const auto shape = info.ShapeOf(batch->lengths(), batch->shapes(i), samples);
    const size_t bytes = shape.num_elements() * dali::TypeTable::GetTypeInfo(info.type).size();
    if (!data || (*memory)->size() < bytes)
      Fail(dali::make_string("internal error: output ", i, " takes ", bytes, " bytes, but the engine gave ",
                             (*memory)->size()));
    // The memory goes back to the engine's pool when DALI and all its consumers have released it.
    ws.Output<dali::CPUBackend>(i).ShareData(std::shared_ptr<void>(memory, data), bytes,
                                             /*pinned=*/false, shape, info.type, dali::CPU_ONLY_DEVICE_ID,
                                             dali::AccessOrder::host(), info.layout);
  }
  NameSamples(ws, *batch, samples);
}

ZarrReader<dali::GPUBackend>::ZarrReader(const dali::OpSpec &spec)
    : ZarrReaderBase<dali::GPUBackend>(spec), device_id_(spec.GetArgument<int>("device_id")) {}

ZarrReader<dali::GPUBackend>::~ZarrReader() {
  // CUDA can't be used in a forked child: what belongs to it is left alone there. A child
  // without the memory for that ends.
  if (reader_->is_inherited()) new std::vector<DeviceSet>(std::move(sets_));  // NOLINT(*-unhandled-exception-at-new)
  // The engine writes to the sets until it is closed.
  CloseReader();
}

void ZarrReader<dali::GPUBackend>::Lend(size_t id, const dali::Workspace &ws) {
  auto &set = sets_[id];
  std::vector<uint64_t> addresses;
  for (size_t i = 0; i < outputs_.size(); i++) {
    const auto &info = outputs_[i];
    if (info.is_allocated) {
      // Memory for the most bytes that a batch may have. The memory of an earlier batch is freed when its consumers are
      // done.
      set.allocated[i] = dali::AllocBuffer<dali::GPUBackend>(std::max<size_t>(info.bytes, 1), /*pinned=*/false,
                                                             device_id_, ws.output_order());
      addresses.push_back(reinterpret_cast<uint64_t>(set.allocated[i].get()));
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
  // Earlier work in the stream may still use the memory. The engine waits for the event.
  Check(engine::record_event(reinterpret_cast<uintptr_t>(set.ready.get()), reinterpret_cast<uintptr_t>(ws.stream())));
  Check(reader_->lend(id, rust::Slice<const uint64_t>(addresses.data(), addresses.size()),
                      reinterpret_cast<uint64_t>(set.ready.get())));
}

void ZarrReader<dali::GPUBackend>::RunImpl(dali::Workspace &ws) {
  // After an error, DALI may run the operator again before it stops. The engine would then wait forever for a set to be
  // lent.
  if (failed_) Fail("an earlier batch found no memory for its outputs; build the pipeline anew");
  Describe();
  failed_ = true;
  if (sets_.empty()) {
    // Not in the constructor, because DALI's stream is known only now.
    sets_.resize(reader_->buffers_wanted());
    for (size_t id = 0; id < sets_.size(); id++) {
      sets_[id].outputs.resize(outputs_.size());
      sets_[id].allocated.resize(outputs_.size());
      sets_[id].ready = dali::CUDAEvent::Create(device_id_);
      Lend(id, ws);
    }
  }
  // After an error of this batch alone, all sets are still lent.
  failed_ = false;
  const int samples = Push(ws);
  auto batch = NextBatch(ws);
  failed_ = true;
  const uint64_t id = batch->set();
  if (id >= sets_.size())
    Fail(dali::make_string("internal error: the engine filled set ", id, ", but was lent ", sets_.size()));
  // The engine returns a batch only when it is complete in memory, so there is no event to wait for.
  for (size_t i = 0; i < outputs_.size(); i++) {
    if (outputs_[i].is_allocated) {
      const auto &info = outputs_[i];
      auto &memory = sets_[id].allocated[i];
      const auto shape = info.ShapeOf(batch->lengths(), batch->shapes(i), samples);
      const size_t bytes = shape.num_elements() * dali::TypeTable::GetTypeInfo(info.type).size();
      if (bytes > info.bytes)
        Fail(dali::make_string("internal error: output ", i, " takes ", bytes, " bytes, but ", info.bytes,
                               " were lent"));
      dali::set_deletion_order(memory, ws.output_order());
      auto &output = ws.Output<dali::GPUBackend>(i);
      output.Reset();
      output.ShareData(std::move(memory), bytes, /*pinned=*/false, shape, info.type, device_id_, ws.output_order(),
                       info.layout);
      continue;
    }
    auto &list = sets_[id].outputs[i];
    list.set_order(ws.output_order());
    // The samples lie side by side from the beginning, so fewer of them stay where they are.
    if (samples < list.num_samples())
      list.Resize(outputs_[i].ShapeOf({}, {}, samples), outputs_[i].type, dali::BatchContiguity::Contiguous);
    std::swap(ws.Output<dali::GPUBackend>(i), list);
  }
  NameSamples(ws, *batch, samples);
  Lend(id, ws);
  failed_ = false;
}

template class ZarrReaderBase<dali::CPUBackend>;
template class ZarrReaderBase<dali::GPUBackend>;

}  // namespace dali_zarr
