"""Headers: which entries of the other side's header are accepted."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_ht.deploy.client import read_request
from fedjax_ht.deploy.messages import (
    HEADER_BYTES,
    INTEGER_DIGITS,
    LINE_LENGTH,
    Expected,
    admitted_metrics,
    invalid_entry,
    invalid_hello,
    parse_header,
    printable,
)
from fedjax_ht.deploy.plan import make_plan
from fedjax_ht.deploy.server import Transport, all_headers, contact_clients
from tests.deploy.sites import small_config

INF, NAN, HUGE = float("inf"), float("nan"), 10**400
KNOWN = Expected(None, ("head",), ("loss",), {"train": 3, "val": 0, "test": 3})
TEST = {"test": {"correct": {"head": 2}, "count": 3}}
ALL = {split: {"correct": {"head": 0}, "count": 0} for split in ("train", "val")} | TEST
TASK = {"shape": [28, 28, 1], "dtype": "float32", "num_classes": 10, "vocabulary": None}
COUNTS = {"train": 3, "val": 0, "test": 2}
MEANING = {"classes": "0" * 64, "columns": None, "tokens": "f" * 64}
HELLO = {"client": 0, "counts": COUNTS, "flops": 1e3, "task": TASK, "meaning": MEANING}
GOOD = {
    "hello": HELLO,
    "train": {"finite": True, "metrics": {"loss": NAN}, "scores": TEST, "seconds": 0.1},
    "evaluate": {"scores": ALL},
}


def task(**changes):
    return TASK | changes


def scores(right, count=3):
    return {"test": {"correct": {"head": right}, "count": count}}


BAD = [
    ("hello", "client", [-1, "0", True, None, 2**31, HUGE, [0]]),
    ("hello", "counts", [{}, {"train": 1}, COUNTS | {"test": -2}, COUNTS | {"train": 1.5}]),
    ("hello", "counts", [COUNTS | {"train": HUGE}]),
    ("hello", "flops", [-1, "much", NAN, INF, HUGE]),
    ("hello", "task", [None, "images", {}, task(shape=[HUGE]), task(shape=[2**20, 2**20])]),
    ("hello", "task", [task(shape=[1] * 9), task(shape=[0]), task(shape="28"), task(more=1)]),
    ("hello", "task", [task(dtype="object"), task(dtype=["float32"]), task(num_classes=2**30)]),
    ("hello", "meaning", [None, {}, MEANING | {"classes": None}, MEANING | {"more": None}]),
    ("hello", "meaning", [MEANING | {"tokens": x} for x in (1, "f" * 63, "F" * 64, ["f"] * 64)]),
    ("train", "finite", [1, None]),
    ("train", "metrics", [None, [1], *({"loss": x} for x in ("0", HUGE, 1e39, -1e39, True))]),
    ("train", "scores", [scores(4, 4), scores(4), scores(1.5), {}, ALL]),
    ("train", "scores", [{"test": {"correct": {}, "count": 3}}]),
    ("train", "seconds", [-1, None, INF, HUGE]),
    ("train", "warning", [None, 3]),
    ("evaluate", "scores", [TEST, None, ALL | {"test": 3}]),
    ("evaluate", "scores", [ALL | {"val": {"correct": {"head": 1}, "count": 1}}]),
]
REQUEST = {"run": "a1", "round": 3, "last_round": 2, "oldest": 1}


def invalid(header, kind, **changes) -> str:
    """Names the first invalid entry of a header of any kind."""
    if kind == "hello":
        return invalid_hello(header)
    return invalid_entry(header, kind, KNOWN._replace(**changes))


@pytest.mark.parametrize("kind", GOOD)
def test_valid_headers_of_a_client_are_believed(kind):
    assert invalid(GOOD[kind] | {"more": 1}, kind) == ""


@pytest.mark.parametrize("value", [NAN, INF, -INF, 3.4e38, -1, 10**18])
def test_a_metric_is_any_number_of_float32(value):
    """Infinite for a client that diverges."""
    assert invalid(GOOD["train"] | {"metrics": {"loss": value}}, "train") == ""


def test_metrics_are_those_of_the_method_and_others_are_refused():
    """Names become columns of the server's files, and entries of its rows."""
    hostile = ["accuracy", "clients", "round", "", "a\nb", '=HYPERLINK("http://x")', "x" * 10**5]
    hostile += [f"m{i}" for i in range(900)]
    metrics = dict.fromkeys(hostile, 99) | {"loss": 1}
    assert admitted_metrics(metrics, ["loss"]) == ({"loss": 1.0}, hostile)
    admitted, refused = admitted_metrics({"trial": 5}, ["loss", "margin"])
    assert list(admitted) == ["loss", "margin"] and refused == ["trial"]
    assert all(map(math.isnan, admitted.values()))


