// The operator's schema: its arguments, their documentation, and the number of outputs.
//
// The schema has only arguments that the engine uses. It inherits nothing from DALI's LoaderBase, because that has
// arguments without meaning for chunked arrays.

#include <string>
#include <vector>

#include "translate.h"
#include "zarr_reader.h"

namespace dali_zarr {
namespace {

using Strings = std::vector<std::string>;
using Integers = std::vector<Integer>;
using Numbers = std::vector<float>;

constexpr const char *kDoc = R"(Reads samples from Zarr arrays.

A sample is a window into one or several n-dimensional arrays of a Zarr store (version 2 or 3), for example one hour of
a reanalysis. The chunks that a batch needs are read, decompressed and assembled ahead of time by threads of the
reader's own; with ``device="gpu"`` they are decompressed on the GPU where the codec allows it.

Dimensions are called by the names that the store gives them (``dimension_names``, ``_ARRAY_DIMENSIONS``); those without
a name of their own are called ``dim_0``, ``dim_1``, ... by position.

There is one output for each of `arrays` (one altogether with `stack_arrays`) and each of `offsets`, in the order offset
by offset, and one more with `return_index`. All samples of an output have the same shape, unless it is ragged: with `ragged` or
`ragged_ends` they differ in the first dimension.

Checkpoints: a pipeline that is built with the checkpoint of another one of the same samples goes on with exactly the
next one. `num_shards`, `shard_id`, `stick_to_shard`, `pad_last_batch` and the batch size may differ:
what the shards had not delivered of their epoch is then divided anew.)";

void AddSampleArguments(dali::OpSchema &schema) {
  schema
      .AddOptionalArg("path", R"(The store or stores to read: directories (paths or ``file://`` URLs), or URLs that
begin with ``s3://``, ``gs://``, ``az://``, ``abfs://``, ``http://`` or ``https://``; or zip archives in any of these
(``x.zarr.zip``, or ``x.zip/inner`` for a part of one), or Icechunk repositories; or references, as kerchunk and VirtualiZarr
write them: JSON (``refs.json``) or a directory of Parquet files (``refs.parq``).

Several stores are joined along the first of `dims`; unless `cross_stores` is ``False``, a window may cross the border
between two of them.
Arrays that don't have that dimension are read from the first store.

It may be left out if every entry of `arrays` has a location of its own.)",
                      Strings{})
      .AddOptionalArg("storage_options", R"(Options of remote stores, each in the form ``"NAME=VALUE"``, for example
``"aws_region=eu-central-1"``. The function ``fn.zarr_reader`` also takes a dictionary.

The names are those of the Rust crate object_store, and ``max_retries`` (in a row, ``10``), ``retry_timeout`` (``"180s"``)
and ``hedge`` (``"true"``: requests that take much longer than usual are raced by a second one); and for Icechunk repositories
one of ``branch`` (``"main"``), ``tag`` and ``snapshot_id`` (one for all of ``path``, or one for each with commas between them; empty where none is
chosen); and for these and references ``virtual_chunks`` (URLs below which the files may be that they refer to). Keys, passwords and tokens are refused, because DALI serialises arguments: they come from the environment, a profile or a role.)",
                      Strings{})
      .AddOptionalArg("arrays", R"(Names of the arrays to read, relative to the store's root group.

Can be left out if the store holds a single array. The function ``fn.zarr_reader`` also takes a dictionary from names of outputs to
arrays.

An entry that is a URL, an absolute path, or begins with ``./`` or ``../`` is the location of an array with a store of its own, in step
with the others along `dims`: of equal lengths, and with equal coordinates where both have them. If its dimensions have no names, the
first ones are `dims`, by position. Stores that are joined can't stand beside it.)",
                      Strings{})
      .AddOptionalArg("stack_arrays", R"(If set, the arrays become the channels of one output of shape ``(C, ...)``.

An array with further dimensions that the others lack (level, ensemble member) gives a channel for each of their
indices, in row-major order. An array that lacks a dimension of the others is repeated along it. All arrays must give
the same type, or `dtype` must be set.)",
                      false)
      .AddOptionalArg("pick", R"(Indices to take along dimensions before anything else, each in the form
``"DIMENSION=INDEX,INDEX,..."``, for example ``"level=0,5,-1"``.

Negative indices count from the end; the order is kept and repetitions are allowed. The indices are the same in all stores of
`path`, unless there is a list for each store, as in ``"level=2,5|1,4"`` for two: lists of one length, in the order of `path`.
Along the dimension by which stores are joined, indices count over all stores, in one list.

The function ``fn.zarr_reader`` also takes a dictionary ``{dimension: [...]}``, in which whole numbers are indices (lists of them
are one for each store), and floating-point numbers are labels. Labels are looked up, in each store, in the array of the
dimension's name in the group of `arrays` or the nearest group around it: they are its values as `mask_and_scale` decodes them, also where the reader's own
arrays aren't decoded.)",
                      Strings{})
      .AddOptionalArg("dims", R"(Names of the dimensions along which samples are cut; ``"0"`` or ``"-1"`` is a dimension
by its position.

Dimensions not named here are read whole. Samples are counted with the first of `dims` moving slowest.
By default they are those that `window` names, or samples are cut along the first dimension of the array that has most. Only
`dims` tie arrays together: their other dimensions may differ, unless they are stacked.)",
                      Strings{})
      .AddOptionalArg("window", R"(For each of `dims`, the number of elements in a sample.

``0`` means one element, with the dimension dropped from the sample's shape; ``-1`` means all elements between
`roi_start` and `roi_end`. By default all are ``0``.

As all arguments "for each of `dims`", the function ``fn.zarr_reader`` also takes it as a dictionary by dimension,
``{"time": 2, "lat": 64}``: these are `dims` then, if no others are given. `window` and `stride` may differ by output:
``{"image": {"time": 2}, "action": {"time": 16}}``. All windows of a sample begin at its start.)",
                      Integers{})
      .AddOptionalArg("step", R"(For each of `dims`, the distance between the starts of neighbouring samples, the first
of which is `roi_start`.

By default that is `window`, at least one: samples don't overlap. Where outputs have windows of their own, it is the longest.)",
                      Integers{})
      .AddOptionalArg("overlap", R"(Another way to say `step`: for each of `dims`, how many elements less than the (longest) window
it is. Neighbouring samples share as many where `stride` is 1; with a `stride` their windows interleave.)",
                      Integers{})
      .AddOptionalArg("random_crop", R"(Those of `dims`, by name or position, along which the sample's start is drawn
anew in each epoch, uniformly from all places where `window` fits.

Such a dimension doesn't multiply the samples: cut along time, with ``random_crop=["latitude", "longitude"]``, there is
one sample for each time. The start depends on nothing but the seed, the epoch and the sample's number (with `weights` the
position of the draw); `return_index` tells it. `step` must be ``0`` for such a dimension, or not given at all. Where the window is larger than the
region, ``out_of_bounds_policy="pad"`` has it start where the region does.)",
                      Strings{})
      .AddOptionalArg<int64_t>("samples_per_volume", R"(How many samples there are for each start, each with starts of its own along
`random_crop`. A single volume that is cropped in all its dimensions has so many samples in an epoch.)",
                               int64_t{1})
      .AddOptionalArg<std::string>("starts", R"(Where samples start, as a table of whole numbers instead of every `step`: a row
for each sample, with a column for each of `dims`; with ``concat="samples"`` one more in front, the number of the store.

It is a ``.npy`` file, or a Zarr array: a path of its own (absolute, a URL, or one that begins with ``./``), else the name of an array in `path`. The
functions of the package also take an array in memory. Samples come in the order of the rows, or shuffled; their numbers are
those of the rows. `out_of_bounds_policy` holds for each row: ``"error"`` names the first that is out of bounds, ``"pad"`` fills, and ``"drop"`` leaves
rows out, so that numbers count the rows that are left. `step`, `overlap` and `random_crop` can't be given beside it.)",
                                   nullptr)
      .AddOptionalArg("stride", R"(For each of `dims`, the distance between neighbouring elements of a sample.

By default ``1``.)",
                      Integers{})
      .AddOptionalArg("offsets", R"(Offsets along the first of `dims`; each gives one group of outputs.

With ``offsets=[0, 1]``, for example, the outputs are a window and the one that starts an element later. Negative
offsets are allowed. Nothing is read at an offset that isn't named, 0 included.)",
                      Integers{})
      .AddOptionalArg("roi_start", R"(For each of `dims`, the first element that samples may touch.

Negative values count from the end. By default ``0``.)",
                      Integers{})
      .AddOptionalArg("roi_end", R"(For each of `dims`, one past the last element that samples may touch.

Negative values count from the end. By default the dimension's length.)",
                      Integers{})
      .AddOptionalArg("breaks", R"(Elements along the first of `dims` at which something new begins: years that don't follow
each other, for example.

No sample (its window with all `offsets`) may reach from before a break to it or beyond: there, too, is out of
bounds, and `out_of_bounds_policy` says what happens. Negative values count from the end.

The function ``fn.zarr_reader`` also takes the name of an array with the ends of segments in each store, such as
``"meta/episode_ends"``: whole numbers that ascend, of which the last may equal the length. A URL, an absolute path, or one that
begins with ``./`` or ``../``, is an array with a store of its own. With `ragged` ends count rows. ``"auto"`` breaks where the coordinates
along the dimension aren't evenly spaced: where one is not as far from the one before as most are (of distances that are as
common, the least counts; differences by rounding don't). A list may have all of these.)",
                      Integers{})
      .AddOptionalArg<Integers>("segments", R"(Which of the segments between `breaks` samples are of, by their
numbers: a split by episodes. They are numbered over the whole dimension, whatever `roi_start` and `roi_end` leave of it.

Negative numbers count from the end. Samples keep the order of the store. The function ``fn.zarr_reader`` also takes True or False for
each segment. By default all.)",
                                            nullptr)
      .AddOptionalArg("concat", R"(How several stores of `path` are put together.

- ``"dims"``: to one axis, along the first of `dims`.
- ``"samples"``: one after the other, each with samples of its own. Stores may have any shapes, as long as samples have one. Regions
  and breaks are those of each store, one in which no window fits has no samples, and the index of `return_index` begins with the store's number.)",
                      "dims")
      .AddOptionalArg("cross_stores", R"(Whether a sample may reach from one store of `path` into the next. If not, the
borders between stores are `breaks`.)",
                      true)
      .AddOptionalArg("out_of_bounds_policy", R"(What happens with windows that reach beyond the region that `roi_start`
and `roi_end` leave, or across one of `breaks`.

- ``"error"``: building the pipeline fails.
- ``"drop"``: such a window isn't a sample.
- ``"edge"``: its elements outside repeat the first or the last element inside.
- ``"pad"``: its elements outside get `fill_value`. With both, where a break parts the windows of a sample, those elements are read
  that lie on the same side of it as the sample's start.)",
                      "drop")
      .AddOptionalArg("pad_before", R"(For each of `dims`, how many elements before its segment between `breaks` a window may begin
at most, with ``out_of_bounds_policy`` ``"pad"`` or ``"edge"``.

With it or `pad_after` each segment has a grid of starts of its own: windows begin from `pad_before` elements before the segment on, at
every `step`, and end at most `pad_after` elements after it. So an episode of length ``L`` has windows that begin from ``-pad_before``
to ``L - window + pad_after``, both included. Both are at most one less than the elements that a sample spans. Without them there is
one grid of starts, from `roi_start` to `roi_end`.)",
                      Integers{})
      .AddOptionalArg("pad_after", R"(For each of `dims`, how many elements after its segment a window may end at most; see
`pad_before`.)",
                      Integers{})
      .AddOptionalArg("fill_value", R"(The value of elements outside the region of interest, with
``out_of_bounds_policy="pad"``.

It is a value of the output: neither scaled nor normalised, but rounded to the nearest value that the output's type has. The
function ``fn.zarr_reader`` also takes a dictionary by output, as of `mask_and_scale`, `dtype`, `mean` and `stddev`. Elements that the store doesn't hold have the fill value
that the array defines.)",
                      0.0f)
      .AddOptionalArg("return_mask", R"(If set, there is one more output, of bool: False for elements that were padded or repeated, with
``out_of_bounds_policy`` ``"pad"`` or ``"edge"``.

Its shape is the (longest) window along each of `dims` that samples have; with several `offsets` there is a row for each in
front. It comes after the arrays.)",
                      false)
      .AddOptionalArg("return_index", R"(If set, there is one more output: the start of each sample in each of `dims`,
without offset, as int64. With `breaks` (and with ``cross_stores=False`` beside `pad_before` or `pad_after`) the number of its segment comes
before, which may begin after the start.)",
                      false)
      .AddOptionalArg("ragged", R"(An array of the store with offsets, one more than there are samples: sample ``i`` is the elements
from offset ``i`` to offset ``i + 1`` of the arrays that these divide.

With ``ragged="X/indptr"`` and ``arrays=["X/data", "X/indices"]`` samples are the rows of AnnData's CSR matrix. Arrays with one
element for each row, such as labels, come with their row. The first of `dims` counts rows: `roi_start`, `roi_end`, `step`, `pick`
and `return_index` do too, and `window` is left out for it. Other dimensions are read whole or cut as usual.

A URL, an absolute path, or one that begins with ``./`` or ``../``, is an array with a store of its own.

The samples of a ragged output differ in their first dimension, and may be empty. The offsets are read when the pipeline is built,
and take 8 bytes each of `host_memory_limit`. Batches take the memory of their longest rows.)",
                      "")
      .AddOptionalArg("ragged_ends", R"(The same by an array of ends, one for each sample, the first of which starts at 0: for example
``"meta/episode_ends"`` for whole episodes.)",
                      "")
      .AddOptionalArg<int64_t>("max_length", R"(With `ragged` or `ragged_ends`: how many elements of a sample are read, at most.

Longer ones are cut at their end.)",
                               nullptr);
}

