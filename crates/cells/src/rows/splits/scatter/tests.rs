#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;
use datafusion::arrow::array::{Int64Array, LargeStringArray, StringArray, StructArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{Field, Schema};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_expr::expressions::col;

#[test]
fn few_keys_choose_few_bits() {
    // One of the keys is NULL.
    let bits = |keys: i64| {
        let values = (0..20_000).map(|i| Some(i % keys).filter(|key| *key > 0));
        let values: ArrayRef = Arc::new(values.collect::<Int64Array>());
        let rows = RecordBatch::try_from_iter([("k", values)]).unwrap();
        let key = col("k", &rows.schema()).unwrap();
        let scatter = Scatter::by_keys(vec![key], 1, RandomState::with_seed(7));
        scatter.sorted(0, &rows).unwrap().key_bits[0]
    };
    assert_eq!(bits(1).count_ones(), 1);
    for keys in [1, 2, 10, 30] {
        assert!(has_few_keys(bits(keys)), "{keys} keys");
    }
    for keys in [200, 1000, 20_000] {
        assert!(!has_few_keys(bits(keys)), "{keys} keys");
    }
}

#[test]
fn long_values_are_counted_in_each_type() {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a".repeat(1000); 3]));
    for kind in [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View, DataType::LargeBinary] {
        let texts = cast(&texts, &kind).unwrap();
        assert_eq!(array_bytes(&texts), 3048, "{kind}");
        assert_eq!(array_bytes(&texts.slice(1, 1)), 1016, "{kind}");
    }
    let field = Arc::new(Field::new("s", DataType::Utf8, true));
    let inner: ArrayRef = Arc::new(StructArray::from(vec![(field, texts)]));
    assert_eq!(array_bytes(&inner), 3048 + 48);
    assert_eq!(array_bytes(&inner.slice(1, 1)), 1016 + 16);
}

/// Parts of parts have rows of the same number, whatever the distance of the keys.
#[test]
fn a_part_is_divided_by_the_next_hash() {
    for step in [1_i64, 64, 1000, 1 << 32, 86_400_000_000] {
        let keys: ArrayRef =
            Arc::new(Int64Array::from_iter_values((0..1_048_576).map(|i| i * step)));
        for depth in 0..3 {
            let of = |depth, parts| {
                let state = hash_at(0x7465_7373_6572_6121, depth);
                parts_of(std::slice::from_ref(&keys), keys.len(), &state, parts).unwrap()
            };
            let (first, second) = (of(depth, 512), of(depth + 1, 64));
            let mut counts = vec![0_usize; 64];
            for (_, part) in first.iter().zip(second).filter(|(first, _)| **first == 7) {
                counts[part as usize] += 1;
            }
            let (all, most) = (counts.iter().sum::<usize>(), counts.iter().max());
            let most = most.copied().unwrap_or(0);
            assert!(all > 1000 && most < all / 10, "{step} {depth}: {most} of {all}");
        }
    }
}

#[tokio::test]
async fn long_rows_are_moved_in_several_batches() {
    let texts: ArrayRef = Arc::new(LargeStringArray::from(vec!["a".repeat(1 << 20); 40]));
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..40));
    let fields = [("t", DataType::LargeUtf8), ("n", DataType::Int64)];
    let fields = fields.map(|(name, kind)| Field::new(name, kind, false));
    let schema = Arc::new(Schema::new(fields.to_vec()));
    let rows = RecordBatch::try_new(schema.clone(), vec![texts, numbers]).unwrap();
    let (environment, metrics) =
        (Arc::new(RuntimeEnv::default()), SpillMetrics::new(&ExecutionPlanMetricsSet::new(), 0));
    let memory = MemoryConsumer::new("test").register(&environment.memory_pool);
    let of = Scattered {
        files: SpillManager::new(environment, metrics, schema.clone()),
        parts: vec![PartRows {
            count: 40,
            bytes: 0,
            key_bits: 0,
            file: None,
            rows: vec![rows.clone()],
        }],
        _memory: memory,
    };
    let batches: Vec<RecordBatch> = of.apart(0, 8192).unwrap().try_collect().await.unwrap();
    assert!(batches.len() > 1 && batches.iter().all(|b| value_bytes(b) < 2 * APART_BYTES));
    assert_eq!(concat_batches(&schema, &batches).unwrap(), rows);
    let batches: Vec<RecordBatch> = of.apart(0, 3).unwrap().try_collect().await.unwrap();
    assert!(batches.iter().all(|b| b.num_rows() <= 3));
    assert_eq!(concat_batches(&schema, &batches).unwrap(), rows);
}
