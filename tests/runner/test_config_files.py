"""A config file, a command line, a run's config.json or a coordinator that is wrong: one line that
says where."""

import csv
import json
import re
import shlex
import socket
import subprocess
import sys

import numpy as np
import pytest
from absl import flags

from fedjax_ht.configs import shipped
from fedjax_ht.configs.base import base_config, typed_config
from fedjax_ht.experiment.run_folder import remember_config
from fedjax_ht.runner import cli, evaluate, processes, report
from fedjax_ht.runner.config_files import define_config, read_config_file
from tests.runs import ROOT

START = "from fedjax_ht.configs.base import apply_argument, base_config, method_config\n\n\n"
FILES = {
    "def get_config(:\n": "line 1: SyntaxError: invalid syntax",
    "import json\nimport no_such_module\n": "line 2: ModuleNotFoundError: No module named 'no_such_module'",
    "x = 1\n": "line 1: there is no function get_config(argument=None) in this file",
    "get_config = 1\n": "line 1: there is no function get_config",
    "\n\ndef get_config():\n    return {'rounds': 1}\n": "line 3: get_config returns dict; it must return a ConfigDict",
    "def get_config():\n    pass\n": "line 1: get_config returns NoneType; it must",
    "def get_config():\n    return 1 / 0\n": "line 2: ZeroDivisionError: division by zero",
    "def get_config():\n    raise KeyError('a\\nb')\n": "line 2: KeyError: a b",
    "import sys\ndef get_config():\n    sys.exit(0)\n": "line 3: SystemExit: 0",
    "def get_config():\n    open('no/such/file')\n": "line 2: [Errno 2] No such file or directory: 'no/such/file'",
    "def get_config():\n    inner()\n\n\ndef inner():\n    int('x')\n": "line 6: invalid literal for int()",
    START
    + "def get_config():\n    config = base_config()\n    config.method = method_config('fedprto')\n": (
        "line 6: unknown method 'fedprto'; did you mean 'fedproto'? The methods are"
    ),
    START + "def get_config():\n    return method_config('fedproto', wieght=1)\n": (
        "line 5: fedproto has no option 'wieght'; did you mean 'weight'? It has"
    ),
    START + "def get_config():\n    return base_config().trainin\n": (
        "line 5: AttributeError: 'trainin' Did you mean \"training\" instead of"
    ),
}


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())


@pytest.mark.parametrize("text", FILES)
def test_a_config_file_that_is_wrong_is_named_with_its_line(tmp_path, text):
    file = tmp_path / "wrong.py"
    file.write_text(text)
    with pytest.raises(cli.BadConfigFile) as error:
        read_config_file(str(file))
    assert one_line(error.value).startswith(f"{file}, {FILES[text]}")
    assert "\\n" not in one_line(error.value)


def test_a_config_file_and_its_argument(tmp_path):
    file = tmp_path / "right.py"
    file.write_text(
        START
        + "def get_config(argument=None):\n    return apply_argument(base_config(), argument)\n"
    )
    assert read_config_file(f"{file}:method=local").method.name == "local"
    assert read_config_file(str(file)).is_locked
    with pytest.raises(
        cli.BadConfigFile, match=r"right\.py, line 5: unknown method 'x=y'; the methods are"
    ):
        read_config_file(f"{file}:method=x=y")
    for missing in (tmp_path / "left.py", tmp_path, "/"):
        with pytest.raises(cli.BadConfigFile, match="no config file"):
            read_config_file(str(missing))


