"""Reads files that ask for too much, each in a process of its own.

python -m tests.lab.readers.attacks FOLDER [NAME ...] makes them below FOLDER and prints a line of JSON for
each: how it ended, in how many seconds, with how much memory.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

from tests.lab.readers.attack_bombs import HUGE, Attack, bombs
from tests.lab.readers.attack_claims import CLAIMS, pipes
from tests.lab.readers.attack_pickles import pickles

# that an attack may take, the latter above what the process has when it starts
SECONDS, BYTES = 20, 1 << 30


def all_attacks() -> dict[str, Attack]:
    """All attacks by "class: name"."""
    groups = {"bomb": bombs(HUGE), "claim": CLAIMS, "pickle": dict(pickles()), "pipe": pipes()}
    attacks = {}
    for group, members in groups.items():
        for name, attack in members.items():
            attacks[f"{group}: {name}"] = attack
    return attacks


def read(folder: Path, kind: str, argument: str) -> None:
    """Reads a "dataset" of this name in a folder, or a file of "weights" or of a "generator"."""
    from fedjax_ht.lab.generators import open_generator
    from fedjax_ht.lab.readers import load_dataset
    from fedjax_ht.lab.safe.torch_files import load_state_dict

    if kind == "dataset":
        load_dataset(argument, folder)
    else:
        {"weights": load_state_dict, "generator": open_generator}[kind](argument)


def attacked(attack: Attack, folder: Path) -> dict:
    """Reads the files of an attack in a child that has only so much memory and time.

    Returns:
      "end" and "line": "read", "refused" with the line, or another error or a signal; "seconds";
      "busy" and "mib", the child's time on a processor and its most memory above what it starts
      with, which holds all these files.
    """
    folder.mkdir(parents=True)
    how, result = attack(folder), folder / "result.json"
    start, child = time.monotonic(), os.fork()
    if not child:
        try:
            result.write_text(json.dumps(_limited_read(folder, how)))
        finally:
            os._exit(0)
    _, status, used = os.wait4(child, 0)
    outcome = {"end": f"signal {status & 127}", "line": "", "kib": 0}
    if result.exists():
        outcome = json.loads(result.read_text())
    outcome["seconds"] = round(time.monotonic() - start, 2)
    outcome["busy"] = round(used.ru_utime + used.ru_stime, 2)
    outcome["mib"] = (used.ru_maxrss - outcome.pop("kib")) >> 10
    return outcome


def _limited_read(folder: Path, how: tuple[str, str]) -> dict:
    """Limits this process and reads; returns "end", "line", and the KiB that it began with."""
    page = resource.getpagesize()
    pages, resident = map(int, Path("/proc/self/statm").read_text().split()[:2])
    resource.setrlimit(resource.RLIMIT_AS, (pages * page + BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS,) * 2)
    signal.alarm(5 * SECONDS)  # for one that waits, on a machine that may be busy
    end, line = "read", ""
    try:
        read(folder, *how)
    except (ValueError, FileNotFoundError) as error:
        end, line = "refused", str(error)
    except BaseException as error:
        end, line = type(error).__name__, str(error)[:1000]
    return {"end": end, "line": line, "kib": resident * page >> 10}


def main() -> None:
    folder, prefixes = Path(sys.argv[1]), tuple(sys.argv[2:])
    with contextlib.suppress(FileNotFoundError):
        read(folder, "dataset", "npz:none")  # imports, once for all children
    for number, (name, attack) in enumerate(all_attacks().items()):
        if not prefixes or name.startswith(prefixes):
            outcome = attacked(attack, folder / str(number))
            print(json.dumps({"attack": name} | outcome), flush=True)


if __name__ == "__main__":
    main()
