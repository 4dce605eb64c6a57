"""DeviceLauncher: the kernels on a real GPU, compiled for it, loaded and launched through cuda.core."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch
from cuda.bindings import driver
from cuda.core import LEGACY_DEFAULT_STREAM, Device, LaunchConfig, ObjectCode, Stream, launch

from paged_attn_cuda.compile import Compiler, kernel_folder
from paged_attn_cuda.toolchain import find_toolchain, target_arch
from paged_core.errors import PluginContractError, PluginLoadError

if TYPE_CHECKING:
    from collections.abc import Sequence

_FREE_SHARED_BYTES = 48 * 1024  # what a block may have without opting in to more
_MAX_CONFIGS = 4096  # a grid follows the number of tokens: bounded, so that a server does not grow with its traffic


class DeviceLauncher:
    """Torch's current GPU and the compiler for it (the Protocol Launcher). Kernels are loaded once each.

    What it launches goes to torch's current stream, whatever that is at the time, so a capture records it.
    """

    def __init__(self, device: Any, index: int, compiler: Compiler) -> None:
        self.num_processors = int(device.properties.multiprocessor_count)
        self.capability = (int(device.compute_capability[0]), int(device.compute_capability[1]))
        self.max_shared_bytes = int(device.properties.max_shared_memory_per_block_optin)
        self._index = index
        self._compiler = compiler
        self._kernels: dict[tuple[str, str], DeviceKernel] = {}
        self._streams: dict[int, Any] = {0: LEGACY_DEFAULT_STREAM}

    @staticmethod
    def create(cache_dir: str | None, arch: str | None) -> DeviceLauncher:
        """For torch's current device. Compiled kernels are kept below `cache_dir`; None = the user's own cache folder.

        `arch` overrides the architecture compiled for. Raises PluginLoadError where NVRTC has none for this GPU.
        """
        torch.cuda.init()  # type: ignore[no-untyped-call]
        index = torch.cuda.current_device()
        device = Device(index)
        device.set_current()
        if arch is None:
            capability = (int(device.compute_capability[0]), int(device.compute_capability[1]))
            arch = target_arch(capability, find_toolchain().archs)
            if arch is None:
                raise PluginLoadError(f"attn_cuda: NVRTC compiles nothing that runs on compute capability {capability}")
        return DeviceLauncher(device, index, Compiler(arch, kernel_folder(cache_dir)))

    def kernel(self, source: str, name: str) -> DeviceKernel:
        """Compile or find it, and load it. Raises PluginLoadError with the compiler's or the driver's words."""
        known = self._kernels.get((source, name))
        if known is None:
            binary = self._compiler.compile(source, name)
            try:
                loaded = ObjectCode.from_cubin(binary.code, name=name).get_kernel(binary.symbol)
            except Exception as error:  # cuda.core publishes no class for it
                raise PluginLoadError(
                    f"attn_cuda: the driver does not load the kernel {name} compiled for {self._compiler.arch}: {error}"
                ) from error
            known = self._kernels[source, name] = DeviceKernel(self, loaded, name)
        return known

    def current_stream(self) -> Any:
        """Torch's current stream, as cuda.core takes it; each is wrapped once."""
        handle = torch.cuda.current_stream(self._index).cuda_stream
        stream = self._streams.get(handle)
        if stream is None:
            stream = self._streams[handle] = Stream.from_handle(handle)
        return stream

    def allow_shared(self, kernel: DeviceKernel, num_bytes: int) -> None:
        """Let blocks of `kernel` have `num_bytes` of dynamic shared memory.

        Raises PluginContractError where that is more than the GPU has.
        """
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (code,) = driver.cuKernelSetAttribute(attribute, num_bytes, kernel.loaded.handle, driver.CUdevice(self._index))
        if int(code):
            raise PluginContractError(
                f"attn_cuda: {kernel.name} asks for {num_bytes} bytes of shared memory a block; this GPU allows "
                f"{self.max_shared_bytes} ({code.name})"
            )


class DeviceKernel:
    """One loaded kernel (the Protocol Kernel). `loaded`: cuda.core's Kernel."""

    def __init__(self, launcher: DeviceLauncher, loaded: Any, name: str) -> None:
        self.loaded = loaded
        self.name = name
        self._launcher = launcher
        self._configs: dict[tuple[tuple[int, int, int], int, int], Any] = {}
        self._shared_bytes = _FREE_SHARED_BYTES
        self._sizes = [int(info.size) for info in loaded.arguments_info]
        self._is_checked = False

    def __call__(
        self,
        grid: tuple[int, int, int],
        threads: int,
        shared_bytes: int,
        arguments: Sequence[ctypes._SimpleCData[Any]],
    ) -> None:
        """Queue the kernel on torch's current stream; the arguments' values are read before this returns.

        Raises PluginContractError where arguments are not as many or not as large, the first time, as the kernel's
        parameters: it would compute with what lies behind them.
        """
        if not self._is_checked or len(arguments) != len(self._sizes):
            self._check(arguments)
        if shared_bytes > self._shared_bytes:
            self._launcher.allow_shared(self, shared_bytes)
            self._shared_bytes = shared_bytes
        config = self._configs.get((grid, threads, shared_bytes)) or self._new_config(grid, threads, shared_bytes)
        launch(self._launcher.current_stream(), config, self.loaded, *map(_argument, arguments))

    def _check(self, arguments: Sequence[ctypes._SimpleCData[Any]]) -> None:
        given = [ctypes.sizeof(argument) for argument in arguments]
        if given != self._sizes:
            raise PluginContractError(
                f"attn_cuda: {self.name} has parameters of {self._sizes} bytes, arguments of {given} were given"
            )
        self._is_checked = True

    def _new_config(self, grid: tuple[int, int, int], threads: int, shared_bytes: int) -> Any:
        if len(self._configs) >= _MAX_CONFIGS:
            self._configs.clear()
        config = LaunchConfig(grid=grid, block=(threads, 1, 1), shmem_size=shared_bytes)
        self._configs[grid, threads, shared_bytes] = config
        return config


def _argument(value: ctypes._SimpleCData[Any]) -> Any:
    """What cuda.core's launch takes: a plain int goes in as eight bytes, of which the kernel reads as many as it has.

    That is its fast way, and it knows no c_void_p. Other types keep theirs.
    """
    number = value.value
    return number if type(number) is int else value if number is not None else 0
