use super::super::linear::int8::GROUP;
use super::*;

/// Deterministic values in -1..1.
fn noise(seed: u32, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn bytes(values: &[f32], source: SourceType) -> Vec<u8> {
    let put = |x: &f32| match source {
        SourceType::F32 => x.to_le_bytes().to_vec(),
        SourceType::Bf16 => bf16::from_f32(*x).to_le_bytes().to_vec(),
        SourceType::F16 => f16::from_f32(*x).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(put).collect()
}

fn packed(
    isa: Isa,
    kind: WeightType,
    w: &[f32],
    shape: (usize, usize),
    bias: bool,
) -> PackedLinear {
    let source = if kind == WeightType::Bf16 {
        SourceType::Bf16
    } else {
        SourceType::F32
    };
    let raw = bytes(w, source);
    let (rows, cols) = shape;
    let bias = bias.then(|| noise(77, rows));
    let view = WeightView {
        source,
        bytes: &raw,
        rows,
        cols,
    };
    PackedLinear::pack(&mut Region::default(), isa, kind, &[view], bias.as_deref()).unwrap()
}

fn round(w: &mut [f32]) {
    for w in w {
        *w = bf16::from_f32(*w).to_f32();
    }
}

fn filled(x: &[f32], rows: usize, cols: usize) -> Activations {
    let mut activations = Activations::default();
    activations.begin(rows, cols).copy_from_slice(x);
    activations
}

/// `x W^T + bias` in f64, and the sum of the products' magnitudes, which scales rounding errors.
fn naive(w: &[f32], x: &[f32], cols: usize, bias: &[f32]) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    for x in x.chunks_exact(cols) {
        for (n, w) in w.chunks_exact(cols).enumerate() {
            let products = || w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let bias = bias.get(n).copied().map_or(0.0, f64::from);
            out.push((
                products().sum::<f64>() + bias,
                products().map(f64::abs).sum(),
            ));
        }
    }
    out
}

const KINDS: [WeightType; 3] = [WeightType::F32, WeightType::Bf16, WeightType::Int8];

const SHAPES: [(usize, usize); 7] = [
    (1, 1),
    (5, 3),
    (32, 64),
    (33, 130),
    (100, 257),
    (448, 320),
    (130, 31),
];

fn tolerance(isa: Isa, kind: WeightType) -> f64 {
    match kind {
        WeightType::Bf16 if isa >= Isa::Avx512Bf16 => 0.004,
        WeightType::F32 | WeightType::Bf16 => 2e-6,
        WeightType::Int8 => 0.012,
    }
}

#[test]
fn products_agree_with_f64_on_every_path() {
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 1, &[]).unwrap();
        for kind in KINDS {
            for (rows, cols) in SHAPES {
                let mut w = noise(1, rows * cols);
                if kind == WeightType::Bf16 {
                    round(&mut w);
                }
                for (m, bias) in [(1, false), (1, true), (2, true), (3, false), (13, true)] {
                    let x = noise(2, m * cols);
                    let layer = packed(isa, kind, &w, (rows, cols), bias);
                    let mut y = vec![f32::NAN; m * rows];
                    cpu.linear(&layer, &mut filled(&x, m, cols), &mut y);
                    let bias = if bias { noise(77, rows) } else { Vec::new() };
                    for (i, (y, (exact, size))) in
                        y.iter().zip(naive(&w, &x, cols, &bias)).enumerate()
                    {
                        let error = (f64::from(*y) - exact).abs() / (size + 1.0);
                        let limit = tolerance(isa, kind);
                        assert!(
                            error < limit,
                            "{isa} {kind:?} {rows}x{cols} m={m} at {i}: {error}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_among_any_number_of_rows_and_threads() {
    // An even number of inputs that is no multiple of four, and an odd one.
    for cols in [322, 323] {
        has_the_same_bits_among_any_number(200, cols);
    }
}

fn has_the_same_bits_among_any_number(rows: usize, cols: usize) {
    let w = noise(3, rows * cols);
    let x = noise(4, 40 * cols);
    for isa in Isa::available() {
        let one = Cpu::new(isa, 1, &[]).unwrap();
        let three = Cpu::new(isa, 3, &[]).unwrap();
        for kind in KINDS {
            let layer = packed(isa, kind, &w, (rows, cols), true);
            let mut alone = vec![0.0; 40 * rows];
            for (x, y) in x.chunks_exact(cols).zip(alone.chunks_exact_mut(rows)) {
                one.linear(&layer, &mut filled(x, 1, cols), y);
            }
            for m in 1..=40 {
                for cpu in [&one, &three] {
                    let mut y = vec![0.0; m * rows];
                    cpu.linear(&layer, &mut filled(&x[..m * cols], m, cols), &mut y);
                    let equal = y
                        .iter()
                        .zip(&alone)
                        .all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(
                        equal,
                        "{isa} {kind:?} {cols} inputs, m={m}, {} threads",
                        cpu.pool().threads()
                    );
                }
            }
        }
    }
}

#[test]
fn without_rows_nothing_is_written() {
    let (rows, cols) = (64, 32);
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 1, &[]).unwrap();
        for kind in KINDS {
            let layer = packed(isa, kind, &noise(3, rows * cols), (rows, cols), true);
            let mut memory = vec![9.0_f32; 2 * rows];
            cpu.linear(&layer, &mut filled(&[], 0, cols), &mut memory[..0]);
            assert!(
                bits(&memory).iter().all(|x| *x == 9.0_f32.to_bits()),
                "{isa}"
            );
        }
    }
}

#[test]
fn a_reduced_form_is_remade_for_new_rows() {
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 1, &[]).unwrap();
        for kind in KINDS {
            let layer = packed(isa, kind, &noise(5, 64 * 40), (64, 40), false);
            let mut x = filled(&noise(6, 9 * 40), 9, 40);
            let mut y = vec![0.0; 9 * 64];
            cpu.linear(&layer, &mut x, &mut y);
            let second = noise(7, 2 * 40);
            x.begin(2, 40).copy_from_slice(&second);
            let (mut reused, mut fresh) = (vec![0.0; 2 * 64], vec![0.0; 2 * 64]);
            cpu.linear(&layer, &mut x, &mut reused);
            cpu.linear(&layer, &mut filled(&second, 2, 40), &mut fresh);
            assert_eq!(reused, fresh, "{isa} {kind:?}");
        }
    }
}

#[test]
fn fused_parts_equal_the_parts_one_by_one() {
    let parts = [
        (noise(8, 20 * 48), 20),
        (noise(9, 7 * 48), 7),
        (noise(10, 40 * 48), 40),
    ];
    let x = noise(11, 3 * 48);
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 1, &[]).unwrap();
        for kind in KINDS {
            let raw: Vec<_> = parts
                .iter()
                .map(|(w, n)| (bytes(w, SourceType::F16), *n))
                .collect();
            let views: Vec<_> = raw
                .iter()
                .map(|(b, n)| WeightView {
                    source: SourceType::F16,
                    bytes: b,
                    rows: *n,
                    cols: 48,
                })
                .collect();
            let fused =
                PackedLinear::pack(&mut Region::default(), isa, kind, &views, None).unwrap();
            let mut y = vec![0.0; 3 * 67];
            cpu.linear(&fused, &mut filled(&x, 3, 48), &mut y);
            let mut first = 0;
            for view in &views {
                let part =
                    PackedLinear::pack(&mut Region::default(), isa, kind, &[*view], None).unwrap();
                let mut alone = vec![0.0; 3 * view.rows];
                cpu.linear(&part, &mut filled(&x, 3, 48), &mut alone);
                for (y, alone) in y.chunks_exact(67).zip(alone.chunks_exact(view.rows)) {
                    assert_eq!(y[first..][..view.rows], *alone, "{isa} {kind:?}");
                }
                first += view.rows;
            }
        }
    }
}

