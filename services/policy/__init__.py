"""The policy room: a torch-free gateway before the engines of one model role (acts, judges or rewrites).

Enters: messages and prefix ids (`POST /v1/generate`, `/v1/chat/completions`), weight versions (`POST /v1/weights`).
Leaves: token ids with log-probabilities and the weight version of every token.
Never: imports torch or an engine, keeps state on disk, or lets an engine serve whose weight version is not proven.

    app, routes    the doors            gateway   render, send, assemble
    openai         the OpenAI dialect   pool      which engine gets a request
    sglang         one engine           fence     which weight version is live
"""
