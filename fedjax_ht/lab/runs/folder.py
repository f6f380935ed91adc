"""The folder of a run: its config and notes in config.json, checksums of its data, its other JSON
files, and the lock of the one program that writes there."""

import contextlib
import datetime
import fcntl
import json
import os
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from fedjax_ht.check.names import short
from fedjax_ht.core.function_keys import sum_of_arrays
from fedjax_ht.core.keys import check_generator, random_generator
from fedjax_ht.core.user_code import names_object, trusting
from fedjax_ht.data.dataset import Dataset, Partition
from fedjax_ht.data.partition import partition_options
from fedjax_ht.data.public import hold_out_share
from fedjax_ht.lab.checkpoints.writers import FILES
from fedjax_ht.lab.config.base import option_values, typed_config
from fedjax_ht.lab.config.entries import Entry, as_run, check_label, entries_of, recorded
from fedjax_ht.lab.config.sections import Config, MethodConfig, PartitionConfig
from fedjax_ht.lab.config.typed import to_json
from fedjax_ht.lab.files import atomic_open, named, plain_open, refuse_links
from fedjax_ht.lab.runs.devices import files_of
from fedjax_ht.lab.runs.plan import Plan, plan
from fedjax_ht.lab.safe import bounded, limits
from fedjax_ht.lab.weights.start import checksums, weights_of_model


def fingerprints(dataset: Dataset, partitions: Sequence[Partition]) -> dict[str, str]:
    """Returns SHA-256 sums of a run's data: "data" of inputs and labels, "split" of the
    clients' samples in every trial."""
    # trials without a split of their own share one object, which counts once
    different = {id(partition): partition for partition in partitions}.values()
    parts = (part for partition in different for client in partition for part in client)
    return {
        "data": sum_of_arrays((*jax.tree.leaves(dataset.inputs), dataset.labels)),
        "split": sum_of_arrays(np.asarray(part, np.int64) for part in parts),
    }


SUMS = {
    "data": "on other inputs or labels than {} has now",
    "split": "on another split than {} has now",
    "weights": "that began from another {}",
    "objects": "with another {}",
}
"""The notes of a run that are checksums -> the difference of another one, in words."""


def check_sums(
    noted: Mapping[str, Any], sums: Mapping[str, Any], config: Config, workdir: Path
) -> None:
    """Raises a ValueError where data, a split, a file or an object is not the one that a run has
    noted; what is gone is not asked for again."""
    place = config.dataset.name
    if not names_object(place):
        place += f" with dataset.data_dir {config.dataset.data_dir!r}"
    for note, words in SUMS.items():
        before, now = noted.get(note), sums.get(note)
        if not before or not now:
            continue
        if isinstance(before, str):
            before, now = {place: before}, {place: now}
        for name in before.keys() & now.keys():
            if before[name] != now[name]:
                raise ValueError(
                    f"{workdir} holds a run {words.format(name)} (SHA-256 {before[name][:12]} "
                    f"there, {now[name][:12]} here); give it what it began with, or choose another "
                    "--workdir"
                )


VERSION = 3
"""Version of a run's folder, the only one that is read. A new field of the config must have a
default that leaves earlier runs as they were: `completed` relies on it."""

# of a folder that is read: each entry and each trial has a federation or a split to build
MOST, MOST_CLIENTS = 1 << 10, 1 << 20  # entries and trials; clients

CONFIG = "config.json"
MAP = "features.npz"  # of an entry, see lab/report/maps.py

OWN = ("own_methods", "own_partitions", "own_modules")
"""The notes of a run with methods, a partition or modules of a user's own: the name of each, of a
module "module:function" -> "FILE[:ARGUMENT]" of the config that registers it, or beside which it
may lie; None where that is not known."""

BY_ENTRY = (*OWN, "weights", "objects")
"""The notes of what only some entries were made of."""

NOTES = {"data": str, "split": str, "random": dict} | dict.fromkeys(BY_ENTRY, dict)
"""The notes of a run, and their types."""

# Fields that name the entries and their settings: those are recorded entry by entry.
NAMING = ("method", "compare", "entries", "given", "tuned", "tuned_on", "searched")
# Fields that change nothing about the numbers of a round: a run may go on with others.
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


