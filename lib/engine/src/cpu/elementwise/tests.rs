use super::*;
use crate::isa::Isa;

const LENGTHS: [usize; 6] = [1, 7, 16, 40, 64, 321];

fn wave(n: usize, step: f32) -> Vec<f32> {
    (0..n)
        .map(|i| (i as f32 * step).sin() * 3.0 + (i % 5) as f32 - 1.5)
        .collect()
}

fn near(got: &[f32], exact: impl IntoIterator<Item = f64>, limit: f64, context: &str) {
    for (i, (got, exact)) in got.iter().zip(exact).enumerate() {
        let error = (f64::from(*got) - exact).abs() / (1.0 + exact.abs());
        assert!(error < limit, "{context} at {i}: {got} instead of {exact}");
    }
}

fn each_path(test: impl Fn(&Cpu)) {
    for isa in Isa::available() {
        test(&Cpu::new(isa, 1, &[]).unwrap());
    }
}

fn rms(x: &[f32], w: &[f32]) -> Vec<f64> {
    let mut out = Vec::new();
    for x in x.chunks_exact(w.len()) {
        let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
        let scale = 1.0 / (squares / w.len() as f64 + 1e-5).sqrt();
        out.extend(
            x.iter()
                .zip(w)
                .map(|(x, w)| f64::from(*x) * scale * f64::from(*w)),
        );
    }
    out
}

#[test]
fn root_mean_square_norms_agree_with_f64() {
    each_path(|cpu| {
        for n in LENGTHS {
            let (x, delta, w) = (wave(3 * n, 0.7), wave(3 * n, 0.3), wave(n, 0.9));
            let mut out = vec![0.0; 3 * n];
            cpu.rms_norm(&x, &w, 1e-5, &mut out);
            near(&out, rms(&x, &w), 1e-6, "rms");
            let mut residual = x.clone();
            cpu.add_rms_norm(&mut residual, &delta, &w, 1e-5, &mut out);
            let sum: Vec<f32> = x.iter().zip(&delta).map(|(a, b)| a + b).collect();
            assert_eq!(residual, sum, "{} n={n}", cpu.isa());
            near(&out, rms(&sum, &w), 1e-6, "sum");
        }
    });
}

#[test]
fn a_norm_has_the_same_bits_whether_the_sum_is_fused_or_not() {
    each_path(|cpu| {
        for n in LENGTHS {
            let (mut x, delta, w) = (wave(2 * n, 0.7), wave(2 * n, 0.3), wave(n, 0.9));
            let (mut fused, mut apart) = (vec![0.0; 2 * n], vec![0.0; 2 * n]);
            cpu.add_rms_norm(&mut x, &delta, &w, 1e-6, &mut fused);
            cpu.rms_norm(&x, &w, 1e-6, &mut apart);
            assert_eq!(fused, apart, "{} n={n}", cpu.isa());
        }
    });
}

#[test]
fn layer_norms_agree_with_f64() {
    each_path(|cpu| {
        for n in LENGTHS {
            let (x, w, b) = (wave(2 * n, 0.7), wave(n, 0.9), wave(n, 0.2));
            let mut out = vec![0.0; 2 * n];
            cpu.layer_norm(&x, &w, &b, 1e-5, &mut out);
            let mut exact = Vec::new();
            for x in x.chunks_exact(n) {
                let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n as f64;
                let off: Vec<f64> = x.iter().map(|x| f64::from(*x) - mean).collect();
                let variance = off.iter().map(|x| x * x).sum::<f64>() / n as f64;
                let scale = 1.0 / (variance + 1e-5).sqrt();
                let affine = off.iter().zip(w.iter().zip(&b));
                exact.extend(affine.map(|(x, (w, b))| x * scale * f64::from(*w) + f64::from(*b)));
            }
            near(&out, exact, 2e-6, &format!("{} n={n}", cpu.isa()));
        }
    });
}

