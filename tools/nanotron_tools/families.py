"""The architectures whose config.json has Llama's keys, or others for the same: a row for each.

Keys of experts are in hf_config.py, names and layout of the tensors in layouts.py, and GPT-2's kind in gpt2.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import family_keys as fk
from .family_keys import Rule, chosen, same

SWIGLU = {"silu": "silu", "swish": "silu"}
# transformers' activation functions -> ours; its other names of the same are read, and written as the first.
GELU = {"gelu_pytorch_tanh": "gelu_new", "gelu_new": "gelu_new", "gelu": "gelu"}
ROTATED_PART = "partial_rotary_factor"
LAYER_NORM = {"normalization": "layer_norm"}
Biases = dict[str, tuple[str, bool]]


def bias_of(key: str, default: bool, *projections: str) -> Biases:
    return dict.fromkeys(projections, (key, default))


OF_LLAMA = bias_of("attention_bias", False, "qkv_bias", "o_proj_bias")
OF_MLP = bias_of("mlp_bias", False, "mlp_bias")


@dataclass(frozen=True)
class Family:
    architecture: str
    aliases: dict[str, str] = field(default_factory=dict)  # Llama's key -> this one's
    defaults: dict[str, Any] = field(default_factory=dict)  # Llama's keys, where config.json is silent
    biases: Biases = field(default_factory=dict)  # key of &model -> key of config.json, and what silence means
    fixed: dict[str, Any] = field(default_factory=dict)  # keys of &model that all its models have
    rope_theta: float = 1e4  # where config.json is silent
    activations: dict[str, str] = field(default_factory=lambda: SWIGLU)
    dropouts: tuple[str, ...] = ()  # told and left out
    # Key -> the one value that is read, the value where config.json is silent, what another one means.
    only: dict[str, tuple[Any, Any, str]] = field(default_factory=dict)
    without: tuple[str, ...] = ()  # Llama's keys that its class does not read
    has_window: bool = False  # sliding_window alone says it
    rope_types: tuple[str, ...] = ()  # that its configuration allows; empty: all
    rules: tuple[Rule, ...] = ()  # what else config.json says
    is_of_transformers: bool = True

    @property
    def stem(self) -> str:
        """What the names of its classes begin with."""
        return self.architecture.removesuffix("ForCausalLM")

    def keys(self) -> frozenset[str]:
        """Of config.json, beside Llama's."""
        biases = (key for key, _ in self.biases.values())
        rules = (key for rule in self.rules for key in rule.keys)
        return frozenset((*self.aliases.values(), *self.dropouts, *self.only, *biases, *rules))

    @property
    def rotates_a_part(self) -> bool:
        """Whether its class reads how much of a head is rotated."""
        return ROTATED_PART in self.defaults

    def in_llamas_keys(self, config: dict[str, Any]) -> dict[str, Any]:
        """Its config.json with Llama's names, and what silence means there."""
        named = {ours: config[theirs] for ours, theirs in self.aliases.items() if config.get(theirs) is not None}
        for ours, value in named.items():
            if config.get(ours) not in (None, value):
                raise ValueError(f"{self.aliases[ours]} and {ours} differ")
        read = {key: value for key, value in config.items() if key not in self.without}
        part = {key: value for key, value in (config.get("rope_parameters") or {}).items() if key == ROTATED_PART}
        return self.defaults | part | read | named

    def bias(self, name: str, config: dict[str, Any]) -> bool:
        key, default = self.biases.get(name, ("", False))
        value = config.get(key)
        return bool(default if value is None else value)


