"""The campaign's slices: their items in order, and a small form of each."""

import json
from pathlib import Path

from benchmarks.campaign.peers import CACHE, PEER_SLICES
from benchmarks.campaign.slices import Item, Slice

RECORDED = Path(__file__).parents[2] / "tests" / "methods" / "recorded.json"
CHECKS, ROUNDS, SERVERS, TORCH, PAGES = (
    f"benchmarks.campaign.{name}" for name in ("checks", "rounds", "servers", "torch", "pages")
)
# group -> steps of a client in a round, so that what a round takes besides is a small part of it
STEPS = {
    "cnn4": 1000,
    "resnet18": 300,
    "cnn5": 1000,
    "mobilenet_v2": 200,
    "googlenet": 200,
    "resnet50": 200,
    "resnet34": 200,
}
SMALL_DISTILLATION = {
    "clients": 2,
    "iterations": 1,
    "generator_steps": 1,
    "student_steps": 1,
    "batch_size": 4,
}


def contract_items() -> list[Item]:
    """Returns an item for every recorded entry with lanes, then again without.

    Methods that train a generator, long to compile, come last.
    """
    entries = list(json.loads(RECORDED.read_text())) if RECORDED.exists() else []
    entries.sort(key=trains_a_generator)
    items = []
    for lanes in (4, 1):
        for entry in entries:
            arguments = {"entry": entry, "lanes": lanes}
            items.append(Item(f"{entry}, lanes {lanes}", f"{CHECKS}:contract", arguments))
    return items


def trains_a_generator(entry: str) -> bool:
    """Returns whether an entry is of a distilling method."""
    return any(method in entry for method in ("dense", "dfrd", "fedftg"))


def step_item(group: str, lanes: int, steps: int | None = None, process: str = "", **other) -> Item:
    name = ", ".join([group, f"lanes {lanes}", *(f"{key} {value}" for key, value in other.items())])
    arguments = {"group": group, "lanes": lanes, "steps": steps or STEPS[group], **other}
    return Item(name, f"{ROUNDS}:step_time", arguments, process or group)


def step_items() -> list[Item]:
    """Returns the items of slice 2.

    More lanes hold more memory, and so may share a process with fewer before them.
    """
    plain = {group: [step_item(group, lanes) for lanes in (3, 9)] for group in STEPS}
    small = [*plain.pop("cnn4"), *plain.pop("resnet18"), *plain.pop("cnn5")]
    otherwise = [
        step_item("cnn5", 3, process="cnn5 apart", together=False),
        step_item("cnn4", 3, process="cnn4 without", graphs=False),
        step_item("resnet18", 3, process="resnet18 without", graphs=False),
        step_item("resnet18", 9, process="resnet18 tf32", precision="tensorfloat32"),
        step_item("resnet18", 9, process="resnet18 bf16", precision="bfloat16"),
    ]
    return [*small, *otherwise, *(item for items in plain.values() for item in items)]


def round_item(group: str, method: str, trials: int, **other) -> Item:
    arguments = {"group": group, "method": method, "trials": trials, **other}
    name = f"{group}, {method}, trials {trials}"
    if not other.get("together", True):
        name += ", apart"
    return Item(name=name, run=f"{ROUNDS}:whole_round", arguments=arguments, process=name)


def round_items() -> list[Item]:
    """Returns the items of slice 3, small models first.

    They show what a round takes besides, and what three seeds in one program win over three runs.
    Should the program of all eight large ones take too long to compile, one a bucket is eight
    shorter ones, each of which is kept.
    """
    small = [
        round_item("cnn5", method, trials) for method in ("fedtgp", "fedktl") for trials in (1, 3)
    ]
    large = [
        round_item("htfe8", method, trials, cache=CACHE)
        for trials in (1, 3)
        for method in ("fedtgp", "fedktl")
    ]
    return [
        *small,
        large[0],
        round_item("htfe8", "fedtgp", 1, cache=CACHE, together=False),
        *large[1:],
    ]


def server_items() -> list[Item]:
    of_fedktl = [
        Item(f"alignment, {v}", f"{SERVERS}:alignment", {"variant": v, "bar": 0.5}, f"fedktl {v}")
        for v in ("paper", "released")
    ]
    of_fedktl.append(
        Item("images, 32x32x3", f"{SERVERS}:images", {"shape": [32, 32, 3]}, "fedktl released")
    )
    of_dfrd = [
        Item("distillation", f"{SERVERS}:distillation", {}, "dfrd"),
        Item("teachers", f"{SERVERS}:teachers", {}, "dfrd"),
        Item("distillation, large batches", f"{SERVERS}:distillation", {"batch_size": 256}, "dfrd"),
        Item("distillation, FLOPs", f"{SERVERS}:distillation", {"count": True}, "dfrd"),
    ]
    return of_fedktl + of_dfrd


def lane_items() -> list[Item]:
    kernels = [
        Item(f"a kernel, graphs {g}", f"{ROUNDS}:kernel_time", {"graphs": g}, "kernels")
        for g in (True, False)
    ]
    return kernels + [
        step_item(group, lanes) for group in ("cnn4", "resnet18") for lanes in (1, 2, 4, 8, 16, 32)
    ]


