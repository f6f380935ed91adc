"""Hooks of mkdocs: they add what pages link to outside docs/, and the reference.

Pages keep their paths in the repository, so that a link means the same there and in the site.
Whatever a page links to in the repository is part of the site: Markdown and sources as pages,
folders as lists, all else as files.
"""

import ast
import posixpath
import re
from pathlib import Path

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "fedjax_ht"
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)\s#])")
TOGETHER = re.compile(r"^( +)((?:\w+, )+\w+): (.*(?:\n\1 +.*)*)$", re.MULTILINE)
EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
SOURCES = (".py", ".pyi", ".toml", ".yml")
INTERNALS = "docs/reference/internals"
# A page of the reference -> its title, its first sentence, and the modules whose public names it
# has: the first page whose modules include a name's module has the name.
THEMES = {
    "federation": (
        "Federation and messages",
        "Clients, the buckets of one architecture that they form, and what crosses the wire.",
        (
            "core.bucket",
            "core.federation",
            "core.inputs",
            "core.wire",
            "core.codes",
            "core.message_forms",
            "core.aggregation",
            "core.trees",
            "lab.weights",
        ),
    ),
    "data": (
        "Data and partitions",
        "Data sets, how samples are dealt to clients, and what a client sees of them.",
        ("data", "lab.readers", "lab.safe"),
    ),
    "writing": (
        "Writing a method",
        "The contract of a method, local training, and the parts that methods share.",
        (
            "core.method",
            "core.task",
            "core.context",
            "core.samples",
            "core.local_training",
            "core.recipes",
            "core.batches",
            "check.options",
            "methods.shared",
        ),
    ),
    "methods": (
        "Methods",
        "The factories of all methods. Their first argument is the recipe of local training.",
        ("methods",),
    ),
    "running": (
        "Running",
        "Simulations, the loop over rounds, and runs by config.",
        ("simulation", "core.evaluation", "lab.checkpoints", "lab.config", "lab.runs"),
    ),
}
NAMESPACES = {
    "losses": ("Losses", "Losses and margins, as functions of arrays."),
    "models": (
        "Models",
        "Networks cut into a feature extractor and a head, the layers that they are made of, and "
        "the groups that clients take in turn.",
    ),
    "generators": ("Generators", "Frozen image generators for FedKTL."),
    "trust": (
        "Privacy, defences, attacks",
        "What `SimulationOptions` takes as `privacy` and `robust`, and the attacks that clients "
        "may play.",
    ),
}
"""A package that is a public name -> the title and the first sentence of its page, which has the
package's `__all__`."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fills the sections of the navigation that stand for generated pages."""
    themes, internals = [], []
    for page, (title, *_) in (THEMES | NAMESPACES).items():
        themes.append({title: f"docs/reference/{page}.md"})
    for package in packages():
        internals.append({package.name: f"{INTERNALS}/{package.name}.md"})
    made = {"public names": themes, "internals": internals}
    config.nav = [filled(item, made) for item in config.nav]
    return config


def filled(item: str | dict, made: dict[str, list]) -> str | dict:
    """Replaces the values of a navigation entry that name a generated list, at any depth."""
    if isinstance(item, str):
        return item
    ((title, value),) = item.items()
    if isinstance(value, list):
        return {title: [filled(below, made) for below in value]}
    return {title: made.get(value, value)}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Returns docs/ under that name, the reference, and everything that these pages link to."""
    texts, plugin_files = reference(), []
    for file in files:
        if file.src_dir != config.docs_dir:
            plugin_files.append(file)
        elif not file.src_uri.endswith(".py"):
            texts[f"docs/{file.src_uri}"] = text_of(f"docs/{file.src_uri}")
    waiting = list(texts)
    while waiting:
        name = waiting.pop()
        for target in LINK.findall(texts[name] or ""):
            page = linked(name, target)
            if page and page not in texts:
                texts[page] = text_of(page)
                waiting.append(page)
    return Files([*plugin_files, *(as_file(name, text, config) for name, text in texts.items())])


def on_page_markdown(markdown: str, page: Page, **_) -> str:
    """Points links to sources and folders at the pages that show them."""
    name = page.file.src_uri
    start = posixpath.dirname(name)

    def moved(match: re.Match) -> str:
        target = linked(name, match[0]) or posixpath.join(start, match[0])
        return posixpath.relpath(target, start)

    return LINK.sub(moved, markdown)


def linked(page: str, target: str) -> str | None:
    """Returns the path in the site of what a page links to; None if the repository lacks it."""
    name = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    if name.startswith("..") or not (ROOT / name).exists():
        return None
    if (ROOT / name).is_dir():
        return f"{name}/index.md"
    if name.endswith(SOURCES):
        return f"{name}.md"
    return name


def text_of(name: str) -> str | None:
    """Returns the Markdown of a page of the site; None for a file that is no page."""
    path = ROOT / name
    if path.suffix != ".md":
        return None
    if path.exists():
        return path.read_text()
    if path.name == "index.md":
        return folder_page(path.parent)
    source = path.with_suffix("")
    return f"# {source.name}\n\n```{source.suffix[1:]}\n{source.read_text()}```\n"


def folder_page(folder: Path) -> str:
    """Returns the page of a folder: a list of its files."""
    lines = [f"# {folder.relative_to(ROOT)}", ""]
    for path in sorted(folder.iterdir()):
        if path.is_file():
            lines.append(f"* [{path.name}]({path.name})")
    return "\n".join(lines)


def reference() -> dict[str, str]:
    """Returns the pages of the reference: public names by theme, and each package's modules."""
    pages = {}
    public = public_names()
    for page, (title, sentence, _) in THEMES.items():
        blocks = [f"::: {module}.{name}" for name, module, theme in public if theme == page]
        pages[f"docs/reference/{page}.md"] = "\n\n".join(
            [f"# {title}", f"{sentence} All are names of `fedjax_ht`.", *blocks, ""]
        )
    for page, (title, sentence) in NAMESPACES.items():
        blocks = [f"::: {module}.{name}" for name, module, theme in public if theme == page]
        first = f"{sentence} All are names of `fedjax_ht.{page}`."
        pages[f"docs/reference/{page}.md"] = "\n\n".join([f"# {title}", first, *blocks, ""])
    for package in packages():
        title = f"# fedjax_ht.{package.name}"
        blocks = [internal(module, public) for module in modules_of(package)]
        pages[f"{INTERNALS}/{package.name}.md"] = "\n\n".join([title, *blocks, ""])
    return pages


