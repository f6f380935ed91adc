"""The folder of a run: which config and data it is of, by which version, and what an earlier course
left in it."""

import contextlib
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from fedjax_ht.checkpoints.checkpoint import segments_of
from fedjax_ht.checkpoints.sealed import set_aside
from fedjax_ht.checkpoints.writers import FILES
from fedjax_ht.configs.base import base_config, partition_config
from fedjax_ht.core.files import atomic_open
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.experiment.build import Experiment, build
from fedjax_ht.experiment.entries import Entry, recorded
from fedjax_ht.experiment.run_lock import is_primary

VERSION = 2
"""Of a run's folder. A folder without a number is of version 0, before data and split were noted in
it; up to version 1 orbax wrote the checkpoints. Whoever adds a field to the base config gives it a
default that leaves earlier runs as they were: `completed` relies on it."""

LEVELS = 32
"""Of objects and arrays in each other in a JSON file of a run's folder, at most."""

MAP = "features.npz"  # of an entry, see `maps`

# Fields that say which entries there are, and with what: those are recorded one by one.
NAMING = ("method", "compare", "entries", "given", "tuned", "tuned_on")
# Fields that change nothing about the numbers of a round: a run may go on with others.
FREE_FIELDS = (
    "rounds",
    "checkpoint.every",
    "checkpoint.keep",
    "dataset.data_dir",
    "devices",
    "client_store",
    "profile",
    "give_up",
    "report.maps",
)


def remember_config(
    config: ConfigDict,
    entries: Iterable[Entry],
    workdir: Path,
    prints: Mapping[str, Any],
    writes: bool = True,
) -> None:
    """Writes config.json, with every entry that the folder holds, or refuses one that holds a run
    of another config or on other data.

    Args:
      prints: what `fingerprints` says of the data, and `weights.checksums` as "weights".
      writes: whether to write.
    """
    fields = json.loads(config.to_json_best_effort())
    own = {entry.label: _as_json(entry) for entry in entries}
    there: dict[str, Any] = {}
    weights = prints.get("weights", {})
    if (workdir / "config.json").exists():
        earlier, noted = read_config(workdir)
        with naming(workdir / "config.json"):
            there = {entry["label"]: entry for entry in earlier["entries"]}
            both = {label: _as_json(recorded(there[label])) for label in own if label in there}
        before = _compared(earlier, both)
        _refuse_other(before, _compared(fields, {label: own[label] for label in both}), workdir)
        check_data(noted, prints, config, workdir)
        check_weights(noted.get("weights", {}), weights, workdir)
        weights = noted.get("weights", {}) | weights
    if writes:
        about = {"version": VERSION, **prints} | ({"weights": weights} if weights else {})
        content = fields | {"entries": list((there | own).values()), "run": about}
        _write_json(workdir / "config.json", content)


def remember_fields(fields: dict[str, Any], workdir: Path) -> None:
    """Writes config.json of what is no run of an experiment, or refuses a folder that has another
    one."""
    path = workdir / "config.json"
    if path.exists():
        _refuse_other(flatten(read_json(path)), flatten(fields), workdir)
    _write_json(path, fields)


