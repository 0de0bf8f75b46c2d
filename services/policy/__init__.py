"""The policy service: a torch-free gateway before the engines of one model role (policy, reward or rewriter).

Enters: messages and prefix ids (`POST /v1/generate`, `/v1/chat/completions`), weight versions (`POST /v1/weights`).
Leaves: token ids with log-probabilities and the weight version of every token.
Never: imports torch or an engine, keeps state on disk, or lets an engine serve whose weight version is not proven.

    app, routes, native_api   the APIs                 gateway     render, send, assemble
    openai, chat_stream        the OpenAI dialect        pool        which engine gets a request
    discovery, router          where engines are         member      one engine and what is known of it
    sglang, wire               how one is spoken to      breaker     when one is left alone
    fence, delivery, proof     which version is live     waiting     who waits for a place
    server                     how a service ends           metrics     what can be seen of all this
"""
