"""What changed from one entry of a cell to another, in words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx_ci.baseline.entry import Entry, Line
from onnx_ci.environment.versions import differing_versions
from onnx_ci.results.records import DeclaredValue
from onnx_ci.text import count

Limits = Mapping[str, float]
"""By the names of :data:`onnx_ci.config.values.BASELINE_LIMITS`."""

SMALL_DRIFT = 2.0
"""Drifts up to this count as equal: that much varies from machine to machine."""

SAME_TENSORS = 4e-6
"""How far projections of the same tensors may differ, as a share of their norm: thirty float32 rounding errors."""

_ROUNDING = 2**-24
"""The relative rounding error of float32: the tolerance of inexact values is never smaller."""

_STATISTICS = ("least", "mean", "largest", "spread")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One difference between two entries."""

    kind: str
    """A key of :data:`onnx_ci.config.values.BASELINE_POLICY`."""
    words: str
    is_harmless: bool = False
    """Whether it is a note at most: an improvement, or values that now depend on rounding and so on the machine."""


def changes(old: Entry, new: Entry, limits: Limits) -> list[Change]:
    """What changed from ``old`` to ``new`` by more than ``limits`` allow, except versions."""
    found = [Change(kind="format", words=words) for words in _format(old, new)]
    renamed: dict[str, str] = {}
    for role in ("input", "output"):
        words, former = _signature(role, old, new)
        found += [Change(kind="signature", words=each) for each in words]
        renamed = former
    found += [Change(kind="operators", words=words) for words in _operators(old, new, limits)]
    found += [Change(kind="size", words=words) for words in _size(old, new, limits)]
    differ = [*_tensors("weights", "the weights differ", old, new), *_tensors("arguments", "the inputs differ", old, new)]
    found += differ
    found += _drift(renamed, old, new, limits)
    if not differ:
        found += _values(renamed, old, new, limits)
    found += _observability(old, new, limits)
    return found


def changed_versions(old: Entry, new: Entry) -> str:
    """What :func:`~onnx_ci.environment.versions.differing_versions` says of the packages of two entries."""
    return differing_versions(_below(old, "versions"), _below(new, "versions"))


def is_same(line: Line, old: Entry, new: Entry, limits: Limits) -> bool:
    """Whether :func:`changes` reports no difference in a fact that both entries have, even if its last digits differ."""
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
    """The facts directly below a path, by the last part of their paths."""
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
    """The changes of inputs or outputs in words, and for each current name the old one."""
    before, now = old[f"{role}s",], new[f"{role}s",]
    removed, added = [name for name in before if name not in now], [name for name in now if name not in before]
    former = {name: name for name in now if name in before}
    words = []
    if len(before) == len(now):
        for was, name in zip(before, now, strict=True):
            if was in removed and name in added:
                former[name] = was
                words.append(f"{role} {was!r} renamed to {name!r}")
    words += [f"{role} {name!r} was removed" for name in removed if name not in former.values()]
    words += [f"{role} {name!r} was added" for name in added if name not in former]
    if not removed and not added and before != now:
        words.append(f"{role}s reordered: {', '.join(before)} → {', '.join(now)}")
    declared: dict[str, tuple[DeclaredValue, DeclaredValue]] = {
        name: (old[role, was], new[role, name]) for name, was in former.items()
    }
    # Types are compared as text: a dimension whose name contains a comma is read back as two.
    types = {name: (was.type_text, is_now.type_text) for name, (was, is_now) in declared.items()}
    changed = [name for name, (was, is_now) in types.items() if was != is_now]
    for one, other in itertools.combinations(changed, 2):
        if types[one] == types[other][::-1]:
            words.append(f"{role}s {one!r} and {other!r} swapped")
            former[one], former[other] = former[other], former[one]
            changed = [name for name in changed if name not in (one, other)]
    return words + [f"{role} {name!r} {each}" for name in changed for each in _type(*declared[name])], former


def _type(old: DeclaredValue, new: DeclaredValue) -> Iterator[str]:
    """What changed from ``float[batch, 3]`` to ``double[2, 3]``, in words."""
    if old.dtype != new.dtype:
        yield f"{old.dtype} → {new.dtype}"
    if old.dims == new.dims:
        return
    if old.dims is None or new.dims is None or len(old.dims) != len(new.dims):
        yield f"{old.type_text} → {new.type_text}"
        return
    for axis, (was, size) in enumerate(zip(old.dims, new.dims, strict=True)):
        if was != size:
            fixed = "" if was.isdecimal() or not size.isdecimal() else ", now static"
            yield f"axis {axis} {was} → {size}{fixed}"


# --- counts and sizes -------------------------------------------------------------------------------------------------


def _operators(old: Entry, new: Entry, limits: Limits) -> Iterator[str]:
    before, now = _below(old, "operators"), _below(new, "operators")
    differ = {name: now.get(name, 0) - before.get(name, 0) for name in sorted({**before, **now})}
    beyond = [f"{_signed(difference)} {name}" for name, difference in differ.items() if abs(difference) > limits["counts"]]
    # Additions come first: a device may not support them.
    if beyond:
        yield ", ".join(sorted(beyond, key=lambda each: each.startswith("−")))


def _signed(number: int) -> str:
    return f"+{number}" if number > 0 else f"−{-number}"


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
    """Whether two sizes differ by at most this share of the old one."""
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


