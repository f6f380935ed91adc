"""Hints which prefix reads a file or folder that a user names without one."""

from pathlib import Path

from fedjax_ht.lab.safe.archive import user_path

_PREFIXES = {"npz": "npz", "csv": "csv", "tsv": "csv", "parquet": "parquet"}
_ARRAYS = "write it with numpy.savez_compressed(path, inputs=..., labels=...), for npz:PATH"
_TABLE = "write it as a table, for csv:PATH, with to_csv(path, index=False)"
_OTHERS = {
    "npy": _ARRAYS,
    "h5": _ARRAYS,
    "hdf5": _ARRAYS,
    "pt": _ARRAYS,
    "arrow": f"{_TABLE} of the Dataset of Hugging Face",
    "xlsx": f"{_TABLE} of pandas.read_excel(path)",
    "json": f"{_TABLE} of pandas.read_json(path)",
}
"""Endings of files that no prefix reads, and what to do with them."""


def prefix_hint(name: str, data_dir: Path | None) -> str:
    """Says which prefix reads a path, or how else to name it; "" for a name that is no path.

    Args:
      name: the name of a set, as the user wrote it.
      data_dir: the folder of the sets.

    Examples:
      >>> prefix_hint("data/digits.npz", None)
      "did you mean 'npz:data/digits.npz'?"
    """
    if not name or ":" in name:
        return ""
    path = user_path(name, data_dir)
    ending = _ending(path)
    if ending in _PREFIXES:
        return f"did you mean {f'{_PREFIXES[ending]}:{name}'!r}?"
    if path.is_dir():
        return _folder_hint(name, path)
    return f"no prefix reads .{ending}: {_OTHERS[ending]}." if ending in _OTHERS else ""


def _folder_hint(name: str, folder: Path) -> str:
    names = {path.name for path in folder.iterdir()}
    if names & {"dataset_dict.json", "dataset_info.json"}:
        return f"did you mean {f'hf:{name}'!r}?"
    endings = {_ending(path) for path in folder.iterdir()}
    for ending in sorted(endings & set(_OTHERS) - {"json"}):
        return f"no prefix reads the .{ending} files in it: {_OTHERS[ending]}."
    prefix = "folder"
    if (folder / "train" / "0.npz").exists():
        prefix = "client_folders"
    elif any((folder / "train").glob("*.json")):
        prefix = "leaf"
    elif endings & {"csv", "tsv"}:
        prefix = "csv"
    return f"did you mean {f'{prefix}:{name}'!r}?"


def _ending(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    return name.rpartition(".")[2] if "." in name else ""
