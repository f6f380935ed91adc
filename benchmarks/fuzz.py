"""Runs random configs twice each, and prints a line per fault; exit code 1 if there is one.

    python -m benchmarks.fuzz --configs=200 [--seed=0] [--limit=240]
    python -m benchmarks.fuzz --only=17,40    # these configs of the seed, with their fields

Values come from the annotations of fields and options, and from registries; the data are tiny. A
rejected config is tried again without the fields that its message names. Faults are:

    crash       an error that is not one of the library's own one-line errors
    hang        a config that takes longer than the limit
    NaN         a row with a number that is not finite
    difference  rows that differ between the two runs
"""

import collections
import contextlib
import json
import logging
import multiprocessing
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
from absl import app, flags

from fedjax_ht.check.options import annotations_of, bounded, hints_of, limits
from fedjax_ht.core.wire import TRANSFORMS
from fedjax_ht.data.augment import AUGMENTATIONS
from fedjax_ht.data.partition import PARTITIONS, PLANS, partition_options
from fedjax_ht.lab.cli import parse_flags
from fedjax_ht.lab.config.base import base_config, method_config, method_options, partition_config
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.config.typed import Section, plain_hint
from fedjax_ht.lab.report import plots
from fedjax_ht.lab.runs.train import GaveUp, train_and_evaluate
from fedjax_ht.methods import METHODS
from fedjax_ht.methods.shared.coded import CODES
from fedjax_ht.simulation.selection import SELECTIONS
from fedjax_ht.trust.defences import DEFENCES

_CONFIGS = flags.DEFINE_integer("configs", 20, "Number of random configs.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the configs.")
_ONLY = flags.DEFINE_list("only", None, "Numbers of the configs to run; by default all.")
_LIMIT = flags.DEFINE_integer("limit", 240, "Seconds that a config may take.", lower_bound=1)

FAULTS = ("crash", "hang", "NaN", "difference")
SETS = {
    "npz:images.npz": "mlp2 mlp2 fedssa_cnn1",
    "csv:table.csv": "mlp2",
    "text:texts.csv": "fasttext text_logistic",
    "next_token:line.txt": "fasttext lstm",
    "har_10persons": "mlp2",
}
"""Data set -> groups of small models."""
KEPT = (
    "method",
    "partition",
    "rounds",
    "trials",
    "dataset.name",
    "model.group",
    "entries",
    "track",
    "devices",
)
"""Fields for which no value is drawn: others set them first, or they need a server or devices."""
SLICED = {
    "dataset.name": "npz:images.npz",
    "model.group": "conv4_quarter",
    "model.rates": "1,1/2",
}
USUAL = {
    "fedit|.*lora": {"model.lora": "rank=2,4"},
    "fedmd|dsfl|ktpfl|fedhenn": {
        "dataset.public": "hold_out:0.2",
        "method.options.public_per_round": 8,
    },
    "fiarse|fjord": SLICED,
    "heterofl|feddropout|fedrolex|fedspu|dense|fedftg|dfrd": SLICED
    | {"model.norm": "static_batch"},
    "depthfl": {"dataset.name": "npz:images.npz", "model.group": "conv4_quarter_depths"},
}
"""Pattern of methods -> the fields that they need."""


def draw(rng: np.random.Generator, annotation: Any, default: Any) -> Any:
    """Returns a value that an annotation allows; the default for strings and tuples."""
    kind, within = bounded(annotation)
    form, arguments = get_origin(kind), get_args(kind)
    if kind is bool:
        return bool(rng.integers(2))
    if form is Literal:
        return arguments[rng.integers(len(arguments))]
    if form in (Union, UnionType):
        other = arguments[rng.integers(len(arguments))]
        return None if other is NoneType else draw(rng, other, default)
    if kind not in (int, float):
        return default
    least, most, above, below = limits(kind, within)
    if kind is int:
        return int(min(max(least, rng.choice([0, (default or 0) - 2])) + rng.integers(5), most))
    ends = max(least, np.nextafter(above, np.inf)), min(most, np.nextafter(below, -np.inf))
    if rng.random() < 0.1:
        return float(rng.choice(ends))
    usual = default if isinstance(default, float) and default else 0.3
    return float(np.clip(usual * 10 ** rng.normal(), *ends))


