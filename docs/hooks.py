"""What the site has beside docs/*.md, as hooks of mkdocs: what pages link to outside docs/, and the
reference.

Pages keep their paths in the repository, so that a link means the same there and in the site.
Whatever a page links to in the repository is part of the site: Markdown and sources as pages,
folders as lists, all else as files.
"""

import posixpath
import re
from pathlib import Path

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)\s#])")
TOGETHER = re.compile(r"^( +)((?:\w+, )+\w+): (.*(?:\n\1 +.*)*)$", re.MULTILINE)
SOURCES = (".py", ".pyi", ".toml", ".yml")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """docs/ under that name, a page of reference for each package, and all that pages link to."""
    ours = [
        file.src_uri
        for file in files
        if file.src_dir == config.docs_dir and not file.src_uri.endswith(".py")
    ]
    texts = {f"docs/{name}": text_of(f"docs/{name}") for name in ours} | reference()
    waiting = list(texts)
    while waiting:
        name = waiting.pop()
        for target in LINK.findall(texts[name] or ""):
            page = linked(name, target)
            if page and page not in texts:
                texts[page] = text_of(page)
                waiting.append(page)
    theirs = [file for file in files if file.src_dir != config.docs_dir]
    return Files([*theirs, *(as_file(name, text, config) for name, text in texts.items())])


def on_page_markdown(markdown: str, page: Page, **_) -> str:
    """Links to sources and folders go to the pages that show them."""
    name = page.file.src_uri
    start = posixpath.dirname(name)
    return LINK.sub(
        lambda m: posixpath.relpath(linked(name, m[0]) or posixpath.join(start, m[0]), start),
        markdown,
    )


def linked(page: str, target: str) -> str | None:
    """The path in the site of what a page links to; None where there is nothing in the
    repository."""
    name = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    if name.startswith("..") or not (ROOT / name).exists():
        return None
    return (
        f"{name}/index.md"
        if (ROOT / name).is_dir()
        else f"{name}.md"
        if name.endswith(SOURCES)
        else name
    )


def text_of(name: str) -> str | None:
    """A page's Markdown; None of what is no page."""
    path = ROOT / name
    if path.suffix != ".md":
        return None
    if path.exists():
        return path.read_text()
    if path.name == "index.md":
        files = sorted(file.name for file in path.parent.iterdir() if file.is_file())
        return "\n".join(
            [f"# {path.parent.relative_to(ROOT)}", "", *(f"* [{file}]({file})" for file in files)]
        )
    source = path.with_suffix("")
    return f"# {source.name}\n\n```{source.suffix[1:]}\n{source.read_text()}```\n"


def reference() -> dict[str, str]:
    """A page for each package, made of the docstrings of what is public in its modules."""
    pages = {}
    for package in sorted(path.parent for path in ROOT.glob("fedjax_ht/*/__init__.py")):
        modules = [path for path in sorted(package.rglob("*.py")) if path.name != "__init__.py"]
        names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in modules]
        blocks = "".join(f"\n::: {name}\n" for name in names)
        pages[f"docs/reference/{package.name}.md"] = f"# fedjax_ht.{package.name}\n{blocks}"
    return pages


def as_file(name: str, text: str | None, config: MkDocsConfig) -> File:
    """A file of the site; docs/ is its root."""
    given = {"content": text} if text is not None else {"abs_src_path": str(ROOT / name)}
    file = File.generated(config, name, **given)
    file.dest_uri = file.dest_uri.removeprefix("docs/")
    return file


class Apart(Extension):
    """Docstrings say "server_lr, server_epochs: ..." of several arguments; the reference has a row
    for each."""

    def on_instance(self, *, obj: Object, **_) -> None:
        if obj.docstring:
            obj.docstring.value = TOGETHER.sub(
                lambda m: "\n".join(f"{m[1]}{name}: {m[3]}" for name in m[2].split(", ")),
                obj.docstring.value,
            )
