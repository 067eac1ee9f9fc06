#![allow(clippy::unwrap_used, reason = "tests")]

use super::Label;
use super::subscripts::{ELLIPSIS, read};
use super::sum::{Sum, Term};
use crate::lower::value::{Dim, Tensor};
use sqlparser::tokenizer::Span;
use tessera_planner::dtype::DType;
use tessera_planner::ir::NodeId;

/// The order of a sum whose letters have these lengths.
fn order(text: &str, lengths: &[(char, u64)]) -> Vec<(usize, usize)> {
    let (left, right) = text.split_once("->").unwrap();
    let labels = |part: &str| part.chars().map(|c| c as Label).collect::<Vec<_>>();
    let terms: Vec<Term> =
        left.split(',').map(|part| Term { node: NodeId(0), labels: labels(part) }).collect();
    let axes = lengths.iter().map(|(c, n)| (*c as Label, *n, Dim::default())).collect();
    let sum = Sum { name: "einsum", span: Span::empty(), dtype: DType::Float64, axes };
    sum.order(&terms, &labels(right))
}

#[test]
fn the_cheapest_chain_is_found() {
    // 2 × 1000 @ 1000 × 2 first: 4000 multiplications instead of two million.
    let lengths = [('i', 1000), ('j', 2), ('k', 1000), ('l', 2)];
    assert_eq!(order("ij,jk,kl->il", &lengths), [(1, 2), (0, 3)]);
    // From the left if the vector is on the left.
    let lengths = [('i', 50), ('j', 50), ('k', 50)];
    assert_eq!(order("i,ij,jk->k", &lengths), [(0, 1), (3, 2)]);
    assert_eq!(order("ij,jk,k->i", &lengths), [(1, 2), (0, 3)]);
}

#[test]
fn operands_without_a_common_letter_are_not_multiplied_early() {
    // ab and cd share no label without bc: their outer product would have 10^8 cells.
    let lengths = [('a', 100), ('b', 100), ('c', 100), ('d', 100)];
    let order = order("ab,cd,bc->ad", &lengths);
    assert!(order[0] != (0, 1), "{order:?}");
}

#[test]
fn more_operands_than_are_searched_exactly_are_paired_greedily() {
    let letters: Vec<char> = ('a'..='l').collect();
    let terms: Vec<String> = letters.windows(2).map(|w| format!("{}{}", w[0], w[1])).collect();
    let lengths: Vec<(char, u64)> =
        letters.iter().enumerate().map(|(i, c)| (*c, if i == 5 { 1000 } else { 3 })).collect();
    let order = order(&format!("{}->al", terms.join(",")), &lengths);
    assert_eq!(order.len(), terms.len() - 1);
    // Every product except the last is used once.
    let mut used: Vec<usize> = order.iter().flat_map(|(i, j)| [*i, *j]).collect();
    used.sort_unstable();
    assert_eq!(used, (0..2 * terms.len() - 2).collect::<Vec<_>>());
}

#[test]
fn subscripts_are_read_as_in_numpy() {
    let tensor = |rank| Tensor::unnamed(NodeId(0), rank);
    let code = |c: char| c as Label;
    let (terms, output) = read("...ij, jk", &[tensor(4), tensor(2)]).unwrap();
    assert_eq!(terms[0], [ELLIPSIS + 1, ELLIPSIS, code('i'), code('j')]);
    assert_eq!(output, [ELLIPSIS + 1, ELLIPSIS, code('i'), code('k')]);
    // Without an arrow: letters that occur once, sorted, capitals first.
    assert_eq!(read("bAa", &[tensor(3)]).unwrap().1, [code('A'), code('a'), code('b')]);
    for (text, ranks) in [
        ("ij", &[1][..]),
        ("i,j", &[1][..]),
        ("i->ii", &[1][..]),
        ("i->j", &[1][..]),
        ("i.->i", &[2][..]),
        ("......", &[2][..]),
        ("i->i->i", &[1][..]),
        ("...i->i", &[2][..]),
    ] {
        let tensors: Vec<Tensor> = ranks.iter().map(|&r| tensor(r)).collect();
        assert!(read(text, &tensors).is_err(), "{text}");
    }
}
