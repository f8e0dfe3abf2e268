# windows.cmake: Windows through mingw-w64.
add_compile_definitions(__USE_MINGW_ANSI_STDIO=1) # printf of C11
add_compile_options(-Wno-float-conversion) # its isnan is a macro that converts in a branch
# gcc aligns no stack beyond 16 bytes there, but moves vectors as if it did.
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wa,-muse-unaligned-vector-move)
endif()
