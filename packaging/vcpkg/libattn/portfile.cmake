# vcpkg install libattn --overlay-ports=packaging/vcpkg: the checkout that this port lies in.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

vcpkg_check_features(OUT_FEATURE_OPTIONS features FEATURES cuda ATTN_CUDA)
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DATTN_CLI=OFF -DATTN_TESTS=OFF -DATTN_EXAMPLES=OFF ${features})
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME attn CONFIG_PATH lib/cmake/attn)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
