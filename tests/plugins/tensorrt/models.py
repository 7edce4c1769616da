"""Small models of well-known architectures with random weights, exported by torch's dynamo exporter at opset 23."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

OPSET = 23
Maker = Callable[[Path], Path]

LLAMA = {"vocab_size": 320, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 512, "tie_word_embeddings": False}


def randomise(model: Any, seed: int = 0) -> Any:
    """Draws every parameter and buffer so that none is zero, one or like another, and activations stay of the order of one."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            drawn = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(drawn * parameter[0].numel() ** -0.5)
            else:
                parameter.copy_(1 + drawn / 8 if "norm" in name.lower() and name.endswith("weight") else drawn / 8)
        for name, buffer in sorted(model.named_buffers()):
            if "running" in name:
                drawn = torch.rand(buffer.shape, generator=generator)
                buffer.copy_(drawn + 0.5 if "var" in name else drawn - 0.5)
    return model.eval()


def export(path: Path, module: Any, arguments: Sequence[Any], inputs: Sequence[str], outputs: Sequence[str],
           dims: Sequence[dict[int, str]]) -> Path:
    """Writes ``module`` as ONNX. ``dims`` names the symbolic dimensions of each input."""
    import torch

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module.eval(), tuple(arguments), opset_version=OPSET, dynamo=True, verbose=False,
                                    input_names=list(inputs), output_names=list(outputs), dynamic_shapes=tuple(dims) or None)
    assert program is not None
    program.save(str(path))
    return path


def bert(path: Path, layers: int = 2, width: int = 384, heads: int = 12, vocabulary: int = 500) -> Path:
    """A sentence encoder of MiniLM's proportions: input_ids, attention_mask, token_type_ids ``[batch, seq]`` int64 to
    last_hidden_state ``[batch, seq, width]`` and sentence_embedding ``[batch, width]`` f32."""
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
                        intermediate_size=4 * width, max_position_embeddings=512)

    class Sentence(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = BertModel(config, add_pooling_layer=False)

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            hidden = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).last_hidden_state
            kept = attention_mask.unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
            return hidden, torch.nn.functional.normalize(pooled, p=2, dim=1)

    ids = torch.randint(0, vocabulary, (2, 16))
    names = ["input_ids", "attention_mask", "token_type_ids"]
    return export(path, randomise(Sentence()), (ids, torch.ones_like(ids), torch.zeros_like(ids)), names,
                  ["last_hidden_state", "sentence_embedding"], [{0: "batch", 1: "seq"}] * 3)


def vit(path: Path, layers: int = 2) -> Path:
    """ViT-Tiny, cut to ``layers``: pixel_values ``[batch, 3, 224, 224]`` to logits ``[batch, 10]`` f32."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=192, num_hidden_layers=layers, num_attention_heads=3, intermediate_size=768, num_labels=10)

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = ViTForImageClassification(config)

        def forward(self, pixel_values: Any) -> Any:
            return self.model(pixel_values=pixel_values).logits

    return export(path, randomise(Logits()), [torch.randn(2, 3, 224, 224)], ["pixel_values"], ["logits"], [{0: "batch"}])


def resnet(path: Path) -> Path:
    """ResNet-18 of a quarter of the width: pixel_values ``[batch, 3, 224, 224]`` to logits ``[batch, 10]`` f32."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[2, 2, 2, 2], layer_type="basic", num_labels=10)

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = ResNetForImageClassification(config)

        def forward(self, pixel_values: Any) -> Any:
            return self.model(pixel_values=pixel_values).logits

    return export(path, randomise(Logits()), [torch.randn(2, 3, 224, 224)], ["pixel_values"], ["logits"], [{0: "batch"}])


# --- a decoder ---------------------------------------------------------------------------------------------------------------


