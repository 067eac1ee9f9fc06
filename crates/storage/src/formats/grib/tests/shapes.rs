//! Arrays, dimensions and coordinates, as cfgrib has them.

use super::*;

#[test]
fn fields_of_one_parameter_are_a_cube() {
    for edition in [1, 2] {
        let opened = opened(&path(&format!("cube{edition}.grib"))).unwrap();
        let t = variable(&opened, "t");
        let names = ["number", "time", "step", "isobaricInhPa", "latitude", "longitude"];
        assert_eq!(dims(t), names);
        assert_eq!(t.source.shape[..], [2, 2, 3, 2, 5, 7]);
        assert_eq!(labels(&opened, "number").unwrap(), [0.0, 1.0]);
        let (day, noon) = (1_704_067_200.0, 1_704_110_400.0);
        assert_eq!(labels(&opened, "time").unwrap(), [day, noon]);
        assert_eq!(labels(&opened, "step").unwrap(), [0.0, 6.0, 12.0]);
        assert_eq!(labels(&opened, "isobaricInhPa").unwrap(), [1000.0, 500.0]);
        let step = opened.dataset.coords.iter().find(|c| &*c.name == "step").unwrap();
        assert_eq!(step.attrs["units"], "hours");
        // The field that the file does not have is missing, those beside it are not.
        let reader = opened.reader(&t.source).unwrap();
        let cells = floats(&read(reader, &at(&[1, 1, 1, 0, 0, 0], &[1, 1, 1, 2, 5, 7])).unwrap());
        assert!(cells[..35].iter().all(|v| v.is_finite()));
        assert!(cells[35..].iter().all(|v| v.is_nan()));
        assert!(t.decode.missing.iter().any(|m| m.as_f64().is_nan()));
        assert_eq!(t.attrs["units"], "K");
        assert_eq!(t.attrs["standard_name"], "air_temperature");
        assert_eq!(t.attrs["GRIB_totalNumber"], 2);
        let valid = variable(&opened, "valid_time");
        assert_eq!(dims(valid), ["time", "step"]);
        assert_eq!(opened.dataset.attrs["Conventions"], "CF-1.7");
    }
}

#[test]
fn single_values_are_attributes() {
    let opened = opened(&path("cube2.grib")).unwrap();
    for (name, level) in [("t2m", 2), ("u10", 10), ("v10", 10)] {
        let v = variable(&opened, name);
        assert_eq!(dims(v), ["latitude", "longitude"]);
        assert_eq!(v.attrs["heightAboveGround"], level);
        assert_eq!(v.attrs["time"], "2024-01-01T00:00:00");
        assert_eq!(v.attrs["step"], "0 hours");
    }
    let tp = variable(&opened, "tp");
    assert_eq!(dims(tp), ["step", "latitude", "longitude"]);
    assert_eq!(tp.attrs["GRIB_stepType"], "accum");
    // The steps are those of all arrays: 0 hours, which the sums do not have, are missing.
    let cells = floats(&cells(&opened, "tp").unwrap());
    assert!(cells[..35].iter().all(|v| v.is_nan()) && cells[35..].iter().all(|v| v.is_finite()));
}

#[test]
fn conflicts_have_suffixes() {
    let names = |file: &str| -> Vec<String> {
        let opened = opened(&path(file)).unwrap();
        opened.dataset.variables.iter().map(|v| v.name.to_string()).collect()
    };
    let of_levels = names("real/t_on_different_level_types.grib");
    assert_eq!(of_levels, ["t_hybrid", "t_isobaricInhPa"]);
    assert_eq!(names("pressures.grib"), ["t_isobaricInPa", "t_isobaricInhPa"]);
    let of_steps = names("real/cfrzr_and_cprat_0s.grib");
    assert_eq!(of_steps, ["cfrzr_avg", "cfrzr_instant", "cpr_avg", "cpr_instant"]);
    let opened = opened(&path("real/tp_on_different_grid_resolutions.grib")).unwrap();
    assert_eq!(dims(variable(&opened, "tp")), ["latitude", "longitude"]);
    assert_eq!(dims(variable(&opened, "tp_2")), ["latitude_2", "longitude_2"]);
    assert_eq!(labels(&opened, "latitude").unwrap().len(), 37);
    assert_eq!(labels(&opened, "latitude_2").unwrap().len(), 46);
}

