from __future__ import annotations

import json
from operator import itemgetter
from pathlib import Path

import pytest
import torch

from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.supervised import SupervisedJob, SupervisedOptions, read_items
from triforge.errors import InputError
from triforge.rendering import Renderer
from triforge.store.manifests import verify_manifest

GOOD = {
    "messages": [
        {"role": "user", "content": "ok apple"},
        {"role": "assistant", "content": "go fridge"},
        {"role": "user", "content": "fail"},
        {"role": "assistant", "content": "take egg"},
    ]
}


def lines(path: Path, *items: object) -> Path:
    path.write_text("\n".join(i if isinstance(i, str) else json.dumps(i) for i in items))
    return path


def job(model_folder: Path, data: Path, **options: object) -> SupervisedJob:
    items = read_items(data, Renderer.from_folder(model_folder), max_tokens=64)
    return SupervisedJob(
        model_folder, items, SupervisedOptions(**{"steps": 30, "eval_share": 0.0, **options})
    )


def test_only_what_the_assistant_says_is_trained_on(model_folder: Path, tmp_path: Path):
    items = read_items(
        lines(tmp_path / "d", GOOD, "", {**GOOD, "weight": 0.5}),
        Renderer.from_folder(model_folder),
        max_tokens=64,
    )
    # <user> ok apple <assistant> GO FRIDGE <end> <user> fail <assistant> TAKE EGG <end>
    batch = items.sequences.batch([0], torch.device("cpu"))
    assert batch.targets.tolist() == [6, 9, 2, 7, 12, 2]
    assert batch.predict.tolist() == [3, 4, 5, 9, 10, 11]
    assert items.weights.tolist() == [1.0] * 6 + [0.5] * 6


def test_a_job_learns_its_conversations_and_writes_a_whole_folder(
    model_folder: Path, tmp_path: Path
):
    data = lines(tmp_path / "d", GOOD)
    seen: list[tuple[int, float]] = []
    made = job(model_folder, data, learning_rate=2e-2, steps=60)
    report = made.run(tmp_path / "out", progress=lambda *now: seen.append(now))
    assert [step for step, _ in seen] == [*range(1, 61)]
    assert report["train"][0][1] > 1.0
    assert report["train"][-1][1] < 0.05
    assert (report["steps"], report["items"], report["tokens"]) == (60, 1, 60 * 12)
    verify_manifest(tmp_path / "out")
    renderer = Renderer.from_folder(tmp_path / "out")
    ids: list[int] = []
    model = ScoringModel.load(tmp_path / "out")
    prompt = [4, 13, 11, 5]
    for _ in range(3):
        logits = model.module(torch.tensor([prompt + ids])).logits[0, -1]
        ids.append(int(logits.argmax()))
    assert renderer.decode(ids) == "go fridge"


def test_the_same_seed_gives_the_same_folder_byte_for_byte(model_folder: Path, tmp_path: Path):
    data = lines(tmp_path / "d", *[GOOD] * 10)
    digests = []
    for name, seed in (("a", 1), ("b", 1)):
        job(model_folder, data, seed=seed, steps=5, batch_rows=3).run(tmp_path / name)
        digests.append((tmp_path / name / "model.safetensors").read_bytes())
    assert digests[0] == digests[1]


def test_a_heavier_conversation_wins(model_folder: Path, tmp_path: Path):
    other = json.loads(json.dumps(GOOD))
    other["messages"][1]["content"] = "put shelf"
    data = lines(tmp_path / "d", {**GOOD, "weight": 0.01}, {**other, "weight": 1.0})
    job(model_folder, data, learning_rate=2e-2, steps=60, batch_rows=2).run(tmp_path / "out")
    logits = (
        ScoringModel.load(tmp_path / "out").module(torch.tensor([[4, 13, 11, 5]])).logits[0, -1]
    )
    assert int(logits.argmax()) == 8


def test_held_out_conversations_are_measured_and_not_trained_on(model_folder: Path, tmp_path: Path):
    asked = [{"role": "user", "content": word} for word in ("ok", "fail", "egg", "go")]
    chats = [{"messages": [one, *GOOD["messages"]]} for one in asked]
    data = lines(tmp_path / "d", *chats, *chats)
    made = job(model_folder, data, eval_share=0.25, eval_every=20, steps=30, learning_rate=2e-2)
    report = made.run(tmp_path / "out")
    assert (report["items"], report["held_out"]) == (6, 2)
    assert [step for step, _, _ in report["eval"]] == [0, 20, 30]
    assert report["eval"][-1][1] < report["eval"][0][1]
    assert report["eval"][-1][2] > report["eval"][0][2]
    assert json.loads(json.dumps(report)) == report


def test_the_model_of_the_best_measurement_is_written_and_soon_after_it_the_job_ends(
    model_folder: Path, tmp_path: Path
) -> None:
    words = ("ok", "fail", "egg", "go", "take")
    chats = [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}
        for asked, answer in zip(words, words[1:] + words[:1], strict=True)
    ]
    data = lines(
        tmp_path / "d", *chats
    )  # what is learned by heart helps with no other conversation
    options = {"eval_share": 0.4, "learning_rate": 2e-2, "eval_every": 2}
    report = job(model_folder, data, steps=400, **options).run(tmp_path / "out")
    best, loss, _ = min(report["eval"], key=itemgetter(1))
    assert 0 < best <= report["steps"] - 6 < 200
    written = job(tmp_path / "out", data, steps=1, **options).run(tmp_path / "again")
    assert written["eval"][0][1] == pytest.approx(loss, abs=1e-5)


