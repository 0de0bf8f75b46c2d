"""Acting by a critic: the best of K samples is played, with the engine's own ids."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from methods.pa_rl.best_of_k import BestOfK, critic_name, critic_state, read_critic
from methods.pa_rl.critic import (
    CriticEnsemble,
    CriticOptions,
    Transition,
    text_features,
)
from triforge.config import Sampling
from triforge.store.artifacts import ArtifactStore
from triforge.types import ChatMessage, GenerateOutput, GenerateReply, GenerateRequest, VersionSpan

OPTIONS = CriticOptions(members=2, hidden=8, learning_rate=0.02)
STATE = critic_state("reach 3", (), "the count is 1")


class Several:
    """Answers with `down` n - 2 times, `up`, and an aborted `up up`."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        self.asked.append(request.n)
        texts = ["down"] * (request.n - 2) + ["up", "up up"]
        return GenerateReply(
            prompt_ids=(1,),
            outputs=tuple(
                GenerateOutput(
                    text=text, ids=(n,), logprobs=(-0.5,), finish="abort" if " " in text else "stop",
                    versions=(VersionSpan(version=3, start=0, end=1),),
                )
                for n, text in enumerate(texts)
            ),
        )  # fmt: skip


def taught() -> CriticEnsemble:
    critic, rng = CriticEnsemble(64, OPTIONS, seed=1), np.random.default_rng(1)
    batch = [
        Transition(row := text_features(STATE, text, 64), row[None], None, worth, worth)
        for text, worth in (("up", 1.0), ("up up", 2.0), ("down", 0.0))
    ]
    for _ in range(80):
        critic.update(batch, rng)
    return critic


class Noting(BestOfK):
    def values(self, state: str, responses: Sequence[str]) -> list[float]:
        self.thread, self.state = threading.current_thread(), state
        return super().values(state, responses)


async def test_the_critics_choice_among_whole_samples_is_played() -> None:
    engine = Several()
    acting = Noting(engine, taught(), "reach 3", 5)
    request = GenerateRequest(messages=(ChatMessage(role="user", content="the count is 1"),))
    reply = await acting(request)
    assert engine.asked == [5]
    (output,) = reply.outputs
    assert (output.text, output.ids) == ("up", (3,))
    assert acting.thread is not threading.current_thread(), "other episodes go on meanwhile"
    following = ChatMessage(role="user", content="the count is 2")
    again = GenerateRequest(prefix_ids=(*reply.prompt_ids, *output.ids), messages=(following,))
    await acting(again)
    assert acting.state == critic_state("reach 3", ("the count is 1", "up"), "the count is 2")


class Tails:
    """Says `down left` to a whole request; to one that is begun, what `tails` say in turn, after the ids that begin it."""

    def __init__(self, *tails: str) -> None:
        self.requests: list[GenerateRequest] = []
        self.tails = list(tails)

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        self.requests.append(request)
        text = f"down {self.tails.pop(0)}" if request.begun else "down left"
        ids = (1, 2, 0)[request.begun :]
        output = GenerateOutput(
            text=text, ids=ids, logprobs=(-0.1 * len(self.requests),) * len(ids),
            finish="abort" if "broken" in text else "stop",
            versions=(VersionSpan(version=len(self.requests), start=0, end=len(ids)),),
        )  # fmt: skip
        return GenerateReply(prompt_ids=(9, *request.prefix_ids), outputs=(output,) * request.n)


async def test_the_tail_of_the_best_is_sampled_again_and_kept_if_the_critic_values_it_more() -> (
    None
):
    critic, rng = CriticEnsemble(64, OPTIONS, seed=1), np.random.default_rng(1)
    worths = (("down left", 0.0), ("down right", 1.0), ("down under", -1.0))
    batch = [
        Transition(row := text_features(STATE, text, 64), row[None], None, worth, worth)
        for text, worth in worths
    ]
    for _ in range(80):
        critic.update(batch, rng)
    engine = Tails("under", "right", "broken")
    request = GenerateRequest(
        messages=(ChatMessage(role="user", content="the count is 1"),),
        sampling=Sampling(max_new_tokens=4, seed=3),
    )
    reply = await BestOfK(engine, critic, "reach 3", 2, 3)(request)
    first, *edits = engine.requests
    (output,) = reply.outputs
    assert (output.text, output.ids, reply.prompt_ids) == ("down right", (1, 2, 0), (9,))
    assert reply.extra["pa_rl"] == ["down left", "down under", "down right"]
    cut = edits[1].begun
    assert output.logprobs == (-0.1,) * cut + (-0.1 * 3,) * (3 - cut)
    assert [(s.version, s.start, s.end) for s in output.versions] == [(1, 0, cut), (3, cut, 3)]
    for edit in edits:
        assert (edit.prefix_ids, edit.messages) == ((9, *(1, 2, 0)[: edit.begun]), ())
        assert edit.sampling.max_new_tokens == 4 - edit.begun
    assert len({edit.sampling.seed for edit in (first, *edits)}) == 4


def test_the_newest_critic_up_to_a_step_is_read(tmp_path: Path) -> None:
    store, critic = ArtifactStore(str(tmp_path)), taught()
    assert read_critic(store, "r", 4) is None
    store.write(critic_name("r", 2), critic.saved())
    store.write(critic_name("r", 6), CriticEnsemble(64, OPTIONS).saved())
    found = read_critic(store, "r", 4)
    assert found is not None
    row = text_features(STATE, "up", 64)[None]
    assert found.values(row) == critic.values(row)
