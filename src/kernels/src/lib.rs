//! The CUDA kernels of dali-zarr as one fat binary, and the structures that host and device share.
//!
//! The structures mirror `cuda/layout.cuh`; both sides assert their sizes. How the kernels are launched is said beside
//! each of them under `cuda/`; [`host`] is their element function and arithmetic on the CPU.

pub mod host;
pub mod zstd;
pub mod zstd_plan;

/// All kernels: machine code for the architectures of `build.rs`, and PTX for the others. Contains `dz_assemble`,
/// `dz_assemble_fill`, `dz_assemble_channels`, `dz_checksum`, `dz_gather`, `dz_lz4`, `dz_zstd_entropy`, `dz_zstd_sequences`
/// and those of [`INFLATE`] and [`zstd::EXECUTE`].
pub const FATBIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin"));

/// A version of CUDA.
pub struct Cuda {
    /// Its first number.
    pub major: i32,
    /// The first of NVIDIA's drivers for it.
    pub driver: u32,
}

/// The CUDA that compiled the kernels. Drivers of this one and of later ones load them.
pub const CUDA: Cuda =
    if cfg!(dali_zarr_cuda_12) { Cuda { major: 12, driver: 525 } } else { Cuda { major: 13, driver: 580 } };

/// Elements of a [`Job`]'s box that one block of `dz_assemble` moves: a job has `ceil(elements / TILE)` tiles.
pub const TILE: u32 = 8192;

/// Threads in a block of the kernels that assemble, verify checksums and gather.
pub const THREADS: u32 = 256;

/// The kernels that decode raw deflate streams, a block of threads for each, with the threads in their blocks.
pub const INFLATE: [(&str, u32); 2] = [("dz_inflate_512", 512), ("dz_inflate_256", 256)];

/// Bytes that one block of `dz_gather` moves: a [`CopyJob`] has `ceil(len / GATHER_TILE)` tiles.
pub const GATHER_TILE: u32 = 64 * 1024;

/// Which of [`INFLATE`] suits so many streams, on a device with so many multiprocessors: the first as long as all streams
/// run at once. Each multiprocessor has the registers for 1024 threads of these kernels. Fewer threads than the second's
/// are slower for any number of streams, short ones too.
pub fn inflate_kernel(streams: usize, multiprocessors: u32) -> usize {
    let room = u64::from(multiprocessors) * 1024;
    let fits = |&(_, threads): &(&str, u32)| streams as u64 * u64::from(threads) <= room;
    INFLATE.iter().position(fits).unwrap_or(INFLATE.len() - 1)
}

/// Dimensions of one [`Job`] at most. Boxes with more are cut into several jobs by the host.
pub const MAX_DIMS: usize = 8;

/// Where a [`Job`] takes its elements from.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Decoded chunk memory at [`Job::src`].
    Chunk = 0,
    /// The array's fill value, [`Op::fill`], which then goes through the operation like any stored element.
    Fill = 1,
    /// [`Op::pad`], cast to the output's type and nothing else: elements outside the region of interest.
    Pad = 2,
}

/// Missing values that an [`Op`] has room for.
pub const MAX_INLINE: usize = 2;

/// [`Op::has_norm`] of an operation whose elements have the mean and stddev of their channel, from a table. Its jobs say by
/// [`Job::set_channels`] which channel an element is of, and have at most [`MAX_DIMS`]` - 1` dimensions. `dz_assemble_channels`
/// takes these operations, and the other kernels all others.
pub const NORM_TABLE: i32 = 2;

/// What happens to each element between chunk and output. Types are `DType` discriminants of the engine.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Op {
    /// Type of the stored elements (after `_Unsigned`).
    pub src_dtype: i32,
    /// Type of the output's elements.
    pub dst_dtype: i32,
    /// Nonzero: the stored bytes of each element are in the other byte order.
    pub swap: i32,
    /// How many stored values mean "missing".
    pub num_missing: i32,
    /// Nonzero: multiply by `scale`, in float64; or, if `decoded` is int64, convert to int64 and multiply there, modulo 2^64.
    /// There is no missing value and no offset then.
    pub has_scale: i32,
    /// Nonzero: add `offset`, in float64, after `scale`, without contraction to one rounding.
    pub has_offset: i32,
    /// Nonzero: subtract `mean` and divide by `stddev`, in float64. See also [`NORM_TABLE`].
    pub has_norm: i32,
    /// The type that decoding by CF conventions yields: after `scale` and after `offset` the value is rounded to it, if it
    /// is float32 or float16.
    pub decoded: i32,
    /// Stored values that mean "missing" and become NaN, as bits of `src_dtype` in native order, zero-extended. If there are
    /// more than fit, the first entry is the address of all of them: float64, in ascending order.
    pub missing: [u64; MAX_INLINE],
    /// The array's fill value: bits of `src_dtype` in native order, zero-extended.
    pub fill: u64,
    /// See `has_scale`. In int64, the bits of the factor.
    pub scale: f64,
    /// See `has_offset`.
    pub offset: f64,
    /// See `has_norm`. With a table, its address as bits: for each channel the mean and the stddev, float64.
    pub mean: f64,
    /// See `has_norm`.
    pub stddev: f64,
    /// The value of elements outside the region of interest.
    pub pad: f64,
    /// See `has_fillna`.
    pub fillna: f64,
    /// Nonzero: replace NaNs, stored or made by what comes before, by `fillna`, then go on with `mean` and `stddev`. Not beside a
    /// factor in int64, which leaves no NaN.
    pub has_fillna: i32,
    /// The number of the counter to which replaced elements are added.
    pub counter: i32,
}

