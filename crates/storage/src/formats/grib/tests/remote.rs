//! Remote files: how much is fetched to open them, with files beside them that say where messages begin, and without.

use super::headers::long_message;
use super::*;
use crate::clouds::web::{Manners, Web};
use crate::formats::grib::{Grib, sidecar};
use crate::formats::view::{PAGE, Took, View, in_turns, in_turns_of};
use crate::formats::{Format, Group};
use crate::source::tests::Random;
use bytes::Bytes;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Bytes of the first fetch of a file.
const HEAD: u64 = 4 * PAGE;

/// A file of messages that is made where it is looked at.
struct Series {
    /// Without sections 7 and 8, and with a length that is replaced.
    header: Vec<u8>,
    starts: Vec<u64>,
    len: u64,
}

impl Series {
    /// Messages of these lengths, at as many steps.
    fn new(lengths: impl IntoIterator<Item = u64>) -> Series {
        let message = long_message(0, 100);
        let header = message[..message.len() - 104].to_vec();
        let mut out = Series { header, starts: Vec::new(), len: 0 };
        for n in lengths {
            out.starts.push(out.len);
            out.len += n;
        }
        out
    }

    /// The headers of a message, and where it ends.
    fn message(&self, i: usize) -> (Vec<u8>, u64) {
        let end = self.starts.get(i + 1).copied().unwrap_or(self.len);
        let n = end - self.starts[i];
        let mut out = self.header.clone();
        out[8..16].copy_from_slice(&n.to_be_bytes());
        let mut at = 16;
        while out[at + 4] != 4 {
            at += u32::from_be_bytes(out[at..at + 4].try_into().unwrap()) as usize;
        }
        out[at + 18..at + 22].copy_from_slice(&(i as u32).to_be_bytes());
        let data = n - self.header.len() as u64 - 4;
        out.extend_from_slice(&(data as u32).to_be_bytes());
        out.push(7);
        (out, end)
    }

    fn get(&self, range: std::ops::Range<u64>) -> Bytes {
        let mut out = vec![0; (range.end - range.start) as usize];
        let mut put = |at: u64, bytes: &[u8]| {
            let (from, to) = (at.max(range.start), (at + bytes.len() as u64).min(range.end));
            if from < to {
                let part = &bytes[(from - at) as usize..(to - at) as usize];
                out[(from - range.start) as usize..(to - range.start) as usize]
                    .copy_from_slice(part);
            }
        };
        let first = self.starts.partition_point(|s| *s <= range.start).saturating_sub(1);
        for i in first..self.starts.partition_point(|s| *s < range.end) {
            let (header, end) = self.message(i);
            put(self.starts[i], &header);
            put(end - 4, b"7777");
        }
        out.into()
    }

    fn all(&self) -> Bytes {
        self.get(0..self.len)
    }

    /// An inventory of the form of wgrib2.
    fn idx(&self) -> String {
        let mut out = String::new();
        for (i, start) in self.starts.iter().enumerate() {
            writeln!(out, "{}:{start}:d=2024010100:TMP:1000 mb:{i} hour fcst:", i + 1).unwrap();
        }
        out
    }