def _llama() -> Any:
    """A module of a step: ``forward(input_ids, mask, past_key_0, past_value_0, …)`` to logits and the caches, ``[batch, kv_heads,
    length, head_dim]``. Attention is ONNX's operator with grouped heads, past and present."""
    import torch
    from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

    step: dict[int, Any] = {}

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, **options: Any) -> Any:
        past = step.get(module.layer_idx, (None, None))
        y, present_key, present_value, _ = torch.onnx.ops.attention(
            query, key, value, attention_mask, *past, is_causal=attention_mask is None, scale=scaling)
        step[module.layer_idx] = (present_key, present_value)
        return y.transpose(1, 2), None

    AttentionInterface.register("infc_onnx", attention)
    config = LlamaConfig(**LLAMA, attn_implementation="infc_onnx")  # type: ignore[arg-type]

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = LlamaForCausalLM(config)

        def forward(self, input_ids: Any, mask: Any = None, position_ids: Any = None, caches: Any = ()) -> Any:
            step.clear()
            step.update({i: (caches[2 * i], caches[2 * i + 1]) for i in range(len(caches) // 2)})
            logits = self.model(input_ids=input_ids, attention_mask=mask, position_ids=position_ids, use_cache=False).logits
            return (logits, *(c for i in range(config.num_hidden_layers) for c in step[i]))

    return randomise(Step())


def _cache_names(which: str) -> list[str]:
    return [f"{which}_{kind}_{i}" for i in range(LLAMA["num_hidden_layers"]) for kind in ("key", "value")]


def llama_prefill(path: Path) -> Path:
    """input_ids ``[batch, seq]`` to logits ``[batch, seq, 320]`` and the cache, present_key_i and present_value_i
    ``[batch, 2, seq, 64]``."""
    import torch

    class Prefill(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = _llama()

        def forward(self, input_ids: Any) -> Any:
            # A mask of four dimensions is taken as it is; None stays None with an attention function of one's own.
            return self.step(input_ids)

    return export(path, Prefill(), [torch.randint(0, 320, (2, 16))], ["input_ids"], ["logits", *_cache_names("present")],
                  [{0: "batch", 1: "seq"}])


def llama_decode(path: Path, past: int = 63, half: bool = False) -> Path:
    """One token of one sequence: input_ids and position_ids ``[1, 1]``, attention_mask ``[1, past + 1]`` int64, past_key_i and
    past_value_i ``[1, 2, past, 64]`` to logits ``[1, 1, 320]`` and the caches, one longer. ``half``: all of it in f16."""
    import torch

    class Decode(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = _llama()

        def forward(self, input_ids: Any, position_ids: Any, attention_mask: Any, *caches: Any) -> Any:
            return self.step(input_ids, attention_mask.to(torch.bool)[:, None, None, :], position_ids, caches)

    dtype = torch.float16 if half else torch.float32
    caches = [torch.randn(1, 2, past, 64, dtype=dtype) for _ in _cache_names("past")]
    mask = torch.ones(1, past + 1, dtype=torch.int64)
    return export(path, Decode().to(dtype), [torch.tensor([[5]]), torch.tensor([[past]]), mask, *caches],
                  ["input_ids", "position_ids", "attention_mask", *_cache_names("past")], ["logits", *_cache_names("present")], ())


def llama_decode_in_place(path: Path, length: int = 64) -> Path:
    """As ``llama_decode`` in f16, but caches have a fixed ``length``, past_key_i and past_value_i ``[1, 2, length, 64]``, and the
    token's keys and values are written at its position by opset 24's TensorScatter; attention_mask is ``[1, length]``."""
    import onnx_ir as ir

    model = ir.load(llama_decode(path, length - 1, half=True))
    graph = model.graph
    given = {v.name: v for v in graph.inputs}
    for name, value in given.items():
        if name == "attention_mask" or name.startswith("past"):
            value.shape = ir.Shape([1, length] if name == "attention_mask" else [1, 2, length, 64])
    axis, size = (ir.Value(name=n, const_value=ir.tensor([x], name=n)) for n, x in (("row_axis", 0), ("length", length)))
    graph.initializers.update({"row_axis": axis, "length": size})
    row = ir.node("Squeeze", [given["position_ids"], axis], name="row")
    where = ir.node("Mod", [row.outputs[0], size], name="where")
    graph.insert_before(graph[0], [row, where])
    for node in [n for n in graph if n.op_type == "Attention"]:
        caches = []
        for new, past, present in zip(node.inputs[1:3], node.inputs[4:6], node.outputs[1:3], strict=True):
            operands, how = [past, new, where.outputs[0]], {"axis": 2, "mode": "linear"}
            written = ir.node("TensorScatter", operands, how, name=f"{present.name}/write")
            node.prepend(written)
            written.outputs[0].type, written.outputs[0].shape = present.type, present.shape
            ir.convenience.replace_all_uses_with(present, written.outputs[0], replace_graph_outputs=True)
            present.name, written.outputs[0].name = f"{present.name}/unused", present.name
            caches.append(written.outputs[0])
        attention = ir.node("Attention", [node.inputs[0], *caches, node.inputs[3]], {"scale": node.attributes["scale"].as_float()},
                            name=node.name)
        node.prepend(attention)
        attention.outputs[0].type, attention.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
        ir.convenience.replace_all_uses_with(node.outputs[0], attention.outputs[0])
        graph.remove(node, safe=True)
        attention.outputs[0].name = f"{attention.name}/context"
    model.opset_imports[""] = 24
    model.ir_version = 11
    ir.save(model, path)
    return path
