//! Chains of codecs: [`Step`] is what every codec does, [`Chain`] undoes one after the other on the CPU.
//!
//! A step turns bytes into bytes. The metadata say how many there are at each point of the chain, up to the first
//! compressor; from there on a limit is known. Nothing that a chunk claims about itself makes a step take more memory than
//! that, and a chunk decodes to exactly the size of its shape or to an error.

use std::fmt::Debug;
use std::ops::Range;

use super::{Compression, wrong_size};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// One codec of a chain, with its configuration.
pub(super) trait Step: Debug + Send + Sync {
    /// What it makes of `side` when it encodes; `Err` says why it can't stand there.
    fn encoded_side(&self, side: &Side) -> Result<Side, String>;

    /// Fills `out` with what `input` decodes to: elements of `shape`, if the codec is one of elements.
    ///
    /// # Errors
    /// If `input` is damaged, or decodes to another size.
    fn decode(&self, input: &[u8], shape: &[u64], out: &mut [u8]) -> Result<()>;

    /// As [`Step::decode`], to at most `limit` bytes: behind a compressor, where their number isn't known.
    fn decode_at_most(&self, input: &[u8], _limit: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; input.len()];
        self.decode(input, &[], &mut out)?;
        Ok(out)
    }

    /// Where the decoded bytes lie in the encoded ones, if they are there as they are.
    ///
    /// # Errors
    /// If what stands beside them is wrong.
    fn inside(&self, _encoded: &[u8]) -> Result<Option<Range<usize>>> {
        Ok(None)
    }

    /// How the GPU undoes it.
    fn on_gpu(&self) -> OnGpu {
        OnGpu::No
    }

    /// See [`super::ChunkFormat::usual_encoded_bytes`].
    fn usual_encoded_bytes(&self, decoded: usize) -> usize {
        decoded
    }

    /// See [`super::ChunkFormat::max_encoded_bytes`].
    fn max_encoded_bytes(&self, decoded: usize) -> usize {
        self.usual_encoded_bytes(decoded)
    }

    /// The most bytes that are taken where another codec encodes them once more. How many there are is only known when that one is
    /// undone, so that memory for the longest must be there.
    fn max_inside(&self, decoded: usize) -> usize {
        self.usual_encoded_bytes(decoded)
    }

    /// Bytes that decoding takes beside input and output, where that depends on the chunk.
    fn working_bytes(&self, _decoded: usize) -> usize {
        0
    }
}

/// How the GPU undoes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnGpu {
    /// It doesn't.
    No,
    /// By decoding the streams of the chunk.
    Streams(Compression),
    /// While a batch is assembled: bytes of elements of that size are shuffled.
    Shuffle(usize),
    /// The host takes it off: see [`Step::inside`].
    Seal,
}

/// How many bytes there are between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Exactly(usize),
    AtMost(usize),
}

/// What is known of one side of a step.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub size: Size,
    pub shape: Vec<u64>,
    pub dtype: DType,
}

impl Side {
    /// How many elements of `size` bytes there are.
    pub fn elements(&self, size: usize) -> Result<usize, String> {
        match self.size {
            Size::AtMost(_) => Err("a filter of elements stands behind a compressor".to_owned()),
            Size::Exactly(bytes) if bytes.is_multiple_of(size) => Ok(bytes / size),
            Size::Exactly(bytes) => Err(format!("{bytes} bytes aren't a whole number of elements of {size} bytes")),
        }
    }

    /// With each of the elements of type `from` turned into one of type `to`.
    pub fn converted(&self, from: DType, to: DType) -> Result<Self, String> {
        let bytes = self.elements(from.size())?.checked_mul(to.size());
        let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok());
        let size = Size::Exactly(bytes.ok_or("it doesn't fit into memory")?);
        Ok(Self { size, shape: self.shape.clone(), dtype: to })
    }
}

/// The codecs of an array, those excepted that the assembler undoes: a transposition first, and the byte order.
#[derive(Debug)]
pub struct Chain {
    names: String,
    /// In the order in which they encode.
    steps: Vec<Box<dyn Step>>,
    /// See [`Chain::packed`].
    packed: Option<(Option<Compression>, u8)>,
}

