"""The entries of a table: the settings that their rows share, and reasons against a comparison.

Also report.json, from which a page can be rewritten. Rows may be unequal: an entry is unfinished,
has other rounds, or its folder came from a run with another recipe, other data or another split.
Such rows are shown, but no conclusion is drawn from them.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_ht.check.options import Part, Positive, check_value
from fedjax_ht.core.user_code import trusting
from fedjax_ht.lab.config.entries import Entry, baseline_of
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.report.results import Aim
from fedjax_ht.lab.report.rows import are_evaluated, best_is_untrained, score_in
from fedjax_ht.lab.report.statistics import (
    Difference,
    best_scores,
    lead_of,
    listed,
    means_of,
    seeds,
)
from fedjax_ht.lab.runs.environment import CODE, PACKAGES
from fedjax_ht.lab.runs.folder import flatten, naming, read_json, write_json
from fedjax_ht.lab.runs.identity import (
    SHA,
    Identity,
    differences,
    field_of,
    is_sum,
    read_identity,
    some,
)
from fedjax_ht.lab.runs.method import ending_of
from fedjax_ht.simulation.rows import Runs
from fedjax_ht.simulation.runs import Reason

LEVEL = 0.5
"""Points of difference below which a headline calls two entries level, if neither leads."""


def headline(histories: Mapping[str, Runs], baseline: str) -> str:
    """States the result of equal rows in a sentence, by the best rounds.

    It compares the best entry with the baseline. If that is the best, it is compared with the next
    best, and entries that it does not lead are named. "" if an entry has no score.
    """
    scores, score = best_scores(histories), score_in(histories)
    means = means_of(scores)
    if any(map(math.isnan, means.values())):
        return ""
    if len(means) == 1:
        return reached(histories)
    best, next_best = ranking(histories)[:2]
    beside = baseline if best != baseline else next_best
    if best_is_untrained(histories[best]):
        return f"No entry is better in a trained round than {best} before training."
    lead = lead_of(scores[best], scores[beside], score)
    points = f"{abs(lead.interval.mean):{score.short}}"
    if not lead.leads:
        value = f"{score.before}{means[best]:{score.short}}{score.unit}"
        if lead.interval.mean < (LEVEL if score.is_share else lead.least):
            ahead = "ahead " if lead.trials > 1 else ""
            return (
                f"{best} and {beside} are level: {value}, difference {points}, "
                f"{ahead}{lead.evidence(score)}."
            )
        return (
            f"{best} ({value}) and {beside} are not distinguishable: {best} leads by "
            f"{points}{score.points} on average, {lead.evidence(score)}."
        )
    if beside == baseline or len(means) == 2:
        return f"{best} is ahead of {beside} by {points}{score.points}, {lead.evidence(score)}."
    leads, of_next = leads_of(best, histories), f"of {beside} by {points}{score.points}"
    if unclear := [label for label, other in leads.items() if not other.leads]:
        return (
            f"{best} is ahead {of_next}, {lead.evidence(score)}, but not distinguishable "
            f"from {listed(unclear)}."
        )
    return f"{best} is ahead of all others, and {of_next}, {lead.evidence(score)}."


def reached(histories: Mapping[str, Runs]) -> str:
    """States the score of the only entry; "" if it has none."""
    ((label, scores),), score = best_scores(histories).items(), score_in(histories)
    mean = sum(scores) / len(scores)
    if math.isnan(mean):
        return ""
    over = "clients"
    if len(scores) > 1:
        over += f" and {len(scores)} trials"
    value = f"{score.before}{mean:{score.short}}{score.unit}"
    return f"{label} reaches {value} in its best round, on average over {over}."


def ranking(histories: Mapping[str, Runs]) -> list[str]:
    """Returns the labels by the mean score over the trials' best rounds, the best first.

    Equal ones keep their order.
    """
    means, sign = means_of(best_scores(histories)), score_in(histories).sign

    def rank(label: str) -> float:
        return math.inf if math.isnan(means[label]) else -sign * means[label]

    return sorted(means, key=rank)


def winner(histories: Mapping[str, Runs]) -> str | None:
    """Returns the best entry if it leads all others; else None."""
    if len(histories) < 2:
        return None
    best = ranking(histories)[0]
    return best if all(lead.leads for lead in leads_of(best, histories).values()) else None


def leads_of(label: str, histories: Mapping[str, Runs]) -> dict[str, Difference]:
    """Returns the lead of an entry over each of the others, by their labels."""
    scores, score = best_scores(histories), score_in(histories)
    others = {other: values for other, values in scores.items() if other != label}
    return {other: lead_of(scores[label], values, score) for other, values in others.items()}


MOST_NAMED = 2
"""Number of differences that a headline names; the warnings below it list all."""


MIXED = "Different versions of the library or its packages trained the rows."


class Compared(NamedTuple):
    """The entries of a table.

    Attributes:
      config: the config of the table's run.
      entries: the entries in the order of the table, including those without rows.
      histories: label -> runs, for entries with an evaluation.
      unequal: label -> how its rows differ from those of the table's run; labels that are missing
        have that run's rows.
      shared: a sentence on what all rows share, and in what they differ; "" for a single entry.
      ended: a sentence on the entries that patience ended before the last round; "" for none.
      made: the date of the last round, and the versions of the library that trained the entries.
      mixed: sentences on different versions of the library, its packages or a user's own code that
        trained the entries; "" if there is one of each.
    """

    config: Config
    entries: tuple[Entry, ...]
    histories: dict[str, Runs]
    unequal: dict[str, list[str]]
    shared: str
    ended: str
    made: str
    mixed: str

    @property
    def labels(self) -> list[str]:
        """The labels of all entries."""
        return [entry.label for entry in self.entries]

    @property
    def baseline(self) -> str:
        """The label of the entry to compare others with."""
        return baseline_of(self.histories)

    @property
    def compares(self) -> bool:
        """True if there are several entries, and their rows are equal."""
        return len(self.histories) > 1 and not self.unequal

    @property
    def winner(self) -> str | None:
        """The label of the entry that is ahead; None if none is, or rows are unequal."""
        return None if self.unequal else winner(self.histories)

    @property
    def headline(self) -> str:
        """The result in a sentence, or the reasons against a comparison."""
        reasons = unequal_lines(self.unequal)
        if not reasons:
            sentence = headline(self.histories, self.baseline)
            return f"{sentence} {self.mixed}".strip() if sentence else sentence
        if len(self.entries) > 1:
            return f"No comparison: {some(reasons, MOST_NAMED)}."
        sentence = reached(self.histories) or f"{self.baseline} has no score."
        return f"{sentence} Not the run that was asked for: {some(reasons, MOST_NAMED)}."


def unequal_lines(unequal: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns a message for each difference, such as "fedssa has 6 of 30 rounds"."""
    return [f"{label} {reason}" for label, reasons in unequal.items() for reason in reasons]