#[test]
fn head_norm_and_rope_touch_only_their_heads() {
    let heads = Heads {
        stride: 100,
        first: 10,
        count: 2,
        dim: 40,
    };
    each_path(|cpu| {
        let before = wave(200, 0.4);
        let w = wave(40, 0.8);
        let mut normed = before.clone();
        cpu.head_norm(&mut normed, heads, &w, 1e-5);
        let table = RopeTable::new(&[1.0, 0.3, 0.1, 0.03, 0.01], 50, 1.5);
        let mut turned = before.clone();
        cpu.rope(&mut turned, heads, &[49, 3], &table);
        for row in 0..2 {
            for column in (0..10).chain(90..100) {
                let i = row * 100 + column;
                assert_eq!((normed[i], turned[i]), (before[i], before[i]));
            }
            for head in 0..2 {
                let at = row * 100 + 10 + head * 40;
                near(
                    &normed[at..][..40],
                    rms(&before[at..][..40], &w),
                    1e-6,
                    "head",
                );
                let position = f64::from([49_u8, 3][row]);
                let exact = (0..40).map(|i| {
                    let x = |i: usize| f64::from(before[at + i]);
                    let angle = [1.0, 0.3, 0.1, 0.03, 0.01][i % 5] * position;
                    match i {
                        0..5 => (x(i) * angle.cos() - x(i + 5) * angle.sin()) * 1.5,
                        5..10 => (x(i) * angle.cos() + x(i - 5) * angle.sin()) * 1.5,
                        _ => x(i),
                    }
                });
                near(&turned[at..][..40], exact, 1e-5, "rope");
            }
        }
    });
}

/// Error function by its Taylor series, in f64.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..120 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

fn exact(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Relu => x.max(0.0),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / 2.0_f64.sqrt())),
        Activation::GeluTanh => {
            let y = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            0.5 * x * (1.0 + y.tanh())
        }
    }
}

#[test]
fn nonlinearities_agree_with_f64() {
    use Activation::{Gelu, GeluTanh, Relu, Silu};
    let x: Vec<f32> = (-1000..1000).map(|i| i as f32 / 200.0).collect();
    each_path(|cpu| {
        for activation in [Silu, Relu, Gelu, GeluTanh] {
            let mut y = x.clone();
            cpu.activate(activation, &mut y);
            let exact: Vec<f64> = x.iter().map(|x| exact(activation, f64::from(*x))).collect();
            near(
                &y,
                exact.clone(),
                1e-6,
                &format!("{} {activation:?}", cpu.isa()),
            );
            let mut gated = vec![0.0; 1000];
            let gate_up = [&x[..500], &x[500..1000], &x[1000..1500], &x[1500..]].concat();
            cpu.gated(activation, &gate_up, 500, &mut gated);
            let products = (0..1000).map(|i| {
                let gate = i / 500 * 1000 + i % 500;
                exact[gate] * f64::from(x[gate + 500])
            });
            near(&gated, products, 2e-6, "gated");
        }
        let mut extreme = [-200.0, 200.0, -90.0, 0.0];
        cpu.activate(Silu, &mut extreme);
        near(&extreme, [0.0, 200.0, 0.0, 0.0], 1e-6, "extreme");
    });
}

#[test]
fn the_first_of_the_largest_values_wins_and_nan_never_does() {
    each_path(|cpu| {
        for n in LENGTHS {
            for at in [0, n / 2, n - 1] {
                let mut row = vec![-5.0; n];
                row[at] = 2.0;
                row[n - 1] = 2.0;
                assert_eq!(cpu.argmax(&row), at.min(n - 1), "{} n={n}", cpu.isa());
                if at > 0 {
                    row[0] = f32::NAN;
                    assert_eq!(cpu.argmax(&row), at, "{} n={n}", cpu.isa());
                }
            }
        }
        assert_eq!(cpu.argmax(&[]), 0);
    });
}

#[test]
fn sums_and_embeddings_are_exact() {
    each_path(|cpu| {
        for n in LENGTHS {
            let (mut x, y) = (wave(n, 0.1), wave(n, 0.2));
            let sum: Vec<f32> = x.iter().zip(&y).map(|(a, b)| a + b).collect();
            cpu.add(&mut x, &y);
            assert_eq!(x, sum);
        }
    });
    let bytes: Vec<u8> = (0..12_u8)
        .flat_map(|i| half::f16::from(i).to_le_bytes())
        .collect();
    let view = WeightView {
        source: SourceType::F16,
        bytes: &bytes,
        rows: 4,
        cols: 3,
    };
    let table = Embedding::new(&view).unwrap();
    let mut row = [0.0; 3];
    table.row(2, &mut row);
    assert_eq!((row, table.rows(), table.cols()), ([6.0, 7.0, 8.0], 4, 3));
    assert!(Embedding::new(&WeightView { rows: 5, ..view }).is_err());
}