def torch_item(group: str, how: str, lanes: int = 1, **other) -> Item:
    arguments = {"group": group, "how": how, "lanes": lanes, **other}
    name = f"{group}, {how}, lanes {lanes}" if how == "vmap" else f"{group}, {how}"
    return Item(name, f"{TORCH}:torch_step", arguments)


def torch_items() -> list[Item]:
    eager = [torch_item(group, "eager") for group in STEPS]
    vmapped = [torch_item(group, "vmap", lanes) for group in STEPS for lanes in (3, 9)]
    compiled = [torch_item(group, how) for how in ("compile", "graphs") for group in STEPS]
    return eager + vmapped + compiled


SLICES = {
    1: Slice(
        "Recorded rounds",
        "The three rounds of every method that tests/methods/recorded.json holds, made again: the "
        "largest difference "
        "to what a CPU recorded, in a number as a share of its value, and in an accuracy.",
        contract_items(),
        [
            item
            for item in contract_items()
            if item.name in ("local, lanes 1", "fedtgp released, lanes 4")
        ],
        f"{PAGES}:contract",
        precision="highest",
    ),
    2: Slice(
        "Steps",
        "Milliseconds of a training step of all lanes, in rounds of local training, batch 10, "
        "32x32x3, SGD, float32; "
        "beside them what was estimated for an H100 (gpu_aot_h100.md). Compiling includes tracing.",
        step_items(),
        [
            step_item("mlp2", 3, 5, rounds=3),
            step_item(
                "mlp2",
                3,
                5,
                rounds=3,
                process="mlp2 plain",
                graphs=False,
                together=False,
                precision="bfloat16",
            ),
        ],
        f"{PAGES}:steps",
    ),
    3: Slice(
        "Whole rounds",
        "All 20 clients for an epoch of batches of 10, 32x32x3, 500 images on average by Dirichlet "
        "shares (0.1), with the server's part; nobody is scored. Trials are one program. Cached: "
        "programs that an earlier call compiled.",
        round_items(),
        [round_item("mlp2", "fedktl", 3, clients=4, samples=40, rounds=3, cache=CACHE)],
        f"{PAGES}:rounds",
    ),
    4: Slice(
        "Servers",
        "FedKTL's alignment at CIFAR-100's shape (20 clients, 45 classes each) with its bar, "
        "images of its shipped generator's architecture, and a round of DFRD's distillation from "
        "ten 4-conv CNNs, rho = 5.",
        server_items(),
        [
            Item(
                "alignment",
                f"{SERVERS}:alignment",
                {
                    "variant": "paper",
                    "classes": 5,
                    "clients": 3,
                    "held": 2,
                    "bar": 0.5,
                    "epochs": 2,
                },
            ),
            Item("images", f"{SERVERS}:images", {"shape": [32, 32, 3], "count": 2}),
            Item(
                "distillation",
                f"{SERVERS}:distillation",
                {"repeats": 1, **SMALL_DISTILLATION},
                "dfrd",
            ),
            Item(
                "distillation, FLOPs",
                f"{SERVERS}:distillation",
                {"count": True, **SMALL_DISTILLATION},
                "dfrd",
            ),
        ],
        f"{PAGES}:servers",
    ),
    5: Slice(
        "Accuracies",
        "Fashion-MNIST, 100 clients of CNN-1..5, two classes each, ten a round, shared initial "
        "weights, 500 rounds, seeds 0 to 2 as trials; beside them the same runs on CPU "
        "(experiments/results/class_shares.md).",
        [Item(m, f"{CHECKS}:accuracy", {"method": m}, m) for m in ("local", "fedssa", "fedral")],
        [
            Item(
                "fedssa",
                f"{CHECKS}:accuracy",
                {
                    "method": "fedssa",
                    "rounds": 2,
                    "every": 2,
                    "data": "fashion_mnist_10k",
                    "clients": 50,
                    "trials": 2,
                }
                | {"group": "mlp2", "sets": "merged"},
            )
        ],
        f"{PAGES}:accuracies",
    ),
    6: Slice(
        "Lanes",
        "Milliseconds of a step by lanes, as above; for a rule such as max(kernels * launch, "
        "lanes * work).",
        lane_items(),
        [
            Item("a kernel", f"{ROUNDS}:kernel_time", {"graphs": True, "iterations": 10}, " "),
            step_item("mlp2", 1, 5, rounds=3, process=" "),
            step_item("mlp2", 2, 5, rounds=3, process=" "),
        ],
        f"{PAGES}:lanes",
    ),
    7: Slice(
        "PyTorch",
        "Milliseconds of the same training step in PyTorch, float32 without TF32: one client's, "
        "clients one after another, eager and compiled (graphs: mode=reduce-overhead), and of all "
        "lanes with torch.func.vmap.",
        torch_items(),
        [
            torch_item("cnn4", how, lanes, steps=2, rounds=2)
            for how, lanes in (("eager", 1), ("vmap", 3))
        ],
        f"{PAGES}:torch",
        environment={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    ),
} | PEER_SLICES
