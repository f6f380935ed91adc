"""The folder of a run: config.json with its notes, checksums of data, other JSON files, the lock.

The lock ensures that only one program writes there.
"""

import contextlib
import datetime
import fcntl
import json
import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from jax.experimental import multihost_utils

from fedjax_ht.check.names import short
from fedjax_ht.core.function_keys import sum_of_arrays
from fedjax_ht.core.user_code import trusting
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.public import hold_out_share
from fedjax_ht.lab.checkpoints.writers import FILES
from fedjax_ht.lab.config.base import partition_config, typed_config
from fedjax_ht.lab.config.entries import as_run, check_label, entries_of
from fedjax_ht.lab.config.sections import Config, MethodConfig, PartitionConfig
from fedjax_ht.lab.config.typed import to_json
from fedjax_ht.lab.files import named, plain_open, refuse_links, write_whole
from fedjax_ht.lab.runs.devices import files_of
from fedjax_ht.lab.runs.plan import Plan, plan
from fedjax_ht.lab.safe import bounded, limits
from fedjax_ht.lab.weights.start import Weights, checksums, weights_of_model
from fedjax_ht.models.registry import names_folder


def fingerprints(dataset: Dataset, partitions: Sequence[Partition]) -> dict[str, str]:
    """Returns SHA-256 sums of a run's data.

    "data" covers inputs, labels and targets, "split" the clients' samples in every trial.
    """
    # trials that share a split have one object, which counts once
    different = {id(partition): partition for partition in partitions}.values()
    parts = (part for partition in different for client in partition for part in client)
    return {
        "data": sum_of_arrays(jax.tree.leaves((dataset.inputs, dataset.labels, dataset.targets))),
        "split": sum_of_arrays(np.asarray(part, np.int64) for part in parts),
    }


def files_read(config: Config) -> list[Weights]:
    """Returns the files that a run's models, devices and generators start from.

    A group "hf:FOLDER" stands for the files that define its model.
    """
    entries = entries_of(config)
    models = [as_run(entry, config).model for entry in entries]
    folders = [model.group for model in models if names_folder(model.group)]
    generators = [entry.options["generator"] for entry in entries if "generator" in entry.options]
    named = [name for name in generators if isinstance(name, str)]
    weights = map(weights_of_model, models)
    return [*weights, *folders, *files_of(config.devices_profile), *named]


VERSION = 3
"""Version of a run's folder; no other is read. New fields of the config need defaults that leave
earlier runs unchanged: `completed` relies on it."""

# limits for folders that are read, since each entry and trial builds a federation or a split
MOST, MOST_CLIENTS = 1 << 10, 1 << 20  # entries and trials; clients

CONFIG = "config.json"
MAP = "features.npz"  # of an entry, see lab/report/maps.py

OWN = ("own_methods", "own_partitions", "own_modules")
"""The notes about a user's own methods, partition and modules in a run.

Each maps a name ("module:function" for a module) to "FILE[:ARGUMENT]" of the config that registers
it, or beside which the module may lie; None if that is unknown.
"""

BY_ENTRY = (*OWN, "weights", "objects")
"""The notes about what individual entries were made of."""

NOTES = {"data": str, "split": str, "random": dict} | dict.fromkeys(BY_ENTRY, dict)
"""The notes of a run, and their types."""

# Fields that name the entries and their settings, which are recorded entry by entry.
NAMING = ("method", "compare", "entries", "given", "tuned", "tuned_on", "searched")
# Fields that do not affect a round's results. They may differ when a run resumes.
FREE_FIELDS = (
    "rounds",
    "checkpoint.every",
    "checkpoint.keep",
    "dataset.data_dir",
    "devices",
    "client_store",
    "time_stages",
    "give_up",
    "report.maps",
    "track",
)
FREE_BUT_ROUNDS = frozenset(FREE_FIELDS) - {"rounds"}  # rows of one table have equal rounds


class Folder(NamedTuple):
    """The folder of a run, as read from its config.json.

    Attributes:
      path: the folder.
      fields: the config as JSON values, with every entry of the folder.
      notes: the run's notes: "version", "random", the sums of `fingerprints`, and `BY_ENTRY`.
    """

    path: Path
    fields: dict[str, Any]
    notes: dict[str, Any]

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """Label -> entry, as JSON values."""
        with naming(self.path / CONFIG):
            for entry in self.fields["entries"]:
                check_label(entry["label"])
            return {entry["label"]: entry for entry in self.fields["entries"]}


