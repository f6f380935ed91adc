"""The result of a run as text and as report.html: tables, warnings, pictures and how to repeat it.

The page is a single file that needs no network.
"""

import datetime
import html
import itertools
import math
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedjax_ht.check.docstrings import first_paragraph
from fedjax_ht.check.names import listed_clients
from fedjax_ht.core.user_code import names_object
from fedjax_ht.data.partition import PARTITIONS, PLANS, class_counts
from fedjax_ht.lab.config.base import method_summary
from fedjax_ht.lab.config.entries import bound_to, described, elsewhere
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.config.typed import to_plain, unusual
from fedjax_ht.lab.files import write_whole
from fedjax_ht.lab.readers.description import describe, grouped_by, kind_of
from fedjax_ht.lab.report import document
from fedjax_ht.lab.report.bad_clients import in_rounds, troubles
from fedjax_ht.lab.report.compared import Compared, Page, differing, split_seeds, unequal_lines
from fedjax_ht.lab.report.document import Block, Bullets, Document, Paragraph, folded
from fedjax_ht.lab.report.maps import load_map, one_space
from fedjax_ht.lab.report.plots import FEW, ROOM, evaluated_ids, scores_of_clients
from fedjax_ht.lab.report.results import Aim, class_table, costs, run_results, seconds_of
from fedjax_ht.lab.report.rows import (
    best_is_untrained,
    has_clock,
    reporting,
    rows_of_all,
    score_in,
    tops_of,
    values,
)
from fedjax_ht.lab.report.statistics import differences_to, gain_table, listed, seeds
from fedjax_ht.lab.runs import devices
from fedjax_ht.lab.runs.environment import environment
from fedjax_ht.lab.runs.environment import lines as environment_lines
from fedjax_ht.lab.runs.folder import flatten
from fedjax_ht.lab.runs.plan import Plan
from fedjax_ht.simulation.divergence import Divergence
from fedjax_ht.simulation.history import merged
from fedjax_ht.simulation.rows import Runs, evaluated

FAR = 3  # Tukey's "far out", in lengths of the box
LEAST_POINTS = 5.0  # minimum distance of a far client from the box, in percentage points
FALL = 0.03  # drop of accuracy from the best round to the last
RISE = 1.5  # an error of the last round, in units of the best round's


def to_watch(shown: Compared) -> list[str]:
    """Returns the warnings that a reader of a result should not miss.

    They are about unequal rows, settings searched on other data, and troubles (`warnings`).
    """
    return [*unequal_lines(shown.unequal), *searched(shown), *warnings(shown.histories)]


def searched(shown: Compared) -> list[str]:
    """Returns a message for entries with settings searched on other data, splits or models."""
    labels: dict[str, list[str]] = {}
    for entry in shown.entries:
        if origin := elsewhere(entry, shown.config):
            labels.setdefault(origin, []).append(entry.label)
    return [f"{listed(entries)}: settings {origin}" for origin, entries in labels.items()]


def warnings(histories: Mapping[str, Runs]) -> list[str]:
    """Returns a message for each trouble in the entries' rounds."""
    lines = []
    for label, runs in histories.items():
        for check in (troubles, late, collapsed, far_clients, untrained, falls):
            for line in check(runs):
                lines.append(f"{label}: {line}")
    return lines


def late(runs: Runs) -> Iterator[str]:
    """Yields a message if uploads missed the deadline."""
    rows = reporting(merged(runs), "late")
    if rows:
        clients = listed_clients(sorted(set().union(*values(rows, "late"))), None)
        used = any(values(merged(runs), "arrived_late"))
        outcome = "arrived in a later round" if used else "were lost"
        yield f"uploads of {clients} came after the deadline {in_rounds(rows)} and {outcome}"


def collapsed(runs: Runs) -> Iterator[str]:
    """Yields a message if accuracy fell back to that of the untrained federation."""
    for history in runs:
        divergence = Divergence(None)
        for row in history:
            for line in divergence.notes(row):
                yield f"round {row['round']} (trial {row['trial']}): {line}"
                return


def far_clients(runs: Runs) -> Iterator[str]:
    """Yields messages about clients far below, and far above, the quartiles of all clients.

    It compares the scores at the best round of each trial.
    """
    score = score_in({"": runs})
    form, least = (".0f", LEAST_POINTS) if score.is_share else (score.short, 0)
    for history in runs:
        accuracy, ids = scores_of_clients(history, score), evaluated_ids(history)
        if np.isnan(accuracy).all():
            continue
        place = f" in trial {history[0]['trial']}" if len(runs) > 1 else ""
        low, high = np.nanquantile(accuracy, [0.25, 0.75])
        reach = max(FAR * (high - low), least)
        for distance, end in ((low - accuracy, "lower"), (accuracy - high, "higher")):
            far = []
            for i in np.argsort(-distance, kind="stable").tolist():
                if distance[i] > reach:
                    far.append(f"{ids[i]} ({accuracy[i]:{form}}{score.unit})")
            if far:
                yield f"far {end} {score.name} than the others{place}: {listed_clients(far)}"


