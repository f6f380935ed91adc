"""Flags set a config's fields; a wrong flag is refused in one line."""

import re
import shlex

import pytest
from absl import flags

from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.config.config_files import define_config, read_config_file, shipped
from fedjax_ht.lab.config.entries import entries_of, presets_of
from tests.runs import ROOT


def parsed(*arguments):
    """The config of a command line, as its flags leave it."""
    values = flags.FlagValues()
    define_config(values)
    values(["main", *arguments])
    return values.config.fields


def test_flags_set_the_fields_of_a_config():
    config = parsed(
        "--config=quickstart",
        "--config.rounds=5",
        "--config.participation=1",
        "--config.training.learning_rate",
        "0.5",
        "--config.shared_init",
        "--noconfig.training.shuffle",
        "--config.dataset.seen_before=true",
        "--config.model.group=cnn4",
        "--config.model.weights={'cnn1': 'a.npz'}",
        "--config.uplink=(('gaussian_noise', 0.05, 0.2),)",
        "--config.entries=local",
        "--config.entries=fedproto:weight=3.0",
        "--config.partition.options.train_share=0.5",
    )
    assert config.rounds == 5 and config.participation == 1.0
    assert config.training.learning_rate == 0.5 and config.training.shuffle is False
    assert config.shared_init is True and config.dataset.seen_before is True
    assert config.model.group == "cnn4" and config.model.weights == {"cnn1": "a.npz"}
    assert config.uplink == (("gaussian_noise", 0.05, 0.2),)
    *presets, first, second = config.entries
    assert (first, second) == ("local", "fedproto:weight=3.0")
    assert presets == list(presets_of(read_config_file("quickstart").entries).values())
    assert config.partition.options.train_share == 0.5
    assert typed_config(config).model.weights == {"cnn1": "a.npz"}


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("local,fedproto", ("local", "fedproto")),
        ("fedproto:weight=3, local", ("fedproto:weight=3", "local")),
        ("fedral:blocks=(2,4),local", ("fedral:blocks=(2,4)", "local")),
        ("fedral:blocks=(2,4)", ("fedral:blocks=(2,4)",)),
        ("('local', 'fedproto')", ("local", "fedproto")),
        ("a person's", ("a person's",)),
        ("local,", ("local",)),
    ],
)
def test_entries_need_no_quotes(text, entries):
    config = parsed("--config=quickstart", f"--config.entries={text}")
    assert tuple(entry for entry in config.entries if isinstance(entry, str)) == entries
    assert config.method.name is None  # they run instead of it


def test_no_entries_leave_the_method_alone():
    config = parsed("--config=quickstart", "--config.entries=()")
    assert [entry.label for entry in entries_of(config)] == ["fedapen"]


