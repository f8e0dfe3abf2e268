# wasm32.cmake: WebAssembly through wasi-libc: one thread, and headers that stand in for those of
# threads, shared libraries and protected memory (cmake/wasm32). Programs run under
# cmake/wasm32/run.mjs; memory grows up to 4 GiB.
set(ATTN_SINGLE ON) # a program is one thread
# Sizes are of 64 bits everywhere. One beyond 32 is refused by the allocator's caller.
add_compile_options(-Wno-shorten-64-to-32)
include_directories(SYSTEM ${PROJECT_SOURCE_DIR}/cmake/wasm32)
add_compile_definitions(_WASI_EMULATED_SIGNAL _WASI_EMULATED_GETPID
  _WASI_EMULATED_PROCESS_CLOCKS)
find_program(ATTN_WASM_LD NAMES wasm-ld-14 wasm-ld REQUIRED)
add_link_options(-fuse-ld=${ATTN_WASM_LD} -Wl,-z,stack-size=1048576 -Wl,--stack-first)
link_libraries(wasi-emulated-signal wasi-emulated-getpid wasi-emulated-process-clocks)
set(CMAKE_EXECUTABLE_SUFFIX .wasm)
