"""The client of the sidecar for other trainers, and adapters of theirs. It needs httpx and nothing else of triforge.

with Sidecar("http://127.0.0.1:8003", "POOL") as sidecar:
    tasks = sidecar.draw(16)
    ...                                            # the policy plays each task once for every id in `task.rollouts`
    credits = sidecar.report(rollouts, policy_version=step)
"""

from triforge.sidecar.client import Credit, DrawnTask, RefusedError, Rollout, Sidecar, as_text

__all__ = ["Credit", "DrawnTask", "RefusedError", "Rollout", "Sidecar", "as_text"]
