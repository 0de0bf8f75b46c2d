"""The judge that experiments begin with: the repository's half-size file becomes a whole folder that judges well."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from demo.demonstrations import write_demonstrations
from demo.models.household_judge import household_judge
from experiments.sparse import SPARSE
from triforge.rendering import Renderer
from triforge.rollout.verdicts import ANSWERS
from triforge.store.manifests import verify_manifest
from triforge.types import ChatMessage


def test_it_is_a_whole_folder_and_right_on_steps_of_careless_and_confused_players(
    tmp_path: Path,
) -> None:
    folder = household_judge()
    assert household_judge() == folder
    assert verify_manifest(folder)
    write_demonstrations(
        tmp_path, count=40, seed=9, generate=SPARSE, options={"wording": "terse", "labels": "progress"},
        flip_rate=0.0, judge=True, reference=True, random_rate=0.1, forget_rate=0.3, confuse_rate=0.5,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(folder)
    renderer = Renderer.from_folder(folder)
    right: dict[str, list[bool]] = {answer: [] for answer in ANSWERS.values()}
    for line in (tmp_path / "judge.jsonl").read_text().splitlines():
        messages = [ChatMessage.model_validate(one) for one in json.loads(line)["messages"]]
        (ids, trained), *_ = renderer.encode_supervised(messages)
        place = trained.index(True)
        with torch.no_grad():
            vote = model(torch.tensor([ids[:place]])).logits[0, -1].argmax()
        right[str(messages[-1].content)].append(int(vote) == ids[place])
    shares = [sum(one) / len(one) for one in right.values() if one]
    assert len(shares) == 2
    assert sum(shares) / 2 > 0.85, "0.91 on 60 episodes"