void AddValueArguments(dali::OpSchema &schema) {
  schema
      .AddOptionalArg<bool>("mask_and_scale", R"(Whether the attributes ``_FillValue``, ``missing_value``, ``scale_factor``,
``add_offset`` and ``_Unsigned`` are applied as xarray does it: missing values become NaN.

By default they are for those of `arrays` that have ``scale_factor`` or ``add_offset``, and the log says so. An array that has only
``_FillValue`` or ``missing_value`` (in Zarr v2 a ``fill_value`` other than 0 and NaN) stays as stored, with a warning.)",
                            nullptr)
      .AddOptionalArg<float>("fillna", R"(Takes the place of NaNs, stored or made by `mask_and_scale`, before `mean` and `stddev`.

It is what xarray's ``fillna`` does: a value of the decoded array, which is then normalised and converted as all others. Elements that
the store lacks are replaced where the array's fill value is NaN. `fill_value` stays as it is, since it is a value of the output: with NaN
it marks what was padded. Arrays without floating-point values have no NaN. How many were replaced is counted. The function
``fn.zarr_reader`` also takes a dictionary by output.)",
                             nullptr)
      .AddOptionalTypeArg("dtype", R"(The type of the outputs.

By default it is the stored type, the type that `mask_and_scale` gives, or float32 with `mean` or `stddev`.
Conversion to integers rounds to the nearest, ties to even, and saturates; NaN becomes 0.)")
      .AddOptionalArg("mean", R"(Is subtracted from the values: one number, one for each of `arrays`, or one for each
channel with `stack_arrays`.

A single array may have one for each element along one of its dimensions, such as the colours of an image; see `channels`. The function
``fn.zarr_reader`` also takes a dictionary by output: ``{"action": [...], "image": 127.5}``.)",
                      Numbers{})
      .AddOptionalArg("stddev", R"(The values are divided by it, after `mean` was subtracted: one number, one for each of
`arrays`, or one for each channel, as of `mean`.)",
                      Numbers{})
      .AddOptionalArg("channels", R"(Names of the dimensions whose elements have a `mean` and a `stddev` of their own, or their
positions among those of the array, ``"-1"`` being the last.

Several numbers of an array are for the elements along these dimensions, in the order of the array: those that `pick` leaves, and along
one of `dims` all that there are. Arrays that lack such a dimension have one number. By default it is the only dimension that samples
have whole with as many elements as there are numbers. With `stack_arrays` they come beside what the stack makes channels of. The
function ``fn.zarr_reader`` also takes a dictionary by output.)",
                      Strings{});
}

