//! The bytes that are read of a file to open it, and files that are not valid.

use super::*;
use crate::formats::Format;
use crate::formats::grib::{Grib, points, walk};
use crate::formats::view::{PAGE, View, in_turns};

/// A message of edition 2 whose data are as long as `n` bytes, at another step.
pub(super) fn long_message(step: u32, n: usize) -> Vec<u8> {
    let file = bytes("cube2.grib");
    let len = u64::from_be_bytes(file[8..16].try_into().unwrap()) as usize;
    let mut message = file[..len - 4].to_vec();
    let mut at = 16;
    while message[at + 4] != 7 {
        if message[at + 4] == 4 {
            message[at + 18..at + 22].copy_from_slice(&step.to_be_bytes());
        }
        at += u32::from_be_bytes(message[at..at + 4].try_into().unwrap()) as usize;
    }
    message.resize(at + n, 0);
    message[at..at + 4].copy_from_slice(&(n as u32).to_be_bytes());
    message.extend_from_slice(b"7777");
    let len = message.len() as u64;
    message[8..16].copy_from_slice(&len.to_be_bytes());
    message
}

#[test]
fn data_are_not_read_to_open_a_file() {
    let messages = 60;
    let file: Vec<u8> = (0..messages).flat_map(|i| long_message(i, 400_000)).collect();
    let (group, took) = in_turns(&file.into(), (PAGE, &[]), |view| Grib.read(view, ""));
    let group = group.unwrap().unwrap();
    assert_eq!(group.arrays["t"].as_ref().unwrap().shape[0], u64::from(messages));
    // The second message is where the first one ends; then messages are known to be long, and soon that they are
    // equally long.
    assert!(took.turns <= 8 && took.requests <= 64, "{took:?}");
    assert!(took.bytes < 300_000, "{took:?}");
}

#[test]
fn files_are_recognised() {
    let file = bytes("odd.grib");
    assert!(walk::is_first(&file, file.len() as u64));
    assert!(walk::is_first(&bytes("cube1.grib")[..100], 100));
    assert!(!walk::is_first(b"GRIB is a format of files for weather", 37));
    assert!(!walk::is_first(&[b'x'; 4096], 4096));
    assert!(!walk::is_first(b"", 0));
    let found = walk::messages(&View::whole(&file)).unwrap();
    assert_eq!(found.iter().map(|m| m.edition).collect::<Vec<_>>(), [1, 2, 2]);
}

#[test]
fn words_between_messages_are_ignored() {
    let file = bytes("cube2.grib");
    let one = u64::from_be_bytes(file[8..16].try_into().unwrap()) as usize;
    let mut text = file[..one].to_vec();
    text.extend_from_slice(b"the GRIB of the next hour: GRIB\0\0\0\x07 ");
    text.extend_from_slice(&file[one..]);
    let opened = opened_bytes(&text).unwrap();
    assert_eq!(variable(&opened, "t").source.shape[..4], [2, 2, 3, 2]);
}

#[test]
fn invalid_files_are_errors_with_a_place() {
    let file = bytes("cube2.grib");
    let one = u64::from_be_bytes(file[8..16].try_into().unwrap());
    let error = |bytes: &[u8]| opened_bytes(bytes).map(|_| ()).unwrap_err().to_string();
    let cut = error(&file[..file.len() - 10]);
    assert!(cut.contains("the file ends at byte"), "{cut}");
    let mut bad = file.clone();
    bad[one as usize - 4] = b'8';
    let text = error(&bad);
    assert!(text.contains(&(one - 4).to_string()) && text.contains("7777"), "{text}");
    let mut bad = file.clone();
    bad[16..20].copy_from_slice(&5000u32.to_be_bytes());
    assert!(error(&bad).contains("section 1 of 5000 bytes"), "{}", error(&bad));
    let mut bad = file.clone();
    bad[7] = 3;
    assert!(error(&bad).contains("edition 3"), "{}", error(&bad));
    // Month 13.
    let mut bad = file;
    bad[16 + 14] = 13;
    assert!(error(&bad).contains("2024-13-01"), "{}", error(&bad));
}

#[test]
fn large_messages_of_edition_1_have_their_length() {
    // Sections 0, 1 and 4 of a message of 120 * 70000 + 4 - 20 bytes.
    let len = 120 * 70_000 + 4 - 20usize;
    let mut file = b"GRIB\0\0\0\x01".to_vec();
    file[4..7].copy_from_slice(&(0x80_0000u32 | 70_000).to_be_bytes()[1..]);
    let mut product = vec![0; 28];
    product[2] = 28;
    file.extend_from_slice(&product);
    file.extend_from_slice(&[0, 0, 20]);
    file.resize(len - 4, 0);
    file.extend_from_slice(b"7777");
    let found = walk::messages(&View::whole(&file)).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].end, len as u64 - 4);
}

