"""Reads the folder of a search (`fedjax-ht sweep`): its points, their scores, and its choice."""

from pathlib import Path
from typing import NamedTuple

from fedjax_ht.lab.runs.folder import Folder, naming, read_folder, read_json
from fedjax_ht.lab.runs.search import best_first, standing

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


def final_scores(search: Search) -> dict[str, float]:
    """Returns the scores of the points that the search trained longest, NaN if all diverged.

    Raises:
      ValueError: the search is unfinished. One line.
    """
    last = search.folder.fields["rounds"]
    at = sorted({*search.scores, last})
    rounds, alive = standing(list(search.folder.entries), at, search.scores)
    scores = search.scores.get(rounds, {})
    for label in alive:
        if label not in scores:
            raise ValueError(
                f"the search in {search.folder.path} is not finished: {label} has no score after "
                f"{rounds} rounds; {GO_ON}"
            )
    return {label: scores[label] for label in alive}


def choice(search: Search) -> str:
    """Returns the point that the search chose, as an entry for `fedjax-ht compare --methods`.

    Raises:
      ValueError: it is unfinished, or no point stayed finite. One line.
    """
    order = best_first(final_scores(search))
    if not order:
        raise ValueError(
            f"no point of the search in {search.folder.path} stayed finite; search lower learning "
            "rates"
        )
    return order[0]
