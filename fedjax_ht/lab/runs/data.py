"""Downloads data sets, lists the available ones, and shows one.

    fedjax-ht data get cifar10 [--data_dir=data]
    fedjax-ht data list [--data_dir=data]
    fedjax-ht data show csv:mine.csv [--label=outcome] [--features=-id] [--page=mine.html]

The same command restarts an interrupted download. Runs read downloaded sets by
--config.dataset.name=NAME --config.dataset.data_dir=DIR. `show` prints what a run would read:
samples, classes, sets, columns, and what was skipped or converted. It also writes a page with
twenty samples, the classes by set and the values. Its flags are fields of a config, dataset.label
and so on.
"""

import html
import io
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
from absl import flags
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.ticker import MaxNLocator

from fedjax_ht.core.inputs import Pixels
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.data.public import private_indices
from fedjax_ht.lab.files import write_whole
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.readers.description import Description, describe
from fedjax_ht.lab.readers.download import get, listing
from fedjax_ht.lab.readers.source import Source, TaskName
from fedjax_ht.lab.report import document
from fedjax_ht.lab.report.document import Bullets, Table
from fedjax_ht.lab.report.plots import COLOURS, FEW, legend, rendered, subplots

# allow_override: another command defines the same flag, and one process may import both
_DATA_DIR = flags.DEFINE_string("data_dir", "data", "The data sets' folder.", allow_override=True)
_PAGE = flags.DEFINE_string("page", None, "show: the page to write; by default data-NAME.html.")
_TASK = flags.DEFINE_enum(
    "task", "classification", get_args(TaskName), "show: the meaning of the labels."
)
_LABEL = flags.DEFINE_string("label", None, "show: the label column.")
_FEATURES = flags.DEFINE_list("features", [], "show: the feature columns, or -NAME to exclude one.")
_GROUP = flags.DEFINE_string("group", None, "show: the group column, such as a sample's person.")
_IMAGE_SIZE = flags.DEFINE_integer("image_size", None, "show: pixels to resize to.")
_TEXT_LENGTH = flags.DEFINE_integer("text_length", None, "show: tokens per text.")
_TOKENIZER = flags.DEFINE_string("tokenizer", None, "show: the tokenizer for texts.")
_READING = (_TASK, _LABEL, _FEATURES, _GROUP, _IMAGE_SIZE, _TEXT_LENGTH, _TOKENIZER)
"""Flags that are options of `load_dataset`."""
_USAGE = "`get NAME`, `list` or `show NAME`, with --data_dir=DIR unless that is data"


def command(arguments: Sequence[str], data_dir: str, page: str | None = None, **options) -> None:
    """Runs the action that the command line names: ["get", NAME], ["list"] or ["show", NAME].

    Args:
      arguments: the positional arguments of the command line.
      data_dir: the folder of the sets' files.
      page: path of the page that `show` writes; None names it after the set.
      **options: options of `load_dataset`, for `show`.

    Raises:
      ValueError, OSError, ImportError: one line.
    """
    match list(arguments):
        case ["show", name]:
            show(load_dataset(name, data_dir, **options), Path(page or page_name(name)))
        case ["list"]:
            print("\n".join(itertools.starmap(line, listing(data_dir))))
        case ["get", name]:
            get(name, data_dir)
            print(f"read it with --config.dataset.name={name} --config.dataset.data_dir={data_dir}")
        case _:
            raise ValueError(f"unknown command {' '.join(arguments)!r}; give {_USAGE}")


def show(dataset: Dataset, page: Path) -> None:
    """Prints a summary of a data set, and writes a page that shows it."""
    print("\n".join(describe(dataset).lines))
    print(f"written: {write_data_page(dataset, page)}")


