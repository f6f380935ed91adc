"""Flags set a config's fields; a wrong flag is refused in one line."""

import re
import shlex

import pytest
from absl import flags

from fedjax_ht.lab import cli
from fedjax_ht.lab.config.base import method_config, partition_config, typed_config
from fedjax_ht.lab.config.config_files import (
    WordsParser,
    define_config,
    read_config_file,
    shipped,
    split_words,
    to_strings,
    to_tuple,
)
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


@pytest.mark.parametrize("form", [{"method": {"name": "fedssa"}}, {"method.name": "fedssa"}])
def test_a_method_of_a_dict_has_its_own_options(form):
    config = typed_config(form | {"partition": {"kind": "pathological"}})
    assert config.method.options == method_config("fedssa").options
    assert config.partition.options == partition_config("pathological").options


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
        ("--config.training.learning_rate=big", "it must be a number"),
        ("--config.shared_init=maybe", "it must be True or False"),
        ("--config.entries=fedral:blocks=(2,4", "it has an unmatched bracket or quote; write"),
    ],
)
def test_text_that_is_no_value_of_its_field(argument, message):
    with pytest.raises(flags.IllegalFlagValueError, match=message):
        parsed("--config=quickstart", argument)


UNKNOWN = "unknown config field "
NO_FLAG = "unknown flag "
WRONG = {  # behind --config=quickstart_fedtgp
    "--config.round=5": UNKNOWN + "'round'; did you mean 'rounds'? `fedjax-ht list fields`",
    "-config.rounds.x=5": UNKNOWN + "'rounds.x'; did you mean 'rounds'?",
    "--noconfig.shared_int": UNKNOWN + "'shared_int'; did you mean 'shared_init'?",
    "--config.method.options.wait=1": UNKNOWN + "'method.options.wait'; did you mean 'method.opt",
    "--config.partition.options.aplha=1": UNKNOWN + "'partition.options.aplha'; did you mean",
    "--config.report=none": "report is a section of the config; set one of its fields: maps",
    "--rounds=3": NO_FLAG + "--rounds; rounds is a field of the config: write --config.rounds=3",
    "--training.epochs": NO_FLAG + "--training.epochs; training.epochs is a field of the config",
    "--ruonds=3": NO_FLAG + "'ruonds'; did you mean 'rounds'? `--help` shows the flags",
    "--learning_rate=3": NO_FLAG + "'learning_rate'; did you mean 'training.learning_rate'?",
    "--verbosity=1,1": "flag --verbosity=1,1: it is '1,1'; it must be an integer",
    "--wrkdir=a": NO_FLAG + "'wrkdir'; did you mean 'workdir'?",
    "--zzz": NO_FLAG + "'zzz'; `--help` shows the flags, and a field of the config is set by",
}
WRONG_LINES = {
    "--config.rounds=5": "--config.rounds sets a field of the config, but there is no --config",
    "--config.rounds=5 --config=quickstart": "--config.rounds comes before --config=FILE, which",
    "quickstart": "unexpected argument 'quickstart'; did you mean --config=quickstart?",
    "--config=quickstart local": "unexpected argument 'local'; flags are written --name=value",
}
WRONG_LINES |= {f"--config=quickstart_fedtgp {flag}": line for flag, line in WRONG.items()}


@pytest.mark.parametrize("arguments", WRONG_LINES)
def test_what_is_no_flag_is_one_line_and_exit_code_2(monkeypatch, capsys, arguments):
    values = flags.FlagValues()
    define_config(values)
    flags.DEFINE_string("workdir", None, "", values)
    flags.DEFINE_integer("verbosity", 0, "", flag_values=values)
    monkeypatch.setattr(flags, "FLAGS", values)
    with pytest.raises(SystemExit) as end:
        cli.parse_flags(["fedjax-ht run", *arguments.split()])
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.startswith(f"error: {WRONG_LINES[arguments]}")
    assert len(error.splitlines()) == 1


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
        named = next(word for word in arguments if word.startswith("--config="))
        assert program == "fedjax-ht" and re.match(rf"--config={name}(:|$)", named)
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


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a,b", ["a", "b"]),
        (" a , b,", ["a", "b"]),
        (",a", ["a"]),
        ("fedral:blocks=(2,4),local", ["fedral:blocks=(2,4)", "local"]),
        ("x={'k': [1,2]},y", ["x={'k': [1,2]}", "y"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ('"(",c', ['"("', "c"]),
        ("a person's", ["a person's"]),
        ("", []),
    ],
)
def test_words_are_split_at_commas_outside_brackets_and_quotes(text, entries):
    assert split_words(text) == entries == WordsParser().parse(text)
    assert WordsParser().parse(entries) == entries


@pytest.mark.parametrize("text", ["a=(1,b", "a=1),b", "a person's,b", "a=[1,(2],b"])
def test_a_bracket_or_a_quote_alone_is_refused(text):
    with pytest.raises(ValueError, match="unmatched bracket or quote; write a,b or"):
        split_words(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("('a', 'b')", ("a", "b")),
        ("['a']", ("a",)),
        ("1,2", (1, 2)),
        ("3", (3,)),
        ("a", ("a",)),
        ("a,b", ("a", "b")),
        ("()", ()),
    ],
)
def test_a_tuple_is_a_literal_or_words(text, value):
    assert to_tuple(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("('a', 'b,c')", ("a", "b,c")),
        ("['a']", ("a",)),
        ("a, b", ("a", "b")),
        ("3,5", ("3", "5")),
        ("(3, '5')", ("3", "5")),
        ("[3]", ("3",)),
        ("-1", ("-1",)),
        ("007,1e3,True", ("007", "1e3", "True")),
        ("1e3, None", ("1e3", "None")),
        ("()", ()),
        ("", ()),
    ],
)
def test_strings_are_words_as_they_are_written(text, value):
    assert to_strings(text) == value


def test_columns_and_classes_may_have_numbers_as_names():
    flags = "--config.dataset.features=-1", "--config.dataset.features=-2"
    config = parsed("--config=quickstart", "--config.dataset.classes=3,5", *flags)
    assert config.dataset.classes == ("3", "5") and config.dataset.features == ("-1", "-2")
