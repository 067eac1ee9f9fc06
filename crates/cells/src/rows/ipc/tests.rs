#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::super::guard::guarded;
use super::super::splits::{SplitSize, with_splits};
use super::*;
use crate::lift::session_state;
use arrow::array::{Array, ArrayRef, AsArray, DictionaryArray, Int64Array, StringArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type};
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow::ipc::{CompressionType, root_as_footer};
use datafusion::datasource::listing::ListingOptions;
use datafusion::physical_plan::{ExecutionPlanProperties, collect};
use datafusion::prelude::SessionContext;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use tessera_storage::source::SourceError;

fn batches() -> Vec<RecordBatch> {
    let words = |from: i64| -> DictionaryArray<Int32Type> {
        (from..from + 5).map(|i| if i % 2 == 0 { "even" } else { "odd" }).collect()
    };
    let fields = vec![
        Field::new("n", DataType::Int64, true),
        Field::new("w", words(0).data_type().clone(), true),
        Field::new("t", DataType::Utf8, true),
    ];
    let schema = Arc::new(Schema::new(fields));
    let batch = |from: i64| {
        let texts: StringArray =
            (from..from + 5).map(|i| (i != 3).then(|| i.to_string())).collect();
        let numbers = Int64Array::from_iter_values(from..from + 5);
        let columns: [arrow::array::ArrayRef; 3] =
            [Arc::new(numbers), Arc::new(words(from)), Arc::new(texts)];
        RecordBatch::try_new(schema.clone(), columns.to_vec()).unwrap()
    };
    // Both have the same dictionary: a file's dictionary is never replaced.
    vec![batch(0), batch(6)]
}

fn listed() -> Vec<u8> {
    let all = batches();
    let mut writer = FileWriter::try_new(Vec::new(), &all[0].schema()).unwrap();
    all.iter().for_each(|b| writer.write(b).unwrap());
    writer.into_inner().unwrap()
}

fn streamed() -> Vec<u8> {
    let all = batches();
    let mut writer = StreamWriter::try_new(Vec::new(), &all[0].schema()).unwrap();
    all.iter().for_each(|b| writer.write(b).unwrap());
    writer.into_inner().unwrap()
}

async fn opened(bytes: Vec<u8>, limit: u64, account: Option<Arc<Account>>) -> IpcFile {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let at = Path::from("a.arrow");
    store.put(&at, bytes.into()).await.unwrap();
    let meta = store.head(&at).await.unwrap();
    IpcFile { store, meta, limit, account }
}

fn columns(places: &[usize]) -> Columns {
    Columns::new(&batches()[0].schema(), places).unwrap()
}

async fn read(bytes: Vec<u8>, places: Vec<usize>, limit: u64) -> Result<Vec<RecordBatch>> {
    let file = opened(bytes, limit, None).await;
    file.batches(Arc::default(), None, columns(&places)).await?.try_collect().await
}

/// The batches of each range of `length` bytes; the ranges share the footer.
async fn ranges(bytes: &[u8], length: u64) -> Vec<Vec<RecordBatch>> {
    let (form, mut all) = (Arc::<OnceCell<Form>>::default(), Vec::new());
    let size = bytes.len() as u64;
    for start in (0..size).step_by(length as usize) {
        let file = opened(bytes.to_vec(), 1 << 20, None).await;
        let range = start..(start + length).min(size);
        let batches = file.batches(form.clone(), Some(range), columns(&[0, 1, 2])).await.unwrap();
        all.push(batches.try_collect().await.unwrap());
    }
    all
}

#[tokio::test]
async fn ranges_have_the_batches_that_begin_in_them() {
    for (length, expected) in [(1, 2), (7, 2), (100, 2), (1 << 20, 1)] {
        let of_file = ranges(&listed(), length).await;
        assert_eq!(of_file.concat(), batches(), "{length}");
        let filled = of_file.iter().filter(|batches| !batches.is_empty()).count();
        assert_eq!(filled, expected, "{length}");
        // A stream has no index.
        let of_stream = ranges(&streamed(), length).await;
        assert_eq!(of_stream[0], batches(), "{length}");
        assert!(of_stream[1..].iter().all(Vec::is_empty), "{length}");
    }
}

