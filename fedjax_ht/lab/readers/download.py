"""Downloads data sets from their publishers into the folders that `load_dataset` searches.

Archives stay packed, since the readers read them directly. A file gets its final name only after
its checksum matches the published one, so any file with that name is the publisher's.
"""

import functools
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from tqdm import tqdm

from fedjax_ht.lab.files import named
from fedjax_ht.lab.readers.registry import SOURCES
from fedjax_ht.lab.readers.source import File, Source
from fedjax_ht.lab.safe.bounded import open_regular

_CHUNK = 1 << 18
_TIMEOUT = 60  # seconds without a byte


def get(
    name: str,
    data_dir: str | os.PathLike,
    say: Callable[[str], None] = print,
    sources: Mapping[str, Source] | None = None,
) -> tuple[Path, ...]:
    """Downloads the missing files of a set; a second call only verifies checksums.

    Args:
      name: a set of `SOURCES` with files or a builder; or tfds:NAME, which tensorflow-datasets
        downloads and prepares.
      data_dir: folder of the data sets, as for `load_dataset`; created if missing.
      say: called with each line of the report. Progress goes to stderr if that is a terminal.
      sources: declarations by name; `SOURCES` if not given.

    Returns:
      The files and folders that `load_dataset` reads.

    Raises:
      ValueError: unknown name, or a file differs from the publisher's. One line, with both sums.
      OSError: no connection, or no space. One line.
      ImportError: an optional package is missing.
    """
    root = Path(data_dir).expanduser()
    prefix, _, argument = name.partition(":")
    if prefix == "tfds" and argument:
        return _prepare(argument, root, say)
    source = _downloadable(name, SOURCES if sources is None else sources)
    if source.builder:
        return _prepare(source.builder, root, say)
    files = {root.resolve() / name / file: about for file, about in source.files.items()}
    for path, about in files.items():
        if path.exists() and _md5(path) != about.md5:
            raise ValueError(
                f"{path}: its MD5 sum is {_md5(path)}, but the publisher's file has {about.md5}; "
                "move it away to download that file"
            )
    if paths := _present(source, root):
        say(f"{name} already exists: {', '.join(map(str, paths))}")
        return paths
    for path, about in files.items():
        if not path.exists():
            say(f"{source.home}{path.name}, {about.size:,} bytes, to {path}")
            _fetch(source.home + path.name, about, path)
    return source.places("", root.resolve())


def _downloadable(name: str, sources: Mapping[str, Source]) -> Source:
    if name in sources and (sources[name].files or sources[name].builder):
        return sources[name]
    prefix = name.partition(":")[0]
    if prefix in sources and prefix != "tfds":  # "tfds" without a set's name is unknown
        raise ValueError(f"{name}: {sources[prefix].about}")
    known = ", ".join(each.name for each in sources.values() if each.files or each.builder)
    raise ValueError(f"unknown dataset {name!r}; there are {known}, tfds:NAME")


def listing(data_dir: str | os.PathLike) -> list[tuple[Source, tuple[Path, ...]]]:
    """Returns every set or kind that `load_dataset` knows, with its files present in a folder."""
    root = Path(data_dir)
    return [(each, _present(each, root) if each.files else ()) for each in SOURCES.values()]


def _present(source: Source, root: Path) -> tuple[Path, ...]:
    """Returns the files and folders of a set; () if one is missing."""
    try:
        return source.places("", root.resolve())
    except FileNotFoundError:
        return ()


def _md5(path: Path) -> str:
    """Returns the MD5 sum of a file, which detects damage, not forgery."""
    with open_regular(path) as file:
        algorithm = functools.partial(hashlib.md5, usedforsecurity=False)
        return hashlib.file_digest(file, algorithm).hexdigest()


def _fetch(url: str, about: File, path: Path) -> None:
    """Downloads a file to `path`.part, and renames it once its checksum matches."""
    part = path.with_name(f"{path.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        have, size = _copy(url, part, about.size), f"{about.size:,} bytes of the publisher's file"
        if have < about.size:
            raise OSError(f"{url}: ended after {have:,} of {size}; try again")
        if have > about.size:
            raise ValueError(f"{url}: longer than the {size}")
        if _md5(part) != about.md5:
            raise ValueError(
                f"{url}: its MD5 sum is {_md5(part)}, but the publisher's file has {about.md5}"
            )
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _copy(url: str, part: Path, size: int) -> int:
    """Copies a URL to a file, reading at most `size` + 1 bytes; returns the number of bytes.

    Raises:
      OSError: no connection, no such file, or no space. One line.
    """
    # a compressed response would not match the published size
    headers = {"User-Agent": "fedjax_ht", "Accept-Encoding": "identity"}
    request, have = urllib.request.Request(url, headers=headers), 0
    try:
        with (
            urllib.request.urlopen(request, timeout=_TIMEOUT) as response,
            tqdm(total=size, desc=part.stem, unit="B", unit_scale=True, disable=None) as bar,
            named(part),
            open(part, "wb") as target,
        ):
            while chunk := response.read(min(_CHUNK, size + 1 - have)):
                have += target.write(chunk)
                bar.update(len(chunk))
    except urllib.error.HTTPError as error:
        raise OSError(f"{url}: the server answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise OSError(f"{url}: no connection ({error.reason})") from None
    except (OSError, http.client.HTTPException) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise OSError(f"{url}: {reason}") from None
    return have


def _prepare(dataset: str, root: Path, say: Callable[[str], None]) -> tuple[Path, ...]:
    say(f"tfds:{dataset} is fetched and prepared by tensorflow-datasets, in {root}")
    try:
        import tensorflow_datasets as tfds

        builder = tfds.builder(dataset, data_dir=str(root), file_format="array_record")
        builder.download_and_prepare()
    except ImportError as error:
        raise ImportError(f"tfds:{dataset}: {error}; run pip install 'fedjax_ht[tfds]'") from error
    except Exception as error:  # it has dozens of its own types, with multi-line messages
        reason = str(error).partition("\n")[0]
        raise ValueError(f"tfds:{dataset}: tensorflow-datasets says {reason}") from error
    return (Path(builder.data_dir),)
