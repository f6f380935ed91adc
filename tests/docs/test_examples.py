"""The examples of the documentation run as they stand there."""

import doctest
import inspect
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_ht as fl
from fedjax_ht.lab.runs.train import train_and_evaluate
from tests.registered import nothing_registered

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def execute(*code: str) -> dict:
    """Runs blocks one after another; returns their names, and forgets what they register."""
    names: dict = {}
    with nothing_registered():
        exec(compile("\n".join(code), "documentation", "exec"), names)
    return names


@pytest.mark.parametrize("page", ["own_models.md", "loop.md", "write_a_method.md"])
def test_the_code_of_a_page_runs(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an example writes checkpoints
    code = [block.replace("fl.check_method(method)\n", "") for block in blocks(page)]
    execute(*code)
    assert 0.8 < float(capsys.readouterr().out.split()[0]) <= 1.0


def test_the_page_on_tasks_runs(capsys):
    execute(*blocks("tasks.md"))
    printed = capsys.readouterr().out
    assert "lg_fedavg: rmse" in printed and "1 outputs, visits" in printed


def test_the_page_on_one_shot_heads_runs(capsys):
    """Its clients send as many bytes as the page says of a client."""
    (code,) = blocks("one_shot.md")
    execute(code)
    size = 256 * 257 // 2 + 10 * 256
    sent = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) bytes", capsys.readouterr().out)]
    assert sent == [80 * size, 80 * (size + 10)]


def test_the_page_on_adapters_runs(capsys):
    """Few steps in a round each; clients send as many bytes as the page says."""
    (code,) = blocks("adapters.md")
    execute(code.replace("rounds=2", "rounds=1").replace("batch_size=10", "batch_size=100"))
    assert f"    {capsys.readouterr().out}" in (ROOT / "docs" / "adapters.md").read_text()


def test_the_page_on_experiments_from_python_runs(tmp_path, monkeypatch, blank_pictures):
    monkeypatch.chdir(tmp_path)
    names = execute(*blocks("from_python.md"))
    assert list(names["result"].histories) == ["fedtgp", "local"] and names["page"].is_file()
    assert list(names["models"](3, (8, 8, 1), None)) == ["width_16", "width_32"]
    assert names["samples"]().num_classes == 3


def test_the_page_on_data_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = execute(*blocks("data.md"))
    assert len(names["federation"].buckets) == 5 and names["dataset"].input_shape == (128, 9)
    assert all(0 <= len(client.test) - len(client.train) <= 1 for client in names["partition"])
    assert names["texts"].vocabulary == 10 and len(names["own"]) == 6
    assert 0.8 < float(capsys.readouterr().out.split()[-1]) <= 1.0


def test_the_written_method_runs_from_its_config(tmp_path, blank_pictures):
    small = {"rounds": 1, "entries": (), "model.group": "mlp2", "training.steps": 1}
    small["partition.num_clients"] = 4
    method, *_, from_config = blocks("write_a_method.md")
    names = execute(method)
    with nothing_registered():
        exec(from_config, names)
        config = names["get_config"]()
        config.update(small)
        ((first, last),) = train_and_evaluate(config, tmp_path).histories["fedduo"]
    assert config.method.options.weight == 0.5
    assert first["accuracy"] != last["accuracy"] == last["accuracy_both"] != last["accuracy_own"]
    described = set(re.findall(r"`([a-z0-9_]+)`", (ROOT / "docs" / "metrics.md").read_text()))
    one_of_many = ("accuracy_", "uplink_", "downlink_")
    assert {key for key in last if not key.startswith(one_of_many)} <= described | {"clients"}
    assert last["uplink_payload_elements"] == 4 * 26506 and last["flops"] > 0  # a shared model each


def test_the_tutorials_data_and_models_run(tmp_path, monkeypatch, blank_pictures):
    monkeypatch.chdir(tmp_path)
    data, config_file = blocks("tutorial.md")
    execute(data)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(config_file)
    config = execute(config_file)["get_config"]()
    config.update({"rounds": 1, "entries": (), "training.steps": 1})
    result = train_and_evaluate(config, tmp_path / "run")
    train = sum(len(client.train) for client in result.experiment.partitions[0])
    models = {b.name for b in result.experiment.runs["fedssa"].federation.buckets}
    assert (train, models) == (2994, {"small_12", "small_4", "small_8"})


NAMESPACES = (fl, fl.losses, fl.models, fl.generators, fl.trust)
NAMES = {"fl": fl, "jax": jax, "jnp": jnp, "np": np, "optax": optax}
NOT_ALONE = ("copy_state", "run")  # their examples go on with a simulation


def public_values() -> dict[str, Any]:
    """Returns the functions and classes that are public, by name."""
    values = {}
    for namespace in NAMESPACES:
        for name in namespace.__all__:
            if callable(value := getattr(namespace, name)):
                values[name] = value
    return values


PUBLIC = public_values()


def with_example(name: str) -> bool:
    """Returns whether a public name, or a method of a public class, has an example."""
    value = PUBLIC[name]
    texts = [inspect.getdoc(value)]
    if inspect.isclass(value):
        texts += [inspect.getdoc(member) for member in vars(value).values()]
    return any(">>>" in text for text in texts if text)


EXAMPLES = [name for name in PUBLIC if with_example(name) and name not in NOT_ALONE]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_a_docstring_run(name):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(optionflags=flags)
    messages = []
    value = PUBLIC[name]
    names = vars(inspect.getmodule(value)) | NAMES
    examples = doctest.DocTestFinder().find(value, name, module=False, globs=names)
    with nothing_registered():
        for test in examples:
            runner.run(test, out=messages.append)
    assert not runner.summarize(verbose=False).failed, "".join(messages)
