//! Decoders of a single compressed stream, which take it piece by piece ([`Stream`]).

/// A decoder of a single compressed stream.
pub(super) trait Stream {
    /// Decodes a part of `input` to `out`. Returns the bytes read, the bytes written, and whether the stream ended.
    fn step(&mut self, input: &[u8], out: &mut [u8]) -> Result<(usize, usize, bool), String>;
}

impl Stream for flate2::Decompress {
    fn step(&mut self, input: &[u8], out: &mut [u8]) -> Result<(usize, usize, bool), String> {
        let (read, written) = (self.total_in(), self.total_out());
        let status = self.decompress(input, out, flate2::FlushDecompress::Finish).map_err(|e| e.to_string())?;
        let counts = ((self.total_in() - read) as usize, (self.total_out() - written) as usize);
        Ok((counts.0, counts.1, status == flate2::Status::StreamEnd))
    }
}

impl Stream for bzip2::Decompress {
    fn step(&mut self, input: &[u8], out: &mut [u8]) -> Result<(usize, usize, bool), String> {
        let (read, written) = (self.total_in(), self.total_out());
        let status = self.decompress(input, out).map_err(|e| e.to_string())?;
        let counts = ((self.total_in() - read) as usize, (self.total_out() - written) as usize);
        Ok((counts.0, counts.1, status == bzip2::Status::StreamEnd))
    }
}

impl Stream for zstd_safe::DCtx<'_> {
    fn step(&mut self, input: &[u8], out: &mut [u8]) -> Result<(usize, usize, bool), String> {
        let mut input = zstd_safe::InBuffer::around(input);
        let mut output = zstd_safe::OutBuffer::around(out);
        let hint = self
            .decompress_stream(&mut output, &mut input)
            .map_err(|code| zstd_safe::get_error_name(code).to_owned())?;
        Ok((input.pos, output.pos(), hint == 0))
    }
}