def compared(
    config: Config,
    entries: Iterable[Entry],
    identities: Mapping[str, Identity],
    *,
    histories: Mapping[str, Runs],
    workdir: Path,
) -> Compared:
    """Compares the settings of the entries' rows.

    Args:
      config: the config of the table's run.
      entries: the entries of the table.
      identities: label -> the identity that the entry must have.
      histories: label -> runs; none for an entry that has not begun.
      workdir: the run's folder.

    Raises:
      ValueError: entries have scores of several tasks. One line.
    """
    entries = tuple(entries)
    unequal, stored, rounds = {}, {}, {}
    shown = {}
    for entry in entries:
        label, runs = entry.label, histories.get(entry.label, [])
        if are_evaluated(runs):
            shown[label], rounds[label] = runs, rounds_done(runs)
        with trusting(False, entry.method):
            identity = read_identity(workdir / entry.folder)
        reasons = shortfalls(runs, config)
        if runs or identity is not None:  # otherwise nothing has begun
            reasons += _origin(identity, identities[label])
        if reasons:
            unequal[label] = reasons
        stored[label] = identity or identities[label]
    if len({score_in({label: runs}) for label, runs in shown.items()}) > 1:
        raise ValueError(f"{workdir}: its entries have scores of several tasks; remove some")
    shared = ""
    trained = {label: stored[label] for label in shown}
    if len(shown) > 1:
        shared = shared_by(trained, rounds)
    return Compared(
        config=config,
        entries=entries,
        histories=shown,
        unequal=unequal,
        shared=shared,
        ended=_ended(rounds, shown, config),
        made=_made(trained.values()),
        mixed=" ".join(_mixed(trained.values())),
    )


