"""What attacks have found: rows of a CSV, tables of them in Markdown, and pictures; of
`experiments.attack`."""

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedjax_ht.core.files import atomic_open
from fedjax_ht.report import plots

T = TypeVar("T")

# what the attacker has of the client's state
NOT_NEEDED, OWN, OTHER = "is sent", "is known", "is guessed"


class Row(NamedTuple):
    """One result.

    Attributes:
      round, method, attack, client: of what.
      batch, tv, noise: images of the step, weight of the total variation, and deviation of the
        noise.
      state: the client's model is sent, known, or guessed to be another client's first one; of
        membership, which model is asked: the server's, which is sent, or the client's own.
      numbers: floats sent.
      psnr, ssim: means over the images of an inversion; "" of membership.
      auc: of membership; "" of inversions.
      trial: of the run.
      image: which upload of the client, from 0.
      unit, clip, scale: the run's privacy and its noise, in `clip`; "" and 0 without.
      epsilon: of what the attacker looks at; inf where no noise hides it, "" without privacy.
    """

    round: int
    method: str
    attack: str
    client: int
    batch: int = 0
    tv: float = 0.0
    noise: float = 0.0
    state: str = OWN
    numbers: int = 0
    psnr: float | str = ""
    ssim: float | str = ""
    auc: float | str = ""
    trial: int = 0
    image: int = 0
    unit: str = ""
    clip: float = 0.0
    scale: float = 0.0
    epsilon: float | str = ""


class Inverted(NamedTuple):
    """What was found of one upload; images, real: float [B, H, W, C] in [0, 1]."""

    row: Row
    images: np.ndarray
    real: np.ndarray


FIRST = Row(0, "", "", 0)
NEEDED = Row._fields[: -len(Row._field_defaults)]
NUMBER_OR_NONE = ("psnr", "ssim", "auc", "epsilon")


def add(rows: Iterable[Row], path: Path) -> None:
    """Writes the rows behind those that the file has."""
    before = read(path) if path.exists() else []
    with atomic_open(path) as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows(
            [f"{x:.6g}" if isinstance(x, float) else x for x in row] for row in (*before, *rows)
        )


def read(path: Path) -> list[Row]:
    """What `add` has written; columns that an earlier version did not have are at their defaults.

    Raises:
      ValueError, OSError: there is no such file, or it is of another kind. One line.
    """

    def value(name: str, text: str):
        if name in NUMBER_OR_NONE:
            return float(text) if text else ""
        return type(getattr(FIRST, name))(text)

    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        columns = reader.fieldnames or ()
        if not set(NEEDED) <= set(columns) <= set(Row._fields):
            raise ValueError(
                f"{path} has the columns {reader.fieldnames}; expected {', '.join(Row._fields)}"
            )
        return [Row(**{name: value(name, text) for name, text in row.items()}) for row in reader]


def markdown(rows: Sequence[Row]) -> str:
    """A table of inversions and one of membership, over all uploads, clients and trials."""
    found = grouped((r for r in rows if r.attack != "membership"), round_and_step)
    members = grouped((r for r in rows if r.attack == "membership"), round_and_model)
    return "\n\n".join(table for table in (inversions(found), memberships(members)) if table)


