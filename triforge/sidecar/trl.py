"""TRL's `GRPOTrainer` on a pool: tasks are drawn when they are to be played, and the reward is the sidecar's.

    tasks = GRPOTasks(sidecar, num_generations=8)
    GRPOTrainer(..., train_dataset=tasks.rows(), reward_funcs=tasks.reward, rollout_func=tasks.play(Episode))

Made for TRL 1.16. Each process must play whole groups: its rows of a generation are a multiple of `num_generations`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from triforge.sidecar.client import DrawnTask, Rollout, Sidecar


class Episode(Protocol):
    """An episode of the caller's environment, in text; made with a task."""

    success: bool | None

    def start(self) -> str:
        """Return the first observation, which holds the instruction."""

    def step(self, answer: str) -> tuple[str, bool]:
        """Return the observation that followed, and whether the episode is over; then `success` is read."""


class GRPOTasks:
    """Tasks for one `GRPOTrainer`; `num_generations` is the trainer's, and `env_adapter.rollouts` of the run."""

    def __init__(self, sidecar: Sidecar, num_generations: int) -> None:
        self._sidecar, self._rollouts = sidecar, num_generations

    def rows(self, count: int = 1024) -> Any:
        """Return a dataset of empty prompts: `play` draws the tasks."""
        rows = {"prompt": [[{"role": "user", "content": ""}]] * count}
        return importlib.import_module("datasets").Dataset.from_dict(rows)

    def play(
        self, make: Callable[[DrawnTask], Episode], *, max_turns: int = 30
    ) -> Callable[[list[Any], Any], dict[str, Any]]:
        """Return a `rollout_func` that plays episodes of several turns side by side."""

        def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
            places = self._groups(len(prompts) // self._rollouts)
            rows = [_Row(trainer, make(task), name) for task, name in places]
            for _ in range(max_turns):
                alive = [row for row in rows if not row.over]
                if not alive:
                    break
                prompt_ids = [[*row.prompt, *row.ids] for row in alive]
                sampled, logprobs = trainer._generate_single_turn(prompt_ids, None, {}, 1)
                for number, row in enumerate(alive):
                    row.answer(sampled[number], logprobs[number] if logprobs else None)
            known = all(row.logprobs is not None for row in rows)
            return {
                "prompt_ids": [row.prompt for row in rows],
                "completion_ids": [row.ids for row in rows],
                "logprobs": [row.logprobs for row in rows] if known else None,
                "env_mask": [row.mask for row in rows],
                "rollout": [row.rollout() for row in rows],
            }

        return rollout

    def reward(
        self,
        *,
        trainer_state: Any,
        rollout: Sequence[Rollout],
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """Report what was played; return outcome and votes as the run's algorithm joins them. None: it was not measured."""
        counted = [one for one in rollout if one.id]
        version = int(trainer_state.global_step)
        credits = {c.id: c for c in self._sidecar.report(counted, policy_version=version)}
        if log_metric is not None:
            log_metric("sidecar/success", sum(bool(one.success) for one in rollout) / len(rollout))
        return [credits[one.id].reward if one.id else None for one in rollout]

    def _groups(self, count: int) -> list[tuple[DrawnTask, str]]:
        """Draw a task for each of so many groups of generations; rows in addition to the rollouts of a task have no id."""
        places: list[tuple[DrawnTask, str]] = []
        for task in self._sidecar.draw(count):
            if len(task.rollouts) > self._rollouts:
                raise ValueError(
                    f"num_generations: given {self._rollouts}, the run plays each task {len(task.rollouts)} times; set "
                    "env_adapter.rollouts of the run to the same number"
                )
            names = [*task.rollouts, *[""] * (self._rollouts - len(task.rollouts))]
            places += [(task, name) for name in names]
        return places


class _Row:
    """One row of a generation: its tokens, and the conversation so far."""

    def __init__(self, trainer: Any, episode: Episode, name: str) -> None:
        self._trainer, self._episode, self._name = trainer, episode, name
        self._messages = [{"role": "user", "content": episode.start()}]
        self.prompt: list[int] = self._rendered()
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] | None = []
        self.over = False
        self._cut = False

    def answer(self, ids: list[int], logprobs: list[float] | None) -> None:
        """Add sampled tokens, and those of the observation that followed."""
        tokenizer = self._trainer.processing_class
        self._add(ids, 1, logprobs)
        text = tokenizer.decode(ids, skip_special_tokens=True).strip()
        self._messages.append({"role": "assistant", "content": text})
        ended = self._rendered(generate=False)
        seen, self.over = self._episode.step(text)
        self._messages.append({"role": "user", "content": seen})
        if self.over:
            return
        # between the sampled tokens and the next ones stands what the template writes after the end of an answer
        ends = [n for n, token in enumerate(ended) if token == tokenizer.eos_token_id]
        closed = ids[-1:] == [tokenizer.eos_token_id]
        rest = ended[ends[-1] + closed :] if ends else []
        new = [*rest, *self._rendered()[len(ended) :]]
        if len(self.ids) + len(new) >= self._trainer.max_completion_length:
            self.over = self._cut = True
        else:
            self._add(new, 0, [0.0] * len(new))

    def rollout(self) -> Rollout:
        """Return the report of the row; an episode that was cut off is a failure."""
        cut = self._cut or not self.over
        won = not cut and bool(self._episode.success)
        return Rollout(self._name, self._messages, success=won, truncated=cut)

    def _add(self, ids: list[int], mask: int, logprobs: list[float] | None) -> None:
        self.ids += ids
        self.mask += [mask] * len(ids)
        known = self.logprobs is not None and logprobs is not None
        self.logprobs = [*(self.logprobs or ()), *(logprobs or ())] if known else None

    def _rendered(self, *, generate: bool = True) -> list[int]:
        ids = self._trainer.processing_class.apply_chat_template(
            self._messages, add_generation_prompt=generate, tokenize=True, return_dict=False
        )
        return [int(token) for token in ids]
