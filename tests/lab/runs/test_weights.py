"""Models that start from files of weights: by config and by hand, in runs that resume."""

import copy
import functools

import jax
import numpy as np
import optax
import pytest
from flax.traverse_util import unflatten_dict

import fedjax_ht as fl
from fedjax_ht.core.bucket import weights_of, with_frozen
from fedjax_ht.core.federation import all_weights
from fedjax_ht.core.mesh import client_mesh
from fedjax_ht.lab.runs.evaluate import check_export, client_state, export, load_run
from fedjax_ht.lab.runs.folder import files_read, read_folder, read_run
from fedjax_ht.lab.runs.identity import begin
from fedjax_ht.lab.runs.own_methods import noted
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.lab.runs.play import simulate
from fedjax_ht.lab.runs.train import train_and_evaluate
from fedjax_ht.lab.safe.torch_files import load_state_dict, save_safetensors
from fedjax_ht.lab.weights.hugging_face.folder import sum_of_model
from fedjax_ht.lab.weights.start import checksums, missing, state_dict
from fedjax_ht.models import model_group
from fedjax_ht.simulation.engine import first_server, first_states
from tests.hugging_face import made_up, write_folder
from tests.lab.runs.folders import refused
from tests.runs import metrics
from tests.tiny import check_equal

SHAPE = (6, 6, 1)
TRAINING = fl.LocalTraining(optax.sgd(0.1), batch_size=8)


@pytest.fixture(scope="module")
def arrays():
    """Returns weights of both perceptrons: every number of the first is 1, of the second 2."""
    modules, state_dicts = model_group("mlp2", 4, SHAPE), {}
    for value, (name, module) in enumerate(modules.items(), 1):
        shapes = jax.eval_shape(module.init, jax.random.key(0), np.zeros((1, *SHAPE)))
        params = jax.tree.map(lambda x, v=value: np.full(x.shape, v, np.float32), shapes["params"])
        state_dicts[name] = state_dict(module, {"params": params, "stats": {}})
    return state_dicts


def federation_of(group="mlp2", shared=None):
    return fl.make_federation(model_group(group, 4, SHAPE), SHAPE, 4, num_clients=4, shared=shared)


def with_model(config, **changes):
    config = copy.deepcopy(config)
    config.rounds = 1
    config.model.update(changes)
    return config


def in_torch(arrays):
    """Returns the arrays of a perceptron's extractor with torch's names and layouts."""
    renamed = {}
    for path, x in arrays.items():
        layer, leaf = path.split("/")[-2:]
        if layer != "head":
            renamed[f"{layer}.{leaf.replace('kernel', 'weight')}"] = x.T
    return renamed


def values(tree):
    return {x for leaf in jax.tree.leaves(tree) for x in np.unique(leaf).tolist()}


def first_state(method, federation):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (40, *SHAPE), np.uint8)
    dataset = fl.Dataset("toy", images, np.arange(40) % 4, tuple("abcd"))
    partition = fl.make_partition("iid", dataset, num_clients=4)
    data = fl.make_federation_data(dataset, partition, federation)
    simulation = fl.make_simulation(method, federation, data)
    state, names = simulation.init(), [bucket.name for bucket in federation.buckets]
    return state, {name: simulation.read_clients(state, name, np.arange(2)) for name in names}


def test_every_client_starts_from_its_architectures_weights(arrays):
    federation = fl.with_weights(federation_of(), {"mlp_wide": arrays["mlp_wide"]}, head=False)
    _, clients = first_state(fl.local(TRAINING), federation)
    _, random = first_state(fl.local(TRAINING), federation_of())
    assert values(clients["mlp_wide"]["params"]["base"]) == {2}
    check_equal(*(state["mlp_wide"]["params"]["head"] for state in (clients, random)))
    check_equal(clients["mlp_narrow"], random["mlp_narrow"])
    both = fl.with_weights(federation, arrays, head=True)
    _, clients = first_state(fl.local(TRAINING), both)
    assert values(clients["mlp_wide"]) == {2} and values(clients["mlp_narrow"]) == {1}


def test_heads_that_are_left_out_are_said_to_be(arrays, recwarn):
    message = "mlp_narrow, mlp_wide have heads, .*: give head=True"
    with pytest.warns(UserWarning, match=message) as caught:
        federation = fl.with_weights(federation_of(), arrays)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert federation == fl.with_weights(federation_of(), arrays, head=False)
    fl.with_weights(federation_of(), arrays, head=True)
    bases = {}
    for model, tree in arrays.items():
        bases[model] = {k: v for k, v in tree.items() if "/head/" not in k}
    fl.with_weights(federation_of(), bases)
    assert not recwarn.list


