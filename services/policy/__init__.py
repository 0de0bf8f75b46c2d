"""The policy service: a torch-free gateway before the engines of one model role (policy, reward or rewriter).

Enters: messages and prefix ids (`POST /v1/generate`, `/v1/chat/completions`), weight versions (`POST /v1/weights`).
Leaves: token ids with log-probabilities and the weight version of every token.
Never: imports torch or an engine, keeps state on disk, or lets an engine serve whose weight version is not verified.

    app, routes       the APIs                        pool            which engine gets a request
    openai, tools     the OpenAI dialect               discovery       where engines are
    gateway           render, send, assemble           engine, sglang  what an engine is; SGLang as one
    weight_sync       which version is active          weight_loader   loading and verifying it in one engine
    weight_folder     what is checked of a folder      adapters        versions that are LoRA adapters
"""