#[test]
fn int8_keeps_the_precision_of_inputs_beside_an_outlier() {
    let cols = 4 * GROUP;
    let w = noise(12, 8 * cols);
    let mut x = noise(13, cols);
    x[5] = 1000.0;
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 1, &[]).unwrap();
        // The outlier's group contributes the same to both, so the difference shows the others.
        let mut changed = x.clone();
        changed[3 * GROUP..].iter_mut().for_each(|x| *x = -*x);
        let layer = packed(isa, WeightType::Int8, &w, (8, cols), false);
        let (mut a, mut b) = (vec![0.0; 8], vec![0.0; 8]);
        cpu.linear(&layer, &mut filled(&x, 1, cols), &mut a);
        cpu.linear(&layer, &mut filled(&changed, 1, cols), &mut b);
        let exact = naive(&w, &x, cols, &[])
            .into_iter()
            .zip(naive(&w, &changed, cols, &[]));
        for ((a, b), (p, q)) in a.iter().zip(&b).zip(exact) {
            let error = (f64::from(a - b) - (p.0 - q.0)).abs();
            assert!(error < 0.3, "{isa}: {error}");
        }
    }
}

#[test]
fn int8_sums_are_the_same_integers_on_every_path() {
    let (rows, cols) = (100, 322);
    let (w, x) = (noise(16, rows * cols), noise(17, 5 * cols));
    let product = |isa| {
        let cpu = Cpu::new(isa, 1, &[]).unwrap();
        let layer = packed(isa, WeightType::Int8, &w, (rows, cols), false);
        let mut y = vec![0.0; 5 * rows];
        cpu.linear(&layer, &mut filled(&x, 5, cols), &mut y);
        y
    };
    let reference = product(Isa::Portable);
    for isa in Isa::available() {
        for (y, reference) in product(isa).iter().zip(&reference) {
            assert!((y - reference).abs() < 1e-4, "{isa}: {y} {reference}");
        }
    }
}

