"""What a learner does with one batch: train it, publish the version, or find that it was done before.

| version batch.version + 1 of the run   | what happens                           |
|----------------------------------------|----------------------------------------|
| is not published, nor any newer one    | train, publish, announce               |
| is published                           | announce again                         |
| was pruned, newer ones are published   | nothing: the run has moved on          |

It is looked at before the training and once more before the publishing, which one process does at a time: two learners of one
model are no harm, be it that one stands by for the other's death, or that one comes back from where nobody heard of it.

A failure is announced as well (`WeightsReady.error`), so that the orchestrator stops the run with the reason. So is a batch
that three processes have begun and none has come back from. An artifact store that does not answer is no failure: the
step is taken again when it does, as long as the orchestrator waits for it.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

import torch

from services.trainer import learner_metrics as metrics
from services.trainer.attempts import MOST, Attempts
from services.trainer.checkpoint import Shelf
from services.trainer.distributed import Ranks
from services.trainer.learner import Interrupted, Learner
from services.trainer.learner_process import GivenUp
from services.trainer.learner_ranks import Crew
from services.trainer.publish_lock import GRACE_S
from services.trainer.train_settings import TrainSettings
from triforge.errors import TrainerError, TriforgeError, UnavailableError
from triforge.store.artifacts import ArtifactStore
from triforge.telemetry import tracing
from triforge.types import ErrorInfo, StepReport, TrainBatch, TrainedRole, WeightsReady

log = logging.getLogger(__name__)


class Answers:
    """The hands of one rank of a learner; the loop is its ears and its mouth.

    Args:
        store: rows, weights and checkpoints.
        role: the model this process trains.
        ranks: the processes that train together, of which this is one; it alone, on the CPU, by default.
        grace_s: seconds for which another process may hold up the publishing of a step whose lease this one has.
    """

    def __init__(
        self,
        store: ArtifactStore,
        role: TrainedRole,
        ranks: Ranks | None = None,
        *,
        grace_s: float = GRACE_S,
    ) -> None:
        self.ranks = ranks or Ranks(torch.device("cpu"))
        self._store, self._grace_s = store, grace_s
        self._crew = Crew(store, self.ranks, self.ranks.device)
        self._attempts = Attempts(store, role)

    def follow(self) -> None:
        """Every rank but the first: train as the first one says, which also says when to go."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, signal.SIG_IGN)
        self._crew.follow()
        self.ranks.leave()

    def dismiss(self) -> None:
        """Let the other ranks go; nothing is trained afterwards."""
        self._crew.dismiss()

    def answer(
        self, batch: TrainBatch, should_stop: Callable[[], bool] = lambda: False
    ) -> WeightsReady | None:
        """What is to be announced about a batch; None when the run has moved on. Blocks while it trains.

        Args:
            batch: new, old, or one that was trained before a crash.
            should_stop: asked between forward passes.

        Raises:
            GivenUp: told to stop; nothing of the step is kept.
            UnavailableError: the artifact store is away, or another process has passed this one by; nothing of the step is kept, and it may be taken again.
        """
        try:
            ready = self._train_once(batch, should_stop)
        except (Interrupted, UnavailableError) as error:
            self._crew.drop()
            self._attempts.clear()
            if isinstance(error, UnavailableError):
                raise
            raise GivenUp from error
        except TriforgeError as error:
            log.exception("batch %s", batch.batch_id)
            ready = self._failed(
                batch, ErrorInfo(kind=error.kind, detail=error.detail, retryable=error.retryable)
            )
        except (
            Exception
        ) as error:  # the border: an unforeseen fault fails this run, not the process
            log.exception("batch %s", batch.batch_id)
            if self._crew.ranks.world > 1:
                raise  # the other ranks wait in the middle of a step; torchrun ends them with this one
            ready = self._failed(
                batch, ErrorInfo(kind="internal", detail=f"{type(error).__name__}: {error}")
            )
        self._attempts.clear()
        return ready

    def _failed(self, batch: TrainBatch, error: ErrorInfo) -> WeightsReady:
        self._crew.drop()
        metrics.BATCHES.labels(batch.role, "failed").inc()
        return WeightsReady(
            run_id=batch.run_id,
            role=batch.role,
            step=batch.step,
            version=batch.version,
            uri="",
            digest="",
            error=error,
        )

    def _train_once(
        self, batch: TrainBatch, should_stop: Callable[[], bool]
    ) -> WeightsReady | None:
        shelf = Shelf(self._store, batch.run_id, batch.role)
        done, ready = _is_done(shelf, batch)
        if done:
            return ready
        self._begin(batch)
        settings = TrainSettings.of(batch)
        with tracing.span("train", rows=batch.num_rows, tokens=batch.num_tokens):
            learner, report = self._train(shelf, batch, should_stop)
        with tracing.span("publish"), shelf.alone(should_stop, self._grace_s):
            # Another process took the step if this one stood still for longer than its lease.
            done, ready = _is_done(shelf, batch)
            if done:
                return ready
            ready = shelf.publish(learner, batch, report, keep=settings.keep)
        self._crew.keep(batch, learner)
        metrics.trained(batch.role, report)
        log.info("batch %s: version %d, %s", batch.batch_id, ready.version, _short(report.metrics))
        return ready

    def _train(
        self, shelf: Shelf, batch: TrainBatch, should_stop: Callable[[], bool]
    ) -> tuple[Learner, StepReport]:
        try:
            return self._crew.train(shelf, batch, should_stop)
        except (
            torch.OutOfMemoryError
        ) as error:  # of a GPU; what wants too much of the machine's is killed
            if self._crew.ranks.world > 1:
                raise
            said = str(error).partition("\n")[0]
            raise TrainerError(
                f"the GPU has too little memory for this batch ({batch.num_rows} rows, {batch.num_tokens} tokens): "
                f"{_options(batch)}, or set activation_checkpointing there ({said})"
            ) from error

    def _begin(self, batch: TrainBatch) -> None:
        """Note the attempt.

        Raises:
            TrainerError: enough processes have ended at this batch.
        """
        ended = self._attempts.count(batch)
        if ended >= MOST:
            raise TrainerError(
                f"the learner ended {ended} times while training this batch ({batch.num_rows} rows, {batch.num_tokens} "
                f"tokens); its log says more. Without a word there it was most likely for want of memory: {_options(batch)}"
            )
        self._attempts.begin(batch)


def _is_done(shelf: Shelf, batch: TrainBatch) -> tuple[bool, WeightsReady | None]:
    """Whether nothing is to be trained, and what is to be announced then."""
    target = batch.version + 1
    ready = shelf.ready(target)
    if ready is not None:
        log.info("batch %s: version %d is published already", batch.batch_id, target)
        return True, ready
    newest = shelf.newest()
    return newest is not None and newest > target, None


def _options(batch: TrainBatch) -> str:
    """What makes a batch need less memory."""
    section = "trainer.policy" if batch.role == "policy" else "trainer.reward"
    return f"lower {section}.token_budget or {section}.max_tokens"


def _short(metrics: dict[str, float]) -> str:
    shown = ("loss", "grad_norm", "tokens_per_s", "seconds")
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in shown if name in metrics)
