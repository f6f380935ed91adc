import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.trees import join_trees, take

TREE = {"a": np.arange(6).reshape(2, 3), "b": (jnp.array([1.0, 2.0]), None)}


def test_take_has_the_index_of_every_array():
    assert take(TREE, 1)["a"].tolist() == [3, 4, 5] and take(TREE, 1)["b"][0] == 2.0
    kept = take(TREE, np.array([False, True]))
    assert kept["a"].tolist() == [[3, 4, 5]] and kept["b"][0].tolist() == [2.0]
    assert take({"a": TREE["a"]}, (0, 2)) == {"a": 2} and take(TREE, 0)["b"][1] is None


def test_trees_are_joined_array_by_array():
    joined = join_trees(np.concatenate, [{"a": TREE["a"]}, {"a": TREE["a"][:1]}])
    assert joined["a"].tolist() == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    stacked = join_trees(jnp.stack, (TREE["b"], TREE["b"]))
    assert stacked[0].shape == (2, 2) and stacked[1] is None
