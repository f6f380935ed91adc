"""The page coverage.md is made of its file, and the command line takes each command on it."""

import re
import shlex
from pathlib import Path

import pytest
from absl import flags

from experiments.paper_coverage import Item, check_item
from experiments.paper_tables import coverage_page
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.config.config_files import define_config
from fedjax_ht.lab.config.entries import entries_of
from fedjax_ht.lab.config.sections import Config
from fedjax_ht.lab.generators import SHIPPED, open_generator
from fedjax_ht.lab.runs.compare import comparison
from fedjax_ht.lab.runs.plan import settle

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments" / "results"
PAGE = RESULTS / "coverage.md"
COMMANDS = re.findall(r"^fedjax-ht (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
# Generators that do not ship, and code of a user's own.
NOT_SHIPPED = r"imagenet64\.pkl|stylegan3-t-afhqv2-512x512\.pkl|stable-diffusion-v1-5|mine"


def config_of(command: str) -> Config:
    """Parses the words as `fedjax-ht run` or `compare` does, to the config that it would run."""
    name, *arguments = shlex.split(command)
    assert name in ("run", "compare"), command
    values = flags.FlagValues()
    define_config(values)
    if name == "compare":
        flags.DEFINE_list("methods", None, "", flag_values=values)
        flags.DEFINE_integer("trials", None, "", flag_values=values)
        flags.DEFINE_float("target", None, "", flag_values=values)
        scores = ["accuracy", "accuracy_participants"]
        flags.DEFINE_enum("target_score", "accuracy", scores, "", flag_values=values)
    assert values(["fedjax-ht", *arguments]) == ["fedjax-ht"], command
    config = typed_config(values.config.fields)
    if name == "run":
        return config
    return comparison(config, values.methods, values.trials)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_makes_a_config_without_a_mistake(command):
    config = config_of(command)
    try:
        settled = settle(config)
    except (FileNotFoundError, ValueError) as error:
        assert re.search(NOT_SHIPPED, str(error)), error
        return
    assert settled.runs and config.rounds > 0


def test_random_classes_are_asked_of_no_generator_without_classes():
    """FedKTL's source=labels is refused once the federation is there, which `settle` has not."""
    commands = [command for command in COMMANDS if "source=labels" in command]
    assert commands
    for command in commands:
        for entry in entries_of(config_of(command)):
            name = entry.options["generator"]
            assert name not in SHIPPED or open_generator(name).conditional is not None, command


def test_the_page_is_what_its_file_makes():
    text = PAGE.read_text(encoding="utf-8")
    assert coverage_page(text, RESULTS) == text, "run python -m experiments.paper_tables"
    assert len(COMMANDS) > 60


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Item("Table 1", "all", "not run"), "was not run; `needs` must say why"),
        (Item("Table 1", "all", "done"), "the status is 'done'"),
        (Item("Table 1", "all", "small form", ["luck"]), "'luck' is no need"),
        (Item("Figure 4", "all", "small form", note="it is drawn"), "was run; `note` must link"),
    ],
)
def test_a_row_without_its_run_or_reason_is_refused(item, message):
    with pytest.raises(ValueError, match=f"FedSSA, .*{message}"):
        check_item(item, "FedSSA")
