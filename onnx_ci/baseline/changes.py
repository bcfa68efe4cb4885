"""The changes from one entry of a cell to another, or from one baseline of a recipe to another, in words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx_ci.baseline.entry import Entry, Line
from onnx_ci.baseline.file import Baseline
from onnx_ci.environment.versions import describe_version_changes
from onnx_ci.opsets import format_opsets
from onnx_ci.results.records import DeclaredValue
from onnx_ci.text import count

Limits = Mapping[str, float]
"""By the names of :data:`onnx_ci.config.values.BASELINE_LIMITS`."""
SMALL_DRIFT = 2.0
"""Drifts up to this count as equal: they vary that much from machine to machine."""
SAME_TENSORS = 4e-6
"""The largest difference between projections of the same tensors, as a share of their norm: thirty float32 rounding errors."""
_ROUNDING = 2**-24
"""The relative rounding error of float32, below which the tolerance of inexact values never falls."""
_STATISTICS = ("least", "mean", "largest", "spread")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One difference between two entries."""

    kind: str
    """One of :data:`onnx_ci.results.rules.BASELINE_CHANGES`."""
    text: str
    is_harmless: bool = False
    """Whether it is a note at most: an improvement, or values that now depend on rounding and therefore on the machine."""


def changes(old: Entry, new: Entry, limits: Limits) -> list[Change]:
    """The changes from ``old`` to ``new`` beyond the limits, except those of versions."""
    inputs, _ = _signature("input", old, new)
    outputs, former_names = _signature("output", old, new)
    tensors = [*_tensors("weights", "the weights differ", old, new), *_tensors("arguments", "the inputs differ", old, new)]
    return [
        *(Change(kind="format", text=text) for text in _format(old, new)),
        *(Change(kind="signature", text=text) for text in (*inputs, *outputs)),
        *(Change(kind="operators", text=text) for text in _operators(old, new, limits)),
        *(Change(kind="size", text=text) for text in _size(old, new, limits)),
        *tensors,
        *_of_outputs("drift", former_names, old, new, lambda before, now: same_drift(before, now, limits)),
        *(() if tensors else _values(former_names, old, new, limits)),
        *_observability(old, new, limits),
    ]


def changed_versions(old: Entry, new: Entry) -> str:
    """The packages whose versions differ, as :func:`~onnx_ci.environment.versions.describe_version_changes` words them."""
    return describe_version_changes(_below(old, "versions"), _below(new, "versions"))


def differences(old: Baseline | None, new: Baseline | None, limits: Limits) -> list[str]:
    """The changes from one baseline of a recipe to another: one line for each change, with its opsets."""
    before, now = ({} if baseline is None else baseline.cells for baseline in (old, new))
    opsets_of: dict[tuple[str, str, str], list[int]] = {}
    for place in sorted({*before, *now}):
        if place not in now or place not in before:
            lines = ["new" if place in now else "no longer recorded"]
        else:
            packages = changed_versions(before[place], now[place])
            lines = [change.text for change in changes(before[place], now[place], limits)] + ([packages] if packages else [])
        for line in lines:
            opsets_of.setdefault((place.exporter, place.target, line), []).append(place.opset)
    return [
        f"{exporter} {target}, opset{'s' * (len(opsets) > 1)} {format_opsets(opsets)}: {line}"
        for (exporter, target, line), opsets in opsets_of.items()
    ]


def is_same(line: Line, old: Entry, new: Entry, limits: Limits) -> bool:
    """Whether :func:`changes` reports nothing for a fact of both entries, even if its last digits differ."""
    before, now = old[line], new[line]
    if line[0] in ("file-bytes", "initializer-bytes"):
        return is_near(before, now, limits["size"])
    if line[0] in ("operators", "initializers"):
        return bool(abs(now - before) <= limits["counts"])
    if line[0] == "observability":
        return bool(abs(now - before) <= limits["observability"])
    if line[0] in ("weights", "arguments"):
        return _same_tensors(line[0], old, new)
    if line[0] == "values":
        if line[2] == "drift":
            return same_drift(before, now, limits)
        if line[2] == "noise":
            return _within_factor(before, now, limits["noise"])
        return _units(line[1], line[1], old, new, limits, line[2:]) <= 1
    return bool(before == now)


