"""A table says what its rows share, and concludes nothing from rows that are not of one run."""

import dataclasses

import pytest

from fedjax_ht.lab.config.base import base_config, typed_config
from fedjax_ht.lab.config.entries import entries_of, only, preset
from fedjax_ht.lab.report.compared import compared
from fedjax_ht.lab.report.report import text_of, to_watch
from fedjax_ht.lab.runs.identity import identity_of, write_identity
from tests.lab.report.test_report import runs

NOTED = {"data": "d" * 64, "split": "5" * 64}
VERSIONS = {"fedjax_ht": "0.1.0", "commit": "abc", "jax": "0.10.2", "machine": "2 x CPU"}


def config_of(*entries, **fields):
    config = only(base_config(), entries)
    config.rounds = 2
    config.update(fields)
    return typed_config(config)


def shown(config, histories, folder, changes=None):
    """The entries of a config as `report` sees them; an entry of `changes` has another identity."""
    entries = entries_of(config)
    identities = {entry.label: identity_of(entry, config, NOTED) for entry in entries}
    for entry in entries:
        played = {"rounds": 2, "ended": "2026-11-28", "versions": (VERSIONS,)}
        stored = dataclasses.replace(identities[entry.label], **played)
        stored = (changes or {}).get(entry.label, dataclasses.replace)(stored)
        if stored is not None:
            write_identity(stored, folder / entry.folder)
    return compared(config, entries, identities, histories=histories, workdir=folder)


def test_equal_rows_have_a_conclusion_and_say_what_they_share(tmp_path):
    config = config_of("fedssa", "local", "fd:training.learning_rate=0.5")
    labels = [entry.label for entry in entries_of(config)]
    histories = dict(zip(labels, [runs(0.1, 0.2, 0.9), runs(0.1, 0.5, 0.6), runs(0.1, 0.2, 0.8)]))
    result = shown(config, histories, tmp_path)
    # the baseline is local training wherever it stands
    assert result.headline == "fedssa is ahead of local by 30.0 points, in one trial."
    assert result.winner == "fedssa" and not result.unequal
    assert result.made == "2026-11-28, fedjax_ht 0.1.0 (commit abc)"
    assert result.shared == (
        "All rows share data fashion_mnist_10k (SHA-256 dddddddddddd), split practical of seed 1 "
        "(SHA-256 555555555555), models cnn5, the federation's options, seed 0, 2 rounds, "
        "fedjax_ht 0.1.0 (commit abc) with jax 0.10.2 on 2 x CPU; they differ in "
        "training.learning_rate 0.01 (fedssa, local), 0.5 (fd:training.learning_rate=0.5)."
    )
    text = " ".join(text_of(result, None).markdown().split())
    assert result.shared in text and "To watch" not in text


WHOLE = runs(0.1, 0.2, 0.9)
UNEQUAL = {
    "unfinished": (runs(0.1, 0.9), None, "fedssa has 1 of 2 rounds"),
    "too far": (runs(0.1, 0.2, 0.3, 0.9), None, "fedssa has 3 rounds instead of 2"),
    "not begun": ([], None, "fedssa has no evaluation yet"),
    "silent": (runs(0.1, 0.9, arrived=0), None, "fedssa stopped in round 1 of 2, since nothing"),
    "trials": (runs(0.1, 0.2, 0.9, trials=2), None, "fedssa has 2 of 1 trials"),
    "method": (
        WHOLE,
        lambda identity: dataclasses.replace(identity, method={"name": "fd", "options": {}}),
        "fedssa is of another run (method.name 'fd' instead",
    ),
    "identity": (WHOLE, lambda identity: None, "fedssa has no identity"),
}


@pytest.mark.parametrize("kind", UNEQUAL)
def test_nothing_is_concluded_from_unequal_rows(tmp_path, kind):
    """The headline names what they do not share; no row is marked, and no difference is taken."""
    history, change, line = UNEQUAL[kind]
    histories = {"local": runs(0.1, 0.5, 0.6), "fedssa": history}
    changes = {"fedssa": change} if change else None
    result = shown(config_of("local", "fedssa", give_up=1), histories, tmp_path, changes)
    assert result.headline.startswith(f"No comparison: {line}"), result.headline
    assert result.winner is None and to_watch(result)[0].startswith(line)
    text = text_of(result, None).markdown()
    assert "ahead" not in text and "minus local" not in text and "level" not in text
    assert 'class="best"' not in text_of(result, None).html()


