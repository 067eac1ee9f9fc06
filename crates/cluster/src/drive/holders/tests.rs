#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;
use crate::wire::{STORAGE, THE_SERVER};
use crate::worker::View;
use proptest::prelude::*;

const STAGES: usize = 3;
const AT: &str = "127.0.0.1:1";

/// The view as a list: for each operand, the addresses that have its chunk.
fn found(view: &View) -> Vec<(u32, u64, Vec<String>)> {
    let all = (0..STAGES as u32).flat_map(|s| (0..32).map(move |n| (s, n)));
    let found = all.map(|(s, n)| (s, n, view.holders(StageId(s), n)));
    found.filter(|(_, _, at)| !at.is_empty()).collect()
}

fn kept(holders: &Holders) -> Vec<(u32, u64, Vec<String>)> {
    let all = (0..STAGES as u32).flat_map(|s| (0..32).map(move |n| (s, n)));
    let found = all.map(|(s, n)| {
        let parties = holders.parties.values();
        let has = parties.filter(|party| party.has[s as usize].contains(n));
        let at = has.map(|party| match &*party.address {
            THE_SERVER => AT.into(),
            other => other.to_string(),
        });
        (s, n, at.collect())
    });
    found.filter(|(_, _, at): &(u32, u64, Vec<String>)| !at.is_empty()).collect()
}

fn sorted(mut all: Vec<(u32, u64, Vec<String>)>) -> Vec<(u32, u64, Vec<String>)> {
    all.iter_mut().for_each(|(_, _, at)| {
        // Storage is asked last.
        assert!(at.iter().rev().skip(1).all(|at| at != STORAGE), "{at:?}");
        at.sort_unstable();
    });
    all
}

proptest! {
    #[test]
    fn workers_know_what_is_available_whatever_arrives(
        events in prop::collection::vec((0u8..12, 0u32..4, 0u32..STAGES as u32, 0u64..32, 1u64..9), 1..80),
    ) {
        let mut holders = Holders::new(STAGES);
        let own = (0..4).collect();
        holders.add(SERVER, THE_SERVER, vec![(StageId(0), own)]).unwrap();
        let mut views = vec![View::default(); 4];
        // Messages that are still on their way.
        let mut late: Vec<(usize, News)> = Vec::new();
        let mut sent: Vec<(Moment, Has)> = Vec::new();
        for (what, worker, stage, number, len) in events {
            let operands: Bitmap = (number..(number + len).min(32)).collect();
            match what {
                0..4 => {
                    let at = format!("worker {worker}");
                    holders.add(worker + 1, &at, vec![(StageId(stage), operands)]).unwrap();
                }
                4 => {
                    holders.clear(DURABLE);
                    holders.add(DURABLE, STORAGE, vec![(StageId(stage), operands)]).unwrap();
                }
                5 => {
                    let had = holders.of(worker + 1).is_some();
                    let lost = holders.lose(|n| is_permanent(n) || n != worker + 1);
                    prop_assert_eq!(lost.len(), usize::from(had));
                    views[worker as usize] = View::default();
                }
                6 => holders.remove(worker + 1, StageId(stage), number),
                // An order is sent, and arrives later or never.
                7 | 8 => {
                    let (news, moment) = holders.news(worker, false).unwrap();
                    late.push((worker as usize, news));
                    sent.push((moment, holders.all()));
                }
                9 if !late.is_empty() => {
                    let (to, news) = late.swap_remove(number as usize % late.len());
                    // The view may lack earlier entries, or know more already.
                    views[to].hear(&news, STAGES, AT).unwrap();
                }
                _ => {
                    let view = &mut views[worker as usize];
                    let (mut news, _) = holders.news(worker, false).unwrap();
                    if !view.hear(&news, STAGES, AT).unwrap() {
                        news = holders.news(worker, true).unwrap().0;
                        prop_assert!(view.hear(&news, STAGES, AT).unwrap(), "all of it is enough");
                    }
                    prop_assert_eq!(sorted(found(view)), sorted(kept(&holders)));
                    let mut there = vec![Bitmap::default(); STAGES];
                    view.add_to(&mut there);
                    prop_assert_eq!(there, holders.all());
                    // Entries that the worker knows are not sent again.
                    prop_assert!(holders.news(worker, false).unwrap().0.entries.is_empty());
                }
            }
        }
        for (moment, had) in sent {
            if moment.log == holders.number {
                prop_assert_eq!(holders.all_at(moment).unwrap(), had);
            }
        }
    }
}

#[test]
fn a_message_of_another_plan_is_refused() {
    let mut holders = Holders::new(9);
    holders.add(1, "a", vec![(StageId(7), (0..3).collect())]).unwrap();
    let (news, _) = holders.news(2, false).unwrap();
    assert!(View::default().hear(&news, 7, AT).is_err());
    assert!(View::default().hear(&news, 8, AT).unwrap());
    let broken = News { entries: vec![vec![1, 2, 3].into()], ..news };
    assert!(View::default().hear(&broken, 8, AT).is_err());
}
