"""One training by TRL, in the interpreter of TRL: over the sidecar, or alone on a list of tasks (`TASKS`), as one writes it without triforge's client.

Both have the same environment, model and seeds. `OUT` gets what was sampled, the rewards and the losses of each step.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any, Final

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from triforge.environments.registry import family
from triforge.sidecar import Sidecar
from triforge.sidecar.trl import GRPOTasks
from triforge.types import Task

K, TASKS_A_STEP, TURNS = 8, 4, 8
STEPS: Final = int(os.environ["STEPS"])
_URL: Final = os.environ.get("TRIFORGE_ENV_ADAPTER_URL")


class Household:
    """The environment of in_trl.py."""

    success = None

    def __init__(self, task: dict[str, Any], options: dict[str, Any]) -> None:
        self.task = Task.model_validate(task)
        self.environment = family(self.task.family).make(options)

    def start(self) -> str:
        return asyncio.run(self.environment.reset(self.task, seed=1)).observation.text

    def step(self, answer: str) -> tuple[str, bool]:
        result = asyncio.run(self.environment.step(answer))
        self.success = result.success
        return result.observation.text, result.done


class Alone:
    """A list of tasks, in its order; the reward is success."""

    def __init__(self, listed: list[dict[str, Any]]) -> None:
        self._by_text = {self._make(drawn).start(): drawn for drawn in listed}
        prompts = [[{"role": "user", "content": self._make(drawn).start()}] for drawn in listed]
        self.rows = Dataset.from_dict({"prompt": prompts})

    @staticmethod
    def _make(drawn: dict[str, Any]) -> Household:
        return Household(drawn["task"], drawn["options"])

    def play(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Play one episode a prompt, all side by side."""
        words = trainer.processing_class
        games = [self._make(self._by_text[prompt[0]["content"]]) for prompt in prompts]
        prompt_ids = [_ids_of(words, game.start()) for game in games]
        sampled: list[list[int]] = [[] for _ in games]
        masks: list[list[int]] = [[] for _ in games]
        won, alive = [False] * len(games), [*range(len(games))]
        for _ in range(TURNS):
            if not alive:
                break
            before = [prompt_ids[n] + sampled[n] for n in alive]
            answers, _ = trainer._generate_single_turn(before, None, {}, 1)
            still = []
            for n, ids in zip(alive, answers, strict=True):
                seen, over = games[n].step(words.decode(ids, skip_special_tokens=True).strip())
                end = [] if ids[-1:] == [words.eos_token_id] else [words.eos_token_id]
                new = [*end, *_ids_of(words, seen)]
                sampled[n], masks[n] = sampled[n] + ids, masks[n] + [1] * len(ids)
                won[n] = over and bool(games[n].success)
                if not over and len(sampled[n]) + len(new) < trainer.max_completion_length:
                    sampled[n], masks[n] = sampled[n] + new, masks[n] + [0] * len(new)
                    still.append(n)
            alive = still
        return {
            "prompt_ids": prompt_ids, "completion_ids": sampled, "env_mask": masks, "logprobs": None, "won": won,
        }  # fmt: skip

    @staticmethod
    def reward(*, won: list[bool], **_: Any) -> list[float]:
        return [float(one) for one in won]


def _ids_of(words: Any, text: str) -> list[int]:
    """Return the tokens of an observation and of the beginning of an answer to it."""
    message = [{"role": "user", "content": text}]
    return list(words.apply_chat_template(message, add_generation_prompt=True, tokenize=True, return_dict=False))  # fmt: skip


def main() -> None:
    if _URL:
        tasks = GRPOTasks(Sidecar(_URL, "kitchen"), num_generations=K)
        rows, reward = tasks.rows(STEPS * TASKS_A_STEP), tasks.reward
        play = tasks.play(lambda drawn: Household(drawn.task, drawn.options), max_turns=TURNS)
    else:
        alone = Alone(json.loads(Path(os.environ["TASKS"]).read_text(encoding="utf-8")))
        rows, play, reward = alone.rows, alone.play, alone.reward
    done: dict[str, list[Any]] = {"rollouts": [], "rewards": []}

    def recorded_play(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        played = play(prompts, trainer)
        done["rollouts"].append([played[name] for name in ("prompt_ids", "completion_ids", "env_mask")])  # fmt: skip
        return played

    def recorded_reward(**given: Any) -> list[float | None]:
        rewards = reward(**given)
        done["rewards"].append(rewards)
        return rewards

    config = GRPOConfig(
        "trained", max_steps=STEPS, num_generations=K, per_device_train_batch_size=K * TASKS_A_STEP,
        max_completion_length=256, learning_rate=1e-4, shuffle_dataset=False, logging_steps=1, save_strategy="no",
        report_to="none", bf16=False, seed=3, disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(
        os.environ["MODEL"],
        recorded_reward,
        args=config,
        train_dataset=rows,
        rollout_func=recorded_play,
    )
    trainer.train()
    logged = [(line["loss"], line["grad_norm"]) for line in trainer.state.log_history if "loss" in line]  # fmt: skip
    Path(os.environ["OUT"]).write_text(json.dumps(done | {"losses": logged}), encoding="utf-8")


if __name__ == "__main__":
    main()
