"""What XLA makes of a round of clients on a GPU, asked without one: kernels, graphs, memory, time to compile.

    python -m benchmarks.gpu_aot [--groups=cnn4,resnet18,cnn5] [--lanes=3,9] [--out=benchmarks/results/gpu_aot_h100.md]

FedTGP's training, 32x32x3, batches of 10, compiled for a device that benchmarks/h100.txtpb describes; a group of
several architectures is one program. Needs jax's CUDA plugin (pip install "jax[cuda12]"), and no GPU. Without a device
there is no autotuning, so that a real one may take other kernels for its products; how many there are, in which loops
and graphs, and how much memory they take is what this tells. The estimate of a step's time is arithmetic.
"""

import functools
import json
import os
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding

from benchmarks.report import in_a_process, machine, number, publish, table
from benchmarks.thunks import loops, read_thunks, step_bytes, steps_of
from experiments.cli import parse_flags
from fedjax_ht.core import wire
from fedjax_ht.core.compiling import buckets_on_mesh
from fedjax_ht.core.evaluation import Asked, bucket_evaluation
from fedjax_ht.core.executor import Schedule
from fedjax_ht.core.federation import Bucket, Federation, make_federation
from fedjax_ht.core.local_training import LocalTraining
from fedjax_ht.core.mesh import AXIS, REPLICATED, SHARDED
from fedjax_ht.core.method import ClientInfo, Context, Data, Method, PyTree, Split
from fedjax_ht.core.round import Channel, Participant, TrialServers, bucket_round
from fedjax_ht.methods import METHODS
from fedjax_ht.metrics.flops import sample_flops
from fedjax_ht.models import model_group
from fedjax_ht.simulation.lanes import H100

SHAPE, CLASSES, BATCH, IMAGES, SCORED = (32, 32, 3), 10, 10, 50_000, 64
TARGET = Path(__file__).parent / "h100.txtpb"
GROUPS = ("cnn4", "resnet18", "resnet34", "mobilenet_v2", "googlenet", "resnet50", "resnet101", "resnet152", "cnn5")

_GROUPS = flags.DEFINE_list("groups", list(GROUPS), "Model groups; those of several architectures are one program.")
_LANES = flags.DEFINE_list("lanes", ["3"], "Clients side by side.")
_MEASURE = flags.DEFINE_string("measure", None, "GROUP:LANES:WHAT:FOLDER, to compile and print JSON; for the child.")


def described_mesh() -> Mesh:
    """One GPU that is not there."""
    known = jax._src.xla_bridge.canonicalize_platform
    # jax takes "gpu" for what is present; here nothing is.
    jax._src.xla_bridge.canonicalize_platform = lambda name: "cuda" if name in ("gpu", "cuda") else known(name)
    found = topologies.get_topology_desc(platform="cuda", target_config=TARGET.read_text(), topology="1x1x1")
    return Mesh(np.array(found.devices), (AXIS,))


def arguments(method: Method, federation: Federation, bucket: Bucket, clients: int):
    """Shapes of a bucket's (states, schedule, data)."""
    shape = jax.ShapeDtypeStruct
    key = jax.eval_shape(lambda: jax.random.key(0))
    one = jax.eval_shape(lambda k: method.init_client(bucket, Context(k, jnp.int32(0), None)), key)
    states = jax.tree.map(lambda x: shape((clients, *x.shape), x.dtype), one)
    ids, flags = shape((clients,), jnp.int32), shape((clients,), bool)
    schedule = Schedule(ids, Participant(ids, ids, ClientInfo(ids, ids, ids), flags, flags), shape((1,), jnp.int32))
    split = Split(shape((clients, 2000), jnp.int32), ids)
    splits = {"train": split, "test": split}
    channels = shape((SHAPE[-1],), jnp.float32)
    data = Data(shape((IMAGES, *SHAPE), jnp.uint8), shape((IMAGES,), jnp.int32), channels, channels, splits)
    return states, schedule, data


