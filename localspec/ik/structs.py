"""Structures of ik_llama.cpp's llama.h, as the pinned package was compiled with it.

Another version may have moved a field: `binding.py` compares the defaults with those known here.
"""

from __future__ import annotations

import ctypes

I32, U32, F32, BOOL, POINTER = ctypes.c_int32, ctypes.c_uint32, ctypes.c_float, ctypes.c_bool, ctypes.c_void_p
LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, POINTER)
ProgressCallback = ctypes.CFUNCTYPE(BOOL, F32, POINTER)
AbortCallback = ctypes.CFUNCTYPE(BOOL, POINTER)


class ModelParams(ctypes.Structure):
    """llama_model_params."""

    _fields_ = [
        ("devices", ctypes.c_char_p), ("n_gpu_layers", I32), ("mla", I32), ("split_mode", ctypes.c_int),
        ("main_gpu", I32), ("max_gpu", I32), ("ncmoe", I32),
        ("type_k", ctypes.c_int), ("type_v", ctypes.c_int),
        ("max_ctx_size", U32), ("n_seq_max", I32), ("n_ubatch", I32), ("amb", I32), ("fit_margin", I32),
        ("fit", BOOL), ("worst_graph_tokens", I32),
        ("type_k_first", ctypes.c_int), ("type_k_last", ctypes.c_int),
        ("type_v_first", ctypes.c_int), ("type_v_last", ctypes.c_int),
        ("n_k_first", I32), ("n_k_last", I32), ("n_v_first", I32), ("n_v_last", I32),
        ("tensor_split", POINTER), ("rpc_servers", ctypes.c_char_p),
        ("progress_callback", ProgressCallback), ("progress_callback_user_data", POINTER),
        ("kv_overrides", POINTER), ("tensor_buft_overrides", POINTER),
        ("vocab_only", BOOL), ("use_mmap", BOOL), ("use_mlock", BOOL), ("check_tensors", BOOL),
        ("repack_tensors", BOOL), ("use_thp", BOOL), ("validate_quants", BOOL), ("merge_qkv", BOOL),
        ("merge_up_gate_exps", BOOL), ("mtp", BOOL), ("dry_run", BOOL), ("flash_attn", BOOL),
    ]  # fmt: skip


class ContextParams(ctypes.Structure):
    """llama_context_params."""

    _fields_ = [
        ("seed", U32), ("n_ctx", U32), ("n_batch", U32), ("n_ubatch", U32), ("n_seq_max", U32),
        ("n_threads", U32), ("n_threads_batch", U32), ("max_extra_alloc", I32), ("worst_case_tokens", I32),
        ("rope_scaling_type", ctypes.c_int), ("pooling_type", ctypes.c_int), ("attention_type", ctypes.c_int),
        ("rope_freq_base", F32), ("rope_freq_scale", F32), ("yarn_ext_factor", F32), ("yarn_attn_factor", F32),
        ("yarn_beta_fast", F32), ("yarn_beta_slow", F32), ("yarn_orig_ctx", U32), ("defrag_thold", F32),
        ("cb_eval", POINTER), ("cb_eval_user_data", POINTER),
        ("type_k", ctypes.c_int), ("type_v", ctypes.c_int), ("type_reduce", ctypes.c_int),
        ("type_k_first", ctypes.c_int), ("type_k_last", ctypes.c_int),
        ("type_v_first", ctypes.c_int), ("type_v_last", ctypes.c_int),
        ("n_k_first", I32), ("n_k_last", I32), ("n_v_first", I32), ("n_v_last", I32),
        ("logits_all", BOOL), ("embeddings", BOOL), ("offload_kqv", BOOL), ("flash_attn", BOOL),
        ("mla_attn", ctypes.c_int), ("attn_max_batch", ctypes.c_int),
        ("fused_moe_up_gate", BOOL), ("grouped_expert_routing", BOOL), ("fused_up_gate", BOOL),
        ("fused_mmad", BOOL), ("rope_cache", BOOL), ("graph_reuse", BOOL),
        ("min_experts", ctypes.c_int), ("thresh_experts", F32), ("only_active_experts", BOOL),
        ("k_cache_hadamard", BOOL), ("v_cache_hadamard", BOOL), ("split_mode_graph_scheduling", BOOL),
        ("scheduler_async", BOOL), ("mtp", BOOL), ("mtp_op_type", ctypes.c_int),
        ("abort_callback", AbortCallback), ("abort_callback_data", POINTER),
        ("offload_policy", POINTER), ("cuda_params", POINTER),
    ]  # fmt: skip


class Batch(ctypes.Structure):
    """llama_batch: what the pointers point to has an entry for each token."""

    _fields_ = [
        ("n_tokens", I32), ("token", ctypes.POINTER(I32)), ("embd", POINTER), ("pos", ctypes.POINTER(I32)),
        ("n_seq_id", ctypes.POINTER(I32)), ("seq_id", ctypes.POINTER(ctypes.POINTER(I32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
        ("all_pos_0", I32), ("all_pos_1", I32), ("all_seq_id", I32),
    ]  # fmt: skip


class CacheView(ctypes.Structure):
    """llama_kv_cache_view. max_contiguous: the most free cells that lie side by side."""

    _fields_ = [
        ("n_cells", I32), ("n_seq_max", I32), ("token_count", I32), ("used_cells", I32),
        ("max_contiguous", I32), ("max_contiguous_idx", I32), ("cells", POINTER), ("cells_sequences", POINTER),
    ]  # fmt: skip


MODEL_DEFAULTS = {
    "devices": None, "n_gpu_layers": 0, "split_mode": 1, "type_k": 1, "type_v": 1, "n_seq_max": 1, "n_ubatch": 512,
    "type_v_last": 1, "n_k_first": -1, "n_v_last": -1, "rpc_servers": None, "vocab_only": False, "use_mmap": True,
    "use_mlock": False, "repack_tensors": False, "mtp": False, "flash_attn": True,
}  # fmt: skip
CONTEXT_DEFAULTS = {
    "seed": 0xFFFFFFFF, "n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "max_extra_alloc": 256,
    "rope_scaling_type": -1, "attention_type": -1, "yarn_ext_factor": -1.0, "yarn_orig_ctx": 0,
    "defrag_thold": -1.0, "type_k": 1, "type_v": 1, "type_reduce": 1, "n_k_first": -1, "n_v_last": -1,
    "logits_all": False, "embeddings": False, "offload_kqv": True, "flash_attn": True, "mla_attn": 3,
    "fused_moe_up_gate": True, "fused_up_gate": True, "rope_cache": False, "graph_reuse": True, "min_experts": -1,
    "k_cache_hadamard": False, "mtp_op_type": 0, "cuda_params": None,
}  # fmt: skip
