"""The campaign's slices of others' protocols, with the seconds and bytes that they publish."""

from pathlib import Path

from benchmarks.campaign.slices import Item, Slice
from benchmarks.htfllib import PAIRS

CACHE = str(Path.home() / ".cache" / "fedjax_ht" / "campaign")
PROTOCOLS, HTFLLIB, PAGES = (
    f"benchmarks.campaign.{name}" for name in ("protocols", "htfllib", "peer_pages")
)

# Rounds as others publish them: images, clients and local training.
MNIST = {
    "shape": [28, 28, 1],
    "classes": 10,
    "clients": 20,
    "samples": 2625,
    "tested": 875,
    "alpha": 0.1,
}
TINY_IMAGENET = {
    "shape": [64, 64, 3],
    "classes": 200,
    "clients": 20,
    "samples": 4125,
    "tested": 1375,
    "alpha": 0.1,
}
CIFAR100_OF_500 = {
    "shape": [32, 32, 3],
    "classes": 100,
    "clients": 500,
    "samples": 90,
    "tested": 30,
    "alpha": 0.1,
}
BLAZEFL = {"shape": [32, 32, 3], "classes": 10, "clients": 100, "samples": 400, "tested": 100}
BLAZEFL |= {"epochs": 5, "batch_size": 50, "evaluate": False}
HTFE8 = {"shape": [32, 32, 3], "clients": 20, "samples": 500, "tested": 167}
SMALL_THEIRS = {"shape": [32, 32, 3], "clients": 2, "samples": 30, "tested": 10}
SMALL = {"classes": 10, "clients": 4, "samples": 30, "tested": 10, "rounds": 2}


def protocol_item(protocol: str, group: str, method: str, setting: dict, **other) -> Item:
    """A round of a protocol; peak memory never falls, so that each has a process of its own."""
    arguments = {"protocol": protocol, "group": group, "method": method, **setting, **other}
    kept = [f"states on the {other['client_store']}"] if "client_store" in other else []
    return Item(
        name := ", ".join([protocol, group, method, *kept]),
        f"{PROTOCOLS}:protocol_round",
        arguments,
        name,
    )


def pfllib_items() -> list[Item]:
    """PFLlib's rounds, one epoch in batches of 10, with an evaluation on all images: those of its
    issue 253 and of its leaderboard, and the memory that its README names for 500 clients."""
    mnist = protocol_item(
        "PFLlib, MNIST", "cnn4", "fedavg", MNIST, rounds=4, published={"PFLlib, RTX 5090": 17.2}
    )
    leaderboard = {"fedavg": 1.59, "fd": 2.78, "fedproto": 5.52}
    tiny = [
        protocol_item(
            "PFLlib, Tiny-ImageNet",
            "resnet18",
            method,
            TINY_IMAGENET,
            published={"PFLlib, GPU not said": 60 * minutes},
            **({"variant": "released"} if method == "fedproto" else {}),
        )
        for method, minutes in leaderboard.items()
    ]
    memory = [
        protocol_item(
            "PFLlib, CIFAR-100",
            "cnn4",
            method,
            CIFAR100_OF_500,
            client_store=store,
            lanes=20,
            published_peak={"PFLlib, RTX 3090": 5.08e9},
        )
        for method, store in (("fedavg", "device"), ("local", "device"), ("local", "host"))
    ]
    return [mnist, tiny[0], *memory, *tiny[1:]]


def simulator_items() -> list[Item]:
    """BlazeFL's rounds of 100 clients, which train on 400 images and are scored on 100, and
    pfl-research's whole run."""
    published = {
        "blazefl": {"BlazeFL, A100": 16.2, "Flower, A100": 22.0},
        "resnet18": {"BlazeFL, A100": 36.8, "Flower, A100": 98.0},
    }
    rounds = [
        protocol_item("BlazeFL, CIFAR-10", group, "fedavg", BLAZEFL, rounds=4, published=seconds)
        for group, seconds in published.items()
    ]
    return [
        rounds[0],
        Item("pfl-research, 1,500 rounds", f"{PROTOCOLS}:pfl_run", {}, "pfl"),
        rounds[1],
    ]