def rounds_done(runs: Runs) -> int:
    """Returns the rounds that all runs have completed."""
    return min(history[-1]["round"] for history in runs)


def shortfalls(runs: Runs, config: Config) -> list[str]:
    """Describes how an entry's runs fall short of the config, or exceed it."""
    if not are_evaluated(runs):
        return ["has no evaluation yet"]
    done, reasons = rounds_done(runs), []
    if len(runs) != config.trials:
        reasons.append(f"has {len(runs)} of {config.trials} trials")
    if done > config.rounds:
        reasons.append(f"has {done} rounds instead of {config.rounds}")
    elif done < config.rounds:
        reason = _reason(runs, config)
        if reason == "silence":
            reasons.append(f"stopped in round {done} of {config.rounds}, since nothing arrived")
        elif reason is None:  # patience is an end that the config asks for
            reasons.append(f"has {done} of {config.rounds} rounds")
    return reasons


def _reason(runs: Runs, config: Config) -> Reason | None:
    """Returns why all runs of an entry ended before the last round; None without one reason."""
    reasons: set[Reason | None] = {ending_of(config).reason(history) for history in runs}
    return reasons.pop() if len(reasons) == 1 else None


def _ended(rounds: Mapping[str, int], histories: Mapping[str, Runs], config: Config) -> str:
    """Returns a sentence on the entries that patience ended before the last round; "" for none."""
    early = []
    for label, done in rounds.items():
        if done < config.rounds and _reason(histories[label], config) == "patience":
            early.append(f"{label} in round {done} of {config.rounds}")
    patience = config.evaluate.patience
    return f"Ended by evaluate.patience={patience}: {', '.join(early)}." if early else ""


def _origin(stored: Identity | None, expected: Identity) -> list[str]:
    """Describes how the identity in an entry's folder differs from the expected one."""
    if stored is None:
        return ["has no identity"]
    lines = differences(stored, expected)
    return [f"is of another run ({some(lines)})"] if lines else []


def shared_by(identities: Mapping[str, Identity], rounds: Mapping[str, int]) -> str:
    """Describes shared settings: "All rows share data ... and 30 rounds; they differ in ...".

    Args:
      identities: label -> the entry's identity.
      rounds: label -> number of rounds that the entry has completed.
    """
    first = next(iter(identities.values()))
    kind, of_split = first.split["kind"], split_seeds(first.split, first.trials)
    texts = {
        "data": f"data {first.data['name']}{_sum(first.data)}",
        "split": f"split {kind} of {of_split}{_sum(first.split)}",
        "models": f"models {first.models['group']}",
        "training": "training",
        "options": "the federation's options",
        "files": "files of weights" if first.files else "",
        "seed": f"seed {first.seed}",
        "trials": f"{first.trials} trials" if first.trials > 1 else "",
        "rounds": f"{next(iter(rounds.values()))} rounds",
        "versions": _versions(first),
    }
    values = {}
    for label, identity in identities.items():
        parts = {part: getattr(identity, part) for part in texts}
        parts |= {"rounds": rounds[label], "versions": _versions(identity)}
        values[label] = flatten(parts)
    other = differing(values)
    parts = {name.partition(".")[0] for name in other}
    equal = [text for part, text in texts.items() if text and part not in parts]
    sentence = f"All rows share {', '.join(equal)}"
    return f"{sentence}; they differ in {', '.join(other.values())}." if other else f"{sentence}."


