import pytest

from fedjax_ht.data.partition import PARTITIONS, PLANS, check_partition, make_partition
from tests.lab.readers.toy_dataset import make_dataset


@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("dirichelt", {}, "unknown partition 'dirichelt'; did you mean 'dirichlet'. The"),
        ("practical", {"beta": 1}, "'practical' has no option 'beta'; it has alpha, min_samples"),
        ("given", {"alpha": 1}, "'given' has no option 'alpha'; it has none"),
        (
            "dfrd",
            {"train_share": 0.1},
            "has no option 'train_share'; .* It has alpha, min_samples, max_tries, val_share$",
        ),
        ("dfrd", {"val_share": 1.0}, "val_share is 1.0; it must be a number of at least 0 and"),
        ("practical", {"alpha": 0}, "alpha is 0; it must be a number above 0"),
        ("dirichlet", {"alpha": float("nan")}, "alpha is nan"),
        ("dirichlet", {"alpha": "0.1"}, "alpha is '0.1'; it must be a number"),
        ("dirichlet", {"min_samples": None}, "min_samples is None; it must be an integer of at"),
        ("practical", {"max_tries": 0}, "max_tries is 0"),
        ("pathological", {"classes_per_client": 11}, "classes_per_client is 11; it must be at"),
        ("pathological", {"classes_per_client": 0}, "classes_per_client is 0; it must be an"),
        ("class_shares", {"classes_per_client": 3}, "is 12; it must be a multiple of the 10"),
        ("class_shares", {"classes_per_client": 5, "val_size": -1}, "val_size is -1"),
        ("class_shares", {"classes_per_client": 5, "sets": "all"}, "sets is 'all'"),
        (
            "class_shares",
            {"classes_per_client": 5, "val_share": 0.3},
            "train_share \\+ val_share is 1.1",
        ),
        ("iid", {"val_share": 1.0}, "val_share is 1.0; it must be a number of at least 0 and"),
        ("iid", {"val_share": -0.1}, "val_share is -0.1"),
        ("iid", {"val_share": 0.3}, r"train_share \+ val_share is 1.05; it must be at most 1"),
        ("iid", {"train_share": 0.0}, "train_share is 0.0; it must be a number above 0 and at"),
        ("iid", {"sets": "official", "train_share": 0.8}, "set val_share only"),
        ("iid", {"sets": "both"}, "sets is 'both'; it must be 'merged' or 'official'"),
        ("iid", {"stratified": "no"}, "stratified is 'no'; it must be True or False"),
        ("few_shot", {"shots": 0}, "shots is 0"),
        ("few_shot", {"test_shots": 0}, "test_shots is 0; it must be an integer of at least 1"),
    ],
)
def test_check_names_the_bad_setting(kind, options, message):
    with pytest.raises(ValueError, match=message) as error:
        check_partition(kind, 4, 10, **options)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=message):
        make_partition(kind, make_dataset([20] * 10), 4, **options)


@pytest.mark.parametrize("num_clients", [0, -1, 2.0])
def test_check_number_of_clients(num_clients):
    with pytest.raises(
        ValueError, match=f"num_clients is {num_clients}; it must be an integer of at least 1"
    ):
        check_partition("iid", num_clients, 10)


def test_check_accepts_defaults():
    for kind in (*PLANS, *PARTITIONS):
        check_partition(kind, 20, 10)
    # the number of classes is not known yet
    check_partition("pathological", 20, None, classes_per_client=500)
    check_partition("iid", 20, 10, sets="official", val_share=0.9)
    check_partition("iid", 20, 10, train_share=0.9, val_share=0.1)


@pytest.mark.parametrize(
    "kind, num_clients, options, message",
    [
        ("iid", 2, {"sets": "official"}, "toy has no official train set"),
        ("dfrd", 2, {}, "toy has no official train set"),
        ("class_shares", 2, {}, "toy has no official train set"),
        ("given", 2, {}, "toy came without a split into clients; choose one of pathological"),
        ("few_shot", 3, {"shots": 4}, "class 0 has 10 samples, but 4 shots for 3 clients are 12"),
        ("few_shot", 3, {"shots": 2, "test_shots": 2}, "class 0 has 10 samples, but 2 shots and"),
        ("pathological", 15, {}, "class 0 has 10 samples, too few for the 15 clients that share"),
        (
            "iid",
            21,
            {},
            "leaves client 0 of 21 without training samples; toy has 20 samples; num_clients=10 works$",
        ),
    ],
)
def test_data_that_does_not_fit(kind, num_clients, options, message):
    with pytest.raises(ValueError, match=message):
        make_partition(kind, make_dataset([10, 10]), num_clients, **options)


def test_validation_larger_than_training_set():
    with pytest.raises(ValueError, match="val_size is 10000; it must be below the 80 training"):
        make_partition("class_shares", make_dataset([60, 60], test_share=1 / 3), 2)


@pytest.mark.parametrize(
    "kind, num_clients, options, remedy",
    [
        ("iid", 3, {"train_share": 1.0}, "train_share=0.75"),
        ("iid", 3, {"train_share": 0.5, "val_share": 0.5}, "val_share=0.25"),
        ("iid", 3, {"train_share": 0.01}, "train_share=0.5"),
        ("iid", 121, {}, "num_clients=60"),
        ("dirichlet", 30, {"alpha": 1.0, "min_samples": 1}, "min_samples=2"),
        ("dirichlet", 20, {"alpha": 1.0}, "min_samples=3"),
        ("practical", 20, {}, "alpha=1.0"),
        ("practical", 30, {}, "alpha=10.0"),
        ("few_shot", 3, {"shots": 14}, "shots=7"),
        ("pathological", 40, {}, "num_clients=10"),
        ("dfrd", 4, {}, None),
    ],
)
def test_a_split_that_cannot_be_made_names_a_setting_that_works(kind, num_clients, options, remedy):
    dataset = make_dataset([40] * 3)
    with pytest.raises(ValueError) as error:
        make_partition(kind, dataset, num_clients, **options)
    line = str(error.value)
    assert "\n" not in line and ("works" in line) == (remedy is not None)
    if remedy is None:
        return
    assert line.endswith(f"; {remedy} works")
    change = eval(f"dict({remedy.replace(' with ', ', ')})")
    partition = make_partition(kind, dataset, **{"num_clients": num_clients} | options | change)
    assert all(len(client.train) for client in partition)
    assert any(len(client.test) for client in partition)


def test_of_a_set_that_no_setting_splits_nothing_is_named():
    with pytest.raises(ValueError, match=r"a test sample; toy has 1 samples$"):
        make_partition("iid", make_dataset([1, 0]), 1, train_share=1.0)


def test_one_sample_of_each_class_is_no_stratified_split():
    with pytest.raises(ValueError, match=r"a test sample; toy has 6 samples; stratified=False wo"):
        make_partition("iid", make_dataset([1] * 6), 1, stratified=True)