class Folder(NamedTuple):
    """The folder of a run, as its config.json has it.

    Attributes:
      path: the folder.
      fields: the config as JSON values, with every entry of the folder.
      notes: the notes of the run: "version", "random", the sums of `fingerprints`, and `BY_ENTRY`.
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


def run_folder(
    config: Config, entries: Iterable[Entry], path: Path, notes: Mapping[str, Any]
) -> Folder:
    """Returns the folder of a run, with every entry that it holds already.

    Args:
      config: the config of the run.
      entries: the entries that it trains now.
      path: the run's folder.
      notes: the notes of the run, see `own_methods.noted`.

    Raises:
      ValueError: the folder holds a run of another config or on other data. One line.
    """
    fields, before = to_json(config), {}
    now = {entry.label: _as_json(entry) for entry in entries}
    about = {"version": VERSION, "random": random_generator(), **notes}
    if (path / CONFIG).exists():
        earlier = read_folder(path)
        with naming(path / CONFIG), trusting(False, *(entry["method"] for entry in now.values())):
            before, noted = earlier.entries, earlier.notes
            both = {label: _as_json(recorded(before[label])) for label in now if label in before}
            again = {label: now[label] for label in both}
            _refuse_other(_compared(earlier.fields, both), _compared(fields, again), path)
            check_sums(noted, notes, config, path)
            check_generator(noted.get("random", {}), str(path))
            for note in BY_ENTRY:
                if names := {**noted.get(note, {}), **notes.get(note, {})}:
                    about[note] = names
    return Folder(path, fields | {"entries": list((before | now).values())}, about)


def write_folder(folder: Folder) -> None:
    """Writes config.json."""
    write_json(folder.path / CONFIG, folder.fields | {"run": folder.notes})


def remember_fields(fields: dict[str, Any], workdir: Path) -> None:
    """Writes config.json of a program that trains something else, or refuses a folder that has
    another one."""
    path = workdir / CONFIG
    if path.exists():
        _refuse_other(flatten(read_json(path)), flatten(fields), workdir)
    write_json(path, fields)


def read_folder(path: Path) -> Folder:
    """Reads config.json, whose config is completed with today's defaults.

    Raises:
      ValueError, OSError: there is no run, it cannot be read, or is of another version. One line.
    """
    if not (path / CONFIG).exists():
        raise FileNotFoundError(f"no run in {path}: config.json is missing")
    fields = read_json(path / CONFIG)
    with naming(path / CONFIG):
        notes = fields.pop("run", {"version": 0})
        if notes["version"] != VERSION:
            raise ValueError(
                f"{path} is of version {notes['version']}, and this program reads {VERSION}; use "
                "the fedjax_ht that wrote it, or choose another --workdir"
            )
        for note in notes.keys() & NOTES.keys():
            if not isinstance(notes[note], NOTES[note]):
                raise TypeError(f"run.{note} is {short(notes[note])}")
        return Folder(path, completed(fields), notes)


def read_run(workdir: Path, trust: bool = False) -> Plan:
    """Returns the experiment that a run's config is built to.

    Args:
      workdir: the folder, which may come from anybody.
      trust: True lets a "module:function" that its config.json names be imported, which runs it.

    Raises:
      ValueError, OSError: there is no run, its data are others now, it needs `trust`, or there are
        links in the folder. One line.
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
        models = (as_run(entry, config).model for entry in entries_of(config))
        files = [*map(weights_of_model, models), *files_of(config.devices_profile)]
        unknown = [] if folder.notes.get("data") else sorted(read)
        unknown += sorted(checksums(files).keys() - folder.notes.get("weights", {}).keys())
        # anybody's file could otherwise become part of a page that is passed on
        if unknown and not trust:
            raise ValueError(
                f"it has no checksum of what it names, {', '.join(unknown)}; if the run was "
                "trained on that, allow it by --trust, from Python by trust=True"
            )
        experiment = plan(config, begun=True)
    prints: dict[str, Any] = dict(fingerprints(experiment.dataset, experiment.partitions))
    check_sums(folder.notes, prints | {"weights": checksums(files)}, config, workdir)
    return experiment


