"""Makes docs/leaderboard.md: methods ranked in settings that cost a minute or two each.

    python -m experiments.leaderboard
    python -m experiments.leaderboard --add=dirichlet RUNS/dirichlet/fedavg RUNS/dirichlet/fedssa
    python -m experiments.leaderboard --fit

Run it in the repository's root. experiments/results/leaderboard.toml says which settings there are;
its head explains the fields. --add first puts the methods of runs' folders into a setting's CSV, in
place of earlier rows of these methods. --fit first finds out which methods cannot run in the
settings, and why (leaderboard_unfit.csv). Of the page only what is between two marks changes.
"""

import csv
import functools
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from absl import app, flags

from experiments.leaderboard_ranks import Standing, overall, standings
from experiments.leaderboard_rows import add_runs, read_trials, rows_of_runs
from experiments.paper_parts import wrapped
from experiments.paper_tables import around_marks
from experiments.rows import write_rows
from fedjax_ht.configs.base import typed_config
from fedjax_ht.core.files import atomic_open
from fedjax_ht.core.names import unknown
from fedjax_ht.experiment.entries import BASELINE
from fedjax_ht.methods import METHODS
from fedjax_ht.report.table import Table, human_bytes, human_flops
from fedjax_ht.runner.cli import fail, parse_flags
from fedjax_ht.runner.compare import ALL, comparison
from fedjax_ht.runner.config_files import read_config_file
from fedjax_ht.runner.fitting import fitting

