# Copyright 2026 The nanotron_hpc developers.
#
# SPDX-License-Identifier: Apache-2.0

import os

from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.rocm import ROCmPackage

from spack.package import *


class NanotronHpc(CMakePackage, CudaPackage, ROCmPackage):
    """Distributed transformer training for MPI machines: data, tensor, pipeline, context and
    expert parallelism from one Fortran-namelist deck."""

    # The clone that this file belongs to.
    git = "file://" + os.path.abspath(os.path.join(os.path.dirname(__file__), *[".."] * 6))

    test_requires_compiler = False

    license("Apache-2.0", checked_by="nanotron_hpc developers")

    version("main", branch="main", preferred=True)

    variant("openmp", default=False, description="Several threads per rank on CPUs")
    variant("tests", default=False, description="Build the test suite")
    variant("tools", default=True, description="What the Python tools need")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("fortran", type="build", when="+tests")
    depends_on("cmake@3.22:", type="build")
    depends_on("pkgconfig", type="build")

    depends_on("mpi")
    depends_on("hdf5@1.10.5:1.14+mpi+hl")
    depends_on("fmt@9:")
    depends_on("cli11@2.2:")
    depends_on("nlohmann-json@3.10:")
    depends_on("xxhash@0.8:")

    depends_on("kokkos@3.7:+serial cxxstd=20")
    depends_on("openblas@0.3.20:")
    with when("~cuda~rocm"):
        depends_on("onednn@2.6:")
    with when("+openmp~cuda~rocm"):
        depends_on("kokkos+openmp")
        depends_on("onednn cpu_runtime=omp")
    with when("~openmp~cuda~rocm"):
        depends_on("onednn cpu_runtime=seq")
    with when("+cuda"):
        depends_on("cuda@12.4:")
        depends_on("nccl@2.26:")
        depends_on("cudnn@9:")
        depends_on("kokkos@4.7.1:4+cuda+cuda_lambda+wrapper")
        conflicts("cuda_arch=none", msg="name the GPU: cuda_arch=90 for Hopper")

    with when("+rocm"):  # not tried
        depends_on("rocblas")
        depends_on("hipblaslt")
        depends_on("rccl")
        depends_on("kokkos@4.6:4+rocm")

    for variant_of, values, packages in (
        ("cuda_arch", CudaPackage.cuda_arch_values, ("kokkos", "nccl")),
        ("amdgpu_target", ROCmPackage.amdgpu_targets, ("kokkos", "rocblas", "hipblaslt", "rccl")),
    ):
        for value in values:
            for package in packages:
                depends_on(f"{package} {variant_of}={value}", when=f"{variant_of}={value}")

    with when("+tools"), default_args(type="run"):
        depends_on("python@3.9:")
        depends_on("py-h5py")
        depends_on("py-matplotlib")
        depends_on("py-numpy")
        depends_on("py-tokenizers")
        depends_on("py-xxhash")
    with when("+tests"), default_args(type="build"):
        depends_on("googletest@1.12:")
        depends_on("python@3.9:")
        depends_on("py-h5py")
        depends_on("py-numpy")
        depends_on("py-pytest")
        depends_on("py-safetensors")
        depends_on("py-xxhash")

    conflicts("%gcc@:11", msg="GCC 12 or newer, for C++20")
    conflicts("+cuda", when="+rocm", msg="a build is for NVIDIA's GPUs or for AMD's")
    conflicts("+openmp", when="+rocm", msg="on GPUs a rank has one thread")
    conflicts("+openmp", when="+cuda", msg="on GPUs a rank has one thread")

    def cmake_args(self):
        args = [
            self.define("NANOTRON_ARCH", ""),  # Spack's compiler wrapper has the target's flags
            self.define_from_variant("NANOTRON_BUILD_TESTS", "tests"),
            self.define_from_variant("NANOTRON_ENABLE_CUDA", "cuda"),
            self.define_from_variant("NANOTRON_ENABLE_HIP", "rocm"),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(
                self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value)
            )
        if self.spec.satisfies("+rocm"):
            args.append(self.define("CMAKE_CXX_COMPILER", self.spec["hip"].hipcc))
        return args

    def setup_run_environment(self, env):
        env.set("NANOTRON_HPC_SHARE", self.prefix.share.nanotron_hpc)

    def test_version(self):
        """the programs start"""
        for name in ("nanotron_hpc", "nanotron_generate", "nanotron_bench", "nanotron_plan"):
            with test_part(self, f"test_version_{name}", purpose=f"{name} --version"):
                program = which(join_path(self.prefix.bin, name), required=True)
                assert f"{name} " in program("--version", output=str.split, error=str.split)

    def test_check_deck(self):
        """an installed deck can be planned"""
        program = which(self.prefix.bin.nanotron_hpc, required=True)
        deck = join_path(self.prefix.share.nanotron_hpc.input, "llama_30m.deck")
        out = program("--plan", "--set", "model.vocab_size=256", deck, output=str.split)
        assert "parameters" in out