def completed(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the config of a run as its entries have it, with defaults for fields that its version
    did not have."""
    known = to_json(Config())
    kind = fields.get("partition", {}).get("kind") or PartitionConfig.kind
    options = option_values(f"partition {kind!r}", partition_options(kind), {})
    known["partition"] |= {"kind": kind, "options": json.loads(json.dumps(options))}
    of_run = {name: value for name, value in fields.items() if name not in NAMING}
    none = to_json(MethodConfig(None))
    return filled(of_run, known) | {"method": none, "entries": fields.get("entries", [])}


def filled(fields: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Adds the items of `known` that `fields` lacks, in nested dictionaries, too."""
    values = known | fields
    for name, value in fields.items():
        if isinstance(value, dict) and isinstance(known.get(name), dict):
            values[name] = filled(value, known[name])
    return values


def results_of(folder: Path) -> list[Path]:
    """Returns the checkpoints and rows in an entry's folder."""
    kept = sorted(folder.glob("checkpoints*"))  # of each run of the entry, and their segments
    left = [path for path in kept if path.is_dir() and any(path.iterdir())]
    return [*left, *(folder / name for name in FILES if (folder / name).exists())]


def _as_json(entry: Entry) -> dict[str, Any]:
    return json.loads(json.dumps(entry._asdict()))


def _compared(fields: dict[str, Any], entries: dict[str, Any]) -> dict[str, Any]:
    """Returns the values that a resumed run must share: fields, and the settings of entries that
    both courses have."""
    origin = {"tuned": "", "searched_on": ()}
    return fixed(fields) | flatten({label: entry | origin for label, entry in entries.items()})


def fixed(fields: Mapping[str, Any], free: Collection[str] = FREE_FIELDS) -> dict[str, Any]:
    """Returns the fields of a config, flat, that all courses of a run share: without those that
    name entries, and those that are free."""
    flat = flatten({name: value for name, value in fields.items() if name not in NAMING})
    return {name: value for name, value in flat.items() if name not in free}


def _refuse_other(before: dict[str, Any], now: dict[str, Any], workdir: Path) -> None:
    differing = [
        name
        for name in sorted(before | now)
        if before.get(name) != now.get(name) and name not in FREE_FIELDS
    ]
    if differing:
        shown = [
            f"{name}: {before.get(name)!r} there, {now.get(name)!r} here" for name in differing
        ]
        raise ValueError(
            f"{workdir} holds a run of another config ({', '.join(shown[:5])}); choose another "
            "--workdir"
        )


MAX_LEVELS = 32
"""Objects and arrays in each other in a JSON file of a run's folder, at most."""


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file of a run's folder.

    Raises:
      ValueError: it holds none, or one that is nested too deep. One line.
    """
    try:
        content = bounded.read_json(path, dict)
        if deeper(content, MAX_LEVELS):  # functions that walk through it are recursive
            raise ValueError(f"{path} has values in more than {MAX_LEVELS} levels")
    except ValueError as error:
        raise ValueError(f"{error}; choose another --workdir") from None
    return content


def deeper(value: Any, levels: int) -> bool:
    """Returns True where objects and arrays of JSON are in each other on more than `levels`
    levels."""
    layer = [value]
    for _ in range(levels + 1):
        inner: list[Any] = []
        for part in layer:
            if isinstance(part, dict):
                inner += part.values()
            elif isinstance(part, list):
                inner += part
        layer = inner
    return bool(layer)


def write_json(path: Path, content: Mapping[Any, Any]) -> None:
    """Writes a JSON file of a run's folder, in the first process of a run."""
    if is_primary():
        with atomic_open(path) as file:
            json.dump(content, file, indent=2)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turns any error from wrong content of a JSON file into one line that names the file."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not what a run writes ({type(error).__name__}: {error})"
        ) from error
    except ValueError as error:
        if str(path.parent) in str(error):
            raise
        raise ValueError(f"{path}: {error}") from error


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns {"a.b": 1} for {"a": {"b": 1}}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def is_primary() -> bool:
    """Returns True in the process of a run that writes and prints."""
    return jax.process_index() == 0


def agreed(stop: bool) -> bool:
    """Returns True where `stop` is True in any process of a run; each must make this call."""
    if jax.process_count() == 1:
        return stop
    return bool(np.any(multihost_utils.process_allgather(np.array(stop))))


@contextlib.contextmanager
def locked(workdir: Path, warn: Callable[[str], None]) -> Iterator[bool]:
    """Makes a run's folder and holds it for this program within the block.

    The kernel frees the lock when the process ends, however it ends. Yields False for a folder that
    cannot be written to: a finished run is shown from a read-only disk, too.

    Raises:
      ValueError, OSError: another process holds it, it has links in it, or it cannot be made. One
        line.
    """
    writable = not workdir.exists() or os.access(workdir, os.W_OK)
    lock, problem = None, None
    if is_primary() and writable:
        try:
            lock = _lock(workdir, warn)
        except (ValueError, OSError) as error:
            problem = error
    # all processes leave together: the others would wait for the first one's collectives
    if agreed(problem is not None):
        raise problem or ValueError(
            f"the first process cannot use {workdir}; its own message says why"
        )
    with lock or contextlib.nullcontext():
        yield writable


def _lock(workdir: Path, warn: Callable[[str], None]) -> IO[str]:
    workdir.mkdir(parents=True, exist_ok=True)
    refuse_links(workdir)  # before anything is written there
    path = workdir / ".lock"
    with contextlib.ExitStack() as stack:
        stack.enter_context(named(path))
        # "a+": neither "w", which empties the file of the holder, nor "r+", which does not make one
        file = stack.enter_context(plain_open(path, "a+"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read() or "another process"
            raise ValueError(
                f"{workdir} is in use by {holder}; wait for it, or choose another --workdir"
            ) from None
        except OSError as error:  # not every network's file system has locks
            warn(
                f"{workdir} cannot be locked ({error.strerror}): make sure that no second process "
                "runs there"
            )
        if os.fstat(file.fileno()).st_nlink == 1:  # else it is the file of another folder, too
            file.truncate(0)
            now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
            file.write(f"process {os.getpid()} on {socket.gethostname()} since {now}")
            file.flush()
        stack.pop_all()  # the caller closes it, and with it gives the lock back
        return file
