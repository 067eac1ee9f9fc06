//! `era5`: t2m [time=4, lat=3, lon=2], precip (f32, no mask), orog [lat, lon], flag (int16 with a mask). `stations`: texts.

use std::sync::Arc;

use tessera_planner::catalog::{Attrs, Coord, CoordValues, Dataset, Decode, SourceRef, Variable};
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::grid::Grid;
use tessera_planner::scalar::Scalar;
use tessera_planner::time::parse_period;

use super::super::{CellRelation, CellTables, Cube};
use tessera_frontend::ast::Relation;
use tessera_frontend::error::Error;

pub(super) struct Tables;

fn variable(name: &str, dims: &[&str], shape: &[u64], dtype: DType, decode: Decode) -> Variable {
    Variable {
        name: name.into(),
        dims: dims.iter().map(|d| Some((*d).into())).collect(),
        source: SourceRef {
            url: "mem:era5".into(),
            path: name.into(),
            dtype,
            shape: shape.into(),
            grid: Grid::single(shape),
            nullable: false,
            version: None,
            plain: false,
        },
        decode,
        attrs: Attrs::new(),
    }
}

fn coord(name: &str, dim: &str, values: CoordValues) -> Arc<Coord> {
    Arc::new(Coord { name: name.into(), dim: dim.into(), values, attrs: Attrs::new() })
}

fn times(calendar: Calendar, texts: &[&str]) -> CoordValues {
    let at = |t: &&str| parse_period(t, calendar).unwrap().0;
    CoordValues::Time(calendar, texts.iter().map(at).collect())
}

fn masked(dtype: DType) -> Decode {
    Decode { missing: vec![Scalar::from_f64(dtype, -999.0)], ..Decode::default() }
}

pub(super) fn era5(calendar: Calendar) -> Dataset {
    let cube = ["time", "lat", "lon"];
    Dataset {
        name: "era5".into(),
        variables: vec![
            variable("flag", &["lat", "lon"], &[3, 2], DType::Int16, masked(DType::Int16)),
            variable("orog", &["lon", "lat"], &[2, 3], DType::Float64, Decode::default()),
            variable("precip", &cube, &[4, 3, 2], DType::Float32, Decode::default()),
            variable("t2m", &cube, &[4, 3, 2], DType::Float64, masked(DType::Float64)),
        ],
        coords: vec![
            coord("lat", "lat", CoordValues::Float(DType::Float64, [60.0, 50.0, 40.0].into())),
            coord("lon", "lon", CoordValues::Float(DType::Float32, [0.5, 10.5].into())),
            coord(
                "place",
                "lat",
                CoordValues::Text(["n".to_string(), "m".into(), "s".into()].into()),
            ),
            coord(
                "time",
                "time",
                times(calendar, &["2019-12-30", "2020-01-01", "2020-02-01", "2020-02-28"]),
            ),
        ],
        auxiliary: vec![variable(
            "lat_bnds",
            &["lat", "nv"],
            &[3, 2],
            DType::Float64,
            Decode::default(),
        )],
        ..Dataset::default()
    }
}

fn two_sets() -> Dataset {
    Dataset {
        name: "two".into(),
        variables: vec![
            variable("a", &["x", "y"], &[2, 3], DType::Float64, Decode::default()),
            variable("b", &["x", "z"], &[2, 4], DType::Float64, Decode::default()),
        ],
        ..Dataset::default()
    }
}

/// t [time=2, station=3] and height [station], stations that have a name or none, and a text without a dimension.
fn stations() -> Dataset {
    let names = [Some("a"), Some("b"), None].map(|name| name.map(String::from));
    Dataset {
        name: "stations".into(),
        variables: vec![
            variable("height", &["station"], &[3], DType::Int16, Decode::default()),
            variable("t", &["time", "station"], &[2, 3], DType::Float32, Decode::default()),
        ],
        coords: vec![coord("name", "station", CoordValues::Text(names.into_iter().collect()))],
        scalars: vec![coord("centre", "centre", CoordValues::Text(["x".to_string()].into()))],
        ..Dataset::default()
    }
}

impl CellTables for Tables {
    fn now_us(&self) -> i64 {
        1_600_000_000_000_000
    }

    fn relation(
        &self,
        relation: &Relation<'_>,
        _scope: &tessera_frontend::scope::Scope,
    ) -> Result<CellRelation, Error> {
        let cube = |d: &Dataset| Ok(CellRelation::Cube(Arc::new(Cube::from(d))));
        match relation {
            Relation::Name { name, .. } => match name.to_string().to_lowercase().as_str() {
                "era5" => cube(&era5(Calendar::Standard)),
                "noleap" => cube(&era5(Calendar::NoLeap)),
                "day360" => cube(&era5(Calendar::Day360)),
                "two" => cube(&two_sets()),
                "stations" => cube(&stations()),
                "names" => cube(&Dataset { variables: Vec::new(), ..stations() }),
                "warm" => Ok(CellRelation::Query {
                    text: 1,
                    query: Box::new(super::query(
                        "SELECT *, t2m - 273.15 AS celsius FROM era5 WHERE lat > 45",
                    )),
                }),
                "broken" => Ok(CellRelation::Query {
                    text: 2,
                    query: Box::new(super::query("SELECT t2m FROM nowhere WHERE lat > 45")),
                }),
                "above" => Ok(CellRelation::Query {
                    text: 3,
                    query: Box::new(super::query("SELECT t2m FROM era5, broken WHERE lat > 45")),
                }),
                other => Err(Error::UnknownName {
                    kind: "relation",
                    name: other.into(),
                    candidates: vec![],
                    position: None,
                }),
            },
            Relation::Url { .. } | Relation::Function { .. } | Relation::Cells { .. } => {
                cube(&era5(Calendar::Standard))
            }
            _ => Ok(CellRelation::Sql),
        }
    }
}
