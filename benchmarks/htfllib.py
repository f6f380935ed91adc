"""Runs rounds of HtFLlib's own code, for benchmarks that compare them with ours."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import app

from fedjax_ht.data.dataset import Dataset, Partition


class Pair(NamedTuple):
    """A method in both libraries.

    Attributes:
      ours: our options that are choices in HtFLlib's defaults or scripts.
      clipped: True if HtFLlib clips gradients.
      module, server, arguments: HtFLlib's module, its class, and arguments of its main.py.
    """

    ours: dict
    clipped: bool
    module: str
    server: str
    arguments: dict


RELEASED = {"variant": "released"}
TGP = {"weight": 3.0, "tau": 3.0}
PAIRS = {
    "local": Pair({}, False, "serverlocal", "Local", {}),
    "lg_fedavg": Pair({}, False, "serverlg", "LG_FedAvg", {}),
    "fedproto": Pair(RELEASED | {"weight": 1.0}, False, "serverproto", "FedProto", {}),
    "fd": Pair({}, False, "serverfd", "FD", {}),
    "fedtgp": Pair(
        RELEASED | TGP, False, "servertgp", "FedTGP", {"lamda": 3.0, "margin_threthold": 3.0}
    ),
    "fedgh": Pair({}, False, "servergh", "FedGH", {"server_epochs": 1}),
    "fedgen": Pair(RELEASED, False, "servergen", "FedGen", {}),
    "fml": Pair(RELEASED, True, "serverfml", "FML", {"alpha": 0.5, "beta": 0.5}),
    "fedkd": Pair(RELEASED, True, "serverkd", "FedKD", {}),
    "fedmrl": Pair({"dim": 12}, False, "servermrl", "FedMRL", {"sub_feature_dim": 12}),
    "fedl2g": Pair(
        {"warmup": 0}, False, "serverl2g_logit", "FedL2G", {"server_learning_rate": 0.1}
    ),
}


def check_checkout(path: str | None) -> None:
    """Rejects a folder that is not a checkout of HtFLlib.

    Raises:
      app.UsageError: it has no system/flcore. One line.
    """
    if not Path(path or "", "system", "flcore").is_dir():
        raise app.UsageError(
            f"--htfllib is {path}; it must be a checkout of HtFLlib, with system/flcore"
        )


def run_on_arrays(
    script: str, python: str, code: Path, inputs: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Runs a file of HtFLlib on arrays, by a script in this folder.

    Args:
      script: name of the script; its arguments are `code` and two .npz files, inputs and outputs.
      python: interpreter with torch.
      code: the file, which the script runs unchanged.
      inputs: name -> array or number.

    Returns:
      The outputs by name.

    Raises:
      SystemExit: the script failed; the message is its stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
        np.savez(files[0], **{name: np.asarray(value) for name, value in inputs.items()})
        path = Path(__file__).with_name(script)
        command = [python, str(path), str(code.resolve()), *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        return dict(np.load(files[1]))


def write_clients(folder: Path, dataset: Dataset, partition: Partition) -> None:
    """Writes clients in HtFLlib's format: {train,test}/<i>.npz, images float32 [n, C, H, W]."""
    labels = np.asarray(dataset.labels)
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        for i, client in enumerate(partition):
            rows = getattr(client, part)
            images = np.asarray(dataset.preprocess(np.asarray(dataset.inputs)[rows])).transpose(
                0, 3, 1, 2
            )
            np.savez(folder / part / f"{i}.npz", data={"x": images, "y": labels[rows]})


def job(
    name: str,
    rounds: int,
    models: Sequence[str],
    global_model: str,
    feature_dim: int,
    num_classes: int,
    num_clients: int,
    learning_rate: float,
    device: str = "cpu",
    clock: str = "processor",
) -> dict:
    """Returns the job of `htfllib_rounds.py` for a method.

    Args:
      name: key of `PAIRS`.
      rounds: number of counted rounds.
      models, global_model: strings that HtFLlib evaluates to the clients' and the shared models.
      feature_dim, num_classes, num_clients, learning_rate: of the federation, with batches of 10.
      device: "cpu" or "cuda".
      clock: "processor", processor seconds on one thread, or "wall".
    """
    pair = PAIRS[name]
    arguments = {  # main.py's defaults, then the federation's
        "random_join_ratio": False, "client_drop_rate": 0.0, "train_slow_rate": 0.0,
        "send_slow_rate": 0.0,
        "time_select": False, "time_threthold": 10000, "auto_break": False, "goal": "test",
        "top_cnt": 100,
        "few_shot": 0, "models_folder_name": "", "lamda": 1.0, "noise_dim": 512, "hidden_dim": 512,
        "generator_learning_rate": 0.005, "server_epochs": 100,
        "alpha": 1.0, "beta": 1.0, "mentee_learning_rate": 0.01, "T_start": 0.95, "T_end": 0.98,
        "server_learning_rate": 0.01, "margin_threthold": 100.0,
        "meta_study_batches": 1, "meta_quiz_batches": 1, "warm_up_rounds": 0,
        "algorithm": pair.server, "dataset": "clients", "device": device,
        "num_classes": num_classes,
        "num_clients": num_clients, "feature_dim": feature_dim, "join_ratio": 1.0, "batch_size": 10,
        "local_epochs": 1, "local_learning_rate": learning_rate, "eval_gap": 1,
        "models": list(models),
        "global_model": global_model,
    }  # fmt: skip
    arguments |= pair.arguments
    # HtFLlib's first round warms up, and is not counted.
    return {
        "module": pair.module,
        "server": pair.server,
        "rounds": rounds + 1,
        "clock": clock,
        "arguments": arguments,
    }


def run(job: dict, python: str, checkout: Path, folder: Path) -> dict:
    """Runs a job with HtFLlib's checkout under `python`.

    Args:
      folder: folder with the clients below `dataset/clients`.

    Returns:
      "round" and "evaluation", seconds of each counted round and of the evaluation in it;
      "accuracy"; "torch".

    Raises:
      RuntimeError: it failed, with its last line; its whole output is on stderr by then.
    """
    (folder / "system").mkdir(exist_ok=True)  # it reads ../dataset
    script = Path(__file__).with_name("htfllib_rounds.py")
    command = [python, str(script), str(Path(checkout, "system").resolve()), json.dumps(job)]
    done = subprocess.run(command, cwd=folder / "system", capture_output=True, text=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    return json.loads(done.stdout.splitlines()[-1])