def _below(entry: Entry, *kind: str) -> dict[str, Any]:
    """The facts directly below a path, by the last parts of their paths."""
    return {line[-1]: value for line, value in entry.items() if line[:-1] == kind}


def _format(old: Entry, new: Entry) -> Iterator[str]:
    for kind, name in (("opset", "opset"), ("ir-version", "IR version")):
        if old[kind,] != new[kind,]:
            yield f"{name} {old[kind,]} → {new[kind,]}"
    before, now = _below(old, "domains"), _below(new, "domains")
    for domain in sorted({**before, **now}):
        if before.get(domain) != now.get(domain):
            yield f"domain {domain!r} {before.get(domain, 'absent')} → {now.get(domain, 'absent')}"


# --- the signature ----------------------------------------------------------------------------------------------------


def _signature(role: str, old: Entry, new: Entry) -> tuple[list[str], dict[str, str]]:
    """The changes of inputs or outputs in words, and the former name for each current name."""
    before, now = old[f"{role}s",], new[f"{role}s",]
    removed, added = [name for name in before if name not in now], [name for name in now if name not in before]
    former = {name: name for name in now if name in before}
    pairs = zip(before, now, strict=True) if len(before) == len(now) else ()
    renamed = {name: former_name for former_name, name in pairs if former_name in removed and name in added}
    former |= renamed
    lines = describe_renamed(role, [(former_name, name) for name, former_name in renamed.items()])
    lines += [f"{role} {name!r} was removed" for name in removed if name not in former.values()]
    lines += [f"{role} {name!r} was added" for name in added if name not in former]
    if not removed and not added and before != now:
        lines.append(f"{role}s reordered: {', '.join(before)} → {', '.join(now)}")
    declared: dict[str, tuple[DeclaredValue, DeclaredValue]] = {
        name: (old[role, former_name], new[role, name]) for name, former_name in former.items()
    }
    # Types are compared as text: a dimension whose name contains a comma is read back as two.
    types = {name: (old_value.type_text, new_value.type_text) for name, (old_value, new_value) in declared.items()}
    changed = [name for name, (old_type, new_type) in types.items() if old_type != new_type]
    swapped: set[str] = set()
    for first, second in itertools.combinations(changed, 2):
        if types[first] == types[second][::-1]:
            lines.append(f"{role}s {first!r} and {second!r} swapped")
            former[first], former[second] = former[second], former[first]
            swapped |= {first, second}
    lines += [f"{role} {name!r} {change}" for name in changed if name not in swapped for change in _type(*declared[name])]
    return lines, former