def test_the_configs_that_come_with_the_library_have_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_config_file("quickstart").rounds == read_config_file("quickstart.py").rounds > 2
    assert read_config_file("quickstart:runlocal").rounds == 2
    with pytest.raises(
        cli.BadConfigFile,
        match=r"unknown config 'quikstart'; did you mean 'quickstart'\? `fedjax-ht",
    ):
        read_config_file("quikstart")
    with pytest.raises(cli.BadConfigFile, match="the library's own is --config=quickstart"):
        read_config_file("here/quickstart.py")
    (tmp_path / "quickstart.py").write_text("def get_config():\n    return 1\n")
    with pytest.raises(cli.BadConfigFile, match=r"quickstart\.py, line 1: get_config returns int"):
        read_config_file("quickstart.py")  # a file that is there comes first


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
        "--config.compare=local",
        "--config.compare=fedproto:weight=3.0",
        "--config.entries=()",
        "--config.partition.options.train_share=0.5",
    )
    assert config.rounds == 5 and config.participation == 1.0
    assert config.training.learning_rate == 0.5 and config.training.shuffle is False
    assert config.shared_init is True and config.dataset.seen_before is True
    assert config.model.group == "cnn4" and config.model.weights == {"cnn1": "a.npz"}
    assert config.uplink == (("gaussian_noise", 0.05, 0.2),) and config.entries == ()
    assert config.compare == ("local", "fedproto:weight=3.0")
    assert config.partition.options.train_share == 0.5
    assert typed_config(config).model.weights == {"cnn1": "a.npz"}


def test_the_last_config_and_the_last_value_count():
    arguments = ["--config=quickstart", "--config=few_samples", "--config.rounds=5"]
    config = parsed(*arguments, "--config.rounds=6")
    assert config.rounds == 6 and config.tuned == read_config_file("few_samples").tuned


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--config.rounds=many", "it must be an integer"),
        ("--config.rounds=1.5", "it must be an integer"),
        ("--config.training.learning_rate=big", "it must be a number"),
        ("--config.shared_init=maybe", "it must be True or False"),
        ("--config.compare=fedproto:weight=3,local", r"it must be a tuple such as \('a', 'b'\)"),
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
            "unknown config field 'round'; did you mean 'rounds'? See fedjax_ht/configs/sections.py",
        ),
        (
            "--config.traning.epochs=5",
            "unknown config field 'traning.epochs'; did you mean 'training.epochs'? See",
        ),
        ("-config.rounds.x=5", "unknown config field 'rounds.x'; did you mean 'rounds'? See"),
        (
            "--noconfig.shared_int",
            "unknown config field 'shared_int'; did you mean 'shared_init'? See",
        ),
        (
            "--config.method.options.wait=1",
            "fedtgp has no option 'wait'; did you mean 'weight'? It has margin",
        ),
        (
            "--config.partition.options.aplha=1",
            "partition 'practical' has no option 'aplha'; did you mean 'alpha'? It",
        ),
        ("--config.report=none", "report is a section of the config; set one of its fields: maps"),
    ],
)
def test_a_field_that_there_is_not(run_script, argument, message):
    done = run_script("run", "--config=quickstart", argument)
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


