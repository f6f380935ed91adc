"""Makes docs/leaderboard.md: methods ranked in settings that cost a minute or two each.

    python -m experiments.leaderboard
    python -m experiments.leaderboard --add=dirichlet RUNS/dirichlet/fedavg RUNS/dirichlet/fedssa
    python -m experiments.leaderboard --add=dirichlet:released RUNS/dirichlet/released
    python -m experiments.leaderboard --fit

Run it in the repository's root. experiments/results/leaderboard.toml lists the settings; its head
explains the fields. --add first puts the methods of runs' folders into a setting's CSV, replacing
earlier rows of these methods; after a colon it names the form in the runs' config. --fit first
finds out which methods cannot run in the settings, and why (leaderboard_unfit.csv). Only the part
of the page between two marks changes.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from absl import app, flags

from experiments.configs.leaderboard_images import FORMS
from experiments.leaderboard_rows import (
    Rank,
    Standing,
    add_runs,
    overall,
    read_trials,
    rows_of_runs,
    standings,
)
from experiments.paper_manifest import filled, read_toml
from experiments.paper_parts import wrapped
from experiments.paper_tables import around_marks
from experiments.rows import read_lines, write_rows
from fedjax_ht.check.names import unknown
from fedjax_ht.lab.cli import orderly_main, parse_flags
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.config.config_files import read_config_file
from fedjax_ht.lab.config.entries import BASELINE, split_spec
from fedjax_ht.lab.files import write_whole
from fedjax_ht.lab.report.document import Table, human_bytes, human_flops
from fedjax_ht.lab.report.statistics import Interval
from fedjax_ht.lab.runs.compare import ALL, comparison
from fedjax_ht.lab.runs.plan import fitting
from fedjax_ht.methods import METHODS

RESULTS, PAGE = Path("experiments/results"), Path("docs/leaderboard.md")
UNFIT = "leaderboard_unfit.csv"
UNFIT_COLUMNS = ("config", "method", "needs")
LEFT_OUT = " is left out: "  # in the lines of `fitting`
MARKS = "<!-- made by python -m experiments.leaderboard -->", "<!-- until here -->"
FIRST = ("rank", "method", "by validation %", "minus local, points", "Student's t", "ahead in")
TRAINED = ("rank as trained", "as trained %", "minus local as trained", "its Student's t")
REST = (
    "best round %",
    "macro F1 %",
    "clients that lose %",
    "clients that gain %",
    "bytes to target",
    "FLOPs to target",
    "settings",
)

_ADD = flags.DEFINE_string("add", None, "Name of the setting that the runs' folders are rows of.")
_FIT = flags.DEFINE_bool("fit", False, "Find out anew which methods cannot run in the settings.")


def names_of_rows() -> list[str]:
    """Returns the names of all rows that a setting may have: methods and their forms."""
    names = list(METHODS)
    for form, specs in FORMS.items():
        names += [f"{split_spec(spec)[0]} {form}" for spec in specs]
    return names


class Setting(NamedTuple):
    """A setting of the leaderboard; its fields are explained in leaderboard.toml."""

    name: str
    title: str
    csv: str
    config: str
    points: int
    short: str
    made: str = ""
    notes: str = ""

    @property
    def has_both(self) -> bool:
        """True if all runs of the setting have both scores."""
        return read_config_file(self.config).scoring.state == "both"


def read_settings(results: Path) -> tuple[list[Setting], dict[str, str]]:
    """Reads the settings, and the remarks on rows.

    Raises:
      ValueError: a field is missing or unknown. One line.
    """
    path = results / "leaderboard.toml"
    content = read_toml(path)
    settings = [filled(Setting, table, path.name) for table in content["settings"]]
    return settings, content["marks"]


def read_unfit(results: Path) -> dict[str, dict[str, str]]:
    """Reads which methods cannot run: config -> method -> what it needs."""
    unfit: dict[str, dict[str, str]] = {}
    for row in read_lines(results / UNFIT):
        unfit.setdefault(row["config"], {})[row["method"]] = row["needs"]
    return unfit


def find_unfit(config_name: str) -> list[tuple[str, str, str]]:
    """Returns the rows of `UNFIT` for a config."""
    lines: list[str] = []
    config = typed_config(read_config_file(config_name))
    fitting(comparison(config, [ALL], None), lines.append)
    rows = []
    for line in lines:
        method, _, needs = line.partition(LEFT_OUT)
        rows.append((config_name, method, needs))
    return rows


def board(results: Path) -> str:
    """Makes the part of the page between its marks.

    Raises:
      ValueError, OSError: a file is missing or wrong. One line.
    """
    settings, marks = read_settings(results)
    rows = {}
    for setting in settings:
        if (results / setting.csv).exists():
            rows[setting.name] = standings(read_trials(results / setting.csv))
    unfit = read_unfit(results)
    sections = [overall_markdown(settings, rows)]
    for setting in settings:
        of_setting = rows.get(setting.name, {})
        reasons = unfit.get(setting.config, {})
        sections.append(setting_markdown(setting, of_setting, reasons, marks=marks))
    return "\n\n".join(sections)


def overall_markdown(
    settings: Sequence[Setting], rows: Mapping[str, Mapping[str, Standing]]
) -> str:
    """Makes the table over all settings."""
    first, trained = {}, {}
    for setting in settings:
        of_setting = rows.get(setting.name, {})
        first[setting.name] = {name: row.first for name, row in of_setting.items()}
        second = {name: row.trained for name, row in of_setting.items() if row.trained}
        if not setting.has_both:
            trained[setting.name] = first[setting.name]
        elif len(second) == len(of_setting):  # ranks among a few rows are not ranks among all
            trained[setting.name] = second
    shares, of_trained = overall(first), overall(trained)
    lines = []
    for method, share in shares.items():
        cells = [method, f"{100 * share:.0f}"]
        cells.append(f"{100 * of_trained[method]:.0f}" if method in of_trained else "")
        for ranks in first.values():
            cells.append(place(ranks.get(method), len(ranks)))
        lines.append([*cells, str(sum(method in ranks for ranks in first.values()))])
    head = ["method", "ahead of, % of the others", "as trained", *first, "settings"]
    return f"## Over settings\n\n{Table(head, lines).markdown()}"


def place(rank: Rank | None, methods: int) -> str:
    """Formats a rank among `methods` methods, "3 of 37"."""
    return "" if rank is None else f"{rank.rank:g} of {methods}"


def setting_markdown(
    setting: Setting,
    rows: Mapping[str, Standing],
    unfit: Mapping[str, str],
    *,
    marks: Mapping[str, str],
) -> str:
    """Makes a setting's section."""
    text = [f"## {setting.title}", wrapped(setting.short)]
    if rows:
        made = f"{setting.points} settings a method. Made on {setting.made}. "
        made += f"Rows: [{setting.csv}](../experiments/results/{setting.csv}). "
        made += scores_text(setting, rows)
        text[1] = wrapped(f"{setting.short} {made}")
        text.append(table_of(rows, marks))
    public = {round(row.public_bytes) for row in rows.values()} - {0}
    if public:
        named = [method for method, row in rows.items() if row.public_bytes]
        sizes = " or ".join(human_bytes(count) for count in sorted(public))
        text.append(
            wrapped(f"Not in the bytes: the public set, {sizes} once, of {', '.join(named)}.")
        )
    if setting.notes:
        text.append(setting.notes.strip())
    return "\n\n".join([*text, *absent(rows, unfit)])


