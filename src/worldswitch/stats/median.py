"""The median with an interval that assumes nothing of the distribution. Standard library, Python 3.9."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Median(NamedTuple):
    """The median, and two of the values between which the true one lies.

    Attributes:
        confidence: With what probability it does, if the values are independent: what was asked for, or the most that
            so few values can give.
    """

    low: float
    mid: float
    high: float
    confidence: float


def median(values: Sequence[float], confidence: float = 0.95) -> Median:
    """The median of *values*, at least one, with its order-statistic interval.

    The k-th smallest and the k-th largest of n values have the true median between them with probability
    1 - 2 P(B < k), B binomial with n trials of 1/2; k is the greatest with at least *confidence*, and 1 if there is
    none (n < 6 for 0.95). Source: David and Nagaraja, "Order Statistics", third edition, section 7.1.
    """
    ordered = sorted(values)
    n = len(ordered)
    mid = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    k, outside = 1, 2 * 0.5**n
    while k < (n + 1) // 2 and 1 - (wider := outside + 2 * math.comb(n, k) * 0.5**n) >= confidence:
        k, outside = k + 1, wider
    return Median(ordered[k - 1], mid, ordered[n - k], max(0.0, 1 - outside))
