"""Launching on a GPU: against fakes that keep to cuda.core's own signatures, and on a real GPU where there is one."""

from __future__ import annotations

import ctypes
import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from paged_core.errors import PluginContractError, PluginLoadError

cuda_core = pytest.importorskip("cuda.core", reason="the extra cuda is not installed")

from paged_attn_cuda import driver as driver_module  # noqa: E402
from paged_attn_cuda.compile import Compiler  # noqa: E402
from paged_attn_cuda.driver import DeviceLauncher  # noqa: E402
from paged_attn_cuda.toolchain import find_toolchain  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(find_toolchain().reasons != (), reason="; ".join(find_toolchain().reasons))

SOURCE = """
namespace paged {
template <class T> __global__ void fill(T* to, long long count, int first, float step) {
    extern __shared__ T rows[];
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    rows[threadIdx.x] = first + step * i;
    __syncthreads();
    if (i < count) to[i] = rows[threadIdx.x];
}
}
"""
NAME = "paged::fill<float>"


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "fill.cu").write_text(SOURCE)
    return Compiler("sm_80", tmp_path / "cache", folder)


class FakeGpu:
    """Stands for driver and torch: keeps what it is given, and gives it only to functions of cuda.core's signatures."""

    device = SimpleNamespace(
        properties=SimpleNamespace(multiprocessor_count=132, max_shared_memory_per_block_optin=232448),
        compute_capability=(9, 0),
    )

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.loaded: list[str] = []
        self.allowed: list[tuple[str, int, str, int]] = []
        self.wrapped: list[int] = []
        self.handle = 0
        self.code = 0
        self.sizes = [8, 8, 4, 4]
        launch, from_cubin, from_handle = (
            inspect.signature(function)
            for function in (cuda_core.launch, cuda_core.ObjectCode.from_cubin, cuda_core.Stream.from_handle)
        )
        get_kernel = inspect.signature(cuda_core.ObjectCode.get_kernel)

        def load(*args: Any, **kwargs: Any) -> Any:
            given = from_cubin.bind(*args, **kwargs).arguments
            assert given["module"].startswith(b"\x7fELF")
            return SimpleNamespace(get_kernel=kernel)

        def kernel(*args: Any) -> Any:
            self.loaded.append(get_kernel.bind(None, *args).arguments["name"])
            parameters = [SimpleNamespace(offset=0, size=size) for size in self.sizes]
            return SimpleNamespace(handle=f"handle of {self.loaded[-1]}", arguments_info=parameters)

        def start(*args: Any) -> None:
            given = launch.bind(*args).arguments
            self.launches.append((given["stream"], given["config"], given["kernel"], given["kernel_args"]))

        def wrap(*args: Any) -> str:
            self.wrapped.append(from_handle.bind(*args).arguments["handle"])
            return f"stream {self.wrapped[-1]}"

        def allow(attribute: Any, value: int, handle: str, device: Any) -> tuple[Any]:
            self.allowed.append((attribute.name, value, handle, int(device)))
            return (driver_module.driver.CUresult(self.code),)

        monkeypatch.setattr(driver_module, "launch", start)
        monkeypatch.setattr(driver_module, "ObjectCode", SimpleNamespace(from_cubin=load))
        monkeypatch.setattr(driver_module, "Stream", SimpleNamespace(from_handle=wrap))
        monkeypatch.setattr(driver_module.driver, "cuKernelSetAttribute", allow)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=self.handle))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


@pytest.fixture
def launcher(gpu: FakeGpu, compiler: Compiler) -> DeviceLauncher:
    return DeviceLauncher(gpu.device, 0, compiler)


ARGUMENTS = (ctypes.c_void_p(2**47), ctypes.c_int64(-5), ctypes.c_int32(-7), ctypes.c_float(0.5))


def test_the_device_is_described(launcher):
    assert (launcher.num_processors, launcher.capability, launcher.max_shared_bytes) == (132, (9, 0), 232448)


def test_a_kernel_is_compiled_loaded_by_its_symbol_and_kept(launcher, gpu):
    kernel = launcher.kernel("fill.cu", NAME)
    assert launcher.kernel("fill.cu", NAME) is kernel
    assert gpu.loaded == ["_ZN5paged4fillIfEEvPT_xif"]


