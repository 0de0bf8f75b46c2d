"""Careless demonstrations for a supervised warm start: `python -m demo.demonstrations --out DIR`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from environments.household.careless import Carelessness, Demonstration, demonstrate
from environments.household.family import FAMILY
from environments.household.params import PlayOptions, world_of
from environments.household.wording import vocabulary
from services.reward.prompts import Episode as JudgedEpisode
from services.reward.prompts import build_prompt
from services.reward.requests import StepText
from triforge.environments.kit import parse_model
from triforge.errors import TriforgeError
from triforge.rollout.verdicts import ANSWERS
from triforge.types import Criteria, Params

_TERSE: Final[Params] = {"wording": "terse"}
Rate = float | Sequence[float]


def demonstrations(
    tasks: Iterable[Params], *, seed: int, options: Params = _TERSE, **rates: Rate
) -> Iterator[Demonstration]:
    """Play every task once, lazily; episode i depends on the seed and i only. `rates` are those of `Carelessness`, or lists in turn."""
    play = parse_model(PlayOptions, options, "household options")
    turns = {name: rate if isinstance(rate, Sequence) else (rate,) for name, rate in rates.items()}
    for index, params in enumerate(tasks):
        rng = Random(f"demonstration {seed} {index}")  # noqa: S311
        careless = Carelessness(**{name: rate[index % len(rate)] for name, rate in turns.items()})
        yield demonstrate(world_of(params), play, rng, careless)


def write_demonstrations(
    folder: Path,
    *,
    count: int,
    seed: int,
    generate: Params | Sequence[Params],
    options: Params,
    flip_rate: float,
    judge: bool = False,
    together: bool = False,
    reference: bool = False,
    **rates: Rate,
) -> dict[str, float]:
    """Play `count` generated tasks and write `policy.jsonl`, `transcripts.jsonl` and `words.txt` (empty unless terse).

    Return the number of chats and the share of successes. Of several options to `generate` with, each makes an equal share of the
    tasks. `rates` are those of `Carelessness`; `flip_rate` of the transcripts' labels are wrong. For a `judge`, `judge.jsonl` has
    a chat for each step, with a `reference` solution in sight or without; those of an episode are trained on `together`.
    """
    play = parse_model(PlayOptions, options, "household options")
    words = vocabulary(options) if play.wording == "terse" else []
    kinds = [generate] if isinstance(generate, Mapping) else generate
    tasks = [
        task
        for number, kind in enumerate(kinds)
        for task in FAMILY.generate(count=count // len(kinds), seed=seed + number, options=kind)
    ]
    played = list(demonstrations(tasks, seed=seed, options=options, **rates))
    flips = Random(seed)  # noqa: S311 (label noise, not a secret)
    # a chat ends with its last response: the observation after it trains nothing
    chats = [json.dumps({"messages": list(shown.messages[:-1])}) for shown in played]
    transcripts = [_transcript(shown, flips, flip_rate) for shown in played]
    if reference:
        for task, transcript in zip(tasks, transcripts, strict=True):
            transcript["reference"] = "\n".join(FAMILY.solution(world_of(task), play) or ())
    files = {"policy.jsonl": chats, "transcripts.jsonl": [*map(json.dumps, transcripts)]}
    if judge:
        files["judge.jsonl"] = [
            json.dumps({"messages": chat} | group, ensure_ascii=False)
            for number, transcript in enumerate(transcripts)
            for group in [{"group": str(number)} if together else {}]
            for chat in judge_chats(transcript)
        ]
    folder.mkdir(parents=True, exist_ok=True)
    for name, written in files.items():
        (folder / name).write_text("\n".join(written) + "\n", encoding="utf-8")
    (folder / "words.txt").write_text(" ".join(words) + "\n", encoding="utf-8")
    succeeded = sum(shown.success for shown in played) / max(1, len(played))
    return {"chats": float(len(chats)), "success": succeeded}


def _transcript(shown: Demonstration, flips: Random, flip_rate: float) -> dict[str, Any]:
    chat = [message["content"] for message in shown.messages]
    system = chat.pop(0) if shown.messages[0]["role"] == "system" else ""
    steps = [
        {
            "observation": chat[2 * index],
            "response": chat[2 * index + 1],
            "next_observation": chat[2 * index + 2],
            "label": -label if flips.random() < flip_rate else label,
        }
        for index, label in enumerate(shown.labels)
    ]
    return {"instruction": shown.instruction, "system": system, "steps": steps}


def judge_chats(transcript: dict[str, Any]) -> Iterator[list[dict[str, object]]]:
    """Yield a chat for each step: the judge's terse prompt and the right vote."""
    labels = [step["label"] for step in transcript["steps"]]
    fields = StepText.model_fields
    steps = [StepText(**{k: v for k, v in s.items() if k in fields}) for s in transcript["steps"]]
    episode = JudgedEpisode(
        instruction=transcript["instruction"],
        steps=steps,
        system=transcript["system"],
        criteria=Criteria(reference=transcript.get("reference", "")),
        hindsight=transcript.get("hindsight", False),
    )
    for index, label in enumerate(labels):
        prompt = [message.model_dump() for message in build_prompt("terse", episode, index)]
        yield [*prompt, {"role": "assistant", "content": ANSWERS[label]}]


def main(arguments: Sequence[str]) -> int:
    """Write demonstrations and print their counts."""
    parser = argparse.ArgumentParser(prog="python -m demo.demonstrations", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder to write")
    add("--count", type=int, default=1000, help="episodes")
    add("--seed", type=int, default=0)
    add("--random-rate", type=json.loads, default=0.2, help="share of random commands, or a list")
    add("--forget-rate", type=json.loads, default=0.5, help="of forgotten treatments, or a list")
    add("--inadmissible-share", type=float, default=0.3, help="of the random commands")
    add("--confuse-rate", type=json.loads, default=0.0, help="of other goals at first, or a list")
    add("--flip-rate", type=float, default=0.0, help="share of wrong labels")
    add("--judge", action="store_true", help="also write chats for a judge")
    add("--together", action="store_true", help="of an episode, trained on in one update")
    add("--reference", action="store_true", help="show a solution to the judge")
    add("--generate", type=json.loads, default={}, help="options of the generator, JSON, or a list")
    add("--options", type=json.loads, default=_TERSE, help="of the play, JSON")
    given = vars(parser.parse_args(arguments))
    try:
        counts = write_demonstrations(given.pop("out"), **given)
    except TriforgeError as error:
        sys.stderr.write(f"{error.kind}: {error.detail}\n")
        return 1
    sys.stdout.write(json.dumps(counts) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