#[test]
fn amx_packing_and_walk_are_right_on_emulated_tiles() {
    for (rows, cols) in SHAPES {
        let mut w = noise(14, rows * cols);
        round(&mut w);
        let layer = packed(Isa::Amx, WeightType::Bf16, &w, (rows, cols), true);
        let x = noise(15, 40 * cols);
        let alone = emulated_alike(&layer, &x, (rows, cols), &[2, 15, 16, 17, 32, 33, 40]);
        for (y, (exact, size)) in alone.iter().zip(naive(&w, &x, cols, &noise(77, rows))) {
            let error = (f64::from(*y) - exact).abs() / (size + 1.0);
            assert!(
                error < tolerance(Isa::Amx, WeightType::Bf16),
                "{rows}x{cols}: {error}"
            );
        }
    }
}

/// Outputs of rows `x` on emulated tiles, each row by itself; whose bits are the same in batches of
/// these `counts` of rows.
fn emulated_alike(
    w: &PackedLinear,
    x: &[f32],
    (rows, cols): (usize, usize),
    counts: &[usize],
) -> Vec<f32> {
    let mut alone = vec![0.0; x.len() / cols * rows];
    for (x, y) in x.chunks_exact(cols).zip(alone.chunks_exact_mut(rows)) {
        emulate(w, &mut filled(x, 1, cols), y);
    }
    for &m in counts {
        let mut y = vec![f32::NAN; m * rows];
        emulate(w, &mut filled(&x[..m * cols], m, cols), &mut y);
        assert_eq!(bits(&y), bits(&alone[..m * rows]), "{rows}x{cols} m={m}");
    }
    alone
}

fn emulate(w: &PackedLinear, x: &mut Activations, y: &mut [f32]) {
    let is_int8 = w.format == Format::Int8;
    if is_int8 {
        dispatch(
            Isa::Portable,
            int8::Quantise {
                x,
                form: int8::Form::Unsigned,
            },
        );
    } else {
        dispatch(Isa::Portable, dot::Round(x));
    }
    let job = Job {
        w,
        x,
        y: y.as_mut_ptr(),
        stride: w.outputs,
    };
    // SAFETY: `y` has all rows, the reduced form is made, and the emulation runs anywhere.
    unsafe {
        if is_int8 {
            amx::emulated::run_bytes(&job, 0..w.panels());
        } else {
            amx::emulated::run(&job, 0..w.panels());
        }
    }
}

