//! The CUDA kernels of dali-zarr as one fat binary, and the structures that host and device share.
//!
//! The structures mirror `cuda/layout.cuh`; both sides assert their sizes. The comment on each kernel in `cuda/` says
//! how to launch it. [`host`] runs the kernels' code on the CPU.

pub mod host;
pub mod zstd;

/// All kernels: machine code for the architectures of `build.rs`, and PTX for others. Contains `dz_assemble`,
/// `dz_assemble_fill`, `dz_assemble_channels`, `dz_assemble_transposed`, `dz_assemble_between`, `dz_checksum`,
/// `dz_gather`, `dz_lz4`, `dz_zstd_entropy`, `dz_zstd_sequences` and the kernels in [`INFLATE`] and [`zstd::EXECUTE`].
pub const FATBIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin"));

/// A version of CUDA.
pub struct Cuda {
    /// Major version.
    pub major: i32,
    /// The oldest driver branch that supports it, e.g. 580.
    pub driver: u32,
}

/// The CUDA version that compiled the kernels. Drivers for this or a later version can load them.
pub const CUDA: Cuda =
    if cfg!(dali_zarr_cuda_12) { Cuda { major: 12, driver: 525 } } else { Cuda { major: 13, driver: 580 } };

/// Elements of a [`Job`]'s box that one block of `dz_assemble` moves: a job has `ceil(elements / TILE)` tiles.
pub const TILE: u32 = 8192;

/// Bytes of a tile of `dz_assemble_transposed` in shared memory. An element has 8 bytes, or 4 if it is smaller.
const TRANSPOSED_BYTES: u32 = 16 * 1024;

/// Threads in a block of the kernels that assemble, verify checksums and gather.
pub const THREADS: u32 = 256;

/// A kernel that decodes raw deflate streams, each with one block of threads.
#[derive(Clone, Copy, Debug)]
pub struct InflateKernel {
    /// Its name in the fat binary.
    pub name: &'static str,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
}

/// The kernels that decode raw deflate streams. With more threads a stream is done sooner.
pub const INFLATE: [InflateKernel; 2] = [
    InflateKernel { name: "dz_inflate_512", threads: 512, shared: 81 << 10 },
    InflateKernel { name: "dz_inflate_256", threads: 256, shared: 56 << 10 },
];

impl InflateKernel {
    /// Returns how many blocks run at once on a multiprocessor where a block may have `shared` bytes of shared memory.
    ///
    /// A multiprocessor has registers for 1,024 threads of these kernels. It keeps 1 KiB of shared memory for each block.
    fn resident(&self, shared: u32) -> u32 {
        (1024 / self.threads).min((shared + 1024) / (self.shared + 1024))
    }
}

/// Bytes that one block of `dz_gather` moves: a [`CopyJob`] has `ceil(len / GATHER_TILE)` tiles.
pub const GATHER_TILE: u32 = 64 * 1024;

/// Returns the index in [`INFLATE`] of the kernel to use for this number of streams. It is the first kernel with which all
/// streams run at once, or else the one with the most threads at once.
///
/// `shared`: bytes of shared memory that a block may have on the device, at least 64 KiB.
pub fn inflate_kernel(streams: usize, multiprocessors: u32, shared: u32) -> usize {
    let at_once = |kernel: &InflateKernel| {
        let resident = kernel.resident(shared);
        resident > 0 && streams as u64 <= u64::from(multiprocessors * resident)
    };
    let threads = |&i: &usize| INFLATE[i].resident(shared) * INFLATE[i].threads;
    let most_threads = || (0..INFLATE.len()).max_by_key(threads).expect("there are kernels");
    INFLATE.iter().position(at_once).unwrap_or_else(most_threads)
}

/// Most dimensions of one [`Job`]. The host cuts boxes with more dimensions into several jobs.
pub const MAX_DIMS: usize = 8;

/// Most dimensions of a [`Job`] of [`Source::Between`]. One entry is for the other element, one for channels.
pub const MAX_DIMS_BETWEEN: usize = MAX_DIMS - 2;

/// Where a [`Job`] takes its elements from.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Decoded chunk memory at [`Job::src`].
    Chunk = 0,
    /// The array's fill value, [`Op::fill`], which then goes through the operation like any stored element.
    Fill = 1,
    /// [`Op::pad`], which is only cast to the output's type. For elements outside the region of interest.
    Pad = 2,
    /// Two decoded elements of the type [`Op::decoded`]: one at [`Job::src`], the other one as far from it as
    /// [`Job::set_between`] says. The value between them, by a weight, goes on as one that was decoded:
    /// [`Op::fillna`], [`Op::mean`] and [`Op::stddev`] and the cast follow.
    Between = 3,
}

