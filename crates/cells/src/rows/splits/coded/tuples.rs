//! Numbers of tuples: of the numbers of the values of several keys, in the order in which they are seen.

use super::numbers::check;
use crate::rows::texts::NONE;
use datafusion::common::hash_utils::RandomState;
use datafusion::error::Result;
use std::collections::HashMap;
use std::mem;

/// Tuples whose numbers have at most this many bits are looked up in an array.
const NEAR_BITS: u32 = 18;

/// Maximum pairs of numbers that are looked up in an array.
const PAIRS: usize = 1 << NEAR_BITS;

pub(super) struct Tuples {
    columns: usize,
    /// Indexed by the numbers of all columns, those of the last one in the lowest bits, as long as they are few.
    near: Vec<u32>,
    /// The bits of the numbers of each column.
    bits: Vec<u32>,
    /// The numbers of the tuples in `near`, one tuple after the other.
    of: Vec<u32>,
    /// Where numbers are many, for each column but the first: pairs of the number of the columns before it and of its own.
    chain: Vec<Pairs>,
}

impl Tuples {
    /// Tuples of two numbers or more.
    pub(super) fn new(columns: usize) -> Self {
        Tuples { columns, near: vec![NONE], bits: vec![0; columns], of: vec![], chain: vec![] }
    }

    pub(super) fn len(&self) -> usize {
        match self.chain.last() {
            Some(pairs) => pairs.of.len(),
            None => self.of.len() / self.columns,
        }
    }

    /// The number of the tuple of each row. `numbers` has those of each column; they are less than its `count`.
    pub(super) fn number(
        &mut self,
        numbers: &[Vec<u32>],
        counts: &[usize],
        groups: &mut Vec<usize>,
    ) -> Result<()> {
        let bits = counts.iter().map(|n| n.next_power_of_two().trailing_zeros());
        let bits: Vec<u32> = bits.collect();
        groups.clear();
        if self.chain.is_empty() && bits.iter().sum::<u32>() <= NEAR_BITS {
            self.find_near(numbers, bits, groups);
            return Ok(());
        }
        if self.chain.is_empty() {
            let known = mem::take(&mut self.of);
            let known = (0..self.columns)
                .map(|at| known.iter().skip(at).step_by(self.columns).copied().collect());
            let known: Vec<Vec<u32>> = known.collect();
            self.near = Vec::new();
            self.chain.resize_with(self.columns - 1, Pairs::default);
            // Pairs of the last column get the numbers of their tuples.
            self.chained(&known, counts)?;
        }
        groups.extend(self.chained(numbers, counts)?.into_iter().map(|n| n as usize));
        Ok(())
    }

    fn find_near(&mut self, numbers: &[Vec<u32>], bits: Vec<u32>, groups: &mut Vec<usize>) {
        if bits != self.bits {
            self.near = vec![NONE; 1_usize << bits.iter().sum::<u32>()];
            for (number, tuple) in (0..).zip(self.of.chunks_exact(self.columns)) {
                let code =
                    tuple.iter().zip(&bits).fold(0_u32, |code, (n, bits)| (code << bits) | n);
                self.near[code as usize] = number;
            }
            self.bits = bits;
        }
        let mut codes: Vec<u32> = Vec::new();
        for (numbers, bits) in numbers.iter().zip(&self.bits) {
            codes.resize(numbers.len(), 0);
            codes.iter_mut().zip(numbers).for_each(|(code, n)| *code = (*code << bits) | n);
        }
        let mut next = self.len() as u32;
        let (near, of) = (&mut self.near, &mut self.of);
        groups.extend(codes.iter().enumerate().map(|(row, code)| {
            let number = &mut near[*code as usize];
            if *number == NONE {
                of.extend(numbers.iter().map(|numbers| numbers[row]));
                *number = next;
                next += 1;
            }
            *number as usize
        }));
    }

    fn chained(&mut self, numbers: &[Vec<u32>], counts: &[usize]) -> Result<Vec<u32>> {
        let mut first = numbers[0].clone();
        let mut before = counts[0];
        let others = numbers[1..].iter().zip(&counts[1..]);
        for (pairs, (own, count)) in self.chain.iter_mut().zip(others) {
            pairs.number(&mut first, before, own, *count)?;
            before = pairs.of.len();
        }
        Ok(first)
    }

    /// The numbers of these tuples, for each column.
    pub(super) fn values_of(&self, mut tuples: Vec<u32>) -> Vec<Vec<u32>> {
        if self.chain.is_empty() {
            let of = |tuple: &u32, at: usize| self.of[*tuple as usize * self.columns + at];
            let columns = 0..self.columns;
            return columns.map(|at| tuples.iter().map(|tuple| of(tuple, at)).collect()).collect();
        }
        let mut columns = Vec::with_capacity(self.columns);
        for Pairs { of, .. } in self.chain.iter().rev() {
            columns.push(tuples.iter().map(|tuple| of[*tuple as usize].1).collect());
            tuples.iter_mut().for_each(|tuple| *tuple = of[*tuple as usize].0);
        }
        columns.push(tuples);
        columns.reverse();
        columns
    }

    pub(super) fn size(&self) -> usize {
        let numbers = self.near.capacity() + self.of.capacity() + self.bits.capacity();
        numbers * size_of::<u32>() + self.chain.iter().map(Pairs::size).sum::<usize>()
    }
}

#[derive(Default)]
struct Pairs {
    /// Indexed by both numbers, the second one in the lower bits, as long as they are few.
    near: Vec<u32>,
    bits: u32,
    far: HashMap<(u32, u32), u32, RandomState>,
    of: Vec<(u32, u32)>,
}

impl Pairs {
    /// Replaces first numbers by those of pairs. The numbers are less than `firsts` and `seconds`.
    fn number(
        &mut self,
        first: &mut [u32],
        firsts: usize,
        second: &[u32],
        seconds: usize,
    ) -> Result<()> {
        let bits = seconds.next_power_of_two().trailing_zeros();
        let size = firsts.next_power_of_two().checked_mul(1 << bits).filter(|size| *size <= PAIRS);
        let Some(size) = size.filter(|_| self.far.is_empty()) else {
            self.near = Vec::new();
            if self.far.is_empty() {
                self.far = (0..).zip(&self.of).map(|(n, pair)| (*pair, n)).collect();
            }
            for (first, second) in first.iter_mut().zip(second) {
                let (pair, next) = ((*first, *second), self.of.len() as u32);
                *first = *self.far.entry(pair).or_insert(next);
                if *first == next {
                    self.of.push(pair);
                }
            }
            return check(self.of.len());
        };
        if size > self.near.len() || bits != self.bits {
            (self.bits, self.near) = (bits, vec![NONE; size]);
            for (n, (a, b)) in (0..).zip(&self.of) {
                self.near[((*a as usize) << bits) | *b as usize] = n;
            }
        }
        for (first, second) in first.iter_mut().zip(second) {
            let known = &mut self.near[((*first as usize) << bits) | *second as usize];
            if *known == NONE {
                *known = self.of.len() as u32;
                self.of.push((*first, *second));
            }
            *first = *known;
        }
        Ok(())
    }

    fn size(&self) -> usize {
        self.near.capacity() * size_of::<u32>()
            + self.far.capacity() * size_of::<((u32, u32), u32)>()
            + self.of.capacity() * size_of::<(u32, u32)>()
    }
}
