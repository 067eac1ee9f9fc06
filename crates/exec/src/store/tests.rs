//! Files of chunks, and stale directories.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::chunk::Field;
use crate::pool::Pool;
use crate::quota::Quota;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::FileExt;
use tessera_kernels::copy::{Strided, copy_box};
use tessera_planner::dtype::DType;
use tessera_planner::region::strides;

fn chunk(shape: &[u64]) -> Chunk {
    let n = shape.iter().product::<u64>();
    let values = (0..n).map(|i| (i * 7919) as f64).collect();
    let valid = (0..n).map(|i| u8::from(i % 3 > 0)).collect();
    let fields = [Field::from_vec(DType::Float64, values), Field::from_vec(DType::Bool, valid)];
    Chunk::new(shape, fields.map(Result::unwrap)).unwrap()
}

fn spill(store: &Arc<Store>, chunk: &Chunk) -> Arc<Spilled> {
    let space = store.reserve(chunk).unwrap();
    store.write(chunk, space).unwrap()
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn chunks_come_back_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), 64 << 20);
    assert!(is_empty(dir.path()), "nothing is made before it is needed");
    let pool = Pool::new(Quota::new(1 << 30), 0);
    let read = AtomicU64::new(0);
    for shape in [&[][..], &[0, 3], &[1], &[700, 1001], &[512]] {
        let whole = chunk(shape);
        let file = spill(&store, &whole);
        assert_eq!((file.shape(), file.bytes()), (shape, whole.bytes()));
        let back = file.load(&pool, &read).unwrap();
        for (a, b) in whole.fields().iter().zip(back.fields()) {
            assert_eq!((a.dtype(), a.buffer().as_slice()), (b.dtype(), b.buffer().as_slice()));
        }
        assert_eq!(store.figures().files, 1);
        drop(file);
        assert_eq!(store.figures().files, 1, "what was read back still has its file");
    }
    let figures = store.figures();
    assert_eq!((figures.files, figures.bytes), (0, 0));
    assert_eq!(figures.spilled_bytes, (1 + 1 + 700 * 1001 + 512) * 9);
    assert_eq!(figures.read_back_bytes, figures.spilled_bytes);
    assert_eq!(read.load(Relaxed), figures.spilled_bytes);
    drop(store);
    assert!(is_empty(dir.path()));
}

#[test]
fn the_limit_holds_and_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let one = chunk(&[1000]);
    let size = file::size_of(&one);
    let store = Store::open(dir.path(), 2 * size);
    let held = [spill(&store, &one), spill(&store, &one)];
    let error = store.reserve(&one).unwrap_err();
    assert_eq!((error.code(), error.class().name()), ("scratch_full", "limit"));
    let text = error.to_string();
    assert!(text.contains(&size.to_string()) && text.contains(&(2 * size).to_string()), "{text}");
    assert!(error.hint().unwrap().contains("--spill-limit"));
    drop(held);
    assert!(store.reserve(&one).is_ok());
    assert_eq!(store.figures().peak_bytes, 2 * size);
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("gone");
    let store = Store::open(&missing, 1 << 20);
    let one = chunk(&[10]);
    let error = store.write(&one, store.reserve(&one).unwrap()).unwrap_err();
    assert_eq!((error.code(), error.class().name()), ("scratch_unusable", "user"));
    assert!(error.to_string().contains("gone"), "{error}");
    assert_eq!(store.figures().bytes, 0, "the room went back");
}