impl From<Compression> for Chain {
    fn from(compression: Compression) -> Self {
        Self::new(compression.name().into(), vec![Box::new(super::pack::Packer::Common(compression))])
    }
}

/// The bytes between two steps.
enum Held<'a> {
    Borrowed(&'a [u8]),
    Owned(Vec<u8>, Range<usize>),
}

impl Held<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes, range) => &bytes[range.clone()],
        }
    }

    fn narrow(self, inside: Range<usize>) -> Self {
        match self {
            Self::Borrowed(bytes) => Self::Borrowed(&bytes[inside]),
            Self::Owned(bytes, range) => Self::Owned(bytes, range.start + inside.start..range.start + inside.end),
        }
    }
}

impl From<Vec<u8>> for Held<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        let all = 0..bytes.len();
        Self::Owned(bytes, all)
    }
}

impl Chain {
    /// The codecs `steps`, with these `names` in messages.
    pub(super) fn new(names: String, steps: Vec<Box<dyn Step>>) -> Self {
        let packed = packed(&steps);
        let names = match (steps.as_slice(), packed) {
            ([], _) => "uncompressed".into(),
            ([_], Some((Some(compression), _))) => compression.name().into(),
            _ => names,
        };
        Self { names, steps, packed }
    }

    /// The codecs' names, in the order in which they encode.
    pub fn names(&self) -> &str {
        &self.names
    }

    /// Whether bytes are stored as they are.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether the GPU may decode it: one compressor or none, perhaps with a byte shuffle before it and checksums after it.
    pub(super) fn is_for_gpu(&self) -> bool {
        self.packed.is_some() && !self.is_empty()
    }

    /// The compressor of a chain that the GPU may decode. `None`: bytes are stored as they are.
    pub fn compression(&self) -> Option<Compression> {
        self.packed.and_then(|(compression, _)| compression)
    }

    /// Bytes of an element of the byte shuffle of a chain that the GPU may decode. 1: there is no shuffle, except Blosc's own.
    pub fn shuffle(&self) -> u8 {
        self.packed.map_or(1, |(_, shuffle)| shuffle)
    }

    /// See [`Compression::typical_stream`].
    pub fn typical_stream(&self, decoded: usize) -> usize {
        self.compression().map_or(decoded, |c| c.typical_stream(decoded))
    }

    /// Which part of `encoded` lies inside the checksums that were computed last, which are verified.
    ///
    /// # Errors
    /// If one of them is wrong.
    pub fn unseal(&self, encoded: &[u8]) -> Result<Range<usize>> {
        let mut range = 0..encoded.len();
        for step in self.steps.iter().rev().take_while(|step| step.on_gpu() == OnGpu::Seal) {
            if let Some(inside) = step.inside(&encoded[range.clone()])? {
                range = range.start + inside.start..range.start + inside.end;
            }
        }
        Ok(range)
    }

    /// See [`super::ChunkFormat::usual_encoded_bytes`]: what each step adds, at most, to what the one before wrote.
    pub(super) fn usual_encoded_bytes(&self, decoded: usize) -> usize {
        self.steps.iter().fold(decoded, |bytes, step| step.usual_encoded_bytes(bytes))
    }

    /// See [`super::ChunkFormat::max_encoded_bytes`].
    pub(super) fn max_encoded_bytes(&self, decoded: usize) -> usize {
        self.steps.iter().fold(decoded, |bytes, step| step.max_encoded_bytes(bytes))
    }

    /// The most bytes that decoding holds at a time, beside the encoded chunk and the decoded one.
    pub(super) fn scratch_bytes(&self, decoded: usize) -> usize {
        let mut sizes = vec![decoded];
        for step in &self.steps {
            sizes.push(step.max_inside(sizes[sizes.len() - 1]));
        }
        // Between two steps there is one buffer, and while one runs there are two; but the first step writes to the chunk's own
        // memory, and what the last checksums stand around is read where it lies.
        let sealed = self.steps.iter().rev().take_while(|step| step.on_gpu() == OnGpu::Seal).count();
        let end = self.steps.len() - sealed;
        let buffer = |i: usize| if i == 0 || i == end { 0 } else { sizes[i] };
        let of = |i: usize| {
            let own = self.steps[i].working_bytes(sizes[i]);
            buffer(i).saturating_add(buffer(i + 1)).saturating_add(own)
        };
        (0..end).map(of).max().unwrap_or(0)
    }

