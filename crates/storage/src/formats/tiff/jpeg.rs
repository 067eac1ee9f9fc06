//! Baseline JPEG, as tiles and strips have it: cells are equal to those of libjpeg-turbo with its default settings.
//!
//! ```text
//!   tables, markers ─▶ scans: Huffman codes ─▶ blocks ─▶ inverse DCT ─▶ planes ─▶ upsampling ─▶ YCbCr to RGB ─▶ pixels
//! ```
//!
//! # Source
//! ITU-T T.81 (1992); TIFF Technical Note 2 for the tables.

mod color;
mod dct;
mod huffman;

use dct::inverse;
use huffman::{Bits, Huffman};

/// Upper bound on the bytes of a shared list of tables.
pub(super) const TABLES_BYTES_MAX: u64 = 1 << 16;

/// Order of the coefficients of a block in a stream.
const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// The pixels that are expected.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    pub(super) width: usize,
    pub(super) rows: usize,
    /// Rows that a stream may have.
    pub(super) rows_max: usize,
    pub(super) components: usize,
    /// True if three components are YCbCr and become RGB.
    pub(super) is_ycc: bool,
}

/// Decodes the pixels of a segment to `out`, which has `width * rows * components` bytes.
pub(super) fn decode(
    tables: &[u8],
    bytes: &[u8],
    form: Form,
    out: &mut [u8],
) -> Result<(), String> {
    let mut decoder = Decoder::default();
    decoder.markers(tables, form)?;
    decoder.markers(bytes, form)?;
    let frame = decoder.frame.ok_or("jpeg: it has no frame")?;
    if let Some(c) = frame.components.iter().position(|c| !c.is_read) {
        return Err(format!("jpeg: it has no scan of component {c}"));
    }
    frame.put(form, out);
    Ok(())
}

#[derive(Default)]
struct Decoder {
    /// Quantization tables, in the order of a stream.
    quants: [Option<[u16; 64]>; 4],
    dc: [Option<Huffman>; 4],
    ac: [Option<Huffman>; 4],
    /// MCUs between restart markers; 0: none.
    restart: usize,
    frame: Option<Frame>,
}

struct Frame {
    width: usize,
    height: usize,
    /// Largest sampling factors.
    h: usize,
    v: usize,
    components: Vec<Component>,
}

struct Component {
    id: usize,
    h: usize,
    v: usize,
    quant: usize,
    /// Samples of the image, without the samples that fill blocks.
    width: usize,
    height: usize,
    /// Samples with those; `stride` of a row.
    stride: usize,
    samples: Vec<u8>,
    is_read: bool,
}

struct ScanComponent {
    /// Its index.
    of: usize,
    dc: Huffman,
    ac: Huffman,
    quant: [u16; 64],
    /// The first coefficient of the block before.
    before: i32,
}

/// Reads a marker's parameters.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        let (part, rest) = self.0.split_at_checked(n).ok_or("jpeg: a marker is too short")?;
        self.0 = rest;
        Ok(part)
    }

    fn u8(&mut self) -> Result<usize, String> {
        Ok(usize::from(self.take(1)?[0]))
    }

    fn u16(&mut self) -> Result<usize, String> {
        Ok(self.u8()? << 8 | self.u8()?)
    }
}

