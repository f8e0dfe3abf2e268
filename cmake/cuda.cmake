# cuda.cmake: the GPU part of the library, if nvcc is there. Sets cuda_sources; attn_kernels, the
# names of the kernels' sources; attn_gpu, whether the library has them. nvcc is needed to build
# only: the kernels become images inside the library, and the driver is looked for at run time.
set(ATTN_CUDA AUTO CACHE STRING
  "kernels for NVIDIA GPUs: ON needs nvcc, AUTO builds them where there is one, OFF none")
find_program(ATTN_NVCC nvcc HINTS /usr/local/cuda/bin)

# attn_image(name): src/cuda/kernel/<operation>/<name>.cu -> <name>.fatbin. Fails on spills and
# serialised products. Images of families from ATTN_CUDA_SM80 on (kernels.h) are for all GPUs.
function(attn_image name)
  if(name MATCHES sm90)
    set(architectures compute_90a,sm_90a)
  elseif(name MATCHES "shared|line")
    set(architectures compute_90,sm_90)
  else()
    set(architectures compute_80,sm_80 compute_90,sm_90 compute_90,compute_90)
  endif()
  string(REGEX MATCH "^[a-z]+" operation ${name})
  set(source ${PROJECT_SOURCE_DIR}/src/cuda/kernel/${operation}/${name}.cu)
  set(image ${PROJECT_BINARY_DIR}/${name}.fatbin)
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/kernel/*.cuh
    ${PROJECT_SOURCE_DIR}/src/cuda/kernel/*/*.cuh ${PROJECT_SOURCE_DIR}/src/cuda/*.inc
    ${PROJECT_SOURCE_DIR}/src/cuda/params.h ${PROJECT_SOURCE_DIR}/src/cuda/${operation}/params.h
    ${PROJECT_SOURCE_DIR}/src/cuda/shape.h
    ${PROJECT_SOURCE_DIR}/src/core/*.h ${PROJECT_SOURCE_DIR}/include/attn/*.h)
  add_custom_command(OUTPUT ${image}
    COMMAND ${PROJECT_SOURCE_DIR}/tools/cuda-image ${ATTN_NVCC} ${source} ${image} ${architectures}
    DEPENDS ${source} ${headers} ${PROJECT_SOURCE_DIR}/tools/cuda-image
      ${PROJECT_SOURCE_DIR}/tools/cuda-registers
    COMMENT "GPU kernels: ${name}" VERBATIM)
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/cuda/images.c APPEND PROPERTY OBJECT_DEPENDS
    ${image})
endfunction()

if(ATTN_CUDA AND NOT ATTN_CUDA STREQUAL AUTO AND (NOT ATTN_NVCC OR CMAKE_CROSSCOMPILING))
  message(FATAL_ERROR "ATTN_CUDA=ON: no nvcc, or a build for another system (nvcc: ${ATTN_NVCC})")
endif()

# Without nvcc: the kernels run on the CPU (tests/emulate/cuda), and images are empty.
option(ATTN_CUDA_EMULATED "the GPU's host code without kernels, for tests on an emulated GPU" OFF)

file(GLOB cuda_sources CONFIGURE_DEPENDS src/cuda/*.c src/cuda/*/*.c)
list(FILTER cuda_sources EXCLUDE REGEX "absent|images")
file(GLOB attn_kernels CONFIGURE_DEPENDS src/cuda/kernel/*/*.cu)
list(TRANSFORM attn_kernels REPLACE ".*/(.*)\\.cu" "\\1")
set(attn_gpu ON)
if(ATTN_CUDA_EMULATED)
  list(APPEND cuda_sources tests/emulate/cuda/images.c)
  message(STATUS "GPU kernels: emulated")
elseif(ATTN_CUDA AND ATTN_NVCC AND NOT CMAKE_CROSSCOMPILING AND NOT ATTN_QUICK)
  list(APPEND cuda_sources src/cuda/images.c)
  foreach(name ${attn_kernels})
    attn_image(${name})
  endforeach()
  set_source_files_properties(src/cuda/images.c PROPERTIES COMPILE_DEFINITIONS
    ATTN_IMAGES=${PROJECT_BINARY_DIR})
  message(STATUS "GPU kernels: with ${ATTN_NVCC}")
else()
  set(cuda_sources src/cuda/absent.c)
  set(attn_gpu OFF)
  message(STATUS
    "GPU kernels: none (ATTN_CUDA=${ATTN_CUDA}, ATTN_QUICK=${ATTN_QUICK}, nvcc: ${ATTN_NVCC})")
endif()
