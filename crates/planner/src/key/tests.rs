#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;

#[test]
fn the_hash_is_of_defined_bytes() {
    // Python: sha256 of pack('<Q', 3), pack('<Q', 1) + b'a', pack('<I', 7), b'\x01', pack('<Q', 2), then two '<d'.
    let value = ("a", 7u32, Some([0.5f64, f64::NAN].as_slice()));
    assert_eq!(hash::of(&value).unwrap().to_string(), "ada1e63c671136e938b1e4c2484ec14b");
}

#[test]
fn the_hash_of_numbers_is_of_their_bytes() {
    // Python: sha256(pack('<1000Q', *[i * i for i in range(1000)])), and sha256(b'').
    let squares: Vec<u64> = (0..1000).map(|i| i * i).collect();
    let told = |numbers: &[u64]| StageKey(hash::of_numbers(numbers)).to_string();
    assert_eq!(told(&squares), "f82d06f0edae971b90273b82a8895f78");
    assert_eq!(told(&[]), "e3b0c44298fc1c149afbf4c8996fb924");
}

#[test]
fn different_stages_have_different_keys() {
    let of = |v: &dyn Fn() -> Option<StageKey>| v().unwrap();
    let all = [
        of(&|| hash::of(&0.0f64)),
        of(&|| hash::of(&-0.0f64)),
        of(&|| hash::of(&f64::NAN)),
        of(&|| hash::of(&-f64::NAN)),
        of(&|| hash::of(&("ab", "c"))),
        of(&|| hash::of(&("a", "bc"))),
        of(&|| hash::of(&(vec![1u8], vec![2u8, 3]))),
        of(&|| hash::of(&(vec![1u8, 2], vec![3u8]))),
        of(&|| hash::of(&None::<u8>)),
        of(&|| hash::of(&Some(0u8))),
        of(&|| hash::of(&vec![7u8; 10_000])),
        of(&|| hash::of(&vec![7u8; 10_001])),
    ];
    for (i, a) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|b| a != b), "{i}");
    }
    assert_eq!(hash::of(&f64::NAN), hash::of(&f64::NAN));
}
