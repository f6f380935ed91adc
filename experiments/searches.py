"""Reads the folder of a search (`fedjax-ht sweep`): its points, their scores, and its choice."""

from pathlib import Path
from typing import NamedTuple

from fedjax_ht.lab.runs.folder import Folder, naming, read_folder, read_json
from fedjax_ht.lab.runs.search import better_half

RECORD = "search.json"
GO_ON = "give the same sweep again, which goes on"


class Search(NamedTuple):
    """A search so far.

    Attributes:
      folder: folder whose entries are the points.
      scores: number of rounds -> label -> validation accuracy; NaN for a point in which a client or
        the server did not stay finite.
    """

    folder: Folder
    scores: dict[int, dict[str, float]]


def read_search(path: Path) -> Search:
    """Reads the folder of a search.

    Raises:
      ValueError, OSError: there is none, or nothing is scored yet. One line.
    """
    folder, record = read_folder(path), path / RECORD
    if not record.exists():
        raise FileNotFoundError(f"no scored search in {path}: {RECORD} is missing")
    content = read_json(record)
    with naming(record):
        return Search(folder, {int(rounds): dict(scores) for rounds, scores in content.items()})


def survivors(search: Search) -> list[str]:
    """Returns the points that have trained for all rounds, in order.

    Raises:
      ValueError: the search is unfinished. One line.
    """
    path, last = search.folder.path, search.folder.fields["rounds"]
    alive = list(search.folder.entries)
    for rounds, scores in sorted(search.scores.items()):
        missing = [label for label in alive if label not in scores]
        if missing:
            raise ValueError(
                f"the search in {path} is not finished: {missing[0]} has no score after {rounds} "
                f"rounds; {GO_ON}"
            )
        if rounds == last:
            return alive
        alive = better_half({label: scores[label] for label in alive})
    raise ValueError(f"the search in {path} is not finished: no point has {last} rounds; {GO_ON}")


def choice(search: Search) -> str:
    """Returns the point that the search chose, as an entry for `fedjax-ht compare --methods`.

    Raises:
      ValueError: it is unfinished, or no point stayed finite. One line.
    """
    alive = survivors(search)
    last = search.scores[search.folder.fields["rounds"]]
    finite = better_half({label: last[label] for label in alive})
    if not finite:
        raise ValueError(
            f"no point of the search in {search.folder.path} stayed finite; search lower learning "
            "rates"
        )
    return max(finite, key=last.__getitem__)
