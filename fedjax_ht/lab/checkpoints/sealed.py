"""The numbered folders of checkpoints, sealed by checksums of their files.

Each is either intact or known to be damaged.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedjax_ht.lab.files import named, plain_open, sync_folder
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import open_regular, read_whole, sha256_of

SEAL = "seal.json"
_HALF_WRITTEN = re.compile(r"[0-9]+\.tmp")


def numbers(parent: Path) -> list[int]:
    """The numbers of the numbered folders, ascending; everything else is ignored.

    Empty if `parent` is missing.
    """
    if not parent.exists():
        return []
    folders = []
    for path in parent.iterdir():
        # "007" is not such a number
        if path.is_dir() and path.name.isdecimal() and str(int(path.name)) == path.name:
            folders.append(int(path.name))
    return sorted(folders)


def temporary(path: Path) -> Path:
    """The name of a folder while it is being written, before `place`, or deleted."""
    return path.with_name(f"{path.name}.tmp")


def place(path: Path) -> None:
    """Seals the folder `temporary(path)` and renames it to `path`, once all of it is on disk."""
    half = temporary(path)
    files, folders = {}, [half]
    for file in sorted(half.rglob("*")):
        if file.is_file():
            files[str(file.relative_to(half))] = sha256_of(file)
        else:
            folders.append(file)
    write_json(half / SEAL, {"sha256": _sha256_of(files), "files": files})
    for name in (*files, SEAL):
        with named(half / name), (half / name).open("rb") as opened:
            os.fsync(opened.fileno())
    for folder in folders:
        sync_folder(folder)
    os.rename(half, path)
    sync_folder(path.parent)


def write_json(path: Path, content: Any) -> None:
    """Writes a new JSON file into a folder that has no seal yet."""
    with named(path), plain_open(path, "x") as file:
        json.dump(content, file)


def seal_of(folder: Path) -> str:
    """The checksum of a folder's checksums.

    Raises:
      ValueError, OSError: the seal is missing or damaged.
    """
    return _sha256_of(_checksums(folder))


def check(folder: Path, seal: str | None = None) -> None:
    """Compares every file with the seal of its folder.

    Args:
      folder: a sealed folder.
      seal: the result of `seal_of` when the folder was written; None skips that comparison.

    Raises:
      ValueError, OSError: a file has changed, or the seal differs. One line.
    """
    files = _checksums(folder)
    if seal is not None and _sha256_of(files) != seal:
        raise ValueError(f"{folder} belongs to another checkpoint")
    for name, expected in files.items():
        if sha256_of(folder / name) != expected:
            raise ValueError(f"{folder / name} has changed since it was written")


def read_json(folder: Path, name: str) -> Any:
    """The content of a JSON file in a sealed folder.

    Raises:
      ValueError, OSError: the file has changed or is missing. One line.
    """
    with open_regular(folder / name) as opened:
        text = opened.read()
    if hashlib.sha256(text).hexdigest() != _checksums(folder).get(name):
        raise ValueError(f"{folder / name} has changed since it was written")
    return json.loads(text)


def remove(path: Path) -> None:
    """Deletes a folder; under its own name it never exists in part.

    Raises:
      OSError: it cannot be deleted. One line.
    """
    os.rename(path, temporary(path))
    _delete(temporary(path))


def remove_half_written(parent: Path) -> None:
    """Deletes files and folders that a killed process left half-written or half-deleted."""
    if not parent.exists():
        return
    for path in parent.iterdir():
        if path.is_dir() and _HALF_WRITTEN.fullmatch(path.name):
            _delete(path)


def _delete(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:  # it names a file without its folder
        raise OSError(f"{folder} cannot be deleted: {error}") from error


def set_aside(paths: Iterable[Path], root: Path) -> Path | None:
    """Moves files and folders below `root` to root/set_aside_1, or the next free number.

    They keep their paths below `root`; paths that do not exist are skipped.

    Returns:
      Their new folder; None if no path exists.
    """
    paths = [path for path in paths if path.exists()]
    if not paths:
        return None
    number = 1
    while (aside := root / f"set_aside_{number}").exists():
        number += 1
    for path in paths:
        target = aside / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(path, target)
    return aside


def _checksums(folder: Path) -> dict[str, str]:
    try:
        seal = json.loads(read_whole(folder / SEAL, limits.TEXT_BYTES))
        if seal["sha256"] != _sha256_of(seal["files"]):
            raise ValueError
        for name in seal["files"]:
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError
    except FileNotFoundError:
        raise ValueError(f"{folder} has no {SEAL}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{folder / SEAL} has changed since it was written") from None
    return seal["files"]


def _sha256_of(files: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