def write_folder(folder: Folder) -> None:
    """Writes config.json."""
    write_json(folder.path / CONFIG, folder.fields | {"run": folder.notes})


def remember_fields(fields: dict[str, Any], workdir: Path) -> None:
    """Writes config.json of another kind of program, or rejects a folder with a different one."""
    path = workdir / CONFIG
    before, now = flatten(read_json(path)) if path.exists() else {}, flatten(fields)
    if before and (names := differing(before, now)):
        shown = [f"{name}: {before.get(name)!r} there, {now.get(name)!r} here" for name in names]
        raise ValueError(
            f"{workdir} holds a run of another config ({', '.join(shown[:5])}); choose another "
            "--workdir"
        )
    write_json(path, fields)


def read_folder(path: Path) -> Folder:
    """Reads config.json, and completes its config with today's defaults.

    Raises:
      ValueError, OSError: there is no run, or it is unreadable or of another version. One line.
    """
    if not (path / CONFIG).exists():
        raise FileNotFoundError(f"no run in {path}: config.json is missing")
    fields = read_json(path / CONFIG)
    with naming(path / CONFIG):
        notes = fields.pop("run", {"version": 0})
        if notes["version"] != VERSION:
            raise ValueError(
                f"{path} has version {notes['version']}, but this program reads {VERSION}; use "
                "the fedjax_ht that wrote it, or choose another --workdir"
            )
        for note in notes.keys() & NOTES.keys():
            if not isinstance(notes[note], NOTES[note]):
                raise TypeError(f"run.{note} is {short(notes[note])}")
        return Folder(path, completed(fields), notes)


def read_run(workdir: Path, trust: bool = False) -> Plan:
    """Returns the experiment that a run's config describes; `own_methods` checks the sums of data.

    Args:
      workdir: the folder, which may come from anybody.
      trust: True allows importing, and thus running, each "module:function" in its config.json.

    Raises:
      ValueError, OSError: there is no run, it needs `trust`, or the folder contains links. One
        line.
    """
    refuse_links(workdir)
    folder = read_folder(workdir)
    with naming(workdir / CONFIG), trusting(trust):
        config = typed_config(folder.fields)
        limits.keep("entries", len(config.entries), MOST, "entries")
        limits.keep("trials", config.trials, MOST, "trials")
        limits.keep("num_clients", config.partition.num_clients, MOST_CLIENTS, "clients")
        sets = {config.dataset.name, config.dataset.public or "", config.dataset.backbone or ""}
        read = [name for name in sets if ":" in name and hold_out_share(name) is None]
        files = files_read(config)
        unknown = [] if folder.notes.get("data") else sorted(read)
        unknown += sorted(checksums(files).keys() - folder.notes.get("weights", {}).keys())
        # otherwise any file of the reader could become part of a page that is shared
        if unknown and not trust:
            raise ValueError(
                f"it has no checksum for {', '.join(unknown)}; if the run was "
                "trained on that, allow it with --trust (trust=True from Python)"
            )
        return plan(config, begun=True)


