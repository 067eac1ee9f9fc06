"""The workloads, by the kind of work."""

import importlib

NAMES = (
    "fused", "reductions", "elementwise", "products", "layout", "neighbours",
    "order", "chance", "input", "formats", "labelled", "declared", "small", "threads",
)


def load(name: str, context):
    """The workloads of a family."""
    return importlib.import_module(f"suite.families.{name}").workloads(context)
