"""Measures on a GPU what a CPU cannot show. This file has not run on a GPU yet.

    python -m benchmarks.gpu [--only=PART] [--tiny] [--out=FOLDER] [--data_dir=data]

* `steps`: a training step of the 4-layer CNN and of ResNet-18, by lanes and precision.
* `torch`: that step in PyTorch: eager, `torch.compile(mode="reduce-overhead")`, `torch.func.vmap`.
* `queue`: rows 2, 3 and 5 of experiments/queue side by side, one process per entry, for `merge`.
* `protocols`: PFLlib's FedAvg on MNIST and BlazeFL's ResNet-18, on random images.

Each result goes to FOLDER/gpu.json as soon as it exists. A second call measures missing or failed
ones, and resumes the queue's runs. Each measurement has its own process, since a process's peak
memory never falls; processes side by side first compile the programs of a part into FOLDER/cache.
`--tiny` is a small form for a CPU, without the queue.
"""

import argparse
import importlib.util
import itertools
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import fedjax_ht as fl
from benchmarks.report import peak_memory
from experiments.queue_commands import read_queue
from fedjax_ht.data.client_data import arranged
from fedjax_ht.lab.files import atomic_open

PARTS = ("steps", "torch", "queue", "protocols")
CLASSES, BATCH = 10, 10
PRECISIONS = ("float32", "tensorfloat32", "bfloat16")
PFLLIB = dict(group="cnn4", shape=(28, 28, 1), clients=20, samples=2625, tested=875, alpha=0.1)
BLAZEFL = {"group": "resnet18", "shape": (32, 32, 3), "clients": 100, "samples": 400, "tested": 100}
BLAZEFL |= {"epochs": 5, "batch_size": 50, "evaluate": False}
PROTOCOLS = {"PFLlib's FedAvg, MNIST": PFLLIB, "BlazeFL's FedAvg, ResNet-18": BLAZEFL}
SMALL = {"group": "cnn4", "shape": (28, 28, 1), "clients": 2, "samples": 20, "tested": 5}
BESIDE = 7  # runs on one card; each has 11 % of its memory, graphs and kernels the rest
LOCK = threading.Lock()


def random_images(count: int, shape) -> fl.Dataset:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, *shape), np.uint8)
    labels = rng.integers(0, CLASSES, count).astype(np.int32)
    return fl.Dataset("random images", images, labels, tuple(map(str, range(CLASSES))))


def timed(simulation, rounds: int, evaluate: bool = False) -> dict:
    """Returns seconds of the first round, the median of the others, and bytes at the peak.

    With `evaluate`, there is also the median of evaluations.
    """
    state, seconds, evaluations = simulation.init(), [], []
    for _ in range(rounds):
        start = time.perf_counter()
        state, _ = simulation.run_round(state, not evaluate)
        jax.block_until_ready((state.clients, state.server))
        seconds.append(time.perf_counter() - start)
        if evaluate:
            simulation.evaluate(state)  # returns host values, so it has ended
            evaluations.append(time.perf_counter() - start - seconds[-1])
    times = {"first": seconds[0], "seconds": statistics.median(seconds[1:] or seconds)}
    if evaluate:
        times["evaluation"] = statistics.median(evaluations[1:] or evaluations)
    return times | {"peak": peak_memory()}


def step(group: str, lanes: int, steps: int, *, shape, rounds: int) -> dict:
    """Measures a step of `lanes` clients side by side, in rounds of local training."""
    dataset, modules = random_images(1000, shape), fl.model_group(group, CLASSES, shape)
    federation = fl.make_federation(modules, shape, CLASSES, num_clients=lanes)
    none = np.array([], np.int64)
    # All clients train on the same images, so that the device holds them once.
    indices = fl.ClientIndices(np.arange(steps * BATCH) % len(dataset.labels), none, none)
    data = arranged(dataset, (indices,) * federation.num_clients, federation)
    method = fl.local(fl.LocalTraining(optax.sgd(0.01), BATCH))
    options, result = fl.SimulationOptions(lanes=lanes, devices=1), {}
    for precision in PRECISIONS:
        with jax.default_matmul_precision(precision):
            times = timed(fl.make_simulation(method, federation, data, options), rounds)
        result[precision] = {"ms": 1e3 * times["seconds"] / steps, "first": times["first"]}
        # Peak memory never falls within a process, so only the first precision's is measured.
        result.setdefault("peak", times["peak"])
    return result