def test_the_last_config_and_the_last_value_count():
    arguments = ["--config=quickstart", "--config=few_samples", "--config.rounds=5"]
    config = parsed(*arguments, "--config.rounds=6")
    assert config.rounds == 6 and config.entries == read_config_file("few_samples").entries


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--config.rounds=many", "it must be an integer"),
        ("--config.rounds=1.5", "it must be an integer"),
        ("--config.training.learning_rate=big", "it must be a number"),
        ("--config.shared_init=maybe", "it must be True or False"),
        (
            "--config.entries=fedral:blocks=(2,4",
            "a bracket or a quote in it stands alone; write a,b",
        ),
    ],
)
def test_text_that_is_no_value_of_its_field(argument, message):
    with pytest.raises(flags.IllegalFlagValueError, match=message):
        parsed("--config=quickstart", argument)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            "--config.round=5",
            "unknown config field 'round'; did you mean 'rounds'? `fedjax-ht list fields`",
        ),
        (
            "--config.traning.epochs=5",
            "unknown config field 'traning.epochs'; did you mean 'training.epochs'? `fedj",
        ),
        ("-config.rounds.x=5", "unknown config field 'rounds.x'; did you mean 'rounds'? `fedj"),
        (
            "--noconfig.shared_int",
            "unknown config field 'shared_int'; did you mean 'shared_init'? `fedj",
        ),
        (
            "--config.method.options.wait=1",
            "fedtgp has no option 'wait'; did you mean 'weight'? It has weight",
        ),
        (
            "--config.partition.options.aplha=1",
            "partition 'practical' has no option 'aplha'; did you mean 'alpha'? It",
        ),
        (
            "--config.training.lr=1",
            "unknown config field 'training.lr'; did you mean 'training.learning_rate'? `fedj",
        ),
        (
            "--config.clients=1",
            "unknown config field 'clients'; did you mean 'partition.num_clients'? `fedj",
        ),
        ("--config.report=none", "report is a section of the config; set one of its fields: maps"),
    ],
)
def test_a_field_that_there_is_not(run_script, argument, message):
    done = run_script("run", "--config=quickstart_fedtgp", argument)
    assert done.returncode == 2 and done.stderr.startswith(f"error: {message}"), done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.rounds=5"], "--config.rounds sets a field of the config, and there is no --c"),
        (
            ["--config.rounds=5", "--config=quickstart"],
            "--config.rounds stands before --config=FILE, which must be the first of them",
        ),
    ],
)
def test_a_field_of_no_config(run_script, arguments, message):
    done = run_script("run", *arguments)
    assert done.returncode == 2 and done.stderr.startswith(f"error: {message}"), done.stderr


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            "--rounds=3",
            "unknown flag --rounds; rounds is a field of the config: write --config.rounds=3",
        ),
        (
            "--training.epochs",
            "unknown flag --training.epochs; training.epochs is a field of the config: write ",
        ),
        (
            "--ruonds=3",
            "unknown flag 'ruonds'; did you mean 'rounds'? `--help` shows the flags, and a field "
            "of the",
        ),
        (
            "--learning_rate=3",
            "unknown flag 'learning_rate'; did you mean 'training.learning_rate'? `--help` shows",
        ),
        (
            "--wrkdir=a",
            "unknown flag 'wrkdir'; did you mean 'workdir'? `--help` shows the flags, and a field "
            "of the",
        ),
        (
            "--zzz",
            "unknown flag 'zzz'; `--help` shows the flags, and a field of the config is set by "
            "--config.FIELD=",
        ),
    ],
)
def test_a_flag_that_there_is_not(run_script, argument, message):
    done = run_script("run", "--config=quickstart", argument)
    assert done.returncode == 2 and done.stderr.startswith(f"error: {message}"), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_command_without_a_config_has_no_fields(run_script):
    done = run_script("list", "--rounds=3")
    assert done.returncode == 2 and "rounds'" in done.stderr and "config" not in done.stderr


def commands(text: str) -> list[str]:
    """Lists the indented commands of the library in a text, with their continuations."""
    return re.findall(r"^    (?:fedjax-ht |python -m experiments\.).*?(?<!\\)$", text, re.M | re.S)


@pytest.mark.parametrize("name", shipped())
def test_a_configs_own_commands_go_by_its_name(monkeypatch, tmp_path, name):
    path = shipped()[name]
    listed = commands(path.read_text().split('"""')[1])
    if path.is_absolute():  # in the wheel, so from any folder
        monkeypatch.chdir(tmp_path)
    for command in listed:
        program, _, *arguments = shlex.split(command.replace("\\\n", " "), comments=True)
        named = next(word for word in arguments if word.startswith("--config=")).removeprefix(
            "--config="
        )
        assert program == "fedjax-ht" and named.partition(":")[0] == name
        parsed(*(word for word in arguments if word.startswith("--config")))


@pytest.mark.parametrize("page", ["comparisons.md", "running.md"])
def test_the_commands_of_a_page_name_configs(page):
    text = (ROOT / "docs" / page).read_text()
    assert "--config=experiments" not in text
    for command in commands(text):
        _, *arguments = shlex.split(command.replace("\\\n", " "), comments=True)
        arguments = [word for word in arguments if word.startswith("--config")]
        if arguments and "own.py" not in arguments[0]:
            parsed(*arguments)
