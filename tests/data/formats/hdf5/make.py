"""Writes the samples and what h5py and netCDF4 read of them (`expected.json`).

    pip install numpy h5py==3.16 netCDF4==1.7.4 hdf5plugin==7.1 && python make.py

Files differ from run to run in bytes that do not matter (times of modification are off); values do not.
"""
import json
import os
import subprocess
import sys
import zlib

import h5py
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
UNLIMITED = h5py.h5s.UNLIMITED


def path(name):
    return os.path.join(HERE, name)


def numbers(shape, dtype):
    n = int(np.prod(shape))
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return (np.arange(n) * 0.37 - 5).reshape(shape).astype(dtype)
    if dtype.kind == "b":
        return (np.arange(n) % 3 == 0).reshape(shape)
    return (np.arange(n) * 7 % 113).reshape(shape).astype(dtype)


def low_level(h, name, dtype, shape, values, maxshape=None, chunk=None, setup=None):
    dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunk:
        dcpl.set_chunk(chunk)
    if setup:
        setup(dcpl)
    space = h5py.h5s.create_simple(shape, maxshape or shape)
    d = h5py.h5d.create(h.id, name.encode(), dtype, space, dcpl)
    d.write(h5py.h5s.ALL, h5py.h5s.ALL, values)


def types(name, libver):
    with h5py.File(path(name), "w", meta_block_size=256, libver=libver) as h:
        for k in "i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8".split():
            for o in "<>" if k in ("i2", "u4", "f2", "f4", "f8") else "<":
                end = {"<": "le", ">": "be"}[o]
                h[f"{k}_{end}"] = numbers((3, 5), o + k)
                if libver == "earliest" and k not in ("i2", "f8"):
                    continue
                h.create_dataset(f"c_{k}_{end}", data=numbers((3, 5), o + k), chunks=(2, 3), compression="gzip",
                                 shuffle=True, fletcher32=True)
        h["bool"] = numbers((5, 4), "?")
        h["scalar"] = np.float64(3.5)
        h["null"] = h5py.Empty("f4")
        h["zero"] = np.zeros((0, 3), "i4")
        h["complex"] = np.array([1 + 2j, 3])
        h["compound"] = np.zeros(3, dtype=[("a", "i4"), ("b", "f8", (2,))])
        h["opaque"] = np.array([b"abc"], dtype="V3")
        h.create_dataset("enum", data=np.array([0, 42, 1], "i1"),
                         dtype=h5py.enum_dtype({"RED": 0, "PALE GREEN": 1, "BLUE": 42}, basetype="i1"))
        h.create_dataset("lists", data=np.array([np.arange(2), np.arange(3)], dtype=object), dtype=h5py.vlen_dtype("i4"))
        h.create_dataset("reference", data=h["bool"].ref, dtype=h5py.ref_dtype)
        h.create_dataset("unwritten", shape=(1000, 3), dtype="f4", fillvalue=7.5)
        h.create_dataset("unwritten_chunks", shape=(10, 30), dtype=">i2", chunks=(3, 4), fillvalue=-5)
        low_level(h, "compact", h5py.h5t.IEEE_F32BE, (4, 3), np.arange(12, dtype="f4").reshape(4, 3),
                  setup=lambda p: p.set_layout(h5py.h5d.COMPACT))
        brain = h5py.h5t.IEEE_F32LE.copy()
        brain.set_fields(15, 7, 8, 0, 7)
        brain.set_size(2)
        brain.set_ebias(127)
        low_level(h, "bfloat16", brain, (5,), np.array([1, 2, -3.5, 0, 1e30], "f4"))
        h["named"] = np.dtype("<i4")
        h.create_dataset("of_named", data=np.arange(4), dtype=h["named"])
        h["of_named"].attrs.create("also", np.arange(3), dtype=h["named"])
        a = h["scalar"].attrs
        a["text"], a["bytes"], a["integer"], a["narrow"] = "text", np.bytes_("bytes"), 5, np.float32(1.5)
        a["list"], a["texts"], a["true"], a["nan"] = [1, 2, 3], ["a", "bb"], True, np.nan
        a["floats"], a["none"], a["big"] = np.array([1, np.inf], "f4"), h5py.Empty("f4"), np.array(7, ">i4")
        a["u64"], a["one"], a["complex"] = np.uint64(2**64 - 1), np.array([9]), 1 + 2j
        x = h.create_group("texts")
        for dim, values in (("fixed", np.array([b"abc", b"de", b""])), ("any", np.array(["abc", "dé", ""], dtype=object))):
            x[dim] = values
            x[dim].make_scale()
        x.create_dataset("chunked", data=np.array([f"s{i}" * (i % 5) for i in range(40)], dtype=object), chunks=(7,),
                         compression="gzip", dtype=h5py.string_dtype())
        x["chunked"].make_scale()