def test_grid_threads_and_shared_memory_reach_the_launch(launcher, gpu):
    launcher.kernel("fill.cu", NAME)((3, 2, 1), 128, 512, ARGUMENTS)
    ((stream, config, kernel, _),) = gpu.launches
    assert stream is cuda_core.LEGACY_DEFAULT_STREAM
    assert (config.grid, config.block, config.shmem_size) == ((3, 2, 1), (128, 1, 1), 512)
    assert kernel.handle == "handle of _ZN5paged4fillIfEEvPT_xif"


def test_arguments_come_out_as_the_kernel_reads_them(launcher, gpu):
    handler = pytest.importorskip("cuda.core._kernel_arg_handler")
    launcher.kernel("fill.cu", NAME)((1, 1, 1), 32, 0, [*ARGUMENTS[:3], ctypes.c_float(0.5)])
    held = handler.ParamHolder(gpu.launches[0][3])  # what cuda.core hands to cuLaunchKernelEx
    addresses = (ctypes.c_void_p * 4).from_address(held.ptr)
    kinds = (ctypes.c_uint64, ctypes.c_int64, ctypes.c_int32, ctypes.c_float)
    assert [kind.from_address(at).value for kind, at in zip(kinds, addresses, strict=True)] == [2**47, -5, -7, 0.5]


def test_arguments_are_read_before_the_call_returns(launcher, gpu):
    count = ctypes.c_int64(1)
    kernel = launcher.kernel("fill.cu", NAME)
    kernel((1, 1, 1), 32, 0, (ARGUMENTS[0], count, *ARGUMENTS[2:]))
    count.value = 99
    assert gpu.launches[0][3][1] == 1


def test_a_null_pointer_is_zero(launcher, gpu):
    launcher.kernel("fill.cu", NAME)((1, 1, 1), 32, 0, (ctypes.c_void_p(None), *ARGUMENTS[1:]))
    assert gpu.launches[0][3][0] == 0


def test_arguments_that_are_not_the_kernels_parameters_are_refused(launcher, gpu):
    kernel = launcher.kernel("fill.cu", NAME)
    with pytest.raises(PluginContractError, match=r"parameters of \[8, 8, 4, 4\] bytes, arguments of \[8, 8, 4\]"):
        kernel((1, 1, 1), 32, 0, ARGUMENTS[:3])
    with pytest.raises(PluginContractError, match=r"arguments of \[8, 4, 4, 4\]"):
        kernel((1, 1, 1), 32, 0, (ARGUMENTS[0], ctypes.c_int32(-5), *ARGUMENTS[2:]))
    kernel((1, 1, 1), 32, 0, ARGUMENTS)
    with pytest.raises(PluginContractError, match=r"arguments of \[8, 8, 4\]"):
        kernel((1, 1, 1), 32, 0, ARGUMENTS[:3])
    assert len(gpu.launches) == 1


def test_every_launch_goes_to_the_stream_that_is_current_then(launcher, gpu):
    kernel = launcher.kernel("fill.cu", NAME)
    for gpu.handle in (0, 77, 88, 77, 0):
        kernel((1, 1, 1), 32, 0, ARGUMENTS)
    default = cuda_core.LEGACY_DEFAULT_STREAM
    assert [stream for stream, *_ in gpu.launches] == [default, "stream 77", "stream 88", "stream 77", default]
    assert gpu.wrapped == [77, 88]


def test_one_configuration_a_shape_and_a_bounded_number_of_them(launcher, gpu, monkeypatch):
    monkeypatch.setattr(driver_module, "_MAX_CONFIGS", 4)
    kernel = launcher.kernel("fill.cu", NAME)
    for blocks in (1, 2, 1, 3, 4, 5, 6, 1):
        kernel((blocks, 1, 1), 32, 0, ARGUMENTS)
    configs = [config for _, config, *_ in gpu.launches]
    assert configs[0] is configs[2]
    assert [config.grid[0] for config in configs] == [1, 2, 1, 3, 4, 5, 6, 1]
    assert len(kernel._configs) <= 4