def test_heads_that_do_not_fit_are_named(arrays):
    modules, wide = model_group("mlp2", 3, SHAPE), {"mlp_wide": arrays["mlp_wide"]}
    federation = fl.make_federation(modules, SHAPE, 3, num_clients=4)
    line = r"^the weights of mlp_wide: its head's bias has shape \(4,\), .* \(3,\); it stays random"
    with pytest.warns(UserWarning, match=line) as caught:
        started = fl.with_weights(federation, wide, head=True)
    assert len(caught) == 1 and caught[0].filename == __file__
    (weights,) = (b.weights for b in started.buckets if b.name == "mlp_wide")
    assert "head" not in weights["params"]
    bases = {"mlp_wide": {k: v for k, v in wide["mlp_wide"].items() if "/head/" not in k}}
    with pytest.warns(UserWarning, match="it has no head for this model; it stays random"):
        fl.with_weights(federation, bases, head=True)


def test_servers_and_auxiliary_models_start_from_them_too(arrays):
    modules = {"mlp_wide": model_group("mlp2", 4, SHAPE)["mlp_wide"]}
    alone = fl.make_federation(modules, SHAPE, 4, num_clients=4)
    weighted = fl.with_weights(alone, {"mlp_wide": arrays["mlp_wide"]}, head=True)
    state, _ = first_state(fl.fedavg(TRAINING), weighted)
    assert values(state.server) == {2}
    both = fl.with_weights(federation_of(), arrays, head=True)
    state, clients = first_state(fl.fml(TRAINING), both)
    # the smaller one
    assert values(state.server) == {1} and values(clients["mlp_wide"]["shared"]) == {1}
    wide = federation_of(shared=model_group("mlp2", 4, SHAPE)["mlp_wide"])
    for weights in (arrays, {"shared": arrays["mlp_wide"]}, {"mlp_wide": arrays["mlp_wide"]}):
        state, clients = first_state(fl.fml(TRAINING), fl.with_weights(wide, weights, head=True))
        assert values(state.server) == {2} == values(clients["mlp_narrow"]["shared"])
    state, _ = first_state(fl.fedgh(TRAINING), both)
    assert values(state.server) == {1}  # as client 0 starts


def test_weights_are_arguments_and_name_no_program(arrays):
    first = fl.with_weights(federation_of(), arrays, head=False)
    thrice = {k: {n: 3 * x for n, x in v.items()} for k, v in arrays.items()}
    other = fl.with_weights(federation_of(), thrice, head=False)
    assert first == other == federation_of() and hash(first) == hash(other) == hash(federation_of())
    bucket, mesh = first.buckets[0], client_mesh(1)
    run = first_states(fl.local(TRAINING), first, bucket, mesh)
    ids, seed = np.zeros(1, np.int32), np.uint32(0)
    assert values(run(ids, seed, (), weights_of(bucket))["params"]["base"]) == {1}
    assert values(run(ids, seed, (), weights_of(other.buckets[0]))["params"]["base"]) == {3}
    assert run._cache_size() == 1
    make = first_server(fl.fml(TRAINING), first)
    assert values(make(seed, (), all_weights(first))["base"]) == {1}
    assert values(make(seed, (), all_weights(other))["base"]) == {3}


def test_wrong_weights_are_one_line(arrays, tmp_path):
    wide = tmp_path / "wide.safetensors"
    save_safetensors(wide, arrays["mlp_wide"])
    for weights, message in (
        ({"mlp_narrow": wide}, rf"^{wide}: these do not fit mlp_narrow: .*has shape"),
        (wide, r"these do not fit mlp_narrow: "),
        ({"mlp": wide}, r"^weights: unknown architecture 'mlp'.*mlp_narrow"),
        ({"mlp_wide": {"a": np.ones(2)}}, r"^the weights of mlp_wide: these do not fit mlp_wide"),
        ({"mlp_wide": in_torch(arrays["mlp_wide"])}, "convert .* with fl.weights_from_torch"),
    ):
        with refused(message):
            fl.with_weights(federation_of(), weights)
    path, wide_arrays = "params/head/kernel", arrays["mlp_wide"]
    with refused("do not fit mlp_wide: an array of the head is complex64; weights are real"):
        changed = wide_arrays | {path: wide_arrays[path].astype(np.complex64)}
        fl.with_weights(federation_of(), {"mlp_wide": changed}, head=True)
    with pytest.raises(FileNotFoundError, match=r"no weights at .*none\.pth"):
        fl.with_weights(federation_of(), {"mlp_wide": tmp_path / "none.pth"})
    network = fl.sliced_network("conv4_quarter", 4, (16, 16, 1))
    sliced = fl.make_sliced_federation(network, [1.0], (16, 16, 1), 4)
    with pytest.raises(ValueError, match="slices of one network take no weights"):
        fl.with_weights(sliced, {})


