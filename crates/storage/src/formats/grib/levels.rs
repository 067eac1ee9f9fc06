//! Vertical levels.
//!
//! # Source
//! WMO Manual on Codes, volume I.2, code table 4.5 of edition 2 and table 3 of edition 1; the names are those of
//! ecCodes' key `typeOfLevel`.

use serde_json::Value;
use tessera_planner::catalog::Attrs;

/// Fixed surfaces of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Level {
    /// Name of the type; empty if the pair of surfaces has none.
    pub(super) name: &'static str,
    /// Codes of the types of the first and second surface; 255 for none.
    pub(super) types: [u8; 2],
    /// The coordinate.
    pub(super) value: f64,
    /// Values of the surfaces in the units of the code table.
    pub(super) surfaces: [Option<f64>; 2],
    pub(super) edition: u8,
}

/// Types of edition 2 that a centre defines, by the centre.
const NCEP: u16 = 7;

impl Level {
    /// Of edition 2. `values` are those of the two surfaces.
    pub(super) fn two(types: [u8; 2], values: [Option<f64>; 2], centre: u16) -> Level {
        let mut value = values[0].unwrap_or(0.0);
        let name = match (types, values) {
            // Above 1 hPa in Pa, as the reference implementation does.
            ([100, 255], [Some(pa), _]) if pa < 100.0 => "isobaricInPa",
            ([1, 100], [_, Some(80_000.0)]) => "lowCloudLayer",
            ([100, 100], [Some(80_000.0), Some(45_000.0)]) => "mediumCloudLayer",
            ([100, 8], [Some(45_000.0), _]) => "highCloudLayer",
            ([160, 255], [Some(0.0), _]) => "oceanSurface",
            _ => name_two(types, centre),
        };
        match types[0] {
            100 if name != "isobaricInPa" => value /= 100.0,
            109 => value *= 1e9,
            _ => {}
        }
        Level { name, types, value, surfaces: values, edition: 2 }
    }

    /// Of edition 1: the type and its two octets.
    pub(super) fn one(kind: u8, octets: [u8; 2], centre: u16) -> Level {
        let is_layer =
            matches!(kind, 101 | 104 | 106 | 108 | 110 | 112 | 114 | 116 | 120 | 121 | 128 | 141);
        let whole = f64::from(u16::from_be_bytes(octets));
        let value = if is_layer { f64::from(octets[0]) } else { whole };
        let below = is_layer.then_some(f64::from(octets[1]));
        let types = [kind, 255];
        let name = name_one(kind, centre);
        Level { name, types, value, surfaces: [Some(value), below], edition: 1 }
    }

    /// None is known.
    pub(super) const NONE: Level =
        Level { name: "", types: [255; 2], value: 0.0, surfaces: [None; 2], edition: 2 };

    /// The name of the type, or one made of its codes.
    pub(super) fn title(&self) -> String {
        match (self.name, self.types) {
            ("", [first, 255]) => format!("level_{first}"),
            ("", [first, second]) => format!("level_{first}_{second}"),
            (name, _) => name.into(),
        }
    }

    /// The type of a level: levels of one type form an axis.
    pub(super) fn kind(&self) -> (&'static str, [u8; 2]) {
        (self.name, if self.name.is_empty() { self.types } else { [0; 2] })
    }

    /// True if the coordinate falls with height or depth by custom.
    pub(super) fn is_descending(&self) -> bool {
        matches!(self.name, "isobaricInhPa" | "isobaricInPa")
    }

    /// Attributes of the coordinate, as CF names them.
    pub(super) fn attrs(&self) -> Attrs {
        let (units, positive, long, standard) = match self.name {
            "isobaricInhPa" | "isobaricLayer" => ("hPa", "down", "pressure", "air_pressure"),
            "isobaricInPa" => ("Pa", "down", "pressure", "air_pressure"),
            "depthBelowLand" | "depthBelowLandLayer" => {
                let units = if self.edition == 1 { "cm" } else { "m" };
                (units, "down", "soil depth", "depth")
            }
            "heightAboveGround" => ("m", "up", "height above the surface", "height"),
            "heightAboveGroundLayer" => {
                let units = if self.edition == 1 { "hm" } else { "m" };
                (units, "up", "height above the surface", "height")
            }
            "heightAboveSea" => ("m", "up", "altitude", "altitude"),
            "depthBelowSea" => ("m", "down", "depth below the sea surface", "depth"),
            "hybrid" | "hybridLayer" => {
                let standard = "atmosphere_hybrid_sigma_pressure_coordinate";
                ("1", "down", "hybrid level", standard)
            }
            "theta" => ("K", "up", "potential temperature", "air_potential_temperature"),
            _ => ("1", "", "", ""),
        };
        let all = [
            ("units", units),
            ("positive", positive),
            ("long_name", long),
            ("standard_name", standard),
        ];
        let mut out: Attrs = all
            .into_iter()
            .filter(|(_, v)| !v.is_empty())
            .map(|(k, v)| (k.to_string(), Value::from(v)))
            .collect();
        if self.is_descending() {
            out.insert("stored_direction".into(), "decreasing".into());
        }
        out
    }
}

