# The host side of GPUs, compiled anew against a pretended driver, with or without nvcc.
set(src ${PROJECT_SOURCE_DIR}/src)
file(GLOB sources CONFIGURE_DEPENDS ${src}/cuda/*.c ${src}/cuda/*/*.c)
list(FILTER sources EXCLUDE REGEX "absent|images")
list(TRANSFORM system_sources PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE own_system)
add_library(fake_driver OBJECT ${CMAKE_CURRENT_LIST_DIR}/fake_driver.c ${sources} ${own_system})
target_include_directories(fake_driver PUBLIC ${src} ${CMAKE_CURRENT_LIST_DIR})
target_compile_definitions(fake_driver PUBLIC dlopen=fake_dlopen dlsym=fake_dlsym
  dlerror=fake_dlerror)
target_link_libraries(fake_driver PUBLIC attn_static)
