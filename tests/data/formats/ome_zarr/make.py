"""Makes the OME-Zarr images of this directory: `python make.py`, with ome-zarr 0.11 or later and zarr 3.

`expected.json` has, for each level, the shape and the sum of its cells, and the labels by the formula of the
specification. `ngff_zarr` reads the scales and translations of the image that ome-zarr wrote: they are compared here.
"""

import json
import shutil
from pathlib import Path

import ngff_zarr
import numpy as np
import zarr
from ome_zarr.format import FormatV04, FormatV05
from ome_zarr.writer import write_multiscale

HERE = Path(__file__).resolve().parent
rng = np.random.default_rng(30)
expected = {}

AXES = [
    {"name": "t", "type": "time", "unit": "second"},
    {"name": "c", "type": "channel"},
    {"name": "y", "type": "space", "unit": "micrometer"},
    {"name": "x", "type": "space", "unit": "micrometer"},
]


def note(url, cells, labels):
    expected[url] = {
        "shape": list(cells.shape),
        "sum": int(cells.sum()),
        "last": int(cells.ravel()[-1]),
        "labels": {name: list(map(float, values)) for name, values in labels.items()},
    }


def labels_of(shape, scale, translation=None):
    translation = translation or [0.0] * len(scale)
    return {
        axis["name"]: np.arange(n) * s + o
        for axis, n, s, o in zip(AXES, shape, scale, translation)
        if axis["type"] != "channel"
    }


def pyramid():
    """Cells with zeros, which are pixels and no missing ones."""
    first = rng.integers(0, 50, (2, 3, 12, 20)).astype("<u2")
    return [first, first[..., ::2, ::2], first[..., ::4, ::4]]


def written(name, fmt):
    """An image with a label image, as ome-zarr writes it."""
    path = HERE / name
    shutil.rmtree(path, ignore_errors=True)
    version = 2 if fmt.version == "0.4" else 3
    root = zarr.open_group(str(path), mode="w", zarr_format=version)
    levels = pyramid()
    scales = [[0.1, 1.0, 0.25 * f, 0.36 * f] for f in (1, 2, 4)]
    offsets = [None, [0.0, 0.0, 0.125, 0.18], [0.0, 0.0, 0.375, 0.54]]

    def transforms(scale, offset):
        out = [{"type": "scale", "scale": scale}]
        return out + ([{"type": "translation", "translation": offset}] if offset else [])

    write_multiscale(
        levels,
        root,
        fmt=fmt,
        axes=AXES,
        coordinate_transformations=[transforms(s, o) for s, o in zip(scales, offsets)],
        storage_options={"chunks": (2, 3, 8, 16)},
        name="cells",
    )
    read = ngff_zarr.from_ngff_zarr(str(path))
    paths = [d.path for d in read.metadata.datasets]
    for i, (cells, scale, offset) in enumerate(zip(levels, scales, offsets)):
        image = read.images[i]
        assert [image.scale[a] for a in "tyx"] == [scale[0], *scale[2:]]
        assert [image.translation[a] for a in "tyx"] == [(offset or [0.0] * 4)[k] for k in (0, 2, 3)]
        assert (np.asarray(image.data) == cells).all()
        note(f"{name}#{paths[i]}" if i else name, cells, labels_of(cells.shape, scale, offset))
    # Labels have no channels.
    mask = (levels[0][:, 0] > 25).astype("u1")
    group = root.create_group("labels")
    listed = {"labels": ["cells"]}
    group.attrs.update(listed if version == 2 else {"ome": {"version": "0.5", **listed}})
    axes = [AXES[0], *AXES[2:]]
    at = group.create_group("cells")
    write_multiscale(
        [mask, mask[:, ::2, ::2]],
        at,
        fmt=fmt,
        axes=axes,
        coordinate_transformations=[transforms([0.1, 0.25 * f, 0.36 * f], None) for f in (1, 2)],
        storage_options={"chunks": (2, 12, 16)},
    )
    about = {"colors": [{"label-value": 1, "rgba": [255, 0, 0, 255]}]}
    if version == 2:
        at.attrs["image-label"] = {"version": "0.4", **about}
    else:
        at.attrs["ome"] = {**at.attrs["ome"], "image-label": about}
    for f in (1, 2):
        cells = mask[:, ::f, ::f]
        labels = {"t": np.arange(2) * 0.1, "y": np.arange(cells.shape[1]) * (0.25 * f)}
        labels["x"] = np.arange(cells.shape[2]) * (0.36 * f)
        note(f"{name}#labels/cells" + ("" if f == 1 else f"/{paths[1]}"), cells, labels)


def by_hand():
    """bioformats2raw's layout; levels in groups; transformations of all levels; axes of earlier versions."""
    path = HERE / "series.zarr"
    shutil.rmtree(path, ignore_errors=True)
    root = zarr.open_group(str(path), mode="w", zarr_format=2)
    root.attrs["bioformats2raw.layout"] = 3
    levels = [a[0, 0] for a in pyramid()]

    def arrays(group, paths):
        for at, cells in zip(paths, levels):
            array = group.create_array(
                at,
                shape=cells.shape,
                chunks=(8, 16),
                dtype=cells.dtype,
                fill_value=0,
                chunk_key_encoding={"name": "v2", "separator": "/"},
            )
            array[:] = cells

    def datasets(paths, scales):
        scale = lambda s: [{"type": "scale", "scale": s}]
        return [{"path": p, "coordinateTransformations": scale(s)} for p, s in zip(paths, scales)]

    # Levels in groups, and a transformation of the whole.
    group, paths = root.create_group("0"), ["scale0/image", "scale1/image", "scale2/image"]
    arrays(group, paths)
    move = {"type": "translation", "translation": [10.0, -5.0]}
    scales = [[2.0, 3.0], [4.0, 6.0], [8.0, 12.0]]
    one = {"version": "0.4", "axes": AXES[2:], "datasets": datasets(paths, scales)}
    group.attrs["multiscales"] = [one | {"coordinateTransformations": [move]}]
    for i, (cells, scale) in enumerate(zip(levels, scales)):
        labels = {"y": np.arange(cells.shape[0]) * scale[0] + 10, "x": np.arange(cells.shape[1]) * scale[1] - 5}
        note(f"series.zarr#0/{paths[i]}", cells, labels)
        note(f"series.zarr#0/scale{i}", cells, labels)
        if i == 0:
            note("series.zarr#0", cells, labels)
    # 0.3: names of axes only. The second level has one scale too few.
    group = root.create_group("1")
    arrays(group, ["0", "1"])
    broken = datasets(["1"], [[1.0]])
    group.attrs["multiscales"] = [{"version": "0.3", "axes": ["y", "x"], "datasets": [{"path": "0"}, *broken]}]
    note("series.zarr#1", levels[0], {})


if __name__ == "__main__":
    written("v04.zarr", FormatV04())
    written("v05.zarr", FormatV05())
    by_hand()
    lines = [f"{json.dumps(url)}: {json.dumps(what)}" for url, what in expected.items()]
    (HERE / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