def split_seeds(split: Mapping[str, Any], trials: int) -> str:
    """Names the seeds of a run's splits: "seed 1", or "seeds 1 to 3, one a trial".

    Args:
      split: fields of `config.partition`.
      trials: number of trials.
    """
    if split["per_trial"] and trials > 1:
        return f"{seeds(split['seed'], trials)}, one a trial"
    return seeds(split["seed"], 1)


def differing(values: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Returns name -> description of each value that differs: "rounds 6 (fedssa), 30 (local)".

    Args:
      values: label -> the entry's values by name.
    """
    names = sorted({name for named in values.values() for name in named})
    lines = {}
    for name in names:
        labels: dict[str, list[str]] = {}
        for label, named in values.items():
            labels.setdefault(_value(name, named.get(name)), []).append(label)
        if len(labels) > 1:
            parts = [f"{value} ({', '.join(group)})" for value, group in labels.items()]
            lines[name] = f"{field_of(name)} {', '.join(parts)}"
    return lines


def _value(name: str, value: Any) -> str:
    return str(value)[:12] if is_sum(name) else str(value)


def _sum(values: Mapping[str, Any]) -> str:
    return f" (SHA-256 {values[SHA][:12]})" if values[SHA] else ""


def _mixed(identities: Iterable[Identity]) -> list[str]:
    """Returns sentences about changes between the rows' programs.

    There is one if several versions of the programs trained entries, and one for each changed file
    of a user's own.
    """
    seen: dict[str, set[str]] = {}  # program or file -> its versions
    for versions in itertools.chain(*(identity.versions for identity in identities)):
        for name, value in versions.items():
            seen.setdefault(name, set()).add(value)
    changed = [name for name, values in seen.items() if len(values) > 1 and name != "machine"]
    files = [name.removeprefix(CODE) for name in changed if name.startswith(CODE)]
    sentences = [MIXED] if len(files) < len(changed) else []
    return sentences + [f"{file} changed between the rows that it trained." for file in files]


def _made(identities: Iterable[Identity]) -> str:
    """Formats the last date of the entries and their versions: "2026-11-28, fedjax_ht 0.2.0"."""
    identities = list(identities)
    dates = sorted(filter(None, (identity.ended for identity in identities)))
    versions = itertools.chain(*(identity.versions for identity in identities))
    return ", ".join([*dates[-1:], *dict.fromkeys(map(_library, versions))])


def _library(versions: Mapping[str, str]) -> str:
    return f"fedjax_ht {versions['fedjax_ht']} (commit {versions['commit']})"


def _versions(identity: Identity) -> str:
    """Formats the programs and machines that trained an entry; "" if they are unknown."""
    texts = []
    for versions in identity.versions:
        jax = f"{PACKAGES[0]} {versions[PACKAGES[0]]}"
        texts.append(f"{_library(versions)} with {jax} on {versions['machine']}")
    return ", then ".join(texts)


FILE = "report.json"


class Page(NamedTuple):
    """The contents of report.html.

    Attributes:
      labels: labels of the entries, in order.
      aim: the target of a comparison's table of costs; None for a run's own table.
      command: the instructions to repeat the run: command, versions, machine and commit, one line
        each.
    """

    labels: tuple[str, ...]
    aim: Aim | None
    command: str


def read_page(workdir: Path) -> Page | None:
    """Reads a run's report.json; None if there is none, as in folders of an earlier version.

    Raises:
      ValueError: it is not what a run writes. One line.
    """
    path = workdir / FILE
    if not path.exists():
        return None
    fields = read_json(path)
    with naming(path):
        aim = None if fields["aim"] is None else Aim(**fields["aim"])
        page = Page(tuple(fields["labels"]), aim, fields["command"])
        texts = (page.command, *page.labels, aim.score if aim else "")
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("labels, score and command are texts")
        if len(set(page.labels)) < len(page.labels):
            raise ValueError("labels has one label twice")
        check_value("target", getattr(aim, "target", None), Positive | None)
        check_value("share", getattr(aim, "share", None), Part | None)
        return page


def write_page(page: Page, workdir: Path) -> None:
    """Writes report.json into a run's folder."""
    write_json(workdir / FILE, page._asdict() | {"aim": page.aim and page.aim._asdict()})