def chunks(name, libver):
    with h5py.File(path(name), "w", meta_block_size=256, libver=libver) as h:
        for end, kw in {"": {}, "_gz": dict(compression="gzip", compression_opts=9)}.items():
            def put(name, shape, chunk, maxshape=None, part=None):
                # Without the new indices all of these are B-trees of version 1.
                if libver == "earliest" and name + end not in ("fixed", "single_edge_gz", "extensible_far_gz", "tree_deep_gz", "four_gz", "none_gz"):
                    return
                if name + end in ("tree_deep", "fixed_pages", "extensible_pages_gz", "extensible_far", "fixed_max", "extensible_first_gz", "fixed_part", "extensible_max_gz", "tree_gz", "none", "single_gz"):
                    return
                d = h.create_dataset(name + end, shape=shape, chunks=chunk, maxshape=maxshape, dtype="i1", fillvalue=-1, **kw)
                part = np.s_[...] if part is None else part
                d[part] = numbers(shape, "i1")[part]
            put("single", (5, 7), (5, 7))
            put("single_edge", (5, 7), (8, 8), (8, 8))
            put("fixed", (20, 11), (7, 6))
            put("fixed_max", (20, 11), (7, 6), (30, 30))
            put("fixed_part", (20, 11), (7, 6), None, np.s_[9:10, 7:9])
            put("fixed_pages", (1100,), (1,), None, np.s_[1030:1040])
            put("extensible", (3, 50), (2, 3), (3, UNLIMITED))
            put("extensible_max", (11, 20, 3), (4, 3, 2), (20, UNLIMITED, 7))
            put("extensible_first", (500,), (2,), (UNLIMITED,), np.s_[0:3])
            put("extensible_far", (30000,), (2,), (UNLIMITED,), np.s_[25000:25010])
            put("extensible_pages", (400000,), (2,), (UNLIMITED,), np.s_[300000:300004])
            put("tree", (20, 19), (3, 4), (UNLIMITED, UNLIMITED))
            put("tree_deep", (60, 40), (1, 3), (UNLIMITED, UNLIMITED), np.s_[:, 10:30])
            put("four", (3, 4, 3, 5), (2, 3, 2, 3))
            put("none", (5, 6), (2, 2), (UNLIMITED, 6), np.s_[0:0])
        early = lambda p: p.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        low_level(h, "implicit", h5py.h5t.STD_I8LE, (10, 11), numbers((10, 11), "i1"), (14, 21), (3, 4), early)
        if libver == "latest":
            def whole_edges(p):
                p.set_deflate(5)
                p.set_chunk_opts(h5py.h5d.CHUNK_DONT_FILTER_PARTIAL_CHUNKS if hasattr(h5py.h5d, "CHUNK_DONT_FILTER_PARTIAL_CHUNKS") else 2)
            if hasattr(h5py.h5p.PropDCID, "set_chunk_opts"):
                low_level(h, "raw_edges", h5py.h5t.STD_I8LE, (10, 11), numbers((10, 11), "i1"), None, (3, 4), whole_edges)
        d = h.create_dataset("masked", shape=(8,), chunks=(4,), dtype="i4", compression="gzip", shuffle=True)
        d.id.write_direct_chunk((0,), np.arange(4, dtype="i4").tobytes(), filter_mask=3)
        d[4:] = [9, 8, 7, 6]
        d = h.create_dataset("shrunk", data=numbers((20, 20), "i1"), chunks=(3, 3), maxshape=(UNLIMITED,) * 2)
        d.resize((11, 7))
        d = h.create_dataset("grown", data=numbers((4, 4), "i1"), chunks=(3, 3), maxshape=(UNLIMITED, 9), fillvalue=3)
        d.resize((11, 7))