RESULTS, PAGE = Path("experiments/results"), Path("docs/leaderboard.md")
UNFIT = "leaderboard_unfit.csv"
UNFIT_COLUMNS = ("config", "method", "needs")
LEFT_OUT = " is left out: "  # of the lines of `fitting`
MARKS = "<!-- made by python -m experiments.leaderboard -->", "<!-- until here -->"
HEAD = (
    "rank",
    "method",
    "by validation %",
    "minus local, points",
    "ahead in",
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


class Setting(NamedTuple):
    """A setting of the leaderboard; its fields are explained in leaderboard.toml."""

    name: str
    title: str
    csv: str
    points: int
    short: str
    made: str
    config: str = ""
    notes: str = ""


def read_settings(results: Path) -> list[Setting]:
    """Reads the settings.

    Raises:
      ValueError: a field is missing or unknown. One line.
    """
    path = results / "leaderboard.toml"
    tables = tomllib.loads(path.read_text(encoding="utf-8"))["settings"]
    try:
        return [Setting(**table) for table in tables]
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from None


def read_unfit(results: Path) -> dict[str, dict[str, str]]:
    """Reads which methods cannot run: config -> method -> what it needs."""
    unfit: dict[str, dict[str, str]] = {}
    with (results / UNFIT).open(newline="") as file:
        for row in csv.DictReader(file):
            unfit.setdefault(row["config"], {})[row["method"]] = row["needs"]
    return unfit


def find_unfit(config_name: str) -> list[tuple[str, str, str]]:
    """Returns the rows of `UNFIT` of a config."""
    lines: list[str] = []
    config = typed_config(read_config_file(config_name))
    fitting(comparison(config, [ALL], None), lines.append)
    rows = []
    for line in lines:
        method, _, needs = line.partition(LEFT_OUT)
        rows.append((config_name, method, needs))
    return rows


def board(results: Path) -> str:
    """Makes what the page has between its marks.

    Raises:
      ValueError, OSError: a file is missing or wrong. One line.
    """
    settings = read_settings(results)
    rows = {}
    for setting in settings:
        if (results / setting.csv).exists():
            rows[setting.name] = standings(read_trials(results / setting.csv))
    unfit = read_unfit(results)
    sections = [overall_markdown(rows)]
    for setting in settings:
        reasons = unfit.get(setting.config, {})
        if setting.name in rows:
            sections.append(setting_markdown(setting, rows[setting.name], reasons))
        else:
            sections.append(empty_markdown(setting, reasons))
    return "\n\n".join(sections)


def overall_markdown(rows: Mapping[str, Mapping[str, Standing]]) -> str:
    """Makes the table over all settings."""
    lines = []
    for method, share in overall(rows).items():
        cells = [method, f"{100 * share:.0f}"]
        for of_setting in rows.values():
            cells.append(place(of_setting.get(method), len(of_setting)))
        lines.append([*cells, str(sum(method in of_setting for of_setting in rows.values()))])
    head = ["method", "ahead of, % of the others", *rows, "settings"]
    return f"## Over settings\n\n{Table(head, lines).markdown()}"


def place(row: Standing | None, methods: int) -> str:
    """Formats a rank among so many methods, "3 of 37"."""
    return "" if row is None else f"{row.rank:g} of {methods}"


def setting_markdown(
    setting: Setting, rows: Mapping[str, Standing], unfit: Mapping[str, str]
) -> str:
    """Makes a setting's section."""
    table = Table(HEAD, [cells_of(method, row) for method, row in rows.items()])
    made = f"{setting.short} {setting.points} settings a method. Made on {setting.made}. "
    made += f"Rows: [{setting.csv}](../experiments/results/{setting.csv})."
    if not any(row.gains for row in rows.values()):
        made += " Costs and single clients were not kept; the bootstrap is over trials alone."
    text = [f"## {setting.title}", wrapped(made), table.markdown()]
    public = {round(row.public_bytes) for row in rows.values()} - {0}
    if public:
        named = [method for method, row in rows.items() if row.public_bytes]
        sizes = " or ".join(human_bytes(count) for count in sorted(public))
        text.append(
            wrapped(f"Not in the bytes: the public set, {sizes} once, of {', '.join(named)}.")
        )
    if setting.notes:
        text.append(setting.notes.strip())
    if setting.config:
        text += absent(setting, rows, unfit)
    return "\n\n".join(text)


def empty_markdown(setting: Setting, unfit: Mapping[str, str]) -> str:
    """Makes the section of a setting in which nothing has been run yet."""
    text = [f"## {setting.title}", wrapped(setting.short), *absent(setting, {}, unfit)]
    return "\n\n".join(text)


def absent(setting: Setting, rows: Mapping[str, Standing], unfit: Mapping[str, str]) -> list[str]:
    """Says which methods a setting lacks: those that have not been run, and those that cannot."""
    text = []
    missing = [method for method in METHODS if method not in rows and method not in unfit]
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


def cells_of(method: str, row: Standing) -> list[str]:
    """Formats a method's row of a setting's table; its order is that of `HEAD`."""
    lead = ahead = lose = gain = ""
    if method != BASELINE:
        ends = f"{100 * row.lead_low:+.2f} to {100 * row.lead_high:+.2f}"
        lead = f"{100 * row.lead:+.2f} ({ends})"
        ahead = f"{row.ahead} of {row.trials}"
    if row.gains is not None:
        lose, gain = f"{100 * row.gains.losing:.0f}", f"{100 * row.gains.gaining:.0f}"
    sent = computed = ""
    if row.cost is not None:
        sent, computed = human_bytes(row.cost.bytes), human_flops(row.cost.flops)
        if not row.cost.reached:
            sent = computed = "not reached"
        elif row.cost.reached < row.trials:
            sent += f" ({row.cost.reached} of {row.trials})"
    return [
        f"{row.rank:g} ({row.rank_low:g} to {row.rank_high:g})",
        method,
        f"{100 * row.chosen:.2f}",
        lead,
        ahead,
        f"{100 * row.best:.2f}",
        "" if math.isnan(row.macro_f1) else f"{100 * row.macro_f1:.2f}",
        lose,
        gain,
        sent,
        computed,
        row.settings.replace("training.", ""),
    ]


def page(text: str, results: Path) -> str:
    """Makes the page anew between its marks; errors as of `board`."""
    before, after = around_marks(text, MARKS)
    return before + board(results) + after


def add(name: str, folders: Sequence[str]) -> None:
    """Puts the methods of runs' folders into a setting's CSV.

    Raises:
      ValueError, OSError: there is no such setting, or a folder is no run of it. One line.
    """
    settings = {each.name: each for each in read_settings(RESULTS) if each.config}
    if name not in settings:
        raise ValueError(unknown("setting", name, list(settings)))
    if not folders:
        raise ValueError(f"--add={name} needs folders of runs behind it")
    setting = settings[name]
    rows = rows_of_runs(map(Path, folders), setting.config, setting.points)
    add_runs(RESULTS / setting.csv, rows)
    print(f"{', '.join(rows)}: now in {RESULTS / setting.csv}")


def main(arguments: Sequence[str]) -> None:
    try:
        if arguments[1:] and _ADD.value is None:
            raise ValueError(f"unexpected argument {arguments[1]!r}; folders stand behind --add")
        if _FIT.value:
            rows = []
            for setting in read_settings(RESULTS):
                rows += find_unfit(setting.config) if setting.config else []
            write_rows(RESULTS / UNFIT, UNFIT_COLUMNS, rows)
        if _ADD.value is not None:
            add(_ADD.value, arguments[1:])
        text = page(PAGE.read_text(encoding="utf-8"), RESULTS)
    except (ValueError, OSError) as error:
        fail(error)
    with atomic_open(PAGE) as file:
        file.write(text)
    print(PAGE)


if __name__ == "__main__":
    app.run(main, flags_parser=functools.partial(parse_flags, takes_words=True))
