#![allow(clippy::unwrap_used, reason = "tests")]
//! Dates of every calendar.

use super::*;

#[test]
fn splitting_inverts_joining_in_every_calendar() {
    for c in Calendar::ALL {
        for day in (-800_000..800_000).step_by(17) {
            let us = day * DAY_US + 3_723_000_001;
            assert_eq!(join(split(us, c), c), Some(us), "{c:?} {day}");
        }
    }
}

#[test]
fn times_are_truncated_to_parts_of_their_calendar() {
    for c in Calendar::ALL {
        for day in (-150_000..150_000).step_by(13) {
            let us = day * DAY_US + 45_296_000_007;
            for (name, part) in [("year", 0), ("quarter", 1), ("month", 2), ("day", 3)] {
                let start = Truncation::parse(name).unwrap().of(us, c);
                let (t, first) = (split(us, c), split(start, c));
                let month = match part {
                    0 => 1,
                    1 => (t.month - 1) / 3 * 3 + 1,
                    _ => t.month,
                };
                let day = if part == 3 { t.day } else { 1 };
                let want = DateTime { year: t.year, month, day, micros: 0 };
                assert_eq!(first, want, "{c:?} {name} {us}");
            }
            let week = Truncation::Week.of(us, c);
            assert_eq!(DatePart::DayOfWeek.of(week, c), 0);
            assert!(week <= us && us < week + 7 * DAY_US && week % DAY_US == 0);
            assert_eq!(Truncation::Micros(1_000_000).of(us, c), us - 7);
            assert_eq!(Truncation::parse("millisecond").unwrap().of(us, c), us - 7);
        }
    }
    assert_eq!(Truncation::parse("decade"), None);
    assert_eq!(Truncation::Micros(DAY_US).of(i64::MIN, Calendar::Day360), i64::MIN);
}

#[test]
fn times_are_moved_in_their_calendar() {
    let all = |from: &str, months, days, us| {
        [Calendar::Standard, Calendar::NoLeap, Calendar::Day360].map(|c| {
            let (at, _) = parse_period(from, c).unwrap();
            format_micros(moved(at, months, days, us, c).unwrap(), c)
        })
    };
    let leap = ["2000-02-29T06:00:00", "2000-02-28T06:00:00", "2000-02-30T06:00:00"];
    assert_eq!(all("2000-01-30T06", 1, 0, 0), leap);
    assert_eq!(all("2001-03-30T06", -13, 0, 0), leap);
    let days = ["2000-03-02T00:00:00", "2000-03-03T00:00:00", "2000-03-01T00:00:00"];
    assert_eq!(all("2000-02-27T18", 0, 2, 3 * DAY_US / 4 + DAY_US / 2), days);
    let c = Calendar::Mixed;
    let (at, _) = parse_period("1582-09-07", c).unwrap();
    assert_eq!(format_micros(moved(at, 1, 0, 0, c).unwrap(), c), "1582-10-15T00:00:00");
    let (at, _) = parse_period("1582-08-31", c).unwrap();
    assert_eq!(format_micros(moved(at, 2, 0, 0, c).unwrap(), c), "1582-10-31T00:00:00");
    assert_eq!(moved(0, i64::from(i32::MAX), 0, 0, c), None);
    assert_eq!(moved(i64::MAX, 0, 1, 0, c), None);
}

#[test]
fn the_mixed_calendar_leaves_out_ten_days() {
    // cftime.num2date(d, "days since 1970-01-01", "standard") and date2num, its inverse.
    let c = Calendar::Mixed;
    for (day, want) in [
        (-141_427, "1582-10-15T00:00:00"),
        (-141_428, "1582-10-04T00:00:00"),
        (-171_434, "1500-08-09T00:00:00"),
        (-171_597, "1500-02-28T00:00:00"),
        (-171_596, "1500-02-29T00:00:00"),
        (-719_164, "0001-01-01T00:00:00"),
        (11_016, "2000-02-29T00:00:00"),
    ] {
        assert_eq!(format_micros(day * DAY_US, c), want, "{day}");
        let (at, _) = parse_period(want, c).unwrap();
        assert_eq!(at, day * DAY_US, "{want}");
    }
    assert_eq!(parse_period("1582-10-05", c), None);
    assert_eq!(parse_period("1582-10-14", c), None);
    // cftime.datetime(1582, 12, 31, calendar="standard").dayofyr is 365.
    let (at, _) = parse_period("1582-12-31", c).unwrap();
    assert_eq!(DatePart::DayOfYear.of(at, c), 365);
}

#[test]
fn parts_are_pythons() {
    // datetime(2021, 1, 3, 23, 59, 58).isocalendar() is (2020, 53, 7); timetuple().tm_yday is 3.
    let (t, _) = parse_period("2021-01-03T23:59:58", Calendar::Standard).unwrap();
    let part = |p: DatePart| p.of(t, Calendar::Standard);
    assert_eq!(
        (part(DatePart::Week), part(DatePart::DayOfWeek), part(DatePart::DayOfYear)),
        (53, 6, 3)
    );
    assert_eq!(
        (part(DatePart::Hour), part(DatePart::Minute), part(DatePart::Second)),
        (23, 59, 58)
    );
    // cftime.DatetimeNoLeap(2020, 3, 1).dayofyr is 60; cftime.Datetime360Day(2020, 3, 1).dayofyr is 61.
    for (c, want) in [(Calendar::NoLeap, 60), (Calendar::Day360, 61), (Calendar::AllLeap, 61)] {
        let (t, _) = parse_period("2020-03-01", c).unwrap();
        assert_eq!(DatePart::DayOfYear.of(t, c), want);
    }
    // cftime.datetime(2001, 3, 1, calendar=c).dayofwk and cftime.datetime(1, 1, 1, calendar=c).dayofwk.
    for (c, want) in [
        (Calendar::NoLeap, [2, 1]),
        (Calendar::Day360, [1, 3]),
        (Calendar::AllLeap, [2, 2]),
        (Calendar::Julian, [2, 5]),
    ] {
        for (date, want) in ["2001-03-01", "0001-01-01"].into_iter().zip(want) {
            let (t, _) = parse_period(date, c).unwrap();
            assert_eq!(DatePart::DayOfWeek.of(t, c), want, "{c:?} {date}");
        }
    }
}

#[test]
fn periods_cover_what_they_name() {
    let p = |s: &str| parse_period(s, Calendar::Standard);
    let show = |s: &str| {
        let (a, b) = p(s).unwrap();
        format!("{} {}", format_micros(a, Calendar::Standard), format_micros(b, Calendar::Standard))
    };
    assert_eq!(show("2020"), "2020-01-01T00:00:00 2021-01-01T00:00:00");
    assert_eq!(show("2020-02"), "2020-02-01T00:00:00 2020-03-01T00:00:00");
    assert_eq!(show("2020-12-31"), "2020-12-31T00:00:00 2021-01-01T00:00:00");
    assert_eq!(show("2020-01-01 05"), "2020-01-01T05:00:00 2020-01-01T06:00:00");
    assert_eq!(
        show("2020-01-01T05:06:07.5Z"),
        "2020-01-01T05:06:07.500000 2020-01-01T05:06:07.500001"
    );
    for bad in [
        "",
        "2020-13",
        "2020-02-30",
        "2020-1-1-1",
        "x",
        "2020-01-01T25",
        "2020-01-01+02:00",
        "20200101000",
    ] {
        assert_eq!(p(bad), None, "{bad}");
    }
    assert!(parse_period("2020-02-30", Calendar::Day360).is_some());
    assert!(parse_period("2020-02-29", Calendar::NoLeap).is_none());
}
