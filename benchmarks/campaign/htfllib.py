"""Measures rounds of HtFLlib's own code on this device, to stand beside ours."""

import importlib.util
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import htfllib
from benchmarks.campaign.protocols import federated_images

CHECKOUT = Path("HtFLlib")  # in the repository's root, ignored by git
NEEDED = ("torch", "torchvision", "sklearn", "h5py")
TORCHVISION = "torchvision.models.{}(pretrained=False, num_classes=args.num_classes)"
SMALL = "FedAvgCNN(in_features=3, num_classes=args.num_classes, dim=1600)"
MODELS = {  # as HtFLlib's main.py has them for images of 32x32 pixels
    "htfe8": [
        SMALL,
        "torchvision.models.googlenet(pretrained=False, aux_logits=False, "
        "num_classes=args.num_classes)",
        "mobilenet_v2(pretrained=False, num_classes=args.num_classes)",
        *(TORCHVISION.format(f"resnet{depth}") for depth in (18, 34, 50, 101, 152)),
    ],
    "cnn4": [SMALL],
}


def absent() -> str | None:
    """Returns the first thing that is missing here to run HtFLlib, or None."""
    if not (CHECKOUT / "system" / "flcore").is_dir():
        return f"no checkout in {CHECKOUT}/"
    gone = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"no {gone[0]}" if gone else None


def their_round(
    method: str,
    group: str,
    shape: tuple[int, int, int],
    clients: int,
    samples: int,
    tested: int,
    rounds: int = 1,
) -> dict:
    """Times a round of HtFLlib with its evaluation, of the clients that `protocol_round` has for
    the same arguments.

    Args:
      method: of `htfllib.PAIRS`.
      group: of `MODELS`.
      shape, clients, samples, tested: see `campaign_protocols.federated_images`; ten classes.
      rounds: that are counted.
    """
    setting = {"side": "HtFLlib", "method": method, "group": group, "clients": clients}
    if gone := absent():
        return setting | {"note": gone}
    import torch

    job = htfllib.job(
        method,
        rounds=rounds,
        models=MODELS[group],
        global_model=SMALL,
        feature_dim=512,
        num_classes=10,
        num_clients=clients,
        learning_rate=0.01,
        device="cuda" if torch.cuda.is_available() else "cpu",
        clock="wall",
    )
    with tempfile.TemporaryDirectory() as folder:
        dataset, partition = federated_images(shape, 10, clients, samples, tested, alpha=0.1)
        htfllib.write_clients(Path(folder, "dataset", "clients"), dataset, partition)
        measured = htfllib.run(job, sys.executable, CHECKOUT, Path(folder))
    times = {name: statistics.median(measured[name]) for name in ("round", "evaluation")}
    return setting | times | {"version": measured["torch"]}
