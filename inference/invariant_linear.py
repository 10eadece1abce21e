"""Invariant matrix products for vLLM on a CPU: oneDNN is never given a single row.

With AVX-512, oneDNN cuts the inner dimension of a product with one row differently from the same product with two rows
or more (float32: inner dimensions above 1,024), so a token decoded alone would get other bits than the same token in a
batch or a prefill. A lone row is therefore computed beside a copy of itself. From two rows on, a row's result does not
depend on the number of rows; the tests check both.

Part of the plugin that `inference.invariant_attention` registers; does nothing by itself.
"""

from __future__ import annotations

import torch
import vllm._custom_ops as ops
from vllm._custom_ops import CPUDNNLGEMMHandler

_stock_onednn_mm = ops.onednn_mm


def onednn_mm(dnnl_handler: CPUDNNLGEMMHandler, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """As `vllm._custom_ops.onednn_mm`, with at least two rows handed to oneDNN. x: (..., k), result: (..., n)."""
    rows = x.reshape(-1, x.shape[-1])
    if rows.shape[0] != 1:
        return _stock_onednn_mm(dnnl_handler, x, bias)
    product = _stock_onednn_mm(dnnl_handler, torch.cat((rows, rows)), bias)
    return product[:1].reshape(*x.shape[:-1], product.shape[-1])


def register() -> None:
    """Put `onednn_mm` of this module in the place of vLLM's. Calling it again changes nothing."""
    ops.onednn_mm = onednn_mm
