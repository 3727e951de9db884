"""What the switch would do with CUDA tensors, looked at without a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from samebits.errors import UncoveredError
from samebits.mode import coverage, fallback, install
from samebits.mode.derive import Schemas
from samebits.mode.fallback import Stock, on_cuda
from samebits.mode.registry import OVERRIDES
from samebits.mode.table import GROUPS, Group, Kind
from samebits.mode.table_cuda import CUDA_GROUPS

ON_GPU = frozenset(name for name, key in OVERRIDES if key.endswith("CUDA"))


def kind(name: str) -> Kind:
    return coverage.classify(name, ON_GPU, "CUDA").kind


def test_no_name_is_listed_twice() -> None:
    names = [name for group in CUDA_GROUPS for name in group.names.split()]
    assert len(names) == len(set(names))


def test_the_families_of_a_model_are_covered() -> None:
    for name in (
        "linear", "mm", "addmm", "bmm", "baddbmm", "_softmax", "_log_softmax", "rms_norm",
        "native_layer_norm", "sum.dim_IntList", "mean.dim", "scaled_dot_product_attention", "topk",
        "sort", "_index_put_impl_", "embedding_dense_backward",
    ):  # fmt: skip
        assert kind(name) is Kind.COVERED, name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("silu", Kind.COVERED), ("tanh", Kind.TESTED), ("rsqrt", Kind.TESTED),
        ("pow.Tensor_Scalar", Kind.TESTED),
        ("add.Tensor", Kind.EXACT), ("cat", Kind.EXACT), ("argmax", Kind.EXACT),
        ("max_pool2d_with_indices_backward", Kind.REFUSED), ("cudnn_convolution", Kind.REFUSED),
        ("_scaled_dot_product_flash_attention", Kind.REFUSED), ("median.dim", Kind.REFUSED),
        ("median.dim_values", Kind.REFUSED), ("median", Kind.EXACT), ("normal_", Kind.RANDOM),
        ("_fft_r2c", Kind.REFUSED),
    ],
)  # fmt: skip
def test_kinds_that_differ_from_a_cpu(name: str, expected: Kind) -> None:
    assert kind(name) is expected


def test_forms_of_an_overload_are_found() -> None:
    for form in ("scatter.reduce", "scatter_.reduce", "scatter.reduce_out"):
        assert coverage.classify(form, frozenset(), "CUDA").kind is Kind.REFUSED, form
    assert coverage.classify("scatter.src", frozenset(), "CUDA").kind is Kind.EXACT


@pytest.mark.skipif(not fallback.CUDA_BUILD, reason="torch was built without CUDA")
def test_every_kernel_for_cuda_is_classified() -> None:
    names = [n for n in coverage.schemas("CUDA") if coverage.has_kernel(n, "CUDA")]
    assert len(names) > 1000
    assert coverage.unknown(ON_GPU, "CUDA") == []


def test_an_override_has_a_schema_on_both_devices() -> None:
    schemas = Schemas()
    for name, key in OVERRIDES:
        if key in ("CUDA", "AutogradCUDA") and schemas.get(name) is None:
            assert name.endswith(".dtype"), name  # younger than the oldest torch


def test_integers_pass_a_refusal() -> None:
    group = Group(Kind.REFUSED, "for a test", "", integers=True)
    refused = install.Refusal("aten::cumsum", "CPU", group)
    assert refused(torch.arange(4), 0).tolist() == [0, 1, 3, 6]
    assert refused(torch.tensor([True, True]), 0, dtype=torch.int64).tolist() == [1, 2]
    for x, options in ((torch.ones(3), {}), (torch.arange(3), {"dtype": torch.float32})):
        with pytest.raises(UncoveredError, match="for a test"):
            refused(x, 0, **options)


def test_groups_without_exact_integers_refuse_them() -> None:
    refused = install.Refusal("aten::median", "CPU", Group(Kind.REFUSED, "for a test", ""))
    with pytest.raises(UncoveredError):
        refused(torch.arange(3))


def test_stock_follows_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = Stock("neg")
    keys, _ = stock._kernel
    stock._cuda = (keys, lambda keys, *args, **kwargs: "on a GPU")
    x = torch.ones(2)
    assert stock(x).tolist() == [-1, -1]
    monkeypatch.setattr(fallback, "on_cuda", lambda values: bool(tuple(values)))
    assert stock(x) == "on a GPU"


def test_a_list_of_tensors_says_where_it_is() -> None:
    assert not on_cuda([torch.ones(1), [torch.ones(1)], 3, None])
    if torch.cuda.is_available():
        assert on_cuda([1, [torch.ones(1, device="cuda")]])


def test_nothing_is_installed_for_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    install.overrides.cache_clear()
    install.gpu.cache_clear()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    try:
        assert install.devices() == ("CPU",)
        assert not [key for _, key in install.overrides() if key.endswith("CUDA")]
    finally:
        install.overrides.cache_clear()
        install.gpu.cache_clear()


def test_the_switch_loads_no_triton_and_starts_no_gpu() -> None:
    code = (
        "import sys, torch, samebits; samebits.enable(); torch.ones(3, 3).softmax(-1);"
        "print('triton' in sys.modules, torch.cuda.is_initialized())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


def test_the_groups_of_a_cpu_that_a_gpu_changes_have_a_reason() -> None:
    known = {name for group in GROUPS for name in group.names.split()}
    for group in CUDA_GROUPS:
        assert group.why and not group.why.endswith("."), group.why
        for name in group.names.split():
            same = name in known and group.kind is coverage.classify(name, frozenset()).kind
            assert not same or group.why != coverage.classify(name, frozenset()).why, name
