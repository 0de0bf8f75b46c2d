"""An agent loop of verl on a pool: the sessions of a prompt are a group, and each brings its reward with it.

    class Kitchen(TaskLoop, AgentLoopBase):
        tasks = SessionGroups(Sidecar(URL, "kitchen"))
        make = Household

Made for verl 0.9 and its trainer V1, whose sessions of a prompt run in one worker. It needs no reward manager.
"""

from __future__ import annotations

import asyncio
import importlib
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from triforge.sidecar.client import Credit, DrawnTask, Rollout, Sidecar
from triforge.sidecar.groups import Groups
from triforge.sidecar.trl import Episode


class SessionGroups:
    """The tasks of one pool, for all agent loops of a worker."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._groups = Groups(sidecar)
        self._playing: dict[str, _Group] = {}

    async def play(
        self,
        prompt: str,
        session: int,
        count: int,
        version: int,
        attempt: Callable[[DrawnTask, str], Awaitable[Rollout]],
    ) -> Credit:
        """Play one of the `count` sessions of a prompt, the first of which draws the task; return its credit when all are over.

        Raises:
            ValueError: the trainer plays another number of sessions than the run.
        """
        if prompt not in self._playing:
            self._playing[prompt] = _Group(self._groups, version)
        group = self._playing[prompt]
        drawn = await asyncio.shield(group.drawn)
        if not session < len(drawn.rollouts) <= count:
            raise ValueError(
                f"actor_rollout_ref.rollout.n: given {count}, the run plays this task {len(drawn.rollouts)} times; set "
                "env_adapter.rollouts of the run to the same number"
            )
        name = drawn.rollouts[session]
        try:
            rollout = await attempt(drawn, name)
        except Exception as error:
            self._add(prompt, Rollout(name, error=f"{type(error).__name__}: {error}"[:2000]))
            raise
        self._add(prompt, rollout)
        return await group.credit(name)

    def _add(self, prompt: str, rollout: Rollout) -> None:
        if self._playing[prompt].add(rollout):
            del self._playing[prompt]


class _Group:
    """A group in play, reported when its last session is over."""

    def __init__(self, groups: Groups, version: int) -> None:
        self.drawn = asyncio.ensure_future(groups.draw())
        self._groups, self._version = groups, version
        self._rollouts: list[Rollout] = []
        self._whole = asyncio.Event()
        self._report: asyncio.Future[list[Credit]]

    def add(self, rollout: Rollout) -> bool:
        """Add the result of a session; return whether it was the last."""
        self._rollouts.append(rollout)
        if len(self._rollouts) == len(self.drawn.result().rollouts):
            report = self._groups.report(self._rollouts, self._version)
            self._report = asyncio.ensure_future(report)
            self._whole.set()
        return self._whole.is_set()

    async def credit(self, name: str) -> Credit:
        await self._whole.wait()
        credits = await asyncio.shield(self._report)
        return next(credit for credit in credits if credit.id == name)


class TaskLoop:
    """The part of an agent loop that plays episodes of several turns in text; the other base is verl's `AgentLoopBase`."""

    tasks: ClassVar[SessionGroups]
    make: ClassVar[Callable[[DrawnTask], Episode]]

    async def run(
        self,
        sampling_params: dict[str, Any],
        *,
        uid: str,
        session_id: int,
        global_steps: int,
        **_: Any,
    ) -> Any:
        """Play one session; return what verl's `AgentLoopBase.run` does."""
        played = _Played(self, sampling_params)
        count = played.limits.n
        credit = await self.tasks.play(uid, session_id, count, int(global_steps), played.rollout)
        return played.output(credit)


class _Played:
    """The tokens and messages of a session."""

    def __init__(self, loop: Any, sampling: dict[str, Any]) -> None:
        self._loop, self._sampling, self.limits = loop, sampling, loop.rollout_config
        self._messages: list[dict[str, Any]] = []
        self._ids: list[int] = []  # of the prompt and what followed
        self._mask: list[int] = []  # of what followed
        self._logprobs: list[float] | None = None
        self._fields: dict[str, Any] = {}  # of verl: versions of the weights

    async def rollout(self, drawn: DrawnTask, name: str) -> Rollout:
        """Play; an episode that is cut off is a failure."""
        limits = self.limits
        episode = await asyncio.to_thread(type(self._loop).make, drawn)
        self._messages = [{"role": "user", "content": await asyncio.to_thread(episode.start)}]
        self._ids = await self._loop.ct_build_initial_tokens(self._messages)
        request, over, turns = uuid.uuid4().hex, False, 0
        while not over and len(self._mask) < limits.response_length:
            if turns and turns == limits.multi_turn.max_assistant_turns:
                break
            turns += 1
            text = await self._answer(request)
            seen, over = await asyncio.to_thread(episode.step, text)
            await self._observe(seen, over=over)
        cut = not over or len(self._mask) > limits.response_length
        won = not cut and bool(episode.success)
        return Rollout(name, self._messages, success=won, truncated=cut)

    def output(self, credit: Credit) -> Any:
        """Return the session as verl trains on it."""
        made = importlib.import_module("verl.experimental.agent_loop").AgentLoopOutput
        start, most = len(self._ids) - len(self._mask), self.limits.response_length
        return made(
            prompt_ids=self._ids[:start],
            response_ids=self._ids[start:][:most],
            response_mask=self._mask[:most],
            response_logprobs=self._logprobs and self._logprobs[:most],
            reward_score=credit.reward,
            num_turns=len(self._messages),
            metrics={},
            extra_fields=self._fields | {"reward_extra_info": {}, "turn_scores": [], "tool_rewards": []},
        )  # fmt: skip

    async def _answer(self, request: str) -> str:
        out = await self._loop.server_manager.generate(
            request_id=request, prompt_ids=self._ids, sampling_params=self._sampling
        )
        self._fields = out.extra_fields | self._fields
        if newest := out.extra_fields.get("max_global_steps"):
            self._fields["max_global_steps"] = newest
        if out.log_probs and self._logprobs is None:
            self._logprobs = []
        merged, self._mask, self._logprobs = await self._loop.ct_merge_assistant_token(
            self._ids, out.token_ids, self._mask, self._logprobs, assistant_logprobs=out.log_probs or None
        )  # fmt: skip
        self._ids = merged.token_ids
        text: str = self._loop.tokenizer.decode(out.token_ids, skip_special_tokens=True).strip()
        self._messages.append({"role": "assistant", "content": text})
        return text

    async def _observe(self, seen: str, *, over: bool) -> None:
        before = [*self._messages]
        self._messages.append({"role": "user", "content": seen})
        if not over:
            merged, self._mask, self._logprobs = await self._loop.ct_merge_context_msg(
                before, self._messages, self._ids, self._mask, self._logprobs
            )
            self._ids = merged.token_ids
