"""Known rewrites of a line of Python that an exporter freezes or loses, as changes of its file's text.

A rewrite is a guess by the form of the code alone, and may well be wrong: :mod:`onnx_ci.tools.fix.remedies` tries it.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from onnx_ci.tools.fix.advised import advised

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_OPERATORS = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda, ast.GeneratorExp, ast.NamedExpr)
"""Expressions that need parentheses inside another one."""
_BINDING = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Attribute)
"""Expressions whose parts need parentheses if they are such expressions."""
_WEAK = (ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda, ast.NamedExpr)
"""Expressions that bind less than any operator of numbers."""
_LARGEST_DENOMINATOR = 64


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """A file with a changed line."""

    words: str
    """What the change does: ``keeps sizes and values as tensors``."""
    text: str
    """The whole file."""
    corrects_model: bool = False
    """Whether the model itself is wrong except on its example."""


def rewrites(
    text: str, line: int, written_sizes: Mapping[str, str] | None = None, remedies: Collection[str] = ()
) -> Iterator[Rewrite]:
    """Every known rewrite of the statement at a line, counted from 1, the least change first.

    ``written_sizes`` maps a number that should be a size to the expression to write in its place, and ``remedies`` are those of
    the findings about the line. A line outside of functions has no rewrite, and neither has text that is not Python.
    """
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    function, statement = _function_around(module, line), _innermost(module, (ast.stmt,), line)
    if function is None or not isinstance(statement, ast.stmt):
        return
    imports = [node for node in ast.walk(module) if isinstance(node, (ast.Import, ast.ImportFrom))]
    code, imported = _Code(text), {alias.asname or alias.name for node in imports for alias in node.names}
    numpy = imported & {"np", "numpy"}
    symbolic, with_numpy = _Symbolic(code), _Symbolic(code, numpy)
    # The expressions of a statement, without the statements in it.
    head = [node for node in ast.iter_child_nodes(statement) if not isinstance(node, (ast.stmt, ast.excepthandler))]
    head = [function.body] if isinstance(function, ast.Lambda) else head
    parts = [part for node in head for part in ast.walk(node)]
    constants = sorted((part for part in parts if isinstance(part, ast.Constant)), key=code.span)
    sizes = [(part, (written_sizes or {}).get(str(part.value))) for part in constants]
    quotients = [part for part in parts if isinstance(part, ast.BinOp) and isinstance(part.op, ast.FloorDiv)]
    corrections = [(f"takes the size from {size}", [code.replaced(part, size)]) for part, size in sizes if size]
    written = [
        (part, _operand(better) if isinstance(part, ast.expr) and part not in head else better)
        for remedy in remedies
        for part, better in advised(statement, remedy, {"torch", *imported})
    ]
    others = [
        *(("computes it as the remedy says", [code.replaced(part, better)]) for part, better in written),
        ("keeps sizes and values as tensors", symbolic.edits(head)),
        ("computes both sides of the branch", _both_sides(code, module, statement, head)),
        ("always runs what the condition guards", _without_condition(code, statement)),
        ("always takes the way without the shortcut", _without_shortcut(code, module, statement)),
        ("computes on whole tensors instead of in a loop", _without_loop(code, function, statement)),
        ("computes on whole tensors instead of row by row", _without_comprehension(code, function, statement)),
        ("rounds quotients down, as // does", [code.replaced(each, _rounded_down(code, each)) for each in quotients]),
        ("makes a new tensor instead of writing into one", _out_of_place(code, statement)),
        ("computes with torch instead of numpy", with_numpy.edits([function]) if numpy else []),
        ("keeps sizes and values as tensors, in the whole function", symbolic.edits([function])),
    ]
    candidates = [*((True, *each) for each in corrections), *((False, *each) for each in others)]
    seen = {text}
    for corrects_model, words, edits in candidates:
        changed = code.edited(edits)
        needs_torch = any("torch." in edit.text for edit in edits)
        if changed not in seen and _is_python(changed) and (not needs_torch or "torch" in imported):
            seen.add(changed)
            yield Rewrite(words=words, text=changed, corrects_model=corrects_model)


def _rounded_down(code: _Code, quotient: ast.BinOp) -> str:
    return f'torch.div({code.of(quotient.left)}, {code.of(quotient.right)}, rounding_mode="floor")'


def without_unused(before: str, after: str) -> str:
    """A changed text without the imports and the assignments of what it no longer reads, though the text before does."""
    module, code = ast.parse(after), _Code(after)
    unread = _names_read(ast.parse(before)) - _names_read(module)
    edits = []
    for node in ast.walk(module):
        match node:
            case ast.Import(names=[alias]) | ast.ImportFrom(names=[alias]) if (alias.asname or alias.name) in unread:
                edits += code.without(node)
            case ast.Assign(targets=[ast.Name(id=name)]) if name in unread:
                edits += code.without(node)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.List(elts=[])) if _is_replaced(module, node, name):
                edits += code.without(node)
    changed = code.edited(edits)
    return changed if _is_python(changed) else after  # not so if a block has nothing else


def _is_replaced(module: ast.Module, statement: ast.stmt, name: str) -> bool:
    """Whether the next statement that mentions a name assigns it without reading it."""
    following = _following(module, statement)
    while following is not None:
        uses = [each for each in ast.walk(following) if isinstance(each, ast.Name) and each.id == name]
        if uses:
            return isinstance(following, ast.Assign) and all(isinstance(each.ctx, ast.Store) for each in uses)
        following = _following(module, following)
    return False


def _names_read(module: ast.Module) -> set[str]:
    return {node.id for node in ast.walk(module) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _function_around(module: ast.Module, line: int) -> _Function | None:
    node = _innermost(module, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda), line)
    return node if isinstance(node, _Function) else None


def _innermost(module: ast.Module, kinds: tuple[type[ast.stmt | ast.expr], ...], line: int) -> ast.stmt | ast.expr | None:
    """The innermost node of one of these kinds that contains a line; of several that begin there, the first."""
    innermost: ast.stmt | ast.expr | None = None
    for node in ast.walk(module):  # breadth first, so the innermost comes last
        if not isinstance(node, (ast.stmt, ast.expr)) or not isinstance(node, kinds):
            continue
        contains = node.lineno <= line <= (node.end_lineno or node.lineno)
        if contains and (innermost is None or node.lineno > innermost.lineno):
            innermost = node
    return innermost


# --- text -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class _Edit:
    """A piece of a file, from an offset in bytes to another, and what replaces it."""

    start: int
    end: int
    text: str


class _Code:
    """The text of a module, addressed as its syntax tree does: by lines, and columns in bytes of UTF-8."""

    def __init__(self, text: str) -> None:
        self._bytes = text.encode()
        lengths = (len(line) for line in self._bytes.splitlines(keepends=True))
        self._starts = [0, *itertools.accumulate(lengths)]

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The offsets of a node."""
        start = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def of(self, node: ast.AST) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self._bytes[start:end].decode()

    def replaced(self, node: ast.AST, text: str) -> _Edit:
        """An edit that replaces a node."""
        return _Edit(*self.span(node), text)

    def without(self, statement: ast.stmt) -> list[_Edit]:
        """The edit that removes the lines of a statement; none if they hold anything else."""
        start, end = self._starts[statement.lineno - 1], self._starts[statement.end_lineno or statement.lineno]
        is_alone = self.between(start, end).strip() == self.of(statement)
        return [_Edit(start, end, "")] if is_alone else []

    def indentation(self, statement: ast.stmt) -> str:
        """The whitespace before a statement."""
        start, _ = self.span(statement)
        return self._bytes[self._starts[statement.lineno - 1] : start].decode()

    def between(self, start: int, end: int) -> str:
        """The text between two offsets."""
        return self._bytes[start:end].decode()

    def edited(self, edits: Iterable[_Edit], node: ast.AST | None = None) -> str:
        """The text after edits in it, of which none overlap: that of a node, or all of it."""
        position, end = (0, len(self._bytes)) if node is None else self.span(node)
        pieces = []
        for edit in sorted(edits):
            pieces += [self.between(position, edit.start), edit.text]
            position = edit.end
        return "".join([*pieces, self.between(position, end)])


