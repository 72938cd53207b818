"""The equivalence check of every exact strategy in each dtype, as it is and compiled by the whole compiler.

    python benchmarks/equivalence.py [--strategies all] [--dtypes float32,float64,bfloat16] [--scale 0.01] [--layers 2]
                             [--metabolism off]

Of each: whether it passes, the largest fp64 error of its predictions and gradients against `subgraph`'s, and how
many times a plain run's rounding error its own is, the middle of three draws (nine in bfloat16). The tests try the
whole compiler with two strategies, and the others with a backend that compiles nothing: here all are compiled,
which takes minutes.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import tclab
from tclab.masking import get, names
from tclab.training._equivalence import FP32_RATIO, FP64_TOLERANCE, equivalence_reference


def checks(
    strategies: Sequence[str] = (),
    dtypes: Sequence[str] = ("float32", "float64", "bfloat16"),
    *,
    compiled: Sequence[bool] = (False, True),
    device: str = "cpu",
    scale: float = 0.01,
    networks: int = 2,
    layers: int = 2,
    metabolism: str = "off",
) -> Iterator[dict[str, Any]]:
    """Run the check of each strategy (of every exact one unless given) in each dtype, and yield its figures."""
    every = [name for name in names() if get(name).masks_graph and get(name).exact]
    graph = tclab.CellGraph.synthetic(scale, seed=1, metabolism=metabolism == "used").select(networks)
    kind = tclab.models.get("hetero_cell").sized(hidden=16, layers=layers)
    reference = equivalence_reference(kind, graph.to(device), metabolism=metabolism)
    for strategy in strategies or every:
        for dtype in dtypes:
            for whole in compiled:
                torch._dynamo.reset()
                begin = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the compiler's own
                    found = reference.compare(strategy, dtype=dtype, compile=whole)
                yield {
                    "strategy": strategy,
                    "dtype": dtype,
                    "compiled": whole,
                    "passed": found.passed,
                    "fp64_error": found.fp64_error,
                    "ratio": found.fp32_ratio,
                    "seconds": time.perf_counter() - begin,
                }


def main() -> None:
    """Run the check of each and print a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--strategies", default="all")
    parser.add_argument("--dtypes", default="float32,float64,bfloat16")
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--networks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--metabolism", default="off", choices=("off", "used"))
    options = parser.parse_args()
    print(f"torch {torch.__version__}; tolerances: fp64 {FP64_TOLERANCE:g}, ratio {FP32_RATIO:g}")
    print(f"{'strategy':<18} {'dtype':<9} {'compiled':<9} {'check':<7} {'fp64 error':>11} {'ratio':>6} {'seconds':>8}")
    failed = 0
    for row in checks(
        () if options.strategies == "all" else options.strategies.split(","),
        options.dtypes.split(","),
        scale=options.scale,
        networks=options.networks,
        layers=options.layers,
        metabolism=options.metabolism,
    ):
        failed += not row["passed"]
        words = (row["strategy"], row["dtype"], "yes" if row["compiled"] else "no")
        line = "{:<18} {:<9} {:<9} {:<7}".format(*words, "passed" if row["passed"] else "FAILED")
        print(f"{line} {row['fp64_error']:>11.1e} {row['ratio']:>6.2f} {row['seconds']:>8.1f}", flush=True)
    print(f"{failed} failed")


if __name__ == "__main__":
    main()
