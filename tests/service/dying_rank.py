"""A rank of a learner of which one is killed (SIGKILL) in the middle of a hand-over.

`tests.service.dying_rank SHARDING gathering|sending`, started once a rank, with the settings of a learner: the
second rank dies while the files of the weights are written, or while both send them, in small buckets.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import cast

from services.trainer.learner.batch_trainer import BatchTrainer
from services.trainer.learner.parallel import broadcast
from services.trainer.learner.parallel.broadcast import Broadcaster, open_api
from services.trainer.learner.parallel.ranks import Ranks, Sharding
from services.trainer.learner.process import serve_learner
from services.trainer.learner.weights import tensors as weight_tensors
from triforge.config import Settings
from triforge.store.artifacts import ArtifactStore

BUCKET_BYTES = 4000
_CALLS = 3  # so many tensors are written, or buckets made, before the end


class Death:
    """Counts calls, and kills the second rank at one of them."""

    def __init__(self, moment: str, victim: int) -> None:
        self._moment, self._victim, self._left = moment, victim, _CALLS

    def seen(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call; called by the profiler."""
        if event != "call" or not self._counts(frame):
            return
        self._left -= 1
        if self._left == 0:
            os.kill(self._victim, signal.SIGKILL)
        if self._left <= 0:
            time.sleep(60)  # so that nothing more is sent before the test ends this rank, too

    def _counts(self, frame: FrameType) -> bool:
        if self._moment == "sending":
            return frame.f_code is broadcast._flat.__code__
        written = frame.f_code is weight_tensors._File.append.__code__
        return written and frame.f_locals["self"].path.name.startswith(weight_tensors.MODEL)


def main() -> None:
    """One process."""
    sharding, moment = sys.argv[1:]
    settings = Settings.from_env()
    store = ArtifactStore(settings.artifacts_url)
    ranks = Ranks.join(cast(Sharding, sharding))
    victim = int(ranks.sum(os.getpid() * float(ranks.rank == 1)))
    trainer = BatchTrainer(store, ranks)
    if ranks.rank == (0 if moment == "sending" else 1):
        death = Death(moment, victim)
        threading.setprofile(death.seen)
        sys.setprofile(death.seen)
    broadcaster = Broadcaster(
        store.local_path("weights"), host="127.0.0.1", device=ranks.device, backend="gloo", timeout_s=20.0,
        bucket_bytes=BUCKET_BYTES,
    )  # fmt: skip
    key = settings.admin_api_key.get_secret_value()
    with open_api(broadcaster, host="127.0.0.1", listen="127.0.0.1", admin_api_key=key) as address:
        handover = broadcast._of_all_ranks(address)
        if ranks.rank > 0:
            trainer.follow()
        else:
            asyncio.run(serve_learner("policy", settings, store, trainer, handover))


if __name__ == "__main__":
    main()