    /// Fills `out` with a chunk of elements of `dtype`, which has the shape `stored`, in C order.
    ///
    /// # Errors
    /// If `encoded` is damaged, or decodes to another size.
    pub(super) fn decode(&self, encoded: &[u8], stored: &[u64], dtype: DType, out: &mut [u8]) -> Result<()> {
        match self.steps.as_slice() {
            [] if encoded.len() == out.len() => {
                out.copy_from_slice(encoded);
                return Ok(());
            }
            [] => {
                return Err(Error::runtime(format!(
                    "expected {} uncompressed bytes, but found {}; the chunk is {}",
                    out.len(),
                    encoded.len(),
                    if encoded.len() < out.len() { "truncated" } else { "not what the metadata says" }
                )));
            }
            // Nothing is known about its encoded side.
            [step] if matches!(step.on_gpu(), OnGpu::Streams(_)) => return step.decode(encoded, stored, out),
            _ => {}
        }
        let sides = self.sides(stored, dtype, out.len()).map_err(Error::runtime)?;
        let mut held = Held::Borrowed(encoded);
        for (i, step) in self.steps.iter().enumerate().rev() {
            if let Size::Exactly(expected) = sides[i + 1].size
                && held.bytes().len() != expected
            {
                return Err(wrong_size(expected, held.bytes().len()));
            }
            held = match (step.inside(held.bytes())?, sides[i].size) {
                (Some(inside), _) => held.narrow(inside),
                (None, Size::AtMost(limit)) => step.decode_at_most(held.bytes(), limit)?.into(),
                (None, Size::Exactly(_)) if i == 0 => return step.decode(held.bytes(), &sides[i].shape, out),
                (None, Size::Exactly(size)) => {
                    let mut bytes = vec![0; size];
                    step.decode(held.bytes(), &sides[i].shape, &mut bytes)?;
                    bytes.into()
                }
            };
        }
        let decoded = held.bytes();
        if decoded.len() != out.len() {
            return Err(wrong_size(out.len(), decoded.len()));
        }
        out.copy_from_slice(decoded);
        Ok(())
    }

    /// The decoded side of each step, and the encoded side of the last; `Err` says which step doesn't fit.
    fn sides(&self, stored: &[u64], dtype: DType, decoded: usize) -> Result<Vec<Side>, String> {
        let mut sides = Vec::with_capacity(self.steps.len() + 1);
        sides.push(Side { size: Size::Exactly(decoded), shape: stored.to_vec(), dtype });
        for (i, step) in self.steps.iter().enumerate() {
            sides.push(step.encoded_side(&sides[i])?);
        }
        Ok(sides)
    }
}

/// The compressor, and the size of the elements whose bytes were shuffled before it (1: they weren't), if there is nothing else but
/// checksums of what is encoded.
fn packed(steps: &[Box<dyn Step>]) -> Option<(Option<Compression>, u8)> {
    let mut steps = steps.iter().map(|step| step.on_gpu()).peekable();
    let (mut compression, mut shuffle) = (None, 1);
    if let Some(OnGpu::Shuffle(size)) = steps.peek() {
        shuffle = u8::try_from((*size).max(1)).ok()?;
        steps.next();
    }
    if let Some(OnGpu::Streams(found)) = steps.peek() {
        compression = Some(*found);
        steps.next();
    }
    // Blosc shuffles itself; both at once have no layout.
    let twice = shuffle > 1 && matches!(compression, Some(Compression::Blosc(..)));
    (steps.all(|step| step == OnGpu::Seal) && !twice).then_some((compression, shuffle))
}

#[cfg(test)]
#[path = "tests_chain.rs"]
mod tests;