GELU_TANH_GATE = {"gelu_pytorch_tanh": "geglu_tanh", "gelu_new": "geglu_tanh", "gelu": "geglu"}
WHOLE_QK_NORM = {"qk_norm": True, "qk_norm_over": "projection"}
PHI_DROPOUTS = ("attention_dropout", "resid_pdrop", "embd_pdrop")
SOFT_CAPS = tuple(same(key, None, nothing=0.0) for key in ("attn_logit_softcapping", "final_logit_softcapping"))
GEMMA2_CAPS = (same("attn_logit_softcapping", 50.0, nothing=0.0), same("final_logit_softcapping", 30.0, nothing=0.0))
OF_GEMMA = {"norm_weight": "one_plus", "norm_placement": "sandwich"}
FAMILIES = {
    "llama": Family("LlamaForCausalLM", biases=OF_LLAMA | OF_MLP),
    "mistral": Family("MistralForCausalLM", defaults={"num_key_value_heads": 8, "sliding_window": 4096},
                      has_window=True),
    "phi3": Family("Phi3ForCausalLM", defaults={"rms_norm_eps": 1e-5, ROTATED_PART: 1.0}, has_window=True,
                   dropouts=PHI_DROPOUTS, rope_types=("default", "longrope", "dynamic")),
    "qwen2": Family("Qwen2ForCausalLM", defaults={"num_key_value_heads": 32}, fixed={"qkv_bias": True}),
    "qwen3": Family("Qwen3ForCausalLM", defaults={"num_key_value_heads": 32, "head_dim": 128}, biases=OF_LLAMA,
                    fixed={"qk_norm": True}),
    "mixtral": Family("MixtralForCausalLM",
                      defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5}, rope_theta=1e6),
    "qwen2_moe": Family("Qwen2MoeForCausalLM", defaults={"num_key_value_heads": 16},
                        biases=bias_of("qkv_bias", True, "qkv_bias")),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", defaults={"num_key_value_heads": 4}, biases=OF_LLAMA,
                        fixed={"qk_norm": True}),
    "starcoder2": Family(
        "Starcoder2ForCausalLM", aliases={"layer_norm_epsilon": "norm_epsilon"},
        defaults={"num_key_value_heads": 2, "tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"},
        biases=bias_of("use_bias", True, "qkv_bias", "o_proj_bias", "mlp_bias"), fixed=LAYER_NORM, activations=GELU,
        dropouts=("attention_dropout", "residual_dropout", "embedding_dropout"), has_window=True),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM", aliases={"layer_norm_epsilon": "layer_norm_eps", "rope_theta": "rotary_emb_base",
                                       ROTATED_PART: "rotary_pct"},
        defaults={"hidden_act": "gelu", ROTATED_PART: 0.25},
        biases=bias_of("attention_bias", True, "qkv_bias", "o_proj_bias"), fixed=LAYER_NORM | {"mlp_bias": True},
        without=("num_key_value_heads", "head_dim"),
        activations=GELU, dropouts=("attention_dropout", "hidden_dropout"),
        rules=(chosen("use_parallel_residual", True, "parallel_residual", {False: "none", True: "two_norms"}),)),
    "seed_oss": Family(
        "SeedOssForCausalLM", defaults={"num_key_value_heads": 8, "head_dim": 128},
        biases=bias_of("attention_bias", True, "qkv_bias") | bias_of("attention_out_bias", False, "o_proj_bias")
        | OF_MLP, dropouts=("attention_dropout", "residual_dropout")),
    "orion": Family("OrionForCausalLM", aliases={"layer_norm_epsilon": "rms_norm_eps"}, fixed=LAYER_NORM,
                    without=("head_dim",), is_of_transformers=False),
    "ernie4_5": Family(
        "Ernie4_5ForCausalLM",
        defaults={"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5,
                  "tie_word_embeddings": True},
        rope_theta=5e5, biases=bias_of("use_bias", False, "qkv_bias", "o_proj_bias", "mlp_bias")),
    "helium": Family("HeliumForCausalLM", defaults={"head_dim": 128, "rms_norm_eps": 1e-8}, rope_theta=1e5,
                     biases=bias_of("attention_bias", False, "qkv_bias") | OF_MLP),
    "granite": Family("GraniteForCausalLM", biases=OF_LLAMA | OF_MLP,
                      rules=(same("embedding_multiplier", 1.0), same("logits_scaling", 1.0),
                             same("residual_multiplier", 1.0), fk.GRANITE_ATTENTION)),
    "apertus": Family(
        "ApertusForCausalLM", defaults={"rms_norm_eps": 1e-5, "hidden_act": "xielu"}, rope_theta=12e6, biases=OF_LLAMA,
        fixed={"qk_norm": True}, activations={"xielu": "xielu"},
        only={"post_norm": (False, False, "norms of another place"), "qk_norm": (True, True, "no norms of q and k")}),
    "smollm3": Family("SmolLM3ForCausalLM", defaults={"num_key_value_heads": 4, "tie_word_embeddings": True},
                      rope_theta=2e6, biases=OF_LLAMA | OF_MLP, rules=(fk.ROPE_LAYERS,)),
    "olmo2": Family("Olmo2ForCausalLM", defaults={"rms_norm_eps": 1e-5}, biases=OF_LLAMA,
                    fixed=WHOLE_QK_NORM | {"norm_placement": "post"}),
    "olmo3": Family("Olmo3ForCausalLM", defaults={"rms_norm_eps": 1e-5}, biases=OF_LLAMA,
                    fixed=WHOLE_QK_NORM | {"norm_placement": "post"},
                    rules=(fk.windows("3:1"), fk.OLMO3_LOCAL_ROPE)),
    "olmoe": Family("OlmoeForCausalLM", defaults={"rms_norm_eps": 1e-5}, biases=OF_LLAMA, fixed=WHOLE_QK_NORM,
                    without=("head_dim",), only={"clip_qkv": (None, None, "clipped queries, keys and values")}),
    "gemma2": Family(
        "Gemma2ForCausalLM", aliases={"hidden_act": "hidden_activation"}, without=("hidden_act",),
        defaults={"num_key_value_heads": 4, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
                  "tie_word_embeddings": True}, biases=OF_LLAMA, fixed=OF_GEMMA, activations=GELU_TANH_GATE,
        rules=(fk.windows("1:1"), fk.GEMMA_SCALES, *GEMMA2_CAPS)),
    "gemma3_text": Family(
        "Gemma3ForCausalLM", aliases={"hidden_act": "hidden_activation"}, without=("hidden_act",),
        defaults={"num_key_value_heads": 4, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
                  "tie_word_embeddings": True}, rope_theta=1e6, biases=OF_LLAMA, fixed=OF_GEMMA | {"qk_norm": True},
        activations=GELU_TANH_GATE,
        only={"use_bidirectional_attention": (False, False, "attention to later tokens")},
        rules=(fk.windows("5:1", "sliding_window_pattern"), fk.GEMMA_SCALES, *SOFT_CAPS, fk.GEMMA3_LOCAL_ROPE)),
    "gpt_oss": Family(
        "GptOssForCausalLM", defaults={"num_key_value_heads": 8, "head_dim": 64, "rms_norm_eps": 1e-5}, rope_theta=15e4,
        biases=bias_of("attention_bias", True, "qkv_bias", "o_proj_bias"),
        fixed={"attention_sinks": True, "router_bias": True, "mlp_bias": True},
        activations={"silu": "swiglu_clamped"},
        only={"swiglu_limit": (7.0, 7.0, "another limit of SwiGLU")}, rules=(fk.windows("1:1"),)),
    "stablelm": Family(
        "StableLmForCausalLM", aliases={"layer_norm_epsilon": "layer_norm_eps"}, defaults={ROTATED_PART: 0.25},
        biases=bias_of("use_qkv_bias", False, "qkv_bias"), fixed=LAYER_NORM, without=("head_dim",),
        dropouts=("attention_dropout", "hidden_dropout"),
        only={"qk_layernorm": (False, False, "a norm for each head of queries and keys")},
        rules=(chosen("use_parallel_residual", False, "parallel_residual", {False: "none", True: "one_norm"}),)),
    "glm": Family("GlmForCausalLM", defaults={"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1.5625e-07,
                                              ROTATED_PART: 0.5},
                  biases=bias_of("attention_bias", True, "qkv_bias"), fixed={"rope_interleaved": True}),
    "glm4": Family("Glm4ForCausalLM", defaults={"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1.5625e-07,
                                                ROTATED_PART: 0.5},
                   biases=bias_of("attention_bias", True, "qkv_bias"),
                   fixed={"rope_interleaved": True, "norm_placement": "sandwich"}),
    "deepseek_v3": Family(
        "DeepseekV3ForCausalLM", defaults={"num_key_value_heads": 128}, rope_types=("default", "yarn"),
        only={"attention_bias": (False, False, "biases of compressed queries, keys and values")},
        rules=(fk.DEEPSEEK_EXPERTS, fk.DEEPSEEK_ATTENTION, fk.DEEPSEEK_NORMS)),
    "phi": Family(
        "PhiForCausalLM", aliases={"layer_norm_epsilon": "layer_norm_eps"},
        defaults={"hidden_act": "gelu_new", ROTATED_PART: 0.5}, without=("head_dim",),
        activations={"gelu_new": "gelu_new"} | GELU,
        fixed=LAYER_NORM | {"parallel_residual": "one_norm", "qkv_bias": True, "o_proj_bias": True, "mlp_bias": True,
                            "lm_head_bias": True},
        dropouts=PHI_DROPOUTS, rope_types=("default",),
        only={"qk_layernorm": (False, False, "a LayerNorm for each head of queries and keys")}),
    "opt": Family(
        "OPTForCausalLM", aliases={"intermediate_size": "ffn_dim", "hidden_act": "activation_function"},
        defaults={"hidden_act": "relu", "tie_word_embeddings": True},
        without=("num_key_value_heads", "head_dim", "layer_norm_epsilon", "hidden_act", "intermediate_size"),
        activations={"relu": "relu"} | GELU, dropouts=("dropout", "attention_dropout", "layerdrop"),
        biases=bias_of("enable_bias", True, "qkv_bias", "o_proj_bias", "mlp_bias"),
        fixed=LAYER_NORM | {"position_embedding_type": "learned_absolute"},
        only={"do_layer_norm_before": (True, True, "norms after the blocks"),
              "layer_norm_elementwise_affine": (True, True, "norms without weights"),
              "_remove_final_layer_norm": (False, False, "no final norm")},
        rules=(same("max_position_embeddings", 2048),
               fk.equal("word_embed_proj_dim", "hidden_size", "embeddings of another width"))),
    "internlm2": Family("InternLM2ForCausalLM", biases=bias_of("bias", True, "qkv_bias", "o_proj_bias"),
                        is_of_transformers=False),
    "internlm3": Family("InternLM3ForCausalLM", biases=bias_of("qkv_bias", False, "qkv_bias")
                        | bias_of("bias", False, "o_proj_bias", "mlp_bias"), is_of_transformers=False),
    "exaone": Family(
        "ExaoneForCausalLM", aliases={"num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon",
                                      "hidden_act": "activation_function"},
        defaults={"rms_norm_eps": 1e-5}, dropouts=("attention_dropout", "embed_dropout"), is_of_transformers=False),
}
