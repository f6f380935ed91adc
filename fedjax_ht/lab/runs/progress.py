"""Shows a run's progress: a bar on a terminal, elsewhere one line per evaluation."""

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from fedjax_ht.lab.report.bad_clients import Notes, place_of
from fedjax_ht.lab.report.document import Document, human_bytes
from fedjax_ht.lab.report.rows import ACCURACY, Score
from fedjax_ht.lab.runs.folder import is_primary
from fedjax_ht.simulation.history import wire_bytes
from fedjax_ht.simulation.rows import score_of


class Progress:
    """Shows round, accuracy, seconds and bytes of each entry, from its rows.

    Lines show the last trial. Trouble in any trial gets a line at once, see `bad_clients.Notes`.
    The estimate of the remaining time excludes the first round, which compiles.

    Args:
      rounds: rounds of a run.
      trials: runs of an entry.
      side_by_side: True for runs that train at the same time, each with its own bar or lines.
    """

    def __init__(self, rounds: int, trials: int, side_by_side: bool = False):
        self.rounds, self.trials, self.side_by_side = rounds, trials, side_by_side
        self.bars: dict[str, tqdm] = {}
        self.scores: dict[tuple[str, int], float] = {}  # by label and trial
        self.score = ACCURACY
        self.seconds: dict[str, list[float]] = {}  # of each row of the last trial, by label
        self.notes = Notes()

    def __call__(self, label: str, row: dict) -> None:
        for note in self.notes.of(label, row):
            tell(f"{place_of(label, row, self.trials)}: {note}")
        if score_of(row) in row:
            self.score = Score(score_of(row))
            self.scores[label, row["trial"]] = row[self.score.key]
        text = self._text(label, row)
        if self.side_by_side and self.trials > 1:
            label = f"{label}, trial {row['trial']}"
        if sys.stderr.isatty():
            self._draw(label, row["round"], text)
        elif self.side_by_side or row["trial"] == self.trials - 1:
            self.seconds.setdefault(label, []).append(_seconds(row))
            if score_of(row) in row:
                place = f"{label}, round {row['round']} of {self.rounds}"
                tell(f"{place}: {text}{self._left(label, row['round'])}")

    def close(self) -> None:
        """Closes the bars."""
        for bar in self.bars.values():
            bar.close()

    def _text(self, label: str, row: dict) -> str:
        parts = []
        scores = []
        for (name, trial), score in self.scores.items():
            if name == label and (trial == row["trial"] or not self.side_by_side):
                scores.append(score)
        if scores:  # a resumed run may not have evaluated yet
            name = "acc" if self.score == ACCURACY else self.score.name
            mean = self.score.text(sum(scores) / len(scores))
            parts.append(f"{name} {mean}{self.score.unit}")
        parts.append(f"{_seconds(row):.1f} s")
        for way in ("up", "down"):
            parts.append(f"{way} {human_bytes(wire_bytes(row, f'{way}link'))}")
        return ", ".join(parts)

    def _left(self, label: str, round: int) -> str:
        """Returns the estimated time of the remaining rounds; "" before it is known."""
        usual = self.seconds[label][2:]  # without the untrained federation and the first round
        if not usual or round == self.rounds:
            return ""
        left = (self.rounds - round) * sum(usual) / len(usual)
        return f", {tqdm.format_interval(left)} left"

    def _draw(self, label: str, round: int, text: str) -> None:
        if label not in self.bars:
            if not self.side_by_side:
                self.close()  # one bar at a time
            start = round - (round > 0)
            self.bars[label] = tqdm(
                total=self.rounds, initial=start, desc=label.ljust(8), unit="round", leave=True
            )
        bar = self.bars[label]
        bar.set_postfix_str(text)
        first = bar.n == bar.initial and round > bar.n
        bar.update(round - bar.n)
        if first:  # rates and remaining time exclude the round that compiles
            bar.start_t, bar.initial = time.time(), bar.n


def tell(line: str) -> None:
    """Prints a line to stderr, above a progress bar."""
    tqdm.write(line, file=sys.stderr)


def print_result(result: Document) -> None:
    """Prints a result: on a terminal with tables that fit, to a file or pipe as Markdown."""
    text = result.markdown()
    if sys.stdout.isatty():
        text = result.terminal(shutil.get_terminal_size().columns)
    print(f"\n{text}\n", flush=True)


def print_files(files: Sequence[Path]) -> None:
    """Prints the files that were written, in one process of a run only."""
    if is_primary() and files:
        print("\n".join(["written:", *(f"  {path}" for path in files)]))


def _seconds(row: dict) -> float:
    return row["seconds_round"] + row["seconds_evaluation"]
