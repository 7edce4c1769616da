"""The ordered pass lists, nothing else."""

from __future__ import annotations

from infc.passes.base import Pass
from infc.passes.cleanup.common_subexpressions import CommonSubexpressions
from infc.passes.cleanup.constant_folding import ConstantFolding
from infc.passes.cleanup.dead_code import DeadCode
from infc.passes.cleanup.empty_tensors import EmptyTensors
from infc.passes.cleanup.identities import Identities
from infc.passes.cleanup.inline_if import InlineIf
from infc.passes.cleanup.masked_assignment import MaskedAssignment
from infc.passes.cleanup.normalise import Normalise
from infc.passes.cleanup.reshape_transpose import ReshapeTranspose
from infc.passes.cleanup.unroll import Unroll
from infc.passes.fusion.fuse_activation import FuseActivation
from infc.passes.fusion.fuse_add_norm import FuseAddNorm
from infc.passes.fusion.fuse_attention import FuseAttention
from infc.passes.fusion.fuse_conv import FoldBatchNorm, FoldPad, FuseConv
from infc.passes.fusion.fuse_embedding_sum import FuseEmbeddingSum
from infc.passes.fusion.fuse_gelu import FuseGelu
from infc.passes.fusion.fuse_l2_normalize import FuseL2Normalize
from infc.passes.fusion.fuse_layer_norm import FuseLayerNorm
from infc.passes.fusion.fuse_linear import FuseLinear
from infc.passes.fusion.fuse_residual import FuseResidual
from infc.passes.fusion.fuse_rms_norm import FuseRmsNorm
from infc.passes.fusion.fuse_rope import FuseRope
from infc.passes.fusion.fuse_segment_pool import FuseSegmentPool
from infc.passes.fusion.heads_first import HeadsFirst
from infc.passes.fusion.merge_heads import MergeHeads
from infc.passes.fusion.merge_qkv import MergeQkv
from infc.passes.fusion.split_heads import SplitHeads
from infc.passes.fusion.write_out_attention import WriteOutAttention
from infc.passes.pack_tokens import PackTokens
from infc.passes.prove_padding import ProvePadding
from infc.passes.quant.fuse_quantized import FuseQuantized
from infc.passes.quant.read_quantized import ReadQuantized
from infc.passes.token_rows import TokenRows

CLEANUP: tuple[type[Pass], ...] = (Normalise, ConstantFolding, InlineIf, Unroll, ConstantFolding, InlineIf,
                                   CommonSubexpressions, Identities, MaskedAssignment, ReshapeTranspose, DeadCode)

# Run again on a graph whose symbolic dimensions have become numbers.
FOLD: tuple[type[Pass], ...] = (
    EmptyTensors,
    ConstantFolding,
    InlineIf,
    Unroll,
    ConstantFolding,
    InlineIf,
    Identities,
    ReshapeTranspose,
    CommonSubexpressions,
    DeadCode,
)

PIPELINES: dict[str, tuple[type[Pass], ...]] = {
    "cpu": (
        *CLEANUP,
        ReadQuantized,
        FuseLayerNorm,
        FuseRmsNorm,
        FuseGelu,
        FuseLinear,
        FoldPad,
        FoldBatchNorm,
        FuseConv,
        HeadsFirst,
        SplitHeads,
        ReshapeTranspose,
        FuseAttention,
        FuseRope,
        ReshapeTranspose,  # cancels the layouts that attention was written in
        TokenRows,
        FuseEmbeddingSum,
        FuseSegmentPool,
        FuseL2Normalize,
        FuseActivation,
        FuseResidual,  # before fuse_add_norm: a residual costs a Linear nothing
        FuseActivation,  # of the sum
        FuseAddNorm,
        MergeQkv,
        DeadCode,
        PackTokens,
        ProvePadding,
    ),
    # ONNX's own operators only: TensorRT's parser is what reads the result.
    "tensorrt": (
        *CLEANUP,
        FuseLayerNorm,
        FuseRmsNorm,
        FuseGelu,
        HeadsFirst,
        SplitHeads,
        ReshapeTranspose,
        WriteOutAttention,
        ReshapeTranspose,  # joins the transposes of keys
        MergeHeads,
        DeadCode,
    ),
}

# Run on graphs in the Q/DQ form, before they are specialised.
QUANTISED: dict[str, tuple[type[Pass], ...]] = {"cpu": (FuseQuantized, DeadCode), "tensorrt": ()}
