//! Planes of samples become pixels.
//!
//! # Source
//! ITU-T T.871 (JFIF) for the colours; the triangle filters and roundings of libjpeg-turbo's `jdsample.c` and
//! `jdcolor.c`.

use super::{Component, Form, Frame};

impl Frame {
    /// Writes the pixels to `out`.
    pub(super) fn put(&self, form: Form, out: &mut [u8]) {
        let n = self.components.len();
        // Upsampling writes whole samples.
        let mut line = vec![0; self.width + 8];
        for (y, row) in out.chunks_exact_mut(form.width * n).enumerate() {
            for (i, c) in self.components.iter().enumerate() {
                c.line(y, (self.h / c.h, self.v / c.v), &mut line);
                row[i..].iter_mut().step_by(n).zip(&line).for_each(|(to, from)| *to = *from);
            }
            if form.is_ycc && n == 3 {
                row.as_chunks_mut::<3>().0.iter_mut().for_each(|p| *p = ycc_to_rgb(*p));
            }
        }
    }
}

impl Component {
    /// Samples of a row, without the samples that fill blocks.
    fn row(&self, y: usize) -> &[u8] {
        &self.samples[y * self.stride..][..self.width]
    }

    /// Row `y` of the image, of which each sample covers `h * v` pixels.
    fn line(&self, y: usize, (h, v): (usize, usize), out: &mut [u8]) {
        let near = self.row(y / v);
        // The row on the other side of the pixel's centre.
        let far = match y % v {
            0 => self.row((y / v).saturating_sub(1)),
            _ => self.row((y / v + 1).min(self.height - 1)),
        };
        let sample = |row: &[u8], x: usize| u32::from(row[x]);
        let sums = |x: usize| sample(near, x) * 3 + sample(far, x);
        match (h, v) {
            (1, 1) => out[..near.len()].copy_from_slice(near),
            (2, 1) if self.width > 2 => {
                widen(near.len(), out, |x| sample(near, x), ([0, 0], [1, 2], 2));
            }
            (2, 2) if self.width > 2 => widen(near.len(), out, sums, ([8, 7], [8, 7], 4)),
            (1, 2) => {
                let round = 1 + y as u32 % 2;
                let cell = |x: usize| (sums(x) + round) >> 2;
                out.iter_mut().zip(0..near.len()).for_each(|(to, x)| *to = cell(x) as u8);
            }
            _ => {
                let of = out.chunks_mut(h).zip(near);
                of.for_each(|(to, from)| to.fill(*from));
            }
        }
    }
}

/// Makes two pixels of each sample: three parts of it, and one of the sample on the other side of the pixel's centre.
/// `ends` and `rounds` are added before the result is shifted: at the ends of the row, and for the left and right pixel.
fn widen(
    len: usize,
    out: &mut [u8],
    at: impl Fn(usize) -> u32,
    (ends, rounds, shift): ([u32; 2], [u32; 2], u32),
) {
    for x in 0..len {
        let this = at(x);
        out[2 * x] = match x {
            0 => (this * 4 + ends[0]) >> shift,
            _ => (this * 3 + at(x - 1) + rounds[0]) >> shift,
        } as u8;
        out[2 * x + 1] = match x + 1 == len {
            true => (this * 4 + ends[1]) >> shift,
            false => (this * 3 + at(x + 1) + rounds[1]) >> shift,
        } as u8;
    }
}

/// 16 bits after the point.
const fn fixed(v: f64) -> i32 {
    (v * 65536.0 + 0.5) as i32
}

fn ycc_to_rgb([y, cb, cr]: [u8; 3]) -> [u8; 3] {
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let half = 1 << 15;
    let red = (fixed(1.402) * cr + half) >> 16;
    let green = (half - fixed(0.344_14) * cb - fixed(0.714_14) * cr) >> 16;
    let blue = (fixed(1.772) * cb + half) >> 16;
    [red, green, blue].map(|v| (y + v).clamp(0, 255) as u8)
}