def texts(rng: np.random.Generator) -> dict[str, Any]:
    """Returns a value for each field whose string has a format."""

    def spec(known: Mapping) -> str:
        name = str(rng.choice(list(known)))
        values = [draw(rng, hint, 0.3) for hint in annotations_of(known[name]).values()]
        return "/".join([name, *(str(v) for v in values if isinstance(v, int | float))])

    number = f"{10 ** rng.uniform(2, 12):.3g}"
    forms = {
        "training.optimizer": ["adam", "optax:adamw/b1=0.5", "optax:lion", "optax:adagrad"],
        "training.schedule": ["cosine/2", "step/1/0.1"],
        "training.augmentation": [(name,) for name in AUGMENTATIONS],
        "dataset.shift": ["rotate/2", "corrupt/3"],
        "dataset.public": ["hold_out:0.1"],
        "model.rates": ["1,1/2", "rho=10"],
        "model.lora": ["rank=1", "rank=2,4"],
        "select": [spec(SELECTIONS)],
        "uplink": [(spec(TRANSFORMS | CODES),)],
        "downlink": [(spec(TRANSFORMS),)],
        "robust": [(spec(DEFENCES),), (spec(DEFENCES), spec(DEFENCES))],
        "devices_profile.available": [f"{rng.uniform(0.2, 1):.2f}"],
    }
    for name in ("flops", "up", "down", "memory"):
        forms[f"devices_profile.{name}"] = [number, f"lognormal/{number}/{rng.uniform(0, 3):.2f}"]
    return {path: values[rng.integers(len(values))] for path, values in forms.items()}


def fields(rng: np.random.Generator, kind: type[Section] = Config, prefix: str = "") -> dict:
    """Returns a value for each field of a section, by path."""
    found: dict[str, Any] = {}
    for name, hint in hints_of(kind).items():
        if isinstance(hint, type) and issubclass(hint, Section) and name not in KEPT:
            found |= fields(rng, hint, f"{name}.")
        elif f"{prefix}{name}" not in KEPT:
            found[f"{prefix}{name}"] = draw(rng, plain_hint(hint), getattr(kind(), name))
    return found


