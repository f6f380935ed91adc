"""Results of `experiments.attack`: rows of a CSV, Markdown tables of them, and pictures."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from experiments.rows import column, grouped, read_rows, write_rows
from fedjax_ht.lab.report.document import Document, Table, table_of
from fedjax_ht.lab.report.plots import save, subplots

# the attacker's knowledge of the client's state
NOT_NEEDED, OWN, OTHER = "is sent", "is known", "is guessed"


class Row(NamedTuple):
    """One result.

    Attributes:
      round, method, attack, client: attacked round, method and client, and the attack.
      batch, tv, noise: images per step, weight of the total variation, and deviation of the noise.
      state: whether the client's model is sent, known, or guessed to be another client's first one;
        for membership, the queried model: the server's, which is sent, or the client's own.
      numbers: floats sent.
      psnr, ssim: means over the images of an inversion; "" for membership.
      auc: AUC of membership; "" for inversions.
      trial: trial of the run.
      image: index of the client's upload, from 0.
      unit, clip, scale: the run's privacy and its noise, in `clip`; "" and 0 without.
      epsilon: epsilon of what the attacker sees; inf if no noise hides it, "" without privacy.
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
    """Images that an attack made from one upload.

    Attributes:
      row: the result.
      images: float [B, H, W, C] in [0, 1].
      real: the client's images, of the same shape.
    """

    row: Row
    images: np.ndarray
    real: np.ndarray


def add(rows: Iterable[Row], path: Path) -> None:
    """Appends rows to those in the file."""
    before = read_rows(path, Row) if path.exists() else []
    write_rows(path, Row._fields, [*before, *rows])


def markdown(rows: Sequence[Row]) -> str:
    """Makes Markdown tables of inversions and memberships, over all uploads, clients and trials.

    A table without rows is omitted.
    """
    inferred, inverted = [], []
    for row in rows:
        (inferred if row.attack == "membership" else inverted).append(row)
    tables = []
    if inverted:
        tables.append(inversions(grouped(inverted, round_and_step)))
    if inferred:
        tables.append(memberships(grouped(inferred, round_and_model)))
    return Document(tables).markdown()


def round_and_step(row: Row) -> tuple:
    """Returns the cells that identify a line in the table of inversions."""
    noise = f"{row.noise:g}" if row.noise else ""
    step = map(str, (row.round, row.method, row.batch, row.numbers))
    return (*step, row.state, noise, hidden(row))


def round_and_model(row: Row) -> tuple:
    """Returns the cells that identify a line in the table of memberships."""
    model = "the server's" if row.state == NOT_NEEDED else "the client's own"
    return str(row.round), row.method, model, hidden(row)


def inversions(groups: Mapping[tuple, list[Row]]) -> Table:
    """Makes the table of inversions, with a column per attack."""
    titles = ["round", "method", "images", "numbers sent", "the client's model", "noise", "privacy"]
    attacks: dict[str, None] = {}  # in order
    lines = []
    for names, rows in groups.items():
        by_attack = grouped(rows, title)
        attacks |= dict.fromkeys(by_attack)
        cells = dict(zip(titles, names))
        cells |= {"epsilon": epsilon_of(rows), "uploads": str(max(map(len, by_attack.values())))}
        cells |= zip(by_attack, map(psnr_and_ssim, by_attack.values()))
        lines.append(without_empty(cells, ("noise", "privacy", "epsilon")))
    return table_of(lines, [*titles, "epsilon", "uploads", *attacks], missing="")


def memberships(groups: Mapping[tuple, list[Row]]) -> Table:
    """Makes the table of inferred memberships."""
    titles = ["round", "method", "the model", "privacy", "epsilon"]
    numbers = ["AUC, mean over clients", "least", "most", "clients"]
    lines = []
    for (number, method, model, privacy), rows in groups.items():
        values = column(rows, "auc")
        aucs = [f"{value:.3f}" for value in (np.mean(values), min(values), max(values))]
        names = [number, method, model, privacy, epsilon_of(rows)]
        cells = dict(zip([*titles, *numbers], [*names, *aucs, str(len(values))]))
        lines.append(without_empty(cells, ("privacy", "epsilon")))
    return table_of(lines, [*titles, *numbers], missing="")


def without_empty(cells: dict[str, str], columns: Sequence[str]) -> dict[str, str]:
    """Drops the cells of some columns if they are empty."""
    return {title: text for title, text in cells.items() if text or title not in columns}


def title(row: Row) -> str:
    """Names the attack."""
    return f"{row.attack}, tv {row.tv:g}" if row.tv else row.attack


def hidden(row: Row) -> str:
    """Describes the run's privacy; "" without any."""
    return f"{row.unit}, clip {row.clip:g}, noise {row.scale:g}" if row.unit else ""


def epsilon_of(rows: Iterable[Row]) -> str:
    """Formats the largest epsilon: "none" if something is unhidden, "" if nothing is private."""
    values = [row.epsilon for row in rows if row.epsilon != ""]
    if not values:
        return ""
    return f"{max(values):.3g}" if max(values) < math.inf else "none"


def psnr_and_ssim(rows: Sequence[Row]) -> str:
    """Formats means over rows, for PSNR with minimum and maximum."""
    values = column(rows, "psnr")
    ratio = f"{np.mean(values):.1f}"
    if len(values) > 1:
        ratio += f" ({min(values):.1f} to {max(values):.1f})"
    similarity = np.mean(column(rows, "ssim")).round(2) + 0.0  # never "-0.00"
    return f"{ratio} / {similarity:.2f}"


def picture(inverted: Sequence[Inverted], path: Path) -> None:
    """Draws the real images of all uploads side by side, and each attack's images in a row."""
    columns = []
    for results in grouped(inverted, knowledge_of).values():
        columns.append(grouped(results, attack_of))
    first = next(iter(columns[0].values()))
    real = np.concatenate(column(first, "real"))
    rows, cols = max(map(len, columns)), len(columns) + 1
    width, height = (1.4, 1.5) if len(real) == 1 else (0.75 * len(real), 1.2)  # inches of a cell
    figure, axes = subplots(rows, cols, squeeze=False, figsize=(width * cols, height * rows))
    for cell in axes.flat:
        cell.axis("off")
    draw(axes[0, 0], real, "real")
    for place, by_attack in zip(axes.T[1:], columns):
        for cell, (attack, results) in zip(place, by_attack.items()):
            state, noise = knowledge_of(results[0])
            model = f"model {state}, noise {noise:g}" if noise else f"model {state}"
            score = np.mean(column(column(results, "row"), "psnr"))
            draw(
                cell,
                np.concatenate(column(results, "images")),
                f"{attack}\n{model}\n{score:.1f} dB",
            )
    save(figure, path)


def attack_of(result: Inverted) -> str:
    """Names the attack that made the images."""
    return title(result.row)


def knowledge_of(result: Inverted) -> tuple[str, float]:
    """Returns the attacker's knowledge of the client's state, and the noise on the upload."""
    return result.row.state, result.row.noise


def draw(axes: Axes, images: np.ndarray, about: str) -> None:
    """Draws images [B, H, W, C] side by side."""
    axes.imshow(np.concatenate(images, 1).squeeze(), cmap="gray", vmin=0, vmax=1)
    axes.set_title(about, fontsize=6)
