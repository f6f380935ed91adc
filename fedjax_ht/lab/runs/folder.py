"""The folder of a run: the one program that writes there and its JSON files, its config and notes,
checksums of its data, and the identity of each entry.

An entry's folder carries its identity, identity.json, wherever it goes. A run resumes there,
and a table sets its rows beside others', only where they are those of the run's config.
"""

import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from fedjax_ht.lab.checkpoints import sealed
from fedjax_ht.lab.checkpoints.writers import FILES
from fedjax_ht.lab.config.base import option_values, typed_config
from fedjax_ht.lab.config.entries import (
    Entry,
    as_run,
    check_label,
    entries_of,
    folder_of,
    recorded,
)
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
IDENTITY = "identity.json"  # of an entry, see `Identity`

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
        sets = {config.dataset.name, config.dataset.public or ""}
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
    shared = {name: value for name, value in fields.items() if name not in NAMING}
    origin = {"tuned": "", "searched_on": ()}
    return flatten(shared | {label: entry | origin for label, entry in entries.items()})


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


SHA = "sha256"
PLACES = ("data.data_dir", "data.name")
"""Fields of the place of the data. The same data may lie elsewhere, as their checksum tells."""


@dataclasses.dataclass(frozen=True)
class Identity:
    """The identity of one entry, in plain values as config.json has them.

    Attributes:
      method: the method's name and all its options; of one that was given from Python, its SHA-256.
      data: fields of `config.dataset`, and the SHA-256 of inputs and labels.
      split: fields of `config.partition`, and the SHA-256 of the clients' samples.
      models: fields of `config.model`, as the entry has them; of modules given from Python, their
        SHA-256.
      training: fields of `config.training`, as the entry has them.
      options: the other fields of the config that change a round's numbers.
      files: name of each file that models or devices start from -> SHA-256.
      seed: the root seed of the first trial.
      trials: number of seeds that were trained.
      rounds: number of rounds saved.
      ended: ISO date on which the last of them was saved; "" before the first.
      versions: programs and machines that trained it, see `environment`, the first of them first.
    """

    method: Mapping[str, Any]
    data: Mapping[str, Any]
    split: Mapping[str, Any]
    models: Mapping[str, Any]
    training: Mapping[str, Any]
    options: Mapping[str, Any]
    files: Mapping[str, str]
    seed: int
    trials: int
    rounds: int = 0
    ended: str = ""
    versions: tuple[Mapping[str, str], ...] = ()


def identity_of(entry: Entry, config: Config, noted: Mapping[str, Any]) -> Identity:
    """Returns the identity that an entry of a run must have, with no rounds.

    Args:
      entry: an entry of the run.
      config: the config of the run.
      noted: "data", "split", "weights" and "objects", as config.json notes them.
    """
    objects = noted.get("objects", {})
    fields = to_json(as_run(entry, config))
    sections = {name: fields.pop(name) for name in ("dataset", "partition", "model", "training")}
    seed, trials = fields.pop("seed"), fields.pop("trials")
    for name in NAMING:
        fields.pop(name, None)
    options = flatten(fields)
    method = {"name": entry.method, "options": json.loads(json.dumps(entry.options))}
    return Identity(
        method=method | _sum_of(entry.method, objects),
        data=sections["dataset"] | {SHA: noted.get("data")},
        split=sections["partition"] | {SHA: noted.get("split")},
        models=sections["model"] | _sum_of(config.model.group, objects),
        training=sections["training"],
        options={name: value for name, value in options.items() if name not in FREE_FIELDS},
        files=dict(noted.get("weights", {})),
        seed=seed,
        trials=trials,
    )


def _sum_of(name: str, objects: Mapping[str, str]) -> dict[str, str]:
    """Returns the checksum of what a name stands for; {} where no object was given for it."""
    return {SHA: objects[name]} if name in objects else {}


def differences(stored: Identity, expected: Identity) -> list[str]:
    """Returns a line for each setting, checksum or seed in which two identities differ, such as
    "training.learning_rate 0.3 instead of 0.05"."""
    before, now = _settings(stored), _settings(expected)
    if before.get(f"data.{SHA}") == now.get(f"data.{SHA}") is not None:
        for place in PLACES:
            before.pop(place, None)
            now.pop(place, None)
    lines = []
    for name in sorted(before | now):
        # a file that is gone has no checksum
        is_unknown = name not in before or name not in now or None in (before[name], now[name])
        is_sum = name.endswith(SHA) or name.startswith("files.")
        if before.get(name) != now.get(name) and not (is_sum and is_unknown):
            lines.append(f"{name} {_shown(before.get(name))} instead of {_shown(now.get(name))}")
    return lines


def _settings(identity: Identity) -> dict[str, Any]:
    fields = dataclasses.asdict(identity)
    for name in ("rounds", "ended", "versions"):
        del fields[name]
    return flatten(fields)