def scores_text(setting: Setting, rows: Mapping[str, Standing]) -> str:
    """Describes which rows have which scores."""
    if not setting.has_both:
        return "All rows have one score, as trained."
    named = [method for method, row in rows.items() if row.trained]
    if len(named) == len(rows):
        return "All rows have both scores."
    if not named:
        return "No row has the second score, as trained, yet."
    return f"Only {', '.join(named)} have the second score, as trained, and are ranked by it."


def table_of(rows: Mapping[str, Standing], marks: Mapping[str, str]) -> str:
    """Makes a setting's table; the second score has columns if any row has it."""
    has_trained = any(row.trained for row in rows.values())
    lines = []
    for method, row in rows.items():
        mark = f" ({marks[method]})" if method in marks else ""
        cells = [rank_text(row.first), method + mark, *score_cells(method, row.first)]
        cells.append("" if method == BASELINE else f"{row.first.ahead} of {row.trials}")
        if has_trained:
            second = [""] * len(TRAINED)
            if row.trained:
                second = [rank_text(row.trained), *score_cells(method, row.trained)]
            cells += second
        lines.append(cells + rest_of(row))
    head = [*FIRST, *(TRAINED if has_trained else ()), *REST]
    return Table(head, lines).markdown()


def rank_text(rank: Rank) -> str:
    """Formats a rank with its interval."""
    return f"{rank.rank:g} ({rank.low:g} to {rank.high:g})"


