//! Packing: from row-major checkpoints to panels.
//!
//! ```text
//! f32   [panel][input][output]
//! bf16  [panel][input / 2][output][2]
//! int8  [panel][group]{ f32 scale[output], i32 -128 * sum[output], i8 [input / 4][output][4] };
//!       where they are widened to 16 bits, i8 [input / 2][output][2] instead
//! ```
//!
//! Missing outputs of the last panel and missing inputs of the last pair, quad or tile are zero.

use half::bf16;

use super::super::memory::Region;
use super::int8::{Form, GROUP, QUAD};
use super::{Format, PackError, PackedLinear, WeightView};
use crate::isa::Isa;

/// See [`PackedLinear::pack`].
pub(super) fn pack(
    region: &mut Region,
    isa: Isa,
    format: Format,
    parts: &[WeightView<'_>],
    bias: Option<&[f32]>,
) -> Result<PackedLinear, PackError> {
    let inputs = parts.first().map_or(0, |part| part.cols);
    let mut outputs = 0;
    for part in parts {
        part.check()?;
        if part.cols != inputs {
            return Err(PackError::Inputs(inputs, part.cols));
        }
        outputs += part.rows;
    }
    if outputs == 0 || inputs == 0 {
        return Err(PackError::Empty);
    }
    if let Some(found) = bias.map(<[f32]>::len).filter(|found| *found != outputs) {
        return Err(PackError::Bias {
            wanted: outputs,
            found,
        });
    }
    let panel = panel_outputs(isa, format);
    let panel_bytes = panel_bytes(isa, format, panel, inputs);
    let panels = outputs.div_ceil(panel);
    let mut data = region.zeroed(panels * panel_bytes);
    let mut row = vec![0.0; inputs];
    let all = parts.iter().flat_map(|part| {
        let width = part.cols * part.source.bytes();
        part.bytes
            .chunks_exact(width)
            .map(|bytes| (part.source, bytes))
    });
    for (output, (source, bytes)) in all.enumerate() {
        source.widen(bytes, &mut row);
        let to = &mut data[output / panel * panel_bytes..][..panel_bytes];
        match format {
            Format::F32 => put_f32(to, &row, panel, output % panel),
            Format::Wide | Format::Dot | Format::Amx => put_bf16(to, &row, panel, output % panel),
            Format::Int8 => put_int8(to, &row, Form::of(isa), (panel, output % panel)),
        }
    }
    let mut padded_bias = region.zeroed(if bias.is_some() { panels * panel } else { 0 });
    if let Some(bias) = bias {
        padded_bias[..outputs].copy_from_slice(bias);
    }
    Ok(PackedLinear {
        isa,
        format,
        outputs,
        inputs,
        panel,
        panel_bytes,
        data,
        bias: padded_bias,
    })
}

/// Outputs of a panel: two vectors where there are 32 registers, one elsewhere.
fn panel_outputs(isa: Isa, format: Format) -> usize {
    match (isa, format) {
        (Isa::Portable | Isa::Avx2, _) | (Isa::Avx512, Format::Int8) => 16,
        _ => 32,
    }
}

fn panel_bytes(isa: Isa, format: Format, panel: usize, inputs: usize) -> usize {
    match format {
        Format::F32 => inputs * panel * 4,
        Format::Wide | Format::Dot => inputs.next_multiple_of(2) * panel * 2,
        Format::Amx => inputs.next_multiple_of(32) * panel * 2,
        Format::Int8 => {
            let depth = if isa == Isa::Amx { 64 } else { QUAD };
            inputs.div_ceil(GROUP) * panel * 8 + inputs.next_multiple_of(depth) * panel
        }
    }
}

fn put_f32(to: &mut [u8], row: &[f32], panel: usize, output: usize) {
    for (line, w) in to.chunks_exact_mut(panel * 4).zip(row) {
        line[output * 4..][..4].copy_from_slice(&w.to_ne_bytes());
    }
}

fn put_bf16(to: &mut [u8], row: &[f32], panel: usize, output: usize) {
    for (line, pair) in to.chunks_exact_mut(panel * 4).zip(row.chunks(2)) {
        for (i, w) in pair.iter().enumerate() {
            let at = output * 4 + i * 2;
            line[at..][..2].copy_from_slice(&bf16::from_f32(*w).to_ne_bytes());
        }
    }
}

fn put_int8(to: &mut [u8], row: &[f32], form: Form, (panel, output): (usize, usize)) {
    let whole = panel * (8 + GROUP);
    for (group, row) in to.chunks_mut(whole).zip(row.chunks(GROUP)) {
        let largest = row.iter().fold(0.0_f32, |a, w| a.max(w.abs()));
        let scale = largest / 127.0;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let (scales, rest) = group.split_at_mut(panel * 4);
        let (sums, quads) = rest.split_at_mut(panel * 4);
        let mut sum = 0_i32;
        for (i, w) in row.iter().enumerate() {
            let q = (w * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
            sum += i32::from(q);
            let together = if form == Form::Words { QUAD / 2 } else { QUAD };
            quads[(i / together * panel + output) * together + i % together] = q as u8;
        }
        scales[output * 4..][..4].copy_from_slice(&scale.to_ne_bytes());
        sums[output * 4..][..4].copy_from_slice(&(-128 * sum).to_ne_bytes());
    }
}
