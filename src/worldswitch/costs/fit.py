"""Least squares for costs that add up and speeds that multiply, in relative errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worldswitch.errors import NotTold

if TYPE_CHECKING:
    import numpy as np

_ROUNDS = 200
_SETTLED = 1e-12


@dataclass(frozen=True, slots=True)
class Observed:
    """A time that was measured.

    Attributes:
        counts: Event -> how often it happened in that time.
        group: Of hosts that are equally fast.
    """

    value: float
    counts: Mapping[str, float]
    group: str


@dataclass(frozen=True, slots=True)
class Fit:
    """What was found, each with the relative standard deviation that the noise of the observations gives it.

    Attributes:
        costs: Event -> cost in the unit of the observations.
        scales: Group -> how much longer it takes; 1 for the reference.
        spread: Name of an event or group -> relative standard deviation.
    """

    costs: Mapping[str, float]
    scales: Mapping[str, float]
    spread: Mapping[str, float]

    @property
    def parameters(self) -> int:
        """How many numbers were fitted."""
        return len(self.spread)

    def predict(self, counts: Mapping[str, float], group: str, fixed: frozenset[str] = frozenset()) -> float:
        """The time *counts* take; events in *fixed* take the same on all hosts.

        Raises:
            NotTold: An event has no cost, or the group no speed.
        """
        unknown = [name for name in counts if name not in self.costs]
        if unknown or group not in self.scales:
            what = f"event {unknown[0]}" if unknown else f"group of hosts {group}"
            raise NotTold(f"nothing fitted tells of {what}, so this has no time")
        scale = self.scales[group]
        return sum(self.costs[name] * count * (1 if name in fixed else scale) for name, count in counts.items())


def least_squares(observed: Sequence[Observed], reference: str, fixed: frozenset[str], noise: float) -> Fit:
    """Costs and scales, all positive, with the least sum of squared relative errors (Gauss and Newton, in logarithms).

    Args:
        reference: The group with scale 1.
        fixed: Events that no scale applies to.
        noise: Relative standard deviation of one observation.

    Raises:
        NotTold: There are fewer observations than unknowns, or they do not tell the unknowns apart.
    """
    import numpy as np

    events = sorted({name for one in observed for name in one.counts})
    groups = sorted({one.group for one in observed} - {reference})
    size = len(events) + len(groups)
    if size > len(observed):
        raise NotTold(f"{len(observed)} observations cannot tell {size} unknowns: {', '.join([*events, *groups])}")
    counts = np.array([[one.counts.get(name, 0.0) for name in events] for one in observed], dtype=float)
    member = np.array([[one.group == group for group in groups] for one in observed], dtype=float)
    member = member.reshape(len(observed), len(groups))
    loose = np.array([name not in fixed for name in events])
    values = np.array([one.value for one in observed])
    at = np.log(np.concatenate([_start(counts, values), np.ones(len(groups))]))
    jacobian = np.zeros((len(observed), size))
    for _ in range(_ROUNDS):
        residual, jacobian = _linear(at, counts, member, loose, values)
        step = np.linalg.lstsq(jacobian, -residual, rcond=None)[0]
        at += np.clip(step, -1, 1)
        if np.abs(step).max() < _SETTLED:
            break
    if np.linalg.matrix_rank(jacobian, tol=1e-6) < size:
        raise NotTold(f"the observations do not tell {', '.join([*events, *groups])} apart")
    deviation = noise * np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))
    names = [*events, *groups]
    found = {name: math.exp(value) for name, value in zip(names, at.tolist(), strict=True)}
    return Fit(
        {name: found[name] for name in events},
        {reference: 1.0, **{name: found[name] for name in groups}},
        dict(zip(names, deviation.tolist(), strict=True)),
    )


def _start(counts: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A share of the time for each event that happens: positive, and of the right order."""
    import numpy as np

    share = values[:, None] / counts.shape[1] / np.where(counts > 0, counts, np.inf)
    return np.array([column[column > 0].min() for column in share.T])


def _linear(
    at: np.ndarray[Any, Any],
    counts: np.ndarray[Any, Any],
    member: np.ndarray[Any, Any],
    loose: np.ndarray[Any, Any],
    values: np.ndarray[Any, Any],
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Residuals ln(model / measured), and their derivatives by the logarithms."""
    import numpy as np

    costs = np.exp(at[: counts.shape[1]])
    scale = np.exp(member @ at[counts.shape[1] :])
    parts = counts * costs * np.where(loose, scale[:, None], 1.0)
    total = parts.sum(axis=1)
    scaled = parts[:, loose].sum(axis=1) / total
    return np.log(total / values), np.hstack([parts / total[:, None], member * scaled[:, None]])
