"""The identity of an entry: what produced its rows, in identity.json of the entry's folder.

It moves with the folder. Runs resume there, and tables compare its rows with others, only if it
matches the run's config.
"""

import dataclasses
import datetime
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fedjax_ht.core.keys import check_generator, random_generator
from fedjax_ht.core.user_code import trusting
from fedjax_ht.lab.checkpoints import sealed
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.config.entries import Entry, as_run, folder_of, recorded
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.config.typed import to_json
from fedjax_ht.lab.runs.environment import CODE
from fedjax_ht.lab.runs.folder import (
    BY_ENTRY,
    CONFIG,
    MAP,
    VERSION,
    Folder,
    completed,
    differing,
    filled,
    fixed,
    flatten,
    naming,
    read_folder,
    read_json,
    results_of,
    write_folder,
    write_json,
)
from fedjax_ht.lab.runs.plan import Plan

IDENTITY = "identity.json"
SHA = "sha256"
SECTIONS = {"data": "dataset", "split": "partition", "models": "model"}
"""Fields of `Identity` -> the config's names of the same settings."""


@dataclasses.dataclass(frozen=True)
class Identity:
    """The identity of one entry, in plain values as config.json has them.

    Attributes:
      method: the method's name and all its options; if given from Python, its SHA-256.
      data: fields of `config.dataset`, and the SHA-256 of inputs, labels and targets; if given from
        Python, also that of its rules, see `objects.object_sums`.
      split: fields of `config.partition`, and the SHA-256 of the clients' samples.
      models: fields of `config.model` with the entry's changes; for modules given from Python,
        their SHA-256.
      training: fields of `config.training` with the entry's changes.
      options: the other fields of the config that affect a round's results.
      files: name of each file, or group "hf:FOLDER", that models or devices start from -> SHA-256.
      seed: the root seed of the first trial.
      trials: number of seeds trained.
      rounds: number of rounds saved.
      ended: ISO date on which the last round was saved; "" before the first.
      versions: programs and machines that trained it, see `environment`, in order of use.
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
    """Returns the identity that an entry of a run must have, without rounds.

    Args:
      entry: an entry of the run.
      config: the config of the run.
      noted: "data", "split", "weights" and "objects" of the notes in config.json.
    """
    objects = noted.get("objects", {})
    fields = to_json(as_run(entry, config))
    sections = {name: fields.pop(name) for name in ("dataset", "partition", "model", "training")}
    seed, trials = fields.pop("seed"), fields.pop("trials")
    rules = _sum_of(config.dataset.name, objects)
    method = {"name": entry.method, "options": json.loads(json.dumps(entry.options))}
    return Identity(
        method=method | _sum_of(entry.method, objects),
        data=sections["dataset"] | {SHA: noted.get("data"), "rules": rules},
        split=sections["partition"] | {SHA: noted.get("split")},
        models=sections["model"] | _sum_of(config.model.group, objects),
        training=sections["training"],
        options=fixed(fields),
        files=dict(noted.get("weights", {})),
        seed=seed,
        trials=trials,
    )


def _sum_of(name: str, objects: Mapping[str, str]) -> dict[str, str]:
    """Returns the checksum of the object with this name; {} if no object has it."""
    return {SHA: objects[name]} if name in objects else {}


def differences(stored: Identity, expected: Identity) -> list[str]:
    """Describes each setting, checksum or seed in which two identities differ.

    For example "training.learning_rate 0.3 instead of 0.05". A file of equal data may have another
    name and folder.
    """
    before, now = _settings(stored), _settings(expected)
    equal = before.get(f"data.{SHA}") == now.get(f"data.{SHA}") is not None
    for fields in (before, now):
        fields.pop("data.data_dir", None)
        if equal:  # readers differ in more than the values, such as in the scale of pixels
            fields["data.name"] = fields["data.name"].partition(":")[0]
    lines = []
    for name in differing(before, now):
        there, here = before.get(name), now.get(name)
        if not is_sum(name):
            lines.append(f"{field_of(name)} {there!r} instead of {here!r}")
        elif there and here:  # a missing file has no checksum
            lines.append(f"{field_of(name)} {there[:12]} instead of {here[:12]}")
    return lines


def field_of(name: str) -> str:
    """Returns the config's name of a flat field of an identity."""
    section, dot, field = name.partition(".")
    return field if section == "options" else f"{SECTIONS.get(section, section)}{dot}{field}"


def is_sum(name: str) -> bool:
    """Returns whether a flat field of an identity is a checksum."""
    return name.endswith(SHA) or name.startswith("files.")


def _settings(identity: Identity) -> dict[str, Any]:
    fields = dataclasses.asdict(identity)
    for name in ("rounds", "ended", "versions"):
        del fields[name]
    return flatten(fields)


def write_identity(identity: Identity, folder: Path) -> None:
    """Writes identity.json into an entry's folder."""
    write_json(folder / IDENTITY, dataclasses.asdict(identity))


def read_identity(folder: Path) -> Identity | None:
    """Reads the identity in an entry's folder; None if there is none.

    Fields that its version lacked get today's defaults.

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


def check_identity(label: str, folder: Path, expected: Identity) -> None:
    """Raises ValueError if an entry's folder holds a different run.

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
    """Prepares an entry's folder for a start at round 0.

    Returns the folder to which results of an earlier run were moved; None without any.
    """
    identity, aside, results = read_identity(folder), None, results_of(folder)
    if results:
        maps = folder.glob(f"{Path(MAP).stem}.*")
        aside = sealed.set_aside([*results, *maps, folder / IDENTITY], folder)
    if identity is not None:
        write_identity(dataclasses.replace(identity, rounds=0, ended="", versions=()), folder)
    return aside


