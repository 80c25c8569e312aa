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

SNAPSHOTS = frozenset({
    "bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen35",
    "qwen35moe", "qwen4exp",
})  # fmt: skip
"""Of those, the ones whose running state llama.cpp keeps behind each of the last tokens of a pass, where it is asked
to: so far, and no others, it can take tokens back."""

SEVERAL_STATES = frozenset({
    "falcon-h1", "granitehybrid", "jamba", "lfm2", "lfm2moe", "mamba", "mamba2", "nemotron_h", "nemotron_h_moe",
    "qwen35", "qwen35moe", "qwen3next", "rwkv6", "rwkv7",
})  # fmt: skip
"""Of those with a running state, the ones of which llama.cpp computes several sequences in one pass as it computes one,
as was tried with small models. Others end the process (plamo2) or come out wrong (arwkv7)."""

EQUAL_HEADS = frozenset(
    {
        "gpt-oss", "jamba", "lfm2", "lfm2moe",
        "afmoe", "apertus", "arcee", "arctic", "baichuan", "bailingmoe", "bailingmoe2", "bitnet", "bloom",
        "chameleon", "chatglm", "codeshell", "cogvlm", "cohere2", "cohere2moe", "command-r", "dbrx", "deci",
        "deepseek", "deepseek4", "dots1", "ernie4_5", "ernie4_5-moe", "exaone", "exaone-moe", "exaone4",
        "falcon", "glm4", "glm4moe", "gpt2", "gptneox", "granite", "granite_swa", "granitehybrid",
        "graniteswitch", "grok", "grovemoe", "hunyuan-dense", "hunyuan-moe", "hunyuan_vl", "hy_v3", "internlm2",
        "jais", "jais2", "laguna", "llama", "llama4", "maincoder", "maple", "mellum", "minimax-01",
        "minimax-m2", "minimax-m3", "mistral3", "mpt", "muse-glimmer", "nanbeige", "nemotron", "nemotron_h",
        "nemotron_h_moe", "olmo", "olmo2", "olmoe", "openelm", "orion", "paddleocr", "pangu-embedded", "phi2",
        "eagle3", "phi3", "plamo", "pockettts", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen35", "qwen35moe",
        "qwen3moe", "qwen3next", "qwen3vl", "qwen3vlmoe", "qwen4exp", "refact", "seed_oss", "smallthinker",
        "smollm3", "spark2_5", "stablelm", "starcoder", "starcoder2", "talkie", "xverse",
    }
)  # fmt: skip
"""Keys and values of a head must have one length: llama.cpp asserts it when it computes."""

WHOLE_ROPE = frozenset(
    {
        "apertus", "arcee", "arctic", "baichuan", "chameleon", "codeshell", "cogvlm", "cohere2moe", "dbrx",
        "deci", "deepseek", "dots1", "ernie4_5", "ernie4_5-moe", "exaone", "exaone-moe", "exaone4", "falcon",
        "granite", "granite_swa", "graniteswitch", "grok", "grovemoe", "hunyuan-dense", "hunyuan-moe",
        "hunyuan_vl", "hy_v3", "internlm2", "jais2", "llama", "llama4", "maincoder", "mellum",
        "mistral3", "olmo", "olmo2", "olmoe", "orion", "paddleocr",
        "pangu-embedded", "plamo", "pockettts", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl",
        "qwen3vlmoe", "seed_oss", "smallthinker", "smollm3", "starcoder2", "talkie", "xverse",
    }
)  # fmt: skip
"""Rotary positions turn all of a head: llama.cpp asserts it when it computes."""

NO_ROPE = frozenset(
    {
        "arwkv7", "bloom", "deepseek2-ocr", "glm5-next", "gpt2", "jais", "jamba", "kimi-k3", "kimi-linear",
        "mamba", "mamba2", "mpt", "nemotron_h", "nemotron_h_moe", "refact", "rwkv6", "rwkv6qwen2", "rwkv7",
        "starcoder",
    }
)  # fmt: skip
"""Without rotary positions, or with layers that have none: their number of dimensions may be 0."""

NO_ATTENTION_IN_SOME = frozenset(
    {
        "bailingmoe3", "deci", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe",
        "nemotron_h", "nemotron_h_moe", "plamo2",
    }
)  # fmt: skip
"""A layer may have no heads: it is a recurrent one, or has no attention at all."""

LAYERS_DIFFER = NO_ATTENTION_IN_SOME | {
    "dots3note", "gemma4", "laguna", "mimo2", "openelm", "plamo3", "spark2_5", "step35",
}  # fmt: skip
"""Layers may have different numbers of heads; elsewhere the shapes of the first hold for all."""