def filters():
    import hdf5plugin as p
    with h5py.File(path("filters.h5"), "w", meta_block_size=256, libver="latest") as h:
        made = {"lzf": dict(compression="lzf"), "lzf_shuffle": dict(compression="lzf", shuffle=True),
                "szip_nn8": dict(compression="szip", compression_opts=("nn", 8)),
                "szip_ec16": dict(compression="szip", compression_opts=("ec", 16)),
                "szip_nn10": dict(compression="szip", compression_opts=("nn", 10)),
                "bitshuffle": p.Bitshuffle(cname="none"), "bitshuffle_lz4": p.Bitshuffle(cname="lz4"),
                "bitshuffle_zstd": p.Bitshuffle(nelems=64, cname="zstd"), "lz4": p.LZ4(nbytes=100), "zstd": p.Zstd(),
                "bzip2": p.BZip2(), "blosc_lz4": p.Blosc(cname="lz4", shuffle=1), "blosc_zstd": p.Blosc(cname="zstd", shuffle=2),
                "blosc_lz": p.Blosc(cname="blosclz", shuffle=0)}
        for dtype in "<u2 >f8".split():
            end = dtype.strip("<>")
            values = numbers((11, 13), dtype)
            for name, kw in made.items():
                if dtype == "<u2" or name.startswith(("szip", "bitshuffle")):
                    h.create_dataset(f"{name}_{end}", data=values, chunks=(8, 9), **kw)
            digits = 0 if end[0] in "iu" else 2
            h.create_dataset(f"scaleoffset_{end}", data=values, chunks=(8, 9), scaleoffset=digits)
            h.create_dataset(f"scaleoffset_fill_{end}", data=values, chunks=(8, 9), scaleoffset=digits, fillvalue=3)
        for name, of, bits, offset, low in (("u12", h5py.h5t.STD_U16LE, 12, 0, 0), ("i12", h5py.h5t.STD_I16BE, 12, 3, -1000),
                                            ("i20", h5py.h5t.STD_I32LE, 20, 5, -500), ("u33", h5py.h5t.STD_U64BE, 33, 1, 0)):
            of = of.copy()
            of.set_precision(bits)
            of.set_offset(offset)
            for end, setup in (("nbit", lambda p: p.set_filter(5, 0, ())), ("plain", None)):
                low_level(h, f"{end}_{name}", of, (10, 11), np.arange(110).reshape(10, 11) * 31 % 2**11 + low, None, (3, 4), setup)
        sparse = np.zeros((40, 40), "i2")
        sparse[20:25, 3:7] = [5, 4, 3, 2]
        for coding in ("nn", "ec"):
            h.create_dataset(f"sparse_szip_{coding}", data=sparse, chunks=(40, 40), compression="szip", compression_opts=(coding, 8))
        h.create_dataset("small_szip", data=np.arange(1024, dtype="u1").reshape(32, 32) * 37 % 251 % 3, chunks=(32, 32),
                         compression="szip", compression_opts=("ec", 8))
        noise = np.random.default_rng(1).integers(-2**31, 2**31, (8, 12)).astype("i4")
        for name, kw in (("szip", dict(compression="szip")), ("lz4", p.LZ4(nbytes=128)), ("lzf", dict(compression="lzf")),
                         ("scaleoffset", dict(scaleoffset=0))):
            h.create_dataset(f"noise_{name}", data=noise, chunks=(8, 12), **kw)
        h.create_dataset("constant", data=np.full((20, 20), 7, "i2"), chunks=(10, 20), scaleoffset=0)
        h.create_dataset("blosc2", data=noise, chunks=(8, 12), **p.Blosc2())
        h.create_dataset("zfp", data=noise, chunks=(8, 12), **p.Zfp())