def test_an_entry_alone_says_how_far_it_is(tmp_path):
    result = shown(config_of("local"), {"local": runs(0.1, 0.5)}, tmp_path)
    assert result.headline == (
        "local reaches 50.0 % in its best round, on average over clients. Not the run that was "
        "asked for: local has 1 of 2 rounds."
    )
    assert shown(config_of("local"), {"local": runs(0.1, 0.5, 0.4)}, tmp_path).shared == ""


def test_settings_of_a_search_on_other_data_are_named(tmp_path):
    tuned = preset("fedssa:mu=0.5", "9 settings", on=config_of(**{"dataset.name": "har_10persons"}))
    config = config_of(tuned, "local", "fedssa@tuned")
    histories = {"local": runs(0.1, 0.5, 0.6), "fedssa@tuned": runs(0.1, 0.5, 0.7)}
    result = shown(config, histories, tmp_path)
    line = "searched on har_10persons, not on these data"
    assert to_watch(result) == [f"fedssa@tuned: settings {line}"]
    text = " ".join(text_of(result, None).markdown().split())
    assert f"fedssa@tuned: at its defaults; {line}" in text and "tuned on" not in text


def test_a_headline_names_two_differences_and_the_lines_below_all(tmp_path):
    config = config_of("local", "fedssa", "fd")
    result = shown(config, {"local": runs(0.1)}, tmp_path)
    assert result.headline == (
        "No comparison: local has 0 of 2 rounds, fedssa has no evaluation yet, and 1 more."
    )
    assert len(to_watch(result)) == 3


def test_an_end_by_patience_is_the_end_that_was_asked_for(tmp_path):
    config = config_of("local", "fedssa", **{"rounds": 9, "evaluate.patience": 1})
    histories = {"local": runs(0.1, 0.5, 0.4), "fedssa": runs(0.1, 0.6, 0.7, 0.6)}
    result = shown(config, histories, tmp_path)
    assert result.headline == "fedssa is ahead of local by 20.0 points, in one trial."
    assert "they differ in rounds 2 (local), 3 (fedssa)." in result.shared
    ended = "Ended by evaluate.patience=1: local in round 2 of 9, fedssa in round 3 of 9."
    assert result.ended == ended and ended in text_of(result, None).markdown()
    assert shown(config_of("local", rounds=2), {"local": runs(0.1, 0.5, 0.4)}, tmp_path).ended == ""


def test_rows_of_different_versions_are_named(tmp_path):
    def later(identity):
        return dataclasses.replace(identity, versions=(VERSIONS, VERSIONS | {"jax": "0.11.0"}))

    histories = {"local": runs(0.1, 0.5, 0.6), "fedssa": runs(0.1, 0.5, 0.7)}
    result = shown(config_of("local", "fedssa"), histories, tmp_path, {"fedssa": later})
    assert result.headline.endswith("one trial. Different versions of the library or its packages "
                                    "trained the rows.")  # fmt: skip
    assert "differ in versions" in result.shared and "jax 0.10.2 on 2 x CPU, then" in result.shared
    elsewhere = {
        "fedssa": lambda i: dataclasses.replace(i, versions=(VERSIONS | {"machine": "m"},))
    }
    result = shown(config_of("local", "fedssa"), histories, tmp_path, elsewhere)
    assert not result.mixed and "versions" in result.shared


def test_own_code_that_changed_between_rows_is_named(tmp_path):
    def by(sums):
        versions = VERSIONS | {f"code.{file}": value for file, value in sums.items()}
        return lambda identity: dataclasses.replace(identity, versions=(versions,))

    histories = {"local": runs(0.1, 0.5, 0.6), "fedssa": runs(0.1, 0.5, 0.7)}
    config = config_of("local", "fedssa")
    changes = {"local": by({"mine.py": "a"}), "fedssa": by({"mine.py": "b", "other.py": "c"})}
    result = shown(config, histories, tmp_path, changes)
    assert result.headline.endswith("one trial. mine.py changed between the rows that it trained.")
    result = shown(config, histories, tmp_path, {"fedssa": by({"other.py": "c"})})
    assert result.headline.endswith("one trial.")  # of a library's method there is no own code