def score_cells(method: str, rank: Rank) -> list[str]:
    """Formats a score, and its lead over local training with two intervals."""
    if method == BASELINE:
        return [f"{100 * rank.chosen:.2f}", "", ""]
    lead = f"{100 * rank.lead.mean:+.2f} ({ends(rank.lead)})"
    return [f"{100 * rank.chosen:.2f}", lead, ends(rank.student)]


def ends(interval: Interval) -> str:
    """Formats an interval's ends in points."""
    return f"{100 * interval.low:+.2f} to {100 * interval.high:+.2f}"


def rest_of(row: Standing) -> list[str]:
    """Formats the cells of `REST`."""
    lose = gain = ""
    if row.gains is not None:
        lose, gain = f"{100 * row.gains.losing:.0f}", f"{100 * row.gains.gaining:.0f}"
    sent, computed = human_bytes(row.cost.bytes), human_flops(row.cost.flops)
    if not row.cost.reached:
        sent = computed = "not reached"
    elif row.cost.reached < row.trials:
        sent += f" ({row.cost.reached} of {row.trials})"
    return [
        f"{100 * row.best:.2f}",
        f"{100 * row.macro_f1:.2f}",
        lose,
        gain,
        sent,
        computed,
        row.settings.replace("training.", ""),
    ]


def absent(rows: Mapping[str, Standing], unfit: Mapping[str, str]) -> list[str]:
    """Lists the methods that a setting lacks: those not run yet, and those that cannot run."""
    text, missing = [], []
    for name in names_of_rows():
        if name not in rows and name.split()[0] not in unfit:
            missing.append(name)
    if missing:
        text.append(wrapped(f"**Not run yet** ({len(missing)}): {', '.join(missing)}."))
    reasons: dict[str, list[str]] = {}
    for method, needs in unfit.items():
        reasons.setdefault(needs.removeprefix(method).lstrip(": "), []).append(method)
    if reasons:
        lines = [f"**Cannot run here** ({len(unfit)}):\n"]
        for needs, methods in reasons.items():
            lines.append(wrapped(f"* {', '.join(methods)}: {needs}", "  "))
        text.append("\n".join(lines))
    return text


def page(text: str, results: Path) -> str:
    """Updates the page between its marks; errors as for `board`."""
    before, after = around_marks(text, MARKS)
    return before + board(results) + after


def add(spec: str, folders: Sequence[str]) -> None:
    """Puts the methods of runs' folders into a setting's CSV.

    Args:
      spec: name of the setting, followed by ":FORM" for runs of a form.
      folders: paths of the runs.

    Raises:
      ValueError, OSError: no such setting or form, or a folder is not a run of it. One line.
    """
    name, _, form = spec.partition(":")
    settings = {each.name: each for each in read_settings(RESULTS)[0]}
    if name not in settings:
        raise ValueError(unknown("setting", name, list(settings)))
    if not folders:
        raise ValueError(f"--add={spec} needs folders of runs behind it")
    setting = settings[name]
    config = setting.config
    if form:
        if form not in FORMS:
            raise ValueError(unknown("form", form, FORMS))
        config += f"{',' if ':' in config else ':'}form={form}"
    rows = rows_of_runs(map(Path, folders), config, points=setting.points, form=form)
    wrong = sorted(rows.keys() - set(names_of_rows()))
    if form and wrong:
        raise ValueError(
            f"--add={spec}: the form has no row {wrong[0]!r}; it has {', '.join(FORMS[form])}"
        )
    add_runs(RESULTS / setting.csv, rows)
    print(f"{', '.join(rows)}: now in {RESULTS / setting.csv}")


@orderly_main
def main(arguments: Sequence[str]) -> None:
    if arguments[1:] and _ADD.value is None:
        raise ValueError(f"unexpected argument {arguments[1]!r}; folders stand behind --add")
    if _FIT.value:
        rows = []
        for setting in read_settings(RESULTS)[0]:
            rows += find_unfit(setting.config)
        write_rows(RESULTS / UNFIT, UNFIT_COLUMNS, rows)
    if _ADD.value is not None:
        add(_ADD.value, arguments[1:])
    text = page(PAGE.read_text(encoding="utf-8"), RESULTS)
    write_whole(PAGE, text)
    print(PAGE)


if __name__ == "__main__":
    app.run(main, flags_parser=functools.partial(parse_flags, takes_words=True))
