"""What localspec must know of a model from its architecture alone, as the pinned llama.cpp lists it."""

from __future__ import annotations

RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
"""All memory is one running state: nothing can be forgotten again."""

HYBRID = frozenset(
    {
        "bailingmoe3",
        "deepseek4",
        "falcon-h1",
        "glm5-next",
        "granitehybrid",
        "jamba",
        "kimi-k3",
        "kimi-linear",
        "lfm2",
        "lfm2moe",
        "minimax-01",
        "nemotron_h",
        "nemotron_h_moe",
        "plamo2",
        "qwen35",
        "qwen35moe",
        "qwen3next",
        "qwen4exp",
    }
)
"""Some layers hold a running state beside those with attention."""

_HEAD = "a drafting head that runs on its target's hidden states, not a model of its own"
_EMBEDDING = "an embedding model, which does not write text"
_DIFFUSION = "a diffusion model, which does not write token after token"

NOT_A_TEXT_GENERATOR: dict[str, str] = {
    "bert": _EMBEDDING,
    "clip": "an image or audio projector (mmproj), not a language model",
    "dflash": _HEAD,
    "dream": _DIFFUSION,
    "eagle3": _HEAD,
    "eurobert": _EMBEDDING,
    "gemma-embedding": _EMBEDDING,
    "gemma4-assistant": _HEAD,
    "jina-bert-v2": _EMBEDDING,
    "jina-bert-v3": _EMBEDDING,
    "llada": _DIFFUSION,
    "llada-moe": _DIFFUSION,
    "llama-embed": _EMBEDDING,
    "modern-bert": _EMBEDDING,
    "neo-bert": _EMBEDDING,
    "nomic-bert": _EMBEDDING,
    "nomic-bert-moe": _EMBEDDING,
    "qwen3tts": "a speech model, not a language model",
    "rnd1": _DIFFUSION,
    "t5": "an encoder-decoder model, which localspec cannot run",
    "t5encoder": _EMBEDDING,
    "wavtokenizer-dec": "an audio decoder, not a language model",
}
"""Architecture -> what the file is instead."""
