"""Cells that both sides make by the same formula: not timed, the same bits."""

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np

PERIOD = 1009
PRIME = 2147483647
BLOCK = 1 << 16


def temp(name: str, expression: str) -> str:
    """The statement that makes a tensor of an expression."""
    return f"CREATE TEMP TENSOR {name} AS SELECT {expression} AS {name};\n"


def sql(shape, k: int = 7, dtype: str = "float64") -> str:
    """`array`, in SQL."""
    n = int(np.prod(shape))
    flat = f"((arange({n})::float64 * {k}.0) % {PERIOD}.0 / {PERIOD}.0)::{dtype}"
    return flat if len(shape) == 1 else f"reshape({flat}, {list(shape)})"


@functools.lru_cache(maxsize=6)
def array(shape, k: int = 7, dtype: str = "float64") -> np.ndarray:
    """Numbers in [0, 1) that repeat after 1009 cells."""
    out = empty(shape, dtype)
    flat = out.reshape(-1)
    one = ((np.arange(PERIOD, dtype=np.float64) * k) % PERIOD / PERIOD).astype(dtype)
    many = np.tile(one, 64)
    for i in range(0, flat.size, many.size):
        flat[i : i + many.size] = many[: flat.size - i]
    return out


def shuffled_sql(shape, k: int = 1, dtype: str = "float64") -> str:
    """`shuffled`, in SQL."""
    n = int(np.prod(shape))
    h = f"((arange({n}) + {k}) * 48271 % {PRIME})"
    flat = f"({h} * {h} % {PRIME})"
    flat = f"({flat} // 65536)::{dtype}" if dtype.startswith(("int", "uint")) else f"({flat}::float64 / {PRIME}.0)::{dtype}"
    return flat if len(shape) == 1 else f"reshape({flat}, {list(shape)})"


@functools.lru_cache(maxsize=4)
def shuffled(shape, k: int = 1, dtype: str = "float64") -> np.ndarray:
    """Numbers in [0, 1) without order (integers: in [0, 32768)): squares modulo a prime."""
    out = empty(shape, dtype)
    flat = out.reshape(-1)

    def fill(start):
        h = (np.arange(start, min(start + BLOCK, flat.size)) + k) * 48271 % PRIME
        h = h * h % PRIME
        flat[start : start + BLOCK] = h // 65536 if out.dtype.kind in "iu" else h / float(PRIME)

    with ThreadPoolExecutor() as pool:
        list(pool.map(fill, range(0, flat.size, BLOCK)))
    return out


def empty(shape, dtype) -> np.ndarray:
    """Cells at a multiple of 64 bytes, so that JAX can take them without a copy."""
    n = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(n + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n].view(dtype).reshape(shape)


def forget():
    """Lets all arrays go."""
    array.cache_clear()
    shuffled.cache_clear()
