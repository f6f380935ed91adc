"""HtFLlib's FedKTL client as it is, on given weights and batches: run under a python with torch.

    python fedktl_client_htfllib.py CLIENTKTL.PY INPUTS.NPZ OUTPUTS.NPZ

`benchmarks.beside_fedktl_client` makes the inputs. Nothing of the file's imports is needed but
torch and NumPy: its base class, its storage and scikit-learn are stand-ins.
"""

import collections
import importlib.machinery
import sys
import types
from pathlib import Path

import numpy as np
import torch


def stand_in(name: str, **attributes) -> None:
    """Puts a module with these attributes where an import finds it."""
    module = types.ModuleType(name)
    module.__dict__.update(attributes, __spec__=importlib.machinery.ModuleSpec(name, None))
    sys.modules[name] = module


class Base(torch.nn.Module):
    """A linear layer on the flattened image."""

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.fc = torch.nn.Linear(inputs, width)

    def forward(self, x):
        return self.fc(x.reshape(len(x), -1))


class Model(torch.nn.Module):
    """A base and a head, as HtFLlib splits its models."""

    def __init__(self, inputs: int, width: int, outputs: int):
        super().__init__()
        self.base, self.head = Base(inputs, width), torch.nn.Linear(width, outputs)

    def forward(self, x):
        return self.head(self.base(x))


def set_linear(layer: torch.nn.Linear, kernel: np.ndarray, bias: np.ndarray) -> None:
    """Sets weights that are stored as [inputs, outputs]."""
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(kernel).double().T)
        layer.bias.copy_(torch.tensor(bias).double())


def main(code: str, inputs: str, outputs: str) -> None:
    torch.set_default_dtype(torch.float64)
    problem = np.load(inputs)
    stored = {}
    stand_in("flcore")
    stand_in("flcore.clients")
    stand_in(
        "flcore.clients.clientbase",
        Client=object,
        load_item=lambda role, name, folder: stored[name],
        save_item=lambda item, role, name, folder: stored.__setitem__(name, item),
    )
    stand_in("sklearn", metrics=None)
    stand_in("sklearn.preprocessing", label_binarize=None)
    names = {}
    exec(compile(Path(code).read_text(), code, "exec"), names)

    width, classes = problem["head/kernel"].shape
    model = Model(problem["base/kernel"].shape[0], width, classes)
    set_linear(model.base.fc, problem["base/kernel"], problem["base/bias"])
    set_linear(model.head, problem["head/kernel"], problem["head/bias"])
    projection = torch.nn.Linear(width, problem["projection/bias"].size)
    set_linear(projection, problem["projection/kernel"], problem["projection/bias"])
    etf = torch.tensor(problem["etf"]).double()
    stored.update(model=model, ETF=etf, data_generated=object(), proj_fc=projection)

    # The passes over generated pairs are those that the other side draws.
    ends = np.cumsum(problem["pair_counts"])
    pairs = iter(np.split(problem["pair_order"], ends[:-1]))

    def loader(*_, **__):
        images, latents = torch.tensor(problem["images"]), torch.tensor(problem["latents"])
        return ((images[p].double(), latents[p].double()) for p in pairs)

    names["DataLoader"] = loader
    x, y = torch.tensor(problem["x"]).double(), torch.tensor(problem["y"])
    size = int(problem["batch_size"])
    batches = [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]
    client = names["clientKTL"].__new__(names["clientKTL"])
    client.__dict__.update(
        mu=float(problem["mu"]), m=0.5, s=64, num_classes=classes, ETF_dim=classes, device="cpu",
        MSEloss=torch.nn.MSELoss(), loss=torch.nn.CrossEntropyLoss(), batch_size=size,
        learning_rate=float(problem["rate"]), local_epochs=int(problem["epochs"]), train_slow=False,
        role="client", save_folder_name="", train_time_cost=collections.defaultdict(float),
        load_train_data=lambda *_: batches,
    )  # fmt: skip
    client.train()
    client.collect_protos()
    prototypes = np.stack([stored["protos"][c].numpy() for c in range(classes)])
    layers = {"base": model.base.fc, "head": model.head}
    results = {"prototypes": prototypes, "torch": torch.__version__}
    for name, layer in layers.items():
        results[f"{name}/kernel"] = layer.weight.T.detach().numpy()
        results[f"{name}/bias"] = layer.bias.detach().numpy()
    np.savez(outputs, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
