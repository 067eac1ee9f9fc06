//! Names, dimensions and coordinates of results.

use super::fixture::{labels, lower};
use super::graphs::each;

#[test]
fn names() {
    insta::assert_snapshot!(each(
        "
        SELECT t2m, t2m[0], t2m + 1, t2m AS x FROM era5
        SELECT E.t2m, e.lat, T2M[0] FROM era5 e
        SELECT orog, orog, orog AS t2m, t2m FROM era5
        SELECT a, b FROM a, b
        SELECT a.v, time_bnds FROM a, era5
        SELECT t2m FROM 's3://b/era5.zarr'
        SELECT e.t2m FROM read_zarr('s3://b/era5.zarr', decode_cf => true) e
        WITH c AS (SELECT mean(t2m, axis => 'time') AS clim FROM era5) SELECT clim[lat => 45], c.clim, lat FROM c
        SELECT p.w - q.w AS d FROM (SELECT v AS w FROM a) p, (SELECT v + 1 AS w FROM a) q
        WITH a AS (SELECT b FROM b) SELECT b FROM a
        SELECT month, clim FROM (SELECT groupby(t2m, 'mean', by => month(time)) AS clim FROM era5)
        ",
        labels
    ));
}

#[test]
fn dimensions() {
    insta::assert_snapshot!(each(
        "
        SELECT t2m[0:2, ::2, ::-1], t2m[3], t2m[..., NEWAXIS] FROM era5
        SELECT mean(t2m, axis => ['time', 'lon']), mean(t2m, axis => 'time', keepdims => true) FROM era5
        SELECT transpose(t2m), t2m + orog, orog + t2m FROM era5
        SELECT t2m @ orog.T FROM era5
        SELECT concat([t2m[0:3], t2m[10:12]], axis => 'time'), concat([orog, orog], axis => 'lat') FROM era5
        SELECT stack([orog, orog * 2], dim => 'member'), diff(t2m, axis => 'time'), cumsum(t2m, axis => 'time') FROM era5
        SELECT rename(orog, lat => 'y'), ravel(orog), reshape(orog, [20], dims => ['cell']) FROM era5
        SELECT ones([2, 2], dims => ['a', 'b']) + transpose(ones([2, 2], dims => ['a', 'b']))
        SELECT ones([3, 2], dims => ['y', 'x']) + ones([3, 2])
        SELECT ones([2, 3], dims => ['p', 'q']) @ ones([3, 2], dims => ['q', 'p'])
        ",
        labels
    ));
}

#[test]
fn selections() {
    insta::assert_snapshot!(each(
        "
        SELECT orog[lat => 45], orog[lat => 60:30], orog[lat => 30:60], orog[lat => :50] FROM era5
        SELECT orog[lat => [65, 25]], orog[lat => 60:25:2, lon => 0.5:] FROM era5
        SELECT t2m[time => '2020-01', lat => 45, lon => 0.5], t2m[time => '2020-01-05', 0, 0] FROM era5
        SELECT t2m[time => '2020-01-05T12', lat => 45, lon => 0.5] FROM era5
        SELECT t2m[time => '2020-01-30':, 0, 0], t2m[time => '2031':'2032', 0, 0] FROM era5
        SELECT sel(orog, lat => 52.5, lon => 100, method => 'nearest'), sel(orog, lat => slice(60, 30)) FROM era5
        SELECT x[dim_0 => 2], x[dim_1 => 1:3, dim_0 => 0] FROM cases
        SELECT t2m[0:2, lat => 45], isel(t2m, lat => [0, -1]) FROM era5
        ",
        labels
    ));
}

#[test]
fn results_keep_their_coordinates_and_the_attributes_of_their_dataset() {
    let of = |sql: &str| {
        let outputs = lower(sql).unwrap().outputs;
        let title = outputs[0].dataset.attrs.get("title").cloned();
        assert!(outputs.iter().all(|l| l.dataset == outputs[0].dataset), "{sql}");
        let named = outputs.into_iter().filter(|l| l.is_coordinate);
        (named.map(|l| l.name).collect::<Vec<_>>().join(" "), title.is_some())
    };
    let all = "SELECT v, crs, height, lat, station FROM curved";
    assert_eq!(of(all), ("height lat station".into(), true));
    assert_eq!(of("SELECT lat[0] AS first, v * 2 AS v FROM curved"), ("first".into(), true));
    assert_eq!(of("SELECT concat([lat, lat]) AS lat FROM curved"), ("lat".into(), true));
    // A computed item is no coordinate.
    assert_eq!(of("SELECT lat + 1 AS lat, mean(v) AS h FROM curved"), (String::new(), true));
    assert_eq!(of("WITH c AS (SELECT v, lat FROM curved) SELECT lat FROM c"), ("lat".into(), true));
    assert_eq!(of("SELECT q.lat FROM (SELECT lat FROM curved) q, a"), ("lat".into(), true));
    // The attributes are those of the first relation.
    assert_eq!(of("SELECT lat FROM a, curved"), ("lat".into(), false));
    assert_eq!(of("SELECT ones([2]) AS x"), (String::new(), false));
}
