"""Downloads sets from their homes, into the folders where `load_dataset` looks for them.

Archives stay as they are: the readers read them, and nothing is unpacked. pooch compares the
published sum before a file gets its name, so that a file that is there is the publisher's; what a
download lacks is asked for the next time.
"""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pooch
from tqdm import tqdm

from fedjax_ht.data.files.bounded import read_whole
from fedjax_ht.data.sources.addresses import ELSEWHERE, SOURCES, File, Source
from fedjax_ht.data.sources.registry import dataset_names, find_dataset

_CHUNK = 1 << 18
_TRIES = 5  # to go on after a connection broke
_TIMEOUT = 60  # seconds without a byte


def get(
    name: str,
    data_dir: str | os.PathLike,
    say: Callable[[str], None] = print,
    sources: Mapping[str, Source] | None = None,
) -> tuple[Path, ...]:
    """Downloads what is missing of a set; a second call does nothing but compare the sums.

    Args:
      name: of `SOURCES`, or tfds:NAME, which tensorflow-datasets fetches and prepares.
      data_dir: as of `load_dataset`; created if need be.
      say: is told what is done, a line each. Progress goes to stderr, if that is a terminal.
      sources: `SOURCES` if it is not given.

    Returns:
      The files and folders that `load_dataset` reads.

    Raises:
      ValueError: no such name, or a file is not the publisher's. One line, with both sums.
      OSError: no connection, or no room. One line. What has come is kept, and the same call goes on
        from there.
      ImportError: an optional package is missing.
    """
    sources, root = SOURCES if sources is None else sources, Path(data_dir).expanduser()
    prefix, colon, rest = name.partition(":")
    if prefix == "tfds" and rest:
        return _prepare(rest, root, say)
    if (prefix if colon else name) in ELSEWHERE:
        raise ValueError(f"{name}: {ELSEWHERE[prefix]}")
    if name not in sources:
        raise ValueError(f"unknown dataset {name!r}; there are {', '.join(sources)}, tfds:NAME")
    folder = root.resolve() / name
    files = {folder / file.name: file for file in sources[name].files}
    for path, file in files.items():
        if path.exists():
            _check(path, file)
    if there := _there(name, root):
        say(f"{name} is there: {', '.join(map(str, there))}")
        return there
    for path, file in files.items():
        if not path.exists():
            say(f"{file.url}, {file.size:,} bytes, to {path}")
            _fetch(file, path)
    return find_dataset(name, root)


class Listed(NamedTuple):
    """A line of `listing`: size in bytes, None if there is nothing to download; `there` what of it
    is in the folder."""

    name: str
    about: str
    size: int | None
    home: str
    there: tuple[Path, ...]


def listing(data_dir: str | os.PathLike) -> list[Listed]:
    """Every name that `load_dataset` knows."""
    lines = []
    for name in dataset_names():
        if source := SOURCES.get(name):
            home = source.files[0].url.removesuffix(source.files[0].name)
            lines.append(
                Listed(name, source.about, source.size, home, _there(name, Path(data_dir)))
            )
        else:
            why = ELSEWHERE.get(
                name.partition(":")[0], "any set that tensorflow-datasets knows, which fetches it"
            )
            lines.append(Listed(name, why, None, "", ()))
    return lines


def _there(name: str, root: Path) -> tuple[Path, ...]:
    try:
        return find_dataset(name, root)
    except FileNotFoundError:
        return ()


def _check(path: Path, file: File) -> None:
    """Of a .gz the content may do: gzip writes one content in many ways."""
    found = pooch.file_hash(str(path), "md5")
    if found == file.md5 or (file.content_md5 and _content_md5(path) == file.content_md5):
        return
    raise ValueError(
        f"{path}: its MD5 sum is {found}, the publisher's file has {file.md5}; move it away to download that"
    )


def _content_md5(path: Path) -> str:
    try:
        return hashlib.md5(read_whole(path), usedforsecurity=False).hexdigest()
    except (OSError, EOFError, ValueError, zlib.error):
        return "damaged"


def _fetch(file: File, path: Path) -> None:
    """One file; what has come of it is in `path`.part. When that is complete, pooch names it, or
    removes it."""
    pooch.get_logger().setLevel("WARNING")
    part = path.with_name(f"{file.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    _complete(part, file)

    def rename(_, output, __):
        return os.replace(part, output)

    try:
        pooch.retrieve(file.url, f"md5:{file.md5}", file.name, path.parent, downloader=rename)
    except ValueError as error:
        raise ValueError(f"{file.url}: {error}") from None


def _complete(part: Path, file: File) -> None:
    """Asks for what `part` lacks until it has the file's size."""
    url, size = file.url, file.size
    with tqdm(total=size, desc=file.name, unit="B", unit_scale=True, disable=None) as bar:
        for _ in range(_TRIES):
            try:
                broken = _go_on(url, part, size, bar)
            except urllib.error.HTTPError as error:
                if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    raise OSError(
                        f"{url}: the server answers {error.code} {error.reason}"
                    ) from None
                part.unlink(missing_ok=True)  # it is longer than what the server has
                broken = "what was there of it is not its beginning"
            except urllib.error.URLError as error:
                raise OSError(f"{url}: no connection ({error.reason})") from None
            except (OSError, http.client.HTTPException) as error:
                raise OSError(
                    f"{url}: {' '.join(str(error).split()) or type(error).__name__}"
                ) from None
            have = part.stat().st_size if part.exists() else 0
            if have == size:
                return
            if have > size:
                part.unlink()
                raise ValueError(
                    f"{url}: it is longer than the {size:,} bytes of the publisher's file"
                )
    raise OSError(
        f"{url}: ended after {have:,} of {size:,} bytes, {_TRIES} times ({broken}); the same command goes on from there"
    )


def _go_on(url: str, part: Path, size: int, bar: tqdm) -> str:
    """Asks for what is missing of `part`, or for all of it, as the server will have it; returns why
    it ended. It takes no more than one byte too many."""
    have = part.stat().st_size if part.exists() else 0
    bar.n = have
    if have == size:
        return "it is complete"
    headers = {"User-Agent": "fedjax_ht", "Accept-Encoding": "identity"} | (
        {"Range": f"bytes={have}-"} if have else {}
    )
    with urllib.request.urlopen(
        urllib.request.Request(url, headers=headers), timeout=_TIMEOUT
    ) as response:
        resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
        if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise OSError("the server sends another part than it was asked for")
        have = bar.n = have if resumed else 0
        with open(part, "ab" if resumed else "wb") as file:
            while have <= size:
                try:
                    chunk = response.read(min(_CHUNK, size + 1 - have))
                except (OSError, http.client.HTTPException) as error:
                    return str(error) or type(error).__name__
                if not chunk:
                    return "the connection was closed"
                have += file.write(chunk)
                bar.update(len(chunk))
    return "it is too long"


def _prepare(dataset: str, root: Path, say: Callable[[str], None]) -> tuple[Path, ...]:
    say(f"tfds:{dataset} is fetched and prepared by tensorflow-datasets, in {root}")
    try:
        import tensorflow_datasets as tfds

        builder = tfds.builder(dataset, data_dir=str(root), file_format="array_record")
        builder.download_and_prepare()
    except ImportError as error:
        raise ImportError(f"tfds:{dataset}: {error}; run pip install 'fedjax_ht[tfds]'") from error
    except Exception as error:  # it has dozens of its own, of many lines
        raise ValueError(
            f"tfds:{dataset}: tensorflow-datasets says {str(error).partition(chr(10))[0]}"
        ) from error
    return (Path(builder.data_dir),)
