# page.cmake: the page (docs/page) as one folder that opens from disk: its sources, and the library
# as WebAssembly in a script, since a browser fetches nothing from file://.
set(page_folder ${PROJECT_BINARY_DIR}/page)
file(GLOB page_sources CONFIGURE_DEPENDS docs/page/module/*.c)
file(GLOB page_files CONFIGURE_DEPENDS docs/page/*.html docs/page/*.css docs/page/*.js)
file(GLOB ladder_sources CONFIGURE_DEPENDS examples/ladder/*.c)
add_executable(page_module ${page_sources} ${ladder_sources})
target_include_directories(page_module PRIVATE src examples/ladder docs/page/module)
target_compile_options(page_module PRIVATE -msimd128)
target_link_libraries(page_module PRIVATE attn_support)
target_link_options(page_module PRIVATE -mexec-model=reactor -Wl,--strip-all)
add_custom_command(OUTPUT ${page_folder}/module.js
  COMMAND ${PROJECT_SOURCE_DIR}/docs/page/build ${page_folder} $<TARGET_FILE:page_module>
    ${page_files}
  DEPENDS page_module ${page_files} ${PROJECT_SOURCE_DIR}/docs/page/build
  COMMENT "the page: ${page_folder}/index.html" VERBATIM)
add_custom_target(page ALL DEPENDS ${page_folder}/module.js)

# The page in Chromium, beside the program of the release build.
if(ATTN_TESTS)
  attn_test(page quick tests/page/test_page.py ${page_folder} ${PROJECT_SOURCE_DIR}/build/attn)
  attn_test(page.axe quick tests/page/test_axe.py ${page_folder})
  set_tests_properties(${ATTN_TEST_PREFIX}page ${ATTN_TEST_PREFIX}page.axe PROPERTIES
    RUN_SERIAL ON ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endif()