def random_config(rng: np.random.Generator) -> dict[str, Any]:
    """Returns values of some fields, by path."""

    def some(values: Mapping[str, Any], most: int) -> dict[str, Any]:
        chosen = rng.permutation(list(values))[: rng.integers(most)]
        return {str(name): values[str(name)] for name in chosen}

    def options(known: Mapping) -> dict[str, Any]:
        return some({p.name: draw(rng, p.annotation, p.default) for p in known.values()}, 4)

    method, kind = str(rng.choice(list(METHODS))), str(rng.choice([*PLANS, *PARTITIONS]))
    name = str(rng.choice(list(SETS)))
    values = {"dataset.name": name, "model.group": str(rng.choice(SETS[name].split()))}
    values |= {"rounds": int(rng.integers(1, 3)), "trials": int(rng.integers(5) // 4 + 1)}
    values |= some(fields(rng), 8) | some(texts(rng), 4)
    split = partition_config(kind, int(rng.integers(1, 6)), **options(partition_options(kind)))
    made = method_config(method, **options(method_options(method)))
    values = {"method": vars(made), "partition": vars(split)} | values
    return values | needed_by(method)


def needed_by(method: str) -> dict[str, Any]:
    """Returns the fields that a method needs."""
    found = [needed for pattern, needed in USUAL.items() if re.fullmatch(pattern, method)]
    return found[0] if found else {}


def without(values: dict[str, Any], message: str) -> dict[str, Any]:
    """Returns a rejected config without the fields that the message names, or without the last."""
    words = set(re.findall(r"\w+", message))
    fixed = {"method", "partition", "dataset.name", "model.group"}
    fixed |= needed_by(values["method"]["name"]).keys()
    free = [path for path in values if path not in fixed]
    named = [path for path in free if path.rpartition(".")[2] in words] or free[-1:]
    kept = {path: value for path, value in values.items() if path not in named}
    if not named or words & {"partition", "split", "test", *values["partition"]["options"]}:
        kept["partition"] = vars(partition_config("iid", 3))
    if words & values["method"]["options"].keys():
        kept["method"] = vars(method_config(values["method"]["name"]))
    return kept


def run(values: dict[str, Any]) -> tuple[str, str, list]:
    """Runs a config; returns "ran", "refused", "stopped" or "crash", a message, and its rows."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            config = base_config()
            config.update(values)
            train_and_evaluate(config, folder, warn=lambda line: None)
            how, said = "ran", ""
        except GaveUp as error:
            how, said = "stopped", str(error)
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            ours = "fedjax_ht" in last.filename and isinstance(error, ValueError | OSError)
            if not ours or "\n" in str(error):
                return "crash", f"{last.filename}:{last.lineno}: {error!r}", []
            return "refused", str(error), []
        lines = [line for file in Path(folder).glob("*/metrics.jsonl") for line in file.open()]
        rows = [{k: v for k, v in json.loads(line).items() if "seconds" not in k} for line in lines]
        return how, said, rows


def verdict(values: dict[str, Any]) -> tuple[str, str, dict]:
    """Returns the outcome or fault of a config, a message, and the fields that ran."""
    how, said, rows = run(values)
    for _ in range(12):
        if how != "refused":
            break
        values = without(values, said)
        how, said, rows = run(values)
    if how in ("refused", "crash"):
        return how, said, values
    text, again = json.dumps([how, said, rows]), json.dumps(run(values))
    if wrong := re.findall(r'"\w+": [^"]*(?:NaN|Infinity)', text):
        return "NaN", wrong[0][:200], values
    if text != again:
        return "difference", again[:200], values
    return how, said, values


def serve(pipe) -> None:
    """Runs the configs that arrive through a pipe."""
    logging.disable()
    warnings.simplefilter("ignore")
    plots.rendered = lambda figure, kind: b"<svg></svg>"  # drawing takes longer than a run
    while True:
        pipe.send(verdict(pipe.recv()))


def write_sets() -> None:
    """Writes the tiny data sets into the current folder."""
    rng, labels = np.random.default_rng(0), np.arange(120) % 4
    images = rng.integers(0, 200, (120, 16, 16, 1)) + 10 * labels[:, None, None, None]
    images, parts = images.astype(np.uint8), {}
    for part, where in {"train": slice(0, 90), "test": slice(90, 120)}.items():
        parts |= {f"x_{part}": images[where], f"y_{part}": labels[where]}
    np.savez("images.npz", **parts)
    table, words = ["a,b,group,label"], ["text,label"]
    for i, label in enumerate("wxyz"[k] for k in rng.integers(4, size=120)):
        table.append(f"{rng.normal()},{rng.normal()},person{i % 6},{label}")
        words.append(f"{' '.join(f'w{k}' for k in rng.integers(0, 30, 6))},{label}")
    Path("table.csv").write_text("\n".join(table))
    Path("texts.csv").write_text("\n".join(words))
    Path("line.txt").write_text(" ".join(f"w{k}" for k in rng.integers(0, 30, 4000)))


def answer(pipe, values: dict[str, Any]) -> tuple[str, str, dict]:
    """Returns the verdict of the process behind a pipe."""
    pipe.send(values)
    try:
        return pipe.recv() if pipe.poll(_LIMIT.value) else ("hang", "no answer in time", values)
    except EOFError:
        return "crash", "the process ended", values


def main(_) -> None:
    counts, worker = collections.Counter(), None
    context = multiprocessing.get_context("spawn")
    pipe = context.Pipe()[0]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_sets()
        for i in map(int, _ONLY.value or range(_CONFIGS.value)):
            if worker is None:
                pipe, other = context.Pipe()
                worker = context.Process(target=serve, args=(other,), daemon=True)
                worker.start()
                other.close()
            values = random_config(np.random.default_rng((_SEED.value, i)))
            kind, line, values = answer(pipe, values)
            counts[kind] += 1
            if kind in ("hang", "crash"):
                worker.kill()
                worker = None
            if kind in FAULTS or _ONLY.value:
                print(f"{i}: {kind}: {' '.join(line.split())[:300]} | {values}", flush=True)
    told = ", ".join(f"{counts[kind]} {kind}" for kind in ("ran", "refused", "stopped", *FAULTS))
    print(f"seed {_SEED.value}, {counts.total()} configs: {told}")
    sys.exit(any(counts[kind] for kind in FAULTS))


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
