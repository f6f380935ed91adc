"""Combines entries that were trained in several folders, e.g. on several machines, into one run.

    fedjax-ht compare --config=quickstart --methods=local,fedtgp,fedproto --entries=1/2 --workdir=A
    fedjax-ht compare --config=quickstart --methods=local,fedtgp,fedproto --entries=2/2 --workdir=B
    fedjax-ht merge A B --workdir=ALL

The folders must be runs of one config on the same data and split, with each entry in one of them.
They do not change; the new folder is created atomically. The comparison's command with
--workdir=ALL and without --entries then trains nothing and writes its tables. It resumes entries
that are not finished.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from fedjax_ht.lab.config.entries import folder_of
from fedjax_ht.lab.files import refuse_links
from fedjax_ht.lab.report.compared import Page, read_page, write_page
from fedjax_ht.lab.runs.folder import (
    BY_ENTRY,
    FREE_BUT_ROUNDS,
    Folder,
    differing,
    fixed,
    locked,
    read_folder,
    read_json,
    write_folder,
    write_json,
)

_WORKDIR = flags.DEFINE_string(
    "workdir", None, "The folder to merge the runs into.", allow_override=True
)
LANES, SEARCH = "lanes.json", "search"


def merge(runs: Sequence[Path], workdir: Path) -> list[str]:
    """Combines the entries of several runs in one folder.

    Args:
      runs: folders of two or more runs, which do not change.
      workdir: the folder to create.

    Returns:
      Labels of its entries, in order.

    Raises:
      ValueError, OSError: the runs differ in more than their entries, share one, one is being
        trained, or `workdir` exists and is not an empty folder. One line.
    """
    if len(runs) < 2:
        raise ValueError("merge takes two or more folders of runs: fedjax-ht merge A B --workdir=C")
    if workdir.exists() and (not workdir.is_dir() or any(workdir.iterdir())):
        raise ValueError(f"{workdir} already exists; choose another --workdir")
    for path in runs:
        refuse_links(path)
    parts = list(map(read_folder, runs))
    for part in parts[1:]:
        check_alike(parts[0], part)
    entries, notes = joined(parts)
    workdir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{workdir.name}-", dir=workdir.parent) as new:
        made, lanes = Path(new) / workdir.name, {}
        made.mkdir()
        for part in parts:
            with locked(part.path, print):
                for folder in map(folder_of, part.entries):
                    if (part.path / folder).exists():  # the entry has begun
                        _copy(part.path / folder, made / folder)
                for searched in (part.path / SEARCH).glob("*"):  # by compare --fair
                    if not (made / SEARCH / searched.name).exists():
                        _copy(searched, made / SEARCH / searched.name)
            if (part.path / LANES).exists():
                lanes = read_json(part.path / LANES) | lanes
        write_folder(Folder(made, parts[0].fields | {"entries": list(entries.values())}, notes))
        if lanes:
            write_json(made / LANES, lanes)
        pages = [page for page in (read_page(part.path) for part in parts) if page is not None]
        if pages:
            commands = "\n".join(dict.fromkeys(page.command for page in pages))
            write_page(Page(tuple(entries), pages[0].aim, commands), made)
        made.replace(workdir)
    return list(entries)


def _copy(folder: Path, new: Path) -> None:
    try:
        shutil.copytree(folder, new)
    except shutil.Error as error:  # its message lists every file
        raise OSError(f"{folder} cannot be copied: {error.args[0][0][2]}") from error


def check_alike(first: Folder, other: Folder) -> None:
    """Raises ValueError if two runs have different configs, data or splits."""
    before, now = compared(first), compared(other)
    if fields := differing(before, now):
        values = f"{before.get(fields[0])!r} there and {now.get(fields[0])!r} here"
        raise ValueError(
            f"{first.path} and {other.path} are not parts of one run: {fields[0]} is {values}"
        )


def compared(part: Folder) -> dict[str, Any]:
    """Returns everything in which the parts of a run must agree.

    This is the fields of the config that affect results, the sums of data and split, and the random
    generator. Files of data with a sum may have different names.
    """
    fields = fixed(part.fields, FREE_BUT_ROUNDS)
    if part.notes.get("data"):
        fields["dataset.name"] = fields["dataset.name"].partition(":")[0]
    for name in ("data", "split", "random"):
        fields[f"the run's {name}"] = part.notes.get(name)
    return fields


def joined(parts: Sequence[Folder]) -> tuple[dict[str, Mapping[str, Any]], dict[str, Any]]:
    """Returns label -> entry, and the notes, of the merged run.

    A part records the files (weights, a user's own methods) of its own entries only.

    Raises:
      ValueError: an entry is in two parts, or two parts used different files of one name. One line.
    """
    places: dict[str, Path] = {}
    entries, files = {}, {note: {} for note in BY_ENTRY}
    for part in parts:
        for label, entry in part.entries.items():
            if label in places:
                raise ValueError(f"{label} is in {places[label]} and in {part.path}; remove one")
            places[label], entries[label] = part.path, entry
        for note, known in files.items():
            for name, content in part.notes.get(note, {}).items():
                if known.setdefault(name, content) != content:
                    raise ValueError(
                        f"{part.path} is not part of the others' run: its {name} ({note}) was "
                        "a different file"
                    )
    return entries, parts[0].notes | {note: known for note, known in files.items() if known}


def main(arguments: Sequence[str]) -> None:
    if not _WORKDIR.value:
        raise ValueError("no --workdir; it names the folder to merge into")
    labels = merge(list(map(Path, arguments[1:])), Path(_WORKDIR.value))
    print(f"{', '.join(labels)}: now in {_WORKDIR.value}, from {len(arguments) - 1} folders.")
    print(
        f"The parts' command with --workdir={_WORKDIR.value} and without --entries trains "
        "missing entries, and writes the tables of the whole run."
    )
