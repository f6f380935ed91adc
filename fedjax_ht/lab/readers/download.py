"""Downloads sets from their homes, into the folders where `load_dataset` looks for them.

Archives stay as they are: the readers read them, and nothing is unpacked. The published sum is
compared before a file gets its name, so that a file that is there is the publisher's; what a
download lacks is asked for the next time.
"""

import http.client
import os
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from tqdm import tqdm

from fedjax_ht.lab.files import named
from fedjax_ht.lab.readers.registry import SOURCES
from fedjax_ht.lab.readers.source import Source, md5, md5_of_file
from fedjax_ht.lab.safe.bounded import read_whole

_CHUNK = 1 << 18
_TRIES = 5  # to go on after a connection broke
_TIMEOUT = 60  # seconds without a byte


def get(
    name: str,
    data_dir: str | os.PathLike,
    say: Callable[[str], None] = print,
    sources: Mapping[str, Source] | None = None,
) -> tuple[Path, ...]:
    """Downloads the missing files of a set; a second call does nothing but compare the sums.

    Args:
      name: a set of `SOURCES` that has files, or tfds:NAME, which tensorflow-datasets fetches and
        prepares.
      data_dir: the folder of the sets, as for `load_dataset`; created if need be.
      say: a function that takes each line of the report. Progress goes to stderr, if that is a
        terminal.
      sources: declarations by name; `SOURCES` if it is not given.

    Returns:
      The files and folders that `load_dataset` reads.

    Raises:
      ValueError: no such name, or a file is not the publisher's. One line, with both sums.
      OSError: no connection, or no room. One line. What has come is kept, and the same call goes on
        from there.
      ImportError: an optional package is missing.
    """
    root = Path(data_dir).expanduser()
    prefix, _, argument = name.partition(":")
    if prefix == "tfds" and argument:
        return _prepare(argument, root, say)
    source = _downloadable(name, SOURCES if sources is None else sources)
    files = [root.resolve() / name / file for file in source.files]
    for path in files:
        if path.exists():
            _check(path, source)
    if paths := _present(source, root):
        say(f"{name} is there: {', '.join(map(str, paths))}")
        return paths
    for path in files:
        if not path.exists():
            say(f"{source.home}{path.name}, {source.files[path.name]:,} bytes, to {path}")
            _fetch(source, path)
    return source.places("", root.resolve())


def _downloadable(name: str, sources: Mapping[str, Source]) -> Source:
    if name in sources and sources[name].files:
        return sources[name]
    prefix = name.partition(":")[0]
    if prefix in sources and prefix != "tfds":  # tfds without a name of a set is none
        raise ValueError(f"{name}: {sources[prefix].about}")
    known = ", ".join(source.name for source in sources.values() if source.files)
    raise ValueError(f"unknown dataset {name!r}; there are {known}, tfds:NAME")


def listing(data_dir: str | os.PathLike) -> list[tuple[Source, tuple[Path, ...]]]:
    """Every set or kind that `load_dataset` knows, and the files of it that are in a folder."""
    root = Path(data_dir)
    return [(each, _present(each, root) if each.files else ()) for each in SOURCES.values()]


def _present(source: Source, root: Path) -> tuple[Path, ...]:
    """The files and folders of a set; () if one is missing."""
    try:
        return source.places("", root.resolve())
    except FileNotFoundError:
        return ()


def _check(path: Path, source: Source) -> None:
    """Refuses a file of another sum.

    The content of a .gz may have the right one instead: gzip writes one content in many ways.
    """
    digest, expected = md5_of_file(path), source.md5[path.name]
    content = source.md5.get(path.stem) if path.suffix == ".gz" else None
    if digest != expected and (content is None or _content_md5(path) != content):
        raise ValueError(
            f"{path}: its MD5 sum is {digest}, the publisher's file has {expected}; move it away "
            "to download that"
        )


def _content_md5(path: Path) -> str:
    try:
        return md5(read_whole(path)).hexdigest()
    except (OSError, EOFError, ValueError, zlib.error):
        return "damaged"


def _fetch(source: Source, path: Path) -> None:
    """Downloads one file; the bytes that have come are in `path`.part, which gets the file's name
    when it is complete and has the published sum, and is deleted when it has another."""
    part, url = path.with_name(f"{path.name}.part"), source.home + path.name
    part.parent.mkdir(parents=True, exist_ok=True)
    _complete(part, url, source.files[path.name])
    digest, expected = md5_of_file(part), source.md5[path.name]
    if digest != expected:
        part.unlink()
        raise ValueError(
            f"{url}: its MD5 sum is {digest}, the publisher's file has {expected}; what came is "
            "deleted, and the same command asks for it again"
        )
    os.replace(part, path)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _complete(part: Path, url: str, size: int) -> None:
    """Asks for the bytes that `part` lacks until it has the file's size."""
    with tqdm(total=size, desc=part.stem, unit="B", unit_scale=True, disable=None) as bar:
        have, reason = 0, ""
        for _ in range(_TRIES):
            reason = _attempt(part, url, size, bar)
            have = _size(part)
            if have == size:
                return
            if have > size:
                part.unlink()
                raise ValueError(
                    f"{url}: it is longer than the {size:,} bytes of the publisher's file"
                )
    raise OSError(
        f"{url}: ended after {have:,} of {size:,} bytes, {_TRIES} times ({reason}); the same "
        "command goes on from there"
    )


def _attempt(part: Path, url: str, size: int, bar: tqdm) -> str:
    """Goes on with a download once; returns why it ended.

    Raises:
      OSError: there is no use in another attempt. One line.
    """
    try:
        return _go_on(part, url, size, bar)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise OSError(f"{url}: the server answers {error.code} {error.reason}") from None
        part.unlink(missing_ok=True)  # it is longer than the server's file
        return "the part that was here is not its beginning"
    except urllib.error.URLError as error:
        raise OSError(f"{url}: no connection ({error.reason})") from None
    except (OSError, http.client.HTTPException) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise OSError(f"{url}: {reason}") from None


def _go_on(part: Path, url: str, size: int, bar: tqdm) -> str:
    """Asks for the rest of `part`, and takes the whole file from a server that knows no ranges.

    It takes no more than one byte too many. Returns why it ended.
    """
    have = bar.n = _size(part)
    if have == size:
        return "it is complete"
    # a compressed answer would be another content than the one whose size is known
    headers = {"User-Agent": "fedjax_ht", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
        resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
        content_range = response.headers.get("Content-Range", "")
        if resumed and not content_range.startswith(f"bytes {have}-"):
            raise OSError("the server sends another part than it was asked for")
        if not resumed:
            have = bar.n = 0
        with named(part), open(part, "ab" if resumed else "wb") as target:
            return _copy(response, target, have, size, bar)


def _copy(response: http.client.HTTPResponse, target, have: int, size: int, bar: tqdm) -> str:
    """Copies an answer to the end of a file of `have` bytes; returns why it ended."""
    while have <= size:
        try:
            chunk = response.read(min(_CHUNK, size + 1 - have))
        except (OSError, http.client.HTTPException) as error:
            return str(error) or type(error).__name__
        if not chunk:
            return "the connection was closed"
        have += target.write(chunk)
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
        reason = str(error).partition("\n")[0]
        raise ValueError(f"tfds:{dataset}: tensorflow-datasets says {reason}") from error
    return (Path(builder.data_dir),)