def completed(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns a run's config with its recorded entries, and defaults for fields it lacks."""
    known = to_json(Config())
    kind = fields.get("partition", {}).get("kind") or PartitionConfig.kind
    known["partition"] = to_json(partition_config(kind))
    of_run = {name: value for name, value in fields.items() if name not in NAMING}
    none = to_json(MethodConfig(None))
    return filled(of_run, known) | {"method": none, "entries": fields.get("entries", [])}


def filled(fields: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Adds the items of `known` that `fields` lacks, also in nested dictionaries."""
    values = known | fields
    for name, value in fields.items():
        if isinstance(value, dict) and isinstance(known.get(name), dict):
            values[name] = filled(value, known[name])
    return values


def results_of(folder: Path) -> list[Path]:
    """Returns the checkpoints and rows in an entry's folder."""
    kept = sorted(folder.glob("checkpoints*"))  # of all runs of the entry, with their segments
    left = [path for path in kept if path.is_dir() and any(path.iterdir())]
    return [*left, *(folder / name for name in FILES if (folder / name).exists())]


def fixed(fields: Mapping[str, Any], free: Collection[str] = FREE_FIELDS) -> dict[str, Any]:
    """Returns the flat fields of a config that a resumed run must share.

    Fields that name entries, and those in `free`, are excluded.
    """
    flat = flatten({name: value for name, value in fields.items() if name not in NAMING})
    return {name: value for name, value in flat.items() if name not in free}


def differing(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Returns the names, sorted, whose values differ; a missing one is None."""
    return [name for name in sorted(before | now) if before.get(name) != now.get(name)]


MAX_LEVELS = 32
"""Maximum nesting of objects and arrays in a JSON file of a run's folder."""


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file of a run's folder.

    Raises:
      ValueError: it holds no object, or one that is nested too deeply. One line.
    """
    try:
        content = bounded.read_json(path, dict)
        if deeper(content, MAX_LEVELS):  # functions that traverse it are recursive
            raise ValueError(f"{path} has values nested more than {MAX_LEVELS} levels deep")
    except ValueError as error:
        raise ValueError(f"{error}; choose another --workdir") from None
    return content


def deeper(value: Any, levels: int) -> bool:
    """Returns whether JSON objects and arrays are nested in more than `levels` levels."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(deeper(each, levels - 1) for each in inner)


def write_json(path: Path, content: Mapping[Any, Any]) -> None:
    """Writes a JSON file of a run's folder, only in the first process of a run."""
    if is_primary():
        write_whole(path, json.dumps(content, indent=2))


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Converts errors from invalid content of a JSON file into one line that names the file."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} was not written by a run ({type(error).__name__}: {error})"
        ) from error
    except ValueError as error:
        if str(path.parent) in str(error):
            raise
        raise ValueError(f"{path}: {error}") from error


def flatten(tree: dict[str, Any]) -> dict[str, Any]:
    """Returns {"a.b": 1} for {"a": {"b": 1}}."""
    return flatten_dict(tree, sep=".")


def is_primary() -> bool:
    """Returns True in the only process of a run that writes and prints."""
    return jax.process_index() == 0


def agreed(stop: bool) -> bool:
    """Returns True if `stop` is True in any process of a run; every process must call it."""
    if jax.process_count() == 1:
        return stop
    return bool(np.any(multihost_utils.process_allgather(np.array(stop))))


@contextlib.contextmanager
def locked(workdir: Path, warn: Callable[[str], None]) -> Iterator[bool]:
    """Creates a run's folder, and locks it for this program within the block.

    The kernel releases the lock when the process ends, however it ends. Yields False for a folder
    that is not writable, so that a finished run on a read-only disk can be shown.

    Raises:
      ValueError, OSError: another process holds the lock, the folder contains links, or it cannot
        be created. One line.
    """
    writable = not workdir.exists() or os.access(workdir, os.W_OK)
    lock, problem = None, None
    if is_primary() and writable:
        try:
            lock = _lock(workdir, warn)
        except (ValueError, OSError) as error:
            problem = error
    # All processes raise together. Otherwise the others would wait in collectives with the first.
    if agreed(problem is not None):
        raise problem or ValueError(f"the first process cannot use {workdir}; see its own message")
    with lock or contextlib.nullcontext():
        yield writable


def _lock(workdir: Path, warn: Callable[[str], None]) -> IO[str]:
    if workdir.exists() and not workdir.is_dir():
        raise ValueError(f"{workdir} is not a folder; choose another --workdir")
    workdir.mkdir(parents=True, exist_ok=True)
    refuse_links(workdir)  # before anything is written there
    path = workdir / ".lock"
    with contextlib.ExitStack() as stack:
        stack.enter_context(named(path))
        # "a+", since "w" would empty the holder's file, and "r+" does not create one
        file = stack.enter_context(plain_open(path, "a+"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read() or "another process"
            raise ValueError(
                f"{workdir} is in use by {holder}; wait for it, or choose another --workdir"
            ) from None
        except OSError as error:  # not every network file system has locks
            warn(
                f"{workdir} cannot be locked ({error.strerror}): make sure that no other process "
                "uses it"
            )
        if os.fstat(file.fileno()).st_nlink == 1:  # otherwise it is also a file of another folder
            file.truncate(0)
            now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
            file.write(f"process {os.getpid()} on {socket.gethostname()} since {now}")
            file.flush()
        stack.pop_all()  # the caller closes the file, which releases the lock
        return file