def test_fields_are_checked(config):
    sliced = {"weights": "x.pth", "group": "conv4", "norm": "group", "rates": "1"}
    for changes, message in (
        ({"weights": 3}, r"^model\.weights is 3; it must be a string or a dict, name -> a string$"),
        ({"weights": {"mlp_wide": 3}}, r"^model\.weights is .*; it must be a string or a dict"),
        (sliced, r"^model\.weights is 'x\.pth'; with model\.rates it must be ''"),
    ):
        with pytest.raises(ValueError, match=message):
            plan(with_model(config, **changes))


def test_an_exported_client_is_where_another_run_starts(config, finished, tmp_path):
    run = load_run(finished)
    bucket, trained = run.run.federation.buckets[1], client_state(run, 1)
    with pytest.raises(ValueError, match="no client 4; ids run from 0 to 3"):
        client_state(run, 4)
    before = run.simulation.evaluate(run.state).accuracy["test"]["head"][1]
    for suffix in ("npz", "safetensors"):
        file = tmp_path / f"client.{suffix}"
        export(trained, file, bucket)
        assert load_state_dict(file).keys() >= {"params/base/fc1/kernel", "params/head/bias"}
        later = with_model(config, weights={bucket.name: str(file)}, weights_head=True)
        simulation = simulate(plan(later).runs["local"])
        state = simulation.init()
        began = simulation.read_clients(state, bucket.name, np.array([0, 1]))
        for row in (0, 1):
            check_equal(jax.tree.map(lambda x, i=row: x[i], began["params"]), trained["params"])
        assert simulation.evaluate(state).accuracy["test"]["head"][1] == before


def test_an_exported_head_starts_on_its_classes_alone(tmp_path):
    federation, file = federation_of(), tmp_path / "client.safetensors"
    variables = fl.init_variables(federation.buckets[0], jax.random.key(0))
    export(variables, file, federation.buckets[0], ("a", "b", "c", "d"))
    weights = {federation.buckets[0].name: str(file)}
    fl.with_weights(federation, weights, head=True, class_names=("a", "b", "c", "d"))
    fl.with_weights(federation, weights, head=False, class_names=("b", "a", "c", "d"))
    message = r"head are a, b, c, d, the data's classes b, a, c, d; put"
    with pytest.raises(ValueError, match=message):
        fl.with_weights(federation, weights, head=True, class_names=("b", "a", "c", "d"))


def test_an_exported_head_of_pixels_starts_on_its_classes_alone(tmp_path):
    file, names = tmp_path / "client.safetensors", ("ground", "road", "tree")
    models = {"unet": fl.models.unet(3, 2, 2)}
    federation = fl.make_federation(models, SHAPE, 6 * 6 * 3, num_clients=1)
    variables = fl.init_variables(federation.buckets[0], jax.random.key(0))
    export(variables, file, federation.buckets[0], names)
    fl.with_weights(federation, file, head=True, class_names=names)
    with pytest.raises(ValueError, match="head are ground, road, tree, the data's classes tree"):
        fl.with_weights(federation, file, head=True, class_names=names[::-1])


def test_an_export_has_adapters_in_the_kernels_under_them(tmp_path):
    """A .safetensors holds a model that computes the same without adapters, and is taken back."""
    module, file = fl.models.lora(fl.mlp(4, (3, 2)), 2), tmp_path / "client.safetensors"
    bucket = fl.make_federation({"mlp_r2": module}, SHAPE, 4, num_clients=1).buckets[0]
    bucket, rng = with_frozen(bucket), np.random.default_rng(0)
    form = jax.eval_shape(lambda key: fl.init_variables(bucket, key), jax.random.key(0))["params"]
    params = jax.tree.map(lambda x: np.asarray(rng.normal(size=x.shape), np.float32), form)
    export({"params": params, "stats": {}}, file, bucket)
    merged = load_state_dict(file).items()
    merged = unflatten_dict({tuple(path.split("/")): x for path, x in merged})
    x = np.ones((2, *SHAPE), np.float32)
    variables = {"params": params, "frozen": bucket.weights["frozen"]}
    expected = module.apply(variables, x)
    np.testing.assert_allclose(fl.mlp(4, (3, 2)).apply(merged, x), expected, rtol=1e-5, atol=1e-5)
    export({"params": params, "stats": {}}, tmp_path / "client.npz", bucket)
    assert load_state_dict(tmp_path / "client.npz").keys() >= {"params/base/fc1/lora_a"}


