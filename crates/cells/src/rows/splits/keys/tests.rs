#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;
use datafusion::arrow::array::{
    BinaryArray, BooleanArray, Decimal128Array, Float64Array, Int8Array, Int64Array, StringArray,
    StringViewArray, UInt64Array,
};
use datafusion::arrow::compute::{SortColumn, SortOptions, concat_batches, lexsort_to_indices};
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::physical_expr::expressions::col;
use std::sync::Arc;

const OPTIONS: [SortOptions; 4] = [
    SortOptions { descending: false, nulls_first: false },
    SortOptions { descending: true, nulls_first: false },
    SortOptions { descending: false, nulls_first: true },
    SortOptions { descending: true, nulls_first: true },
];

/// Numbers below some that depend on `seed`.
fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    }
}

/// Values of several types, with extremes and NULLs, in an order that depends on `seed`.
fn rows(seed: u64, n: usize) -> RecordBatch {
    let mut random = random(seed);
    let floats = [0.0, -0.0, 1.5, -1.5, f64::NAN, -f64::NAN, f64::INFINITY, f64::MIN, 5e-324];
    let texts = ["", "a", "a long text about", "a long text abovE", "zz", "\u{e9}"];
    let mut some = |n: usize| Some(random(n)).filter(|&i| i > 0).map(|i| i - 1);
    let f: Float64Array = (0..n).map(|_| some(10).map(|i| floats[i])).collect();
    let b: Int8Array = (0..n).map(|_| some(6).map(|i| [i8::MIN, -1, 0, 1, i8::MAX][i])).collect();
    let u: UInt64Array = (0..n).map(|_| Some([0, 1, u64::MAX][some(4).unwrap_or(0)])).collect();
    let o: BooleanArray = (0..n).map(|_| some(3).map(|i| i == 0)).collect();
    let s: StringArray = (0..n).map(|_| some(7).map(|i| texts[i])).collect();
    let decimals = [i128::from(i64::MIN) * 7, -1, 0, i128::from(i64::MAX) * 7];
    let d: Decimal128Array = (0..n).map(|_| some(5).map(|i| decimals[i])).collect();
    let field = |name, kind, null| Field::new(name, kind, null);
    let schema = Schema::new(vec![
        field("f", DataType::Float64, true),
        field("b", DataType::Int8, true),
        field("u", DataType::UInt64, false),
        field("o", DataType::Boolean, true),
        field("s", DataType::Utf8, true),
        field("d", d.data_type().clone(), true),
    ]);
    let columns: Vec<ArrayRef> =
        vec![Arc::new(f), Arc::new(b), Arc::new(u), Arc::new(o), Arc::new(s), Arc::new(d)];
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

/// The numbers of the rows of sorted batches, in parts. A run has some of the batches.
fn sorted(keys: &Keys, batches: &[RecordBatch], each: usize, whole: usize) -> Vec<Vec<u64>> {
    let mut runs = Vec::new();
    let mut first = 0;
    for some in batches.chunks(each) {
        let mut run = keys.run(some).unwrap();
        run.number(first);
        first += some.len();
        runs.push(run);
    }
    let starts: Vec<usize> = batches
        .iter()
        .scan(0, |at, batch| Some(std::mem::replace(at, *at + batch.num_rows())))
        .collect();
    let cuts = keys.cuts(&runs, 7, 5, whole);
    let parts = cuts.windows(2).map(|cut| keys.merged(&runs, &cut[0], &cut[1]));
    let numbered = |part: Vec<Entry>| -> Vec<u64> {
        part.into_iter().map(|(batch, row)| (starts[batch] + row) as u64).collect()
    };
    parts.map(numbered).collect()
}

#[test]
fn keys_sort_as_arrows_do_and_keep_the_order_of_equal_ones() {
    let batches: Vec<_> = (1..40).map(|seed| rows(seed, 1 + (seed as usize * 37) % 90)).collect();
    let schema = batches[0].schema();
    let all = concat_batches(&schema, &batches).unwrap();
    let columns = [
        "b", "u", "f", "b,o", "o,f", "b,u", "f,u", "s", "o,s,f", "f,b,u,o", "s,b", "u,s", "d",
        "s,d", "d,b,s",
    ];
    for (at, columns) in columns.iter().enumerate() {
        // The options of the first key, and how far those of the next ones are behind.
        for (first, step) in (0..OPTIONS.len()).flat_map(|first| [(first, 0), (first, 1)]) {
            let key = |(i, name): (usize, &str)| {
                let options = OPTIONS[(first + i * step) % OPTIONS.len()];
                PhysicalSortExpr::new(col(name, &schema).unwrap(), options)
            };
            let sort: Vec<_> = columns.split(',').enumerate().map(key).collect();
            let keys = Keys::new(&sort, &schema).unwrap();
            let merged = sorted(&keys, &batches, 1 + at % 4, 0).concat();
            // Arrow's sort, with the number of the row as the last key.
            let column = |key: &PhysicalSortExpr| SortColumn {
                values: key.expr.evaluate(&all).unwrap().into_array(all.num_rows()).unwrap(),
                options: Some(key.options),
            };
            let number: UInt64Array = (0..all.num_rows() as u64).collect();
            let number = SortColumn { values: Arc::new(number), options: None };
            let expected: Vec<_> = sort.iter().map(column).chain([number]).collect();
            let expected = lexsort_to_indices(&expected, None).unwrap();
            let expected: Vec<u64> = expected.values().iter().map(|&i| i.into()).collect();
            assert_eq!(merged, expected, "{columns} {first} {step}");
        }
    }
}

/// Rows of a batch of texts.
const BATCH: usize = 170;

/// Texts of a kind: with common beginnings, the beginnings of others, bytes 0 and 1, few different ones, beginnings that
/// each batch has of its own, none.
fn texts(kind: usize, n: usize) -> Vec<Option<String>> {
    let heads = ["", "cust_", "https://example.com/a/long/way/to/", "\0", "\u{e9}", "cust_\0"];
    let tails = ["", "\0", "\0\0", "\u{1}", "\u{1}\0", "\u{2}", "a", "ab", "\u{ff}", "\u{10ffff}"];
    let mut random = random(kind as u64);
    let own = [
        "",
        "a long ",
        "a long beginning",
        "a long beginning that some of the batches share: ",
        "b",
    ];
    let text = |row: usize| match kind {
        0 => Some(format!("cust_{:06}", random(500))),
        1 => Some([heads[random(6)], tails[random(10)], tails[random(10)]].concat()),
        2 => {
            [Some("Oslo"), Some("New York, New York, New York"), None][random(3)].map(String::from)
        }
        3 => Some("x".repeat(random(100))).filter(|text| !text.len().is_multiple_of(9)),
        4 => Some(format!("{}{}", heads[2].repeat(1 + random(2)), tails[random(10)])),
        5 => Some("the same text in all rows".to_string()),
        6 => Some(format!("{:016}{:016}{:016}", random(2), random(3), random(4))),
        7 => Some(format!("{}{:02}", own[row / BATCH % own.len()], random(40))),
        _ => None,
    };
    (0..n).map(text).collect()
}

#[test]
fn texts_sort_as_tuples_do() {
    const ROWS: usize = 1200;
    fn ordered<T: Ord>(a: &Option<T>, b: &Option<T>, options: SortOptions) -> Ordering {
        match (a, b) {
            (Some(a), Some(b)) if options.descending => b.cmp(a),
            (Some(a), Some(b)) => a.cmp(b),
            _ if options.nulls_first => a.is_some().cmp(&b.is_some()),
            _ => a.is_none().cmp(&b.is_none()),
        }
    }
    let mut random = random(1);
    let numbers: Vec<Option<i64>> =
        (0..ROWS).map(|_| Some(random(4) as i64 - 2).filter(|&i| i < 1)).collect();
    let n: ArrayRef = Arc::new(Int64Array::from(numbers.clone()));
    for kind in 0..9 {
        let texts = texts(kind, ROWS);
        let (s, v, b): (StringArray, StringViewArray, BinaryArray) = (
            texts.iter().map(Option::as_deref).collect(),
            texts.iter().map(Option::as_deref).collect(),
            texts.iter().map(|text| text.as_ref().map(String::as_bytes)).collect(),
        );
        let columns: [(&str, ArrayRef); 4] =
            [("n", n.clone()), ("s", Arc::new(s)), ("v", Arc::new(v)), ("b", Arc::new(b))];
        let columns = columns.map(|(name, column)| (name, column, true));
        let all = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let starts = (0..ROWS).step_by(BATCH);
        let batches: Vec<_> = starts.map(|at| all.slice(at, BATCH.min(ROWS - at))).collect();
        for columns in ["s", "v", "b", "s,n", "n,v"] {
            for options in OPTIONS {
                let key = |name| PhysicalSortExpr::new(col(name, &all.schema()).unwrap(), options);
                let sort: Vec<_> = columns.split(',').map(key).collect();
                let keys = Keys::new(&sort, &all.schema()).unwrap();
                let mut expected: Vec<u64> = (0..ROWS as u64).collect();
                expected.sort_by(|&a, &b| {
                    let (a, b) = (a as usize, b as usize);
                    let of_texts = ordered(&texts[a], &texts[b], options);
                    let of_numbers = ordered(&numbers[a], &numbers[b], options);
                    match columns {
                        "s,n" => of_texts.then(of_numbers),
                        "n,v" => of_numbers.then(of_texts),
                        _ => of_texts,
                    }
                });
                for each in [1, 4] {
                    let parts = sorted(&keys, &batches, each, 0);
                    assert_eq!(parts.concat(), expected, "{kind} {columns} {options:?} {each}");
                    // Parts that end where the first key changes.
                    let parts = sorted(&keys, &batches, each, 1);
                    assert_eq!(parts.concat(), expected, "{kind} {columns} {options:?} {each}");
                    let ends = parts.iter().filter_map(|part| part.last());
                    let starts = parts.iter().filter_map(|part| part.first()).skip(1);
                    for (&end, &start) in ends.zip(starts) {
                        let (end, start) = (end as usize, start as usize);
                        let is_equal = match columns {
                            "n,v" => numbers[end] == numbers[start],
                            _ => texts[end] == texts[start],
                        };
                        assert!(!is_equal, "{kind} {columns} {options:?} {each}");
                    }
                }
            }
        }
    }
}