def test_more_shared_memory_than_a_block_has_by_itself_is_opted_in_to_once(launcher, gpu):
    kernel = launcher.kernel("fill.cu", NAME)
    for num_bytes in (48 * 1024, 65536, 65536, 50000, 100000):
        kernel((1, 1, 1), 32, num_bytes, ARGUMENTS)
    name = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
    handle = "handle of _ZN5paged4fillIfEEvPT_xif"
    assert gpu.allowed == [(name, 65536, handle, 0), (name, 100000, handle, 0)]
    assert [config.shmem_size for _, config, *_ in gpu.launches] == [49152, 65536, 65536, 50000, 100000]


def test_more_shared_memory_than_the_gpu_has_is_an_error_with_both_numbers(launcher, gpu):
    gpu.code = 1
    with pytest.raises(PluginContractError, match=r"300000 bytes .* allows 232448 \(CUDA_ERROR_INVALID_VALUE\)"):
        launcher.kernel("fill.cu", NAME)((1, 1, 1), 32, 300000, ARGUMENTS)
    assert gpu.launches == []


def test_a_driver_that_does_not_load_the_kernel_is_quoted(launcher, monkeypatch):
    def refuse(code: bytes, *, name: str) -> Any:
        raise RuntimeError("CUDA_ERROR_NO_BINARY_FOR_GPU")

    monkeypatch.setattr(driver_module, "ObjectCode", SimpleNamespace(from_cubin=refuse))
    with pytest.raises(PluginLoadError, match="paged::fill<float> compiled for sm_80: CUDA_ERROR_NO_BINARY"):
        launcher.kernel("fill.cu", NAME)


def test_names_that_need_a_gpu_to_be_called_exist():
    kernel, device = cuda_core.Kernel, cuda_core.Device
    assert hasattr(kernel, "handle")
    assert hasattr(kernel, "arguments_info")
    assert pytest.importorskip("cuda.core._module").ParamInfo._fields == ("offset", "size")
    assert hasattr(device, "set_current")
    assert hasattr(device, "compute_capability")
    properties = type(inspect.getattr_static(device, "properties"))
    assert properties.__name__ in ("property", "getset_descriptor")
    described = pytest.importorskip("cuda.core._device").DeviceProperties
    assert {"multiprocessor_count", "max_shared_memory_per_block_optin"} <= set(dir(described))


@pytest.mark.gpu
class TestOnAGpu:
    @pytest.fixture
    def real(self, compiler: Compiler, tmp_path: Path) -> DeviceLauncher:
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device: this launches a kernel on one")
        launcher = DeviceLauncher.create(str(tmp_path), None)
        sources = compiler._sources
        launcher._compiler = Compiler(launcher._compiler.arch, tmp_path / "kernels", sources)
        return launcher

    def expected(self, count: int) -> torch.Tensor:
        return -7 + 0.5 * torch.arange(count, device="cuda")

    def fill(self, launcher: DeviceLauncher, to: torch.Tensor, shared_bytes: int = 512) -> None:
        count = to.numel()
        arguments = (ctypes.c_void_p(to.data_ptr()), ctypes.c_int64(count), ctypes.c_int32(-7), ctypes.c_float(0.5))
        launcher.kernel("fill.cu", NAME)((-(-count // 128), 1, 1), 128, shared_bytes, arguments)

    def test_a_kernel_computes(self, real):
        to = torch.zeros(1000, device="cuda")
        self.fill(real, to)
        torch.testing.assert_close(to, self.expected(1000))

    def test_all_the_shared_memory_that_the_gpu_says_it_has_can_be_had(self, real):
        to = torch.zeros(1000, device="cuda")
        self.fill(real, to, real.max_shared_bytes)
        torch.testing.assert_close(to, self.expected(1000))

    def test_it_runs_on_torchs_current_stream(self, real):
        to = torch.zeros(1000, device="cuda")
        self.fill(real, to)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            to.zero_()
            torch.cuda._sleep(50_000_000)
            self.fill(real, to)
            assert not stream.query(), "the launch went to another stream, or waited"
        stream.synchronize()
        torch.testing.assert_close(to, self.expected(1000))

    def test_a_graph_captures_and_replays_it(self, real):
        to = torch.zeros(1000, device="cuda")
        self.fill(real, to)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.fill(real, to)
        to.zero_()
        graph.replay()
        torch.testing.assert_close(to, self.expected(1000))

    def test_the_sources_of_this_package_suit_this_gpus_architecture(self, real):
        assert real._compiler.arch == "sm_{}{}".format(*real.capability)
