"""The local engine: a CPU engine that speaks SGLang's HTTP API over transformers models.

Enters: prompts as text or token ids, weights (folders, safetensors in a body, broadcasts).
Leaves: token ids with log-probabilities and the weight version of every token.
Never: imports another service, trains, or calls another service.

It stands in for SGLang on laptops and in CI. Requests are batched continuously, prompts that share a prefix share its
keys and values, and weights are swapped between two decode steps while requests run.
"""