IN_SECTIONS = frozenset({
    "paddleocr", "qwen2vl", "qwen35", "qwen35moe", "qwen3tts", "qwen3vl", "qwen3vlmoe", "qwen4exp",
})  # fmt: skip
"""Rotary positions have several parts, for time, height and width, and turn a section of each head by each."""

WINDOWED = frozenset({"dots3note", "gemma4", "granite_swa", "maple", "mimo2", "spark2_5", "step35"})
"""Which layers have a sliding window stands in the file: some must."""

TWICE_AS_WIDE = frozenset({"granitehybrid", "jamba"})
"""The running state is twice as wide as the hidden state."""

DELTA_NET = frozenset({"qwen35", "qwen35moe", "qwen3next", "qwen4exp"})
"""The running state is a square for each of `ssm.time_step_rank` heads."""

RWKV = frozenset({"arwkv7", "rwkv6", "rwkv6qwen2", "rwkv7"})
SHORT_CONVOLUTION = frozenset({"lfm2", "lfm2moe"})
KIMI_DELTA = frozenset({"bailingmoe3", "glm5-next", "kimi-k3", "kimi-linear"})
UNKNOWN_STATE = frozenset({"deepseek4", "minimax-01", "qwen4exp"})
"""Kinds of running states that are neither Mamba's nor a gated delta net's; of the last ones no form is known here."""

UNGROUPED = frozenset({"jamba", "mamba"})
"""The first Mamba, whose state has no groups."""

ONE_KIND_A_LAYER = frozenset({"nemotron_h", "nemotron_h_moe"})
"""A layer without attention is a feed-forward one where it has a width, else a recurrent one."""

ONE_KV_EACH = frozenset({"deepseek2-ocr", "dots1"})
"""Each head has keys and values of its own."""

GATED = frozenset(
    {
        "bailingmoe2",
        "bailingmoe3",
        "deepseek32",
        "dots1",
        "dots3note",
        "exaone-moe",
        "hy_v4",
        "minimax-m2",
        "smallthinker",
    }
)
"""How the weights of experts are made must stand in the file."""

ALIKE_LAYERS = frozenset(
    {
        "arcee", "bloom", "codeshell", "command-r", "dbrx", "exaone", "falcon", "falcon-h1", "gemma", "gpt2",
        "gptneox", "granite", "granitemoe", "hunyuan-dense", "hunyuan-moe", "internlm2", "jais", "llama", "mamba",
        "mamba2", "minicpm", "minimax-m2", "mpt", "nemotron", "olmo", "olmoe", "orion", "pangu-embedded", "phi2",
        "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "refact", "seed_oss", "stablelm", "starcoder",
        "starcoder2", "xverse",
    }
)  # fmt: skip
"""Every layer is built as every other: a model goes on computing whichever of them are left out."""

LAYERS_IN_ORDER = ALIKE_LAYERS | {
    "afmoe", "arwkv7", "bailingmoe2", "cohere2", "deepseek", "deepseek2", "dots1", "ernie4_5", "ernie4_5-moe",
    "exaone4", "glm4", "glm4moe", "gpt-oss", "mistral3", "mistral4", "olmo2", "phi3", "phimoe", "qwen35",
    "qwen35moe", "qwen3next", "qwen3vl", "qwen3vlmoe", "rwkv6", "rwkv7", "smollm3",
}  # fmt: skip
"""A layer's kind follows from its number alone: a model goes on computing without its last layers. Not where llama.cpp
takes a model's scale from how many layers it has (gemma2, gemma3, llama4)."""

ATTENTION_AT_INTERVALS = {
    **dict.fromkeys(("qwen35", "qwen35moe", "qwen3next", "qwen4exp"), 4),
    "minimax-01": 8,
}
"""Architecture -> how many layers there are to each with attention, where `full_attention_interval` is not stated."""

_HEAD = "a drafting head that runs on its target's hidden states, not a model of its own"
ANOTHER_DRAFT = (
    "localspec runs EAGLE-3 heads and the prediction layers of a target's own architecture alone: give a small model "
    "of its family as the draft, or leave it out."
)
"""What to do instead of drafting with a head of these kinds."""
_EMBEDDING = "an embedding model, which does not write text"
_DIFFUSION = "a diffusion model, which does not write token after token"

LOOKS_AHEAD = "a model that reads ahead of each token, which cannot continue a text token by token"
"""What a file is whose attention is not causal, of any architecture."""

OTHER_HEADS = frozenset({"dflash", "gemma4-assistant"})
"""They read what a target computes in other ways than its own prediction layers do."""

NOT_A_TEXT_GENERATOR: dict[str, str] = {
    "bert": _EMBEDDING,
    "clip": "an image or audio projector (mmproj), not a language model",
    "dflash": _HEAD,
    "dream": _DIFFUSION,
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