def page_name(name: str) -> str:
    """Returns the name of a data set's page: "data-mine.html" for "csv:folder/mine.csv"."""
    prefix, _, argument = name.partition(":")
    path = argument.partition(":")[0] if prefix in ("csv", "parquet", "hf", "text") else argument
    stem = Path(path).name.partition(".")[0] or prefix
    return f"data-{re.sub(r'[^0-9A-Za-z_-]+', '-', stem)}.html"


def line(source: Source, present: Sequence[Path]) -> str:
    """Returns the line of a data set: its name, its kind, and whether it is downloaded."""
    if not source.files:  # nothing is downloaded
        return f"{source.name:<20}{source.about}"
    state = f"found: {present[0]}" if present else "not found"
    size = f"{sum(file.size for file in source.files.values()) / 1e6:,.0f} MB"
    return f"{source.name:<20}{source.about}; {size} from {source.home}; {state}"


def main(arguments: list[str]) -> None:
    options = {flag.name: flag.value for flag in _READING}
    command(arguments[1:], _DATA_DIR.value, _PAGE.value, **options)


MOST = 40  # classes up to which names are written beside the bars
BINS = 64
WIDTH = 5.5  # inches: words stay readable when a phone shrinks the picture


def class_counts_picture(counts: Mapping[str, np.ndarray], class_names: Sequence[str]) -> Figure:
    """Draws the samples of every class, stacked by set.

    Args:
      counts: name of a set -> int [classes].
      class_names: names of all classes.
    """
    with_names = len(class_names) <= MOST
    figure, axes = subplots(figsize=(WIDTH, 0.26 * min(len(class_names), MOST) + 1.2))
    left = np.zeros(len(class_names), int)
    for i, (name, of_set) in enumerate(counts.items()):
        colour = COLOURS[i % len(COLOURS)]
        axes.barh(range(len(class_names)), of_set, left=left, label=name, color=colour)
        left = left + of_set
    if with_names:
        names = [name if len(name) <= 24 else f"{name[:23]}…" for name in class_names]
        axes.set_yticks(range(len(class_names)), names, fontsize=8)
    axes.invert_yaxis()  # the first class on top
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="samples", ylabel="" if with_names else "class")
    axes.grid(alpha=0.3, axis="x")
    if len(counts) > 1:
        legend(axes, FEW + 1)
    return figure


def histogram(values: np.ndarray) -> Figure:
    """Draws a histogram of values."""
    figure, axes = subplots(figsize=(2.4, 1.3))
    axes.hist(np.ravel(values), _edges(values), color=COLOURS[0])
    axes.tick_params(labelsize=6)
    return figure