def test_other_exports_are_refused():
    with pytest.raises(ValueError, match=r"^export is 'x\.pth'; it must end in \.npz"):
        check_export("x.pth")


def test_a_file_may_lie_at_home(arrays, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save_safetensors(tmp_path / "wide.safetensors", arrays["mlp_wide"])
    weights = {"mlp_wide": "~/wide.safetensors"}
    fl.with_weights(federation_of(), weights, head=True)
    assert set(checksums([weights])) == {"~/wide.safetensors"} and not missing(weights)


def test_a_generators_file_is_noted(tmp_path):
    (tmp_path / "mine.npz").write_bytes(b"")
    config = fl.base_config()
    config.entries = (f"fedktl:generator={tmp_path / 'mine.npz'}", "fedktl:generator=natural_32")
    assert list(checksums(files_read(config))) == [str(tmp_path / "mine.npz")]


def test_a_run_keeps_to_its_folders_model(config, tmp_path):
    """The activation and pooling of a folder of Hugging Face change no shape of its weights."""
    arrays = made_up("vit")
    arrays["embeddings.position_embeddings"] = np.zeros((1, 10, 8), np.float32)
    patches = "embeddings.patch_embeddings.projection.weight"
    arrays[patches] = arrays[patches][:, :1]
    write = functools.partial(write_folder, tmp_path / "vit", "vit", arrays, image_size=6)
    group = write(num_channels=1)
    started = with_model(config, group=group)

    def start():
        experiment = plan(started)
        begin(experiment, tmp_path / "run", noted(experiment), writes=True)

    start()
    start()
    assert group in read_folder(tmp_path / "run").notes["weights"]
    write(num_channels=1, hidden_act="relu")
    with refused(rf"another config \(files\.{group} \w{{12}} instead of \w{{12}}\); restore"):
        start()
    write(num_channels=1)
    start()
    read_run(tmp_path / "run")
    before = sum_of_model(group)
    (tmp_path / "vit" / "1_Pooling").mkdir()
    (tmp_path / "vit" / "1_Pooling" / "config.json").write_text("{}")
    assert sum_of_model(group) != before


def test_a_run_goes_on_without_its_weights_but_not_with_others(
    config, tmp_path, arrays, no_results
):
    file, workdir = tmp_path / "wide.safetensors", tmp_path / "run"
    save_safetensors(file, arrays["mlp_wide"])
    weighted = with_model(config, weights={"mlp_wide": str(file)})
    whole = copy.deepcopy(weighted)
    whole.rounds = 2
    train_and_evaluate(whole, tmp_path / "whole")
    train_and_evaluate(weighted, workdir)
    assert set(read_folder(workdir).notes["weights"]) == {str(file)}
    save_safetensors(file, {name: 2 * x for name, x in arrays["mlp_wide"].items()})
    message = (
        rf"another config \(files\.{file} \w{{12}} instead of \w{{12}}\); restore the original"
    )
    with pytest.raises(ValueError, match=message):
        train_and_evaluate(weighted, workdir)
    file.unlink()
    weighted.rounds = 2
    train_and_evaluate(weighted, workdir)
    assert metrics(workdir, "local") == metrics(tmp_path / "whole", "local")
    assert load_run(workdir).state.round == 2
    # still, and it is held against what comes
    assert set(read_folder(workdir).notes["weights"]) == {str(file)}
    save_safetensors(file, {name: 2 * x for name, x in arrays["mlp_wide"].items()})
    with pytest.raises(ValueError, match=message):
        train_and_evaluate(weighted, workdir)
    file.unlink()
    weighted.entries = ("fedproto",)  # begins now
    line = rf"^no weights at {file}, which fedproto starts from at round 0"
    with pytest.raises(ValueError, match=line):
        train_and_evaluate(weighted, workdir)