@pytest.mark.parametrize("module", ["main", "compare", "sweep"])
def test_every_command_with_a_config_says_it_in_one_line(run_module, tmp_path, module):
    (tmp_path / "wrong.py").write_text("def get_config():\n    return 1 / 0\n")
    done = run_module(module, f"--config={tmp_path / 'wrong.py'}", f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert (
        done.stderr
        == f"error: {tmp_path / 'wrong.py'}, line 2: ZeroDivisionError: division by zero\n"
    )


def commands(text: str) -> list[str]:
    """Indented lines that begin with a command of the library, with their continuations."""
    return re.findall(r"^    (?:fedjax-ht |python -m experiments\.).*?(?<!\\)$", text, re.M | re.S)


@pytest.mark.parametrize("name", shipped())
def test_a_configs_own_commands_go_by_its_name_from_any_folder(monkeypatch, tmp_path, name):
    found = commands(shipped()[name].read_text().split('"""')[1])
    monkeypatch.chdir(tmp_path)
    for command in found:
        program, _, *words = shlex.split(command.replace("\\\n", " "), comments=True)
        named = next(word for word in words if word.startswith("--config=")).removeprefix(
            "--config="
        )
        assert program == "fedjax-ht" and named.partition(":")[0] == name
        parsed(*(word for word in words if word.startswith("--config")))


@pytest.mark.parametrize("page", ["comparisons.md", "running.md"])
def test_the_commands_of_a_page_name_shipped_configs(monkeypatch, tmp_path, page):
    text = (ROOT / "docs" / page).read_text()
    monkeypatch.chdir(tmp_path)
    assert "--config=experiments" not in text
    for command in commands(text):
        _, *words = shlex.split(command.replace("\\\n", " "), comments=True)
        words = [word for word in words if word.startswith("--config")]
        if words and "own.py" not in words[0]:
            parsed(*words)


def test_the_quickstarts_accuracies_are_those_of_its_csv():
    words = " ".join(shipped()["quickstart"].read_text().split('"""')[1].split())
    with (ROOT / "experiments" / "results" / "quickstart.csv").open() as file:
        rows = list(csv.DictReader(file))
    for method, label in (("fedtgp", "FedTGP"), ("local", "local")):
        scores = [100 * float(row["best_accuracy"]) for row in rows if row["method"] == method]
        spread = f"({np.mean(scores):.2f} ± {np.std(scores):.2f})"
        assert f"{label} {', '.join(f'{score:.2f}' for score in scores)} % {spread}" in words


def folder_with(tmp_path, **changes):
    """A folder whose config.json is that of a run but for some fields; None takes a field out."""
    entry = {
        "label": "local",
        "method": "local",
        "options": {},
        "training": {},
        "model": {},
        "tuned": "",
    }
    fields = json.loads(base_config().to_json_best_effort()) | {"entries": [entry]} | changes
    (tmp_path / "config.json").write_text(
        json.dumps({k: v for k, v in fields.items() if v is not None})
    )
    return tmp_path


ENTRY = {"label": "a", "method": "fedprto", "options": {}, "training": {}, "model": {}, "tuned": ""}
BROKEN = {
    "unknown method 'fedprto'; did you mean 'fedproto'? The methods are local": {
        "entries": [ENTRY]
    },
    "is not what a run writes (KeyError: 'label')": {"entries": [{"method": "local"}]},
    "entries is 3; it must be a tuple, each text or names with a value each": {"entries": 3},
    "is not what a run writes (TypeError": {"run": {"version": "new"}},
    "is not what a run writes (AttributeError": {"partition": 3},
    "is not what a run writes (KeyError: 'version')": {"run": {}},
    "rounds is 'many'; it must be an integer of at least 1": {"rounds": "many"},
    "training.learning_rate is nan; it must be a number above 0": {
        "training": json.loads(base_config().training.to_json_best_effort())
        | {"learning_rate": float("nan")}
    },
    "unknown config field 'training'": {"training": 3},
    "fedtgp has no option 'wieght'; did you mean 'weight'? It has": {
        "entries": [ENTRY | {"method": "fedtgp", "options": {"wieght": 1}}]
    },
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_config_json_is_named(tmp_path, message):
    folder = folder_with(tmp_path, **BROKEN[message])
    with pytest.raises(ValueError) as error:
        evaluate.load_run(folder)
    assert message in str(error.value) and str(folder / "config.json") in str(error.value)
    assert "\n" not in str(error.value)


def test_a_config_json_that_is_cut_off_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"rounds": 1')
    with pytest.raises(ValueError, match=r"config\.json is not readable as JSON"):
        evaluate.load_run(tmp_path)


SPY = "open('marker', 'w').close()\n\n\ndef make(*task):\n    return {}\n"
SPY_MODEL = {"group": "spy_of_a_run:make"}
FEDKTL = ENTRY | {"method": "fedktl", "options": {"generator": "spy_of_a_run:make"}}
NAMING_CODE = {
    "model": {"model": json.loads(base_config().model.to_json_best_effort()) | SPY_MODEL},
    "model of an entry": {"entries": [ENTRY | {"method": "local", "model": SPY_MODEL}]},
    "option": {"entries": [FEDKTL]},
    "entry as it is written": {"entries": ["fedktl:generator=spy_of_a_run:make"]},
    "given": {"entries": ["fedktl"], "given": ["fedktl:generator=spy_of_a_run:make"]},
}


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """What a module in the current folder writes when it is imported."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "spy_of_a_run.py").write_text(SPY)
    monkeypatch.chdir(tmp_path / "here")
    yield tmp_path / "here" / "marker"
    sys.modules.pop("spy_of_a_run", None)


@pytest.mark.parametrize("place", NAMING_CODE)
def test_code_that_a_config_json_names_is_imported_if_it_is_trusted(tmp_path, marker, place):
    folder = folder_with(tmp_path, **NAMING_CODE[place])
    for call in (evaluate.load_run, report.show):
        with pytest.raises(ValueError, match=r"names spy_of_a_run:make, .* by --trust,") as error:
            call(folder)
        assert "\n" not in str(error.value) and str(marker.parent) in str(error.value)
    assert not marker.exists()
    with pytest.raises(ValueError, match="'spy_of_a_run:make' returns"):
        evaluate.load_run(folder, trust=True)
    assert marker.exists()


def test_a_file_of_a_config_json_is_no_module(tmp_path, marker):
    options = {"generator": "./spy_of_a_run:make"}
    with pytest.raises(FileNotFoundError, match="no generator at spy_of_a_run:make"):
        evaluate.load_run(folder_with(tmp_path, entries=[FEDKTL | {"options": options}]))
    assert not marker.exists()


@pytest.mark.parametrize("words", ["report", "evaluate --client=0"])
def test_the_commands_ask_for_trust(tmp_path, run_script, words):
    words, folder = words.split(), folder_with(tmp_path, **NAMING_CODE["model"])
    done = run_script(*words, f"--workdir={folder}")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "the config names spy_of_a_run:make, which would be imported from " in done.stderr
    trusted = run_script(*words, f"--workdir={folder}", "--trust")
    assert trusted.returncode == 2 and "there is no module spy_of_a_run" in trusted.stderr


def test_a_run_does_not_go_on_in_a_folder_with_a_broken_config_json(tmp_path):
    folder = folder_with(tmp_path, entries=[{"method": "local"}])
    with pytest.raises(
        ValueError, match=r"config\.json is not what a run writes \(KeyError: 'label'\)"
    ):
        remember_config(typed_config(base_config()), [], folder, {}, writes=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


ALONE = """
import functools, sys
from absl import app
from fedjax_ht.runner import cli, processes, program, run
program.join_processes = functools.partial(processes.join_processes, seconds=1)
app.run(run.main, flags_parser=cli.parse_flags)
"""


@pytest.mark.parametrize("process", [0, 1])
def test_a_process_whose_others_do_not_come_ends_in_one_line(tiny_config, tmp_path, process):
    address = f"localhost:{free_port()}"
    arguments = [
        f"--config={tiny_config}",
        f"--workdir={tmp_path / 'run'}",
        f"--coordinator={address}",
    ]
    arguments += ["--processes=2", f"--process={process}"]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"error: the 2 processes have not met at {address} after 1 s (this is process {process}); "
        "start all of them "
        "with the same --coordinator, an address of process 0 that the others reach\n"
    )


@pytest.mark.parametrize(
    "coordinator", ["localhost", "localhost:", ":1234", "localhost:many", "localhost:70000"]
)
def test_a_coordinator_is_host_and_port(coordinator):
    with pytest.raises(ValueError, match=r"it must be HOST:PORT, such as localhost:1234"):
        processes.join_processes(coordinator, 2, 0)


def test_a_port_that_is_taken_is_named():
    with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET) as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            OSError, match=f"process 0 cannot listen on port {port} of this machine"
        ):
            processes.join_processes(f"localhost:{port}", 2, 0)


def test_the_time_that_is_waited_is_the_one_documented():
    assert f"{processes.JOIN_SECONDS} s" in (ROOT / "BUILD.md").read_text()
    assert f"{processes.JOIN_SECONDS} s" in (ROOT / "docs" / "reliability.md").read_text()