def groups(name, libver, many):
    with h5py.File(path(name), "w", meta_block_size=256, libver=libver, userblock_size=512) as h:
        g = h.create_group("g")
        g["x"] = np.arange(5)
        g.create_group("deep/deeper")["y"] = np.arange(3)
        g.attrs["title"] = "group"
        h.attrs["title"] = "root"
        h["soft"], h["soft_group"] = h5py.SoftLink("/g/x"), h5py.SoftLink("g")
        h["nowhere"], h["ring"] = h5py.SoftLink("/nope"), h5py.SoftLink("/ring")
        h["external"] = h5py.ExternalLink("other.h5", "/x")
        h["ring_of_groups"] = h5py.SoftLink("/")
        dense = h.create_group("many")
        for i in range(many):
            dense[f"v{i:03d}"] = h["g/x"]
        for i in range(20):
            dense.attrs[f"a{i:02d}"] = f"value {i} " * (i % 7)
        if libver == "latest":
            dense.attrs["large"] = np.arange(700, dtype="f8")
            sources = h5py.VirtualLayout((2, 3), "i4")
            sources[0] = h5py.VirtualSource("x.h5", "d", (3,))
            h.create_virtual_dataset("virtual", sources)
            h.create_dataset("elsewhere", shape=(10,), dtype="i4", external=[("raw.bin", 0, 40)])


def scales():
    with h5py.File(path("scales.h5"), "w") as h:
        h["x"], h["y"], h["sub/z"] = np.arange(4.0), np.arange(3), np.arange(2)
        h["d"], h["labelled"] = numbers((3, 4, 2), "f4"), numbers((3, 4), "i2")
        h["x"].make_scale("ex")
        h["y"].make_scale()
        h["sub/z"].make_scale("zed")
        for i, scale in enumerate(("y", "x", "sub/z")):
            h["d"].dims[i].attach_scale(h[scale])
        h["labelled"].dims[0].label = "row"
        h["labelled"].dims[1].attach_scale(h["x"])


def netcdf(name, form):
    import netCDF4
    is_new = form == "NETCDF4"
    with netCDF4.Dataset(path(name), "w", format=form) as h:
        h.title, h.number, h.list, h.empty = "t", np.float32(2.5), np.arange(3, dtype="i4"), ""
        for dim, n in (("time", None), ("lat", 5), ("lon", 7), ("letters", 6), ("bare", 3), ("x", 4)):
            h.createDimension(dim, n)

        def put(name, dtype, dims, values, **kw):
            v = h.createVariable(name, dtype, dims, **kw)
            v.set_auto_maskandscale(False)
            v[:] = values
            return v
        put("time", "f8", ("time",), np.arange(4)).units = "days since 2000-01-01"
        put("lat", "f4", ("lat",), np.linspace(-80, 80, 5))
        v = put("t2m", "i2", ("time", "lat", "lon"), np.arange(140).reshape(4, 5, 7), zlib=True, fill_value=-999)
        v.scale_factor, v.add_offset = np.float32(0.5), 1.5
        put("pair", "i1", ("bare", "x"), np.arange(12).reshape(3, 4))
        put("x", "f4", ("lat", "lon"), np.arange(35).reshape(5, 7))
        names = netCDF4.stringtochar(np.array(["ab", "cdefgh", "x", "", "y"], "S6"))
        put("names", "S1", ("lat", "letters"), names)
        put("growing_names", "S1", ("time", "letters"), names[:4])
        h["names"].coordinates = "growing_names names"
        if not is_new:
            return
        put("t2m_flat", "f4", ("lat", "lon"), np.arange(35).reshape(5, 7), contiguous=True)
        put("big", ">f8", ("lat", "lon"), np.arange(35).reshape(5, 7), endian="big", fletcher32=True, zlib=True)
        put("square", "f8", ("lat", "lat"), np.arange(25).reshape(5, 5))
        put("scalar", "f8", (), 3)
        h.createVariable("never", "f4", ("lat", "lon"))
        if is_new:
            put("lon", str, ("lon",), np.array(list("abcdefg"), dtype=object))
            clouds = h.createEnumType("u1", "clouds", {"clear": 0, "cumulus": 1, "missing": 255})
            put("sky", clouds, ("lat",), [0, 1, 0, 1, 255], fill_value=255)
            of = h.createCompoundType(np.dtype([("r", "f4"), ("i", "f4")]), "complex")
            h.createVariable("pairs", of, ("lat",))
            h.createVariable("ragged", h.createVLType("i4", "list"), ("lat",))
            label = h.createDimension("label", 3) and h.createVariable("label", "S1", ("label", "letters"))
            label[:] = names[:3]
            g = h.createGroup("model/run")
            g.note = "hi"
            g.createDimension("z", 2)
            g.createVariable("z", "f4", ("z",))[:] = [1, 2]
            g.createVariable("w", "f4", ("time", "z", "lat"))[:] = np.arange(40).reshape(4, 2, 5)


