"""All lines that the library prints or raises, together in messages.txt, and the rules they keep.

    python -m tests.docs.test_messages  # writes messages.txt anew

A message is a text of at least three words that is no docstring, {…} stands for a value. The file
changes only where a message does. An error says what was expected, what stands there and what to
do; read the file as a user would who has nothing else.
"""

import ast
import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LIBRARY = Path(__file__).parents[2] / "fedjax_ht"
GOLDEN = Path(__file__).with_name("messages.txt")
VALUE = "{…}"
SPOKEN = ("raise", "warn", "warning", "tell", "add_note", "ValueError")
"""Kinds of messages that are one line of their own. A `text` may be a part of one."""
MARKUP = re.compile(r"<[a-z!]|\{\n|\(\?|\\\w")
"""Beginnings of HTML, style sheets and regular expressions, which are no messages."""
MOST_ENTRIES = 20
"""Texts in a longer list are data, such as names of classes."""
RIDDLES = re.compile(r"(there|who|what|which|whose|one of (them|these)|of|whether|they)\b", re.I)
NAMES = ("Flower", "SplitModel", "G_ema", "X ", "JPEG", "SSIM")
"""Names that an error may begin with, as they are written."""


class Message(NamedTuple):
    """A message with {…} for each value, and its place.

    Attributes:
      module: its file below the library.
      kind: "raise", the name of the function that it is given to, or "text".
      text: the message.
    """

    module: str
    kind: str
    text: str


def templates(node: ast.AST) -> list[str]:
    """Lists the texts that an expression may be; several where it has conditional parts."""
    if isinstance(node, ast.Constant):
        return [node.value if isinstance(node.value, str) else VALUE]
    if isinstance(node, ast.JoinedStr):
        return joined(node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return joined([node.left, node.right])
    if isinstance(node, ast.IfExp):
        return templates(node.body) + templates(node.orelse)
    return [VALUE]


def joined(nodes: list[ast.AST]) -> list[str]:
    """Lists the concatenations of expressions."""
    return ["".join(parts) for parts in itertools.product(*map(templates, nodes))]


def is_message(text: str) -> bool:
    """Returns whether a text has three words and no markup."""
    letters = re.findall(r"[A-Za-z]{2,}", text.replace(VALUE, " "))
    return len(letters) >= 3 and " " in text.strip() and not MARKUP.search(text)


def called(node: ast.Call) -> str:
    """Names the function of a call."""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def is_data(node: ast.AST) -> bool:
    """Returns whether a node holds no messages: a docstring, or a long list of texts."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Tuple | ast.List) and len(node.elts) > MOST_ENTRIES


def kind_of(node: ast.AST, kind: str) -> str:
    """Names the kind of messages in a node, where those around it are of `kind`."""
    if isinstance(node, ast.Raise):
        return "raise"
    if isinstance(node, ast.Call) and kind != "raise":
        return called(node)
    return kind if isinstance(node, ast.expr | ast.keyword) else "text"


def messages_in(module: str, node: ast.AST, kind: str = "text") -> Iterator[Message]:
    """Yields the messages of a statement or expression."""
    if is_data(node):
        return
    if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp | ast.IfExp):
        texts = list(filter(is_message, templates(node)))
        if texts:
            yield from (Message(module, kind, text) for text in texts)
            return
    kind = kind_of(node, kind)
    for child in ast.iter_child_nodes(node):
        yield from messages_in(module, child, kind)


@functools.cache  # not at import, which every process of a test run would pay
def collected() -> list[Message]:
    """Lists the messages of the library, by module and text."""
    messages = set()
    for path in LIBRARY.rglob("*.py"):
        module = path.relative_to(LIBRARY).as_posix()
        messages.update(messages_in(module, ast.parse(path.read_text())))
    return sorted(messages)


def written(messages: list[Message]) -> str:
    """Formats messages.txt."""
    lines = []
    for module, group in itertools.groupby(messages, lambda message: message.module):
        lines += ["", module, *(f"  {kind}: {text!r}" for _, kind, text in group)]
    return "\n".join(lines[1:]) + "\n"


def test_the_file_has_all_messages():
    assert GOLDEN.read_text() == written(collected()), "run python -m tests.docs.test_messages"


def breaking(rule) -> list[str]:
    """Lists the lines that break a rule."""
    lines = [message for message in collected() if message.kind in SPOKEN]
    return [f"{message.module}: {message.text}" for message in lines if not rule(message.text)]


def test_messages_are_one_line():
    assert not breaking(lambda text: "\n" not in text and "  " not in text)
    assert not breaking(lambda text: text == text.strip() and not text.endswith((".", ",")))


def test_messages_begin_with_the_thing_that_they_are_about():
    assert not breaking(lambda text: not RIDDLES.match(text))
    assert not breaking(lambda text: not text[0].isupper() or text.startswith(NAMES))


def test_an_error_about_a_value_shows_it():
    # the parser of flags writes the value in front of "it must be"
    assert not breaking(lambda text: not re.search("(?<!^it )must be", text) or VALUE in text)


if __name__ == "__main__":
    GOLDEN.write_text(written(collected()))