/// A footer may list batches in another order than they have in the file: that of the footer is that of the rows.
#[tokio::test]
async fn a_footer_out_of_order_is_one_range() {
    let mut file = listed();
    let size = file.len();
    let length = i32::from_le_bytes(file[size - 10..size - 6].try_into().unwrap()) as usize;
    let footer = size - 10 - length;
    let blocks: Vec<[u8; 24]> = {
        let footer = root_as_footer(&file[footer..size - 10]).unwrap();
        footer.recordBatches().unwrap().iter().map(|block| block.0).collect()
    };
    let at = |block: &[u8; 24]| {
        let found = file[footer..].windows(24).position(|bytes| bytes == block);
        footer + found.unwrap()
    };
    let (first, second) = (at(&blocks[0]), at(&blocks[1]));
    file[first..first + 24].copy_from_slice(&blocks[1]);
    file[second..second + 24].copy_from_slice(&blocks[0]);
    let expected: Vec<_> = batches().into_iter().rev().collect();
    assert_eq!(read(file.clone(), vec![0, 1, 2], 1 << 20).await.unwrap(), expected);
    let of_ranges = ranges(&file, 100).await;
    assert_eq!(of_ranges[0], expected);
    assert_eq!(of_ranges.concat(), expected);
}

#[tokio::test]
async fn reads_are_charged() {
    let options =
        |compression| IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let rows = 100_000;
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows).map(|i| i % 3)));
    let batch = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
    for compression in [None, Some(CompressionType::ZSTD)] {
        let mut writer =
            FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options(compression))
                .unwrap();
        for _ in 0..4 {
            writer.write(&batch).unwrap();
        }
        let file = writer.into_inner().unwrap();
        let quota = Quota::new(2 << 20);
        let columns = Columns::new(&batch.schema(), &[0]).unwrap();
        let read = opened(file.clone(), 1 << 20, Some(quota.account())).await;
        let mut read = read.batches(Arc::default(), None, columns.clone()).await.unwrap();
        let mut count = 0;
        while let Some(next) = read.try_next().await.unwrap() {
            assert_eq!(next, batch);
            // One batch, not all four.
            assert!((800_000..1_700_000).contains(&quota.used()), "{}", quota.used());
            count += 1;
        }
        assert_eq!(count, 4);
        drop(read);
        assert_eq!(quota.used(), 0);
        let small = opened(file, 1 << 20, Some(Quota::new(500_000).account())).await;
        let read = small.opened(Arc::default(), None, columns).await.unwrap();
        let error = read.try_collect::<Vec<_>>().await.unwrap_err();
        let DataFusionError::ResourcesExhausted(what) = error.find_root() else {
            panic!("{error}")
        };
        assert!(what.contains(" of 500000 are in use; write smaller record batches"), "{what}");
    }
}

/// The numbers of a file in a directory, in splits of `split` bytes, and the number of splits.
async fn numbers(name: &str, bytes: Vec<u8>, split: u64) -> Result<(Vec<i64>, usize)> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join(name), bytes).unwrap();
    let context = SessionContext::new_with_state(session_state(1 << 30).unwrap());
    let listing = ListingOptions::new(Arc::new(IpcFormat::new(1 << 20))).with_file_extension("");
    let path = directory.path().to_str().unwrap();
    context.register_listing_table("t", path, listing, None, None).await?;
    let plan = context.sql("SELECT n FROM t").await?.create_physical_plan().await?;
    let quota = Quota::new(64 << 20);
    let plan = with_splits(guarded(plan, None, Some(&quota), 100)?, SplitSize::of(split))?;
    let splits = plan.children().first().map(|s| s.output_partitioning().partition_count());
    let batches = collect(plan.clone(), context.task_ctx()).await?;
    let all = concat_batches(&plan.schema(), &batches)?;
    assert!(quota.peak() > 0);
    Ok((all.column(0).as_primitive::<Int64Type>().values().to_vec(), splits.unwrap_or(1)))
}

