//! Assembly of rows into arrays.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::*;
use arrow::array::{Float32Array, Float64Array, Int64Array, StringArray};
use arrow::datatypes::Schema;
use std::sync::atomic::AtomicU64;
use tessera_exec::pool::Pool;
use tessera_exec::quota::Quota;
use tessera_exec::store::{FinishedChunk, Store};

fn room(limit: u64, spill: u64, dir: &std::path::Path) -> Room {
    let quota = Quota::new(limit);
    Room::new(quota.clone(), Pool::new(quota, limit), Store::open(dir, spill))
}

fn batch(lat: Vec<f64>, place: Vec<&str>, v: Vec<Option<f32>>) -> RecordBatch {
    let schema = Arc::new(Schema::new(vec![
        ArrowField::new("lat", DataType::Float64, true),
        ArrowField::new("place", DataType::Utf8, true),
        ArrowField::new("v", DataType::Float32, true),
    ]));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Float64Array::from(lat)),
        Arc::new(StringArray::from(place)),
        Arc::new(Float32Array::from(v)),
    ];
    RecordBatch::try_new(schema, columns).unwrap()
}

const ROLES: [Role; 3] = [Role::Key(None), Role::Key(None), Role::Value(None)];

#[test]
fn rows_are_placed_by_their_labels_and_gaps_are_masked() {
    let dir = tempfile::tempdir().unwrap();
    let room = room(1 << 20, 0, dir.path());
    let first = batch(vec![50.0, 50.0], vec!["b", "a"], vec![Some(1.0), Some(2.0)]);
    let mut rows = Assemble::new(&first.schema(), &ROLES, room.clone()).unwrap();
    rows.push(&first).unwrap();
    rows.push(&batch(vec![40.0, 60.0], vec!["a", "b"], vec![None, Some(4.0)])).unwrap();
    // Chunks of two cells do not change the result.
    let done = rows.finish(8, &|| false).unwrap();
    assert_eq!(
        done.coords,
        [
            CoordValues::Float(DType::Float64, [40.0, 50.0, 60.0].into()),
            CoordValues::Text(["a".to_string(), "b".into()].into()),
        ]
    );
    let value = &done.values[0];
    assert!(value.nullable && value.array.grid.count() == 3);
    let mut cells = Vec::new();
    for n in 0..3 {
        let Some(FinishedChunk::Memory(chunk)) = value.array.held(n) else {
            panic!("{n} is not here")
        };
        let values = chunk.field(0).unwrap().values::<f32>().unwrap();
        let valid = chunk.field(1).unwrap().values::<u8>().unwrap();
        cells.extend(values.iter().zip(valid).map(|(v, k)| (*k == 1).then_some(*v)));
    }
    assert_eq!(cells, [None, None, Some(2.0), Some(1.0), None, Some(4.0)]);
    drop(done);
    assert_eq!(room.quota.used(), 0);
}

#[test]
fn rows_beyond_memory_spill_to_files() {
    let dir = tempfile::tempdir().unwrap();
    let room = room(256 << 10, 8 << 20, dir.path());
    let schema = Arc::new(Schema::new(vec![
        ArrowField::new("y", DataType::Int64, true),
        ArrowField::new("x", DataType::Int64, true),
        ArrowField::new("v", DataType::Float64, true),
        ArrowField::new("w", DataType::Int64, true),
    ]));
    let roles = [Role::Key(None), Role::Key(None), Role::Value(None), Role::Value(None)];
    // 300 x 200 cells in a scattered order, each seventh absent, each fifth NULL.
    let order = |scattered: bool| -> Vec<i64> {
        let all = (0..60_000).map(|i| if scattered { i * 7919 % 60_000 } else { i });
        all.filter(|i| i % 7 != 0).collect()
    };
    for scattered in [false, true] {
        let mut rows = Assemble::new(&schema, &roles, room.clone()).unwrap();
        for cells in order(scattered).chunks(1000) {
            let of = |f: &dyn Fn(i64) -> i64| -> ArrayRef {
                Arc::new(Int64Array::from_iter_values(cells.iter().map(|&i| f(i))))
            };
            let v = cells.iter().map(|&i| (i % 5 != 0).then_some(i as f64));
            let v: ArrayRef = Arc::new(Float64Array::from_iter(v));
            let columns = vec![of(&|i| i / 200), of(&|i| i % 200), v, of(&|i| -i)];
            rows.push(&RecordBatch::try_new(schema.clone(), columns).unwrap()).unwrap();
        }
        // Half of the memory, and the labels.
        assert!(room.quota.used() <= 192 << 10, "{}", room.quota.used());
        let done = rows.finish(16 << 10, &|| false).unwrap();
        assert!(room.store.figures().files > 10);
        let pool = Pool::new(Quota::new(1 << 20), 0);
        for (k, value) in done.values.iter().enumerate() {
            let (grid, read) = (&value.array.grid, AtomicU64::new(0));
            for n in 0..grid.count() {
                let chunk = match value.array.held(n).unwrap() {
                    FinishedChunk::Memory(chunk) => chunk,
                    FinishedChunk::File(file) => Arc::new(file.load(&pool, &read).unwrap()),
                };
                let region = grid.region(&grid.unravel(n));
                let valid = chunk.field(1).unwrap().values::<u8>().unwrap();
                let mut at = 0;
                for y in region.start[0]..region.end[0] {
                    for x in region.start[1]..region.end[1] {
                        let i = (y * 200 + x) as i64;
                        let there = i % 7 != 0 && (k == 1 || i % 5 != 0);
                        assert_eq!(valid[at] == 1, there, "{i}");
                        if there && k == 0 {
                            assert_eq!(
                                chunk.field(0).unwrap().values::<f64>().unwrap()[at],
                                i as f64
                            );
                        } else if there {
                            assert_eq!(chunk.field(0).unwrap().values::<i64>().unwrap()[at], -i);
                        }
                        at += 1;
                    }
                }
            }
        }
        drop(done);
        let figures = room.store.figures();
        assert_eq!((room.quota.used(), figures.files, figures.bytes), (0, 0, 0));
    }
    assert_eq!(room.quota.overrun(), 0);
}

#[test]
fn duplicate_labels_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let room = room(1 << 20, 0, dir.path());
    let both = batch(vec![50.0, 50.0], vec!["b", "b"], vec![None, None]);
    let mut rows = Assemble::new(&both.schema(), &ROLES, room).unwrap();
    rows.push(&both).unwrap();
    let error = rows.finish(8, &|| false).unwrap_err();
    assert_eq!(error.code(), "duplicate_key");
    assert!(error.to_string().contains("lat = 50, place = b"), "{error}");
}

#[test]
fn unsupported_labels_and_cells_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let room = room(1 << 20, 0, dir.path());
    let schema = Arc::new(Schema::new(vec![ArrowField::new("k", DataType::Int64, true)]));
    let array: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
    let rows = RecordBatch::try_new(schema.clone(), vec![array]).unwrap();
    let mut keys = Assemble::new(&schema, &[Role::Key(None)], room.clone()).unwrap();
    assert_eq!(keys.push(&rows).unwrap_err().code(), "null_key");
    let texts = Arc::new(Schema::new(vec![ArrowField::new("v", DataType::Utf8, true)]));
    let error = Assemble::new(&texts, &[Role::Value(None)], room).unwrap_err();
    assert_eq!(error.code(), "dtype_mismatch");
}