def test_conversations_that_ask_the_same_are_held_out_together_or_not_at_all(
    model_folder: Path, tmp_path: Path
):
    words = ("ok", "fail", "egg", "go", "take")
    chats = [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}
        for asked in (*words, *(f" {word.upper()}\n" for word in words))
        for answer in ("go", "take egg")
    ]
    for seed in range(20):
        made = job(model_folder, lines(tmp_path / "d", *chats), eval_share=0.2, seed=seed)
        asked = made._items.asked
        held, trained = ({asked[row] for row in rows} for rows in (made._eval, made._train))
        assert (len(held), len(trained), len(made._eval)) == (1, 4, 4)
        assert not held & trained
    same = job(model_folder, lines(tmp_path / "d", *[GOOD] * 8), eval_share=0.5)
    assert (len(same._eval), len(same._train)) == (0, 8)


def test_a_group_is_trained_on_in_one_update_and_held_out_as_a_whole(
    model_folder: Path, tmp_path: Path
):
    words = ("ok", "fail", "egg", "go", "take")
    chats = [
        {
            "messages": [{"role": "user", "content": f"{asked} " * n}, GOOD["messages"][1]],
            "group": asked,
        }
        for n in (1, 2, 3)
        for asked in words
    ]
    data = lines(tmp_path / "d", *chats, GOOD)
    made = job(model_folder, data, batch_rows=7, eval_share=0.2, seed=3)
    assert len({made._items.groups[row] for row in made._eval}) == 1
    assert len(made._eval) == 3
    for rows in [made._next_rows() for _ in range(4)]:
        assert len(rows) <= 7
        names = [made._items.groups[row] for row in rows]
        assert all(names.count(name) == 3 for name in names if name in words)
    alone = job(model_folder, data, batch_rows=2)
    assert {len(alone._next_rows()) for _ in range(6)} == {1, 3}, "a larger group is whole"


def test_the_step_size_warms_up_and_falls(model_folder: Path, tmp_path: Path):
    made = job(
        model_folder,
        lines(tmp_path / "d", GOOD),
        learning_rate=1.0,
        warmup=4,
        steps=10,
        final_share=0.5,
    )
    rates = []
    for step in range(10):
        made._set_rate(step, 0.0)
        rates.append(round(made._optimizer.param_groups[0]["lr"], 4))
    assert rates == [0.25, 0.475, 0.675, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55]


def test_every_epoch_visits_every_conversation_once(model_folder: Path, tmp_path: Path):
    made = job(model_folder, lines(tmp_path / "d", *[GOOD] * 10), batch_rows=4)
    visited = [made._next_rows() for _ in range(6)]
    assert sorted(r for rows in visited[:3] for r in rows) == list(range(10))
    assert sorted(r for rows in visited[3:] for r in rows) == list(range(10))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 2: not JSON: Expecting property name"),
        ("[]", "expected a JSON object"),
        ({"messages": [], "extra": 1}, r"given fields \['extra'\]"),
        ({**GOOD, "weight": 0}, "weight 0, expected messages and a weight above 0"),
        ({**GOOD, "weight": "x"}, "a weight above 0"),
        ({**GOOD, "group": 3}, "a group is a text"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ({"messages": GOOD["messages"][:1]}, "the last message of a demonstration"),
        ({"messages": [{"role": "user", "content": "go " * 70}, GOOD["messages"][1]]}, "given 75 tokens, expected at most 64"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_and_nothing_is_trained(
    model_folder: Path, tmp_path: Path, line: object, sentence: str
):
    with pytest.raises(InputError, match=sentence) as caught:
        read_items(
            lines(tmp_path / "d", GOOD, line), Renderer.from_folder(model_folder), max_tokens=64
        )
    assert caught.value.problems[0].startswith("line 2: ")


def test_files_without_conversations_are_refused(model_folder: Path, tmp_path: Path):
    renderer = Renderer.from_folder(model_folder)
    with pytest.raises(InputError, match="cannot be read"):
        read_items(tmp_path / "none", renderer, max_tokens=64)
    with pytest.raises(InputError, match="no conversation in it"):
        read_items(lines(tmp_path / "d", ""), renderer, max_tokens=64)


def test_impossible_options_are_refused(model_folder: Path, tmp_path: Path):
    with pytest.raises(InputError, match="steps and seconds: given 0 and 0"):
        SupervisedOptions()
    with pytest.raises(InputError, match="expected at least 1, a share"):
        SupervisedOptions(steps=1, batch_rows=0)
    with pytest.raises(InputError, match="some left to train on"):
        job(model_folder, lines(tmp_path / "d", GOOD), eval_share=0.9)


def test_a_time_budget_ends_a_job_without_steps(model_folder: Path, tmp_path: Path):
    data = lines(tmp_path / "d", GOOD)
    report = job(model_folder, data, steps=0, seconds=0.05).run(tmp_path / "out")
    assert report["steps"] >= 1