def measure(group: str, lanes: int, what: str, folder: str) -> dict:
    """Compiles a group's "training" or "scoring" of a round in this process."""
    mesh = described_mesh()
    modules = model_group(group, CLASSES, SHAPE)
    federation = make_federation(modules, SHAPE, CLASSES, num_clients=2 * lanes * len(modules))
    method = METHODS["fedtgp"](LocalTraining(optax.sgd(0.01), batch_size=BATCH))
    channel = Channel(wire.chain(()), wire.chain(()))
    make = {"training": bucket_round, "scoring": functools.partial(bucket_evaluation, batch_size=SCORED)}[what]
    runs = {b.name: make(method, federation, b, channel, lanes) for b in federation.buckets}
    each = {b.name: arguments(method, federation, b, 2 * lanes) for b in federation.buckets}
    states, schedules, data = ({name: own[i] for name, own in each.items()} for i in range(3))
    key = jax.eval_shape(lambda: jax.random.key(0))
    server = jax.eval_shape(lambda k: method.init_server(federation, k), key)
    servers = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), server)
    servers = TrialServers(servers, jax.ShapeDtypeStruct((1,), jnp.uint32))

    def placed(tree: PyTree, spec) -> PyTree:
        at = NamedSharding(mesh, spec)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), tree)

    round, flag = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), bool)
    when = round if what == "training" else (round, Asked(flag, {"test": flag}))
    rest = (placed(x, REPLICATED) for x in (servers, data, when))
    start = time.perf_counter()
    with mock.patch.object(jax, "default_backend", return_value="gpu"):  # what functions ask that suit the device
        step = buckets_on_mesh(runs, mesh, donate=what == "training")
        lowered = step.lower(placed(states, SHARDED), placed(schedules, SHARDED), *rest)
    traced = time.perf_counter()
    compiled = lowered.compile()
    done = time.perf_counter()
    # The longest is the program, by passes that put it into graphs where there were any.
    listings = sorted(Path(folder).glob("*thunk_sequence*.txt"), key=lambda path: path.stat().st_size)
    nodes = read_thunks(listings[-1].read_text())
    steps = steps_of(nodes)
    return {
        "kernels": [len(loop.body) for loop in steps],
        "copies": [Counter(node.kind for node in loop.body)["Copy"] for loop in steps],
        "graphs": sum(node.depth == 0 and node.kind == "CommandBuffer" for node in nodes),
        "outside": sum(node.depth == 0 and node.kind != "CommandBuffer" for node in nodes),
        "graphed": all(loop.graphed for loop in loops(nodes)),
        "branches": sum(loop.depth == 0 for loop in loops(nodes)),
        "starts": len({loop.after for loop in loops(nodes) if loop.depth == 0}),
        "temporary": compiled.memory_analysis().temp_size_in_bytes,
        "bytes": step_bytes(compiled.as_text()),
        "flops": sum(lanes * BATCH * sample_flops(b) for b in federation.buckets),
        "lower": traced - start,
        "compile": done - traced,
    }


def in_a_child(group: str, lanes: int, what: str) -> dict:
    """XLA's flags, which say where it writes what it compiled, hold for a whole process."""
    packages = sysconfig.get_paths()["purelib"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
            "CUDA_VISIBLE_DEVICES": "-1",
            "JAX_PLATFORMS": "cpu,cuda",
            "XLA_FLAGS": f"--xla_gpu_autotune_level=0 --xla_gpu_cuda_data_dir={packages}/nvidia/cuda_nvcc "
            f"--xla_dump_to={folder}",
        }
        return in_a_process("benchmarks.gpu_aot", [f"--measure={group}:{lanes}:{what}:{folder}"])


def row(group: str, lanes: int, found: dict, scoring: dict) -> list[str]:
    kernels = sum(found["kernels"])
    launch, moved, computed = kernels * H100.launch, found["bytes"] / H100.bandwidth, found["flops"] / H100.arithmetic
    return [
        group,
        str(lanes),
        " + ".join(map(str, found["kernels"])),
        str(sum(found["copies"])),
        one_graph(found),
        one_graph(scoring),
        number(found["temporary"] / 2**20),
        number(found["bytes"] / 2**20),
        number(found["flops"] / 1e9),
        *(number(1e3 * seconds) for seconds in (launch, moved, computed)),
        number(found["lower"] + found["compile"]),
    ]


def one_graph(found: dict) -> str:
    if not found["graphed"] or found["graphs"] != 1 or found["outside"]:
        return f"no, {found['graphs']}"
    return f"yes, {found['branches']} abreast" if found["starts"] == 1 else "yes"


def main(_) -> None:
    if _MEASURE.value:
        group, lanes, what, folder = _MEASURE.value.split(":")
        print(json.dumps(measure(group, int(lanes), what, folder)))
        return
    rows = []
    for group in _GROUPS.value:
        for lanes in map(int, _LANES.value):
            rows.append(row(group, lanes, *(in_a_child(group, lanes, what) for what in ("training", "scoring"))))
            print(*rows[-1], flush=True)
    head = ["group", "lanes", "kernels a step", "of them copies", "one graph", "scoring, too", "temporary MiB"]
    head += ["MiB a step", "GFLOP a step", "launch ms", "memory ms", "arithmetic ms", "seconds to compile"]
    units = f"{H100.launch * 1e6:.1f} us a kernel, {H100.bandwidth / 1e12:.2f} TB/s"
    units += f" and {H100.arithmetic / 1e12:.0f} TFLOP/s"
    what = f"FedTGP's client round, compiled for an NVIDIA H100 that was not there; batch {BATCH}, {SHAPE}"
    publish(f"{what}. Milliseconds are estimates, a step, at {units}. {machine()}\n\n{table(head, rows)}")


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
