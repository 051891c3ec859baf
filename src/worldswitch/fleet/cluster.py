"""Dask as the workers: a cluster that fits this machine, or one that runs already."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worldswitch.errors import MissingError, UsageError, printable

if TYPE_CHECKING:
    from worldswitch.fleet.pieces import Item, Piece, Row, Work

_LEAST_MEMORY = 1 << 30
_AHEAD = 3
"""Pieces on their way to each thread: enough that none waits, few enough that memory stays flat."""
_CONNECT_S = 10.0
_STARTS = 3
"""A worker that is killed while it starts takes the others with it."""
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Tls:
    """Files for TLS between client, scheduler and workers."""

    ca_file: str
    cert: str
    key: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which workers.

    Attributes:
        scheduler: Address of a scheduler that runs; None: a cluster of this machine's own.
        workers: How many processes such a cluster has; None: as many as fit.
        tls: For a scheduler that insists on it.
    """

    scheduler: str | None = None
    workers: int | None = None
    tls: Tls | None = None


@contextmanager
def cluster(wanted: Wanted) -> Iterator[Cluster]:
    """A cluster as *wanted*, taken down (or left alone, if it was there before) at the end.

    Raises:
        MissingError: Dask is not installed, or no scheduler answers.
    """
    try:
        import dask
        import distributed
    except ImportError:
        raise MissingError(
            "several workers need Dask: pip install 'worldswitch[fleet]'; --workers 0 does without"
        ) from None
    dask.config.set({"distributed.comm.timeouts.connect": _CONNECT_S, "distributed.scheduler.worker-ttl": None})
    _quiet()
    security = _security(wanted.tls)
    if wanted.scheduler is None:
        with _local(wanted.workers or _fitting()) as local, distributed.Client(local) as client:
            yield Cluster(client)
        return
    try:
        client = distributed.Client(wanted.scheduler, security=security, timeout=_CONNECT_S)
    except (OSError, ValueError, TypeError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MissingError(
            f"no scheduler answers at {printable(wanted.scheduler)} ({printable(why)}); start one with dask scheduler, "
            "and workers with dask worker"
        ) from None
    try:
        yield Cluster(client)
    finally:
        with suppress(*_gone()):
            client.close(timeout=2)


def _gone() -> tuple[type[BaseException], ...]:
    """What Dask raises, here and there, when its scheduler is gone."""
    import asyncio
    from concurrent import futures

    from distributed.client import FutureCancelledError
    from distributed.comm.core import CommClosedError

    return (
        FutureCancelledError, CommClosedError, TimeoutError, OSError, RuntimeError, asyncio.CancelledError,
        futures.CancelledError,
    )  # fmt: skip


def _quiet() -> None:
    """Dask logs tracebacks of what is told in a sentence here."""
    import logging

    for name in list(logging.root.manager.loggerDict):
        if name == "distributed" or name.startswith("distributed."):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _fitting() -> int:
    """Workers that fit this machine: one for each CPU this process may use, with a GiB each."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), free // (2 * _LEAST_MEMORY)))


@contextmanager
def _local(workers: int) -> Iterator[Any]:
    """Processes of one thread each; nothing of it can be reached from another machine."""
    made = _started(workers)
    try:
        yield made
    finally:
        made.close(timeout=10)


def _started(workers: int) -> Any:
    import distributed

    why = ""
    for _ in range(_STARTS):
        try:
            return distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                host=_LOOPBACK,
                dashboard_address=f"{_LOOPBACK}:0",
                worker_dashboard_address=None,
                silence_logs=50,
            )
        except (RuntimeError, OSError, TimeoutError) as error:
            why = str(error)
    raise MissingError(f"no workers could be started here ({printable(why)}); --workers 0 does without")


def _security(tls: Tls | None) -> Any:
    if tls is None:
        return None
    from distributed.security import Security

    for path in (tls.ca_file, tls.cert, tls.key):
        if not os.access(path, os.R_OK):
            raise MissingError(f"{printable(path)} cannot be read; it was named for TLS")
    return Security(tls_ca_file=tls.ca_file, tls_client_cert=tls.cert, tls_client_key=tls.key, require_encryption=True)


class Cluster:
    """Pieces as tasks of Dask; see :class:`worldswitch.fleet.engine.Pool`."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._address = str(client.scheduler.address)

    @property
    def dashboard(self) -> str:
        """Where Dask shows what it does, with what it lacks for that; empty where it was started without."""
        from importlib.util import find_spec

        if "dashboard" not in self._client.scheduler_info().get("services", {}):
            return ""
        return str(self._client.dashboard_link) + (
            "" if find_spec("bokeh") else " (empty without bokeh: pip install bokeh)"
        )

    @property
    def threads(self) -> int:
        """How many pieces are worked on at once.

        Raises:
            MissingError: No worker came.
        """
        count = int(sum(self._client.nthreads().values()))
        if count:
            return count
        try:
            self._client.wait_for_workers(1, timeout=_CONNECT_S)
        except (TimeoutError, OSError):
            raise MissingError(
                f"the scheduler at {self._address} has no workers; start some with dask worker"
            ) from None
        return int(sum(self._client.nthreads().values()))

    def results(self, work: Work[Item], pieces: Sequence[Piece[Item]]) -> Iterator[tuple[Piece[Item], bytes]]:
        """See :class:`worldswitch.fleet.engine.Pool`.

        An item whose worker dies over and over (Dask tries three more times) is told from the others of its piece by
        working on each alone.
        """
        from distributed.scheduler import KilledWorker

        for piece, outcome in self._each(_piece, work, pieces):
            if not isinstance(outcome, KilledWorker):
                yield piece, outcome
                continue
            rows: dict[int, Row] = {}
            for (place, item), one in self._each(_one, work, list(enumerate(piece.items))):
                rows[place] = work.lost(item, _KILLED) if isinstance(one, KilledWorker) else one
            yield piece, work.pack([rows[place] for place in sorted(rows)])

    def _each(self, does: Any, work: Any, tasks: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Each of *tasks* with what came of it: a result, or that its workers were killed."""
        from distributed import as_completed
        from distributed.scheduler import KilledWorker

        waiting = iter(tasks)
        flying: dict[Any, Any] = {}
        done = as_completed()
        gone = _gone()
        try:
            for _ in range(_AHEAD * self.threads):
                self._send(does, work, waiting, flying, done)
            for future in done:
                error = future.exception(timeout=_CONNECT_S)
                if error is not None and not isinstance(error, KilledWorker):
                    if future.status == "error":
                        break  # of the work itself
                    raise error
                task = flying.pop(future.key)
                yield task, error if error is not None else future.result(timeout=_CONNECT_S)
                future.release()
                self._send(does, work, waiting, flying, done)
            else:
                return
        except MissingError:
            raise
        except gone:
            raise MissingError(
                f"the scheduler at {self._address} is gone; what is finished is kept, and the same command goes on "
                "from there"
            ) from None
        raise error

    def _send(self, does: Any, work: Any, waiting: Iterator[Any], flying: dict[Any, Any], done: Any) -> None:
        for task in waiting:
            future = self._client.submit(does, work, task, pure=False)
            flying[future.key] = task
            done.add(future)
            return


_KILLED = (
    "the workers that read it were killed, each time it was tried: it may need more memory than a worker has; "
    "read it alone"
)


def _piece(work: Work[Any], piece: Piece[Any]) -> bytes:
    return work.pack(work.rows(piece.items))


def _one(work: Work[Any], placed: tuple[int, Any]) -> Row:
    return work.rows([placed[1]])[0]


def insist_on_possible(workers: int | None, scheduler: str | None) -> None:
    """Refuse what contradicts itself.

    Raises:
        UsageError: A number of workers for a cluster that is there already.
    """
    if scheduler is not None and workers is not None:
        raise UsageError("--workers is how many this machine starts; with --scheduler those of the cluster do the work")