impl Op {
    /// Converts from one type to another, both `DType` discriminants, and does nothing else.
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
/// A block of `len` bytes holds `n = floor(len / typesize)` elements of the shuffle. The bytes behind them are not moved.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffle {
    /// Not at all.
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
    /// Bytes of a block, at least 1. The chunk's last block is shorter if they don't divide the chunk.
    pub blocksize: u32,
    /// A [`Shuffle`].
    pub shuffle: u8,
    /// Bytes of an element of the shuffle, at least 1; not always those of the array's elements.
    pub typesize: u8,
    /// Zero.
    pub reserved: u16,
}

impl Layout {
    /// The bytes in their true order. The other fields mean nothing then.
    pub const NONE: Self = Self { nbytes: 0, blocksize: 0, shuffle: Shuffle::None as u8, typesize: 0, reserved: 0 };
}

/// One box of elements to be moved from a decoded chunk (or from nothing) into an output.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Address of the box's first element in the decoded chunk; if the chunk is shuffled, address of the chunk's first
    /// byte. Unused unless `source` is [`Source::Chunk`].
    pub src: u64,
    /// Address of the box's first element in the output.
    pub dst: u64,
    /// Index into the table of [`Op`]s.
    pub op: u32,
    /// A [`Source`].
    pub source: u32,
    /// Dimensions in use, at least 1.
    pub ndim: u32,
    /// In a plan, the number of the output that `dst` is counted from. 0 for the kernels.
    pub output: u32,
    /// Elements along each dimension, innermost last; each at least 1.
    pub extent: [u32; MAX_DIMS],
    /// Distance in elements of the source; may be 0 (broadcast) or negative.
    pub src_stride: [i64; MAX_DIMS],
    /// Distance in elements of the output.
    pub dst_stride: [i64; MAX_DIMS],
    /// How the chunk is shuffled. Unused unless `source` is [`Source::Chunk`].
    pub layout: Layout,
    /// If the chunk is shuffled: where the box's first element begins, in bytes of the chunk in true order. Else unused.
    pub src_offset: u32,
}

impl Job {
    /// A box of elements of a chunk that isn't shuffled, for the first operation: addresses of its first element in the chunk and in
    /// the output, and for each dimension, innermost last, the elements and the distances of the two.
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

    /// Says which channel each element is of, for operations with [`NORM_TABLE`]: along dimension `dim` the first elements are of
    /// channel `first`, and each next ones of the channel `step` further. The entries of the arrays that no dimension uses keep it.
    ///
    /// # Panics
    /// If all dimensions are in use, or there is no such dimension.
    pub fn set_channels(&mut self, dim: usize, first: i64, step: i64) {
        assert!(
            dim < self.ndim as usize && self.ndim < MAX_DIMS as u32,
            "a job with a dimension of channels, and a free entry"
        );
        let last = MAX_DIMS - 1;
        (self.extent[last], self.src_stride[last], self.dst_stride[last]) = (dim as u32, first, step);
    }

    /// What [`Self::set_channels`] said: the dimension, its first channel, and the distance to the next one.
    pub const fn channels(&self) -> (usize, i64, i64) {
        let last = MAX_DIMS - 1;
        (self.extent[last] as usize, self.src_stride[last], self.dst_stride[last])
    }

    /// Says in what order the bytes of the chunk lie, whose first byte is at `base`, with `src` in it.
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

/// A checksum that a codec carries.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumKind {
    /// Of gzip, RFC 1952.
    Crc32 = 0,
    /// Of zlib, RFC 1950.
    Adler32 = 1,
    /// The low 32 bits of XXH64 with seed 0, of zstd frames, RFC 8878.
    Xxh64Low = 2,
    /// Castagnoli's, RFC 3720.
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
    /// What the codec says.
    pub expected: u32,
}

/// What `dz_checksum` writes for each buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChecksumResult {
    /// Nonzero: `found` is not what was expected.
    pub mismatch: u32,
    /// The checksum of the decoded bytes.
    pub found: u32,
}

/// Threads of a block of `dz_lz4`: a warp that reads headers, and the others that write.
pub const LZ4_THREADS: u32 = 128;

/// What a stream that `dz_lz4` decodes is.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// A raw LZ4 block, without a size before it.
    Lz4 = 0,
    /// A raw Snappy block.
    Snappy = 1,
    /// The decoded bytes as they are.
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
    /// Bytes.
    pub len: u64,
}

const _: () = assert!(size_of::<Op>() == 112 && size_of::<Job>() == 208 && size_of::<Layout>() == 12);
const _: () = assert!(size_of::<ChecksumJob>() == 24 && size_of::<ChecksumResult>() == 8 && size_of::<CopyJob>() == 24);
