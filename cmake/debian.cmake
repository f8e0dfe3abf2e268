# debian.cmake: three Debian packages by cpack: libattn0, libattn-dev and attn, from the components
# runtime, development and program. Preset package builds them; lintian reads them in the test
# install.debian.
if(NOT PROJECT_IS_TOP_LEVEL OR CMAKE_CROSSCOMPILING OR ATTN_PYTHON OR NOT TARGET attn_cli)
  return()
endif()
set(CPACK_GENERATOR DEB)
set(ATTN_MAINTAINER "libattn <libattn@example.org>" CACHE STRING
  "who answers for the Debian packages: NAME <ADDRESS>")
set(CPACK_PACKAGE_CONTACT ${ATTN_MAINTAINER})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_COMPONENTS_ALL runtime development program)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_DEBIAN_PACKAGE_HOMEPAGE ${PROJECT_HOMEPAGE_URL})
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS OFF)

# attn_debian(component package section summary depends)
function(attn_debian component package section summary depends)
  string(TOUPPER ${component} name)
  set(CPACK_DEBIAN_${name}_PACKAGE_NAME ${package} PARENT_SCOPE)
  set(CPACK_DEBIAN_${name}_PACKAGE_SECTION ${section} PARENT_SCOPE)
  set(CPACK_DEBIAN_${name}_PACKAGE_DEPENDS "${depends}" PARENT_SCOPE)
  set(CPACK_COMPONENT_${name}_DESCRIPTION "${summary}
Softmax(Q K^T + mask) V and its gradients, tile by tile (FlashAttention), so
that the matrix of scores never exists: on CPUs (AMX, AVX-512, AVX2, NEON)
and NVIDIA GPUs, in f64, f32, f16 and bf16." PARENT_SCOPE)
  set(folder ${PROJECT_BINARY_DIR}/debian/${package})
  file(MAKE_DIRECTORY ${folder})
  file(WRITE ${folder}/changelog "libattn (${PROJECT_VERSION}) unstable; urgency=low

  * See CHANGELOG.md of the sources.

 -- ${ATTN_MAINTAINER}  Mon, 23 Nov 2026 00:00:00 +0000
")
  execute_process(COMMAND gzip -9nf ${folder}/changelog)
  install(FILES ${folder}/changelog.gz ${PROJECT_SOURCE_DIR}/cmake/debian/copyright
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${component} EXCLUDE_FROM_ALL)
endfunction()
set(same "libattn0 (= ${PROJECT_VERSION})")
attn_debian(runtime libattn${PROJECT_VERSION_MAJOR} libs "exact attention as a C library" "")
attn_debian(development libattn-dev libdevel "headers of libattn, and the library for linking"
  "${same}")
attn_debian(program attn science "exact attention on the command line, measured and checked" "")
# cpack's own shlibs come with scripts that call ldconfig, in place of a trigger
set(shlibs ${PROJECT_BINARY_DIR}/debian/shlibs)
file(WRITE ${shlibs} "libattn ${PROJECT_VERSION_MAJOR} libattn${PROJECT_VERSION_MAJOR}"
  " (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${shlibs}
  ${PROJECT_SOURCE_DIR}/cmake/debian/triggers)
include(CPack)