def describe_renamed(role: str, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """``outputs 'output.cache.*' renamed to 'cache.*'``: names with the same last parts together, others by themselves."""
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for pair in pairs:
        old_parts, new_parts = (name.split(".") for name in pair)
        while min(len(old_parts), len(new_parts)) > 1 and old_parts[-1] == new_parts[-1]:
            del old_parts[-1], new_parts[-1]
        groups.setdefault((".".join(old_parts), ".".join(new_parts)), []).append(pair)
    shown = ((group[0], "") if len(group) == 1 else ((f"{old}.*", f"{new}.*"), "s") for (old, new), group in groups.items())
    return [f"{role}{plural} {old!r} renamed to {new!r}" for (old, new), plural in shown]


def _type(old: DeclaredValue, new: DeclaredValue) -> Iterator[str]:
    """The changes from ``float[batch, 3]`` to ``double[2, 3]``, in words."""
    if old.dtype != new.dtype:
        yield f"{old.dtype} → {new.dtype}"
    if old.dims == new.dims:
        return
    if old.dims is None or new.dims is None or len(old.dims) != len(new.dims):
        yield f"{old.type_text} → {new.type_text}"
        return
    for axis, (before, now) in enumerate(zip(old.dims, new.dims, strict=True)):
        if before != now:
            is_now_static = now.isdecimal() and not before.isdecimal()
            yield f"axis {axis} {before} → {now}{', now static' if is_now_static else ''}"


# --- counts and sizes -------------------------------------------------------------------------------------------------


def _operators(old: Entry, new: Entry, limits: Limits) -> Iterator[str]:
    before, now = _below(old, "operators"), _below(new, "operators")
    differences = {name: now.get(name, 0) - before.get(name, 0) for name in sorted({**before, **now})}
    changed = {name: f"{number:+}".replace("-", "−") for name, number in differences.items() if abs(number) > limits["counts"]}
    lines = [f"{number} {name}" for name, number in changed.items()]
    if lines:  # additions first: a device may not support them
        yield ", ".join(sorted(lines, key=lambda text: text.startswith("−")))


def _size(old: Entry, new: Entry, limits: Limits) -> Iterator[str]:
    parts = []
    if not is_near(old["file-bytes",], new["file-bytes",], limits["size"]):
        parts.append(f"file {_growth(old['file-bytes',], new['file-bytes',])}")
    if abs(difference := new["initializers",] - old["initializers",]) > limits["counts"]:
        parts.append(f"{'+' if difference > 0 else '−'}{count(abs(difference), 'initializer')}")
    if not is_near(old["initializer-bytes",], new["initializer-bytes",], limits["size"]):
        parts.append(f"initializers {_growth(old['initializer-bytes',], new['initializer-bytes',])}")
    if parts:
        yield ", ".join(parts)


def is_near(old: float, new: float, share: float) -> bool:
    """Whether two sizes differ by at most this share of the old size."""
    return abs(new - old) <= share * old


def _growth(old: int, new: int) -> str:
    if not old:
        return f"0 → {in_bytes(new)}"
    share = round(100 * (new - old) / old)
    return f"{'+' if new > old else '−'}{abs(share)} % ({in_bytes(old)} → {in_bytes(new)})"


def in_bytes(number: float) -> str:
    """``12.3 KiB``."""
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} GiB"


# --- numbers ----------------------------------------------------------------------------------------------------------


def _of_outputs(
    key: str, former_names: Mapping[str, str], old: Entry, new: Entry, is_equal: Callable[[float, float], bool]
) -> Iterator[Change]:
    """The changes of the drift or the noise of outputs."""
    for name, former_name in former_names.items():
        before, now = old.get(("values", former_name, key)), new.get(("values", name, key))
        if before is not None and now is not None and not is_equal(before, now):
            yield Change(kind="output-drift", text=f"{key} of {name!r} {before:.3g} → {now:.3g}", is_harmless=now < before)


def same_drift(old: float, new: float, limits: Limits) -> bool:
    """Whether two drifts count as equal."""
    return _within_factor(max(old, SMALL_DRIFT), max(new, SMALL_DRIFT), limits["drift"])


def _within_factor(old: float, new: float, factor: float) -> bool:
    return old == new or (math.isfinite(old) and new <= old * factor and old <= new * factor)


def _values(former_names: Mapping[str, str], old: Entry, new: Entry, limits: Limits) -> Iterator[Change]:
    """The changes of the values and the noise of outputs, given the same weights and inputs."""
    units = {name: _units(former_name, name, old, new, limits) for name, former_name in former_names.items()}
    changed = [name for name, multiple in units.items() if multiple > 1]
    for name, former_name in former_names.items():
        if ("values", former_name, "noise") in old and ("values", name, "noise") not in new:
            yield Change(kind="values", text=f"values of {name!r} can no longer be compared", is_harmless=True)
    swapped: set[str] = set()
    for first, second in itertools.combinations(changed, 2):
        crossed = ((former_names[second], first), (former_names[first], second))
        if all(_units(former_name, name, old, new, limits) <= 1 for former_name, name in crossed):
            yield Change(kind="values", text=f"outputs {first!r} and {second!r} swapped their values")
            swapped |= {first, second}
    for name in changed:
        if name not in swapped:
            text = _changed_values(name, former_names[name], old, new, units[name] * limits["values"])
            yield Change(kind="values", text=text)
    yield from _of_outputs("noise", former_names, old, new, lambda before, now: _within_factor(before, now, limits["noise"]))


