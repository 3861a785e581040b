"""The kernels compile for every GPU that the package names, within its limits."""

import pytest

pytest.importorskip("triton")

from tests.plugins.kernel_resources import CAPABILITIES, SHARED_LIMIT, Resources, Variant, chosen_variants, compile_all


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[Variant, Resources]:
    variants = list(chosen_variants())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        return dict(zip(variants, compile_all(variants), strict=True))


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_nothing_spills_and_all_fits_the_shared_memory(capability: int, compiled: dict[Variant, Resources]):
    ours = {variant: found for variant, found in compiled.items() if variant.capability == capability}
    assert len(ours) >= 10
    assert {variant: found.stack for variant, found in ours.items() if found.stack} == {}
    limit = 1024 * SHARED_LIMIT[capability]
    assert {variant: found.shared for variant, found in ours.items() if found.shared > limit} == {}


@pytest.mark.parametrize(
    ("capability", "product"), [(80, "mma.sync"), (89, "mma.sync"), (90, "wgmma"), (100, "tcgen05")]
)
def test_products_are_taken_by_tensor_cores(capability: int, product: str, compiled: dict[Variant, Resources]):
    ptx = compiled[Variant(kernel="attention", capability=capability, head_dim=128, rows=128)].ptx
    assert product in ptx


def test_keys_and_values_are_loaded_16_bytes_at_a_time_ahead_of_their_use(compiled: dict[Variant, Resources]):
    for head_dim in (64, 128, 256):
        ptx = compiled[Variant(kernel="attention", capability=89, head_dim=head_dim)].ptx
        assert "cp.async.cg.shared.global" in ptx
        assert "ld.global.v4.b32" in ptx