void AddOrderArguments(dali::OpSchema &schema) {
  schema
      .AddOptionalArg("random_shuffle", R"(If set, samples come in an order that is drawn anew for each epoch.

Without `stick_to_shard` all samples are shuffled and then divided among the shards; with it each shard shuffles its
own.)",
                      false)
      .AddOptionalArg<int64_t>("initial_fill", R"(Among how many samples each is drawn when samples are shuffled and several
of them share a chunk.

Groups of samples that share chunks are drawn at random until they hold about that many samples; these are shuffled and
delivered, then come the next groups. So a chunk is needed only within one such window, and read once if memory holds the
chunks of a window. Where each sample has chunks of its own, or the epoch isn't longer, all samples are
drawn among all.)",
                               int64_t{1024})
      .AddOptionalArg("shuffle_after_epoch", R"(If set, the first epoch comes in order, and all samples are shuffled anew
for each later one.

Excludes `random_shuffle` and `stick_to_shard`.)",
                      false)
      .AddOptionalArg<std::string>("weights", R"(How often each sample comes, relative to the others: a table with one number for
each sample, as of torch's ``WeightedRandomSampler``.

It is given as `starts` is, with floating-point numbers of at least 0. Each position of an epoch draws a sample, by the seed, the epoch
and the position alone, so that checkpoints and shards work as for all orders. Draws know nothing of chunks: where chunks
hold many samples, they are read often. Excludes `random_shuffle` and `shuffle_after_epoch`.)",
                                   nullptr)
      .AddOptionalArg<int64_t>("num_samples", R"(With `weights`: how many samples an epoch has. By default as many as there are.)",
                               nullptr)
      .AddOptionalArg("replacement", R"(With `weights`: whether a sample may come several times in an epoch.

If not, `num_samples` may be at most the number of positive weights, and each epoch draws a new list of samples.)",
                      true)
      .AddOptionalArg<int64_t>("seed", R"(Seed of the order, of `weights` and of `random_crop`.

The order of an epoch is a function of the seed and the epoch's number, and of nothing else but what the samples are and, with
`initial_fill`, how they share chunks. All shards of a data set
must be given the same seed. Two shuffled readers with the same seed don't stay in step unless their samples and chunks are the
same. The default ``-1`` is a fixed seed too, the same in every process: neither the pipeline's
seed nor a random one takes its place.)",
                               int64_t{-1})
      .AddOptionalArg<int64_t>("shard_id", R"(Which shard this reader delivers, from 0 to ``num_shards - 1``.)",
                               int64_t{0})
      .AddOptionalArg<int64_t>("num_shards", R"(Into how many shards the samples are divided.

Shard ``s`` of ``S`` has the positions from ``N * s // S`` to ``N * (s + 1) // S`` of the epoch's ``N``.)",
                               int64_t{1})
      .AddOptionalArg("stick_to_shard", R"(If set, the reader delivers the same shard in every epoch. Otherwise it moves
on to the next one after each.)",
                      false)
      .AddOptionalArg("pad_last_batch", R"(If set, the last sample of a shard is repeated until the last batch is full and
all shards have as many batches. Otherwise a batch that the epoch can't fill goes on with samples of the next.)",
                      false);
}

