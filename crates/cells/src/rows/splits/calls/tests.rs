//! Calls over partitions and frames.
#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;
use datafusion::arrow::array::NullArray;
use datafusion::physical_expr::expressions::col;

fn array(what: What, compute: impl Fn(&mut Results)) -> ArrayRef {
    let mut out = Results::new(what, 0);
    compute(&mut out);
    out.array().unwrap()
}

#[test]
fn columns_without_nulls_have_the_results_of_those_that_may_have_some() {
    let floats: Float64Array = (0..500).map(|i| Some(1.0 / f64::from(1 + i * 7 % 113))).collect();
    let floats: ArrayRef = Arc::new(floats);
    let partitions = [0..3, 3..120, 120..500];
    for what in [What::Sum, What::Mean, What::Count] {
        let plain = Values::new(what, &floats);
        assert!(plain.nulls.is_none());
        let checked =
            Values { nulls: Some(NullBuffer::new_valid(500)), ..Values::new(what, &floats) };
        let each = |values: &Values| array(what, |out| running(values, &partitions, out));
        assert_eq!(&each(&plain), &each(&checked), "{what:?}");
        for (before, after) in [(9, 0), (0, 2), (3, 5), (1000, 1000)] {
            let each = |values: &Values| {
                array(what, |out| {
                    for partition in &partitions {
                        moving(values, partition.clone(), before, after, out);
                    }
                })
            };
            assert_eq!(&each(&plain), &each(&checked), "{what:?} {before} {after}");
        }
    }
}

#[test]
fn nulls_are_not_counted() {
    let floats = Float64Array::from(vec![None, Some(1.0), None, Some(2.0), None, None]);
    let floats: ArrayRef = Arc::new(floats);
    let pairs = |what, values: &ArrayRef| {
        array(what, |out| moving(&Values::new(what, values), 0..values.len(), 1, 0, out))
    };
    let sums = Float64Array::from(vec![None, Some(1.0), Some(1.0), Some(2.0), Some(2.0), None]);
    assert_eq!(pairs(What::Sum, &floats).as_primitive::<Float64Type>(), &sums);
    let counts: ArrayRef = Arc::new(Int64Array::from(vec![0, 1, 1, 1, 1, 0]));
    assert_eq!(&pairs(What::Count, &floats), &counts);
    let counts: ArrayRef = Arc::new(Int64Array::from(vec![0, 0]));
    let nulls: ArrayRef = Arc::new(NullArray::new(2));
    assert_eq!(&pairs(What::Count, &nulls), &counts);
}

#[test]
fn the_last_partition_may_begin_in_any_batch() {
    let batch = |keys: &[i64]| {
        let keys: ArrayRef = Arc::new(Int64Array::from(keys.to_vec()));
        RecordBatch::try_from_iter([("k", keys)]).unwrap()
    };
    let schema = batch(&[]).schema();
    let partition = vec![col("k", &schema).unwrap()];
    let start = |batches: &[RecordBatch]| start_of_last(&partition, batches).unwrap();
    assert_eq!(start(&[batch(&[1, 1]), batch(&[1, 1]), batch(&[2, 2])]), (2, 0));
    assert_eq!(start(&[batch(&[1, 1]), batch(&[1, 2])]), (1, 1));
    assert_eq!(start(&[batch(&[1, 2]), batch(&[2, 2]), batch(&[2])]), (0, 1));
    assert_eq!(start(&[batch(&[1]), batch(&[1, 1])]), (0, 0));
}