impl Decoder {
    /// Reads a stream of markers and scans up to its end.
    fn markers(&mut self, bytes: &[u8], form: Form) -> Result<(), String> {
        let mut rest = Bytes(bytes);
        while !rest.0.is_empty() {
            if rest.u8()? != 0xff {
                let at = bytes.len() - rest.0.len() - 1;
                return Err(format!("jpeg: a marker is expected at byte {at}"));
            }
            // Any number of these may precede a marker.
            while rest.0.first() == Some(&0xff) {
                rest.take(1)?;
            }
            match rest.u8()? {
                0xd8 | 0x01 | 0xd0..=0xd7 => {}
                0xd9 => return Ok(()),
                marker => {
                    let n = rest.u16()?.checked_sub(2).ok_or("jpeg: a marker is too short")?;
                    let mut body = Bytes(rest.take(n)?);
                    match marker {
                        0xdb => self.quants(&mut body)?,
                        0xc4 => self.huffmans(&mut body)?,
                        0xdd => self.restart = body.u16()?,
                        0xc0 | 0xc1 => self.frame = Some(frame(&mut body, form)?),
                        0xda => {
                            let used = self.scan(&mut body, rest.0)?;
                            rest.take(used)?;
                        }
                        0xc2 => return Err("jpeg: progressive JPEG is not supported".into()),
                        0xc3 => return Err("jpeg: lossless JPEG is not supported".into()),
                        0xc5..=0xc7 | 0xcd..=0xcf => {
                            return Err("jpeg: hierarchical JPEG is not supported".into());
                        }
                        0xc9..=0xcc => {
                            return Err("jpeg: arithmetic coding is not supported".into());
                        }
                        // Applications' markers and comments; the number of lines is in the frame.
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }

    fn quants(&mut self, body: &mut Bytes<'_>) -> Result<(), String> {
        while !body.0.is_empty() {
            let head = body.u8()?;
            let slot =
                self.quants.get_mut(head & 15).ok_or("jpeg: a quantization table beyond 3")?;
            let mut table = [0; 64];
            for v in &mut table {
                *v = if head >> 4 == 0 { body.u8()? } else { body.u16()? } as u16;
            }
            *slot = Some(table);
        }
        Ok(())
    }

    fn huffmans(&mut self, body: &mut Bytes<'_>) -> Result<(), String> {
        while !body.0.is_empty() {
            let head = body.u8()?;
            let tables = if head >> 4 == 0 { &mut self.dc } else { &mut self.ac };
            let slot = tables.get_mut(head & 15).ok_or("jpeg: a Huffman table beyond 3")?;
            let counts = body.take(16)?;
            let symbols = body.take(counts.iter().map(|n| usize::from(*n)).sum())?;
            *slot = Some(Huffman::new(counts, symbols)?);
        }
        Ok(())
    }

    /// Reads a scan, whose codes begin with `codes`, and returns the number of bytes of codes.
    fn scan(&mut self, body: &mut Bytes<'_>, codes: &[u8]) -> Result<usize, String> {
        let frame = self.frame.as_mut().ok_or("jpeg: a scan precedes the frame")?;
        let mut parts = Vec::new();
        for _ in 0..body.u8()? {
            let (id, tables) = (body.u8()?, body.u8()?);
            let of = frame.components.iter().position(|c| c.id == id);
            let of = of.ok_or_else(|| format!("jpeg: a scan of the unknown component {id}"))?;
            let c = &mut frame.components[of];
            if std::mem::replace(&mut c.is_read, true) {
                return Err(format!("jpeg: two scans of the component {id}"));
            }
            let table = |all: &'_ [Option<Huffman>; 4], n: usize| all.get(n)?.clone();
            parts.push(ScanComponent {
                of,
                dc: table(&self.dc, tables >> 4).ok_or("jpeg: a Huffman table is missing")?,
                ac: table(&self.ac, tables & 15).ok_or("jpeg: a Huffman table is missing")?,
                quant: self
                    .quants
                    .get(c.quant)
                    .copied()
                    .flatten()
                    .ok_or("jpeg: a quantization table is missing")?,
                before: 0,
            });
        }
        // A scan of one component has only the component's own blocks, without those that fill an MCU.
        let (across, down) = match &parts[..] {
            [] => return Err("jpeg: a scan of no components".into()),
            [one] => {
                let c = &frame.components[one.of];
                (c.width.div_ceil(8), c.height.div_ceil(8))
            }
            _ => (frame.width.div_ceil(8 * frame.h), frame.height.div_ceil(8 * frame.v)),
        };
        let is_alone = parts.len() == 1;
        let mut bits = Bits::new(codes);
        for i in 0..across * down {
            if self.restart > 0 && i > 0 && i % self.restart == 0 {
                bits.restart()?;
                parts.iter_mut().for_each(|part| part.before = 0);
            }
            for part in &mut parts {
                let c = &mut frame.components[part.of];
                let (h, v) = if is_alone { (1, 1) } else { (c.h, c.v) };
                for b in 0..h * v {
                    let (x, y) = (i % across * h + b % h, i / across * v + b / h);
                    let block = part.block(&mut bits)?;
                    inverse(&block, &mut c.samples[y * 8 * c.stride + x * 8..], c.stride);
                }
            }
        }
        Ok(bits.used())
    }
}

impl ScanComponent {
    /// The coefficients of the next block.
    fn block(&mut self, bits: &mut Bits<'_>) -> Result<[i32; 64], String> {
        let mut out = [0; 64];
        let size = u32::from(bits.symbol(&self.dc)?);
        if size > 15 {
            return Err("jpeg: a coefficient of more than 15 bits".into());
        }
        self.before = self.before.wrapping_add(bits.signed(size)?);
        out[0] = self.before.wrapping_mul(i32::from(self.quant[0]));
        let mut k = 1;
        while k < 64 {
            let symbol = bits.symbol(&self.ac)?;
            let (zeros, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
            match (zeros, size) {
                (15, 0) => k += 16,
                (_, 0) => break,
                _ => {
                    k += zeros;
                    if k > 63 {
                        return Err("jpeg: more than 64 coefficients".into());
                    }
                    let v = bits.signed(size)?.wrapping_mul(i32::from(self.quant[k]));
                    out[usize::from(ZIGZAG[k])] = v;
                    k += 1;
                }
            }
        }
        Ok(out)
    }
}

/// Reads the parameters of a frame.
fn frame(body: &mut Bytes<'_>, form: Form) -> Result<Frame, String> {
    let bits = body.u8()?;
    if bits != 8 {
        return Err(format!("jpeg: {bits} bits are not supported"));
    }
    let (height, width, count) = (body.u16()?, body.u16()?, body.u8()?);
    let Form { components, rows, rows_max, .. } = form;
    if (width, count) != (form.width, components) || !(rows..=rows_max).contains(&height) {
        return Err(format!(
            "jpeg: {width} x {height} pixels of {count} components, expected {} x {rows} of {components}",
            form.width
        ));
    }
    let mut all = Vec::new();
    for _ in 0..count {
        let (id, factors, quant) = (body.u8()?, body.u8()?, body.u8()?);
        let (h, v) = (factors >> 4, factors & 15);
        if !(1..=4).contains(&h) || !(1..=4).contains(&v) {
            return Err(format!("jpeg: the sampling factors are {h} and {v}"));
        }
        all.push((id, h, v, quant));
    }
    let h_max = all.iter().map(|c| c.1).max().unwrap_or(1);
    let v_max = all.iter().map(|c| c.2).max().unwrap_or(1);
    let component = |(id, h, v, quant)| {
        if h_max % h != 0 || v_max % v != 0 {
            return Err(format!("jpeg: sampling factors of {h} in {h_max} and {v} in {v_max}"));
        }
        let stride = width.div_ceil(8 * h_max) * 8 * h;
        let lines = height.div_ceil(8 * v_max) * 8 * v;
        Ok(Component {
            id,
            h,
            v,
            quant,
            width: (width * h).div_ceil(h_max),
            height: (height * v).div_ceil(v_max),
            stride,
            samples: vec![0; stride * lines],
            is_read: false,
        })
    };
    let components = all.into_iter().map(component).collect::<Result<_, _>>()?;
    Ok(Frame { width, height, h: h_max, v: v_max, components })
}
