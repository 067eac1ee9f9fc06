//! Line breaks of CSV outside quotes.
//!
//! A line break within quotes does not end a row. Whether a byte is within quotes follows from all bytes before it, so
//! bytes from the middle of a file are read from each state in which they may begin.
//!
//! # Source
//! RFC 4180, as the crate `csv-core` reads it: a quote opens a field only as its first character; two quotes within
//! quotes are one; what follows the closing quote belongs to the field.

use memchr::{memchr, memrchr};
use std::ops::{ControlFlow, Range};

/// The reader's state between two bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Start,
    Outside,
    Within,
    /// Behind a quote within quotes, which ends them unless another quote follows.
    Quote,
}

const STATES: [State; 4] = [State::Start, State::Outside, State::Within, State::Quote];

/// The state behind some bytes, for each state before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends([State; 4]);

impl Ends {
    pub(super) fn of(self, before: State) -> State {
        self.0[before as usize]
    }
}

/// The characters that structure a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) delimiter: u8,
    pub(crate) quote: u8,
}

/// Bytes behind which most states have become one or two.
const FIRST_BYTES: usize = 4 << 10;

impl Marks {
    fn ends_field(self, byte: u8) -> bool {
        byte == self.delimiter || matches!(byte, b'\n' | b'\r')
    }

    fn behind_byte(self, byte: u8) -> State {
        if self.ends_field(byte) { State::Start } else { State::Outside }
    }

    /// Visits the parts of `bytes` outside quotes until one is enough. Returns the state behind all bytes otherwise.
    fn walk<T>(
        self,
        mut state: State,
        bytes: &[u8],
        mut outside: impl FnMut(Range<usize>) -> ControlFlow<T>,
    ) -> ControlFlow<T, State> {
        let mut at = 0;
        loop {
            match state {
                State::Within => match memchr(self.quote, &bytes[at..]) {
                    Some(distance) => {
                        at += distance + 1;
                        state = State::Quote;
                    }
                    None => return ControlFlow::Continue(state),
                },
                State::Quote => match bytes.get(at) {
                    Some(byte) if *byte == self.quote => {
                        at += 1;
                        state = State::Within;
                    }
                    Some(byte) => {
                        outside(at..at + 1)?;
                        at += 1;
                        state = self.behind_byte(*byte);
                    }
                    None => return ControlFlow::Continue(state),
                },
                State::Start | State::Outside => {
                    let first = at;
                    state = loop {
                        let Some(distance) = memchr(self.quote, &bytes[at..]) else {
                            outside(first..bytes.len())?;
                            return ControlFlow::Continue(match bytes[first..].last() {
                                Some(byte) => self.behind_byte(*byte),
                                None => state,
                            });
                        };
                        let quote = at + distance;
                        at = quote + 1;
                        let opens = match quote == first {
                            true => state == State::Start,
                            false => self.ends_field(bytes[quote - 1]),
                        };
                        if opens {
                            outside(first..quote)?;
                            break State::Within;
                        }
                    };
                }
            }
        }
    }

    pub(crate) fn behind(self, state: State, bytes: &[u8]) -> State {
        match self.walk(state, bytes, |_| ControlFlow::<State>::Continue(())) {
            ControlFlow::Break(state) | ControlFlow::Continue(state) => state,
        }
    }

    /// The state behind `bytes`, from each state.
    pub(super) fn ends(self, bytes: &[u8]) -> Ends {
        let (first, rest) = bytes.split_at(bytes.len().min(FIRST_BYTES));
        let mut known: [Option<State>; 4] = [None; 4];
        Ends(STATES.map(|state| {
            let state = self.behind(state, first);
            *known[state as usize].get_or_insert_with(|| self.behind(state, rest))
        }))
    }

    /// The position behind the last line break outside quotes.
    pub(crate) fn last_line_end(self, state: State, bytes: &[u8]) -> Option<usize> {
        let mut last = None;
        let _ = self.walk(state, bytes, |part| {
            let found = memrchr(b'\n', &bytes[part.clone()]);
            last = found.map(|distance| part.start + distance + 1).or(last);
            ControlFlow::<()>::Continue(())
        });
        last
    }

    /// The position behind the first line break outside quotes.
    pub(super) fn line_end(self, state: State, bytes: &[u8]) -> Option<usize> {
        let found = self.walk(state, bytes, |part| match memchr(b'\n', &bytes[part.clone()]) {
            Some(distance) => ControlFlow::Break(part.start + distance + 1),
            None => ControlFlow::Continue(()),
        });
        found.break_value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: Marks = Marks { delimiter: b',', quote: b'"' };

    /// Ends of rows by a reader that goes byte by byte.
    fn slowly(bytes: &[u8]) -> Vec<usize> {
        let (mut state, mut ends) = (State::Start, Vec::new());
        for (i, &byte) in bytes.iter().enumerate() {
            state = match (state, byte) {
                (State::Start, b'"') | (State::Quote, b'"') => State::Within,
                (State::Within, b'"') => State::Quote,
                (State::Within, _) => State::Within,
                (_, b',' | b'\r') => State::Start,
                (_, b'\n') => {
                    ends.push(i + 1);
                    State::Start
                }
                _ => State::Outside,
            };
        }
        ends
    }

    #[test]
    fn rows_end_at_line_breaks_outside_quotes_wherever_a_reader_begins() {
        let mut bits = 1u64;
        for _ in 0..300 {
            let letters: Vec<u8> = (0..120)
                .map(|_| {
                    bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    b"a,\"\n\"\r\"x"[(bits >> 40) as usize % 8]
                })
                .collect();
            let want = slowly(&letters);
            for cut in 0..letters.len() {
                let (before, behind) = letters.split_at(cut);
                let state = MARKS.ends(before).of(State::Start);
                assert_eq!(state, MARKS.behind(State::Start, before));
                let whole = MARKS.behind(State::Start, &letters);
                assert_eq!(MARKS.ends(behind).of(state), whole);
                let end = MARKS.line_end(state, behind).map(|end| cut + end);
                assert_eq!(end, want.iter().copied().find(|end| *end > cut));
                let last = MARKS.last_line_end(state, behind).map(|end| cut + end);
                assert_eq!(last, want.iter().copied().rfind(|end| *end > cut));
            }
        }
    }
}
