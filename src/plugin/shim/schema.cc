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
a reanalysis. The reader's own threads read, decompress and assemble the chunks of a batch ahead of time. With
``device="gpu"`` chunks are decompressed on the GPU if it has a decoder for the codec.

Dimensions have the names that the store gives them (``dimension_names``, ``_ARRAY_DIMENSIONS``). A dimension without a
name is called ``dim_0``, ``dim_1``, ... by its position.

There is one output for each of `arrays` and each of `offsets`: first all arrays at the first offset, then all at the
second, and so on. With `stack_arrays` all arrays are one output. `return_mask` and `return_index` add one output each.
All samples of an output have the same shape, except with `ragged` or `ragged_ends`, where their first dimensions differ,
and with `groups` or ``concat="samples"``, where stores may differ.

Checkpoints: build a pipeline over the same samples with the checkpoint of another pipeline, and it continues with
exactly the next sample. `num_shards`, `shard_id`, `stick_to_shard`, `pad_last_batch` and the batch size may differ. The
samples of the epoch that the old shards had not delivered are then divided among the new shards.)";

// clang-format off: the text of an argument begins on the line of its name.
void AddSampleArguments(dali::OpSchema &schema) {
  schema
      .AddOptionalArg("path", R"(The store or stores to read: directories (paths or ``file://`` URLs), or URLs that
begin with ``s3://``, ``gs://``, ``az://``, ``abfs://``, ``http://`` or ``https://``. Relative paths become absolute when the
reader is made. In any of these places a store may
also be a zip archive (``x.zarr.zip``, or ``x.zip/inner`` for a part of it), an Icechunk repository, or references as
kerchunk and VirtualiZarr write them: JSON (``refs.json``) or a directory of Parquet files (``refs.parq``).

Several stores are joined along the first of `dims`. A window may cross the border between two stores, unless
`cross_stores` is ``False``. Arrays without that dimension are read from the first store.

It may be left out if every entry of `arrays` is the location of an array.)",
                      Strings{})
      .AddOptionalArg("storage_options", R"(Options of remote stores, each in the form ``"NAME=VALUE"``, for example
``"aws_region=eu-central-1"``. The function ``fn.zarr_reader`` also takes a dictionary.

The names are those of the Rust crate object_store, and also:

- ``max_retries``: retries in a row, by default ``10``.
- ``retry_timeout``: by default ``"180s"``.
- ``hedge``: by default ``"true"``. If a request takes much longer than usual, a second one is sent, and the first answer
  is taken.
- ``missing_status``: HTTP statuses such as ``"403"`` or ``"403,410"`` that mean "there is no such key", by default none but 404. It
  is for public buckets that may not be listed. Chunks that the server forbids are then read as fill values, without an error.
- For Icechunk repositories one of ``branch`` (by default ``"main"``), ``tag`` and ``snapshot_id``: one for all of
  `path`, or one for each with commas between them. An empty one chooses nothing.
- For Icechunk repositories and references ``virtual_chunks``: URLs below which the files may be that they refer to.

Keys, passwords and tokens are refused, because DALI serialises arguments. Give them in the environment, in a profile or
by a role.)",
                      Strings{})
      .AddOptionalArg("arrays", R"(Names of the arrays to read, relative to the store's root group.

Can be left out if the store holds a single array. The function ``fn.zarr_reader`` also takes a dictionary from names of outputs to
arrays.

An entry that is a URL, an absolute path, or begins with ``./`` or ``../`` is the location of an array with a store of
its own. Along `dims` it must have the lengths of the other arrays, and the same coordinates if both have coordinates. If
its dimensions have no names, the first ones are `dims`, by position. It can't be combined with several stores in `path`.)",
                      Strings{})
      .AddOptionalArg("groups", R"(The groups of each store from which samples are cut, by name or by pattern: ``"run_*"``, ``"*/*/*"``.
Each group is like a store of its own, with the same `arrays`, and `concat` is ``"samples"``. ``*`` stands for any
characters of a name and ``?`` for one; ``"*"`` are all groups at the root.

Groups come in the order of the list, those of a pattern by name, where numbers count as numbers. They are found when the
pipeline is built, in the consolidated metadata or by listing. There are at most 65535. `arrays` are relative to each
group. Without `dims` and `window`, each group is one sample, and its arrays are read whole. If `window` has values by
output, outputs without one are read whole.

Samples whose shapes differ between groups are ragged: DALI delivers them as a batch of tensors with these shapes.)",
                      Strings{})
      .AddOptionalArg("stack_arrays", R"(If set, the arrays become the channels of one output of shape ``(C, ...)``.

If an array has dimensions that the others lack (level, ensemble member), it gives one channel for each index along them,
in row-major order. An array that lacks a dimension of the others is repeated along it. All arrays must have the same
type, or `dtype` must be set.)",
                      false)
      .AddOptionalArg("transpose", R"(The order of a sample's dimensions in the outputs, outermost first: their names, or
their positions in the sample, such as ``"-1"`` for the last.

A single text with spaces has several: ``"time ensemble cell variable"``. ``"..."`` stands for all dimensions that aren't
named, in their own order. An output takes the names that it has. The channels of `stack_arrays` have the name
``"channel"`` (or ``"variable"``). The first dimension of ragged outputs stays the first. The outputs of `return_mask` and
`return_index` stay as they are. By default outputs have the order of the arrays. The function ``fn.zarr_reader`` also takes
a dictionary by output.)",
                      Strings{})
      .AddOptionalArg("squeeze", R"(The dimensions of one element that outputs don't have: their names, or their positions in
the sample, such as ``"-1"`` for the last.

A single text with spaces has several. ``"..."`` are all dimensions of one element. A name must be that of a dimension of one
element in each output that has it. `transpose` orders the dimensions that are left. The outputs of `return_mask` and
`return_index` stay as they are. By default nothing is dropped. The function ``fn.zarr_reader`` also takes True for all, and
a dictionary by output.)",
                      Strings{})
      .AddOptionalArg("pick", R"(Indices to take along dimensions before anything else, each in the form
``"DIMENSION=INDEX,INDEX,..."``, for example ``"level=0,5,-1"``.

Negative indices count from the end. The order is kept, and repetitions are allowed. The indices hold for all stores of
`path`, unless there is one list for each store: ``"level=2,5|1,4"`` for two stores. The lists must have the same length,
and are in the order of `path`. Along the dimension that joins stores there is one list, whose indices count over all
stores.

The function ``fn.zarr_reader`` also takes a dictionary ``{dimension: [...]}``, and for single outputs
``{output: {dimension: [...]}}``. Along one of `dims` all outputs must have the same indices. In a dictionary whole numbers
are indices, a list of lists has one list for each store, and floating-point numbers are labels. Labels are looked up in
each store, in the array with the dimension's name, in the group of `arrays` or the nearest group around it. They are
compared with its values as `mask_and_scale` decodes them, even if the reader's own arrays aren't decoded.)",
                      Strings{})
      .AddOptionalArg("dims", R"(Names of the dimensions along which samples are cut; ``"0"`` or ``"-1"`` is a dimension
by its position.

Other dimensions are read whole. Samples are counted with the first of `dims` moving slowest. By default these are the
dimensions that `window` names, or else the first dimension of the array with most dimensions. All arrays must agree
along `dims`. Their other dimensions may differ, unless they are stacked.)",
                      Strings{})
      .AddOptionalArg("window", R"(For each of `dims`, the number of elements in a sample.

``0`` means one element, with the dimension dropped from the sample's shape; ``-1`` means all elements between
`roi_start` and `roi_end`. By default all are ``0``.

The function ``fn.zarr_reader`` also takes a dictionary by dimension, ``{"time": 2, "lat": 64}``, as for all arguments
"for each of `dims`". If `dims` isn't given, it is then the dimensions of this dictionary. `window` and `stride` may
differ by output: ``{"image": {"time": 2}, "action": {"time": 16}}``. All windows of a sample begin at its start.)",
                      Integers{})
      .AddOptionalArg("step", R"(For each of `dims`, the distance between the starts of neighbouring samples, the first
of which is `roi_start`.

By default it is `window`, but at least one, so samples don't overlap. If windows differ by output, it is the longest.)",
                      Integers{})
      .AddOptionalArg("overlap", R"(Another way to give `step`: for each of `dims`, `step` is the (longest) window minus `overlap`.
If `stride` is 1, neighbouring samples share `overlap` elements. With a larger `stride` their windows interleave.)",
                      Integers{})
      .AddOptionalArg("scale_by", R"(Reads arrays whose elements have other sizes beside each other: a sample is the same box in
each of them, around the same centre. `window`, `step` and `overlap` are lengths then, in the unit of the arrays' places.

- ``"coordinates"``: places are those of OME-Zarr's `coordinateTransformations`, or coordinates: evenly spaced numbers in
  the array with the dimension's name. They are centres of elements, as both conventions have it.
- ``"corners"``: the same, but they are taken as places of the elements' first edges. Many writers of pyramids mean these:
  they give all levels of an image the same translation, or none.

Along dimensions without places in the array `grid`, such as times, sizes count elements as without `scale_by`. All else
counts elements of the array `grid`: `starts`, `offsets`, `roi_start`, `roi_end`, `breaks`, `pad_before`, `pad_after`, and what
`return_index` gives. A length must be a multiple of the distance of elements in each array. `scale_method` says where a box
begins that begins between two elements of an array. By default, boxes that don't lie in all arrays are no
samples; see `out_of_bounds_policy`.)",
                      "")
      .AddOptionalArg("scale_method", R"(With `scale_by`: the element of an array at which a box begins that begins between two of its
elements.

- ``"nearest"``: the nearest one; of two, the later one.
- ``"previous"``: the one before, in which the box begins.)",
                      "nearest")
      .AddOptionalArg("grid", R"(With `scale_by`: the name of the output whose array says where samples may start. By default it is the
first one. If it is the array with the largest elements, boxes begin with an element in all arrays.)",
                      "")
      .AddOptionalArg("random_crop", R"(Dimensions among `dims`, by name or position, along which each sample starts at a
random place. The place is drawn anew in each epoch, uniformly from all places where `window` fits.

These dimensions don't multiply the samples: with samples along time and ``random_crop=["latitude", "longitude"]``, there
is one sample for each time. The start depends only on the seed, the epoch and the sample's number (with `weights` on the
position of the draw). `return_index` shows it. For these dimensions `step` must be ``0`` or not given. If the window is
larger than the region, ``out_of_bounds_policy="pad"`` makes it start where the region starts.)",
                      Strings{})
      .AddOptionalArg<int64_t>("samples_per_volume", R"(How many samples there are for each start. Each has its own random
starts along `random_crop`. If a single volume is cropped in all its dimensions, this is the number of samples of an
epoch.)",
                               int64_t{1})
      .AddOptionalArg<std::string>("starts", R"(Where samples start, instead of at every `step`. It is a table of whole numbers
with one row for each sample and one column for each of `dims`. With ``concat="samples"`` there is one more column in
front, the number of the store.

The table is a ``.npy`` file or a Zarr array. Give a path (absolute, a URL, or one that begins with ``./``), or the name of
an array in `path`. The functions of the package also take an array in memory. Samples come in the order of the rows, or
shuffled. A sample's number is that of its row. `out_of_bounds_policy` holds for each row: ``"error"`` names the first row
that is out of bounds, ``"pad"`` fills, and ``"drop"`` leaves the row out, so that numbers count the rows that are left.
`step`, `overlap` and `random_crop` can't be given with it.)",
                                   nullptr)
      .AddOptionalArg("stride", R"(For each of `dims`, the distance between neighbouring elements of a sample.

By default ``1``.)",
                      Integers{})
      .AddOptionalArg("offsets", R"(Offsets from the sample's start along the first of `dims`. Each gives one group of
outputs.

With ``offsets=[0, 1]`` the outputs are a window and the window that starts one element later. Negative offsets are
allowed. Only the given offsets are read: without 0, nothing is read at the start itself.)",
                      Integers{})
      .AddOptionalArg("roi_start", R"(For each of `dims`, the first element that samples may touch.

Negative values count from the end. By default ``0``.)",
                      Integers{})
      .AddOptionalArg("roi_end", R"(For each of `dims`, one past the last element that samples may touch.

Negative values count from the end. By default the dimension's length.)",
                      Integers{})
      .AddOptionalArg("breaks", R"(Elements along the first of `dims` at which something new begins, for example years that
don't follow each other.

No sample (its window with all `offsets`) may cross a break. What lies beyond the break is out of bounds, and
`out_of_bounds_policy` says what happens. Negative values count from the end.

The function ``fn.zarr_reader`` also takes the name of an array with the ends of segments in each store, such as
``"meta/episode_ends"``: ascending whole numbers, of which the last may equal the length. A URL, an absolute path, or a
path that begins with ``./`` or ``../`` is an array with a store of its own. With `ragged`, ends count rows. ``"auto"``
sets breaks where the coordinates along the dimension aren't evenly spaced: where the distance to the coordinate before
isn't the most common distance (of several that are equally common, the smallest). Differences by rounding don't count. A
list may combine all of these.)",
                      Integers{})
      .AddOptionalArg<Integers>("segments", R"(The numbers of the segments between `breaks` that samples are read
from, for example to split by episodes. Segments are numbered over the whole dimension, even if `roi_start` and `roi_end`
leave only a part of it.

Negative numbers count from the end. Samples keep the order of the store. The function ``fn.zarr_reader`` also takes True
or False for each segment. By default all segments are read.)",
                                            nullptr)
      .AddOptionalArg("missing_dates", R"(What happens to samples that read dates whose data are missing. Stores of
anemoi-datasets list these dates in the attribute ``missing_dates``, and their fields are full of NaN.

- ``"skip"``: they are no samples. With a table of `starts` and `out_of_bounds_policy` ``"error"``, building the pipeline
  fails.
- ``"keep"``: they are samples as all others.

It applies to the array ``data`` if its first dimension is the first of `dims`, and not to ragged rows.)",
                      "skip")
      .AddOptionalArg("fill_missing", R"(What takes the place of data that are missing: of dates that stores of anemoi-datasets
declare missing, and of elements to which ``align`` of the Python package finds none. Samples that read them are then
samples as all others, and the mask of `return_mask` is False for them.

- ``"previous"``: the last element before that isn't missing.
- ``"nan"``: NaN, of floating-point outputs.
- ``"mean"``: the `mean`, which normalisation turns into 0.
- ``"linear"``: the value between the nearest elements before and behind that aren't missing, by the distances of labels.
  Where there is no element on one side, samples are left out.

By default nothing does, and `missing_dates` says what happens to the samples.)",
                      "")
      .AddOptionalArg("concat", R"(How several stores of `path` are put together.

- ``"dims"``: they are joined to one axis, along the first of `dims`.
- ``"samples"``: the samples of one store follow those of another. Stores may have any shapes. If samples have other shapes
  in other stores, because dimensions are read whole or `window` is -1, an output is ragged. Regions and breaks hold for each
  store by itself. A store in which no window fits has no samples. The index of `return_index` begins with the number of the
  store.)",
                      "dims")
      .AddOptionalArg("cross_stores", R"(Whether a sample may reach from one store of `path` into the next. If not, the
borders between stores are `breaks`.)",
                      true)
      .AddOptionalArg("out_of_bounds_policy", R"(What happens to windows that reach beyond the region from `roi_start` to
`roi_end`, or across one of `breaks`.

- ``"error"``: building the pipeline fails.
- ``"drop"``: the window isn't a sample.
- ``"edge"``: elements outside repeat the first or the last element inside.
- ``"pad"``: elements outside get `fill_value`.

With ``"edge"`` and ``"pad"``, if a break divides a sample, the elements on the same side as the sample's start are
inside.)",
                      "drop")
      .AddOptionalArg("pad_before", R"(For each of `dims`: a window may begin at most this many elements before its segment
between `breaks`, with ``out_of_bounds_policy`` ``"pad"`` or ``"edge"``.

With `pad_before` or `pad_after` each segment has its own grid of starts. The first window begins `pad_before` elements
before the segment, the others follow at every `step`, and each ends at most `pad_after` elements after the segment. So an
episode of length ``L`` has windows that begin from ``-pad_before`` to ``L - window + pad_after``, both included. Each of the
two must be smaller than the number of elements that a sample spans. Without them there is one grid of starts, from
`roi_start` to `roi_end`.)",
                      Integers{})
      .AddOptionalArg("pad_after", R"(For each of `dims`: a window may end at most this many elements after its segment. See
`pad_before`.)",
                      Integers{})
      .AddOptionalArg("fill_value", R"(The value of elements outside the region of interest, with
``out_of_bounds_policy="pad"``.

It is a value of the output: it is neither scaled nor normalised, but rounded to the nearest value of the output's type.
The function ``fn.zarr_reader`` also takes a dictionary by output, as for `mask_and_scale`, `dtype`, `mean` and `stddev`.
Elements inside the region that the store doesn't hold have the fill value of their array.)",
                      0.0f)
      .AddOptionalArg("return_mask", R"(If set, there is one more output of bool, after the arrays: False for elements that were
padded or repeated, with ``out_of_bounds_policy`` ``"pad"`` or ``"edge"``.

Its shape is the (longest) window along each of `dims` that the samples' shapes have. With several `offsets` there is one
more dimension in front, with a row for each offset. With `scale_by` there is one mask for each of `arrays`, about its own
elements.)",
                      false)
      .AddOptionalArg("return_index", R"(If set, there is one more output of int64: the start of each sample in each of
`dims`, without offsets. With `breaks` the number of the sample's segment comes before it, and also with
``cross_stores=False`` together with `pad_before` or `pad_after`. The segment may begin after the start.)",
                      false)
      .AddOptionalArg("ragged", R"(An array of the store with offsets, one more than there are samples. Sample ``i``
has the elements from offset ``i`` to offset ``i + 1`` of the arrays that the offsets divide.

With ``ragged="X/indptr"`` and ``arrays=["X/data", "X/indices"]`` samples are the rows of AnnData's CSR matrix. An array with
one element for each row, such as labels, gives the element of the row. The first of `dims` counts rows, and so do
`roi_start`, `roi_end`, `step`, `pick` and `return_index`. There is no `window` for it. Other dimensions are read whole or
cut as usual.

A URL, an absolute path, or a path that begins with ``./`` or ``../`` is an array with a store of its own.

The samples of a ragged output differ in their first dimension, and may be empty. The offsets are read when the pipeline
is built, and each takes 8 bytes of `host_memory_limit`. Batches reserve memory for the longest rows.)",
                      "")
      .AddOptionalArg("ragged_ends", R"(As `ragged`, but by an array of ends, one for each sample. The first sample
starts at 0. For example ``"meta/episode_ends"`` gives whole episodes.)",
                      "")
      .AddOptionalArg<int64_t>("max_length", R"(With `ragged` or `ragged_ends`: the most elements of a sample that are
read.

Longer samples are cut at their end.)",
                               nullptr);
}

void AddValueArguments(dali::OpSchema &schema) {
  schema
      .AddOptionalArg<bool>("mask_and_scale", R"(Whether the attributes ``_FillValue``, ``missing_value``, ``scale_factor``,
``add_offset`` and ``_Unsigned`` are applied as xarray does it: missing values become NaN.

By default it is true for the arrays that have ``scale_factor`` or ``add_offset``, and the log says so. An array that has
only ``_FillValue`` or ``missing_value`` (in Zarr v2 a ``fill_value`` other than 0 and NaN) stays as stored, with a
warning.)",
                            nullptr)
      .AddOptionalArg<float>("fillna", R"(Replaces NaNs, stored or made by `mask_and_scale`, before `mean` and `stddev` are applied.

As with xarray's ``fillna``, it is a value of the decoded array: it is normalised and converted like all others. Elements
that the store lacks are replaced if the array's fill value is NaN. `fill_value` isn't replaced, since it is a value of the
output: with NaN it marks padded elements. Arrays without floating-point values have no NaN. The counter
``nans_replaced`` shows how many were replaced. The function ``fn.zarr_reader`` also takes a dictionary by output.)",
                             nullptr)
      .AddOptionalTypeArg("dtype", R"(The type of the outputs.

By default it is the stored type, the type that `mask_and_scale` gives, or float32 with `mean` or `stddev`.
Conversion to integers rounds to the nearest, ties to even, and saturates; NaN becomes 0.)")
      .AddOptionalArg("mean", R"(Subtracted from the values: one number, one for each of `arrays`, or one for each channel
with `stack_arrays`.

A single array may have one number for each element along one of its dimensions, such as the colours of an image; see
`channels`. The function ``fn.zarr_reader`` also takes a dictionary by output: ``{"action": [...], "image": 127.5}``.)",
                      Numbers{})
      .AddOptionalArg("stddev", R"(Divides the values after `mean` was subtracted: one number, one for each of `arrays`, or
one for each channel, as for `mean`.)",
                      Numbers{})
      .AddOptionalArg("channels", R"(Names of the dimensions whose elements each have their own `mean` and `stddev`, or their
positions among the array's dimensions, with ``"-1"`` for the last.

The numbers of an array are for the elements along these dimensions, in the array's order: for those that `pick` leaves,
and along one of `dims` for all elements of the array. Arrays without these dimensions have one number. By default it is
the only dimension that is read whole and has as many elements as there are numbers. With `stack_arrays` these dimensions
are added to those that the stack makes channels of. The function ``fn.zarr_reader`` also takes a dictionary by output.)",
                      Strings{});
}

void AddOrderArguments(dali::OpSchema &schema) {
  schema
      .AddOptionalArg("random_shuffle", R"(If set, samples come in an order that is drawn anew for each epoch.

Without `stick_to_shard` all samples are shuffled and then divided among the shards; with it each shard shuffles its
own.)",
                      false)
      .AddOptionalArg<int64_t>("initial_fill", R"(The number of samples of a shuffling window, when samples are shuffled and
several of them share a chunk.

Groups of samples that share chunks are drawn at random until they hold about this many samples. These samples are
shuffled and delivered, and then the next groups are drawn. So a chunk is needed only within one window, and is read once
if memory holds the chunks of a window. If each sample has chunks of its own, or the epoch isn't longer than a window, all
samples of the epoch are shuffled together.

By default a window has all samples, if all chunks of the epoch decode to at most 512 MiB. Otherwise it has as many samples
as have chunks of 256 MiB, and at least 1024. This doesn't depend on the machine.)",
                               nullptr)
      .AddOptionalArg("shuffle_after_epoch", R"(If set, the first epoch comes in order, and all samples are shuffled anew
for each later one. The reader keeps to its shard of the new order.

Excludes `random_shuffle` and `stick_to_shard`.)",
                      false)
      .AddOptionalArg<std::string>("weights", R"(How often each sample comes, relative to the others: a table with one number for
each sample, as for torch's ``WeightedRandomSampler``.

It is given like `starts`, with floating-point numbers of at least 0. Each position of an epoch draws a sample. The draw
depends only on the seed, the epoch and the position, so that checkpoints and shards work as for all orders. Draws don't
consider chunks: if chunks hold many samples, they are read often. Excludes `random_shuffle` and `shuffle_after_epoch`.)",
                                   nullptr)
      .AddOptionalArg<int64_t>("num_samples", R"(With `weights`: the number of samples of an epoch. By default it is the
number of samples in the table.)",
                               nullptr)
      .AddOptionalArg("replacement", R"(With `weights`: whether a sample may come several times in an epoch.

If not, `num_samples` may be at most the number of positive weights, and each epoch draws a new list of samples.)",
                      true)
      .AddOptionalArg<int64_t>("seed", R"(Seed of the order, of `weights` and of `random_crop`.

The order of an epoch depends only on the seed, the epoch's number, the samples and, with `initial_fill`, on how they share
chunks. All shards of a data set must be given the same seed. Two shuffled readers with the same seed deliver the same
order only if their samples and chunks are the same. The default ``-1`` is a fixed seed too, the same in every process. The
pipeline's seed isn't used. It may differ on each rank, for the random operators behind the reader.)",
                               int64_t{-1})
      .AddOptionalArg<int64_t>("shard_id", R"(Which shard this reader delivers, from 0 to ``num_shards - 1``.)",
                               int64_t{0})
      .AddOptionalArg<int64_t>("num_shards", R"(The number of shards that divide the samples.

An epoch has ``N`` positions. Shard ``s`` of ``S`` has those from ``N * s // S`` to ``N * (s + 1) // S``, the last one excluded.)",
                               int64_t{1})
      .AddOptionalArg("stick_to_shard", R"(If set, the reader delivers the same shard in every epoch. Otherwise it
delivers the next shard in the next epoch.)",
                      false)
      .AddOptionalArg("pad_last_batch", R"(If set, the last sample of a shard is repeated until the last batch is full and
all shards have the same number of batches. Otherwise a batch that the epoch can't fill continues with samples of the next
epoch.)",
                      false);
}

void AddResourceArguments(dali::OpSchema &schema) {
  schema
      .AddOptionalArg<int64_t>("prefetch_queue_depth", R"(The number of batches that the reader prepares ahead.

By default it is what the memory limits allow, 32 at most. With ``device="cpu"`` it is also at most 512 MiB of batches, but
at least 4 batches.)",
                               nullptr)
      .AddOptionalArg("decode_device", R"(Where chunks are decompressed.

- ``"auto"``: on the GPU if it has a decoder, else on the CPU. While a model trains, idle cores take a part of the GPU's
  chunks.
- ``"gpu"``: on the GPU; an array that it can't decompress is an error.
- ``"cpu"``: on the CPU.)",
                      "auto")
      .AddOptionalArg("on_bad_chunk", R"(What becomes of a chunk whose bytes can't be decoded: they are cut or changed, a
checksum is wrong, or they decode to another size. If the index of a shard is damaged, all its chunks are bad.

- ``"error"``: the batches that need it fail.
- ``"nan"``: its elements are NaN in floating-point outputs, before `fillna` is applied. In other outputs they are the
  array's fill value, as the elements of a missing chunk are.
- ``"skip"``: the next sample of the same epoch and shard takes the place of a sample that needs it. In a caller's order it is
  the next sample of the same batch. So batches, epochs and checkpoints stay as they are.

Bad chunks are logged, counted (``chunks_bad``) and listed. Failures of stores and missing permissions stay errors. A
missing chunk is no bad one.)",
                      "error")
      .AddOptionalArg<int64_t>("device_memory_limit", R"(The most bytes of device memory that the reader holds, with the
outputs that it has not handed over yet. The default gives nearly all of the throughput of 8 GiB. It is at most 2 GiB and
two batches, and in addition the memory for chunks that later batches need again.)",
                               nullptr)
      .AddOptionalArg<int64_t>("host_memory_limit", R"(The most bytes of host memory that the reader holds. If the machine
has less memory, the limit is seven eighths of it.

By default all readers of a process share half of the machine's memory, or of the limit of its control group. Processes that
torchrun starts on one machine divide this half.)",
                               nullptr)
      .AddOptionalArg("io", R"(How chunks of local stores are read.

- ``"posix"``: by system calls.
- ``"gds"``: by GPUDirect Storage (cuFile), which reads to the device what is uncompressed or decompressed there. It is an error
  if cuFile is missing, or with ``device="cpu"``.)",
                      "posix")
      .AddOptionalArg("use_o_direct", R"(Whether chunks of local stores are read past the page cache.

For stores that are larger than memory. It is an error if the file system has no such reads.)",
                      false)
      .AddOptionalArg<int64_t>("cache_size", R"(Bytes of host memory in which encoded chunks are kept, so that later epochs
needn't read them again.

This memory is taken in addition to `host_memory_limit`, as chunks come. If an epoch's chunks don't fit, each epoch finds
about the part of them that fits. The reader assumes that chunks don't change. The default ``0`` keeps none.)",
                               int64_t{0})
      .AddOptionalArg("cache_dir", R"(A folder on a local disk in which encoded chunks of remote stores are kept for later
epochs, and for later pipelines with the same `path`.

Processes of one machine share it. Chunks are written in the background. Up to 64 MiB of host memory hold the chunks that
wait to be written. If the disk is too slow, chunks aren't kept. The folder is trusted like the store: nobody else should
be able to write to it.)",
                      "")
      .AddOptionalArg<int64_t>("cache_dir_size", R"(The most bytes that the files in `cache_dir` may take, of all
processes together.

By default it is half of the disk's free space when the pipeline is built. Files in the cache count as free space.)",
                               nullptr)
      .AddOptionalArg("cache_validate", R"(Whether the reader asks the store, once for each object and pipeline, if what
`cache_dir` holds is still the same.

If false, kept chunks are used without any request. This is for stores that never change.)",
                      true)
      .AddOptionalArg<int64_t>("io_threads", R"(Number of threads that read local stores, or drive the requests to remote
ones.

By default it follows from the number of CPU cores. Processes that torchrun starts on one machine share its cores.)",
                               nullptr)
      .AddOptionalArg<int64_t>("io_concurrency", R"(Number of requests to remote stores under way at a time.

By default ``128``. A request takes no thread, but memory of `host_memory_limit`.)",
                               nullptr)
      .AddOptionalArg<int64_t>("decode_threads", R"(Number of threads that decompress on the CPU.

By default there is one for each CPU core. Processes that torchrun starts on one machine share its cores. While a model
trains, half of these threads decode chunks in the GPU's place, or all of a given number.)",
                               nullptr);
}

// clang-format on

int CountOutputs(const dali::OpSpec &spec) { return engine::num_outputs(Bytes(UserArguments(spec))); }

void DefineSchema(dali::OpSchema &schema) {
  schema.DocStr(kDoc)
      .NumInput(0, 1)
      .InputDevice(0, dali::InputDevice::CPU)
      .InputDox(0, "samples", "TensorList of int64 or int32",
                R"(Which samples the batch has: for each its number, a scalar,
or its row in the output of `return_index`, a list. With this input the order is not the reader's own: the batch has as many
samples as the input.)")
      .OutputFn(CountOutputs)
      .MakeStateful();
#if DALI_ZARR_DALI >= 202
  schema.MakeDefined().SupportCPU().SupportGPU();
#endif
  AddSampleArguments(schema);
  AddValueArguments(schema);
  AddOrderArguments(schema);
  AddResourceArguments(schema);
  // The underscore keeps the argument out of the documentation.
  schema.AddOptionalArg(kOthers, "What the Python package adds to the others.", "");
}

}  // namespace

void DefineSchemas() {
  DefineSchema(dali::SchemaRegistry::RegisterSchema("readers__Zarr"));
  auto &alias = dali::SchemaRegistry::RegisterSchema("ZarrReader");
#if DALI_ZARR_DALI >= 204
  alias.MakeDefined().AliasFor("readers__Zarr");
#else
  DefineSchema(alias);
#endif
}

}  // namespace dali_zarr