def _changed_values(name: str, former_name: str, old: Entry, new: Entry, noises: float) -> str:
    """The changed values of an output in words, given their distance as a multiple of the noise."""
    distance = f" by {noises:.2g} times their noise" if math.isfinite(noises) else ""
    statistic = max(_STATISTICS, key=lambda key: abs(new["values", name, key] - old["values", former_name, key]))
    before, now = old["values", former_name, statistic], new["values", name, statistic]
    if f"{before:.6g}" == f"{now:.6g}":
        return f"values of {name!r} changed{distance}"
    return f"values of {name!r} changed{distance}: {statistic} {before:.6g} → {now:.6g}"


def _units(
    former_name: str, name: str, old: Entry, new: Entry, limits: Limits, keys: Sequence[str] = (*_STATISTICS, "sample")
) -> float:
    """The largest change of an output's values, as a multiple of what is allowed; 0 if they cannot be compared.

    One bound applies to all statistics: none of them changes by more than the value that changes most.
    """
    before, now = _below(old, "values", former_name), _below(new, "values", name)
    if not all(key in facts for key in (*keys, "noise") for facts in (before, now)):
        return 0.0
    # float64 tensors are often drawn in float32, so machines differ in the last digits of float32.
    coarsest = _ROUNDING * max(abs(before.get("least", 0.0)), abs(before.get("largest", 0.0))) if before["noise"] else 0.0
    noise = max(before["noise"], now["noise"], coarsest)
    largest = 0.0
    for key in keys:
        values, values_now = (before[key], now[key]) if key == "sample" else ([before[key]], [now[key]])
        if len(values) != len(values_now):
            return math.inf
        for a, b in zip(values, values_now, strict=True):
            if a == b or (math.isnan(a) and math.isnan(b)):
                continue
            allowed = limits["values"] * noise + 1e-12 * abs(a)  # recorded values are rounded in their last digit
            distance = abs(a - b)
            largest = max(largest, distance / allowed if allowed and math.isfinite(distance) else math.inf)
    return largest


# --- weights and inputs ------------------------------------------------------------------------------------------------


def _tensors(kind: str, message: str, old: Entry, new: Entry) -> Iterator[Change]:
    """Whether the weights or the inputs changed."""
    if _same_tensors(kind, old, new):
        return
    before, now = _below(old, kind), _below(new, kind)
    counts = [
        f"{before[key]} {noun}s → {now[key]}"
        for key, noun in (("tensors", "tensor"), ("values", "element"))
        if before[key] != now[key]
    ]
    if counts:
        reason = ", ".join(counts)
    elif before["layout"] != now["layout"]:
        reason = "different shapes or types"
    else:
        reason = "same shapes, different values"
        if kind == "weights":  # whose they are is not recorded
            reason += "; probe weights also change with what the model computes"
    text = f"{message} ({reason}), so values are not compared"
    yield Change(kind="inputs" if kind == "arguments" else kind, text=text)


def _same_tensors(kind: str, old: Entry, new: Entry) -> bool:
    before, now = _below(old, kind), _below(new, kind)
    if any(before[key] != now[key] for key in ("tensors", "values", "layout")):
        return False
    tolerance = SAME_TENSORS * max(before["norm"], now["norm"])
    pairs = zip([before["norm"], *before["projections"]], [now["norm"], *now["projections"]], strict=False)
    return len(before["projections"]) == len(now["projections"]) and all(abs(a - b) <= tolerance for a, b in pairs)


def _observability(old: Entry, new: Entry, limits: Limits) -> Iterator[Change]:
    line = ("observability",)
    if line in old and line in new and abs(new[line] - old[line]) > limits["observability"]:
        text = f"observability {old[line]:.0%} → {new[line]:.0%}".replace("%", " %")
        yield Change(kind="observability", text=text, is_harmless=new[line] > old[line])