def torch_step(group: str, how: str, lanes, *, steps: int, shape, rounds: int) -> dict:
    """Measures the same step in PyTorch; only vmap has several clients side by side."""
    import torch

    from benchmarks.torch_loop import random_batches, train_in_turn
    from benchmarks.zoo_torch import build

    device, result = "cuda" if torch.cuda.is_available() else "cpu", {}
    x, y = random_batches(shape, CLASSES, BATCH, steps, device)
    ((name, module),) = fl.model_group(group, CLASSES, shape).items()
    for precision in PRECISIONS:
        tensor_cores, half = precision != "float32", precision == "bfloat16"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tensor_cores
        for count in lanes if how == "vmap" else (1,):
            models = [build(name, module, shape, CLASSES).to(device) for _ in range(count)]
            if how == "compile":
                models = [torch.compile(models[0], mode="reduce-overhead")]
            train = vmapped(models) if how == "vmap" else partial(train_in_turn, models)
            seconds = []
            # Neither CUDA graphs nor vmap support autocast's cache.
            with torch.autocast(device, torch.bfloat16, enabled=half, cache_enabled=False):
                for _ in range(rounds):
                    start = time.perf_counter()
                    train(x, y)
                    if device == "cuda":
                        torch.cuda.synchronize()
                    seconds.append(time.perf_counter() - start)
            key = f"{precision}, lanes {count}" if how == "vmap" else precision
            result[key] = {"ms": 1e3 * statistics.median(seconds[1:] or seconds) / steps}
    return result | {"version": torch.__version__}


def vmapped(models: list) -> Callable:
    """Returns (x, y) -> None, which trains all models side by side on the same batches."""
    import torch

    for model in models:
        torch.func.replace_all_batch_norm_modules_(model)  # vmap cannot write running statistics
    params, buffers = torch.func.stack_module_state(models)
    params = {name: value.detach() for name, value in params.items()}

    def loss(params, buffers, images, labels):
        scores = torch.func.functional_call(models[0], (params, buffers), (images,))
        return torch.nn.functional.cross_entropy(scores, labels)

    gradient, axes = torch.func.grad(loss), (0, 0, None, None)
    gradients = torch.func.vmap(gradient, in_dims=axes, randomness="different")

    def train(x, y):
        nonlocal params
        for images, labels in zip(x, y, strict=True):
            slopes = gradients(params, buffers, images, labels)
            params = {name: value - 0.01 * slopes[name] for name, value in params.items()}

    return train


def protocol(
    group: str, shape, clients: int, *, samples: int, tested: int, rounds: int,
    alpha: float | None = None, epochs: int = 1, batch_size: int = BATCH, evaluate: bool = True,
) -> dict:  # fmt: skip
    """Measures a round of FedAvg, on Dirichlet shares with `alpha`.

    With `evaluate` there is also an evaluation of all clients on training and test images. Both
    are as in PFLlib.
    """
    dataset = random_images(clients * (samples + tested), shape)
    kind, shares = ("iid", {}) if alpha is None else ("practical", {"alpha": alpha})
    shares["train_share"] = samples / (samples + tested)
    partition = fl.make_partition(kind, dataset, clients, **shares)
    federation = fl.make_federation(
        fl.model_group(group, CLASSES, shape), shape, CLASSES, num_clients=clients
    )
    data = fl.make_federation_data(dataset, partition, federation)
    method = fl.fedavg(fl.LocalTraining(optax.sgd(0.01), batch_size, epochs=epochs))
    options = fl.SimulationOptions(devices=1, scoring=fl.Scoring(train=evaluate))
    simulation = fl.make_simulation(method, federation, data, options)
    return timed(simulation, rounds, evaluate)


def jobs_of(tiny: bool) -> dict[str, dict[str, Callable]]:
    """Returns part -> name -> measurement; called with rounds=1 it only compiles."""
    sizes = {"cnn4": 2} if tiny else {"cnn4": 1000, "resnet18": 300}
    shape, widths, rounds = ((28, 28, 1), (2,), 2) if tiny else ((32, 32, 3), (1, 4, 9, 16), 4)
    steps, torch = {}, {}
    for group, count in sizes.items():
        common = {"group": group, "shape": shape, "rounds": rounds}
        for lanes in widths:
            steps[f"{group}, lanes {lanes}"] = partial(step, **common, lanes=lanes, steps=count)
        common |= {"lanes": widths, "steps": min(count, 50)}
        for how in ("eager", "compile", "vmap"):
            torch[f"{group}, {how}"] = partial(torch_step, **common, how=how)
    settings = {"tiny": SMALL} if tiny else PROTOCOLS
    protocols = {name: partial(protocol, **s, rounds=rounds) for name, s in settings.items()}
    return {"steps": steps, "torch": torch, "protocols": protocols}


