"""report.html: what a run was, what it found and how to repeat it, in one file that needs no
network."""

import base64
import html
import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from fedjax_ht.configs.sections import Config
from fedjax_ht.core.files import atomic_open
from fedjax_ht.core.inputs import Pixels
from fedjax_ht.experiment import devices
from fedjax_ht.experiment.build import Experiment
from fedjax_ht.experiment.entries import as_run, described
from fedjax_ht.report.bad_clients import far_words
from fedjax_ht.report.machine import processor
from fedjax_ht.report.map_plot import one_space
from fedjax_ht.report.maps import load_map
from fedjax_ht.report.plots import FEW, ROOM, mean_of_clients
from fedjax_ht.report.statistics import best_entry, differences_to_first, headline, listed
from fedjax_ht.report.table import sent
from fedjax_ht.simulation.history import Row, by_trial, evaluated, has_clock

PROGRAM = "fedjax-ht"
FAR = 3  # Tukey's "far out"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 84rem; margin: 2rem auto; padding: 0 1rem }
body { color: #1a1a1a }
h1 { font-size: 1.6rem; margin-bottom: 0 } h1 + p { color: #555; margin-top: 0.3rem }
h2 { font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid #ddd }
table { border-collapse: collapse; font-size: 0.8rem; display: block; overflow-x: auto }
th, td { padding: 0.25rem 0.4rem; text-align: right; white-space: nowrap }
th { border-bottom: 2px solid #888; white-space: normal; vertical-align: bottom }
th:first-child, td:first-child { text-align: left } tr:nth-child(even) td { background: #f6f6f6 }
td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 16ch }
tr.best td { font-weight: bold }
h3 { font-size: 1rem; margin-bottom: 0 } figure { margin: 1rem 0 }
figcaption { font-size: 0.85rem; color: #555 }
img { max-width: 100% } pre { background: #f6f6f6; padding: 0.8rem; overflow-x: auto }
.warning { color: #a33 }
p, li { max-width: 76rem; overflow-wrap: anywhere }
summary { cursor: pointer; font-weight: bold; margin-top: 0.5rem }
@media (min-width: 1000px) { td { white-space: normal } }
@media (max-width: 700px) {
figure { overflow-x: auto } figure img { max-width: none; height: auto; min-width: 40rem }
}
"""

MAPS = (
    "A few clients, spread over the architectures, look at the same test images, drawn from all "
    "clients' test sets, "
    "of up to ten classes; their models are as they are evaluated after the last round. Above, "
    "each client's "
    "features in a PCA of its own, so that directions of two panels have nothing to do with each "
    "other: filled are "
    "classes that the client trains on, rings are others, stars the server's prototypes. Below, "
    "all clients in one "
    "space: small points are images, large marks a client's means of the images of each class "
    "that it trains on. "
    "Where marks of one colour lie together, the clients' spaces agree; a method that does not "
    "align them has no "
    "reason to let them. t-SNE and UMAP keep neighbours and no distances."
)


def write_report(
    config: Config,
    experiment: Experiment,
    histories: Mapping[str, Sequence[Row]],
    results: str,
    workdir: Path,
    command: str,
) -> Path:
    """Writes report.html into a run's folder.

    Args:
      config: of the run.
      experiment: what it was built to.
      histories: label of an entry -> rows, those to be shown.
      results: the first table, in Markdown.
      workdir: the run's folder.
      command: how to repeat the run, see `repeat`.
    """
    watched = "".join(f'<p class="warning">{html.escape(line)}</p>' for line in warnings(histories))
    winner = best_entry(histories) if len(histories) > 1 else None
    described_setting = html.escape(setting(config, experiment, histories))
    sections = {"To watch": watched, "Setting": f"<p>{described_setting}</p>"}
    sections["Results"] = from_markdown(results, winner)
    if differences := differences_to_first(histories):
        first = next(iter(histories))
        sections[f"Differences to {first}, paired by trial"] = from_markdown(differences)
    entries = [experiment.entries[label] for label in histories]
    sections["Settings of the entries"] = from_markdown(described(entries))
    for heading, pictures in captions(histories).items():
        figures = [picture(workdir / "plots" / f"{name}.svg", pictures[name]) for name in pictures]
        sections[heading] = "".join(figures)
    sections["Costs"] += from_markdown(sent(histories))
    folders = {entry.label: workdir / entry.folder for entry in entries}
    if config.report.maps != "none":
        maps = "".join(map(map_of, folders, folders.values()))
        sections["Features and prototypes"] = f"<p>{MAPS}</p>{maps}"
    sections["Images made by the servers"] = newest_images(folders)
    sections["To repeat it"] = f"<pre>{html.escape(command)}</pre>"
    shown = [f"<h2>{html.escape(name)}</h2>{sections[name]}" for name in sections if sections[name]]
    compared = listed(list(histories)) if len(histories) <= FEW else f"{len(histories)} entries"
    about = html.escape(f"{compared} on {experiment.dataset.name}")
    title = html.escape(headline(histories).removesuffix(".")) or about
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += f"<title>{about}</title><style>{STYLE}</style>"
    body = f"<h1>{title}</h1><p>{about}</p>{''.join(shown)}"
    path = workdir / "report.html"
    with atomic_open(path) as file:
        file.write(f'<!doctype html><html lang="en"><head>{head}</head>')
        file.write(f"<body>{body}</body></html>\n")
    return path


def captions(histories: Mapping[str, Sequence[Row]]) -> dict[str, dict[str, str]]:
    """Heading -> figure of plots/ -> its caption, which explains only what the figure has."""
    trials = [trial for history in histories.values() for trial in by_trial(history)]
    several = len(trials) > len(histories)
    accuracy = (
        "Mean over clients of the accuracy on their own test samples; the large mark is the best "
        "round, each small one an evaluation."
    )
    costs = (
        "The same accuracy against what all clients had sent, computed and waited for until then."
    )
    spread = (
        "Each entry's clients at its best round: quartiles and median, whiskers to the furthest "
        "client within 1.5 box lengths, the others as dots, the mean as a triangle."
    )
    clients = "The same client by client, in the order of the first entry."
    split = "Training samples of each class at each client"
    if several:
        accuracy += " Curves are means over trials, bands reach from the lowest to the highest."
        split += ", of the first trial"
    if has_clock(histories):
        accuracy += " On the right against the seconds of the rounds on the simulated devices."
    if len(histories) > 1:
        costs += " The grey line is the highest accuracy that any entry had for so much."
    if any(row["round"] > 1 for trial in trials for row in trial):
        costs += " Seconds leave out compiling: a first round counts as the median of the others."
    if any(len(row["clients"]) > ROOM for trial in trials for row in evaluated(trial)[:1]):
        clients = "The same, each entry's clients from worst to best."
    return {
        "Accuracy": {"accuracy": accuracy},
        "Costs": {"costs": costs},
        "Accuracy of the clients": {"spread": spread, "clients": clients},
        "How samples are spread over clients": {"split": f"{split}."},
    }


def newest_images(folders: Mapping[str, Path]) -> str:
    """What each entry's server has shown of itself last; "" where none has."""
    shown = []
    for label, folder in folders.items():
        if files := sorted((folder / "images").glob("*.png")):
            title = f"{html.escape(label)}, round {int(files[-1].stem)}"
            shown.append(f"<p>{title}</p>{image(files[-1].read_bytes(), 'png', label)}")
    return "".join(shown)


def setting(config: Config, experiment: Experiment, labels: Iterable[str] | None = None) -> str:
    """The federation in words, and how the entries of these labels train, by default all."""
    partition = config.partition
    labels = list(experiment.entries if labels is None else labels)
    parts = [len(client.train) for client in experiment.partitions[0]]
    options = "".join(
        f"{name} {value}, "
        for name, value in sorted(partition.options.items())
        if value is not None
    )
    names = sorted(
        {bucket.name for label in labels for bucket in experiment.federations[label].buckets}
    )
    share = (
        ""
        if config.participation == 1
        else f", of whom {100 * config.participation:.3g} % take part in a round"
    )
    drops = f" and {100 * config.drop_rate:.3g} % of these are lost" if config.drop_rate else ""
    kind = "images" if isinstance(experiment.dataset.preprocess, Pixels) else "samples"
    seeds = (
        f"seed {config.seed}"
        if config.trials == 1
        else f"seeds {config.seed} to {config.seed + config.trials - 1}"
    )
    return (
        f"{partition.num_clients} clients on {experiment.dataset.name}{share}{drops}: "
        f"{sum(parts)} training {kind}, "
        f"{min(parts)} to {max(parts)} a client; split {partition.kind}, {options}seed "
        f"{partition.seed}. Models: "
        f"{', '.join(names)}. Training: {trained(config, experiment, labels)} a round. "
        f"{config.rounds} rounds, {seeds}."
        f"{devices.described(config.devices_profile)}"
    )


def trained(config: Config, experiment: Experiment, labels: Sequence[str]) -> str:
    """How entries train: what they share once, else each value with the entries that set it."""
    parts: tuple[dict[str, list[str]], ...] = ({}, {}, {})  # text -> entries
    for label in labels:
        training = as_run(experiment.entries[label], config).training
        length = f"{training.steps} steps" if training.steps else f"{training.epochs} local epochs"
        optimizer = f"{training.optimizer} at {training.learning_rate}"
        batches = f"batches of {training.batch_size}"
        for values, text in zip(parts, (optimizer, batches, length)):
            values.setdefault(text, []).append(label)
    shown = []
    for values in parts:
        for text, entries in values.items():
            shown.append(text if len(values) == 1 else f"{text} ({', '.join(entries)})")
    return ", ".join(shown)


def warnings(histories: Mapping[str, Sequence[Row]]) -> list[str]:
    """What a reader should not miss, a line each."""
    lines = []
    for label, history in histories.items():
        broken = [
            (row["round"], row["trial"], row["not_finite"])
            for row in history
            if row.get("not_finite")
        ]
        if broken:
            number, trial, clients = broken[0]
            lines.append(
                f"{label}: results that were not finite were left out in {rounds_in(broken)} "
                "rounds, first of clients "
                f"{', '.join(map(str, clients))} in round {number} (trial {trial})"
            )
        far = [(row["round"], row["far_off"]) for row in history if row.get("far_off")]
        if far:
            clients = sorted({int(client) for _, found in far for client, _ in found})
            lines.append(
                f"{label}: in {rounds_in(far)} rounds uploads were far off the others', of clients "
                f"{', '.join(map(str, clients))}; first in round {far[0][0]}: "
                f"{far_words(far[0][1])} what is usual"
            )
        refused = [(row["round"], row["refused"]) for row in history if row.get("refused")]
        if refused:
            clients = sorted({client for _, ids in refused for client in ids})
            lines.append(
                f"{label}: in {rounds_in(refused)} rounds outlying uploads were refused, "
                f"of clients {', '.join(map(str, clients))}"
            )
        late = [(row["round"], row["late"]) for row in history if row.get("late")]
        if late:
            clients = sorted({client for _, found in late for client in found})
            lot = (
                "arrived in a later round"
                if any("arrived_late" in row for row in history)
                else "were lost"
            )
            lines.append(
                f"{label}: in {rounds_in(late)} rounds uploads came after the deadline and {lot}, "
                "of clients "
                f"{', '.join(map(str, clients))}"
            )
        kept = [(row["round"],) for row in history if not row.get("server_finite", True)]
        if kept:
            lines.append(
                f"{label}: in {rounds_in(kept)} rounds, first in {kept[0][0]}, the server's step "
                "was "
                "not finite, and its last state was kept"
            )
        wasted = [row["wasted_lane_steps"] for row in history if "wasted_lane_steps" in row]
        if wasted and np.mean(wasted) > 0.3:
            lines.append(
                f"{label}: {100 * np.mean(wasted):.0f} % of the steps of lanes waited for a "
                "longer client"
            )
        for clients, end in far_clients(history):
            lines.append(f"{label}: {clients} reached far {end} than the others")
        falls = [
            max(a) - a[-1]
            for trial in by_trial(history)
            if len(a := [row["accuracy"] for row in trial if "accuracy" in row]) > 1
        ]
        if falls and np.mean(falls) > 0.03:
            lines.append(
                f"{label}: the last round is {100 * np.mean(falls):.1f} points below the best"
            )
    return lines


def rounds_in(events: Sequence[tuple]) -> int:
    """Counts the rounds of events, each a tuple that begins with its round; trials share rounds."""
    return len({event[0] for event in events})


def far_clients(history: Sequence[Row]) -> list[tuple[str, str]]:
    """Clients whose accuracy at the best round lies further than `FAR` box lengths, and 5 points,
    from the box of their quartiles: ("clients 3 (12 %) and 7 (20 %)", "less" or "more")."""
    accuracy = mean_of_clients(history)
    ids = next((row["client_ids"] for row in history if "client_ids" in row), range(len(accuracy)))
    if np.isnan(accuracy).all():
        return []
    low, high = np.nanquantile(accuracy, [0.25, 0.75])
    reach, found = max(FAR * (high - low), 5.0), []
    for distance, end in ((low - accuracy, "less"), (accuracy - high, "more")):
        far = [i for i in np.argsort(-distance, kind="stable").tolist() if distance[i] > reach]
        if far:
            named = ", ".join(f"{ids[i]} ({accuracy[i]:.0f} %)" for i in far[:5])
            others = f" and {len(far) - 5} others" if len(far) > 5 else ""
            found.append((f"client{'s' * (len(far) > 1)} {named}{others}", end))
    return found


def repeat() -> str:
    """The command, versions, machine and commit."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    program = f"python -m {main.name}" if main else Path(sys.argv[0]).name
    called = (
        f"{program} {shlex.join(sys.argv[1:])}"
        if main or program == PROGRAM
        else "a call of train_and_evaluate"
    )
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    device = jax.devices()[0]
    kind = processor() if device.platform == "cpu" else device.device_kind
    machine = (
        f"{len(jax.devices())} x {kind}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    return "\n".join([called, versions, machine, f"commit {commit()}"])


def commit() -> str:
    """Of the code that ran, where git tells."""
    root = Path(__file__).parents[2]
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    if not (root / ".git").exists():  # installed, perhaps into another repository
        return "unknown"
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def picture(path: Path, words: str) -> str:
    """An SVG file within the page, with its caption; as an image of its own, so that two figures'
    names do not meet."""
    shown = image(path.read_bytes(), "svg+xml", path.stem)
    return f"<figure>{shown}<figcaption>{html.escape(words)}</figcaption></figure>"


def map_of(label: str, folder: Path) -> str:
    """An entry's map, folded, or that it has none."""
    name, found = html.escape(label), load_map(folder)
    if found is None:
        return f"<p>{name}: no map, for want of features to look at, or of test samples.</p>"
    apart = (
        "" if one_space(found) else " The clients' features have no common space, so none is drawn."
    )
    shown = picture(folder / "features.svg", f"After round {found.round}, trial 0.{apart}")
    return f"<details><summary>{name}</summary>{shown}</details>"


def image(data: bytes, kind: str, words: str) -> str:
    encoded = base64.b64encode(data).decode()
    return f'<img alt="{html.escape(words)}" src="data:image/{kind};base64,{encoded}">'


def from_markdown(text: str, best: str | None = None) -> str:
    """Tables, lists and paragraphs, which is what the run's own tables are made of; the row of the
    entry `best` is bold."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.splitlines()
        if lines[0].startswith("|"):
            head, _, *rows = (
                [cell.strip() for cell in line.strip("|").split("|")] for line in lines
            )
            made = [table_row("th", head)]
            for row in rows:
                made.append(table_row("td", row, ' class="best"' if row[0] == best else ""))
            blocks.append(f"<table>{''.join(made)}</table>")
        elif lines[0].startswith("* "):
            items = re.split(r"^\* ", block, flags=re.MULTILINE)[1:]
            blocks.append(
                f"<ul>{''.join(f'<li>{html.escape(item.strip())}</li>' for item in items)}</ul>"
            )
        else:
            blocks.append(f"<p>{html.escape(block)}</p>")
    return "".join(blocks)


def table_row(kind: str, cells: Sequence[str], attributes: str = "") -> str:
    shown = "".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in cells)
    return f"<tr{attributes}>{shown}</tr>"
