//! Decoders of a single compressed stream, which take it piece by piece ([`IncrementalDecoder`]).

/// What one step of a decoder did.
pub(super) struct Progress {
    /// Bytes that were read.
    pub read: usize,
    /// Bytes that were written.
    pub written: usize,
    /// Whether the stream has ended.
    pub ended: bool,
}

/// A decoder of a single compressed stream.
pub(super) trait IncrementalDecoder {
    /// Decodes a part of `input` to `out`.
    fn step(&mut self, input: &[u8], out: &mut [u8]) -> Result<Progress, String>;
}

impl IncrementalDecoder for flate2::Decompress {
    fn step(&mut self, input: &[u8], out: &mut [u8]) -> Result<Progress, String> {
        let (read, written) = (self.total_in(), self.total_out());
        let status = self.decompress(input, out, flate2::FlushDecompress::Finish).map_err(|e| e.to_string())?;
        let (read, written) = ((self.total_in() - read) as usize, (self.total_out() - written) as usize);
        Ok(Progress { read, written, ended: status == flate2::Status::StreamEnd })
    }
}

impl IncrementalDecoder for bzip2::Decompress {
    fn step(&mut self, input: &[u8], out: &mut [u8]) -> Result<Progress, String> {
        let (read, written) = (self.total_in(), self.total_out());
        let status = self.decompress(input, out).map_err(|e| e.to_string())?;
        let (read, written) = ((self.total_in() - read) as usize, (self.total_out() - written) as usize);
        Ok(Progress { read, written, ended: status == bzip2::Status::StreamEnd })
    }
}

impl IncrementalDecoder for zstd_safe::DCtx<'_> {
    fn step(&mut self, input: &[u8], out: &mut [u8]) -> Result<Progress, String> {
        let mut input = zstd_safe::InBuffer::around(input);
        let mut output = zstd_safe::OutBuffer::around(out);
        let hint = self
            .decompress_stream(&mut output, &mut input)
            .map_err(|code| zstd_safe::get_error_name(code).to_owned())?;
        Ok(Progress { read: input.pos, written: output.pos(), ended: hint == 0 })
    }
}
