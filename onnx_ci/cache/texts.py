"""What Python files and small configuration files mention: words, paths, names of files, and modules that are imported."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

_CONFIGURATION = (".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".txt")
_LARGEST = {True: 2**22, False: 2**18}
"""How many bytes of a Python file and of another one are read."""
_WORD = re.compile(r"[\w.-]*\w")
_PIECE = re.compile(r"\w+")
_QUOTED = (re.compile(r'"([^"\n]{1,1000})"'), re.compile(r"'([^'\n]{1,1000})'"))
_BARE = re.compile(r"""[^\s"'\[\](){},;=<>|]{1,1000}""")
_OUTSIDE = re.compile(r"(?:file://)?(/.+|~.*|\.\.(?:/.*)?|.*/\.\.(?:/.*)?)")
_NAME = re.compile(r"[\w.][\w. @+=-]{0,99}(?:/[\w. @+=-]{1,100}){0,8}")


@dataclass(frozen=True, kw_only=True)
class Text:
    """What one file mentions."""

    vocabulary: str = ""
    """Words such as ``a.bin``, and their parts ``a`` and ``bin``, with spaces between them: they are rarely needed."""
    outside: tuple[str, ...] = ()
    """Paths in its strings that are absolute, or lead home or upwards."""
    names: tuple[str, ...] = ()
    """Other texts in its strings that can be the name of a file."""

    @property
    def words(self) -> list[str]:
        """The words of the vocabulary."""
        return self.vocabulary.split(" ")


NOTHING = Text()


def is_text(path: str) -> bool:
    """Whether a file is one of those that are read, by its name."""
    return path.endswith((".py", *_CONFIGURATION))


def read_text(content: bytes, *, is_python: bool) -> Text:
    """What a file mentions whose content is given."""
    if len(content) > _LARGEST[is_python]:
        return NOTHING
    text = content.decode("utf-8", "replace")
    strings = {each for pattern in (*_QUOTED, *(() if is_python else (_BARE,))) for each in pattern.findall(text)}
    words = set(_WORD.findall(text))
    words.update(piece for word in tuple(words) for piece in _PIECE.findall(word))
    return Text(
        vocabulary=" ".join(sorted(word for word in words if len(word) <= 200)),
        outside=tuple(sorted({match[1] for each in strings if (match := _OUTSIDE.fullmatch(each)) and "\0" not in each})),
        names=tuple(sorted(each for each in strings if _NAME.fullmatch(each))),
    )


def read_imports(content: bytes) -> tuple[str, ...]:
    """What the import statements of a Python file name.

    ``a.b`` and ``..a.b`` are modules, the second one relative, and ``a.b:c`` is a name from one, which may be a module, too.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the import shows them
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(sorted({name for node in ast.walk(tree) for name in _imported(node)}))


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        yield module
        yield from (f"{module}:{alias.name}" for alias in node.names)
