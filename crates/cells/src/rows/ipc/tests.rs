#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use arrow::array::{Array, DictionaryArray, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field, Int32Type};
use arrow::ipc::writer::{FileWriter, StreamWriter};
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;

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

async fn read(bytes: Vec<u8>, columns: Vec<usize>, limit: u64) -> Result<Vec<RecordBatch>> {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let at = Path::from("a.arrow");
    store.put(&at, bytes.into()).await.unwrap();
    let meta = store.head(&at).await.unwrap();
    let opened = IpcFile { store, meta, limit }.open().await?;
    opened.batches(columns).await?.try_collect().await
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