def _shown(value: Any) -> str:
    text = repr(value)
    is_sum = isinstance(value, str) and len(value) == 64
    return value[:12] if is_sum else text


def write_identity(identity: Identity, folder: Path) -> None:
    """Writes identity.json into an entry's folder."""
    write_json(folder / IDENTITY, dataclasses.asdict(identity))


def read_identity(folder: Path) -> Identity | None:
    """Reads the identity of an entry's folder, completed with today's defaults for fields that its
    version did not have; None where it has none.

    Raises:
      ValueError: the file is not what a run writes. One line.
    """
    path = folder / IDENTITY
    if not path.exists():
        return None
    stored = read_json(path)
    with naming(path):
        name = stored["method"]["name"]
        entry = {"label": name, "method": name, "options": {}, "training": {}, "model": {}}
        data, split = stored["data"]["name"], stored["split"]["kind"]
        config = completed({"dataset": {"name": data}, "partition": {"kind": split}})
        defaults = identity_of(recorded(entry), typed_config(config), {})
        fields: dict[str, Any] = filled(stored, dataclasses.asdict(defaults))
        fields["versions"] = tuple(map(dict, stored["versions"]))
        return Identity(**fields)


def identities_of(
    entries: Iterable[Entry], config: Config, noted: Mapping[str, Any]
) -> dict[str, Identity]:
    """Returns the identity of each entry, see `identity_of`, by its label."""
    return {entry.label: identity_of(entry, config, noted) for entry in entries}


def check_identity(label: str, folder: Path, expected: Identity) -> None:
    """Raises a ValueError where an entry's folder holds a run of something else.

    Args:
      label: the entry's label.
      folder: the entry's folder, which need not exist.
      expected: the identity of the entry in this run.
    """
    with trusting(False, expected.method["name"]):
        stored = read_identity(folder)
    if stored is not None:
        lines = differences(stored, expected)
        if lines:
            raise ValueError(
                f"{folder} holds a run of another {label} ({some(lines)}); move it away, or choose "
                "another --workdir"
            )
    elif results_of(folder):
        raise ValueError(
            f"{folder}: {IDENTITY} is missing, so the run cannot be verified; move it away, or "
            "choose another --workdir"
        )


def begin_again(folder: Path) -> Path | None:
    """Prepares an entry's folder for a start at round 0; returns where results of an earlier course
    are now, None without any."""
    identity, aside, results = read_identity(folder), None, results_of(folder)
    if results:
        maps = folder.glob(f"{Path(MAP).stem}.*")
        aside = sealed.set_aside([*results, *maps, folder / IDENTITY], folder)
    if identity is not None:
        write_identity(dataclasses.replace(identity, rounds=0, ended="", versions=()), folder)
    return aside


def some(lines: list[str], most: int = 3) -> str:
    """Joins some lines, and counts the others."""
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return ", ".join([*lines[:most], *more])


def remember_rounds(folder: Path, rounds: int, environment: Mapping[str, str]) -> None:
    """Notes an entry's rounds, and the programs that trained it, in identity.json."""
    identity = read_identity(folder)
    if identity is None or identity.rounds == rounds:
        return
    versions = identity.versions
    if environment not in versions:
        versions = (*versions, environment)
    today = datetime.date.today().isoformat()
    identity = dataclasses.replace(identity, rounds=rounds, ended=today, versions=versions)
    write_identity(identity, folder)


def begin(
    experiment: Plan, workdir: Path, notes: Mapping[str, Any], *, writes: bool
) -> dict[str, Identity]:
    """Compares a run with the one in its folder, and notes it there; returns the identities of its
    entries.

    Args:
      experiment: the experiment of the run.
      workdir: the run's folder.
      notes: the notes of the run, see `own_methods.noted`.
      writes: False compares alone.

    Raises:
      ValueError: the folder holds a run of something else, or of more rounds. One line.
    """
    config, entries = experiment.config, experiment.entries
    run = run_folder(config, entries, workdir, notes)
    identities = identities_of(entries, config, run.notes)
    for label, identity in identities.items():
        folder = workdir / folder_of(label)
        check_identity(label, folder, identity)
        saved = max(sealed.numbers(folder / "checkpoints"), default=0)
        if saved > config.rounds:
            raise ValueError(
                f"{label} has {saved} rounds in {folder}, and rounds is {config.rounds}; a run "
                f"does not go back: set rounds to {saved} or more, or choose another --workdir"
            )
    if not writes:
        return identities
    # Before config.json, which says that the folder's entries have identities: were it the other
    # way round and ended in between, the entries would be refused.
    for entry in map(recorded, run.entries.values()):
        folder = workdir / entry.folder
        # results without an identity come from elsewhere
        if not (folder / IDENTITY).exists() and not results_of(folder):
            write_identity(identity_of(entry, config, run.notes), folder)
    write_folder(run)
    return identities


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


def write_json(path: Path, content: Mapping[str, Any]) -> None:
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
