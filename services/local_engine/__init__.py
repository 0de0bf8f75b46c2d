"""The local engine: a CPU engine with SGLang's HTTP API over transformers models, for laptops and CI.

Prompts come in as text or token ids, weights as folders, safetensors in a body or broadcasts; token ids leave with
log-probabilities and the weight version of every token. It calls no other service and trains nothing.
"""
