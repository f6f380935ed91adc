"""report.html: the result of a run, its pictures and how to repeat it, in one file that needs no
network."""

import html
import itertools
from collections.abc import Mapping
from pathlib import Path

from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.readers.description import describe
from fedjax_ht.lab.report import html_page
from fedjax_ht.lab.report.client_classes import client_class_tables
from fedjax_ht.lab.report.compared import Compared
from fedjax_ht.lab.report.document import Paragraph, folded
from fedjax_ht.lab.report.figures import FEW
from fedjax_ht.lab.report.maps import load_map, one_space
from fedjax_ht.lab.report.page import Page
from fedjax_ht.lab.report.plots import ROOM
from fedjax_ht.lab.report.results import class_table, sent
from fedjax_ht.lab.report.rows import has_clock, rows_of_all, values
from fedjax_ht.lab.report.run_warnings import to_watch
from fedjax_ht.lab.report.setting import setting
from fedjax_ht.lab.report.statistics import listed
from fedjax_ht.lab.report.summary import comparisons, entry_settings, remarks, results
from fedjax_ht.lab.runs.build import Experiment
from fedjax_ht.simulation.rows import Runs, evaluated

RESULT = "Accuracy is the mean over clients, each on its own test samples, in the best round."
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


def write_report(experiment: Experiment, shown: Compared, page: Page, workdir: Path) -> Path:
    """Writes report.html into a run's folder, which has the pictures already.

    Args:
      experiment: the experiment built from it.
      shown: the run's entries and their rows.
      page: the target of its first table, and how to repeat the run.
      workdir: the run's folder.
    """
    histories = shown.histories
    folders = {entry.label: workdir / entry.folder for entry in shown.entries}
    watch = html_page.warning_box(to_watch(shown))
    result = html_page.caption(RESULT) + results(shown, page.aim).html()
    result += "".join(map(html_page.caption, remarks(shown)))
    sections = {"Result": result + comparisons(shown).html() + watch}
    baseline = shown.baseline if shown.compares else None
    for heading, pictures in captions(histories, baseline).items():
        figures = []
        for name, text in pictures.items():
            path = workdir / "plots" / f"{name}.svg"
            figures.append(html_page.figure(path, text))
        sections[heading] = "".join(figures)
    by_class = class_table(histories, experiment.dataset.class_names)
    if by_class.rows:
        sections["Clients"] += folded("Accuracy by class", by_class.html())
    sections["Clients"] += client_class_tables(histories, experiment.dataset.class_names)
    sections["Cost"] += folded("What each entry sent", sent(histories).html())
    if experiment.config.report.maps != "none":
        sections["Features and prototypes"] = maps(folders)
    sections["Images made by the servers"] = newest_images(folders)
    about_run = Paragraph(setting(experiment, histories)).html()
    command = f"<pre>{html.escape(page.command)}</pre>"
    sections["How to repeat it"] = command + about_run + entry_settings(shown.entries).html()
    labels = listed(shown.labels) if len(shown.entries) <= FEW else f"{len(shown.entries)} entries"
    about = f"{labels} on {experiment.dataset.name}"
    title = shown.headline.removesuffix(".") or about
    lead = (f"{about}: {size(experiment.config)}", *describe(experiment.dataset).lines)
    text = html_page.page(about, title, lead, sections)
    path = workdir / "report.html"
    with atomic_open(path) as file:
        file.write(text)
    return path


def size(config: Config) -> str:
    """Counts a run's clients, rounds and trials."""
    trials = f"{config.trials} trials" if config.trials > 1 else "one trial"
    return f"{config.partition.num_clients} clients, {config.rounds} rounds, {trials}"


def captions(
    histories: Mapping[str, Runs], baseline: str | None = None
) -> dict[str, dict[str, str]]:
    """Returns heading -> figure of plots/ -> its caption, which explains only the figure's own
    marks; arguments as of `accuracy_curves`."""
    runs = list(itertools.chain(*histories.values()))
    accuracy = "The large mark is the best round, each small one an evaluation"
    costs = (
        "The same accuracy against what all clients had sent, computed and waited for until then"
    )
    spread = (
        "Each entry's clients at its best round: quartiles and median, whiskers to the furthest "
        "client within 1.5 box lengths, the others as dots, the mean as a triangle."
    )
    clients = "The same client by client, in the order of the first entry."
    split = "Training samples of each class at each client"
    if len(runs) > len(histories):
        accuracy += "; curves are means over trials, bands reach from the lowest to the highest"
        split += ", of the first trial"
    if baseline is not None:
        accuracy += (
            f"; beside it the difference to {baseline}, trial by trial, where the first rounds may "
            "leave the panel"
        )
    if has_clock(histories):
        accuracy += "; on the right against the seconds of the rounds on the simulated devices"
    if len(histories) > 1:
        costs += "; the grey line is the highest accuracy that any entry had for so much"
    if max(values(rows_of_all(histories), "round")) > 1:
        costs += "; without the compilation of the first round, which counts as the median round"
    if any(len(row["clients"]) > ROOM for history in runs for row in evaluated(history)[:1]):
        clients = "The same, each entry's clients from worst to best."
    return {
        "Accuracy": {"accuracy": f"{accuracy}."},
        "Cost": {"costs": f"{costs}."},
        "Clients": {"spread": spread, "clients": clients},
        "Split": {"split": f"{split}."},
    }


def newest_images(folders: Mapping[str, Path]) -> str:
    """Returns the newest images of each entry's server, in HTML; "" without any."""
    shown = []
    for label, folder in folders.items():
        files = sorted((folder / "images").glob("*.png"))
        if files:
            shown.append(html_page.caption(f"{label}, round {int(files[-1].stem)}"))
            shown.append(html_page.image(files[-1].read_bytes(), "png", label))
    return "".join(shown)


def maps(folders: Mapping[str, Path]) -> str:
    """Returns the entries' maps, each folded, and how to read them, in HTML."""
    shown = map(map_of, folders, folders.values())
    reading = folded("How to read the maps", Paragraph(READING_MAPS).html())
    return html_page.caption(MAPS) + "".join(shown) + reading


def map_of(label: str, folder: Path) -> str:
    """Returns an entry's map, folded, or a line that it has none, in HTML."""
    feature_map = load_map(folder)
    if feature_map is None:
        return html_page.caption(
            f"{label}: no map, for want of features to look at, or of test samples."
        )
    if not one_space(feature_map):
        return html_page.caption(f"{label}: no map, since its clients' features share no space.")
    text = f"After round {feature_map.round}, trial 0."
    return folded(label, html_page.figure(folder / "features.svg", text))