def _edges(values: np.ndarray) -> np.ndarray:
    """Edges of bins; centred on integers if all values are whole numbers."""
    if not values.size:
        return np.array([0.0, 1.0])
    low, high = float(values.min()), float(values.max())
    if high - low < 2**31 and (values == np.floor(values)).all():
        step = -(-int(high - low + 1) // BINS)
        return np.arange(low, high + 1 + step, step) - 0.5
    return np.histogram_bin_edges(values, BINS)


def window_picture(window: np.ndarray) -> Figure:
    """Draws one window of sensors, float [T, ...]: one line per signal, over time."""
    figure, axes = subplots(figsize=(2.4, 1.2))
    axes.plot(window.reshape(len(window), -1), lw=0.8)
    axes.axis("off")
    return figure


SAMPLES = 20
LOOKED_AT = 2_000  # samples whose values are counted
MOST_COLOURS = 6  # sets or groups into which a bar is divided
PANELS = 24  # features or channels whose values are drawn
TOKENS = 60  # tokens of a text to show


def write_data_page(dataset: Dataset, path: Path) -> Path:
    """Writes a self-contained page, which needs no network.

    Args:
      dataset: the data set to show.
      path: path of the .html file.

    Returns:
      The path.
    """
    described = describe(dataset)
    sections = {
        "What was read": document.warning_box(described.warnings) + _facts(described).html(),
        "Samples": _samples(dataset, described),
        "Classes": _classes(dataset, described),
        "Values": _values(dataset, described),
    }
    text = document.page(described.name, described.name, described.lines, sections)
    write_whole(path, text)
    return path


def _facts(described: Description) -> Bullets:
    """Lists the facts that do not fit in the two lines at the top of the page."""
    facts = []
    if described.label:
        facts.append(f"label: column {described.label!r}")
    if described.features:
        facts.append(f"features: {', '.join(described.features)}")
    for name, counts in (("official sets", described.splits), ("groups", described.groups)):
        if counts:
            facts.append(f"{name}: {', '.join(f'{key} ({n:,})' for key, n in counts.items())}")
    facts += [f"left out: {entry}" for entry in described.left_out]
    facts += described.converted
    return Bullets(facts or ["nothing was left out or converted"])


def _chosen(dataset: Dataset) -> list[int]:
    """Draws samples from all classes in turn."""
    rng = np.random.default_rng(0)
    of_classes = []
    for label in rng.permutation(np.unique(dataset.labels))[:SAMPLES]:
        drawn = rng.permutation(np.flatnonzero(dataset.labels == label))
        of_classes.append(drawn[:SAMPLES].tolist())
    turns = itertools.chain(*itertools.zip_longest(*of_classes))
    chosen = [index for index in turns if index is not None][:SAMPLES]
    return sorted(chosen, key=lambda index: (dataset.labels[index], index))


def _samples(dataset: Dataset, described: Description) -> str:
    chosen = _chosen(dataset)
    if described.kind == "rows":
        return _rows(dataset, described, chosen).html()
    draw: Callable[[Dataset, int], str] = _numbers
    if isinstance(dataset.preprocess, Pixels) and isinstance(dataset.inputs, np.ndarray):
        draw = _image
    elif described.kind == "windows":
        draw = _window
    elif described.kind == "texts":
        draw = _text
    cells = []
    for index in chosen:
        name = ", ".join(_meaning(dataset, described, index).values())
        caption = f"<figcaption>{html.escape(name)} <small>{index}</small></figcaption>"
        cells.append(f"<figure>{draw(dataset, index)}{caption}</figure>")
    grid = f'<div class="samples {described.kind}">{"".join(cells)}</div>'
    if draw is _window:
        grid += document.caption("Each window is drawn from its smallest to its largest value.")
    return grid


def _image(dataset: Dataset, index: int) -> str:
    pixels = np.asarray(dataset.inputs[index])
    if pixels.shape[-1] != 3:
        pixels = pixels[..., 0]
    white = 255 if pixels.dtype == np.uint8 else 1
    file = io.BytesIO()
    imsave(file, np.clip(pixels, 0, white), cmap="gray", vmin=0, vmax=white, format="png")
    return document.image(file.getvalue(), "png", f"sample {index}")


def _window(dataset: Dataset, index: int) -> str:
    svg = rendered(window_picture(np.asarray(dataset.inputs[index])), "svg")
    return document.image(svg, "svg+xml", f"sample {index}", "drawing")


def _text(dataset: Dataset, index: int) -> str:
    tokens = [int(token) for token in dataset.inputs[index][:TOKENS] if token]
    texts = dataset.reading.token_texts if dataset.reading else ()
    # the tokens of a character-level text are joined without spaces
    gap = "" if max(map(len, texts), default=2) == 1 else " "
    shown = gap.join(texts[token] if token < len(texts) else str(token) for token in tokens)
    return f"<blockquote>{html.escape(shown)}</blockquote>"


def _numbers(dataset: Dataset, index: int) -> str:
    parts = [np.array2string(x[index], threshold=8) for x in jax.tree.leaves(dataset.inputs)]
    return f"<pre>{html.escape(' '.join(parts))}</pre>"


def _rows(dataset: Dataset, described: Description, chosen: list[int]) -> Table:
    """The samples of a table, one per row."""
    names = described.features or tuple(map(str, range(dataset.inputs.shape[1])))
    rows = []
    for index in chosen:
        values = [f"{value:.6g}" for value in dataset.inputs[index]]
        rows.append([*_meaning(dataset, described, index).values(), str(index), *values])
    labels = list(_meaning(dataset, described, 0))
    columns = [f"{name} " if name in labels else name for name in names]
    return Table([*labels, "row", *columns], rows)


def _meaning(dataset: Dataset, described: Description, index: int) -> dict[str, str]:
    """A sample's class, or its targets, each by its name."""
    targets = _targets(dataset, described)
    if not targets:
        return {described.label or "class": dataset.class_names[dataset.labels[index]]}
    return {name: f"{values[index]:.6g}" for name, values in targets.items()}


def _targets(dataset: Dataset, described: Description) -> dict[str, np.ndarray]:
    """The samples' targets by name; none for classes and masks."""
    if dataset.targets is None or dataset.targets.ndim > 2:
        return {}
    columns = dataset.targets.reshape(len(dataset.targets), -1).T
    names = described.label.split(", ")
    if len(names) != len(columns):
        names = [f"target {i}" for i in range(len(columns))]
    return dict(zip(names, columns))


def _classes(dataset: Dataset, described: Description) -> str:
    sets = {"samples": np.arange(len(dataset.labels))}
    if 0 < len(dataset.official) <= MOST_COLOURS:
        sets = {name: np.asarray(indices) for name, indices in dataset.official.items()}
    elif dataset.groups is not None and len(described.groups) <= MOST_COLOURS:
        numbers = np.unique(dataset.groups[private_indices(dataset)])
        sets = {}
        for name, number in zip(described.groups, numbers):
            sets[name] = np.flatnonzero(dataset.groups == number)
    counts = {}
    for name, indices in sets.items():
        counts[name] = np.bincount(dataset.labels[indices], minlength=dataset.num_classes)
    picture = class_counts_picture(counts, dataset.class_names)
    return document.figure(rendered(picture, "svg"), "classes", "Samples of each class.")


def _values(dataset: Dataset, described: Description) -> str:
    """Histograms of the targets, and of the first features or channels."""
    step = 1 + len(dataset.labels) // LOOKED_AT
    x = jax.tree.map(lambda array: np.asarray(array[::step]), dataset.inputs)
    targets = {name: column[::step] for name, column in _targets(dataset, described).items()}
    named = targets | _by_name(described, x)
    cells = []
    for name, values in list(named.items())[:PANELS]:
        picture = rendered(histogram(values), "svg")
        mean, deviation = np.mean(values, dtype=float), np.std(values, dtype=float)
        about = f"{name}: mean {mean:.4g}, deviation {deviation:.4g}"
        image = document.image(picture, "svg+xml", name, "drawing")
        cells.append(f"<figure>{image}<figcaption>{html.escape(about)}</figcaption></figure>")
    text = "Values as they are stored."
    if described.kind == "texts":
        text = f"Tokens of a text, padding left out; texts are cut at {x.shape[1]}."
    if step > 1:
        text += f" Every {step}th sample is counted."
    if len(named) > PANELS:
        text += f" The first {PANELS} of {len(named)}."
    return f'<div class="samples windows">{"".join(cells)}</div>{document.caption(text)}'


def _by_name(described: Description, x: Any) -> dict[str, np.ndarray]:
    """Values by feature for tables, by channel for images and windows with few, else together."""
    if described.kind == "texts":
        return {"tokens of a text": (x != 0).sum(1)}
    if described.kind == "rows":
        names = described.features or tuple(map(str, range(x.shape[1])))
        return dict(zip(names, x.T))
    arrays = jax.tree.leaves(x)
    first = arrays[0]
    if len(arrays) == 1 and first.ndim > 2 and 1 < first.shape[-1] <= 9:
        return {f"channel {i}": first[..., i] for i in range(first.shape[-1])}
    return {"all": np.concatenate([np.ravel(array) for array in arrays])}
