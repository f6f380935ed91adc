"""What a client's training step costs on texts, model by model: a plain PyTorch loop, and the real round of `local`.

    python -m benchmarks.text --out=benchmarks/results/text.md
    python -m benchmarks.text --models=lstm --widths=32,128 --cores=1

Each measurement has a process of its own, PyTorch's before and after ours; without torch its columns are empty. Both
have as many cores: PyTorch so many threads, ours a device a core, where there are several.
"""

import importlib.util
import json
import os
import statistics
import time

import jax
import numpy as np
import optax
from absl import app, flags

from benchmarks.report import in_a_process, machine, number, peak_memory, publish, table
from fedjax_ht.core.federation import make_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.data.client_data import make_federation_data
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.methods.local import local
from fedjax_ht.models import text_model, text_transformer
from fedjax_ht.runner.cli import parse_flags
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import make_simulation

MODELS = ("fasttext", "text_logistic", "lstm", "gru", "bilstm", "transformer")
LENGTH, VOCABULARY, CLASSES, BATCH, CLIENTS = 200, 32_000, 4, 10, 4
TEXTS = {"full": "200 tokens", "short": "14 to 85 tokens"}  # AG News: 43 on average, 99 % at most 85

_MODELS = flags.DEFINE_list("models", list(MODELS), "What to measure.")
_WIDTHS = flags.DEFINE_list("widths", ["64"], "Features.")
_CORES = flags.DEFINE_list("cores", [str(n) for n in range(1, len(os.sched_getaffinity(0)) + 1)], "Cores of each.")
_TEXTS = flags.DEFINE_list("texts", list(TEXTS), "How long they are.")
_STEPS = flags.DEFINE_integer("steps", 10, "Steps of each client.")
_ROUNDS = flags.DEFINE_integer("rounds", 6, "Rounds of each measurement; the first compiles and is not counted.")
_HOW = flags.DEFINE_enum("how", None, ["ours", "torch"], "Measure this here and print JSON; for the child.")


def samples(kind: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids int32 [count, LENGTH] and labels."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, VOCABULARY, (count, LENGTH)).astype(np.int32)
    if kind == "short":
        tokens[np.arange(LENGTH) >= rng.triangular(14, 40, 85, count)[:, None].round()] = 0
    return tokens, rng.integers(0, CLASSES, count)


def ours(name: str, width: int, kind: str) -> dict:
    """Seconds of the first round and, as median, of the later ones, and the processor's seconds of these."""
    count = _STEPS.value * BATCH
    tokens, labels = samples(kind, CLIENTS * count)
    none = np.array([], np.int64)
    partition = tuple(ClientIndices(own, none, none) for own in np.arange(CLIENTS * count).reshape(CLIENTS, count))
    dataset = Dataset("random texts", tokens, labels, tuple("0123"), vocabulary=VOCABULARY)
    size = CLASSES, VOCABULARY, width
    module = text_transformer(*size) if name == "transformer" else text_model(name, *size)
    federation = make_federation({name: module}, dataset.input_shape, CLASSES, CLIENTS)
    data = make_federation_data(dataset, partition, federation)
    options = SimulationOptions(devices=len(jax.devices()))
    simulation = make_simulation(local(LocalTraining(optax.sgd(0.01), BATCH)), federation, data, options)
    state, seconds, busy = simulation.init(), [], []
    for _ in range(_ROUNDS.value):
        start, spent = time.perf_counter(), time.process_time()
        state, _ = simulation.run_round(state)
        jax.block_until_ready(state.clients)
        seconds.append(time.perf_counter() - start)
        busy.append(time.process_time() - spent)
    found = {"round": statistics.median(seconds[1:]), "busy": statistics.median(busy[1:])}
    return found | {"first": seconds[0], "peak": peak_memory()}


def measure_here(name: str, width: int, kind: str, cores: int) -> dict:
    """What a child process measures, on so many cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    if _HOW.value == "ours":
        return ours(name, width, kind)
    import torch

    from benchmarks import text_torch

    torch.set_num_threads(cores)
    tokens, labels = (x.reshape(_STEPS.value, BATCH, *x.shape[1:]) for x in samples(kind, _STEPS.value * BATCH))
    return text_torch.measure(name, VOCABULARY, width, CLASSES, tokens, labels, CLIENTS, _ROUNDS.value)


def row(name: str, width: str, kind: str, cores: str) -> tuple[list[str], str]:
    """A row of the table, and torch's version."""

    def child(how: str) -> dict:
        given = [f"--models={name}", f"--widths={width}", f"--texts={kind}", f"--cores={cores}", f"--how={how}"]
        given += [f"--{flag.name}={flag.value}" for flag in (_STEPS, _ROUNDS)]
        return in_a_process("benchmarks.text", given, int(cores) if how == "ours" else 1)

    with_torch = importlib.util.find_spec("torch") is not None
    before = child("torch") if with_torch else None
    own = child("ours")
    after = child("torch") if with_torch else None
    steps = CLIENTS * _STEPS.value / 1e3
    loops = [m["round"] / steps for m in (before, after) if m]
    ms = own["round"] / steps
    cells = [
        name,
        width,
        TEXTS[kind],
        cores,
        ", ".join(map(number, loops)) or "-",
        number(ms),
        number(ms / min(loops) if loops else None),
        f"{number(own['busy'] / steps)}, " + (number(min(before["busy"], after["busy"]) / steps) if after else "-"),
        number(own["first"] - own["round"], 1),
        f"{own['peak'] / 1e6:,.0f}, " + (f"{after['peak'] / 1e6:,.0f}" if after else "-"),
    ]
    return cells, after["version"] if after else ""


HEAD = (
    "model", "features", "texts", "cores", "PyTorch, before and after", "ours", "ours / PyTorch",
    "processor's ms: ours, PyTorch", "compile s",
    "peak MB: ours, PyTorch",
)  # fmt: skip


def main(_) -> None:
    jax.config.update("jax_default_matmul_precision", "float32")
    cases = [(m, w, t, c) for t in _TEXTS.value for m in _MODELS.value for w in _WIDTHS.value for c in _CORES.value]
    if _HOW.value:
        name, width, kind, cores = cases[0]
        print(json.dumps(measure_here(name, int(width), kind, int(cores))))
        return
    rows = [row(*case) for case in cases]
    version = rows[0][1]
    lines = [
        f"Milliseconds of one client's training step: {CLIENTS} clients, batch {BATCH}, {LENGTH} places, "
        f"{VOCABULARY:,} token ids, {CLASSES} classes, SGD, float32. The transformer has 8 heads and 2 layers.",
        machine(),
        f"PyTorch {version}, as many threads as cores; recurrent layers packed where there is padding."
        if version
        else "PyTorch is not installed.",
        "Ours is the round of `local`, a device a core; dropout in both. The ratio is to the faster of PyTorch's two.",
        f"The machine's load was {os.getloadavg()[2]:.1f} in the last 15 minutes, ours included: above the number of "
        "cores others ran, too, and the processor's own time says more than the clock's.",
        "",
        table(HEAD, [cells for cells, _ in rows]),
    ]
    publish("\n".join(lines))


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
