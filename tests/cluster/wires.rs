//! Connections that are held up or cut.

use super::{Cluster, PATIENCE, STATEMENTS, alone};
use crate::common::{Flow, carry, until};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::Duration;

/// A way to an address, on which bytes can be held up or lost.
pub(super) struct Wire {
    pub(super) address: String,
    state: Arc<AtomicU8>,
}

/// Bytes go through; they wait; connections break and none is made.
pub(super) const OPEN: u8 = 0;

pub(super) const HELD: u8 = 1;
pub(super) const CUT: u8 = 2;
const GONE: u8 = 3;

impl Wire {
    pub(super) fn new(to: String) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        listener.set_nonblocking(true).unwrap();
        let state = Arc::new(AtomicU8::new(OPEN));
        let watched = state.clone();
        std::thread::spawn(move || {
            while watched.load(SeqCst) != GONE {
                match listener.accept() {
                    Ok((near, _)) if watched.load(SeqCst) != CUT => {
                        let Ok(far) = TcpStream::connect(&to) else { continue };
                        near.set_nonblocking(false).unwrap();
                        let ends = (near.try_clone().unwrap(), far.try_clone().unwrap());
                        let (a, b) = (watched.clone(), watched.clone());
                        std::thread::spawn(move || carry(near, far, || flow(&a)));
                        std::thread::spawn(move || carry(ends.1, ends.0, || flow(&b)));
                    }
                    Ok(_) => {}
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Wire { address, state }
    }

    pub(super) fn set(&self, state: u8) {
        self.state.store(state, SeqCst);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.set(GONE);
    }
}

fn flow(state: &AtomicU8) -> Flow {
    match state.load(SeqCst) {
        OPEN => Flow::On,
        HELD => Flow::Wait,
        _ => Flow::End,
    }
}

#[test]
fn wires_that_are_cut_cost_time_only() {
    let mut cluster = Cluster::start(1);
    let wires = cluster.start_wired_worker();
    cluster.wait_for(2);
    let want = alone(&cluster);
    for (state, cut, sql) in [(CUT, &wires[..], 1), (HELD, &wires[..], 2), (CUT, &wires[..1], 3)] {
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| cluster.query(STATEMENTS[sql]));
            std::thread::sleep(want[sql].1.mul_f64(0.5));
            cut.iter().for_each(|w| w.set(state));
            let got = asked.join().unwrap();
            assert_eq!((got.status, &got.body), (200, &want[sql].0), "{}", STATEMENTS[sql]);
            // An unreachable worker is lost, even if its heartbeats arrive.
            until("the worker is lost", PATIENCE, || cluster.alive().len() == 1);
            let got = cluster.query(STATEMENTS[0]);
            assert_eq!((got.status, &got.body), (200, &want[0].0));
        });
        wires.iter().for_each(|w| w.set(OPEN));
        cluster.wait_for(2);
    }
}
