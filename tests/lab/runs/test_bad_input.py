"""Every mistake is one clear line, found before anything is compiled, exit code 2."""

import re

import optax
import pytest

from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.method import Needs, Pretrained
from fedjax_ht.lab.config.base import (
    apply_argument,
    base_config,
    method_config,
    typed_config,
)
from fedjax_ht.lab.config.entries import preset
from fedjax_ht.lab.runs.federation import width_rates
from fedjax_ht.lab.runs.method import check_pretraining
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.lab.runs.run import run_name
from fedjax_ht.methods.local import local
from tests.lab.runs.folders import refused


def config_with(**fields):
    config = base_config()
    config.update(fields)
    return config


BAD = {
    "seed is 4294967295; it must be at most 4294967293 with 3": {"seed": 2**32 - 1, "trials": 3},
    "'wait=3' sets nothing; did you mean 'weight'? KEY=VALUE": {"entries": ("fedproto:wait=3",)},
    "did you mean 'training.batch_size'?": {"entries": ("fedproto:training.batchsize=3",)},
    "entry 'local:3': '3' sets nothing; KEY=VALUE may set": {"entries": ("local:3",)},
    "fedtgp:tau=a: tau is 'a'; it must be a number of at least 0": {"entries": ("fedtgp:tau=a",)},
    "learning_rate cannot be 'a'; it is 0.01 by": {"entries": ("fd:training.learning_rate=a",)},
    "entry 'fedproto@tuned': there is no 'fedproto@tuned'; this config has tuned fedtgp@tuned": {
        "entries": (preset("fedtgp:tau=3.0", "validation"), "fedproto@tuned")
    },
    "fedavg averages whole models and needs one architecture": {
        "entries": ("fedavg",),
        "model.group": "mlp2",
    },
    "training.schedule is 'cosine/1000000000000'": {"training.schedule": "cosine/1000000000000"},
    "unknown method 'fedrolx+dfrd'; did you mean 'fedrolex+dfrd'?": {"entries": ("fedrolx+dfrd",)},
    "uplink: unknown transform 'gausian_noise'": {"uplink": (("gausian_noise", 0.1, 0.2),)},
    "uplink has 0.05; it must be a name and its numbers, as --config.uplink=NAME/NUMBER": {
        "uplink": (0.05, 0.2)
    },
    "uplink has ('gaussian_noise', 0.05): missing": {"uplink": (("gaussian_noise", 0.05),)},
    "downlink has ('gaussian_noise', 1, 1, ''": {"downlink": (("gaussian_noise", 1, 1, "", 4),)},
    "uplink: scale is 'a'; it must be a number": {"uplink": [["gaussian_noise", "a", 0.2]]},
    "training.schedule is 'step/0/0.1'": {"training.schedule": "step/0/0.1"},
    "training.schedule is 'step/10/x'": {"training.schedule": "step/10/x"},
    "evaluate.sample is 21; it must be at most the 20 clients": {"evaluate.sample": 21},
    "evaluate.sample is 5, and new_share 0.2": {"evaluate.sample": 5, "new_share": 0.2},
    "new_share is 0.99, so all clients of": {"new_share": 0.99, "model.group": "mlp2"},
    "devices_profile.late is 'arrives', but an upload of fedhenn is only valid": {
        "method": {"name": "fedhenn", "options": {}},
        "model.group": "mlp2",
        "dataset.public": "hold_out:0.1",
        "devices_profile.up": "1",
        "devices_profile.deadline": 1.0,
        "devices_profile.late": "arrives",
    },
    "model.rates is 'rho=-1'; it must be empty, rho=NUMBER (at least 0)": {"model.rates": "rho=-1"},
    "model.rates is '1,1/0'": {"model.rates": "1,1/0"},
    "norm is 'batch', but heterofl keeps no running statistics of the server's model": {
        "entries": ("heterofl",),
        "model.rates": "1",
        "model.group": "conv4_quarter",
    },
    "model.feature_dim is 8; with model.rates": {"model.rates": "1", "model.feature_dim": 8},
    "model.shared is 'mlp'; it must be empty or one of model group": {"model.shared": "mlp"},
    "model.shared is 'cnn'; did you mean 'cnn": {"model.shared": "cnn"},
    "shift is 'blur/3'; it must be": {
        "dataset.shift": "blur/3",
        "dataset.name": "cifar10",
        "dataset.data_dir": "no",
    },
    "cifar10": {"dataset.name": "cifar10", "dataset.data_dir": "no/such/folder"},
    "unknown defence 'mean'": {"robust": (("mean",),)},
    "attack.kind is 'bribe'": {"attack.kind": "bribe", "attack.share": 0.1},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_config_is_one_line(message):
    with refused(re.escape(message), (ValueError, FileNotFoundError)):
        plan(config_with(**BAD[message]))


def test_a_generator_that_saw_the_data_must_be_asked_for():
    config = config_with(**{"dataset.name": "fashion_mnist_10k"})
    needs = Needs(pretrained=Pretrained(trained_on=("fashion_mnist_10k",)))
    method = local(LocalTraining(optax.sgd(0.1)))._replace(needs=needs)
    with pytest.raises(ValueError, match="the generator of local was trained on fashion_mnist_10k"):
        check_pretraining(method, typed_config(config).dataset)
    config.dataset.seen_before = True
    check_pretraining(method, typed_config(config).dataset)


def test_width_rates_of_the_clients():
    assert width_rates("", 3) == ()
    assert width_rates("rho=5", 4) == (0.5, 0.25, 0.125, 0.0625)
    assert width_rates("1, 1/2,0.25", 5) == (1, 0.5, 0.25, 1, 0.5)
    with pytest.raises(ValueError, match="or at most 2 numbers"):
        width_rates("1,1,1", 2)


def test_rates_make_a_federation_of_slices():
    fields = {"group": "conv4_quarter", "rates": "1,1/4", "norm": "static_batch", "scaler": False}
    config = config_with(**{f"model.{name}": value for name, value in fields.items()})
    config.method = method_config("fedrolex")
    federation = plan(config).runs["fedrolex"].federation
    assert [b.width for b in federation.buckets] == [1.0, 0.25]
    assert federation.assignment[:3] == (0, 1, 0)
    assert federation.global_model.module.base.widths == (16, 32, 64, 128)
    assert not any(b.module.base.scaler for b in federation.buckets)


def test_config_arguments():
    assert apply_argument(base_config(), "runlocal", rounds=2).rounds == 2
    assert apply_argument(base_config(), "method=fedproto,runlocal").method.name == "fedproto"
    config = apply_argument(base_config(), "partition=pathological")
    assert config.partition.options.classes_per_client == 2
    assert "alpha" not in config.partition.options
    with pytest.raises(ValueError, match="unknown config argument 'fast'"):
        apply_argument(base_config(), "fast")
    with pytest.raises(ValueError, match="unknown partition 'moon'; the"):
        apply_argument(base_config(), "partition=moon")


def test_runs_of_other_arguments_have_other_folders():
    assert run_name("fedjax_ht/lab/configs/quickstart.py") == "quickstart"
    expected = "quickstart-fedrolex+dfrd-runlocal"
    assert run_name("a/quickstart.py:method=fedrolex+dfrd,runlocal") == expected


@pytest.mark.parametrize(
    "command, arguments, message",
    [
        ("main", ["--config.partition.kind=iid"], "--config=FILE.py:partition=iid starts from its"),
        ("main", ["stray"], "stray"),
        ("main", ["--workdir="], "--workdir is empty"),
        ("compare", ["--target=0.5", "--target_share=0.5"], "both given"),
        ("compare", ["--target_score=loss"], "flag --target_score=loss: value should be one of <a"),
        ("compare", ["--over=training.epochs=1,10"], "--over is given without --fair"),
        (
            "compare",
            ["--methods=fedtgp", "--config.method.options.tau=3"],
            "options.tau is not read with",
        ),
        (
            "compare",
            ["--fair=2", "--config.method.options.tau=3"],
            "not read with --fair; write the options as",
        ),
    ],
)
def test_the_command_line_exits_with_2_and_one_line(
    run_module, tiny_config, tmp_path, command, arguments, message
):
    folder = f"--workdir={tmp_path / 'run'}"
    done = run_module(command, f"--config={tiny_config}", folder, *arguments)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2
    assert len(lines) == 1 and lines[0].startswith("error: ") and message in lines[0], done.stderr
    assert not (tmp_path / "run").exists()