def grouped(found: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    groups: dict[Any, list[T]] = {}
    for one in found:
        groups.setdefault(key(one), []).append(one)
    return groups


def round_and_step(r: Row) -> tuple:
    """What a line of the table of inversions is about."""
    noise = f"{r.noise:g}" if r.noise else ""
    return (*map(str, (r.round, r.method, r.batch)), str(r.numbers), r.state, noise, hidden(r))


def round_and_model(r: Row) -> tuple:
    """Of memberships."""
    return (
        str(r.round),
        r.method,
        "the server's" if r.state == NOT_NEEDED else "the client's own",
        hidden(r),
    )


def inversions(groups: Mapping[tuple, list[Row]]) -> str:
    columns = list(dict.fromkeys(title(r) for rows in groups.values() for r in rows))
    heads = ["round", "method", "images", "numbers sent", "the client's model", "noise", "privacy"]
    lines = []
    for about, rows in groups.items():
        by_attack = grouped(rows, title)
        shown = [psnr_and_ssim(by_attack[c]) if c in by_attack else "" for c in columns]
        lines.append([*about, epsilon_of(rows), str(max(map(len, by_attack.values()))), *shown])
    return table(
        [*heads, "epsilon", "uploads", *columns], lines, droppable=("noise", "privacy", "epsilon")
    )


def memberships(groups: Mapping[tuple, list[Row]]) -> str:
    heads = [
        "round",
        "method",
        "the model",
        "privacy",
        "epsilon",
        "AUC, mean over clients",
        "least",
        "most",
        "clients",
    ]
    lines = []
    for about, rows in groups.items():
        values = [r.auc for r in rows]
        shown = (f"{x:.3f}" for x in (np.mean(values), min(values), max(values)))
        lines.append([*about, epsilon_of(rows), *shown, str(len(values))])
    return table(heads, lines, droppable=("privacy", "epsilon"))


def table(heads: Sequence[str], lines: Sequence[Sequence[str]], droppable: Sequence[str]) -> str:
    """Markdown, without the columns that may be dropped and are empty; "" without lines."""
    kept = [
        i for i, head in enumerate(heads) if head not in droppable or any(line[i] for line in lines)
    ]
    first, *others = (f"| {' | '.join(row[i] for i in kept)} |" for row in (heads, *lines))
    return "\n".join([first, f"|{'---|' * len(kept)}", *others]) if lines else ""


def title(row: Row) -> str:
    return f"{row.attack}, tv {row.tv:g}" if row.tv else row.attack


def hidden(row: Row) -> str:
    """The run's privacy in words; "" without."""
    return f"{row.unit}, clip {row.clip:g}, noise {row.scale:g}" if row.unit else ""


def epsilon_of(rows: Iterable[Row]) -> str:
    """The largest; "" where nothing is private."""
    found = [r.epsilon for r in rows if r.epsilon != ""]
    return "" if not found else f"{max(found):.3g}" if max(found) < math.inf else "none"


def psnr_and_ssim(rows: Sequence[Row]) -> str:
    """Means, of PSNR with the least and the most."""
    values = [r.psnr for r in rows]
    ends = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
    return f"{np.mean(values):.1f}{ends} / {np.mean([r.ssim for r in rows]).round(2) + 0.0:.2f}"


def picture(found: Sequence[Inverted], path: Path) -> None:
    """The real images of all uploads side by side, and below each other what the attacks found of
    them."""
    columns = grouped(found, lambda one: (one.row.state, one.row.noise))
    attacks = [grouped(column, lambda one: title(one.row)) for column in columns.values()]
    first = next(iter(attacks[0].values()))
    real = np.concatenate([one.real for one in first])
    grid = max(map(len, attacks)), len(columns) + 1
    size = (1.4, 1.5) if len(real) == 1 else (0.75 * len(real), 1.2)  # of a cell, in inches
    figure, axes = plots.subplots(
        *grid, squeeze=False, figsize=(size[0] * grid[1], size[1] * grid[0])
    )
    for cell in axes.flat:
        cell.axis("off")
    draw(axes[0, 0], real, "real")
    for place, (state, noise), by_attack in zip(axes.T[1:], columns, attacks):
        for cell, (attack, own) in zip(place, by_attack.items()):
            added = f", noise {noise:g}" if noise else ""
            score = np.mean([one.row.psnr for one in own])
            draw(
                cell,
                np.concatenate([one.images for one in own]),
                f"{attack}\nmodel {state}{added}\n{score:.1f} dB",
            )
    plots.save(figure, path)


def draw(axes, images: np.ndarray, about: str) -> None:
    """Images [B, H, W, C] side by side."""
    axes.imshow(np.concatenate(images, 1).squeeze(), cmap="gray", vmin=0, vmax=1)
    axes.set_title(about, fontsize=6)
