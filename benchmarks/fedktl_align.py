"""Trains F once with the server code of FedKTL's authors; `benchmarks.beside_fedktl` starts it.

    python fedktl_align.py SERVER INPUTS OUTPUTS

SERVER is the file serverktl_stylegan_xl.py of a checkout, which runs unchanged. INPUTS is an .npz
with F before its training, the uploads, and the draws: the orders of the epochs, and valid latents,
step by step. OUTPUTS receives F and the class means afterwards. It runs under any Python with
torch: the file's other imports are mocked, and not called.
"""

import importlib.util
import sys
import types
from unittest import mock

import numpy as np
import torch


def server_module(path: str) -> types.ModuleType:
    """Imports the authors' file, with mocks of all its imports but torch and NumPy."""
    absent = (
        "flcore", "flcore.clients", "flcore.clients.clientktl", "flcore.clients.clientbase",
        "flcore.servers",
        "flcore.servers.serverbase", "torchvision", "torchvision.transforms", "torch_utils", "PIL",
        "PIL.Image",
    )  # fmt: skip
    for name in absent:
        sys.modules[name] = mock.MagicMock()
    sys.modules["flcore.servers.serverbase"].Server = object
    spec = importlib.util.spec_from_file_location("server", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Loader:
    """Replaces torch's DataLoader: uploads in the given orders, a new one in each call."""

    orders: list

    def __init__(self, uploads, batch_size: int, drop_last: bool, shuffle: bool):
        order, length = Loader.orders.pop(0), len(uploads)
        kept = length - length % batch_size if drop_last else length
        self.batches = [order[i : min(i + batch_size, kept)] for i in range(0, kept, batch_size)]
        self.uploads = uploads

    def __iter__(self):
        for batch in self.batches:
            prototypes, labels = zip(*(self.uploads[i] for i in batch))
            yield torch.stack(prototypes), torch.stack(labels)


def main(path: str, inputs: str, outputs: str) -> None:
    """Trains F with the problem in `inputs`, and writes `outputs`."""
    problem = dict(np.load(inputs))
    for name, array in problem.items():
        if array.dtype == np.float32:
            problem[name] = array.astype(np.float64)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    module = server_module(path)
    (width, latent_dim), classes = (problem["w2"].shape, len(problem["centroids"]))
    transformer, table = (
        module.Feature_Transformer(width, latent_dim),
        torch.nn.Embedding(classes, latent_dim),
    )
    first, norm, _, last = transformer.mlp
    values = {
        first.weight: problem["w1"].T, first.bias: problem["b1"], norm.weight: problem["scale"],
        norm.bias: problem["bias"],
        norm.running_mean: problem["running_mean"], norm.running_var: problem["running_var"],
        last.weight: problem["w2"].T, last.bias: problem["b2"], table.weight: problem["centroids"],
    }  # fmt: skip
    with torch.no_grad():
        for tensor, array in values.items():
            tensor.copy_(torch.from_numpy(array.copy()))
    uploads = [
        (torch.from_numpy(p), torch.tensor(int(c)))
        for p, c in zip(problem["prototypes"], problem["labels"])
    ]
    items = {
        "uploaded_protos": uploads,
        "G": mock.MagicMock(),
        "F": transformer,
        "Centroids": table,
    }
    module.load_item = lambda role, name, folder: items[name]
    module.save_item = lambda item, role, name, folder: items.update({name: item})
    everyone = np.arange(len(uploads))
    # set_Centroids, the epochs, set_Centroids
    Loader.orders = [everyone, *problem["orders"], everyone]
    module.DataLoader = Loader
    latents = iter(problem["latents"])

    def take(n):
        return np.stack([next(latents) for _ in range(n)])

    module.gen_utils.get_w_from_seed = lambda generator, n, device: torch.from_numpy(take(n))[
        :, None
    ]

    server = object.__new__(module.FedKTL)
    server.role, server.save_folder_name, server.device = "Server", "", "cpu"
    server.server_batch_size, server.server_epochs = (
        int(problem["batch_size"]),
        len(problem["orders"]),
    )
    server.server_learning_rate, server.lamda = float(problem["rate"]), float(problem["weight"])
    server.MSEloss = torch.nn.MSELoss()
    server.classes_ids_tensor = torch.arange(classes)
    server.align()
    assert next(latents, None) is None
    after = {
        "w1": first.weight.T, "b1": first.bias, "scale": norm.weight, "bias": norm.bias,
        "running_mean": norm.running_mean, "running_var": norm.running_var,
        "w2": last.weight.T, "b2": last.bias, "centroids": items["latent_centroids"],
    }  # fmt: skip
    np.savez(
        outputs,
        torch=torch.__version__,
        **{name: value.detach().numpy() for name, value in after.items()},
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