def some(lines: list[str], most: int = 3) -> str:
    """Joins the first lines, and counts the others."""
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return ", ".join([*lines[:most], *more])


def remember_rounds(folder: Path, rounds: int, environment: Mapping[str, str]) -> None:
    """Records an entry's rounds, and the programs that trained it, in identity.json."""
    identity = read_identity(folder)
    if identity is None or identity.rounds == rounds:
        return
    versions = identity.versions
    if environment not in versions:
        versions = (*versions, environment)
    today = datetime.date.today().isoformat()
    identity = dataclasses.replace(identity, rounds=rounds, ended=today, versions=versions)
    write_identity(identity, folder)


def changed_code(folder: Path, code: Mapping[str, str]) -> list[str]:
    """Returns the files of a user's code that changed since they trained an entry.

    Args:
      folder: the entry's folder.
      code: today's files and checksums, see `own_methods.own_code`.
    """
    identity = read_identity(folder) if code else None
    newest = identity.versions[-1] if identity is not None and identity.versions else {}
    changed = [name for name in code if newest.get(name, code[name]) != code[name]]
    return [name.removeprefix(CODE) for name in changed]


PLAIN = Entry("", "", options={}, training={}, model={})
"""Stands for the settings of a config itself, which all entries share."""


def check_run(
    folder: Folder, config: Config, entries: Collection[Entry], notes: Mapping[str, Any]
) -> None:
    """Raises a one-line ValueError if a folder holds a run of another config or on other data.

    Args:
      folder: the folder of the run.
      config: the config of the run.
      entries: those to train or show now; the folder may have others.
      notes: the notes of the run, see `own_methods.noted`.
    """
    with naming(folder.path / CONFIG), trusting(False, *(entry.method for entry in entries)):
        before = typed_config(folder.fields | {"entries": ()})
        pairs = [("config", PLAIN, PLAIN)]
        for entry in entries:
            if entry.label in folder.entries:
                pairs.append((entry.label, recorded(folder.entries[entry.label]), entry))
        for name, stored, entry in pairs:
            there = identity_of(stored, before, folder.notes)
            if lines := differences(there, identity_of(entry, config, notes)):
                raise ValueError(
                    f"{folder.path} holds a run of another {name} ({some(lines, 5)}); restore the "
                    "original, or choose another --workdir"
                )


def run_folder(
    config: Config, entries: Collection[Entry], path: Path, notes: Mapping[str, Any]
) -> Folder:
    """Returns the folder of a run, with the entries that it already holds.

    Args:
      config: the config of the run.
      entries: the entries to train now.
      path: the run's folder.
      notes: the notes of the run, see `own_methods.noted`.

    Raises:
      ValueError: the folder holds a different run, see `check_run`, or one with another random
        generator. One line.
    """
    before = {}
    now = {entry.label: json.loads(json.dumps(entry._asdict())) for entry in entries}
    about = {"version": VERSION, "random": random_generator(), **notes}
    if (path / CONFIG).exists():
        earlier = read_folder(path)
        before, noted = earlier.entries, earlier.notes
        check_run(earlier, config, entries, notes)
        check_generator(noted.get("random", {}), str(path))
        for note in BY_ENTRY:
            if names := {**noted.get(note, {}), **notes.get(note, {})}:
                about[note] = names
    return Folder(path, to_json(config) | {"entries": list((before | now).values())}, about)


def check_rounds(label: str, folder: Path, rounds: int) -> None:
    """Rejects a folder with more rounds than the config: its table would show the later ones.

    Raises:
      ValueError: it has more. One line.
    """
    saved = max(sealed.numbers(folder / "checkpoints"), default=0)
    if saved > rounds:
        raise ValueError(
            f"{label} has {saved} rounds in {folder}, but rounds is {rounds}; a run "
            f"cannot go back: set rounds to {saved} or more, or choose another --workdir"
        )


def begin(
    experiment: Plan, workdir: Path, notes: Mapping[str, Any], *, writes: bool
) -> dict[str, Identity]:
    """Compares a run with the one in its folder, and records it; returns its entries' identities.

    Args:
      experiment: the experiment of the run.
      workdir: the run's folder.
      notes: the notes of the run, see `own_methods.noted`.
      writes: False only compares.

    Raises:
      ValueError: the folder holds a different run, or one with more rounds. One line.
    """
    config, entries = experiment.config, experiment.entries
    run = run_folder(config, entries, workdir, notes)
    identities = {entry.label: identity_of(entry, config, run.notes) for entry in entries}
    for label, identity in identities.items():
        folder = workdir / folder_of(label)
        check_identity(label, folder, identity)
        check_rounds(label, folder, config.rounds)
    if not writes:
        return identities
    # Before config.json, which implies that the folder's entries have identities. In the other
    # order, an interruption in between would make the entries unusable.
    for entry in map(recorded, run.entries.values()):
        folder = workdir / entry.folder
        # results without an identity come from elsewhere
        if not (folder / IDENTITY).exists() and not results_of(folder):
            write_identity(identity_of(entry, config, run.notes), folder)
    write_folder(run)
    return identities