def results_in(folder: Path) -> dict[str, dict]:
    path = folder / "gpu.json"
    return json.loads(path.read_text()) if path.exists() else {}


def keep(folder: Path, part: str, name: str, result: dict) -> None:
    """Adds a result to the file."""
    print(f"{part}, {name}: {json.dumps(result)}", flush=True)
    with LOCK:
        results = results_in(folder)
        results.setdefault(part, {})[name] = result
        with atomic_open(folder / "gpu.json") as file:
            file.write(json.dumps(results, indent=1) + "\n")


def in_process(command: list[str], log: Path, **environment: str) -> dict:
    """Runs a command. Returns its "seconds", and "error" if it failed."""
    start = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        done = subprocess.run(command, stdout=file, stderr=file, env=os.environ | environment)
    result: dict[str, Any] = {"seconds": time.monotonic() - start}
    if done.returncode:
        result["error"] = f"exit code {done.returncode}: {log.read_text().strip()[-200:]}"
    return result


def measure(part: str, name: str, options: argparse.Namespace, ahead: bool = False) -> None:
    """Measures in a process of its own, or only compiles the programs ahead of time."""
    cache = options.out / "cache"
    answer = cache / re.sub(r"\W+", "_", f"{part} {name}.json")
    command = [sys.executable, "-m", "benchmarks.gpu", f"--only={part}", f"--job={name}"]
    command += [f"--answer={answer}"] + ["--tiny"] * options.tiny + ["--ahead"] * ahead
    result = in_process(
        command,
        answer.with_suffix(".log"),
        JAX_COMPILATION_CACHE_DIR=str(cache),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        XLA_PYTHON_CLIENT_PREALLOCATE="false",
    )
    if not ahead:
        done = result if "error" in result else json.loads(answer.read_text())
        keep(options.out, part, name, done)


def queue_commands() -> dict[str, str]:
    """Returns name -> command of rows 2, 3 and 5, without those that train a search's choice."""
    commands = {}
    chosen = (row.commands for row in read_queue() if row.number in (2, 3, 5))
    for name, kind, arguments in itertools.chain.from_iterable(chosen):
        flags, _, entries = arguments.partition(" --methods=")
        if kind == "sweep":
            commands[name] = f"{kind} {arguments}"
        elif "$(" not in entries:
            for number, entry in enumerate(entries.split(",")):
                commands[f"{name}-{number}"] = f"{kind} {flags} --methods={entry}"
    return commands


def play(name: str, command: str, options: argparse.Namespace) -> None:
    """Runs a command of the queue; an existing folder is resumed."""
    runs = options.out / "runs"
    words = [*shlex.split(command), f"--config.dataset.data_dir={options.data_dir}"]
    result = in_process(
        [sys.executable, "-m", "fedjax_ht", *words, f"--workdir={runs / name}"],
        runs / f"{name}.log",
        XLA_PYTHON_CLIENT_MEM_FRACTION=f"{0.77 / BESIDE:.2f}",
        # Side by side, autotuning takes longer than it saves.
        XLA_FLAGS=f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0",
    )
    keep(options.out, "queue", name, result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, help="measure this part alone")
    parser.add_argument("--tiny", action="store_true", help="a small form for a CPU")
    parser.add_argument("--out", type=Path, default=Path("checkpoints/runs/gpu"))
    parser.add_argument("--data_dir", default="data", help="folder of the queue's data sets")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ahead", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    jobs = jobs_of(options.tiny)
    if options.job:
        run = jobs[options.only][options.job]
        options.answer.write_text(json.dumps(run(rounds=1) if options.ahead else run()))
        return
    queue = {} if options.tiny else queue_commands()
    for part in (options.only,) if options.only else PARTS:
        if part == "torch" and importlib.util.find_spec("torch") is None:
            print("torch: skipped, PyTorch is not installed")
            continue
        results = results_in(options.out).get(part, {})
        names = queue if part == "queue" else jobs[part]
        todo = [name for name in names if "error" in results.get(name, {"error": ""})]
        if part == "queue":
            with ThreadPoolExecutor(BESIDE) as pool:
                list(pool.map(lambda name: play(name, queue[name], options), todo))
            continue
        if part != "torch" and not options.tiny:
            with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
                list(pool.map(partial(measure, part, options=options, ahead=True), todo))
        for name in todo:
            measure(part, name, options)


if __name__ == "__main__":
    main()
