"""Percentiles by nearest rank: each is one of the values."""

from __future__ import annotations


def nearest_rank(n: int, percent: int) -> int:
    """Place of a percentile among *n* sorted values; *n* is at least 1, *percent* 0 to 100."""
    return max(0, -(-n * percent // 100) - 1)