def _drift(renamed: Mapping[str, str], old: Entry, new: Entry, limits: Limits) -> Iterator[Change]:
    for name, was in renamed.items():
        line, former = ("values", name, "drift"), ("values", was, "drift")
        if line in new and former in old and not same_drift(old[former], new[line], limits):
            words = f"drift of {name!r} {old[former]:.3g} → {new[line]:.3g}"
            yield Change(kind="drift", words=words, is_harmless=new[line] < old[former])


def same_drift(old: float, new: float, limits: Limits) -> bool:
    """Whether two drifts count as equal."""
    return _within_factor(max(old, SMALL_DRIFT), max(new, SMALL_DRIFT), limits["drift"])


def _within_factor(old: float, new: float, factor: float) -> bool:
    return old == new or (math.isfinite(old) and new <= old * factor and old <= new * factor)


def _values(renamed: Mapping[str, str], old: Entry, new: Entry, limits: Limits) -> Iterator[Change]:
    """Changes of the values and the noise of outputs; weights and inputs are the same."""
    units = {name: _units(was, name, old, new, limits) for name, was in renamed.items()}
    changed = [name for name, each in units.items() if each > 1]
    for name, was in renamed.items():
        if ("values", was, "noise") in old and ("values", name, "noise") not in new:
            yield Change(kind="values", words=f"values of {name!r} can no longer be compared", is_harmless=True)
    for one, other in itertools.combinations(changed, 2):
        if max(_units(renamed[other], one, old, new, limits), _units(renamed[one], other, old, new, limits)) <= 1:
            yield Change(kind="values", words=f"outputs {one!r} and {other!r} swapped their values")
            changed = [name for name in changed if name not in (one, other)]
    for name in changed:
        yield Change(kind="values", words=_changed_values(name, renamed[name], old, new, units[name] * limits["values"]))
    for name, was in renamed.items():
        noise, former = new.get(("values", name, "noise")), old.get(("values", was, "noise"))
        if noise is not None and former is not None and not _within_factor(former, noise, limits["noise"]):
            yield Change(kind="drift", words=f"noise of {name!r} {former:.3g} → {noise:.3g}", is_harmless=noise < former)


def _changed_values(name: str, was: str, old: Entry, new: Entry, units: float) -> str:
    far = f" by {units:.2g} times their noise" if math.isfinite(units) else ""
    most = max(_STATISTICS, key=lambda key: abs(new["values", name, key] - old["values", was, key]))
    before, now = old["values", was, most], new["values", name, most]
    if f"{before:.6g}" == f"{now:.6g}":
        return f"values of {name!r} changed{far}"
    return f"values of {name!r} changed{far}: {most} {before:.6g} → {now:.6g}"


def _units(
    was: str, name: str, old: Entry, new: Entry, limits: Limits, keys: Sequence[str] = (*_STATISTICS, "sample")
) -> float:
    """How far the values of an output changed, as a multiple of what is allowed; 0 if they cannot be compared.

    Minimum, maximum, mean and standard deviation never change by more than the value that changes most, so one bound applies
    to all of them.
    """
    before, now = _below(old, "values", was), _below(new, "values", name)
    if not all(key in each for key in (*keys, "noise") for each in (before, now)):
        return 0.0
    # float64 tensors are often drawn in float32, so machines differ in the last digits of float32.
    coarsest = _ROUNDING * max(abs(before.get("least", 0.0)), abs(before.get("largest", 0.0))) if before["noise"] else 0.0
    noise = max(before["noise"], now["noise"], coarsest)
    furthest = 0.0
    for key in keys:
        one, other = ([each] if key != "sample" else each for each in (before[key], now[key]))
        if len(one) != len(other):
            return math.inf
        for a, b in zip(one, other, strict=True):
            # Recorded values are rounded in their last digit.
            allowed = limits["values"] * noise + 1e-12 * abs(a)
            if a == b or (math.isnan(a) and math.isnan(b)):
                continue
            distance = abs(a - b)
            furthest = max(furthest, distance / allowed if allowed and math.isfinite(distance) else math.inf)
    return furthest


# --- weights and inputs ------------------------------------------------------------------------------------------------


def _tensors(kind: str, message: str, old: Entry, new: Entry) -> Iterator[Change]:
    """Whether the weights or the inputs changed."""
    if _same_tensors(kind, old, new):
        return
    before, now = _below(old, kind), _below(new, kind)
    how = [
        f"{before[key]} {word}s → {now[key]}"
        for key, word in (("tensors", "tensor"), ("values", "element"))
        if before[key] != now[key]
    ]
    if not how:
        how = ["different shapes or types" if before["layout"] != now["layout"] else "same shapes, different values"]
    words = f"{message} ({', '.join(how)}), so values are not compared"
    yield Change(kind="inputs" if kind == "arguments" else kind, words=words)


def _same_tensors(kind: str, old: Entry, new: Entry) -> bool:
    before, now = _below(old, kind), _below(new, kind)
    if any(before[key] != now[key] for key in ("tensors", "values", "layout")):
        return False
    far = SAME_TENSORS * max(before["norm"], now["norm"])
    pairs = zip([before["norm"], *before["projections"]], [now["norm"], *now["projections"]], strict=False)
    return len(before["projections"]) == len(now["projections"]) and all(abs(a - b) <= far for a, b in pairs)


def _observability(old: Entry, new: Entry, limits: Limits) -> Iterator[Change]:
    line = ("observability",)
    if line in old and line in new and abs(new[line] - old[line]) > limits["observability"]:
        words = f"observability {old[line]:.0%} → {new[line]:.0%}".replace("%", " %")
        yield Change(kind="observability", words=words, is_harmless=new[line] > old[line])
