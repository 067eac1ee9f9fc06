"""Spans of time (`timedelta64`) as CF and xarray store them: numbers with the attributes `units` and `dtype`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ._errors import usage

#: Attoseconds of NumPy's units; months and years have no length.
_LENGTHS = {
    "W": 604_800 * 10**18,
    "D": 86_400 * 10**18,
    "h": 3_600 * 10**18,
    "m": 60 * 10**18,
    "s": 10**18,
    "ms": 10**15,
    "us": 10**12,
    "ns": 10**9,
    "ps": 10**6,
    "fs": 10**3,
    "as": 1,
}
#: CF's units, from the coarsest, and NumPy's names of them.
_UNITS = {
    "days": "D",
    "hours": "h",
    "minutes": "m",
    "seconds": "s",
    "milliseconds": "ms",
    "microseconds": "us",
    "nanoseconds": "ns",
}
#: Units of `timedelta64` in xarray, from the coarsest.
_RESOLUTIONS = ("s", "ms", "us", "ns")

_MAX = 2**63 - 1
#: Whole numbers up to this one are floats.
_FLOAT_MAX = 2**53

_Array = np.ndarray[Any, Any]


class Inexact(Exception):
    """Spans that are not whole numbers of one unit: the reason, and a hint."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def encoded(array: _Array, attrs: Mapping[Any, Any]) -> tuple[_Array, Mapping[Any, Any]]:
    """Spans as whole numbers of the coarsest unit in which all are exact, masked where they are NaT; other arrays as they
    are. `units` and `dtype` replace attributes of these names.

    Raises:
        Inexact: there are no such numbers.
    """
    if array.dtype.kind != "m":
        return array, attrs
    own, count = np.datetime_data(array.dtype)
    if own not in _LENGTHS:
        reason = "timedelta64 without a unit" if own == "generic" else "timedelta64 in months or years"
        raise Inexact(reason, "count it, `x.astype('int64')`, or give it a unit from weeks to nanoseconds")
    spans = np.ascontiguousarray(np.ma.getdata(array))
    if not spans.dtype.isnative:
        spans = spans.astype(spans.dtype.newbyteorder("="))
    missing = np.isnat(spans) | np.ma.getmaskarray(array)
    numbers = np.where(missing, 0, spans.view(np.int64))
    divisor = int(np.gcd.reduce(numbers, axis=None)) if numbers.size else 0
    # All spans are multiples of this one.
    step = divisor * count * _LENGTHS[own]
    units = next((name for name, unit in _UNITS.items() if step % _LENGTHS[unit] == 0), None)
    if units is None:
        raise Inexact(
            f"{array.dtype} with parts of a nanosecond",
            "round it, `x.astype('timedelta64[ns]')`, or count it, `x.astype('int64')`",
        )
    ratio = Fraction(count * _LENGTHS[own], _LENGTHS[_UNITS[units]])
    numbers = numbers // ratio.denominator
    if numbers.size and max(int(numbers.max()), -int(numbers.min())) > _MAX // ratio.numerator:
        raise Inexact(f"{array.dtype} of more than {_MAX} {units}", "count it in another unit: `x.astype('int64')`")
    numbers = numbers * ratio.numerator
    resolution = own if own in _RESOLUTIONS else "s" if _LENGTHS[own] > _LENGTHS["s"] else "ns"
    named = {**attrs, "units": units, "dtype": f"timedelta64[{resolution}]"}
    return (np.ma.MaskedArray(numbers, mask=missing) if missing.any() else numbers), named


def as_labels(numbers: _Array) -> _Array:
    """Encoded spans as labels, which have no mask: floats with NaN where one is missing.

    Raises:
        Inexact: floats would not be exact.
    """
    if not isinstance(numbers, np.ma.MaskedArray):
        return numbers
    if numbers.count() and int(np.abs(numbers).max()) > _FLOAT_MAX:
        raise Inexact(f"labels of timedelta64 with NaT and numbers above {_FLOAT_MAX}", "drop the labels that are NaT")
    return np.where(np.ma.getmaskarray(numbers), np.nan, np.ma.getdata(numbers))


@dataclass(frozen=True, slots=True)
class Spans:
    """What numbers are spans of: the attribute `units`, and the dtype in xarray."""

    units: str
    dtype: np.dtype[Any]

    def decode(self, name: str, numbers: _Array, mask: _Array | None) -> _Array:
        """Numbers of a variable as `timedelta64`: NaT where they are masked, NaN or the least integer. Floats are rounded to its unit.

        Raises:
            UserError: one of them does not fit.
        """
        unit, _ = np.datetime_data(self.dtype)
        # The dtype is never coarser than the units.
        factor = _LENGTHS[_UNITS[self.units]] // _LENGTHS[unit]
        missing = np.zeros(numbers.shape, dtype=bool) if mask is None else mask
        if numbers.dtype.kind == "f":
            missing = missing | np.isnan(numbers)
            scaled = np.rint(np.where(missing, 0, numbers).astype(np.float64) * factor)
            fits = np.abs(scaled) < 2.0**63
            out = np.where(fits, scaled, 0).astype(np.int64)
        else:
            if numbers.dtype == np.int64:
                # NaT as xarray stores it.
                missing = missing | (numbers == np.iinfo(np.int64).min)
            known = np.where(missing, 0, numbers)
            fits = (known <= _MAX // factor) & (known >= -(_MAX // factor))
            out = np.where(fits, known, 0).astype(np.int64) * factor
        if not np.all(fits):
            worst = np.where(missing, 0, numbers)[~np.asarray(fits)].flat[0]
            raise usage(
                f"`{name}`: {worst} {self.units} do not fit {self.dtype}",
                "`to_numpy()` gives the numbers; `values(x)` has no attributes",
            )
        out = np.asarray(out, dtype=np.int64).view(f"timedelta64[{unit}]")
        out[missing] = np.timedelta64("NaT")
        return out


def spans_of(dtype: np.dtype[Any], attrs: Mapping[str, Any]) -> Spans | None:
    """What numbers of this dtype with these attributes are spans of, by xarray's rule; None if they are none."""
    units, named = attrs.get("units"), attrs.get("dtype")
    if dtype.kind not in "iuf" or not isinstance(named, str) or not isinstance(units, str) or units not in _UNITS:
        return None
    resolution = named.removeprefix("timedelta64[").removesuffix("]")
    if resolution not in _RESOLUTIONS or named != f"timedelta64[{resolution}]":
        return None
    own = _UNITS[units]
    finer = own if _LENGTHS[own] < _LENGTHS[resolution] else resolution
    return Spans(units, np.dtype(f"timedelta64[{finer}]"))


def decoded(
    name: str, array: _Array, mask: _Array | None, attrs: dict[str, Any]
) -> tuple[_Array, dict[str, Any]]:
    """Numbers that the attributes say are spans, as `timedelta64` without these attributes; others as they are."""
    spans = spans_of(array.dtype, attrs)
    if spans is None:
        return array, attrs
    rest = {key: value for key, value in attrs.items() if key not in ("units", "dtype")}
    return spans.decode(name, array, mask), rest