#[test]
fn grids_have_their_dimensions() {
    let opened = opened(&path("grids2.grib")).unwrap();
    let v = &opened.dataset.variables;
    let lambert = v.iter().find(|v| v.attrs["GRIB_parameterNumber"] == 1).unwrap();
    assert_eq!(dims(lambert), ["y", "x"]);
    assert_eq!(lambert.attrs["GRIB_gridType"], "lambert");
    assert_eq!(lambert.attrs["GRIB_LoVInDegrees"], 262.5);
    assert_eq!(lambert.attrs["GRIB_DxInMetres"], 300_000.0);
    assert_eq!(lambert.attrs["earth_semi_major_axis"], 6_371_229.0);
    let rotated = v.iter().find(|v| v.attrs["GRIB_parameterNumber"] == 6).unwrap();
    assert_eq!(dims(rotated), ["y_6", "x_6"]);
    assert_eq!(rotated.attrs["GRIB_latitudeOfSouthernPoleInDegrees"], -39.25);
    let reduced = super::opened(&path("real/reduced_gg.grib")).unwrap();
    let u = variable(&reduced, "u10");
    assert_eq!(dims(u), ["values"]);
    assert_eq!(u.source.shape[..], [13280]);
    let of_values = |name: &str| reduced.dataset.coords.iter().find(|c| &*c.name == name).unwrap();
    assert_eq!(&*of_values("latitude").dim, "values");
    assert_eq!(of_values("longitude").values.len(), 13280);
}

#[test]
fn several_fields_and_other_bytes_are_read() {
    let opened = opened(&path("odd.grib")).unwrap();
    let names: Vec<&str> = opened.dataset.variables.iter().map(|v| &*v.name).collect();
    assert_eq!(names, ["gh", "u", "v", "w", "z"]);
    // Both winds have the bitmap of the first one.
    let [u, v] = ["u", "v"].map(|name| floats(&cells(&opened, name).unwrap()));
    assert!(u.iter().any(|v| v.is_nan()));
    assert!(u.iter().zip(&v).all(|(u, v)| u.is_nan() == v.is_nan()));
}

#[test]
fn images_have_the_numbers_of_their_twins() {
    let opened = opened(&path("packings2.grib")).unwrap();
    let mut names: Vec<(u64, &str)> = opened
        .dataset
        .variables
        .iter()
        .map(|v| (v.attrs["GRIB_parameterNumber"].as_u64().unwrap(), &*v.name))
        .collect();
    names.sort_unstable();
    // PNG follows the same numbers without an image.
    let file = bytes("packings2.grib");
    let mut at = 0;
    let mut images = 0;
    for (i, (_, name)) in names.iter().enumerate() {
        let len = u64::from_be_bytes(file[at + 8..at + 16].try_into().unwrap()) as usize;
        let message = &file[at..at + len];
        if message.windows(8).any(|w| w == b"\x89PNG\r\n\x1a\n") {
            assert_eq!(cells(&opened, name).unwrap(), cells(&opened, names[i - 1].1).unwrap());
            images += 1;
        }
        at += len;
    }
    assert_eq!(images, 6);
}

#[test]
fn unsupported_fields_are_named() {
    let opened = opened(&path("real/spherical_harmonics.grib")).unwrap();
    let (name, why) = opened.unsupported.iter().next().unwrap();
    assert_eq!(name, "z");
    assert!(why.to_string().contains("spherical harmonics"), "{why}");
}