/// Most missing values that fit into an [`Op`] itself; see [`Op::missing`].
pub const MAX_INLINE: usize = 2;

/// Value of [`Op::has_norm`] for operations that normalise each element by the mean and stddev of its channel, from a
/// table.
///
/// Jobs of these operations set the channels with [`Job::set_channels`], and have at most [`MAX_DIMS`]` - 1`
/// dimensions. `dz_assemble_channels` takes only these operations; `dz_assemble` and `dz_assemble_fill` take all
/// others. `dz_assemble_transposed` and `dz_assemble_between` take any.
pub const NORM_TABLE: i32 = 2;

/// What happens to each element between chunk and output. Types are `DType` discriminants of the engine.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Op {
    /// Type of the stored elements, after the attribute `_Unsigned` was applied.
    pub src_dtype: i32,
    /// Type of the output's elements.
    pub dst_dtype: i32,
    /// Nonzero: the stored bytes of each element are in the other byte order.
    pub swap: i32,
    /// Number of stored values that mean "missing".
    pub num_missing: i32,
    /// Nonzero: multiply by `scale` in float64. But if `decoded` is int64: convert to int64 and multiply in int64,
    /// modulo 2^64; there is then no missing value and no offset.
    pub has_scale: i32,
    /// Nonzero: add `offset` in float64, after `scale`. Both steps round separately (no fused multiply-add).
    pub has_offset: i32,
    /// Nonzero: subtract `mean` and divide by `stddev`, in float64. See also [`NORM_TABLE`].
    pub has_norm: i32,
    /// The type that decoding by CF conventions yields. If it is float32 or float16, the value is rounded to it after
    /// `scale` and again after `offset`.
    pub decoded: i32,
    /// Stored values that mean "missing" and become NaN: bits of `src_dtype` in native byte order, zero-extended. If
    /// there are more than [`MAX_INLINE`], the first entry is the address of a list of all of them: float64, ascending.
    pub missing: [u64; MAX_INLINE],
    /// The array's fill value: bits of `src_dtype` in native byte order, zero-extended.
    pub fill: u64,
    /// See `has_scale`. For a multiplication in int64: the bits of the int64 factor.
    pub scale: f64,
    /// See `has_offset`.
    pub offset: f64,
    /// See `has_norm`. With [`NORM_TABLE`]: the bits of the table's address. The table has two float64 for each
    /// channel, mean and stddev.
    pub mean: f64,
    /// See `has_norm`.
    pub stddev: f64,
    /// The value of elements outside the region of interest.
    pub pad: f64,
    /// See `has_fillna`.
    pub fillna: f64,
    /// Nonzero: replace NaNs by `fillna` (stored NaNs, and those that the steps above made), then apply `mean` and
    /// `stddev`. Never together with a multiplication in int64, which leaves no NaN.
    pub has_fillna: i32,
    /// Index of the counter to which the number of replaced elements is added.
    pub counter: i32,
}

impl Op {
    /// Returns an operation that only converts from one type to another (both are `DType` discriminants).
    pub const fn cast(src_dtype: i32, dst_dtype: i32) -> Self {
        Self {
            src_dtype,
            dst_dtype,
            swap: 0,
            num_missing: 0,
            has_scale: 0,
            has_offset: 0,
            has_norm: 0,
            decoded: 0,
            missing: [0; MAX_INLINE],
            fill: 0,
            scale: 1.0,
            offset: 0.0,
            mean: 0.0,
            stddev: 1.0,
            pad: 0.0,
            fillna: 0.0,
            has_fillna: 0,
            counter: 0,
        }
    }
}

/// How the bytes of a decoded chunk were permuted, in blocks, before they were compressed (Blosc 1's shuffles).
///
/// A block of `len` bytes holds `n = floor(len / typesize)` elements of the shuffle. The bytes after them are not
/// moved.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffle {
    /// Not permuted.
    None = 0,
    /// Byte `j` of element `i` lies at `j * n + i` of its block.
    Byte = 1,
    /// Bit `b` of byte `j` of element `i` lies in bit `i % 8` of byte `i / 8` of row `8 * j + b` of its block, each row
    /// having `n / 8` bytes. A block whose `n` is no multiple of 8 is not permuted.
    Bit = 2,
}

/// The order of the bytes of a decoded chunk: [`Layout::NONE`], or permuted block by block.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the chunk, less than 2^31.
    pub nbytes: u32,
    /// Bytes of a block, at least 1. The chunk's last block is shorter if `nbytes` isn't a multiple of it.
    pub blocksize: u32,
    /// A [`Shuffle`].
    pub shuffle: u8,
    /// Bytes of an element of the shuffle, at least 1. May differ from the size of the array's elements.
    pub typesize: u8,
    /// Zero.
    pub reserved: u16,
}

