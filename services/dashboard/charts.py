"""Which measures of a run are drawn, each beside which others, and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

INTERVAL: Final = ("", "/low", "/high")  # a measure, and the ends of its interval


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture of a run. A measure that has its interval at `/low` and `/high` is drawn with it."""

    title: str
    unit: str  # of the vertical axis
    series: Mapping[str, str]  # measure of a step by the name of its line
    about: str = ""  # what is seen, for who meets the words here first
    top: float | None = None  # where the axis ends; a round number above all values if not given
    mark: float | None = None  # a value that means something
    stacked: bool = False  # lines are parts of a whole and lie upon one another

    @property
    def measures(self) -> list[str]:
        """What it is drawn from."""
        return [key + end for key in self.series.values() for end in INTERVAL]


CHARTS = (
    Chart(
        "Success of the policy", "share of episodes",
        {"held out, sampled": "eval/sampled", "held out, greedy": "eval/greedy", "training tasks": "success"},
        "How often the policy solves its task. Held-out tasks are never trained on; sampled draws each word by its "
        "probability, as training does, greedy takes the most probable one.",
        top=1.0,
    ),
    Chart(
        "Score of the policy", "mean score of an episode",
        {"held out, sampled": "eval/sampled_score", "held out, greedy": "eval/greedy_score", "training tasks": "score"},
        "What the environment gives for an episode, where it gives more than success.",
    ),
    Chart(
        "The judge's votes", "share of votes",
        {
            "balanced accuracy": "judge/balanced", "raw accuracy": "judge/accuracy",
            "best constant answer": "judge/constant", "unreadable": "judge/invalid",
        },
        "How often a vote on a step (+1 it helped, -1 it did not) agrees with the environment, which knows. Balanced "
        "accuracy counts good and bad steps alike: always giving the same answer scores 0.5 there, and the best constant "
        "answer in raw accuracy.",
        top=1.0,
    ),
    Chart(
        "The judge beside other steps of the task", "share",
        {
            "pairs of labels in order": "judge/within_label", "pairs of outcomes in order": "judge/within_outcome",
            "unanimous steps": "judge/unanimous",
        },
        "Pairs of steps of one task at the same index, one better than the other (as the environment labels them, or by how "
        "their episodes end): how often the better one has the higher mean vote. 0.5 tells nothing. On a unanimous step all "
        "votes agree.",
        top=1.0, mark=0.5,
    ),
    Chart(
        "What the votes tell", "mu", {"mu, within tasks": "theory/mu_within"},
        "mu is P(vote +1 on a step of a success) + P(vote -1 on a step of a failure), among attempts at one task. Above 1 "
        "the votes tell successes from failures, at 1 they are noise.",
        top=2.0, mark=1.0,
    ),
    Chart(
        "Tasks inside the band", "share of groups",
        {"in band": "in_band", "all rollouts alike": "all_same", "effective prompts": "groups/effective"},
        "A group is several attempts (rollouts) at one task. It is inside the band when its success rate is neither too low "
        "nor too high to learn from; where all rollouts end alike, their outcomes teach nothing. Effective prompts: groups, "
        "those drawn in the place of others included, whose rewards differ.",
        top=1.0,
    ),
    Chart(
        "Difficulty", "level",
        {"mean": "levels/mean", "lowest": "levels/lowest", "highest": "levels/highest"},
        "The top of the window of levels that tasks are drawn from, over the kinds of environments. A window moves up when "
        "nearly all rollouts at its top succeed.",
    ),
    Chart(
        "Seconds by phase", "seconds",
        {
            "play": "seconds/play", "train": "seconds/train", "publish": "seconds/publish", "adapt": "seconds/adapt",
            "evaluate": "seconds/evaluate", "credit": "seconds/credit", "record": "seconds/record",
        },
        "Play: episodes and votes. Train: all models. Publish: new weights into the running engines. Adapt: task rewrites. "
        "Evaluate: held-out tasks.",
        stacked=True,
    ),
    Chart(
        "Rewards", "share of turns",
        {
            "below -1": "rewards/below_-1", "-1 to -0.5": "rewards/below_-0.5", "-0.5 to 0": "rewards/below_0",
            "0 to 0.5": "rewards/below_0.5", "0.5 to 1": "rewards/below_1", "1 and more": "rewards/from_1",
        },
        "What the policy's turns were rewarded with, outcome and votes together, as a histogram of each step.",
        top=1.0, stacked=True,
    ),
    Chart(
        "Staleness", "versions",
        {
            "policy, mean": "staleness/policy/mean", "policy, oldest": "staleness/policy/max",
            "judge, mean": "staleness/reward/mean", "judge, oldest": "staleness/reward/max",
        },
        "By how many versions a trained token lags behind the weights that it trains.",
    ),
    Chart(
        "KL", "nats a token",
        {
            "policy, from the reference": "policy/kl_k3", "policy, of the step": "policy/moved_k3",
            "judge, from the reference": "reward/kl_k3", "judge, of the step": "reward/moved_k3",
        },
        "How far the weights have gone from those that the run began with, and how far one step moved them (k3).",
    ),
    Chart(
        "Ratio", "new over old probability of a token",
        {
            "policy, mean": "policy/ratio_mean", "policy, largest": "policy/ratio_max",
            "judge, mean": "reward/ratio_mean", "judge, largest": "reward/ratio_max",
        },
        "Of the tokens that were trained on. Far from 1 the losses clip.",
        mark=1.0,
    ),
    Chart("Gradient norm", "before clipping", {"policy": "policy/grad_norm", "judge": "reward/grad_norm"}),
    Chart("Entropy", "nats a token", {"policy": "policy/entropy", "judge": "reward/entropy"}),
    Chart(
        "Spread of rewards", "standard deviation within a group", {"mean over groups": "collapse/spread"},
        "How much attempts at one task differ. Where it vanishes there is nothing to learn from.",
    ),
    Chart(
        "What a loop solved", "share",
        {"success": "archive/avg", "one of k tries": "archive/pass", "forgotten": "archive/forgotten"},
        "Over the tasks and all steps of a loop of exploring, when it is fine-tuned on its solutions.",
    ),
    Chart(
        "What thoughts tell of their prompts", "nats", {"mutual information": "collapse/information"},
        "0 is a template: the same thoughts whatever is asked. Measured with monitor.prompts.",
    ),
    Chart(
        "Tokens a second", "of a learner",
        {"policy": "policy/tokens_per_s", "judge": "reward/tokens_per_s"},
        "Tokens that went through the model in training, by the learner's own seconds.",
    ),
    Chart("Length of an episode", "steps", {"mean": "length"}),
    Chart(
        "What was not measured", "episodes",
        {"infrastructure failures": "infrastructure_failures", "retries": "retries"},
        "Episodes that broke for a reason that is not the policy's: left out, never counted as failures.",
    ),
)  # fmt: skip


def charts_of(further: Iterable[str]) -> tuple[Chart, ...]:
    """The charts of a run that trains these models beside policy and judge: a line of each beside those of the policy."""
    return tuple(replace(chart, series=_with_further(chart.series, further)) for chart in CHARTS)


def _with_further(series: Mapping[str, str], further: Iterable[str]) -> dict[str, str]:
    of_policy = {name: key for name, key in series.items() if "policy/" in key}
    return dict(series) | {
        name.replace("policy", role): key.replace("policy/", f"{role}/")
        for role in further
        for name, key in of_policy.items()
    }
