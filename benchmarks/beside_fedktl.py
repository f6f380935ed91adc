"""Compares FedKTL's server with the authors' code, given the same F, prototypes and draws.

    python -m benchmarks.beside_fedktl --htfllib=PATH [--python=PYTHON] [--out=FILE]

The report shows how far apart both end. PATH is a checkout of github.com/TsingZ0/HtFLlib, whose
server code runs unchanged under PYTHON, which has torch. A hundred steps of Adam train F; an
epoch's last batch would have a single prototype, and one class has none. HtFLlib is in float64, so
the differences come only from our float32. Its F has a bias before the batch norm and running
statistics, on which nothing else depends; the report skips them.
"""

import json
import sys
from pathlib import Path

import numpy as np
from absl import app, flags

from benchmarks import htfllib
from benchmarks.report import machine, publish, table
from fedjax_ht.lab.cli import parse_flags
from tests.alignment_steps import draws
from tests.fedktl_problem import KEY, LARGE, SMALL, Problem, ours, problem, sample_w

_HTFLLIB = flags.DEFINE_string("htfllib", None, "A checkout of HtFLlib.")
_PYTHON = flags.DEFINE_string("python", sys.executable, "What HtFLlib runs under.")
_SMALL = flags.DEFINE_bool(
    "small", False, "The problem whose outcome a test holds; also prints theirs as JSON."
)


def theirs(of: Problem) -> dict[str, np.ndarray]:
    """Returns F and Qbar after HtFLlib's training, with the orders and latents that ours draws."""
    count, draw = len(of.uploads.labels), sample_w(len(of.f["b2"]))
    steps = list(draws(KEY, of.uploads.valid, of.epochs, of.batch_size, draw, drop_single=True))
    orders = np.concatenate([rows for rows, _ in steps]).reshape(of.epochs, -1)
    left_out = [np.setdiff1d(np.arange(count), order) for order in orders]  # the single rows
    inputs = of.f | {
        "prototypes": of.uploads.prototypes,
        "labels": of.uploads.labels,
        "orders": np.concatenate([orders, left_out], 1),
        "latents": np.concatenate([latents for _, latents in steps]),
        "batch_size": of.batch_size,
        "rate": 0.01,
        "weight": 1.0,
    }
    code = Path(_HTFLLIB.value, "system", "flcore", "servers", "serverktl_stylegan_xl.py")
    return htfllib.run_on_arrays("fedktl_align.py", _PYTHON.value, code, inputs)


def main(_) -> None:
    htfllib.check_checkout(_HTFLLIB.value)
    shared = problem(**(SMALL if _SMALL.value else LARGE))
    our_arrays, their_arrays = ours(shared), theirs(shared)
    version = their_arrays.pop("torch")
    if _SMALL.value:
        print(json.dumps({name: np.round(their_arrays[name], 6).tolist() for name in our_arrays}))
    rows = []
    for name, value in our_arrays.items():
        moved, apart = (
            np.abs(their_arrays[name] - shared.f[name]).max(),
            np.abs(their_arrays[name] - value).max(),
        )
        rows.append([name, f"{moved:.2f}", f"{apart:.1e}"])
    text = (
        "FedKTL's F and Qbar after 100 steps: how far each array moved, and the largest difference "
        "of the two."
    )
    notes = f"HtFLlib under PyTorch {version}, float64; ours float32."
    publish("\n".join([text, machine(), notes, "", table(("array", "moved by", "apart"), rows)]))


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
