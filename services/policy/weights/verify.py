"""Verification that an engine holds a version: the number that it reports, and the evidence that it shows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator
from typing import Literal

from services.policy.engines.protocol import Engine
from services.policy.weights.adapters import Version
from services.policy.weights.evidence import Probe, compare_rows
from triforge.errors import PolicyError, TriforgeError, WeightsError

_log = logging.getLogger(__name__)

VerifyBy = Literal["tensors", "info"]
# Largest mean difference of a log-probability, by the type that the engine computes in, or the version is in; "auto" may be any.
_TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "half": 2e-2}
_ROUGH = 1e-1
_NOT_BELIEVED = "it is not believed (TRIFORGE_WEIGHTS_VERIFY=info accepts what an engine reports, e.g. of one that quantises)"


class Verifier:
    """Compares what an engine shows with what was published; with `info` the number that it reports is enough."""

    def __init__(self, verify_by: VerifyBy = "tensors", timeout_s: float = 300.0) -> None:
        self._by_info = verify_by == "info"
        self._timeout_s = timeout_s
        self._without_evidence: set[str] = set()  # engines that were logged

    async def rows(self, engine: Engine, wanted: Version) -> bool:
        """Verify the version's number and the rows of its tensors, also while the engine is paused. False: it cannot show rows.

        Raises:
            PolicyError: the engine reports another number or shows other values.
        """
        reported = (await engine.info()).version
        if reported != wanted.number:
            raise PolicyError(
                f"engine {engine.url}: was asked to serve weight version {wanted.number}, serves {reported}"
            )
        if self._by_info:
            return True
        shown = False
        for rows in wanted.rows:
            copies = await engine.rows(rows.name, rows.count)
            for copy in copies or ():
                try:
                    compare_rows(rows, copy)
                except WeightsError as error:
                    raise PolicyError(
                        f"engine {engine.url}: reports weight version {wanted.number}, but {error.detail}; {_NOT_BELIEVED}"
                    ) from error
            shown = shown or copies is not None
        return shown

    async def probe(self, engine: Engine, wanted: Version) -> None:
        """Verify the log-probabilities of a version whose rows an engine cannot show; it must not be paused. Errors: see `rows`."""
        if wanted.probe is not None:
            async with deadline(
                engine, self._timeout_s, f"answer the probe of version {wanted.number}"
            ):
                await self._compare(engine, wanted.probe, f"weight version {wanted.number}")
        elif wanted.rows and engine.url not in self._without_evidence:
            self._without_evidence.add(engine.url)
            _log.warning(
                "engine %s cannot show its tensors; its version number is accepted", engine.url
            )

    async def adapter(self, engine: Engine, wanted: Version) -> None:
        """Verify the log-probabilities with a version's adapter. InputError: the engine does not have it."""
        if wanted.probe is not None:
            await self._compare(engine, wanted.probe, f"adapter {wanted.adapter}", wanted.adapter)

    async def _compare(self, engine: Engine, probe: Probe, what: str, adapter: str = "") -> None:
        logprobs, _ = await engine.prompt_logprobs(probe.ids, adapter)
        if self._by_info:
            return
        kind = await engine.dtype()
        allowed = max(_TOLERANCE.get(each, _ROUGH) for each in (kind, probe.dtype))
        pairs = zip(logprobs, probe.logprobs, strict=True)
        difference = math.fsum(abs(a - b) for a, b in pairs) / len(logprobs)
        if not difference <= allowed:
            raise PolicyError(
                f"engine {engine.url}: reports that it has {what}, but its log-probabilities are off by {difference:.3g} "
                f"in the mean, expected at most {allowed:g} (it computes in {kind}); {_NOT_BELIEVED}"
            )


@contextlib.asynccontextmanager
async def deadline(
    engine: Engine, timeout_s: float, action: str, error: type[TriforgeError] = PolicyError
) -> AsyncIterator[None]:
    """Raise `error` if the block takes too long."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise error(
            f"engine {engine.url}: did not {action} within {timeout_s:g} s (TRIFORGE_HANDOVER_TIMEOUT_S)"
        ) from None