def untrained(runs: Runs) -> Iterator[str]:
    """Yields a message if no trained round of any run is better than round 0."""
    if best_is_untrained(runs):
        yield "the best round is 0, before training"


def falls(runs: Runs) -> Iterator[str]:
    """Yields a message if the last round is far worse than the best, on average over runs."""
    score = score_in({"": runs})
    tops = tops_of(runs, score.key)
    ends = [rows[-1] for rows in map(evaluated, runs) if rows]
    if not ends:
        return
    best, last = (float(np.mean(values(rows, score.key))) for rows in (tops, ends))
    if score.is_share and best - last > FALL:
        yield f"the last round is {100 * (best - last):.1f} points below the best"
    if score.sign < 0 and not last <= RISE * best:
        found, least = score.text(last), score.text(best)
        yield f"the last round's {score.name} is {found}, the best round's {least}"


PROGRAM = "fedjax-ht"


def setting(experiment: Plan, labels: Iterable[str] | None = None) -> str:
    """Describes the federation and the training of entries in a few sentences.

    Args:
      experiment: the experiment.
      labels: labels of the entries; None for all.
    """
    config = experiment.config
    labels = list(experiment.runs if labels is None else labels)
    public = ""
    if experiment.dataset.public_set is not None:
        public = f" {experiment.dataset.public_set.samples} samples are public."
    return (
        f"{config.partition.num_clients} clients on {experiment.dataset.name}"
        f"{participation(config)}. {holdings(experiment)} {split(config)}{public} "
        f"Models: {', '.join(architectures(experiment, labels))}. "
        f"Training: {trained(experiment, labels)}. {config.rounds} rounds, "
        f"{seeds(config.seed, config.trials)}."
        f"{options(config)}{devices.described(config.devices_profile)}"
    )


OPTIONS = (
    *("select", "new_share", "shared_init", "uplink", "downlink", "refuse_outliers", "robust"),
    *("attack", "privacy", "scoring", "precision"),
)
"""Fields of a config that change its results, and that no other sentence describes."""


def options(config: Config) -> str:
    """Lists the `OPTIONS` that are not at their defaults, with a leading space; "" for none."""
    usual, values = flatten(to_plain(Config())), flatten(to_plain(config))
    shown = []
    for name, value in values.items():
        if name.partition(".")[0] in OPTIONS and value != usual.get(name):
            if isinstance(value, tuple):  # steps such as ("clip", 1.0)
                value = " and ".join(":".join(map(str, step)) for step in value)
            shown.append(f"{name} {value}")
    return f" Options: {', '.join(shown)}." if shown else ""


def participation(config: Config) -> str:
    """Describes the share of the clients that take part in a round; "" if all do."""
    text = ""
    if config.participation != 1:
        text += f", of whom {100 * config.participation:.3g} % take part in a round"
    if config.drop_rate:
        text += f" and {100 * config.drop_rate:.3g} % of these are lost"
    return text


def holdings(experiment: Plan) -> str:
    """Describes how many samples a client trains and tests on, in the first trial."""
    dataset, partition = experiment.dataset, experiment.partitions[0]
    counts = class_counts(dataset.labels, partition, num_classes=dataset.num_classes)
    tests = np.array([len(client.test) for client in partition])
    groups = f"{_span((counts > 0).sum(1))} {grouped_by(dataset)}"
    samples = f"{_span(counts.sum(1))} {kind_of(dataset)} of {groups}"
    trial = ", in the first trial" if len(set(map(id, experiment.partitions))) > 1 else ""
    return f"A client trains on {samples}, and tests on {_span(tests)}{trial}."


def _span(counts: np.ndarray) -> str:
    low, high = counts.min(), counts.max()
    return f"{low}" if low == high else f"{low} to {high}"


def split(config: Config) -> str:
    """Describes the split in a sentence, with its options and seeds."""
    of_split = split_seeds(to_plain(config.partition), config.trials)
    about = first_paragraph((PLANS | PARTITIONS)[config.partition.kind].__doc__)
    return f"Split {bound_to(config)[1]} ({of_split}): {about}"


def architectures(experiment: Plan, labels: Iterable[str]) -> list[str]:
    """Lists the names of the entries' architectures in alphabetical order."""
    names = set()
    for label in labels:
        names |= {bucket.name for bucket in experiment.runs[label].federation.buckets}
    return sorted(names)