def internal(module: str, public: list[tuple[str, str, str]]) -> str:
    """Returns the entry of a module among the internals, without what the public pages have."""
    shown_elsewhere = [name for name, home, _ in public if home == module]
    if not shown_elsewhere:
        return f"::: {module}"
    left_out = "|".join(shown_elsewhere)
    return f'::: {module}\n    options:\n      filters: ["!^_", "!^({left_out})$"]'


def modules_of(package: Path) -> list[str]:
    """Returns the dotted names of a package's modules."""
    paths = [path for path in sorted(package.rglob("*.py")) if path.name != "__init__.py"]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]


def packages() -> list[Path]:
    """Returns the folders of the library's packages."""
    folders = [path.parent for path in LIBRARY.glob("*/__init__.py") if path.parent.name != "lab"]
    return sorted([*folders, *(path.parent for path in LIBRARY.glob("lab/*/__init__.py"))])


def public_names() -> list[tuple[str, str, str]]:
    """Returns (name, module that defines it, theme) of every public name, those of namespaces
    included.

    Raises:
      ValueError: a public name belongs to no theme.
    """
    names = []
    for module, name in imported(LIBRARY / "__init__.pyi"):
        folder = ROOT / Path(*module.split("."), name)
        if folder.is_dir():  # a package, whose names have a page of their own
            names += names_of(folder)
        elif (home := defining_module(module, name)).split(".")[1] not in NAMESPACES:
            names.append((name, home, theme_of(home, name)))
    return names


def imported(stub: Path) -> list[tuple[str, str]]:
    """Returns (module, name) of all names that a package's stub imports from the package."""
    package = ".".join(stub.parent.relative_to(ROOT).parts)
    nodes = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
    return [
        (f"{package}.{node.module}" if node.module else package, alias.name)
        for node in nodes
        for alias in node.names
    ]


def names_of(package: Path) -> list[tuple[str, str, str]]:
    """Returns (name, module that defines it, namespace) of every public name of a package: of its
    stub, or else of its `__all__`."""
    stub = package / "__init__.pyi"
    if stub.exists():
        found = imported(stub)
    else:
        dotted = ".".join(package.relative_to(ROOT).parts)
        found = [
            (dotted, name)
            for node in ast.parse((package / "__init__.py").read_text()).body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            for name in ast.literal_eval(node.value)
        ]
    return [(name, defining_module(module, name), package.name) for module, name in found]


def defining_module(module: str, name: str) -> str:
    """Follows a package's re-exports to the module that defines a name."""
    folder = ROOT / Path(*module.split("."))
    if not folder.is_dir():
        return module
    for node in ast.parse((folder / "__init__.py").read_text()).body:
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return defining_module(node.module, name)
    return module


def theme_of(module: str, name: str) -> str:
    """Returns the page of the reference that has a name of a module."""
    for page, (_, _, modules) in THEMES.items():
        if any(f"{module}.".startswith(f"fedjax_ht.{prefix}.") for prefix in modules):
            return page
    raise ValueError(f"docs/hooks.py: {module}.{name} is public and belongs to no theme")


def as_file(name: str, text: str | None, config: MkDocsConfig) -> File:
    """Returns a file of the site; docs/ is its root."""
    if text is None:
        file = File.generated(config, name, abs_src_path=str(ROOT / name))
    else:
        file = File.generated(config, name, content=text)
    file.dest_uri = file.dest_uri.removeprefix("docs/")
    return file


class Apart(Extension):
    """Rewrites docstrings for griffe: a row for each argument where "server_lr, server_epochs: ..."
    describes two, and an "Example:" as the section of code that it knows as "Examples:"."""

    def on_instance(self, *, obj: Object, **_) -> None:
        if obj.docstring:
            text = TOGETHER.sub(row_per_argument, obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub("Examples:", text)


def row_per_argument(match: re.Match) -> str:
    """Repeats the description of arguments that share one."""
    indent, arguments, description = match.groups()
    return "\n".join(f"{indent}{name}: {description}" for name in arguments.split(", "))