#[test]
fn int8_on_emulated_tiles_has_the_bits_of_any_number_of_rows_and_the_sums_of_the_vector_path() {
    for (rows, cols) in SHAPES {
        let w = noise(18, rows * cols);
        let tiles = packed(Isa::Amx, WeightType::Int8, &w, (rows, cols), true);
        let vectors = packed(Isa::Portable, WeightType::Int8, &w, (rows, cols), true);
        let portable = Cpu::new(Isa::Portable, 1, &[]).unwrap();
        let x = noise(19, 70 * cols);
        let alone = emulated_alike(&tiles, &x, (rows, cols), &[2, 15, 16, 17, 32, 33, 70]);
        let mut reference = vec![0.0; 70 * rows];
        portable.linear(&vectors, &mut filled(&x, 70, cols), &mut reference);
        for (y, reference) in alone.iter().zip(&reference) {
            assert!(
                (y - reference).abs() < 1e-4,
                "{rows}x{cols}: {y} {reference}"
            );
        }
    }
}

#[test]
fn int8_has_the_same_bits_on_tiles_and_vectors() {
    if !Isa::Amx.is_supported() {
        return;
    }
    for (rows, cols) in SHAPES {
        let w = noise(20, rows * cols);
        let x = noise(21, 40 * cols);
        let product = |isa| {
            let layer = packed(isa, WeightType::Int8, &w, (rows, cols), true);
            let mut y = vec![0.0; 40 * rows];
            let cpu = Cpu::new(isa, 1, &[]).unwrap();
            cpu.linear(&layer, &mut filled(&x, 40, cols), &mut y);
            y
        };
        let (tiles, vectors) = (product(Isa::Amx), product(Isa::Avx512Vnni));
        assert_eq!(bits(&tiles), bits(&vectors), "{rows}x{cols}");
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn wrong_shapes_are_refused_with_the_numbers() {
    let raw = [0; 24];
    let view = WeightView {
        source: SourceType::F32,
        bytes: &raw,
        rows: 2,
        cols: 3,
    };
    let pack = |parts: &[WeightView<'_>], bias: Option<&[f32]>| {
        PackedLinear::pack(
            &mut Region::default(),
            Isa::Portable,
            WeightType::F32,
            parts,
            bias,
        )
        .unwrap_err()
    };
    let short = WeightView { rows: 3, ..view };
    assert_eq!(
        pack(&[short], None),
        PackError::Length {
            rows: 3,
            cols: 3,
            wanted: 36,
            found: 24
        }
    );
    let wide = WeightView {
        rows: 1,
        cols: 6,
        ..view
    };
    assert_eq!(pack(&[view, wide], None), PackError::Inputs(3, 6));
    assert_eq!(
        pack(&[view], Some(&[0.0])),
        PackError::Bias {
            wanted: 2,
            found: 1
        }
    );
    assert_eq!(pack(&[], None), PackError::Empty);
}

#[test]
fn the_first_value_that_is_not_finite_is_found_wherever_it_is() {
    for source in [SourceType::F32, SourceType::Bf16, SourceType::F16] {
        let mut values = vec![-1.5_f32; 3 * SCANNED + 7];
        values[1] = 65504.0;
        assert_eq!(source.first_not_finite(&bytes(&values, source)), None);
        for place in [0, SCANNED - 1, SCANNED, 2 * SCANNED + 5, 3 * SCANNED + 6] {
            let mut values = values.clone();
            values[place] = f32::NAN;
            values[3 * SCANNED + 6] = f32::INFINITY;
            let found = source.first_not_finite(&bytes(&values, source));
            assert_eq!(found, Some(place), "{source:?}");
        }
    }
}