def trained(experiment: Plan, labels: Sequence[str]) -> str:
    """Lists the settings of local training of the first entry, and those in which others differ."""
    recipes = {label: experiment.runs[label].config.training for label in labels}
    training = recipes[labels[0]]
    optimizer = f"{training.optimizer} at {training.learning_rate:g}"
    if names_object(training.optimizer):
        optimizer = "an optimiser given from Python"
    count, unit = training.steps or training.epochs, "step" if training.steps else "local epoch"
    length = f"{count} {unit}{'s' if count > 1 else ''}"
    other = f" (otherwise {', '.join(training.of)})" if training.of else ""
    for field, value in unusual(training).items():
        if field not in ("optimizer", "learning_rate", "batch_size", "of", "epochs", "steps"):
            optimizer += f", {field} {value}"
    lines = differing({label: to_plain(recipe) for label, recipe in recipes.items()})
    differences = f"; entries differ in {', '.join(lines.values())}" if lines else ""
    return f"{optimizer}, batches of {training.batch_size}, {length} a round{other}{differences}"


def repeat() -> str:
    """Returns how to repeat this run: command, library, packages and machine, one line each."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    arguments = shlex.join(sys.argv[1:])
    command = "a call from Python"
    if main:
        command = f"python -m {main.name.removesuffix('.__main__')} {arguments}"
    elif Path(sys.argv[0]).name == PROGRAM:
        command = f"{PROGRAM} {arguments}"
    return "\n".join([command, *environment_lines(environment())])


def results(shown: Compared, aim: Aim | None) -> Document:
    """Makes the first table: with the costs of a comparison, or else the results of a run."""
    if aim is None:
        return run_results(shown.histories, shown.winner)
    return costs(shown.histories, aim, shown.winner)[-1]


def remarks(shown: Compared) -> list[str]:
    """Returns the sentences below the first table.

    They are about the settings that all rows share, and entries that ended early.
    """
    return [sentence for sentence in (shown.shared, shown.ended) if sentence]


def comparisons(shown: Compared) -> Document:
    """Makes the tables that compare entries with the baseline; empty without a comparison."""
    if not shown.compares:
        return Document()
    return Document([differences_to(shown.baseline, shown.histories), gain_table(shown.histories)])


def entry_settings(shown: Compared) -> Bullets:
    """Lists each entry's changes to the defaults, and its tuning."""
    return Bullets([described(entry, shown.config) for entry in shown.entries])


def text_of(shown: Compared, aim: Aim | None) -> Document:
    """Makes the text that a command prints.

    It has the result in a sentence, warnings, tables, the settings that all rows share, and each
    entry's settings.
    """
    blocks: list[Block] = []
    if sentence := shown.headline:
        blocks.append(Paragraph(sentence))
    if lines := to_watch(shown):
        blocks += [Paragraph("To watch:"), Bullets(lines)]
    blocks += [results(shown, aim), *map(Paragraph, remarks(shown))]
    if aim is not None:
        blocks += comparisons(shown).blocks
    return Document([*blocks, entry_settings(shown)])


RESULT = "{} is the mean over clients, each on its own test samples, in the best round."
LATE = "The axes of {} need not show all of the first rounds."
MAPS = (
    "Some clients of all architectures look at the same test samples with their models of the last "
    "round; marks of one colour that lie together show that the clients' features agree."
)
READING_MAPS = (
    "The samples are drawn from all clients' test sets, of up to ten classes. Small points are "
    "samples, large marks a client's means of the samples of each class that it trains on, stars "
    "the server's prototypes. A method that does not align the clients' features has no reason to "
    "let marks of one colour lie together. t-SNE keeps neighbours and no distances."
)


def write_report(experiment: Plan, shown: Compared, page: Page, workdir: Path) -> Path:
    """Writes report.html into a run's folder, which already has the pictures.

    Args:
      experiment: the experiment of the run.
      shown: the run's entries and their rows.
      page: the target of its first table, and how to repeat the run.
      workdir: the run's folder.
    """
    histories = shown.histories
    folders = {entry.label: workdir / entry.folder for entry in shown.entries}
    baseline = shown.baseline if shown.compares else None
    about_methods = methods(shown).html() + entry_settings(shown).html()
    sections = {"Result": "", "Methods": about_methods}
    for heading, pictures in captions(histories, baseline).items():
        sections[heading] = ""
        for name, text in pictures.items():
            svg = (workdir / "plots" / f"{name}.svg").read_bytes()
            sections[heading] += document.figure(svg, name, text)
    name = score_in(histories).name
    result = document.warning_box(to_watch(shown))
    result += document.caption(RESULT.format(name[:1].upper() + name[1:]))
    result += results(shown, page.aim).html() + "".join(map(document.caption, remarks(shown)))
    sections["Result"] += result + comparisons(shown).html()
    by_class = class_table(histories, experiment.dataset.class_names)
    if by_class.rows:
        sections["Clients"] += folded("Accuracy by class", by_class.html())
    if experiment.config.report.maps != "none":
        sections["Features and prototypes"] = maps(folders)
    sections["Images made by the servers"] = newest_images(folders)
    sections["Data and split"] += "".join(map(document.caption, describe(experiment.dataset).lines))
    command = f"<pre>{html.escape(page.command)}</pre>"
    sections["How to repeat it"] = command + Paragraph(setting(experiment, histories)).html()
    labels = listed(shown.labels) if len(shown.entries) <= FEW else f"{len(shown.entries)} entries"
    about = f"{labels} on {experiment.dataset.name}"
    title = shown.headline.removesuffix(".") or about
    data = f"{holdings(experiment)} {split(experiment.config)}"
    lead = (f"{about}: {size(experiment.config)}", data, f"{shown.made}, {duration(histories)}")
    text = document.page(about, title, lead, sections)
    path = workdir / "report.html"
    write_whole(path, text)
    return path


