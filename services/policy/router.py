"""SGLang's router in front of engines: it carries the requests, while weights and proofs go to each engine itself.

The router spreads `/generate` over its workers and knows no weights: `/update_weights_from_disk`, `/pause_generation`,
`/model_info` and `/abort_request` are not among its routes (seen with sglang-router 0.3.2). So the members of the pool
are its workers, and the router is an API to them that is used while all of them have proven the live version.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from services.policy.discovery import worker_urls
from services.policy.sglang import SGLangEngine
from services.policy.sglang_parsing import Prompt, generate_body, sampling_params
from triforge.clients.transport import get_json
from triforge.errors import NotFoundError

_ANSWER_S = 10.0


class RouterApi(SGLangEngine):
    """A router, spoken to as if it were an engine. Arguments: see `SGLangEngine`."""

    def _together(self, prompt: Prompt) -> Hashable:
        """The router refuses lists of sampling parameters, so only prompts that share theirs travel together."""
        params = repr(sampling_params(prompt.sampling, prompt.stop_ids))
        return prompt.n, prompt.pictures is None, params

    def _body(self, prompts: Sequence[Prompt], _: Sequence[str], adapter: str) -> bytes:
        return generate_body(
            prompts, shared=True, adapter=adapter
        )  # nor does it take lists of names

    def _give_up(self, _: Sequence[str]) -> None:
        """The router has no route for it; when the connection closes it closes its own to the engine."""

    async def workers(self) -> list[str]:
        """Addresses of the workers that the router holds for healthy.

        Raises:
            UnavailableError: the router is away.
            PolicyError: it answers something else, or has workers that do not speak HTTP.
        """
        with self._named():
            try:
                found = await get_json(self._post.client, "/workers", timeout_s=_ANSWER_S)
            except NotFoundError:  # before sglang-router 0.2
                found = await get_json(self._post.client, "/list_workers", timeout_s=_ANSWER_S)
        return worker_urls(found, self.url)
