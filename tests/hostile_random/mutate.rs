//! Damages of bytes: by accident, and by an attacker who knows where formats store their numbers.

use crate::common::Random;

/// Values of sizes, counts and places that an attacker would choose.
const NUMBERS: [i64; 14] = [
    -1,
    0,
    1,
    i64::MAX,
    i64::MIN,
    i32::MAX as i64,
    i32::MIN as i64,
    1 << 31,
    1 << 32,
    1 << 40,
    1 << 60,
    255,
    65_536,
    -2,
];

/// The same in texts.
const TEXTS: [&str; 16] = [
    "-1",
    "0",
    "4000000000",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "1e308",
    "-1e400",
    "NaN",
    "null",
    "[]",
    "{}",
    "1.5",
    "\"\\u0000\"",
    "1000000000000000000000000000000",
];

pub(super) struct Mutant<'a> {
    random: &'a mut Random,
}

impl<'a> Mutant<'a> {
    pub(super) fn new(random: &'a mut Random) -> Self {
        Mutant { random }
    }

    fn draw(&mut self, n: usize) -> usize {
        (self.random.next() % n.max(1) as u64) as usize
    }

    /// The bytes with some damages.
    pub(super) fn of(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let damages = [1, 1, 1, 2, 3, 8][self.draw(6)];
        for _ in 0..damages {
            self.damage(&mut bytes);
        }
        bytes
    }

    /// A random place; more often near the beginning or the end, where formats keep their structure.
    fn place(&mut self, length: usize) -> usize {
        match self.draw(4) {
            0 => self.draw(length.min(128)),
            1 => length - 1 - self.draw(length.min(512)),
            _ => self.draw(length),
        }
    }

    fn damage(&mut self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len();
        let at = self.place(length);
        match self.draw(13) {
            0 | 1 => bytes[at] ^= 1 << self.draw(8),
            2 => bytes[at] = [0, 0x7f, 0x80, 0xff][self.draw(4)],
            3 => bytes.truncate(at),
            4 => {
                let count = 1 + self.draw(16);
                let more: Vec<u8> = (0..count).map(|_| self.random.next() as u8).collect();
                bytes.splice(at..at, more);
            }
            5 => {
                let end = (at + 1 + self.draw(32)).min(length);
                bytes.drain(at..end);
            }
            // Two blocks change places.
            6 => {
                let block = 1 + self.draw(length.min(64));
                let (a, b) = (self.draw(length), self.draw(length));
                for i in 0..block.min(length - a.max(b)) {
                    bytes.swap(a + i, b + i);
                }
            }
            7 => {
                let end = (at + 1 + self.draw(256)).min(length);
                let block = bytes[at..end].to_vec();
                let to = self.draw(length);
                bytes.splice(to..to, block);
            }
            // Whole numbers of four and eight bytes.
            8 | 9 => {
                let number = NUMBERS[self.draw(NUMBERS.len())].to_le_bytes();
                let (width, at) = match self.draw(2) {
                    0 => (4, at & !3),
                    _ => (8, at & !7),
                };
                let end = (at + width).min(length);
                bytes[at..end].copy_from_slice(&number[..end - at]);
            }
            // Thrift's: seven bits a byte.
            10 => {
                let number: &[u8] = [
                    &[0xff, 0xff, 0xff, 0xff, 0x0f][..],
                    &[0xfe, 0xff, 0xff, 0xff, 0x0f],
                    &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
                    &[0xfc, 0xff, 0xff, 0xff, 0xff, 7],
                ][self.draw(4)];
                let end = (at + self.draw(number.len() + 1)).min(length);
                bytes.splice(at..end, number.iter().copied());
            }
            // Numbers that are written with digits.
            _ => self.digits(bytes),
        }
    }

    /// Replaces one of the numbers that are written in digits.
    fn digits(&mut self, bytes: &mut Vec<u8>) {
        let is_start = |i: &usize| {
            bytes[*i].is_ascii_digit() && (*i == 0 || !bytes[*i - 1].is_ascii_alphanumeric())
        };
        let starts: Vec<usize> = (0..bytes.len()).filter(is_start).collect();
        if starts.is_empty() {
            return;
        }
        let start = starts[self.draw(starts.len())];
        let count = bytes[start..].iter().take_while(|b| b.is_ascii_digit()).count();
        let text = match self.draw(10) {
            0 => "[".repeat(1 + self.draw(3000)),
            1 => "9".repeat(1 + self.draw(400)),
            _ => TEXTS[self.draw(TEXTS.len())].to_string(),
        };
        bytes.splice(start..start + count, text.into_bytes());
    }
}