def size(config: Config) -> str:
    """Counts a run's clients, rounds and trials."""
    trials = f"{config.trials} trials" if config.trials > 1 else "one trial"
    return f"{config.partition.num_clients} clients, {config.rounds} rounds, {trials}"


def duration(histories: Mapping[str, Runs]) -> str:
    """Formats the time of rounds and evaluations, which an entry's runs share: "0:03:20 of ..."."""
    spent = math.fsum(map(seconds_of, histories.values()))
    return f"{datetime.timedelta(seconds=round(spent))} of training and evaluation"


def methods(shown: Compared) -> Bullets:
    """Lists the entries' methods, each with its paper and idea; a user's own may have none."""
    names = dict.fromkeys(entry.method for entry in shown.entries)
    return Bullets(list(filter(None, map(method_summary, names))))


def captions(
    histories: Mapping[str, Runs], baseline: str | None = None
) -> dict[str, dict[str, str]]:
    """Returns heading -> figure of plots/ -> its caption.

    A caption explains only the figure's own marks. See `accuracy_curves` for the arguments.
    """
    runs, name = list(itertools.chain(*histories.values())), score_in(histories).name
    accuracy = f"{LATE.format(name)} The large mark is the best round, each small one an evaluation"
    costs = f"The same {name} against what all clients had sent, computed and waited for until then"
    over = ""
    spread = (
        "Each entry's clients at its best round{}: quartiles and median, whiskers to the furthest "
        "client within 1.5 box lengths, the others as dots, the mean as a triangle."
    )
    clients = "The same client by client, in the order of the first entry."
    split = "Training samples of each class at each client"
    if len(runs) > len(histories):
        accuracy += "; curves are means over trials, bands reach from the lowest to the highest"
        split += ", of the first trial"
        over = " in each trial"
    if baseline is not None:
        accuracy += f"; beside it the difference to {baseline}, trial by trial"
    if has_clock(histories):
        accuracy += "; on the right against the seconds of the rounds on the simulated devices"
    if max(values(rows_of_all(histories), "round")) > 1:
        costs += (
            "; the first round, which compiles, counts as the median round, but not the first one "
            "after a resume"
        )
    if over or any(len(row["clients"]) > ROOM for run in runs for row in evaluated(run)[:1]):
        clients = "The same, each entry's clients from worst to best."
    return {
        "Result": {"accuracy": f"{accuracy}."},
        "Cost": {"costs": f"{costs}."},
        "Clients": {"spread": spread.format(over), "clients": clients},
        "Data and split": {"split": f"{split}."},
    }


def newest_images(folders: Mapping[str, Path]) -> str:
    """Returns the newest images of each entry's server, in HTML; "" without any."""
    shown = []
    for label, folder in folders.items():
        files = sorted((folder / "images").glob("*.png"))
        if files:
            shown.append(document.caption(f"{label}, round {int(files[-1].stem)}"))
            shown.append(document.image(files[-1].read_bytes(), "png", label))
    return "".join(shown)


def maps(folders: Mapping[str, Path]) -> str:
    """Returns the entries' maps, each folded, and how to read them, in HTML."""
    shown = map(map_of, folders, folders.values())
    reading = folded("How to read the maps", Paragraph(READING_MAPS).html())
    return document.caption(MAPS) + "".join(shown) + reading


def map_of(label: str, folder: Path) -> str:
    """Returns an entry's map, folded, or the reason why it has none, in HTML."""
    feature_map = load_map(folder)
    if feature_map is None:
        return document.caption(
            f"{label}: no map, for want of features to look at, or of test samples."
        )
    if not one_space(feature_map):
        return document.caption(f"{label}: no map, since its clients' features share no space.")
    text = f"After round {feature_map.round}, trial 0."
    svg = (folder / "features.svg").read_bytes()
    return folded(label, document.figure(svg, "features", text))
