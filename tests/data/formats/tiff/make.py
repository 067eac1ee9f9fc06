"""Writes the sample files and `expected.json`, what GDAL (rasterio, rioxarray) and tifffile read of them.

    python make.py    # numpy, pillow, rasterio 1.4, rioxarray 0.19, tifffile 2026, imagecodecs 2026
"""

import io
import json
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import rasterio
import rasterio.shutil
import rioxarray
import tifffile
from PIL import Image
from rasterio.control import GroundControlPoint
from rasterio.enums import Resampling
from rasterio.transform import Affine

warnings.simplefilter("ignore")
HERE = Path(__file__).parent
UTM = Affine(10.1, 0, 399960.3, 0, -10.1, 5000040.7)
expected = {}


def cells(bands, height, width, dtype, seed=0):
    """Smooth cells with some noise and extremes of the type."""
    rng = np.random.default_rng(seed)
    b, y, x = np.mgrid[0:bands, 0:height, 0:width]
    v = (x * 3 + y * 5 + b * 40) % 97
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        v = (v * 1.25 - 40 + rng.integers(0, 2, v.shape) / 3).astype(dtype)
        v[0, 0, :4] = [np.inf, -0.0, np.nan, np.finfo(dtype).max]
        return v
    v = v.astype(dtype)
    info = np.iinfo(dtype)
    v[0, 0, :2] = [info.min, info.max]
    v[-1, -1, -3:] = [info.max, info.min, info.max // 3]
    return v


def crc(a):
    a = np.ascontiguousarray(a)
    return zlib.crc32(a.astype(a.dtype.newbyteorder("<")).tobytes())


def numbers(values):
    a = np.asarray(values, "<f8")
    return {"crc": zlib.crc32(a.tobytes()), "first": float(a[0]), "last": float(a[-1])}


def record(name, group, a, **more):
    """What `name#group` has to read as."""
    a = np.asarray(a)
    if a.dtype == np.float16:
        a = a.astype(np.float32)
    n, h, w = a.shape[-3:]
    windows = []
    for y0, y1, x0, x1 in [(h // 3, h - 1, w // 4, w // 2 + 1), (h - 1, h, 0, w), (0, h, w - 1, w)]:
        windows.append([y0, y1, x0, x1, crc(a[..., y0:y1, x0:x1])])
    entry = {"shape": list(a.shape), "dtype": str(a.dtype), "crc": crc(a), "windows": windows}
    expected[f"{name}#{group}" if group else name] = entry | more


def plain(v):
    if isinstance(v, (np.floating, float)):
        return float(v)
    if isinstance(v, np.integer):
        return int(v)
    if isinstance(v, (tuple, list, np.ndarray)):
        return [plain(x) for x in v]
    return v


def with_gdal(name, group="", path=None, **options):
    """Records what GDAL reads."""
    path = path or str(HERE / name)
    with rasterio.open(path, **options) as f:
        a = f.read()
        has_crs = bool(f.crs)
        epsg = f.crs.to_epsg() if f.crs else None
        mask = f.dataset_mask() if rasterio.enums.MaskFlags.per_dataset in f.mask_flag_enums[0] else None
    d = rioxarray.open_rasterio(path, **options)
    more = {"band": d.band.values.tolist()}
    for dim in "xy":
        more[dim] = numbers(d[dim].values) if dim in d.coords else None
    attrs = {k: plain(v) for k, v in d.attrs.items()}
    if attrs.get("scale_factor") == 1:
        del attrs["scale_factor"]
    if attrs.get("add_offset") == 0:
        del attrs["add_offset"]
    more["attrs"] = attrs
    t = d.rio.transform()
    more["transform"] = list(t)[:6]
    more["crs"] = f"EPSG:{epsg}" if epsg else None
    if has_crs:
        more["axes"] = {dim: {k: v for k, v in d[dim].attrs.items()} for dim in "xy" if dim in d.coords}
    if mask is not None:
        more["mask"] = crc(np.broadcast_to((mask > 0).astype(np.uint8), a.shape))
    record(name, group, a, **more)
    return a


def write(name, a, *, crs=None, transform=None, nodata=None, after=None, **options):
    """Writes a file with GDAL and checks that it reads what was written, if it can."""
    profile = dict(driver="GTiff", count=a.shape[0], height=a.shape[1], width=a.shape[2], dtype=a.dtype)
    if options.get("tiled"):
        options = {"blockxsize": 16, "blockysize": 16} | options
    with rasterio.open(HERE / name, "w", **profile, crs=crs, transform=transform, nodata=nodata, **options) as f:
        f.write(a)
        if after:
            after(f)


def check(name, a):
    got = with_gdal(name)
    assert got.tobytes() == np.ascontiguousarray(a).tobytes(), name


def matrix():
    """Types, compressions and predictors; layouts, byte orders and sizes of offsets by turns."""
    i = 0
    for compress in ["none", "packbits", "lzw", "deflate", "zstd"]:
        for dtype in ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"]:
            predictors = [1]
            if compress in ("lzw", "deflate", "zstd"):
                predictors = [2, 3] if dtype[0] == "f" else [2]
            if compress == "packbits" and dtype not in ("u1", "i2", "f8"):
                continue
            for predictor in predictors:
                for big_endian in [False, True]:
                    bands = [1, 3, 2][i % 3] if np.dtype(dtype).itemsize < 8 else 1
                    if compress == "none" and big_endian == (i % 4 < 2):
                        i += 1
                        continue
                    options = {"compress": compress, "predictor": predictor}
                    if compress in ("none", "packbits"):
                        del options["predictor"]
                    # 7 and 3 share no factor with the 2 byte orders.
                    layout = ["strip", "tile", "rows"][i // 2 % 3]
                    if layout == "tile":
                        options |= {"tiled": True}
                    else:
                        options |= {"blockysize": {"strip": 8, "rows": 1}[layout]}
                    interleave = ["pixel", "band"][i // 3 % 2]
                    is_big = i // 4 % 2 == 1
                    name = f"{compress}_{dtype}_p{predictor}_{'be' if big_endian else 'le'}.tif"
                    a = cells(bands, 17, 19, dtype, i)
                    write(name, a, interleave=interleave, BIGTIFF="YES" if is_big else "NO",
                          ENDIANNESS="BIG" if big_endian else "LITTLE", **options)
                    check(name, a)
                    i += 1


def bits():
    for n, dtype, bands, options in [
        (1, "u1", 1, {}),
        (1, "u1", 3, {"compress": "lzw", "tiled": True}),
        (2, "u1", 2, {"interleave": "band", "compress": "deflate"}),
        (4, "u1", 3, {"interleave": "pixel", "blockysize": 4}),
        (5, "u1", 1, {"ENDIANNESS": "BIG"}),
        (12, "u2", 2, {"interleave": "pixel", "tiled": True, "compress": "zstd"}),
        (12, "u2", 1, {"ENDIANNESS": "BIG"}),
        (20, "u4", 2, {"interleave": "pixel", "tiled": True, "compress": "lzw"}),
        (24, "u4", 1, {}),
        (24, "u4", 2, {"interleave": "pixel", "compress": "lzw", "ENDIANNESS": "BIG"}),
        (31, "u4", 3, {"interleave": "band", "blockysize": 4, "ENDIANNESS": "BIG"}),
    ]:
        a = (cells(bands, 19, 21, "u4" if dtype == "u4" else "u2", n) % (1 << n)).astype(dtype)
        name = f"bits{n}_{bands}.tif"
        write(name, a, nbits=n, **options)
        check(name, a)
    for compress, predictor in [("none", 1), ("lzw", 3), ("zstd", 2)]:
        a = cells(2, 19, 21, "f2", 1).astype("f4")
        name = f"half_p{predictor}.tif"
        write(name, a, nbits=16, compress=compress, predictor=predictor)
        check(name, a)
    # The lowest bit of a byte first, compressed and not.
    a = cells(1, 19, 21, "u1", 5)
    reverse = np.array([int(f"{i:08b}"[::-1], 2) for i in range(256)], "u1")
    # tifffile does not write this tag: another one is renamed.
    order = (65001, "H", 1, 2, True)
    for compression in [None, "lzw"]:
        name = f"fill_order_{compression}.tif".lower()
        tifffile.imwrite(HERE / name, a[0], compression=compression, rowsperstrip=5, extratags=[order])
        data = bytearray((HERE / name).read_bytes())
        with tifffile.TiffFile(HERE / name) as f:
            page = f.pages[0]
            for at, n in zip(page.dataoffsets, page.databytecounts):
                data[at : at + n] = reverse[np.frombuffer(bytes(data[at : at + n]), "u1")].tobytes()
            struct.pack_into("<H", data, page.tags[65001].offset, 266)
        (HERE / name).write_bytes(data)
        check(name, a)


def jpeg():
    a = cells(3, 35, 37, "u1", 3)
    a[:, 0, :] = a[:, 1, :]
    y = a[:1]
    write("jpeg_gray.tif", y, compress="jpeg", tiled=True, JPEG_QUALITY=80)
    with_gdal("jpeg_gray.tif")
    write("jpeg_rgb.tif", a, compress="jpeg", interleave="pixel", photometric="RGB", blockysize=16)
    with_gdal("jpeg_rgb.tif")
    write("jpeg_bands.tif", a, compress="jpeg", interleave="band", tiled=True)
    with_gdal("jpeg_bands.tif")
    # libjpeg 9, which GDAL's wheels have, and libjpeg-turbo differ where colours have fewer pixels.
    write("jpeg_ycc.tif", a, compress="jpeg", interleave="pixel", photometric="YCBCR", tiled=True)
    record("jpeg_ycc.tif", "", tifffile.imread(HERE / "jpeg_ycc.tif").transpose(2, 0, 1))
    for name, subsampling, tile in [("444", (1, 1), (16, 16)), ("422", (2, 1), (32, 32)), ("420", (2, 2), None)]:
        name = f"jpeg_{name}.tif"
        tifffile.imwrite(HERE / name, a.transpose(1, 2, 0), compression="jpeg", photometric="rgb", tile=tile,
                         rowsperstrip=None if tile else 16, compressionargs={"level": 90}, subsampling=subsampling)
        record(name, "", tifffile.imread(HERE / name).transpose(2, 0, 1))
    # A stream with restart markers, and one that is progressive.
    for name, more in [("jpeg_restart.tif", {"restart_marker_blocks": 2}), ("jpeg_progressive.tif", {"progressive": True})]:
        stream = io.BytesIO()
        Image.fromarray(a.transpose(1, 2, 0)).save(stream, "JPEG", quality=85, subsampling=2, **more)
        tifffile.imwrite(HERE / name, iter([stream.getvalue()]), shape=(35, 37, 3), dtype="u1", compression="jpeg",
                         photometric="ycbcr", subsampling=(2, 2), rowsperstrip=35)
        if "restart" in name:
            record(name, "", tifffile.imread(HERE / name).transpose(2, 0, 1))


def levels():
    """Overviews, masks, pages, SubIFDs."""
    a = cells(2, 70, 90, "i2", 7)

    def overviews(f):
        f.build_overviews([2, 4], Resampling.nearest)

    def masked(f):
        m = np.ones((70, 90), "u1") * 255
        m[5:20, 7:33] = 0
        f.write_mask(m)

    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        write("cog_source.tif", a, crs="EPSG:32633", transform=UTM, nodata=-9999, tiled=True, after=masked)
        rasterio.shutil.copy(HERE / "cog_source.tif", HERE / "cog.tif", driver="COG", blocksize=32, compress="deflate",
                             predictor="yes", overview_count=2, overviews="IGNORE_EXISTING")
        (HERE / "cog_source.tif").unlink()
    with_gdal("cog.tif")
    for i in range(2):
        with_gdal("cog.tif", f"overview_{i + 1}", overview_level=i)
    write("overviews.tif", a.astype("u1"), crs="EPSG:4326", transform=Affine(0.01, 0, 5, 0, -0.01, 50), tiled=True,
          compress="lzw", predictor=2, interleave="band", blockxsize=32, blockysize=48)
    with rasterio.open(HERE / "overviews.tif", "r+") as f:
        overviews(f)
    with_gdal("overviews.tif")
    for i in range(2):
        with_gdal("overviews.tif", f"overview_{i + 1}", overview_level=i)
    pages = cells(3, 19, 21, "u2", 11)
    with tifffile.TiffWriter(HERE / "pages.tif") as f:
        for p in pages:
            f.write(p, compression="zlib", predictor=True, rowsperstrip=8, contiguous=False)
    for i in range(3):
        with_gdal("pages.tif", f"page_{i + 1}" if i else "", f"GTIFF_DIR:{i + 1}:{HERE / 'pages.tif'}")
    record("pages.tif", "pages", pages[:, None])
    with tifffile.TiffWriter(HERE / "mixed.tif", bigtiff=True, byteorder=">") as f:
        f.write(pages[0], tile=(16, 16), subifds=2)
        f.write(pages[0][::2, ::2], tile=(16, 16), subfiletype=1)
        f.write(pages[0][::4, ::4], tile=(16, 16), subfiletype=1)
        f.write(cells(1, 9, 8, "f4")[0])
    with_gdal("mixed.tif", "", f"GTIFF_DIR:1:{HERE / 'mixed.tif'}")
    record("mixed.tif", "overview_1", pages[:1, ::2, ::2])
    record("mixed.tif", "overview_2", pages[:1, ::4, ::4])
    with_gdal("mixed.tif", "page_2", f"GTIFF_DIR:2:{HERE / 'mixed.tif'}")


def places():
    """Georeference, nodata, scales, names, absent tiles."""
    a = cells(2, 19, 21, "i2", 9)

    def described(f):
        f.scales, f.offsets, f.units = [0.1, 0.1], [-3.5, -3.5], ["K", "K"]
        f.descriptions = ["first & <best>", "second"]
        f.update_tags(TIFFTAG_SOFTWARE="none", AREA_OR_POINT="Area", level="7", note='a "b" & c', TIFFTAG_DATETIME="2020:01:02 03:04:05")

    write("utm.tif", a, crs="EPSG:32633", transform=UTM, nodata=-32768, after=described)
    with_gdal("utm.tif")

    def point(f):
        f.update_tags(AREA_OR_POINT="Point")
        f.scales, f.offsets = [0.5, 0.25], [1, 2]

    write("point.tif", a, crs="EPSG:4326", transform=Affine(0.1, 0, -10.05, 0, -0.1, 60.3), nodata=7, after=point)
    with_gdal("point.tif")
    write("south_up.tif", a, crs="EPSG:3857", transform=Affine(0.3, 0, 7, 0, 0.3, -11), ENDIANNESS="BIG")
    with_gdal("south_up.tif")
    write("rotated.tif", a, crs="EPSG:32633", transform=UTM * Affine.rotation(30))
    with_gdal("rotated.tif")
    write("custom.tif", a, transform=UTM, crs=(
        'PROJCS["Here & there",GEOGCS["GRS 80",DATUM["unknown",SPHEROID["GRS80",6378137,298.257222101]],'
        'PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]],PROJECTION["Transverse_Mercator"],'
        'PARAMETER["latitude_of_origin",1],PARAMETER["central_meridian",2],PARAMETER["scale_factor",0.5],'
        'PARAMETER["false_easting",3],PARAMETER["false_northing",4],UNIT["metre",1]]'))
    with_gdal("custom.tif")
    write("compound.tif", a, transform=UTM, crs="EPSG:32633+5773")
    with_gdal("compound.tif")
    write("control_points.tif", a, after=lambda f: setattr(f, "gcps", (
        [GroundControlPoint(r, c, 10 + c / 7, 50 - r / 9) for r, c in [(0, 0), (0, 20), (18, 0), (18, 20)]], "EPSG:4326")))
    with_gdal("control_points.tif")
    f = cells(1, 40, 50, "f4", 2)
    f[0, 3:9, 4:11] = np.nan
    write("nan.tif", f, nodata=float("nan"), compress="deflate", predictor=3)
    with_gdal("nan.tif")
    for nodata, name in [(None, "sparse_zero"), (-1, "sparse_nodata")]:
        f = np.full((2, 50, 52), 0 if nodata is None else nodata, "f4")
        f[1, 20:30, 20:30] = 3
        write(f"{name}.tif", f, nodata=nodata, tiled=True, SPARSE_OK=True, interleave="band", compress="deflate")
        check(f"{name}.tif", f)


def old_lzw():
    """The form before TIFF 5: the lowest bit first, longer codes one code later."""
    a = cells(1, 30, 40, "u1", 4)
    data, out, held, count = a.tobytes(), bytearray(), 0, 0

    def put(code, width):
        nonlocal held, count
        held |= code << count
        count += width
        while count >= 8:
            out.append(held & 255)
            held >>= 8
            count -= 8

    table, width = {bytes([i]): i for i in range(256)}, 9
    put(256, width)
    text = b""
    for i in range(len(data)):
        more = data[i : i + 1]
        if text + more in table:
            text += more
            continue
        put(table[text], width)
        table[text + more] = len(table) + 2
        if len(table) + 2 > 1 << width:
            width += 1
        text = more
    put(table[text], width)
    put(257, width)
    put(0, 7)
    tifffile.imwrite(HERE / "old_lzw.tif", a[0], compression="lzw", rowsperstrip=30)
    data = bytearray((HERE / "old_lzw.tif").read_bytes())
    with tifffile.TiffFile(HERE / "old_lzw.tif") as f:
        at = len(data)
        for tag, value in [("StripOffsets", at), ("StripByteCounts", len(out))]:
            struct.pack_into("<I" if f.pages[0].tags[tag].dtype == 4 else "<H", data, f.pages[0].tags[tag].valueoffset, value)
    (HERE / "old_lzw.tif").write_bytes(data + out)
    check("old_lzw.tif", a)


def refused():
    a = cells(1, 16, 16, "u1")
    write("refused_complex.tif", a.astype("c8"))
    for compress in ["lzma", "lerc", "webp", "jxl"]:
        try:
            write(f"refused_{compress}.tif", np.repeat(a, 3, 0) if compress == "webp" else a, compress=compress)
        except Exception as e:
            print(compress, e)
    write("refused_ccittfax4.tif", a % 2, nbits=1, compress="ccittfax4")


if __name__ == "__main__":
    for old in HERE.glob("*.tif*"):
        old.unlink()
    matrix()
    bits()
    jpeg()
    levels()
    places()
    old_lzw()
    refused()
    text = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(expected.items()))
    (HERE / "expected.json").write_text("{\n" + text + "\n}\n")
