//! Checks Zstandard frames (RFC 8878) for nvCOMP. A frame's plan (`zstd_plan`) says where its parts
//! lie, and is made for every decoder. This module also reads the tables of the frame's blocks, and compares them with
//! the lengths of the data that they decode. Nothing is decoded.
//!
//! **Changed bits in the sequences of a block, which this check does not decode, can still make nvCOMP access memory out
//! of bounds.**

use dali_zarr_kernels::zstd::{Block, BlockKind, FramePlan, LiteralsKind};

use super::entropy::{self, Huffman};

/// Checks whether nvCOMP may decode the frame `data`, which has this plan.
///
/// # Errors
/// If it may not: the reason, as the end of a sentence.
pub fn check_frame_for_nvcomp(data: &[u8], plan: &FramePlan) -> Result<(), &'static str> {
    // The last table. Later blocks may repeat it; the plan has checked that there is one to repeat.
    let mut huffman = None;
    for (index, block) in plan.blocks.iter().enumerate().filter(|(_, block)| block.kind == BlockKind::Compressed) {
        literals(data, block, block.huffman as usize == index, &mut huffman)?;
        if block.sequences > 0 {
            sequences(&data[block.sequences_at as usize..(block.at + block.size) as usize], block.modes)?;
        }
    }
    Ok(())
}

/// Checks the literals section, 3.1.1.3.1. `own`: whether Huffman-coded literals have their own table.
fn literals(data: &[u8], block: &Block, own: bool, huffman: &mut Option<Huffman>) -> Result<(), &'static str> {
    if matches!(block.literals_kind, LiteralsKind::Raw | LiteralsKind::Run) {
        return Ok(());
    }
    let mut content = &data[block.literals_at as usize..(block.literals_at + block.literals_size) as usize];
    if own {
        let table = entropy::huffman(content).ok_or("a Huffman table of its zstd frame is damaged")?;
        content = &content[table.used..];
        *huffman = Some(table);
    }
    let table = huffman.ok_or("a block of its zstd frame repeats a Huffman table that was not given")?;
    let count = block.literals as usize;
    let fits = match block.literals_kind {
        LiteralsKind::OneStream => table.fits(content, count),
        _ => four_streams(&table, content, count),
    };
    if fits { Ok(()) } else { Err("the literals of a block of its zstd frame are damaged") }
}

/// Checks the sequences section after its modes, 3.1.1.3.2.
fn sequences(data: &[u8], modes: u8) -> Result<(), &'static str> {
    const BAD: &str = "the sequences of a block of its zstd frame are damaged";
    let mut at = 0;
    // Of literal lengths, offsets and match lengths: the position of the mode's bits, the largest symbol, and the
    // logarithm of the largest table.
    for (shift, max_symbol, max_log) in [(6, 35, 9), (4, 31, 8), (2, 52, 9)] {
        match (modes >> shift) & 3 {
            1 => {
                if data.get(at).is_none_or(|&symbol| usize::from(symbol) > max_symbol) {
                    return Err(BAD);
                }
                at += 1;
            }
            2 => {
                let table = data.get(at..).and_then(|data| entropy::distribution(data, max_symbol, max_log));
                at += table.ok_or("an FSE table of its zstd frame is damaged")?.used;
            }
            _ => {}
        }
    }
    // The plan has checked that the last byte has the end mark.
    if at < data.len() { Ok(()) } else { Err(BAD) }
}

/// Checks four streams of `count` literals in all. A table of the first three streams' sizes precedes them
/// (section 3.1.1.3.1.6).
fn four_streams(table: &Huffman, content: &[u8], count: usize) -> bool {
    let Some((jumps, mut rest)) = content.split_first_chunk::<6>() else { return false };
    let each = count.div_ceil(4);
    let Some(last) = count.checked_sub(3 * each) else { return false };
    for pair in jumps.chunks_exact(2) {
        let size = usize::from(u16::from_le_bytes([pair[0], pair[1]]));
        let Some((stream, after)) = rest.split_at_checked(size) else { return false };
        if !table.fits(stream, each) {
            return false;
        }
        rest = after;
    }
    table.fits(rest, last)
}
