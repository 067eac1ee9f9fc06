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
    // The first server has checked its epoch, and is about to write.
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

const TIMEOUT: Duration = Duration::from_millis(400);

fn epoch(folder: &Folder, stands_by: bool) -> Arc<Epoch> {
    let epoch = Arc::new(Epoch::new(folder.clone()));
    epoch.serves();
    if stands_by {
        epoch.stands_by();
    }
    epoch
}

fn keeper(folder: &Folder) -> Keeper {
    let addresses = Addresses { url: Some("http://a".into()), workers: None };
    Keeper::new(epoch(folder, false), addresses, TIMEOUT)
}

/// Looks as often as a standby does, until it leads or the time is over.
async fn leads(standby: &mut Standby, within: Duration) -> bool {
    let begun = std::time::Instant::now();
    while begun.elapsed() < within {
        if standby.look().await.unwrap() == Turn::Leads {
            return true;
        }
        tokio::time::sleep(standby.every()).await;
    }
    false
}

/// A lease of another machine: its lock says nothing.
async fn forget_lock(folder: &Folder, number: u64) {
    folder.remove(&format!("epochs/{number}.lock")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_waits_as_long_as_the_lease_is_renewed() {
    let directory = tempfile::tempdir().unwrap();
    let folder = folder(&directory);
    let mut live = keeper(&folder);
    live.renew().await.unwrap();
    let ours = epoch(&folder, true);
    let mut standby = Standby::new(ours.clone(), TIMEOUT);
    // Calls that begin the epoch of a server do not begin that of a standby.
    assert_eq!(ours.begun_by_server().await.unwrap(), None);
    assert_eq!(ours.begun_if_known().await.unwrap(), None);
    assert_eq!(ours.begin().await.unwrap_err().code(), "standby");
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let renewing = tokio::spawn(async move {
        while stopped.try_recv().is_err() {
            live.renew().await.unwrap();
            tokio::time::sleep(live.every() / 4).await;
        }
        live
    });
    forget_lock(&folder, 1).await;
    assert!(!leads(&mut standby, TIMEOUT * 5).await);
    let Turn::Waits(lease) = standby.look().await.unwrap() else { panic!("it leads") };
    assert_eq!(lease.url.as_deref(), Some("http://a"));
    stop.send(()).unwrap();
    let mut live = renewing.await.unwrap();
    // The server lives, but does not renew its lease.
    assert!(leads(&mut standby, TIMEOUT * 50).await);
    assert_eq!(live.renew().await.unwrap_err().code(), "fenced");
    assert_eq!(live.check().await.unwrap_err().code(), "fenced");
    assert_eq!(ours.begun_by_server().await.unwrap(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn time_in_which_a_standby_did_not_look_does_not_count() {
    let directory = tempfile::tempdir().unwrap();
    let folder = folder(&directory);
    let mut live = keeper(&folder);
    live.renew().await.unwrap();
    forget_lock(&folder, 1).await;
    let mut standby = Standby::new(epoch(&folder, true), TIMEOUT);
    assert!(matches!(standby.look().await.unwrap(), Turn::Waits(_)));
    tokio::time::sleep(TIMEOUT * 3).await;
    assert!(matches!(standby.look().await.unwrap(), Turn::Waits(_)));
    // Nor does a change of the lease begin an epoch.
    live.renew().await.unwrap();
    assert!(matches!(standby.look().await.unwrap(), Turn::Waits(_)));
    assert!(leads(&mut standby, TIMEOUT * 50).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_was_let_go_and_a_lock_that_is_free_end_the_wait() {
    let directory = tempfile::tempdir().unwrap();
    let folder = folder(&directory);
    let look = async || Standby::new(epoch(&folder, true), TIMEOUT * 1000).look().await.unwrap();
    // Nobody was there.
    assert_eq!(look().await, Turn::Leads);
    assert!(matches!(look().await, Turn::Waits(_)), "the one that begins has its time");
    let mut live = keeper(&folder);
    live.renew().await.unwrap();
    assert!(matches!(look().await, Turn::Waits(_)));
    live.release().await.unwrap();
    assert_eq!(look().await, Turn::Leads);
    let mut live = keeper(&folder);
    live.renew().await.unwrap();
    assert!(matches!(look().await, Turn::Waits(_)));
    // The end of the process drops the lock, too.
    drop(live);
    if std::fs::exists("/proc/sys/kernel/random/boot_id").unwrap() {
        assert_eq!(look().await, Turn::Leads);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_standbys_one_leads() {
    let directory = tempfile::tempdir().unwrap();
    let folder = folder(&directory);
    let mut live = keeper(&folder);
    live.renew().await.unwrap();
    live.release().await.unwrap();
    let look = || {
        let folder = folder.clone();
        tokio::spawn(async move {
            Standby::new(epoch(&folder, true), TIMEOUT * 1000).look().await.unwrap()
        })
    };
    let looks: Vec<_> = (0..16).map(|_| look()).collect();
    let mut winners = 0;
    for look in looks {
        winners += u32::from(look.await.unwrap() == Turn::Leads);
    }
    assert_eq!(winners, 1);
}
