"""Measurements in slices: lists of items whose results outlive crashes, failures and a clock.

A slice's results are one JSON file, written anew after every item. A process of its own works the
items off; who started it goes on with the next item where that process dies, and whoever starts the
slice again goes on with those that are missing.
"""

import faulthandler
import importlib
import json
import math
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_ht.lab.files import atomic_open

GRACE = 60.0  # seconds that an item may take beyond the budget


class Item(NamedTuple):
    """One measurement.

    Attributes:
      name: its own within the slice.
      run: "module:function", or a function, of `arguments`; it returns JSON values. What is under
        "wrong" there says in which way a check failed.
      arguments: by name.
      process: items of one name, in a row, share a process; peak memory never falls in one, and an
        import that defines a flag may not meet another.
    """

    name: str
    run: str | Callable[..., dict]
    arguments: dict[str, Any]
    process: str = ""


class Slice(NamedTuple):
    """A list of items that one call works off.

    Attributes:
      title, text: of the page, what is measured.
      items: by value, so that those are left which are missed least.
      rehearsal: the same in a small form.
      page: "module:function", or a function, of ({name: result}) -> Markdown, of items that have
        one.
      precision: of float32 products.
      environment: variables of its processes.
    """

    title: str
    text: str
    items: Sequence[Item]
    rehearsal: Sequence[Item]
    page: str | Callable[[dict[str, dict]], str]
    precision: str = "float32"
    environment: dict[str, str] = {}  # noqa: RUF012


def resolve(function: str | Callable) -> Callable:
    """Returns the function that "module:function" names."""
    if callable(function):
        return function
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def read(path: Path) -> dict:
    """Returns a slice's results so far."""
    return json.loads(path.read_text()) if path.exists() else {"machines": [], "items": {}}


def write(path: Path, log: dict) -> None:
    with atomic_open(path) as file:
        json.dump(plain(log), file, indent=1, allow_nan=False)
        file.write("\n")


def plain(value: Any) -> Any:
    """Returns JSON values: numbers that are not finite become None, NumPy's become Python's."""
    if isinstance(value, dict):
        return {str(key): plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def missing(log: dict, items: Iterable[Item]) -> list[Item]:
    return [item for item in items if item.name not in log["items"]]


def failures(log: dict) -> dict[str, str]:
    """Returns failed item -> reason: it raised, or a check failed."""
    reasons = {}
    for name, entry in log["items"].items():
        reason = entry.get("error") or entry.get("result", {}).get("wrong")
        if reason:
            reasons[name] = reason
    return reasons


def outcome(item: Item) -> dict:
    """Runs an item and returns its entry."""
    start = time.perf_counter()
    try:
        entry = {"result": resolve(item.run)(**item.arguments)}
        json.dumps(plain(entry))  # a result that is no JSON is this item's mistake
    except Exception as error:
        traceback.print_exc()
        entry = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]}
    return {"seconds": round(time.perf_counter() - start, 2)} | entry


def work(
    path: Path,
    items: Sequence[Item],
    machine: dict,
    deadline: float,
    print_line: Callable[[str], None] = print,
) -> None:
    """Runs, in this process, the missing items that share it.

    Args:
      path: of the results, written after every item.
      items: all of the slice.
      machine: what results depend on besides the code.
      deadline: of `time.time`; no item begins after it.
      print_line: prints a line for each item.
    """
    log = read(path)
    todo = missing(log, items)
    if machine not in log["machines"]:
        log["machines"].append(machine)
    for item in todo:
        begun = time.time()
        if begun >= deadline or item.process != todo[0].process:
            break
        log["begun"] = {"item": item.name, "at": begun}
        write(path, log)
        # A watchdog in a thread of its own, which compiling does not hold up.
        faulthandler.dump_traceback_later(deadline + GRACE - begun, exit=True)
        entry = outcome(item)
        faulthandler.cancel_dump_traceback_later()
        log["items"][item.name] = {"machine": log["machines"].index(machine)} | entry
        del log["begun"]
        write(path, log)
        print_line(
            f"{item.name}: {entry['seconds']:.1f} s  "
            f"{entry.get('error') or json.dumps(plain(entry['result']))[:300]}"
        )


def supervise(
    path: Path, items: Sequence[Item], start: Callable[[float], int], budget: float
) -> str | None:
    """Has all missing items run within a budget of seconds; each leaves an entry.

    Args:
      path: of the results.
      items: all of the slice.
      start: (deadline) -> exit code: a process that does `work`.
      budget: after which no item begins.

    Returns:
      None, or the reason why items are missing although there is time.
    """
    began = time.time()
    log = read(path)
    if log.pop("begun", None):  # an earlier call was stopped in the middle of it
        write(path, log)
    while todo := missing(log, items):
        if time.time() - began >= budget:
            return None
        code = start(began + budget)
        log, before = read(path), len(todo)
        if begun := log.pop("begun", None):
            settle(log, begun, code, began, budget)
            write(path, log)
            if begun["item"] not in log["items"]:
                return None
        if len(missing(log, items)) == before and time.time() - began < budget:
            return f"a process ended with code {code} before any item"
    return None


def settle(log: dict, begun: dict, code: int, began: float, budget: float) -> None:
    """Writes the entry of an item in whose middle its process ended.

    None if it began late and the clock stopped it, so that it stays missing.
    """
    allowed = began + budget + GRACE - begun["at"]
    spent = time.time() - begun["at"]
    if spent < allowed - 1:
        why = f"its process ended with code {code}"
    elif allowed > budget / 2:
        why = f"stopped after {spent:.0f} s"
    else:
        return
    log["items"][begun["item"]] = {
        "machine": len(log["machines"]) - 1,
        "seconds": round(spent, 2),
        "error": why,
    }


def section(number: int, part: Slice, log: dict | None) -> str:
    """Returns a slice's part of the report."""
    lines = [f"## {number}. {part.title}", "", part.text, ""]
    if log is None:
        return "\n".join([*lines, "Not run."])
    for machine in log["machines"]:
        lines += [", ".join(f"{key} {value}" for key, value in machine.items() if value) + ".", ""]
    if log.get("rehearsal"):
        lines += ["A rehearsal: these numbers mean nothing.", ""]
    results = {name: entry["result"] for name, entry in log["items"].items() if "result" in entry}
    if results:
        lines += [resolve(part.page)(results), ""]
    lines += [f"* {name}: **{why}**" for name, why in failures(log).items()]
    items = part.rehearsal if log.get("rehearsal") else part.items
    if left := [item.name for item in missing(log, items)]:
        lines.append(f"* left: {', '.join(left)}")
    return "\n".join(lines).rstrip()


def report(folder: Path, slices: dict[int, Slice], title: str) -> str:
    """Returns all slices' results as one page; those without a file are named."""
    parts = []
    for number, part in slices.items():
        path = file_of(folder, number)
        parts.append(section(number, part, read(path) if path.exists() else None))
    return "\n\n".join([f"# {title}", *parts])


def file_of(folder: Path, number: int) -> Path:
    return folder / f"slice_{number}.json"