def read_config(workdir: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run's config, and what it has noted of itself: "version", and what `fingerprints` said.

    Raises:
      ValueError, OSError: it cannot be read, or is of a newer version. One line.
    """
    fields = read_json(workdir / "config.json")
    with naming(workdir / "config.json"):
        noted = fields.pop("run", {"version": 0})
        if noted["version"] > VERSION:
            raise ValueError(
                f"{workdir} is of version {noted['version']}, and this program knows {VERSION}; "
                "update it"
            )
        return completed(fields), noted


def read_run(workdir: Path, trust: bool = False) -> tuple[ConfigDict, Experiment]:
    """A run's config, and what it was built to.

    Args:
      workdir: the folder, which may come from anybody.
      trust: whether a "module:function" that its config.json names may be imported, which runs it.

    Raises:
      ValueError, OSError: there is no run, its data are others now, or it needs `trust`. One line.
    """
    if not (workdir / "config.json").exists():
        raise FileNotFoundError(f"no run in {workdir}: config.json is missing")
    fields, noted = read_config(workdir)
    with naming(workdir / "config.json"):
        config = ConfigDict(fields)
        experiment = build(config, begun=True, trust=trust)
    check_data(noted, fingerprints(experiment.dataset, experiment.partitions), config, workdir)
    return config, experiment


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Within it whatever is wrong with what a config.json holds is one line that names it."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not what a run writes ({type(error).__name__}: {error})"
        ) from error
    except ValueError as error:
        raise error if str(path.parent) in str(error) else ValueError(f"{path}: {error}") from error


def completed(fields: dict[str, Any]) -> dict[str, Any]:
    """The config of a run of any version, with today's defaults for the fields that it does not
    have."""
    known = json.loads(base_config().to_json_best_effort())
    if kind := fields.get("partition", {}).get("kind"):
        known["partition"] = json.loads(partition_config(kind).to_json_best_effort())
    return _filled(
        fields,
        {name: value for name, value in known.items() if name != "method" or name not in fields},
    )


def _filled(fields: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    inner = {
        k: _filled(v, known[k])
        for k, v in fields.items()
        if isinstance(v, dict) and isinstance(known.get(k), dict)
    }
    return known | fields | inner


def fingerprints(dataset: Dataset, partitions: Sequence[Partition]) -> dict[str, str]:
    """SHA-256 of what a run learns from: "data" of inputs and labels, "split" of each trial's
    clients' samples."""
    data, split = hashlib.sha256(), hashlib.sha256()
    for array in (*jax.tree.leaves(dataset.inputs), dataset.labels):
        _add(data, array)
    for partition in {id(shared): shared for shared in partitions}.values():
        for client in partition:
            for part in client:
                _add(split, np.asarray(part, np.int64))
    return {"data": data.hexdigest(), "split": split.hexdigest()}


def _add(digest, array: np.ndarray) -> None:
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    for start in range(0, len(array), 4096):
        digest.update(np.ascontiguousarray(array[start : start + 4096]))


def check_data(
    noted: Mapping[str, Any], prints: Mapping[str, str], config: ConfigDict, workdir: Path
) -> None:
    """ValueError where a run that has noted its data was on other data than now."""
    for name, words in (("data", "other inputs or labels"), ("split", "another split")):
        if name in noted and noted[name] != prints[name]:
            raise ValueError(
                f"{workdir} holds a run on {words} than {config.dataset.name} with "
                "dataset.data_dir "
                f"{config.dataset.data_dir!r} has now (SHA-256 {noted[name][:12]} there, "
                f"{prints[name][:12]} here); "
                "give it the data that it began with, or choose another --workdir"
            )


def check_weights(noted: Mapping[str, str], sums: Mapping[str, str], workdir: Path) -> None:
    """ValueError where a file that models start from is another than a run has noted; one that is
    gone is not asked for again."""
    for file in noted.keys() & sums.keys():
        if noted[file] != sums[file]:
            raise ValueError(
                f"{workdir} holds a run that began from another {file} (SHA-256 "
                f"{noted[file][:12]} there, "
                f"{sums[file][:12]} here); give it the file that it began with, or choose another "
                "--workdir"
            )


def start_again(folder: Path) -> Path | None:
    """Moves aside what an earlier course of an entry left in its folder, before the entry starts at
    round 0; returns where that is now, None if nothing was there."""
    checkpoints = folder / "checkpoints"
    left = [
        path
        for path in (checkpoints, segments_of(checkpoints))
        if path.is_dir() and any(path.iterdir())
    ]
    return set_aside(
        [*left, *(folder / name for name in FILES), *folder.glob(f"{Path(MAP).stem}.*")], folder
    )


def read_json(path: Path) -> dict[str, Any]:
    """What a file of a run's folder holds, or a ValueError."""
    try:
        found = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not readable as JSON ({error}); choose another --workdir"
        ) from None
    if _deeper(found, LEVELS):  # what walks through it calls itself
        raise ValueError(
            f"{path} has values in more than {LEVELS} levels; choose another --workdir"
        )
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object; choose another --workdir")
    return found


def _deeper(value: Any, levels: int) -> bool:
    """Returns whether objects and arrays of JSON are in each other on more than `levels` levels."""
    layer = [value]
    for _ in range(levels + 1):
        parts = [
            x.values() if isinstance(x, dict) else x for x in layer if isinstance(x, dict | list)
        ]
        layer = [*itertools.chain.from_iterable(parts)]
    return bool(layer)


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= (
            flatten(value, f"{prefix}{key}.")
            if isinstance(value, dict)
            else {f"{prefix}{key}": value}
        )
    return flat


def _write_json(path: Path, content: dict[str, Any]) -> None:
    if is_primary():
        with atomic_open(path) as file:
            json.dump(content, file, indent=2)


def _as_json(entry: Entry) -> dict[str, Any]:
    return json.loads(json.dumps(entry._asdict()))


def _compared(fields: dict[str, Any], entries: dict[str, Any]) -> dict[str, Any]:
    """What must be the same in a run that goes on: fields, and the settings of the entries that
    both have."""
    shared = {name: value for name, value in fields.items() if name not in NAMING}
    return flatten(shared | {label: entry | {"tuned": ""} for label, entry in entries.items()})


def _refuse_other(before: dict[str, Any], now: dict[str, Any], workdir: Path) -> None:
    differing = [
        f for f in sorted(before | now) if before.get(f) != now.get(f) and f not in FREE_FIELDS
    ]
    if differing:
        shown = ", ".join(
            f"{f}: {before.get(f)!r} there, {now.get(f)!r} here" for f in differing[:5]
        )
        raise ValueError(
            f"{workdir} holds a run of another config ({shown}); choose another --workdir"
        )