#[test]
fn gaussian_latitudes_are_eccodes() {
    // eccodes.codes_get_gaussian_latitudes(n)[i]
    let table = [
        (1, 0, 35.264389682754654),
        (1, 0, 35.264389682754654),
        (1, 1, -35.264389682754654),
        (2, 0, 59.44440828916677),
        (2, 1, 19.8757191474409),
        (2, 3, -59.44440828916677),
        (80, 0, 89.14151942646112),
        (80, 40, 44.29879413069396),
        (80, 159, -89.14151942646112),
        (320, 0, 89.78487690721863),
        (320, 160, 44.824338620668016),
        (320, 639, -89.78487690721863),
        (1280, 0, 89.94618771566562),
        (1280, 640, 44.956062178163634),
        (1280, 2559, -89.94618771566562),
    ];
    for (n, i, want) in table {
        let got = points::gaussian_latitude(n, i);
        assert!((got - want).abs() < 1e-12, "{n} {i}: {got}");
    }
}

#[test]
fn rows_of_the_table_are_found() {
    use crate::formats::grib::fields::{Kind, Parameter, Product};
    use crate::formats::grib::levels::Level;
    use crate::formats::grib::names::name;
    let mut count = 0;
    for line in include_str!("../parameters.txt").lines().filter(|l| !l.starts_with('#')) {
        let columns: Vec<&str> = line.split('|').collect();
        assert_eq!(columns.len(), 9, "{line}");
        let codes: Vec<u8> =
            columns[0].trim_start_matches('t').split('.').map(|n| n.parse().unwrap()).collect();
        let edition = if columns[0].starts_with('t') { 1 } else { 2 };
        let mut product = Product {
            parameter: Parameter {
                edition,
                centre: 255,
                sub_centre: 0,
                codes: if edition == 1 {
                    [codes[0], 0, codes[1]]
                } else {
                    [codes[0], codes[1], codes[2]]
                },
                constituent: None,
            },
            level: Level::NONE,
            statistic: 255,
            step_type: "instant",
            kind: Kind::Plain,
            number: None,
            members: 0,
            time: 0,
            step: 0,
            data_type: "",
        };
        for condition in columns[1].split_whitespace() {
            let (code, value) = match condition[1..].split_once(':') {
                Some((code, value)) => (code, Some(value.parse().unwrap())),
                None => (&condition[1..], None),
            };
            match &condition[..1] {
                "c" => product.parameter.centre = code.parse().unwrap(),
                "f" => {
                    (product.level.types[0], product.level.surfaces[0]) =
                        (code.parse().unwrap(), value)
                }
                "s" => {
                    (product.level.types[1], product.level.surfaces[1]) =
                        (code.parse().unwrap(), value)
                }
                _ => product.statistic = code.parse().unwrap(),
            }
        }
        let found = name(&product);
        assert_eq!(found.short, columns[3], "{line}");
        assert_eq!(found.id.map(|id| id.to_string()).as_deref(), Some(columns[2]), "{line}");
        count += 1;
    }
    assert!(count > 1700, "{count}");
}

#[test]
fn longitudes_go_on_across_the_meridian() {
    use crate::formats::grib::grid::{Corners, Grid, Kind};
    let longitudes = |first: f64, last: f64, n: u64, is_westward: bool| {
        let corners = Corners {
            first: [10.0, first],
            last: [0.0, last],
            row_step: Some(10.0),
            step: None,
            is_westward,
            is_northward: false,
        };
        let grid = Grid::rows("", [n, 2], 2 * n, 0, Kind::LatLon(corners)).unwrap();
        let [latitudes, longitudes] = points::axes(&grid).unwrap().unwrap();
        assert_eq!(latitudes, [10.0, 0.0]);
        longitudes
    };
    // eccodes: distinctLongitudes
    assert_eq!(longitudes(0.0, 270.0, 4, false), [0.0, 90.0, 180.0, 270.0]);
    let all_around = longitudes(180.0, 135.0, 8, false);
    assert_eq!(all_around, [-180.0, -135.0, -90.0, -45.0, 0.0, 45.0, 90.0, 135.0]);
    assert_eq!(longitudes(340.0, 10.0, 4, false), [-20.0, -10.0, 0.0, 10.0]);
    // On this grid eccodes jumps from 355 to 0.
    assert_eq!(longitudes(345.0, 0.0, 4, false), [345.0, 350.0, 355.0, 360.0]);
    assert_eq!(longitudes(40.0, 10.0, 4, true), [40.0, 30.0, 20.0, 10.0]);
    assert_eq!(longitudes(10.0, 350.0, 3, true), [10.0, 0.0, -10.0]);
    assert_eq!(longitudes(7.25, 7.25, 1, false), [7.25]);
}

#[test]
fn declared_sizes_cost_nothing() {
    let file = bytes("packings2.grib");
    // The message of a constant field, of 20000 by 50000 points.
    let one = walk::messages(&View::whole(&file)).unwrap().into_iter().map(|m| {
        let mut message = file[m.start as usize..m.end as usize + 4].to_vec();
        let at = (0..message.len() - 80).find(|i| message[*i..i + 5] == [0, 0, 0, 72, 3]).unwrap();
        message[at + 6..at + 10].copy_from_slice(&1_000_000_000u32.to_be_bytes());
        message[at + 30..at + 34].copy_from_slice(&20_000u32.to_be_bytes());
        message[at + 34..at + 38].copy_from_slice(&50_000u32.to_be_bytes());
        message
    });
    for message in one.take(14) {
        let opened = opened_bytes(&message).unwrap();
        assert_eq!(opened.dataset.variables.len(), 0);
        let (_, why) = opened.unsupported.iter().next().unwrap();
        assert_eq!(why.code(), "too_large", "{why}");
    }
}