void AddResourceArguments(dali::OpSchema &schema) {
  schema
      .AddOptionalArg<int64_t>("prefetch_queue_depth", R"(How many batches the reader prepares ahead.

By default as many as the memory limits allow, 32 at most; to the CPU no more than 512 MiB of them, but 4.)",
                               nullptr)
      .AddOptionalArg("decode_device", R"(Where chunks are decompressed.

- ``"auto"``: on the GPU what it can decompress, the rest on the CPU.
- ``"gpu"``: on the GPU; an array that it can't decompress is an error.
- ``"cpu"``: on the CPU.)",
                      "auto")
      .AddOptionalArg<int64_t>("device_memory_limit", R"(Bytes of device memory that the reader holds at most, outputs that
have not been handed over yet included. By default what gives nearly all of the throughput of 8 GiB, but no more than 2 GiB and two batches, and
what is worth keeping of chunks.)",
                               nullptr)
      .AddOptionalArg<int64_t>("host_memory_limit", R"(Bytes of host memory that the reader holds at most. If that is more than
the machine has, seven eighths of what it has are the limit.)",
                               nullptr)
      .AddOptionalArg("io", R"(How chunks of local stores are read.

- ``"auto"``: by GPUDirect Storage if the machine has it and a short trial on chunks from all over an array was
  faster, else by system calls.
- ``"posix"``: by system calls.
- ``"gds"``: by GPUDirect Storage (cuFile), which reads to the device what is uncompressed or decompressed there. It is an error
  if cuFile is missing, or with ``device="cpu"``.)",
                      "auto")
      .AddOptionalArg("use_o_direct", R"(Whether chunks of local stores are read past the page cache.

For stores that are larger than memory. It is an error if the file system has no such reads.)",
                      false)
      .AddOptionalArg<int64_t>("cache_size", R"(Bytes of host memory in which encoded chunks are kept, so that later epochs
needn't read them again.

They are taken besides `host_memory_limit`, as chunks come. If an epoch's chunks don't fit, about as large a part of them is
found in each epoch as fits. Chunks are taken to stay what they were when they were read. The default ``0`` keeps none.)",
                               int64_t{0})
      .AddOptionalArg("cache_dir", R"(A folder on a local disk in which encoded chunks of remote stores are kept for later
epochs, and for later pipelines with the same `path`.

Processes of one machine share it. Chunks are written behind, up to 64 MiB of host memory hold what waits to be written, and
what a disk is too slow for isn't kept. The folder must be trusted as the store is.)",
                      "")
      .AddOptionalArg<int64_t>("cache_dir_size", R"(Bytes that the files in `cache_dir` may take, of all processes together.

By default half of what its disk has free when the pipeline is built, with what is kept already counted as free.)",
                               nullptr)
      .AddOptionalArg("cache_validate", R"(Whether a store is asked, once for each object and pipeline, if what `cache_dir`
holds of it is still the same.

Without it chunks are served as they were kept, for stores that never change: no request is sent for them.)",
                      true)
      .AddOptionalArg<int64_t>("io_threads", R"(Number of threads that read local stores, or drive the requests to remote
ones.

By default it follows from the number of CPU cores, of which each process that torchrun starts has its part.)",
                               nullptr)
      .AddOptionalArg<int64_t>("io_concurrency", R"(Number of requests to remote stores under way at a time.

By default ``128``. They take no threads, but memory of `host_memory_limit` each.)",
                               nullptr)
      .AddOptionalArg<int64_t>("decode_threads", R"(Number of threads that decompress on the CPU.

By default there is one for each CPU core, of which each process that torchrun starts has its part. While a model trains,
trials find how many of them decode what the GPU could decode. A given number isn't changed.)",
                               nullptr);
}

int CountOutputs(const dali::OpSpec &spec) { return engine::num_outputs(Bytes(UserArguments(spec))); }

void DefineSchema(dali::OpSchema &schema) {
  schema.DocStr(kDoc).NumInput(0).OutputFn(CountOutputs).MakeStateful().SupportCPU().SupportGPU();
  AddSampleArguments(schema);
  AddValueArguments(schema);
  AddOrderArguments(schema);
  AddResourceArguments(schema);
  // The underscore keeps the argument out of the documentation.
  schema.AddOptionalArg(kOthers, "What the Python package adds to the others.", "");
}

}  // namespace

void DefineSchemas() {
  DefineSchema(dali::SchemaRegistry::RegisterSchema("readers__Zarr").MakeDefined());
  auto &alias = dali::SchemaRegistry::RegisterSchema("ZarrReader").MakeDefined();
#if DALI_ZARR_DALI >= 204
  alias.AliasFor("readers__Zarr");
#else
  DefineSchema(alias);
#endif
}

}  // namespace dali_zarr