def short():
    """Variables that end before their unlimited dimension does: netCDF4 reads the fill value there."""
    import netCDF4
    with netCDF4.Dataset(path("short.nc"), "w") as h:
        h.createDimension("t", None)
        h.createDimension("x", 2)
        h.createVariable("t", "i4", ("t",))[:] = [1, 2, 3]
        h.createVariable("v", "f4", ("t", "x"), fill_value=-9.0)[:2] = [[1, 2], [3, 4]]
        h.createVariable("w", "i2", ("t", "x"))
        h.createVariable("k", "f8", ("t",), chunksizes=(2,))[0] = 5.0


def matlab():
    """A file of the form of MATLAB's `save -v7.3`: cells of arrays are references to what is in `#refs#`."""
    with h5py.File(path("matlab.mat"), "w", userblock_size=512, libver="earliest") as h:
        x = h.create_dataset("x", data=numbers((3, 4), "f8"))
        x.attrs["MATLAB_class"] = np.bytes_("double")
        refs = h.create_group("#refs#")
        a = refs.create_dataset("a", data=numbers((2, 1), "f8"))
        b = refs.create_dataset("b", data=np.frombuffer("text".encode("utf-16-le"), "u2").reshape(4, 1))
        b.attrs["MATLAB_class"] = np.bytes_("char")
        cell = h.create_dataset("cell", (1, 2), dtype=h5py.ref_dtype)
        cell[0] = [a.ref, b.ref]
        cell.attrs["MATLAB_class"] = np.bytes_("cell")
        h.create_group("#subsystem#").create_dataset("MCOS", data=numbers((6,), "u1"))
        s = h.create_group("s")
        s.attrs["MATLAB_class"] = np.bytes_("struct")
        s.create_dataset("y", data=numbers((5, 1), "f8"))
    with open(path("matlab.mat"), "r+b") as f:
        f.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(116) + bytes(8) + b"\x00\x02IM")


NAMES = {"|b1": "bool", "f2": "float32"}
HIDDEN = {"CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS", "_Netcdf4Dimid", "_Netcdf4Coordinates",
          "_NCProperties", "_nc3_strict", "_NCCOPY"}


def plain(v):
    """An attribute as JSON; None if it has no form there."""
    if isinstance(v, h5py.Empty):
        return "" if v.dtype.kind in "SO" else []
    if isinstance(v, np.ndarray):
        if v.dtype.kind in "Vc" or v.dtype.kind == "O" and not all(isinstance(x, (str, bytes)) for x in v.ravel()):
            return None
        items = [plain(x) for x in v.ravel()]
        return items[0] if len(items) == 1 else items
    if isinstance(v, (complex, np.complexfloating, np.void, h5py.Reference)):
        return None
    v = v.item() if isinstance(v, np.generic) else v
    v = v.decode() if isinstance(v, bytes) else v
    return v.rstrip("\0") if isinstance(v, str) else v


