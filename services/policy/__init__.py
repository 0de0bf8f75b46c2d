"""The policy service: a torch-free gateway before the engines of one model role (policy, reward or rewriter).

Enters: messages and prefix ids (`POST /v1/generate`, `/v1/chat/completions`), weight versions (`POST /v1/weights`).
Leaves: token ids with log-probabilities and the weight version of every token.
Never: imports torch or an engine, keeps state on disk, or lets an engine serve whose weight version is not verified.

    api       the dialects: REST, OpenAI, Anthropic, sessions     gateway   render, send, assemble
    engines   discovery, pool, protocol, SGLang                   weights   the active version, loading, verification
"""