def htfllib_items() -> list[Item]:
    """Both sides of a method, one after the other; those first of which most is published."""
    items = []
    for method in sorted(PAIRS, key=lambda name: name not in ("fedtgp", "fedproto", "local")):
        arguments = {"method": method, "group": "htfe8", **HTFE8}
        items.append(
            Item(f"{method}, HtFLlib", f"{HTFLLIB}:their_round", arguments, f"{method} theirs")
        )
        pair = PAIRS[method]
        clipping = {"clip_norm": 10.0} if pair.clipped else {}
        ours = {
            "protocol": "HtFLlib",
            "classes": 10,
            "alpha": 0.1,
            "evaluate_train": False,
            **clipping,
            **pair.ours,
        }
        ours["cache"] = CACHE  # the eight models take minutes to compile
        items.append(
            Item(
                f"{method}, ours", f"{PROTOCOLS}:protocol_round", arguments | ours, f"{method} ours"
            )
        )
    return items


PEER_SLICES = {
    8: Slice(
        "PFLlib's protocols",
        "Rounds of 20 clients by Dirichlet shares (0.1), batches of 10, one epoch, with an "
        "evaluation of all on training and test images, which PFLlib's seconds hold, too; memory "
        "of 500 clients, 20 side by side. Random images in the shapes and numbers of MNIST, "
        "Tiny-ImageNet and CIFAR-100.",
        pfllib_items(),
        [
            protocol_item(
                "PFLlib, MNIST",
                "cnn4",
                "fedavg",
                SMALL,
                shape=[28, 28, 1],
                published={"PFLlib": 17.2},
            ),
            protocol_item("PFLlib, Tiny-ImageNet", "mlp2", "fd", SMALL, shape=[8, 8, 3]),
            protocol_item(
                "PFLlib, CIFAR-100",
                "mlp2",
                "local",
                SMALL,
                shape=[8, 8, 3],
                client_store="host",
                published_peak={"PFLlib": 5.08e9},
            ),
        ],
        f"{PAGES}:protocols",
    ),
    9: Slice(
        "Protocols of simulators",
        "BlazeFL's FedAvg of 100 clients, all in every round, five epochs of batches of 50, scored "
        "as training left them, with the CNN of PyTorch's tutorial and ResNet-18, on random "
        "images; and pfl-research's benchmark, 1,500 rounds of 50 among 1,000 users, with dropout, "
        "evaluated on all test images in every tenth round: on CIFAR-10 where it is in data/, else "
        "on random images, whose accuracy means nothing.",
        simulator_items(),
        [
            protocol_item(
                "BlazeFL, CIFAR-10",
                "blazefl",
                "fedavg",
                BLAZEFL,
                clients=4,
                samples=50,
                tested=10,
                rounds=2,
            ),
            Item(
                "pfl-research, 2 rounds",
                f"{PROTOCOLS}:pfl_run",
                {"rounds": 2, "users": 20, "cohort": 2, "every": 1, "images": "random"},
                "pfl",
            ),
        ],
        f"{PAGES}:protocols",
    ),
    10: Slice(
        "Beside HtFLlib",
        "All methods that both have, HtFE8, 20 clients by Dirichlet shares (0.1) of random images "
        "of 32x32x3, 500 to train on average, batches of 10, one epoch, and an evaluation of all "
        "clients on test images. HtFLlib's code runs as it is where a checkout lies in HtFLlib/.",
        htfllib_items(),
        [
            Item(
                "local, HtFLlib",
                f"{HTFLLIB}:their_round",
                {"method": "local", "group": "cnn4", **SMALL_THEIRS},
                " ",
            ),
            protocol_item(
                "HtFLlib",
                "cnn4",
                "local",
                SMALL,
                shape=[32, 32, 3],
                alpha=0.1,
                evaluate_train=False,
            ),
        ],
        f"{PAGES}:beside_htfllib",
    ),
}
