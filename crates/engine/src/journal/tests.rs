//! Two servers of one warehouse, in one process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::*;
use std::time::Duration;
use tessera_storage::source::{Options, Stores};

fn folder(directory: &tempfile::TempDir) -> Folder {
    let root = directory.path().display().to_string();
    Folder::open(&root, &Options::default(), &Stores::new(Duration::from_secs(10))).unwrap()
}

fn journal(folder: &Folder) -> Journal {
    let epoch = Arc::new(Epoch::new(folder.clone()));
    epoch.serves();
    let sealer = Sealer::new(folder.clone());
    Journal::new(folder.clone(), epoch, sealer, tokio::runtime::Handle::current())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_made_before_a_later_server_reads_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let folder = folder(&directory);
    let (first, second) = (journal(&folder), Arc::new(journal(&folder)));
    let mut record = Record::new("a", "SELECT 1", 1, Recipe::default());
    first.write(&record, None).await.unwrap();
    // It has checked its epoch, and is about to write.
    let right = first.epoch.right().await.unwrap();
    assert!(right.is_some());
    let taking_over = tokio::spawn({
        let second = second.clone();
        async move { second.load().await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!taking_over.is_finished(), "the first one may still write");
    drop(right);
    assert_eq!(taking_over.await.unwrap().len(), 1);
    record.starts = 7;
    let late = first.write(&record, None).await.unwrap_err();
    assert_eq!(late.code(), "fenced");
    assert_eq!(first.remove("a").await.unwrap_err().code(), "fenced");
    assert_eq!(second.load().await.unwrap()[0].0.starts, 1);
}
