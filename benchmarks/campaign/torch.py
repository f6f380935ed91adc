"""The campaign's measurements of PyTorch: a group's step in turn, compiled, and vmapped."""

import importlib.util
import statistics
import time
from collections.abc import Callable

SHAPE, CLASSES, BATCH = (32, 32, 3), 10, 10


def absent(group: str) -> str | None:
    """Returns the first package that is missing here to build a group, or None."""
    needed = ["torch"] if group.startswith("cnn") else ["torch", "torchvision"]
    for name in needed:
        if importlib.util.find_spec(name) is None:
            return f"no {name}"
    return None


def torch_step(group: str, how: str, lanes: int = 1, steps: int = 50, rounds: int = 5) -> dict:
    """Measures a step of one client, or of several side by side, of every architecture of a group.

    Args:
      group: of models; of several architectures, one is trained after another.
      how: "eager", "compile" (torch.compile of the model), "graphs" (mode="reduce-overhead", which
        takes CUDA graphs), "vmap" (torch.func, batch norm by the batch alone).
      lanes: clients side by side, for "vmap".
      steps, rounds: of each of the rounds, the first of which warms up.
    """
    setting = {"group": group, "how": how, "lanes": lanes, "steps": steps}
    if gone := absent(group):
        return setting | {"note": gone}
    import torch

    from benchmarks.torch_loop import random_batches
    from benchmarks.zoo_torch import build
    from fedjax_ht.models import model_group

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    modules = model_group(group, CLASSES, SHAPE)
    batches = random_batches(SHAPE, CLASSES, BATCH, steps, device)
    first = seconds = 0.0
    for name, module in modules.items():
        models = [build(name, module, SHAPE, CLASSES).to(device) for _ in range(lanes)]
        train = vmapped(models) if how == "vmap" else in_turn(models[0], how)
        seconds_of_rounds = [timed(train, *batches) for _ in range(rounds)]
        median = statistics.median(seconds_of_rounds[1:])
        first, seconds = first + seconds_of_rounds[0] - median, seconds + median
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    result = {
        "ms": 1e3 * seconds / steps,
        "compile": first,
        "peak": peak,
        "version": torch.__version__,
    }
    return setting | result


def timed(train: Callable, x, y) -> float:
    """Returns seconds of a round, to its end on the device."""
    import torch

    start = time.perf_counter()
    train(x, y)
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def in_turn(model, how: str) -> Callable:
    """Returns (x, y) -> None, the plain loop of one client."""
    import torch

    from benchmarks.torch_loop import train_in_turn

    if how != "eager":
        model = torch.compile(model, mode="reduce-overhead" if how == "graphs" else None)

    def train(x, y):
        train_in_turn([model], x, y)

    return train


def vmapped(models: list) -> Callable:
    """Returns (x, y) -> None, which trains all models side by side on the same batches."""
    import torch
    from torch.func import (
        functional_call,
        grad,
        replace_all_batch_norm_modules_,
        stack_module_state,
        vmap,
    )

    for model in models:
        # Running statistics cannot be written to under vmap.
        replace_all_batch_norm_modules_(model)
    params, buffers = stack_module_state(models)
    params = {name: value.detach() for name, value in params.items()}
    skeleton = models[0]

    def loss(params, buffers, images, labels):
        return torch.nn.functional.cross_entropy(
            functional_call(skeleton, (params, buffers), (images,)), labels
        )

    gradients = vmap(grad(loss), in_dims=(0, 0, None, None), randomness="different")

    def train(x, y):
        nonlocal params
        for images, labels in zip(x, y):
            by_param = gradients(params, buffers, images, labels)
            params = {name: value - 0.01 * by_param[name] for name, value in params.items()}

    return train
