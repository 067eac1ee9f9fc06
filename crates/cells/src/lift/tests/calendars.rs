//! Times of several calendars do not meet.
use arrow::datatypes::DataType;
use tessera_planner::dtype::Calendar;

use super::planned;

fn told(sql: &str) -> String {
    match planned(sql) {
        Ok(_) => format!("{sql} is planned"),
        Err(error) => format!("{}: {error}", error.code()),
    }
}

#[test]
fn a_column_has_times_of_one_calendar() {
    for union in ["UNION", "UNION ALL"] {
        let sql = |left: &str, right: &str| {
            format!("SELECT time, t2m FROM {left} {union} SELECT time, t2m FROM {right}")
        };
        let of = |calendar: &str| format!("a time of the calendar {calendar}");
        for (left, right, calendars) in [
            ("noleap", "day360", ["noleap", "360_day"]),
            ("noleap", "era5", ["noleap", "standard"]),
            ("era5", "day360", ["standard", "360_day"]),
        ] {
            let [a, b] = calendars.map(of);
            let want = format!("type_error: `UNION` is not defined for {a} and {b}");
            assert_eq!(told(&sql(left, right)), want);
        }
        assert!(planned(&sql("noleap", "noleap")).is_ok());
        let three = format!("{} {union} SELECT time, t2m FROM day360", sql("noleap", "noleap"));
        assert!(told(&three).starts_with("type_error: `UNION`"), "{three}");
    }
    // NULL has no calendar, and texts are dates of their own.
    for sql in [
        "SELECT time FROM noleap UNION ALL SELECT NULL",
        "SELECT time FROM noleap UNION ALL SELECT 'none'",
        "SELECT time::text AS t FROM noleap UNION ALL SELECT time::text FROM day360",
    ] {
        assert!(planned(sql).is_ok(), "{}", told(sql));
    }
    let sql = "SELECT time FROM noleap UNION ALL SELECT 5";
    assert!(told(sql).ends_with("a time of the calendar noleap and int64"), "{}", told(sql));
}

#[test]
fn values_that_are_compared_are_of_one_calendar() {
    let other = "SELECT time FROM day360";
    for (what, item) in [
        ("IN", format!("time IN ({other})")),
        ("IN", format!("time NOT IN ({other})")),
        ("=", format!("time = ANY ({other})")),
        ("IN", "n.time IN (n.time, d.time)".to_string()),
        ("BETWEEN", "n.time BETWEEN '2019' AND d.time".to_string()),
        ("nullif", "nullif(n.time, d.time) IS NULL".to_string()),
        ("coalesce", "coalesce(n.time, d.time) IS NULL".to_string()),
        ("greatest", "greatest('2019', n.time, d.time) IS NULL".to_string()),
        ("CASE", "CASE WHEN n.t2m > 1 THEN n.time ELSE d.time END IS NULL".to_string()),
        ("CASE", "CASE n.time WHEN d.time THEN 1 END = 1".to_string()),
    ] {
        let from = if item.contains("d.time") { "noleap n, day360 d" } else { "noleap n" };
        let sql = format!("SELECT n.t2m FROM {from} WHERE {item}");
        let want = format!(
            "type_error: `{what}` is not defined for a time of the calendar noleap and a time of the calendar 360_day"
        );
        assert_eq!(told(&sql), want, "{sql}");
    }
    for item in [
        "time IN (SELECT time FROM noleap)",
        "time IN (SELECT NULL)",
        "time BETWEEN '2019' AND time",
        "coalesce(time, NULL) = time",
        "CASE WHEN t2m > 1 THEN time ELSE NULL END = time",
    ] {
        let sql = format!("SELECT t2m FROM noleap WHERE {item}");
        assert!(planned(&sql).is_ok(), "{}", told(&sql));
    }
}

#[test]
fn casts_to_timestamps_keep_the_date() {
    for (cast, want) in [
        ("try_cast(time AS timestamp)", "tessera_time_text("),
        ("time::timestamp", "tessera_time_text("),
        ("time::date", "tessera_time_text("),
        ("try_cast(time AS text)", "tessera_time_text("),
        ("time::bigint", "time"),
    ] {
        let plan = planned(&format!("SELECT t2m, {cast} AS t FROM noleap LIMIT 3")).unwrap();
        let plan = plan.logical.display_indent().to_string();
        assert!(plan.contains(want), "{cast}: {plan}");
        assert_eq!(plan.contains("tessera_time_text"), want != "time", "{cast}: {plan}");
    }
}

#[test]
fn starts_of_parts_are_dense_keys_of_their_calendar() {
    for calendar in ["era5", "noleap", "day360"] {
        let plan = planned(&format!(
            "SELECT date_trunc('month', time) AS m, avg(t2m) AS a FROM {calendar} WHERE time >= '2020' GROUP BY date_trunc('month', time)"
        ))
        .unwrap();
        assert!(plan.scans.iter().all(|scan| !scan.exploded), "{:?}", plan.notes);
        let known = plan.schema().field(0).clone();
        let want = match calendar {
            "era5" => Calendar::Standard,
            "noleap" => Calendar::NoLeap,
            _ => Calendar::Day360,
        };
        assert_eq!(super::super::calendar(&known), Some(want));
    }
    let told = told("SELECT date_trunc('fortnight', time) AS d FROM noleap LIMIT 1");
    assert!(told.starts_with("invalid_argument: `date_trunc`: 'fortnight'"), "{told}");
}

#[test]
fn functions_that_return_an_argument_keep_the_calendar() {
    for item in [
        "CASE WHEN t2m > 1 THEN time END",
        "CASE WHEN t2m > 1 THEN NULL ELSE time END",
        "coalesce(time, NULL)",
        "greatest(time, '2020')",
        "least('2020', time)",
        "nullif(time, '2020')",
        "time + INTERVAL '1 month'",
        "INTERVAL '1 hour' + time",
        "time - INTERVAL '1 day'",
    ] {
        for sql in [
            format!("SELECT {item} AS t FROM noleap WHERE lat > 45"),
            format!("SELECT t FROM (SELECT {item} AS t FROM noleap) s WHERE t > '2020'"),
            format!("SELECT max({item}) AS t FROM noleap WHERE t2m > 1"),
        ] {
            let plan = planned(&sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
            let known = super::super::calendar(plan.schema().field(0));
            assert_eq!(known, Some(Calendar::NoLeap), "{sql}");
        }
    }
    let text = planned("SELECT CASE WHEN t2m > 1 THEN time ELSE 'none' END AS t FROM noleap");
    assert_eq!(text.unwrap().schema().field(0).data_type(), &DataType::Utf8);
}