@pytest.mark.parametrize(("kind", "name", "values"), BAD, ids=map(str, range(len(BAD))))
def test_missing_and_invalid_fields_of_a_header_are_named(kind, name, values):
    if name != "warning":
        assert invalid({k: v for k, v in GOOD[kind].items() if k != name}, kind) == name
    for value in values:
        assert invalid(GOOD[kind] | {name: value}, kind) == name


def test_with_noise_it_says_epsilon_and_less():
    header = GOOD["train"] | {"epsilon": 3.0}
    assert invalid(header, "train", unit="sample") == ""
    assert invalid(GOOD["train"], "train", unit="sample") == "epsilon"
    for epsilon in (NAN, INF, HUGE, -1, "8"):
        assert invalid(header | {"epsilon": epsilon}, "train", unit="sample") == "epsilon"
    hidden = {"finite": True, "metrics": {}, "scores": {}, "epsilon": 3.0}
    by_upload = {"unit": "upload", "metrics": ()}
    assert invalid(hidden, "train", **by_upload) == ""
    assert invalid({"scores": {}}, "evaluate", **by_upload) == ""
    assert invalid(hidden | {"scores": TEST}, "train", **by_upload) == "scores"


@pytest.mark.parametrize("what", ["classes", "columns", "tokens"])
def test_a_client_whose_numbers_mean_something_else_is_refused(tmp_path, what):
    plan = make_plan(small_config())
    headers = {i: HELLO | {"client": i} for i in range(plan.num_clients)}
    transport = Transport(lambda hello, min_clients: headers, None, None)
    headers[1] |= {"meaning": MEANING | {"columns": "a" * 64}}  # client 0's columns have no names
    assert all_headers(plan, transport, tmp_path) == headers
    headers[2] |= {"meaning": headers[1]["meaning"] | {what: "b" * 64}}
    first = 0 if headers[0]["meaning"][what] else 1
    for folder in (tmp_path, tmp_path / "new"):  # the first has the headers of another start
        folder.mkdir(exist_ok=True)
        message = f"client 2 has other names of {what} than client {first}"
        with pytest.raises(ValueError, match=message):
            all_headers(plan, transport, folder)


def test_clients_with_unreadable_headers_are_left_out():
    lines, plan = [], make_plan(small_config())
    headers = {0: GOOD["hello"], 1: GOOD["hello"] | {"flops": None}, 7: GOOD["hello"]}
    transport = Transport(lambda hello, min_clients: headers, None, None, lines.append)
    assert contact_clients(plan, transport, 0) == {0: GOOD["hello"]}
    assert lines == [
        "client 1 is left out: 'flops' in its header is missing or invalid",
        "client 7 is left out: the config has clients 0 to 3",
    ]
    lines.clear()
    headers.pop(1), headers.pop(7)
    assert contact_clients(plan, transport._replace(most_samples=2), 0) == {}
    (line,) = lines
    assert line.startswith("client 0 is left out: it reports 3 samples to train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 60_000, "maximum recursion depth"),
        ("[" * 100_000, f"it has 100000 bytes; at most {HEADER_BYTES} are allowed"),
        (json.dumps({"metrics": {"loss": HUGE}}), "an integer of 401 digits"),
        ("[1]", "it is list; it must be an object"),
        (b"\xff", "not a header: "),
        (None, "not NoneType"),
        ("{", "not a header: Expecting"),
    ],
    ids=range(7),
)
def test_a_header_that_is_none_is_one_line(text, message):
    with pytest.raises(ValueError, match=r"^not a header: ") as error:
        parse_header(text)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert len(str(error.value)) < 2 * LINE_LENGTH