def described(o):
    """An array as the reader returns it: crc of its little-endian cells, or its texts."""
    out = {"shape": list(o.shape or ()), "attrs": {k: plain(o.attrs[k]) for k in o.attrs if k not in HIDDEN}}
    out["attrs"] = {k: v for k, v in out["attrs"].items() if v is not None}
    v = o[()]
    if h5py.check_string_dtype(o.dtype):
        if o.dtype == "S1" and o.ndim:
            out["shape"].pop()
            out["texts"] = [b"".join(t).rstrip(b"\0").decode() for t in v.reshape(-1, o.shape[-1])]
        elif o.ndim:
            out["texts"] = [t.decode() if isinstance(t, bytes) else t for t in v.ravel()]
    elif np.asarray(v).dtype.kind in "iufb":
        v = np.asarray(v)
        kind = np.dtype("f4") if v.dtype.itemsize == 2 and v.dtype.kind == "f" else v.dtype.newbyteorder("<")
        out["dtype"] = "bool" if kind.kind == "b" else kind.newbyteorder("=").name
        out["crc32"] = zlib.crc32(np.ascontiguousarray(v.astype(kind)).tobytes())
        if v.size:
            out["first"], out["last"] = plain(v.ravel()[0]), plain(v.ravel()[-1])
    return out


def expected(name):
    groups = {}
    with h5py.File(path(name), "r") as h:
        seen = []

        def walk(g, at):
            seen.append(g.id)
            arrays, inner = {}, []
            for n in g:
                try:
                    o = g[n]
                except (KeyError, OSError, RuntimeError):
                    arrays[n] = None
                    continue
                if isinstance(o, h5py.Group):
                    inner.append(n)
                    if g.get(n, getlink=True).__class__ is h5py.HardLink:
                        walk(o, f"{at}/{n}".strip("/"))
                elif isinstance(o, h5py.Dataset):
                    label = o.attrs.get("NAME", b"")
                    label = label if isinstance(label, bytes) else str(label).encode()
                    if not label.startswith(b"This is a netCDF dimension but not"):
                        try:
                            arrays[n.removeprefix("_nc4_non_coord_")] = described(o)
                        except (OSError, ValueError):
                            arrays[n] = None
            attrs = {k: plain(g.attrs[k]) for k in g.attrs if k not in HIDDEN}
            groups[at] = {"arrays": arrays, "groups": sorted(inner), "attrs": {k: v for k, v in attrs.items() if v is not None}}
        walk(h, "")
    return groups


def dims(name, into):
    """Names of dimensions, which netCDF4 knows."""
    import netCDF4
    with netCDF4.Dataset(path(name)) as h:
        for at, found in into.items():
            group = h[at] if at else h
            for n, array in found["arrays"].items():
                if array is not None and n in group.variables:
                    array["dims"] = list(group[n].dimensions)[: len(array["shape"])]


NETCDF = {"netcdf4.nc": "NETCDF4", "netcdf4_classic.nc": "NETCDF4_CLASSIC"}


def main():
    # The libraries of netCDF4 and of hdf5plugin do not share a process.
    if sys.argv[1:] == ["netcdf"]:
        for name, form in NETCDF.items():
            netcdf(name, form)
        short()
        found = json.load(sys.stdin)
        for name in NETCDF:
            found[name] = expected(name)
            dims(name, found[name])
        json.dump(found, sys.stdout)
        return
    types("types_old.h5", "earliest")
    types("types_new.h5", "latest")
    chunks("chunks_old.h5", "earliest")
    chunks("chunks_new.h5", "latest")
    groups("groups_old.h5", "earliest", 20)
    groups("groups_new.h5", "latest", 200)
    filters()
    scales()
    matlab()
    found = {n: expected(n) for n in sorted(os.listdir(HERE)) if n.endswith(".h5")}
    for at, names in {"d": ["y", "x", "zed"], "labelled": ["row", "x"], "x": ["x"], "y": ["y"]}.items():
        found["scales.h5"][""]["arrays"][at]["dims"] = names
    done = subprocess.run([sys.executable, __file__, "netcdf"], input=json.dumps(found), text=True, check=True, stdout=subprocess.PIPE)
    with open(path("expected.json"), "w") as f:
        f.write(json.dumps(json.loads(done.stdout), sort_keys=True, separators=(",", ":")).replace("},", "},\n"))
        f.write("\n")


main()