/// Twenty batches of a thousand rows.
fn twenty() -> Vec<u8> {
    let of = |batch: i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(batch * 1000..(batch + 1) * 1000))
    };
    let batch = |number| RecordBatch::try_from_iter([("n", of(number))]).unwrap();
    let mut writer = FileWriter::try_new(Vec::new(), &batch(0).schema()).unwrap();
    (0..20).for_each(|number| writer.write(&batch(number)).unwrap());
    writer.into_inner().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn files_are_read_in_splits_and_streams_are_not() {
    let expected: Vec<i64> = (0..20_000).collect();
    for split in [5_000, 20_000, 50_000] {
        let (read, splits) = numbers("a.arrow", twenty(), split).await.unwrap();
        assert_eq!(read, expected, "{split}");
        assert_eq!(splits, twenty().len().div_ceil(split as usize).max(8), "{split}");
    }
    assert_eq!(numbers("a.arrows", twenty(), 5_000).await.unwrap(), (expected, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn errors_name_the_file() {
    let mut file = twenty();
    let middle = file.len() / 2;
    // The length of a message, behind its marker.
    let head = file[middle..].windows(8).position(|bytes| bytes[..4] == [0xff; 4]).unwrap();
    file[middle + head + 8..middle + head + 40].fill(0xee);
    let error = numbers("a.arrow", file, 20_000).await.unwrap_err();
    let damaged = tessera_storage::source::passing(&error);
    let Some(SourceError::Damaged { path, reason }) = damaged else { panic!("{error}") };
    assert!(path.ends_with("/a.arrow"), "{path}");
    assert!(reason.contains("at byte"), "{reason}");
}

#[tokio::test]
async fn both_forms_are_read() {
    for bytes in [listed(), streamed()] {
        let all = read(bytes.clone(), vec![0, 1, 2], 1 << 20).await.unwrap();
        assert_eq!(all, batches());
        let some = read(bytes.clone(), vec![2, 0], 1 << 20).await.unwrap();
        let expected: Vec<_> = batches().iter().map(|b| b.project(&[2, 0]).unwrap()).collect();
        assert_eq!(some, expected);
        let refused = read(bytes, vec![0], 64).await.unwrap_err();
        assert!(matches!(refused, DataFusionError::ResourcesExhausted(_)), "{refused}");
    }
}

/// The names are those of DuckDB for such a table.
#[tokio::test]
async fn columns_of_one_name_have_numbers() {
    let names = ["n", "t", "n", "n"].map(|name| Field::new(name, DataType::Int64, true));
    let schema = Arc::new(Schema::new(names.to_vec()));
    let column = |value: i64| -> ArrayRef { Arc::new(Int64Array::from(vec![value])) };
    let batch = RecordBatch::try_new(schema.clone(), (1..5).map(column).collect()).unwrap();
    let mut file = FileWriter::try_new(Vec::new(), &schema).unwrap();
    let mut stream = StreamWriter::try_new(Vec::new(), &schema).unwrap();
    file.write(&batch).unwrap();
    stream.write(&batch).unwrap();
    for bytes in [file.into_inner().unwrap(), stream.into_inner().unwrap()] {
        let table = opened(bytes.clone(), 1 << 20, None).await.schema().await.unwrap();
        let names: Vec<&str> = table.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["n", "t", "n_1", "n_2"]);
        let columns = Columns::new(&table, &[3, 0, 2]).unwrap();
        let read = opened(bytes, 1 << 20, None).await;
        let read = read.batches(Arc::default(), None, columns).await.unwrap();
        let read: Vec<RecordBatch> = read.try_collect().await.unwrap();
        assert_eq!(read[0].columns(), [column(4), column(1), column(3)]);
    }
}

/// Reads a file with each byte set to 0, 0x7f and 0xff, and each prefix of it. The reader returns a result or an error
/// soon; an allocation by a size that a file only claims would end this process.
#[tokio::test]
async fn damaged_files_are_refused() {
    for bytes in [listed(), streamed()] {
        for at in 0..bytes.len() {
            for changed in [0, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = changed;
                // A panic of a reader is caught by the caller.
                let done = std::panic::AssertUnwindSafe(read(bytes, vec![0, 1, 2], 1 << 20));
                let _ = futures::FutureExt::catch_unwind(done).await;
            }
            let _ = read(bytes[..at].to_vec(), vec![0], 1 << 20).await;
        }
    }
}
