"""Files for a supervised warm start: chats for the policy, labelled transcripts for the judge, the vocabulary."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from environments.household.demonstrations import Demonstration, demonstrations
from environments.household.family import FAMILY
from environments.household.wording import vocabulary
from triforge.types import Params


@dataclass(frozen=True, kw_only=True)
class Carelessness:
    """How bad the demonstrations are; see `household.demonstrations`. `flip_rate` is of the labels."""

    random_rate: float
    forget_rate: float
    inadmissible_share: float
    flip_rate: float


def write_demonstrations(
    folder: Path,
    *,
    count: int,
    seed: int,
    generate: Params,
    options: Params,
    careless: Carelessness,
) -> dict[str, float]:
    """Play `count` generated household tasks and write `policy.jsonl`, `transcripts.jsonl` and `words.txt` to `folder`.

    Returns the number of chats and the share of episodes that succeeded.
    """
    words = vocabulary(options)
    tasks = FAMILY.generate(count=count, seed=seed, options=generate)
    played = list(
        demonstrations(
            tasks,
            seed=seed,
            random_rate=careless.random_rate,
            forget_rate=careless.forget_rate,
            inadmissible_share=careless.inadmissible_share,
            options=options,
        )
    )
    flips = random.Random(seed)  # noqa: S311 (label noise, not a secret)
    chats = [json.dumps({"messages": _answered(shown)}) for shown in played]
    transcripts = [json.dumps(_transcript(shown, flips, careless.flip_rate)) for shown in played]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "policy.jsonl").write_text("\n".join(chats) + "\n", encoding="utf-8")
    (folder / "transcripts.jsonl").write_text("\n".join(transcripts) + "\n", encoding="utf-8")
    (folder / "words.txt").write_text(" ".join(words) + "\n", encoding="utf-8")
    return {
        "chats": float(len(chats)),
        "success": sum(shown.success for shown in played) / max(1, len(played)),
    }


def _answered(shown: Demonstration) -> list[dict[str, str]]:
    """The chat up to its last response: what follows is not answered and teaches nothing."""
    return list(shown.messages[:-1])


def _transcript(shown: Demonstration, flips: random.Random, flip_rate: float) -> dict[str, object]:
    chat = shown.messages
    first = 1 if chat[0]["role"] == "system" else 0
    steps = []
    for index, label in enumerate(shown.labels):
        at = first + 2 * index
        steps.append(
            {
                "observation": chat[at]["content"],
                "response": chat[at + 1]["content"],
                "next_observation": chat[at + 2]["content"],
                "label": -label if flips.random() < flip_rate else label,
            }
        )
    system = chat[0]["content"] if first else ""
    return {"instruction": shown.instruction, "system": system, "steps": steps}