def _operand(text: str) -> str:
    """An expression as it is written inside another one."""
    in_parentheses = f"({text})"  # it can be of several lines
    return in_parentheses if isinstance(ast.parse(in_parentheses, mode="eval").body, _OPERATORS) else text


# --- sizes and values as tensors ------------------------------------------------------------------------------------------

_CONVERSIONS = frozenset({"int", "float", "bool"})
_ROUNDED = frozenset({"ceil", "floor", "round"})
_OF_NUMPY = {"copy": "clone", "astype": "to"}
_MADE = frozenset({"tensor", "as_tensor"})


class _Symbolic:
    """Rewrites expressions so that sizes and values stay tensors, which exporters follow, instead of numbers of Python.

    Functions of numpy, by whatever names the text has for it, are replaced by torch's.
    """

    def __init__(self, code: _Code, numpy: Collection[str] = ()) -> None:
        self._code, self._numpy = code, numpy

    def edits(self, nodes: Iterable[ast.AST], parent: ast.AST | None = None) -> list[_Edit]:
        """The smallest replacements in nodes, which are children of ``parent``."""
        edits = []
        for node in nodes:
            text = self._rule(node) if isinstance(node, ast.expr) else None
            if text is None:
                edits += self.edits(ast.iter_child_nodes(node), node)
            else:
                is_inner = isinstance(parent, _BINDING) or (isinstance(parent, ast.Subscript) and node is parent.value)
                edits.append(self._code.replaced(node, _operand(text) if is_inner or "\n" in text else text))
        return edits

    def _text(self, node: ast.AST) -> str:
        """The text of an expression once it is rewritten."""
        text = self._rule(node) if isinstance(node, ast.expr) else None
        return self._code.edited(self.edits(ast.iter_child_nodes(node), node), node) if text is None else text

    def _inner(self, node: ast.AST) -> str:
        return _operand(self._text(node))

    def _rule(self, node: ast.expr) -> str | None:
        """What replaces an expression; ``None`` if no rule is about it."""
        match node:
            case ast.Call(args=[ast.Constant()]):
                return self._of_numpy(node) if self._numpy else None
            case ast.Call(func=ast.Name(id="int"), args=[inner], keywords=[]):
                return self._whole(inner)
            case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in _CONVERSIONS:
                return self._text(inner)
            case ast.Call(func=ast.Attribute(value=inner, attr="item"), args=[], keywords=[]):
                return self._text(inner)
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name() | ast.Attribute() | ast.Subscript() as inner]):
                return f"{self._inner(inner)}.shape[0]"
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=[first, second], keywords=[]):
                return f"torch.{name}imum({self._as_tensor(first)}, {self._as_tensor(second)})"
            case ast.Call(func=ast.Name(id="round"), args=[inner], keywords=[]):
                return f"{self._as_tensor(inner)}.float().round().long()"
            case ast.Call(func=ast.Name(id="list"), args=[ast.Call(func=ast.Name(id="range")) as steps], keywords=[]):
                return f"torch.arange({self._arguments(steps)})"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr=function), args=[inner], keywords=[]):
                return self._of_math(function, inner)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=function), args=[inner], keywords=keywords):
                return self._made(function, inner, keywords)
            case ast.Subscript(value=inner, slice=ast.Slice(lower=None, upper=None, step=ast.UnaryOp(op=ast.USub()))):
                text = self._text(inner)
                return None if text == self._code.of(inner) else f"{_operand(text)}.flip(0)"
        return self._of_numpy(node) if self._numpy else None

    def _as_tensor(self, node: ast.expr) -> str:
        return f"torch.as_tensor({self._text(node)})"

    def _arguments(self, call: ast.Call) -> str:
        return ", ".join(self._text(argument) for argument in [*call.args, *call.keywords])

    def _whole(self, node: ast.expr) -> str:
        """``int(node)`` as an integer that exporters follow."""
        match node:
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return f"{self._inner(left)} // {self._inner(right)}"
            case ast.BinOp(left=left, op=ast.Mult(), right=right) if (by := _fraction(right) or _fraction(left)) is not None:
                factor = self._inner(left if _fraction(right) else right)
                product = factor if by.numerator == 1 else f"{factor} * {by.numerator}"
                return f"{product} // {by.denominator}"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr=function), args=[inner]) if (
                function not in _ROUNDED
            ):
                return f"{self._of_math(function, inner)}.long()"
        return self._text(node)

    def _of_math(self, function: str, node: ast.expr) -> str:
        """A function of ``math``: of a quotient in whole numbers, and of anything else on a tensor."""
        whole = self._whole(node)
        is_quotient = whole != self._text(node)
        if is_quotient and function == "floor":
            return whole
        if is_quotient and function == "ceil":
            # Not -(-a // b): TorchScript's file rounds a negative quotient towards zero.
            dividend, _, divisor = whole.rpartition(" // ")
            less = str(int(divisor) - 1) if divisor.isdecimal() else f"{divisor} - 1"
            return f"({dividend} + {less}) // {divisor}"
        return f"{self._as_tensor(node)}.float().{function}(){'.long()' if function in _ROUNDED else ''}"

    def _made(self, function: str, node: ast.expr, keywords: Sequence[ast.keyword]) -> str | None:
        """A tensor that is made of numbers, or what is stacked row by row."""
        options = "".join(f", {self._text(keyword)}" for keyword in keywords)
        match node:
            case ast.Call(func=ast.Name(id="list"), args=[inner], keywords=[]) if function == "stack" and not keywords:
                return self._text(inner)
            case ast.List(elts=elements) | ast.Tuple(elts=elements) if function in _MADE and elements:
                if all(isinstance(each, ast.Constant) for each in elements):
                    return None
                dtype = "".join(f".to({self._text(each.value)})" for each in keywords if each.arg == "dtype")
                return f"torch.stack([torch.as_tensor(size) for size in {self._text(node)}]){dtype}"
            case ast.ListComp(elt=element, generators=[ast.comprehension(target=ast.Name(id=name), iter=steps, ifs=[])]):
                match steps:
                    case ast.Call(func=ast.Name(id="range")) if function in _MADE:
                        values = _with_name(element, name, f"torch.arange({self._arguments(steps)})")
                        return f"torch.as_tensor({values}{options})"
                if function == "stack" and not keywords:
                    rows = _Rows(name, steps)
                    whole = rows.whole(element)
                    return whole if rows.is_usable and not rows.axis else None
            case ast.BinOp(left=ast.List(elts=[element]), op=ast.Mult(), right=number) if function == "stack" and not keywords:
                tensor = self._inner(element)
                return f"{tensor}.expand({self._text(number)}, *{tensor}.shape)"
            case ast.Constant():
                return None
        if function == "from_numpy" and self._numpy:
            return self._text(node)
        return f"torch.as_tensor({self._text(node)}{options})" if function == "tensor" else None

    def _of_numpy(self, node: ast.expr) -> str | None:
        """A name of numpy, or a method of its arrays, as torch calls it."""
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in self._numpy:
                return f"torch.{attribute}"
            case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method in _OF_NUMPY:
                return f"{self._inner(inner)}.{_OF_NUMPY[method]}({self._arguments(node)})"
        return None


