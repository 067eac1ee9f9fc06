"""Makes the files of this folder that are not real ones: `python make_files.py`. Needs eccodes and numpy."""

import zlib
from pathlib import Path

import eccodes as ec
import numpy as np

HERE = Path(__file__).parent
MISSING = -9999.0
# Keys that exist once the packing is set.
OF_PACKING = ("precision", "orderOfSpatialDifferencing")


def field(ny, nx, seed=0, missing=False):
    """Smooth values with some noise; the missing ones are a disk."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:ny, 0:nx]
    v = 280 + 15 * np.sin(x / 3.0 + seed) * np.cos(y / 2.0) + rng.normal(0, 0.7, (ny, nx))
    if missing:
        v[(y - ny / 2) ** 2 + (x - nx / 3) ** 2 < 9] = MISSING
    return v


def message(edition, keys, values, missing=False, sample=None):
    h = ec.codes_grib_new_from_samples(sample or f"regular_ll_pl_grib{edition}")
    of_packing = {k: v for k, v in keys.items() if k.startswith("ccsds") or k in OF_PACKING}
    for k, v in keys.items():
        if k != "packingType" and k not in of_packing:
            ec.codes_set(h, k, v)
    if "packingType" in keys:
        ec.codes_set(h, "packingType", keys["packingType"])
    for k, v in of_packing.items():
        ec.codes_set(h, k, v)
    if missing:
        ec.codes_set(h, "missingValue", MISSING)
        ec.codes_set(h, "bitmapPresent", 1)
    ec.codes_set_values(h, np.asarray(values, "f8").ravel())
    out = ec.codes_get_message(h)
    ec.codes_release(h)
    return out


def sections(m):
    """The sections of a message of edition 2 by their numbers."""
    out, at = {}, 16
    while m[at : at + 4] != b"7777":
        n = int.from_bytes(m[at : at + 4], "big")
        out[m[at + 4]] = m[at : at + n]
        at += n
    return out


def joined(head, body):
    return head[:8] + (16 + len(body) + 4).to_bytes(8, "big") + body + b"7777"


def png(m, number, ny, nx, missing):
    """The same message with its numbers, of whole bytes, in an image with lines of all filters, and another parameter.
    The wheel of eccodes has no PNG."""
    of = sections(m)
    raw = np.frombuffer(of[7][5:], "u1")
    count = int.from_bytes(of[5][5:9], "big")
    size = len(raw) // count
    # Values that are not missing fill no rectangle: one line.
    height, width = (1, count) if missing else (ny, nx)
    lines = raw.reshape(height, width * size).astype(int)
    stream = b""
    for j, line in enumerate(lines):
        above = lines[j - 1] if j else np.zeros_like(line)
        left, corner = (np.concatenate([np.zeros(size, int), v[:-size]]) for v in (line, above))
        p = left + above - corner
        near = np.stack([np.abs(p - v) for v in (left, above, corner)])
        paeth = np.choose(near.argmin(0), [left, above, corner])
        guess = [0 * line, left, above, (left + above) // 2, paeth][(j + size) % 5]
        stream += bytes([(j + size) % 5]) + ((line - guess) % 256).astype("u1").tobytes()
    depth, colour = {1: (8, 0), 2: (16, 0), 3: (8, 2)}[size]
    chunk = lambda kind, b: len(b).to_bytes(4, "big") + kind + b + zlib.crc32(kind + b).to_bytes(4, "big")
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([depth, colour, 0, 0, 0])
    packed = zlib.compress(stream)
    half = len(packed) // 2
    image = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed[:half])
    image += chunk(b"IDAT", packed[half:]) + chunk(b"IEND", b"")
    of[5] = of[5][:9] + (41).to_bytes(2, "big") + of[5][11:]
    of[4] = of[4][:10] + bytes([number]) + of[4][11:]
    of[7] = (5 + len(image)).to_bytes(4, "big") + b"\x07" + image
    return joined(m, b"".join(of[n] for n in (1, 3, 4, 5, 6, 7)))


def latlon(ny, nx, north=60.0, west=-10.0, step=5.0):
    return {
        "Ni": nx, "Nj": ny,
        "latitudeOfFirstGridPointInDegrees": north,
        "latitudeOfLastGridPointInDegrees": north - step * (ny - 1),
        "longitudeOfFirstGridPointInDegrees": west,
        "longitudeOfLastGridPointInDegrees": west + step * (nx - 1),
        "iDirectionIncrementInDegrees": step, "jDirectionIncrementInDegrees": step,
    }


def write(name, messages):
    (HERE / name).write_bytes(b"".join(messages))


def cubes():
    """Editions in one file each: members, times, steps and levels, not all of them; and single fields."""
    grid = latlon(5, 7)
    for edition in (1, 2):
        out = []
        for seed, (number, date, hour, step, level) in enumerate(
            (n, d, t, s, l)
            for n in (0, 1) for d, t in ((20240101, 0), (20240101, 1200)) for s in (0, 6, 12) for l in (1000, 500)
        ):
            if (number, hour, step, level) == (1, 1200, 6, 500):
                continue
            keys = grid | {"dataDate": date, "dataTime": hour, "stepUnits": 1, "bitsPerValue": 12}
            if edition == 1:
                keys |= {"setLocalDefinition": 1, "localDefinitionNumber": 1, "centre": 98, "number": number}
                keys |= {"numberOfForecastsInEnsemble": 2, "step": step, "level": level, "paramId": 130}
            else:
                keys |= {"productDefinitionTemplateNumber": 1, "perturbationNumber": number}
                keys |= {"numberOfForecastsInEnsemble": 2, "forecastTime": step, "level": level}
            out.append(message(edition, keys, field(5, 7, seed)))
        surface = grid | {"dataDate": 20240101, "dataTime": 0, "bitsPerValue": 16}
        if edition == 2:
            two = surface | {"typeOfFirstFixedSurface": 103, "scaleFactorOfFirstFixedSurface": 0}
            for number, (category, n, level) in enumerate(((0, 0, 2), (2, 2, 10), (2, 3, 10))):
                keys = two | {"parameterCategory": category, "parameterNumber": n, "scaledValueOfFirstFixedSurface": level}
                out.append(message(2, keys, field(5, 7, 90 + number)))
            rain = surface | {"productDefinitionTemplateNumber": 8, "parameterCategory": 1, "parameterNumber": 52}
            rain |= {"typeOfFirstFixedSurface": 1, "typeOfStatisticalProcessing": 1}
            for step in (6, 12):
                keys = rain | {"stepRange": f"0-{step}"}
                out.append(message(2, keys, field(5, 7, step)))
        write(f"cube{edition}.grib", out)


def packings():
    """Each packing, on 9 by 16 points, with and without missing values; parameters tell them apart."""
    grid = latlon(9, 16)
    out, n = [], 0

    def add(packing, missing=False, edition=2, **more):
        nonlocal n
        n += 1
        keys = grid | {"packingType": packing}
        if edition == 2:
            keys |= {"parameterCategory": 250, "parameterNumber": n}
        else:
            keys |= {"table2Version": 200, "indicatorOfParameter": n, "centre": 98}
        keys |= more
        values = field(9, 16, n, missing)
        if more.get("constant"):
            keys.pop("constant")
            values[values != MISSING] = 273.25
        out.append(message(edition, keys, values, missing))

    for bits in (1, 2, 3, 5, 7, 8, 12, 16, 17, 24, 25, 31):
        add("grid_simple", bitsPerValue=bits)
    for missing in (False, True):
        add("grid_simple", missing, bitsPerValue=11, decimalScaleFactor=2)
        add("grid_simple", missing, bitsPerValue=16, constant=True)
        add("grid_ieee", missing, precision=1)
        add("grid_ieee", missing, precision=2)
        add("grid_complex", missing, bitsPerValue=12)
        add("grid_complex_spatial_differencing", missing, bitsPerValue=14, orderOfSpatialDifferencing=1)
        add("grid_complex_spatial_differencing", missing, bitsPerValue=14, orderOfSpatialDifferencing=2)
        add("grid_jpeg", missing, bitsPerValue=12)
        for bits in (8, 16, 24):
            add("grid_simple", missing, bitsPerValue=bits)
            n += 1
            out.append(png(out[-1], n, 9, 16, missing))
        for bits in (4, 8, 12, 16, 20, 24, 30):
            add("grid_ccsds", missing, bitsPerValue=bits)
        add("grid_simple_log_preprocessing", missing, bitsPerValue=16)
    for block, interval in ((8, 2), (16, 4), (64, 128)):
        add("grid_ccsds", ccsdsBlockSize=block, ccsdsRsi=interval, bitsPerValue=10)
    # Without differences, and with few options. Padded intervals are not what eccodes writes for their flag.
    for flags, bits in ((6, 11), (14 + 16, 2), (14 + 16, 4)):
        add("grid_ccsds", ccsdsFlags=flags, ccsdsBlockSize=16, ccsdsRsi=2, bitsPerValue=bits)
    write("packings2.grib", out)
    out.clear()
    n = 0
    for bits in (1, 4, 8, 11, 16, 24):
        for missing in (False, True):
            add("grid_simple", missing, 1, bitsPerValue=bits, decimalScaleFactor=1)
    for missing in (False, True):
        add("grid_simple", missing, 1, bitsPerValue=16, constant=True)
        for packing in ("grid_second_order", "grid_second_order_SPD1", "grid_second_order_SPD3", "grid_second_order_no_SPD"):
            add(packing, missing, 1, bitsPerValue=12)
    write("packings1.grib", out)


def scans():
    """All scanning modes: the data say where they are, as latitude + longitude / 1000."""
    for edition in (1, 2):
        out = []
        # Edition 1 has no alternating rows.
        for mode in range(0, 16, 3 - edition):
            west, north, columns, alternate = mode & 8, not mode & 4, mode & 2, mode & 1
            lats = np.linspace(50, 30, 5) if north else np.linspace(30, 50, 5)
            lons = np.linspace(40, 10, 4) if west else np.linspace(10, 40, 4)
            v = lats[:, None] + lons[None, :] / 1000
            if columns:
                v = v.T.copy()
            if alternate:
                v[1::2] = v[1::2, ::-1]
            keys = {
                "Ni": 4, "Nj": 5, "scanningMode": mode << 4,
                "latitudeOfFirstGridPointInDegrees": float(lats[0]),
                "latitudeOfLastGridPointInDegrees": float(lats[-1]),
                "longitudeOfFirstGridPointInDegrees": float(lons[0]),
                "longitudeOfLastGridPointInDegrees": float(lons[-1]),
                "iDirectionIncrementInDegrees": 10, "jDirectionIncrementInDegrees": 5, "bitsPerValue": 24,
            }
            if edition == 1:
                keys |= {"table2Version": 200, "indicatorOfParameter": mode + 1, "centre": 98}
            else:
                keys |= {"parameterCategory": 250, "parameterNumber": mode}
            out.append(message(edition, keys, v))
        write(f"scans{edition}.grib", out)


def grids():
    """Grids other than the regular one; all have their points in eccodes."""
    out = []
    first = {"latitudeOfFirstGridPointInDegrees": 20.0, "longitudeOfFirstGridPointInDegrees": 230.0}
    size = {"Nx": 6, "Ny": 5}
    lambert = size | first | {
        "gridType": "lambert", "LoVInDegrees": 262.5, "LaDInDegrees": 38.5, "Latin1InDegrees": 33.0, "Latin2InDegrees": 45.0,
        "DxInMetres": 300000, "DyInMetres": 300000, "jScansPositively": 1, "shapeOfTheEarth": 6,
    }
    out.append(message(2, lambert | {"parameterNumber": 1}, field(5, 6, 1)))
    out.append(message(2, lambert | {"parameterNumber": 2, "shapeOfTheEarth": 5, "Latin2InDegrees": 33.0}, field(5, 6, 2)))
    polar = size | first | {
        "gridType": "polar_stereographic", "orientationOfTheGridInDegrees": 260.0, "LaDInDegrees": 60.0,
        "DxInMetres": 400000, "DyInMetres": 400000, "jScansPositively": 1, "shapeOfTheEarth": 6,
    }
    out.append(message(2, polar | {"parameterNumber": 3}, field(5, 6, 3)))
    south = {"latitudeOfFirstGridPointInDegrees": -40.0, "LaDInDegrees": -60.0, "projectionCentreFlag": 128}
    out.append(message(2, polar | south | {"parameterNumber": 4}, field(5, 6, 4)))
    mercator = {
        "gridType": "mercator", "Ni": 6, "Nj": 5, "LaDInDegrees": 20.0, "DiInMetres": 200000, "DjInMetres": 200000,
        "latitudeOfLastGridPointInDegrees": 27.0, "longitudeOfLastGridPointInDegrees": 240.0, "jScansPositively": 1,
    }
    out.append(message(2, first | mercator | {"parameterNumber": 5, "shapeOfTheEarth": 5}, field(5, 6, 5)))
    rotated = latlon(5, 6, 10.0, -10.0, 4.0) | {
        "gridType": "rotated_ll", "latitudeOfSouthernPoleInDegrees": -39.25, "longitudeOfSouthernPoleInDegrees": 18.0,
    }
    out.append(message(2, rotated | {"parameterNumber": 6}, field(5, 6, 6)))
    write("grids2.grib", out)
    for edition in (1, 2):
        out = []
        keys = {"parameterNumber": 11} if edition == 2 else {"indicatorOfParameter": 11}
        for n, (name, octahedral) in enumerate((("regular_gg", False), ("reduced_gg", True))):
            N = 8
            h = ec.codes_grib_new_from_samples(f"{name}_pl_grib{edition}" if edition == 2 else f"{name}_pl_grib1")
            first_latitude = round(ec.codes_get_gaussian_latitudes(N)[0], 3)
            ec.codes_set(h, "N", N)
            if octahedral:
                pl = [20 + 4 * i for i in range(N)]
                pl += pl[::-1]
                ec.codes_set(h, "Nj", 2 * N)
                ec.codes_set_array(h, "pl", pl)
                count, longest = sum(pl), max(pl)
            else:
                count, longest = 2 * N * 32, 32
                ec.codes_set(h, "Ni", 32)
                ec.codes_set(h, "Nj", 2 * N)
                ec.codes_set(h, "iDirectionIncrementInDegrees", 360 / 32)
            for k, v in (("latitudeOfFirst", first_latitude), ("latitudeOfLast", -first_latitude)):
                ec.codes_set(h, f"{k}GridPointInDegrees", v)
            ec.codes_set(h, "longitudeOfFirstGridPointInDegrees", 0)
            ec.codes_set(h, "longitudeOfLastGridPointInDegrees", 360 - 360 / longest)
            for k, v in keys.items():
                ec.codes_set(h, k, v + n)
            ec.codes_set(h, "bitsPerValue", 12)
            ec.codes_set_values(h, field(1, count, n).ravel())
            out.append(ec.codes_get_message(h))
            ec.codes_release(h)
        # A part of the octahedral grid: rows 3 to 8, from 10 to 100 degrees.
        h = ec.codes_grib_new_from_samples(f"reduced_gg_pl_grib{edition}" if edition == 2 else "reduced_gg_pl_grib1")
        pl = [20 + 4 * i for i in range(2, 8)]
        count = sum(np.sum((np.arange(n) * 360 >= 10 * n) & (np.arange(n) * 360 <= 100 * n)) for n in pl)
        ec.codes_set(h, "N", 8)
        ec.codes_set(h, "Nj", len(pl))
        ec.codes_set_array(h, "pl", pl)
        latitudes = [ec.codes_get_gaussian_latitudes(8)[i] for i in range(2, 8)]
        for name, v in (("latitudeOfFirst", latitudes[0]), ("latitudeOfLast", latitudes[-1]),
                        ("longitudeOfFirst", 10), ("longitudeOfLast", 100)):
            ec.codes_set(h, f"{name}GridPointInDegrees", v)
        for k, v in keys.items():
            ec.codes_set(h, k, v + 2)
        ec.codes_set(h, "bitsPerValue", 12)
        ec.codes_set_values(h, field(1, count, 3).ravel())
        out.append(ec.codes_get_message(h))
        ec.codes_release(h)
        write(f"gaussian{edition}.grib", out)


def odd():
    """Bytes between messages, both editions, several fields in a message, a bitmap that two fields share, and units of
    time of all kinds."""
    grid = latlon(5, 6)
    one = message(1, grid | {"paramId": 129, "level": 500}, field(5, 6, 1))
    two = message(2, grid | {"parameterCategory": 3, "parameterNumber": 5}, field(5, 6, 2))
    u = message(2, grid | {"parameterCategory": 2, "parameterNumber": 2}, field(5, 6, 3, True), True)
    v = message(2, grid | {"parameterCategory": 2, "parameterNumber": 3}, field(5, 6, 4, True), True)
    w = message(2, latlon(3, 4, west=10.0) | {"parameterCategory": 2, "parameterNumber": 8}, field(3, 4, 5))

    su, sv, sw = sections(u), sections(v), sections(w)
    same = b"\0\0\0\x06\x06\xfe"
    body = su[1] + su[3] + su[4] + su[5] + su[6] + su[7] + sv[4] + sv[5] + same + sv[7] + sw[3] + sw[4] + sw[5] + sw[6] + sw[7]
    both = joined(u, body)
    write("odd.grib", [b"\r\r\nHTXE50 ECMF 010000\r\r\n", one, b"\0" * 70, two, both, b"\n\n"])
    units = []
    for n, (unit, step) in enumerate(((0, 90), (1, 3), (2, 2), (10, 5), (11, 3), (12, 1), (13, 7200))):
        keys = latlon(2, 3, west=10.0) | {"parameterCategory": 250, "parameterNumber": n, "dataDate": 20231231, "dataTime": 1800}
        keys |= {"indicatorOfUnitOfTimeRange": unit, "forecastTime": step}
        units.append(message(2, keys, field(2, 3, n)))
    write("steps.grib", units)
    levels = []
    for pascal in (100000, 5000, 100, 50, 1):
        keys = latlon(2, 3, west=10.0) | {"parameterCategory": 0, "parameterNumber": 0, "typeOfFirstFixedSurface": 100}
        keys |= {"scaleFactorOfFirstFixedSurface": 0, "scaledValueOfFirstFixedSurface": pascal}
        levels.append(message(2, keys, field(2, 3, pascal)))
    write("pressures.grib", levels)


cubes()
packings()
scans()
grids()
odd()
