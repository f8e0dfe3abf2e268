"""The recipe of Conan 2: conan create packaging/conan builds the checkout that it lies in, without
the program and the tests, and tries the package with examples/attend.c."""
from os.path import join

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load, rmdir

CHECKOUT = "../.."


class Libattn(ConanFile):
    name = "libattn"
    license = "Apache-2.0"
    description = "Exact tiled attention (FlashAttention) as a C library"
    topics = ("attention", "flash-attention", "transformer", "llm")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "cuda": [True, False]}
    default_options = {"shared": False, "fPIC": True, "cuda": False}
    languages = "C"
    implements = "auto_shared_fpic",

    def set_version(self):
        lists = load(self, join(self.recipe_folder, CHECKOUT, "CMakeLists.txt"))
        self.version = lists.split("project(libattn VERSION ")[1].split()[0]

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "src/*", "tools/*"):
            copy(self, pattern, join(self.recipe_folder, CHECKOUT), self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def validate(self):
        if self.settings.compiler == "msvc":
            raise ConanInvalidConfiguration("libattn is written for gcc and clang, not for MSVC")

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("CLI", "TESTS", "EXAMPLES"):
            toolchain.cache_variables[f"ATTN_{part}"] = False
        toolchain.cache_variables["ATTN_CUDA"] = bool(self.options.cuda)
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, join(self.package_folder, "licenses"))
        for found_by_others in ("lib/cmake", "lib/pkgconfig", "share"):
            rmdir(self, join(self.package_folder, found_by_others))

    def package_info(self):
        self.cpp_info.libs = ["attn"]
        self.cpp_info.set_property("cmake_file_name", "attn")
        self.cpp_info.set_property("cmake_target_name", "attn::attn")
        self.cpp_info.set_property("pkg_config_name", "libattn")
        if self.settings.os in ("Linux", "FreeBSD"):
            self.cpp_info.system_libs = ["m", "pthread", "dl"]
