# cuda.cmake: the GPU part of the library, if nvcc is there. Sets cuda_sources. nvcc is needed to
# build only: the kernels become images inside the library, and the driver is looked for at run
# time.
set(ATTN_CUDA AUTO CACHE STRING
  "kernels for NVIDIA GPUs: ON needs nvcc, AUTO builds them where there is one, OFF none")
find_program(ATTN_NVCC nvcc HINTS /usr/local/cuda/bin)

# attn_image(name...): src/cuda/kernel/<operation>/<name>.cu -> <name>.fatbin. Fails on spills and
# serialised products. Images of families from ATTN_CUDA_SM80 on (kernels.h) are for all GPUs.
function(attn_image name)
  if(name MATCHES sm90)
    set(architectures compute_90a,sm_90a)
  elseif(name MATCHES shared)
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

if(ATTN_CUDA_EMULATED)
  enable_language(CXX)
  file(GLOB cuda_sources CONFIGURE_DEPENDS src/cuda/*.c src/cuda/forward/*.c
    src/cuda/backward/*.c src/cuda/merge/*.c src/cuda/append/*.c src/cuda/mask/*.c
    src/cuda/starts/*.c
    src/cuda/elements/*.c)
  list(FILTER cuda_sources EXCLUDE REGEX "absent|images")
  list(APPEND cuda_sources tests/emulate/cuda/images.c)
  set(cuda_libraries ${CMAKE_DL_LIBS})
  message(STATUS "GPU kernels: emulated")
elseif(ATTN_CUDA AND ATTN_NVCC AND NOT CMAKE_CROSSCOMPILING AND NOT ATTN_QUICK)
  file(GLOB cuda_sources CONFIGURE_DEPENDS src/cuda/*.c src/cuda/forward/*.c
    src/cuda/backward/*.c src/cuda/merge/*.c src/cuda/append/*.c src/cuda/mask/*.c
    src/cuda/starts/*.c
    src/cuda/elements/*.c)
  list(FILTER cuda_sources EXCLUDE REGEX absent)
  attn_image(forward_sm90)
  attn_image(forward_sm90_steps)
  attn_image(forward_sm90_dropout)
  attn_image(forward_sm90_dropout_steps)
  attn_image(forward_sm90_wide)
  attn_image(forward_sm90_paged)
  attn_image(forward_sm90_softcap)
  attn_image(forward_sm90_alibi)
  attn_image(forward_sm90_mask)
  attn_image(forward_sm90_bias)
  attn_image(forward_sm80)
  attn_image(forward_sm80_dropout)
  attn_image(forward_generic)
  attn_image(forward_codes)
  attn_image(forward_few_shared)
  attn_image(forward_few)
  attn_image(backward_sm80)
  attn_image(backward_sm80_steps)
  attn_image(backward_sm90)
  attn_image(backward_sm90_light)
  attn_image(backward_sm90_alibi)
  attn_image(backward_sm90_mask)
  attn_image(backward_sm90_bias)
  attn_image(backward_sm90_tables)
  attn_image(backward_sm90_elements)
  attn_image(backward_sm90_steps_tables)
  attn_image(backward_sm90_steps)
  attn_image(backward_sm90_f32)
  attn_image(backward_generic)
  attn_image(merge_generic)
  attn_image(append_generic)
  attn_image(mask_generic)
  attn_image(starts_generic)
  attn_image(elements_generic)
  set_source_files_properties(src/cuda/images.c PROPERTIES COMPILE_DEFINITIONS
    ATTN_IMAGES=${PROJECT_BINARY_DIR})
  set(cuda_libraries ${CMAKE_DL_LIBS})
  message(STATUS "GPU kernels: with ${ATTN_NVCC}")
else()
  set(cuda_sources src/cuda/absent.c)
  message(STATUS
    "GPU kernels: none (ATTN_CUDA=${ATTN_CUDA}, ATTN_QUICK=${ATTN_QUICK}, nvcc: ${ATTN_NVCC})")
endif()

# attn_emulated_gpu(): the driver whose kernels run on the CPU, and the tests that use it. A program
# finds it by LD_LIBRARY_PATH.
function(attn_emulated_gpu)
  set(folder ${PROJECT_SOURCE_DIR}/tests/emulate/cuda)
  add_library(emulated_gpu SHARED ${folder}/driver.cpp ${folder}/machine.cpp ${folder}/pairs.cpp
    ${folder}/tensor_map.cpp)
  foreach(name forward_few_shared forward_generic forward_codes forward_few forward_sm80
      forward_sm80_dropout
      forward_sm90 forward_sm90_steps forward_sm90_dropout forward_sm90_dropout_steps
      forward_sm90_wide forward_sm90_paged forward_sm90_softcap forward_sm90_alibi
      forward_sm90_mask forward_sm90_bias backward_generic backward_sm80 backward_sm80_steps
      backward_sm90 backward_sm90_alibi backward_sm90_mask backward_sm90_bias
      backward_sm90_light backward_sm90_tables backward_sm90_elements
      backward_sm90_steps
      backward_sm90_steps_tables backward_sm90_f32
      merge_generic append_generic mask_generic starts_generic elements_generic)
    string(REGEX MATCH "^[a-z]+" operation ${name})
    add_library(emulated_${name} OBJECT ${folder}/kernels.cpp)
    target_compile_definitions(emulated_${name} PRIVATE EMULATED_${name}
      EMULATED_SOURCE="cuda/kernel/${operation}/${name}.cu")
    # -w: pragmas and attributes of nvcc. -O1: more costs minutes of compilation.
    target_compile_options(emulated_${name} PRIVATE -w -O1)
    target_link_libraries(emulated_gpu PRIVATE emulated_${name})
    list(APPEND parts emulated_${name})
  endforeach()
  add_library(emulated_train_gpt OBJECT ${folder}/train_gpt.cpp)
  target_include_directories(emulated_train_gpt PRIVATE examples)
  target_compile_options(emulated_train_gpt PRIVATE -w -O1)
  target_link_libraries(emulated_gpu PRIVATE emulated_train_gpt)
  foreach(part emulated_gpu emulated_train_gpt ${parts})
    target_include_directories(${part} BEFORE PRIVATE ${folder} src include)
    target_compile_features(${part} PRIVATE cxx_std_20)
    set_target_properties(${part} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  endforeach()
  set_target_properties(emulated_gpu PROPERTIES OUTPUT_NAME cuda SOVERSION 1
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/emulated_gpu)
  target_link_libraries(emulated_gpu PRIVATE ${attn_threads})
  set(run env ATTN_EMULATED_GPU=1 LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/emulated_gpu)
  attn_test(gpu.sm90 quick ${run} $<TARGET_FILE:attn_cli> check --device cuda
    ${folder}/problems.txt)
  attn_test(gpu.sm80 quick ${run} ATTN_EMULATED_CAPABILITY=80 $<TARGET_FILE:attn_cli> check
    --device cuda ${folder}/sm80.txt)
  attn_test(gpu.limit quick ${run} ${folder}/check-limit $<TARGET_FILE:attn_cli>)
  add_executable(test_gpu_append tests/cuda/test_gpu_append.c)
  target_link_libraries(test_gpu_append PRIVATE attn_trial)
  attn_test(gpu.append quick ${run} $<TARGET_FILE:test_gpu_append>)
  add_executable(test_gpu_elements tests/cuda/test_gpu_elements.c)
  target_link_libraries(test_gpu_elements PRIVATE attn_trial)
  attn_test(gpu.elements quick ${run} $<TARGET_FILE:test_gpu_elements> 3)
  attn_test(gpu.elements_sm80 quick ${run} ATTN_EMULATED_CAPABILITY=80
    $<TARGET_FILE:test_gpu_elements> 11)
  add_executable(test_gpu_batch tests/cuda/test_gpu_batch.c)
  target_link_libraries(test_gpu_batch PRIVATE attn_trial)
  attn_test(gpu.batch quick ${run} $<TARGET_FILE:test_gpu_batch> few)
  add_executable(test_gpu_starts tests/cuda/test_gpu_starts.c)
  target_link_libraries(test_gpu_starts PRIVATE attn_trial)
  attn_test(gpu.starts quick ${run} $<TARGET_FILE:test_gpu_starts>)
  attn_test(gpu.o_f32 quick ${run} $<TARGET_FILE:test_o_f32> gpu)
  attn_test(gpu.shared quick ${run} $<TARGET_FILE:test_shared> gpu)
  if(TARGET train_gpt)
    attn_test(gpu.train quick ${run} $<TARGET_FILE:test_train_gpu>)
  endif()
  # The release build's Python package with this build's library.
  attn_test(gpu.python quick env ATTN_EMULATED_GPU=1
    LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/emulated_gpu:${PROJECT_BINARY_DIR}
    tools/python-test ${PROJECT_SOURCE_DIR}/build test_emulated.py)
  set_tests_properties(${ATTN_TEST_PREFIX}gpu.python PROPERTIES FIXTURES_REQUIRED python)
endfunction()

# attn_cuda_tests(): tests of the refusals of tools/cuda-image and of plans, where nvcc is; of
# kernels against the oracle, where a GPU is. Elsewhere they say that they are skipped.
function(attn_cuda_tests)
  if(ATTN_CUDA_EMULATED)
    attn_emulated_gpu()
    return()
  endif()
  if(cuda_libraries)
    foreach(refused "spill:bytes spill" "serial:C7510" "registers:registers of a running product")
      string(REGEX MATCH "^([a-z]+):(.*)" ignored ${refused})
      attn_test(cuda.refused_${CMAKE_MATCH_1} quick tests/cuda/check-refused ${ATTN_NVCC}
        tests/cuda/refused_${CMAKE_MATCH_1}.cu ${PROJECT_BINARY_DIR}/refused_${CMAKE_MATCH_1}
          ${CMAKE_MATCH_2})
    endforeach()
  endif()
  if(TARGET attn_cli)
    attn_test(cuda.program quick tests/cuda/check-program $<TARGET_FILE:attn_cli>)
    attn_test(cuda.plans quick tests/cuda/check-plans $<TARGET_FILE:attn_cli> tests/plan/h200.txt)
    foreach(suite tests/cuda/fast tests/cuda/steps tests/cuda/paged tests/cuda/sown
      tests/cuda/batches tests/cuda/few tests/op/smoke tests/op/regress tests/op/quantised)
      get_filename_component(noun ${suite} NAME)
      attn_test(cuda.${noun} full tests/cuda/check-suite $<TARGET_FILE:attn_cli> ${suite}.txt)
    endforeach()
    add_executable(test_gpu_append tests/cuda/test_gpu_append.c)
    target_link_libraries(test_gpu_append PRIVATE attn_trial)
    attn_test(cuda.append full test_gpu_append)
    add_executable(test_gpu_elements tests/cuda/test_gpu_elements.c)
    target_link_libraries(test_gpu_elements PRIVATE attn_trial)
    attn_test(cuda.gpu_elements full test_gpu_elements)
    add_executable(test_gpu_merge tests/cuda/test_gpu_merge.c)
    target_link_libraries(test_gpu_merge PRIVATE attn_trial)
    attn_test(cuda.merge full test_gpu_merge)
    add_executable(test_gpu_batch tests/cuda/test_gpu_batch.c)
    target_link_libraries(test_gpu_batch PRIVATE attn_trial)
    attn_test(cuda.batch full test_gpu_batch)
    add_executable(test_gpu_starts tests/cuda/test_gpu_starts.c)
    target_link_libraries(test_gpu_starts PRIVATE attn_trial)
    attn_test(cuda.starts full test_gpu_starts)
    if(TARGET test_train_gpu)
      attn_test(cuda.train full test_train_gpu)
    endif()
    attn_test(cuda.halves full test_halves gpu)
    attn_test(cuda.o_f32 full test_o_f32 gpu)
    attn_test(cuda.shared full test_shared gpu)
    attn_test(cuda.gradients full tests/cuda/check-gradients $<TARGET_FILE:attn_cli>
      tests/op/gradients.txt)
    attn_test(cuda.gradients_sm90 full tests/cuda/check-suite $<TARGET_FILE:attn_cli>
      tests/cuda/gradients.txt)
  endif()
endfunction()