    /// An index of the form of ECMWF.
    fn index(&self) -> String {
        let mut out = String::new();
        for (i, start) in self.starts.iter().enumerate() {
            let n = self.starts.get(i + 1).unwrap_or(&self.len) - start;
            let line = r#"{"domain": "g", "step": "0", "param": "t", "levelist": "1000""#;
            writeln!(out, r#"{line}, "_offset": {start}, "_length": {n}}}"#).unwrap();
        }
        out
    }

    /// The cost of opening the file. All of its messages are found.
    fn took(&self, sidecar: &str) -> Took {
        let starts = sidecar::starts(sidecar.as_bytes(), self.len);
        let read = |view: &View<'_>| Grib.read(view, "");
        let (group, took) = in_turns_of(self.len, |r| self.get(r), (HEAD, &starts), read);
        let group = group.unwrap().unwrap();
        assert_eq!(group.arrays["t"].as_ref().unwrap().shape[0], self.starts.len() as u64);
        took
    }
}

/// Lengths from `least` on that do not repeat.
fn uneven(n: usize, least: u64) -> Vec<u64> {
    let mut random = Random(0x1dea);
    (0..n).map(|_| least + random.next() % (least / 2)).collect()
}

#[test]
fn sidecars_are_parsed() {
    let wgrib2 = "1:0:d=2024010100:UGRD:10 m above ground:anl:\n\
                  2.1:5000:d=2024010100:UGRD:850 mb:anl:\r\n2.2:5000:d=2024010100:VGRD:850 mb:anl:\n\
                  3:9000:d=2024010100:TMP:2 m above ground:anl:\n4:10000:d=2024010100:PRES:x:anl:";
    assert_eq!(sidecar::starts(wgrib2.as_bytes(), 10_000), [0, 5000, 9000]);
    let ecmwf = r#"{"param": "2t", "_offset": 700, "_length": 300}
        {"param": "10u", "_offset": 0, "_length": 700, "more": {"_offset": 5}}
        {"param": "10v", "_offset": -1}
        {"param": "10v", "_offset": "1"}
        {"param": "#;
    assert_eq!(sidecar::starts(ecmwf.as_bytes(), 1000), [0, 700]);
    for none in ["", "<html>", "a:1:", "1:b:", ":7:", "1.:3:", "1:99999999999999999999999:", "5"] {
        assert!(sidecar::starts(none.as_bytes(), u64::MAX).is_empty(), "{none}");
    }
    assert_eq!(Grib.sidecars("a.f000"), ["a.f000.idx", "a.f000.index"]);
    assert_eq!(Grib.sidecars("a.GRIB2"), ["a.GRIB2.idx", "a.GRIB2.index", "a.index"]);
}

#[test]
fn sidecars_save_waits() {
    let file = Series::new(uneven(2000, 1_000_000));
    for sidecar in [file.idx(), file.index()] {
        let took = file.took(&sidecar);
        // A request for each message, and few waits.
        assert!(took.turns <= 6 && took.requests <= 2001, "{took:?}");
        assert!(took.bytes < 2001 * 1100, "{took:?}");
    }
    let took = file.took("");
    assert!(took.turns >= 1999 && took.requests < 2020, "{took:?}");
    // Short messages come with those beside them.
    let file = Series::new(uneven(2000, 3000));
    let took = file.took(&file.idx());
    assert!(took.turns <= 5 && took.requests <= 8, "{took:?}");
}

#[test]
fn files_of_many_messages_are_opened() {
    let start = Instant::now();
    let file = Series::new(uneven(20_000, 1_000_000));
    let took = file.took(&file.idx());
    assert!(took.turns <= 16 && took.requests <= 20_001, "{took:?}");
    assert!(took.bytes < 22 << 20, "{took:?}");
    // More waits than messages were read before.
    let file = Series::new(uneven(5000, 1_000_000));
    let took = file.took("");
    assert!(took.turns < 5002 && took.requests < 5100, "{took:?}");
    // The same number of short messages in a file on a disk.
    let file = Series::new(uneven(20_000, 400));
    let opened = opened_bytes(&file.all()).unwrap();
    assert_eq!(variable(&opened, "t").source.shape[0], 20_000);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn lengths_that_repeat_are_guessed() {
    let cycle = [900_000, 1_200_000, 900_000, 900_000, 700_000, 300_000];
    for (n, lengths) in [(1000, &cycle[..1]), (3000, &cycle[..1]), (1000, &cycle[..])] {
        let file = Series::new(lengths.iter().copied().cycle().take(n));
        let took = file.took("");
        assert!(took.turns <= 24 && took.requests <= n + 32, "{took:?}");
    }
    // Wrong guesses cost less than the right ones before them.
    let mut random = Random(7);
    let mut lengths = Vec::new();
    while lengths.len() < 1000 {
        let n = 1_000_000 + random.next() % 1_000_000;
        lengths.resize(lengths.len() + 1 + random.below(40), n);
    }
    let file = Series::new(lengths.iter().copied());
    let took = file.took("");
    assert!(took.turns < 500 && took.requests < 3 * lengths.len(), "{took:?}");
}

#[test]
fn sidecars_that_are_wrong_change_nothing() {
    let file = Series::new(uneven(300, 200_000));
    let (idx, none) = (file.idx(), file.took(""));
    let lines = |keep: &dyn Fn(usize) -> bool| -> String {
        let kept = idx.lines().enumerate().filter(|(i, _)| keep(*i));
        kept.map(|(_, line)| format!("{line}\n")).collect()
    };
    let moved = |by: u64| {
        let starts = file.starts.iter().enumerate();
        starts.map(|(i, s)| format!("{}:{}:d=\n", i + 1, s + by * (i > 3) as u64)).collect()
    };
    // With the most waits and requests.
    let cases: [(&str, String, usize, usize); 8] = [
        ("of another file", Series::new(uneven(300, 170_000)).idx(), none.turns, 20),
        ("no messages", moved(17), none.turns, 20),
        ("beyond the end", moved(1 << 40), none.turns, 20),
        ("cut", lines(&|i| i < 200), 110, 20),
        ("without a line", lines(&|i| i != 100), 10, 4),
        ("without the first ones", lines(&|i| i > 50), 60, 20),
        ("without the third ones", lines(&|i| i % 3 != 2), 205, 20),
        ("many more", (0..100_000).map(|i| format!("1:{}:\n", i * 601)).collect(), none.turns, 20),
    ];
    for (what, sidecar, turns, more) in cases {
        let took = file.took(&sidecar);
        let is_bounded = took.turns <= turns && took.requests <= none.requests + more;
        assert!(is_bounded, "{what}: {took:?}, {none:?} without");
    }
}

#[test]
fn bitmaps_and_bytes_between_messages_cost_a_wait_for_all() {
    let parts = [bytes("odd.grib"), bytes("packings2.grib"), vec![0; 3000], bytes("cube1.grib")];
    let all = Bytes::from(parts.concat());
    let starts: Vec<u64> = walk(&all).iter().map(|message| message.start).collect();
    let (group, took) = in_turns(&all, (0, &starts), |view| Grib.read(view, ""));
    assert!(took.turns <= 8, "{took:?}");
    assert_eq!(shown(group.unwrap().unwrap()), shown(whole(&all)));
}

fn walk(all: &Bytes) -> Vec<crate::formats::grib::walk::Message> {
    crate::formats::grib::walk::messages(&View::whole(all)).unwrap()
}

fn whole(all: &Bytes) -> Group {
    Grib.read(&View::whole(all), "").unwrap().unwrap()
}

fn shown(group: Group) -> String {
    format!("{group:?}")
}

#[test]
fn changed_sidecars_change_nothing() {
    let all = Bytes::from([bytes("cube2.grib"), bytes("odd.grib"), bytes("cube1.grib")].concat());
    let want = shown(whole(&all));
    let (mut random, len) = (Random(0xbad), all.len() as u64);
    let starts: Vec<u64> = walk(&all).iter().map(|m| m.start).collect();
    let file = Series { header: Vec::new(), starts, len };
    for turn in 0..600 {
        let mut text = if turn % 2 == 0 { file.idx() } else { file.index() }.into_bytes();
        for _ in 0..1 + random.below(12) {
            let (a, b) = (random.below(text.len()), random.below(text.len()));
            match random.below(4) {
                0 => text[a] = b"0123456789:.{}\n\"\xff"[random.below(17)],
                1 => drop(text.drain(a.min(b)..a.max(b).min(a.min(b) + 40))),
                2 => text.insert(a, b'0' + random.below(10) as u8),
                _ if turn % 7 == 0 => text.truncate(a.max(1)),
                _ => text[a] = random.next() as u8,
            }
        }
        let starts = sidecar::starts(&text, len);
        assert!(starts.is_sorted() && starts.iter().all(|s| *s < len));
        if turn % 4 < 2 {
            let (group, took) = in_turns(&all, (0, &starts), |view| Grib.read(view, ""));
            assert_eq!(shown(group.unwrap().unwrap()), want);
            assert!(took.requests < 100, "{took:?}");
        }
    }
}

#[test]
fn damaged_files_are_the_same_in_parts() {
    let all = [bytes("odd.grib"), bytes("cube2.grib"), bytes("cube1.grib")].concat();
    let starts: Vec<u64> = walk(&all.clone().into()).iter().map(|m| m.start).collect();
    let mut random = Random(0xfee1);
    let (mut good, mut bad) = (0, 0);
    for turn in 0..1000 {
        let mut all = all.clone();
        for _ in 0..1 + random.below(3) {
            let start = starts[random.below(starts.len())] as usize;
            let at = (start + random.below(240)).min(all.len() - 1);
            all[at] = [0, 1, 0x7f, 0xff, random.next() as u8][random.below(5)];
        }
        if turn % 5 == 0 {
            all.truncate(random.below(all.len()));
        }
        let all = Bytes::from(all);
        let hints = if turn % 2 == 0 { &starts[..] } else { &[] };
        let want = Grib.read(&View::whole(&all), "");
        let (got, took) = in_turns(&all, (0, hints), |view| Grib.read(view, ""));
        assert_eq!(format!("{got:?}"), format!("{want:?}"), "{turn}");
        assert!(took.requests < 100, "{took:?}");
        *if want.is_ok() { &mut good } else { &mut bad } += 1;
    }
    assert!(good > 100 && bad > 100, "{good} {bad}");
}

#[test]
fn sidecars_are_found_on_a_server() {
    // Long messages, and a cube of which each cell is known.
    let file = Series::new(uneven(60, 200_000));
    let mut long = file.all().to_vec();
    for start in &file.starts {
        // Another parameter: dew point depression.
        let mut at = *start as usize + 16;
        while long[at + 4] != 4 {
            at += u32::from_be_bytes(long[at..at + 4].try_into().unwrap()) as usize;
        }
        long[at + 10] = 7;
    }
    let mut starts = file.starts.clone();
    let cube = Bytes::from(bytes("cube2.grib"));
    starts.extend(walk(&cube).iter().map(|m| file.len + m.start));
    let all = [&long[..], &cube[..]].concat();
    let file = Series { header: Vec::new(), starts, len: all.len() as u64 };
    let local = opened_bytes(&all).unwrap();
    let mut counts = Vec::new();
    let stale = Series::new(uneven(60, 150_000));
    for (name, text) in [
        ("none", String::new()),
        ("a.grib2.idx", file.idx()),
        ("a.grib2.index", file.index()),
        ("a.index", file.index()),
        ("a.grib2.idx", stale.idx()),
        ("a.grib2.index", stale.index()),
        ("a.index", stale.index()),
    ] {
        let web = Web::start(Manners::default());
        web.put("dir/a.grib2", &all);
        web.put(&format!("dir/{name}"), text.as_bytes());
        let stores = stores();
        let opened = run(open(&web.url("dir/a.grib2"), &Options::default(), &stores)).unwrap();
        counts.push(web.server.take_seen().len());
        for v in &local.dataset.variables {
            let other = variable(&opened, &v.name);
            assert_eq!((&other.source.shape, &other.attrs), (&v.source.shape, &v.attrs));
            if other.attrs["GRIB_parameterNumber"] != 7 {
                assert_eq!(cells(&opened, &v.name).unwrap(), cells(&local, &v.name).unwrap());
            }
        }
    }
    // One for the file's beginning, three for files beside it; wrong hints, which show that they were read, cost some.
    assert!(counts[..4].iter().all(|n| *n <= 4 + 62), "{counts:?}");
    let is_read = |n: &usize| (counts[0] + 10..counts[0] + 20).contains(n);
    assert!(counts[4..].iter().all(is_read), "{counts:?}");
    // Files on the disk and small ones have no use for them.
    let web = Web::start(Manners::default());
    web.put("cube2.grib", &cube);
    let stores = stores();
    run(open(&web.url("cube2.grib"), &Options::default(), &stores)).unwrap();
    assert_eq!(web.server.take_seen().len(), 1);
}