def _fraction(node: ast.expr) -> Fraction | None:
    """The value of a decimal number that is a simple fraction: 0.5, 0.75."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, float):
        return None
    fraction = Fraction(node.value).limit_denominator(_LARGEST_DENOMINATOR)
    return fraction if fraction and float(fraction) == node.value else None


def _with_name(expression: ast.expr, name: str, text: str) -> str:
    """An expression in which another one stands for a name."""

    class Substitution(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.parse(text, mode="eval").body if node.id == name else node

    return ast.unparse(Substitution().visit(ast.parse(ast.unparse(expression), mode="eval")))


# --- branches -------------------------------------------------------------------------------------------------------------


def _both_sides(code: _Code, module: ast.Module, statement: ast.stmt, head: Sequence[ast.AST]) -> list[_Edit]:
    """Edits after which both sides of a branch are computed, and ``torch.where`` chooses between the results."""
    if isinstance(statement, ast.If):
        return _both_sides_of_if(code, module, statement)
    choices = [node for part in head for node in ast.walk(part) if isinstance(node, ast.IfExp)]
    return [code.replaced(each, _where(code, each.test, code.of(each.body), code.of(each.orelse))) for each in choices[:1]]


def _where(code: _Code, test: ast.expr, first: str, second: str) -> str:
    return f"torch.where(torch.as_tensor({code.of(test)}), {first}, {second})"


def _both_sides_of_if(code: _Code, module: ast.Module, statement: ast.If) -> list[_Edit]:
    if _assigns(statement.test):
        return []
    following = _following(module, statement)
    match statement.body, statement.orelse, following:
        case ([ast.Return(value=ast.expr() as first)], [ast.Return(value=ast.expr() as second)], _):
            return [code.replaced(statement, f"return {_where(code, statement.test, code.of(first), code.of(second))}")]
        case ([ast.Return(value=ast.expr() as first)], [], ast.Return(value=ast.expr() as second)):
            start, _ = code.span(statement)
            _, end = code.span(following)
            return [_Edit(start, end, f"return {_where(code, statement.test, code.of(first), code.of(second))}")]
    taken, other = _assigned(code, statement.body), _assigned(code, statement.orelse)
    if not taken or other is None:
        return []
    lines = [f"taken = torch.as_tensor({code.of(statement.test)})"] if len({*taken, *other}) > 1 else []
    condition = "taken" if lines else f"torch.as_tensor({code.of(statement.test)})"
    before = _names_before(module, statement)
    for name in dict.fromkeys([*taken, *other]):
        if_taken, otherwise = taken.get(name, name), other.get(name, name)
        if name not in before and (name not in taken or name not in other):
            lines.append(f"{name} = {if_taken if name in taken else otherwise}")  # only used on the side that sets it
        else:
            lines.append(f"{name} = torch.where({condition}, {if_taken}, {otherwise})")
    return [code.replaced(statement, f"\n{code.indentation(statement)}".join(lines))]


def _without_condition(code: _Code, statement: ast.stmt) -> list[_Edit]:
    """Edits after which the body of an ``if`` always runs, as for a value that is cached or a slice that may be empty."""
    if not isinstance(statement, ast.If) or statement.orelse or any(map(_is_jump, statement.body)):
        return []
    lines = [code.of(each) for each in statement.body]
    match statement.test:
        case ast.NamedExpr(target=target, value=value):  # if pad := -size % 8:
            lines.insert(0, f"{code.of(target)} = {code.of(value)}")
        case test if _assigns(test):
            return []
    return [code.replaced(statement, f"\n{code.indentation(statement)}".join(lines))]


def _without_shortcut(code: _Code, module: ast.Module, statement: ast.stmt) -> list[_Edit]:
    """Edits after which an ``if`` is gone that ends the function or the round of a loop early."""
    if not isinstance(statement, ast.If) or statement.orelse or _assigns(statement.test):
        return []
    is_shortcut = isinstance(statement.body[-1], (ast.Return, ast.Continue))
    following = _following(module, statement)
    if not is_shortcut or following is None:
        return []
    return [_Edit(code.span(statement)[0], code.span(following)[0], "")]


def _assigns(test: ast.expr) -> bool:
    return any(isinstance(node, ast.NamedExpr) for node in ast.walk(test))


def _is_jump(statement: ast.stmt) -> bool:
    """Whether a statement ends or jumps, or holds others, so that it cannot stand where its ``if`` stood."""
    jumps = (ast.Return, ast.Raise, ast.Continue, ast.Break, ast.Pass)
    return isinstance(statement, jumps) or any(isinstance(each, ast.stmt) for each in ast.iter_child_nodes(statement))


def _assigned(code: _Code, body: Sequence[ast.stmt]) -> dict[str, str] | None:
    """What a body assigns to names, which it does once each; ``None`` if it does anything else."""
    values: dict[str, str] = {}
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in values:
                values[name] = code.of(value)
            case ast.AugAssign(target=ast.Name(id=name), value=value) if name not in values:
                values[name] = _augmented(code, statement)
            case _:
                return None
    return values


def _augmented(code: _Code, statement: ast.AugAssign) -> str:
    """The value that ``name op= value`` assigns."""
    target, value = code.of(statement.target), code.of(statement.value)
    symbol = code.between(code.span(statement.target)[1], code.span(statement.value)[0]).strip().removesuffix("(").strip()
    binds = isinstance(statement.op, ast.Add) and not isinstance(statement.value, _WEAK)
    return f"{target} {symbol.removesuffix('=')} {value if binds else _operand(value)}"


def _following(module: ast.Module, statement: ast.stmt) -> ast.stmt | None:
    """The statement after another one in the same body."""
    for node in ast.walk(module):
        for _, body in ast.iter_fields(node):
            if isinstance(body, list) and statement in body[:-1]:
                following: ast.stmt = body[body.index(statement) + 1]
                return following
    return None


def _names_before(module: ast.Module, statement: ast.stmt) -> set[str]:
    """The names of the function around a statement that are set above it."""
    function = _function_around(module, statement.lineno)
    if function is None:
        return set()
    names = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    stored = (each for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
    return names | {each.id for each in stored if each.lineno < statement.lineno}


# --- loops ----------------------------------------------------------------------------------------------------------------


def _without_loop(code: _Code, function: _Function, statement: ast.stmt) -> list[_Edit]:
    """Edits after which a loop over the rows of tensors, which adds them up or collects them, is one computation."""
    if not isinstance(statement, ast.For) or not isinstance(statement.target, ast.Name) or statement.orelse:
        return []
    rows = _Rows(statement.target.id, statement.iter)
    *steps, last = statement.body
    lines = []
    for step in steps:
        match step:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                lines.append(f"{name} = {rows.whole(value)}")
            case _:
                return []
    stacked: list[_Edit] = []
    match last:
        case (
            ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value)
            | ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp(left=ast.Name(), op=ast.Add(), right=value))
        ):
            lines.append(f"{name} = {name} + {_operand(rows.whole(value))}.sum({rows.axis})")
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value])):
            lines.append(f"{name} = {rows.whole(value)}")
            stacked = [code.replaced(each, name) for each in ast.walk(function) if _is_stack_of(each, name, rows.axis)]
            if not stacked:
                return []
        case _:
            return []
    if not rows.is_usable:
        return []
    return [code.replaced(statement, f"\n{code.indentation(statement)}".join(lines)), *stacked]


def _without_comprehension(code: _Code, function: _Function, statement: ast.stmt) -> list[_Edit]:
    """Edits after which rows that are listed, and stacked in another statement, are one tensor."""
    match statement:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.ListComp(elt=value, generators=[ast.comprehension(target=ast.Name(id=row), iter=steps, ifs=[])]),
        ):
            rows = _Rows(row, steps)
            whole = code.replaced(statement, f"{name} = {rows.whole(value)}")
            stacked = [code.replaced(each, name) for each in ast.walk(function) if _is_stack_of(each, name, rows.axis)]
            return [whole, *stacked] if stacked and rows.is_usable else []
    return []


class _Rows:
    """The rows of tensors over which a loop runs.

    Args:
        name: the variable of the loop: a row, or its number.
        steps: what the loop runs over.
    """

    def __init__(self, name: str, steps: ast.expr) -> None:
        match steps:
            case ast.Call(func=ast.Name(id="range"), args=[_]):
                self._tensor = None
            case ast.Call(func=ast.Attribute(value=inner, attr="tolist"), args=[]):  # each row is a number
                self._tensor = ast.parse(f"({ast.unparse(inner)}).unsqueeze(-1)", mode="eval").body
            case _:
                self._tensor = steps
        self._name, self._axes = name, {0} if self._tensor is not None else set[int]()
        self._has_other_use = False

    @property
    def axis(self) -> int:
        """The axis of the rows."""
        return min(self._axes, default=0)

    @property
    def is_usable(self) -> bool:
        """Whether everything that was asked for can be computed on whole tensors."""
        return len(self._axes) == 1 and not self._has_other_use

    def whole(self, expression: ast.expr) -> str:
        """An expression with whole tensors in the place of rows."""
        rows = self

        class Substitution(ast.NodeTransformer):
            def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
                axis = None
                match node.slice:
                    case ast.Name(id=rows._name) if rows._tensor is None:
                        axis = 0
                    case ast.Tuple(elts=[ast.Slice(lower=None, upper=None, step=None), ast.Name(id=rows._name)]):
                        axis = 1
                if axis is None:
                    return self.generic_visit(node)
                rows._axes.add(axis)
                whole: ast.AST = self.visit(node.value)
                return whole

            def visit_Name(self, node: ast.Name) -> ast.AST:
                if node.id == rows._name:
                    rows._has_other_use |= rows._tensor is None
                    return rows._tensor or node
                return node

        return ast.unparse(Substitution().visit(ast.parse(ast.unparse(expression), mode="eval").body))


def _is_stack_of(node: ast.AST, name: str, axis: int) -> bool:
    """Whether a node is ``torch.stack(name, axis)``."""
    match node:
        case ast.Call(func=ast.Attribute(attr="stack"), args=[ast.Name(id=other), *rest], keywords=keywords):
            given = [ast.unparse(each) for each in (*rest, *(key.value for key in keywords))]
            return other == name and (given or ["0"]) == [str(axis)]
    return False


# --- writes ---------------------------------------------------------------------------------------------------------------


def _out_of_place(code: _Code, statement: ast.stmt) -> list[_Edit]:
    """Edits after which a statement assigns a new tensor to the name into whose tensor it writes."""
    match statement:
        case ast.AugAssign(target=ast.Name(id=name)):
            return [code.replaced(statement, f"{name} = {_augmented(code, statement)}")]
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=written, attr=method)) as call) if method.endswith("_"):
            tensor = _name_behind(written)
            if tensor is not None and not method.endswith("__"):
                arguments = ", ".join(code.of(each) for each in [*call.args, *call.keywords])
                return [code.replaced(statement, f"{tensor} = {tensor}.{method.removesuffix('_')}({arguments})")]
    return []


def _name_behind(node: ast.expr) -> str | None:
    """The name of the tensor that an expression is an alias of."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner, attr="data"):
            return _name_behind(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr="detach"), args=[], keywords=[]):
            return _name_behind(inner)
    return None
