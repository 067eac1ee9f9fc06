//! Requests of servers that are gone, which reach the bucket after the next server did the same.

use super::world::{PATIENCE, World};
use super::{LONG, total};
use crate::common::{binary, until};
use crate::s3::S3;
use std::sync::{Arc, Condvar, Mutex};

/// The lock that a request waits for in the proxy. Other requests pass.
#[derive(Default)]
struct Held {
    /// The request to hold: the beginning of its first line, and the number of such requests that pass before.
    wanted: Mutex<Option<(String, u32)>>,
    /// True while one is held.
    is_held: Mutex<bool>,
    changed: Condvar,
}

impl Held {
    /// Holds the request of that first line which comes after `passing` others.
    fn hold(&self, line: &str, passing: u32) {
        *self.wanted.lock().unwrap() = Some((line.into(), passing));
    }

    fn meets(&self, line: &str) {
        {
            let mut wanted = self.wanted.lock().unwrap();
            match &mut *wanted {
                Some((begin, 0)) if line.starts_with(begin.as_str()) => *wanted = None,
                Some((begin, passing)) if line.starts_with(begin.as_str()) => {
                    *passing -= 1;
                    return;
                }
                _ => return,
            }
        }
        let mut held = self.is_held.lock().unwrap();
        *held = true;
        let _free = self.changed.wait_while(held, |held| *held).unwrap();
    }

    fn is_held(&self) -> bool {
        *self.is_held.lock().unwrap()
    }

    fn release(&self) {
        *self.is_held.lock().unwrap() = false;
        self.changed.notify_all();
    }
}

/// A bucket, and two places of which each holds one request.
fn bucket() -> (World, [Arc<Held>; 2]) {
    let held: [Arc<Held>; 2] = Default::default();
    let places = held.clone();
    let s3 = S3::failing(move |_, line| {
        places.iter().for_each(|held| held.meets(line));
        None
    });
    let world = World::new(binary(), Some(s3));
    assert!(world.start(&[]));
    (world, held)
}

/// Lets a request go when no server runs, and waits until the bucket has answered it.
fn comes_late(world: &World, held: &Held) {
    let answered = world.answered();
    held.release();
    until("the late request is answered", PATIENCE, || world.answered() > answered);
}

fn sum(world: &World, tensor: &str, name: &str) -> i64 {
    total(&world.run(&format!("SELECT sum(v) AS s FROM {tensor}"), name).1)
}

/// A statement's record names the cells that it reads. Without the record, the cells are removed with their name.
#[test]
fn a_late_record_does_not_come_in_place_of_a_later_one() {
    let (world, [lost, late]) = bucket();
    world.run("CREATE TENSOR t AS SELECT rechunk(arange(20000), chunks => [3000]) AS v", "create");
    // The statement is accepted, and the cells that it reads are not recorded yet.
    let records = "PUT /bkt/warehouse/statements/";
    lost.hold(records, 1);
    let id = world.submit(&format!("SELECT sum(v) AS s, {LONG} AS l FROM t"), "read");
    until("what it reads is on its way", PATIENCE, || lost.is_held());
    world.kill();
    // The next server takes it up, and is killed in that.
    late.hold(records, 0);
    assert!(world.start(&[]));
    until("it is taken up", PATIENCE, || late.is_held());
    world.kill();
    assert!(world.start(&[]));
    let result = world.result(&id);
    world.run("DROP TENSOR t", "drop");
    world.kill();
    comes_late(&world, &lost);
    comes_late(&world, &late);
    assert!(world.start(&[]));
    assert_eq!(world.result(&id), result);
}

/// The last server decides which entry a name has.
#[test]
fn a_late_entry_does_not_come_in_place_of_a_later_one() {
    let (world, [late, _]) = bucket();
    let replace = |n: u32| format!("CREATE OR REPLACE TENSOR t AS SELECT arange({n}) AS v");
    world.run(&replace(10), "first");
    late.hold("PUT /bkt/warehouse/catalog/t.json", 0);
    let second = world.submit(&replace(20), "second");
    until("the entry is on its way", PATIENCE, || late.is_held());
    world.kill();
    assert!(world.start(&[]));
    assert_eq!(world.end(&second)["state"], "FINISHED");
    assert_eq!(sum(&world, "t", "of the second"), 190);
    world.run(&replace(30), "third");
    world.kill();
    comes_late(&world, &late);
    assert!(world.start(&[]));
    assert_eq!(sum(&world, "t", "of the third"), 435);
}

/// An entry that was on its way when its server was killed finds its cells.
#[test]
fn cells_stay_whose_entry_may_come_late() {
    let (world, [late, look]) = bucket();
    let entry = "/bkt/warehouse/catalog/t.json";
    late.hold(&format!("PUT {entry}"), 0);
    let sql = "CREATE TENSOR t AS SELECT rechunk(arange(20000), chunks => [3000]) AS v";
    let made = world.submit(sql, "create");
    until("the entry is on its way", PATIENCE, || late.is_held());
    world.kill();
    // The next server removes cells of killed ones that nothing names, in the order of their names; and before it runs
    // the statement again it looks whether that was done.
    let last = world.object("warehouse/data/s1-z.zarr/zarr.json");
    std::fs::create_dir_all(last.parent().unwrap()).unwrap();
    std::fs::write(&last, "{}").unwrap();
    look.hold(&format!("GET {entry}"), 0);
    assert!(world.start(&[]));
    until("it looks", PATIENCE, || look.is_held());
    until("what nothing names is removed", PATIENCE, || !last.exists());
    late.release();
    until("the entry comes", PATIENCE, || world.object("warehouse/catalog/t.json").exists());
    look.release();
    assert_eq!(world.end(&made)["state"], "FINISHED");
    assert_eq!(sum(&world, "t", "sum"), 199_990_000);
}