impl Layout {
    /// The bytes are in their true order. The other fields are unused.
    pub const NONE: Self = Self { nbytes: 0, blocksize: 0, shuffle: Shuffle::None as u8, typesize: 0, reserved: 0 };
}

/// One box of elements to write to an output: from a decoded chunk, or one constant for all elements (see [`Source`]).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Address of the box's first element in the decoded chunk; if the chunk is shuffled, address of the chunk's first
    /// byte. With [`Source::Between`]: address of the first element that was decoded. Otherwise unused.
    pub src: u64,
    /// Address of the box's first element in the output.
    pub dst: u64,
    /// Index into the table of [`Op`]s.
    pub op: u32,
    /// A [`Source`].
    pub source: u32,
    /// Dimensions in use, at least 1.
    pub ndim: u32,
    /// In a plan: the index of the output, and `dst` counts from that output's beginning, and with [`Source::Between`]
    /// `src` too. In jobs for the kernels: 0.
    pub output: u32,
    /// Elements along each dimension, innermost last; each at least 1.
    pub extent: [u32; MAX_DIMS],
    /// Distance between neighbours along each dimension, in elements of the source; may be 0 (broadcast) or negative.
    pub src_stride: [i64; MAX_DIMS],
    /// Distance between neighbours along each dimension, in elements of the output.
    pub dst_stride: [i64; MAX_DIMS],
    /// How the chunk is shuffled. Unused unless `source` is [`Source::Chunk`].
    pub layout: Layout,
    /// If the chunk is shuffled: byte position of the box's first element in the chunk's true order. Otherwise unused.
    pub src_offset: u32,
}

impl Job {
    /// Returns a job with operation 0 that moves a box of elements from a chunk that isn't shuffled.
    ///
    /// `src` and `dst` are the addresses of the box's first element in the chunk and in the output. `dims` gives for
    /// each dimension, innermost last, the number of elements, the stride in the chunk and the stride in the output.
    ///
    /// # Panics
    /// If there are more than [`MAX_DIMS`] dimensions.
    pub fn new(src: u64, dst: u64, dims: impl IntoIterator<Item = (u32, i64, i64)>) -> Self {
        let mut job = Self {
            src,
            dst,
            op: 0,
            source: Source::Chunk as u32,
            ndim: 0,
            output: 0,
            extent: [1; MAX_DIMS],
            src_stride: [0; MAX_DIMS],
            dst_stride: [0; MAX_DIMS],
            layout: Layout::NONE,
            src_offset: 0,
        };
        for (d, dim) in dims.into_iter().enumerate() {
            (job.extent[d], job.src_stride[d], job.dst_stride[d]) = dim;
            job.ndim += 1;
        }
        job
    }

    /// Sets the channel of each element, for operations with [`NORM_TABLE`]: elements at index `i` of dimension `dim`
    /// belong to channel `first + i * step`. The values are stored in the last entries of `extent`, `src_stride` and
    /// `dst_stride`.
    ///
    /// # Panics
    /// If the job uses all [`MAX_DIMS`] dimensions, or has no dimension `dim`.
    pub fn set_channels(&mut self, dim: usize, first: i64, step: i64) {
        assert!(
            dim < self.ndim as usize && self.ndim < MAX_DIMS as u32,
            "a job with a dimension of channels, and a free entry"
        );
        let last = MAX_DIMS - 1;
        (self.extent[last], self.src_stride[last], self.dst_stride[last]) = (dim as u32, first, step);
    }

    /// Returns the arguments of [`Self::set_channels`]: the dimension, its first channel and the step between channels.
    pub const fn channels(&self) -> (usize, i64, i64) {
        let last = MAX_DIMS - 1;
        (self.extent[last] as usize, self.src_stride[last], self.dst_stride[last])
    }

    /// Makes it a job of [`Source::Between`]. `apart` is the distance from each element to the other one, in elements of
    /// the source. `weight` is that of the other one, from 0 to 1. The value is `a + weight * (b - a)` in float64, each
    /// step rounded, or `a` itself if the weight is 0. The values are stored in the last entries but one of `src_stride`
    /// and `dst_stride`.
    ///
    /// # Panics
    /// If the job has more than [`MAX_DIMS_BETWEEN`] dimensions.
    pub fn set_between(&mut self, apart: i64, weight: f64) {
        assert!(self.ndim as usize <= MAX_DIMS_BETWEEN, "a job with a free entry");
        self.source = Source::Between as u32;
        (self.src_stride[MAX_DIMS_BETWEEN], self.dst_stride[MAX_DIMS_BETWEEN]) = (apart, weight.to_bits() as i64);
    }

