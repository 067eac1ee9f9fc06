//! Colours of values.

use crate::style::{Colours, Style};

/// The grey of NaN. Masked cells have the terminal's background.
pub(super) const NAN: (u8, u8, u8) = (128, 128, 128);

/// Viridis at nine even steps: readable with colour blindness and in grey.
///
/// # Source
/// matplotlib's `viridis` (van der Walt, Smith; CC0), its 256 colours at 0, 32, …, 255.
const VIRIDIS: [(u8, u8, u8); 9] = [
    (68, 1, 84),
    (71, 44, 122),
    (59, 81, 139),
    (44, 113, 142),
    (33, 144, 141),
    (39, 173, 129),
    (92, 200, 99),
    (170, 220, 50),
    (253, 231, 37),
];

/// Characters from light to dark, for terminals without colours.
const RAMP: &[u8] = b".:-=+*#%@";

/// The colour of a value between 0 (least) and 1 (greatest).
pub(super) fn colour(t: f64) -> (u8, u8, u8) {
    let at = t.clamp(0.0, 1.0) * (VIRIDIS.len() - 1) as f64;
    let i = (at as usize).min(VIRIDIS.len() - 2);
    let part = at - i as f64;
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * part).round() as u8;
    let ((r, g, b), (s, h, c)) = (VIRIDIS[i], VIRIDIS[i + 1]);
    (mix(r, s), mix(g, h), mix(b, c))
}

/// The character of a value between 0 (least) and 1 (greatest).
pub(super) fn shade(t: f64) -> char {
    let i = (t.clamp(0.0, 1.0) * RAMP.len() as f64) as usize;
    char::from(RAMP[i.min(RAMP.len() - 1)])
}

/// The part of an escape sequence that sets a colour: `38` for the foreground, `48` for the background.
pub(super) fn code(what: u8, rgb: (u8, u8, u8), style: Style) -> String {
    match style.colours {
        Colours::True => format!("{what};2;{};{};{}", rgb.0, rgb.1, rgb.2),
        _ => format!("{what};5;{}", indexed(rgb)),
    }
}

/// The nearest colour of xterm's 6 × 6 × 6 cube or its 24 greys.
fn indexed((r, g, b): (u8, u8, u8)) -> u8 {
    const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let nearest = |v: u8| {
        let by = |i: &usize| v.abs_diff(LEVELS[*i]);
        (0..LEVELS.len()).min_by_key(by).unwrap_or(0)
    };
    let distance = |c: (u8, u8, u8)| {
        let d = |a: u8, b: u8| u32::from(a.abs_diff(b)).pow(2);
        d(c.0, r) + d(c.1, g) + d(c.2, b)
    };
    let (i, j, k) = (nearest(r), nearest(g), nearest(b));
    let cube = (LEVELS[i], LEVELS[j], LEVELS[k]);
    let grey = ((u32::from(r) + u32::from(g) + u32::from(b)) / 3).saturating_sub(3) / 10;
    let grey = grey.min(23) as u8;
    let level = 8 + 10 * grey;
    if distance((level, level, level)) < distance(cube) {
        232 + grey
    } else {
        (16 + 36 * i + 6 * j + k) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_middle() {
        assert_eq!(colour(0.0), (68, 1, 84));
        assert_eq!(colour(1.0), (253, 231, 37));
        assert_eq!(colour(0.5), (33, 144, 141));
        assert_eq!((shade(0.0), shade(1.0)), ('.', '@'));
        assert_eq!(indexed((0, 0, 0)), 16);
        assert_eq!(indexed((255, 255, 255)), 231);
        assert_eq!(indexed(NAN), 244);
    }
}