fn name_two(types: [u8; 2], centre: u16) -> &'static str {
    if centre == NCEP
        && let Some(name) = name_ncep(types[0])
    {
        return name;
    }
    match types {
        [1, 255] => "surface",
        [1, 7] => "troposphere",
        [1, 8] => "entireAtmosphere",
        [1, 9] => "entireOcean",
        [1, 151] => "totalSoilLayer",
        [1, 162] => "entireLake",
        [1, 167] => "rootZone",
        [2, 255] => "cloudBase",
        [3, 255] => "cloudTop",
        [4, 255] => "isothermZero",
        [5, 255] => "adiabaticCondensation",
        [6, 255] => "maxWind",
        [7, 255] => "tropopause",
        [7, 36] => "stratosphere",
        [8, 255] => "nominalTop",
        [9, 255] => "seaBottom",
        [10, 255] => "atmosphere",
        [11, 255] => "cumulonimbusBase",
        [12, 255] => "cumulonimbusTop",
        [14, 255] => "freeConvection",
        [15, 255] => "convectiveCondensation",
        [16, 255] => "neutralBuoyancy",
        [17, 255] => "mostUnstableParcel",
        [18, 255] => "mixedLayerParcel",
        [20, 255] => "isothermal",
        [100, 255] => "isobaricInhPa",
        [100, 100] => "isobaricLayer",
        [101, 255] => "meanSea",
        [102, 255] => "heightAboveSea",
        [102, 102] => "heightAboveSeaLayer",
        [103, 255] => "heightAboveGround",
        [103, 103] => "heightAboveGroundLayer",
        [104, 255] => "sigma",
        [104, 104] => "sigmaLayer",
        [105, 255] => "hybrid",
        [105, 105] => "hybridLayer",
        [106, 255] => "depthBelowLand",
        [106, 106] => "depthBelowLandLayer",
        [107, 255] => "theta",
        [107, 107] => "thetaLayer",
        [108, 255] => "pressureFromGround",
        [108, 108] => "pressureFromGroundLayer",
        [109, 255] => "potentialVorticity",
        [111, 255] => "eta",
        [114, 255] => "snow",
        [114, 114] => "snowLayer",
        [117, 255] => "mixedLayerDepthGeneric",
        [118, 255] => "hybridHeight",
        [119, 255] => "hybridPressure",
        [150, 255] => "generalVertical",
        [150, 150] => "generalVerticalLayer",
        [151, 255] => "soil",
        [151, 151] => "soilLayer",
        [152, 255] => "seaIce",
        [152, 152] => "seaIceLayer",
        [160, 255] => "depthBelowSea",
        [160, 160] => "depthBelowSeaLayer",
        [160, 9] => "oceanSurfaceToBottom",
        [162, 255] => "lakeBottom",
        [166, 255] => "mixingLayer",
        [168, 255] => "oceanModel",
        [168, 168] => "oceanModelLayer",
        [174, 255] => "iceTopOnWater",
        [174, 176] => "iceLayerOnWater",
        [177, 255] => "indefiniteSoilDepth",
        _ => "",
    }
}

fn name_ncep(first: u8) -> Option<&'static str> {
    Some(match first {
        200 => "atmosphereSingleLayer",
        201 => "oceanSingleLayer",
        204 => "highestTroposphericFreezing",
        206 => "gridScaleCloudBottom",
        207 => "gridScaleCloudTop",
        209 => "boundaryLayerCloudBottom",
        210 => "boundaryLayerCloudTop",
        211 => "boundaryLayerCloudLayer",
        212 => "lowCloudBottom",
        213 => "lowCloudTop",
        214 => "lowCloudLayer",
        215 => "cloudCeiling",
        220 => "planetaryBoundaryLayer",
        221 => "layerBetween2Hybrids",
        222 => "middleCloudBottom",
        223 => "middleCloudTop",
        224 => "middleCloudLayer",
        232 => "highCloudBottom",
        233 => "highCloudTop",
        234 => "highCloudLayer",
        235 => "oceanIsotherm",
        240 => "oceanMixedLayer",
        241 => "orderedSequenceData",
        242 => "convectiveCloudBottom",
        243 => "convectiveCloudTop",
        244 => "convectiveCloudLayer",
        245 => "lowestLevelWetBulb0",
        247 => "equilibrium",
        248 => "shallowConvectiveCloudBottom",
        249 => "shallowConvectiveCloudTop",
        251 => "deepConvectiveCloudBottom",
        252 => "deepConvectiveCloudTop",
        _ => return None,
    })
}

fn name_one(kind: u8, centre: u16) -> &'static str {
    match kind {
        1 => "surface",
        2 => "cloudBase",
        3 => "cloudTop",
        4 => "isothermZero",
        5 => "adiabaticCondensation",
        6 => "maxWind",
        7 => "tropopause",
        8 => "nominalTop",
        9 => "seaBottom",
        100 => "isobaricInhPa",
        101 => "isobaricLayer",
        102 => "meanSea",
        103 => "heightAboveSea",
        104 => "heightAboveSeaLayer",
        105 => "heightAboveGround",
        106 => "heightAboveGroundLayer",
        107 => "sigma",
        108 => "sigmaLayer",
        109 => "hybrid",
        110 => "hybridLayer",
        111 => "depthBelowLand",
        112 => "depthBelowLandLayer",
        113 => "theta",
        114 => "thetaLayer",
        115 => "pressureFromGround",
        116 => "pressureFromGroundLayer",
        117 => "potentialVorticity",
        121 => "isobaricLayerHighPrecision",
        125 => "heightAboveGroundHighPrecision",
        128 => "sigmaLayerHighPrecision",
        141 => "isobaricLayerMixedPrecision",
        160 => "depthBelowSea",
        200 => "entireAtmosphere",
        201 => "entireOcean",
        210 => "isobaricInPa",
        211 if centre == 98 => "oceanWave",
        212 if centre == 98 => "oceanMixedLayer",
        _ => "",
    }
}
