"""What a model of &model and &moe computes, written out in numpy without regard to speed: an oracle beside the classes
of transformers. Float64, one sequence at a time."""

import math

import numpy as np

from nanotron_tools import layer_sets


def expit(x):
    return 1 / (1 + np.exp(-x))


def erf(x):
    return np.vectorize(math.erf)(x)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def softplus(x):
    return np.logaddexp(0, x)


class Model:
    def __init__(self, sizes, weights):
        self.m, self.weights = sizes, weights
        self.rope_of, self.window_of, self.experts_of = (
            layer_sets.flags_of(text, sizes.num_hidden_layers)
            for text in (sizes.rope_layers, sizes.window_layers if sizes.sliding_window else "none",
                         sizes.expert_layers if sizes.num_experts else "none"))

    def weight(self, name, layer=None):
        if layer is None:
            return self.weights.get(name)
        full = "model/layers/" + name
        stacked = self.weights.get(full)
        return None if stacked is None else stacked[self.m.layers_of(full).index(layer)]

    def linear(self, x, name, layer=None):
        y = x @ self.weight(name + "/weight", layer).T
        bias = self.weight(name + "/bias", layer)
        return y if bias is None else y + bias

    def norm(self, x, name, layer=None):
        m, weight, bias = self.m, self.weight(name + "/weight", layer), self.weight(name + "/bias", layer)
        if m.normalization == "layer_norm" and "q_norm" not in name and "k_norm" not in name:
            centred = x - x.mean(-1, keepdims=True)
            y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + m.layer_norm_epsilon)
        else:
            y = x / np.sqrt((x**2).mean(-1, keepdims=True) + m.rms_norm_eps)
        if weight is not None:
            y = y * (weight + (m.norm_weight == "one_plus"))
        return y if bias is None else y + bias

    # -------------------------------------------------------------------------------------- positions

    def frequencies(self, layer, length):
        """Of each pair, and what the rotated pairs are multiplied by."""
        m = self.m
        rotated = m.qk_rope_head_dim or round(m.head_dim * m.partial_rotary_factor)
        exponent = np.arange(0, rotated, 2) / rotated
        if m.rope_local_theta and self.window_of[layer]:
            return m.rope_local_theta**-exponent, 1.0
        plain = m.rope_theta**-exponent
        if m.rope_type == "linear":
            return plain / m.rope_factor, 1.0
        if m.rope_type == "llama3":
            return self.llama3(plain), 1.0
        if m.rope_type == "yarn":
            low, high = (rotated * math.log(m.original_max_position_embeddings / (turns * 2 * math.pi))
                         / (2 * math.log(m.rope_theta)) for turns in (m.rope_beta_fast, m.rope_beta_slow))
            if m.rope_truncate:
                low, high = math.floor(low), math.ceil(high)
            low, high = max(low, 0), min(high, rotated - 1)
            ramp = np.clip((np.arange(rotated // 2) - low) / max(high - low, 0.001), 0, 1)
            return plain / m.rope_factor * ramp + plain * (1 - ramp), \
                m.rope_attention_factor or 0.1 * math.log(m.rope_factor) + 1
        if m.rope_type == "longrope":
            original = m.original_max_position_embeddings
            text = m.rope_long_factor if length > original else m.rope_short_factor
            return plain / np.array([float(word) for word in text.split()]), \
                m.rope_attention_factor or math.sqrt(1 + math.log(m.rope_factor) / math.log(original))
        return plain, 1.0

    def llama3(self, plain):
        m, waves = self.m, 2 * math.pi / plain
        low, high = (m.original_max_position_embeddings / f for f in (m.rope_low_freq_factor, m.rope_high_freq_factor))
        smooth = (m.original_max_position_embeddings / waves - m.rope_low_freq_factor) / \
            (m.rope_high_freq_factor - m.rope_low_freq_factor)
        between = (1 - smooth) * plain / m.rope_factor + smooth * plain
        return np.where(waves < high, plain, np.where(waves > low, plain / m.rope_factor, between))

    def rotate(self, x, layer):
        """x (length, heads, width): the first part of the width."""
        if self.m.position_embedding_type != "rope" or not self.rope_of[layer]:
            return x
        frequency, magnitude = self.frequencies(layer, len(x))
        half = len(frequency)
        angle = np.arange(len(x))[:, None, None] * frequency
        cos, sin = np.cos(angle) * magnitude, np.sin(angle) * magnitude
        first = slice(0, 2 * half, 2) if self.m.rope_interleaved else slice(0, half)
        second = slice(1, 2 * half, 2) if self.m.rope_interleaved else slice(half, 2 * half)
        y = x.copy()
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., second] * cos + x[..., first] * sin
        return y

    # -------------------------------------------------------------------------------------- attention

    def queries_keys_values(self, x, layer):
        m, length = self.m, len(x)
        if m.kv_lora_rank:
            return self.latent(x, layer)
        q, k, v = (self.linear(x, f"self_attn/{name}_proj", layer) for name in "qkv")
        if m.qk_norm and m.qk_norm_over == "projection":
            q, k = self.norm(q, "self_attn/q_norm", layer), self.norm(k, "self_attn/k_norm", layer)
        q, k, v = (part.reshape(length, -1, m.head_dim) for part in (q, k, v))
        if m.qk_norm and m.qk_norm_over == "head":
            q, k = self.norm(q, "self_attn/q_norm", layer), self.norm(k, "self_attn/k_norm", layer)
        return self.rotate(q, layer), self.rotate(k, layer), v

    def latent(self, x, layer):
        m, length, nope, heads = self.m, len(x), self.m.qk_nope_head_dim, self.m.num_attention_heads
        q = self.linear(x, "self_attn/q_proj", layer) if not m.q_lora_rank else self.linear(
            self.norm(self.linear(x, "self_attn/q_a_proj", layer), "self_attn/q_a_layernorm", layer),
            "self_attn/q_b_proj", layer)
        q = q.reshape(length, heads, -1)
        both = self.linear(x, "self_attn/kv_a_proj_with_mqa", layer)
        compressed = self.norm(both[:, :m.kv_lora_rank], "self_attn/kv_a_layernorm", layer)
        kv = self.linear(compressed, "self_attn/kv_b_proj", layer).reshape(length, heads, -1)
        rotated = self.rotate(both[:, None, m.kv_lora_rank:], layer)
        k = np.concatenate((kv[..., :nope], np.repeat(rotated, heads, axis=1)), -1)
        return np.concatenate((q[..., :nope], self.rotate(q[..., nope:], layer)), -1), k, kv[..., nope:]

    def attention(self, x, layer):
        m, length = self.m, len(x)
        q, k, v = self.queries_keys_values(x, layer)
        group = m.num_attention_heads // k.shape[1]
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        score = np.einsum("qhd,khd->hqk", q, k) * (m.attention_multiplier or q.shape[-1] ** -0.5)
        if m.attn_logit_softcapping:
            score = m.attn_logit_softcapping * np.tanh(score / m.attn_logit_softcapping)
        distance = np.arange(length)[:, None] - np.arange(length)
        seen = (distance >= 0) & (distance < m.sliding_window if self.window_of[layer] else True)
        score = np.where(seen, score, -np.inf)
        if m.attention_sinks:
            sinks = np.broadcast_to(self.weight("self_attn/sinks", layer)[:, None, None], (*score.shape[:2], 1))
            score = np.concatenate((score, sinks), -1)
        share = softmax(score)[..., :length]
        return self.linear(np.einsum("hqk,khd->qhd", share, v).reshape(length, -1), "self_attn/o_proj", layer)

    # -------------------------------------------------------------------------------------- feed-forward

    def activate(self, gate, up, layer):
        m, act = self.m, self.m.hidden_act
        if act == "swiglu_clamped":
            gate, up = np.minimum(gate, m.swiglu_limit), np.clip(up, -m.swiglu_limit, m.swiglu_limit)
            return gate * expit(m.swiglu_alpha * gate) * (up + 1)
        if act == "xielu":
            positive, negative = (softplus(self.weight(f"mlp/act_fn/alpha_{sign}", layer)) for sign in "pn")
            return np.where(up > 0, positive * up * up + 0.5 * up,
                            (np.expm1(np.minimum(up, -1e-6)) - up) * (0.5 + negative) + 0.5 * up)
        gated = {"silu": lambda g: g * expit(g), "geglu": gelu, "geglu_tanh": gelu_tanh}
        if act in gated:
            return gated[act](gate) * up
        return {"gelu": gelu, "gelu_new": gelu_tanh, "relu": lambda u: np.maximum(u, 0),
                "relu2": lambda u: np.maximum(u, 0) ** 2}[act](up)

    def feed_forward(self, x, prefix, layer, expert=None):
        def linear(y, name):
            full, at = f"{prefix}/{name}", layer
            if expert is None:
                return self.linear(y, full, at)
            place = self.m.layers_of(f"model/layers/{full}/weight").index(layer)
            weight, bias = (self.weights.get(f"model/layers/{full}/{kind}") for kind in ("weight", "bias"))
            z = y @ weight[expert, place].T
            return z if bias is None else z + bias[expert, place]

        gate = linear(x, "gate_proj") if self.m.is_gated else None
        return linear(self.activate(gate, linear(x, "up_proj"), layer), "down_proj")

    def routing(self, logits, layer):
        """Weight of each expert for each token; 0 where it is not chosen."""
        m = self.m
        score = expit(logits) if m.router_score == "sigmoid" else softmax(logits)
        bias = self.weight("mlp/gate/e_score_correction_bias", layer)
        ranked = score if bias is None else score + bias
        if m.n_group > 1:
            groups = np.sort(ranked.reshape(len(ranked), m.n_group, -1))[..., -2:].sum(-1)
            kept = np.argsort(groups)[:, -m.topk_group:]
            of_group = np.zeros_like(groups, bool)
            np.put_along_axis(of_group, kept, True, -1)
            ranked = np.where(np.repeat(of_group, m.num_experts // m.n_group, axis=1), ranked, -np.inf)
        chosen = np.zeros_like(score)
        np.put_along_axis(chosen, np.argsort(ranked)[:, -m.num_experts_per_tok:], 1.0, -1)
        weight = score * chosen
        if m.norm_topk_prob:
            weight = weight / weight.sum(-1, keepdims=True)
        return weight * m.routed_scaling_factor

    def mlp(self, x, layer):
        if not self.experts_of[layer]:
            return self.feed_forward(x, "mlp", layer)
        share = self.routing(self.linear(x, "mlp/gate", layer), layer)
        y = sum(share[:, e, None] * self.feed_forward(x, "mlp/experts", layer, e) for e in range(self.m.num_experts))
        if self.m.shared_expert_intermediate_size:
            y = y + expit(self.linear(x, "mlp/shared_expert_gate", layer)) * self.feed_forward(x, "mlp/shared_expert", layer)
        return y + self.feed_forward(x, "mlp/shared_experts", layer) if self.m.n_shared_experts else y

    # -------------------------------------------------------------------------------------- the model

    def block(self, x, layer):
        m, factor = self.m, self.m.residual_multiplier

        def norm(y, name):
            return self.norm(y, name + "_layernorm", layer)

        if m.norm_placement == "post":
            x = x + factor * norm(self.attention(x, layer), "post_attention")
            return x + factor * norm(self.mlp(x, layer), "post_feedforward")
        if m.norm_placement == "sandwich":
            x = x + factor * norm(self.attention(norm(x, "input"), layer), "post_attention")
            return x + factor * norm(self.mlp(norm(x, "pre_feedforward"), layer), "post_feedforward")
        attended = self.attention(norm(x, "input"), layer)
        if m.parallel_residual != "none":
            other = norm(x, "input" if m.parallel_residual == "one_norm" else "post_attention")
            return x + factor * (attended + self.mlp(other, layer))
        x = x + factor * attended
        return x + factor * self.mlp(norm(x, "post_attention"), layer)

    def logits(self, ids):
        """(length, vocabulary)"""
        m, words = self.m, self.weight("model/embed_tokens/weight")
        x = words[ids] * m.embedding_multiplier
        if m.position_embedding_type == "learned_absolute":
            x = x + self.weight("model/embed_positions/weight")[:len(ids)]
        for layer in range(m.num_hidden_layers):
            x = self.block(x, layer)
        head = words if m.tie_word_embeddings else self.weight("lm_head/weight")
        y = self.norm(x, "model/norm") @ head.T
        y = y / m.logits_scaling + (self.weight("lm_head/bias") if m.lm_head_bias else 0.0)
        cap = m.final_logit_softcapping
        return cap * np.tanh(y / cap) if cap else y