#[test]
fn a_changed_file_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), 1 << 20);
    let file = spill(&store, &chunk(&[2000]));
    let pool = Pool::new(Quota::new(1 << 30), 0);
    let read = AtomicU64::new(0);
    let path = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path().join("0.chunk");
    let handle = fs::OpenOptions::new().write(true).open(&path).unwrap();
    handle.write_all_at(&[1], 9001).unwrap();
    let error = file.load(&pool, &read).unwrap_err();
    assert_eq!((error.code(), error.class().name()), ("scratch_corrupt", "retry"));
    // Undamaged blocks can still be read.
    let mut to = vec![0u8; 80];
    file.reader(&read).unwrap().copy(0, &[10], (0, &[1]), &mut to, (0, &[1])).unwrap();
    handle.set_len(100).unwrap();
    assert_eq!(file.load(&pool, &read).unwrap_err().code(), "scratch_corrupt");
}

#[test]
fn files_that_changed_places_are_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), 1 << 20);
    let files = [spill(&store, &chunk(&[2000])), spill(&store, &chunk(&[2000]))];
    let (pool, read) = (Pool::new(Quota::new(1 << 30), 0), AtomicU64::new(0));
    let [one, other] = [files[0].path(), files[1].path()];
    let aside = dir.path().join("aside");
    for (from, to) in [(one, aside.as_path()), (other, one), (aside.as_path(), other)] {
        fs::rename(from, to).unwrap();
    }
    // The files have the same shape, and each is valid in itself.
    for file in &files {
        assert_eq!(file.load(&pool, &read).unwrap_err().code(), "scratch_corrupt");
    }
}

#[test]
fn files_of_dead_processes_are_removed_and_of_live_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let dead = dir.path().join("tessera-spill-1-0");
    fs::create_dir(&dead).unwrap();
    for name in ["lock", "0.chunk", "1.chunk"] {
        fs::write(dead.join(name), "x").unwrap();
    }
    let foreign = dir.path().join("tessera-spill-notes");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("lock"), "").unwrap();
    fs::write(foreign.join("keep.txt"), "mine").unwrap();
    let living = Store::open(dir.path(), 1 << 20);
    let file = spill(&living, &chunk(&[10]));
    assert!(!dead.exists());
    assert!(foreign.join("keep.txt").exists(), "only files of a store are removed");
    drop(Store::open(dir.path(), 1 << 20));
    assert_eq!(
        file.load(&Pool::new(Quota::new(1 << 20), 0), &AtomicU64::new(0)).unwrap().cells(),
        10
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Any box through any steps equals the box in memory.
    #[test]
    fn parts_equal_those_read_from_memory(
        rows in 1u64..400, columns in 1u64..400,
        cut in any::<[prop::sample::Index; 4]>(),
        flip in any::<[bool; 2]>(), transpose in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), 1 << 30);
        let whole = chunk(&[rows, columns]);
        let file = spill(&store, &whole);
        let range = |a: prop::sample::Index, b: prop::sample::Index, n: u64| {
            let (a, b) = (a.index(n as usize) as u64, b.index(n as usize) as u64);
            (a.min(b), a.max(b) - a.min(b) + 1)
        };
        let ((r, nr), (c, nc)) = (range(cut[0], cut[1], rows), range(cut[2], cut[3], columns));
        let mut offset = (r * columns + c) as i64;
        let mut steps = [columns as i64, 1];
        for (a, n) in [nr, nc].into_iter().enumerate() {
            if flip[a] {
                offset += steps[a] * (n as i64 - 1);
                steps[a] = -steps[a];
            }
        }
        let mut shape = [nr, nc];
        if transpose {
            shape.reverse();
            steps.reverse();
        }
        let dense = strides(&shape);
        let read = AtomicU64::new(0);
        let mut reader = file.reader(&read).unwrap();
        for (f, field) in whole.fields().iter().enumerate() {
            let size = field.dtype().size();
            let mut want = vec![0u8; (nr * nc) as usize * size];
            let mut got = want.clone();
            let from = Strided { bytes: field.buffer().as_slice(), offset, strides: &steps };
            copy_box(size, &shape, from, &mut want, 0, &dense).unwrap();
            reader.copy(f, &shape, (offset, &steps), &mut got, (0, &dense)).unwrap();
            prop_assert_eq!(want, got);
        }
    }
}