def test_a_whole_number_of_64_bits_is_read():
    assert parse_header(f'{{"a": {2**63 - 1}, "b": -{2**63}}}') == {"a": 2**63 - 1, "b": -(2**63)}
    assert len(str(2**63)) == INTEGER_DIGITS


def test_text_of_the_other_side_is_part_of_one_line():
    forged = "lost\nround 7: \x1b[2Jall is well\r\u2028\x00 ok"
    read = parse_header(json.dumps({"error": forged}))["error"]
    assert read == r"lost round 7: \x1b[2Jall is well \x00 ok"
    assert printable("é 数 ok") == "é 数 ok" and printable("\u202egnp") == r"\u202egnp"
    assert len(printable("x" * 10**6)) == LINE_LENGTH + 3
    assert len(printable("\0" * 10**6)) == LINE_LENGTH + 3
    assert parse_header('{"error": ["a"]}')["error"] == "['a']"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"oldest": 10**9}, "deleting states before round 1000000000, but the last round"),
        ({"oldest": -1}, "deleting states before round -1, but"),
        ({"oldest": None}, "deleting states before round None, but"),
        ({"round": -1}, "asks for round -1; rounds are integers"),
        ({"round": 2.0}, "asks for round 2.0;"),
        ({"round": HUGE}, "asks for round 1000"),
        ({"last_round": 3}, "round 3, but the last round is 3"),
        ({"last_round": -2}, "but the last round is -2"),
        ({"last_round": True}, "but the last round is True"),
        ({"run": "../x"}, "run is named '../x'; a name has"),
        ({"run": "a" * 65}, "run is named 'aaaa"),
        ({"run": None}, "run is named None"),
    ],
    ids=range(12),
)
def test_a_client_refuses_what_no_server_asks_for(change, message):
    assert read_request(REQUEST) == ("a1", 3, 2, 1)
    assert read_request(REQUEST | {"round": 0, "last_round": -1, "oldest": 0}).round == 0
    with pytest.raises(ValueError, match=message) as error:
        read_request(REQUEST | change)
    assert "\n" not in str(error.value) and len(str(error.value)) < 2 * LINE_LENGTH


def nested(inner):
    return st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)


SINGLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(SINGLE | st.just(HUGE), nested, max_leaves=12)
NAMES = st.sampled_from(sorted({"epsilon", "warning"}.union(*GOOD.values())))


def fuzzed(kind, unit, changes):
    """Checks that any header gives the name of an entry, or can be computed with."""
    header = GOOD[kind] | changes
    name = invalid(header, kind, unit=unit)
    assert name in {"", *GOOD[kind], "epsilon", "warning"}
    if not name and kind == "train":
        admitted, _ = admitted_metrics(header["metrics"], KNOWN.metrics)
        assert list(admitted) == ["loss"] and isinstance(admitted["loss"], float)
        assert unit not in ("upload", "sample") or 0 <= float(header["epsilon"]) < INF


def fuzzed_text(text):
    try:
        assert isinstance(parse_header(text), dict)
    except ValueError as error:
        assert str(error).isprintable() and len(str(error)) < 2 * LINE_LENGTH


def fuzzed_ask(changes):
    try:
        request = read_request(REQUEST | changes)
    except ValueError as error:
        assert str(error).isprintable() and len(str(error)) < 2 * LINE_LENGTH
    else:
        assert 0 <= request.oldest <= request.last_round + 1 <= request.round < 2**31
        assert request.run.isalnum()


UNITS = st.sampled_from([None, "client", "sample", "upload"])
TEXTS = st.text(max_size=200) | st.binary(max_size=200) | VALUES.map(json.dumps)
FUZZ = {
    "headers": (fuzzed, st.sampled_from(sorted(GOOD)), UNITS, st.dictionaries(NAMES, VALUES)),
    "texts": (fuzzed_text, TEXTS),
    "asks": (fuzzed_ask, st.dictionaries(st.sampled_from(sorted(REQUEST)), VALUES)),
}


@pytest.mark.parametrize("examples", [100, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FUZZ)
def test_headers_of_any_kind(name, examples):
    test, *strategies = FUZZ[name]
    settings(max_examples=examples, deadline=None)(given(*strategies)(test))()