    /// Returns the arguments of [`Self::set_between`].
    pub const fn between(&self) -> (i64, f64) {
        (self.src_stride[MAX_DIMS_BETWEEN], f64::from_bits(self.dst_stride[MAX_DIMS_BETWEEN] as u64))
    }

    /// Whether neighbours in the chunk lie along another dimension than neighbours in the output, which lie along the last
    /// one. Then those in the chunk lie along the last dimension but one.
    pub const fn is_transposed(&self) -> bool {
        let n = self.ndim as usize;
        if n < 2 || self.source != Source::Chunk as u32 {
            return false;
        }
        let (near, far) = (self.src_stride[n - 2].unsigned_abs(), self.src_stride[n - 1].unsigned_abs());
        near != 0 && near < far
    }

    /// Returns the number of tiles that `dz_assemble_transposed` cuts the box into; `None` for 2^64 or more. `size` are the
    /// bytes of an element of the output. `tile_shape` in `cuda/transposed.cuh` has the same rules.
    ///
    /// # Panics
    /// If the job has less than two dimensions.
    pub fn transposed_tiles(&self, size: usize) -> Option<u64> {
        let last = self.ndim as usize - 1;
        let (near, far) = (self.extent[last - 1], self.extent[last]);
        let slots = TRANSPOSED_BYTES / if size == 8 { 8 } else { 4 };
        let (near_side, far_side) = (slots / 64, 64);
        let (in_near, in_far) = if near <= near_side {
            (near, far.min((slots / near) & !31))
        } else if far <= far_side {
            (near.min(((slots / (far | 1)) & !31).max(near_side)), far)
        } else {
            (near_side, far_side)
        };
        let tiles = u64::from(near.div_ceil(in_near)) * u64::from(far.div_ceil(in_far));
        self.extent[..last - 1].iter().try_fold(tiles, |n, &extent| n.checked_mul(u64::from(extent)))
    }

    /// Sets the order of the chunk's bytes. `base` is the address of the chunk's first byte.
    pub fn arrange(&mut self, base: u64, layout: Layout) {
        if self.layout.shuffle != Shuffle::None as u8 {
            self.src += u64::from(self.src_offset);
        }
        self.layout = layout;
        self.src_offset = 0;
        if layout.shuffle != Shuffle::None as u8 {
            // Shuffled chunks have less than 2^31 bytes.
            self.src_offset = (self.src - base) as u32;
            self.src = base;
        }
    }
}

/// The algorithm of a codec's checksum.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumKind {
    /// CRC-32 of gzip, RFC 1952.
    Crc32 = 0,
    /// Adler-32 of zlib, RFC 1950.
    Adler32 = 1,
    /// The low 32 bits of XXH64 with seed 0, of zstd frames, RFC 8878.
    Xxh64Low = 2,
    /// CRC-32C (Castagnoli), RFC 3720.
    Crc32c = 3,
}

/// One decoded buffer whose checksum `dz_checksum` verifies.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ChecksumJob {
    /// Address of the buffer, a multiple of 16.
    pub data: u64,
    /// Its length in bytes.
    pub len: u64,
    /// A [`ChecksumKind`].
    pub kind: u32,
    /// The checksum that the encoded data carries.
    pub expected: u32,
}

/// What `dz_checksum` writes for each buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChecksumResult {
    /// Nonzero: `found` differs from [`ChecksumJob::expected`].
    pub mismatch: u32,
    /// The checksum of the decoded bytes.
    pub found: u32,
}

/// Threads of a block of `dz_lz4`: one warp reads headers, the others write output.
pub const LZ4_THREADS: u32 = 128;

/// The format of a stream that `dz_lz4` decodes.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// A raw LZ4 block, without a size before it.
    Lz4 = 0,
    /// A raw Snappy block.
    Snappy = 1,
    /// Uncompressed bytes.
    Stored = 2,
}

/// One piece of device memory that `dz_gather` copies. Any alignment; source and destination don't overlap.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopyJob {
    /// Address of the first byte to read.
    pub src: u64,
    /// Address of the first byte to write.
    pub dst: u64,
    /// Bytes to copy.
    pub len: u64,
}

const _: () = assert!(size_of::<Op>() == 112 && size_of::<Job>() == 208 && size_of::<Layout>() == 12);
const _: () = assert!(size_of::<ChecksumJob>() == 24 && size_of::<ChecksumResult>() == 8 && size_of::<CopyJob>() == 24);
